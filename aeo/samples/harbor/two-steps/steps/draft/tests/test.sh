#!/bin/sh
printf 'bread\nmilk\napples\n' > /tmp/expected.txt
cmp /tmp/expected.txt /app/list.txt && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
