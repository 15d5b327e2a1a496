/* The JSON reader: the cases of json_cases.txt, values, structure, messages, limits, and texts made at random. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json_python.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "test.h"

static const char *const cases_path = "tests/base/json_cases.txt";

static Slice decode_case(char *text, size_t size) {
    size_t out = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '%' && text[i + 1] != '%') {
            char hex[3] = {text[i + 1], text[i + 2], 0};
            text[out++] = (char)strtol(hex, NULL, 16);
            i += 2;
        } else {
            i += text[i] == '%';
            text[out++] = text[i];
        }
    }
    return (Slice){text, out};
}

/* In a block that ends where the text ends: a reader that looks further is seen by the address sanitizer. */
static const Json *parse_exactly(Arena *arena, Slice text, Error *error) {
    char *copy = malloc(text.size ? text.size : 1);
    memcpy(copy, text.data, text.size);
    const Json *root = json_parse(arena, (Slice){copy, text.size}, error);
    free(copy); /* whoever reads strings afterwards must parse by himself */
    return root;
}

static void check_case(char *line, size_t size) {
    char *name = line + 2, *space = memchr(name, ' ', size - 2);
    TEST_MSG((line[0] == 'y' || line[0] == 'n') && line[1] == ' ' && space, "%s", line);
    if (!space) return;
    *space = '\0';
    Slice text = decode_case(space + 1, size - (size_t)(space + 1 - line));
    Arena arena = {0};
    Error error = {0};
    bool accepted = parse_exactly(&arena, text, &error) != NULL;
    TEST_MSG(accepted == (line[0] == 'y'), "%s: %s", name, error.text);
    TEST_MSG(accepted == (error.code == ERROR_NONE), "%s", name);
    TEST_MSG(utf8_valid(slice_of(error.text)), "%s: the message is not UTF-8", name);
    if (accepted) { /* what is written reads back and is written the same again */
        Buffer once = {0}, twice = {0};
        json_write(&once, json_parse(&arena, text, &error));
        const Json *again = json_parse(&arena, buffer_view(&once), &error);
        TEST_MSG(again != NULL, "%s: %s", name, error.text);
        if (again) json_write(&twice, again);
        TEST_MSG(slice_equal(buffer_view(&once), buffer_view(&twice)), "%s: %s", name, once.data);
        buffer_free(&once);
        buffer_free(&twice);
    }
    arena_free(&arena);
}

static void test_cases(void) {
    Buffer file = {0};
    Error error = {0};
    TEST_MSG(file_read(cases_path, 0, &file, &error), "%s", error.text);
    int cases = 0;
    for (char *line = file.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        if (*line == '#') continue;
        check_case(line, (size_t)(end - line));
        cases++;
    }
    TEST_MSG(cases > 290, "%d", cases); /* the file is whole */
    buffer_free(&file);
}

static void test_values(void) {
    static const char text[] =
        "{\"i\": -42, \"big\": 9223372036854775808, \"min\": -9223372036854775808, \"r\": 1.0,"
        "\"e\": 1e3, \"s\": \"a\\u0000\\ud83d\\ude00\\/z\", \"t\": true, \"n\": null, \"o\": {\"k\": [1,[2,3],{}]}}";
    Arena arena = {0};
    Error error = {0};
    const Json *root = json_parse(&arena, SLICE(text), &error);
    TEST_MSG(root && root->type == JSON_OBJECT && root->size == 9, "%s", error.text);
    if (!root) return;
    TEST(json_get(root, "i")->type == JSON_INTEGER && json_get(root, "i")->integer == -42);
    const Json *big = json_get(root, "big"); /* keeps its digits */
    TEST(big->type == JSON_LONG && json_is_number(big) && json_number(big) == 9223372036854775808.0);
    TEST(slice_is(json_slice(big), "9223372036854775808"));
    TEST(json_get(root, "min")->type == JSON_INTEGER && json_get(root, "min")->integer == INT64_MIN);
    TEST(json_get(root, "r")->type == JSON_REAL && json_get(root, "r")->real == 1.0);
    TEST(json_get(root, "e")->type == JSON_REAL && json_number(json_get(root, "e")) == 1000.0);
    TEST(slice_equal(json_slice(json_get(root, "s")), (Slice){"a\0\xF0\x9F\x98\x80/z", 8}));
    TEST(json_get(root, "t")->type == JSON_BOOL && json_get(root, "t")->boolean);
    TEST(json_get(root, "n")->type == JSON_NULL && !json_is_number(json_get(root, "n")) && !json_is_number(NULL));
    TEST(json_get(root, "absent") == NULL && json_get(NULL, "a") == NULL && json_get(json_get(root, "i"), "a") == NULL);
    const Json *list = json_get(json_get(root, "o"), "k");
    TEST(list && list->type == JSON_ARRAY && list->size == 3);
    int sum = 0, children = 0;
    for (JSON_EACH(child, list)) {
        children++;
        if (child->type == JSON_INTEGER) sum += (int)child->integer;
        if (child->type == JSON_ARRAY) sum += 10 * (int)json_next(json_first(child))->integer;
    }
    TEST(children == 3 && sum == 31);
    int pairs = 0;
    for (JSON_EACH_PAIR(key, value, root))
        pairs += key->type == JSON_STRING && value == json_get(root, arena_copy(&arena, json_slice(key)));
    TEST(pairs == 9);
    TEST(strcmp(json_type_name(NULL), "nothing") == 0 && strcmp(json_type_name(root), "an object") == 0);
    arena_free(&arena);
}

