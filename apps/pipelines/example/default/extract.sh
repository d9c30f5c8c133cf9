#!/bin/sh
# Simulates fetching the rows of a day. Argument: the day. TENURE_ARGS has all parameters.
set -eu
rows=$(printf '%s' "$TENURE_ARGS" | sed -n 's/.*"rows":\([0-9]*\).*/\1/p')
n=0
while [ "$n" -lt "$rows" ]; do
  n=$((n + 1))
  echo "::progress $((100 * n / rows)) row $n of $rows for $1"
  sleep 0.1
done
echo "fetched $rows rows of $1"
