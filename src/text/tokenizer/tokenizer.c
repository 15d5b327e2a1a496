/* Opening a tokenizer, and encoding: added tokens are cut out of the text, what is between them is normalized, searched
 * for the added tokens that are matched after normalizing, pre-tokenized and merged. */
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/tokenizer/internal.h"
#include "text/tokenizer/read.h"
#include "text/unicode/unicode.h"

enum {
    CONFIG_BYTES_MAX = 64 << 20,
    REGEX_STEPS_MIN = 10000000, /* of patterns that are not matched by hand, per call … */
    REGEX_STEPS_PER_BYTE = 500, /* … and for each byte of the text */
};

/* --- Opening ---------------------------------------------------------------------------------------------------- */

static bool path_join(char *path, size_t size, const char *directory, const char *name, Error *error) {
    int length = snprintf(path, size, "%s/%s", directory, name);
    return (length > 0 && (size_t)length < size) || fail(error, ERROR_LIMIT, "the path %.100s… is too long", directory);
}

/* The strings of chat_template: one, or a list of {"name", "template"}. */
static void mark_templates(Tokenizer *t, const Json *template) {
    if (!template) return;
    if (template->type == JSON_STRING) added_mark_control(t, json_slice(template));
    if (template->type != JSON_ARRAY) return;
    for (JSON_EACH(named, template)) {
        const Json *source = json_get(named, "template");
        if (source && source->type == JSON_STRING) added_mark_control(t, json_slice(source));
    }
}

static bool mark_template_files(Tokenizer *t, const char *directory, Error *error) {
    static const char *const names[] = {"chat_template.jinja", "chat_template.json"};
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(names) && ok; i++) {
        char path[4096];
        ok = path_join(path, sizeof path, directory, names[i], error);
        if (!ok || !file_exists(path)) continue;
        Buffer source = {0};
        ok = file_read(path, CONFIG_BYTES_MAX, &source, error);
        /* The JSON file holds the source escaped; control tokens need no escapes. */
        if (ok) added_mark_control(t, buffer_view(&source));
        buffer_free(&source);
    }
    return ok;
}

/* Some checkpoints ask for the token that begins a text in their configuration alone. */
static bool apply_bos(Tokenizer *t, const Json *config, Error *error) {
    const Json *wanted = json_get(config, "add_bos_token"), *bos = json_get(config, "bos_token");
    if (!wanted || wanted->type != JSON_BOOL || !wanted->boolean || t->prefix_count || t->suffix_count) return true;
    if (bos && bos->type == JSON_OBJECT) bos = json_get(bos, "content");
    if (!bos || bos->type != JSON_STRING) return true;
    int32_t id;
    if (!tokenizer_id(t, json_slice(bos), &id)) {
        return fail(error, ERROR_FORMAT, "tokenizer_config.json: bos_token \"%.*s\" is not in the vocabulary",
            SLICE_ARGS(json_slice(bos)));
    }
    t->prefix[t->prefix_count++] = id;
    return true;
}

static bool build(Tokenizer *t, const TokenizerFile *file, const Json *config, Error *error) {
    if (!normalizer_build(&t->normalizer, &t->arena, file->normalizer, error)) return false;
    if (!pretokenizer_build(&t->pre, &t->arena, file->pre_tokenizer, t->bpe.by_bytes, error)) return false;
    if (!post_processor_build(t, file->post_processor, error)) return false;
    if (!decoder_build(&t->decoder, &t->arena, file->decoder, error)) return false;
    if (!added_build(t, file->added_tokens, config, error)) return false;
    for (size_t i = 0; i < t->prefix_count + t->suffix_count; i++) {
        int32_t id = i < t->prefix_count ? t->prefix[i] : t->suffix[i - t->prefix_count];
        if (id >= t->vocab) return fail(error, ERROR_FORMAT, "post_processor: the id %d is not in the vocabulary", id);
    }
    return true;
}

static bool parse_into(Tokenizer *t, Slice json, const Json *config, Arena *arena, Error *error) {
    TokenizerFile file = {0};
    if (!json.size) return fail(error, ERROR_FORMAT, "the file is empty");
    if (!tokenizer_read(json, pretokenizer_by_bytes, arena, &file, &t->bpe, error) || !build(t, &file, config, error))
        return false;
    mark_templates(t, json_get(config, "chat_template"));
    return apply_bos(t, config, error);
}

