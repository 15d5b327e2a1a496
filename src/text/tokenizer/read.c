/* The scanner of tokenizer.json. */
#include "text/tokenizer/read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"
#include "base/utf8.h"
#include "text/tokenizer/bpe_tables.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/members.h"
#include "text/tokenizer/word_models.h"

typedef struct Scanner {
    JsonScan scan;
    Arena *arena;
    TokenizerFile *file;
    Bpe *bpe;
    int32_t *merges; /* triples */
    size_t merge_count, merge_capacity;
    Error *error;
} Scanner;

const Json *last_pre_tokenizer(const Json *node) {
    while (slice_is(component_type(node), "Sequence")) {
        const Json *list = json_get(node, "pretokenizers"), *last = NULL;
        if (!list || list->type != JSON_ARRAY) return NULL;
        for (JSON_EACH(child, list)) last = child;
        node = last;
    }
    return node;
}

static bool by_bytes(const Json *pre_tokenizer) {
    return slice_is(component_type(last_pre_tokenizer(pre_tokenizer)), "ByteLevel");
}

static bool read_json(Scanner *scanner, const char *name, const Json **node) {
    if (*node) {
        fail(scanner->error, ERROR_FORMAT, "the key \"%s\" appears twice", name);
        return false;
    }
    Slice value;
    if (!json_scan_skip(&scanner->scan, &value)) return fail_while(scanner->error, "%s", name);
    *node = json_parse(scanner->arena, value, scanner->error);
    return *node || fail_while(scanner->error, "%s", name);
}

static inline bool read_id(Scanner *scanner, uint32_t *id) {
    uint64_t value;
    if (!json_scan_count(&scanner->scan, &value))
        return json_scan_fail(&scanner->scan, "model.vocab: an id must be a whole number");
    if (value > BPE_ID_MAX) {
        return fail(
            scanner->error, ERROR_LIMIT, "model.vocab: the id %llu is above %d", (unsigned long long)value, BPE_ID_MAX);
    }
    *id = (uint32_t)value;
    return true;
}

/* --- The vocabulary ------------------------------------------------------------------------------------------- */

static bool reserve_tokens(Bpe *bpe, uint32_t *capacity, uint32_t id) {
    if (id < *capacity) return true;
    uint32_t wanted = *capacity ? *capacity : 1u << 12;
    while (wanted <= id) wanted *= 2;
    BpeToken *tokens = realloc(bpe->tokens, (size_t)wanted * sizeof *tokens);
    if (!tokens) return false;
    memset(tokens + *capacity, 0, (size_t)(wanted - *capacity) * sizeof *tokens);
    bpe->tokens = tokens;
    *capacity = wanted;
    return true;
}

/* The room that reserve_tokens() has made, for scores as well. */
static bool reserve_scores(Bpe *bpe, uint32_t capacity) {
    double *scores = realloc(bpe->scores, (size_t)capacity * sizeof *scores);
    if (scores) bpe->scores = scores;
    return scores != NULL;
}

/* The stored form of a spelled token; literal: by bytes, and not of the byte alphabet. */
static bool store_form(const Bpe *bpe, Slice spelled, char *out, size_t *size, bool *literal) {
    *literal = false;
    if (bpe->by_bytes) {
        if (byte_level_read(spelled, out, size)) return true;
        *literal = true;
    }
    if (!utf8_valid(spelled)) return false;
    memcpy(out, spelled.data, spelled.size);
    *size = spelled.size;
    return true;
}

/* The spelling of the next token, appended to the pool. */
static bool read_spelling(Scanner *scanner, size_t *size, bool *literal) {
    Bpe *bpe = scanner->bpe;
    Slice spelled;
    if (!json_scan_string(&scanner->scan, &spelled)) return false;
    if (spelled.size > BPE_TOKEN_BYTES_MAX) {
        return fail(scanner->error, ERROR_LIMIT, "model.vocab: a token of %zu bytes; %d are the most", spelled.size,
            BPE_TOKEN_BYTES_MAX);
    }
    return store_form(bpe, spelled, bpe->pool + bpe->pool_size, size, literal) ||
        json_scan_fail(&scanner->scan, "model.vocab: a token is not UTF-8");
}

