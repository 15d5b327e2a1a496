#include "engine/fake_model.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/math.h"
#include "import/gguf/gguf.h"
#include "model/audio_encoder.h"
#include "model/encoder.h"
#include "model/sliced_step.h"

enum { FAKE_ENTRIES = 3 };

struct Model {
    int unused;
};
struct Runner {
    const Model *model;
    int rows_max, outputs_max;
    float *logits; /* [outputs_max, vocab] of the last step */
    KvPlan plan;
    Backend backend;
    const KvCache *cache; /* of the last step */
    float state;          /* of its last row */
    SamplerScratch scratch;
    int32_t *sampled[2]; /* [outputs_max] by the last two steps */
    bool failed[2];
    uint64_t begun, ended; /* steps */
    bool drew;             /* the step that ended last */
};
struct Fake fake;
_Thread_local bool fake_engine_thread;

void fake_reset(void) {
    static bool once;
    if (!once) {
        mutex_init(&fake.mutex);
        condition_init(&fake.changed);
        once = true;
    }
    mutex_lock(&fake.mutex);
    fake.vocab = 300;
    fake.context = 4096;
    fake.eos = FAKE_EOS;
    fake.eos_logit = 0;
    fake.fail_at = fake.nan_at = fake.permits = fake.arrived = fake.steps = 0;
    fake.fail_code = ERROR_NONE;
    fake.leaked_bytes = 0;
    fake.window = 0;
    fake.states = fake.quantised = fake.gated = fake.sample_params = false;
    fake.decode_rows = fake.refuse = fake.ahead = fake.sampled = fake.load_ms = 0;
    fake.spec = (Spec){0};
    fake.step_ns = fake.row_ns = fake.slice_row_ns = 0;
    fake.clock_ns = 1;
    fake.sliced_rows = 0;
    mutex_unlock(&fake.mutex);
}

void fake_permit(int count) {
    mutex_lock(&fake.mutex);
    fake.permits += count;
    condition_broadcast(&fake.changed);
    mutex_unlock(&fake.mutex);
}

void fake_open_gate(void) {
    mutex_lock(&fake.mutex);
    fake.gated = false;
    condition_broadcast(&fake.changed);
    mutex_unlock(&fake.mutex);
}

void fake_wait_arrived(int count) {
    mutex_lock(&fake.mutex);
    while (fake.arrived < count) condition_wait(&fake.changed, &fake.mutex);
    mutex_unlock(&fake.mutex);
}

int fake_steps(void) {
    mutex_lock(&fake.mutex);
    const int steps = fake.steps;
    mutex_unlock(&fake.mutex);
    return steps;
}

uint64_t fake_next_hash(uint64_t before, int32_t token) {
    uint64_t state = before * 31 + (uint64_t)token + 1;
    return test_random(&state);
}

void fake_logits(uint64_t hash, float *out) {
    for (int id = 0; id < fake.vocab; id++) out[id] = 4 * test_uniform(&hash);
    out[fake.eos] += fake.eos_logit;
}

/* ---- model.h ---- */

