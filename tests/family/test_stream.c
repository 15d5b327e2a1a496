/* Experts that are read when they are wanted against the same ones in memory, bit for bit: at every size of the cache,
 * by both ways of reading, on every kind of backend; and what becomes of files that cannot be read. */
#include "fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/fence.h"
#include "model/component.h"
#include "model/model_internal.h"
#include "weights/expert_cache_io.h"

typedef struct Case {
    const char *name;
    int variant;
} Case;

static const Case cases[] = {{"olmoe", 0}, {"olmoe", 1}, {"olmoe-norm", 0}, {"qwen3-moe", 0}, {"qwen2-moe", 1},
    {"mixtral", 0}, {"gemma4-a4b", 0}, {"qwen3-5-moe", 1}, {"nemotron-h-published", 0}, {"deepseek-v4", 0}};

typedef struct Setup {
    Fixture f;
    char directory[64];
    size_t golden_bytes;
    float *resident, *streamed;
} Setup;

/* One step of the fixture's first tokens on a sequence of its own. */
static bool step(Setup *s, Runner *runner, Error *error) {
    KvSequence sequence = {0};
    KvCache *cache = kv_open(runner_kv_plan(runner), kv_bytes_for(runner_kv_plan(runner), NULL, 16), error);
    bool ok = cache && kv_sequence_open(cache, &(KvFormat){.k = KV_FULL}, &sequence, error);
    ok = ok && fixture_step(runner, cache, &sequence, s->f.tokens, 2, s->streamed, error);
    if (cache) kv_sequence_close(cache, &sequence);
    kv_close(cache);
    return ok;
}

static bool setup_open(Setup *s, const Case *c) {
    Buffer config = {0};
    if (!fixture_open(&s->f, c->name)) return false;
    fixture_config(&s->f, c->variant, &config);
    const bool ok = fixture_write(fixture_tensors(&s->f, c->variant), buffer_view(&config), s->directory);
    buffer_free(&config);
    TEST(ok);
    s->golden_bytes = sizeof(float) * (size_t)(s->f.count * s->f.vocab);
    s->resident = malloc(s->golden_bytes);
    s->streamed = malloc(s->golden_bytes);
    return ok;
}

static void setup_close(Setup *s) {
    fixture_remove(s->directory);
    free(s->resident);
    free(s->streamed);
    fixture_close(&s->f);
}

/* Over what the file holds, which keeps its inode. */
static bool write_back(const char *path, const char *data, size_t size) {
    const int fd = open(path, O_WRONLY);
    const bool ok = fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size;
    return fd >= 0 && !close(fd) && ok;
}

static RunnerOptions runner_options(const char *cpu, bool fenced) {
    RunnerOptions options = {.backend = fixture_backend(cpu, 2, FIXTURE_TOKENS_MAX)};
    if (fenced) options.backend.wrap = fence_open;
    return options;
}

/* share: of all experts that the cache holds; 0: as few as it can. */
static void walk_streamed(Setup *s, const char *cpu, bool fenced, ExpertCacheIoKind io, double share, int chunk,
    const ExpertCacheFaults *faults) {
    const ModelOptions streamed = {.strict_config = true,
        .experts.stream = true,
        .experts.cache.io = io,
        .experts.cache.buffered = chunk == 1, /* through the page cache */
        .experts.cache.faults = faults ? *faults : (ExpertCacheFaults){0}};
    const RunnerOptions options = runner_options(cpu, fenced);
    FixtureRun run;
    if (!fixture_run_open(&run, s->directory, &streamed, &options)) return;
    const uint64_t all = model_expert_bytes(run.model), floor = model_expert_floor(run.model);
    const uint64_t bytes = share == 0 ? floor : (uint64_t)((double)all * share);
    Error error = {0};
    TEST(!model_hold_experts(run.model, floor - 1, &error) && error.code == ERROR_MEMORY);
    TEST_MSG(model_hold_experts(run.model, bytes > floor ? bytes : floor, &error), "%s", error.text);
    memset(s->streamed, 0, s->golden_bytes);
    TEST(fixture_walk(run.runner, s->f.tokens, s->f.count, chunk, 0, s->streamed));
    TEST_MSG(!memcmp(s->resident, s->streamed, s->golden_bytes), "%s: %s%s, way %d, %g of the experts, %d at a time",
        s->f.name, cpu, fenced ? " behind a fence" : "", io, share, chunk);
    ExpertProvider *source = model_experts(run.model);
    const ExpertProviderStats stats = source->stats(source);
    TEST(stats.misses > 0 && stats.read_bytes > 0 && stats.slots <= stats.experts);
    if (share == 1) TEST(stats.misses <= (uint64_t)stats.experts && stats.evictions == 0);
    fixture_run_close(&run);
}

