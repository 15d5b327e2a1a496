/* Tokenizers against the reference library's ids and texts (tools/make_tokenizer_goldens.py), and what only this one
 * has: spans, streaming, many threads. With arguments, `tokens DIRECTORY` or `detokens DIRECTORY`, it answers JSON
 * lines. */
#include "tokenizer_files.h"

#include "base/thread.h"
#include "base/utf8.h"
#include "text/tokenizer/bpe_tables.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/debug.h"

static int answer_lines(const char *mode, const char *directory) {
    Error error = {0};
    Tokenizer *t = tokenizer_open(directory, &error);
    char *line = NULL;
    size_t capacity = 0;
    Buffer out = {0};
    for (ssize_t size; t && (size = getline(&line, &capacity, stdin)) > 0; puts(out.data)) {
        buffer_clear(&out);
        Slice text = {line, (size_t)size};
        bool ok = strcmp(mode, "tokens") == 0 ? text_debug_tokens(t, text, &out, &error)
                                              : text_debug_detokens(t, text, &out, &error);
        if (!ok) break;
    }
    if (error.code) fprintf(stderr, "%s\n", error.text);
    free(line);
    buffer_free(&out);
    tokenizer_close(t);
    return error.code != ERROR_NONE;
}

static bool ids_equal(const Tokens *tokens, const Json *want) {
    if (tokens->count != want->size) return false;
    size_t i = 0;
    for (JSON_EACH(id, want)) {
        if (tokens->ids[i++] != id->integer) return false;
    }
    return true;
}

static void show_ids(const char *name, Slice text, const Tokens *tokens) {
    fprintf(stderr, "  %s: \"%.*s\" gave", name, SLICE_ARGS(text));
    for (size_t i = 0; i < tokens->count; i++) fprintf(stderr, " %d", tokens->ids[i]);
    fprintf(stderr, "\n");
}

static void check_encodes(const Tokenizer *t, const char *name, const Json *encodes) {
    for (JSON_EACH(one, encodes)) {
        const Json *text = json_first(one), *special = json_next(text), *bos = json_next(special),
                   *want = json_next(bos);
        Tokens tokens = {0};
        Error error = {0};
        bool ok = tokenizer_encode(t, json_slice(text), special->boolean ? CONTROL_RECOGNISED : CONTROL_AS_TEXT,
            bos->boolean, &tokens, &error);
        bool equal = ok && ids_equal(&tokens, want);
        TEST_MSG(equal, "%s: %s", name, error.text);
        if (!equal) show_ids(name, json_slice(text), &tokens);
        tokens_free(&tokens);
    }
}

/* One id at a time: whole characters, and together the decoded text. A run of fallback bytes that turns out not to be
 * UTF-8 after a part of it was shown cannot agree; such texts hold U+FFFD. */
static void check_stream(const Tokenizer *t, const char *name, const Tokens *ids, bool skip, Slice want) {
    Error error = {0};
    Buffer all = {0}, piece = {0};
    Detokenizer *d = detokenizer_new(t, skip, &error);
    for (size_t i = 0; d && i <= ids->count; i++) {
        buffer_clear(&piece);
        TEST(i < ids->count ? detokenizer_push(d, ids->ids[i], &piece, &error) : detokenizer_finish(d, &piece, &error));
        TEST(!piece.size || utf8_valid(buffer_view(&piece)));
        buffer_slice(&all, buffer_view(&piece));
    }
    bool broken = want.size && memmem(want.data, want.size, "\xEF\xBF\xBD", 3);
    TEST_MSG(broken || slice_equal(buffer_view(&all), want), "%s streamed: \"%.*s\" not \"%.*s\"", name,
        SLICE_ARGS(buffer_view(&all)), SLICE_ARGS(want));
    detokenizer_free(d);
    buffer_free(&all);
    buffer_free(&piece);
}

static void check_decodes(const Tokenizer *t, const char *name, const Json *decodes) {
    for (JSON_EACH(one, decodes)) {
        const Json *list = json_first(one), *skip = json_next(list), *want = json_next(skip);
        Tokens ids = {0};
        for (JSON_EACH(id, list)) TEST(tokens_push(&ids, (int32_t)id->integer));
        Buffer out = {0};
        Error error = {0};
        TEST(tokenizer_decode(t, ids.ids, ids.count, skip->boolean, &out, &error));
        TEST_MSG(slice_equal(buffer_view(&out), json_slice(want)), "%s: decoded \"%.*s\" not \"%.*s\"", name,
            SLICE_ARGS(buffer_view(&out)), SLICE_ARGS(json_slice(want)));
        check_stream(t, name, &ids, skip->boolean, json_slice(want));
        tokens_free(&ids);
        buffer_free(&out);
    }
}