/* The token whose spelling is the last in the pool. */
static bool add_token(Scanner *scanner, uint32_t *capacity, uint32_t id, size_t size, bool literal) {
    Bpe *bpe = scanner->bpe;
    if (!reserve_tokens(bpe, capacity, id)) return fail(scanner->error, ERROR_MEMORY, "no memory for the vocabulary");
    if (bpe->tokens[id].flags) {
        return fail(scanner->error, ERROR_FORMAT, "model.vocab: two tokens have the id %u", id);
    }
    bpe->tokens[id] = (BpeToken){.offset = (uint32_t)bpe->pool_size,
        .size = (uint16_t)size,
        .flags = (uint16_t)(BPE_TOKEN_USED | (literal ? BPE_TOKEN_LITERAL : 0))};
    bpe->pool_size += size;
    bpe->vocab_count++;
    if (id >= bpe->id_limit) bpe->id_limit = id + 1;
    return true;
}

static bool read_vocab_entry(Scanner *scanner, uint32_t *capacity) {
    uint32_t id = 0;
    size_t size;
    bool literal;
    if (!read_spelling(scanner, &size, &literal)) return false;
    if (!json_scan_accept(&scanner->scan, ':')) return json_scan_fail(&scanner->scan, "expected :");
    return read_id(scanner, &id) && add_token(scanner, capacity, id, size, literal);
}

/* ["token", score] of a Unigram model: ids are places in the list. A third member, which sentencepiece.c writes: no
 * text gives the token. */
static bool read_scored_entry(Scanner *scanner, uint32_t *capacity) {
    Bpe *bpe = scanner->bpe;
    const uint32_t id = bpe->id_limit, before = *capacity;
    size_t size;
    bool literal;
    Slice number;
    char text[64], *end = text;
    if (id > BPE_ID_MAX) return fail(scanner->error, ERROR_LIMIT, "model.vocab: more than %d tokens", BPE_ID_MAX);
    if (!json_scan_accept(&scanner->scan, '[')) return json_scan_fail(&scanner->scan, "model.vocab: expected a pair");
    if (!read_spelling(scanner, &size, &literal)) return false;
    if (!json_scan_accept(&scanner->scan, ',')) return json_scan_fail(&scanner->scan, "model.vocab: expected a pair");
    if (!json_scan_skip(&scanner->scan, &number)) return false;
    snprintf(text, sizeof text, "%.*s", (int)(number.size < sizeof text ? number.size : 0), number.data);
    const double score = strtod(text, &end);
    if (end == text || *end || !isfinite(score))
        return json_scan_fail(&scanner->scan, "model.vocab: a score must be a number");
    const bool silent = json_scan_accept(&scanner->scan, ',');
    if (silent && !json_scan_skip(&scanner->scan, &number)) return false;
    if (!json_scan_accept(&scanner->scan, ']')) return json_scan_fail(&scanner->scan, "model.vocab: expected a pair");
    if (!add_token(scanner, capacity, id, size, literal)) return false;
    if (*capacity > before && !reserve_scores(bpe, *capacity))
        return fail(scanner->error, ERROR_MEMORY, "no memory for the vocabulary");
    bpe->scores[id] = score;
    if (silent) bpe->tokens[id].flags |= BPE_TOKEN_SILENT;
    return true;
}

