/* A model that costs nothing, linked in place of the real one. Its cache holds what was written: each position the hash
 * of all tokens up to it, computed from the position before as found through the page table. So a wrong page, position
 * or token changes every later logit. Logits are a function of that hash. Steps can be held at a gate, counted and made
 * to fail. */
#pragma once
#include <limits.h>
#include <stdlib.h>

#include "base/thread.h"
#include "model/runner.h"
#include "test.h"

enum { FAKE_PAGES = 4096, FAKE_PAGE_BYTES = 1000, FAKE_STEPS = 4096, FAKE_EOS = 2 };

typedef struct FakeStep {
    int rows, runs, outputs, largest_run, last_small_run, first_large_run;
} FakeStep;

static struct Fake {
    int vocab, context;
    float eos_logit; /* added to the end token's */
    int fail_at;     /* this step fails, counted from 1; 0: none */

    Mutex mutex;
    Condition changed;
    bool gated;
    int permits, arrived; /* steps that may run; steps that came to the gate */
    int steps;            /* finished */
    FakeStep log[FAKE_STEPS];
    int open_sequences, reserve_failures;
    void (*on_fork)(void); /* called once, by the engine thread, when it forks a sequence */
} fake;

struct Model {
    int unused;
};
struct Runner {
    const Model *model;
    int rows_max, outputs_max;
    float *logits; /* [outputs_max, vocab] of the last step */
};
struct KvCache {
    int page_count, used;
    int owners[FAKE_PAGES];
    uint64_t hash[FAKE_PAGES][KV_PAGE_TOKENS];
};
static _Thread_local bool fake_engine_thread;

static inline void fake_reset(void) {
    static bool once;
    if (!once) {
        mutex_init(&fake.mutex);
        condition_init(&fake.changed);
        once = true;
    }
    mutex_lock(&fake.mutex);
    fake.vocab = 300;
    fake.context = 4096;
    fake.eos_logit = 0;
    fake.fail_at = fake.permits = fake.arrived = fake.steps = 0;
    fake.open_sequences = fake.reserve_failures = 0;
    fake.gated = false;
    fake.on_fork = NULL;
    mutex_unlock(&fake.mutex);
}

/* Lets count more steps run. */
static inline void fake_permit(int count) {
    mutex_lock(&fake.mutex);
    fake.permits += count;
    condition_broadcast(&fake.changed);
    mutex_unlock(&fake.mutex);
}

static inline void fake_open_gate(void) {
    mutex_lock(&fake.mutex);
    fake.gated = false;
    condition_broadcast(&fake.changed);
    mutex_unlock(&fake.mutex);
}

/* Until so many steps have come to the gate, counted from the reset; the last of them is held there unless permitted.
 */
static inline void fake_wait_arrived(int count) {
    mutex_lock(&fake.mutex);
    while (fake.arrived < count) condition_wait(&fake.changed, &fake.mutex);
    mutex_unlock(&fake.mutex);
}

static inline int fake_steps(void) {
    mutex_lock(&fake.mutex);
    const int steps = fake.steps;
    mutex_unlock(&fake.mutex);
    return steps;
}

static inline uint64_t fake_next_hash(uint64_t before, int32_t token) {
    uint64_t state = before * 31 + (uint64_t)token + 1;
    return test_random(&state);
}

static inline void fake_logits(uint64_t hash, float *out) {
    for (int id = 0; id < fake.vocab; id++) out[id] = 4 * test_uniform(&hash);
    out[FAKE_EOS] += fake.eos_logit;
}

/* ---- model.h ---- */

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    Model *model = calloc(1, sizeof *model);
    if (!model) {
        fail(error, ERROR_MEMORY, "no memory for a fake model");
        return NULL;
    }
    return model;
}
void model_close(Model *model) { free(model); }
int model_vocab(const Model *model) { return fake.vocab; }
int model_context(const Model *model) { return fake.context; }
int model_eos(const Model *model, int32_t out[EOS_MAX]) {
    out[0] = FAKE_EOS;
    return 1;
}

