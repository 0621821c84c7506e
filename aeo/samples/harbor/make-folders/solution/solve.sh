#!/bin/sh
set -eu
sleep 1
for folder in src docs tests; do
    mkdir -p "/app/$folder"
    : > "/app/$folder/.keep"
done
