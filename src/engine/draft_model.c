#include "engine/draft_model.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "engine/resources.h"
#include "model/step_builder.h"

enum {
    PENDING_MAX = DRAFT_TOKENS_MAX + 1, /* tokens of a text that are read in the step of the first draft token */
    CACHE_SHARE = 8,                    /* the cache takes at most this part of the free memory */
};

struct DraftModel {
    Model *model;
    Runner *runner;
    KvCache *kv;
    Resources *resources;
    StepBuilder builder;
    SamplerScratch scratch;
    int32_t *tokens; /* [rows] */
    int rows, vocab, context;
    DraftPace pace;
};

size_t draft_cache_bytes(const EngineOptions *options, const KvPlan *plan, int context) {
    const size_t free_bytes = memory_available(), budget = (size_t)options->model.experts.memory_budget;
    const size_t most = (budget && budget < free_bytes ? budget : free_bytes) / CACHE_SHARE;
    return min_size(kv_bytes_for(plan, NULL, context) * (size_t)options->slots, most);
}

static RunnerOptions runner_options(const EngineOptions *options) {
    RunnerOptions runner = {.backend = options->backend, .outputs_max = options->slots};
    runner.backend.rows_max = max_int(options->prefill_size, options->slots * PENDING_MAX);
    if (options->resources) runner.backend.pool = resources_pool(options->resources);
    return runner;
}

static ModelOptions model_options(const EngineOptions *options, const Model *target) {
    ModelOptions own = options->model;
    own.target = target;
    own.experts = (ExpertOptions){0};
    own.experts_used = own.device_layers = 0;
    own.mtp = false;
    return own;
}

bool draft_model_bytes(const EngineOptions *options, const Model *target, uint64_t *bytes, Error *error) {
    ModelOptions tables = model_options(options, target);
    tables.weights = WEIGHTS_LAZY;
    tables.warn = NULL;
    const RunnerOptions own = runner_options(options);
    Model *model = model_open(options->speculation.draft_directory, &tables, error);
    const bool assistant = model && model_is_assistant(model); /* it works in the target's memory */
    Runner *runner = model && !assistant ? runner_open(model, &own, error) : NULL;
    if (assistant) *bytes = model_weight_bytes(model);
    if (runner)
        *bytes = model_weight_bytes(model) + runner_scratch_bytes(runner) +
            draft_cache_bytes(options, runner_kv_plan(runner), min_int(model_context(model), model_context(target)));
    const bool ok = runner || assistant || fail_while(error, "--draft-model");
    runner_close(runner);
    model_close(model);
    return ok;
}

static bool open_runner(DraftModel *d, const EngineOptions *options, Error *error) {
    const RunnerOptions runner = runner_options(options);
    d->rows = runner.backend.rows_max;
    d->runner = runner_open(d->model, &runner, error);
    if (!d->runner) return false;
    const KvPlan *plan = runner_kv_plan(d->runner);
    d->kv = kv_open(plan, draft_cache_bytes(options, plan, d->context), error);
    const StepCapacity capacity = {.rows = d->rows, .sequences = options->slots, .outputs = options->slots};
    d->tokens = calloc((size_t)d->rows, sizeof *d->tokens);
    if (!d->tokens) fail(error, ERROR_MEMORY, "no memory for a step of %d rows", d->rows);
    return d->kv && d->tokens && step_builder_open(&d->builder, &capacity, error) &&
        sampler_scratch_open(&d->scratch, d->vocab, error);
}

Model *draft_model_load(const EngineOptions *options, const Model *target, Error *error) {
    const ModelOptions own = model_options(options, target);
    Model *model = model_open(options->speculation.draft_directory, &own, error);
    if (!model) fail_while(error, "--draft-model");
    return model;
}