static uint64_t expert_layers(const Model *model) {
    const Spec *spec = model_spec(model);
    uint64_t count = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        Layer layer = spec->layers[i];
        count += layer_moe(&layer) != NULL;
    }
    return count;
}

/* Bytes of the routed experts, a matrix with two uses counted once. */
static uint64_t matrices_bytes(const Model *model) {
    const Spec *spec = model_spec(model);
    uint64_t bytes = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        Layer layer = spec->layers[i];
        const MoeComponent *moe = layer_moe(&layer);
        for (int e = 0; moe && e < moe->experts; e++)
            bytes += weight_bytes(&moe->up[e]) * (moe->gate == moe->up ? 1 : 2) + weight_bytes(&moe->down[e]);
    }
    return bytes;
}

/* Layers over a few rows of the prompt after the other: the same bits, and each expert read but once however many rows
 * there are, as long as those of a layer fit. */
static void check_parts(Setup *s, const char *cpu, bool fenced, int rows, bool streamed) {
    RunnerOptions options = runner_options(cpu, fenced);
    options.layer_tile_rows = rows;
    const ModelOptions model = {.strict_config = true, .experts.stream = streamed};
    FixtureRun run;
    if (!fixture_run_open(&run, s->directory, &model, &options)) return;
    uint64_t touched = 0;
    if (streamed) { /* all layers of a fixture that have experts are alike */
        Error error = {0};
        const ExpertProviderStats stats = model_experts(run.model)->stats(model_experts(run.model));
        touched = (uint64_t)stats.experts;
        TEST(run.model->streamed_bytes == matrices_bytes(run.model));
        TEST(model_hold_experts(run.model, model_expert_bytes(run.model) / expert_layers(run.model), &error));
    }
    TEST(fixture_walk(run.runner, s->f.tokens, s->f.count, FIXTURE_TOKENS_MAX, 0, s->streamed));
    TEST_MSG(!memcmp(s->resident, s->streamed, s->golden_bytes), "%s: %s, %d rows at a time", s->f.name, cpu, rows);
    if (streamed) {
        const ExpertProviderStats stats = model_experts(run.model)->stats(model_experts(run.model));
        TEST_MSG(stats.misses <= touched && stats.hits > 0, "%s: %llu reads of %llu experts", s->f.name,
            (unsigned long long)stats.misses, (unsigned long long)touched);
    }
    fixture_run_close(&run);
}

/* The last row's logits of one step of so many tokens. */
static bool step_long(Setup *s, Runner *runner, int rows, float *logits) {
    Error error = {0};
    KvSequence sequence = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    int32_t *tokens = malloc(sizeof *tokens * (size_t)rows);
    StepBuilder builder;
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, rows), &error);
    bool ok = tokens && cache && kv_sequence_open(cache, NULL, &sequence, &error) &&
        kv_reserve(cache, &sequence, rows, &error);
    for (int i = 0; ok && i < rows; i++) tokens[i] = s->f.tokens[(i + i / s->f.count) % s->f.count];
    fixture_builder(&builder, rows);
    step_begin(&builder, false);
    if (ok)
        step_add_sequence(
            &builder, &(StepSequence){.rows = rows, .kv = &sequence, .tokens = tokens, .output_count = 1});
    float *out;
    ok = ok && runner_forward(runner, cache, step_end(&builder, &error), &out, &error);
    TEST_MSG(ok, "%s", error.text);
    if (ok) memcpy(logits, out, sizeof *out * (size_t)s->f.vocab);
    if (cache) kv_sequence_close(cache, &sequence);
    kv_close(cache);
    step_builder_close(&builder);
    free(tokens);
    return ok;
}

