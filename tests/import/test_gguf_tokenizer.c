/* tokenizer.json rebuilt from GGUF metadata: which tokens are added and which belong to the model, the merges that
 * follow from scores, and what is refused. That whole vocabularies give the original ids is tested with real models. */
#include <unistd.h>

#include "base/json.h"
#include "import/gguf_builder.h"
#include "test.h"

typedef enum Kind { N = 1, UNK = 2, C = 3, U = 4, PAD = 5, B = 6 } Kind;

typedef struct Piece {
    const char *text;
    int32_t type;
    float score;
} Piece;

enum { PIECES_MAX = 1200 };

static char path[] = "/tmp/apus-tokenizer-XXXXXX";

static void vocabulary_build(
    Builder *b, const char *architecture, const char *model, const Piece *pieces, size_t count) {
    const char *texts[PIECES_MAX];
    int32_t types[PIECES_MAX];
    float scores[PIECES_MAX];
    for (size_t i = 0; i < count; i++) {
        texts[i] = pieces[i].text;
        types[i] = pieces[i].type;
        scores[i] = pieces[i].score;
    }
    build_string(b, "general.architecture", architecture);
    build_string(b, "tokenizer.ggml.model", model);
    build_strings(b, "tokenizer.ggml.tokens", texts, count);
    build_words(b, "tokenizer.ggml.token_type", GGUF_I32, types, count);
    if (strcmp(model, "llama") == 0) build_words(b, "tokenizer.ggml.scores", GGUF_F32, scores, count);
}

/* tokenizer.json, or tokenizer_config.json, in the arena; NULL with the error set. */
static const Json *rebuild(Builder *b, bool config, Arena *arena, Error *error) {
    Buffer bytes = {0}, text = {0};
    GgufFile file;
    const Json *json = NULL;
    build_file(b, &bytes);
    FILE *out = fopen(path, "wb");
    TEST(out && fwrite(bytes.data, 1, bytes.size, out) == bytes.size);
    fclose(out);
    *error = (Error){0};
    if (gguf_open(&file, path, error)) {
        const GgufModel *model = NULL;
        const char *model_type;
        bool ok = gguf_model_find(&file, &model, &model_type, error);
        ok = ok &&
            (config ? gguf_tokenizer_config(&text, &file, error)
                    : gguf_tokenizer(&text, &file, &model->tokenizer, error));
        const char *copy = ok ? arena_copy(arena, buffer_view(&text)) : NULL;
        if (copy) json = json_parse(arena, (Slice){copy, text.size}, error);
        TEST_MSG(!ok || json, "%s", error->text);
        gguf_close(&file);
    }
    buffer_free(&bytes);
    buffer_free(&text);
    return json;
}

static bool written_as(const Json *node, const char *expected) {
    Buffer text = {0};
    if (node) json_write(&text, node);
    bool same = node && slice_is(buffer_view(&text), expected);
    if (!same) fprintf(stderr, "got      %.*s\nexpected %s\n", SLICE_ARGS(buffer_view(&text)), expected);
    buffer_free(&text);
    return same;
}

/* "id content special" of each added token. */
static bool added_are(const Json *root, const char *expected) {
    Buffer text = {0};
    const Json *list = json_get(root, "added_tokens");
    if (list) {
        for (JSON_EACH(token, list)) {
            buffer_printf(&text, "%lld %.*s %d;", (long long)json_get(token, "id")->integer,
                SLICE_ARGS(json_slice(json_get(token, "content"))), json_get(token, "special")->boolean);
        }
    }
    bool same = slice_is(buffer_view(&text), expected);
    if (!same) fprintf(stderr, "got      %.*s\nexpected %s\n", SLICE_ARGS(buffer_view(&text)), expected);
    buffer_free(&text);
    return same;
}

