#include "chat/embedding.h"

#include <math.h>
#include <string.h>

enum {
    AT_ONCE = 64, /* prompts submitted at once: enough to fill a step, and other requests get their turn */
    LOOK_MS = 100,
};

static Request *submit(const ChatModel *model, const EmbeddingJob *job, int index, Error *error) {
    static const KvFormat exact = {0};
    const Tokens *prompt = &job->prompts[index];
    const RequestOptions options = {
        .prompt = prompt->ids,
        .prompt_count = (int)prompt->count,
        .max_tokens = 1,
        .choices = 1,
        .kv_format = &exact,
        .cache_salt = job->cache_salt,
        .embeds = true,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1},
    };
    return engine_submit(model->engine, &options, error);
}

/* False: the state is not finite. */
static bool scale(const float *state, int dimensions, float *out) {
    double square = 0;
    for (int i = 0; i < dimensions; i++) square += (double)state[i] * (double)state[i];
    if (!isfinite(square)) return false;
    const double factor = square > 0 ? 1 / sqrt(square) : 0;
    for (int i = 0; i < dimensions; i++) out[i] = (float)((double)state[i] * factor);
    return true;
}

/* waits: no other of the job has begun. */
static bool take(const EmbeddingJob *job, Request *request, bool waits, float *out, Error *error) {
    Finish finish = FINISH_NONE;
    while (finish == FINISH_NONE) {
        TokenOut token;
        waits = waits && !request_stats(request).admitted;
        if (job->given_up(job->context, waits))
            return fail(error, ERROR_CANCELLED, "the request for the embeddings was cancelled");
        (void)request_read(request, 0, &token, 1, LOOK_MS, &finish);
    }
    if (finish == FINISH_ERROR) {
        request_error(request, error);
        return false;
    }
    if (finish != FINISH_STOP) return fail(error, ERROR_CANCELLED, "the model is being closed");
    return scale(request_embedding(request), job->dimensions, out) ||
        fail(error, ERROR_DEVICE, "the model's computation gave no numbers");
}

bool embedding_compute(const ChatModel *model, const EmbeddingJob *job, float *out, Error *error) {
    Request *waiting[AT_ONCE];
    int begun = 0, taken = 0;
    bool ok = true;
    CHECK(engine_pooling(model->engine) && job->dimensions <= model_hidden(engine_model(model->engine)));
    while (ok && taken < job->count) {
        Error why = {0};
        Request *next = begun < job->count && begun - taken < AT_ONCE ? submit(model, job, begun, &why) : NULL;
        if (next) {
            waiting[begun++ % AT_ONCE] = next;
        } else if (begun == taken || (why.code != ERROR_NONE && why.code != ERROR_BUSY)) {
            if (error) *error = why;
            ok = false;
        } else { /* no room for more: the oldest one first */
            Request *oldest = waiting[taken % AT_ONCE];
            ok = take(job, oldest, taken == 0, out + (size_t)taken * (size_t)job->dimensions, error);
            taken++;
            request_free(oldest);
        }
    }
    for (; taken < begun; taken++) request_free(waiting[taken % AT_ONCE]);
    return ok;
}