DraftModel *draft_model_open(const EngineOptions *options, Model *model, const Model *target, Error *error) {
    DraftModel *d = calloc(1, sizeof *d);
    if (!d) {
        fail(error, ERROR_MEMORY, "no memory for a draft model");
        model_close(model);
        return NULL;
    }
    d->resources = options->resources;
    d->model = model;
    d->vocab = model_vocab(model);
    d->context = min_int(model_context(model), model_context(target));
    d->pace.weight_share = (double)model_weight_bytes(model) / (double)(model_weight_bytes(target) + 1);
    if (open_runner(d, options, error)) return d;
    fail_while(error, "--draft-model");
    draft_model_close(d);
    return NULL;
}

void draft_model_close(DraftModel *d) {
    if (!d) return;
    step_builder_close(&d->builder);
    sampler_scratch_close(&d->scratch);
    kv_close(d->kv);
    runner_close(d->runner);
    model_close(d->model);
    free(d->tokens);
    free(d);
}

void draft_sequence_close(DraftModel *d, DraftSequence *sequence) {
    if (d) kv_sequence_close(d->kv, &sequence->kv);
    *sequence = (DraftSequence){0};
}

double draft_model_seconds(DraftModel *d, double target_step_s) { return draft_pace_seconds(&d->pace, target_step_s); }

/* ---- steps ---- */

/* Draft tokens that became text are part of the sequence, but for the text's last token, whose logits are wanted. */
static void accept_fed(DraftModel *d, DraftText *t) {
    DraftSequence *s = t->sequence;
    int accepted = 0;
    for (; accepted < s->fed_count && s->kv.length + accepted < t->tokens - 1; accepted++) {
        int32_t id;
        t->read(t, s->kv.length + accepted, 1, &id);
        if (id != s->fed[accepted]) break;
    }
    if (accepted > 0) kv_advance(d->kv, &s->kv, accepted);
    s->fed_count = 0;
}

/* Without the text's last token: a step of the target that is computed again adds none. */
static bool forget_last(DraftModel *d, DraftText *t) {
    KvSequence *kv = &t->sequence->kv;
    return kv->length < t->tokens || kv_truncate(d->kv, kv, t->tokens - 1);
}

/* A text that does not fit, or for which there is no memory, is given up: it may be read again later. */
static bool make_ready(DraftModel *d, DraftText *t) {
    Error why = {0};
    DraftSequence *s = t->sequence;
    if (t->tokens + t->wanted > d->context || (!s->kv.tables && !kv_sequence_open(d->kv, NULL, &s->kv, &why))) {
        draft_sequence_close(d, s);
        return false;
    }
    accept_fed(d, t);
    if (forget_last(d, t)) return true;
    draft_sequence_close(d, s);
    return false;
}

static bool reserve(DraftModel *d, DraftText *t, int tokens) {
    Error why = {0};
    if (kv_reserve(d->kv, &t->sequence->kv, tokens, &why)) return true;
    draft_sequence_close(d, t->sequence);
    t->wanted = 0;
    return false;
}

/* Places for the tokens of a text that are read, or, behind them, for the draft tokens but the last: of what is
 * reserved beyond a step, recurrent states may lack the page in which the step ends, so both are not reserved together.
 */
static bool reserve_draft(DraftModel *d, DraftText *t, int drafted) {
    Error why = {0};
    if (drafted == 0) return reserve(d, t, t->tokens - t->sequence->kv.length);
    if (drafted > 1 || kv_reserve(d->kv, &t->sequence->kv, t->wanted - 1, &why)) return true;
    t->wanted = drafted;
    return false;
}

/* Adds rows of a text, or its draft token `drafted`, with an output if a token is sampled behind them. */
static void add_rows(DraftModel *d, const DraftText *t, bool decode, int rows, int drafted, bool output) {
    SampleParams sample = sampler_device_params(t->sampling, t->number, t->tokens + drafted);
    int32_t *tokens = d->tokens;
    if (drafted > 0)
        tokens[0] = t->out[drafted - 1];
    else
        t->read(t, t->sequence->kv.length, rows, tokens);
    for (int i = 0; i < rows; i++) tokens[i] = tokens[i] < d->vocab ? tokens[i] : 0; /* the target may have more ids */
    step_add_sequence(&d->builder,
        &(StepSequence){.rows = rows,
            .decode = decode,
            .kv = &t->sequence->kv,
            .lookahead = drafted > 0 ? drafted - 1 : 0,
            .tokens = tokens,
            .output_count = output,
            .sample_params = output && runner_samples(d->runner) ? &sample : NULL});
}

