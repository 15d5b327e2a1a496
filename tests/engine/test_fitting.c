/* Plans of real files: what a mixture needs, from its tables alone and as the engine then takes it; calibrations that
 * are kept; budgets that are too small. The fixture is a checkpoint of a few hundred kilobytes, so that all but a
 * handful of them is what any model needs to work in. */
#include "engine/fitting.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/kv_quant.h"
#include "backend/plugin.h"
#include "engine/expert_memory.h"
#include "family/fixture.h"

static char checkpoint[64], calibrations[] = "/tmp/apus-fitting-XXXXXX";

static EngineOptions options_of(uint64_t budget) {
    return (EngineOptions){.directory = checkpoint,
        .model = {.experts.memory_budget = budget},
        .backend = fixture_backend("auto", 2, 0),
        .slots = 2,
        .queue_max = 4,
        .prefill_size = 32,
        .fit = engine_fit,
        .calibrations = calibrations};
}

static EnginePlan must_plan(const EngineOptions *options, PlanSource source) {
    EnginePlan plan;
    Error error = {0};
    TEST_MSG(engine_plan(options, source, &plan, &error), "%s", error.text);
    return plan;
}

static int kept(bool remove) {
    int count = 0;
    DIR *dir = opendir(calibrations);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[512];
        if (entry->d_name[0] == '.') continue;
        count++;
        snprintf(path, sizeof path, "%s/%s", calibrations, entry->d_name);
        if (remove) unlink(path);
    }
    if (dir) closedir(dir);
    return count;
}

/* The table of a mapped model is that of the streamed one. */
static void test_table(void) {
    const EngineOptions options = options_of(0);
    const EnginePlan plan = must_plan(&options, PLAN_KNOWN);
    const FitModel *model = &plan.model;
    TEST(!plan.fit.stream && plan.machine.read == 0 && plan.fit.decode == 0);
    TEST(kept(false) == 0); /* nothing hangs on the disk: nothing was measured */
    TEST(model->experts > 0 && model->cycle > 0 && model->can_stream && model->kind_count > 1);
    Error error = {0};
    uint64_t bytes = 0, operations = 0;
    double step = 0, work = 0;
    Model *streamed = model_open(checkpoint, &(ModelOptions){.experts.stream = true}, &error);
    TEST_MSG(streamed, "%s", error.text);
    if (!streamed) return;
    model_step_cost(streamed, &bytes, &operations);
    for (int k = 0; k < model->kind_count; k++) {
        step += model->kind[k].bytes;
        work += model->kind[k].operations;
    }
    TEST_MSG(fabs(step - (double)bytes) < 1, "%.1f %llu", step, (unsigned long long)bytes);
    TEST_MSG(fabs(work - (double)operations) < 1, "%.1f %llu", work, (unsigned long long)operations);
    /* Parts begin and end with whole blocks, which the plan counts as one each. */
    const uint64_t all = model->expert_bytes * (uint64_t)model->experts, real = model_expert_bytes(streamed);
    const uint64_t slack = (uint64_t)model->experts * (uint64_t)model->parts * EXPERT_CACHE_ALIGN;
    TEST_MSG(
        all <= real + slack && real <= all + slack, "%llu %llu", (unsigned long long)all, (unsigned long long)real);
    model_close(streamed);
}

/* Rows of draft tokens make steps larger: the plan counts what these work in. */
static void test_draft_rows(void) {
    EngineOptions options = options_of(0);
    options.slots = 16;
    const uint64_t without = must_plan(&options, PLAN_KNOWN).model.besides_bytes;
    options.speculation.lookup = true;
    const uint64_t with = must_plan(&options, PLAN_KNOWN).model.besides_bytes;
    TEST_MSG(with > without, "%llu with, %llu without", (unsigned long long)with, (unsigned long long)without);
}

