#!/usr/bin/env bash
# Every source file through a compiler for macOS, ARM64 and x86-64: system clang with the macOS headers that zig brings
# (package ziglang of tests/requirements.txt). Syntax and warnings only; nothing is linked or run.
#   tests/macos.sh            all for ARM64; for x86-64 those whose text depends on the architecture
#   tests/macos.sh all        all for both
#   tests/macos.sh FILE…
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${XDG_CACHE_HOME:-$HOME/.cache}/apus/venv/bin/python
zig=$("$python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))' 2>/dev/null)
headers=$zig/lib/libc/include/any-darwin-any
for needed in "$headers" "$(command -v clang)"; do
    [ -e "$needed" ] || { echo "skipped: no clang, or no headers of macOS: tools/python_env.sh"; exit 77; }
done

# Libraries that a Mac has from its SDK or from Homebrew: the headers of this machine's.
libraries=$(mktemp -d)
trap 'rm -rf "$libraries"' EXIT
ln -s /usr/include/{jpeglib,jmorecfg,jerror,png,pngconf,pnglibconf,sndfile,soxr,sqlite3,qrencode}.h \
    "/usr/include/$(uname -m)-linux-gnu"/{jconfig,mpg123,fmt123}.h /usr/include/opus/*.h "$libraries/"
for name in curl openssl editline webp ogg vorbis; do
    mkdir "$libraries/$name"
    for place in /usr/include/"$name" /usr/include/"$(uname -m)"-linux-gnu/"$name"; do
        [ ! -d "$place" ] || ln -sf "$place"/* "$libraries/$name/"
    done
done
echo 'ASSET(0, "/", "index.html", "text/html", "0", false)' >"$libraries/assets.inc" # app/build.js writes the real one

# The same warnings as CMakeLists.txt. clang 14 knows no _Float16 on x86-64, which a header declares functions of.
flags=(-fsyntax-only -std=gnu17 -Isrc -isystem "$headers" -isystem "$libraries" -D_GNU_SOURCE= '-DAPUS_VERSION="0"'
    '-DAPUS_WEB_DIRECTORY="."' -DAPUS_SQLITE=1 -DAPUS_QRENCODE=1 -D_Float16=float -Werror -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wstrict-prototypes
    -Wmissing-prototypes -Wundef -Wno-unused-parameter -Wno-gnu-statement-expression)
avx512="-mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi -mgfni"

# The options of an instruction set's files, as in CMakeLists.txt; fails where the architecture lacks it.
options_of() {
    case $1:$2 in
    x86_64:*_avx2.c) echo "-mavx2 -mfma -mf16c -mbmi2" ;;
    x86_64:*_avx512.c) echo "$avx512" ;;
    x86_64:*_amx.c) echo "$avx512 -mamx-tile -mamx-int8" ;;
    arm64:*_neon.c) echo "-march=armv8.2-a+dotprod+fp16" ;;
    *_avx2.c | *_avx512.c | *_amx.c | *_neon.c) return 1 ;;
    esac
}

# Files that ask for the architecture, or include a header that does.
depending() {
    local asks='__(x86_64|i386|aarch64|arm64|ARM|SSE|AVX|F16C)|immintrin|arm_neon|__builtin_(ia32|cpu|arm)' names=none before=""
    while [ "$names" != "$before" ]; do
        before=$names
        names=$(grep -rlE "$asks|#include \"(.*/)?($names)\"" src --include='*.h' | xargs -n 1 basename | sort -u | paste -sd'|')
    done
    grep -rlE "$asks|#include \"(.*/)?($names)\"" src --include='*.c' --exclude-dir=cuda | sort
}

mapfile -t found < <(find src -name '*.c' -not -path 'src/backend/cuda/*' | sort)
mapfile -t other < <(depending)
case ${1:-} in
"") ;;
all) other=("${found[@]}") ;;
*) found=("$@") other=("$@") ;;
esac
passed=0 failed=0
check() { # ARCHITECTURE FILE…
    local architecture=$1 file options
    for file in "${@:2}"; do
        options=$(options_of "$architecture" "$file") || continue
        # shellcheck disable=SC2086 # several options
        if clang -target "$architecture-apple-macos13" "${flags[@]}" $options "$file"; then
            passed=$((passed + 1))
        else
            echo "$architecture: $file"
            failed=$((failed + 1))
        fi
    done
}
check arm64 "${found[@]}"
check x86_64 "${other[@]}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
