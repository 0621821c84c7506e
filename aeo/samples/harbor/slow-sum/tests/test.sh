#!/bin/sh
[ "$(cat /app/sum.txt)" = 500500 ] && reward=1 || reward=0
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