static void test_goldens(const TokenizerGoldens *goldens) {
    for (size_t i = 0; i < goldens->count; i++) {
        const Json *one = goldens->cases[i];
        char name[64];
        snprintf(name, sizeof name, "%.*s", SLICE_ARGS(json_slice(json_get(one, "name"))));
        Error error = {0};
        Tokenizer *t = open_golden(goldens, one, NULL, &error);
        TEST_MSG(t, "%s: %s", name, error.text);
        if (!t) continue;
        check_encodes(t, name, json_get(one, "encodes"));
        check_decodes(t, name, json_get(one, "decodes"));
        tokenizer_close(t);
    }
}

static Tokens encode(const Tokenizer *t, const char *text, ControlTokens control) {
    Tokens tokens = {0};
    Error error = {0};
    TEST_MSG(tokenizer_encode(t, slice_of(text), control, false, &tokens, &error), "%s", error.text);
    return tokens;
}

/* Parts, alternately of the template and of data; the first is of the template. */
static Tokens encode_parts(const Tokenizer *t, const char *const *parts, size_t count) {
    Span spans[8];
    Tokens tokens = {0};
    Error error = {0};
    for (size_t i = 0; i < count; i++) spans[i] = (Span){slice_of(parts[i]), i % 2 == 0};
    TEST_MSG(tokenizer_encode_spans(t, spans, count, &tokens, &error), "%s", error.text);
    return tokens;
}

static size_t count_id(const Tokens *tokens, int32_t id) {
    size_t count = 0;
    for (size_t i = 0; i < tokens->count; i++) count += tokens->ids[i] == id;
    return count;
}

