#include "server/api/token_list.h"

#include "base/utf8.h"
#include "server/http/body.h"
#include "server/api/members.h"
#include "server/api/fields.h"
#include "server/api/inputs.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

enum {
    TEXT_BYTES_MAX = 4 << 20, /* of /tokenize: some seconds of one core, whatever it is */
    ANSWER_BYTES_MAX = 64 << 20
}; /* a token of a few bytes in a request may be hundreds in its answer */

/* The model that the body names; the only one there is needs no name. */
static ChatModel *take_model(Exchange *x, const Json *body, ApiError *error) {
    const Json *value = member_get(body, "model");
    Slice name = {0};
    ModelStatus only;
    if (!value && models_count(x->server->models) > 1) {
        api_missing("model", error);
        return NULL;
    }
    if (!value)
        name = slice_of(models_first(x->server->models, &only) ? only.name : "");
    else if (!api_string(value, "model", &name, error))
        return NULL;
    if (models_find(x->server->models, name) < 0) {
        model_unknown(x->server, name, error);
        return NULL;
    }
    return model_take(x, name, error);
}

static bool read_flag(const Json *body, const char *name, bool *flag, ApiError *error) {
    const Json *value = member_get(body, name);
    return !value || api_bool(value, name, flag, error);
}

/* ---- to tokens ---- */

/* A token that is no text of its own: its bytes. */
static void write_piece(const ChatModel *model, int32_t id, Buffer *out) {
    Buffer bytes = {0};
    if (!tokenizer_bytes(model->tokenizer, id, &bytes, NULL)) buffer_clear(&bytes);
    buffer_printf(out, "{\"id\":%d,\"piece\":", id);
    if (utf8_valid(buffer_view(&bytes))) {
        json_write_string(out, buffer_view(&bytes));
    } else {
        for (size_t i = 0; i < bytes.size; i++) buffer_printf(out, "%c%d", i ? ',' : '[', (unsigned char)bytes.data[i]);
        buffer_byte(out, ']');
    }
    buffer_byte(out, '}');
    buffer_free(&bytes);
}

/* A token's text; bytes that are no characters become U+FFFD. */
static void write_text(const ChatModel *model, int32_t id, Buffer *out) {
    Buffer bytes = {0};
    if (!tokenizer_bytes(model->tokenizer, id, &bytes, NULL)) buffer_clear(&bytes);
    json_write_string(out, buffer_view(&bytes));
    buffer_free(&bytes);
}

static void write_tokens(const ChatModel *model, const Tokens *tokens, bool pieces, bool texts, Buffer *out) {
    buffer_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < tokens->count; i++) {
        if (i) buffer_byte(out, ',');
        if (pieces)
            write_piece(model, tokens->ids[i], out);
        else
            json_write_integer(out, tokens->ids[i]);
    }
    buffer_text(out, "]");
    for (size_t i = 0; texts && i < tokens->count; i++) {
        buffer_text(out, i ? "," : ",\"token_strs\":[");
        write_text(model, tokens->ids[i], out);
    }
    if (texts && tokens->count) buffer_byte(out, ']');
    buffer_printf(out, ",\"count\":%zu,\"max_model_len\":%d}", tokens->count, chat_model_context(model));
}

static bool tokenize(Exchange *x, const Json *body, Buffer *out, ApiError *error) {
    const Json *content = member_get(body, "content") ? member_get(body, "content") : member_get(body, "prompt");
    bool special = !member_get(body, "content"), control = true, pieces = false,
         texts = false; /* the defaults of llama.cpp, and of vLLM */
    Slice text;
    if (!fields_read(NULL, API_TOKENIZE, body, error) || !read_flag(body, "add_special", &special, error) ||
        !read_flag(body, "add_special_tokens", &special, error) || !read_flag(body, "parse_special", &control, error) ||
        !read_flag(body, "with_pieces", &pieces, error) || !read_flag(body, "return_token_strs", &texts, error))
        return false;
    if (!content) return api_missing("content", error);
    if (!api_string(content, "content", &text, error)) return false;
    if (text.size > TEXT_BYTES_MAX)
        return api_fail(error, 400, "string_above_max_length", "content",
            "Invalid 'content': string too long. Expected at most %d bytes, but got %zu instead.", TEXT_BYTES_MAX,
            text.size);
    ChatModel *model = take_model(x, body, error);
    if (!model) return false;
    Tokens tokens = {0};
    Error why = {0};
    const ControlTokens mode = control ? CONTROL_RECOGNISED : CONTROL_AS_TEXT;
    bool ok =
        tokenizer_encode(model->tokenizer, text, mode, special, &tokens, &why) || input_refuse(&why, "content", error);
    if (ok) write_tokens(model, &tokens, pieces, texts, out);
    tokens_free(&tokens);
    models_release(x->server->models, model);
    return ok;
}

/* ---- and back ---- */

static bool detokenize(Exchange *x, const Json *body, Buffer *out, ApiError *error) {
    const Json *list = member_get(body, "tokens");
    if (!fields_read(NULL, API_DETOKENIZE, body, error)) return false;
    if (!list) return api_missing("tokens", error);
    ChatModel *model = take_model(x, body, error);
    if (!model) return false;
    Tokens tokens = {0};
    Buffer text = {.limit = ANSWER_BYTES_MAX};
    Error why = {0};
    bool ok = input_ids(list, "tokens", tokenizer_vocab(model->tokenizer), &tokens, error);
    if (ok)
        ok = tokenizer_decode(model->tokenizer, tokens.ids, tokens.count, false, &text, &why) ||
            input_refuse(&why, "tokens", error);
    if (ok) {
        buffer_text(out, "{\"content\":");
        json_write_string(out, buffer_view(&text));
        member_text("prompt", buffer_view(&text), out);
        buffer_byte(out, '}');
    }
    buffer_free(&text);
    tokens_free(&tokens);
    models_release(x->server->models, model);
    return ok;
}

static bool answer(Exchange *x, bool (*make)(Exchange *, const Json *, Buffer *, ApiError *)) {
    ApiError error = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    Buffer out = {.limit = ANSWER_BYTES_MAX};
    const Json *body = body_object(x, &arena, &error);
    bool ok = body && make(x, body, &out, &error);
    arena_free(&arena);
    if (ok && out.failed)
        ok = out.limited ? api_fail(&error, 400, "invalid_value", NULL, "The answer would be larger than %d bytes.",
                               ANSWER_BYTES_MAX)
                         : api_out_of_memory(&error);
    if (ok) return response_json(x, 200, &out);
    buffer_free(&out);
    return response_error(x, &error);
}

bool answer_tokenize(Exchange *x, Slice rest) { return answer(x, tokenize); }
bool answer_detokenize(Exchange *x, Slice rest) { return answer(x, detokenize); }
