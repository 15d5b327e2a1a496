#!/usr/bin/env bash
# All tests. Installs what they need (system packages, a Python environment and models in the cache), then runs:
# lint; unit and operation tests in release, under ASan+UBSan and under TSan; tokenizers and templates against the Hugging Face
# libraries; logits against mlx-lm; the hub's cache against huggingface_hub; the API with the official SDKs; real models.
#   ./test.sh             everything (needs a few GB of cache on the first run)
#   ./test.sh fast        lint and the release tests
set -uo pipefail
cd "$(dirname "$0")" || exit 1
mode=${1:-all}

logs=build/test-logs
mkdir -p $logs
: >$logs/results

# step NAME COMMAND…: one test; its output is kept, and shown when it fails. Exit code 77 means skipped.
step() {
    local name=$1 start=$SECONDS code=0
    shift
    "$@" >"$logs/$name.log" 2>&1 </dev/null || code=$?
    local result=FAILED last="exit code $code; the end of $logs/$name.log:"
    case $code in
    0) result=ok last=$(tail -n 1 "$logs/$name.log" | cut -c1-120) ;;
    77) result=skipped last=$(tail -n 1 "$logs/$name.log" | cut -c1-120) ;;
    *) last+=$'\n'$(tail -n 40 "$logs/$name.log" | sed 's/^/    /') ;;
    esac
    printf '%-7s %-28s %4d s   %s\n' $result "$name" $((SECONDS - start)) "$last"
    echo "$result $name" >>$logs/results
    return $code
}

# The same beside one other such step: for tests that do not depend on how fast they run. `wait` waits for the last.
beside() {
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    set -m # as a group of its own, which takes Ctrl-C where a test sends it
    step "$@" &
    set +m
}
# shellcheck disable=SC2154 # the loop's own
trap 'for group in $(jobs -rp); do kill -- -"$group"; done' EXIT
trap 'exit 130' INT TERM

finish() {
    wait
    local passed failed
    passed=$(grep -c '^ok ' $logs/results) failed=$(grep -c '^FAILED ' $logs/results)
    [ "$failed" = 0 ] || echo "failed: $(sed -n 's/^FAILED //p' $logs/results | paste -sd' ')"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit $?
}

configure() { cmake --preset "$1" && cmake --build "$2"; }
cuda_build() { # for every architecture; where there is no GPU, compiling is all that can be tested
    tools/install.sh cuda && cmake --preset release -B build-cuda -DAPUS_CUDA=ON && cmake --build build-cuda --target apus-cuda
}
emulated_build() { cmake --preset release && cmake --build build --target emulated; } # with headers that cuda_build has brought
unit() { ctest --test-dir "$1" --output-on-failure -j 2 "${@:2}"; }

tools/install.sh test || exit 1
step build configure release build || finish
step lint tools/lint.sh
step unit unit build
step app-lint tests/app/run.sh lint
[ "$mode" = fast ] && finish

cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus
python=$cache/venv/bin/python
step python-environment tools/python_env.sh "$cache/venv" || finish

for model in qwen-0.5b qwen-1.5b gemma-270m; do step "fetch-$model" tools/fetch_models.py $model; done

beside aarch64 tests/aarch64.sh
beside cuda-build cuda_build
beside macos tests/macos.sh
beside hub "$python" tests/hub/check_hub.py

# Sanitizers: a sample of what tests compare number by number (SANITIZED in tests/test.h); all of it has run in `unit`.
# (Tests of allocations fork a process for each; that takes a second under TSan, and their threads are those of the other tests.
# test_load_shedding writes into the numbers of the thread of connections, to stand for crowds.)
step asan-build configure asan build-asan && step asan unit build-asan
threads='test_(ahead|engine|spill|models|pool|chat|server|operations|log|request|scheduler|map|file|constraint|sharing|stream|disk)'
step tsan-build configure tsan build-tsan && TSAN_OPTIONS=halt_on_error=1 step tsan unit build-tsan -R "$threads" -E '_allocations$'

beside tokenizers "$python" tests/text/check_tokenizers.py
beside vocabularies "$python" tests/import/check_vocabularies.py --count 1000
beside templates "$python" tests/text/check_templates.py
beside grammar "$python" tests/text/check_grammar.py
beside logits "$python" tests/model/check_logits.py
beside hostile "$python" tests/model/check_hostile.py

beside cli "$python" tests/cli/check_cli.py
beside swiftlm "$python" tests/cli/check_swiftlm.py
beside package tests/cli/check_package.sh
beside install tests/cli/check_install.sh
beside api "$python" tests/server/check_api.py
beside models "$python" tests/server/check_models.py
beside openapi "$python" tests/server/check_openapi.py --count 600
beside tools "$python" tests/server/check_tools.py
beside doors "$python" tests/server/check_doors.py
beside embeddings "$python" tests/server/check_embeddings.py
beside mixed "$python" tests/server/check_mixed.py
beside metrics "$python" tests/server/check_metrics.py
beside schema "$python" tests/server/check_schema.py
beside cache "$python" tests/server/check_cache.py
beside soak "$python" bench/kv_cache.py soak tiny --count 1000 --checked 0.5
beside sdk-python "$python" tests/server/check_sdk.py
beside sdk-node tests/server/check_sdk_node.sh
for client in openai anthropic langchain ai python_langchain python_litellm python_instructor python_pydantic_ai; do
    beside "client-$client" tests/clients/run.sh $client
done
beside malformed "$python" tests/server/check_malformed.py
wait
step emulated-build emulated_build && step emulated tests/emulated.sh build

# These measure times and memory, or take all cores.
step app tests/app/run.sh journeys
step app-webkit tests/app/run.sh webkit
step streaming "$python" tests/server/check_streaming.py
step chaos "$python" tests/server/check_chaos.py
step restart "$python" tests/server/check_restart.py
step gpu-layers "$python" tests/server/check_gpu_layers.py
step cuda tests/cuda.sh build
step tls "$python" tests/server/check_tls.py
step operations "$python" tests/server/check_operations.py
step replicas "$python" tests/server/check_replicas.py
step real "$python" tests/real/check_real.py
finish
