/* Plans of invented machines and models: a plan is arithmetic, so every figure can be checked by hand. */
#include "fit/fit.h"

#include <stdlib.h>
#include <unistd.h>

#include "test.h"

static const uint64_t GIB = UINT64_C(1) << 30, MIB = UINT64_C(1) << 20;

/* 50 GB/s of memory, 40 GB/s and 1 TOP/s in products, a disk of 1 to 4 GB/s. */
static FitMachine machine_of(uint64_t memory) {
    FitMachine m = {.threads = 4,
        .memory = memory,
        .read = 50e9,
        .disk = {.direct = true,
            .depth = 16,
            .block_bytes = 1 << 20,
            .rate = {1e9, 2e9, 3e9, 4e9, 4e9},
            .buffered = 1e9,
            .large_bytes = 3 << 20,
            .large = 4e9}};
    for (int k = 0; k < FIT_KINDS_MAX; k++) {
        m.rows[k] = 40e9;
        m.prompts[k] = 1e12;
    }
    return m;
}

/* 4 GiB of weights, of which a token goes through 3.6 GB. */
static FitModel dense_model(void) {
    return (FitModel){.layers = 32,
        .kind_count = 1,
        .kind = {{.bytes = 3.6e9, .operations = 14e9, .share = 1}},
        .dense_bytes = 4 * GIB,
        .besides_bytes = 256 * MIB,
        .can_stream = true,
        .context = 32768,
        .kv_least = 16 * MIB,
        .kv_full = 4 * GIB,
        .kv_quantised = GIB,
        .kv_token_bytes = 131072};
}

/* The shape of Qwen3-30B-A3B in 4 bits: 48 layers of 128 experts, 8 of which a token uses. */
static FitModel moe_block(void) {
    FitModel model = dense_model();
    model.layers = 48;
    model.kind_count = 2;
    model.kind[0].bytes = 0.7e9;
    model.kind[0].operations = 2e9;
    model.kind[1] = (FitKind){.routed = true, .bytes = 384 * 2.65e6, .operations = 4e9, .share = 8.0 / 128};
    model.dense_bytes = GIB;
    model.experts = 48 * 128;
    model.cycle = 48 * 8;
    model.layer_cycle = 8;
    model.expert_bytes = 2650000;
    model.parts = 9;
    return model;
}

static FitRequest wishes_of(int slots) { return (FitRequest){.slots = slots, .prompt = FIT_PROMPT}; }

static Fit must(const FitMachine *machine, const FitModel *model, const FitRequest *request) {
    Fit fit;
    Error error = {0};
    TEST_MSG(fit_plan(machine, model, request, &fit, &error), "%s", error.text);
    return fit;
}

/* ---- memory ---- */

static void test_all_fits(void) {
    const FitMachine machine = machine_of(64 * GIB);
    const FitModel model = moe_block();
    const FitRequest request = wishes_of(4);
    const Fit fit = must(&machine, &model, &request);
    TEST(!fit.stream && !fit.quantised && fit.held == model.experts && fit.hit == 1);
    TEST(fit.budget == machine.memory / 10 * 9);
    TEST(fit.kv_bytes == 4 * model.kv_full && fit.kv_wanted == fit.kv_bytes);
    TEST(fit.read_bytes == 0 && fit.disk_s == 0 && fit.prompt_disk_s == 0);
}

/* What the parts take is what the budget has. */
static void test_streamed(void) {
    const FitMachine machine = machine_of(12 * GIB);
    const FitModel model = moe_block();
    FitRequest request = wishes_of(1);
    Fit fit = must(&machine, &model, &request);
    const uint64_t room = fit.budget - model.dense_bytes - model.besides_bytes;
    TEST(fit.stream && fit.held < model.experts && fit.held > model.cycle);
    TEST(fit.kv_bytes == room / 4 && fit.experts_bytes == room - fit.kv_bytes);
    TEST(fit.held == (int)(fit.experts_bytes / model.expert_bytes));
    request.kv_bytes = 64 * MIB;
    fit = must(&machine, &model, &request);
    TEST(fit.kv_bytes == 64 * MIB && fit.experts_bytes == room - 64 * MIB);
    request.budget = 6 * GIB;
    fit = must(&machine, &model, &request);
    TEST(fit.budget == 6 * GIB);
    request.budget = 100 * GIB; /* more than there is */
    TEST(must(&machine, &model, &request).budget == machine.memory);
    request = wishes_of(1);
    request.stream = true; /* though everything fits */
    const FitMachine large = machine_of(64 * GIB);
    fit = must(&large, &model, &request);
    TEST(fit.stream && fit.held == model.experts && fit.hit == 1);
}

