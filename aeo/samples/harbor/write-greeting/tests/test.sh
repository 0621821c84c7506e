#!/bin/sh
if [ "$(cat /app/greeting.txt)" = "Hello, world!" ]; then
    echo "the greeting is right"
    echo 1 > /logs/verifier/reward.txt
else
    echo "the greeting is missing or wrong"
    echo 0 > /logs/verifier/reward.txt
fi
