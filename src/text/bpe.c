/* Byte-pair encoding: look-ups and merging. The order of merges: lowest rank first, leftmost among equals. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "text/bpe_cache.h"
#include "text/bpe_hash.h"

enum {
    SHORT_WORD = 160, /* symbols; below, scanning all pairs for the next merge beats a heap */
    NO_RANK = INT32_MAX,
    ID_BITS = 20,
    RANK_BITS = 24,
    BYTE_PAIRS = 1 << 16,
    BIGRAM_BITS = 19, /* of the set of character pairs, by hash */
};

typedef struct BpeSymbol {
    int32_t id, rank;       /* of the pair that begins here */
    int32_t previous, next; /* −1: none */
} BpeSymbol;

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
    free(bpe->cache);
    free(bpe->whole);
    free(bpe->bigrams);
    *bpe = (Bpe){0};
}

void bpe_work_free(BpeWork *work) {
    free(work->symbols);
    free(work->heap);
    *work = (BpeWork){0};
}

/* --- The vocabulary ------------------------------------------------------------------------------------------- */

int32_t bpe_find_hashed(const Bpe *bpe, const char *bytes, size_t size, bool literal, uint64_t hash, bool trusted) {
    uint64_t tag = bpe_hash_tag(hash);
    for (uint32_t i = bpe_hash_slot(hash) & bpe->index_mask;; i = (i + 1) & bpe->index_mask) {
        uint64_t entry = bpe->index[i];
        if (!entry) return -1;
        if (entry >> ID_BITS != tag) continue;
        uint32_t id = (uint32_t)(entry & ((1u << ID_BITS) - 1)) - 1;
        if (trusted && !bpe->ambiguous) return (int32_t)id;
        const BpeToken *token = &bpe->tokens[id];
        if (token->size != size || ((token->flags & BPE_TOKEN_LITERAL) != 0) != literal) continue;
        if (memcmp(bpe->pool + token->offset, bytes, size) == 0) return (int32_t)id;
    }
}

