/* tokenizer.json into tokenizer.ggml.*: byte-level vocabularies ("gpt2") with their merges and the name of their
 * pre-tokenizer, SentencePiece's BPE ("llama") with scores that give its merges; special tokens and chat templates. */
#include <stdio.h>
#include <string.h>

#include "import/export/internal.h"

enum { TOKENS_MAX = 1 << 22, TEMPLATE_BYTES_MAX = 16 << 20 };

typedef struct Piece {
    Slice text;
    int32_t type; /* 0: there is no such token */
    float score;
} Piece;

typedef struct Vocabulary {
    Export *e;
    const Json *root, *model, *settings; /* tokenizer.json, its model, tokenizer_config.json (nullable) */
    bool byte_level;
    int64_t count;
    Piece *pieces;
    Map by_text; /* → id */
} Vocabulary;

static bool refuse(Export *e, const char *what) {
    return fail(e->error, ERROR_UNSUPPORTED, "tokenizer.json: %s, which a GGUF file cannot say", what);
}

static bool text_is(const Json *object, const char *name, const char *text) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_STRING && slice_is(json_slice(value), text);
}

static bool is_true(const Json *object, const char *name, bool absent) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_BOOL ? value->boolean : absent;
}

/* --- Tokens ----------------------------------------------------------------------------------------------------- */

static bool is_byte(Slice text) { return text.size == 6 && slice_starts(text, SLICE("<0x")) && text.data[5] == '>'; }

static bool piece_put(Vocabulary *v, int64_t id, Slice text, int32_t type) {
    Error *error = v->e->error;
    if (id < 0 || id >= v->count)
        return fail(error, ERROR_FORMAT, "tokenizer.json: token %.*s has the id %lld, of %lld rows of the embedding",
            SLICE_SHOWN(text), (long long)id, (long long)v->count);
    v->pieces[id] = (Piece){text, type, 0};
    return map_put(&v->by_text, text, (uint64_t)id) || fail(error, ERROR_MEMORY, "no memory for the tokens");
}

static bool read_pieces(Vocabulary *v) {
    const Json *vocab = json_get(v->model, "vocab"), *added = json_get(v->root, "added_tokens");
    const Json *unknown = json_get(v->model, "unk_token");
    if (!vocab || vocab->type != JSON_OBJECT)
        return fail(v->e->error, ERROR_FORMAT, "tokenizer.json: model.vocab is missing");
    for (JSON_EACH_PAIR(key, id, vocab)) {
        const Slice text = json_slice(key);
        if (id->type != JSON_INTEGER) return fail(v->e->error, ERROR_FORMAT, "tokenizer.json: an id is not a number");
        const bool byte = !v->byte_level && is_byte(text);
        if (!piece_put(v, id->integer, text, byte ? GGUF_TOKEN_BYTE : GGUF_TOKEN_NORMAL)) return false;
    }
    for (const Json *token = added && added->type == JSON_ARRAY ? json_first(added) : NULL;
         token && token != added->end; token = json_next(token)) {
        const Json *id = json_get(token, "id"), *text = json_get(token, "content");
        if (!id || id->type != JSON_INTEGER || !text || text->type != JSON_STRING)
            return fail(v->e->error, ERROR_FORMAT, "tokenizer.json: an added token has no id or no content");
        const bool is_unknown = !v->byte_level && unknown && unknown->type == JSON_STRING &&
            slice_equal(json_slice(unknown), json_slice(text));
        const int32_t type = is_unknown        ? GGUF_TOKEN_UNKNOWN
            : is_true(token, "special", false) ? GGUF_TOKEN_CONTROL
                                               : GGUF_TOKEN_USER_DEFINED;
        if (!piece_put(v, id->integer, json_slice(text), type)) return false;
    }
    return true;
}

/* --- Merges ----------------------------------------------------------------------------------------------------- */

