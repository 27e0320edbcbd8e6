#!/bin/sh
# A Vulkan device in one go: what it is, whether it computes right, how fast its kernels and whole models are.
#   bench/gpu.sh [-d DEVICE] [-p TOKENS] [-n TOKENS] [-b BATCHES] [-r REPS] [-s SECONDS] [-g] [MODEL.gguf...]
# Defaults: device 0 of `sluice devices`, prefill 512, decode 128, batches 1,8, 3 repetitions, at most 540 s in all (-s): what would begin or end later is left out
# and said so. -g: goldens of MODELs in tests/data/real too. Without MODEL the rates are those of a fixture, which say nothing about a GPU.
# Parts: features, limits and memory; verify on the fixtures of tests/data/models; for each MODEL prefill and decode rates, and a step by operator: GB/s as a share of
# reads and Gop/s as a share of f32 products and sums, both measured on the device beforehand; with PEER_BENCH=llama-bench (built with Vulkan) its rates beside,
# on its own device of the number of -d (GGML_VK_VISIBLE_DEVICES where it counts otherwise).
# Exit 1: something did not verify or could not be run.
set -eu
cd "$(dirname "$0")/.."
usage() { echo "usage: bench/gpu.sh [-d DEVICE] [-p TOKENS] [-n TOKENS] [-b BATCHES] [-r REPS] [-s SECONDS] [-g] [MODEL.gguf...]" >&2; exit 2; }
device=0 prompt=512 gen=128 batch=1,8 reps=3 seconds=540 goldens=
while getopts d:p:n:b:r:s:g o; do
    case $o in
    d) device=$OPTARG ;; p) prompt=$OPTARG ;; n) gen=$OPTARG ;; b) batch=$OPTARG ;; r) reps=$OPTARG ;; s) seconds=$OPTARG ;; g) goldens=yes ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
make -s build/sluice
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
end=$(($(date +%s) + seconds)) bad=0

# Runs a command in the seconds that are left; its standard error is shown only when it fails.
part() {
    left=$((end - $(date +%s)))
    [ "$left" -gt 0 ] || { echo "left out, no time: $*"; return 0; }
    rc=0
    timeout "$left" "$@" 2>"$tmp/log" || rc=$?
    [ "$rc" != 124 ] || { echo "cut, no time: $*"; return 0; }
    [ "$rc" = 0 ] || { bad=1; echo "FAILED ($rc): $*"; tail -n 5 "$tmp/log"; }
}

echo "== device"
part build/sluice devices

echo "== verify"
for m in tests/data/models/llama tests/data/models/qwen2 tests/data/models/qwen3 tests/data/models/gemma3; do
    [ ! -d "$m" ] || { echo "${m##*/}:"; part build/sluice verify "$m" --precision f32 --device "vulkan:$device" >"$tmp/verify"; grep -E "passed|FAIL|no time|:" "$tmp/verify" || cat "$tmp/verify"; }
done
for m; do
    golden=tests/data/real/$(basename "$m" .gguf).json
    [ -z "$goldens" ] || [ ! -f "$golden" ] || part build/sluice verify "$m" --ref "$golden" --precision f32 --device "vulkan:$device"
done

[ $# -gt 0 ] || set -- tests/data/models/llama
for m; do
    echo "== rates: $(basename "$m")"
    part build/sluice bench "$m" --device "vulkan:$device" -p "$prompt" -n "$gen" -b "$batch" -r "$reps" --ops
    [ -z "${PEER_BENCH:-}" ] || [ ! -f "$m" ] || part "$PEER_BENCH" -m "$m" -ngl 99 -mg "$device" -p "$prompt" -n "$gen" -r "$reps" -o md
done
exit "$bad"
