/* Reference: OpenAI's OpenAPI document 2.3.0 (CreateEmbeddingRequest, CreateEmbeddingResponse); Ollama's docs/api.md.
 */
#include "server/api/embeddings.h"

#include "base/clock.h"
#include "chat/embedding.h"
#include "server/http/body.h"
#include "server/api/members.h"
#include "server/api/endpoint.h"
#include "server/api/exchange_batch.h"
#include "server/api/fields.h"
#include "server/api/inputs.h"
#include "server/admin/metrics.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

enum { ANSWER_BYTES_MAX = 256 << 20 };

typedef struct Embedding {
    Api api;
    ChatModel *model;
    Tokens *inputs;
    int count, dimensions;
    int64_t tokens;
    bool base64;
    float *vectors; /* [count, dimensions] */
} Embedding;

/* ---- the inputs ---- */

static bool take_input(void *context, const Json *value, const char *param, ApiError *error) {
    Embedding *e = context;
    const int most = chat_model_context(e->model);
    Tokens *tokens = &e->inputs[e->count++];
    Slice text;
    Error why = {0};
    if (value->type == JSON_ARRAY) {
        if (!input_ids(value, param, chat_model_vocab(e->model), tokens, error)) return false;
    } else {
        if (!api_string(value, param, &text, error) || !completion_fits(e->model, text.size, param, error))
            return false;
        if (!tokenizer_encode(e->model->tokenizer, text, CONTROL_AS_TEXT, true, tokens, &why))
            return input_refuse(&why, param, error);
    }
    if (!completion_knows(e->model, tokens, param, error)) return false;
    e->tokens += (int64_t)tokens->count;
    if (tokens->count == 0)
        return api_fail(error, 400, "invalid_value", param, "Invalid '%s': the input is empty.", param);
    return tokens->count < (size_t)most ||
        api_fail(error, 400, "context_length_exceeded", param,
            "This model's maximum context length is %d tokens, and an input must be shorter. However, '%s' has %zu. "
            "Please reduce its length.",
            most, param, tokens->count);
}

static bool take_inputs(Embedding *e, Arena *arena, const Json *input, ApiError *error) {
    uint32_t count;
    if (!inputs_count(input, "input", INPUTS_MAX, &count, error)) return false;
    e->inputs = arena_alloc(arena, count, sizeof *e->inputs);
    return e->inputs ? inputs_each(input, "input", take_input, e, error) : api_out_of_memory(error);
}

/* ---- the request ---- */

static bool take_model(Exchange *x, const Json *body, Embedding *e, ApiError *error) {
    const Json *name = member_get(body, "model");
    if (!name) return api_missing("model", error);
    if (models_find(x->server->models, json_slice(name)) < 0) return model_unknown(x->server, json_slice(name), error);
    e->model = model_take(x, json_slice(name), error);
    if (!e->model) return false;
    if (model_classifies(engine_model(e->model->engine)))
        return api_fail(error, 400, "unsupported_model", "model",
            "The model '%s' judges pairs of texts: it answers /v1/rerank.", e->model->name);
    return engine_pooling(e->model->engine) ||
        api_fail(error, 400, "unsupported_model", "model",
            "The model '%s' was not made for embeddings: nothing in its files says how the states of its tokens become "
            "one vector. A server that is started with --pooling last or --pooling mean makes them all the same.",
            e->model->name);
}

static bool read_request(Exchange *x, const Json *body, Arena *arena, Embedding *e, ApiError *error) {
    if (!fields_read(NULL, e->api, body, error)) return false;
    const Json *input = member_get(body, "input"), *dimensions = member_get(body, "dimensions");
    if (!input) return api_missing("input", error);
    e->base64 = member_is(body, "encoding_format", "base64");
    if (!take_model(x, body, e, error)) return false;
    const int hidden = model_hidden(engine_model(e->model->engine));
    int64_t wanted = hidden;
    if (dimensions && !api_integer(dimensions, "dimensions", 1, hidden, &wanted, error)) return false;
    e->dimensions = (int)wanted;
    return take_inputs(e, arena, input, error);
}

/* ---- the answer ---- */

