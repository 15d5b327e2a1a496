/* tokenizer.json of encoders: WordPiece ("bert"), whose tokens that begin a word have U+2581 in front in GGUF files and
 * whose others lack "##"; and Unigram ("t5"). Format: github.com/huggingface/tokenizers. */
#include <math.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/utf8.h"
#include "import/gguf/internal.h"

enum { TOKENS_MAX = 1 << 22 };

typedef struct Writer {
    Buffer *out;
    const GgufFile *file;
    Error *error;
    const GgufValue *tokens, *types, *scores; /* types: NULL: all are normal. scores: of Unigram */
    bool unigram;
    int64_t begin, end, unknown; /* ids */
    bool has_capitals;           /* in a token that is no control token */
} Writer;

static const GgufValue *array_of(const Writer *w, const char *key, GgufKind kind) {
    const GgufValue *value = gguf_value(w->file, key);
    const bool right = value && value->array && value->kind == kind;
    return right && (kind == GGUF_STRING || value->count == w->tokens->count) ? value : NULL;
}

static int32_t type_of(const Writer *w, uint64_t id, Slice text) {
    int32_t type = GGUF_TOKEN_NORMAL;
    if (w->types) memcpy(&type, w->types->data + id * sizeof type, sizeof type);
    return gguf_token_type(w->file, (int64_t)id, text, type);
}

static bool is_added(int32_t type) {
    return type == GGUF_TOKEN_CONTROL || type == GGUF_TOKEN_UNKNOWN || type == GGUF_TOKEN_USER_DEFINED;
}

static bool find_special(Writer *w, const char *key, const char *or_key, int64_t *id) {
    if (!gguf_integer(w->file, key, id) && !(or_key && gguf_integer(w->file, or_key, id)))
        return fail(w->error, ERROR_FORMAT, "%s is missing", key);
    return (*id >= 0 && (uint64_t)*id < w->tokens->count) ||
        fail(w->error, ERROR_FORMAT, "%s is %lld, which is no token", key, (long long)*id);
}

static bool read_vocabulary(Writer *w) {
    w->tokens = gguf_value(w->file, "tokenizer.ggml.tokens");
    if (!w->tokens || !w->tokens->array || w->tokens->kind != GGUF_STRING || !w->tokens->count ||
        w->tokens->count > TOKENS_MAX)
        return fail(w->error, ERROR_FORMAT, "tokenizer.ggml.tokens is not an array of 1 to %d strings", TOKENS_MAX);
    w->types = array_of(w, "tokenizer.ggml.token_type", GGUF_I32);
    w->scores = array_of(w, "tokenizer.ggml.scores", GGUF_F32);
    if (!w->types && gguf_value(w->file, "tokenizer.ggml.token_type"))
        return fail(w->error, ERROR_FORMAT, "tokenizer.ggml.token_type is not one number per token");
    if (w->unigram && !w->scores)
        return fail(w->error, ERROR_FORMAT, "tokenizer.ggml.scores is not one number per token");
    const uint8_t *at = w->tokens->data;
    for (uint64_t id = 0; id < w->tokens->count; id++) {
        const Slice text = gguf_string_next(&at);
        if (!utf8_valid(text))
            return fail(w->error, ERROR_FORMAT, "tokenizer.ggml.tokens[%llu] is not UTF-8", (unsigned long long)id);
        const bool plain = type_of(w, id, text) == GGUF_TOKEN_NORMAL && !memchr(text.data, '[', text.size);
        for (size_t i = 0; plain && i < text.size; i++)
            w->has_capitals = w->has_capitals || (text.data[i] >= 'A' && text.data[i] <= 'Z');
    }
    return find_special(w, "tokenizer.ggml.unknown_token_id", NULL, &w->unknown) &&
        find_special(w, "tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id", &w->begin) &&
        find_special(w, "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id", &w->end);
}

/* ---- texts of tokens ---- */

static Slice token_text(const Writer *w, int64_t id) {
    const uint8_t *at = w->tokens->data;
    Slice text = gguf_string_next(&at);
    for (int64_t i = 0; i < id; i++) text = gguf_string_next(&at);
    return text;
}

/* As the model's own tokenizer spells it. */
static void put_token(Writer *w, Slice text, int32_t type) {
    const Slice space = SLICE("\xE2\x96\x81");
    if (w->unigram || is_added(type)) {
        json_write_string(w->out, text);
        return;
    }
    if (slice_starts(text, space)) {
        json_write_string(w->out, (Slice){text.data + space.size, text.size - space.size});
        return;
    }
    Buffer spelt = {0};
    buffer_text(&spelt, "##");
    buffer_slice(&spelt, text);
    json_write_string(w->out, buffer_view(&spelt));
    w->out->failed = w->out->failed || spelt.failed;
    buffer_free(&spelt);
}

