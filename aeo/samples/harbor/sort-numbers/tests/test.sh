#!/bin/sh
seq 20 -1 1 > /tmp/expected.txt
if cmp /tmp/expected.txt /app/numbers.txt; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
