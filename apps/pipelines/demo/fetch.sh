#!/bin/sh
# Fails every other time, as a busy source would.
tried="${0%/*}/fetch.tried"
sleep 1
if rm "$tried" 2>/dev/null; then
  exit 0
fi
touch "$tried"
echo "::error BUSY the source is busy"
exit 75
