/* tokenizer.json and tokenizer_config.json from tokenizer.ggml.*: the byte-level vocabularies ("gpt2", whose
 * pre-tokenizer has a name) and the SentencePiece ones ("llama", whose merges follow from the scores; "gemma4", whose
 * merges the file has); tokenizer_encoder.c has those of encoders. The aim is the ids that the model's own tokenizer
 * gives. Format: github.com/huggingface/tokenizers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/json.h"
#include "base/utf8.h"
#include "import/gguf/internal.h"

enum {
    TOKENS_MAX = 1 << 22,
    PIECE_BYTES_MAX = 4096,
    MERGE_BYTES_MAX = 1 << 29, /* total size of the merge results as text */
};

typedef struct Token {
    Slice text;
    float score;
    uint8_t type;
    bool in_model; /* belongs to the vocabulary of the BPE model, not only to the added tokens */
} Token;

typedef struct Merge {
    uint32_t left, right;               /* ids */
    uint32_t piece;                     /* result of the merge */
    uint32_t left_length, right_length; /* characters */
    float score;
} Merge;

typedef struct Vocabulary {
    GgufFile *file;
    const GgufTokenizer *rules; /* facts that the file lacks */
    Error *error;
    bool byte_level;   /* "gpt2" */
    bool merges_given; /* "gpt2", "gemma4" */
    uint32_t count;
    Token *tokens;
    Map by_text; /* → id, without the unused ones */
    size_t merge_count;
    Merge *merges;
} Vocabulary;

/* --- Reading the vocabulary ------------------------------------------------------------------------------------ */

static const GgufValue *array_of(const GgufFile *file, const char *key, GgufKind kind) {
    const GgufValue *value = gguf_value(file, key);
    return value && value->array && value->kind == kind ? value : NULL;
}

/* SentencePiece writes spaces as U+2581; converters store user-defined pieces with plain spaces. */
static bool spaces_mark(Vocabulary *v, Slice *text) {
    if (text->size > PIECE_BYTES_MAX || !memchr(text->data, ' ', text->size)) return true;
    char *marked = arena_alloc(&v->file->arena, text->size, 3);
    if (!marked) return false;
    size_t size = 0;
    for (size_t i = 0; i < text->size; i++) {
        if (text->data[i] == ' ') {
            memcpy(marked + size, "\xE2\x96\x81", 3);
            size += 3;
        } else {
            marked[size++] = text->data[i];
        }
    }
    *text = (Slice){marked, size};
    return true;
}

static bool token_add(Vocabulary *v, uint32_t id) {
    Token *token = &v->tokens[id];
    if (token->type < GGUF_TOKEN_NORMAL || token->type > GGUF_TOKEN_BYTE) {
        return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.token_type of token %u is %u", id, token->type);
    }
    if (token->type == GGUF_TOKEN_UNUSED) return true;
    if (!utf8_valid(token->text)) return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.tokens[%u] is not UTF-8", id);
    if (!v->byte_level && token->type == GGUF_TOKEN_USER_DEFINED && !spaces_mark(v, &token->text)) {
        return fail(v->error, ERROR_MEMORY, "no memory for the tokens");
    }
    uint64_t other;
    if (map_get(&v->by_text, token->text, &other)) {
        return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.tokens: %u and %u are the same", (uint32_t)other, id);
    }
    return map_put(&v->by_text, token->text, id) || fail(v->error, ERROR_MEMORY, "no memory for the tokens");
}