/* A prompt of 40,000 tokens with memory for the experts of a layer: each is read but once. A sample is shorter, as
 * the time of attention grows with its square. */
static void check_long_prompt(void) {
    const int rows = test_sampled() ? 1500 : 40000;
    Setup s = {0};
    Error error = {0};
    if (!setup_open(&s, &cases[0])) return;
    RunnerOptions options = runner_options("auto", false);
    options.backend.rows_max = rows;
    options.outputs_max = 1;
    for (int streamed = 0; streamed < 2; streamed++) {
        const ModelOptions model = {.context = rows, .experts.stream = streamed};
        FixtureRun run;
        if (!fixture_run_open(&run, s.directory, &model, &options)) continue;
        const uint64_t all = streamed ? model_expert_bytes(run.model) : 0;
        TEST(!streamed || model_hold_experts(run.model, all / (uint64_t)model_spec(run.model)->layer_count, &error));
        TEST(step_long(&s, run.runner, rows, streamed ? s.streamed : s.resident));
        if (streamed) {
            const ExpertProviderStats stats = model_experts(run.model)->stats(model_experts(run.model));
            TEST_MSG(stats.misses <= (uint64_t)stats.experts && (double)stats.read_bytes <= 1.05 * (double)all,
                "%llu reads of %d experts, %llu bytes of %llu", (unsigned long long)stats.misses, stats.experts,
                (unsigned long long)stats.read_bytes, (unsigned long long)all);
        }
        fixture_run_close(&run);
    }
    TEST(!memcmp(s.resident, s.streamed, sizeof(float) * (size_t)s.f.vocab));
    setup_close(&s);
}

static bool has_uring(Setup *s) {
    Error error = {0};
    const ModelOptions options = {.experts.stream = true, .experts.cache.io = EXPERT_CACHE_IO_URING};
    Model *model = model_open(s->directory, &options, &error);
    if (!model) {
        TEST_MSG(error.code == ERROR_UNSUPPORTED, "%s", error.text);
        test_skip("io_uring: %s", error.text);
    }
    model_close(model);
    return model != NULL;
}

static void walk_resident(Setup *s, const char *cpu) {
    const RunnerOptions options = runner_options(cpu, false);
    FixtureRun run;
    if (!fixture_run_open(&run, s->directory, &(ModelOptions){.strict_config = true}, &options)) return;
    TEST(fixture_walk(run.runner, s->f.tokens, s->f.count, FIXTURE_TOKENS_MAX, 0, s->resident));
    fixture_run_close(&run);
}

/* In a sample the sizes take turns, one for each case and way of reading. */
static void check_case(const Case *c, size_t number) {
    static const double shares[] = {1, 0.5, 0.25, 0.12, 0};
    static const ExpertCacheIoKind ways[] = {EXPERT_CACHE_IO_THREADS, EXPERT_CACHE_IO_URING};
    const ExpertCacheFaults some = {.fail = 0.002, .cut = 0.3, .seed = 7};
    Setup s = {0};
    if (!setup_open(&s, c)) return;
    const int way_count = has_uring(&s) ? 2 : 1;
    for (int vector = 0; vector < 2; vector++) {
        const char *cpu = vector ? "auto" : "ref";
        walk_resident(&s, cpu);
        check_parts(&s, cpu, false, 1, false);
        check_parts(&s, cpu, true, 5, false);
        if (strcmp(c->name, "qwen3-moe") && strcmp(c->name, "qwen2-moe")) check_parts(&s, cpu, vector, 3, true);
        for (int way = 0; way < way_count; way++) {
            for (size_t i = 0; i < COUNT_OF(shares); i++) {
                if (test_sampled() && (i + number + (size_t)(2 * way)) % COUNT_OF(shares)) continue;
                walk_streamed(&s, cpu, false, ways[way], shares[i], FIXTURE_TOKENS_MAX, NULL);
                walk_streamed(&s, cpu, false, ways[way], shares[i], 1, NULL);
            }
            walk_streamed(&s, cpu, false, ways[way], 0.25, 3, &some);
            walk_streamed(&s, cpu, true, ways[way], 0.25, 3, NULL);
        }
        walk_streamed(&s, cpu, false, EXPERT_CACHE_IO_PAGE_CACHE, 0.25, 3, NULL);
    }
    setup_close(&s);
}

