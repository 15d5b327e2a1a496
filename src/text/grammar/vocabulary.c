/* Vocabularies as tries. */
#include "text/grammar/vocabulary.h"

#include <stdlib.h>

#include "base/utf8.h"

typedef struct Entry {
    Slice text;
    int32_t id;
    uint32_t chars; /* alphabet characters that precede `text` */
} Entry;

static int compare_entries(const void *a, const void *b) {
    const Entry *one = a, *other = b;
    const size_t size = one->text.size < other->text.size ? one->text.size : other->text.size;
    const int order = size ? memcmp(one->text.data, other->text.data, size) : 0;
    if (order) return order;
    if (one->text.size != other->text.size) return one->text.size > other->text.size ? 1 : -1;
    return (one->id > other->id) - (one->id < other->id);
}

/* --- Tries -------------------------------------------------------------------------------------------------------- */

static size_t common(Slice a, Slice b) {
    size_t same = 0;
    while (same < a.size && same < b.size && a.data[same] == b.data[same]) same++;
    return same;
}

/* Builds the trie of the entries, which it sorts. The number of nodes is known before the first is written. */
static bool trie_build(Trie *trie, Entry *entries, size_t count) {
    size_t nodes = 1;
    if (count) qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < count; i++)
        nodes += entries[i].text.size - (i ? common(entries[i - 1].text, entries[i].text) : 0);
    trie->nodes = calloc(nodes, sizeof *trie->nodes);
    trie->tokens = calloc(count + 1, sizeof *trie->tokens);
    if (!trie->nodes || !trie->tokens || nodes > UINT32_MAX) return false;
    uint32_t path[TOKEN_BYTES_MAX];
    size_t depth = 0;
    for (size_t i = 0; i < count; i++) {
        const Slice text = entries[i].text;
        const size_t same = i ? common(entries[i - 1].text, text) : 0;
        for (; depth > same; depth--) trie->nodes[path[depth - 1]].skip = trie->count;
        for (; depth < text.size; depth++) {
            path[depth] = trie->count;
            /* Only the last byte's node has tokens; the nodes before it begin at the same index. */
            trie->nodes[trie->count++] =
                (TrieNode){.byte = (uint8_t)text.data[depth], .depth = (uint16_t)(depth + 1), .first = (uint32_t)i};
        }
        if (text.size > trie->depth) trie->depth = (uint16_t)text.size;
        trie->tokens[i] = entries[i].id;
    }
    for (; depth > 0; depth--) trie->nodes[path[depth - 1]].skip = trie->count;
    trie->nodes[trie->count] = (TrieNode){.skip = trie->count, .first = (uint32_t)count};
    return true;
}

static void trie_free(Trie *trie) {
    free(trie->nodes);
    free(trie->tokens);
}

/* --- Runs ---*/

/* Bytes of the characters of an alphabet that text begins with; counts them. */
static size_t run_of(Alphabet alphabet, Slice text, uint32_t *chars) {
    size_t at = 0;
    for (*chars = 0; at < text.size; (*chars)++) {
        uint32_t code;
        const int length = utf8_decode(text.data + at, text.size - at, &code);
        const bool fits = length == 1 ? alphabet_has(alphabet, (uint8_t)code) : alphabet == ALPHABET_PLAIN;
        if (length < 0 || !fits) break;
        at += (size_t)length;
    }
    return at;
}

/* entries, part: room for all tokens. */
static bool build_runs(Vocabulary *v, Alphabet alphabet, Entry *entries, Entry *part) {
    Runs *runs = &v->runs[alphabet];
    size_t count = 0, longer = 0;
    runs->whole = calloc((size_t)RUN_MAX * v->words + 1, sizeof *runs->whole);
    if (!runs->whole) return false;
    for (size_t id = 0; id < v->count; id++) {
        const Slice text = vocabulary_token(v, (int32_t)id);
        uint32_t chars;
        const size_t run = run_of(alphabet, text, &chars);
        if (text.size && chars >= RUN_MAX) part[longer++] = (Entry){text, (int32_t)id, chars};
        if (run < text.size) entries[count++] = (Entry){{text.data + run, text.size - run}, (int32_t)id, chars};
        for (uint32_t i = chars < RUN_MAX ? chars : RUN_MAX; run && run == text.size && i <= RUN_MAX; i++)
            runs->whole[(size_t)(i - 1) * v->words + id / 64] |= (uint64_t)1 << (id % 64);
    }
    if (!trie_build(&runs->longer, part, longer) || !trie_build(&runs->rests, entries, count)) return false;
    for (uint32_t chars = 0; chars < RUN_MAX; chars++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++)
            if (entries[i].chars == chars) part[found++] = entries[i];
        if (!trie_build(&runs->rest_of[chars], part, found)) return false;
    }
    return true;
}

/* part: room for all tokens. */
static bool build_unusual(Vocabulary *v, Entry *part) {
    size_t found = 0;
    v->usual = calloc(v->words + 1, sizeof *v->usual);
    for (size_t id = 0; v->usual && id < v->count; id++) {
        const Slice text = vocabulary_token(v, (int32_t)id);
        if (text.size > TOKEN_BYTES_USUAL) {
            part[found++] = (Entry){text, (int32_t)id, 0};
        } else {
            v->usual[id / 64] |= (uint64_t)1 << (id % 64);
        }
    }
    return v->usual && trie_build(&v->unusual, part, found);
}

