#!/usr/bin/env bash
# Proves from the #include lines that every folder of src/ uses only itself and the layers it may use, and that threads and
# atomics stay where they belong. Prints what breaks the rule; exit code 1 if anything does.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a layer may use besides itself.
allowed() {
    case $1 in
    base) echo "" ;;
    media) echo "base" ;;
    tensor) echo "base" ;;
    backend) echo "tensor base" ;;
    weights) echo "tensor base" ;;
    cache) echo "backend tensor base" ;;
    model) echo "cache weights backend tensor media base" ;;
    family) echo "model backend tensor media base" ;;
    fit) echo "model cache weights backend tensor base" ;;
    import) echo "family model tensor base" ;;
    text) echo "base" ;;
    engine) echo "fit family model cache backend tensor media base" ;;
    hub) echo "base" ;;
    history) echo "base" ;;
    chat) echo "engine text model media base" ;;
    library) echo "engine import hub base" ;;
    server) echo "library history chat engine text hub media base" ;;
    cli) echo "server library chat engine fit import family model cache backend tensor text hub media base" ;;
    *) return 1 ;;
    esac
}
threads='^src/(base/(thread|file|log)\.|backend/cpu/pool|engine/|server/|text/tokenizer/bpe_cache\.)'

broken=0
complain() {
    echo "$1"
    broken=1
}

for folder in src/*/; do
    layer=$(basename "$folder")
    uses=$(allowed "$layer") || { complain "src/$layer: not a layer that tools/check_layers.sh knows"; continue; }
    # An include is found from src/; one beside its file stays within its folder.
    while IFS=: read -r file line text; do
        header=$(sed -E 's/.*"([^"]*)".*/\1/' <<<"$text")
        if [[ $header == *..* ]]; then
            complain "$file:$line: an include goes upwards: $header"
        elif [ -f "src/$header" ]; then
            target=${header%%/*}
            [[ " $layer $uses " == *" $target "* ]] || complain "$file:$line: $layer/ may not use $target/: $header"
        elif [ ! -f "$(dirname "$file")/$header" ]; then
            complain "$file:$line: no such header in src/: $header"
        fi
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$folder" --include='*.c' --include='*.h' --include='*.cu' \
        --include='*.cuh' --include='*.inc' || true)
done

while IFS= read -r found; do
    [[ $found =~ $threads ]] || complain "${found%:*}: threads and atomics belong to base/thread, backend/cpu/pool, engine/, server/: ${found##*:}"
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*<(pthread|stdatomic|threads)\.h>' src || true)

# Each folder with headers has one that begins with what may live there: "/* text/regex/: …".
while IFS= read -r folder; do
    name=${folder#src/}
    count=$(grep -l "^/\* $name/: " "$folder"/*.h | wc -l || true)
    [ "$count" = 1 ] || complain "$folder: $count headers begin with \"/* $name/: \", must be one"
done < <(find src -name '*.h' -exec dirname {} + | sort -u)

[ $broken = 0 ] && echo "layers: $(find src -name '*.c' -o -name '*.h' | wc -l) files keep to their layers"
exit $broken
