#!/bin/sh
# Sluice beside llama-server, interleaved rounds, ratios as min/median/max (docs/measured.md has the bars):
#   aggregate decode of 8 and of 32 streams; a 2k-token prompt that meets 8 decoding streams: its first token, and their worst gap
#   meanwhile; start to ready. Each server has its own prefix cache on, -np as many sequences as streams.
#   bench/server.sh MODEL.gguf [READY_MODEL.gguf]       READY_MODEL: whose start is timed (default: MODEL); its file cache is warmed first
#   ROUNDS=3 THREADS=2 ONLY=ready,8,32,beside FLAGS='--draft off'   FLAGS go to sluice serve
# llama-server: PEER_SERVER, or the build that bench/peer.sh made. Needs python3.
set -eu
cd "$(dirname "$0")/.."
model=${1:?usage: bench/server.sh MODEL.gguf [READY_MODEL.gguf]}
ready=${2:-$model}
dir=${PEER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peer}
peer=${PEER_SERVER:-$dir/build/bin/llama-server}
[ -x "$peer" ] || { echo "server: no llama-server at $peer (PEER_SERVER names one)" >&2; exit 3; }
make -s build/sluice
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat "$model" "$ready" > /dev/null
BENCH_STATE=$tmp/state BENCH_LOG=$tmp/log python3 bench/server.py "$model" "$peer" --ready-model "$ready" --rounds "${ROUNDS:-3}" --threads "${THREADS:-2}" \
    --only "${ONLY:-ready,8,32,beside}" --flags="${FLAGS:-}" || { tail -n 20 "$tmp/log" >&2; exit 3; }