/* What Python's json module writes for numbers that are not finite: read on request, and written again as it was. */
static void test_constants(void) {
    static const char text[] = "[Infinity,-Infinity,NaN,{\"a\":Infinity},0]";
    static const char *const wrong[] = {"Infinit", "[-Inf]", "nan", "[InfinityX]", "+Infinity", "NaNs"};
    Arena arena = {0};
    Error error = {0};
    Buffer out = {0};
    TEST(json_parse(&arena, SLICE(text), &error) == NULL && error.code == ERROR_FORMAT);
    error = (Error){0};
    const Json *root = json_parse_python(&arena, SLICE(text), &error), *first = root ? json_first(root) : NULL;
    TEST_MSG(root && root->size == 5, "%s", error.text);
    if (!root) return;
    TEST(json_is_number(first) && json_number(first) == INFINITY && json_number(first + 1) == -INFINITY);
    TEST(isnan(json_number(first + 2)));
    json_write(&out, root);
    TEST_MSG(slice_is(buffer_view(&out), text), "%.*s", SLICE_SHOWN(buffer_view(&out)));
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        error = (Error){0};
        TEST_MSG(!json_parse_python(&arena, slice_of(wrong[i]), &error) && error.code == ERROR_FORMAT, "%s", wrong[i]);
    }
    buffer_free(&out);
    arena_free(&arena);
}

static void test_number(const char *text, double expected) {
    Arena arena = {0};
    Error error = {0};
    const Json *node = json_parse(&arena, slice_of(text), &error);
    TEST_MSG(node && json_number(node) == expected && signbit(json_number(node)) == signbit(expected), "%s", text);
    arena_free(&arena);
}

static void test_numbers(void) {
    test_number("0.1", 0.1);
    test_number("-0.0", -0.0);
    test_number("123456789012345678901234567890", 123456789012345678901234567890.0);
    test_number("9007199254740993.0", 9007199254740992.0); /* halfway: to even */
    test_number("9007199254740993.0000000000000000000000001", 9007199254740994.0);
    test_number("1.7976931348623157e308", 1.7976931348623157e308);
    test_number("5e-324", 5e-324);
    test_number("2.2250738585072011e-308", 2.2250738585072011e-308);
    test_number("1e23", 1e23);
    test_number("8.988465674311579e307", 8.988465674311579e307);
    test_number("0.000000000000000000000000000000000000000000001e45", 1.0);
    test_number("18446744073709551617.0", 18446744073709551617.0); /* its digits overflow 64 bits */
    test_number("18446744073709551616e-1", 1844674407370955161.6);
    test_number("99999999999999999999999e-22", 9.9999999999999999999999);
    uint64_t seed = 7;
    int wrong = 0;
    Arena arena = {0};
    for (int i = 0; i < 20000; i++) { /* against strtod, which is correct */
        char text[64];
        int size = snprintf(text, sizeof text, "%llu.%0*llue%d",
            (unsigned long long)(test_random(&seed) >> (test_random(&seed) % 64)), (int)(test_random(&seed) % 12) + 1,
            (unsigned long long)(test_random(&seed) >> (34 + test_random(&seed) % 30)),
            (int)(test_random(&seed) % 60) - 30);
        const Json *node = json_parse(&arena, (Slice){text, (size_t)size}, NULL);
        wrong += !node || node->real != strtod(text, NULL);
    }
    TEST_MSG(wrong == 0, "%d", wrong);
    arena_free(&arena);
}

