#!/bin/sh
# The gateway's bars, measured against `sluice serve --mock` on this machine; about four minutes at full scale.
#   bench/gateway.sh [CHECK...]        CHECK: hold together rate connect attack soak (default: all)
#   SCALE=1 (or 0.1, 0.01)             share of connections, rates and seconds; SECONDS_EACH=10 at scale 1
#   OUT=FILE                           the figures as JSON lines too
# Exits 1 when a bar is missed, 3 when it could not measure. The load tool and the server share the machine's cores; leave it idle otherwise.
# Clients come from 16 addresses (127.0.0.2 and up), so that ports which wait for their end are never all there are.
set -eu
cd "$(dirname "$0")/.."
make -s build/sluice build/plain/bench/load
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
files=$(ulimit -n)
scale=${SCALE:-1}
out=${OUT:-}
load=build/plain/bench/load
tmp=$(mktemp -d)
began=$(date +%s)
server= gateway= engine= url= missed=0
[ $# -gt 0 ] || set -- hold together rate connect attack soak

calc() { awk -v s="$scale" "BEGIN { print ($1) }"; }
scaled() { calc "int($1 * s + 0.5) > $2 ? int($1 * s + 0.5) : $2"; }   # VALUE LEAST
seconds=$(scaled "${SECONDS_EACH:-10}" 3)
handshake_s=$((seconds > 5 ? 5 : seconds)) # s_time never reuses a port: more would wait for free ones

stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    server=
}
trap 'stop; rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

child() { # the pid of serve's child that runs this verb
    for p in $(cat "/proc/$server/task/$server/children"); do
        if tr '\0' ' ' < "/proc/$p/cmdline" | grep -q " $1 "; then echo "$p"; fi
    done
}

start() { # TEXT and flags of serve
    stop
    text=$1
    shift
    build/sluice serve --mock "$text" --port 0 --state "$tmp/state" --drain 1s --log-level warn "$@" > "$tmp/say" 2> "$tmp/log" &
    server=$!
    for _ in $(seq 600); do
        if grep -q SSL_CERT_FILE "$tmp/say"; then break; fi
        if ! kill -0 "$server" 2>/dev/null; then cat "$tmp/log" >&2; exit 3; fi
        sleep 0.1
    done
    if ! grep -q SSL_CERT_FILE "$tmp/say"; then echo "serve did not get ready within a minute" >&2; exit 3; fi
    eval "$(grep '^export OPENAI_' "$tmp/say")"
    url=${OPENAI_BASE_URL%/v1}
    gateway=$(child gateway)
    engine=$(child engine)
}

measure() { # MODE and flags of load; the figures go to $tmp/figures
    mode=$1
    shift
    echo "== $mode $*" >&2
    "$load" "$mode" "$url" --sources 16 --gateway-pid "$gateway" --engine-pid "$engine" "$@" --json > "$tmp/figures" || missed=1
    tr ',' '\n' < "$tmp/figures" | tr -d '{}"' | awk -F: '{ printf "   %-24s %s\n", $1, $2 }' >&2
    if [ -n "$out" ]; then sed "s/^{/{\"mode\":\"$mode\",\"flags\":\"$*\",/" "$tmp/figures" >> "$out"; fi
}
get() { tr ',' '\n' < "$tmp/figures" | tr -d '{}"' | awk -F: -v n="$1" '$1 == n { print $2 }'; }
metric() { curl -sk "$url/metrics" | awk -v n="$1" '$1 == n { v += $2 } index($1, n "{") == 1 { v += $2 } END { printf "%.0f\n", v }'; }

bar() { # WHAT VALUE OPERATOR BAR UNIT
    verdict=$(awk -v a="${2:-nan}" -v b="$4" "BEGIN { print (a != \"nan\" && a + 0 $3 b + 0) ? \"ok\" : \"MISSED\" }")
    if [ "$verdict" = MISSED ]; then missed=1; fi
    printf '%-52s %14s %3s %-10s %-8s %s\n' "$1" "${2:-?}" "$3" "$4" "$5" "$verdict" >> "$tmp/table"
}

hold() { # NAME P99-BAR flags of serve
    name=$1 p99=$2
    shift 2
    n=$(scaled 10000 100)
    if [ "$files" != unlimited ] && [ "$files" -lt $((n + 200)) ]; then # as root: ulimit -n 65536
        echo "$name: $n streams need $((n + 200)) descriptors, ulimit -Hn allows $files: fewer are held" >&2
        n=$((files - 200))
    fi
    start "$(printf ' {ns}%.0s' $(seq 1000))" --mock-rate 1 "$@"
    measure hold --connections "$n" --threads 2 --open-rate 600 --seconds "$seconds"
    bar "$name: streams held" "$(get connections)" '>=' "$(scaled 10000 100)" ""
    bar "$name: failed or lost" "$(($(get failed_requests) + $(get lost_connections) + $(get ended_early)))" '<=' 0 ""
    bar "$name: tokens" "$(get tokens)" '>=' "$((n * seconds * 98 / 100))" ""
    bar "$name: token delay p99" "$(get token_delay_p99)" '<' "$p99" ms
    bar "$name: gateway memory a connection" "$(get gateway_connection)" '<=' 25 KB
}

