#!/bin/sh
set -eu
sleep 0.4
printf 'bread\nmilk\napples\n' > /app/list.txt