static void expect_error(const char *text, ErrorCode code, const char *message) {
    Arena arena = {0};
    Error error = {0};
    const Json *root = json_parse(&arena, slice_of(text), &error);
    TEST_MSG(!root && error.code == code && strcmp(error.text, message) == 0, "%s: %s", text, error.text);
    TEST(arena.used == 0);
    arena_free(&arena);
}

static void test_messages(void) {
    expect_error("", ERROR_FORMAT, "line 1, column 1: expected a value, but the text ends");
    expect_error("[1, 2", ERROR_FORMAT, "line 1, column 6 ([1]): expected ',' or ']', but the text ends");
    expect_error("{\n  \"model\": {\n    \"vocab\": {\"é\": tru}\n  }\n}", ERROR_FORMAT,
        "line 3, column 20 (model.vocab.é): expected a value, not 't'");
    expect_error("{\"a\": [0, {\"b\": 01}]}", ERROR_FORMAT,
        "line 1, column 17 (a[1].b): a number does not begin with a superfluous zero");
    expect_error("{\"a\": 1,\n \"b\": {\"x\": 1, \"x\": 2}}", ERROR_FORMAT,
        "line 2, column 16 (b): the key \"x\" appears twice in one object");
    expect_error("[\"\\ud800\"]", ERROR_FORMAT, "line 1, column 3 ([0]): the surrogate \\ud800 stands alone");
    expect_error(
        "[\"\x01\"]", ERROR_FORMAT, "line 1, column 3 ([0]): the control code 0x01 must be escaped in a string");
    expect_error("\"\xFF\"", ERROR_FORMAT, "line 1, column 2: the byte 0xFF is not UTF-8");
    expect_error("[1] x", ERROR_FORMAT, "line 1, column 5: expected the end of the text, not 'x'");
    expect_error("\xEF\xBB\xBF{}", ERROR_FORMAT, "line 1, column 1: the text begins with a byte-order mark");
    expect_error("{\"a\" 1}", ERROR_FORMAT, "line 1, column 6 (a): expected ':', not '1'");
    expect_error("{\"a\":1,}", ERROR_FORMAT, "line 1, column 8 (a): expected a key, not '}'");
    expect_error("1e999", ERROR_FORMAT, "line 1, column 1: the number is too large for a double");
    Buffer text = {0}; /* a path that is longer than a message keeps its end */
    for (int i = 0; i < 60; i++) buffer_printf(&text, "{\"key number é%d\":", i);
    Error error = {0};
    Arena arena = {0};
    TEST(json_parse(&arena, buffer_view(&text), &error) == NULL);
    TEST_MSG(
        utf8_valid(slice_of(error.text)) && strstr(error.text, "key number é59): expected a value"), "%s", error.text);
    TEST(arena.chunk == NULL); /* a failed reading leaves nothing */
    buffer_free(&text);
}

static JsonScan scan_of(const char *text, Error *error) {
    Slice slice = slice_of(text);
    return (JsonScan){.begin = text, .at = text, .end = text + slice.size, .error = error};
}

static void test_scan(void) {
    Error error = {0};
    JsonScan scan = scan_of(" {\"a\" : 12 ,\"\\u00e9\\n\\ud83d\\ude00\":[1,{\"]\":\"\\\"}\"}] , \"b\":-1.5e3}", &error);
    Slice text;
    uint64_t count;
    bool done;
    TEST(json_scan_accept(&scan, '{') && json_scan_string(&scan, &text) && slice_is(text, "a"));
    TEST(json_scan_accept(&scan, ':') && json_scan_count(&scan, &count) && count == 12);
    TEST(json_scan_next(&scan, '}', &done) && !done);
    TEST(json_scan_string(&scan, &text) && slice_is(text, "é\n😀") && json_scan_accept(&scan, ':'));
    TEST(json_scan_skip(&scan, &text) && slice_is(text, "[1,{\"]\":\"\\\"}\"}]"));
    TEST(json_scan_next(&scan, '}', &done) && !done && json_scan_string(&scan, &text) && slice_is(text, "b"));
    TEST(json_scan_accept(&scan, ':') && !json_scan_count(&scan, &count));
    TEST(json_scan_skip(&scan, &text) && slice_is(text, "-1.5e3"));
    TEST(json_scan_next(&scan, '}', &done) && done && scan.at == scan.end);
    buffer_free(&scan.unescaped);
}