static bool same_ids(const Tokens *a, const Tokens *b) {
    return a->count == b->count && (!a->count || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static int32_t id_of(const Tokenizer *t, const char *token) {
    int32_t id = -1;
    TEST_MSG(tokenizer_id(t, slice_of(token), &id), "%s", token);
    return id;
}
static size_t count_token(const Tokenizer *t, const Tokens *tokens, const char *token) {
    return count_id(tokens, id_of(t, token));
}

static void test_spans(const TokenizerGoldens *goldens) {
    Tokenizer *t = open_named(goldens, "qwen2", NULL);
    if (!t) return;
    const char *chat[] = {"<|im_start|>", "user <|im_start|> <|im_end|>", "<|im_end|>\n"};
    Tokens ids = encode_parts(t, chat, 3);
    TEST(count_token(t, &ids, "<|im_start|>") == 1 && count_token(t, &ids, "<|im_end|>") == 1);
    tokens_free(&ids);

    /* No token lies across a seam, and none in front of one hides what begins behind it. */
    const char *seam[] = {"<|im_", "start|>", "", "<|im_start", "<|im_end|>"};
    ids = encode_parts(t, seam, 5);
    TEST(count_token(t, &ids, "<|im_start|>") == 0 && count_token(t, &ids, "<|im_end|>") == 1);
    tokens_free(&ids);

    /* An added token that is not special is text in data once the template uses it; before that, it is what it is. */
    const char *think[] = {"<think>", "<think>", " "}, *plain[] = {"a ", "<think>", " "};
    ids = encode_parts(t, think, 3);
    TEST(count_token(t, &ids, "<think>") == 1);
    tokens_free(&ids);
    ids = encode_parts(t, plain, 3);
    TEST(count_token(t, &ids, "<think>") == 1);
    tokens_free(&ids);
    tokenizer_close(t);
    t = open_named(goldens, "qwen2", "{\"chat_template\":\"{% if think %}<think>{% endif %}\\n\\n\\n\"}");
    if (!t) return;
    ids = encode_parts(t, plain, 3);
    TEST(count_token(t, &ids, "<think>") == 0);
    tokens_free(&ids);
    const char *blank[] = {"a\n", "\n\nb", ""}; /* white space is text: it may join over a seam */
    ids = encode_parts(t, blank, 3);
    TEST(count_token(t, &ids, "\n\n\n") == 1);
    tokens_free(&ids);
    tokenizer_close(t);
}

/* Cut anywhere, text without control tokens gives the ids of the whole. */
static void test_spans_joined(const TokenizerGoldens *goldens) {
    const char *names[] = {"qwen2", "o200k", "deepseek", "llama", "gemma", "flags_nfd", "metaspace_first_True"};
    const char *text = "  Hello wörld, it's 12345\n\n\n\ne\xCC\x81 中文字符 the cat  ran ▁▁ \xF0\x9F\x98\x80!";
    uint64_t state = 3;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Tokenizer *t = open_named(goldens, names[i], NULL);
        if (!t) continue;
        Tokens whole = encode(t, text, CONTROL_RECOGNISED);
        for (int round = 0; round < 40; round++) {
            Span spans[8];
            size_t count = 0, at = 0, size = strlen(text);
            while (at < size) {
                size_t end = count == 7 ? size : at + test_random(&state) % (size - at + 1);
                while (end < size && ((uint8_t)text[end] & 0xC0) == 0x80) end++;
                spans[count++] = (Span){{text + at, end - at}, test_random(&state) & 1};
                at = end;
            }
            Tokens cut = {0};
            Error error = {0};
            TEST(tokenizer_encode_spans(t, spans, count, &cut, &error));
            TEST_MSG(same_ids(&cut, &whole), "%s, round %d", names[i], round);
            tokens_free(&cut);
        }
        tokens_free(&whole);
        tokenizer_close(t);
    }
}

/* A control token matched after normalizing: origins must survive the normalizer. */
static void test_spans_normalized(const TokenizerGoldens *goldens) {
    Tokenizer *t = open_named(goldens, "flags_nfd", NULL);
    if (!t) return;
    const char *parts[] = {"e\xCC\x81 \xC3\x84"
                           "B ",
        "A\xCC\x88"
        "B \xC3\x84"
        "B",
        "\xC3\x84", "B",
        "\xC3\x84"
        "B"};
    Tokens ids = encode_parts(t, parts, 5);
    TEST(count_token(t, &ids,
             "\xC3\x84"
             "B") == 2); /* the first and the last, not those of data or across */
    tokens_free(&ids);
    tokenizer_close(t);
}

static void test_questions(const TokenizerGoldens *goldens) {
    Tokenizer *t = open_named(goldens, "qwen2", NULL), *spm = open_named(goldens, "llama", NULL);
    if (!t || !spm) return;
    int32_t id;
    Error error = {0};
    Buffer out = {0};
    TEST(tokenizer_id(t, SLICE("<a b>"), &id) && tokenizer_vocab(t) == id + 1);
    TEST(tokenizer_id(t, SLICE("<|im_end|>"), &id) && tokenizer_is_special(t, id));
    TEST(tokenizer_id(t, SLICE("<think>"), &id) && !tokenizer_is_special(t, id));
    TEST(tokenizer_id(t, SLICE("Ġ"), &id) && id == ' ' && tokenizer_bytes(t, id, &out, &error));
    TEST(slice_is(buffer_view(&out), " "));
    buffer_clear(&out);
    TEST(!tokenizer_id(t, SLICE("no such token"), &id) && !tokenizer_is_special(t, -1) &&
        !tokenizer_is_special(t, 1 << 30));
    TEST(!tokenizer_bytes(t, tokenizer_vocab(t), &out, &error) && error.code == ERROR_NOT_FOUND);
    TEST(tokenizer_id(spm, SLICE("<0xE4>"), &id) && tokenizer_bytes(spm, id, &out, &error) &&
        slice_is(buffer_view(&out), "\xE4"));
    buffer_clear(&out);
    TEST(tokenizer_id(spm, SLICE("▁the"), &id) && tokenizer_bytes(spm, id, &out, &error) &&
        slice_is(buffer_view(&out), " the"));
    Tokens tokens = {0};
    TEST(!tokenizer_encode(t, SLICE("\xFF"), CONTROL_RECOGNISED, false, &tokens, &error) && error.code == ERROR_FORMAT);
    tokens_free(&tokens);
    buffer_free(&out);
    tokenizer_close(t);
    tokenizer_close(spm);
}

static void test_bos_of_config(const TokenizerGoldens *goldens) {
    Tokenizer *t =
        open_named(goldens, "deepseek", "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<|im_start|>\"}}");
    Tokens ids = {0};
    Error error = {0};
    TEST(t && tokenizer_encode(t, SLICE("a"), CONTROL_RECOGNISED, true, &ids, &error) && ids.count == 2 &&
        ids.ids[0] == id_of(t, "<|im_start|>"));
    tokens_free(&ids);
    tokenizer_close(t);
}

/* 100 KB without a place to cut: far below the seconds that anything quadratic takes. */
static void test_long_words(const TokenizerGoldens *goldens) {
    const char *names[] = {"qwen2", "llama"};
    enum { SIZE = 100000 };
    char *word = malloc(SIZE + 1);
    uint64_t state = 9;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Tokenizer *t = open_named(goldens, names[i], NULL);
        for (int kind = 0; t && kind < 4; kind++) {
            static const char *const wide[] = {"中", "文", "字", "符"};
            for (size_t k = 0; k < SIZE; k++) word[k] = kind ? (char)('a' + test_random(&state) % 26) : 'a';
            for (size_t k = 0; kind >= 2 && k + 3 <= SIZE; k += 3)
                memcpy(word + k, wide[kind == 2 ? 0 : test_random(&state) % COUNT_OF(wide)], 3);
            word[SIZE] = '\0';
            Tokens ids = encode(t, word, CONTROL_RECOGNISED);
            Buffer text = {0};
            Error error = {0};
            TEST(tokenizer_decode(t, ids.ids, ids.count, false, &text, &error) && slice_is(buffer_view(&text), word));
            buffer_free(&text);
            tokens_free(&ids);
        }
        tokenizer_close(t);
    }
    free(word);
}

