#!/bin/sh
# Simulates creating a database of `size` parts, one per second. Lines that start with `::` are
# directives, all others go to the log. With `"fail": true` it fails with a transient error.
set -eu
size=$(printf %s "$TENURE_ARGS" | sed -n 's/.*"size": *\([0-9]*\).*/\1/p')
size=${size:-3}
if [ "$size" -gt 100 ]; then
  echo "::error BAD_SIZE $size parts are too many; at most 100"
  exit 1
fi
part=0
while [ "$part" -lt "$size" ]; do
  echo "::progress $((100 * part / size)) part $((part + 1)) of $size"
  sleep 1
  part=$((part + 1))
done
case $TENURE_ARGS in
*'"fail":true'*)
  echo "::error NO_ROOM the disk is full"
  exit 1
  ;;
esac
echo "$TENURE_RESOURCE has $size parts, made by attempt $TENURE_ATTEMPT under token $TENURE_TOKEN"
echo "::result {\"parts\": $size}"
