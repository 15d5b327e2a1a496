/* Grammars: what they take and refuse, masks against the bytes, limits. */
#include "grammar_test.h"

#include <time.h>

/* --- What fits ---------------------------------------------------------------------------------------------------- */

typedef struct Case {
    GrammarKind kind;
    const char *source, *fits[8], *breaks[8];
} Case;

static const Case cases[] = {
    {GRAMMAR_REGEX, "a(b|c){2,3}d?", {"abb", "acbcd"}, {"ab", "abbbb", "", "abbdd"}},
    {GRAMMAR_REGEX, "^(?=.*\\d)(?!.*x)[a-z0-9]{3,5}$", {"ab1", "1abcd"}, {"abc", "ax1", "a1", "abcde1"}},
    {GRAMMAR_REGEX, "[^\\x00-\\u{7f}]\\p{Lu}", {"\xC3\xA9\xC3\x89", "\xE4\xBD\xA0Z"}, {"aZ", "\xC3\xA9z", "\xC3Z"}},
    {GRAMMAR_REGEX, "(?:a{0,3}){0,2}", {"", "aaaaaa"}, {"aaaaaaa"}},
    {GRAMMAR_REGEX, "\\u0041\\t[\\]\\-x]{2}", {"A\t]-", "A\txx"}, {"A\t]a"}},
    {GRAMMAR_GBNF, "root ::= \"x\" list # one\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [a-z]+ |\n  list",
        {"x[]", "x[a,[b,cc],[]]"}, {"x", "x[", "x[a,]", "x[a]]"}},
    {GRAMMAR_GBNF, "root ::= [^\"\\n] .{2,3} \"\\\"\\u00e9\"", {"abc\"\xC3\xA9", "\xC3\xA9zzz\"\xC3\xA9"},
        {"\nbc\"\xC3\xA9", "ab\"\xC3\xA9"}},
    {GRAMMAR_LARK,
        "start: sum\n?sum: sum \"+\" atom -> add\n    | atom\natom: NUM | \"(\" sum \")\"\n"
        "NUM: /[0-9]/+ // digits\n%ignore / +/",
        {"1", "1+2", "1 + ( 22+3 )", " 1 "}, {"", "1+", "(1", "1 2"}},
    {GRAMMAR_LARK, "%import common (INT, WS)\nstart: \"let\"i INT~2..3 [\"x\"] HEX?\nHEX: \"a\"..\"f\"\n%ignore WS",
        {"LET 1 2", "let 1 2 3xa", "let 123"}, {"let 1", "lex 1 2", "let 1 2 y"}},
    {GRAMMAR_LARK, "start: \"v=\" %json {\"type\": \"integer\", \"minimum\": 3} \";\"", {"v=3;", "v=12;"},
        {"v=2;", "v=x;"}},
    {GRAMMAR_JSON_OBJECT, "",
        {"{}", "{\"a\": [1, -2.5e+3, {\"b\":null}], \"c\":\"\\ud83d\\ude00 \\\"\"}", "{\n  \"a\": 1\n}"},
        {"[]", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\\ud83d\"}", "{  \"a\":1}", "{\"a\":\"\n\"}"}},
    {GRAMMAR_JSON_ANSWER,
        "{\"type\":\"object\",\"properties\":{\"a\":{\"properties\":{\"b\":{}}},\"c\":{\"type\":\"object\"}},"
        "\"required\":[\"a\",\"d\"]}",
        {"{\"a\":{\"b\":1},\"d\":2}", "{\"a\":{},\"c\":{\"x\":1},\"d\":{\"y\":1}}"},
        {"{\"a\":{\"b\":1,\"x\":1},\"d\":2}", "{\"a\":{},\"d\":2,\"e\":1}", "{\"a\":{}}"}},
    {GRAMMAR_JSON_ANSWER, "{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"type\":\"object\"}",
        {"{\"a\":1,\"x\":1}", "{\"x\":1}"}, {"{\"a\":1,}"}},
    {GRAMMAR_JSON_ANSWER, "{\"properties\":{\"a\":{}},\"minProperties\":2,\"type\":\"object\"}", {"{\"a\":1,\"x\":1}"},
        {"{\"a\":1}"}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{}}}", {"{\"a\":1,\"x\":1}"}, {"[]"}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
        {"-12", "-9", "0", "7", "99", "100", "104"}, {"-13", "105", "1000", "1.5", "007", "-"}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0.05,\"maximum\":2.5}",
        {"0.051", "0.06", "1", "2.4999", "2.5", "2.50"}, {"0.05", "0.050", "0", "2.51", "3", "-1", "1e0", "1."}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":-1}", {"0", "0.5", "-0.75", "12.250"},
        {"0.3", "-1.25", "0.255"}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
        {"\"ab\"", "\"\xC3\xA9\xC3\xA9\xC3\xA9\"", "\"\\u00e9\\n\"", "\"\\ud83d\\ude00a\""},
        {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b+|^c$\"}", {"\"b\"", "\"abba\"", "\"c\"", "\"\\\"b\""},
        {"\"a\"", "\"cc\"", "\"\""}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(^a|b$)c*\"}", {"\"a\"", "\"accx\"", "\"xb\""},
        {"\"xa\"", "\"bx\""}},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-29\"", "\"1999-12-31\""},
        {"\"2023-02-29\"", "\"2023-13-01\"", "\"2023-4-1\""}},
    {GRAMMAR_JSON_SCHEMA, "{\"enum\":[1,\"a\\\"\",null,{\"k\":[true]}]}", {"1", "\"a\\\"\"", "null", "{\"k\": [true]}"},
        {"2", "\"a\"", "{}", "{\"k\":[false]}"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"const\":1}},\"required\":[\"b\"],"
        "\"additionalProperties\":{\"type\":\"boolean\"}}",
        {"{\"b\":1}", "{\"a\":null,\"b\":1,\"c\":true}", "{\"b\": 1, \"ab\": false}"},
        {"{}", "{\"b\":1,\"a\":null}", "{\"b\":1,\"c\":1}", "{\"b\":1,\"\\u0061\":true}", "{\"b\":2}"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"additionalProperties\":false,"
        "\"maxProperties\":2}",
        {"{}", "{\"x\":null}", "{\"x1\":null,\"x2\":null}"},
        {"{\"y\":null}", "{\"x\":1}", "{\"x\":null,\"xx\":null,\"xy\":null}"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"type\":\"object\",\"additionalProperties\":false,"
        "\"minProperties\":2}",
        {"{\"a\":1,\"c\":2}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":1,\"c\":2}"}, {"{}", "{\"a\":1}", "{\"c\":1}"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3},\"minItems\":1,"
        "\"maxItems\":4}",
        {"[1]", "[1,2]", "[1, 2, 3, 3]"}, {"[]", "[2]", "[1,3]", "[1,2,3,3,3]"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":"
        "\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"kids\"],\"additionalProperties\":false}}}",
        {"{\"kids\":[]}", "{\"kids\":[{\"kids\":[]},{\"kids\":[]}]}"}, {"{}", "{\"kids\":[1]}"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"allOf\":[{\"properties\":{\"a\":{\"type\":[\"integer\",\"string\"]}},\"required\":[\"a\"]},"
        "{\"properties\":{\"a\":{\"minimum\":5,\"maxLength\":1}},\"type\":\"object\"}]}",
        {"{\"a\":5}", "{\"a\":\"x\"}"}, {"{\"a\":4}", "{\"a\":\"xx\"}", "5"}},
    {GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"maxLength\":1,\"maximum\":1}",
        {"\"a\"", "1", "-5"}, {"\"ab\"", "2", "null"}},
    {GRAMMAR_JSON_SCHEMA,
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},"
        "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
        {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"}, {"{\"k\":\"c\"}", "{}"}},
    {GRAMMAR_JSON_SCHEMA, "{\"not\":{\"enum\":[1,2,\"a\"]}}", {"null", "\"b\"", "[1]"}, {"1", "2", "\"a\""}},
};

static void test_cases(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Case *c = &cases[i];
        for (size_t k = 0; k < 8 && c->fits[k]; k++)
            TEST_MSG(test_fits(c->kind, c->source, c->fits[k]) == 1, "%s: %s", c->source, c->fits[k]);
        for (size_t k = 0; k < 8 && c->breaks[k]; k++)
            TEST_MSG(test_fits(c->kind, c->source, c->breaks[k]) == 0, "%s: %s", c->source, c->breaks[k]);
    }
}

/* --- What is refused, and how ------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    static const struct {
        GrammarKind kind;
        const char *source, *says;
        ErrorCode code;
    } refused[] = {
        {GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"not\":{\"multipleOf\":2}}}}", "#/properties/a/not",
            ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"not\":{\"required\":[5]}}", "#/not", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"items\":{\"uniqueItems\":true}}", "#/items/uniqueItems", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"http://x/y\"}", "#/$ref", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a\"}", "#/$ref", ERROR_FORMAT},
        {GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"a(?<=b)\"}", "#/pattern", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"type\":\"string\"},{\"maxLength\":3}]}", "#/oneOf", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"text\"}", "#/type", ERROR_FORMAT},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\"", "schema", ERROR_FORMAT},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "nothing fits", ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a{3}$\",\"maxLength\":2}", "nothing fits",
            ERROR_UNSUPPORTED},
        {GRAMMAR_JSON_SCHEMA,
            "{\"$ref\":\"#\",\"allOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}]}",
            "nothing fits", ERROR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(a", "byte 2", ERROR_FORMAT},
        {GRAMMAR_REGEX, "(a)\\1", "\\1", ERROR_UNSUPPORTED},
        {GRAMMAR_REGEX, "a*********", "byte 10: too many repeats", ERROR_FORMAT},
        {GRAMMAR_REGEX, "a\\bc", "byte 2: a word boundary is not supported", ERROR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(?:^a)*", "byte 7: repeating an assertion is not supported", ERROR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(?i:a)", "byte 1: this kind of group is not supported", ERROR_UNSUPPORTED},
        {GRAMMAR_REGEX, "\\p{lu}", "byte 3: the property \\p{lu} is not known", ERROR_UNSUPPORTED}, /* case counts */
        {GRAMMAR_REGEX, "[c-\\d]", "byte 5: the range ends", ERROR_FORMAT},
        {GRAMMAR_GBNF, "root ::= a", "rule a is not defined", ERROR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", "line 2", ERROR_FORMAT},
        {GRAMMAR_GBNF, "root ::= a \"x\"\na ::= b \"y\"\nb ::= a | \"z\"", "begins with itself", ERROR_UNSUPPORTED},
        {GRAMMAR_GBNF, "root ::= \"a", "line 1, column", ERROR_FORMAT},
        {GRAMMAR_LARK, "start: A\nA: B\nB: A", "circle", ERROR_FORMAT},
        {GRAMMAR_LARK, "start: X", "no such terminal", ERROR_FORMAT},
    };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        Error error = {0};
        Grammar *g =
            grammar_compile(refused[i].kind, slice_of(refused[i].source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
        TEST_MSG(!g && error.code == refused[i].code && strstr(error.text, refused[i].says), "%s: %d %s",
            refused[i].source, (int)error.code, error.text);
        grammar_free(g);
    }
}

/* --- Masks -------------------------------------------------------------------------------------------------------- */

/* A token is in the mask exactly when its bytes may follow, and accepting says the same. */
static void check_mask(Grammar *g, GrammarState state, const char *const *words, size_t count, const char *where) {
    uint64_t mask[8] = {0}, again[8] = {0};
    Error error = {0};
    TEST_MSG(grammar_mask(g, state, mask, &error), "%s", error.text);
    TEST(grammar_mask(g, state, again, &error) && !memcmp(mask, again, sizeof mask));
    for (size_t i = 0; i < 256 + count; i++) {
        const char byte = (char)i;
        const Slice text = i < 256 ? (Slice){&byte, 1} : slice_of(words[i - 256]);
        GrammarState by_bytes = state, by_token = state;
        const bool fits = grammar_accept_bytes(g, &by_bytes, text, NULL);
        const bool accepted = grammar_accept(g, &by_token, (int32_t)(1 + i), NULL);
        const bool masked = mask[(1 + i) / 64] >> ((1 + i) % 64) & 1;
        TEST_MSG(fits == masked && accepted == fits && by_bytes == by_token, "%s: token %zu", where, i + 1);
    }
    GrammarState end = state;
    TEST((mask[0] & 1) == grammar_may_end(g, state));
    TEST(grammar_accept(g, &end, TEST_END, NULL) == grammar_may_end(g, state));
}

static void test_masks(void) {
    static const char *const words[] = {"\"", "a", "ab", "abc", "\"a", "\"a\":", "name", "\"name", "nam", "names",
        "\":", "\",", "\"}", "\",\"", "{\"", "{\"name\":\"", "x\"", "hello world", "hello\"", "hello\",\"", "\\n",
        "a\\n", "\\u00", "00", "12", "123", "12,", "1.5", "1e", "}", "]}", "},{", " ", "  ", "\n  ", ", ", ",\"",
        "true", "tru", "e,", "\xC3", "\xA9", "\xC3\xA9", "\xC3\xA9\"", "\xE4\xBD\xA0\xE5", "\xF0\x9F", "\x98\x80\"",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"", "null", "\\", "\\\"",
        "\x7F", "\x01", "[1", "[[", "]", "--", "-1", "0", "00:"};
    static const struct {
        GrammarKind kind;
        const char *source, *text;
    } walks[] = {
        {GRAMMAR_JSON_OBJECT, "", "{\"a\":\"b\\n\xC3\xA9\",\"c\": [1,2.5e1,true],\"names\":{}}"},
        {GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},\"n\":{\"type\":"
            "\"integer\",\"maximum\":130}},\"required\":[\"name\"]}",
            "{\"name\":\"hello\",\"n\":123,\"namesx\":\"y\"}"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":45}",
            "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-h]+( [a-z]{1,4})*$\",\"maxLength\":12}",
            "\"abc x name\""},
        {GRAMMAR_JSON_SCHEMA,
            "{\"anyOf\":[{\"enum\":[\"ab\",\"abc\",\"name\"]},{\"type\":\"string\",\"minLength\":5},{\"type\":"
            "\"number\"}]}",
            "\"names\""},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":36,\"maxLength\":80}}",
            "[\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"ab"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":5000}", "\"ab\\n\xC3\xA9\""},
        {GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"[0-9a-f]{3}-00|names\"}}",
            "[\"ab hello 0ab-0 nam 12c-00 x\",\"x names\"]"},
        {GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"patternProperties\":{\"^[^-]+$\":{\"type\":\"null\"}},\"properties\":{"
            "\"name\":{\"const\":1}},\"additionalProperties\":false}",
            "{\"nam\":null,\"names\":null,\"ab\":null}"},
        {GRAMMAR_REGEX, "(ab?){30,60}c{0,50}(x|y)*", "ababaaababababababababababababababaaaaaaaaaaaaababcccx"},
        {GRAMMAR_REGEX, ".{0,4}(\"|[0-9]+)", "aa12"},
        {GRAMMAR_REGEX, ".*", "a\"b"},
        {GRAMMAR_GBNF, "root ::= (\"a\" \"b\"? | \"a\" \"c\"? | [^\"]* \"\\\"\")*", "aabacab\""},
        {GRAMMAR_LARK, "start: /[^\"]*/ x\nx: \"\\\"\" | \"12\" x", "ab12\""},
        {GRAMMAR_LARK, "start: /[^\"]{0,60}/ x\nx: \"\\\"\" | \"12\" x", "ab12\""},
    };
    Vocabulary *v = test_vocabulary(words, COUNT_OF(words));
    TEST(v && vocabulary_mask_words(v) <= 8);
    for (size_t i = 0; v && i < COUNT_OF(walks); i++) {
        Error error = {0};
        Grammar *g = grammar_compile(walks[i].kind, slice_of(walks[i].source), GRAMMAR_SPACE_FLEXIBLE, v, &error);
        TEST_MSG(g, "%s: %s", walks[i].source, error.text);
        if (!g) continue;
        GrammarState state = grammar_start(g);
        for (const char *c = walks[i].text;; c++) {
            check_mask(g, state, words, COUNT_OF(words), walks[i].text);
            if (!*c) break;
            const bool ok = grammar_accept(g, &state, test_byte_token(*c), &error);
            TEST_MSG(ok, "%s: at %s: %s", walks[i].source, c, error.text);
            if (!ok) break;
        }
        grammar_free(g);
    }
    vocabulary_free(v);
}

