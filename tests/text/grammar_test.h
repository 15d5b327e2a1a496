/* A small vocabulary, and questions to grammars, for the tests of text/grammar. */
#pragma once
#include <stdlib.h>

#include "test.h"
#include "text/grammar/grammar.h"

enum { TEST_WORDS_MAX = 400, TEST_END = 0 };

/* Every byte, and whatever else is named; id 0 ends a text. */
static Vocabulary *test_vocabulary(const char *const *words, size_t count) {
    static char bytes[256];
    Slice tokens[TEST_WORDS_MAX] = {{"", 0}};
    size_t used = 1;
    const int32_t ends[] = {TEST_END};
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[used++] = (Slice){&bytes[b], 1};
    }
    for (size_t i = 0; i < count; i++) tokens[used++] = slice_of(words[i]);
    return vocabulary_new(tokens, used, ends, 1, NULL);
}
static inline int32_t test_byte_token(char byte) { return 1 + (uint8_t)byte; }

static inline bool test_accepts(Grammar *g, Slice text) {
    GrammarState state = grammar_start(g);
    return grammar_accept_bytes(g, &state, text, NULL) && grammar_may_end(g, state);
}

/* Compiles, and says whether text fits; −1: it does not compile. */
static inline int test_fits(GrammarKind kind, const char *source, const char *text) {
    Error error = {0};
    Grammar *g = grammar_compile(kind, slice_of(source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
    if (!g) {
        fprintf(stderr, "%s: %s\n", source, error.text);
        return -1;
    }
    const int fits = test_accepts(g, slice_of(text));
    grammar_free(g);
    return fits;
}
