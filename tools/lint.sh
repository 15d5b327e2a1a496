#!/usr/bin/env bash
# What a machine can say about style: layers, circles of files, banned functions, format of C, C++ and CUDA, Python (ruff),
# shell (shellcheck). Sizes are shown and not judged.
#   tools/lint.sh          check
#   tools/lint.sh format   rewrite the files in the project's format
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(find src tests bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort)
mapfile -t python < <(find bench tests tools -name '*.py' | sort)
mapfile -t shell < <(find .ci bench packaging tests tools ./*.sh -name '*.sh' -o -path .ci/run | sort)
ruff=$(command -v ruff || echo "${XDG_CACHE_HOME:-$HOME/.cache}/apus/venv/bin/ruff") # tools/python_env.sh brings it
broken=0

if [ "${1:-}" = format ]; then
    clang-format -i "${sources[@]}"
    "$ruff" check --quiet --fix --select I "${python[@]}"
    "$ruff" format --quiet "${python[@]}"
    exit
fi

tools/check_layers.sh || broken=1
tools/check_cycles.py || broken=1
tools/check_vocabulary.py || broken=1
tools/check_families.py || broken=1

# Functions without bounds, or whose errors cannot be seen. Comments and strings are taken away before the search;
# variable-length arrays are an error of the compiler (-Wvla).
banned='strcpy|stpcpy|strcat|sprintf|vsprintf|atoi|atol|atoll|atof|alloca|gets|strtok|strtok_r'
bans=$(python3 - "$banned" "${sources[@]}" <<'PYTHON'
import re, sys
banned = re.compile(r'\b(%s)\s*\(' % sys.argv[1])
skipped = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
for path in sys.argv[2:]:
    text = open(path, encoding='utf-8').read()
    text = skipped.sub(lambda match: '\n' * match.group().count('\n'), text)
    for number, line in enumerate(text.split('\n'), 1):
        for match in banned.finditer(line):
            print(f'{path}:{number}: banned: {match.group(1)}')
PYTHON
)
if [ -n "$bans" ]; then
    echo "$bans"
    broken=1
else
    echo "bans: none of the banned functions in ${#sources[@]} files"
fi

# Files, links, options, metrics and families that documents name exist.
tools/check_docs.py || broken=1
tools/write_models.py --check || broken=1

# What others have packed does not belong in the tree.
if packed=$(git ls-files 2>/dev/null | grep -E '\.(whl|deb|zip|gz|xz|tgz|so|o|a|jar)$' | grep -v '^app/dist/') && [ -n "$packed" ]; then
    echo "packed or compiled: $packed"
    broken=1
fi

if ! command -v clang-format >/dev/null; then
    echo "format: not checked, clang-format is not installed"
    broken=1
elif unformatted=$(clang-format --dry-run -Werror "${sources[@]}" 2>&1); then
    echo "format: ${#sources[@]} files as clang-format writes them"
else
    echo "format: 'make format' would change"
    sed -nE 's/^([^:]+):[0-9]+:[0-9]+: error:.*/\1/p' <<<"$unformatted" | sort | uniq -c | sort -rn | sed 's/^/  lines /'
    broken=1
fi

if ! [ -x "$ruff" ]; then
    echo "python: not checked, ruff is not installed: tools/python_env.sh ${ruff%/bin/ruff}"
    broken=1
elif "$ruff" check --quiet --output-format concise "${python[@]}" && "$ruff" format --quiet --check "${python[@]}"; then
    echo "python: ${#python[@]} files as ruff wants them"
else
    echo "python: 'make format' writes ruff's format"
    broken=1
fi

if ! command -v shellcheck >/dev/null; then
    echo "shell: not checked, shellcheck is not installed"
    broken=1
elif shellcheck --severity warning "${shell[@]}"; then
    echo "shell: ${#shell[@]} files without a warning of shellcheck"
else
    broken=1
fi

python3 - "${sources[@]}" <<'PYTHON'
import re, sys
sources = [path for path in sys.argv[1:] if path.startswith('src/')]
files, functions = [], []
for path in sources:
    lines = open(path, encoding='utf-8').read().split('\n')
    files.append((len(lines) - 1, path))
    start = name = None
    for number, line in enumerate(lines, 1):
        # A definition begins at the left margin and ends its line with '{'; it ends with '}' at the left margin.
        # Attributes that look like calls, __launch_bounds__(256), may fill the first line of a kernel.
        names = re.findall(r'\b([A-Za-z]\w*)\(', line) if re.match(r'[A-Za-z_]', line) or name == '' else []
        if start is None and not line.startswith(('typedef', 'struct', 'enum', 'union')):
            if names:
                name = names[0]
            elif line.startswith('__'):
                name = ''
        if start is None and name and line.endswith('{') and not line.startswith(('typedef', 'struct', 'enum', 'union')):
            start = number
        elif line.endswith(';') and start is None:
            name = None
        elif line.startswith('}') and start is not None:
            functions.append((number - start + 1, f'{path}:{start} {name}'))
            start = name = None
for title, rows in (('longest files', files), ('longest functions', functions)):
    print(f'{title} (lines):')
    for count, what in sorted(rows, reverse=True)[:10]:
        print(f'{count:6}  {what}')
PYTHON

[ $broken = 0 ] && echo "lint: clean"
exit $broken