/* Both parts of a merge, which is "a b" or ["a", "b"]. */
static bool merge_parts(const Json *merge, Slice *left, Slice *right) {
    if (merge->type == JSON_ARRAY && merge->size == 2) {
        const Json *first = json_first(merge), *second = json_next(first);
        if (first->type != JSON_STRING || second->type != JSON_STRING) return false;
        *left = json_slice(first);
        *right = json_slice(second);
        return true;
    }
    if (merge->type != JSON_STRING || merge->size < 3) return false;
    const Slice text = json_slice(merge);
    const char *space = memchr(text.data + 1, ' ', text.size - 1);
    if (!space) return false;
    *left = (Slice){text.data, (size_t)(space - text.data)};
    *right = (Slice){space + 1, text.size - left->size - 1};
    return true;
}

static void put_slice(Export *e, Slice a, Slice b, Slice c) {
    const uint64_t size = a.size + b.size + c.size;
    buffer_append(&e->keys, &size, sizeof size);
    buffer_slice(&e->keys, a);
    buffer_slice(&e->keys, b);
    buffer_slice(&e->keys, c);
}

static const Json *merges_of(Vocabulary *v) {
    const Json *merges = json_get(v->model, "merges");
    if (merges && merges->type == JSON_ARRAY) return merges;
    fail(v->e->error, ERROR_FORMAT, "tokenizer.json: model.merges is missing");
    return NULL;
}

static bool fail_merge(Vocabulary *v) {
    return fail(v->e->error, ERROR_FORMAT, "tokenizer.json: a merge does not join two tokens into a third");
}

static bool put_merges(Vocabulary *v) {
    const Json *merges = merges_of(v);
    if (!merges) return false;
    export_array(v->e, "tokenizer.ggml.merges", GGUF_STRING, merges->size);
    for (JSON_EACH(merge, merges)) {
        Slice left, right;
        if (!merge_parts(merge, &left, &right)) return fail_merge(v);
        put_slice(v->e, left, SLICE(" "), right);
    }
    return true;
}

/* The earlier a piece is first made, the higher its score: merges by scores are those of the file again. */
static bool score_pieces(Vocabulary *v) {
    const Json *merges = merges_of(v);
    Buffer joined = {0};
    float next = 0;
    bool ok = merges;
    for (const Json *merge = ok ? json_first(merges) : NULL; ok && merge != merges->end; merge = json_next(merge)) {
        Slice left, right;
        uint64_t id;
        buffer_clear(&joined);
        ok = merge_parts(merge, &left, &right) || fail_merge(v);
        if (ok) {
            buffer_slice(&joined, left);
            buffer_slice(&joined, right);
            ok = joined.failed ? fail(v->e->error, ERROR_MEMORY, "no memory for a merge")
                               : map_get(&v->by_text, buffer_view(&joined), &id) || fail_merge(v);
        }
        if (ok && v->pieces[id].type == GGUF_TOKEN_NORMAL && v->pieces[id].score == 0) v->pieces[id].score = --next;
    }
    for (int64_t i = 0; ok && i < v->count; i++) {
        Piece *piece = &v->pieces[i];
        if (piece->type == GGUF_TOKEN_NORMAL && piece->score == 0) piece->score = next - 1; /* made of nothing */
        if (piece->type == GGUF_TOKEN_USER_DEFINED) piece->score = -1000;
    }
    buffer_free(&joined);
    return ok;
}

/* --- The pre-tokenizer ------------------------------------------------------------------------------------------ */

/* Files may have the ends of lines themselves in place of \\r and \\n. */
static bool pattern_equal(const Json *pattern, const char *known) {
    const Json *regex = json_get(pattern, "Regex");
    if (!regex || regex->type != JSON_STRING) return false;
    const Slice own = json_slice(regex);
    size_t at = 0;
    for (size_t i = 0; i < own.size; i++) {
        const char escaped = own.data[i] == '\r' ? 'r' : own.data[i] == '\n' ? 'n' : 0;
        if (escaped && known[at] == '\\' && known[at + 1] == escaped)
            at += 2;
        else if (!known[at] || known[at++] != own.data[i])
            return false;
    }
    return !known[at];
}

