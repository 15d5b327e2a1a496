#!/usr/bin/env bash
# From a fresh machine to a working server: installs what is missing, builds, fetches a small model, serves it.
#   ./run.sh              serve APUS_MODEL if set, else Qwen2.5-Coder-0.5B-Instruct (491 MB, fetched once)
#   ./run.sh --build      only install and build: the binary is build/apus
#   ./run.sh --cuda …     first of all, beside either: the backend for NVIDIA GPUs as well (serve it with --device cuda)
#   ./run.sh OPTIONS…     passed on to `apus serve` (apus serve --help)
set -euo pipefail
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
log=$(mktemp)
if [ -x build/apus ]; then echo "building build/apus …"; else echo "building build/apus (about a minute) …"; fi
# shellcheck disable=SC2086
if ! cmake --build build --target $targets >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"
[ $only_build = yes ] && { echo "built: build/apus"; exit 0; }

model=${APUS_MODEL:-}
[ -n "$model" ] || model=$(tools/fetch_models.py qwen-0.5b)
exec build/apus serve "$model" "$@"