int32_t bpe_find(const Bpe *bpe, const char *bytes, size_t size, bool literal) {
    if (size > bpe->size_max || !size) return -1;
    uint64_t hash = bpe_hash_literal(bpe_hash(bpe_seed(), bytes, size), literal);
    return bpe_find_hashed(bpe, bytes, size, literal, hash, false);
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

/* Which bytes stand before a "▁" inside some token: a word may be split before any other "▁". */
static void note_spaces(Bpe *bpe, Slice token) {
    for (size_t at = 1; at + 3 <= token.size; at++) {
        const char *p = token.data + at;
        if ((uint8_t)*p != 0xE2 || memcmp(p, "▁", 3) != 0) continue;
        bool run = at >= 3 && memcmp(p - 3, "▁", 3) == 0;
        if (!run) bpe->before_space[(uint8_t)p[-1]] = 1;
    }
}

/* --- Where words may be cut ------------------------------------------------------------------------------------- */

static inline bool is_wide_lead(uint8_t byte) { return (byte & 0xF0) == 0xE0; }
static inline bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* The bit of two characters of three bytes that stand next to each other, six bytes in all. */
static inline uint32_t bigram_bit(const char *six) {
    uint64_t bytes = 0;
    memcpy(&bytes, six, 6);
    return (uint32_t)(bytes * 0x9E3779B97F4A7C15u >> (64 - BIGRAM_BITS));
}

static inline bool seam_has(const Bpe *bpe, uint8_t before, uint8_t byte) {
    return bpe->seams[before][byte >> 6] >> (byte & 63) & 1;
}

/* The places in a token that must not be cut: in front of a character of three bytes, whole or not, and between ASCII
 * characters. */
static void note_seams(Bpe *bpe, Slice token) {
    for (size_t at = 1; at < token.size; at++) {
        uint8_t byte = (uint8_t)token.data[at], before = (uint8_t)token.data[at - 1];
        bool wide = is_wide_lead(byte) && is_continuation(before);
        if (!wide && (byte | before) >= 0x80) continue;
        bool whole = wide && at >= 3 && at + 3 <= token.size && is_wide_lead((uint8_t)token.data[at - 3]) &&
            is_continuation((uint8_t)token.data[at - 2]);
        if (whole) {
            uint32_t bit = bigram_bit(token.data + at - 3);
            bpe->bigrams[bit >> 6] |= 1ull << (bit & 63);
        } else {
            bpe->seams[before][byte >> 6] |= 1ull << (byte & 63);
        }
    }
}

/* Whether a word may be cut at `at`, in front of a "▁". */
static inline bool may_cut_space(const Bpe *bpe, Slice word, size_t at) {
    bool run = at >= 3 && memcmp(word.data + at - 3, "▁", 3) == 0;
    return bpe->space_splits && !run && !bpe->before_space[(uint8_t)word.data[at - 1]];
}

/* Whether a word may be cut at `at` ≥ 1, in front of a character. */
static inline bool may_cut(const Bpe *bpe, Slice word, size_t at) {
    uint8_t byte = (uint8_t)word.data[at], before = (uint8_t)word.data[at - 1];
    if (byte < 0x80) return bpe->ascii_splits && before < 0x80 && !seam_has(bpe, before, byte);
    if (!is_wide_lead(byte) || at + 3 > word.size) return false;
    if (!bpe->by_bytes && memcmp(word.data + at, "▁", 3) == 0) return may_cut_space(bpe, word, at);
    if (!bpe->wide_splits || at < 3 || !is_wide_lead((uint8_t)word.data[at - 3])) return false;
    if (!is_continuation((uint8_t)word.data[at - 2]) || !is_continuation(before)) return false;
    uint32_t bit = bigram_bit(word.data + at - 3);
    return !(bpe->bigrams[bit >> 6] >> (bit & 63) & 1) && !seam_has(bpe, before, byte);
}

static bool index_token(Bpe *bpe, uint32_t id, uint64_t hash, Error *error) {
    BpeToken *token = &bpe->tokens[id];
    uint64_t tag = bpe_hash_tag(hash);
    uint32_t i = bpe_hash_slot(hash) & bpe->index_mask;
    for (; bpe->index[i]; i = (i + 1) & bpe->index_mask) {
        if (bpe->index[i] >> ID_BITS != tag) continue;
        const BpeToken *other = &bpe->tokens[(bpe->index[i] & ((1u << ID_BITS) - 1)) - 1];
        bool same = other->size == token->size && !((other->flags ^ token->flags) & BPE_TOKEN_LITERAL) &&
            memcmp(bpe->pool + other->offset, bpe->pool + token->offset, token->size) == 0;
        if (!same) {
            bpe->ambiguous = true;
            continue;
        }
        return fail(error, ERROR_FORMAT, "model.vocab: the token \"%.*s\" appears twice", (int)token->size,
            bpe->pool + token->offset);
    }
    bpe->index[i] = tag << ID_BITS | (id + 1);
    return true;
}

bool bpe_index(Bpe *bpe, Error *error) {
    size_t capacity = 16;
    while (capacity < (size_t)bpe->vocab_count * 3 / 2) capacity *= 2;
    bpe->index = calloc(capacity, sizeof *bpe->index);
    bpe->bigrams = calloc(1u << BIGRAM_BITS >> 6, sizeof *bpe->bigrams);
    bpe->cache = bpe_cache_new();
    bpe->whole = calloc(bpe->id_limit ? bpe->id_limit : 1, sizeof *bpe->whole);
    if (!bpe->index || !bpe->bigrams || !bpe->cache || !bpe->whole)
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

static inline uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << ID_BITS | (uint32_t)right;
}

static inline uint64_t pair_slot(const Bpe *bpe, uint64_t key) {
    uint64_t product = key * 0x9E3779B97F4A7C15u;
    return (product ^ product >> 32) & bpe->pairs_mask;
}

/* The rank of the merge of two ids, or NO_RANK. */
static inline int32_t pair_rank(const Bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right);
    for (uint64_t i = pair_slot(bpe, key);; i = (i + 1) & bpe->pairs_mask) {
        uint64_t entry = bpe->pairs[i];
        if (entry >> RANK_BITS == key && entry) return (int32_t)(entry & ((1u << RANK_BITS) - 1)) - 1;
        if (!entry) return NO_RANK;
    }
}

