#!/usr/bin/env bash
# Test programs with the emulated backend beside them (emulator.h), which they take for a GPU's:
#   tests/emulator/run.sh BUILD NAME [ARGUMENT…]     e.g. EMULATOR_SEED=7 tests/emulator/run.sh build test_ops
set -euo pipefail
build=$(realpath "${1:?usage: $0 BUILD NAME}") name=${2:?usage: $0 BUILD NAME}
cd "$(dirname "$0")/../.."
ln -f "$build/$name" "$build/emulated/$name"
export APUS_TEST_BACKEND=cuda # those of the processor are tested without the emulator
exec "$build/emulated/$name" "${@:3}"