/* Whatever goes wrong with reading is an error of the step, and the next step is a step like any other. */
static void check_errors(ExpertCacheIoKind io) {
    Setup s = {0};
    char path[96];
    Error error = {0};
    if (!setup_open(&s, &cases[0])) return;
    if (io == EXPERT_CACHE_IO_URING && !has_uring(&s)) {
        setup_close(&s);
        return;
    }
    const RunnerOptions options = runner_options("auto", false);
    FixtureRun run;
    const ModelOptions faulty = {.experts.stream = true, .experts.cache.io = io, .experts.cache.faults = {.fail = 1}};
    if (fixture_run_open(&run, s.directory, &faulty, &options)) {
        TEST(model_hold_experts(run.model, model_expert_bytes(run.model), &error));
        Error why = {0};
        TEST(!step(&s, run.runner, &why) && why.code == ERROR_IO);
        TEST_MSG(strstr(why.text, ".safetensors"), "%s", why.text);
        fixture_run_close(&run);
    }
    walk_resident(&s, "auto");
    const ModelOptions streamed = {.experts.stream = true, .experts.cache.io = io};
    if (fixture_run_open(&run, s.directory, &streamed, &options)) {
        TEST(model_hold_experts(run.model, model_expert_floor(run.model), &error));
        snprintf(path, sizeof path, "%s/model.safetensors", s.directory);
        struct stat info;
        TEST(!stat(path, &info));
        Buffer whole = {0};
        TEST(file_read(path, 0, &whole, &error));
        TEST(!truncate(path, info.st_size / 4)); /* before the experts of the last layers */
        Error why = {0};
        TEST(!step(&s, run.runner, &why) && why.code == ERROR_IO);
        TEST_MSG(strstr(why.text, "shorter") || strstr(why.text, "shrank"), "%s", why.text);
        TEST(write_back(path, whole.data, whole.size));
        TEST_MSG(step(&s, run.runner, &why), "%s", why.text);
        buffer_free(&whole);
        fixture_run_close(&run);
    }
    setup_close(&s);
}

/* A disk that does not answer: an error soon, and the next step asks again; whatever is answered is right. */
static void check_silence(ExpertCacheIoKind io) {
    enum { STEPS = 12 };
    Setup s = {0};
    if (!setup_open(&s, &cases[0])) return;
    if (io == EXPERT_CACHE_IO_URING && !has_uring(&s)) {
        setup_close(&s);
        return;
    }
    walk_resident(&s, "auto");
    const RunnerOptions options = runner_options("auto", false);
    static const ExpertCacheFaults faults[] = {
        {.hang = 1, .silence_ms = 100}, {.hang = 0.02, .silence_ms = 100, .seed = 5}};
    for (int some = 0; some < 2; some++) {
        FixtureRun run;
        const ModelOptions silent = {
            .experts.stream = true, .experts.cache.io = io, .experts.cache.faults = faults[some]};
        if (!fixture_run_open(&run, s.directory, &silent, &options)) continue;
        Error error = {0};
        TEST(model_hold_experts(
            run.model, some ? model_expert_floor(run.model) * 2 : model_expert_bytes(run.model), &error));
        int failed = 0;
        for (int i = 0; i < STEPS; i++) {
            Error why = {0};
            const bool ok = step(&s, run.runner, &why);
            TEST_MSG(ok || (why.code == ERROR_IO && strstr(why.text, "no answer")), "%s", why.text);
            TEST(!ok || !memcmp(s.resident, s.streamed, sizeof(float) * 2 * (size_t)s.f.vocab));
            failed += !ok;
            if (!some && i == 1) break;
        }
        TEST_MSG(some ? failed > 0 && failed < STEPS : failed == 2, "%d steps of %d failed", failed, STEPS);
        fixture_run_close(&run);
    }
    setup_close(&s);
}