/* Whether a step of tokenizer.json is one of GGUF's (pre_tokenizers.c): JSON, or the pattern of a Split. */
static bool step_equal(Export *e, const Json *step, const char *known) {
    static const char *const compared[] = {"type", "individual_digits", "behavior"};
    Error ignored;
    if (known[0] != '{') {
        const bool invert = is_true(step, "invert", false); /* then what it does not match is removed: nothing */
        return text_is(step, "type", "Split") && pattern_equal(json_get(step, "pattern"), known) &&
            text_is(step, "behavior", invert ? "Removed" : "Isolated");
    }
    const Json *own = json_parse(&e->arena, slice_of(known), &ignored);
    for (size_t i = 0; own && i < COUNT_OF(compared); i++) {
        const Json *a = json_get(own, compared[i]), *b = json_get(step, compared[i]);
        if (!a) continue;
        if (!b || a->type != b->type) return false;
        if (a->type == JSON_BOOL ? a->boolean != b->boolean : !slice_equal(json_slice(a), json_slice(b))) return false;
    }
    const bool bytes = text_is(step, "type", "ByteLevel");
    return own &&
        (!bytes ||
            (is_true(step, "use_regex", true) == is_true(own, "use_regex", true) &&
                !is_true(step, "add_prefix_space", true)));
}

static bool pre_equal(Export *e, const GgufPre *pre, const Json *root) {
    const Json *normalizer = json_get(root, "normalizer"), *steps = json_get(root, "pre_tokenizer");
    const Json *list = json_get(steps, "pretokenizers");
    const bool nfc = text_is(normalizer, "type", "NFC");
    if (!steps || steps->type != JSON_OBJECT || pre->nfc != nfc) return false;
    const Json *parts = json_get(normalizer, "normalizers");
    if (!nfc && normalizer && normalizer->type != JSON_NULL && !(parts && parts->size == 0)) return false;
    if (pre->ignore_merges != is_true(json_get(root, "model"), "ignore_merges", false)) return false;
    const Json *step = list ? json_first(list) : steps, *end = list ? list->end : json_next(steps);
    bool cuts = false; /* ByteLevel with its own pattern, behind which none without it comes */
    for (int i = 0; i < GGUF_STEPS_MAX && pre->steps[i]; i++, step = json_next(step)) {
        if (step == end || !step_equal(e, step, pre->steps[i])) return false;
        cuts = cuts || text_is(step, "type", "ByteLevel");
    }
    if (cuts) return step == end;
    return step != end && text_is(step, "type", "ByteLevel") && !is_true(step, "use_regex", true) &&
        !is_true(step, "add_prefix_space", true) && json_next(step) == end;
}

/* The family's name if that fits, else the first that does. */
static bool put_pre(Vocabulary *v) {
    const char *usual = v->e->model->tokenizer.pre, *found = NULL;
    const GgufPre *pre;
    for (size_t i = 0; (pre = gguf_pre_at(i)); i++) {
        if (!pre_equal(v->e, pre, v->root)) continue;
        if (!found || (usual && strcmp(pre->name, usual) == 0)) found = pre->name;
    }
    if (!found) return refuse(v->e, "its normalizer and pre-tokenizer are none that has a name");
    export_string(v->e, "tokenizer.ggml.pre", slice_of(found));
    return true;
}

/* --- Special tokens and templates ------------------------------------------------------------------------------- */

/* A token's text is a string or the field content of an object. */
static bool token_id(const Vocabulary *v, const Json *token, uint32_t *id) {
    if (token && token->type == JSON_OBJECT) token = json_get(token, "content");
    uint64_t found;
    if (!token || token->type != JSON_STRING || !map_get(&v->by_text, json_slice(token), &found)) return false;
    *id = (uint32_t)found;
    return true;
}

static void put_special(Vocabulary *v, const char *name, const char *key, const char *field) {
    uint32_t id;
    const Json *own = field ? json_get(v->e->config, field) : NULL;
    if (own && own->type == JSON_ARRAY && own->size) own = json_first(own);
    if (token_id(v, json_get(v->settings, name), &id))
        export_u32(v->e, key, id);
    else if (own && own->type == JSON_INTEGER && own->integer >= 0 && own->integer < v->count)
        export_u32(v->e, key, (uint32_t)own->integer);
}

