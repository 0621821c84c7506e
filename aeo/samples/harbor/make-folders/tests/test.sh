#!/bin/sh
reward=1
for folder in src docs tests; do
    if [ ! -f "/app/$folder/.keep" ] || [ -s "/app/$folder/.keep" ]; then
        echo "$folder/.keep is missing or not empty"
        reward=0
    fi
done
echo "$reward" > /logs/verifier/reward.txt
