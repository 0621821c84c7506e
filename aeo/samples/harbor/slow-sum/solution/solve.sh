#!/bin/sh
set -eu
sleep 2
sum=0
for number in $(seq 1 1000); do
    sum=$((sum + number))
done
echo "$sum" > /app/sum.txt