static void write_base64(const float *vector, int dimensions, Buffer *out) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t size = (size_t)dimensions * sizeof *vector;
    const unsigned char *bytes = (const unsigned char *)vector; /* little-endian, as all supported machines are */
    buffer_byte(out, '"');
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t three = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
            (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        const char four[4] = {alphabet[three >> 18], alphabet[three >> 12 & 63],
            left > 1 ? alphabet[three >> 6 & 63] : '=', left > 2 ? alphabet[three & 63] : '='};
        buffer_append(out, four, sizeof four);
    }
    buffer_byte(out, '"');
}

static void write_numbers(const float *vector, int dimensions, Buffer *out) {
    for (int i = 0; i < dimensions; i++) buffer_printf(out, "%c%.9g", i ? ',' : '[', (double)vector[i]);
    buffer_byte(out, ']');
}

/* Ollama's. */
static void write_lists(const Exchange *x, const Embedding *e, Buffer *out) {
    buffer_text(out, "{\"model\":");
    json_write_string(out, slice_of(e->model->name));
    buffer_text(out, ",\"embeddings\":[");
    for (int i = 0; i < e->count; i++) {
        if (i) buffer_byte(out, ',');
        write_numbers(e->vectors + (size_t)i * (size_t)e->dimensions, e->dimensions, out);
    }
    buffer_printf(out, "],\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%lld}",
        (long long)(clock_ns() - x->started_ns), (long long)e->tokens);
}

static void write_answer(const Embedding *e, Buffer *out) {
    buffer_text(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < e->count; i++) {
        const float *vector = e->vectors + (size_t)i * (size_t)e->dimensions;
        buffer_printf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        if (e->base64)
            write_base64(vector, e->dimensions, out);
        else
            write_numbers(vector, e->dimensions, out);
        buffer_byte(out, '}');
    }
    buffer_text(out, "],\"model\":");
    json_write_string(out, slice_of(e->model->name));
    buffer_printf(
        out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)e->tokens, (long long)e->tokens);
}

static bool compute(Exchange *x, Arena *arena, Embedding *e, Buffer *out, ApiError *error) {
    enum { DECIMAL_BYTES = 16, BASE64_BYTES = 6 }; /* bytes per number: "-1.23456789e-38,"; six characters of base64 */
    const size_t numbers = (size_t)e->count * (size_t)e->dimensions, size = e->base64 ? BASE64_BYTES : DECIMAL_BYTES;
    ExchangeBatch b;
    exchange_batch_init(&b, x, e->inputs, e->count);
    Error why = {0};
    body_free(x);
    if (!body_hold(x, numbers * (sizeof *e->vectors + 2 * size), error)) return false; /* twice: also in the response */
    e->vectors = arena_alloc(arena, numbers, sizeof *e->vectors);
    if (!e->vectors) return api_out_of_memory(error);
    if (!embedding_compute(e->model, &b.batch, e->dimensions, e->vectors, &why))
        return exchange_batch_failed(&b, &why, error);
    metrics_note_embeddings(
        x->server->metrics, x->model_index, e->inputs, e->count, (double)(clock_ns() - x->started_ns) * 1e-9);
    x->record.prompt_tokens = e->tokens;
    if (e->api == API_OLLAMA_EMBED)
        write_lists(x, e, out);
    else
        write_answer(e, out);
    if (!out->failed) return true;
    return out->limited
        ? api_fail(error, 400, "invalid_value", "input", "The answer would be larger than %d bytes.", ANSWER_BYTES_MAX)
        : api_out_of_memory(error);
}

static bool answer(Exchange *x, Api api) {
    enum { VECTORS_BYTES_MAX = 64 << 20 };
    ApiError error = {0};
    Embedding e = {.api = api};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE + VECTORS_BYTES_MAX};
    Buffer out = {.limit = ANSWER_BYTES_MAX};
    const Json *body = body_object(x, &arena, &error);
    const bool ok = body && read_request(x, body, &arena, &e, &error) && compute(x, &arena, &e, &out, &error);
    for (int i = 0; i < e.count; i++) tokens_free(&e.inputs[i]);
    models_release(x->server->models, e.model);
    arena_free(&arena);
    if (ok) return response_json(x, 200, &out);
    buffer_free(&out);
    return response_error(x, &error);
}

bool answer_embeddings(Exchange *x, Slice rest) { return answer(x, API_EMBEDDINGS); }
bool answer_embed(Exchange *x, Slice rest) { return answer(x, API_OLLAMA_EMBED); }