static void test_byte_level(void) {
    static const Piece pieces[] = {{"a", N, 0}, {"b", N, 0}, {"\xC4\xA0", N, 0}, {"ab", N, 0},
        {"\xC4\xA0"
         "ab",
            N, 0},
        {"<|end|>", C, 0}, {"<tool>", U, 0}, {"[PAD7]", PAD, 0}};
    static const char *const merges[] = {"a b", "\xC4\xA0 ab"};
    Builder b = {0};
    Arena arena = {0};
    Error error;
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    build_string(&b, "tokenizer.ggml.pre", "llama-bpe");
    build_strings(&b, "tokenizer.ggml.merges", merges, COUNT_OF(merges));
    build_u32(&b, "tokenizer.ggml.bos_token_id", 5);
    const Json *root = rebuild(&b, false, &arena, &error), *model = json_get(root, "model");
    TEST_MSG(root, "%s", error.text);
    TEST(added_are(root, "5 <|end|> 1;6 <tool> 0;"));
    TEST(written_as(json_get(model, "vocab"),
        "{\"a\":0,\"b\":1,\"\xC4\xA0\":2,\"ab\":3,\"\xC4\xA0"
        "ab\":4}"));
    TEST(written_as(json_get(model, "merges"), "[[\"a\",\"b\"],[\"\xC4\xA0\",\"ab\"]]"));
    TEST(json_get(model, "ignore_merges")->boolean && !json_get(model, "byte_fallback")->boolean);
    TEST(json_get(root, "normalizer")->type == JSON_NULL);
    const Json *post = json_get(json_get(root, "post_processor"), "processors");
    TEST(post && post->size == 2); /* ByteLevel and the template that adds BOS */
    arena_free(&arena);

    /* An added token in the middle, and one behind a gap, need their place in the vocabulary; Qwen normalises, adds no
     * BOS. */
    static const Piece mixed[] = {
        {"a", N, 0}, {"<s>", C, 0}, {"b", N, 0}, {"<x>", U, 0}, {"[PAD4]", PAD, 0}, {"<y>", C, 0}};
    vocabulary_build(&b, "qwen2", "gpt2", mixed, COUNT_OF(mixed));
    build_string(&b, "tokenizer.ggml.pre", "qwen2");
    build_strings(&b, "tokenizer.ggml.merges", NULL, 0);
    build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    root = rebuild(&b, false, &arena, &error);
    TEST_MSG(root, "%s", error.text);
    TEST(written_as(json_get(json_get(root, "model"), "vocab"), "{\"a\":0,\"<s>\":1,\"b\":2,\"<y>\":5}"));
    TEST(added_are(root, "1 <s> 1;3 <x> 0;5 <y> 1;"));
    TEST(written_as(json_get(root, "normalizer"), "{\"type\":\"NFC\"}"));
    TEST(!json_get(json_get(root, "post_processor"), "processors"));
    arena_free(&arena);
}

#define MARK "\xE2\x96\x81"

static void test_sentencepiece(void) {
    static const Piece pieces[] = {{"<unk>", UNK, 0}, {"<s>", C, 0}, {"</s>", C, 0}, {"<0x61>", B, 0}, {MARK, N, -5},
        {"a", N, -6}, {"b", N, -7}, {"ab", N, -2}, {MARK "a", N, -1}, {MARK "ab", N, -3}, {"<|user|>", C, -1000}};
    Builder b = {0};
    Arena arena = {0};
    Error error;
    vocabulary_build(&b, "phi3", "llama", pieces, COUNT_OF(pieces));
    build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    build_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    build_bool(&b, "tokenizer.ggml.add_eos_token", true);
    const Json *root = rebuild(&b, false, &arena, &error), *model = json_get(root, "model");
    TEST_MSG(root, "%s", error.text);
    /* By score, then by the parts' ids: the left part of id 4 comes before that of id 8. */
    TEST(written_as(
        json_get(model, "merges"), "[[\"" MARK "\",\"a\"],[\"a\",\"b\"],[\"" MARK "\",\"ab\"],[\"" MARK "a\",\"b\"]]"));
    TEST(added_are(root, "0 <unk> 1;1 <s> 1;2 </s> 1;10 <|user|> 1;"));
    TEST(json_get(model, "vocab")->size == 10 && json_get(model, "byte_fallback")->boolean);
    TEST(written_as(json_get(model, "unk_token"), "\"<unk>\""));
    TEST(json_get(json_get(root, "normalizer"), "normalizers")->size == 2);
    TEST(json_get(json_get(root, "decoder"), "decoders")->size == 4);
    const Json *single = json_get(json_get(root, "post_processor"), "single");
    TEST(single && single->size == 3);
    /* Phi-3's control tokens swallow white space, its BOS does not. */
    const Json *first = json_get(root, "added_tokens") + 1, *second = json_next(first), *third = json_next(second);
    TEST(!json_get(second, "rstrip")->boolean && json_get(third, "rstrip")->boolean);
    TEST(json_get(json_next(third), "rstrip")->boolean);
    arena_free(&arena);
}