static bool read_vocab(Scanner *scanner) {
    Bpe *bpe = scanner->bpe;
    if (bpe->pool) return fail(scanner->error, ERROR_FORMAT, "model: the key \"vocab\" appears twice");
    const bool scored = json_scan_accept(&scanner->scan, '[');
    if (!scored && !json_scan_accept(&scanner->scan, '{'))
        return json_scan_fail(&scanner->scan, "model.vocab: expected an object");
    if (scored) bpe->kind = MODEL_UNIGRAM;
    const char closing = scored ? ']' : '}';
    /* Stored forms are never longer than the text: address space for all of it, of which little is written. */
    size_t room = (size_t)(scanner->scan.end - scanner->scan.at);
    bpe->pool = malloc(room + 1);
    if (!bpe->pool) return fail(scanner->error, ERROR_MEMORY, "no memory for the vocabulary");
    uint32_t capacity = 0;
    bool done = json_scan_accept(&scanner->scan, closing);
    while (!done) {
        const bool ok = scored ? read_scored_entry(scanner, &capacity) : read_vocab_entry(scanner, &capacity);
        if (!ok || !json_scan_next(&scanner->scan, closing, &done)) return false;
    }
    if (!bpe->vocab_count) return fail(scanner->error, ERROR_FORMAT, "model.vocab is empty");
    char *pool = realloc(bpe->pool, bpe->pool_size + 1);
    if (pool) bpe->pool = pool;
    return bpe_index(bpe, scanner->error);
}

/* --- Merges --------------------------------------------------------------------------------------------------- */

/* Merges are looked up in batches: the index is far larger than a cache, and its slots are fetched ahead. */
enum { BATCH = 16, MERGE_SIDE_BYTES = 256 };

typedef struct MergeSide {
    char small[MERGE_SIDE_BYTES]; /* the stored form … */
    char *bytes;                  /* … is here: small, or allocated when it does not fit */
    size_t size;
    uint64_t hash;
    bool literal;
} MergeSide;

typedef struct MergeBatch {
    MergeSide side[BATCH][2];
    size_t count;
} MergeBatch;

static bool merge_unknown(const Scanner *scanner, const char *what) {
    return fail(
        scanner->error, ERROR_FORMAT, "model.merges[%zu]: %s is not in the vocabulary", scanner->merge_count, what);
}

static void side_free(MergeSide *side) {
    if (side->bytes != side->small) free(side->bytes);
    side->bytes = side->small;
}

static bool read_side(Scanner *scanner, MergeSide *side, Slice spelled) {
    const Bpe *bpe = scanner->bpe;
    side->bytes = side->small;
    if (spelled.size > MERGE_SIDE_BYTES) {
        if (spelled.size > BPE_TOKEN_BYTES_MAX) return merge_unknown(scanner, "a token");
        side->bytes = malloc(spelled.size);
        if (!side->bytes) {
            side->bytes = side->small;
            return fail(scanner->error, ERROR_MEMORY, "no memory for a merge");
        }
    }
    side->literal = bpe->by_bytes && !byte_level_read(spelled, side->bytes, &side->size);
    if (!bpe->by_bytes || side->literal) {
        memcpy(side->bytes, spelled.data, spelled.size);
        side->size = spelled.size;
    }
    side->hash = bpe_hash_literal(bpe_hash(bpe_seed(), side->bytes, side->size), side->literal);
    __builtin_prefetch(&bpe->index[bpe_hash_slot(side->hash) & bpe->index_mask]);
    return true;
}

static bool is_joined(const Bpe *bpe, int32_t id, const MergeSide *left, const MergeSide *right) {
    if (id < 0 || (uint32_t)id >= bpe->id_limit || left->literal || right->literal) return false;
    const BpeToken *token = &bpe->tokens[id];
    if (token->flags & BPE_TOKEN_LITERAL || token->size != left->size + right->size || !token->size) return false;
    const char *bytes = bpe->pool + token->offset;
    return memcmp(bytes, left->bytes, left->size) == 0 && memcmp(bytes + left->size, right->bytes, right->size) == 0;
}

/* Appends a side to a joined spelling: a literal one as it is, bytes by their letters. */
static size_t spell_side(const MergeSide *side, char *out) {
    size_t size = 0;
    if (side->literal) {
        memcpy(out, side->bytes, side->size);
        return side->size;
    }
    for (size_t i = 0; i < side->size; i++)
        size += (size_t)utf8_encode(byte_level_codes[(uint8_t)side->bytes[i]], out + size);
    return size;
}

