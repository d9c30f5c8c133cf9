#!/bin/sh
# Prints the tests of the demo, one per line. Takes a while, as the collection of a real suite does.
sleep 3
for suite in cart catalog checkout login orders payment profile search; do
  for tens in 0 1 2; do
    for ones in 0 1 2 3 4 5 6 7 8 9; do
      case $tens$ones in
        00 | 26 | 27 | 28 | 29) ;;
        *) echo "$suite/test_$tens$ones" ;;
      esac
    done
  done
done
