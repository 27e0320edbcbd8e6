#!/bin/sh
# make bench [T=MODEL]: prefill and decode rates of the demo model, or of the one named.
set -eu
cd "$(dirname "$0")/.."
model=${1:-$(sh scripts/fetch.sh)}
build/sluice bench "$model" -b 1,2,4,8
