#!/usr/bin/env bash
# The tests that need a GPU: every operation and attention against the reference, families, batches, restored pages and split
# layers, all on "cuda" beside the processor's backends; then mixed requests through the server,
# also with half of the layers there. Skipped where apus doctor finds no GPU.
#   tests/cuda.sh [BUILD]       default: build
set -uo pipefail
build=${1:-build}
if "$build/apus" doctor | grep -q '^gpu *none'; then
    "$build/apus" doctor | grep '^gpu'
    exit 77
fi
failed=0
for name in plugin handed sums ops attention pages rope golden step batch given split restore together; do
    "$build/test_$name" || failed=1
done
check() { APUS_BINARY=$(realpath "$build/apus") python3 "$(dirname "$0")/server/check_device.py" cuda "$@" || failed=1; }
check 2000
check 500 --gpu-layers 2                 # of 4
check 300 --gpu-layers 1 --kv-memory 4M  # parked and taken again
APUS_BINARY=$(realpath "$build/apus") python3 "$(dirname "$0")/server/check_restart.py" --gpu || failed=1
exit $failed
