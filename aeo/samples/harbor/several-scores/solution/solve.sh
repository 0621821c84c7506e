#!/bin/sh
set -eu
sleep 0.8
cat > /app/poem.txt <<'POEM'
The sea is wide, the sea is grey,
it takes the harbour lights away,
and every ship that sails at night
returns by morning's early, slow and patient light.
POEM
