#!/usr/bin/env bash
# Archives of a release in a folder, with SHA256SUMS and an SBOM (SPDX 2.3, JSON) for each:
#   packaging/release.sh [-o FOLDER] [x86_64] [aarch64] [cuda] [source]     default: all of them, in dist/
# Everything but the C library is linked statically. The libraries are Debian's for the architecture, unpacked into
# build-release/; curl is built from Debian's source, for Debian's own archive of it needs thirty others.
# Takes Debian, its cross compiler for ARM64 (tools/install.sh test) and, for cuda, nvcc: what lacks a tool is skipped,
# with its reason.
set -euo pipefail
cd "$(dirname "$0")/.."

out=dist
[ "${1:-}" != -o ] || { out=$2; shift 2; }
[ $# -gt 0 ] || set -- x86_64 aarch64 cuda source
version=$(sed -n 's/^project(apus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
newest_glibc=2.34 # of the systems that the archives are for: Debian 12, Ubuntu 22.04, RHEL 9, Amazon Linux 2023
libraries="libssl-dev libedit-dev libncurses-dev libbsd-dev libmd-dev zlib1g-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libsqlite3-dev libtinfo6" # the last for the licence of libtinfo.a
root=$PWD/build-release
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
mkdir -p "$out" "$root"
out=$(cd "$out" && pwd)

# apt ARCHITECTURE COMMAND…: apt-get with a state of its own, for packages of any architecture and for sources.
apt() {
    local state=$root/apt/$1
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/sources"
    touch "$state/status"
    for list in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        [ -e "$list" ] || continue
        local name=debian.list
        case $list in *.sources) name=debian.sources ;; esac
        sed 's/^Types: deb$/Types: deb deb-src/; s/^deb \(.*\)/&\ndeb-src \1/' "$list" >"$state/sources/$name"
    done
    apt-get -q -o APT::Architecture="$1" -o APT::Architectures="$1" -o Dir::State="$state" -o Dir::State::status="$state/status" \
        -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist=/dev/null \
        -o Dir::Etc::sourceparts="$state/sources" -o APT::Sandbox::User=root -o Acquire::Languages=none "${@:2}"
}

# static_libraries MACHINE: build-release/MACHINE/static with lib/*.a and include/, and the licences of what is in it.
static_libraries() {
    local machine=$1 architecture=amd64
    [ "$machine" = x86_64 ] || architecture=arm64
    local work=$root/$machine
    local static=$work/static
    [ "$(cat "$static/complete" 2>/dev/null)" != "$libraries" ] || return 0
    rm -rf "$static" "$work/unpacked"
    mkdir -p "$static/lib" "$static/include" "$static/licenses" "$work/packages"
    rm -f "$work"/packages/*.deb
    # shellcheck disable=SC2086
    (cd "$work/packages" && { apt $architecture download $libraries || { apt $architecture update && apt $architecture download $libraries; }; })
    : >"$static/packages.tsv"
    for package in "$work"/packages/*.deb; do
        dpkg-deb -x "$package" "$work/unpacked"
        local name
        name=$(dpkg-deb -f "$package" Package)
        printf '%s\t%s\n' "$name" "$(dpkg-deb -f "$package" Version)" >>"$static/packages.tsv"
    done
    for package in $libraries; do cp -L "$work/unpacked/usr/share/doc/$package/copyright" "$static/licenses/$package"; done
    cp -a "$work"/unpacked/usr/lib/"$machine"-linux-gnu/*.a "$static/lib/"
    cp -a "$work"/unpacked/usr/include/. "$static/include/"
    [ ! -d "$static/include/$machine-linux-gnu" ] || cp -a "$static/include/$machine-linux-gnu"/. "$static/include/"
    curl_library "$machine" "$architecture"
    echo "$libraries" >"$static/complete"
}

# logged FILE COMMAND…: its output goes to the end of the file, whose end is shown if it fails.
logged() {
    local log=$1
    shift
    "$@" >>"$log" 2>&1 || { tail -n 30 "$log"; return 1; }
}

# What cmake finds of other projects is in the folder of static libraries.
cmake_options() {
    local static=$root/$1/static
    options=(-G Ninja -DCMAKE_BUILD_TYPE=Release "-DAPUS_STATIC=$static" "-DCMAKE_C_FLAGS=-isystem $static/include"
        "-DCMAKE_EXE_LINKER_FLAGS=-L$static/lib -static-libgcc"
        "-DCMAKE_C_STANDARD_LIBRARIES=-ltinfo -lbsd -lmd -lssl -lcrypto -lpng -lz -lwebp -lm") # what the libraries take
    if [ "$1" = "$(uname -m)" ]; then
        options+=("-DCMAKE_FIND_ROOT_PATH=$static" -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
            -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY)
    else
        options+=("-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/$1.cmake")
    fi
}

# HTTP over OpenSSL alone.
curl_library() {
    local work=$root/$1 log=$root/$1/curl.log options source
    cmake_options "$1"
    : >"$log"
    rm -rf "$work"/curl-[0-9]* "$work/curl"
    (cd "$work" && logged "$log" apt "$2" source curl)
    source=$(echo "$work"/curl-[0-9]*/)
    logged "$log" cmake -S "$source" -B "$work/curl" "${options[@]}" -DCMAKE_INSTALL_PREFIX="$work/static" -DBUILD_SHARED_LIBS=OFF \
        -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DCURL_ZLIB=OFF \
        -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF \
        -DCURL_DISABLE_LDAP=ON -DPICKY_COMPILER=OFF -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=none
    logged "$log" cmake --build "$work/curl"
    logged "$log" cmake --install "$work/curl"
    cp "$source/COPYING" "$work/static/licenses/curl"
    printf 'curl\t%s\n' "$(cd "$source" && dpkg-parsechangelog -S Version)" >>"$work/static/packages.tsv"
}

