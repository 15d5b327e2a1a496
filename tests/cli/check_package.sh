#!/usr/bin/env bash
# The Debian package, unpacked into a bare directory: what it holds runs, its manual and completions are well-formed, and its service is as
# closed as a service that listens can be (77: the tools to make a package are not here).
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in dpkg-deb dpkg-shlibdeps cpack; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cpack --config build/CPackConfig.cmake -B "$place" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
dpkg-deb -x "$place"/*.deb "$place/root"
depends=$(dpkg-deb -f "$place"/*.deb Depends)
grep -q libcurl <<<"$depends"
version=$("$place/root/usr/bin/apus" --version)
grep -q '^apus [0-9]' <<<"$version"
bash -n "$place/root/usr/share/bash-completion/completions/apus"
found=$(bash -c 'source "$0"; COMP_WORDS=(apus serve --kv-mem) COMP_CWORD=2; _apus; echo "${COMPREPLY[@]}"' \
    "$place/root/usr/share/bash-completion/completions/apus")
[ "$found" = --kv-memory ] || { echo "completion found '$found'"; exit 1; }
page=$place/root/usr/share/man/man1/apus.1
if command -v man >/dev/null; then
    problems=$(LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 "$page" 2>&1 >/dev/null)
    [ -z "$problems" ] || { echo "$problems"; exit 1; }
fi
grep -q 'kv\\-memory' "$page"
if command -v systemd-analyze >/dev/null; then
    sed "s|/usr/bin/apus|$place/root/usr/bin/apus|; /^Documentation/d" packaging/apus.service >"$place/apus.service"
    systemd-analyze verify "$place/apus.service"
    systemd-analyze security --offline=true --threshold=20 "$place/apus.service" | tail -n 1
fi
echo "the package holds what it should"
