#include "engine/mtp_head.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/math.h"
#include "base/memory.h"
#include "engine/expert_memory.h"
#include "engine/resources.h"
#include "model/step_builder.h"

enum { PENDING_MAX = DRAFT_TOKENS_MAX + 1 /* positions of a text whose states wait for the next draft token */ };

/* A step with a draft token of each text that wants one. */
typedef struct DraftStep {
    StepBuilder builder;
    RunnerStep begun;
    int output[DRAFT_TOKENS_MAX]; /* [text] its output; −1: none */
} DraftStep;

struct MtpHead {
    Runner *runner;
    KvCache *kv;
    Resources *resources;
    DraftStep steps[2]; /* a step begins before the one before it has ended, where the backend samples */
    SamplerScratch scratch;
    int32_t *tokens, *positions; /* [rows], [POSITION_DIMS_MAX · rows] */
    float *chain;                /* [slots, hidden] the head's own states behind the last draft tokens; not used where
                                    the backend samples */
    bool ahead;
    int rows, vocab, hidden;
    DraftPace pace;
};

static RunnerOptions runner_options(const EngineOptions *options) {
    RunnerOptions runner = engine_runner_options(options);
    runner.mtp = true;
    runner.sequence_rows_max = 0;
    runner.backend.rows_max = max_int(runner.backend.rows_max + PENDING_MAX, options->slots * PENDING_MAX);
    runner.outputs_max = runner.hidden_rows_max = options->slots;
    return runner;
}

bool mtp_head_bytes(const EngineOptions *options, const Model *target, uint64_t *bytes, Error *error) {
    const RunnerOptions own = runner_options(options);
    Runner *runner = runner_open(target, &own, error);
    if (!runner) return fail_while(error, "--mtp");
    *bytes = runner_scratch_bytes(runner) + draft_cache_bytes(options, runner_kv_plan(runner), model_context(target));
    runner_close(runner);
    return true;
}

static bool open_parts(MtpHead *h, const EngineOptions *options, const Model *target, Error *error) {
    const RunnerOptions runner = runner_options(options);
    h->rows = runner.backend.rows_max;
    h->runner = runner_open(target, &runner, error);
    if (!h->runner) return false;
    const KvPlan *plan = runner_kv_plan(h->runner);
    h->kv = kv_open(plan, draft_cache_bytes(options, plan, model_context(target)), error);
    if (!h->kv) return false;
    const StepCapacity capacity = {.rows = h->rows,
        .sequences = options->slots,
        .outputs = options->slots,
        .hidden_rows = options->slots,
        .embeddings = 2 * options->slots};
    h->tokens = calloc((size_t)h->rows, sizeof *h->tokens);
    h->positions = calloc((size_t)h->rows * POSITION_DIMS_MAX, sizeof *h->positions);
    h->chain = calloc((size_t)options->slots * (size_t)h->hidden, sizeof *h->chain);
    if (!h->tokens || !h->positions || !h->chain)
        return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", h->rows);
    h->ahead = runner_can_lookahead(h->runner);
    return step_builder_open(&h->steps[0].builder, &capacity, error) &&
        step_builder_open(&h->steps[1].builder, &capacity, error) && sampler_scratch_open(&h->scratch, h->vocab, error);
}

MtpHead *mtp_head_open(const EngineOptions *options, const Model *target, Error *error) {
    uint64_t bytes, operations;
    MtpHead *h = calloc(1, sizeof *h);
    if (!h) {
        fail(error, ERROR_MEMORY, "no memory for a multi-token prediction head");
        return NULL;
    }
    model_step_cost(target, &bytes, &operations);
    h->resources = options->resources;
    h->vocab = model_vocab(target);
    h->hidden = model_hidden(target);
    h->pace.weight_share = (double)model_mtp_bytes(target) / (double)(bytes + 1);
    if (options->backend.tensor_parallel > 1)
        fail(error, ERROR_UNSUPPORTED, "--tensor-parallel: the head cannot be divided");
    else if (open_parts(h, options, target, error))
        return h;
    fail_while(error, "--mtp");
    mtp_head_close(h);
    return NULL;
}

void mtp_head_close(MtpHead *h) {
    if (!h) return;
    for (int i = 0; i < 2; i++) step_builder_close(&h->steps[i].builder);
    sampler_scratch_close(&h->scratch);
    kv_close(h->kv);
    runner_close(h->runner);
    free(h->tokens);
    free(h->positions);
    free(h->chain);
    free(h);
}

double mtp_head_seconds(MtpHead *h, double target_step_s) { return draft_pace_seconds(&h->pace, target_step_s); }

/* ---- sequences ---- */

void mtp_sequence_close(MtpHead *h, DraftSequence *s) {
    if (h) kv_sequence_close(h->kv, &s->kv);
    free(s->states);
    *s = (DraftSequence){0};
}

static bool open_sequence(MtpHead *h, DraftSequence *s, int position) {
    Error why = {0};
    *s = (DraftSequence){.base = position, .states = malloc((size_t)PENDING_MAX * (size_t)h->hidden * sizeof(float))};
    if (s->states && kv_sequence_open(h->kv, NULL, &s->kv, &why)) return true;
    mtp_sequence_close(h, s);
    return false;
}

