/* Hostile and broken tokenizer.json files: each is refused with an error that names the place, in bounded time and
 * memory. */
#include "tokenizer_files.h"

#define MODEL_END "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}"
#define MODEL "\"model\":{\"type\":\"BPE\"," MODEL_END

static void check_refused(const char *json, const char *says) {
    Error error = {0};
    Tokenizer *t = open_tokenizer_text(slice_of(json), NULL, &error);
    TEST_MSG(!t && strstr(error.text, says), "%.200s: \"%s\" does not say \"%s\"", json, error.text, says);
    tokenizer_close(t);
}

static void check_accepted(const char *json, const char *config) {
    Error error = {0};
    Tokenizer *t = open_tokenizer_text(slice_of(json), config, &error);
    TEST_MSG(t, "%.200s: %s", json, error.text);
    tokenizer_close(t);
}

static void test_json(void) {
    check_refused("", "empty");
    check_refused("[]", "expected an object");
    check_refused("{", "string");
    check_refused("{}", "\"model\" is missing");
    check_refused("{" MODEL " x", "more text");
    check_refused("{\"model\":{}}", "model.vocab is missing");
    check_refused("{\"model\":7}", "model: expected an object");
    check_refused("{" MODEL "," MODEL, "more text");
    check_refused("{\"version\":\"1\","
                  "\"model\":{" MODEL_END "," MODEL,
        "more text");
    check_refused("{\"decoder\":null,\"decoder\":null," MODEL, "\"decoder\" appears twice");
    check_refused("{\"decoder\":{\"a\":[}}," MODEL, "decoder");
    check_refused("{\"model\":{\"vocab\":{\"a\":0}}}", "model.merges is missing");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{\"a\":0},\"merges\":[]}}", "\"vocab\" appears twice");
    check_accepted("{" MODEL, NULL);
    check_accepted(
        "{\"model\":{\"merges\":[[\"a\",\"b\"]],\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}}}", NULL); /* any order */
    check_accepted("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_"
                   "prefix_space\":false}}",
        NULL);
}

static void test_vocab(void) {
    check_refused("{\"model\":{\"vocab\":{},\"merges\":[]}}", "model.vocab is empty");
    check_refused("{\"model\":{\"vocab\":[],\"merges\":[]}}", "model.vocab is empty");
    check_refused("{\"model\":{\"vocab\":7,\"merges\":[]}}", "model.vocab: expected an object");
    check_refused(
        "{\"model\":{\"vocab\":{\"a\":99999999999},\"merges\":[]}}", "model.vocab: the id 99999999999 is above");
    check_refused("{\"model\":{\"vocab\":{\"a\":99999999999999999999999},\"merges\":[]}}",
        "model.vocab: an id must be a whole number");
    check_refused("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "model.vocab: an id must be a whole number");
    check_refused("{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", "model.vocab: an id must be a whole number");
    check_refused("{\"model\":{\"vocab\":{\"a\":\"1\"},\"merges\":[]}}", "model.vocab: an id must be a whole number");
    check_refused("{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "model.vocab: two tokens have the id 1");
    check_refused(
        "{\"model\":{\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]}}", "model.vocab: the token \"a\" appears twice");
    check_refused("{\"model\":{\"vocab\":{\"\\ud800\":1},\"merges\":[]}}", "surrogate");
    check_refused("{\"model\":{\"vocab\":{\"\\q\":1},\"merges\":[]}}", "escape");
    check_refused("{\"model\":{\"vocab\":{\"\xC3\":1},\"merges\":[]}}", "not UTF-8");
    check_refused("{\"model\":{\"vocab\":{\"a\n\":1},\"merges\":[]}}", "does not end");
    check_refused("{\"model\":{\"vocab\":{\"a\":1", "does not end");
    check_accepted("{\"model\":{\"vocab\":{\"\\u0041\\ud83d\\ude00\\n\":1048000},\"merges\":[]}}", NULL);
}

static void test_merges(void) {
    check_refused(
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "model.merges[0]: a token is not in the vocabulary");
    check_refused(
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}", "model.merges[0]: the joined token");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "model.merges: expected two tokens");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}", "model.merges: expected two tokens");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "model.merges: expected a pair");
    check_refused(
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", "model.merges: expected a pair");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"\",\"a\"]]}}", "model.merges[0]: a token");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", "model.merges: expected an array");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[7]}}", "model.merges: expected a string or a pair");
}