/* The id of the joined token. Merges are mostly in the order of their results: the last result and the next id are
 * tried before the index. */
static int32_t joined_id(const Bpe *bpe, const MergeSide *left, const MergeSide *right, int32_t guess) {
    if (is_joined(bpe, guess, left, right)) return guess;
    if (is_joined(bpe, guess + 1, left, right)) return guess + 1;
    char small[4 * MERGE_SIDE_BYTES]; /* spelling at most doubles the bytes */
    size_t room = 2 * (left->size + right->size);
    char *joined = room <= sizeof small ? small : malloc(room);
    if (!joined) return -1;
    bool literal = left->literal || right->literal;
    size_t size = left->size + right->size;
    if (literal) {
        size = spell_side(left, joined);
        size += spell_side(right, joined + size);
    } else {
        memcpy(joined, left->bytes, left->size);
        memcpy(joined + left->size, right->bytes, right->size);
    }
    int32_t id = bpe_find(bpe, joined, size, literal);
    if (joined != small) free(joined);
    return id;
}

static bool reserve_merges(Scanner *scanner) {
    if (scanner->merge_count + BATCH <= scanner->merge_capacity) return true;
    if (scanner->merge_count + BATCH > BPE_MERGES_MAX)
        return fail(scanner->error, ERROR_LIMIT, "model.merges: more than %d", BPE_MERGES_MAX);
    size_t capacity = scanner->merge_capacity ? scanner->merge_capacity * 2 : 1 << 16;
    int32_t *merges = realloc(scanner->merges, capacity * 3 * sizeof *merges);
    if (!merges) return fail(scanner->error, ERROR_MEMORY, "no memory for the merges");
    scanner->merges = merges;
    scanner->merge_capacity = capacity;
    return true;
}

static bool flush_merges(Scanner *scanner, MergeBatch *batch) {
    const Bpe *bpe = scanner->bpe;
    bool ok = reserve_merges(scanner);
    for (size_t i = 0; i < batch->count; i++) {
        MergeSide *side = batch->side[i];
        int32_t *merge = ok ? scanner->merges + scanner->merge_count * 3 : NULL;
        for (int k = 0; k < 2 && ok; k++) {
            merge[k] = side[k].size
                ? bpe_find_hashed(bpe, side[k].bytes, side[k].size, side[k].literal, side[k].hash, true)
                : -1;
            ok = merge[k] >= 0 || merge_unknown(scanner, "a token");
        }
        if (ok) {
            merge[2] = joined_id(bpe, &side[0], &side[1], scanner->merge_count ? merge[-1] : 255);
            ok = merge[2] >= 0 || merge_unknown(scanner, "the joined token");
        }
        if (ok) scanner->merge_count++;
        side_free(&side[0]);
        side_free(&side[1]);
    }
    batch->count = 0;
    return ok;
}

/* "left right" or ["left", "right"]. */
static bool read_merge(Scanner *scanner, MergeBatch *batch) {
    if (batch->count == BATCH && !flush_merges(scanner, batch)) return false;
    MergeSide *side = batch->side[batch->count++];
    side[0].bytes = side[0].small;
    side[1].bytes = side[1].small;
    Slice text;
    if (json_scan_accept(&scanner->scan, '[')) {
        if (!json_scan_string(&scanner->scan, &text) || !read_side(scanner, &side[0], text)) return false;
        if (!json_scan_accept(&scanner->scan, ','))
            return json_scan_fail(&scanner->scan, "model.merges: expected a pair");
        if (!json_scan_string(&scanner->scan, &text) || !read_side(scanner, &side[1], text)) return false;
        return json_scan_accept(&scanner->scan, ']') || json_scan_fail(&scanner->scan, "model.merges: expected a pair");
    }
    if (!json_scan_string(&scanner->scan, &text))
        return json_scan_fail(&scanner->scan, "model.merges: expected a string or a pair");
    if (slice_starts(text, SLICE("#version"))) {
        batch->count--;
        return true;
    }
    const char *space = text.size ? memchr(text.data, ' ', text.size) : NULL;
    if (!space || memchr(space + 1, ' ', text.size - (size_t)(space + 1 - text.data))) {
        return json_scan_fail(&scanner->scan, "model.merges: expected two tokens with a space between them");
    }
    size_t left = (size_t)(space - text.data);
    return read_side(scanner, &side[0], (Slice){text.data, left}) &&
        read_side(scanner, &side[1], (Slice){space + 1, text.size - left - 1});
}

