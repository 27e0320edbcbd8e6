#!/bin/sh
# Sluice beside llama.cpp: prefill and decode of each model, interleaved rounds, ratios as min/median/max.
#   bench/peer.sh [-r ROUNDS] [-t THREADS] [-p TOKENS] [-n TOKENS] [-d DEPTH] MODEL.gguf...
# Defaults: 5 rounds, 2 threads, prefill 512, decode 128, an empty context. With -d both fill DEPTH tokens first and decode there;
# prefill is left out then. OUT=FILE: a JSON line for each model and phase too.
# llama.cpp is built once from the source archive of the Python package llama-cpp-python 0.3.36 (needs cmake, g++); nothing of it is kept
# here: PEER_DIR (default ${XDG_CACHE_HOME:-~/.cache}/sluice/peer) holds the build, PEER_BENCH names a llama-bench of your own.
set -eu
cd "$(dirname "$0")/.."
usage() { echo "usage: bench/peer.sh [-r ROUNDS] [-t THREADS] [-p TOKENS] [-n TOKENS] [-d DEPTH] MODEL.gguf..." >&2; exit 2; }
rounds=5 threads=2 prompt=512 gen=128 depth=0
while getopts r:t:p:n:d: o; do
    case $o in
    r) rounds=$OPTARG ;; t) threads=$OPTARG ;; p) prompt=$OPTARG ;; n) gen=$OPTARG ;; d) depth=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
dir=${PEER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peer}
bench=${PEER_BENCH:-$dir/build/bin/llama-bench}

if [ ! -x "$bench" ]; then
    echo "peer: building llama.cpp in $dir (takes a while)" >&2
    mkdir -p "$dir"
    ( cd "$dir"
      ls llama_cpp_python-0.3.36.tar.gz >/dev/null 2>&1 ||
          python3 -m pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 >&2
      tar xzf llama_cpp_python-0.3.36.tar.gz
      cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
            -DLLAMA_BUILD_TESTS=OFF >build.log 2>&1
      cmake --build build --target llama-bench llama-server -j "$(nproc)" >>build.log 2>&1 ) || { tail -n 20 "$dir/build.log" >&2; exit 3; }
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
peer_prompt=$prompt
[ "$depth" = 0 ] || peer_prompt=0
round=0
while [ "$round" -lt "$rounds" ]; do
    k=0
    for model; do
        "$bench" -m "$model" -t "$threads" -p "$peer_prompt" -n "$gen" -d "$depth" -r 1 -o json >"$tmp/peer.$k.$round" 2>"$tmp/log" || { tail -n 5 "$tmp/log" >&2; exit 3; }
        build/sluice bench "$model" -t "$threads" -p "$prompt" -n "$gen" -d "$depth" -r 1 --json >"$tmp/sluice.$k.$round" 2>"$tmp/log" || { tail -n 5 "$tmp/log" >&2; exit 3; }
        k=$((k + 1))
    done
    round=$((round + 1))
    echo "peer: round $round of $rounds" >&2
done
python3 - "$tmp" "$rounds" "$depth" "${OUT:-}" "$@" <<'PY'
import json, os, statistics, sys
tmp, rounds, depth, out, models = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]
phases = ["decode"] if depth else ["prefill", "decode"]
three = lambda v: f"{min(v):9.2f} {statistics.median(v):9.2f} {max(v):9.2f}"
lines = []
for k, model in enumerate(models):
    us, them = {p: [] for p in phases}, {p: [] for p in phases}
    share, read, step = [], [], 0
    for i in range(rounds):
        for row in json.load(open(f"{tmp}/peer.{k}.{i}")):
            them["prefill" if row["n_gen"] == 0 else "decode"].append(row["avg_ts"])
        row = json.load(open(f"{tmp}/sluice.{k}.{i}"))["rows"][0]
        for p in phases:
            us[p].append(row[f"{p}_tok_s"])
        share.append(row["decode_roof_share"])
        read.append(row["read_bytes_s"])
        step = row["decode_bytes"]
    name = os.path.basename(model)
    print(f"{name}{f' at {depth} tokens' if depth else ''}\n{'':10}{'':10}{'min':>9} {'median':>9} {'max':>9}")
    for p in phases:
        ratio = [a / b for a, b in zip(us[p], them[p])]
        print(f"{p:10}{'sluice':10}{three(us[p])}  tok/s")
        print(f"{p:10}{'llama.cpp':10}{three(them[p])}  tok/s")
        print(f"{p:10}{'ratio':10}{three(ratio)}")
        lines.append({"model": name, "phase": p, "depth": depth, "sluice": statistics.median(us[p]), "peer": statistics.median(them[p]),
                      "ratio": statistics.median(ratio), "ratio_min": min(ratio), "ratio_max": max(ratio)})
    lines[-1]["roof_share"] = statistics.median(share)
    peer = statistics.median(a / b for a, b in zip(them["decode"], us["decode"])) * statistics.median(share)
    print(f"memory reads {statistics.median(read) / 1e9:.1f} GB/s, {step / 1e6:.1f} MB a token: decode at {statistics.median(share) * 100:.0f} % of them, "
          f"llama.cpp at {peer * 100:.0f} %")
if out:
    with open(out, "a") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")
PY
