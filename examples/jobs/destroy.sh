#!/bin/sh
# Simulates destroying a database.
set -eu
echo "::progress 50 removing $TENURE_RESOURCE"
sleep 1
echo "$TENURE_RESOURCE is gone"
