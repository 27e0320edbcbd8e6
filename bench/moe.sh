#!/bin/sh
# Routed experts on the CPU: decode of a made-up mixture in the shape of Qwen3-30B-A3B beside the memory roof and beside llama.cpp.
#   bench/moe.sh [-l LAYERS] [-k q4_k|mxfp4|q8_0] [-t THREADS] [-n TOKENS] [-r ROUNDS] [MODEL.gguf]
# Defaults: 14 layers of q4_k (5 GB; as much again in memory), 2 threads, 32 tokens, 3 rounds. Without MODEL one is made in a folder of its
# own and removed at the end. Bars: one sequence at 75 % of what reading its active bytes allows; eight sequences together 1.5 times
# llama.cpp's eight (its llama-batched-bench; PEER_BATCHED names one, bench/peer.sh says where its build lies; without it that row is left out).
# Exit 1: a bar is missed.
set -eu
cd "$(dirname "$0")/.."
usage() { echo "usage: bench/moe.sh [-l LAYERS] [-k q4_k|mxfp4|q8_0] [-t THREADS] [-n TOKENS] [-r ROUNDS] [MODEL.gguf]" >&2; exit 2; }
layers=14 kind=q4_k threads=2 gen=32 rounds=3
while getopts l:k:t:n:r: o; do
    case $o in
    l) layers=$OPTARG ;; k) kind=$OPTARG ;; t) threads=$OPTARG ;; n) gen=$OPTARG ;; r) rounds=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -le 1 ] || usage
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
model=${1:-$tmp/model.gguf}
[ $# = 1 ] || python3 scripts/moe_model.py "$model" --layers "$layers" --type "$kind" >&2
peer=${PEER_BATCHED:-${PEER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peer}/build/bin/llama-batched-bench}

round=0
while [ "$round" -lt "$rounds" ]; do
    build/sluice bench "$model" -t "$threads" -p 8 -n "$gen" -b 1,8 -c 256 -r 1 --json >"$tmp/sluice.$round" 2>"$tmp/log" || { tail -n 5 "$tmp/log" >&2; exit 3; }
    if [ -x "$peer" ]; then
        "$peer" -m "$model" -t "$threads" -c 2048 -npp 8 -ntg "$gen" -npl 1,8 --output-format jsonl >"$tmp/peer.$round" 2>"$tmp/log" ||
            { tail -n 5 "$tmp/log" >&2; exit 3; }
    fi
    round=$((round + 1))
    echo "moe: round $round of $rounds" >&2
done
python3 - "$tmp" "$rounds" <<'PY'
import json, os, statistics, sys
tmp, rounds = sys.argv[1], int(sys.argv[2])
us, them, share, read, size = {1: [], 8: []}, {1: [], 8: []}, [], [], 0
for i in range(rounds):
    for row in json.load(open(f"{tmp}/sluice.{i}"))["rows"]:
        us[row["batch"]].append(row["decode_tok_s"])
        if row["batch"] == 1:
            share.append(row["decode_roof_share"])
            read.append(row["read_bytes_s"])
            size = row["decode_bytes"]
    if os.path.exists(f"{tmp}/peer.{i}"):
        for line in open(f"{tmp}/peer.{i}"):
            if line.startswith("{"):
                row = json.loads(line)
                them[row["pl"]].append(row["speed_tg"])
mid = statistics.median
print(f"memory reads {mid(read) / 1e9:.1f} GB/s, a token's active weights {size / 1e6:.1f} MB")
print(f"{'':24}{'sluice':>10}{'llama.cpp':>12}{'ratio':>8}")
bad = False
for b in (1, 8):
    both = bool(them[b])
    print(f"decode, {b} sequence{'s' if b > 1 else ' '}     {mid(us[b]):10.2f}" + (f"{mid(them[b]):12.2f}{mid(a / c for a, c in zip(us[b], them[b])):8.2f}" if both else ""))
for what, got, bar in [("one sequence: share of the roof", mid(share), 0.75)] + ([("eight: times llama.cpp", mid(a / c for a, c in zip(us[8], them[8])), 1.5)] if them[8] else []):
    bad |= got < bar
    print(f"bar  {what:34}{got:8.2f}{bar:8.2f}  {'met' if got >= bar else 'MISSED'}")
sys.exit(bad)
PY