static void test_scan_refusals(void) {
    static const struct {
        const char *text, *message;
    } strings[] = {{"\n é", "line 2, column 2: expected a string"}, {"\"a", "line 1, column 3: a string does not end"},
        {"\"\\", "line 1, column 3: a string does not end"}, {"\"a\nb\"", "line 1, column 3: a string does not end"},
        {"\"\\x\"", "line 1, column 4: an escape that JSON does not know"},
        {"\"\\u12", "line 1, column 4: expected four hexadecimal digits behind \\u"},
        {"\"\\ude00\"", "line 1, column 8: a surrogate stands alone"}};
    for (size_t i = 0; i < COUNT_OF(strings); i++) {
        Error error = {0};
        JsonScan scan = scan_of(strings[i].text, &error);
        Slice text;
        TEST(!json_scan_string(&scan, &text) && error.code == ERROR_FORMAT);
        TEST_MSG(strcmp(error.text, strings[i].message) == 0, "%s", error.text);
        buffer_free(&scan.unescaped);
    }
    static const char *const counts[] = {"", "-1", "01", "1.5", "1e3", "12345678901234567890", "x"};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        JsonScan scan = scan_of(counts[i], NULL);
        uint64_t count;
        TEST_MSG(!json_scan_count(&scan, &count), "%s", counts[i]);
    }
    static const char *const skipped[] = {"", " ,", "}", "[1", "{\"a]\"", "[\"", "[\"\\"};
    for (size_t i = 0; i < COUNT_OF(skipped); i++) {
        Error error = {0};
        JsonScan scan = scan_of(skipped[i], &error);
        Slice text;
        TEST_MSG(!json_scan_skip(&scan, &text) && scan.at <= scan.end, "%s", skipped[i]);
    }
}

static const Json *parse_nested(
    Arena *arena, int depth, const char *open, const char *middle, const char *close, Error *error) {
    Buffer text = {0};
    for (int i = 0; i < depth; i++) buffer_text(&text, open);
    buffer_text(&text, middle);
    for (int i = 0; i < depth; i++) buffer_text(&text, close);
    const Json *root = parse_exactly(arena, buffer_view(&text), error);
    buffer_free(&text);
    return root;
}

static void test_depth(void) {
    Arena arena = {0};
    Error error = {0};
    TEST(parse_nested(&arena, JSON_DEPTH_MAX, "[", "", "]", &error) != NULL);
    TEST(parse_nested(&arena, JSON_DEPTH_MAX, "{\"a\":", "1", "}", &error) != NULL);
    TEST(parse_nested(&arena, JSON_DEPTH_MAX + 1, "[", "", "]", &error) == NULL && error.code == ERROR_LIMIT);
    TEST(parse_nested(&arena, JSON_DEPTH_MAX + 1, "{\"a\":", "1", "}", &error) == NULL && error.code == ERROR_LIMIT);
    TEST(parse_nested(&arena, 100000, "[", "", "", &error) == NULL && error.code == ERROR_LIMIT);
    TEST(parse_nested(&arena, 50000, "[{\"\":", "", "", &error) == NULL && error.code == ERROR_LIMIT);
    TEST(parse_nested(&arena, JSON_DEPTH_MAX, "[", "", "", &error) == NULL && error.code == ERROR_FORMAT);
    arena_free(&arena);
}

static void test_memory_limit(void) {
    Buffer text = {0};
    buffer_text(&text, "[0");
    for (int i = 1; i < 1000; i++) buffer_printf(&text, ",%d", i % 10);
    buffer_text(&text, "]");
    Error error = {0};
    Arena small = {.limit = 1000 * sizeof(Json)}; /* one node less than is needed */
    TEST(json_parse(&small, buffer_view(&text), &error) == NULL && error.code == ERROR_LIMIT && small.used == 0);
    Arena enough = {.limit = 1001 * sizeof(Json)};
    const Json *root = json_parse(&enough, buffer_view(&text), &error);
    TEST(root && root->size == 1000 && enough.used == 1001 * sizeof(Json));
    TEST(json_parse(&enough, SLICE("1"), &error) == NULL && error.code == ERROR_LIMIT);
    Arena tiny = {.limit = 1};
    TEST(json_parse(&tiny, SLICE("[\"\\n\"]"), &error) == NULL && error.code == ERROR_LIMIT);
    arena_free(&small);
    arena_free(&enough);
    arena_free(&tiny);
    buffer_free(&text);
}

