#!/bin/sh
# Three numbers: the poem has its four lines, speaks of the sea, and the share of lines that are short enough.
lines=$(wc -l < /app/poem.txt) || lines=0
short=$(grep -c -E '^.{1,40}$' /app/poem.txt) || short=0
[ "$lines" -eq 4 ] && complete=1 || complete=0
grep -q -i sea /app/poem.txt && topic=1 || topic=0
case $short in 4) form=1 ;; 3) form=0.75 ;; 2) form=0.5 ;; 1) form=0.25 ;; *) form=0 ;; esac
printf '{"complete": %s, "topic": %s, "form": %s}\n' "$complete" "$topic" "$form" > /logs/verifier/reward.json
cat /logs/verifier/reward.json