static bool tokens_read(Vocabulary *v) {
    const GgufValue *tokens = array_of(v->file, "tokenizer.ggml.tokens", GGUF_STRING);
    const GgufValue *types = array_of(v->file, "tokenizer.ggml.token_type", GGUF_I32);
    const GgufValue *scores = array_of(v->file, "tokenizer.ggml.scores", GGUF_F32);
    if (!tokens || tokens->count == 0 || tokens->count > TOKENS_MAX) {
        return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.tokens is not an array of 1 to %d strings", TOKENS_MAX);
    }
    if ((types && types->count != tokens->count) || (!types && gguf_value(v->file, "tokenizer.ggml.token_type"))) {
        return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.token_type is not one number per token");
    }
    if (!v->merges_given && (!scores || scores->count != tokens->count)) {
        return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.scores is not one number per token");
    }
    v->count = (uint32_t)tokens->count;
    v->tokens = arena_alloc(&v->file->arena, v->count, sizeof *v->tokens);
    if (!v->tokens || !map_reserve(&v->by_text, v->count))
        return fail(v->error, ERROR_MEMORY, "no memory for %u tokens", v->count);
    const uint8_t *at = tokens->data;
    for (uint32_t id = 0; id < v->count; id++) {
        Token *token = &v->tokens[id];
        int32_t type = GGUF_TOKEN_NORMAL;
        token->text = gguf_string_next(&at);
        if (types) memcpy(&type, types->data + (size_t)id * sizeof type, sizeof type);
        type = gguf_token_type(v->file, id, token->text, type);
        token->type = type >= GGUF_TOKEN_NORMAL && type <= GGUF_TOKEN_BYTE ? (uint8_t)type : 0;
        if (!v->merges_given) memcpy(&token->score, scores->data + (size_t)id * sizeof(float), sizeof(float));
        if (!token_add(v, id)) return false;
    }
    return true;
}

static bool token_is_added(const Token *token) {
    return token->type == GGUF_TOKEN_UNKNOWN || token->type == GGUF_TOKEN_CONTROL ||
        token->type == GGUF_TOKEN_USER_DEFINED;
}

/* Added tokens that follow the model's own without a gap stay out of its vocabulary, as in the originals: their ids
 * follow from the order. Others need an entry to keep their id, and in a late export all have one. */
static void model_choose(Vocabulary *v) {
    uint32_t end = 0;
    for (uint32_t id = 0; id < v->count; id++) {
        Token *token = &v->tokens[id];
        if (token->type != GGUF_TOKEN_NORMAL && token->type != GGUF_TOKEN_UNKNOWN && token->type != GGUF_TOKEN_BYTE)
            continue;
        token->in_model = true;
        end = id + 1;
    }
    bool gap = v->rules->late_export;
    for (uint32_t id = 0; id < v->count; id++) {
        Token *token = &v->tokens[id];
        if (token->type == GGUF_TOKEN_UNUSED) {
            gap = gap || id >= end;
        } else if (id < end || gap) {
            token->in_model = true;
        }
    }
}

/* --- Merges ---------------------------------------------------------------------------------------------------- */

static bool part_find(const Vocabulary *v, Slice text, uint32_t *id) {
    uint64_t found;
    if (!map_get(&v->by_text, text, &found)) return false;
    *id = (uint32_t)found;
    return true;
}

static bool merge_parse(Vocabulary *v, Slice text, Merge *merge, Buffer *joined) {
    const char *space = text.size > 1 ? memchr(text.data + 1, ' ', text.size - 1) : NULL;
    if (!space) return false;
    Slice left = {text.data, (size_t)(space - text.data)};
    Slice right = {space + 1, text.size - left.size - 1};
    buffer_clear(joined);
    buffer_slice(joined, left);
    buffer_slice(joined, right);
    return !joined->failed && part_find(v, left, &merge->left) && part_find(v, right, &merge->right) &&
        part_find(v, buffer_view(joined), &merge->piece);
}