void mtp_head_fork(MtpHead *h, const DraftSequence *from, DraftSequence *to) {
    if (!from->kv.tables || !open_sequence(h, to, from->base)) return;
    kv_fork(h->kv, &from->kv, &to->kv);
    to->state_count = from->state_count;
    memcpy(to->states, from->states, (size_t)(from->state_count * h->hidden) * sizeof *to->states);
}

/* The position behind those whose states the sequence has, read or not. */
static int known_end(const DraftSequence *s) { return s->base + s->kv.length + s->state_count; }

static bool reserve(MtpHead *h, DraftSequence *s, int tokens) {
    Error why = {0};
    if (kv_reserve(h->kv, &s->kv, tokens, &why)) return true;
    mtp_sequence_close(h, s);
    return false;
}

/* ---- steps ---- */

/* RoPE positions of rows that begin at a position; NULL: their place and an offset. */
static const int32_t *rope_positions(MtpHead *h, const DraftText *t, int position, int rows) {
    if (!t->positions || position >= t->prompt_count) return NULL;
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++)
        for (int i = 0; i < rows; i++)
            h->positions[dim * rows + i] = position + i < t->prompt_count
                ? t->positions[(size_t)dim * (size_t)t->prompt_count + (size_t)(position + i)]
                : position + i + t->position_offset;
    return h->positions;
}

/* Begins a step; true: its rows are few enough to be decode rows, which take less time on a GPU than those of a prompt.
 */
static bool begin(MtpHead *h, StepBuilder *builder, int rows) {
    step_begin(builder, runner_decode_rows_max(h->runner) == 0);
    return rows <= runner_decode_rows_max(h->runner);
}

/* Adds a row of the text for each of the tokens in h->tokens; `before` rows of steps that have not ended precede them.
 * sample: the row has an output, at which it is sampled so, if the backend samples; NULL: no output. */
static void add_rows(MtpHead *h, StepBuilder *builder, const DraftText *t, bool decode, int rows, int before,
    const EmbeddingRange *ranges, int range_count, const SampleParams *sample) {
    const DraftSequence *s = t->sequence;
    step_add_sequence(builder,
        &(StepSequence){.rows = rows,
            .decode = decode,
            .kv = &s->kv,
            .lookahead = before,
            .tokens = h->tokens,
            .embedding_count = range_count,
            .embeddings = ranges,
            .states = true,
            .positions = rope_positions(h, t, s->base + s->kv.length + before, rows),
            .position_offset = s->base + t->position_offset,
            .output_count = sample != NULL,
            .sample_params = h->ahead ? sample : NULL,
            .hidden_row_count = sample != NULL});
}

/* ---- reading ---- */

static void keep_states(MtpHead *h, DraftSequence *s, const float *states, int rows) {
    const size_t hidden = (size_t)h->hidden;
    memcpy(s->states + (size_t)s->state_count * hidden, states, (size_t)rows * hidden * sizeof *states);
    s->state_count += rows;
}

/* Reads what waits and the given rows, but for a last one whose next token is not known. */
static bool read_rows(MtpHead *h, const DraftText *t, int rows, const float *states, Error *error) {
    DraftSequence *s = t->sequence;
    const int waiting = s->state_count, first = s->base + s->kv.length;
    const int left = first + waiting + rows == t->tokens, count = waiting + rows - left;
    const EmbeddingRange ranges[] = {
        {.rows = waiting, .values = s->states}, {.row = waiting, .rows = rows - left, .values = states}};
    float *logits;
    CHECK(left <= rows && count <= h->rows && first + count < t->tokens);
    if (!reserve(h, s, count)) return true;
    t->read(t, first + 1, count, h->tokens);
    StepBuilder *builder = &h->steps[0].builder;
    const bool decode = begin(h, builder, count);
    add_rows(h, builder, t, decode, count, 0, waiting ? ranges : ranges + 1, (waiting > 0) + (rows > left), NULL);
    const Step *step = step_end(builder, error);
    if (h->resources) resources_begin_step(h->resources);
    const bool ok = step && runner_forward(h->runner, h->kv, step, &logits, error);
    if (h->resources) resources_end_step(h->resources);
    if (!ok) return false;
    kv_advance(h->kv, &s->kv, count);
    s->state_count = 0;
    if (left) keep_states(h, s, states + (size_t)(rows - 1) * (size_t)h->hidden, 1);
    return true;
}

bool mtp_head_read(MtpHead *h, const DraftText *t, int position, int rows, const float *states, Error *error) {
    DraftSequence *s = t->sequence;
    if (s->kv.tables && position > known_end(s)) mtp_sequence_close(h, s);
    if (!s->kv.tables && !open_sequence(h, s, position)) return true;
    const int known = known_end(s) - position; /* rows that were computed again */
    if (known >= rows) return true;
    states += (size_t)known * (size_t)h->hidden;
    rows -= known;
    if (s->state_count + rows > PENDING_MAX) return read_rows(h, t, rows, states, error);
    keep_states(h, s, states, rows);
    return true;
}