static const Json *rebuild_pieces(const Piece *pieces, int count, Arena *arena, Error *error) {
    Builder b = {0};
    vocabulary_build(&b, "phi3", "llama", pieces, (size_t)count);
    build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    build_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    return rebuild(&b, false, arena, error);
}

/* Long pieces that are made of nothing cost nothing; each of those that are made of each other in every way does. */
static void test_long_pieces(void) {
    enum { LENGTH = 4096, NESTED_FEW = 100 };
    static char texts[PIECES_MAX][LENGTH + 1];
    static Piece pieces[PIECES_MAX] = {{"<unk>", UNK, 0}, {"<s>", C, 0}, {"</s>", C, 0}};
    for (int kind = 0; kind < 3; kind++) {
        const int count = kind == 1 ? 3 + NESTED_FEW : PIECES_MAX;
        Arena arena = {0};
        Error error;
        for (int i = 3; i < count; i++) {
            memset(texts[i], 'a', LENGTH + 1);
            texts[i][kind ? i - 2 : LENGTH] = 0;
            if (!kind) snprintf(texts[i], 8, "%d", i);
            if (!kind) texts[i][strlen(texts[i])] = 'a';
            pieces[i] = (Piece){texts[i], N, -1};
        }
        const Json *root = rebuild_pieces(pieces, count, &arena, &error),
                   *model = root ? json_get(root, "model") : NULL;
        if (kind == 2)
            TEST_MSG(!root && error.code == ERROR_LIMIT && strstr(error.text, "made of others"), "%s", error.text);
        else
            TEST_MSG(root && json_get(model, "merges")->size == (kind ? NESTED_FEW * (NESTED_FEW - 1) / 2 : 0), "%s",
                error.text);
        arena_free(&arena);
    }
}

static bool is_piece(const Piece *pieces, int count, Slice text) {
    for (int i = 3; i < count; i++)
        if (slice_is(text, pieces[i].text)) return true;
    return false;
}

/* Against all cuts of all pieces, looked up one by one. */
static void test_every_cut(void) {
    enum { COUNT = 400, LETTERS = 7 };
    static char texts[COUNT][2 * LETTERS + 1];
    Piece pieces[COUNT] = {{"<unk>", UNK, 0}, {"<s>", C, 0}, {"</s>", C, 0}};
    uint64_t seed = 5;
    int count = 3;
    uint32_t cuts = 0;
    while (count < COUNT) {
        char *text = texts[count], *end = text;
        for (uint64_t left = 1 + test_random(&seed) % LETTERS; left > 0; left--) {
            const Slice letter = test_random(&seed) % 3 ? SLICE("a")
                : test_random(&seed) % 2                ? SLICE("b")
                                                        : SLICE("\xC3\xA9");
            memcpy(end, letter.data, letter.size);
            end += letter.size;
        }
        *end = 0;
        if (is_piece(pieces, count, slice_of(text))) continue;
        pieces[count++] = (Piece){text, N, (float)(test_random(&seed) % 8)};
    }
    for (int i = 3; i < count; i++)
        for (size_t cut = 1; cut < strlen(pieces[i].text); cut++)
            cuts += is_piece(pieces, count, (Slice){pieces[i].text, cut}) &&
                is_piece(pieces, count, slice_of(pieces[i].text + cut));
    Arena arena = {0};
    Error error;
    const Json *root = rebuild_pieces(pieces, count, &arena, &error);
    const Json *merges = root ? json_get(json_get(root, "model"), "merges") : NULL;
    TEST_MSG(
        merges && cuts > COUNT && merges->size == cuts, "%u of %u: %s", merges ? merges->size : 0, cuts, error.text);
    for (const Json *merge = merges ? json_first(merges) : NULL; merge && merge != merges->end; merge = merge->end) {
        const Slice left = json_slice(json_first(merge)), right = json_slice(json_next(json_first(merge)));
        char whole[64];
        snprintf(whole, sizeof whole, "%.*s%.*s", SLICE_ARGS(left), SLICE_ARGS(right));
        TEST(is_piece(pieces, count, left) && is_piece(pieces, count, right) &&
            is_piece(pieces, count, slice_of(whole)));
    }
    arena_free(&arena);
}