Tokenizer *tokenizer_parse(Slice json, Slice config, Error *error) {
    Arena arena = {0};
    Tokenizer *t = calloc(1, sizeof *t);
    const Json *settings = t && config.size ? json_parse(&arena, config, error) : NULL;
    bool ok = t || fail(error, ERROR_MEMORY, "no memory for a tokenizer");
    if (ok && config.size && !settings) ok = fail_while(error, "tokenizer_config.json");
    ok = ok && parse_into(t, json, settings, &arena, error);
    arena_free(&arena);
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}

Tokenizer *tokenizer_open(const char *directory, Error *error) {
    char path[4096], config_path[4096];
    if (!path_join(path, sizeof path, directory, "tokenizer.json", error)) return NULL;
    if (!path_join(config_path, sizeof config_path, directory, "tokenizer_config.json", error)) return NULL;
    Buffer config = {0};
    FileMap map = {0};
    Tokenizer *t = NULL;
    bool ok = !file_exists(config_path) || file_read(config_path, CONFIG_BYTES_MAX, &config, error);
    if (ok && file_map(&map, path, error)) {
        t = tokenizer_parse((Slice){(const char *)map.data, map.size}, buffer_view(&config), error);
        ok = t || fail_while(error, "%s", path);
        if (ok && file_damaged(&map)) ok = fail(error, ERROR_IO, "%s changed while it was read", path);
        ok = ok && mark_template_files(t, directory, error);
    }
    file_unmap(&map);
    buffer_free(&config);
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    normalizer_free(&t->normalizer);
    for (size_t i = 0; i < t->pre.count; i++) finder_free(&t->pre.steps[i].finder);
    for (size_t i = 0; i < t->decoder.count; i++) finder_free(&t->decoder.steps[i].finder);
    added_index_free(&t->raw);
    added_index_free(&t->normalized);
    free(t->id_flags);
    arena_free(&t->arena);
    free(t);
}

/* --- Tokens ------------------------------------------------------------------------------------------------------- */

bool tokens_reserve(Tokens *tokens, size_t more) {
    if (tokens->capacity - tokens->count >= more) return true;
    size_t capacity = tokens->capacity ? tokens->capacity : 64;
    while (capacity - tokens->count < more) {
        if (!size_mul(capacity, 2, &capacity)) return false;
    }
    size_t bytes;
    int32_t *ids = size_mul(capacity, sizeof *ids, &bytes) ? realloc(tokens->ids, bytes) : NULL;
    if (!ids) return false;
    tokens->ids = ids;
    tokens->capacity = capacity;
    return true;
}

bool tokens_push(Tokens *tokens, int32_t id) {
    if (tokens->count == tokens->capacity && !tokens_reserve(tokens, 1)) return false;
    tokens->ids[tokens->count++] = id;
    return true;
}

void tokens_free(Tokens *tokens) {
    free(tokens->ids);
    *tokens = (Tokens){0};
}

/* --- Encoding ----------------------------------------------------------------------------------------------------- */

typedef enum Policy { POLICY_ALL, POLICY_NO_SPECIAL, POLICY_SPANS } Policy;

typedef struct Encoder {
    const Tokenizer *t;
    Policy policy;
    const uint8_t *seen; /* SPANS: by added token: the template's text of this call holds it */
    RegexWork regex;
    PreWork pre;
    NormalText normal;
    Tokens *out;
    Error *error;
} Encoder;

enum { ORIGIN_DATA = 0, ORIGIN_TEMPLATE = 1 };

static void encoder_free(Encoder *encoder) {
    regex_work_free(&encoder->regex);
    pre_work_free(&encoder->pre);
    normal_text_free(&encoder->normal);
}

static bool no_memory(Error *error) { return fail(error, ERROR_MEMORY, "no memory to tokenize"); }

static size_t character_before(Slice text, size_t at, uint32_t *code) {
    size_t start = at - 1;
    while (start > 0 && ((uint8_t)text.data[start] & 0xC0) == 0x80) start--;
    utf8_decode(text.data + start, at - start, code);
    return start;
}

/* Neither neighbour of [start, end) is a word character. */
static bool stands_alone(Slice text, size_t start, size_t end) {
    uint32_t code;
    if (start > 0) {
        character_before(text, start, &code);
        if (unicode_is_word(code)) return false;
    }
    if (end == text.size) return true;
    utf8_decode(text.data + end, text.size - end, &code);
    return !unicode_is_word(code);
}