/* The real one needs the families, which make real models. */
bool gguf_convert(const char *path, const char *directory, const GgufOptions *options, Error *error) {
    return fail(error, ERROR_UNSUPPORTED, "no conversions beside the fake model");
}

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    const int ms = atomic_load(&fake.load_ms);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    Model *model = calloc(1, sizeof *model);
    if (!model) {
        fail(error, ERROR_MEMORY, "no memory for a fake model");
        return NULL;
    }
    return model;
}
void model_close(Model *model) { free(model); }
const char *model_damaged(const Model *model) { return fake.fail_code == ERROR_IO ? "a file" : NULL; }
int model_vocab(const Model *model) { return fake.vocab; }
int model_hidden(const Model *model) { return 1; }
int model_context(const Model *model) { return fake.context; }
bool model_experts_cut(const Model *model, int *used, int *made_for) { return false; }
ExpertProvider *model_experts(const Model *model) { return NULL; }
void model_watch_experts(const Model *model, bool (*given_up)(void *context), void *context) {}
const Spec *model_spec(const Model *model) { return &fake.spec; }
uint64_t model_weight_bytes(const Model *model) { return 12345; }
uint64_t model_mtp_bytes(const Model *model) { return 0; }
bool model_is_assistant(const Model *model) { return false; }
int model_adapter(const Model *model, Slice name) { return 0; }
int model_adapter_count(const Model *model) { return 0; }
bool model_encodes(const Model *model) { return false; }
bool model_classifies(const Model *model) { return false; }
float model_classify(const Model *model, const float *state) { return 0; }
void model_step_cost(const Model *model, uint64_t *bytes, uint64_t *operations) { *bytes = *operations = 1; }
bool model_expert_fanout(const Model *model, int rows_max, float *fanout) { return false; }
uint64_t model_expert_floor(const Model *model) { return 0; }
uint64_t model_expert_working_set(const Model *model) { return 0; }
bool model_hold_experts(const Model *model, uint64_t bytes, Error *error) { return false; }
bool runner_budget_left(const Runner *runner, uint64_t least, uint64_t free_bytes, uint64_t *bytes, Error *error) {
    return false;
}
int model_eos(const Model *model, int32_t out[EOS_MAX]) {
    out[0] = fake.eos;
    return 1;
}

/* Counted from 1: of this call, while other engines of the test run theirs. */
static int fake_gate(const Step *step, int outputs) {
    mutex_lock(&fake.mutex);
    fake.arrived++;
    condition_broadcast(&fake.changed);
    while (fake.gated && fake.permits == 0) condition_wait(&fake.changed, &fake.mutex);
    if (fake.permits > 0) fake.permits--;
    FakeStep *log = &fake.log[fake.steps++ % FAKE_STEPS];
    *log = (FakeStep){.rows = step->rows,
        .decode_rows = step->decode_rows,
        .uniform_matmul = step->uniform_matmul,
        .chunks = step->chunk_count,
        .outputs = outputs,
        .first_large_run = INT32_MAX};
    for (int i = 0; i < step->chunk_count; i++) {
        const int rows = step->chunks[i].rows;
        if (rows > log->largest_run) log->largest_run = rows;
        if (rows == 1) log->last_small_run = i;
        if (rows > 1 && log->first_large_run > i) log->first_large_run = i;
    }
    log->sliced_rows = fake.sliced_rows;
    log->ended_ns = fake.clock_ns += fake.step_ns + step->rows * fake.row_ns;
    const int number = fake.steps;
    mutex_unlock(&fake.mutex);
    return number;
}

/* ---- the backend ---- */

static Runner *fake_runner(Backend *backend) { return (Runner *)(void *)((char *)backend - offsetof(Runner, backend)); }
static void *fake_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    void *memory = malloc(bytes);
    if (!memory) fail(error, ERROR_MEMORY, "no memory for a fake cache");
    return memory;
}
static void fake_release(Backend *backend, void *memory) {
    const Runner *runner = fake_runner(backend);
    if (runner->cache) fake.leaked_bytes = kv_bytes_used(runner->cache);
    free(memory);
}
static void fake_decommit(Backend *backend, void *memory, size_t bytes) {}
static void fake_copy(Backend *backend, void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static size_t fake_layer_bytes(Backend *backend, const KvLayout *layout) { return FAKE_PAGE_BYTES; }
static size_t fake_code_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    return fake.quantised ? FAKE_CODE_BYTES : 0;
}