/* Going back is keeping a state; bytes that must follow are told, and no more. */
static void test_states(void) {
    Error error = {0};
    Grammar *g = grammar_compile(GRAMMAR_JSON_SCHEMA,
        SLICE("{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"alpha\",\"alps\"]}},\"required\":[\"kind\"],"
              "\"additionalProperties\":false}"),
        GRAMMAR_SPACE_NONE, NULL, &error);
    TEST_MSG(g, "%s", error.text);
    if (!g) return;
    GrammarState state = grammar_start(g);
    Buffer forced = {0};
    TEST(grammar_forced(g, state, &forced, &error) && slice_is(buffer_view(&forced), "{\"kind\":\"alp"));
    TEST(grammar_accept_bytes(g, &state, buffer_view(&forced), &error));
    const GrammarState fork = state;
    TEST(grammar_accept_bytes(g, &state, SLICE("ha\"}"), &error) && grammar_may_end(g, state));
    const GrammarState first = state;
    state = fork;
    TEST(!grammar_accept_bytes(g, &state, SLICE("x"), &error) && state == fork);
    buffer_clear(&forced);
    TEST(grammar_accept_bytes(g, &state, SLICE("s"), &error) && grammar_forced(g, state, &forced, &error));
    TEST(slice_is(buffer_view(&forced), "\"}"));
    TEST(grammar_accept_bytes(g, &state, SLICE("\"}"), &error) && state == first);
    buffer_free(&forced);
    grammar_free(g);
}