static bool merges_read(Vocabulary *v) {
    const GgufValue *merges = array_of(v->file, "tokenizer.ggml.merges", GGUF_STRING);
    if (!merges) return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.merges is not an array of strings");
    if (merges->count > TOKENS_MAX) return fail(v->error, ERROR_LIMIT, "more than %d merges", TOKENS_MAX);
    v->merges = arena_alloc(&v->file->arena, (size_t)merges->count, sizeof *v->merges);
    if (!v->merges) return fail(v->error, ERROR_MEMORY, "no memory for the merges");
    const uint8_t *at = merges->data;
    Buffer joined = {0};
    bool ok = true;
    for (; ok && v->merge_count < merges->count; v->merge_count++) {
        Merge *merge = &v->merges[v->merge_count];
        Slice text = gguf_string_next(&at);
        ok = merge_parse(v, text, merge, &joined);
        if (!ok) {
            fail(v->error, ERROR_FORMAT, "tokenizer.ggml.merges[%zu] \"%.*s\" does not join two tokens into a third",
                v->merge_count, SLICE_SHOWN(text));
            break;
        }
        v->tokens[merge->left].in_model = v->tokens[merge->right].in_model = v->tokens[merge->piece].in_model = true;
    }
    buffer_free(&joined);
    return ok;
}

static bool merge_append(Vocabulary *v, size_t *capacity, Merge merge) {
    if (v->merge_count == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 1024;
        Merge *merges = realloc(v->merges, grown * sizeof *merges);
        if (!merges) return fail(v->error, ERROR_MEMORY, "no memory for the merges");
        v->merges = merges;
        *capacity = grown;
    }
    v->merges[v->merge_count++] = merge;
    return true;
}

static uint32_t characters(Slice text) {
    uint32_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += ((uint8_t)text.data[i] & 0xC0) != 0x80;
    return count;
}

/* For each token the longest other one that it begins with, or that it ends with, or GGUF_NESTS_IN_NONE. All that it
 * begins with are found from one to the next. */
typedef struct Ends {
    uint32_t *first, *last; /* [tokens] */
} Ends;

static void ends_close(Ends *ends) {
    free(ends->first);
    free(ends->last);
}

static bool ends_open(const Vocabulary *v, Ends *ends) {
    Slice *texts = malloc(v->count * sizeof *texts);
    *ends = (Ends){malloc(v->count * sizeof *ends->first), malloc(v->count * sizeof *ends->last)};
    bool ok = texts && ends->first && ends->last;
    for (uint32_t id = 0; ok && id < v->count; id++)
        texts[id] = v->tokens[id].type == GGUF_TOKEN_UNUSED ? (Slice){0} : v->tokens[id].text;
    ok = ok && gguf_nest(texts, v->count, false, ends->first) && gguf_nest(texts, v->count, true, ends->last);
    free(texts);
    if (ok) return true;
    ends_close(ends);
    return fail(v->error, ERROR_MEMORY, "no memory to cut %u tokens", v->count);
}

/* Each split of a piece into two pieces is a merge. */
static bool piece_split(Vocabulary *v, const Ends *ends, uint32_t id, size_t *capacity) {
    const Token *token = &v->tokens[id];
    uint32_t by_size[PIECE_BYTES_MAX + 1]; /* that it ends with */
    if (token->text.size > PIECE_BYTES_MAX) {
        return fail(v->error, ERROR_LIMIT, "tokenizer.ggml.tokens[%u] has more than %d bytes", id, PIECE_BYTES_MAX);
    }
    for (size_t i = 0; i <= token->text.size; i++) by_size[i] = GGUF_NESTS_IN_NONE;
    for (uint32_t at = ends->last[id]; at != GGUF_NESTS_IN_NONE; at = ends->last[at])
        by_size[v->tokens[at].text.size] = at;
    /* Converters overwrite the scores of added pieces; the originals have 0, above all others. */
    Merge merge = {.piece = id, .score = token->type == GGUF_TOKEN_USER_DEFINED ? 0 : token->score};
    for (uint32_t at = ends->first[id]; at != GGUF_NESTS_IN_NONE; at = ends->first[at]) {
        merge.left = at;
        merge.right = by_size[token->text.size - v->tokens[at].text.size];
        if (merge.right == GGUF_NESTS_IN_NONE) continue;
        merge.left_length = characters(v->tokens[merge.left].text);
        merge.right_length = characters(v->tokens[merge.right].text);
        if (!merge_append(v, capacity, merge)) return false;
    }
    return true;
}

