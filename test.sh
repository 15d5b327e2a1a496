#!/usr/bin/env bash
# The tests: a line for each step with its seconds, then how many steps passed, failed and were skipped.
#   ./test.sh         every change passes it, CI runs it: at most 20 minutes on two cores
#   ./test.sh fast    lint and the unit tests
#   ./test.sh long    what takes longer, see CONTRIBUTING.md: at most 120 minutes
# Installs what the tests need (system packages, a Python environment, models in the cache) if it is missing.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
mode=${1:-usual}
case $mode in usual | fast | long) ;; *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac

logs=build/test-logs
mkdir -p $logs
: >$logs/results
: >$logs/skips
echo "step,seconds,processor_seconds,result" >$logs/times.csv
TIMEFORMAT='%R %U %S'

# step NAME COMMAND…: one test; its output is kept, and its end shown when it fails. Each line of output that begins with
# "skipped: " is a reason for a part, or with exit code 77 the whole, not having run.
step() {
    local name=$1 log=$logs/$1.log code=0 result=ok last times wall user system processor
    shift
    times=$({ time "$@" >"$log" 2>&1 </dev/null; } 2>&1) || code=$?
    read -r wall user system <<<"$times"
    processor=$(awk "BEGIN { printf \"%.1f\", $user + $system }")
    last=$(tail -n 1 "$log" | cut -c1-120)
    grep -ah '^skipped: ' "$log" | sort -u | sed "s/^skipped: /$name: /" >>$logs/skips
    if [ $code = 77 ]; then
        result=skipped
        grep -aq '^skipped: ' "$log" || echo "$name: no reason given" >>$logs/skips
    elif [ $code != 0 ]; then
        result=FAILED
        last="exit code $code; the end of $log:"$'\n'$(tail -n 40 "$log" | sed 's/^/    /')
    fi
    printf '%-7s %-26s %5.0f s %5.0f cpu   %s\n' $result "$name" "$wall" "$processor" "$last"
    echo "$result $name" >>$logs/results
    echo "$name,$wall,$processor,$result" >>$logs/times.csv
    return $code
}

# beside N NAME COMMAND…: a step beside at most N - 1 others, for tests that do not depend on how fast they run.
both_cores= # process group that counts as two of them
waiting=""  # those that do not count
beside() {
    while [ "$(lanes)" -ge "$1" ]; do wait -n; done
    shift
    start "$@"
}
# aside NAME COMMAND…: a step that waits most of its time, beside any others.
aside() {
    start "$@"
    waiting="$waiting $!"
}
start() {
    set -m # a process group of its own, which takes Ctrl-C where a test sends it
    step "$@" &
    set +m
}
lanes() {
    jobs -rp | awk -v both="${both_cores:-none}" -v waiting="$waiting " '
        !index(waiting, " " $1 " ") { count += $1 == both ? 2 : 1 }
        END { print count + 0 }'
}
# shellcheck disable=SC2154 # the loop's own
trap 'for group in $(jobs -rp); do kill -- -"$group"; done' EXIT
trap 'exit 130' INT TERM

# What was skipped without being in tests/expected_skips.
unexpected_skips() {
    local line pattern
    while read -r line; do
        while read -r pattern; do
            # shellcheck disable=SC2053 # a pattern
            [[ $line == $pattern* ]] && continue 2
        done < <(sed 's/ *#.*//; /^$/d' tests/expected_skips)
        echo "$line"
    done <$logs/skips
}

