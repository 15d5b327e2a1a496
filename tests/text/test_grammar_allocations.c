/* Vocabularies, grammars of every kind and their masks with every allocation failing once: an error, nothing left
 * behind, and never another answer than that of a run in which nothing failed. */
#include "allocations.h"
#include "grammar_test.h"

static uint64_t expected; /* of a run without failures; while it is 0, the run sets it */

static bool walk(Grammar *g, const Vocabulary *v, Slice text, uint64_t *sum, Error *error) {
    GrammarState state = grammar_start(g);
    uint64_t mask[8] = {0};
    Buffer forced = {0};
    bool ok = true;
    CHECK(vocabulary_mask_words(v) <= COUNT_OF(mask));
    for (size_t i = 0; ok && i <= text.size; i++) {
        buffer_clear(&forced);
        ok = grammar_mask(g, state, mask, error) && grammar_forced(g, state, &forced, error);
        if (ok && forced.failed) ok = fail(error, ERROR_MEMORY, "no room for the test's own text");
        for (size_t k = 0; ok && k < COUNT_OF(mask); k++) *sum = (*sum ^ mask[k]) * 0x9E3779B97F4A7C15u;
        if (ok && i < text.size) ok = grammar_accept(g, &state, test_byte_token(text.data[i]), error);
    }
    buffer_free(&forced);
    return ok;
}

static bool run(Error *error) {
    static const struct {
        GrammarKind kind;
        const char *source, *text;
    } runs[] = {
        {GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^a(?=b)[a-z]*$\","
            "\"maxLength\":9},\"n\":"
            "{\"anyOf\":[{\"type\":\"number\",\"minimum\":1.5,\"multipleOf\":0.5},{\"enum\":[\"x\",null,[1]]}]},\"l\":{"
            "\"type\":\"array\","
            "\"prefixItems\":[{\"$ref\":\"#/$defs/"
            "a~1b\"}]}},\"required\":[\"name\"],\"patternProperties\":{\"^x\":{}},\"$defs\":{\"a/b\":"
            "{\"format\":\"date\"}},\"allOf\":[{\"propertyNames\":{\"maxLength\":5},\"maxProperties\":3}]}",
            "{\"name\":\"abc\",\"n\":2.5,\"l\":[\"2024-02-29\"]}"},
        {GRAMMAR_JSON_SCHEMA,
            "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"],\"type\":\"object\"},{"
            "\"properties\":"
            "{\"k\":{\"const\":2}},\"required\":[\"k\"],\"type\":\"object\"}]}",
            "{\"k\":2}"},
        {GRAMMAR_JSON_OBJECT, "", "{\"a\":[1]}"},
        {GRAMMAR_REGEX, "(a|b){2,3}[^\\d\\p{Lu}]+", "abx"},
        {GRAMMAR_GBNF, "root ::= \"x\" [a-c]* ( root | \"y\" )", "xabxy"},
        {GRAMMAR_LARK, "start: (A \",\")* B\nA: \"q\"i /r+/\nB: \"a\"..\"c\" %json {\"type\":\"null\"}\n%ignore \" \"",
            ""},
        {GRAMMAR_LARK, "%import common.INT\nstart: sum\nsum: sum \"+\" INT | INT\n%ignore \" \"", "1 + 2"},
    };
    static const char *const words[] = {"ab", "name", "\":\"", "}", "null", "2024", "aaaa"};
    uint64_t sum = 1;
    Vocabulary *v = test_vocabulary(words, COUNT_OF(words));
    bool ok = v || fail(error, ERROR_MEMORY, "no memory for a vocabulary");
    for (size_t i = 0; ok && i < COUNT_OF(runs); i++) {
        Error why = {0};
        Grammar *g = grammar_compile(runs[i].kind, slice_of(runs[i].source), GRAMMAR_SPACE_FLEXIBLE, v, &why);
        /* The one that is refused is so for its own reason, or for memory. */
        if (!g && why.code == ERROR_MEMORY) ok = fail(error, ERROR_MEMORY, "%s", why.text);
        if (!g && ok && !strstr(runs[i].source, "%json")) ok = fail(error, why.code, "%s", why.text);
        if (g) ok = walk(g, v, slice_of(runs[i].text), &sum, error);
        grammar_free(g);
    }
    vocabulary_free(v);
    if (ok && !expected) expected = sum;
    return ok && (sum == expected || fail(error, ERROR_FORMAT, "another answer than without failures"));
}

int main(void) {
    Error error = {0};
    TEST_MSG(run(&error), "%s", error.text);
    allocations_sweep("grammars", run, ALLOCATIONS_ONE);
    allocations_sweep("grammars, all", run, ALLOCATIONS_ALL);
    return test_done();
}
