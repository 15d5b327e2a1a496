/* Byte-pair encoding: from a word to ids. The order of merges: lowest rank first, leftmost among equals. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/bpe_cache.h"
#include "text/tokenizer/bpe_tables.h"

enum { SHORT_WORD = 160 }; /* symbols; below, scanning all pairs for the next merge beats sorting them */

typedef struct BpeSymbol {
    int32_t id, rank;       /* merge of the pair that begins here */
    int32_t previous, next; /* −1: none */
} BpeSymbol;

void bpe_work_free(BpeWork *work) {
    free(work->symbols);
    free(work->heap);
    free(work->nodes);
    *work = (BpeWork){0};
}

/* --- Short words: arrays -------------------------------------------------------------------------------------- */

/* The rank of the merge of two bytes. */
static inline int32_t byte_rank(const Bpe *bpe, const char *two) {
    return bpe->byte_ranks[(uint8_t)two[0] << 8 | (uint8_t)two[1]];
}

/* Merges ids[0…count) in place; returns the number left. bytes: one byte for each id, or NULL. */
static size_t merge_short(const Bpe *bpe, int32_t *ids, size_t count, const char *bytes) {
    int32_t ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = bytes ? byte_rank(bpe, bytes + i) : pair_rank(bpe, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        int32_t best = BPE_NO_RANK;
        for (size_t i = 0; i + 1 < count; i++) best = ranks[i] < best ? ranks[i] : best;
        if (best == BPE_NO_RANK) break;
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

/* --- Long words: a linked list, the first pairs sorted, and a heap for the pairs that merging makes ------------------
 */

enum { HEAP_ARITY = 4, DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* A pair as one number: by rank, then by place. */
static inline uint64_t entry_of(int32_t rank, int32_t at) { return (uint64_t)(uint32_t)rank << 32 | (uint32_t)at; }

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

static uint64_t heap_pop(uint64_t *heap, size_t *heap_count) {
    uint64_t top = heap[0], value = heap[--*heap_count];
    size_t at = 0, count = *heap_count;
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
    if (count) heap[at] = value;
    return top;
}

/* By rank; entries of one rank stay in the order of their places. other: as much room again. */
static void sort_entries(uint64_t *entries, uint64_t *other, size_t count) {
    uint64_t *from = entries, *to = other;
    for (int shift = 32; shift < 32 + BPE_RANK_BITS; shift += DIGIT_BITS) {
        size_t place[DIGITS] = {0}, sum = 0;
        for (size_t i = 0; i < count; i++) place[from[i] >> shift & (DIGITS - 1)]++;
        for (size_t k = 0; k < DIGITS; k++) {
            size_t these = place[k];
            place[k] = sum;
            sum += these;
        }
        for (size_t i = 0; i < count; i++) to[place[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != entries) memcpy(entries, from, count * sizeof *entries);
}

static void symbol_rank(const Bpe *bpe, BpeSymbol *symbols, int32_t at, uint64_t *heap, size_t *heap_count) {
    BpeSymbol *symbol = &symbols[at];
    symbol->rank = symbol->next < 0 ? BPE_NO_RANK : pair_rank(bpe, symbol->id, symbols[symbol->next].id);
    if (symbol->rank != BPE_NO_RANK) heap_push(heap, heap_count, entry_of(symbol->rank, at));
}

/* The pairs at the start, sorted, in entries. */
static size_t first_pairs(
    const Bpe *bpe, BpeSymbol *symbols, size_t count, const char *bytes, uint64_t *entries, uint64_t *other) {
    size_t pairs = 0;
    for (size_t i = 0; i < count; i++) {
        BpeSymbol *symbol = &symbols[i];
        bool last = i + 1 == count;
        symbol->previous = (int32_t)i - 1;
        symbol->next = last ? -1 : (int32_t)i + 1;
        symbol->rank = last ? BPE_NO_RANK
            : bytes         ? byte_rank(bpe, bytes + i)
                            : pair_rank(bpe, symbol->id, symbols[i + 1].id);
        if (symbol->rank != BPE_NO_RANK) entries[pairs++] = entry_of(symbol->rank, (int32_t)i);
    }
    sort_entries(entries, other, pairs);
    return pairs;
}

/* bytes: as for merge_short. Each merge makes two pairs at most: the heap has room for 2 × count. */
static bool merge_long(const Bpe *bpe, BpeWork *work, size_t count, const char *bytes, Tokens *out) {
    enum { ROOM = 3 }; /* the sorted pairs, and the heap, which lends its room for sorting */
    if (count * ROOM > work->heap_capacity) {
        free(work->heap);
        work->heap = malloc(count * ROOM * sizeof *work->heap);
        work->heap_capacity = work->heap ? count * ROOM : 0;
        if (!work->heap) return false;
    }
    BpeSymbol *symbols = work->symbols;
    uint64_t *sorted = work->heap, *heap = work->heap + count;
    size_t pairs = first_pairs(bpe, symbols, count, bytes, sorted, heap), done = 0, heap_count = 0;
    while (done < pairs || heap_count) {
        bool made = heap_count && (done == pairs || heap[0] < sorted[done]);
        uint64_t top = made ? heap_pop(heap, &heap_count) : sorted[done++];
        int32_t at = (int32_t)(uint32_t)top, rank = (int32_t)(top >> 32);
        BpeSymbol *symbol = &symbols[at];
        if (symbol->rank != rank) continue; /* the pair is no more */
        BpeSymbol *right = &symbols[symbol->next];
        symbol->id = (int32_t)bpe->results[rank];
        symbol->next = right->next;
        right->rank = BPE_NO_RANK;
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

/* Unknown characters become the unknown token (one per run if fused) or nothing. An unknown token is pending until the
 * next known character; fallback bytes do not end it, as in the reference. */
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
    const char *bytes = bpe->by_bytes && start.count == word.size ? word.data : NULL; /* no byte was unknown */
    if (start.count > SHORT_WORD) return merge_long(bpe, work, start.count, bytes, out);
    size_t count = merge_short(bpe, start.ids, start.count, bytes);
    for (size_t i = 0; i < count; i++) {
        if (!tokens_push(out, start.ids[i])) return false;
    }
    return true;
}

/* A word, or a part of one that merges independently, which the cache does not have. */
static bool encode_new(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    if (word.size > bpe->longest[(uint8_t)*word.data]) return merge_word(bpe, work, word, out);
    int32_t known = bpe_find(bpe, word.data, word.size, false);
    BpeWhole whole = known < 0 ? WHOLE_NO : bpe_cache_whole(bpe->cache, known);
    if (whole == WHOLE_YES) return tokens_push(out, known);
    size_t before = out->count;
    if (!merge_word(bpe, work, word, out)) return false;
    if (whole == WHOLE_UNKNOWN) {
        whole = out->count == before + 1 && out->ids[before] == known ? WHOLE_YES : WHOLE_NO;
        bpe_cache_set_whole(bpe->cache, known, whole);
    }
    return true;
}

/* Whether a word may be split before the "▁" at `at`. */
static inline bool may_cut_space(const Bpe *bpe, Slice word, size_t at) {
    bool run = at >= 3 && memcmp(word.data + at - 3, "▁", 3) == 0;
    return bpe->space_splits && !run && !bpe->before_space[(uint8_t)word.data[at - 1]];
}

/* What tokens have of two characters of three bytes side by side, the second of them at `at`. */
typedef enum WideBoundary { BOUNDARY_FREE, BOUNDARY_WHOLE = 1, BOUNDARY_PIECES = 2 } WideBoundary; /* bits */
static inline unsigned wide_boundary(const Bpe *bpe, const char *text, size_t at) {
    const unsigned whole = has_bit(bpe->bigrams, bigram_bit(text + at - 3));
    const unsigned before = has_bit(bpe->edges, edge_bit(text + at - 3, true)),
                   behind = has_bit(bpe->edges, edge_bit(text + at - 1, false)),
                   seam = seam_has(bpe, (uint8_t)text[at - 1], (uint8_t)text[at]), pieces = before | behind | seam;
    return whole * BOUNDARY_WHOLE | pieces * BOUNDARY_PIECES;
}

/* Whether a word of characters may be split before the one at `at` ≥ 1. */
static inline bool may_cut(const Bpe *bpe, Slice word, size_t at) {
    uint8_t byte = (uint8_t)word.data[at], before = (uint8_t)word.data[at - 1];
    if (byte < 0x80) return bpe->ascii_splits && before < 0x80 && !seam_has(bpe, before, byte);
    if (!is_wide_lead(byte) || at + 3 > word.size) return false;
    if (memcmp(word.data + at, "▁", 3) == 0) return may_cut_space(bpe, word, at);
    if (!bpe->wide_splits || at < 3 || !is_wide_lead((uint8_t)word.data[at - 3])) return false;
    if (!is_continuation((uint8_t)word.data[at - 2]) || !is_continuation(before)) return false;
    return wide_boundary(bpe, word.data, at) == BOUNDARY_FREE;
}

/* The ends of the parts of a word of characters from *at on, `max` of them at most; *at becomes the last one. */
static size_t cut_word(const Bpe *bpe, Slice word, size_t *at, size_t *ends, size_t max) {
    size_t count = 0, i = *at + 1;
    for (; i < word.size && count + 1 < max; i++) {
        ends[count] = i;
        count += may_cut(bpe, word, i);
    }
    if (i >= word.size) ends[count++] = word.size;
    *at = ends[count - 1];
    return count;
}

enum { PARTS_AT_ONCE = 64 };

static bool encode_words(
    const Bpe *bpe, BpeWork *work, Slice text, size_t start, const size_t *ends, size_t count, bool parts, Tokens *out);

/* A part of a word by bytes, which begins at `start`. */
typedef struct WidePart {
    size_t end;
    size_t count; /* characters, all of three bytes; 0: the part has others, or some that do not start as tokens */
} WidePart;

enum { WIDE_PART_MAX = 32 }; /* characters */

/* Words by bytes are cut between characters of three bytes. Those of a part start as tokens if they all may and no
 * token has a piece of one beside another one. ids: room for WIDE_PART_MAX. */
static inline WidePart cut_wide(const Bpe *bpe, Slice word, size_t start, int32_t *ids) {
    const uint8_t *data = (const uint8_t *)word.data;
    size_t at = start, count = 0;
    bool early = true;
    for (;;) {
        if (at + 3 > word.size || !is_wide_lead(data[at])) { /* other characters belong to the part */
            early = false;
            do at++;
            while (at < word.size && !is_wide_lead(data[at]));
            if (at >= word.size) break;
            continue;
        }
        const int32_t id = wide_id(bpe, word.data + at);
        early = early & (id >= 0) & (count < WIDE_PART_MAX);
        ids[count % WIDE_PART_MAX] = id;
        count++;
        at += 3;
        if (at == word.size) break;
        if (at + 3 > word.size || !is_wide_lead(data[at])) continue;
        const unsigned boundary = wide_boundary(bpe, word.data, at);
        if (boundary == BOUNDARY_FREE) break;
        early = early & !(boundary & BOUNDARY_PIECES);
    }
    return (WidePart){at, early ? count : 0};
}

/* Two characters, mostly: without a branch on whether they merge. */
static inline size_t merge_wide(const Bpe *bpe, int32_t *ids, size_t count) {
    if (count == 1) return 1;
    if (count > 2) return merge_short(bpe, ids, count, NULL);
    const int32_t rank = pair_rank(bpe, ids[0], ids[1]);
    const bool merges = rank != BPE_NO_RANK;
    const int32_t merged = (int32_t)bpe->results[merges ? (uint32_t)rank : bpe->merge_count];
    ids[0] = merges ? merged : ids[0];
    return 2 - (size_t)merges;
}

/* A word by bytes, or some of its parts. */
static bool encode_wide(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    WidePart part;
    for (size_t at = 0; at < word.size; at = part.end) {
        if (out->capacity - out->count < WIDE_PART_MAX && !tokens_reserve(out, WIDE_PART_MAX)) return false;
        part = cut_wide(bpe, word, at, out->ids + out->count);
        if (part.count) {
            out->count += merge_wide(bpe, out->ids + out->count, part.count);
        } else if (at == 0 && part.end == word.size) {
            return encode_new(bpe, work, word, out);
        } else if (!encode_words(bpe, work, word, at, &part.end, 1, true, out)) {
            return false;
        }
    }
    return true;
}

static bool encode_part(const Bpe *bpe, BpeWork *work, Slice part, Tokens *out) {
    return bpe->wide_ids ? encode_wide(bpe, work, part, out) : encode_new(bpe, work, part, out);
}

/* As cut_word, for words by bytes: parts side by side stay together while the cache takes them. */
static size_t cut_wide_word(const Bpe *bpe, Slice word, size_t *at, size_t *ends, size_t max) {
    size_t count = 0, start = *at, cut = start;
    bool before = false; /* a character of three bytes ends at i */
    for (size_t i = start; i + 3 <= word.size && count + 2 <= max;) {
        if (i - start > CACHE_KEY_MAX && cut > start) ends[count++] = start = cut;
        const bool wide = is_wide_lead((uint8_t)word.data[i]);
        const bool may_cut = wide && before && wide_boundary(bpe, word.data, i) == BOUNDARY_FREE;
        cut = may_cut ? i : cut;
        before = wide;
        i += wide ? 3 : 1;
    }
    if (count + 2 <= max) {
        if (word.size - start > CACHE_KEY_MAX && cut > start) ends[count++] = cut;
        ends[count++] = word.size;
    }
    *at = ends[count - 1];
    return count;
}

/* A word that the cache does not have, in parts. *whole: it has only one, or its parts are not looked up. */
static bool encode_parts(const Bpe *bpe, BpeWork *work, Slice word, bool *whole, Tokens *out) {
    if (bpe->by_bytes && !bpe->wide_ids) return encode_new(bpe, work, word, out);
    if (bpe->by_bytes && word.size <= CACHE_KEY_MAX) return encode_wide(bpe, work, word, out);
    size_t ends[PARTS_AT_ONCE], at = 0;
    while (at < word.size) {
        const size_t start = at,
                     count = bpe->by_bytes ? cut_wide_word(bpe, word, &at, ends, PARTS_AT_ONCE)
                                           : cut_word(bpe, word, &at, ends, PARTS_AT_ONCE);
        *whole = start == 0 && count == 1;
        if (*whole) return encode_part(bpe, work, word, out);
        if (!encode_words(bpe, work, word, start, ends, count, true, out)) return false;
    }
    return true;
}

/* A word that the cache does not have, or a part of one. key: NULL: it is too long for the cache. */
static bool encode_missing(
    const Bpe *bpe, BpeWork *work, Slice word, bool is_part, const BpeCacheKey *key, Tokens *out) {
    const size_t before = out->count;
    bool whole = true;
    const int32_t known = bpe->ignore_merges && !is_part ? bpe_find(bpe, word.data, word.size, false) : -1;
    const bool ok = known >= 0 ? tokens_push(out, known)
        : is_part              ? encode_part(bpe, work, word, out)
                               : encode_parts(bpe, work, word, &whole, out);
    if (ok && whole && key) bpe_cache_put(bpe->cache, key, out->ids + before, out->count - before);
    return ok;
}

/* Words of a text, or parts of one word. The cache's lines are fetched for several words before they are read. */
static bool encode_words(const Bpe *bpe, BpeWork *work, Slice text, size_t start, const size_t *ends, size_t count,
    bool parts, Tokens *out) {
    enum { AHEAD = 16 };
    const uint64_t seed = bpe_seed();
    const unsigned part = parts && bpe->ignore_merges ? CACHE_PART : 0; /* their ids may differ from those of a word */
    BpeCacheKey keys[AHEAD];
    while (count) {
        const size_t now = count < AHEAD ? count : AHEAD;
        size_t at = start;
        for (size_t i = 0; i < now; at = ends[i++]) {
            const size_t size = ends[i] - at;
            if (size - 1 >= CACHE_KEY_MAX) continue;
            keys[i] = bpe_cache_key(seed, text.data + at, size, text.size - at, part);
            bpe_cache_fetch(bpe->cache, &keys[i]);
        }
        if (!tokens_reserve(out, AHEAD * CACHE_IDS_MAX)) return false;
        int32_t *to = out->ids + out->count;
        for (size_t i = 0; i < now; start = ends[i++]) {
            const Slice word = {text.data + start, ends[i] - start};
            if (!word.size) continue;
            const BpeCacheKey *key = word.size <= CACHE_KEY_MAX ? &keys[i] : NULL;
            const size_t found = key ? bpe_cache_get(bpe->cache, key, to) : 0;
            to += found;
            if (found) continue;
            out->count = (size_t)(to - out->ids);
            if (!encode_missing(bpe, work, word, parts, key, out)) return false;
            if (!tokens_reserve(out, AHEAD * CACHE_IDS_MAX)) return false;
            to = out->ids + out->count;
        }
        out->count = (size_t)(to - out->ids);
        ends += now;
        count -= now;
    }
    return true;
}

bool bpe_encode_words(
    const Bpe *bpe, BpeWork *work, Slice text, size_t start, const size_t *ends, size_t count, Tokens *out) {
    return encode_words(bpe, work, text, start, ends, count, false, out);
}

bool bpe_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    return encode_words(bpe, work, word, 0, &word.size, 1, false, out);
}
