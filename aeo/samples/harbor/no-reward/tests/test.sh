#!/bin/sh
echo "this verifier looks at the work, but forgets to write a reward"
test -s /app/anything.txt
