#!/usr/bin/env bash
# The CUDA backend's kernels on the processor, against the reference (tests/emulator/emulator.h), a line each:
#   tests/emulated.sh BUILD         kernels of decoding, prompts, pages, rope and images: about a minute
#   tests/emulated.sh BUILD all     every operation and whole models as well: many minutes
# Skipped where there is no BUILD/emulated/apus-cuda.so (cmake --build BUILD --target emulated).
set -uo pipefail
build=$(realpath "${1:-build}") set=${2:-usual} failed=0
cd "$(dirname "$0")/.." || exit 1
if [ ! -e "$build/emulated/apus-cuda.so" ]; then
    echo "skipped: no emulated backend in $build"
    exit 77
fi
lanes=1 running=0
[ "$set" != all ] || lanes=2

# run NAME SEED MULTIPROCESSORS [ARGUMENT…]
run() {
    local start=$SECONDS result=ok log
    log=$(mktemp)
    EMULATOR_SEED=$2 EMULATOR_MULTIPROCESSORS=$3 tests/emulator/run.sh "$build" "test_$1" "${@:4}" >"$log" 2>&1 </dev/null || result=FAILED
    ! grep -aq '^skipped: backend cuda' "$log" || result=FAILED # it did not find the emulated one
    printf '%-7s %-20s seed %d, %2d multiprocessors %4d s   %s\n' $result "$1" "$2" "$3" $((SECONDS - start)) \
        "$(grep -a passed "$log" | tail -n 1)"
    [ $result = ok ] || tail -n 40 "$log"
    rm -f "$log"
    [ $result = ok ]
}
step() {
    if [ $running = $lanes ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    run "$@" &
    running=$((running + 1))
}

step handed 1 4
step rope 3 4
step visible 3 4
step vision 3 4 gemma3 pixtral
step pages 4 3
step sums 5 4
step generated 7 4 short
step prompts 3 4 520
step whole 5 4 short
step compressed 3 4 short
if [ "$set" = all ]; then
    for name in attention golden attention_codes batch coded step given together; do step $name 7 4; done
    step vision 3 4
    step handed 2 1
    step speculation_model 7 4 --backend cuda llama
    step graph 2 4 0
    step graph 3 4 3 # padded heads
    step ops 6 4
    step ops 8 11
    step attention 9 2
fi
while [ $running -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit $failed
