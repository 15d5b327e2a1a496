#include "engine/check.h"

#include <float.h>
#include <limits.h>

static bool check_format(const KvFormat *f, Error *error) {
    if (f->k == KV_FULL) return true;
    const bool whole = f->after % KV_PAGE_TOKENS == 0 && f->hot % KV_PAGE_TOKENS == 0 && f->sink % KV_PAGE_TOKENS == 0;
    if (whole && f->v != KV_FULL && f->sink >= 0 && f->hot >= KV_PAGE_TOKENS && f->after >= f->sink) return true;
    return fail(error, ERROR_USAGE,
        "a KV cache quantised from %d tokens on, except for the newest %d and the first %d, is not possible: the three "
        "are multiples of %d, the second is not 0, and the first is not below the third",
        f->after, f->hot, f->sink, KV_PAGE_TOKENS);
}

bool check_engine_options(const EngineOptions *o, Error *error) {
    if (o->slots < 1 || o->slots > RUNNER_ROWS_MAX / 2)
        return fail(error, ERROR_USAGE, "%d slots, must be 1 to %d", o->slots, RUNNER_ROWS_MAX / 2);
    if (o->prefill_size < 1 || o->prefill_size > RUNNER_ROWS_MAX / 2)
        return fail(error, ERROR_USAGE, "a prefill size of %d, must be 1 to %d", o->prefill_size, RUNNER_ROWS_MAX / 2);
    if (o->speculation.draft_tokens < 0 || o->speculation.draft_tokens > DRAFT_TOKENS_MAX)
        return fail(
            error, ERROR_USAGE, "%d draft tokens, must be 1 to %d", o->speculation.draft_tokens, DRAFT_TOKENS_MAX);
    if (o->model.mtp && o->speculation.draft_directory)
        return fail(error, ERROR_USAGE, "--mtp and --draft-model exclude each other");
    if (o->queue_max < 0 || o->queue_max > INT_MAX / 2)
        return fail(error, ERROR_USAGE, "a queue of %d requests cannot be", o->queue_max);
    return check_format(&o->kv_format, error);
}

bool check_token_ids(const int32_t *ids, int count, int vocab, const char *what, Error *error) {
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return fail(
                error, ERROR_USAGE, "%s: token %d at position %d, the vocabulary has %d", what, ids[i], i, vocab);
    return true;
}

static bool check_range(const char *name, float value, float min, float max, Error *error) {
    if (value >= min && value <= max) return true; /* a NaN is in no range */
    return fail(error, ERROR_USAGE, "%s is %g, must be %g to %g", name, (double)value, (double)min, (double)max);
}

static bool check_sampling(const SamplingOptions *o, int vocab, Error *error) {
    if (o->top_k < 0) return fail(error, ERROR_USAGE, "top_k is %d, must be at least 0", o->top_k);
    if (o->logprobs < -1 || o->logprobs > LOGPROBS_TOP_MAX)
        return fail(error, ERROR_USAGE, "%d logprobs, must be -1 to %d", o->logprobs, LOGPROBS_TOP_MAX);
    if (o->min_tokens < 0) return fail(error, ERROR_USAGE, "min_tokens is %d, must be at least 0", o->min_tokens);
    if (o->bias_count < 0) return fail(error, ERROR_USAGE, "%d logit biases cannot be", o->bias_count);
    for (int i = 0; i < o->bias_count; i++)
        if (!check_range("a logit bias", o->bias_values[i], -FLT_MAX, FLT_MAX, error)) return false;
    return check_range("temperature", o->temperature, 0, FLT_MAX, error) &&
        check_range("top_p", o->top_p, 0, 1, error) && check_range("min_p", o->min_p, 0, 1, error) &&
        check_range("repetition_penalty", o->repetition_penalty, FLT_MIN, FLT_MAX, error) &&
        check_range("frequency_penalty", o->frequency_penalty, -FLT_MAX, FLT_MAX, error) &&
        check_range("presence_penalty", o->presence_penalty, -FLT_MAX, FLT_MAX, error) &&
        check_token_ids(o->bias_ids, o->bias_count, vocab, "logit_bias", error);
}

static bool check_positions(const RequestOptions *o, Error *error) {
    if (o->position_offset < -o->prompt_count || o->position_offset > INT_MAX / 2)
        return fail(error, ERROR_USAGE, "positions of an answer at an offset of %d cannot be", o->position_offset);
    for (int64_t i = 0; o->positions && i < (int64_t)POSITION_DIMS_MAX * o->prompt_count; i++)
        if (o->positions[i] < 0)
            return fail(error, ERROR_USAGE, "position %d of prompt token %d, must be at least 0", o->positions[i],
                (int)(i % o->prompt_count));
    return true;
}

bool check_request_options(const RequestOptions *o, int vocab, Error *error) {
    if (o->prompt_count < 1) return fail(error, ERROR_USAGE, "the prompt is empty");
    if (o->max_tokens < 1) return fail(error, ERROR_USAGE, "max_tokens is %d, must be at least 1", o->max_tokens);
    if (o->choices < 1 || o->choices > CHOICES_MAX)
        return fail(error, ERROR_USAGE, "%d choices, must be 1 to %d", o->choices, CHOICES_MAX);
    if (o->embeds && (o->choices != 1 || o->max_tokens != 1 || o->echo_logprobs || o->constraint))
        return fail(error, ERROR_USAGE, "a request that embeds has no answer");
    if (o->prediction_count < 0 || o->prediction_count > PREDICTION_TOKENS_MAX)
        return fail(
            error, ERROR_USAGE, "a prediction of %d tokens, at most %d", o->prediction_count, PREDICTION_TOKENS_MAX);
    if (!check_token_ids(o->prediction, o->prediction_count, vocab, "prediction", error)) return false;
    return check_format(o->kv_format, error) && check_positions(o, error) && check_sampling(&o->sampling, vocab, error);
}