static size_t space_before(Slice text, size_t at) {
    uint32_t code;
    while (at > 0) {
        size_t start = character_before(text, at, &code);
        if (!unicode_is_white_space(code)) break;
        at = start;
    }
    return at;
}

static size_t space_behind(Slice text, size_t at) {
    uint32_t code;
    while (at < text.size) {
        int length = utf8_decode(text.data + at, text.size - at, &code);
        if (length < 0 || !unicode_is_white_space(code)) break;
        at += (size_t)length;
    }
    return at;
}

static bool is_control(const Encoder *encoder, const AddedToken *token) {
    return token->control || encoder->seen[token - encoder->t->added];
}

/* The longest added token at `at`, or −1. A control token does not reach over a seam: what is before the seam counts.
 */
static int32_t match_added(
    const Encoder *encoder, const AddedIndex *index, Slice text, const uint8_t *origin, size_t at, size_t *end) {
    int32_t place = added_index_match(index, text, at, end);
    if (place < 0 || !origin || !is_control(encoder, &encoder->t->added[place])) return place;
    const uint8_t *seam = memchr(origin + at, origin[at] == ORIGIN_DATA ? ORIGIN_TEMPLATE : ORIGIN_DATA, *end - at);
    return seam ? added_index_match(index, (Slice){text.data, (size_t)(seam - origin)}, at, end) : place;
}

static bool is_allowed(const Encoder *encoder, const AddedToken *token, const uint8_t *origin, size_t start) {
    if (encoder->policy == POLICY_ALL) return true;
    if (encoder->policy == POLICY_NO_SPECIAL) return !token->special;
    return !is_control(encoder, token) || (origin && origin[start] == ORIGIN_TEMPLATE);
}

typedef bool (*GapFunction)(Encoder *encoder, Slice gap, const uint8_t *origin, bool first);

/* Cuts the index's tokens out of text; what is between them goes to gap. */
static bool split_added(
    Encoder *encoder, const AddedIndex *index, Slice text, const uint8_t *origin, bool first, GapFunction gap) {
    size_t done = 0, from = 0;
    while (index->edges && from < text.size) {
        if (!index->first[(uint8_t)text.data[from]]) {
            from++;
            continue;
        }
        size_t start = from, end;
        int32_t place = match_added(encoder, index, text, origin, from, &end);
        if (place < 0) {
            from++;
            continue;
        }
        const AddedToken *token = &encoder->t->added[place];
        from = end; /* a match that does not count is text as a whole */
        if (!is_allowed(encoder, token, origin, start)) continue;
        if (token->single_word && !stands_alone(text, start, end)) continue;
        if (token->left) start = space_before(text, start);
        if (start < done) start = done;
        if (token->right) end = space_behind(text, end);
        if (start > done) {
            Slice piece = {text.data + done, start - done};
            if (!gap(encoder, piece, origin ? origin + done : NULL, first && done == 0)) return false;
        }
        if (!tokens_push(encoder->out, token->id)) return no_memory(encoder->error);
        done = end;
        if (from < end) from = end;
    }
    if (done == text.size) return true;
    return gap(encoder, (Slice){text.data + done, text.size - done}, origin ? origin + done : NULL, first && done == 0);
}

static bool encode_normalized(Encoder *encoder, Slice text, const uint8_t *origin, bool first) {
    (void)origin;
    return pretokenize(&encoder->t->pre, &encoder->t->bpe, &encoder->pre, text, first, encoder->out, encoder->error);
}

static bool encode_raw(Encoder *encoder, Slice text, const uint8_t *origin, bool first) {
    const Tokenizer *t = encoder->t;
    if (!t->normalized.edges) origin = NULL; /* nothing will ask */
    if (!normalizer_run(&t->normalizer, &encoder->normal, &encoder->regex, &text, &origin, encoder->error))
        return false;
    if (!t->normalized.edges) return encode_normalized(encoder, text, origin, first);
    return split_added(encoder, &t->normalized, text, origin, first, encode_normalized);
}

