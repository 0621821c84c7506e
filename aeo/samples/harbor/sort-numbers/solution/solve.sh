#!/bin/sh
set -eu
seq 1 20 | sort -n -r > /app/numbers.txt
sleep 0.5
