#!/bin/sh
# Sluice beside llama.cpp on one model: prefill 512, decode 128, interleaved rounds, ratios as min/median/max.
#   bench/peer.sh MODEL.gguf [ROUNDS] [THREADS]
# llama.cpp is built once from the source archive of the Python package llama-cpp-python 0.3.36 (needs cmake, g++); nothing of it is kept
# here: PEER_DIR (default ${XDG_CACHE_HOME:-~/.cache}/sluice/peer) holds the build, PEER_BENCH names a llama-bench of your own.
set -eu
cd "$(dirname "$0")/.."
model=${1:?usage: bench/peer.sh MODEL.gguf [ROUNDS] [THREADS]}
rounds=${2:-5}
threads=${3:-2}
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
      cmake --build build --target llama-bench -j "$(nproc)" >>build.log 2>&1 ) || { tail -n 20 "$dir/build.log" >&2; exit 3; }
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
i=0
while [ "$i" -lt "$rounds" ]; do
    "$bench" -m "$model" -t "$threads" -p 512 -n 128 -r 1 -o json >"$tmp/peer.$i" 2>/dev/null
    build/sluice bench "$model" -t "$threads" -p 512 -n 128 -r 1 --json >"$tmp/sluice.$i" 2>/dev/null
    i=$((i + 1))
    echo "peer: round $i of $rounds" >&2
done
python3 - "$tmp" "$rounds" <<'PY'
import json, statistics, sys
tmp, rounds = sys.argv[1], int(sys.argv[2])
us, them = {"prefill": [], "decode": []}, {"prefill": [], "decode": []}
roofs, weight_bytes = [], 0
for i in range(rounds):
    for row in json.load(open(f"{tmp}/peer.{i}")):
        them["prefill" if row["n_gen"] == 0 else "decode"].append(row["avg_ts"])
    doc = json.load(open(f"{tmp}/sluice.{i}"))
    us["prefill"].append(doc["rows"][0]["prefill_tok_s"])
    us["decode"].append(doc["rows"][0]["decode_tok_s"])
    roofs.append(doc["read_roof_bytes_s"])
    weight_bytes = doc["weight_bytes"]
three = lambda v: f"{min(v):9.2f} {statistics.median(v):9.2f} {max(v):9.2f}"
print(f"{'':10}{'':10}{'min':>9} {'median':>9} {'max':>9}")
for k in us:
    print(f"{k:10}{'sluice':10}{three(us[k])}  tok/s")
    print(f"{k:10}{'llama.cpp':10}{three(them[k])}  tok/s")
    print(f"{k:10}{'ratio':10}{three([a / b for a, b in zip(us[k], them[k])])}")
roof = statistics.median(roofs)
print(f"memory read roof {roof / 1e9:.1f} GB/s (median), {weight_bytes / 1e6:.1f} MB a token: decode at {statistics.median(us['decode']) * weight_bytes / roof * 100:.0f} % of it, llama.cpp at {statistics.median(them['decode']) * weight_bytes / roof * 100:.0f} %")
PY