static bool encode_text(Encoder *encoder, Slice text, const uint8_t *origin) {
    if (!utf8_valid(text)) return fail(encoder->error, ERROR_FORMAT, "the text to tokenize is not UTF-8");
    encoder->regex.steps = REGEX_STEPS_MIN + (uint64_t)text.size * REGEX_STEPS_PER_BYTE;
    encoder->pre.regex = &encoder->regex;
    return split_added(encoder, &encoder->t->raw, text, origin, true, encode_raw);
}

static bool push_all(Tokens *out, const int32_t *ids, size_t count, Error *error) {
    for (size_t i = 0; i < count; i++) {
        if (!tokens_push(out, ids[i])) return no_memory(error);
    }
    return true;
}

bool tokenizer_encode(const Tokenizer *t, Slice text, ControlTokens control, bool bos, Tokens *out, Error *error) {
    Encoder encoder = {
        .t = t, .policy = control == CONTROL_AS_TEXT ? POLICY_NO_SPECIAL : POLICY_ALL, .out = out, .error = error};
    bool ok = !bos || push_all(out, t->prefix, t->prefix_count, error);
    ok = ok && encode_text(&encoder, text, NULL);
    ok = ok && (!bos || push_all(out, t->suffix, t->suffix_count, error));
    encoder_free(&encoder);
    return ok;
}

/* The added tokens in the template's own text: not white space, so that they mean something there. */
static void note_template_tokens(const Tokenizer *t, const AddedIndex *index, Slice text, uint8_t *seen) {
    for (size_t at = 0; index->edges && at < text.size;) {
        size_t end;
        int32_t place = index->first[(uint8_t)text.data[at]] ? added_index_match(index, text, at, &end) : -1;
        if (place < 0) {
            at++;
            continue;
        }
        Slice content = t->added[place].content;
        if (space_behind(content, 0) < content.size) seen[place] = 1;
        at = end;
    }
}

bool tokenizer_encode_spans(const Tokenizer *t, const Span *spans, size_t count, Tokens *out, Error *error) {
    Buffer joined = {0}, origin = {0};
    uint8_t *seen = calloc(t->added_count ? t->added_count : 1, 1);
    bool ok = seen;
    size_t size = 0;
    for (size_t i = 0; i < count; i++) size += spans[i].text.size;
    ok = ok && buffer_reserve(&joined, size) && buffer_reserve(&origin, size);
    for (size_t i = 0; ok && i < count; i++) {
        Slice text = spans[i].text;
        if (!text.size) continue;
        buffer_slice(&joined, text);
        memset(origin.data + origin.size, spans[i].from_template ? ORIGIN_TEMPLATE : ORIGIN_DATA, text.size);
        origin.size += text.size;
        if (!spans[i].from_template) continue;
        note_template_tokens(t, &t->raw, text, seen);
        note_template_tokens(t, &t->normalized, text, seen);
    }
    if (!ok || joined.failed) ok = no_memory(error);
    Encoder encoder = {.t = t, .policy = POLICY_SPANS, .seen = seen, .out = out, .error = error};
    ok = ok && encode_text(&encoder, buffer_view(&joined), (const uint8_t *)origin.data);
    encoder_free(&encoder);
    buffer_free(&joined);
    buffer_free(&origin);
    free(seen);
    return ok;
}

/* --- Questions ---------------------------------------------------------------------------------------------------- */

int tokenizer_vocab(const Tokenizer *t) { return t->vocab; }

bool tokenizer_is_special(const Tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab && t->id_flags[id] & ID_SPECIAL;
}

static bool model_id(const Bpe *bpe, Slice token, int32_t *id) {
    if (!token.size || token.size > BPE_TOKEN_BYTES_MAX) return false;
    if (!bpe->by_bytes) {
        *id = bpe_find(bpe, token.data, token.size, false);
        return *id >= 0;
    }
    char small[256], *bytes = token.size <= sizeof small ? small : malloc(token.size);
    size_t size;
    bool alphabet = bytes && byte_level_read(token, bytes, &size);
    *id = alphabet ? bpe_find(bpe, bytes, size, false) : bpe_find(bpe, token.data, token.size, true);
    if (bytes != small) free(bytes);
    return *id >= 0;
}

bool tokenizer_id(const Tokenizer *t, Slice token, int32_t *id) {
    if (model_id(&t->bpe, token, id)) return true;
    for (size_t i = 0; t->id_flags && i < t->added_count; i++) {
        if (!slice_equal(t->added[i].content, token)) continue;
        *id = t->added[i].id;
        return true;
    }
    return false;
}