static void runs_free(Runs *runs) {
    trie_free(&runs->rests);
    trie_free(&runs->longer);
    for (size_t i = 0; i < RUN_MAX; i++) trie_free(&runs->rest_of[i]);
    free(runs->whole);
}

/* --- Vocabularies ------------------------------------------------------------------------------------------------- */

static bool copy_tokens(Vocabulary *v, const Slice *tokens, const int32_t *ends) {
    size_t size = 0;
    for (size_t i = 0; i < v->count; i++) size += tokens[i].size <= TOKEN_BYTES_MAX ? tokens[i].size : 0;
    v->bytes = malloc(size + 1);
    v->start = calloc(v->count + 1, sizeof *v->start);
    v->ends = calloc(v->end_count + 1, sizeof *v->ends);
    if (!v->bytes || !v->start || !v->ends || size > UINT32_MAX) return false;
    memcpy(v->ends, ends, v->end_count * sizeof *ends);
    size_t at = 0;
    for (size_t i = 0; i < v->count; i++) {
        v->start[i] = (uint32_t)at;
        if (!tokens[i].size || tokens[i].size > TOKEN_BYTES_MAX || vocabulary_is_end(v, (int32_t)i)) continue;
        memcpy(v->bytes + at, tokens[i].data, tokens[i].size);
        at += tokens[i].size;
    }
    v->start[v->count] = (uint32_t)at;
    return true;
}

Vocabulary *vocabulary_new(const Slice *tokens, size_t count, const int32_t *ends, size_t end_count, Error *error) {
    Vocabulary *v = calloc(1, sizeof *v);
    Entry *entries = malloc((count + 1) * sizeof *entries), *part = malloc((count + 1) * sizeof *part);
    bool ok = v && entries && part && count < INT32_MAX;
    if (ok) {
        v->count = count;
        v->words = (count + 63) / 64;
        v->end_count = end_count;
        ok = copy_tokens(v, tokens, ends);
    }
    size_t used = 0;
    for (size_t id = 0; ok && id < count; id++) {
        const Slice text = vocabulary_token(v, (int32_t)id);
        if (text.size) entries[used++] = (Entry){text, (int32_t)id, 0};
    }
    ok = ok && trie_build(&v->all, entries, used) && build_unusual(v, part);
    for (int i = 0; ok && i < ALPHABET_COUNT; i++) ok = build_runs(v, (Alphabet)i, entries, part);
    free(entries);
    free(part);
    if (ok) return v;
    vocabulary_free(v);
    fail(error, ERROR_MEMORY, "no memory for the tokens of a vocabulary");
    return NULL;
}

/* Appends the bytes of a token. An id without a token has none, which is no error here. */
static void append_token(const Tokenizer *t, int32_t id, const SpelledTokens *spelled, Buffer *bytes) {
    const size_t start = bytes->size;
    const bool special = tokenizer_is_special(t, id);
    if ((special && !spelled) || !tokenizer_bytes(t, id, bytes, NULL)) {
        bytes->size = start;
        return;
    }
    const Slice spelling = {bytes->data + start, bytes->size - start};
    if (special && !spelled->spelled(spelled->context, spelling)) bytes->size = start;
}

Vocabulary *vocabulary_of(
    const Tokenizer *t, const int32_t *ends, size_t end_count, const SpelledTokens *spelled, Error *error) {
    const size_t count = (size_t)tokenizer_vocab(t);
    Slice *tokens = calloc(count + 1, sizeof *tokens);
    size_t *start = calloc(count + 1, sizeof *start);
    Buffer bytes = {0};
    Vocabulary *v = NULL;
    bool ok = tokens && start;
    if (!ok) fail(error, ERROR_MEMORY, "no memory for the tokens of a vocabulary");
    for (size_t id = 0; ok && id < count; id++) {
        start[id] = bytes.size;
        append_token(t, (int32_t)id, spelled, &bytes);
    }
    if (ok && bytes.failed) ok = fail(error, ERROR_MEMORY, "no memory for the tokens of a vocabulary");
    for (size_t id = 0; ok && id < count; id++) {
        const size_t end = id + 1 < count ? start[id + 1] : bytes.size;
        tokens[id] = (Slice){bytes.data + start[id], end - start[id]};
    }
    if (ok) v = vocabulary_new(tokens, count, ends, end_count, error);
    free(tokens);
    free(start);
    buffer_free(&bytes);
    return v;
}

void vocabulary_free(Vocabulary *v) {
    if (!v) return;
    trie_free(&v->all);
    trie_free(&v->unusual);
    free(v->usual);
    for (size_t i = 0; i < ALPHABET_COUNT; i++) runs_free(&v->runs[i]);
    free(v->bytes);
    free(v->start);
    free(v->ends);
    free(v);
}

size_t vocabulary_mask_words(const Vocabulary *v) { return v->words; }
