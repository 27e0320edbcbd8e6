#!/bin/sh
# The CPU kernels' bars on this machine, beside llama.cpp and the memory's own rate, as one table: bar, measured, verdict.
#   bench/cpu.sh DIR          DIR holds the four models, named as fetch.sh or their publishers name them
#   ROUNDS=2 THREADS=2        of the short comparisons; DEPTHS="4096 16384": contexts (each costs llama.cpp its prefill; the last one minutes)
#   SYNTHETIC=DIR             where bench/synthetic.py's models lie or are made (3 GB); empty: left out
# Exits 1 when a bar is missed. Leave the machine idle otherwise; about 12 minutes on two cores. PEER_BENCH and PEER_DIR as in bench/peer.sh.
set -eu
cd "$(dirname "$0")/.."
models=${1:?usage: bench/cpu.sh DIR}
rounds=${ROUNDS:-2} threads=${THREADS:-2} depths=${DEPTHS-4096 16384} synthetic=${SYNTHETIC-}
make -s build/sluice
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

find_model() { # the first file whose name matches, without regard to case
    find -L "$models" -maxdepth 1 -iname "$1" | sort | head -n 1
}
smol=$(find_model '*smollm2*135m*.gguf') gemma=$(find_model '*gemma-3-270m*.gguf') half=$(find_model '*qwen2.5*0.5b*.gguf') big=$(find_model '*qwen2.5*1.5b*.gguf')
for m in "$smol" "$gemma" "$half" "$big"; do
    [ -n "$m" ] || { echo "cpu: $models lacks one of SmolLM2-135M, Gemma-3-270M, Qwen2.5 0.5B, Qwen2.5 1.5B (.gguf)" >&2; exit 2; }
done
OUT=$tmp/rows bench/peer.sh -r "$rounds" -t "$threads" "$smol" "$gemma" "$half" "$big"
for d in $depths; do
    OUT=$tmp/rows bench/peer.sh -r 1 -t "$threads" -n 64 -d "$d" "$half"
done
if [ -n "$synthetic" ]; then
    for t in bf16 f32; do
        [ -f "$synthetic/$t/model.safetensors" ] || python3 bench/synthetic.py "$synthetic/$t" "$t"
        build/sluice bench "$synthetic/$t" -t "$threads" -p 64 -n 32 -r 3 --json >"$tmp/synthetic.$t" 2>/dev/null
    done
fi
build/sluice bench "$smol" -t "$threads" -p 64 -n 32 -r 2 -b 1,2,4,8,16,32 --json >"$tmp/batch" 2>/dev/null
python3 - "$tmp" <<'PY'
import json, os, sys
tmp, bad = sys.argv[1], 0
def bar(what, want, got, ok):
    global bad
    bad += not ok
    print(f"{what:44} {want:34} {got:34} {'met' if ok else 'MISSED'}")
print(f"\n{'what':44} {'bar':34} {'measured':34} verdict")
for line in open(f"{tmp}/rows"):
    r = json.loads(line)
    name, ratio = r["model"][:28], r["ratio"]
    if r["phase"] == "prefill":
        least = 3.0 if "smol" in name.lower() else 2.0
        bar(f"prefill 512  {name}", f">= {least:.1f}x llama.cpp", f"{ratio:.2f}x ({r['ratio_min']:.2f}..{r['ratio_max']:.2f})", ratio >= least)
    elif r["depth"]:
        bar(f"decode at {r['depth']}  {name}", ">= 1.3x llama.cpp", f"{ratio:.2f}x, {r['sluice']:.1f} tok/s", ratio >= 1.3)
    else:
        share = r["roof_share"]
        bar(f"decode 128  {name}", ">= 80 % of reads", f"{100 * share:.0f} %", share >= 0.8)
        bar("", ">= 1.15x llama.cpp or >= 92 %", f"{ratio:.2f}x ({r['ratio_min']:.2f}..{r['ratio_max']:.2f}), {100 * share:.0f} %", ratio >= 1.15 or share >= 0.92)
for t in ("bf16", "f32"):
    if os.path.exists(f"{tmp}/synthetic.{t}"):
        r = json.load(open(f"{tmp}/synthetic.{t}"))["rows"][0]
        bar(f"decode, 0.5 billion {t} weights", ">= 85 % of reads", f"{100 * r['decode_roof_share']:.0f} %, {r['decode_tok_s']:.1f} tok/s", r["decode_roof_share"] >= 0.85)
rates = [(r["batch"], r["decode_tok_s"]) for r in json.load(open(f"{tmp}/batch"))["rows"]]
falls = [b for (a, x), (b, y) in zip(rates, rates[1:]) if y < 0.95 * x]
bar("decode of 1 to 32 sequences, SmolLM2", "no step down of the total", " ".join(f"{y:.0f}" for _, y in rates) + " tok/s", not falls)
sys.exit(bad > 0)
PY