/* ---- drafting ---- */

/* Begins the step that samples draft token `drafted` of each text that wants so many. Where the backend samples, the
 * step before may not have ended: its tokens and states are taken where it leaves them. */
static bool begin_token(MtpHead *h, DraftText *texts, int count, int drafted, Error *error) {
    const size_t hidden = (size_t)h->hidden;
    DraftStep *now = &h->steps[drafted % 2], *last = &h->steps[(drafted + 1) % 2];
    const float *there = h->ahead && drafted > 0 ? runner_hidden_rows_there(h->runner, &last->begun) : NULL;
    int rows[DRAFT_TOKENS_MAX], all = 0, output = 0;
    for (int i = 0; i < count; i++) {
        rows[i] = texts[i].wanted <= drafted ? 0 : drafted > 0 ? 1 : texts[i].sequence->state_count;
        all += rows[i];
    }
    const bool decode = begin(h, &now->builder, all);
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        DraftSequence *s = t->sequence;
        now->output[i] = rows[i] ? output++ : -1;
        if (!rows[i]) continue;
        EmbeddingRange range = {.rows = rows[i], .values = drafted > 0 ? h->chain + (size_t)i * hidden : s->states};
        if (there) range.values = there + (size_t)last->output[i] * hidden;
        range.in_backend = there != NULL;
        if (drafted > 0)
            h->tokens[0] = there ? token_from_output(last->output[i]) : t->out[drafted - 1];
        else
            t->read(t, s->base + s->kv.length + 1, rows[i], h->tokens);
        const SampleParams sample = sampler_device_params(t->sampling, t->number, t->tokens + drafted);
        add_rows(h, &now->builder, t, decode, rows[i], drafted > 0 ? drafted - 1 : 0, &range, 1, &sample);
    }
    const Step *step = step_end(&now->builder, error);
    if (!step) return false;
    runner_begin(h->runner, h->kv, step, &now->begun);
    for (int i = 0; i < count && drafted == 0; i++) {
        DraftSequence *s = texts[i].sequence;
        if (rows[i] == 0) continue;
        kv_advance(h->kv, &s->kv, s->state_count);
        s->state_count = 0;
    }
    return true;
}

/* Waits for that step. A text whose token could not be sampled wants no more. */
static bool end_token(MtpHead *h, DraftText *texts, int count, int drafted, Error *error) {
    const size_t hidden = (size_t)h->hidden;
    DraftStep *now = &h->steps[drafted % 2];
    float *logits;
    if (!runner_end(h->runner, &now->begun, &logits, error)) return false;
    const int32_t *sampled = runner_sampled(h->runner);
    const float *states = sampled ? NULL : runner_hidden_rows(h->runner);
    for (int i = 0; i < count; i++) {
        DraftText *t = &texts[i];
        const int output = now->output[i];
        if (output < 0 || t->wanted <= drafted) continue;
        if (states) memcpy(h->chain + (size_t)i * hidden, states + (size_t)output * hidden, hidden * sizeof *states);
        const SampleParams sample = sampler_device_params(t->sampling, t->number, t->tokens + drafted);
        const int32_t id = sampled ? sampled[output]
                                   : sampler_sample(&h->scratch, logits + (size_t)output * (size_t)h->vocab, &sample);
        if (id < 0)
            t->wanted = drafted;
        else
            t->out[drafted] = id;
    }
    return true;
}

/* The head has the states of all positions but the last, whose token it is to follow. */
static bool is_ready(MtpHead *h, const DraftText *t) {
    DraftSequence *s = t->sequence;
    if (!s->kv.tables || s->state_count == 0 || known_end(s) != t->tokens - 1) return false;
    return reserve(h, s, s->state_count + t->wanted - 1);
}

bool mtp_head_continue(MtpHead *h, DraftText *texts, int count, Error *error) {
    int most = 0;
    bool ok = true;
    for (int i = 0; i < count; i++) {
        if (!is_ready(h, &texts[i])) texts[i].wanted = 0;
        most = max_int(most, texts[i].wanted);
    }
    const int64_t start_ns = clock_ns();
    if (h->resources) resources_begin_step(h->resources);
    int begun = 0, ended = 0;
    while (ok && ended < most) {
        if (begun < most && begun - ended < (h->ahead ? 2 : 1)) {
            ok = begin_token(h, texts, count, begun, error);
            begun += ok;
            continue;
        }
        ok = end_token(h, texts, count, ended++, error);
        most = begun;
        for (int i = 0; i < count; i++) most = max_int(most, texts[i].wanted);
    }
    for (; ended < begun; ended++) { /* after a failure */
        Error ignored = {0};
        float *logits;
        ok = runner_end(h->runner, &h->steps[ended % 2].begun, &logits, &ignored) && ok;
    }
    if (h->resources) resources_end_step(h->resources);
    if (ended > 0) draft_pace_note(&h->pace, (double)(clock_ns() - start_ns) * 1e-9 / ended);
    return ok;
}