static uint64_t *fake_page(const KvLayer *layer, int32_t page) {
    CHECK(page >= 0);
    return (uint64_t *)(void *)(layer->base + (size_t)page * layer->page_stride + layer->layer_offset);
}
static uint16_t *fake_codes(const KvStore *store, int32_t page) {
    CHECK(page >= 0);
    return (uint16_t *)(void *)(store->base + (size_t)page * store->stride);
}
static void fake_survey(Backend *backend, int count, const KvCalibration *survey) {
    for (int i = 0; i < count; i++) {
        const int last = survey[i].tokens - 1;
        const uint64_t seen = fake_page(survey[i].layer, survey[i].table[last / KV_PAGE_TOKENS])[last % KV_PAGE_TOKENS];
        if (survey[i].raise && seen % 2) survey[i].code->k++;
        survey[i].code->bias_pairs[0] = seen;
    }
}
static void fake_encode(Backend *backend, int count, const KvQuantise *encode) {
    for (int i = 0; i < count; i++) {
        const KvQuantise *e = &encode[i];
        const uint64_t *from = fake_page(e->layer, e->from);
        uint16_t *k = fake_codes(&e->layer->k_quant[e->code->k], e->k_to);
        uint16_t *v = fake_codes(&e->layer->v_quant[e->code->v], e->v_to);
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            k[t] = (uint16_t)(from[t] + e->code->bias_pairs[0]);
            v[t] = (uint16_t)(from[t] >> 16);
        }
    }
}
static const BackendOps fake_ops = {.name = "fake",
    .alloc = fake_alloc,
    .release = fake_release,
    .decommit = fake_decommit,
    .copy = fake_copy,
    .kv_layer_bytes = fake_layer_bytes,
    .kv_quant_bytes = fake_code_bytes,
    .kv_calibrate = fake_survey,
    .kv_quantise = fake_encode};

/* ---- runner.h ---- */

Runner *runner_open(const Model *model, const RunnerOptions *options, Error *error) {
    Runner *runner = calloc(1, sizeof *runner);
    float *logits = malloc((size_t)options->outputs_max * (size_t)fake.vocab * sizeof *logits);
    int32_t *sampled = malloc((size_t)options->outputs_max * 2 * sizeof *sampled);
    SamplerScratch scratch = {0};
    if (!runner || !logits || !sampled || !sampler_scratch_open(&scratch, fake.vocab, error)) {
        free(runner);
        free(logits);
        free(sampled);
        fail(error, ERROR_MEMORY, "no memory for a fake runner");
        return NULL;
    }
    *runner = (Runner){.model = model,
        .rows_max = options->backend.rows_max,
        .outputs_max = options->outputs_max,
        .logits = logits,
        .scratch = scratch,
        .sampled = {sampled, sampled + options->outputs_max},
        .backend = {.ops = &fake_ops, .rows_max = options->backend.rows_max}};
    CacheSpec specs[FAKE_ENTRIES] = {{.kv_heads = 1, .head_dim = 1, .value_dim = 1}};
    Backend *backends[FAKE_ENTRIES] = {&runner->backend, &runner->backend, &runner->backend};
    int entries = 1;
    if (fake.window)
        specs[entries++] = (CacheSpec){.kv_heads = 1, .head_dim = 1, .value_dim = 1, .window = fake.window};
    if (fake.states)
        specs[entries++] = (CacheSpec){
            .page_tokens = RECURRENT_PAGE_TOKENS, .anchor_bytes = sizeof(uint64_t), .row_bytes = sizeof(uint64_t)};
    if (!kv_plan_make(&runner->plan, specs, backends, entries, fake.context, error)) {
        runner_close(runner);
        return NULL;
    }
    if (options->sequence_rows_max) runner->plan.rows_max = options->sequence_rows_max;
    return runner;
}
void runner_close(Runner *runner) {
    if (!runner) return;
    kv_plan_free(&runner->plan);
    sampler_scratch_close(&runner->scratch);
    free(runner->sampled[0]);
    free(runner->logits);
    free(runner);
}
bool runner_samples(const Runner *runner) { return fake.sample_params; }
int runner_decode_rows_max(const Runner *runner) { return fake.decode_rows; }
bool runner_can_lookahead(const Runner *runner) { return fake.sample_params; }
const int32_t *runner_sampled(const Runner *runner) {
    return runner->drew ? runner->sampled[(runner->ended - 1) % 2] : NULL;
}
const Model *runner_model(const Runner *runner) { return runner->model; }
uint64_t runner_scratch_bytes(const Runner *runner) { return 0; }
const KvPlan *runner_kv_plan(const Runner *runner) { return &runner->plan; }
const float *runner_hidden_rows(Runner *runner) { return &runner->state; } /* of one request at a time */
const float *runner_hidden_rows_there(const Runner *runner, const RunnerStep *begun) { return &runner->state; }
const float *runner_sums(const Runner *runner) { return NULL; }
Backend *runner_backend(const Runner *runner) { return (Backend *)&runner->backend; }
Backend *runner_upper(const Runner *runner) { return (Backend *)&runner->backend; }
int runner_span_rows_max(const Runner *runner) { return INT_MAX; }
AudioEncoder *audio_encoder_open(const Model *model, const BackendOptions *options, Error *error) { return NULL; }
void audio_encoder_close(AudioEncoder *encoder) {}
int audio_rows(const AudioSpec *spec, int samples) { return 0; }
bool audio_encoder_begin(AudioEncoder *encoder, const Audio *audio, Error *error) { return false; }
bool audio_encoder_continue(AudioEncoder *encoder, int parts, bool *done, Error *error) { return false; }
void audio_encoder_take(AudioEncoder *encoder, Backend *to, float *rows) {}
int model_layers(const Model *model) { return 1; }
void model_drop_host_pages(const Model *model, int first) {}