static void test_cannot_stream(void) {
    const FitMachine machine = machine_of(12 * GIB);
    FitModel model = moe_block();
    const FitRequest request = wishes_of(1);
    Fit fit;
    Error error = {0};
    model.can_stream = false;
    TEST(!fit_plan(&machine, &model, &request, &fit, &error) && error.code == ERROR_MEMORY);
}

/* The floor is what just does: with it there is a plan, with a byte less there is none, and the refusal names it. */
static void test_floor(void) {
    const FitModel models[] = {dense_model(), moe_block()};
    for (int i = 0; i < 2; i++) {
        const FitMachine machine = machine_of(64 * GIB);
        FitRequest request = wishes_of(8);
        Fit fit;
        Error error = {0};
        request.stream = true;
        request.budget = must(&machine, &models[i], &request).floor;
        fit = must(&machine, &models[i], &request);
        TEST(fit.kv_bytes == models[i].kv_least && fit.held == (i ? models[i].layer_cycle : 0));
        char floor[32];
        snprintf(floor, sizeof floor, "%.3f GB would just do", (double)fit.floor * 1e-9 + MEMORY_HALF_DIGIT);
        request.budget--;
        TEST(!fit_plan(&machine, &models[i], &request, &fit, &error));
        TEST_MSG(error.code == ERROR_MEMORY && strstr(error.text, floor), "%s: %s", floor, error.text);
    }
}

static void test_form(void) {
    const FitMachine machine = machine_of(16 * GIB); /* 14.4 of them: 10.15 for the cache */
    const FitModel model = dense_model();
    FitRequest request = wishes_of(2);
    request.form = FIT_AUTO;
    TEST(!must(&machine, &model, &request).quantised);
    request.slots = 4;
    Fit fit = must(&machine, &model, &request);
    TEST(fit.quantised && fit.kv_bytes == 4 * model.kv_quantised);
    request.form = FIT_FULL;
    fit = must(&machine, &model, &request);
    TEST(!fit.quantised && fit.kv_wanted == 4 * model.kv_full && fit.kv_bytes < fit.kv_wanted);
    FitModel exact = model;
    exact.kv_quantised = 0;
    request.form = FIT_QUANTISED;
    TEST(!must(&machine, &exact, &request).quantised);
}

/* ---- time ---- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static void test_dense_speed(void) {
    const FitMachine machine = machine_of(64 * GIB);
    FitModel model = dense_model();
    FitRequest request = wishes_of(1);
    const Fit start = must(&machine, &model, &request);
    request.depth = 10000;
    const Fit deep = must(&machine, &model, &request);
    TEST(near(start.decode, 1 / start.decode_s) && near(start.decode_s, start.dense_s));
    TEST(start.decode_s > 3.6e9 / 40e9 && start.decode_s < 1.3 * 3.6e9 / 40e9);
    TEST(near(deep.decode_s - start.decode_s, 10000.0 * 131072 / 50e9));
    TEST(start.prompt < 1e12 / 14e9 && start.prompt > 0.8 * 1e12 / 14e9);
    model.kind[0].bytes /= 2; /* half the bytes: nearly twice as fast */
    request.depth = 0;
    TEST(must(&machine, &model, &request).decode > 1.9 * start.decode);
}

/* max(disk, hits) stands between what every token reads and what is read for it. */
static void test_streamed_speed(void) {
    FitMachine machine = machine_of(7 * GIB);
    const FitModel model = moe_block();
    const FitRequest request = wishes_of(1);
    const Fit fit = must(&machine, &model, &request);
    const double missed = (1 - fit.hit) * model.cycle;
    const double last = 48 * (1 - pow(fit.hit, 8)) * 2650000 / 3 / 1e9; /* matrices that come alone */
    TEST(near(fit.read_bytes, missed * (double)model.expert_bytes));
    TEST(missed / 48 > 1 && near(fit.disk_s, fit.read_bytes / disk_rate(&machine.disk, missed / 48 * 9) + last));
    TEST(near(fit.decode_s, fit.dense_s + fmax(fit.disk_s, fit.hits_s) + fit.misses_s));
    TEST(fit.prompt_read_bytes == (double)model.expert_bytes * model.experts);
    for (int i = 0; i < DISK_DEPTHS; i++) machine.disk.rate[i] *= 2;
    TEST(near(must(&machine, &model, &request).disk_s, fit.disk_s / 2));
    machine.disk = (DiskProbe){0}; /* nobody looked at it: a plan, and no promise */
    const Fit blind = must(&machine, &model, &request);
    TEST(blind.stream && blind.decode == 0 && blind.prompt == 0 && blind.held == fit.held);
}