static void insert_pair(Bpe *bpe, uint64_t key, uint32_t rank) {
    uint64_t i = pair_slot(bpe, key);
    while (bpe->pairs[i] && bpe->pairs[i] >> RANK_BITS != key) i = (i + 1) & bpe->pairs_mask;
    bpe->pairs[i] = key << RANK_BITS | (rank + 1);
}

bool bpe_set_merges(Bpe *bpe, const int32_t *merges, size_t count, Error *error) {
    size_t capacity = 16;
    while (capacity < count * 3 / 2) capacity *= 2;
    bpe->pairs = calloc(capacity, sizeof *bpe->pairs);
    bpe->results = malloc((count + 1) * sizeof *bpe->results);
    if (bpe->by_bytes) bpe->byte_ranks = malloc(BYTE_PAIRS * sizeof *bpe->byte_ranks);
    if (!bpe->pairs || !bpe->results || (bpe->by_bytes && !bpe->byte_ranks))
        return fail(error, ERROR_MEMORY, "no memory for %zu merges", count);
    for (size_t i = 0; bpe->by_bytes && i < BYTE_PAIRS; i++) bpe->byte_ranks[i] = NO_RANK;
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
        /* Such a merge joins what no spelling of the text shows. */
        uint32_t odd = bpe->tokens[merge[0]].flags | bpe->tokens[merge[1]].flags;
        if (odd & BPE_TOKEN_BYTE || merge[0] == bpe->unk || merge[1] == bpe->unk)
            bpe->space_splits = bpe->wide_splits = false;
        if (bpe->by_bytes && bpe->tokens[merge[0]].size == 1 && bpe->tokens[merge[1]].size == 1) {
            uint8_t left = (uint8_t)*bpe_token(bpe, (uint32_t)merge[0]).data,
                    right = (uint8_t)*bpe_token(bpe, (uint32_t)merge[1]).data;
            bpe->byte_ranks[left << 8 | right] = (int32_t)next;
        }
    }
    bpe->ascii_splits = bpe->wide_splits && !bpe->by_bytes; /* words by bytes are short as it is */
    return true;
}

/* --- Short words: arrays -------------------------------------------------------------------------------------- */

/* Merges ids[0…count) in place and returns how many are left. bytes: what the ids stand for, one byte each; or NULL. */
static size_t merge_short(const Bpe *bpe, int32_t *ids, size_t count, const char *bytes) {
    int32_t ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = bytes ? bpe->byte_ranks[(uint8_t)bytes[i] << 8 | (uint8_t)bytes[i + 1]]
                         : pair_rank(bpe, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        int32_t best = NO_RANK;
        for (size_t i = 0; i + 1 < count; i++) best = ranks[i] < best ? ranks[i] : best;
        if (best == NO_RANK) break;
        size_t at = 0;
        while (ranks[at] != best) at++;
        ids[at] = (int32_t)bpe->results[best];
        count--;
        memmove(ids + at + 1, ids + at + 2, (count - at - 1) * sizeof *ids);
        memmove(ranks + at, ranks + at + 1, (count - at) * sizeof *ranks);
        if (at > 0) ranks[at - 1] = pair_rank(bpe, ids[at - 1], ids[at]);
        if (at + 1 < count) ranks[at] = pair_rank(bpe, ids[at], ids[at + 1]);
    }
    return count;
}

/* --- Long words: a linked list and a heap of (rank, position) -------------------------------------------------- */

enum { HEAP_ARITY = 4 };

