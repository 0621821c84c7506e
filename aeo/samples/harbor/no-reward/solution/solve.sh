#!/bin/sh
set -eu
sleep 0.3
echo anything > /app/anything.txt
