#!/usr/bin/env bash
# Builds llama.cpp from the sdist of llama-cpp-python, which carries its source: bench/peers.sh DIR. Prints the paths of llama-bench and
# of peer_depth, which measures decoding at a depth without reading a prompt that long.
# ik_llama.cpp is used where given: a checkout in IK_LLAMA is built too.
set -euo pipefail
dir=${1:?usage: bench/peers.sh DIR}
version=0.3.36
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
cd "$dir"
if [ ! -x llama.cpp/bin/llama-bench ]; then
    python3 -m pip install -q scikit-build-core
    python3 -m pip download -q --no-deps --no-binary :all: --no-build-isolation "llama-cpp-python==$version"
    tar xzf "llama_cpp_python-$version.tar.gz"
    # GCC 12 takes eight bytes of the tile configuration as read and drops the others: AMX products end with SIGILL.
    sed -i 's|^    _tile_loadconfig(&tc);|    asm volatile("" : : "r"(\&tc) : "memory");\n&|' \
        "llama_cpp_python-$version/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    cmake -G Ninja -S "llama_cpp_python-$version/vendor/llama.cpp" -B llama.cpp -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >&2
    cmake --build llama.cpp --target llama-bench llama-server llama-quantize >&2
fi
echo "$PWD/llama.cpp/bin/llama-bench"
source="llama_cpp_python-$version/vendor/llama.cpp"
cc -O2 "-I$source/include" "-I$source/ggml/include" "$here/peer_depth.c" -Lllama.cpp/bin -lllama -lggml -lggml-base \
    "-Wl,-rpath,$PWD/llama.cpp/bin" -o peer_depth
echo "$PWD/peer_depth"
if [ -n "${IK_LLAMA:-}" ]; then
    if [ ! -x ik/bin/llama-bench ]; then
        cmake -G Ninja -S "$IK_LLAMA" -B ik -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF >&2
        cmake --build ik --target llama-bench >&2
    fi
    echo "$PWD/ik/bin/llama-bench"
fi
