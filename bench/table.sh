#!/usr/bin/env bash
# The whole CPU table, every figure with its command: bench/table.sh OUT.csv MODEL[=FILE.gguf] …
#   LLAMA, IK             llama-bench of llama.cpp and of ik_llama.cpp (bench/peers.sh builds them); either may be missing
#   LLAMA_AVX2, IK_AVX2   the same, built without AVX-512: what --cpu avx2 is held against
#   ISAS="avx512 avx2"  THREADS="2 1"  DEPTHS="4096 16384"  ROUNDS=5  APUS=build/apus
# Prompts and generation from an empty cache with each number of threads; generation at each depth with the first of them. At 16384 the
# peers take minutes to get there, so rounds are few.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bench/table.sh OUT.csv MODEL[=FILE.gguf] …}
shift
[ $# -gt 0 ] || { echo "bench/table.sh: name a model" >&2; exit 2; }
read -ra threads <<<"${THREADS:-2 1}"
failed=0

# measure ISA THREADS ROUNDS OPTIONS…: one run of compare.py over all models and peers.
measure() {
    local isa=$1 count=$2 rounds=$3 llama=${LLAMA:-} ik=${IK:-} peers=()
    shift 3
    if [ "$isa" = avx2 ]; then
        llama=${LLAMA_AVX2:-} ik=${IK_AVX2:-}
    fi
    [ -z "$llama" ] || peers+=(--peer "llama.cpp=$llama -fa 1")
    [ -z "$ik" ] || peers+=(--peer "ik=$ik -fa 1" --peer "ik-rtr=$ik -fa 1 -rtr 1")
    bench/compare.py --apus "${APUS:-build/apus}" --apus-options "--cpu $isa" --threads "$count" -r "$rounds" "${peers[@]}" --out "$out" \
        "$@" "${models[@]}" || failed=1
}

models=("$@")
for isa in ${ISAS:-avx512 avx2}; do
    for count in "${threads[@]}"; do
        measure "$isa" "$count" "${ROUNDS:-5}" -p 512 -n 64
    done
    for depth in ${DEPTHS-4096 16384}; do
        rounds=${ROUNDS:-5}
        [ "$depth" -lt 16384 ] || rounds=$((rounds < 2 ? rounds : 2))
        measure "$isa" "${threads[0]}" "$rounds" -p 0 -n 32 -d "$depth"
    done
done
exit $failed
