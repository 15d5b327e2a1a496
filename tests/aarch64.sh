#!/usr/bin/env bash
# The ARM64 build on an emulator: the kernels against their definition and the reference, models against their goldens.
#   tests/aarch64.sh        products, scans of quantised pages, models of each kind of layer; compiled with -O1 (a third faster)
#   tests/aarch64.sh all    as released; every family, each operation, recurrent layers, attention over quantised pages, batches
# Takes a cross compiler and qemu (tools/install.sh test); without them it is skipped, with code 77.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

system=/usr/aarch64-linux-gnu
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    if ! command -v $tool >/dev/null; then
        echo "skipped: no $tool"
        exit 77
    fi
done
if [ ! -e $system/lib/ld-linux-aarch64.so.1 ]; then
    echo "skipped: no C library for ARM64 in $system"
    exit 77
fi

build_type=Debug
[ "${1:-}" != all ] || build_type=Release
cmake --preset aarch64 -DCMAKE_BUILD_TYPE=$build_type || exit 1
tests=(test_linear test_scan test_golden)
[ "${1:-}" != all ] || tests+=(test_ops test_states test_attention_codes test_batch)
cmake --build build-aarch64 --target "${tests[@]}" || exit 1

logs=build-aarch64/test-logs
mkdir -p $logs

# One fixture or more for each kind of layer and of weights.
kinds=(llama llama-fp llama-group128 llama-odd qwen3 phi3small gpt2 bitnet gemma3-text gemma3n gemma4-e2b gemma4-a4b gpt-oss llama4-text
    baichuan-m1 openelm minicpm3 rope-yarn olmoe mixtral phimoe longcat-flash deepseek-v2 deepseek-v3 deepseek-v32-sparse deepseek-v4
    minimax-m3-sparse qwen3-5 qwen3-5-moe qwen3-next kimi-linear nemotron-h falcon-h1-plain granite-hybrid mamba falcon-mamba mamba2 jamba
    lfm2 lfm2-moe minimax-text-01 bailing-moe-linear)

# The kinds on NEON; the reference, whose C is the same everywhere, for a few of them. all: every family on both.
golden() {
    if [ "${1:-}" = all ]; then
        emulate test_golden
    else
        emulate test_golden --backend neon "${kinds[@]}" || return 1
        cp "$logs/test_golden.log" "$logs/neon.log"
        emulate test_golden --backend fence llama deepseek-v3 gpt-oss gemma3-text || return 1
        cat "$logs/neon.log" >>"$logs/test_golden.log"
    fi
}

# emulate TEST ARGUMENT…: its output and its last line, the count, in the log.
emulate() {
    qemu-aarch64 -L $system "build-aarch64/$1" "${@:2}" >"$logs/$1.log" 2>&1
}

failed="" summary=""
for name in "${tests[@]}"; do
    case $name in
    test_golden) golden "${1:-}" || failed="$failed $name" ;;
    test_linear | test_attention_codes | test_batch) emulate "$name" short || failed="$failed $name" ;;
    *) emulate "$name" || failed="$failed $name" ;;
    esac
    cat "$logs/$name.log"
    summary="$summary, $name $(tail -n 1 "$logs/$name.log")"
done
[ -z "$failed" ] || echo "failed:$failed"
echo "${summary#, }"
[ -z "$failed" ]
