#!/bin/sh
set -eu
sleep 0.2
printf 'Hello, world!\n' > /app/greeting.txt