static inline void fake_gate(const Step *step, int outputs) {
    mutex_lock(&fake.mutex);
    fake.arrived++;
    condition_broadcast(&fake.changed);
    while (fake.gated && fake.permits == 0) condition_wait(&fake.changed, &fake.mutex);
    if (fake.permits > 0) fake.permits--;
    FakeStep *log = &fake.log[fake.steps++ % FAKE_STEPS];
    *log = (FakeStep){.rows = step->rows, .runs = step->run_count, .outputs = outputs, .first_large_run = INT32_MAX};
    for (int i = 0; i < step->run_count; i++) {
        const int rows = step->runs[i].rows;
        if (rows > log->largest_run) log->largest_run = rows;
        if (rows == 1) log->last_small_run = i;
        if (rows > 1 && log->first_large_run > i) log->first_large_run = i;
    }
    mutex_unlock(&fake.mutex);
}

/* ---- runner.h ---- */

Runner *runner_open(const Model *model, const RunnerOptions *options, Error *error) {
    Runner *runner = calloc(1, sizeof *runner);
    float *logits = malloc((size_t)options->outputs_max * (size_t)fake.vocab * sizeof *logits);
    if (!runner || !logits) {
        free(runner);
        free(logits);
        fail(error, ERROR_MEMORY, "no memory for a fake runner");
        return NULL;
    }
    *runner = (Runner){
        .model = model, .rows_max = options->backend.rows_max, .outputs_max = options->outputs_max, .logits = logits};
    return runner;
}
void runner_close(Runner *runner) {
    if (runner) free(runner->logits);
    free(runner);
}
const Model *runner_model(const Runner *runner) { return runner->model; }
const KvPlan *runner_kv_plan(const Runner *runner) {
    static const KvPlan plan = {0};
    return &plan;
}
Backend *runner_backend(const Runner *runner) {
    static const BackendOps operations = {.name = "fake"};
    static Backend backend = {.ops = &operations};
    return &backend;
}

bool runner_forward(
    Runner *runner, KvCache *cache, const Step *step, int count, const int32_t *output, float **logits, Error *error) {
    uint64_t row_hash[RUNNER_ROWS_MAX];
    fake_engine_thread = true;
    fake_gate(step, count);
    CHECK(step->rows > 0 && step->rows <= runner->rows_max && count <= step->rows && count <= runner->outputs_max);
    if (fake.steps == fake.fail_at) return fail(error, ERROR_DEVICE, "the fake device failed in step %d", fake.fail_at);
    int row = 0;
    for (int i = 0; i < step->run_count; i++) {
        const Run *run = &step->runs[i];
        CHECK(run->row == row && run->rows > 0);
        for (int position = run->position; position < run->position + run->rows; position++, row++) {
            CHECK(step->positions[row] == position);
            const int32_t *table = run->tables[0];
            const int before = position - 1;
            const uint64_t hash =
                position > 0 ? cache->hash[table[before / KV_PAGE_TOKENS]][before % KV_PAGE_TOKENS] : 0;
            const int32_t page = table[position / KV_PAGE_TOKENS];
            CHECK(page >= 0 && cache->owners[page] == 1);
            row_hash[row] = fake_next_hash(hash, step->tokens[row]);
            cache->hash[page][position % KV_PAGE_TOKENS] = row_hash[row];
        }
    }
    CHECK(row == step->rows);
    *logits = runner->logits;
    for (int i = 0; i < count; i++) fake_logits(row_hash[output[i]], *logits + (size_t)i * (size_t)fake.vocab);
    return true;
}

/* ---- kv_cache.h ---- */