/* Other contents of the same size, written into the file or put in its place. */
static void check_replaced(void) {
    Setup s = {0};
    FixtureRun run;
    char path[96], other[104];
    Error error = {0};
    Buffer whole = {0};
    if (!setup_open(&s, &cases[0])) return;
    walk_resident(&s, "auto");
    const RunnerOptions options = runner_options("auto", false);
    const ModelOptions streamed = {.experts.stream = true};
    snprintf(path, sizeof path, "%s/model.safetensors", s.directory);
    snprintf(other, sizeof other, "%s.new", path);
    TEST(file_read(path, 0, &whole, &error));
    char *changed = malloc(whole.size);
    memcpy(changed, whole.data, whole.size);
    for (size_t i = whole.size / 4; i < whole.size; i += 16) changed[i] ^= 1;
    if (fixture_run_open(&run, s.directory, &streamed, &options)) {
        TEST(model_hold_experts(run.model, model_expert_bytes(run.model), &error));
        int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        TEST(fd >= 0 && write(fd, changed, whole.size) == (ssize_t)whole.size && !close(fd) && !rename(other, path));
        Error why = {0};
        TEST_MSG(step(&s, run.runner, &why), "%s", why.text); /* of the file that was opened */
        TEST(!memcmp(s.resident, s.streamed, sizeof(float) * 2 * (size_t)s.f.vocab));
        fixture_run_close(&run);
    }
    TEST(write_back(path, whole.data, whole.size));
    if (fixture_run_open(&run, s.directory, &streamed, &options)) {
        TEST(model_hold_experts(run.model, model_expert_bytes(run.model), &error));
        TEST(write_back(path, changed, whole.size));
        Error why = {0};
        for (int i = 0; i < 2; i++) { /* nothing of what was read is kept */
            TEST(!step(&s, run.runner, &why) && why.code == ERROR_IO);
            TEST_MSG(strstr(why.text, "replaced"), "%s", why.text);
        }
        TEST(write_back(path, whole.data, whole.size));
        TEST_MSG(step(&s, run.runner, &why), "%s", why.text);
        TEST(!memcmp(s.resident, s.streamed, sizeof(float) * 2 * (size_t)s.f.vocab));
        fixture_run_close(&run);
    }
    free(changed);
    buffer_free(&whole);
    setup_close(&s);
}

enum { PAIR_STEPS = 24 /* more than a trial of both ways takes */ };

/* Steps of two sequences with a row each, all logits behind each other. */
static bool walk_pair(Setup *s, Runner *runner, float *logits) {
    Error error = {0};
    KvSequence sequences[2] = {{0}};
    const KvPlan *plan = runner_kv_plan(runner);
    KvCache *cache = kv_open(plan, 2 * kv_bytes_for(plan, NULL, PAIR_STEPS), &error);
    StepBuilder builder;
    bool ok = cache != NULL;
    fixture_builder(&builder, 2);
    for (int i = 0; i < 2; i++) ok = ok && kv_sequence_open(cache, NULL, &sequences[i], &error);
    for (int i = 0; ok && i < PAIR_STEPS; i++) {
        const int32_t tokens[] = {s->f.tokens[i % s->f.count], s->f.tokens[(i * 5 + 3) % s->f.count]};
        step_begin(&builder, false);
        for (int k = 0; k < 2; k++) {
            ok = ok && kv_reserve(cache, &sequences[k], 1, &error);
            step_add_sequence(&builder,
                &(StepSequence){.rows = 1,
                    .decode = k == 0 && runner_decode_rows_max(runner) > 0,
                    .kv = &sequences[k],
                    .tokens = &tokens[k],
                    .output_count = 1});
        }
        float *out;
        ok = ok && runner_forward(runner, cache, step_end(&builder, &error), &out, &error);
        if (ok) memcpy(logits + (size_t)(i * 2 * s->f.vocab), out, sizeof *out * 2 * (size_t)s->f.vocab);
        for (int k = 0; ok && k < 2; k++) kv_advance(cache, &sequences[k], 1);
    }
    TEST_MSG(ok, "%s", error.text);
    step_builder_close(&builder);
    for (int i = 0; cache && i < 2; i++) kv_sequence_close(cache, &sequences[i]);
    kv_close(cache);
    return ok;
}