static bool keeps_state(const Runner *runner, int entry) {
    return runner->plan.group[runner->plan.entries[entry].group].recurrent;
}

/* The page of a recurrent state: the state before it, then the tokens of its positions. NULL: it is not stored. */
static uint64_t *fake_state_page(const KvLayer *layer, const SequenceChunk *chunk, int position) {
    const int32_t page = chunk->tables[layer->group][position / RECURRENT_PAGE_TOKENS];
    return page < 0 ? NULL : fake_page(layer, page);
}

/* The state before a chunk. */
static uint64_t fake_resume(const KvLayer *layer, const SequenceChunk *chunk) {
    if (chunk->position == 0) return 0;
    const uint64_t *page = fake_state_page(layer, chunk, chunk->position - 1);
    CHECK(page);
    uint64_t state = page[0];
    for (int i = 0; i <= (chunk->position - 1) % RECURRENT_PAGE_TOKENS; i++)
        state = fake_next_hash(state, (int32_t)page[1 + i]);
    return state;
}

static uint64_t fake_advance(
    const KvLayer *layer, const SequenceChunk *chunk, int position, uint64_t state, int32_t token) {
    uint64_t *page = fake_state_page(layer, chunk, position);
    const int row = position % RECURRENT_PAGE_TOKENS;
    if (page && row == 0) page[0] = state;
    if (page) page[1 + row] = (uint64_t)token;
    return fake_next_hash(state, token);
}

/* Of everything that a row sees. */
static uint64_t fake_seen(const Runner *runner, const KvCache *cache, const SequenceChunk *chunk, int position) {
    uint64_t seen = 0;
    for (int l = 0; l < runner->plan.entry_count; l++) {
        const KvLayer *layer = &kv_entries(cache)[l];
        if (keeps_state(runner, l)) continue;
        const KvQuantView *quant = runner->plan.group[layer->group].quantised ? chunk->quant : NULL;
        const int window = runner->plan.group[layer->group].window;
        const int first = window && position >= window ? position - window + 1 : 0;
        for (int t = first; t <= position; t++) {
            const int page = t / KV_PAGE_TOKENS, at = t % KV_PAGE_TOKENS;
            if (!quant || t < quant->sink || t >= kv_cold_end(quant, position)) {
                seen += fake_page(layer, chunk->tables[layer->group][page])[at] * (uint64_t)(l + 3);
                continue;
            }
            const KvQuant *code = &quant->layers[l];
            seen += fake_codes(&layer->k_quant[code->k], quant->k_pages[l][page])[at] * (uint64_t)(code->k + 5);
            seen += fake_codes(&layer->v_quant[code->v], quant->v_pages[l][page])[at] * (uint64_t)(code->v + 7);
        }
    }
    return seen;
}

/* What the RoPE positions of a row add to its token: 0 where they are its place in the cache. */
static int32_t fake_moved(const Step *step, int row, int place) {
    int32_t moved = 0;
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++) {
        const int from = dim < step->position_dims ? dim : 0;
        moved += (dim + 1) * 1009 * (step->positions[from * step->rows + row] - place);
    }
    return moved;
}