static void put_added_tokens(Writer *w) {
    const char *separator = "";
    const uint8_t *at = w->tokens->data;
    buffer_text(w->out, "\"added_tokens\":[");
    for (uint64_t id = 0; id < w->tokens->count; id++) {
        const Slice text = gguf_string_next(&at);
        const int32_t type = type_of(w, id, text);
        if (!is_added(type)) continue;
        buffer_printf(w->out, "%s\n{\"id\":%llu,\"content\":", separator, (unsigned long long)id);
        json_write_string(w->out, text);
        buffer_printf(w->out,
            ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
            type == GGUF_TOKEN_USER_DEFINED ? "false" : "true");
        separator = ",";
    }
    buffer_text(w->out, "],\n");
}

/* ---- the steps ---- */

/* Where the file does not say whether texts become lower case, the vocabulary tells. */
static void put_bert_steps(Writer *w) {
    bool lower = !w->has_capitals;
    gguf_bool(w->file, "tokenizer.ggml.normalizer.lowercase", &lower);
    bool accents = lower;
    gguf_bool(w->file, "tokenizer.ggml.normalizer.strip_accents", &accents);
    buffer_printf(w->out,
        "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
        "\"strip_accents\":%s,\"lowercase\":%s},\n"
        "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n"
        "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},\n",
        accents ? "true" : "false", lower ? "true" : "false");
}

static void put_unigram_steps(Writer *w) {
    const GgufValue *table = gguf_value(w->file, "tokenizer.ggml.precompiled_charsmap");
    bool prefix = true, trims = true;
    gguf_bool(w->file, "tokenizer.ggml.add_space_prefix", &prefix);
    gguf_bool(w->file, "tokenizer.ggml.remove_extra_whitespaces", &trims);
    buffer_text(w->out, "\"normalizer\":");
    if (table && table->array && (table->kind == GGUF_U8 || table->kind == GGUF_I8) && table->count) {
        buffer_text(w->out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        base64_encode((Slice){(const char *)table->data, (size_t)table->count}, w->out);
        buffer_text(w->out, "\"}");
    } else {
        buffer_text(w->out, "null");
    }
    buffer_text(w->out, ",\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (trims) buffer_text(w->out, "{\"type\":\"WhitespaceSplit\"},");
    buffer_printf(w->out,
        "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"%s\",\"split\":true}]},\n",
        prefix ? "always" : "never");
    buffer_text(w->out,
        "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\","
        "\"split\":true},\n");
}

static void put_marker(Writer *w, const char *name, int64_t id) {
    buffer_printf(w->out, ",\"%s\":[", name);
    json_write_string(w->out, token_text(w, id));
    buffer_printf(w->out, ",%lld]", (long long)id);
}

static void put_post_processor(Writer *w) {
    buffer_printf(w->out, "\"post_processor\":{\"type\":\"%s\"", w->unigram ? "RobertaProcessing" : "BertProcessing");
    put_marker(w, "sep", w->end);
    put_marker(w, "cls", w->begin);
    if (w->unigram) buffer_text(w->out, ",\"trim_offsets\":true,\"add_prefix_space\":true");
    buffer_text(w->out, "},\n");
}

static bool put_model(Writer *w) {
    const char *separator = "";
    const uint8_t *at = w->tokens->data;
    if (w->unigram) {
        buffer_printf(w->out, "\"model\":{\"type\":\"Unigram\",\"unk_id\":%lld,\"vocab\":[", (long long)w->unknown);
    } else {
        buffer_text(w->out, "\"model\":{\"type\":\"WordPiece\",\"unk_token\":");
        json_write_string(w->out, token_text(w, w->unknown));
        buffer_text(w->out, ",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\"vocab\":{");
    }
    for (uint64_t id = 0; id < w->tokens->count; id++) {
        const Slice text = gguf_string_next(&at);
        const int32_t type = type_of(w, id, text);
        if (!w->unigram && type == GGUF_TOKEN_UNUSED) continue;
        buffer_printf(w->out, w->unigram ? "%s\n[" : "%s\n", separator);
        put_token(w, text, type);
        separator = ",";
        if (!w->unigram) {
            buffer_printf(w->out, ":%llu", (unsigned long long)id);
            continue;
        }
        float score;
        memcpy(&score, w->scores->data + id * sizeof score, sizeof score);
        if (!isfinite(score))
            return fail(w->error, ERROR_FORMAT, "tokenizer.ggml.scores[%llu] is not finite", (unsigned long long)id);
        buffer_byte(w->out, ',');
        gguf_write_float(w->out, (double)score);
        buffer_byte(w->out, ']');
    }
    buffer_text(w->out, w->unigram ? "],\"byte_fallback\":false}\n" : "}}\n");
    return true;
}

bool gguf_encoder_tokenizer(Buffer *out, const GgufFile *file, bool unigram, Error *error) {
    Writer w = {.out = out, .file = file, .error = error, .unigram = unigram};
    if (!read_vocabulary(&w)) return false;
    buffer_text(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added_tokens(&w);
    if (unigram)
        put_unigram_steps(&w);
    else
        put_bert_steps(&w);
    put_post_processor(&w);
    if (!put_model(&w)) return false;
    buffer_text(out, "}\n");
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for tokenizer.json");
}
