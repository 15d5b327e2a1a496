#include "server/api/rerank.h"

#include <stdio.h>
#include <stdlib.h>

#include "chat/rerank.h"
#include "server/http/body.h"
#include "server/api/endpoint.h"
#include "server/api/exchange_batch.h"
#include "server/api/fields.h"
#include "server/api/inputs.h"
#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

typedef struct Rerank {
    ChatModel *model;
    Slice query, instruction;
    Slice *documents; /* [count] */
    Tokens *prompts;  /* [made] */
    size_t *types;    /* [made] */
    float *scores;    /* [count] */
    int count, made, shown;
    int64_t tokens;
    bool texts; /* documents are returned */
} Rerank;

/* ---- the request ---- */

/* A text, or {"text"}. */
static bool read_document(const Json *value, const char *param, Slice *text, ApiError *error) {
    const Json *inner = value->type == JSON_OBJECT ? member_get(value, "text") : value;
    if (!inner) return api_missing(param, error);
    return api_string(inner, param, text, error);
}

static bool read_documents(const Json *list, Arena *arena, Rerank *r, ApiError *error) {
    if (!list) return api_missing("documents", error);
    if (!api_type(list, JSON_ARRAY, "documents", error)) return false;
    if (list->size == 0)
        return api_fail(error, 400, "empty_array", "documents", "Invalid 'documents': there must be at least one.");
    if (list->size > RERANK_DOCUMENTS_MAX)
        return api_fail(error, 400, "array_above_max_length", "documents", "Invalid 'documents': at most %d, got %u.",
            RERANK_DOCUMENTS_MAX, list->size);
    r->documents = arena_alloc(arena, list->size, sizeof *r->documents);
    r->prompts = arena_alloc(arena, list->size, sizeof *r->prompts);
    r->scores = arena_alloc(arena, list->size, sizeof *r->scores);
    r->types = arena_alloc(arena, list->size, sizeof *r->types);
    if (!r->documents || !r->prompts || !r->types || !r->scores) return api_out_of_memory(error);
    for (JSON_EACH(value, list)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "documents[%d]", r->count);
        if (!read_document(value, param, &r->documents[r->count], error)) return false;
        r->count++;
    }
    return true;
}

static bool make_prompt(Rerank *r, int index, ApiError *error) {
    const int most = chat_model_context(r->model);
    Tokens *prompt = &r->prompts[r->made++];
    Error why = {0};
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "documents[%d]", index);
    *prompt = (Tokens){0};
    if (!completion_fits(r->model, r->documents[index].size + r->query.size, param, error)) return false;
    if (!rerank_prompt(r->model, r->instruction, r->query, r->documents[index], prompt, &r->types[index], &why)) {
        if (why.code != ERROR_UNSUPPORTED) return input_refuse(&why, param, error);
        return api_fail(error, 400, "unsupported_model", "model", "Cannot rerank: %s.", why.text);
    }
    r->tokens += (int64_t)prompt->count;
    return prompt->count < (size_t)most ||
        api_fail(error, 400, "context_length_exceeded", param,
            "This model's maximum context length is %d tokens, and query and document must be shorter. However, with "
            "'%s' they have %zu.",
            most, param, prompt->count);
}

static bool read_request(Exchange *x, const Json *body, Arena *arena, Rerank *r, ApiError *error) {
    if (!fields_read(NULL, API_RERANK, body, error)) return false;
    const Json *name = member_get(body, "model"), *query = member_get(body, "query"),
               *instruction = member_get(body, "instruction"), *top = member_get(body, "top_n"),
               *texts = member_get(body, "return_documents");
    int64_t shown = RERANK_DOCUMENTS_MAX;
    if (!name) return api_missing("model", error);
    if (!query) return api_missing("query", error);
    r->query = json_slice(query);
    if (instruction) r->instruction = json_slice(instruction);
    r->texts = texts && texts->boolean;
    if (!read_documents(member_get(body, "documents"), arena, r, error)) return false;
    if (top && !api_integer(top, "top_n", 1, INT32_MAX, &shown, error)) return false;
    r->shown = shown < r->count ? (int)shown : r->count;
    if (models_find(x->server->models, json_slice(name)) < 0) return model_unknown(x->server, json_slice(name), error);
    r->model = model_take(x, json_slice(name), error);
    bool ok = r->model;
    for (int i = 0; ok && i < r->count; i++) ok = make_prompt(r, i, error);
    return ok;
}

/* ---- the answer ---- */

/* The best document that was not shown; its score is taken. */
static int take_best(Rerank *r, float *score) {
    int best = 0;
    for (int i = 1; i < r->count; i++)
        if (r->scores[i] > r->scores[best]) best = i;
    *score = r->scores[best];
    r->scores[best] = -1;
    return best;
}

static void write_answer(const Exchange *x, Rerank *r, Buffer *out) {
    buffer_printf(out, "{\"id\":\"rerank-%s\",\"model\":", x->request_id);
    json_write_string(out, slice_of(r->model->name));
    buffer_text(out, ",\"results\":[");
    for (int i = 0; i < r->shown; i++) {
        float score;
        const int best = take_best(r, &score);
        buffer_printf(out, "%s{\"index\":%d,\"relevance_score\":%.9g", i ? "," : "", best, (double)score);
        if (r->texts) buffer_text(out, ",\"document\":{\"text\":");
        if (r->texts) json_write_string(out, r->documents[best]);
        buffer_text(out, r->texts ? "}}" : "}");
    }
    buffer_printf(
        out, "],\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)r->tokens, (long long)r->tokens);
}

static bool compute(Exchange *x, Rerank *r, Buffer *out, ApiError *error) {
    ExchangeBatch b;
    exchange_batch_init(&b, x, r->prompts, r->count);
    Error why = {0};
    b.batch.types = r->types;
    if (!rerank_compute(r->model, &b.batch, r->scores, &why)) return exchange_batch_failed(&b, &why, error);
    x->record.prompt_tokens = r->tokens;
    write_answer(x, r, out);
    return !out->failed || api_out_of_memory(error);
}

bool answer_rerank(Exchange *x, Slice rest) {
    ApiError error = {0};
    Rerank r = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    Buffer out = {0};
    const Json *body = body_object(x, &arena, &error);
    const bool ok = body && read_request(x, body, &arena, &r, &error) && compute(x, &r, &out, &error);
    for (int i = 0; i < r.made; i++) tokens_free(&r.prompts[i]);
    models_release(x->server->models, r.model);
    arena_free(&arena);
    if (ok) return response_json(x, 200, &out);
    buffer_free(&out);
    return response_error(x, &error);
}