static void test_gemma(void) {
    static const Piece pieces[] = {{"<pad>", C, -1000}, {"<bos>", C, -1000}, {"<unk>", UNK, 0}, {"  ", U, -1000},
        {"   ", U, -1000}, {MARK, N, -9}, {"a", N, -8}, {MARK "a", N, -3}, {"<unused0>", C, -1000}};
    Builder b = {0};
    Arena arena = {0};
    Error error;
    vocabulary_build(&b, "gemma3", "llama", pieces, COUNT_OF(pieces));
    build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    build_u32(&b, "tokenizer.ggml.unknown_token_id", 2);
    build_bool(&b, "tokenizer.ggml.add_space_prefix", false);
    const Json *root = rebuild(&b, false, &arena, &error), *model = json_get(root, "model");
    TEST_MSG(root, "%s", error.text);
    /* Runs of spaces are pieces with the mark, and rank above every scored piece; longer left parts first. */
    TEST(written_as(json_get(model, "merges"),
        "[[\"" MARK MARK "\",\"" MARK "\"],[\"" MARK "\",\"" MARK MARK "\"],[\"" MARK "\",\"" MARK "\"],[\"" MARK
        "\",\"a\"]]"));
    TEST(json_get(model, "vocab")->size == COUNT_OF(pieces));
    TEST(written_as(json_get(json_get(root, "normalizer"), "type"), "\"Replace\""));
    TEST(json_get(json_get(root, "decoder"), "decoders")->size == 3);
    arena_free(&arena);
}

/* User-defined tokens that are control tokens in the model's own tokenizer.json must be special here too, or they could
 * be spelled in a user's text; white space, tags and what a model writes as text must not be: their ids belong in
 * texts, and special tokens are left out of answers. */
static void test_control(void) {
    static const Piece pieces[] = {{"<bos>", C, 0}, {"\n\n", U, 0}, {"<table>", U, 0}, {"</s>", U, 0}, {"<s>", U, 0},
        {"<start_of_image>", U, 0}, {"<end_of_image>", U, 0}, {"<|user|>", U, 0},
        {"<\xEF\xBD\x9C"
         "User\xEF\xBD\x9C>",
            U, 0},
        {"<unused7>", U, 0}, {"<tool_call>", U, 0}, {"<think>", U, 0}, {"<||>", U, 0}, {"<|>", U, 0},
        {"[multimodal]", U, 0}, {"a", N, 0}};
    Builder b = {0};
    Arena arena = {0};
    Error error;
    vocabulary_build(&b, "gemma3", "llama", pieces, COUNT_OF(pieces));
    build_u32(&b, "tokenizer.ggml.eos_token_id", 3); /* an end token, where for others it is a tag */
    const Json *root = rebuild(&b, false, &arena, &error);
    TEST_MSG(root, "%s", error.text);
    TEST(added_are(root,
        "0 <bos> 1;1 \n\n 0;2 <table> 0;3 </s> 1;4 <s> 0;5 <start_of_image> 1;6 <end_of_image> 1;7 <|user|> 1;"
        "8 <\xEF\xBD\x9C"
        "User\xEF\xBD\x9C> 1;9 <unused7> 1;10 <tool_call> 0;11 <think> 0;12 <||> 0;13 <|> 0;14 [multimodal] 0;"));
    arena_free(&arena);
}

static void test_config(void) {
    static const Piece pieces[] = {{"a", N, 0}, {"<s>", C, 0}, {"<|im_end|>", C, 0}, {"<|endoftext|>", N, 0}};
    static const char *const names[] = {"tool_use"};
    Builder b = {0};
    Arena arena = {0};
    Error error;
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    build_u32(&b, "tokenizer.ggml.eos_token_id", 99); /* outside: left out */
    build_bool(&b, "tokenizer.ggml.add_bos_token", true);
    build_string(&b, "tokenizer.chat_template", "{{ \"x\" }}\n");
    const Json *root = rebuild(&b, true, &arena, &error);
    TEST_MSG(root, "%s", error.text);
    TEST(written_as(json_get(root, "bos_token"), "\"<s>\"") && !json_get(root, "eos_token"));
    TEST(json_get(root, "add_bos_token")->boolean);
    TEST(written_as(json_get(root, "chat_template"), "\"{{ \\\"x\\\" }}\\n\""));
    arena_free(&arena);
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    build_string(&b, "tokenizer.chat_template", "d");
    build_strings(&b, "tokenizer.chat_templates", names, 1);
    build_string(&b, "tokenizer.chat_template.tool_use", "t");
    root = rebuild(&b, true, &arena, &error);
    TEST(written_as(json_get(root, "chat_template"),
        "[{\"name\":\"default\",\"template\":\"d\"},{\"name\":\"tool_use\",\"template\":\"t\"}]"));
    arena_free(&arena);
}