/* The template of the post-processor, which may be one of several. */
static const Json *template_of(const Json *processor) {
    if (text_is(processor, "type", "TemplateProcessing")) return json_get(processor, "single");
    const Json *list = json_get(processor, "processors");
    for (const Json *item = list && list->type == JSON_ARRAY ? json_first(list) : NULL; item && item != list->end;
         item = json_next(item))
        if (text_is(item, "type", "TemplateProcessing")) return json_get(item, "single");
    return NULL;
}

static void put_ends(Vocabulary *v) {
    const Json *list = template_of(json_get(v->root, "post_processor"));
    bool first = false, last = false, text = false;
    for (const Json *item = list && list->type == JSON_ARRAY ? json_first(list) : NULL; item && item != list->end;
         item = json_next(item)) {
        const bool special = json_get(item, "SpecialToken");
        first = first || (special && !text);
        last = last || (special && text);
        text = text || !special;
    }
    export_bool(v->e, "tokenizer.ggml.add_bos_token", first);
    export_bool(v->e, "tokenizer.ggml.add_eos_token", last);
}

static bool put_template_list(Vocabulary *v, const Json *list) {
    uint64_t others = 0;
    for (JSON_EACH(item, list)) others += !text_is(item, "name", "default");
    for (JSON_EACH(item, list)) {
        const Json *name = json_get(item, "name"), *text = json_get(item, "template");
        char key[128];
        if (!name || name->type != JSON_STRING || !text || text->type != JSON_STRING || name->size > 64)
            return fail(v->e->error, ERROR_FORMAT, "tokenizer_config.json: a chat template has no name or no text");
        snprintf(key, sizeof key, "tokenizer.chat_template.%.*s", SLICE_ARGS(json_slice(name)));
        const bool usual = slice_is(json_slice(name), "default");
        export_string(v->e, usual ? "tokenizer.chat_template" : key, json_slice(text));
    }
    if (others) export_array(v->e, "tokenizer.chat_templates", GGUF_STRING, others);
    for (JSON_EACH(item, list))
        if (!text_is(item, "name", "default"))
            put_slice(v->e, json_slice(json_get(item, "name")), (Slice){0}, (Slice){0});
    return true;
}

/* The file beside tokenizer_config.json, else what that has. */
static bool put_templates(Vocabulary *v) {
    char path[4096 + 64];
    Buffer text = {0};
    snprintf(path, sizeof path, "%s/chat_template.jinja", v->e->source);
    if (file_exists(path)) {
        const bool ok = file_read(path, TEMPLATE_BYTES_MAX, &text, v->e->error);
        if (ok) export_string(v->e, "tokenizer.chat_template", buffer_view(&text));
        buffer_free(&text);
        return ok;
    }
    const Json *own = json_get(v->settings, "chat_template");
    if (own && own->type == JSON_STRING) export_string(v->e, "tokenizer.chat_template", json_slice(own));
    return !own || own->type != JSON_ARRAY || put_template_list(v, own);
}

/* --- All of it -------------------------------------------------------------------------------------------------- */

/* Unused ids have names of their own, as llama.cpp wants no two alike. User-defined pieces have plain spaces. */
static bool put_pieces(Vocabulary *v) {
    Export *e = v->e;
    export_array(e, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)v->count);
    for (int64_t id = 0; id < v->count; id++) {
        const Piece *piece = &v->pieces[id];
        char unused[32];
        snprintf(unused, sizeof unused, "[PAD%lld]", (long long)id);
        Slice text = piece->type ? piece->text : slice_of(unused);
        Buffer plain = {0};
        for (size_t i = 0; piece->type == GGUF_TOKEN_USER_DEFINED && !v->byte_level && i < text.size; i++) {
            const bool mark = text.size - i >= 3 && memcmp(text.data + i, "\xE2\x96\x81", 3) == 0;
            buffer_byte(&plain, mark ? ' ' : text.data[i]);
            i += mark ? 2 : 0;
        }
        put_slice(e, plain.size ? buffer_view(&plain) : text, (Slice){0}, (Slice){0});
        const bool failed = plain.failed;
        buffer_free(&plain);
        if (failed) return fail(e->error, ERROR_MEMORY, "no memory for the tokens");
    }
    export_array(e, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)v->count);
    for (int64_t id = 0; id < v->count; id++) {
        const int32_t type = v->pieces[id].type ? v->pieces[id].type : GGUF_TOKEN_UNUSED;
        buffer_append(&e->keys, &type, sizeof type);
    }
    if (v->byte_level) return put_merges(v);
    export_array(e, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)v->count);
    for (int64_t id = 0; id < v->count; id++) buffer_append(&e->keys, &v->pieces[id].score, sizeof(float));
    return true;
}