/* Sequences that are computed in turns while experts of the other one come, and experts that are read ahead: the same
 * bits. */
static void check_ways(const Case *c, const char *cpu, bool fenced) {
    Setup s = {0};
    FixtureRun run;
    Error error = {0};
    if (!setup_open(&s, c)) return;
    const size_t bytes = sizeof(float) * 2 * PAIR_STEPS * (size_t)s.f.vocab;
    float *resident = malloc(bytes), *streamed = malloc(bytes);
    const RunnerOptions options = runner_options(cpu, fenced);
    walk_resident(&s, cpu);
    if (fixture_run_open(&run, s.directory, &(ModelOptions){.strict_config = true}, &options)) {
        TEST(walk_pair(&s, run.runner, resident));
        fixture_run_close(&run);
    }
    const ModelOptions ahead = {.strict_config = true, .experts.stream = true, .experts.prefetch = true};
    for (int whole = 0; whole < 2; whole++) {
        if (!fixture_run_open(&run, s.directory, &ahead, &options)) continue;
        const uint64_t all = model_expert_bytes(run.model), cycle = model_expert_working_set(run.model);
        TEST(model_hold_experts(run.model, whole ? all : cycle, &error));
        TEST(walk_pair(&s, run.runner, streamed) && !memcmp(resident, streamed, bytes));
        TEST(fixture_walk(run.runner, s.f.tokens, s.f.count, 1, 0, s.streamed));
        TEST_MSG(!memcmp(s.resident, s.streamed, s.golden_bytes), "%s: %s, read ahead", c->name, cpu);
        const ExpertProviderStats stats = model_experts(run.model)->stats(model_experts(run.model));
        TEST(stats.prefetches >= stats.prefetch_hits);
        fixture_run_close(&run);
    }
    free(resident);
    free(streamed);
    setup_close(&s);
}

static int take_all(ExpertProvider *source) {
    ProvidedExpert come[8];
    int count = 0;
    for (int some; (some = source->acquire(source, 0, 8, come)) > 0;) count += some;
    return count;
}

/* What is hinted at while something wanted is read is begun behind that, and is there when its layer wants it; what is
 * still to begin by then is not. */
static void check_hints(void) {
    const int32_t here[] = {0, 1}, next[] = {2, 3};
    /* By threads of their own reads last that long; of io_uring's it is whoever looks for their end that waits. */
    const ModelOptions slow = {.strict_config = true,
        .experts.stream = true,
        .experts.cache.io = EXPERT_CACHE_IO_THREADS,
        .experts.cache.faults = {.slow_ms = 50}};
    const RunnerOptions options = runner_options("auto", false);
    Setup s = {0};
    FixtureRun run;
    Error error = {0};
    if (!setup_open(&s, &cases[0])) return;
    if (fixture_run_open(&run, s.directory, &slow, &options)) {
        ExpertCache *bank = run.model->bank;
        ExpertProvider *source = expert_cache_source(bank);
        TEST(expert_cache_allocate(bank, expert_cache_bytes(bank), &error));
        expert_cache_begin(bank);
        source->request(source, 0, 0, here, 2);
        source->prefetch(source, 1, next, 2);
        TEST(source->stats(source).prefetches == 0);
        TEST(take_all(source) == 2);
        TEST(source->stats(source).prefetches == 2);
        source->request(source, 0, 1, next, 2);
        TEST(take_all(source) == 2);
        ExpertProviderStats stats = source->stats(source);
        TEST(stats.prefetch_hits == 2 && stats.hits == 2 && stats.misses == 2);
        source->request(source, 0, 0, next, 2);
        source->prefetch(source, 1, here, 2);
        source->request(source, 1, 1, next, 2); /* another lane's: the hint is too late */
        TEST(take_all(source) == 2);
        TEST(source->stats(source).prefetches == 2);
        ProvidedExpert rest[2];
        while (source->acquire(source, 1, 2, rest) > 0) {}
        TEST(expert_cache_end(bank, &error));
        fixture_run_close(&run);
    }
    setup_close(&s);
}

