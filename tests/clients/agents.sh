#!/usr/bin/env bash
# A session of a coding agent with a scripted model:
# tests/clients/agents.sh claude|codex|opencode|aider|llm|continue|cline|open-webui.
# What is installed once per list of versions (agents/package.json, agents/NAME.txt) goes into the cache: 1.5 GB for Node's,
# 500 MB for aider, 900 MB for the backend of Open WebUI, without what its own models and other databases take.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus
agent=$1
folder=$cache/clients/agents
list=agents/package.json
if [ -f "agents/$agent.txt" ]; then
    folder=$cache/clients/$agent
    list=agents/$agent.txt
    python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || [ "$agent" != aider ] ||
        { echo "skipped: aider wants Python 3.10 to 3.12"; exit 77; }
    python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || [ "$agent" != open-webui ] ||
        { echo "skipped: Open WebUI wants Python 3.11 or 3.12"; exit 77; }
else
    version=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null) || { echo "skipped: no Node"; exit 77; }
    [ "$version" -ge 20 ] || { echo "skipped: the agents want Node 20; this is Node $version"; exit 77; }
fi
mkdir -p "$folder"
exec 9>"$folder/lock"
if command -v flock >/dev/null; then flock 9; fi
made=$folder/made-$(cksum <"$list" | tr -d ' ')
if [ ! -f "$made" ]; then
    if [ "$list" = agents/package.json ]; then
        cp agents/package.json "$folder"
        npm install --prefix "$folder" --silent --no-audit --no-fund
    else
        python3 -m venv "$folder/python"
        only=
        [ "$agent" != open-webui ] || only=--no-deps # its list leaves out what else it names
        "$folder/python/bin/python" -m pip install -q --disable-pip-version-check $only -r "$list"
    fi
    touch "$made"
fi
exec 9>&-
programs=$folder/node_modules/.bin
[ "$list" = agents/package.json ] || programs=$folder/python/bin
exec "$cache/venv/bin/python" agent_session.py "$agent" "$programs"
