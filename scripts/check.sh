#!/bin/sh
# Runs test programs: check.sh BUILD_DIR [layer/module]. Prints one line a program and closes with "N passed, N failed".
dir=$1; only=${2:-}
passed=0; failed=0; skipped=0; bad=""
log=$(mktemp)
if [ -n "$only" ]; then
    layer=${only%/*}; mod=${only##*/}
    list="$dir/tests/$layer/check_$mod"
else
    list=$(find "$dir/tests" -type f -perm -u+x -name 'check_*' | sort)
fi
for t in $list; do
    start=$(date +%s)
    CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-120} CK_VERBOSITY=normal "$t" >"$log" 2>&1; rc=$?
    end=$(date +%s)
    # Check prints "100%: Checks: 12, Failures: 0, Errors: 0" once a suite runner ends
    n=$(sed -n 's/.*Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\).*/\1 \2 \3/p' "$log" | awk '{c+=$1; f+=$2+$3} END {print c+0, f+0}')
    total=${n% *}; f=${n#* }
    s=$(grep -c '^SKIP' "$log")
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; [ "$total" -gt 0 ] || total=1; fi
    passed=$((passed + total - f)); failed=$((failed + f)); skipped=$((skipped + s))
    printf '%-44s %4d checks %3d failed %3ds\n' "${t#"$dir"/tests/}" "$total" "$f" $((end - start))
    grep '^SKIP' "$log" | sed 's/^/    /'
    if [ "$f" -ne 0 ]; then bad="$bad ${t#"$dir"/tests/}"; cat "$log"; fi
done
rm -f "$log"
[ -z "$bad" ] || echo "failed:$bad"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