static int merge_order(const Merge *a, const Merge *b) {
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->piece != b->piece) return a->piece < b->piece ? -1 : 1;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

static int merge_order_early(const void *a, const void *b) { return merge_order(a, b); }

static int merge_order_late(const void *a, const void *b) {
    const Merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_length != y->left_length) return x->left_length > y->left_length ? -1 : 1;
    if (x->right_length != y->right_length) return x->right_length > y->right_length ? -1 : 1;
    return merge_order(x, y);
}

static bool pieces_split(Vocabulary *v, const Ends *ends) {
    size_t capacity = 0, bytes = 0;
    bool late = v->rules->late_export;
    for (uint32_t id = 0; id < v->count; id++) {
        const Token *token = &v->tokens[id];
        if (token->score != token->score) return fail(v->error, ERROR_FORMAT, "tokenizer.ggml.scores[%u] is NaN", id);
        bool splits = token->type == GGUF_TOKEN_NORMAL || (late && token->type == GGUF_TOKEN_USER_DEFINED);
        if (!splits) continue;
        const size_t before = v->merge_count;
        if (!piece_split(v, ends, id, &capacity)) return false;
        bytes += (v->merge_count - before) * token->text.size;
        if (bytes > MERGE_BYTES_MAX)
            return fail(v->error, ERROR_LIMIT, "tokenizer.ggml.tokens has too many pieces that are made of others");
    }
    if (v->merge_count) {
        qsort(v->merges, v->merge_count, sizeof *v->merges, late ? merge_order_late : merge_order_early);
    }
    return true;
}

static bool merges_rebuild(Vocabulary *v) {
    Ends ends;
    if (!ends_open(v, &ends)) return false;
    const bool ok = pieces_split(v, &ends);
    ends_close(&ends);
    return ok;
}

/* --- Writing --------------------------------------------------------------------------------------------------- */

static bool special_token(const Vocabulary *v, const char *key, uint32_t *id) {
    int64_t value;
    if (!gguf_integer(v->file, key, &value) || value < 0 || value >= v->count) return false;
    *id = (uint32_t)value;
    return v->tokens[*id].type != GGUF_TOKEN_UNUSED;
}

static bool strips_right(const Vocabulary *v, const Token *token) {
    Slice text = token->text;
    if (!v->rules->control_strips_right || v->byte_level) return false;
    if (slice_is(text, "</s>")) return true;
    return token->type != GGUF_TOKEN_UNKNOWN && slice_starts(text, SLICE("<|")) && !slice_is(text, "<|endoftext|>");
}

static void put_added_tokens(const Vocabulary *v, Buffer *out) {
    const char *separator = "";
    buffer_text(out, "\"added_tokens\":[");
    for (uint32_t id = 0; id < v->count; id++) {
        const Token *token = &v->tokens[id];
        if (!token_is_added(token)) continue;
        buffer_printf(out, "%s\n{\"id\":%u,\"content\":", separator, id);
        json_write_string(out, token->text);
        buffer_printf(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":%s,\"normalized\":false,\"special\":%s}",
            strips_right(v, token) ? "true" : "false", token->type == GGUF_TOKEN_USER_DEFINED ? "false" : "true");
        separator = ",";
    }
    buffer_text(out, "],\n");
}