/* Begins a step; true: its rows are few enough to be decode rows, which take less time on a GPU than those of a prompt.
 */
static bool begin(DraftModel *d, int rows) {
    step_begin(&d->builder, runner_decode_rows_max(d->runner) == 0);
    return rows <= runner_decode_rows_max(d->runner);
}

static bool run(DraftModel *d, float **logits, Error *error) {
    const Step *step = step_end(&d->builder, error);
    return step && runner_forward(d->runner, d->kv, step, logits, error);
}

/* Texts that are far behind are read on: the oldest first, as many rows as a step has. */
static bool read_texts(DraftModel *d, DraftText *texts, int count, Error *error) {
    int left = d->rows, behind = 0, rows[DRAFT_TOKENS_MAX + 1] = {0};
    float *logits;
    (void)begin(d, 0);
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        const int pending = t->tokens - t->sequence->kv.length;
        if (t->wanted == 0 || pending <= PENDING_MAX) continue;
        rows[i] = min_int(pending - 1, left);
        t->wanted = 0;
        if (rows[i] == 0 || !reserve(d, t, rows[i])) {
            rows[i] = 0;
            continue;
        }
        add_rows(d, t, false, rows[i], 0, false);
        left -= rows[i];
        behind++;
    }
    if (behind == 0) return true;
    if (!run(d, &logits, error)) return false;
    for (int i = 0; i < count; i++)
        if (rows[i] > 0) kv_advance(d->kv, &texts[i].sequence->kv, rows[i]);
    return true;
}

/* A token of each text that wants more than it has. */
static bool draft_token(DraftModel *d, DraftText *texts, int count, int drafted, Error *error) {
    float *logits;
    int output = 0, rows = 0;
    for (int i = 0; i < count; i++)
        if (texts[i].wanted > drafted) rows += drafted > 0 ? 1 : texts[i].tokens - texts[i].sequence->kv.length;
    const bool decode = begin(d, rows);
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        if (t->wanted <= drafted) continue;
        const int pending = t->tokens - t->sequence->kv.length;
        if (!reserve_draft(d, t, drafted)) continue;
        add_rows(d, t, decode, drafted > 0 ? 1 : pending, drafted, true);
        output++;
    }
    if (output == 0) return true;
    if (!run(d, &logits, error)) return false;
    const int32_t *sampled = runner_sampled(d->runner);
    output = 0;
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        if (t->wanted <= drafted) continue;
        DraftSequence *s = t->sequence;
        if (drafted == 0)
            kv_advance(d->kv, &s->kv, t->tokens - s->kv.length);
        else
            s->fed[s->fed_count++] = t->out[drafted - 1];
        const SampleParams sample = sampler_device_params(t->sampling, t->number, t->tokens + drafted);
        const int32_t id =
            logits ? sampler_sample(&d->scratch, logits + (size_t)output * (size_t)d->vocab, &sample) : sampled[output];
        output++;
        if (id < 0)
            t->wanted = drafted;
        else
            t->out[drafted] = id;
    }
    return true;
}

bool draft_model_continue(DraftModel *d, DraftText *texts, int count, Error *error) {
    int most = 0;
    CHECK(count <= DRAFT_TOKENS_MAX);
    for (int i = 0; i < count; i++)
        if (!make_ready(d, &texts[i])) texts[i].wanted = 0;
    if (d->resources) resources_begin_step(d->resources);
    bool ok = read_texts(d, texts, count, error);
    for (int i = 0; i < count; i++) most = max_int(most, texts[i].wanted);
    for (int drafted = 0; ok && drafted < most; drafted++) {
        const int64_t start_ns = clock_ns();
        ok = draft_token(d, texts, count, drafted, error);
        draft_pace_note(&d->pace, (double)(clock_ns() - start_ns) * 1e-9);
    }
    if (d->resources) resources_end_step(d->resources);
    return ok;
}
