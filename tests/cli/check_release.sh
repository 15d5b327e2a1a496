#!/usr/bin/env bash
# The archives of packaging/release.sh, each unpacked into a root that holds the C library and nothing else: `apus version`,
# a model's answer on the command line, a server that answers a request; ARM64 on an emulator. Then the CUDA plug-in beside
# the program, checksums, SBOMs and the formula (77: this is no Debian, or not run by root).
#   tests/cli/check_release.sh [FOLDER]    FOLDER: archives that were made already
# No command writes into a pipe whose reader may end before it (grep -q, head): it would fail by chance, without a word.
set -euo pipefail
trap 'echo "line $LINENO failed: $BASH_COMMAND"' ERR
cd "$(dirname "$0")/../.."
for tool in apt-get dpkg-deb dpkg-source curl objdump; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "skipped: only root can change its root"; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: archives are made on x86-64"; exit 77; }
place=$(mktemp -d)
server=0
trap '[ $server = 0 ] || kill -9 $server 2>/dev/null || true; rm -rf "$place"' EXIT
folder=${1:-$place/dist}
[ $# -gt 0 ] || packaging/release.sh -o "$folder"
version=$(sed -n 's/^project(apus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
python3 - "$place/model" <<'PYTHON'
import os, sys
sys.path.insert(0, "tests/server")
from tiny_model import write_tiny_model
os.makedirs(sys.argv[1])
write_tiny_model(sys.argv[1])
PYTHON

# files_of PROGRAM: the program and the libraries that it takes, for a root of its own.
files_of() {
    command -v "$1"
    ldd "$(command -v "$1")" | grep -o '/[^ ]*'
}

# enter COMMAND…: becomes the command in the root, on an emulator where the machine is another; behind &, $! is its process.
enter() { exec env -i HOME=/tmp APUS_CACHE=/tmp/cache /usr/sbin/chroot "$root" ${emulator:+"$emulator"} "$@"; }
inside() { (enter "$@"); }

check_archive() {
    local machine=$1 archive=$folder/apus-$version-linux-$1.tar.gz library=/lib/x86_64-linux-gnu loader=/lib64/ld-linux-x86-64.so.2
    root=$place/$machine emulator=""
    mkdir -p "$root/tmp" "$root/proc" "$root/dev" "$root/opt"
    : >"$root/dev/null"
    if [ "$machine" = aarch64 ]; then
        command -v qemu-aarch64 >/dev/null || { echo "skipped: no qemu-aarch64"; return 0; }
        emulator=$(command -v qemu-aarch64)
        library=/usr/aarch64-linux-gnu/lib
        loader=$library/ld-linux-aarch64.so.1
        files_of qemu-aarch64 | xargs cp -L --parents -t "$root"
        mkdir -p "$root/lib"
        cp -L "$loader" $library/libc.so.6 $library/libm.so.6 "$root/lib/"
    else
        mkdir -p "$root$library" "$root/lib64"
        cp -L $library/libc.so.6 $library/libm.so.6 "$root$library/"
        cp -L $loader "$root/lib64/"
    fi
    tar -xzf "$archive" -C "$root/opt" --strip-components=1
    cp -r "$place/model" "$root/model"
    inside /opt/bin/apus version >"$place/version"
    grep -q "^apus $version" "$place/version"
    inside /opt/bin/apus run /model Hello -n 3 --threads 1 --temperature 0 >"$place/answer"
    [ -s "$place/answer" ]
    enter /opt/bin/apus serve /model --port 0 --threads 1 --history /tmp/history >"$place/out" 2>"$place/err" &
    server=$!
    local port=""
    for _ in $(seq 1200); do
        port=$(sed -n '\|http://127.0.0.1:[0-9]*/v1|{s|.*http://127.0.0.1:\([0-9]*\)/v1.*|\1|p;q}' "$place/out")
        [ -z "$port" ] || break
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    [ -n "$port" ] || { cat "$place/out" "$place/err"; exit 1; }
    curl -sf "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"model":"model","messages":[{"role":"user","content":"Hello"}],"max_tokens":3,"ignore_eos":true}' >"$place/answer"
    grep -q '"completion_tokens":3' "$place/answer"
    kill -TERM $server
    wait $server
    server=0
    grep -q 'apus' "$root/opt/share/man/man1/apus.1"
    bash -n "$root/opt/share/bash-completion/completions/apus"
    [ -s "$root/opt/licenses/curl" ]
    [ -s "$root/opt/licenses/libssl-dev" ]
    [ -s "$root/tmp/history/history.sqlite" ]
    echo "$machine: started in a root of $(find "$root" -path "$root/opt" -prune -o -path "$root/model" -prune -o -type f -print | wc -l) files, answered, stopped"
}

# Without a driver the plug-in is found, loaded, and says what is missing.
check_cuda() {
    local archive=$folder/apus-$version-linux-x86_64-cuda.tar.gz said
    [ -e "$archive" ] || { echo "skipped: the archive of the CUDA plug-in was not made"; return 0; }
    root=$place/x86_64 emulator=""
    tar -xzf "$archive" -C "$root/opt" --strip-components=1
    cp -L /lib/x86_64-linux-gnu/{libdl.so.2,librt.so.1,libpthread.so.0} "$root/lib/x86_64-linux-gnu/"
    said=$(inside /opt/bin/apus run /model Hello -n 1 --device cuda 2>&1 || true)
    case $said in
    *"no apus-cuda.so"* | *"incomplete"* | *"another version"* | *"cannot open shared object"*) echo "the plug-in: $said"; exit 1 ;;
    esac
    echo "cuda: ${said:0:100}"
}

made=0
for machine in x86_64 aarch64; do
    [ -e "$folder/apus-$version-linux-$machine.tar.gz" ] || { echo "skipped: no archive for $machine"; continue; }
    check_archive $machine
    made=$((made + 1))
done
[ $made -gt 0 ]
check_cuda
(cd "$folder" && sha256sum -c --quiet SHA256SUMS)
for sbom in "$folder"/*.spdx.json; do
    python3 -c '
import json, sys
document = json.load(open(sys.argv[1]))
assert document["spdxVersion"] == "SPDX-2.3" and len(document["packages"]) > 1, document
assert all(p["versionInfo"] and p["licenseDeclared"] for p in document["packages"])' "$sbom"
done
! command -v ruby >/dev/null || ruby -c "$folder/apus.rb"
grep -q "sha256 \"$(sed -n "s/  apus-$version-linux-x86_64.tar.gz//p" "$folder/SHA256SUMS")\"" "$folder/apus.rb"
echo "$made archives hold what they should"
