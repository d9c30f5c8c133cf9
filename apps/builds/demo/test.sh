#!/bin/sh
# A small test: sh test.sh NAME. In its first run, one test fails and one takes long.
echo "$TENURE_WORKER $TENURE_TERM $1" >> runs
case $1 in
  search/test_07)
    if mkdir failed 2> /dev/null; then
      echo "connection reset by peer"
      exit 1
    fi
    ;;
  checkout/test_03)
    if mkdir slow 2> /dev/null; then
      echo "$TENURE_WORKER" > slow/worker.new
      mv slow/worker.new slow/worker
      sleep 20
    fi
    ;;
esac
sleep 0.1