# pack NAME: the folder build-release/NAME as an archive whose bytes depend on its files alone.
pack() {
    tar -C "$root" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$1" | gzip -9n >"$out/$1.tar.gz"
    echo "$out/$1.tar.gz: $(du -h "$out/$1.tar.gz" | cut -f1)"
}

# The newest version of the C library that a program or library needs.
check_needs() {
    local needed newest unknown
    needed=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p')
    unknown=$(echo "$needed" | grep -Ev '^(libc|libm|libdl|librt|libpthread|ld-linux[-a-z0-9_]*)\.so\.[0-9]+$' || true)
    [ -z "$unknown" ] || { echo "$1 needs $unknown"; return 1; }
    newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
    [ "$(printf '%s\n' "$newest" $newest_glibc | sort -V | tail -n 1)" = $newest_glibc ] ||
        { echo "$1 needs glibc $newest; the limit is $newest_glibc"; objdump -T "$1" | grep "GLIBC_$newest"; return 1; }
}

archive() {
    local machine=$1 options name=apus-$version-linux-$1 work=$root/$1 strip=strip
    if [ "$machine" != "$(uname -m)" ]; then
        command -v "$machine-linux-gnu-gcc" >/dev/null || { echo "skipped: $machine: no $machine-linux-gnu-gcc"; return 0; }
        strip=$machine-linux-gnu-strip
    fi
    for tool in apt-get dpkg-deb dpkg-source; do
        command -v $tool >/dev/null || { echo "skipped: $machine: no $tool"; return 0; }
    done
    static_libraries "$machine"
    cmake_options "$machine"
    : >"$work/build.log"
    logged "$work/build.log" cmake -S . -B "$work/build" "${options[@]}"
    logged "$work/build.log" cmake --build "$work/build" --target apus
    check_needs "$work/build/apus"
    local to=$root/$name
    rm -rf "$to"
    mkdir -p "$to/bin" "$to/licenses" "$to/share/man/man1" "$to/share/bash-completion/completions" "$to/share/fish/vendor_completions.d"
    $strip -o "$to/bin/apus" "$work/build/apus"
    cp "$work"/static/licenses/* "$to/licenses/"
    cp README.md CHANGELOG.md LICENSE "$to/"
    local program=("$to/bin/apus")
    [ "$machine" = "$(uname -m)" ] || program=("qemu-$machine" -L "/usr/$machine-linux-gnu" "$to/bin/apus")
    "${program[@]}" man | cat >"$to/share/man/man1/apus.1"
    "${program[@]}" completion bash >"$to/share/bash-completion/completions/apus"
    "${program[@]}" completion fish >"$to/share/fish/vendor_completions.d/apus.fish"
    python3 packaging/sbom.py "$name" "$version" "$SOURCE_DATE_EPOCH" "$work/static/packages.tsv" "$to/bin/apus" >"$out/$name.spdx.json"
    cp "$out/$name.spdx.json" "$to/sbom.spdx.json"
    pack "$name"
}

cuda() {
    local name=apus-$version-linux-x86_64-cuda work=$PWD/build-cuda # where ./test.sh long builds it, too
    command -v nvcc >/dev/null || [ -x "${XDG_CACHE_HOME:-$HOME/.cache}/apus/cuda/nvidia/cu13/bin/nvcc" ] ||
        { echo "skipped: cuda: no nvcc (tools/install.sh cuda brings one)"; return 0; }
    mkdir -p "$work"
    : >"$work/build.log"
    logged "$work/build.log" cmake --preset release -B "$work" -DAPUS_CUDA=ON ${APUS_CUDA_CODE:+"-DAPUS_CUDA_CODE=$APUS_CUDA_CODE"}
    logged "$work/build.log" cmake --build "$work" --target apus-cuda
    check_needs "$work/apus-cuda.so"
    rm -rf "${root:?}/$name"
    mkdir -p "$root/$name/bin"
    strip --strip-unneeded -o "$root/$name/bin/apus-cuda.so" "$work/apus-cuda.so"
    cp LICENSE "$root/$name/"
    printf 'cuda-cudart\t%s\n' "$(nvcc_version)" >"$work/packages.tsv"
    python3 packaging/sbom.py "$name" "$version" "$SOURCE_DATE_EPOCH" "$work/packages.tsv" "$root/$name/bin/apus-cuda.so" >"$out/$name.spdx.json"
    cp "$out/$name.spdx.json" "$root/$name/sbom.spdx.json"
    pack "$name"
}

nvcc_version() {
    local nvcc
    nvcc=$(command -v nvcc || echo "${XDG_CACHE_HOME:-$HOME/.cache}/apus/cuda/nvidia/cu13/bin/nvcc")
    "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'
}

source_archive() {
    git archive --prefix="apus-$version/" HEAD | gzip -9n >"$out/apus-$version-source.tar.gz"
    echo "$out/apus-$version-source.tar.gz: $(du -h "$out/apus-$version-source.tar.gz" | cut -f1)"
}

for what in "$@"; do
    case $what in
    x86_64 | aarch64) archive "$what" ;;
    cuda) cuda ;;
    source) source_archive ;;
    *) sed -n '2,3s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
compgen -G "$out/*.tar.gz" >/dev/null || exit 0 # all was skipped
(cd "$out" && find . -maxdepth 1 \( -name '*.tar.gz' -o -name '*.json' \) | sort | xargs sha256sum | sed 's|\./||' >SHA256SUMS)
python3 packaging/formula.py "$version" "$out" >"$out/apus.rb"
cat "$out/SHA256SUMS"