/* ---- Words of characters of three bytes, against merging written as it is defined ---- */

enum { BYTES = 256, LEARNED_MAX = 60, TEXT_MAX = 256 };

typedef struct Learned { /* a vocabulary: all bytes, then what merges make */
    char bytes[BYTES + LEARNED_MAX][TEXT_MAX];
    size_t sizes[BYTES + LEARNED_MAX], count;
    int merges[LEARNED_MAX][2];
    size_t merge_count;
} Learned;

static int learned_find(const Learned *l, const char *bytes, size_t size) {
    for (size_t i = 0; i < l->count; i++) {
        if (l->sizes[i] == size && memcmp(l->bytes[i], bytes, size) == 0) return (int)i;
    }
    return -1;
}

/* ids of the text; returns their number. */
static size_t learned_encode(const Learned *l, const char *text, size_t size, int *ids) {
    size_t count = size;
    for (size_t i = 0; i < size; i++) ids[i] = (uint8_t)text[i];
    for (;;) {
        size_t best = l->merge_count, at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t rank = 0; rank < best; rank++) {
                if (l->merges[rank][0] != ids[i] || l->merges[rank][1] != ids[i + 1]) continue;
                best = rank;
                at = i;
            }
        }
        if (best == l->merge_count) return count;
        char joined[2 * TEXT_MAX];
        const size_t left = l->sizes[ids[at]], right = l->sizes[ids[at + 1]];
        memcpy(joined, l->bytes[ids[at]], left);
        memcpy(joined + left, l->bytes[ids[at + 1]], right);
        ids[at] = learned_find(l, joined, left + right);
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

static size_t random_wide(uint64_t *state, char *out, size_t characters) {
    static const char *const atoms[] = {"你", "你", "好", "好", "们", "的", "，", "。", "カ", "가", "é", "a"};
    const size_t kinds = 2 + test_random(state) % (COUNT_OF(atoms) - 1);
    size_t size = 0;
    for (size_t i = 0; i < characters; i++) {
        const char *atom = atoms[test_random(state) % kinds];
        memcpy(out + size, atom, strlen(atom));
        size += strlen(atom);
    }
    return size;
}

