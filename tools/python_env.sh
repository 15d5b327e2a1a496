#!/usr/bin/env bash
# The Python environment of the tests: tools/python_env.sh DIR. Made once per list of versions.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
stamp=$dir/$(cksum <tests/requirements.txt | tr -d ' ')
[ -f "$stamp" ] && exit 0
rm -rf "$dir"
python3 -m venv "$dir"
"$dir/bin/python" -m pip install -q --disable-pip-version-check -r tests/requirements.txt
"$dir/bin/python" -m pip install -q --disable-pip-version-check --no-deps mlx-lm==0.32.2 # its own list wants the Metal build
touch "$stamp"
