#!/usr/bin/env bash
# Runs one client library against the served 0.5B: tests/clients/run.sh NAME, which is a script NAME.py or NAME.mjs beside this one.
# What it needs is installed once per list of versions into the cache.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus/clients
name=$1

# stamp DIR LIST: the file that says that DIR holds what LIST says.
stamp() { echo "$1/made-$(cksum <"$2" | tr -d ' ')"; }

# One installs; who comes meanwhile waits (macOS has no flock: one by one there).
mkdir -p "$cache"
exec 9>"$cache/lock"
if command -v flock >/dev/null; then flock 9; fi
if [ -f "$name.mjs" ]; then
    node=$cache/node
    version=$(node -p 'process.versions.node.split(".")[0]')
    [ "$version" -ge 20 ] || { echo "skipped: these libraries want Node 20; this is Node $version"; exit 77; }
    if [ ! -f "$(stamp "$node" package-lock.json)" ]; then
        rm -rf "$node" && mkdir -p "$node" && cp package.json package-lock.json "$node"
        npm ci --prefix "$node" --silent --no-audit --no-fund
        touch "$(stamp "$node" package-lock.json)"
    fi
    cp ./*.mjs "$node" # a module looks for others in folders above itself
    set -- node "$node/$name.mjs"
else
    python=$cache/python
    if [ ! -f "$(stamp "$python" requirements.txt)" ]; then
        rm -rf "$python" && python3 -m venv "$python"
        "$python/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r requirements.txt
        touch "$(stamp "$python" requirements.txt)"
    fi
    set -- "$python/bin/python" "$name.py"
fi
exec 9>&-
exec python3 serve.py "$@"