static int32_t fake_token(const Runner *runner, int32_t token) {
    if (token >= 0 || token == TOKEN_GIVEN) return token;
    const int output = token_output(token);
    CHECK(output >= 0 && output < runner->outputs_max && runner->begun > 1);
    token = runner->sampled[runner->begun % 2][output]; /* the step before this one's */
    return token < 0 ? 0 : token;
}

static int32_t fake_sample(Runner *runner, const float *logits, const SampleParams *sample) {
    const int number = atomic_fetch_add(&fake.sampled, 1) + 1;
    return fake.refuse && number % fake.refuse == 0 ? -1 : sampler_sample(&runner->scratch, logits, sample);
}

/* number: of the step, whose sampled tokens are those of `candidate`. */
static void fake_compute(Runner *runner, const KvCache *cache, const Step *step, int number, int candidate) {
    const int count = step->output_count;
    const int32_t *output = step->outputs;
    int row = 0, done = 0;
    int32_t last = 0;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        CHECK(chunk->row == row && chunk->rows > 0);
        const KvLayer *states = NULL;
        for (int l = 0; l < runner->plan.entry_count; l++)
            if (keeps_state(runner, l)) states = &kv_entries(cache)[l];
        uint64_t state = states ? fake_resume(states, chunk) : 0;
        for (int position = chunk->position; position < chunk->position + chunk->rows; position++, row++) {
            last = fake_token(runner, step->tokens[row]) + fake_moved(step, row, position);
            for (int l = 0; l < runner->plan.entry_count; l++) {
                const KvLayer *layer = &kv_entries(cache)[l];
                const int32_t *table = chunk->tables[layer->group];
                if (keeps_state(runner, l)) continue;
                const int before = position - 1;
                const uint64_t hash =
                    position > 0 ? fake_page(layer, table[before / KV_PAGE_TOKENS])[before % KV_PAGE_TOKENS] : 0;
                fake_page(layer, table[position / KV_PAGE_TOKENS])[position % KV_PAGE_TOKENS] =
                    fake_next_hash(hash, row < step->decode_rows ? last + FAKE_GENERATED : last);
            }
            if (states)
                state = fake_advance(
                    states, chunk, position, state, row < step->decode_rows ? last + FAKE_GENERATED : last);
            if (done == count || output[done] != row) continue;
            float *logits = runner->logits + (size_t)done * (size_t)fake.vocab;
            fake_logits(fake_seen(runner, cache, chunk, position) + 11 * state, logits);
            for (int id = 0; number == fake.nan_at && id < fake.vocab; id++) logits[id] = NAN;
            if (step->sample_params) {
                runner->sampled[candidate][done] = fake_sample(runner, logits, &step->sample_params[done]);
                for (int id = 0; id < fake.vocab; id++) logits[id] = NAN; /* nobody may look at them */
            }
            done++;
        }
    }
    CHECK(row == step->rows && done == count);
    runner->state = number == fake.nan_at ? NAN : (float)last;
}

/* ---- encoder.h, sliced_step.h ---- */

enum { FAKE_SLICE_ROWS = 128 };

/* Rows of a slice take their time; returns their number. */
static int fake_slice(int rows, int left, bool attention) {
    const int count = min_int(min_int(max_int(rows, 1), FAKE_SLICE_ROWS), left);
    fake.sliced_rows += count;
    fake.clock_ns += count * fake.slice_row_ns * (attention ? 10 : 1);
    return count;
}

struct Encoder {
    int patches, row;
    EncoderWork work;
};