/* SentencePiece marks the beginning of a text in the normalizer or, in newer files, in the pre-tokenizer. */
static bool put_prefix(Vocabulary *v) {
    const Json *normalizer = json_get(v->root, "normalizer"), *list = json_get(normalizer, "normalizers");
    const Json *pre = json_get(v->root, "pre_tokenizer");
    const bool metaspace = text_is(pre, "type", "Metaspace");
    bool prefix = metaspace && !text_is(pre, "prepend_scheme", "never"), replaces = metaspace;
    if (text_is(normalizer, "type", "Replace")) replaces = text_is(normalizer, "content", "\xE2\x96\x81");
    for (const Json *item = list && list->type == JSON_ARRAY ? json_first(list) : NULL; item && item != list->end;
         item = json_next(item)) {
        prefix = prefix || text_is(item, "type", "Prepend");
        replaces = replaces || text_is(item, "type", "Replace");
        if (!text_is(item, "type", "Prepend") && !text_is(item, "type", "Replace"))
            return refuse(v->e, "its normalizer is not SentencePiece's plain one");
    }
    if (!replaces) return refuse(v->e, "it is neither byte-level nor SentencePiece's");
    export_bool(v->e, "tokenizer.ggml.add_space_prefix", prefix);
    return true;
}

static bool export_vocabulary(Vocabulary *v) {
    Export *e = v->e;
    if (!text_is(v->model, "type", "BPE")) return refuse(e, "its model is not BPE");
    v->byte_level = !is_true(v->model, "byte_fallback", false);
    v->pieces = arena_alloc(&e->arena, (size_t)v->count, sizeof *v->pieces);
    if (!v->pieces || !map_reserve(&v->by_text, (size_t)v->count))
        return fail(e->error, ERROR_MEMORY, "no memory for %lld tokens", (long long)v->count);
    export_string(e, "tokenizer.ggml.model", v->byte_level ? SLICE("gpt2") : SLICE("llama"));
    if (!read_pieces(v) || !(v->byte_level ? put_pre(v) : put_prefix(v) && score_pieces(v))) return false;
    if (!put_pieces(v)) return false;
    put_special(v, "bos_token", "tokenizer.ggml.bos_token_id", "bos_token_id");
    put_special(v, "eos_token", "tokenizer.ggml.eos_token_id", "eos_token_id");
    put_special(v, "unk_token", "tokenizer.ggml.unknown_token_id", NULL);
    put_special(v, "pad_token", "tokenizer.ggml.padding_token_id", "pad_token_id");
    put_ends(v);
    return put_templates(v) && (!e->keys.failed || fail(e->error, ERROR_MEMORY, "no memory for the metadata"));
}

bool export_tokenizer(Export *e) {
    Vocabulary v = {.e = e};
    bool ok = true;
    v.root = export_read(e, "tokenizer.json", &ok);
    if (ok) v.settings = export_read(e, "tokenizer_config.json", &ok);
    if (!ok) return false;
    if (!v.root) {
        if (e->options->warn)
            e->options->warn(e->options->context, "there is no tokenizer.json: the GGUF file has no vocabulary");
        return true;
    }
    v.model = json_get(v.root, "model");
    for (int i = 0; i < e->tensor_count; i++)
        if (strcmp(e->tensors[i].name, "token_embd.weight") == 0) v.count = e->tensors[i].output->rows;
    if (v.count <= 0 || v.count > TOKENS_MAX)
        return fail(
            e->error, ERROR_LIMIT, "the embedding has %lld rows, at most %d can be", (long long)v.count, TOKENS_MAX);
    ok = export_vocabulary(&v);
    map_free(&v.by_text);
    return ok;
}