static bool read_merges(Scanner *scanner) {
    if (scanner->merges) return fail(scanner->error, ERROR_FORMAT, "model: the key \"merges\" appears twice");
    if (!reserve_merges(scanner)) return false;
    if (!json_scan_accept(&scanner->scan, '['))
        return json_scan_fail(&scanner->scan, "model.merges: expected an array");
    MergeBatch *batch = malloc(sizeof *batch);
    if (!batch) return fail(scanner->error, ERROR_MEMORY, "no memory for the merges");
    batch->count = 0;
    bool done = json_scan_accept(&scanner->scan, ']'), ok = true;
    while (ok && !done) ok = read_merge(scanner, batch) && json_scan_next(&scanner->scan, ']', &done);
    if (ok) {
        ok = flush_merges(scanner, batch);
    } else {
        for (size_t i = 0; i < batch->count; i++) {
            side_free(&batch->side[i][0]);
            side_free(&batch->side[i][1]);
        }
    }
    free(batch);
    return ok;
}

/* --- The file ------------------------------------------------------------------------------------------------- */

typedef struct Member {
    const char *name;
    const Json **node;
} Member;

static bool read_member(Scanner *scanner, const Member *members, size_t count, Slice key) {
    for (size_t i = 0; i < count; i++) {
        if (slice_is(key, members[i].name)) return read_json(scanner, members[i].name, members[i].node);
    }
    Slice value;
    return json_scan_skip(&scanner->scan, &value);
}

static bool read_model(Scanner *scanner) {
    TokenizerFile *file = scanner->file;
    const Member members[] = {{"type", &file->type}, {"dropout", &file->dropout}, {"unk_token", &file->unk_token},
        {"continuing_subword_prefix", &file->subword_prefix}, {"end_of_word_suffix", &file->word_suffix},
        {"fuse_unk", &file->fuse_unk}, {"byte_fallback", &file->byte_fallback}, {"ignore_merges", &file->ignore_merges},
        {"unk_id", &file->unk_id}, {"single", &file->single}, {"max_input_chars_per_word", &file->word_characters_max}};
    if (!json_scan_accept(&scanner->scan, '{')) return json_scan_fail(&scanner->scan, "model: expected an object");
    const char *merges = NULL; /* when they stand before the vocabulary */
    bool done = json_scan_accept(&scanner->scan, '}');
    while (!done) {
        Slice key, skipped;
        if (!json_scan_string(&scanner->scan, &key)) return false;
        if (!json_scan_accept(&scanner->scan, ':')) return json_scan_fail(&scanner->scan, "expected :");
        bool ok;
        if (slice_is(key, "vocab")) {
            ok = read_vocab(scanner);
        } else if (slice_is(key, "merges")) {
            if (!scanner->bpe->pool) merges = scanner->scan.at;
            ok = merges ? json_scan_skip(&scanner->scan, &skipped) : read_merges(scanner);
        } else {
            ok = read_member(scanner, members, COUNT_OF(members), key);
        }
        if (!ok || !json_scan_next(&scanner->scan, '}', &done)) return false;
    }
    if (!scanner->bpe->pool) return fail(scanner->error, ERROR_FORMAT, "model.vocab is missing");
    if (!merges) return true;
    const char *after = scanner->scan.at;
    scanner->scan.at = merges;
    bool ok = read_merges(scanner);
    scanner->scan.at = after;
    return ok;
}