static void put_model(const Vocabulary *v, Buffer *out, bool ignore_merges) {
    uint32_t unknown;
    const char *separator = "";
    buffer_text(out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (!v->byte_level && special_token(v, "tokenizer.ggml.unknown_token_id", &unknown)) {
        json_write_string(out, v->tokens[unknown].text);
    } else {
        buffer_text(out, v->byte_level ? "null" : "\"<unk>\"");
    }
    buffer_printf(out,
        ",\"continuing_subword_prefix\":%s,\"end_of_word_suffix\":%s,\"fuse_unk\":%s,\"byte_fallback\":%s,"
        "\"ignore_merges\":%s,\n\"vocab\":{",
        "null", "null", v->byte_level ? "false" : "true", v->byte_level ? "false" : "true",
        ignore_merges ? "true" : "false");
    for (uint32_t id = 0; id < v->count; id++) {
        if (!v->tokens[id].in_model) continue;
        buffer_text(out, separator);
        json_write_string(out, v->tokens[id].text);
        buffer_printf(out, ":%u", id);
        separator = ",\n";
    }
    buffer_text(out, "},\n\"merges\":[");
    for (size_t i = 0; i < v->merge_count; i++) {
        buffer_text(out, i ? ",\n[" : "[");
        json_write_string(out, v->tokens[v->merges[i].left].text);
        buffer_byte(out, ',');
        json_write_string(out, v->tokens[v->merges[i].right].text);
        buffer_byte(out, ']');
    }
    buffer_text(out, "]}\n");
}

static void put_special(Buffer *out, Slice text, int type_id) {
    buffer_text(out, "{\"SpecialToken\":{\"id\":");
    json_write_string(out, text);
    buffer_printf(out, ",\"type_id\":%d}}", type_id);
}

/* One sequence of a template: BOS, the text, EOS, as far as they are added. */
static void put_sequence(Buffer *out, const Token *bos, const Token *eos, const char *name, int type_id) {
    if (bos) {
        put_special(out, bos->text, type_id);
        buffer_byte(out, ',');
    }
    buffer_printf(out, "{\"Sequence\":{\"id\":\"%s\",\"type_id\":%d}}", name, type_id);
    if (eos) {
        buffer_byte(out, ',');
        put_special(out, eos->text, type_id);
    }
}

static void put_template(const Vocabulary *v, Buffer *out, const Token *bos, const Token *eos) {
    const Token *used[2] = {bos, eos != bos ? eos : NULL};
    const char *separator = "";
    buffer_text(out, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_sequence(out, bos, eos, "A", 0);
    buffer_text(out, "],\"pair\":[");
    put_sequence(out, bos, eos, "A", 0);
    buffer_byte(out, ',');
    put_sequence(out, bos, eos, "B", 1);
    buffer_text(out, "],\"special_tokens\":{");
    for (size_t i = 0; i < COUNT_OF(used); i++) {
        if (!used[i]) continue;
        buffer_text(out, separator);
        json_write_string(out, used[i]->text);
        buffer_text(out, ":{\"id\":");
        json_write_string(out, used[i]->text);
        buffer_printf(out, ",\"ids\":[%u],\"tokens\":[", (uint32_t)(used[i] - v->tokens));
        json_write_string(out, used[i]->text);
        buffer_text(out, "]}");
        separator = ",";
    }
    buffer_text(out, "}}");
}

#define BYTE_LEVEL_PLAIN                                                                                               \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}"
/* Whether the file itself sets the flag to true. */
static bool gguf_bool_given(const Vocabulary *v, const char *key) {
    bool given = false;
    gguf_bool(v->file, key, &given);
    return given;
}

static void put_marker(const Vocabulary *v, Buffer *out, const char *name, uint32_t id) {
    buffer_printf(out, ",\"%s\":[", name);
    json_write_string(out, v->tokens[id].text);
    buffer_printf(out, ",%u]", id);
}

/* False: the file does not name the tokens. */
static bool put_marks(const Vocabulary *v, Buffer *out) {
    uint32_t bos, eos;
    if (!special_token(v, "tokenizer.ggml.bos_token_id", &bos) ||
        !special_token(v, "tokenizer.ggml.eos_token_id", &eos))
        return false;
    buffer_text(
        out, "\"post_processor\":{\"type\":\"RobertaProcessing\",\"trim_offsets\":true,\"add_prefix_space\":false");
    put_marker(v, out, "sep", eos);
    put_marker(v, out, "cls", bos);
    buffer_text(out, "},\n");
    return true;
}

static void put_post_processor(const Vocabulary *v, Buffer *out, bool bos_default) {
    uint32_t id;
    bool add_bos = bos_default, add_eos = false;
    gguf_bool(v->file, "tokenizer.ggml.add_bos_token", &add_bos);
    gguf_bool(v->file, "tokenizer.ggml.add_eos_token", &add_eos);
    const Token *bos = add_bos && special_token(v, "tokenizer.ggml.bos_token_id", &id) ? &v->tokens[id] : NULL;
    const Token *eos = add_eos && special_token(v, "tokenizer.ggml.eos_token_id", &id) ? &v->tokens[id] : NULL;
    if (add_bos && !bos && gguf_bool_given(v, "tokenizer.ggml.add_bos_token"))
        log_warn(
            "the GGUF file asks for a token at the beginning of texts and names none of its vocabulary: texts begin "
            "without one");
    bool template = bos || eos;
    buffer_text(out, "\"post_processor\":");
    if (v->byte_level && template) buffer_text(out, "{\"type\":\"Sequence\",\"processors\":[" BYTE_LEVEL_PLAIN ",");
    if (template) put_template(v, out, bos, eos);
    if (v->byte_level && template) buffer_text(out, "]}");
    if (!template) buffer_text(out, v->byte_level ? BYTE_LEVEL_PLAIN : "null");
    buffer_text(out, ",\n");
}

static void put_sentencepiece(const Vocabulary *v, Buffer *out) {
    static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}";
    static const char restore[] =
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}";
    bool prefix = !v->rules->no_space_prefix && !v->merges_given;
    gguf_bool(v->file, "tokenizer.ggml.add_space_prefix", &prefix);
    buffer_text(out, "\"normalizer\":");
    if (prefix) {
        buffer_printf(out,
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},%s]}",
            replace);
    } else {
        buffer_text(out, replace);
    }
    buffer_printf(out, ",\n\"pre_tokenizer\":null,\n\"decoder\":%s%s]},\n", restore,
        prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
}