rate() {
    start "$(printf ' word%.0s' $(seq 8))"
    measure rate --connections 64 --seconds "$seconds"
    bar "rate: requests/s, 64 connections" "$(get requests_per_second)" '>=' 15000 1/s
    bar "rate: gateway CPU a request" "$(get gateway_request)" '<=' 40 us
    bar "rate: failed" "$(get failed_requests)" '<=' 0 ""
    measure rate --connections 1 --tokens 1 --seconds "$seconds"
    bar "rate: latency p50 of one at a time" "$(get latency_p50)" '<' 0.3 ms
}

# The same client, openssl s_time, against the gateway and against openssl s_server: connections in the time that passed.
s_time() { # ADDRESS flags
    address=$1
    shift
    openssl s_time -connect "$address" -time "$handshake_s" "$@" 2>/dev/null | awk '/real seconds/ { n = $1 } END { print n + 0 }'
}
connect() {
    start x
    port=$((20000 + $$ % 20000))
    openssl s_server -accept "127.0.0.1:$port" -cert "$tmp/state/tls.crt" -key "$tmp/state/tls.key" -quiet < /dev/null > /dev/null 2>&1 &
    peer=$!
    for _ in $(seq 100); do
        if openssl s_client -connect "127.0.0.1:$port" < /dev/null > /dev/null 2>&1; then break; fi
        sleep 0.1
    done
    for kind in new reuse; do
        theirs=$(s_time "127.0.0.1:$port" "-$kind")
        ours=$(s_time "${url#https://}" "-$kind")
        bar "connect: s_time -$kind, of s_server's $theirs" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.1f", b ? 100 * a / b : 0 }')" '>=' 90 %
    done
    kill "$peer"
    wait "$peer" 2>/dev/null || true
    measure connect --connections 8 --seconds "$handshake_s"
    bar "connect: failed" "$(($(get failed_requests) + $(get lost_connections)))" '<=' 0 ""
    measure connect --connections 8 --seconds "$handshake_s" --resume
    bar "connect: resumed of all" "$(awk -v a="$(get resumed)" -v b="$(get connections)" 'BEGIN { printf "%.1f", b ? 100 * a / b : 0 }')" '>=' 99 %
}

attack() {
    start "$(printf ' word%.0s' $(seq 20000))"
    attackers="--slow $(scaled 200 20) --deaf $(scaled 200 20) --idle $(scaled 1000 100) --noise $(scaled 20 4) --half $(scaled 100 10) --open-rate 1000"
    # shellcheck disable=SC2086
    measure attack --seconds "$seconds" --rounds "$([ "$seconds" -lt 7 ] && echo 3 || echo 7)" $attackers
    bar "attack: the client's p99, beside : alone" "$(get p99_ratio)" '<=' 1.5 times
    bar "attack: the client's failures" "$(get failed_requests)" '<=' 0 ""
    bar "attack: descriptors after, more than before" "$(($(get gateway_fds_after) - $(get gateway_fds_before)))" '<=' 0 ""
    for _ in 1 2 3; do # what the allocator keeps has a ceiling
        first=$(get gateway_rss_after)
        # shellcheck disable=SC2086
        measure attack --seconds 1 --rounds 1 $attackers
    done
    bar "attack: memory after the last, of the one before" "$(awk -v a="$(get gateway_rss_after)" -v b="$first" 'BEGIN { printf "%.1f", 100 * a / b }')" '<=' 110 %
    for _ in $(seq 50); do # streams that were left end with their next token
        [ "$(metric sluice_engine_running)" != 0 ] || break
        sleep 0.1
    done
    bar "attack: requests still running" "$(metric sluice_engine_running)" '<=' 0 ""
}

soak() {
    n=$(scaled 100000 2000)
    start "$(printf ' word%.0s' $(seq 8))"
    measure soak --requests "$(scaled 10000 8000)" --connections 100 --cut 20 # the allocator's caches fill
    m0=$(metric sluice_generations_total)
    measure soak --requests "$n" --connections 100 --cut 20 # some are answered before their moment comes
    bar "soak: requests without an end" "$(get stuck)" '<=' 0 ""
    bar "soak: failed or lost" "$(($(get failed_requests) + $(get lost_connections)))" '<=' 0 ""
    bar "soak: cut" "$(get cut)" '>=' "$((n / 10))" ""
    bar "soak: memory after, of before" "$(awk -v a="$(get gateway_rss_after)" -v b="$(get gateway_rss_before)" 'BEGIN { printf "%.1f", 100 * a / b }')" '<=' 110 %
    bar "soak: descriptors after, more than before" "$(($(get gateway_fds_after) - $(get gateway_fds_before)))" '<=' 0 ""
    bar "soak: requests still running" "$(($(metric sluice_engine_running) + $(metric sluice_inflight_requests)))" '<=' 0 ""
    bar "soak: answers that the gateway counted" "$(($(metric sluice_generations_total) - m0))" '>=' "$(get answered)" ""
    bar "soak: and no more than were asked" "$(($(metric sluice_generations_total) - m0))" '<=' "$n" ""
}

: > "$tmp/table"
for check in "$@"; do
    case $check in
    hold) hold "staggered" 10 ;;
    together) hold "same instant" 250 --mock-together ;;
    rate | connect | attack | soak) "$check" ;;
    *) echo "usage: [SCALE=0.1] bench/gateway.sh [hold|together|rate|connect|attack|soak]..." >&2; exit 2 ;;
    esac
done
stop
printf '\nscale %s, %s cores, load %s, %s s\n%-52s %14s %3s %-10s %-8s %s\n' "$scale" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)" "$(($(date +%s) - began))" \
    what measured '' bar unit verdict
cat "$tmp/table"
exit "$missed"