finish() {
    wait
    local passed failed skipped unexpected
    passed=$(grep -c '^ok ' $logs/results) failed=$(grep -c '^FAILED ' $logs/results) skipped=$(wc -l <$logs/skips)
    unexpected=$(unexpected_skips)
    [ "$skipped" = 0 ] || sort $logs/skips | sed 's/^/skipped: /'
    if [ -n "$unexpected" ]; then
        echo "skipped, but not in tests/expected_skips:"
        echo "$unexpected"
        failed=$((failed + 1))
    fi
    grep -q '^FAILED ' $logs/results && echo "failed: $(sed -n 's/^FAILED //p' $logs/results | paste -sd' ')"
    awk -F, -v wall=$SECONDS 'NR > 1 { total += $3 } END { printf "total: %d s, %d processor seconds\n", wall, total }' $logs/times.csv
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit $?
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus
python=$cache/venv/bin/python

# build PRESET FOLDER [TARGET…] [-- OPTION…]
build() {
    local preset=$1 folder=$2 targets=()
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("$1"); shift; done
    cmake --preset "$preset" -B "$folder" "${@:2}" && cmake --build "$folder" -j 2 ${targets[0]:+--target "${targets[@]}"}
}
# unit FOLDER OPTION…: ctest, and once each reason for which its tests skipped something
unit() {
    local code=0
    ctest --test-dir "$1" --output-on-failure -j 2 "${@:2}" || code=$?
    grep -ah '^skipped: ' "$1/Testing/Temporary/LastTest.log" | sort -u
    ctest --test-dir "$1" -N "${@:2}" | tail -n 1 # Total Tests: N
    return $code
}
cuda_build() { # for all architectures; where there is no GPU, compiling is all that can be tested
    tools/install.sh cuda && build release build-cuda apus-cuda -- -DAPUS_CUDA=ON
}
emulated_build() { # with the headers that tools/install.sh brings
    tools/install.sh cuda && build release build emulated
}

# Tests that run in the release build as well: kernels of every instruction set, and whole samples where a sanitizer takes a
# part. Those of all other layers run once, under ASan and UBSan; fast and long run them in the release build.
release_layers=(backend family)
release_tests=(kv_memory sums engine_model engine_sharing speculation_model speculation sharing ahead constraint disk)
targets=()
[ "$mode" != usual ] || targets=(apus stand-in faulty test_{image,template,tokenizer} "${release_layers[@]/#/tests-}" "${release_tests[@]/#/test_}")

tools/install.sh test || exit 1
step python-environment tools/python_env.sh "$cache/venv" || finish
step build build release build ${targets[0]:+"${targets[@]}"} || finish

if [ "$mode" = fast ]; then
    export APUS_TEST_SAMPLE=1 # tests/test.h
    step lint tools/lint.sh
    step app-lint tests/app/run.sh lint
    step unit unit build
    finish
fi
models=(qwen-0.5b gemma-270m)
[ "$mode" != long ] || models+=(qwen-1.5b)
for model in "${models[@]}"; do step "fetch-$model" tools/fetch_models.py "$model"; done
step fetch-qwen3 tools/fetch_tokenizers.sh qwen3 # for schema; tokenizers fetches the others

export TSAN_OPTIONS=halt_on_error=1
# gcc 13 places vectors of 64 bytes at addresses for 32 on the stack that this replaces (PR 110027).
export ASAN_OPTIONS=detect_stack_use_after_return=0

if [ "$mode" = long ]; then
    step unit-whole unit build
    step asan-build build asan build-asan -- -DAPUS_SANITIZE_KERNELS=ON && step asan unit build-asan
    step tsan-build build tsan build-tsan -- -DAPUS_SANITIZE_KERNELS=ON && step tsan unit build-tsan -L '^threads$'
    step cuda-build cuda_build
    step emulated-build emulated_build && step emulated tests/emulated.sh build all
    step aarch64 tests/aarch64.sh all
    beside 2 macos tests/macos.sh all
    beside 2 tokenizers "$python" tests/text/check_tokenizers.py
    beside 2 sentencepiece "$python" tests/text/check_sentencepiece.py --count 10000
    beside 2 calls "$python" tests/text/check_calls.py --count 400 --seed 2
    beside 2 logits "$python" tests/model/check_logits.py
    for client in langchain python_langchain python_litellm python_instructor; do
        beside 2 "client-$client" tests/clients/run.sh $client
    done
    for agent in claude codex opencode aider llm continue cline open-webui; do beside 2 "agent-$agent" tests/clients/agents.sh $agent; done
    beside 2 schema "$python" tests/server/check_schema.py --seeds 1000
    beside 2 openapi "$python" tests/server/check_openapi.py --count 3000
    beside 2 soak "$python" bench/kv_cache.py soak tiny --count 5000 --checked 0.5
    beside 2 vocabularies "$python" tests/import/check_vocabularies.py --count 1000
    beside 2 images "$python" tests/media/check_images.py --count 2000 --sizes 40
    beside 2 convert "$python" tests/import/check_convert.py
    beside 2 gguf-families "$python" tests/import/check_gguf_families.py
    beside 2 gguf-export "$python" tests/import/check_export.py --count 1000
    beside 2 packed "$python" tests/model/check_packed.py --broken 1000
    wait
    step requests build/test_speculation_requests 10000
    step app-long tests/app/run.sh long
    step release tests/cli/check_release.sh
    step real "$python" tests/real/check_real.py
    finish
fi

export APUS_TEST_SAMPLE=1
# ctest chooses by label or by name, not by either: two runs.
release() {
    unit build -L "^($(IFS='|'; echo "${release_layers[*]}"))\$" -E '^test_(bad_model|given)$' &&
        unit build -R "^test_($(IFS='|'; echo "${release_tests[*]}"))\$"
}

# Sanitizers: parsers, server, engine and allocations under ASan and UBSan, with a sample of models and backends; what has
# threads under TSan. The vector kernels are those of the release build; ./test.sh long has them instrumented, and all tests.
# test_engine_sharing and test_speculation_model compare numbers of real models: test_sharing (a fake model) and test_engine_model have
# its threads and its memory.
kernels=-DAPUS_KERNELS=$PWD/build/libkernels.a
asan_targets=(tests-{base,media,tensor,weights,cache,model,fit,import,text,hub,engine,chat,library,history,server,cli,fuzz} test_{fence,plugin,pool,step,bad_model,given})
asan() {
    unit build-asan -LE '^(backend|family)$' -E '^test_(engine_sharing|speculation_model)$' && unit build-asan -R '^test_(fence|plugin|pool|step|bad_model|given)$'
}
tsan() {
    build tsan build-tsan tests-threads -- -DAPUS_SANITIZE_KERNELS=OFF "$kernels" &&
        unit build-tsan -L '^threads$' -E '^test_engine_sharing$'
}
compiled() {
    step unit release
    step asan-build build asan build-asan "${asan_targets[@]}" -- -DAPUS_SANITIZE_KERNELS=OFF "$kernels" && step asan asan
}
step emulated-build emulated_build

# The compiled tests take two cores, and beside them two lanes of everything else, which waits a good part of its time; then
# four lanes. What waits most begins, the longest first; two steps that compute for a fifth of their minutes take no lane.
set -m
compiled &
both_cores=$!
set +m
aside hub "$python" tests/hub/check_hub.py
aside streaming "$python" tests/server/check_streaming.py
beside 4 emulated tests/emulated.sh build
beside 4 app tests/app/run.sh journeys
beside 4 aarch64 tests/aarch64.sh
beside 4 tsan tsan # as part of the compiled tests it would end last, alone
for check in cache api doors tools jobs vision embeddings models audio media_memory fit mixed malformed metrics constrained faults states lan sdk; do
    beside 4 $check "$python" tests/server/check_$check.py
done
for check in lora encoders; do beside 4 $check "$python" tests/server/check_$check.py; done
beside 4 real env APUS_MODELS=gemma-270m "$python" tests/real/check_real.py
for check in gpu_layers replicas operations; do beside 4 ${check/_/-} "$python" tests/server/check_$check.py; done
beside 4 app-webkit tests/app/run.sh webkit
beside 4 macos tests/macos.sh
beside 4 schema "$python" tests/server/check_schema.py --seeds 300
beside 4 lint tools/lint.sh
beside 4 app-lint tests/app/run.sh lint
beside 4 tokenizers "$python" tests/text/check_tokenizers.py --count 1000
beside 4 sentencepiece "$python" tests/text/check_sentencepiece.py --count 300
beside 4 vocabularies "$python" tests/import/check_vocabularies.py --count 200
beside 4 images "$python" tests/media/check_images.py
beside 4 convert "$python" tests/import/check_convert.py --every 4
beside 4 gguf-families "$python" tests/import/check_gguf_families.py
beside 4 mmproj "$python" tests/import/check_mmproj.py
beside 4 gguf-export "$python" tests/import/check_export.py --count 100
beside 4 packed "$python" tests/model/check_packed.py --broken 48
beside 4 templates "$python" tests/text/check_templates.py
beside 4 grammar "$python" tests/text/check_grammar.py
beside 4 calls "$python" tests/text/check_calls.py --count 12
beside 4 logits "$python" tests/model/check_logits.py --every 4
beside 4 hostile "$python" tests/model/check_hostile.py
beside 4 cli "$python" tests/cli/check_cli.py
beside 4 commands "$python" tests/cli/check_commands.py
beside 4 package tests/cli/check_package.sh
beside 4 install tests/cli/check_install.sh
beside 4 speculation "$python" tests/server/check_speculation.py
beside 4 openapi "$python" tests/server/check_openapi.py --count 200
beside 4 soak "$python" bench/kv_cache.py soak tiny --count 200 --checked 0.5
beside 4 swiftlm "$python" tests/cli/check_swiftlm.py
beside 4 agents "$python" tests/clients/agent_session.py
beside 4 agent-requests "$python" tests/clients/agent_requests.py
beside 4 sdk-node tests/server/check_sdk_node.sh
for client in openai anthropic ai python_pydantic_ai; do beside 4 "client-$client" tests/clients/run.sh $client; done
wait
both_cores=

# These measure times, or take a GPU.
step chaos "$python" tests/server/check_chaos.py
aside tls "$python" tests/server/check_tls.py # waits for ten seconds
step restart "$python" tests/server/check_restart.py
step cuda tests/cuda.sh build
finish
