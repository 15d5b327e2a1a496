#!/usr/bin/env bash
# All tests. Installs what they need (system packages, a Python environment and models in the cache), then runs:
# lint; unit and operation tests in release, under ASan+UBSan and under TSan; tokenizers and templates against the Hugging Face
# libraries; logits against mlx-lm; the hub's cache against huggingface_hub; the API with the official SDKs; real models.
#   ./test.sh             everything (needs a few GB of cache on the first run)
#   ./test.sh fast        lint and the release tests
set -uo pipefail
cd "$(dirname "$0")"
mode=${1:-all}

passed=0 failed=0 failures=""
logs=build/test-logs
mkdir -p $logs

# step NAME COMMAND…: one test; its output is kept, and shown when it fails. Exit code 77 means skipped.
step() {
    local name=$1 start=$SECONDS code=0
    shift
    "$@" >"$logs/$name.log" 2>&1 </dev/null || code=$?
    local seconds=$((SECONDS - start))
    if [ $code = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-28s %4d s   %s\n' "$name" $seconds "$(tail -n 1 "$logs/$name.log" | cut -c1-120)"
    elif [ $code = 77 ]; then
        printf 'skipped %-28s %4d s   %s\n' "$name" $seconds "$(tail -n 1 "$logs/$name.log" | cut -c1-120)"
    else
        failed=$((failed + 1))
        failures="$failures $name"
        printf 'FAILED  %-28s %4d s   exit code %d; the end of %s:\n' "$name" $seconds $code "$logs/$name.log"
        tail -n 40 "$logs/$name.log" | sed 's/^/    /'
    fi
    return $code
}

finish() {
    [ -z "$failures" ] || echo "failed:$failures"
    echo "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed -gt 0 ]
    exit $?
}

configure() { cmake --preset "$1" && cmake --build "$2"; }
unit() { ctest --test-dir "$1" --output-on-failure -j 2 "${@:2}"; }

tools/install.sh test || exit 1
step build configure release build || finish
step lint tools/lint.sh
step unit unit build
[ "$mode" = fast ] && finish

cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus
python=$cache/venv/bin/python
step python-environment tools/python_env.sh "$cache/venv" || finish

step aarch64 tests/aarch64.sh
step asan-build configure asan build-asan && step asan unit build-asan
# (Tests of allocations fork a process for each; that takes a second under TSan, and their threads are those of the other tests.)
step tsan-build configure tsan build-tsan && step tsan env TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan \
    --output-on-failure -R 'test_(engine|spill|models|pool|chat|server|request|scheduler|map|file|constraint|sharing|stream|disk)' -E '_allocations$'

step tokenizers "$python" tests/text/check_tokenizers.py
step templates "$python" tests/text/check_templates.py
step grammar "$python" tests/text/check_grammar.py
step logits "$python" tests/model/check_logits.py
step hostile "$python" tests/model/check_hostile.py

for model in qwen-0.5b qwen-1.5b gemma-270m; do step "fetch-$model" tools/fetch_models.py $model; done
step cli "$python" tests/cli/check_cli.py
step swiftlm "$python" tests/cli/check_swiftlm.py
step package tests/cli/check_package.sh
step hub "$python" tests/hub/check_hub.py
step api "$python" tests/server/check_api.py
step models "$python" tests/server/check_models.py
step openapi "$python" tests/server/check_openapi.py --count 600
step tools "$python" tests/server/check_tools.py
step doors "$python" tests/server/check_doors.py
step embeddings "$python" tests/server/check_embeddings.py
step mixed "$python" tests/server/check_mixed.py
step metrics "$python" tests/server/check_metrics.py
step schema "$python" tests/server/check_schema.py
step cache "$python" tests/server/check_cache.py
step streaming "$python" tests/server/check_streaming.py
step soak "$python" bench/kv_cache.py soak tiny --count 1000 --checked 0.5
step sdk-python "$python" tests/server/check_sdk.py
step sdk-node tests/server/check_sdk_node.sh
for client in openai anthropic langchain ai python_langchain python_litellm python_instructor python_pydantic_ai; do
    step "client-$client" tests/clients/run.sh $client
done
step malformed "$python" tests/server/check_malformed.py
step chaos "$python" tests/server/check_chaos.py
step tls "$python" tests/server/check_tls.py
step real "$python" tests/real/check_real.py
finish