/* Merges of pairs that texts have, as training finds them; then some change places, as no training does. */
static void learn(Learned *l, uint64_t *state) {
    *l = (Learned){.count = BYTES};
    for (size_t i = 0; i < BYTES; i++) {
        l->bytes[i][0] = (char)i;
        l->sizes[i] = 1;
    }
    const size_t wanted = 4 + test_random(state) % (LEARNED_MAX - 4);
    for (int round = 0; round < 400 && l->merge_count < wanted; round++) {
        char text[TEXT_MAX];
        int ids[TEXT_MAX];
        const size_t size = random_wide(state, text, 3 + test_random(state) % 12);
        const size_t count = learned_encode(l, text, size, ids);
        if (count < 2) continue;
        const size_t at = test_random(state) % (count - 1);
        const size_t left = l->sizes[ids[at]], joined = left + l->sizes[ids[at + 1]];
        if (joined > TEXT_MAX / 2) continue;
        char *bytes = l->bytes[l->count];
        memcpy(bytes, l->bytes[ids[at]], left);
        memcpy(bytes + left, l->bytes[ids[at + 1]], joined - left);
        l->merges[l->merge_count][0] = ids[at];
        l->merges[l->merge_count++][1] = ids[at + 1];
        if (learned_find(l, bytes, joined) < 0) l->sizes[l->count++] = joined;
    }
    for (uint64_t swaps = test_random(state) % 4; swaps && l->merge_count; swaps--) {
        int *a = l->merges[test_random(state) % l->merge_count], *b = l->merges[test_random(state) % l->merge_count];
        for (int side = 0; side < 2; side++) {
            const int kept = a[side];
            a[side] = b[side];
            b[side] = kept;
        }
    }
}

static void learned_write(const Learned *l, int token, Buffer *out) {
    Buffer spelled = {0};
    byte_level_write((Slice){l->bytes[token], l->sizes[token]}, &spelled);
    json_write_string(out, buffer_view(&spelled));
    buffer_free(&spelled);
}

static Tokenizer *learned_open(const Learned *l, bool ignore_merges) {
    Buffer json = {0};
    buffer_printf(&json, "{\"model\":{\"ignore_merges\":%s,\"vocab\":{", ignore_merges ? "true" : "false");
    for (size_t i = 0; i < l->count; i++) {
        if (i) buffer_byte(&json, ',');
        learned_write(l, (int)i, &json);
        buffer_printf(&json, ":%zu", i);
    }
    buffer_text(&json, "},\"merges\":[");
    for (size_t i = 0; i < l->merge_count; i++) {
        buffer_text(&json, i ? ",[" : "[");
        learned_write(l, l->merges[i][0], &json);
        buffer_byte(&json, ',');
        learned_write(l, l->merges[i][1], &json);
        buffer_byte(&json, ']');
    }
    buffer_text(&json,
        "]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"}}");
    Error error = {0};
    Tokenizer *t = open_tokenizer_text(buffer_view(&json), NULL, &error);
    TEST_MSG(t, "%s", error.text);
    buffer_free(&json);
    return t;
}

static void test_wide_words(void) {
    Learned *l = malloc(sizeof *l);
    uint64_t state = 23;
    size_t early = 0, late = 0; /* characters that start as tokens, and tokens of a character that do not */
    for (int round = 0; l && round < 300; round++) {
        learn(l, &state);
        Tokenizer *t = learned_open(l, round % 4 == 0);
        for (size_t i = BYTES; t && i < l->count; i++) {
            if (l->sizes[i] != 3 || ((uint8_t)l->bytes[i][0] & 0xF0) != 0xE0) continue;
            if (!utf8_valid((Slice){l->bytes[i], 3})) continue;
            if (t->bpe.wide_ids && wide_id(&t->bpe, l->bytes[i]) == (int32_t)i)
                early++;
            else
                late++;
        }
        for (int text_number = 0; t && text_number < 20; text_number++) {
            char text[TEXT_MAX];
            int want[TEXT_MAX];
            const size_t size = random_wide(&state, text, 1 + test_random(&state) % (text_number ? 16 : 80));
            const int known = t->bpe.ignore_merges ? learned_find(l, text, size) : -1;
            const size_t count = known < 0 ? learned_encode(l, text, size, want) : 1;
            if (known >= 0) want[0] = known;
            for (int again = 0; again < 2; again++) { /* the second time what was cached */
                Tokens ids = {0};
                Error error = {0};
                TEST(tokenizer_encode(t, (Slice){text, size}, CONTROL_RECOGNISED, false, &ids, &error));
                bool same = ids.count == count;
                for (size_t i = 0; same && i < count; i++) same = ids.ids[i] == want[i];
                TEST_MSG(same, "round %d: \"%.*s\"", round, (int)size, text);
                tokens_free(&ids);
            }
        }
        tokenizer_close(t);
    }
    TEST_MSG(early > 200 && late > 20, "%zu, %zu", early, late);
    free(l);
}

