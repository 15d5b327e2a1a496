#!/usr/bin/env bash
# The official OpenAI SDK for Node against the served model.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus/node
version=6.49.0 # of npm openai: the last that runs on Node 18
if [ ! -f "$cache/openai-$version" ]; then
    rm -rf "$cache" && mkdir -p "$cache"
    (cd "$cache" && npm install --silent --no-audit --no-fund "openai@$version" && touch "openai-$version")
fi
export NODE_MODULES="$cache/node_modules"
exec "${APUS_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/apus/venv/bin/python}" check_sdk_node.py
