#!/bin/bash
# Makes the scripts of others in webapp/static again. Not part of a build: what comes out is committed, so that neither
# installing nor developing needs Node.js. ECharts whole is 368 kB gzip'd and its ready-made smaller builds lack the
# custom series, so what is used of it is bundled here.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
static=$(cd ../../webapp/static && pwd)
htmx=2.0.10
echarts=6.1.0
esbuild=0.28.2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts "htmx.org@$htmx" "echarts@$echarts" "esbuild@$esbuild"
node node_modules/esbuild/install.js

rm -f "$static"/htmx-* "$static"/echarts-*
cp node_modules/htmx.org/dist/htmx.min.js "$static/htmx-$htmx.min.js"
cp node_modules/htmx.org/LICENSE "$static/htmx-$htmx.LICENSE.txt"

cp "$here/echarts.js" .
npx esbuild echarts.js --bundle --minify --format=iife --global-name=echarts --target=es2020 --legal-comments=inline \
  --define:process.env.NODE_ENV='"production"' --log-level=warning --outfile=out.js \
  --banner:js="/*! Parts of Apache ECharts $echarts (Apache-2.0) with ZRender (BSD-3-Clause) and tslib (0BSD); see echarts-$echarts.LICENSE.txt. */"
cp out.js "$static/echarts-$echarts.min.js"
{
  cat node_modules/echarts/NOTICE
  printf '\n\n== Apache ECharts ==\n\n'
  cat node_modules/echarts/LICENSE
  printf '\n\n== d3 (parts within ECharts) ==\n\n'
  cat node_modules/echarts/licenses/LICENSE-d3
  printf '\n\n== ZRender ==\n\n'
  cat node_modules/zrender/LICENSE
  printf '\n\n== tslib ==\n\n'
  cat node_modules/tslib/LICENSE.txt
} >"$static/echarts-$echarts.LICENSE.txt"
for file in "$static"/*.js; do
  printf '%8d bytes gzip  %s\n' "$(gzip -9c "$file" | wc -c)" "${file##*/}"
done
