#!/usr/bin/env bash
# Everything that is checked and measured on a GPU, in one command.
#
# usage: device-pass.sh BIN OUT [SECONDS]
#
# BIN holds the release binaries `tilewright`, `device_check`, `worker` and `gemm_worker`; OUT gets
# summary.txt (a line a step), log.txt (what the steps printed), rows.json and products.json. A step
# that fails or overruns its limit is said so, and the next begins; steps for which the time (SECONDS
# in all, 575 unless stated) leaves nothing are skipped, last ones first. The exit status is 0 only
# if every step ran and was right; how fast anything was doesn't count.
#
# PYTHON names a Python with torch and triton (python3), SANITIZER the memory checker
# (compute-sanitizer).
set -uo pipefail

if [ $# -lt 2 ]; then
    sed -n '4,6p' "$0" >&2
    exit 2
fi
bin=$(realpath "$1") || exit 2
mkdir -p "$2" && out=$(realpath "$2") || exit 2
seconds=${3:-575}
python=${PYTHON:-python3}
sanitizer=${SANITIZER:-compute-sanitizer}
here=$(dirname "$(realpath "$0")")
summary=$out/summary.txt log=$out/log.txt
: >"$summary"
: >"$log"
SECONDS=0
wrong=0

say() {
    printf '%-12s %-8s %4s s  %s\n' "$@" | tee -a "$summary"
}

# What a step says last.
last_words() {
    grep -v '^[[:space:]]*$' "$1" | tail -n 1 | tr -d '\r' | cut -c1-200
}

# step NAME LIMIT COMMAND...: runs a command, at most LIMIT seconds or what is left of all.
step() {
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    local left=$((seconds - SECONDS)) text status outcome=ok
    if [ "$left" -lt 1 ]; then
        wrong=$((wrong + 1))
        say "$name" skipped 0 "no time is left"
        return
    fi
    [ "$limit" -le "$left" ] || limit=$left
    if ! command -v "$1" >/dev/null; then
        wrong=$((wrong + 1))
        say "$name" skipped 0 "$1 isn't here"
        return
    fi
    text=$(mktemp)
    timeout -k 3 "$limit" "$@" >"$text" 2>&1
    status=$?
    case $status in
    0) ;;
    124 | 137) outcome=overran wrong=$((wrong + 1)) ;;
    *) outcome=FAILED wrong=$((wrong + 1)) ;;
    esac
    say "$name" "$outcome" $((SECONDS - began)) "$(last_words "$text")"
    { printf '\n==== %s: %s (status %s)\n' "$name" "$outcome" "$status" && cat "$text"; } >>"$log"
    rm -f "$text"
}

# Seconds of a measurement that ends by itself before its limit.
within() {
    local left=$((seconds - SECONDS - $2))
    echo $(($1 < left ? $1 : (left > 1 ? left : 1)))
}

# The peers' kernels are compiled while the checks run, which aren't measured.
warm=$(mktemp)
timeout -k 3 150 "$python" "$here/rows.py" --warm >"$warm" 2>&1 &
warming=$!

# What each step is expected to take stands behind it, in seconds.
step check 90 "$bin/device_check" check                             # 30
step self-test 90 "$bin/tilewright" self-test --device cuda         # 40

# Never longer than until then, and never beyond a minute more.
for _ in $(seq 60); do
    kill -0 "$warming" 2>/dev/null && [ $SECONDS -lt "$seconds" ] || break
    sleep 1
done
kill "$warming" 2>/dev/null
wait "$warming" 2>/dev/null
printf '\n==== compiling the peers\n' >>"$log"
cat "$warm" >>"$log"
rm -f "$warm"

step products 60 "$bin/device_check" gemm                           # 25
step paths 80 "$bin/device_check" paths                             # 40
step host 30 "$bin/device_check" host                               # 10
# Measurements save what they have when their time is over; a short one leaves some for the next.
rows=$(within 300 140)
step rows $((rows + 20)) "$python" "$here/rows.py" "$bin/worker" "$out/rows.json" \
    --seconds "$rows" --warmed                                      # 260
products=$(within 90 50)
step gemm $((products + 20)) "$python" "$here/gemm.py" "$bin/gemm_worker" "$out/products.json" \
    --seconds "$products"                                           # 90
# One kernel of each kind: instrumented code runs tens of times longer.
for tool in memcheck racecheck initcheck; do
    step "$tool" 40 "$sanitizer" --tool "$tool" --error-exitcode 9 \
        "$bin/device_check" brief                                   # 15
done

if [ "$wrong" -eq 0 ]; then
    echo "all right after $SECONDS s" | tee -a "$summary"
else
    echo "$wrong steps failed, overran or were skipped; $SECONDS s" | tee -a "$summary"
    exit 1
fi