/* --- Limits ------------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static char *repeated(const char *first, const char *middle, const char *last, int count) {
    Buffer text = {0};
    for (int i = 0; i < count; i++) buffer_text(&text, first);
    buffer_text(&text, middle);
    for (int i = 0; i < count; i++) buffer_text(&text, last);
    return text.data;
}

/* Compiles and walks over text: within seconds of CPU time, refused or not. Sanitizers slow it down. */
static void check_limit(const char *what, GrammarKind kind, const char *source, const char *text, int compiles) {
    enum { SECONDS_MAX = 1, SLOWER = 20 };
    const double limit = SANITIZED ? SECONDS_MAX * SLOWER : SECONDS_MAX;
    Error error = {0};
    const double begin = cpu_seconds();
    Grammar *g = grammar_compile(kind, slice_of(source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
    TEST_MSG(cpu_seconds() - begin < limit, "%s: %f s", what, cpu_seconds() - begin);
    TEST_MSG((g != NULL) == compiles, "%s: %s", what, error.text);
    GrammarState state = g ? grammar_start(g) : 0;
    if (g && !grammar_accept_bytes(g, &state, slice_of(text), &error))
        TEST_MSG(error.code == ERROR_LIMIT, "%s: %s", what, error.text);
    TEST_MSG(cpu_seconds() - begin < 2 * limit, "%s: %f s", what, cpu_seconds() - begin);
    grammar_free(g);
}

static char *many_properties(int count, bool required) {
    Buffer text = {0};
    buffer_text(&text, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < count; i++) buffer_printf(&text, "%s\"p%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    buffer_text(&text, "}");
    for (int i = 0; required && i < count; i++) buffer_printf(&text, "%s\"p%d\"", i ? "," : ",\"required\":[", i);
    buffer_text(&text, required ? "]}" : "}");
    return text.data;
}

static void test_limits(void) {
    char *nested = repeated("(", "a", ")", 50000), *gbnf = repeated("(", "\"a\"", ")", 50000);
    char *required = many_properties(5000, true), *optional = many_properties(5000, false);
    char *nullable = repeated("a?", "", "a", 2000), *as = repeated("a", "", "", 4000);
    Buffer rules = {0}, doubling = {0};
    buffer_printf(&rules, "root ::= %s", gbnf);
    buffer_text(&doubling, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 60; i++)
        buffer_printf(&doubling,
            "\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\",\"minLength\":%d}]},", i, i + 1,
            i + 1, i);
    buffer_text(&doubling, "\"d60\":{\"type\":\"string\"}}}");
    check_limit("nested groups of a regex", GRAMMAR_REGEX, nested, "a", 0);
    check_limit("nested groups of GBNF", GRAMMAR_GBNF, rules.data, "a", 0);
    check_limit("5,000 required properties", GRAMMAR_JSON_SCHEMA, required, "{\"p0\":1,\"p1\":22,", 1);
    check_limit("5,000 optional properties", GRAMMAR_JSON_SCHEMA, optional, "{\"p0\":1,\"p4711\":22,\"", 1);
    check_limit("an exponential automaton", GRAMMAR_REGEX, "(a|b)*a(a|b){500}c", as, 1);
    check_limit("nested repeats", GRAMMAR_REGEX, "((a{1,900}b?){1,900}c?){1,900}", as, 1);
    check_limit("many optional parts", GRAMMAR_REGEX, nullable, as, 1);
    check_limit("an impossible intersection", GRAMMAR_REGEX, "(?=(aa)*$)(?=(aaa)*$)(?=a(aaaaa)*$).{1000,}", "a", 0);
    check_limit("schemas that double", GRAMMAR_JSON_SCHEMA, doubling.data, "\"", 0);
    check_limit("ambiguous rules", GRAMMAR_GBNF, "root ::= x\nx ::= \"a\" x x | \"a\"? \"a\" x | \"a\"", as, 1);
    check_limit("a huge repeat", GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"string\",\"minLength\":4000000000,\"pattern\":\"^(ab)*$\"}", "\"a", 0);
    free(nested);
    free(gbnf);
    free(required);
    free(optional);
    free(nullable);
    free(as);
    buffer_free(&rules);
    buffer_free(&doubling);
}

int main(void) {
    test_cases();
    test_refusals();
    test_masks();
    test_states();
    test_limits();
    return test_done();
}