static void heap_sink(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (;;) {
        size_t child = at * HEAP_ARITY + 1, end = child + HEAP_ARITY;
        if (child >= count) break;
        if (end > count) end = count;
        size_t least = child;
        for (size_t i = child + 1; i < end; i++) {
            if (heap[i] < heap[least]) least = i;
        }
        if (heap[least] >= value) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = value;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t value) {
    size_t at = (*count)++;
    while (at > 0) {
        size_t parent = (at - 1) / HEAP_ARITY;
        if (heap[parent] <= value) break;
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0];
    heap[0] = heap[--*count];
    if (*count) heap_sink(heap, *count, 0);
    return top;
}

static void symbol_rank(const Bpe *bpe, BpeSymbol *symbols, int32_t at, uint64_t *heap, size_t *heap_count) {
    BpeSymbol *symbol = &symbols[at];
    symbol->rank = symbol->next < 0 ? NO_RANK : pair_rank(bpe, symbol->id, symbols[symbol->next].id);
    if (symbol->rank != NO_RANK) heap_push(heap, heap_count, (uint64_t)(uint32_t)symbol->rank << 32 | (uint32_t)at);
}

/* A symbol is pushed at most once at first and twice per merge: the heap never needs more than 3 × count. */
static bool merge_long(const Bpe *bpe, BpeWork *work, size_t count, Tokens *out) {
    if (count * 3 > work->heap_capacity) {
        free(work->heap);
        work->heap = malloc(count * 3 * sizeof *work->heap);
        work->heap_capacity = work->heap ? count * 3 : 0;
        if (!work->heap) return false;
    }
    BpeSymbol *symbols = work->symbols;
    uint64_t *heap = work->heap;
    size_t heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        symbols[i].previous = (int32_t)i - 1;
        symbols[i].next = i + 1 < count ? (int32_t)i + 1 : -1;
        symbols[i].rank = i + 1 < count ? pair_rank(bpe, symbols[i].id, symbols[i + 1].id) : NO_RANK;
        if (symbols[i].rank != NO_RANK) heap[heap_count++] = (uint64_t)(uint32_t)symbols[i].rank << 32 | (uint32_t)i;
    }
    for (size_t i = heap_count / HEAP_ARITY + 1; i-- > 0;) {
        if (i < heap_count) heap_sink(heap, heap_count, i);
    }
    while (heap_count) {
        uint64_t top = heap_pop(heap, &heap_count);
        int32_t at = (int32_t)(uint32_t)top, rank = (int32_t)(top >> 32);
        BpeSymbol *symbol = &symbols[at];
        if (symbol->rank != rank) continue; /* the pair is no more */
        BpeSymbol *right = &symbols[symbol->next];
        symbol->id = (int32_t)bpe->results[rank];
        symbol->next = right->next;
        right->rank = NO_RANK;
        if (symbol->next >= 0) symbols[symbol->next].previous = at;
        symbol_rank(bpe, symbols, at, heap, &heap_count);
        if (symbol->previous >= 0) symbol_rank(bpe, symbols, symbol->previous, heap, &heap_count);
    }
    for (int32_t at = 0; at >= 0; at = symbols[at].next) {
        if (!tokens_push(out, symbols[at].id)) return false;
    }
    return true;
}

/* --- Words ---------------------------------------------------------------------------------------------------- */

/* Where the ids of a word's characters go before merging: a small array, then the symbols of the long way. */
typedef struct Start {
    BpeWork *work;
    int32_t ids[SHORT_WORD];
    size_t count;
    bool failed;
} Start;

static void start_push(Start *start, int32_t id) {
    if (start->count < SHORT_WORD) {
        start->ids[start->count++] = id;
        return;
    }
    BpeWork *work = start->work;
    if (start->count >= work->symbols_capacity) {
        size_t capacity = work->symbols_capacity ? work->symbols_capacity * 2 : 4 * SHORT_WORD;
        BpeSymbol *symbols = capacity <= INT32_MAX ? realloc(work->symbols, capacity * sizeof *symbols) : NULL;
        if (!symbols) {
            start->failed = true;
            return;
        }
        work->symbols = symbols;
        work->symbols_capacity = capacity;
    }
    if (start->count == SHORT_WORD) {
        for (size_t i = 0; i < SHORT_WORD; i++) work->symbols[i].id = start->ids[i];
    }
    work->symbols[start->count++].id = id;
}

