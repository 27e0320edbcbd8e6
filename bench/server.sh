#!/bin/sh
# Sluice beside llama-server, interleaved rounds, ratios as min/median/max (docs/measured.md has the bars). Each server has its own
# prefix cache on, and as many sequences (-np) as there are streams.
#   bench/server.sh MODEL.gguf [READY_MODEL.gguf]       READY_MODEL: whose start is timed (default: MODEL); its file cache is warmed first
#   ONLY=ready,fresh,8,32,beside,memory   parts: start to ready, with free memory that was in use a moment ago, and with memory as it is after
#                                   five idle seconds (a virtual machine's host may have taken it away: seconds a gigabyte to have it back); aggregate decode of 8 and of 32 streams; a 2k-token prompt that meets 8 decoding
#                                   streams: its first token, and their worst gap meanwhile; the engine's memory over what it planned
#   ROUNDS=3 THREADS=2 FLAGS='--draft off'   FLAGS go to sluice serve
# All parts take about four minutes for a model of 100 MB. llama-server: PEER_SERVER, or the build that bench/peer.sh made. Needs python3.
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
    --only "${ONLY:-ready,fresh,8,32,beside,memory}" --flags="${FLAGS:-}" || { tail -n 20 "$tmp/log" >&2; exit 3; }