/* Names of llama.cpp's pre-tokenizers and the steps that they stand for; whether merges that would make the whole of a
 * word matter, and whether BOS is added when the file does not say. */
static void test_pre_tokenizers(void) {
    static const struct {
        const char *name, *steps;
        bool nfc, ignore_merges, bos;
    } cases[] = {
        {"deepseek-llm", "Split Split Split Split Split Digits ByteLevel ", false, false, false},
        {"deepseek-coder", "Split Split Split Split Digits ByteLevel ", false, false, false},
        {"deepseek-v3", "Split Split Split ByteLevel ", false, false, false},
        {"command-r", "Digits ByteLevel ", true, false, false},
        {"falcon", "Punctuation ByteLevel Digits Split ", false, false, false},
        {"falcon3", "Split ByteLevel ", false, true, true},
        {"mpt", "ByteLevel ", true, false, false},
        {"olmo", "ByteLevel ", true, false, false},
        {"qwen35", "Split ByteLevel ", false, false, false},
        {"glm4", "Split ByteLevel ", false, true, false},
        {"bailingmoe", "Split ByteLevel ", false, false, false},
        {"exaone-moe", "Split ByteLevel ", false, false, false},
        {"seed-coder", "Split ByteLevel ", false, false, false},
        {"llama4", "Split ByteLevel ", false, false, false},
        {"hunyuan-dense", "Split Split Split ByteLevel ", false, false, false},
        {"exaone", "Digits ByteLevel ", false, false, false},
    };
    static const Piece pieces[] = {{"a", N, 0}, {"<s>", C, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Builder b = {0};
        Arena arena = {0};
        Error error;
        Buffer steps = {0};
        vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
        build_string(&b, "tokenizer.ggml.pre", cases[i].name);
        build_strings(&b, "tokenizer.ggml.merges", NULL, 0);
        build_u32(&b, "tokenizer.ggml.bos_token_id", 1);
        const Json *root = rebuild(&b, false, &arena, &error);
        TEST_MSG(root, "%s", error.text);
        for (JSON_EACH(step, json_get(json_get(root, "pre_tokenizer"), "pretokenizers")))
            buffer_printf(&steps, "%.*s ", SLICE_ARGS(json_slice(json_get(step, "type"))));
        TEST_MSG(
            slice_is(buffer_view(&steps), cases[i].steps), "%s: %.*s", cases[i].name, SLICE_ARGS(buffer_view(&steps)));
        TEST((json_get(root, "normalizer")->type != JSON_NULL) == cases[i].nfc);
        TEST(json_get(json_get(root, "model"), "ignore_merges")->boolean == cases[i].ignore_merges);
        TEST((json_get(json_get(root, "post_processor"), "processors") != NULL) == cases[i].bos);
        buffer_free(&steps);
        arena_free(&arena);
    }
}

/* Whether the file, written anew as tokenizer.json, is warned of for its missing token at the beginning of texts. */
static bool warned_of(Builder *b) {
    char name[] = "/tmp/apus-warning-XXXXXX", text[2000] = {0};
    Arena arena = {0};
    Error error;
    const int file = mkstemp(name), before = dup(STDERR_FILENO);
    CHECK(file >= 0 && before >= 0 && dup2(file, STDERR_FILENO) >= 0);
    const bool ok = rebuild(b, false, &arena, &error);
    dup2(before, STDERR_FILENO);
    close(before);
    TEST(pread(file, text, sizeof text - 1, 0) >= 0);
    close(file);
    unlink(name);
    TEST_MSG(ok, "%s", error.text);
    arena_free(&arena);
    return strstr(text, "texts begin without one");
}

/* A token at the beginning of texts that the file asks for and does not have. */
static void test_no_bos(void) {
    static const Piece pieces[] = {{"a", N, 0}, {"<s>", C, 0}};
    static const struct {
        bool asks, names;
        uint32_t id;
        bool warns;
    } cases[] = {{true, true, 1, false}, {true, true, 99, true}, {true, false, 0, true}, {false, true, 99, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Builder b = {0};
        vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
        build_string(&b, "tokenizer.ggml.pre", "deepseek-llm");
        build_strings(&b, "tokenizer.ggml.merges", NULL, 0);
        if (cases[i].names) build_u32(&b, "tokenizer.ggml.bos_token_id", cases[i].id);
        if (cases[i].asks) build_bool(&b, "tokenizer.ggml.add_bos_token", true);
        TEST_MSG(warned_of(&b) == cases[i].warns, "case %zu", i);
    }
}

/* Files of early converters, whose vocabulary tells what they do not say. */
static void test_unnamed(void) {
    static const struct {
        const char *architecture, *token;
        size_t steps; /* 0: refused */
    } cases[] = {{"llama", "<|begin_of_text|>", 2},
        {"llama",
            "<\xEF\xBD\x9C"
            "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
            6},
        {"llama", "<s>", 0}, {"qwen2", "<s>", 2}, {"phi2", "<s>", 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Piece pieces[] = {{"a", N, 0}, {cases[i].token, C, 0}};
        Builder b = {0};
        Arena arena = {0};
        Error error;
        vocabulary_build(&b, cases[i].architecture, "gpt2", pieces, COUNT_OF(pieces));
        build_string(&b, "tokenizer.ggml.pre", "default");
        build_strings(&b, "tokenizer.ggml.merges", NULL, 0);
        const Json *root = rebuild(&b, false, &arena, &error);
        const Json *steps = json_get(json_get(root, "pre_tokenizer"), "pretokenizers");
        TEST_MSG((steps ? steps->size : 0) == cases[i].steps, "%s with %s: %s", cases[i].architecture, cases[i].token,
            root ? "another pre-tokenizer" : error.text);
        arena_free(&arena);
    }
}

static void expect_refused(Builder *b, const char *part) {
    Arena arena = {0};
    Error error;
    const Json *root = rebuild(b, false, &arena, &error);
    TEST_MSG(!root && strstr(error.text, part), "gave \"%s\", without \"%s\"", root ? "a tokenizer" : error.text, part);
    arena_free(&arena);
}

static void test_refused(void) {
    static const Piece pieces[] = {{"a", N, 0}, {"b", N, 0}, {"ab", N, 0}};
    static const Piece twice[] = {{"a", N, 0}, {"a", N, 0}};
    static const Piece bad_type[] = {{"a", 9, 0}};
    static const Piece bad_text[] = {{"\xFF", N, 0}};
    static const Piece bad_score[] = {{"a", N, NAN}};
    static const char *const unknown_part[] = {"a c"}, *const unknown_whole[] = {"b a"}, *const no_space[] = {"ab"};
    Builder b = {0};
    const struct {
        const char *const *merges;
        const char *part;
    } cases[] = {
        {unknown_part, "merges[0] \"a c\""}, {unknown_whole, "merges[0] \"b a\""}, {no_space, "merges[0] \"ab\""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
        build_string(&b, "tokenizer.ggml.pre", "gpt-2");
        build_strings(&b, "tokenizer.ggml.merges", cases[i].merges, 1);
        expect_refused(&b, cases[i].part);
    }
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    build_string(&b, "tokenizer.ggml.pre", "gpt-2");
    expect_refused(&b, "tokenizer.ggml.merges is not");
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    build_string(&b, "tokenizer.ggml.pre", "unheard-of");
    expect_refused(&b, "tokenizer.ggml.pre unheard-of is not known (these are: qwen2 deepseek-r1-qwen qwen35 ");
    vocabulary_build(&b, "llama", "gpt2", pieces, COUNT_OF(pieces));
    expect_refused(&b, "does not name the pre-tokenizer");
    vocabulary_build(&b, "llama", "llama", twice, COUNT_OF(twice));
    expect_refused(&b, "0 and 1 are the same");
    vocabulary_build(&b, "llama", "llama", bad_type, 1);
    expect_refused(&b, "token_type of token 0");
    vocabulary_build(&b, "llama", "llama", bad_text, 1);
    expect_refused(&b, "tokens[0] is not UTF-8");
    vocabulary_build(&b, "llama", "llama", bad_score, 1);
    expect_refused(&b, "scores[0] is NaN");
    vocabulary_build(&b, "llama", "llama", pieces, 0);
    expect_refused(&b, "tokenizer.ggml.tokens is not");
    build_string(&b, "general.architecture", "llama");
    build_string(&b, "tokenizer.ggml.model", "llama");
    expect_refused(&b, "tokenizer.ggml.tokens is not");
}

int main(void) {
    int fd = mkstemp(path);
    TEST(fd >= 0);
    close(fd);
    test_byte_level();
    test_sentencepiece();
    test_long_pieces();
    test_every_cut();
    test_gemma();
    test_control();
    test_config();
    test_pre_tokenizers();
    test_no_bos();
    test_unnamed();
    test_refused();
    unlink(path);
    return test_done();
}
