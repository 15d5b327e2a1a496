#include "chat/embedding.h"

#include <math.h>

typedef struct Vectors {
    int dimensions;
    float *out; /* [count, dimensions] */
} Vectors;

/* False: the state is not finite. */
static bool scale(const float *state, int dimensions, float *out) {
    double square = 0;
    for (int i = 0; i < dimensions; i++) square += (double)state[i] * (double)state[i];
    if (!isfinite(square)) return false;
    const double factor = square > 0 ? 1 / sqrt(square) : 0;
    for (int i = 0; i < dimensions; i++) out[i] = (float)((double)state[i] * factor);
    return true;
}

static bool take_vector(void *context, int index, Request *request, const TokenOut *token, Error *error) {
    const Vectors *v = context;
    return scale(request_embedding(request), v->dimensions, v->out + (size_t)index * (size_t)v->dimensions) ||
        fail(error, ERROR_DEVICE, "the model's computation gave no numbers");
}

bool embedding_compute(const ChatModel *model, const PromptBatch *batch, int dimensions, float *out, Error *error) {
    CHECK(engine_pooling(model->engine) && dimensions <= model_hidden(engine_model(model->engine)));
    const RequestOptions options = {.embeds = true, .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1}};
    Vectors vectors = {dimensions, out};
    return prompt_batch_run(model, batch, &options, take_vector, &vectors, error);
}
