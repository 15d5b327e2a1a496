#!/usr/bin/env bash
# The Debian package in a bare root: what it depends on is unpacked there and nothing else; dpkg installs it, and the server starts as its unit has it start
# and answers (77: this is no Debian, or not run by root).
# No command writes into a pipe whose reader may end before it (grep -q, head): it would fail by chance, without a word.
set -euo pipefail
trap 'echo "line $LINENO failed: $BASH_COMMAND"' ERR
cd "$(dirname "$0")/../.."
for tool in apt-get dpkg-deb dpkg-shlibdeps cpack curl; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "skipped: only root can change its root"; exit 77; }
place=$(mktemp -d)
server=0
trap '[ $server = 0 ] || kill -9 $server 2>/dev/null || true; rm -rf "$place"' EXIT
cpack --config build/CPackConfig.cmake -B "$place" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
mkdir -p "$place/archives/partial" "$place/root/tmp" "$place/root/dev" "$place/root/proc"
: >"$place/status"
apt-get -o Dir::State::status="$place/status" -o Dir::Cache::archives="$place/archives" -o APT::Sandbox::User=root -o Debug::NoLocking=true \
    install -y -q --no-install-recommends --download-only "$place"/apus*.deb dpkg dash coreutils diffutils libc-bin ca-certificates >"$place/log" 2>&1 ||
    { tail -n 5 "$place/log"; echo "skipped: the packages that it depends on cannot be had"; exit 77; }
for package in "$place"/archives/*.deb; do
    case $package in */apus_*) continue ;; esac
    dpkg-deb -x "$package" "$place/root"
done
: >"$place/root/dev/null"
mkdir -p "$place/root/var/lib/dpkg/info" "$place/root/var/lib/dpkg/updates"
touch "$place/root/var/lib/dpkg/status"
cp "$place"/apus*.deb "$place/root/tmp/apus.deb"
# What it depends on lies there without being known to dpkg.
chroot "$place/root" dpkg --force-depends -i /tmp/apus.deb >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
chroot "$place/root" dpkg -s apus >"$place/status-of-apus"
grep -q '^Status: install ok installed' "$place/status-of-apus" || { cat "$place/status-of-apus"; exit 1; }
chroot "$place/root" apus --version
python3 - "$place/root/model" <<'PYTHON'
import os, sys
sys.path.insert(0, "tests/server")
from tiny_model import write_tiny_model
os.makedirs(sys.argv[1])
write_tiny_model(sys.argv[1])
PYTHON
printf 'model = /model\nport = 0\nthreads = 1\n' >>"$place/root/etc/apus.conf"
unit=$(find "$place/root" -name apus.service -print -quit)
command=$(sed -n 's/^ExecStart=//p' "$unit")
: >"$place/out"
# shellcheck disable=SC2086
chroot "$place/root" env APUS_CACHE=/var/cache/apus HOME=/var/cache/apus $command >"$place/out" 2>"$place/err" &
server=$!
port=""
for _ in $(seq 1200); do
    port=$(sed -n '\|http://127.0.0.1:[0-9]*/v1|{s|.*http://127.0.0.1:\([0-9]*\)/v1.*|\1|p;q}' "$place/out")
    [ -z "$port" ] || break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
done
[ -n "$port" ] || { cat "$place/out" "$place/err"; exit 1; }
# asked WANTED ARGUMENT…: curl's answer holds it.
asked() {
    local wanted=$1
    shift
    curl -sS -f "$@" >"$place/answer" 2>&1 && grep -q "$wanted" "$place/answer" && return
    echo "no $wanted in the answer of ${*: -1}:"
    cat "$place/answer" "$place/out" "$place/err"
    exit 1
}
asked '"completion_tokens":3' -H 'Content-Type: application/json' \
    -d '{"model":"model","messages":[{"role":"user","content":"Hello"}],"max_tokens":3,"ignore_eos":true}' "http://127.0.0.1:$port/v1/chat/completions"
asked '"status":"ok"' "http://127.0.0.1:$port/health"
kill -TERM $server
status=0
wait $server || status=$?
server=0
[ $status = 0 ] || { echo "the server ended with status $status"; cat "$place/out" "$place/err"; exit 1; }
echo "installed in a root of $(find "$place"/archives -name '*.deb' | wc -l) packages, started, answered, stopped"