/* A draft model is a part of the plan: what just does with it does for the engine, and a byte less is refused. */
static void test_draft_model(void) {
    EngineOptions options = options_of(0);
    options.model.experts.stream = true;
    const EnginePlan without = must_plan(&options, PLAN_KNOWN);
    options.speculation.draft_directory = checkpoint;
    const EnginePlan with = must_plan(&options, PLAN_KNOWN);
    TEST(without.model.draft_bytes == 0 && with.model.draft_bytes > with.model.weight_bytes);
    const uint64_t own = with.fit.floor - with.model.draft_bytes; /* larger steps than without draft tokens */
    TEST_MSG(own >= without.fit.floor, "%llu %llu", (unsigned long long)own, (unsigned long long)without.fit.floor);
    Error error = {0};
    options.model.experts.memory_budget = with.fit.floor - 1;
    EnginePlan none;
    TEST(!engine_plan(&options, PLAN_KNOWN, &none, &error) && error.code == ERROR_MEMORY);
    TEST_MSG(strstr(error.text, "for draft tokens"), "%s", error.text);
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(!engine && error.code == ERROR_MEMORY, "%s", error.text);
    engine_close(engine);
    options.model.experts.memory_budget = with.fit.floor;
    engine = engine_open(&options, &error);
    TEST_MSG(engine, "%s", error.text);
    engine_close(engine);
}

/* A budget in which not all experts fit: they are streamed, the disk is measured once and then known. */
static void test_streamed(void) {
    EngineOptions options = options_of(0);
    options.model.experts.stream = true;
    const EnginePlan whole = must_plan(&options, PLAN_KNOWN);
    TEST(whole.fit.stream && whole.fit.held == whole.model.experts && whole.machine.disk.block_bytes > 0);
    TEST(kept(false) == 1);
    options = options_of(whole.fit.floor + 4 * whole.model.expert_bytes);
    const EnginePlan plan = must_plan(&options, PLAN_KNOWN);
    TEST(plan.fit.stream && plan.fit.held < plan.model.experts && plan.fit.decode > 0 && plan.fit.prompt > 0);
    TEST(plan.machine.read == whole.machine.read || fabs(plan.machine.read / whole.machine.read - 1) < 1e-4);
    TEST(kept(false) == 1);
    Error error = {0};
    options = options_of(0);
    options.model.experts.stream = true;
    options.prefill_size = 0;
    TEST_MSG(engine_fit(&options, &error), "%s", error.text);
    TEST(options.model.experts.memory_budget > 0 && options.prefill_size > 512 && options.kv_bytes > 0);
    TEST(options.model.experts.cache.depth == plan.machine.disk.depth);
    options = options_of(whole.fit.floor + 4 * whole.model.expert_bytes);
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine, "%s", error.text);
    if (engine) {
        const ExpertProviderStats experts = engine_stats(engine).experts;
        TEST_MSG(experts.experts == plan.model.experts && experts.slots > 0 && experts.slots < experts.experts,
            "%d of %d", experts.slots, experts.experts);
        engine_close(engine);
    }
}

/* What just does by the plan does for the engine, also where it wants more of a step than a token's logits; and no less
 * than a page of the cache and an expert less does for either. */
static void test_floor(void) {
    static const Pooling poolings[] = {POOLING_NONE, POOLING_LAST, POOLING_MEAN};
    for (size_t i = 0; i < COUNT_OF(poolings); i++) {
        EngineOptions options = options_of(0);
        options.model.experts.stream = true;
        options.pooling = poolings[i];
        const EnginePlan whole = must_plan(&options, PLAN_KNOWN);
        Error error = {0};
        options.model.experts.memory_budget = whole.fit.floor;
        const EnginePlan least = must_plan(&options, PLAN_KNOWN);
        TEST(least.fit.held >= least.model.layer_cycle);
        Engine *engine = engine_open(&options, &error);
        TEST_MSG(engine, "%s", error.text);
        engine_close(engine);
        options.model.experts.memory_budget = whole.fit.floor - 1;
        EnginePlan none;
        TEST(!engine_plan(&options, PLAN_KNOWN, &none, &error) && error.code == ERROR_MEMORY);
        engine = engine_open(&options, &error);
        TEST_MSG(!engine && error.code == ERROR_MEMORY, "%s", error.text);
        engine_close(engine);
    }
}

static size_t no_code_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }

/* As devices are, which code no pages. */
static Backend *without_codes(Backend *inner, Error *error) {
    static BackendOps ops;
    ops = *inner->ops;
    ops.kv_quant_bytes = no_code_bytes;
    inner->ops = &ops;
    return inner;
}