KvCache *kv_open(const KvPlan *plan, size_t budget_bytes, Error *error) {
    KvCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a fake cache");
        return NULL;
    }
    const size_t pages = budget_bytes / FAKE_PAGE_BYTES;
    cache->page_count = pages < FAKE_PAGES ? (int)pages : FAKE_PAGES;
    return cache;
}
void kv_close(KvCache *cache) { free(cache); }
size_t kv_bytes_used(const KvCache *cache) { return (size_t)cache->used * FAKE_PAGE_BYTES; }
size_t kv_bytes_total(const KvCache *cache) { return (size_t)cache->page_count * FAKE_PAGE_BYTES; }
static int fake_pages(int tokens) { return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS; }
size_t kv_bytes_for(const KvPlan *plan, const KvFormat *format, int tokens) {
    return (size_t)fake_pages(tokens) * FAKE_PAGE_BYTES;
}

bool kv_sequence_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error) {
    const int pages = fake_pages(fake.context);
    *sequence = (KvSequence){.tables = malloc(sizeof *sequence->tables)};
    if (sequence->tables) sequence->tables[0] = malloc((size_t)pages * sizeof(int32_t));
    if (!sequence->tables || !sequence->tables[0]) {
        free(sequence->tables);
        sequence->tables = NULL;
        return fail(error, ERROR_MEMORY, "no memory for a fake sequence");
    }
    for (int i = 0; i < pages; i++) sequence->tables[0][i] = -1;
    fake.open_sequences++;
    return true;
}
static inline void fake_drop(KvCache *cache, int page) {
    CHECK(cache->owners[page] > 0);
    cache->used -= --cache->owners[page] == 0;
}
void kv_sequence_close(KvCache *cache, KvSequence *sequence) {
    for (int i = 0; i < fake_pages(sequence->reserved); i++) fake_drop(cache, sequence->tables[0][i]);
    free(sequence->tables[0]);
    free(sequence->tables);
    *sequence = (KvSequence){0};
    fake.open_sequences--;
}
static inline int fake_take(KvCache *cache) {
    for (int page = 0; page < cache->page_count; page++) {
        if (cache->owners[page] > 0) continue;
        cache->owners[page] = 1;
        cache->used++;
        memset(cache->hash[page], 0xee, sizeof cache->hash[page]);
        return page;
    }
    return -1;
}
bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error) {
    CHECK(sequence->length + tokens <= fake.context);
    int32_t *filling = &sequence->tables[0][sequence->length / KV_PAGE_TOKENS];
    if (sequence->length % KV_PAGE_TOKENS > 0 && cache->owners[*filling] > 1) { /* copied by whoever writes */
        const int page = fake_take(cache);
        if (page < 0) {
            fake.reserve_failures++;
            return fail(error, ERROR_LIMIT, "no page is free");
        }
        memcpy(cache->hash[page], cache->hash[*filling], sizeof cache->hash[0]);
        fake_drop(cache, *filling);
        *filling = page;
    }
    while (sequence->reserved < sequence->length + tokens) {
        const int page = fake_take(cache);
        if (page < 0) {
            fake.reserve_failures++;
            return fail(error, ERROR_LIMIT, "no page is free");
        }
        sequence->tables[0][sequence->reserved / KV_PAGE_TOKENS] = page;
        sequence->reserved += KV_PAGE_TOKENS;
    }
    return true;
}
int kv_step_rows(const KvSequence *sequence) { return INT_MAX; }
void kv_run(const KvSequence *sequence, Run *run) {
    run->tables = (const int32_t *const *)sequence->tables;
    run->position = sequence->length;
}
void kv_advance(KvCache *cache, KvSequence *sequence, int tokens) {
    sequence->length += tokens;
    CHECK(sequence->length <= sequence->reserved);
}
void kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to) {
    void (*told)(void) = fake.on_fork;
    fake.on_fork = NULL;
    if (told) told();
    for (int i = 0; i < fake_pages(from->length); i++) {
        to->tables[0][i] = from->tables[0][i];
        cache->owners[from->tables[0][i]]++;
    }
    to->length = from->length;
    to->reserved = fake_pages(from->length) * KV_PAGE_TOKENS;
}