static void test_hit_rate(void) {
    const FitModel model = moe_block();
    double before = -1;
    for (int held = 0; held <= model.experts; held++) {
        const double hit = fit_hit_rate(&model, held);
        TEST(hit >= before && hit <= 1);
        before = hit;
    }
    TEST(fit_hit_rate(&model, model.experts) == 1);
    TEST(near(fit_hit_rate(&model, model.experts / 5), .66) ||
        fabs(fit_hit_rate(&model, model.experts / 5) - .66) < .001);
    TEST(fit_hit_rate(&model, model.cycle - 1) < fit_hit_rate(&model, model.cycle)); /* the guard's cliff */
}

static void test_disk_rate(void) {
    const FitMachine machine = machine_of(GIB);
    TEST(disk_rate(&machine.disk, 0.3) == 1e9 && disk_rate(&machine.disk, 1) == 1e9);
    TEST(near(disk_rate(&machine.disk, 6), 2.5e9) && near(disk_rate(&machine.disk, 100), 4e9));
}

/* A file in which no expert fits says nothing of the disk: nothing is promised, instead of what is no number. */
static void test_nothing_read(void) {
    char path[] = "/tmp/apus-fit-XXXXXX";
    const int fd = mkstemp(path);
    FitModel model = moe_block();
    FitRequest request = wishes_of(1);
    FitMachine machine;
    Error error = {0};
    model.kind_count = 1;
    model.kind[0].like = (Weight){.rows = 64, .cols = 64, .dtype = DTYPE_F16};
    model.kind[0].run_bytes = 1e6;
    TEST_MSG(fd >= 0 && fit_measure(&model, &(BackendOptions){.threads = 1}, path, &machine, &error), "%s", error.text);
    TEST(machine.read > 0 && machine.rows[0] > 0 && machine.disk.block_bytes == 0);
    machine.memory = 12 * GIB;
    request.stream = true;
    const Fit fit = must(&machine, &model, &request);
    TEST(fit.stream && fit.decode == 0 && fit.prompt == 0);
    close(fd);
    unlink(path);
}

/* ---- words ---- */

/* 100 MB a layer, 200 for the output matrix, 1 GB to work in; a sequence of the cache takes 128 MiB a layer. */
static FitModel gpu_model(void) {
    FitModel model = dense_model();
    model.gpu_layer_bytes = 100000000;
    model.gpu_head_bytes = 200000000;
    model.gpu_embedding_bytes = 300000000;
    model.gpu_work_bytes = 1000000000;
    model.gpu_kv_quantised = model.kv_quantised;
    model.embedding_bytes = 512 * MIB;
    return model;
}

/* 0.95 · 6 GB − 1.2 GB = 4.5 GB: 19 layers of 100 MB and 134 MB; the cache is a sequence's, then what is left. */
static void test_gpu_auto(void) {
    FitMachine machine = machine_of(20 * GIB);
    const FitModel model = gpu_model();
    FitRequest request = wishes_of(1);
    request.gpu_layers = FIT_GPU_AUTO;
    Fit fit = must(&machine, &model, &request);
    TEST(fit.gpu_layers == 0 && fit.gpu_bytes == 0); /* there is none */
    machine.gpu_memory = 6000000000;
    fit = must(&machine, &model, &request);
    TEST(fit.gpu_layers == 19 && fit.gpu_fit == 19 && fit.gpu_bytes == 2100000000);
    TEST_MSG(
        fit.gpu_kv_bytes == 19 * 128 * MIB && fit.kv_wanted == 4 * GIB, "%llu", (unsigned long long)fit.gpu_kv_bytes);
    request.slots = 8;
    const Fit more = must(&machine, &model, &request);
    TEST(more.gpu_layers == 19 && more.gpu_kv_bytes >= fit.gpu_kv_bytes && more.gpu_kv_bytes <= 2600000000);
    TEST(more.kv_bytes / 32 <= more.gpu_kv_bytes / 19 + 1); /* the host's part is no larger than it can be used */
    machine.gpu_memory = 100 * GIB;
    fit = must(&machine, &model, &request);
    TEST(fit.gpu_layers == 32 && fit.gpu_bytes == 3700000000 && fit.gpu_kv_bytes == 32 * GIB); /* with the embedding */
    machine.gpu_rows = 30e9;
    fit = must(&machine, &model, &request);
    TEST(fit.gpu_layers == 0 && fit.gpu_fit == 32); /* the processor's 40 GB/s are more */
    machine.gpu_rows = 3600e9;
    fit = must(&machine, &model, &request);
    TEST(fit.gpu_layers == 32 && near(fit.gpu_s, 1e-3) && near(fit.decode_s, 1e-3));
    request.gpu_layers = 16;
    const Fit half = must(&machine, &model, &request);
    request.gpu_layers = 0;
    const Fit none = must(&machine, &model, &request);
    TEST_MSG(near(half.decode_s, none.decode_s / 2 + 0.5e-3), "%g %g", half.decode_s, none.decode_s);
    const FitModel host = fit_host_part(&model, 16);
    TEST(host.layers == 16 && host.dense_bytes == (4 * GIB - 512 * MIB) / 2 + 512 * MIB && host.kv_full == 2 * GIB);
}

