/* Byte-pair encoding: the tables, and the places at which words may be split. */
#include "text/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "text/tokenizer/bpe_cache.h"
#include "text/tokenizer/bpe_tables.h"
#include "text/tokenizer/byte_level.h"

enum { BYTE_PAIRS = 1 << 16 };

uint64_t bpe_seed(void) {
    static _Atomic uint64_t seed; /* drawn once per process; hash_bytes is keyed */
    uint64_t value = atomic_load_explicit(&seed, memory_order_relaxed);
    if (value) return value;
    value = hash_bytes("tokens", 6) | 1;
    atomic_store_explicit(&seed, value, memory_order_relaxed);
    return value;
}

void bpe_free(Bpe *bpe) {
    free(bpe->pool);
    free(bpe->tokens);
    free(bpe->index);
    free(bpe->pairs);
    free(bpe->results);
    free(bpe->byte_ranks);
    free(bpe->wide_ids);
    bpe_cache_free(bpe->cache);
    free(bpe->bigrams);
    free(bpe->edges);
    free((char *)(uintptr_t)bpe->subword_prefix.data);
    free(bpe->scores);
    *bpe = (Bpe){0};
}

/* --- The vocabulary ------------------------------------------------------------------------------------------- */

int32_t bpe_find_hashed(const Bpe *bpe, const char *bytes, size_t size, bool literal, uint64_t hash, bool trusted) {
    uint64_t tag = bpe_hash_tag(hash);
    for (uint32_t i = bpe_hash_slot(hash) & bpe->index_mask;; i = (i + 1) & bpe->index_mask) {
        uint64_t entry = bpe->index[i];
        if (!entry) return -1;
        if (entry >> BPE_ID_BITS != tag) continue;
        uint32_t id = (uint32_t)(entry & ((1u << BPE_ID_BITS) - 1)) - 1;
        if (trusted && !bpe->ambiguous) return (int32_t)id;
        const BpeToken *token = &bpe->tokens[id];
        if (token->size != size || ((token->flags & BPE_TOKEN_LITERAL) != 0) != literal) continue;
        if (memcmp(bpe->pool + token->offset, bytes, size) == 0) return (int32_t)id;
    }
}

int32_t bpe_find(const Bpe *bpe, const char *bytes, size_t size, bool literal) {
    if (!size || size > bpe->longest[(uint8_t)*bytes]) return -1;
    uint64_t hash = bpe_hash_literal(bpe_hash(bpe_seed(), bytes, size), literal);
    return bpe_find_hashed(bpe, bytes, size, literal, hash, false);
}

int32_t bpe_find_spelled(const Bpe *bpe, Slice spelled) {
    if (!bpe->by_bytes) return bpe_find(bpe, spelled.data, spelled.size, false);
    if (spelled.size > BPE_TOKEN_BYTES_MAX) return -1;
    char small[256], *bytes = spelled.size <= sizeof small ? small : malloc(spelled.size);
    size_t size;
    bool alphabet = bytes && byte_level_read(spelled, bytes, &size);
    int32_t id = alphabet ? bpe_find(bpe, bytes, size, false) : bpe_find(bpe, spelled.data, spelled.size, true);
    if (bytes != small) free(bytes);
    return id;
}

