#!/bin/sh
echo "$(cat /app/prime.txt) is not the largest prime number"
echo 0 > /logs/verifier/reward.txt