static inline size_t character_size(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

/* A character's id by fallback to its bytes: pushes them and returns true when all are there. */
static bool start_bytes(const Bpe *bpe, Start *start, const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (bpe->byte_ids[(uint8_t)bytes[i]] < 0) return false;
    }
    for (size_t i = 0; i < size; i++) start_push(start, bpe->byte_ids[(uint8_t)bytes[i]]);
    return true;
}

/* Unknown characters become the unknown token, one for a run when fused, or nothing. An unknown token stays pending
 * until the next known character; bytes of fallback pass it by, as in the reference. */
static void start_word(const Bpe *bpe, Start *start, Slice word) {
    bool pending = false;
    for (size_t at = 0; at < word.size && !start->failed;) {
        uint8_t lead = (uint8_t)word.data[at];
        size_t size = bpe->by_bytes ? 1 : character_size(lead);
        int32_t id = bpe->by_bytes ? bpe->byte_ids[lead]
            : lead < 0x80          ? bpe->ascii_ids[lead]
                                   : bpe_find(bpe, word.data + at, size, false);
        if (id >= 0) {
            if (pending) start_push(start, bpe->unk);
            pending = false;
            start_push(start, id);
        } else if (!(bpe->byte_fallback && !bpe->by_bytes && start_bytes(bpe, start, word.data + at, size)) &&
            bpe->unk >= 0) {
            if (pending && !bpe->fuse_unk) start_push(start, bpe->unk);
            pending = true;
        }
        at += size;
    }
    if (pending) start_push(start, bpe->unk);
}

static bool merge_word(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    Start start;
    start.work = work;
    start.count = 0;
    start.failed = false;
    start_word(bpe, &start, word);
    if (start.failed) return false;
    if (start.count > SHORT_WORD) return merge_long(bpe, work, start.count, out);
    bool bytes = bpe->by_bytes && start.count == word.size; /* no byte was unknown */
    size_t count = merge_short(bpe, start.ids, start.count, bytes ? word.data : NULL);
    for (size_t i = 0; i < count; i++) {
        if (!tokens_push(out, start.ids[i])) return false;
    }
    return true;
}

/* A word, or a part of one that may be merged by itself. */
static bool encode_part(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    if (word.size > CACHE_KEY_MAX) return merge_word(bpe, work, word, out);
    uint64_t hash = bpe_hash(bpe_seed(), word.data, word.size);
    BpeCacheKey key = bpe_cache_key(word.data, word.size);
    if (!tokens_reserve(out, CACHE_IDS_MAX)) return false;
    size_t count = bpe_cache_get(bpe->cache, hash, &key, out->ids + out->count);
    if (count) {
        out->count += count;
        return true;
    }
    size_t before = out->count;
    int32_t known = bpe_find_hashed(bpe, word.data, word.size, false, hash, false);
    BpeWhole whole = known < 0 ? WHOLE_NO : (BpeWhole)atomic_load_explicit(&bpe->whole[known], memory_order_relaxed);
    if (whole == WHOLE_YES) {
        out->ids[out->count++] = known;
    } else if (!merge_word(bpe, work, word, out)) {
        return false;
    }
    if (whole == WHOLE_UNKNOWN) {
        whole = out->count == before + 1 && out->ids[before] == known ? WHOLE_YES : WHOLE_NO;
        atomic_store_explicit(&bpe->whole[known], (uint8_t)whole, memory_order_relaxed);
    }
    bpe_cache_put(bpe->cache, hash, &key, out->ids + before, out->count - before);
    return true;
}

bool bpe_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    if (bpe->ignore_merges) {
        int32_t known = bpe_find(bpe, word.data, word.size, false);
        if (known >= 0) return tokens_push(out, known);
    }
    size_t start = 0;
    for (size_t at = 1; at < word.size; at++) {
        if (!may_cut(bpe, word, at)) continue;
        if (!encode_part(bpe, work, (Slice){word.data + start, at - start}, out)) return false;
        start = at;
    }
    return encode_part(bpe, work, (Slice){word.data + start, word.size - start}, out);
}
