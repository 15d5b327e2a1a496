/* A grammar: the first byte is its kind ('s' schema, 'r' regex, 'g' GBNF, 'l' Lark, 'o' any object), and behind a line
 * "==TEXT==" comes what is read with it. Any bytes give a grammar or an error; a mask has exactly the tokens whose
 * bytes may follow; where nothing may follow, the text may end; bytes that must follow may. */
#include <stdint.h>
#include <string.h>

#include "text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const words[] = {"ab", "name", "\"", "\":", "\",\"", "{\"", "\"}", "true", "12", "0.5", "  ", "\n ",
    "\\u00", "\\n", "\xC3\xA9", "\xE4\xBD", "\xA0", "x\"", "]]", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
enum { TOKENS = 1 + 256 + COUNT_OF(words), WORDS = (TOKENS + 63) / 64, STEPS_MAX = 64 };

static const Vocabulary *vocabulary(void) {
    static Vocabulary *made;
    static char bytes[256];
    Slice tokens[TOKENS] = {{"", 0}};
    const int32_t ends[] = {0};
    if (made) return made;
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[1 + b] = (Slice){&bytes[b], 1};
    }
    for (size_t i = 0; i < COUNT_OF(words); i++) tokens[257 + i] = slice_of(words[i]);
    made = vocabulary_new(tokens, TOKENS, ends, 1, NULL);
    CHECK(made);
    return made;
}

static bool check_state(Grammar *g, GrammarState state) {
    uint64_t mask[WORDS] = {0}, any = 0;
    Error error = {0};
    if (!grammar_mask(g, state, mask, &error)) {
        CHECK(error.text[0]);
        return false;
    }
    for (int i = 0; i < WORDS; i++) any |= mask[i];
    CHECK(any);
    CHECK((mask[0] & 1) == grammar_may_end(g, state));
    for (int32_t id = 1; id < TOKENS; id++) {
        GrammarState next = state;
        Error why = {0};
        const bool accepted = grammar_accept(g, &next, id, &why);
        if (!accepted && why.code != ERROR_FORMAT) return false;
        CHECK(accepted == (mask[id / 64] >> (id % 64) & 1));
    }
    return true;
}

static void check_grammar(Grammar *g, const uint8_t *text, size_t size) {
    GrammarState state = grammar_start(g);
    Error error = {0};
    Buffer forced = {0};
    for (size_t i = 0; i <= size && i < STEPS_MAX; i++) {
        if (!check_state(g, state)) break;
        buffer_clear(&forced);
        if (grammar_forced(g, state, &forced, &error)) {
            GrammarState next = state;
            CHECK(grammar_accept_bytes(g, &next, buffer_view(&forced), &error) || error.code != ERROR_FORMAT);
        }
        if (i < size && !grammar_accept(g, &state, 1 + text[i], &error)) break;
    }
    buffer_free(&forced);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char seam[] = "\n==TEXT==\n", kinds[] = "srglo";
    if (!size) return 0;
    const uint8_t *at = memmem(data, size, seam, sizeof seam - 1);
    const Slice source = {(const char *)data + 1, (at ? (size_t)(at - data) : size) - 1};
    const char *kind = data[0] ? strchr(kinds, data[0]) : NULL;
    if (!kind || (at && at == data)) return 0;
    const uint8_t *text = at ? at + sizeof seam - 1 : data + size;
    Error error = {0};
    Grammar *g = grammar_compile((GrammarKind)((const GrammarKind[]){GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_GBNF,
                                     GRAMMAR_LARK, GRAMMAR_JSON_OBJECT})[kind - kinds],
        source, size % 2 ? GRAMMAR_SPACE_FLEXIBLE : GRAMMAR_SPACE_NONE, vocabulary(), &error);
    CHECK(g || error.text[0]);
    if (g) check_grammar(g, text, (size_t)(data + size - text));
    grammar_free(g);
    return 0;
}