typedef struct Worker {
    const Tokenizer *t;
    const Json *encodes;
    size_t wrong;
} Worker;

static void *worker_run(void *argument) {
    Worker *worker = argument;
    for (int round = 0; round < 20; round++) {
        for (JSON_EACH(one, worker->encodes)) {
            const Json *text = json_first(one), *special = json_next(text), *bos = json_next(special),
                       *want = json_next(bos);
            Tokens tokens = {0};
            Error error = {0};
            ControlTokens control = special->boolean ? CONTROL_RECOGNISED : CONTROL_AS_TEXT;
            bool ok = tokenizer_encode(worker->t, json_slice(text), control, bos->boolean, &tokens, &error);
            worker->wrong += !ok || !ids_equal(&tokens, want);
            tokens_free(&tokens);
        }
    }
    return NULL;
}

static void test_threads(const TokenizerGoldens *goldens) {
    Error error = {0};
    for (size_t i = 0; i < goldens->count; i += 7) {
        Tokenizer *t = open_golden(goldens, goldens->cases[i], NULL, &error);
        Worker workers[4];
        Thread threads[4];
        for (int k = 0; k < 4; k++) {
            workers[k] = (Worker){t, json_get(goldens->cases[i], "encodes"), 0};
            TEST(thread_start(&threads[k], worker_run, &workers[k], "worker", &error));
        }
        for (int k = 0; k < 4; k++) {
            thread_join(threads[k]);
            TEST(workers[k].wrong == 0);
        }
        tokenizer_close(t);
    }
}

static void test_debug_lines(const TokenizerGoldens *goldens) {
    Tokenizer *t = open_named(goldens, "qwen2", NULL);
    if (!t) return;
    Error error = {0};
    Buffer out = {0};
    TEST(text_debug_tokens(t, SLICE("{\"text\":\"! \",\"special\":true}"), &out, &error) &&
        slice_is(buffer_view(&out), "{\"ids\":[33,32]}"));
    buffer_clear(&out);
    TEST(text_debug_tokens(t, SLICE("{\"text\":\"\"}"), &out, &error) && slice_is(buffer_view(&out), "{\"ids\":[]}"));
    buffer_clear(&out);
    char line[96];
    snprintf(line, sizeof line, "{\"ids\":[%d,33],\"skip_special\":true}", id_of(t, "<|im_end|>"));
    TEST(text_debug_detokens(t, slice_of(line), &out, &error) && slice_is(buffer_view(&out), "{\"text\":\"!\"}"));
    buffer_clear(&out);
    /* Two bytes of a character, then something else: U+FFFD comes with what shows that the character will not. */
    TEST(text_debug_detokens(t, SLICE("{\"ids\":[33,228,189,33,228],\"stream\":true}"), &out, &error));
    TEST_MSG(slice_is(buffer_view(&out), "{\"pieces\":[\"!\",\"\",\"\",\"\xEF\xBF\xBD!\",\"\",\"\xEF\xBF\xBD\"]}"),
        "%s", out.data);
    buffer_clear(&out);
    TEST(!text_debug_tokens(t, SLICE("{\"text\":7}"), &out, &error) && out.size == 0 && error.code == ERROR_USAGE);
    TEST(!text_debug_detokens(t, SLICE("{\"ids\":[-1]}"), &out, &error));
    TEST(!text_debug_detokens(t, SLICE("nothing"), &out, &error));
    buffer_free(&out);
    tokenizer_close(t);
}

int main(int count, char **arguments) {
    if (count == 3) return answer_lines(arguments[1], arguments[2]);
    TokenizerGoldens goldens;
    bool open = goldens_open(&goldens);
    TEST(open);
    if (!open) return test_done();
    test_goldens(&goldens);
    test_spans(&goldens);
    test_spans_joined(&goldens);
    test_spans_normalized(&goldens);
    test_questions(&goldens);
    test_bos_of_config(&goldens);
    test_long_words(&goldens);
    test_wide_words();
    test_threads(&goldens);
    test_debug_lines(&goldens);
    goldens_close(&goldens);
    return test_done();
}
