#!/usr/bin/env bash
# The tests that need a GPU, a line each: every operation and attention against the reference, families, batches, restored pages and
# split layers, replayed graphs, all on "cuda" beside the processor's backends; 10,000 requests with draft tokens; mixed requests through the server, some of whose clients leave,
# also with half of the layers there, with little memory, with pages on disk; a server whose GPU breaks; real models, where they are
# (APUS_MODELS: names, or NAME=DIRECTORY); compute-sanitizer, where it is. Skipped where apus doctor finds no GPU.
#   tests/cuda.sh [BUILD]       default: build
# JOBS (default: half of the cores, at most 8) are run at once: minutes instead of a quarter of an hour.
set -uo pipefail
build=$(realpath "${1:-build}") here=$(realpath "$(dirname "$0")") # the tests find their data from the root
cd "$here/.." || exit 1
doctor=$("$build/apus" doctor) # whole: grep -q would end before it has written all
if grep -q '^gpu *none' <<<"$doctor"; then
    sed -n 's/^gpu */skipped: gpu /p' <<<"$doctor"
    exit 77
fi
export APUS_BINARY=$build/apus
python=python3 failed=0 logs=$(mktemp -d)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/apus/venv/bin/python
[ -x "$venv" ] && python=$venv

jobs=${JOBS:-$(($(nproc) / 2))} running=0
[ "$jobs" -ge 1 ] || jobs=1
[ "$jobs" -le 8 ] || jobs=8

# run NAME COMMAND…: its last line that says a result, and the end of its output where it fails. Exit code 77: skipped.
run() {
    local name=$1 start=$SECONDS code=0 result=ok line
    shift
    "$@" >"$logs/$name" 2>&1 </dev/null || code=$?
    case $code in 0) ;; 77) result=skipped ;; *) result=FAILED ;; esac
    line=$(printf '%-8s %-20s %4d s   %s' $result "$name" $((SECONDS - start)) \
        "$(grep -aE 'passed|differ|ERROR SUMMARY|RACECHECK SUMMARY|absent' "$logs/$name" | tail -n 2 | paste -sd' ')")
    [ $result != FAILED ] || line+=$'\n'$(tail -n 20 "$logs/$name")
    printf '%s\n' "$line"
    [ $result != FAILED ]
}
# finish COUNT: waits until at most so many steps are running.
finish() {
    while [ $running -gt "$1" ]; do
        wait -n || failed=1
        running=$((running - 1))
    done
}
step() {
    finish $((jobs - 1))
    run "$@" &
    running=$((running + 1))
}

uname -sr
"$build/apus" doctor | grep -E '^(apus|processor|gpu)'
step plugin "$build/test_plugin" # alone: it takes all of the GPU's memory for a moment
finish 0
for name in handed generated prompts whole sums ops attention attention_codes pages rope golden step graph batch coded given split restore together parallel mtp assistant compressed index mixture states; do
    step $name "$build/test_$name"
done
step drafts env APUS_TEST_BACKEND=cuda "$build/test_speculation_requests" 10000

device() { local name=$1; shift; step "$name" "$python" "$here/server/check_device.py" cuda "$@"; }
device requests 2000
device layers 500 --gpu-layers 2                 # of 4
device parked 300 --gpu-layers 1 --kv-memory 4M  # parked and taken again
device disk 300 --cache-dir "$logs/cache"
step restart "$python" "$here/server/check_restart.py" --gpu
step real env APUS_MODELS="${APUS_MODELS:-gemma-270m qwen-0.5b}" "$python" "$here/real/check_real.py" --device cuda

# racecheck sees no order in what one lane of a warp tells others through an mbarrier for all of its warp, as these kernels do.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
    check() { local tool=$1 name=$2; shift 2; step "$tool-$name" "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 20 "$@" "$build/test_$name"; }
    for name in handed whole sums pages step; do check memcheck $name; done
    for name in handed pages step; do check initcheck $name; done
    excluded=()
    for kernel in gemv_ring gemm_wgmma flash_prefill gemm_small_n gemv_int gemv_int_row gemm_int moe_row; do
        excluded+=(--kernel-name-exclude "kns=${kernel}_kernel")
    done
    for name in handed pages; do
        check racecheck $name "${excluded[@]}"
    done
else
    echo "skipped  sanitizer                  no compute-sanitizer"
fi
finish 0
[ -s "$logs/real" ] && grep -E 'KL|perplexity' "$logs/real"
rm -rf "$logs"
exit $failed