static void test_fields(void) {
    check_refused("{\"model\":{\"type\":\"Unigram\"," MODEL_END, "model.type \"Unigram\"");
    check_refused("{\"model\":{\"dropout\":0.1," MODEL_END, "model.dropout");
    check_refused("{\"model\":{\"byte_fallback\":1," MODEL_END, "model.byte_fallback must be true or false");
    check_refused("{\"model\":{\"end_of_word_suffix\":\"</w>\"," MODEL_END, "model.end_of_word_suffix");
    check_refused("{\"model\":{\"unk_token\":5," MODEL_END, "model.unk_token must be a string");
    check_refused("{\"normalizer\":{\"type\":\"Nmt\"}," MODEL, "normalizer: the type \"Nmt\"");
    check_refused("{\"normalizer\":{\"type\":\"Precompiled\"}," MODEL, "precompiled_charsmap must be a string");
    check_refused(
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]}," MODEL,
        "normalizer: normalizers[1]");
    check_refused("{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}," MODEL,
        "normalizer: pattern.Regex");
    check_refused("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:(?:a{1000}b){1000}c){1000}\"},"
                  "\"behavior\":\"Isolated\"}," MODEL,
        "pre_tokenizer: pattern.Regex");
    check_refused("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}," MODEL,
        "behavior \"Odd\"");
    check_refused(
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}," MODEL,
        "pattern.String is empty");
    check_refused("{\"pre_tokenizer\":[]," MODEL, "pre_tokenizer: expected an object, not an array");
    check_refused("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL,
        "replacement must be one character");
    check_refused(
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}," MODEL, "post_processor: single");
    check_refused(
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}," MODEL,
        "special_tokens");
    check_refused("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
                  "\"Sequence\":{\"id\":\"A\"}}],"
                  "\"special_tokens\":{\"x\":{\"ids\":[3]}}}," MODEL,
        "post_processor: the id 3");
    check_refused(
        "{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}," MODEL, "decoder: start");
    check_refused("{\"decoder\":{\"type\":\"CTC\"}," MODEL, "decoder: the type \"CTC\"");
    check_refused("{\"added_tokens\":[{\"id\":1e3,\"content\":\"x\"}]," MODEL, "added_tokens[0]: id");
    check_refused("{\"added_tokens\":[{\"id\":7}]," MODEL, "added_tokens[0]: content");
    check_refused("{\"added_tokens\":[{\"id\":7,\"content\":\"x\",\"special\":1}]," MODEL, "added_tokens[0]: special");
    check_refused(
        "{\"added_tokens\":[{\"id\":4294967296,\"content\":\"x\"}]," MODEL, "added_tokens[0]: the id 4294967296");
    check_refused(
        "{\"added_tokens\":[{\"id\":7,\"content\":\"x\"},{\"id\":7,\"content\":\"y\"}]," MODEL, "have one id, 7");
}

static void test_nesting(void) {
    Buffer json = {0};
    buffer_text(&json, "{\"pre_tokenizer\":");
    for (int i = 0; i < 100000; i++) buffer_text(&json, "{\"a\":");
    check_refused(json.data, "pre_tokenizer");
    buffer_clear(&json);
    buffer_text(&json, "{\"pre_tokenizer\":");
    for (int i = 0; i < 20; i++) buffer_text(&json, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 20; i++) buffer_text(&json, "]}");
    buffer_text(&json, "," MODEL);
    check_refused(json.data, "nested too deeply");
    buffer_free(&json);
}

/* A cycle of merges cannot be: what is joined is longer. One token many ways, and merges of merges, can. */
static void test_odd_models(void) {
    Error error = {0};
    const char *json = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"aaa\":3},"
                       "\"merges\":[[\"aa\",\"aa\"],[\"a\",\"a\"],[\"aa\",\"a\"],[\"a\",\"aa\"],[\"a\",\"a\"]]}}";
    Tokenizer *t = open_tokenizer_text(slice_of(json), NULL, &error);
    Tokens ids = {0};
    TEST_MSG(t && tokenizer_encode(t, SLICE("aaaaaaa?"), CONTROL_RECOGNISED, false, &ids, &error), "%s", error.text);
    TEST(ids.count == 3 && ids.ids[0] == 3 && ids.ids[1] == 3 &&
        ids.ids[2] == 0); /* "?" is unknown and there is no unknown token: nothing */
    tokens_free(&ids);
    tokenizer_close(t);
}

static void test_config(void) {
    Error error = {0};
    Tokenizer *t = open_tokenizer_text(
        SLICE("{" MODEL), "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<x>\",\"special\":true}}}", &error);
    int32_t id;
    TEST_MSG(
        t && tokenizer_id(t, SLICE("<x>"), &id) && id == 9 && tokenizer_is_special(t, 9) && tokenizer_vocab(t) == 10,
        "%s", error.text);
    tokenizer_close(t);
    t = open_tokenizer_text(SLICE("{" MODEL), "{\"added_tokens_decoder\":{\"nine\":{\"content\":\"<x>\"}}}", &error);
    TEST_MSG(!t && strstr(error.text, "added_tokens_decoder"), "%s", error.text);
    tokenizer_close(t);
    t = open_tokenizer_text(SLICE("{" MODEL), "{\"chat", &error);
    TEST_MSG(!t && strstr(error.text, "tokenizer_config.json"), "%s", error.text);
    tokenizer_close(t);
    TEST(!tokenizer_open("/nonexistent", &error) && strstr(error.text, "/nonexistent"));
}

/* A pattern that takes too long is an error of the call; the tokenizer lives on. */
static void test_budget(void) {
    Error error = {0};
    const char *json =
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a+)+b\"},\"behavior\":\"Isolated\"}," MODEL;
    Tokenizer *t = open_tokenizer_text(slice_of(json), NULL, &error);
    Tokens ids = {0};
    char text[100];
    memset(text, 'a', sizeof text);
    TEST(t && !tokenizer_encode(t, (Slice){text, sizeof text}, CONTROL_RECOGNISED, false, &ids, &error) &&
        error.code == ERROR_LIMIT);
    ids.count = 0;
    TEST(t && tokenizer_encode(t, SLICE("ab"), CONTROL_RECOGNISED, false, &ids, &error) && ids.count == 1);
    tokens_free(&ids);
    tokenizer_close(t);
}

int main(void) {
    test_json();
    test_vocab();
    test_merges();
    test_fields();
    test_nesting();
    test_odd_models();
    test_config();
    test_budget();
    return test_done();
}
