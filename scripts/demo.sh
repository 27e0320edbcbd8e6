#!/bin/sh
# make demo: serves a small real model over TLS. On a terminal it ends in a chat; elsewhere it asks one question, prints the
# streamed answer to stdout, stops everything and exits 0.
set -eu
bin=build/sluice
question="Give me three tips for a good night's sleep."
model=${MODEL:-$(sh scripts/fetch.sh)}

port=8443
curl -sk --max-time 1 -o /dev/null "https://127.0.0.1:$port/health" && port=0 # somebody is there: take a free one
out=$(mktemp)
server=""
stop() {
    trap - EXIT INT TERM
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
    rm -f "$out"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

echo "demo: starting the server" >&2
$bin serve -m "$model" --port "$port" >"$out" &
server=$!
i=0
while ! grep -q '^export SSL_CERT_FILE' "$out"; do
    kill -0 "$server" 2>/dev/null || { wait "$server" || true; server=""; echo "demo: the server did not start" >&2; exit 3; }
    i=$((i + 1))
    [ "$i" -lt 1200 ] || { echo "demo: the server is not ready after 120 s" >&2; exit 3; }
    sleep 0.1
done
url=$(sed -n 's/^export OPENAI_BASE_URL=//p' "$out" | tr -d "\"'")
cat "$out" >&2
if [ -t 0 ] && [ -t 1 ]; then
    $bin chat "$url"
else
    echo "demo: asking: $question" >&2
    $bin chat "$url" -p "$question" --temp 0 -n 100
fi
