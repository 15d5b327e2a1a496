#!/usr/bin/env bash
# A session of a coding agent with a scripted model: tests/clients/agents.sh claude|codex|opencode. The agents are
# installed once per list of versions (agents/package.json) into the cache, about 1 GB.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus
folder=$cache/clients/agents
version=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null) || { echo "skipped: no Node"; exit 77; }
[ "$version" -ge 20 ] || { echo "skipped: the agents want Node 20; this is Node $version"; exit 77; }
mkdir -p "$folder"
exec 9>"$folder/lock"
if command -v flock >/dev/null; then flock 9; fi
made=$folder/made-$(cksum <agents/package.json | tr -d ' ')
if [ ! -f "$made" ]; then
    cp agents/package.json "$folder"
    npm install --prefix "$folder" --silent --no-audit --no-fund
    touch "$made"
fi
exec 9>&-
exec "$cache/venv/bin/python" agent_session.py "$1" "$folder"
