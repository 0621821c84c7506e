#!/bin/sh
set -eu
sleep 0.4
grep -v '^milk$' /app/list.txt > /app/list.new
mv /app/list.new /app/list.txt
