/* WordPiece and Unigram: ids, pairs, decoding, and what is refused. tests/text/check_tokenizers.py compares both with
 * the Hugging Face library on thousands of strings. */
#include "test.h"
#include "text/tokenizer/internal.h"

static const char wordpiece[] =
    "{\"added_tokens\":[],\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":"
    "true,"
    "\"strip_accents\":null,\"lowercase\":true},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]},"
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
    "\"max_input_chars_per_word\":8,\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"swift\":3,\"##s\":4,\"fly\":5,\"."
    "\":6,"
    "\"sw\":7,\"##ift\":8,\"##er\":9,\"\\u5927\":10}}}";

static const char wordlevel[] =
    "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
    "\"behavior\":\"Removed\",\"invert\":false},\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":"
    "\"WordLevel\",\"unk_token\":\"<0>\",\"vocab\":{\"<0>\":0,\"a\":1,\"ab\":2,\"<12>\":3,\"b\":4}}}";

static const char unigram[] =
    "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
    "\"prepend_scheme\":\"always\"},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
    "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":["
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":1}},"
    "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[0],"
    "\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":"
    "\"always\"},"
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"<s>\",0],[\"<unk>\",0],[\"\\u2581\",-2.5],[\"a\",-2],"
    "[\"b\",-2],[\"ab\",-3.5],[\"\\u2581a\",-3],[\"\\u2581ab\",-7.25],[\"c\",-1e1]]}}";

static void expect(const Tokenizer *t, const char *text, const int32_t *ids, size_t count) {
    Tokens tokens = {0};
    Error error = {0};
    bool same = tokenizer_encode(t, slice_of(text), CONTROL_AS_TEXT, true, &tokens, &error) && tokens.count == count;
    for (size_t i = 0; same && i < count; i++) same = tokens.ids[i] == ids[i];
    TEST_MSG(same, "%s: %zu ids, %s", text, tokens.count, error.text);
    tokens_free(&tokens);
}
#define EXPECT(t, text, ...)                                                                                           \
    expect(t, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void expect_pair(const Tokenizer *t, const int32_t *ids, size_t count, size_t types) {
    Tokens tokens = {0};
    Error error = {0};
    size_t from = 0;
    bool same = tokenizer_encode_pair(t, SLICE("a"), SLICE("ab fly"), &tokens, &from, &error) && tokens.count == count;
    for (size_t i = 0; same && i < count; i++) same = tokens.ids[i] == ids[i];
    TEST_MSG(same && from == types, "%zu ids, types from %zu, %s", tokens.count, from, error.text);
    tokens_free(&tokens);
}

static void test_wordpiece(void) {
    Error error = {0};
    Tokenizer *t = tokenizer_parse(slice_of(wordpiece), SLICE(""), &error);
    TEST_MSG(t, "%s", error.text);
    if (!t) return;
    EXPECT(t, "Swifts fly.", 1, 3, 4, 5, 6, 2);
    EXPECT(t, "  SWIFTER\t\xE5\xA4\xA7swift", 1, 3, 9, 10, 3, 2); /* blanks around ideographs */
    EXPECT(t,
        "sw\xC3\xAF"
        "ft",
        1, 3, 2);                        /* without its accent */
    EXPECT(t, "swifty fly", 1, 0, 5, 2); /* one unknown piece makes the word unknown */
    EXPECT(t, "swiftsss swiftssss", 1, 3, 4, 4, 4, 0, 2);
    EXPECT(t, "", 1, 2);
    expect_pair(t, (const int32_t[]){1, 0, 2, 0, 5, 2}, 6, 3);
    Buffer text = {0};
    const int32_t ids[] = {1, 3, 4, 5, 6, 2};
    TEST(tokenizer_decode(t, ids, 6, false, &text, &error) && slice_is(buffer_view(&text), "[CLS] swifts fly. [SEP]"));
    buffer_free(&text);
    tokenizer_close(t);
}

static void test_wordlevel(void) {
    Error error = {0};
    Tokenizer *t = tokenizer_parse(slice_of(wordlevel), SLICE(""), &error);
    TEST_MSG(t, "%s", error.text);
    if (!t) return;
    EXPECT(t, "ab <12> b", 2, 3, 4);
    EXPECT(t, "aab ba ab<12>", 0, 0, 0); /* no word is divided */
    Buffer text = {0};
    TEST(tokenizer_decode(t, (const int32_t[]){2, 3}, 2, false, &text, &error) &&
        slice_is(buffer_view(&text), "ab <12>"));
    buffer_free(&text);
    tokenizer_close(t);
}

static void test_unigram(void) {
    Error error = {0};
    Tokenizer *t = tokenizer_parse(slice_of(unigram), SLICE(""), &error);
    TEST_MSG(t, "%s", error.text);
    if (!t) return;
    EXPECT(t, "a", 0, 6);     /* −3 is more than −2.5 − 2 */
    EXPECT(t, "ab", 0, 6, 4); /* −3 − 2 is more than −2.5 − 3.5 and −7.25 */
    EXPECT(t, "bab", 0, 2, 4, 5);
    EXPECT(t, "axyz b", 0, 6, 1, 2, 4); /* unknown characters together */
    EXPECT(t, "cc", 0, 2, 8, 8);
    expect_pair(t, (const int32_t[]){6, 0, 6, 4, 2, 1}, 6, 1);
    tokenizer_close(t);
}

/* The text with one part replaced must be refused with these words. */
static void refuse(const char *json, const char *from, const char *to, const char *why) {
    Buffer text = {0};
    Error error = {0};
    const char *at = strstr(json, from);
    CHECK(at);
    buffer_append(&text, json, (size_t)(at - json));
    buffer_text(&text, to);
    buffer_text(&text, at + strlen(from));
    Tokenizer *t = tokenizer_parse(buffer_view(&text), SLICE(""), &error);
    TEST_MSG(!t && strstr(error.text, why), "%s: %s", to, error.text);
    tokenizer_close(t);
    buffer_free(&text);
}

static void test_refusals(void) {
    refuse(wordpiece, "\"WordPiece\",\"unk", "\"WordLetter\",\"unk", "WordLetter");
    refuse(wordpiece, "\"max_input_chars_per_word\":8", "\"max_input_chars_per_word\":-1", "max_input_chars_per_word");
    refuse(wordpiece, "[\"[SEP]\",2]", "[\"[SEP]\"]", "sep");
    refuse(wordpiece, "\"BertPreTokenizer\"", "\"ByteLevel\"", "ByteLevel");
    refuse(unigram, "[\"a\",-2]", "[\"a\",\"x\"]", "score");
    refuse(unigram, "[\"a\",-2]", "[\"a\",-1e999]", "score");
    refuse(unigram, "[\"a\",-2]", "[\"a\"]", "pair");
    refuse(unigram, "\"unk_id\":1", "\"unk_id\":99", "unk_id");
    refuse(unigram, "\"type\":\"Unigram\"", "\"type\":\"BPE\"", "BPE");
    refuse(unigram, "\"normalizer\":null",
        "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}", "precompiled_charsmap");
    refuse(unigram, "\"normalizer\":null",
        "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}", "precompiled_charsmap");
}

int main(void) {
    test_wordpiece();
    test_wordlevel();
    test_unigram();
    test_refusals();
    return test_done();
}