/* Large objects use a hash set; with one duplicate at every kind of place. */
static void test_large_objects(void) {
    enum { KEYS = 3000 };
    for (int twin = -1; twin < KEYS - 1; twin = twin < 0 ? 0 : twin + 1 + twin / 2) {
        Buffer text = {0};
        for (int i = 0; i < KEYS; i++) {
            buffer_printf(&text, "%s\"key%d\":{\"x\":[%d]}", i ? "," : "{", i == KEYS - 1 && twin >= 0 ? twin : i, i);
        }
        buffer_text(&text, "}");
        Arena arena = {0};
        Error error = {0};
        const Json *root = json_parse(&arena, buffer_view(&text), &error);
        TEST_MSG((root == NULL) == (twin >= 0), "twin %d: %s", twin, error.text);
        if (root) TEST(json_first(json_get(json_get(root, "key2999"), "x"))->integer == 2999);
        arena_free(&arena);
        buffer_free(&text);
    }
}

/* Strings of every length with the byte that matters at every place: the scanner works by blocks. */
static void test_string_places(void) {
    static const char *const marks[] = {"", "\\n", "é", "\xF0\x9F\x98\x80", "\x01", "\xFF", "\\u00e9"};
    static const char *const resolved[] = {"", "\n", "é", "\xF0\x9F\x98\x80", NULL, NULL, "é"};
    for (size_t m = 0; m < COUNT_OF(marks); m++) {
        for (int length = 0; length < 40; length++) {
            for (int place = 0; place <= length; place++) {
                static const char filler[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
                char text[80], expected[80];
                int size = snprintf(
                    text, sizeof text, "\"%.*s%s%.*s\"", place, filler, marks[m], length - place, filler + place);
                snprintf(expected, sizeof expected, "%.*s%s%.*s", place, filler, resolved[m] ? resolved[m] : "",
                    length - place, filler + place);
                Arena arena = {0};
                const Json *node = json_parse(&arena, (Slice){text, (size_t)size}, NULL);
                bool right = resolved[m] ? node && slice_is(json_slice(node), expected) : node == NULL;
                TEST_MSG(right, "mark %zu, length %d, place %d", m, length, place);
                arena_free(&arena);
            }
        }
    }
}

static void random_value(Buffer *out, uint64_t *seed, int depth) {
    static const char *const scalars[] = {
        "null", "true", "-1.5e-3", "\"\\u00e9\\n\"", "\"plain\"", "123456789", "[]", "{}"};
    uint64_t kind = test_random(seed) % (depth > 5 ? 4 : 8);
    if (kind < 4) {
        buffer_text(out, scalars[test_random(seed) % COUNT_OF(scalars)]);
        return;
    }
    int count = (int)(test_random(seed) % 20);
    buffer_byte(out, kind < 6 ? '[' : '{');
    for (int i = 0; i < count; i++) {
        if (i) buffer_byte(out, ',');
        if (kind >= 6) buffer_printf(out, "\"k%d\":", i);
        random_value(out, seed, depth + 1);
    }
    buffer_byte(out, kind < 6 ? ']' : '}');
}

static void test_random_texts(void) {
    uint64_t seed = 3;
    for (int i = 0; i < 200; i++) {
        Buffer text = {0}, written = {0};
        random_value(&text, &seed, 0);
        Arena arena = {0};
        Error error = {0};
        const Json *root = json_parse(&arena, buffer_view(&text), &error);
        TEST_MSG(root != NULL, "%s", error.text);
        if (root) json_write(&written, root);
        const Json *again = json_parse(&arena, buffer_view(&written), &error);
        TEST(root && again && root->type == again->type && root->size == again->size);
        for (int j = 0; j < 20 && text.size; j++) { /* one byte changed: an answer either way, and nothing worse */
            text.data[test_random(&seed) % text.size] = (char)test_random(&seed);
            parse_exactly(&arena, buffer_view(&text), &error);
        }
        arena_free(&arena);
        buffer_free(&text);
        buffer_free(&written);
    }
}

int main(void) {
    test_cases();
    test_values();
    test_constants();
    test_numbers();
    test_messages();
    test_scan();
    test_scan_refusals();
    test_depth();
    test_memory_limit();
    test_large_objects();
    test_string_places();
    test_random_texts();
    return test_done();
}