static bool tokenizer_write(Vocabulary *v, Buffer *out) {
    if (!tokens_read(v)) return false;
    const GgufPre *pre = v->byte_level ? gguf_pre_find(v->file, v->rules, v->error) : NULL;
    if (v->byte_level && !pre) return false;
    model_choose(v);
    if (v->merges_given ? !merges_read(v) : !merges_rebuild(v)) return false;
    buffer_text(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added_tokens(v, out);
    if (pre) {
        gguf_pre_write(out, pre);
    } else {
        put_sentencepiece(v, out);
    }
    if (!pre || !pre->marks || !put_marks(v, out)) put_post_processor(v, out, !pre || pre->add_bos);
    put_model(v, out, pre && pre->ignore_merges);
    buffer_text(out, "}\n");
    return !out->failed || fail(v->error, ERROR_MEMORY, "no memory for tokenizer.json");
}

bool gguf_tokenizer(Buffer *out, GgufFile *file, const GgufTokenizer *rules, Error *error) {
    Slice model;
    if (!gguf_string(file, "tokenizer.ggml.model", &model)) {
        return fail(error, ERROR_NOT_FOUND, "tokenizer.ggml.model is missing");
    }
    if (slice_is(model, "bert") || slice_is(model, "t5"))
        return gguf_encoder_tokenizer(out, file, slice_is(model, "t5"), error);
    Vocabulary v = {.file = file, .rules = rules, .error = error, .byte_level = slice_is(model, "gpt2")};
    v.merges_given = v.byte_level || slice_is(model, "gemma4");
    if (!v.merges_given && !slice_is(model, "llama")) {
        return fail(error, ERROR_UNSUPPORTED, "tokenizer.ggml.model %.*s cannot be converted", SLICE_SHOWN(model));
    }
    bool ok = tokenizer_write(&v, out);
    if (!v.merges_given) free(v.merges);
    map_free(&v.by_text);
    return ok;
}
