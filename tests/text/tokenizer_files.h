/* Tokenizers for tests: the synthetic ones of tokenizer_goldens.jsonl, and any JSON. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "test.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/internal.h"

typedef struct TokenizerGoldens {
    Buffer text;
    Arena arena;
    const Json *tails;
    const Json *cases[64];
    size_t count;
} TokenizerGoldens;

static inline bool goldens_open(TokenizerGoldens *goldens) {
    Error error = {0};
    *goldens = (TokenizerGoldens){0};
    if (!file_read("tests/text/tokenizer_goldens.jsonl", 0, &goldens->text, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return false;
    }
    Slice rest = buffer_view(&goldens->text);
    while (rest.size && goldens->count < 64) {
        const char *end = memchr(rest.data, '\n', rest.size);
        size_t size = end ? (size_t)(end - rest.data) : rest.size;
        const Json *line = json_parse(&goldens->arena, (Slice){rest.data, size}, &error);
        TEST_MSG(line, "%s", error.text);
        if (!line) return false;
        if (!goldens->tails) {
            goldens->tails = json_get(line, "tails");
        } else {
            goldens->cases[goldens->count++] = line;
        }
        rest = (Slice){rest.data + size + (end != NULL), rest.size - size - (end != NULL)};
    }
    return goldens->count > 0;
}

static inline void goldens_close(TokenizerGoldens *goldens) {
    buffer_free(&goldens->text);
    arena_free(&goldens->arena);
}

/* config: tokenizer_config.json, or NULL for none. NULL: *error says why. */
static inline Tokenizer *open_tokenizer_text(Slice json, const char *config, Error *error) {
    return tokenizer_parse(json, slice_of(config ? config : ""), error);
}

/* The tokenizer.json of a golden. */
static inline void golden_text(const TokenizerGoldens *goldens, const Json *one, Buffer *json) {
    Slice tail_name = json_slice(json_get(one, "tail"));
    buffer_slice(json, json_slice(json_get(one, "head")));
    for (JSON_EACH_PAIR(key, value, goldens->tails)) {
        if (slice_equal(json_slice(key), tail_name)) buffer_slice(json, json_slice(value));
    }
}

static inline Tokenizer *open_golden(
    const TokenizerGoldens *goldens, const Json *one, const char *config, Error *error) {
    Buffer json = {0};
    golden_text(goldens, one, &json);
    Tokenizer *t = open_tokenizer_text(buffer_view(&json), config, error);
    buffer_free(&json);
    return t;
}

static inline Tokenizer *open_named(const TokenizerGoldens *goldens, const char *name, const char *config) {
    Error error = {0};
    for (size_t i = 0; i < goldens->count; i++) {
        if (!slice_is(json_slice(json_get(goldens->cases[i], "name")), name)) continue;
        Tokenizer *t = open_golden(goldens, goldens->cases[i], config, &error);
        TEST_MSG(t, "%s: %s", name, error.text);
        return t;
    }
    TEST_MSG(false, "no golden %s", name);
    return NULL;
}