static bool read_file(Scanner *scanner) {
    TokenizerFile *file = scanner->file;
    const Member members[] = {{"added_tokens", &file->added_tokens}, {"normalizer", &file->normalizer},
        {"pre_tokenizer", &file->pre_tokenizer}, {"post_processor", &file->post_processor},
        {"decoder", &file->decoder}};
    if (!json_scan_accept(&scanner->scan, '{')) return json_scan_fail(&scanner->scan, "expected an object");
    const char *model = NULL; /* it is read last when it stands before the pre-tokenizer */
    bool done = json_scan_accept(&scanner->scan, '}'), seen = false;
    while (!done) {
        Slice key, skipped;
        if (!json_scan_string(&scanner->scan, &key)) return false;
        if (!json_scan_accept(&scanner->scan, ':')) return json_scan_fail(&scanner->scan, "expected :");
        bool ok;
        if (slice_is(key, "model")) {
            if (seen) return fail(scanner->error, ERROR_FORMAT, "the key \"model\" appears twice");
            seen = true;
            if (!file->pre_tokenizer) model = scanner->scan.at;
            scanner->bpe->by_bytes = by_bytes(file->pre_tokenizer);
            ok = model ? json_scan_skip(&scanner->scan, &skipped) : read_model(scanner);
        } else {
            ok = read_member(scanner, members, COUNT_OF(members), key);
        }
        if (!ok || !json_scan_next(&scanner->scan, '}', &done)) return false;
    }
    json_scan_space(&scanner->scan);
    if (scanner->scan.at != scanner->scan.end) return json_scan_fail(&scanner->scan, "more text behind the object");
    if (!seen) return fail(scanner->error, ERROR_FORMAT, "the key \"model\" is missing");
    if (!model) return true;
    scanner->scan.at = model;
    scanner->bpe->by_bytes = by_bytes(file->pre_tokenizer);
    return read_model(scanner);
}

static bool must_be_empty(const Json *node, const char *name, Error *error) {
    if (!node || node->type == JSON_NULL || (node->type == JSON_STRING && node->size == 0)) return true;
    return fail(error, ERROR_UNSUPPORTED, "model.%s is not supported", name);
}

static bool find_unknown(const TokenizerFile *file, Bpe *bpe, Error *error) {
    bpe->unk = -1;
    if (!file->unk_token || file->unk_token->type == JSON_NULL) return true;
    if (file->unk_token->type != JSON_STRING) {
        return fail(error, ERROR_FORMAT, "model.unk_token must be a string, not %s", json_type_name(file->unk_token));
    }
    bpe->unk = bpe_find_spelled(bpe, json_slice(file->unk_token));
    return true; /* an unknown token outside the vocabulary is never needed in healthy files: nothing is emitted then */
}

static bool finish_bpe(const TokenizerFile *file, Bpe *bpe, Error *error) {
    if (!value_bool(file->fuse_unk, "model.fuse_unk", false, &bpe->fuse_unk, error)) return false;
    if (!value_bool(file->ignore_merges, "model.ignore_merges", false, &bpe->ignore_merges, error)) return false;
    if (!must_be_empty(file->subword_prefix, "continuing_subword_prefix", error)) return false;
    if (!must_be_empty(file->word_suffix, "end_of_word_suffix", error)) return false;
    if (file->dropout && file->dropout->type != JSON_NULL &&
        !(json_is_number(file->dropout) && json_number(file->dropout) == 0)) {
        return fail(error, ERROR_UNSUPPORTED, "model.dropout is not supported");
    }
    return find_unknown(file, bpe, error);
}