Encoder *encoder_open(const Model *model, const BackendOptions *options, int tokens_max, Error *error) {
    return calloc(1, sizeof(Encoder));
}
void encoder_close(Encoder *encoder) { free(encoder); }
int encoder_tokens_max(const VisionSpec *spec, int tokens_max) { return tokens_max; }
bool encoder_bytes(const VisionSpec *spec, int tokens_max, bool device, uint64_t *bytes, Error *error) {
    *bytes = 1;
    return true;
}
int64_t encoder_row_floats(const VisionSpec *spec, const ImageLayout *layout) { return layout->tokens; }
bool encoder_begin(Encoder *encoder, const Image *image, const Image *second, const ImageLayout *layout, Error *error) {
    *encoder = (Encoder){.patches = layout->patches};
    return true;
}
EncoderWork encoder_next(const Encoder *encoder) { return encoder->work; }
bool encoder_continue(Encoder *encoder, int *rows, bool *done, Error *error) {
    *rows = fake_slice(*rows, encoder->patches - encoder->row, encoder->work == ENCODE_ATTENTION);
    encoder->row += *rows;
    if (encoder->row == encoder->patches) {
        encoder->row = 0;
        encoder->work++;
    }
    *done = encoder->work == ENCODE_KINDS;
    return true;
}
void encoder_take(Encoder *encoder, Backend *to, float *rows) {}

/* Its rows are computed with the last slice. */
struct SlicedStep {
    Runner *runner;
    const KvCache *cache;
    const Step *step;
    int row;
    SliceKind kind;
};

bool sliced_step_possible(const Runner *runner) { return true; }
SlicedStep *sliced_step_open(Runner *runner, Error *error) {
    SlicedStep *sliced = calloc(1, sizeof *sliced);
    if (sliced) sliced->runner = runner;
    return sliced;
}
void sliced_step_close(SlicedStep *sliced) { free(sliced); }
bool sliced_step_begin(SlicedStep *sliced, KvCache *cache, const Step *step, Error *error) {
    *sliced = (SlicedStep){.runner = sliced->runner, .cache = cache, .step = step};
    return true;
}
SliceKind sliced_step_next(const SlicedStep *sliced) { return sliced->kind; }
bool sliced_step_continue(SlicedStep *sliced, int *rows, bool *done, Error *error) {
    *rows = fake_slice(*rows, sliced->step->rows - sliced->row, sliced->kind == SLICE_QUERIES);
    sliced->row += *rows;
    if (sliced->row == sliced->step->rows) {
        sliced->row = 0;
        sliced->kind++;
    }
    *done = sliced->kind == SLICE_KINDS;
    if (*done) fake_compute(sliced->runner, sliced->cache, sliced->step, 0, 0);
    return true;
}

/* ---- a step ---- */

void runner_begin(Runner *runner, KvCache *cache, const Step *step, RunnerStep *begun) {
    const int count = step->output_count;
    fake_engine_thread = true;
    runner->cache = cache;
    const int number = fake_gate(step, count);
    CHECK(step->rows > 0 && step->rows <= runner->rows_max && count <= step->rows && count <= runner->outputs_max);
    CHECK(step->decode_rows >= 0 && step->decode_rows <= step->rows);
    CHECK(step->decode_rows == 0 || step->uniform_matmul || step->decode_rows <= fake.decode_rows);
    CHECK(runner->begun - runner->ended < (fake.sample_params ? 2 : 1));
    *begun = (RunnerStep){.step = *step};
    if (runner->begun > runner->ended) atomic_fetch_add(&fake.ahead, 1);
    const int candidate = (int)(runner->begun++ % 2);
    runner->failed[candidate] = number == fake.fail_at;
    if (runner->failed[candidate]) return;
    fake_compute(runner, cache, step, number, candidate);
}

bool runner_end(Runner *runner, const RunnerStep *begun, float **logits, Error *error) {
    CHECK(runner->ended < runner->begun);
    const int candidate = (int)(runner->ended++ % 2);
    runner->drew = begun->step.sample_params;
    *logits = runner->drew ? NULL : runner->logits;
    if (!runner->failed[candidate]) return true;
    return fail(
        error, fake.fail_code ? fake.fail_code : ERROR_DEVICE, "the fake device failed in step %d", fake.fail_at);
}

bool runner_forward(Runner *runner, KvCache *cache, const Step *step, float **logits, Error *error) {
    RunnerStep begun;
    runner_begin(runner, cache, step, &begun);
    return runner_end(runner, &begun, logits, error);
}
