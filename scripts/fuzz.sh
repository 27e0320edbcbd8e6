#!/bin/sh
# Runs fuzz programs: fuzz.sh BIN_DIR [NAME]. Each gets its seeds (tests/fuzz/seeds/NAME) and a scratch corpus, FUZZ_RUNS inputs
# (default 20000) or FUZZ_SECONDS (default 60), whichever ends first. Inputs that crash stay under build/fuzz/crashes/NAME.
# Closes with "N passed, N failed".
dir=$1; only=${2:-}
runs=${FUZZ_RUNS:-20000}; seconds=${FUZZ_SECONDS:-60}
passed=0; failed=0; bad=""
log=$(mktemp); work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT INT TERM
for t in "$dir"/fuzz_*; do
    [ -x "$t" ] || continue
    name=${t##*/fuzz_}
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    seeds="tests/fuzz/seeds/$name"; crashes="build/fuzz/crashes/$name"
    mkdir -p "$crashes" "$work/$name"
    [ -d "$seeds" ] || seeds=""
    # shellcheck disable=SC2086
    "$t" -runs="$runs" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$crashes/" "$work/$name" $seeds >"$log" 2>&1
    rc=$?
    done_runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf '%-20s %8s inputs  coverage %-6s %s\n' "$name" "${done_runs:-?}" "${cover:-?}" "$([ $rc = 0 ] && echo ok || echo FAILED)"
    if [ $rc = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); bad="$bad $name"; tail -n 40 "$log"; fi
done
[ -z "$bad" ] || echo "failed:$bad (inputs in build/fuzz/crashes)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
