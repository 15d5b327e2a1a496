#include "chat/prompt_batch.h"

#include <stdlib.h>

#include "model/spec.h"

enum {
    AT_ONCE = 64, /* prompts submitted at once: enough to fill a step, and other requests get their turn */
    LOOK_MS = 100,
};

/* Tokens of the second type have the positions of that type (Spec.token_types). NULL: no memory. */
static int32_t *typed_positions(const ChatModel *model, const PromptBatch *batch, int index) {
    const int first = model_spec(engine_model(model->engine))->positions;
    const size_t count = batch->prompts[index].count;
    int32_t *positions = malloc(POSITION_DIMS_MAX * count * sizeof *positions);
    for (size_t i = 0; positions && i < POSITION_DIMS_MAX * count; i++) {
        const size_t place = i % count;
        positions[i] = (int32_t)place + (place >= batch->types[index] ? first : 0);
    }
    return positions;
}

static Request *submit(
    const ChatModel *model, const PromptBatch *batch, const RequestOptions *options, int index, Error *error) {
    static const KvFormat full_precision = {0};
    RequestOptions own = *options;
    own.prompt = batch->prompts[index].ids;
    own.prompt_count = (int)batch->prompts[index].count;
    own.cache_salt = batch->cache_salt;
    own.max_tokens = own.choices = 1;
    own.kv_format = &full_precision;
    const bool typed = batch->types && model_spec(engine_model(model->engine))->token_types == 2;
    int32_t *positions = typed ? typed_positions(model, batch, index) : NULL;
    own.positions = positions;
    if (typed && !positions) {
        fail(error, ERROR_MEMORY, "no memory for the positions of a prompt");
        return NULL;
    }
    Request *request = engine_submit(model->engine, &own, error);
    free(positions);
    return request;
}

/* Waits for the end. waits: no other prompt of the batch has been started. */
static bool finish_request(
    const PromptBatch *batch, Request *request, bool waits, TokenOut *token, bool *sampled, Error *error) {
    Finish finish = FINISH_NONE;
    *sampled = false;
    while (finish == FINISH_NONE) {
        TokenOut next;
        waits = waits && !request_stats(request).admitted;
        if (batch->given_up(batch->context, waits)) return fail(error, ERROR_CANCELLED, "the request was cancelled");
        if (request_read(request, 0, &next, 1, LOOK_MS, &finish) < 1) continue;
        *token = next;
        *sampled = true;
    }
    if (finish == FINISH_ERROR) {
        request_error(request, error);
        return false;
    }
    return finish != FINISH_CANCELLED || fail(error, ERROR_CANCELLED, "the model is being closed");
}

bool prompt_batch_run(const ChatModel *model, const PromptBatch *batch, const RequestOptions *options,
    PromptResult *result, void *context, Error *error) {
    Request *waiting[AT_ONCE];
    int begun = 0, taken = 0;
    bool ok = true;
    while (ok && taken < batch->count) {
        Error why = {0};
        const bool room = begun < batch->count && begun - taken < AT_ONCE;
        Request *next = room ? submit(model, batch, options, begun, &why) : NULL;
        if (next) {
            waiting[begun++ % AT_ONCE] = next;
        } else if (begun == taken || (why.code != ERROR_NONE && why.code != ERROR_BUSY)) {
            if (error) *error = why;
            ok = false;
        } else { /* no room for more: the oldest one first */
            Request *oldest = waiting[taken % AT_ONCE];
            TokenOut token;
            bool sampled;
            ok = finish_request(batch, oldest, taken == 0, &token, &sampled, error) &&
                result(context, taken, oldest, sampled ? &token : NULL, error);
            taken++;
            request_free(oldest);
        }
    }
    for (; taken < begun; taken++) request_free(waiting[taken % AT_ONCE]);
    return ok;
}