/* "<0xNN>" → NN, or −1. */
static int byte_of_name(Slice name) {
    if (name.size != 6 || memcmp(name.data, "<0x", 3) != 0 || name.data[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = name.data[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Notes the bytes before a "▁" inside of tokens: a word may be split before any other "▁". */
static void note_spaces(Bpe *bpe, Slice token) {
    for (size_t at = 1; at + 3 <= token.size; at++) {
        const char *p = token.data + at;
        if ((uint8_t)*p != 0xE2 || memcmp(p, "▁", 3) != 0) continue;
        bool run = at >= 3 && memcmp(p - 3, "▁", 3) == 0;
        if (!run) bpe->before_space[(uint8_t)p[-1]] = 1;
    }
}

/* --- Split points of words -------------------------------------------------------------------------------------- */

/* The boundary in front of a wide lead byte in a token, where the text may have two characters of three bytes. */
static void note_wide(Bpe *bpe, Slice token, size_t at) {
    const uint8_t *bytes = (const uint8_t *)token.data;
    const size_t left = at < 3 ? at : 3, right = token.size - at < 3 ? token.size - at : 3;
    /* Other characters stand on a side: this is no such boundary. */
    if (!is_continuation(bytes[at - 1]) || (left >= 2 && !is_continuation(bytes[at - 2]))) return;
    if (left == 3 && !is_wide_lead(bytes[at - 3])) return;
    for (size_t i = 1; i < right; i++) {
        if (!is_continuation(bytes[at + i])) return;
    }
    if (left < 3 && right < 3) {
        bpe->seams[bytes[at - 1]][bytes[at] >> 6] |= 1ull << (bytes[at] & 63);
        return;
    }
    const bool whole = left == 3 && right == 3;
    const uint32_t bit = whole ? bigram_bit(token.data + at - 3)
        : left == 3            ? edge_bit(token.data + at - 3, true)
                               : edge_bit(token.data + at - 1, false);
    (whole ? bpe->bigrams : bpe->edges)[bit >> 6] |= 1ull << (bit & 63);
}

/* The places in a token that must not be cut: in front of a character of three bytes, whole or not, and between ASCII
 * characters. */
static void note_seams(Bpe *bpe, Slice token) {
    for (size_t at = 1; at < token.size; at++) {
        const uint8_t byte = (uint8_t)token.data[at], before = (uint8_t)token.data[at - 1];
        if (is_wide_lead(byte)) note_wide(bpe, token, at);
        if ((byte | before) < 0x80) bpe->seams[before][byte >> 6] |= 1ull << (byte & 63);
    }
}

static bool index_token(Bpe *bpe, uint32_t id, uint64_t hash, Error *error) {
    BpeToken *token = &bpe->tokens[id];
    uint64_t tag = bpe_hash_tag(hash);
    uint32_t i = bpe_hash_slot(hash) & bpe->index_mask;
    for (; bpe->index[i]; i = (i + 1) & bpe->index_mask) {
        if (bpe->index[i] >> BPE_ID_BITS != tag) continue;
        const BpeToken *other = &bpe->tokens[(bpe->index[i] & ((1u << BPE_ID_BITS) - 1)) - 1];
        bool same = other->size == token->size && !((other->flags ^ token->flags) & BPE_TOKEN_LITERAL) &&
            memcmp(bpe->pool + other->offset, bpe->pool + token->offset, token->size) == 0;
        if (!same) {
            bpe->ambiguous = true;
            continue;
        }
        return fail(
            error, ERROR_FORMAT, "model.vocab: the token \"%.*s\" appears twice", SLICE_SHOWN(bpe_token(bpe, id)));
    }
    bpe->index[i] = tag << BPE_ID_BITS | (id + 1);
    return true;
}

bool bpe_index(Bpe *bpe, Error *error) {
    size_t capacity = 16;
    while (capacity < (size_t)bpe->vocab_count * 3 / 2) capacity *= 2;
    bpe->index = calloc(capacity, sizeof *bpe->index);
    bpe->bigrams = calloc(1u << BPE_BIGRAM_BITS >> 6, sizeof *bpe->bigrams);
    bpe->edges = calloc(1u << BPE_EDGE_BITS >> 6, sizeof *bpe->edges);
    bpe->cache = bpe_cache_new(bpe->id_limit);
    if (!bpe->index || !bpe->bigrams || !bpe->edges || !bpe->cache)
        return fail(error, ERROR_MEMORY, "no memory for a vocabulary of %u", bpe->vocab_count);
    bpe->index_mask = (uint32_t)capacity - 1;
    memset(bpe->byte_ids, -1, sizeof bpe->byte_ids);
    memset(bpe->ascii_ids, -1, sizeof bpe->ascii_ids);
    uint64_t seed = bpe_seed();
    enum { AHEAD = 8 }; /* slots are fetched that many tokens before they are used */
    uint64_t hashes[AHEAD];
    for (uint32_t next = 0; next < bpe->id_limit + AHEAD; next++) {
        if (next >= AHEAD) {
            uint32_t id = next - AHEAD;
            if (bpe->tokens[id].flags & BPE_TOKEN_USED && !index_token(bpe, id, hashes[id % AHEAD], error))
                return false;
        }
        if (next >= bpe->id_limit || !(bpe->tokens[next].flags & BPE_TOKEN_USED)) continue;
        Slice token = bpe_token(bpe, next);
        uint64_t hash =
            bpe_hash_literal(bpe_hash(seed, token.data, token.size), bpe->tokens[next].flags & BPE_TOKEN_LITERAL);
        hashes[next % AHEAD] = hash;
        __builtin_prefetch(&bpe->index[bpe_hash_slot(hash) & bpe->index_mask], 1);
        if (token.size > bpe->size_max) bpe->size_max = (uint32_t)token.size;
        uint16_t *longest = token.size ? &bpe->longest[(uint8_t)*token.data] : NULL;
        if (longest && token.size > *longest) *longest = (uint16_t)token.size;
        if (bpe->tokens[next].flags & BPE_TOKEN_LITERAL) continue;
        note_seams(bpe, token);
        if (bpe->by_bytes) {
            if (token.size == 1) bpe->byte_ids[(uint8_t)token.data[0]] = (int32_t)next;
            continue;
        }
        if (token.size == 1 && (uint8_t)token.data[0] < 128) bpe->ascii_ids[(uint8_t)token.data[0]] = (int32_t)next;
        int byte = byte_of_name(token);
        if (byte >= 0) {
            bpe->byte_ids[byte] = (int32_t)next;
            bpe->tokens[next].flags |= BPE_TOKEN_BYTE;
        }
        note_spaces(bpe, token);
    }
    bpe->space_splits = !bpe->by_bytes && bpe_find(bpe, "▁", 3, false) >= 0;
    bpe->wide_splits = true;
    return true;
}

/* --- Merges --------------------------------------------------------------------------------------------------- */

static void insert_pair(Bpe *bpe, uint64_t key, uint32_t rank) {
    uint64_t i = pair_slot(bpe, key);
    while (bpe->pairs[i] && bpe->pairs[i] >> BPE_RANK_BITS != key) i = (i + 1) & bpe->pairs_mask;
    bpe->pairs[i] = key << BPE_RANK_BITS | (rank + 1);
}

/* The rank of the last merge to be done among those that make a token of three single bytes; −1: they do not. */
static int32_t rank_of_wide(const Bpe *bpe, uint32_t id) {
    const uint8_t *three = (const uint8_t *)bpe_token(bpe, id).data;
    const int32_t left = bpe->byte_ranks[three[0] << 8 | three[1]], right = bpe->byte_ranks[three[1] << 8 | three[2]];
    const bool left_first = left <= right;
    const int32_t first = left_first ? left : right;
    if (first == BPE_NO_RANK) return -1;
    const int32_t pair = (int32_t)bpe->results[first];
    const int32_t second =
        left_first ? pair_rank(bpe, pair, bpe->byte_ids[three[2]]) : pair_rank(bpe, bpe->byte_ids[three[0]], pair);
    if (second == BPE_NO_RANK) return -1;
    return first > second ? first : second;
}

static bool is_wide_token(const Bpe *bpe, uint32_t id) {
    const Slice token = bpe_token(bpe, id);
    return token.size == 3 && bpe->tokens[id].flags == BPE_TOKEN_USED && is_wide_lead((uint8_t)token.data[0]) &&
        is_continuation((uint8_t)token.data[1]) && is_continuation((uint8_t)token.data[2]);
}

/* A token of one character may stand for its bytes from the start if these merge into it alone, and before any merge
 * that has it on a side. With merges in the order in which they were learned that is so; others are left out. */
static bool set_wide_ids(Bpe *bpe, const int32_t *merges, size_t count) {
    uint16_t blocks = 1;
    for (uint32_t id = 0; id < bpe->id_limit; id++) {
        if (!is_wide_token(bpe, id)) continue;
        uint16_t *block = &bpe->wide_blocks[wide_code(bpe_token(bpe, id).data) >> BPE_WIDE_BLOCK_BITS];
        if (!*block) *block = blocks++;
    }
    const size_t room = (size_t)blocks << BPE_WIDE_BLOCK_BITS;
    int32_t *ranks = malloc(((size_t)bpe->id_limit + 1) * sizeof *ranks); /* by id, of rank_of_wide */
    bpe->wide_ids = malloc(room * sizeof *bpe->wide_ids);
    if (!ranks || !bpe->wide_ids) {
        free(ranks);
        return false;
    }
    for (size_t i = 0; i < room; i++) bpe->wide_ids[i] = -1;
    for (uint32_t id = 0; id < bpe->id_limit; id++) {
        ranks[id] = is_wide_token(bpe, id) ? rank_of_wide(bpe, id) : -1;
        if (ranks[id] >= 0) bpe->wide_ids[wide_place(bpe, wide_code(bpe_token(bpe, id).data))] = (int32_t)id;
    }
    for (size_t i = 0; i < count; i++) {
        for (int side = 0; side < 2; side++) {
            const int32_t id = merges[i * 3 + (size_t)side];
            if ((int32_t)i > ranks[id]) continue;
            bpe->wide_ids[wide_place(bpe, wide_code(bpe_token(bpe, (uint32_t)id).data))] = -1;
        }
    }
    free(ranks);
    return true;
}

bool bpe_set_merges(Bpe *bpe, const int32_t *merges, size_t count, Error *error) {
    size_t capacity = 16;
    while (capacity < count * 3 / 2) capacity *= 2;
    bpe->pairs = calloc(capacity, sizeof *bpe->pairs);
    bpe->results = malloc((count + 1) * sizeof *bpe->results);
    if (bpe->by_bytes) bpe->byte_ranks = malloc(BYTE_PAIRS * sizeof *bpe->byte_ranks);
    if (!bpe->pairs || !bpe->results || (bpe->by_bytes && !bpe->byte_ranks))
        return fail(error, ERROR_MEMORY, "no memory for %zu merges", count);
    for (size_t i = 0; bpe->by_bytes && i < BYTE_PAIRS; i++) bpe->byte_ranks[i] = BPE_NO_RANK;
    bpe->pairs_mask = capacity - 1;
    bpe->merge_count = (uint32_t)count;
    /* Runs of unknown characters that become one token must stay together. */
    bool unknown = false;
    for (int i = 0; i < 256; i++) unknown = unknown || bpe->byte_ids[i] < 0;
    unknown = unknown || !(bpe->by_bytes || bpe->byte_fallback);
    if (unknown && bpe->fuse_unk && bpe->unk >= 0) bpe->wide_splits = false;
    enum { AHEAD = 8 };
    for (size_t next = 0; next < count + AHEAD; next++) {
        if (next >= AHEAD) {
            const int32_t *merge = merges + (next - AHEAD) * 3;
            insert_pair(bpe, pair_key(merge[0], merge[1]), (uint32_t)(next - AHEAD));
        }
        if (next >= count) continue;
        const int32_t *merge = merges + next * 3;
        __builtin_prefetch(&bpe->pairs[pair_slot(bpe, pair_key(merge[0], merge[1]))], 1);
        bpe->results[next] = (uint32_t)merge[2];
        /* This merge joins tokens that no spelling of a text contains. */
        uint32_t odd = bpe->tokens[merge[0]].flags | bpe->tokens[merge[1]].flags;
        if (odd & BPE_TOKEN_BYTE || merge[0] == bpe->unk || merge[1] == bpe->unk)
            bpe->space_splits = bpe->wide_splits = false;
        if (bpe->by_bytes && bpe->tokens[merge[0]].size == 1 && bpe->tokens[merge[1]].size == 1) {
            uint8_t left = (uint8_t)*bpe_token(bpe, (uint32_t)merge[0]).data,
                    right = (uint8_t)*bpe_token(bpe, (uint32_t)merge[1]).data;
            bpe->byte_ranks[left << 8 | right] = (int32_t)next;
        }
    }
    bpe->results[count] = 0;
    bpe->ascii_splits = bpe->wide_splits && !bpe->by_bytes; /* words by bytes are short as it is */
    if (bpe->by_bytes && bpe->wide_splits && !set_wide_ids(bpe, merges, count))
        return fail(error, ERROR_MEMORY, "no memory for the characters of a vocabulary");
    return true;
}
