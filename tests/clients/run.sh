#!/bin/sh
# make check-clients: the published client packages, unmodified, against live servers. A venv of their own (build/clients), tiny
# models made on the spot. Closes with "N passed, N failed".
set -u
venv=build/clients/venv
models=build/clients/models
mkdir -p "$models"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv" || { echo "clients: python3 -m venv failed (package python3-venv)" >&2; exit 1; }
if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
    echo "clients: installing the openai package into $venv" >&2
    "$venv/bin/pip" install -q --disable-pip-version-check openai || { echo "clients: the openai package cannot be installed" >&2; exit 1; }
fi
for p in anthropic langchain-openai litellm; do # a test says SKIP where its package is missing
    "$venv/bin/python" -c "import $(echo $p | tr - _)" 2>/dev/null || "$venv/bin/pip" install -q --disable-pip-version-check "$p" 2>/dev/null || echo "clients: $p cannot be installed" >&2
done
if command -v npm >/dev/null && [ ! -d build/clients/node/node_modules/@anthropic-ai ]; then
    mkdir -p build/clients/node && echo '{"private":true,"type":"module"}' >build/clients/node/package.json
    (cd build/clients/node && npm install --silent --no-audit --no-fund openai @anthropic-ai/sdk) || echo "clients: the Node packages cannot be installed" >&2
fi
${MAKE:-make} --no-print-directory build/plain/tests/clients/tiny_model >build/clients/make.log 2>&1 || { cat build/clients/make.log >&2; exit 1; }
for kind in chain random; do
    build/plain/tests/clients/tiny_model "$models/tiny-$kind.gguf" $kind || exit 1
done
passed=0; failed=0
for t in tests/clients/test_*.py; do
    log=build/clients/$(basename "$t" .py).log
    SLUICE=build/sluice TINY_MODELS=$models "$venv/bin/python" "$t" >"$log" 2>&1
    rc=$?
    cat "$log"
    sum=$(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
    [ -n "$sum" ] || sum="0 1"
    passed=$((passed + ${sum% *})); failed=$((failed + ${sum#* }))
    [ $rc = 0 ] || [ "${sum#* }" != 0 ] || failed=$((failed + 1))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