/* Steps of several sequences that want more in all layers than the cache holds, which a token's would fit into: some
 * are found all the same. */
static void check_crowd(void) {
    enum { STEPS = 12 };
    const ModelOptions streamed = {.strict_config = true, .experts.stream = true};
    const RunnerOptions options = runner_options("auto", false);
    Setup s = {0};
    FixtureRun run;
    Error error = {0};
    if (!setup_open(&s, &cases[0])) return;
    if (fixture_run_open(&run, s.directory, &streamed, &options)) {
        ExpertCache *bank = run.model->bank;
        ExpertProvider *source = expert_cache_source(bank);
        const Spec *spec = model_spec(run.model);
        const MoeComponent *moe = layer_moe(&spec->layers[0]);
        const int wanted = 2 * moe->top_k;
        int32_t experts[64];
        TEST(wanted <= moe->experts && wanted <= (int)COUNT_OF(experts));
        for (int e = 0; e < wanted; e++) experts[e] = e;
        TEST(
            expert_cache_allocate(bank, expert_cache_working_set_bytes(bank) + expert_cache_floor_bytes(bank), &error));
        for (int i = 0; i < STEPS; i++) {
            expert_cache_begin(bank);
            for (int layer = 0; layer < spec->layer_count; layer++) {
                source->request(source, 0, layer, experts, wanted);
                TEST(take_all(source) == wanted);
            }
            TEST(expert_cache_end(bank, &error));
        }
        const ExpertProviderStats stats = source->stats(source);
        TEST_MSG(stats.slots < spec->layer_count * wanted && 4 * stats.hits > stats.misses, "%llu of %llu in %d slots",
            (unsigned long long)stats.hits, (unsigned long long)(stats.hits + stats.misses), stats.slots);
        fixture_run_close(&run);
    }
    setup_close(&s);
}

/* Fewer experts a token: other logits, the same ones streamed and resident; more than there are is all of them. */
static void check_cut(void) {
    Setup s = {0};
    FixtureRun run;
    const RunnerOptions options = runner_options("auto", false);
    if (!setup_open(&s, &cases[0])) return;
    walk_resident(&s, "auto");
    float *first = malloc(s.golden_bytes);
    for (int streamed = 0; streamed < 2; streamed++) {
        for (int all = 0; all < 2; all++) {
            int top_k, made_for;
            const ModelOptions model = {.experts_used = all ? 30 : 1, .experts.stream = streamed};
            if (!fixture_run_open(&run, s.directory, &model, &options)) continue;
            Error error = {0};
            TEST(!streamed || model_hold_experts(run.model, model_expert_bytes(run.model), &error));
            TEST(fixture_walk(run.runner, s.f.tokens, s.f.count, FIXTURE_TOKENS_MAX, 0, s.streamed));
            TEST((memcmp(s.resident, s.streamed, s.golden_bytes) == 0) == all);
            TEST(model_experts_cut(run.model, &top_k, &made_for) == !all && (all || (top_k == 1 && made_for > 1)));
            if (!all && streamed) TEST(!memcmp(first, s.streamed, s.golden_bytes));
            if (!all) memcpy(first, s.streamed, s.golden_bytes);
            fixture_run_close(&run);
        }
    }
    free(first);
    setup_close(&s);
}