/* Of layers that are elsewhere the cache is elsewhere, too: beside the experts the host holds its own part alone. */
static void test_split_cache(void) {
    enum { SPLIT = 1, CACHE = 1 << 20 };
    Error error = {0};
    const EngineOptions options = {.slots = 1, .kv_bytes = CACHE};
    uint64_t room;
    Model *model = model_open(checkpoint, &(ModelOptions){.experts.stream = true, .device_layers = SPLIT}, &error);
    TEST_MSG(model, "%s", error.text);
    if (!model) return;
    const int layers = model_layers(model);
    RunnerOptions chunks = {
        .backend = fixture_backend("auto", 1, 100), .split = layers - SPLIT, .upper = fixture_backend("auto", 1, 100)};
    chunks.upper.wrap = without_codes;
    Runner *runner = runner_open(model, &chunks, &error);
    TEST_MSG(runner, "%s", error.text);
    if (runner) {
        const uint64_t host = expert_cache_held(runner, CACHE),
                       least = CACHE / (uint64_t)layers * (uint64_t)(layers - SPLIT);
        TEST_MSG(host <= least + CACHE / 8 && host >= least - CACHE / 8, "%llu of %d", (unsigned long long)host, CACHE);
        /* A budget that would just do does. */
        uint64_t resident;
        const uint64_t besides = runner_besides_bytes(runner, &resident);
        const uint64_t floor = besides + resident + host + model_expert_floor(model);
        const uint64_t enough = (floor / 9 + 1) * 10 - resident; /* of which nine tenths are taken */
        TEST_MSG(expert_room(runner, &options, enough, &room, &error), "%s", error.text);
        TEST(!expert_room(runner, &options, enough - CACHE / 8, &room, &error) && error.code == ERROR_MEMORY);
    }
    runner_close(runner);
    model_close(model);
}

static uint64_t there_bytes(const Weight *weight) { return weight_bytes(weight); }
static uint64_t there_work(int rows_max, int64_t cols_max) { return 0; }
static size_t there_codes(const KvLayout *layout, KvForm form, bool values) {
    return layout->latent ? 0 : kv_quant_bytes(layout, form, values);
}

/* A GPU that keeps latents exact, as NVIDIA's do here: what is counted as coded is what it codes. */
static void test_gpu_codes(const char *directory, bool latent) {
    static const Plugin plugin = {.weight_bytes = there_bytes, .code_bytes = there_codes, .work_bytes = there_work};
    Error error = {0};
    FitModel fit = {0};
    Model *model = model_open(directory, &(ModelOptions){0}, &error);
    Runner *runner =
        model ? runner_open(model, &(RunnerOptions){.backend = fixture_backend("auto", 1, 100)}, &error) : NULL;
    TEST_MSG(runner, "%s", error.text);
    if (runner) {
        fit_model(runner, &fit);
        fit_model_gpu(runner, &plugin, &fit);
        TEST(fit.kv_quantised > 0);
        TEST(fit.gpu_kv_quantised == (latent ? 0 : fit.kv_quantised));
    }
    runner_close(runner);
    model_close(model);
}

static void test_too_small(void) {
    EngineOptions options = options_of(1 << 20);
    Error error = {0};
    EnginePlan plan;
    TEST(!engine_plan(&options, PLAN_KNOWN, &plan, &error) && error.code == ERROR_MEMORY);
    TEST_MSG(strstr(error.text, "would just do"), "%s", error.text);
    TEST(!engine_fit(&options, &error) && error.code == ERROR_MEMORY);
    if (backend_on_device("auto")) {
        test_skip("a device whose memory is unknown: this machine has a GPU");
        return;
    }
    options.backend.device = "cuda"; /* no memory figures without a GPU */
    TEST(!engine_plan(&options, PLAN_KNOWN, &plan, &error) && error.code == ERROR_UNSUPPORTED);
    options.prefill_size = 0;
    TEST(engine_fit(&options, &error) && options.prefill_size == 512 && !options.model.experts.stream);
}

int main(void) {
    Fixture f;
    TEST(mkdtemp(calibrations) != NULL);
    if (!fixture_open(&f, "olmoe") || !fixture_write_variant(&f, 0, checkpoint)) return 1;
    test_table();
    test_draft_rows();
    test_draft_model();
    test_streamed();
    test_floor();
    test_split_cache();
    test_too_small();
    test_gpu_codes(checkpoint, false);
    TEST(kept(true) == 1);
    rmdir(calibrations);
    fixture_remove(checkpoint);
    fixture_close(&f);
    if (!fixture_open(&f, "deepseek-v3") || !fixture_write_variant(&f, 0, checkpoint)) return 1;
    test_gpu_codes(checkpoint, true);
    fixture_remove(checkpoint);
    fixture_close(&f);
    return test_done();
}
