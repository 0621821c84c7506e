#!/bin/sh
set -eu
sleep 0.3
echo 97 > /app/prime.txt