static bool lies_in_file(const Model *model, const Weight *w) {
    const FileMap *file = &model->checkpoint.files[0];
    const uintptr_t at = (uintptr_t)w->data, start = (uintptr_t)file->data;
    return at >= start && at - start < file->size;
}

/* Only routed experts stay in the file: matrices of latent attention's heads, which lie in stacks as well, do not. */
static void check_heads(void) {
    Setup s = {0};
    FixtureRun run;
    Error error = {0};
    const ModelOptions streamed = {.strict_config = true, .experts.stream = true};
    const RunnerOptions options = runner_options("auto", false);
    if (!setup_open(&s, &(Case){"deepseek-v3", 0})) return;
    walk_resident(&s, "auto");
    if (fixture_run_open(&run, s.directory, &streamed, &options)) {
        const Spec *spec = model_spec(run.model);
        TEST(model_hold_experts(run.model, model_expert_bytes(run.model), &error));
        TEST(fixture_walk(run.runner, s.f.tokens, s.f.count, FIXTURE_TOKENS_MAX, 0, s.streamed));
        TEST(!memcmp(s.resident, s.streamed, s.golden_bytes));
        for (int i = 0; i < spec->layer_count; i++) {
            const MlaComponent *mixer = &spec->layers[i].components[0].mla;
            TEST(!lies_in_file(run.model, &mixer->o) && !lies_in_file(run.model, &mixer->w_uk[0]) &&
                !lies_in_file(run.model, &mixer->w_uv[0]));
        }
        fixture_run_close(&run);
    }
    setup_close(&s);
}

static void check_refusals(void) {
    Setup s = {0};
    Error error = {0};
    if (!setup_open(&s, &(Case){"llama", 0})) return;
    TEST(!model_open(s.directory, &(ModelOptions){.experts.stream = true}, &error));
    TEST_MSG(error.code == ERROR_USAGE && strstr(error.text, "no experts"), "%s", error.text);
    TEST(!model_open(s.directory, &(ModelOptions){.experts_used = 2}, &error) && error.code == ERROR_USAGE);
    setup_close(&s);
}

/* More layers for a device than the model has are all of them. */
static void check_device_layers(void) {
    static const int wanted[] = {1, 2, 99, INT_MAX};
    Setup s = {0};
    Error error = {0};
    uint64_t before = 0;
    if (!setup_open(&s, &(Case){"llama", 0})) return;
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        Model *model = model_open(s.directory, &(ModelOptions){.device_layers = wanted[i]}, &error);
        TEST_MSG(model, "%s", error.text);
        if (!model) continue;
        const bool all = wanted[i] >= model_layers(model);
        TEST(all == (model->device_bytes == model_layer_bytes(model, 0)) && model->device_bytes >= before);
        TEST(model->device_bytes > 0 && model->device_bytes < model->weight_bytes);
        before = model->device_bytes;
        model_close(model);
    }
    setup_close(&s);
}

int main(void) {
    check_device_layers();
    for (size_t i = 0; i < COUNT_OF(cases); i += SANITIZED ? 3 : 1) check_case(&cases[i], i);
    check_errors(EXPERT_CACHE_IO_THREADS);
    check_errors(EXPERT_CACHE_IO_URING);
    check_silence(EXPERT_CACHE_IO_THREADS);
    check_silence(EXPERT_CACHE_IO_URING);
    check_replaced();
    check_long_prompt();
    for (size_t i = SANITIZED; i < COUNT_OF(cases); i += SANITIZED ? 3 : 1) {
        static const char *const cpus[] = {"ref", "auto", "generated"};
        for (size_t k = 0; k < COUNT_OF(cpus); k++)
            if (!test_usual() || (i + k) % COUNT_OF(cpus) == 0) check_ways(&cases[i], cpus[k], k == 0);
    }
    check_cut();
    check_hints();
    check_crowd();
    check_heads();
    check_refusals();
    return test_done();
}
