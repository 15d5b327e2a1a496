#!/usr/bin/env bash
# Installs system packages that are missing: tools/install.sh build | test. Debian and Ubuntu by apt, macOS by Homebrew.
# tools/install.sh cuda: a compiler for GPU kernels, unless nvcc is there, from PyPI's packages into the cache.
set -euo pipefail

if [ "${1:-build}" = cuda ]; then
    target=${XDG_CACHE_HOME:-$HOME/.cache}/apus/cuda
    command -v nvcc >/dev/null && exit 0
    [ -x "$target/nvidia/cu13/bin/nvcc" ] && exit 0
    python3 -m pip install -q --disable-pip-version-check --target "$target" \
        nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*
    chmod +x "$target"/nvidia/cu13/bin/* "$target"/nvidia/cu13/nvvm/bin/* 2>/dev/null || true
    echo "installed: $target/nvidia/cu13/bin/nvcc"
    exit 0
fi

case "${1:-build}" in
build) debian="gcc g++ make cmake ninja-build pkg-config libedit-dev libcurl4-openssl-dev libssl-dev
               libmpg123-dev libopusfile-dev libsndfile1-dev libsoxr-dev libvorbis-dev libjpeg-dev libpng-dev libwebp-dev libsqlite3-dev libqrencode-dev
               git ca-certificates python3 python3-pip"
       brew="cmake ninja libedit openssl@3 mpg123 libsndfile libsoxr libvorbis opusfile jpeg-turbo libpng webp sqlite qrencode python3" ;;
test)  debian="gcc g++ make cmake ninja-build libedit-dev libcurl4-openssl-dev libssl-dev
               libmpg123-dev libopusfile-dev libsndfile1-dev libsoxr-dev libvorbis-dev libjpeg-dev libpng-dev libwebp-dev libsqlite3-dev libqrencode-dev git ca-certificates python3 python3-pip python3-venv
               clang clang-format shellcheck ccache lld nginx-light libclang-rt-14-dev nodejs npm chromium fonts-noto-core webkit2gtk-driver xvfb curl openssl gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
       brew="cmake ninja libedit openssl@3 mpg123 libsndfile libsoxr libvorbis opusfile jpeg-turbo libpng webp sqlite qrencode python3 node clang-format" ;;
*)     echo "usage: tools/install.sh build|test|cuda" >&2; exit 2 ;;
esac

if [ "$(uname)" = Darwin ]; then
    command -v brew >/dev/null || { echo "install Homebrew first: https://brew.sh" >&2; exit 1; }
    # shellcheck disable=SC2086
    brew list $brew >/dev/null 2>&1 || brew install $brew
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "this system has no apt-get; install the equivalents of: $debian" >&2
    exit 0
fi

missing=""
for package in $debian; do
    # What is already there by another way (a newer node, a python of one's own) is not replaced.
    case $package in
    nodejs) command -v node >/dev/null && continue ;;
    npm) command -v npm >/dev/null && continue ;;
    python3) command -v python3 >/dev/null && continue ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    python3-venv) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 && continue ;;
    esac
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing:$missing"
log=$(mktemp)
# shellcheck disable=SC2086
if ! { $as_root apt-get update -q && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt-get failed; the whole log is in $log" >&2
    exit 1
fi
rm -f "$log"