/* The cache has one form on both sides, that which both can have. */
static void test_gpu_form(void) {
    static const int layers[] = {FIT_GPU_AUTO, 16, 32};
    FitMachine machine = machine_of(64 * GIB);
    FitModel model = gpu_model();
    machine.gpu_memory = 100 * GIB;
    for (size_t i = 0; i < COUNT_OF(layers); i++) {
        FitRequest request = wishes_of(2);
        request.gpu_layers = layers[i];
        request.form = FIT_QUANTISED;
        model.gpu_kv_quantised = model.kv_quantised;
        Fit fit = must(&machine, &model, &request);
        TEST(fit.quantised && fit.kv_wanted == 2 * GIB && fit.kv_bytes == 2 * GIB);
        model.gpu_kv_quantised = 0;
        fit = must(&machine, &model, &request);
        TEST(!fit.quantised && fit.kv_wanted == 8 * GIB && fit.kv_bytes == 8 * GIB);
        request.gpu_layers = 0;
        TEST(must(&machine, &model, &request).quantised);
        request.gpu_layers = layers[i];
        request.form = FIT_AUTO;
        model.gpu_kv_quantised = model.kv_quantised;
        TEST(!must(&machine, &model, &request).quantised);
        request.slots = 40;
        fit = must(&machine, &model, &request);
        TEST(fit.quantised && fit.kv_wanted == 40 * GIB);
    }
}

static void test_gpu_too_small(void) {
    FitMachine machine = machine_of(20 * GIB);
    const FitModel model = gpu_model();
    FitRequest request = wishes_of(1);
    Fit fit;
    Error error = {0};
    machine.gpu_memory = 3000000000;
    request.gpu_layers = 30;
    TEST(!fit_plan(&machine, &model, &request, &fit, &error) && error.code == ERROR_MEMORY);
    TEST_MSG(strstr(error.text, "30 layers take 4.216 GB of the GPU's memory, of which 3.000 GB are free") &&
            strstr(error.text, "--gpu-layers 7 would fit"),
        "%s", error.text);
    request.gpu_layers = 7;
    TEST(fit_plan(&machine, &model, &request, &fit, &error) && fit.gpu_layers == 7);
}

static void test_explained(void) {
    const FitMachine machine = machine_of(12 * GIB);
    const FitModel model = moe_block();
    FitRequest request = wishes_of(1);
    request.gpu_layers = 20;
    const Fit fit = must(&machine, &model, &request);
    Buffer text = {0};
    fit_explain(&machine, &model, &request, &fit, &text);
    const char *const said[] = {"memory", "experts      streamed", "KV cache", "GPU layers   0 of 48", "threads      4",
        "disk         around the page cache, up to 16 reads", "decoding", "prompts"};
    for (size_t i = 0; i < COUNT_OF(said); i++) TEST_MSG(text.data && strstr(text.data, said[i]), "%s", said[i]);
    buffer_clear(&text);
    fit_summary(&machine, &model, &fit, &text);
    TEST(!strchr(text.data, '\n') && strstr(text.data, "streamed") && strstr(text.data, "tok/s"));
    buffer_free(&text);
}

int main(void) {
    test_all_fits();
    test_streamed();
    test_cannot_stream();
    test_floor();
    test_form();
    test_dense_speed();
    test_streamed_speed();
    test_hit_rate();
    test_disk_rate();
    test_nothing_read();
    test_gpu_auto();
    test_gpu_form();
    test_gpu_too_small();
    test_explained();
    return test_done();
}