static bool finish_wordpiece(const TokenizerFile *file, Bpe *bpe, Error *error) {
    enum { CHARACTERS_DEFAULT = 100 };
    const Json *prefix = file->subword_prefix, *most = file->word_characters_max;
    const Slice text = prefix && prefix->type == JSON_STRING ? json_slice(prefix) : SLICE("##");
    char *copy = malloc(text.size + 1);
    if (!copy) return fail(error, ERROR_MEMORY, "no memory for a tokenizer");
    memcpy(copy, text.data, text.size);
    bpe->subword_prefix = (Slice){copy, text.size};
    bpe->word_characters_max = CHARACTERS_DEFAULT;
    if (most && (most->type != JSON_INTEGER || most->integer < 0 || most->integer > UINT32_MAX))
        return fail(error, ERROR_FORMAT, "model.max_input_chars_per_word must be a whole number");
    if (most) bpe->word_characters_max = (uint32_t)most->integer;
    return find_unknown(file, bpe, error);
}

static bool finish_unigram(const TokenizerFile *file, Bpe *bpe, Error *error) {
    const Json *id = file->unk_id;
    bpe->unk = -1;
    if (!value_bool(file->single, "model.single", false, &bpe->single, error)) return false;
    if (id && id->type != JSON_NULL) {
        if (id->type != JSON_INTEGER || id->integer < 0 || id->integer >= bpe->id_limit)
            return fail(error, ERROR_FORMAT, "model.unk_id must be a token of the vocabulary");
        bpe->unk = (int32_t)id->integer;
    }
    return unigram_finish(bpe, error);
}

static bool finish_model(const TokenizerFile *file, Bpe *bpe, Error *error) {
    const Slice type = file->type && file->type->type == JSON_STRING ? json_slice(file->type) : SLICE("");
    const bool scored = bpe->kind == MODEL_UNIGRAM;
    bpe->whole_words = slice_is(type, "WordLevel") && !scored;
    if ((slice_is(type, "WordPiece") && !scored) || bpe->whole_words) bpe->kind = MODEL_WORDPIECE;
    if (type.size && !bpe->whole_words && !slice_is(type, (const char *[]){"BPE", "WordPiece", "Unigram"}[bpe->kind]))
        return fail(error, ERROR_UNSUPPORTED, "model.type \"%.*s\" is not supported%s", SLICE_SHOWN(type),
            scored ? " with a list of scores" : ": BPE, WordPiece, WordLevel and Unigram are");
    if (bpe->kind != MODEL_BPE && bpe->by_bytes)
        return fail(error, ERROR_UNSUPPORTED, "a ByteLevel pre-tokenizer before this model.type is not supported");
    if (!value_bool(file->byte_fallback, "model.byte_fallback", false, &bpe->byte_fallback, error)) return false;
    bpe->word_characters_max = UINT32_MAX;
    if (bpe->whole_words) return find_unknown(file, bpe, error);
    if (bpe->kind == MODEL_WORDPIECE) return finish_wordpiece(file, bpe, error);
    return scored ? finish_unigram(file, bpe, error) : finish_bpe(file, bpe, error);
}

bool tokenizer_read(Slice text, Arena *arena, TokenizerFile *file, Bpe *bpe, Error *error) {
    if (text.size > TOKENIZER_JSON_MAX)
        return fail(error, ERROR_LIMIT, "%zu bytes; %d are the most", text.size, TOKENIZER_JSON_MAX);
    Scanner scanner = {.scan = {.begin = text.data, .at = text.data, .end = text.data + text.size, .error = error},
        .arena = arena,
        .file = file,
        .bpe = bpe,
        .error = error};
    bool ok = read_file(&scanner) && finish_model(file, bpe, error);
    const bool merges = bpe->kind == MODEL_BPE;
    if (ok && merges && !scanner.merges) ok = fail(error, ERROR_FORMAT, "model.merges is missing");
    ok = ok && (!merges || bpe_set_merges(bpe, scanner.merges, scanner.merge_count, error));
    free(scanner.merges);
    buffer_free(&scanner.scan.unescaped);
    return ok;
}
