/* The debug instruments for tokenizers. */
#include "text/tokenizer/debug.h"

#include <time.h>

#include "base/json.h"

static bool get_flag(const Json *object, const char *name, bool fallback, bool *flag, Error *error) {
    const Json *node = json_get(object, name);
    *flag = fallback;
    if (!node) return true;
    if (node->type != JSON_BOOL)
        return fail(error, ERROR_USAGE, "\"%s\" must be true or false, not %s", name, json_type_name(node));
    *flag = node->boolean;
    return true;
}

static double processor_seconds(void) {
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0 ? (double)now.tv_sec + (double)now.tv_nsec * 1e-9 : 0;
}

/* Many texts, one after the other, for the speed. */
static bool texts_answer(const Tokenizer *t, const Json *texts, ControlTokens control, Buffer *out, Error *error) {
    Tokens tokens = {0};
    size_t count = 0;
    bool ok = texts->type == JSON_ARRAY || fail(error, ERROR_USAGE, "\"texts\" must be an array");
    const double start = processor_seconds();
    for (const Json *text = json_first(texts); ok && text != texts->end; text = json_next(text)) {
        tokens.count = 0;
        ok = text->type == JSON_STRING ? tokenizer_encode(t, json_slice(text), control, false, &tokens, error)
                                       : fail(error, ERROR_USAGE, "\"texts\" must hold strings");
        count += tokens.count;
    }
    buffer_printf(out, "{\"count\":%zu,\"seconds\":", count);
    json_write_number(out, processor_seconds() - start);
    buffer_byte(out, '}');
    tokens_free(&tokens);
    return ok;
}

static bool tokens_answer(const Tokenizer *t, const Json *request, Buffer *out, Error *error) {
    const Json *text = json_get(request, "text"), *texts = json_get(request, "texts");
    bool special, bos;
    if (texts)
        return get_flag(request, "special", true, &special, error) &&
            texts_answer(t, texts, special ? CONTROL_RECOGNISED : CONTROL_AS_TEXT, out, error);
    if (!text || text->type != JSON_STRING)
        return fail(error, ERROR_USAGE, "\"text\" must be a string, not %s", json_type_name(text));
    if (!get_flag(request, "special", true, &special, error) || !get_flag(request, "bos", false, &bos, error))
        return false;
    const Json *pair = json_get(request, "pair");
    size_t types = 0;
    Tokens tokens = {0};
    bool ok = pair && pair->type == JSON_STRING
        ? tokenizer_encode_pair(t, json_slice(text), json_slice(pair), &tokens, &types, error)
        : tokenizer_encode(t, json_slice(text), special ? CONTROL_RECOGNISED : CONTROL_AS_TEXT, bos, &tokens, error);
    if (pair) buffer_printf(out, "{\"types\":%zu,\"ids\":[", types);
    if (!pair) buffer_text(out, "{\"ids\":[");
    for (size_t i = 0; ok && i < tokens.count; i++) {
        if (i) buffer_byte(out, ',');
        json_write_integer(out, tokens.ids[i]);
    }
    buffer_text(out, "]}");
    tokens_free(&tokens);
    return ok;
}

static bool get_ids(const Json *request, Tokens *tokens, Error *error) {
    const Json *ids = json_get(request, "ids");
    if (!ids || ids->type != JSON_ARRAY)
        return fail(error, ERROR_USAGE, "\"ids\" must be an array, not %s", json_type_name(ids));
    for (JSON_EACH(id, ids)) {
        bool valid = id->type == JSON_INTEGER && id->integer >= 0 && id->integer <= INT32_MAX;
        if (!valid) return fail(error, ERROR_USAGE, "\"ids\" must hold whole numbers");
        if (!tokens_push(tokens, (int32_t)id->integer)) return fail(error, ERROR_MEMORY, "no memory for ids");
    }
    return true;
}

static bool write_pieces(const Tokenizer *t, const Tokens *ids, bool skip_special, Buffer *out, Error *error) {
    Detokenizer *detokenizer = detokenizer_new(t, skip_special, error);
    if (!detokenizer) return false;
    Buffer piece = {0};
    bool ok = true;
    buffer_text(out, "{\"pieces\":[");
    for (size_t i = 0; i <= ids->count && ok; i++) {
        buffer_clear(&piece);
        ok = i < ids->count ? detokenizer_push(detokenizer, ids->ids[i], &piece, error)
                            : detokenizer_finish(detokenizer, &piece, error);
        if (i) buffer_byte(out, ',');
        json_write_string(out, buffer_view(&piece));
    }
    buffer_text(out, "]}");
    buffer_free(&piece);
    detokenizer_free(detokenizer);
    return ok;
}

static bool detokens_answer(const Tokenizer *t, const Json *request, Buffer *out, Error *error) {
    bool skip_special, stream;
    if (!get_flag(request, "skip_special", false, &skip_special, error) ||
        !get_flag(request, "stream", false, &stream, error))
        return false;
    Tokens ids = {0};
    Buffer text = {0};
    bool ok = get_ids(request, &ids, error);
    if (ok && stream) {
        ok = write_pieces(t, &ids, skip_special, out, error);
    } else if (ok) {
        ok = tokenizer_decode(t, ids.ids, ids.count, skip_special, &text, error);
        buffer_text(out, "{\"text\":");
        json_write_string(out, buffer_view(&text));
        buffer_byte(out, '}');
    }
    buffer_free(&text);
    tokens_free(&ids);
    return ok;
}

typedef bool (*Answer)(const Tokenizer *t, const Json *request, Buffer *out, Error *error);

static bool answer_line(const Tokenizer *t, Slice json_line, Answer answer, Buffer *out, Error *error) {
    Arena arena = {0};
    size_t before = out->size;
    const Json *request = json_parse(&arena, json_line, error);
    bool ok = request && answer(t, request, out, error);
    if (ok && out->failed) ok = fail(error, buffer_failure(out), "no room for the answer");
    if (!ok) out->size = before; /* nothing half written */
    arena_free(&arena);
    return ok;
}

bool text_debug_tokens(const Tokenizer *t, Slice json_line, Buffer *out, Error *error) {
    return answer_line(t, json_line, tokens_answer, out, error);
}
bool text_debug_detokens(const Tokenizer *t, Slice json_line, Buffer *out, Error *error) {
    return answer_line(t, json_line, detokens_answer, out, error);
}
