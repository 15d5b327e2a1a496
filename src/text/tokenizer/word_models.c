/* tokenizers/src/models/wordpiece/mod.rs (tokenize), wordlevel/mod.rs and unigram/model.rs (encode_optimized). */
#include "text/tokenizer/word_models.h"

#include <stdlib.h>
#include <string.h>

static size_t character_bytes(Slice text, size_t at) {
    size_t size = 1;
    while (at + size < text.size && ((uint8_t)text.data[at + size] & 0xC0) == 0x80) size++;
    return size;
}

static bool push_unknown(const Bpe *bpe, Tokens *out) { return bpe->unk < 0 || tokens_push(out, bpe->unk); }

/* ---- WordPiece ---- */

/* The longest token at `at`, where all but the first piece have the prefix. −1: there is none. */
static int32_t longest_piece(const Bpe *bpe, Slice word, size_t at, size_t *end) {
    char spelled[BPE_TOKEN_BYTES_MAX];
    const size_t before = at ? bpe->subword_prefix.size : 0;
    size_t size = word.size - at;
    if (before >= bpe->size_max) return -1;
    if (before) memcpy(spelled, bpe->subword_prefix.data, before);
    if (size > bpe->size_max - before) size = bpe->size_max - before;
    memcpy(spelled + before, word.data + at, size);
    for (; size > 0; size--) {
        if (at + size < word.size && ((uint8_t)word.data[at + size] & 0xC0) == 0x80) continue;
        const int32_t id = bpe_find(bpe, spelled, before + size, false);
        if (id < 0) continue;
        *end = at + size;
        return id;
    }
    return -1;
}

static bool wordpiece_encode(const Bpe *bpe, Slice word, Tokens *out) {
    const size_t first = out->count;
    size_t characters = 0;
    for (size_t at = 0; at < word.size; at += character_bytes(word, at)) characters++;
    for (size_t at = 0; at < word.size;) {
        size_t end = at;
        const int32_t id = characters > bpe->word_characters_max ? -1 : longest_piece(bpe, word, at, &end);
        if (id < 0 || (bpe->whole_words && end < word.size)) { /* the word as a whole is unknown */
            out->count = first;
            return push_unknown(bpe, out);
        }
        if (!tokens_push(out, id)) return false;
        at = end;
    }
    return true;
}

/* ---- Unigram ---- */

/* The best way to a place in the word. */
typedef struct UnigramNode {
    double score;
    int32_t id;    /* id of the last token; −1: unknown */
    uint32_t from; /* where that begins; equal to the place: no way so far */
} UnigramNode;

static void offer(const Bpe *bpe, UnigramNode *nodes, size_t from, size_t to, int32_t id, double score) {
    UnigramNode *node = &nodes[to];
    double sum = nodes[from].score + score;
    if (bpe->single) sum = (float)sum;
    if (node->from != to && sum <= node->score) return;
    *node = (UnigramNode){sum, id, (uint32_t)from};
}

static void fill_nodes(const Bpe *bpe, Slice word, UnigramNode *nodes) {
    for (size_t i = 0; i <= word.size; i++) nodes[i] = (UnigramNode){0, -1, (uint32_t)i};
    for (size_t at = 0; at < word.size;) {
        const size_t character = character_bytes(word, at);
        bool single = false;
        for (size_t end = at; end < word.size && end - at < bpe->size_max;) {
            end += character_bytes(word, end);
            const int32_t id = bpe_find(bpe, word.data + at, end - at, false);
            if (id < 0 || bpe->tokens[id].flags & BPE_TOKEN_SILENT) continue;
            offer(bpe, nodes, at, end, id == bpe->unk ? -1 : id, bpe->scores[id]);
            single = single || end - at == character;
        }
        if (!single) offer(bpe, nodes, at, at + character, -1, bpe->unknown_score);
        at += character;
    }
}

static bool push_bytes(const Bpe *bpe, Slice bytes, Tokens *out) {
    for (size_t i = 0; i < bytes.size; i++)
        if (!tokens_push(out, bpe->byte_ids[(uint8_t)bytes.data[i]])) return false;
    return true;
}

static bool has_bytes(const Bpe *bpe, Slice bytes) {
    for (size_t i = 0; bpe->byte_fallback && i < bytes.size; i++)
        if (bpe->byte_ids[(uint8_t)bytes.data[i]] < 0) return false;
    return bpe->byte_fallback;
}

/* Consecutive unknown characters are one unknown token, or their bytes. */
static bool push_path(const Bpe *bpe, Slice word, UnigramNode *nodes, Tokens *out) {
    size_t next = word.size; /* the path is turned round in place: from[begin] = end */
    for (size_t end = word.size; end > 0;) {
        const size_t begin = nodes[end].from;
        const int32_t id = nodes[end].id;
        nodes[end].from = (uint32_t)next; /* end of the token that begins at `end` */
        nodes[end].id = id;
        next = end;
        end = begin;
    }
    for (size_t begin = 0, end = next; begin < word.size;) {
        const int32_t id = nodes[end].id;
        size_t last = end;
        while (id < 0 && last < word.size && nodes[nodes[last].from].id < 0) last = nodes[last].from;
        const Slice text = {word.data + begin, last - begin};
        if (id >= 0                    ? !tokens_push(out, id)
                : has_bytes(bpe, text) ? !push_bytes(bpe, text, out)
                                       : !push_unknown(bpe, out))
            return false;
        begin = last;
        end = last < word.size ? nodes[last].from : last;
    }
    return true;
}

static bool unigram_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    if (word.size >= UINT32_MAX) return false;
    if (work->nodes_capacity < word.size + 1) {
        UnigramNode *nodes = realloc(work->nodes, (word.size + 1) * sizeof *nodes);
        if (!nodes) return false;
        work->nodes = nodes;
        work->nodes_capacity = word.size + 1;
    }
    fill_nodes(bpe, word, work->nodes);
    return push_path(bpe, word, work->nodes, out);
}

bool unigram_finish(Bpe *bpe, Error *error) {
    static const double penalty = 10;
    double least = 0;
    bool any = false;
    if (bpe->size_max > UNIGRAM_TOKEN_BYTES_MAX)
        return fail(error, ERROR_LIMIT, "model.vocab: a token of %u bytes; %d are the most of a Unigram model",
            bpe->size_max, UNIGRAM_TOKEN_BYTES_MAX);
    for (uint32_t id = 0; id < bpe->id_limit; id++) {
        if (bpe->tokens[id].flags & BPE_TOKEN_SILENT) continue;
        if (!any || bpe->scores[id] < least) least = bpe->scores[id];
        any = true;
    }
    bpe->unknown_score = least - penalty;
    return true;
}

bool word_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out) {
    switch (bpe->kind) {
    case MODEL_BPE: return bpe_encode(bpe, work, word, out);
    case MODEL_WORDPIECE: return wordpiece_encode(bpe, word, out);
    case MODEL_UNIGRAM: return unigram_encode(bpe, work, word, out);
    }
    return false;
}
