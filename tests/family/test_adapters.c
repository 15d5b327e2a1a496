/* LoRA adapters: a model with an adapter computes what the model with merged matrices computes; in a step with rows of
 * other adapters and of none, each row has the bits that it has alone; files that do not fit are refused by name. */
#include <unistd.h>

#include "base/file.h"
#include "fixture.h"

enum { TOKENS = 60, PROMPT = 23 /* of them */, ROWS = 128, MODULES_MAX = 64, SEQUENCES = 4 };
enum { DECODE_PIECE = 8 /* SEQUENCES of them are decode rows of one step on every device */ };

static const struct {
    const char *name;
    int variant;
} cases[] = {{"llama", 0}, {"llama", 2}, {"gemma3-text", 2}, {"phi3", 0}, {"qwen3", 1}, {"phi", 1}, {"deepseek-v3", 2}};

/* ---- files of adapters ---- */

static bool open_fixture(Fixture *f, const char *name) {
    uint64_t random = 1;
    if (!fixture_open(f, name)) return false;
    for (int i = f->count; i < TOKENS; i++) f->tokens[i] = (int32_t)(test_random(&random) % (uint64_t)f->vocab);
    return true;
}

/* The matrices of layers that adapters can update, as the checkpoint without quantisation has them. */
typedef struct Modules {
    int count;
    char names[MODULES_MAX][128]; /* without .weight */
    int64_t rows[MODULES_MAX], cols[MODULES_MAX];
} Modules;

static void list_modules(Fixture *f, const char *only, Modules *out) {
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_up_proj", "gate_proj",
        "up_proj", "down_proj", "q_a_proj", "fc1", "fc2", "dense"};
    FixtureFile *file = fixture_tensors(f, 0);
    out->count = 0;
    for (int i = 0; i < file->count; i++) {
        const TensorHeader *h = &file->header[i];
        const char *end = strstr(h->name, ".weight"), *dot = end;
        while (dot && dot > h->name && dot[-1] != '.') dot--;
        for (size_t p = 0; dot && p < COUNT_OF(parts) && h->rank == 2 && out->count < MODULES_MAX; p++) {
            const size_t size = strlen(parts[p]);
            if ((size_t)(end - dot) != size || memcmp(dot, parts[p], size) || !strstr(h->name, "layers.")) continue;
            if ((only && strcmp(only, parts[p])) || strstr(h->name, "expert") || strstr(h->name, "switch")) continue;
            snprintf(out->names[out->count], sizeof out->names[0], "%.*s", (int)(end - h->name), h->name);
            out->rows[out->count] = h->shape[0];
            out->cols[out->count++] = h->shape[1];
        }
    }
    for (int i = 0; i < file->count; i++) free(file->bytes[i]);
    free(file);
}

/* Element i of a matrix of an adapter. */
static float element(uint64_t seed, const char *name, bool a, int64_t i) {
    uint64_t state = seed * 977 + (a ? 1 : 2) + (uint64_t)i * 31;
    for (; *name; name++) state = state * 131 + (uint8_t)*name;
    return test_uniform(&state) * (a ? 0.5F : 0.1F);
}

typedef struct Made {
    bool mlx;
    int rank;
    uint64_t seed;
    int64_t more; /* columns that A has too many */
} Made;

static float scale_of(const Made *made) { return made->mlx ? 1.5F : 2.0F; }

static void make_directory(char directory[64]) {
    snprintf(directory, 64, "/tmp/apus-adapter-XXXXXX");
    CHECK(mkdtemp(directory));
}

/* Tensors in an order of their own: B before A. */
static void write_adapter(const Modules *modules, const Made *made, const char *config, char directory[64]) {
    static TensorHeader headers[2 * MODULES_MAX];
    static char names[2 * MODULES_MAX][192];
    char path[128];
    Error error = {0};
    make_directory(directory);
    for (int i = 0; i < 2 * modules->count; i++) {
        const bool a = i % 2 == 1;
        const int m = i / 2;
        const int64_t rows = a ? made->rank : modules->rows[m], cols = a ? modules->cols[m] + made->more : made->rank;
        snprintf(names[i], sizeof names[i], made->mlx ? "%s.lora_%c" : "base_model.model.%s.lora_%c.weight",
            modules->names[m], (made->mlx ? "ba" : "BA")[a]);
        headers[i] = (TensorHeader){names[i], DTYPE_F32, 2, {made->mlx ? cols : rows, made->mlx ? rows : cols}};
    }
    snprintf(path, sizeof path, "%s/%s", directory, made->mlx ? "adapters.safetensors" : "adapter_model.safetensors");
    SafetensorsWriter *writer = safetensors_create(path, headers, (size_t)(2 * modules->count), &error);
    bool ok = writer != NULL;
    for (int i = 0; ok && i < 2 * modules->count; i++) {
        const bool a = i % 2 == 1;
        const int m = i / 2;
        const int64_t rows = headers[i].shape[0], cols = headers[i].shape[1];
        float *values = malloc((size_t)(rows * cols) * sizeof *values);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) /* counted as PEFT has it */
                values[r * cols + c] =
                    element(made->seed, modules->names[m], a, made->mlx ? c * rows + r : r * cols + c);
        ok = safetensors_write(writer, values, (size_t)(rows * cols) * sizeof *values, &error);
        free(values);
    }
    ok = ok && safetensors_finish(writer, &error);
    TEST_MSG(ok, "%s", error.text);
    TEST(fixture_write_text(directory, "adapter_config.json", slice_of(config)));
}

static const char *config_of(const Made *made, char out[128]) {
    if (made->mlx)
        snprintf(out, 128, "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":%d,\"scale\":1.5}}", made->rank);
    else
        snprintf(out, 128, "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%d,\"bias\":\"none\"}", made->rank,
            2 * made->rank);
    return out;
}

/* ---- merged matrices ---- */

/* W + scale · B·A in a checkpoint of its own. */
static void merge(FixtureFile *file, const Modules *modules, const Made *made) {
    for (int m = 0; m < modules->count; m++)
        for (int i = 0; i < file->count; i++) {
            const size_t size = strlen(modules->names[m]);
            if (strncmp(file->header[i].name, modules->names[m], size) ||
                strcmp(file->header[i].name + size, ".weight"))
                continue;
            const int64_t rows = modules->rows[m], cols = modules->cols[m];
            float *values = malloc((size_t)(rows * cols) * sizeof *values);
            floats_to_f32(values, file->bytes[i], file->header[i].dtype, rows * cols);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < cols; c++) {
                    double sum = 0;
                    for (int k = 0; k < made->rank; k++)
                        sum += (double)element(made->seed, modules->names[m], false, r * made->rank + k) *
                            (double)element(made->seed, modules->names[m], true, k * cols + c);
                    values[r * cols + c] += (float)(sum * (double)scale_of(made));
                }
            free(file->bytes[i]);
            file->bytes[i] = values;
            file->size[i] = (size_t)(rows * cols) * sizeof *values;
            file->header[i].dtype = DTYPE_F32;
        }
}

/* At most `wanted` rows of one phase. */
static int rows_of(int length, int wanted) {
    const int left = (length < PROMPT ? PROMPT : TOKENS) - length;
    if (length >= PROMPT && wanted > DECODE_PIECE) wanted = DECODE_PIECE;
    return left < wanted ? left : wanted;
}

/* All tokens in steps of `chunk`. */
static bool walk_adapted(const FixtureRun *run, const int32_t *tokens, int chunk, int adapter, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, TOKENS), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    while (ok && s.length < TOKENS) {
        const int at = s.length, rows = rows_of(at, chunk);
        const StepSequence sequence = {.tokens = tokens + at, .decode = at >= PROMPT, .adapter = adapter};
        ok = fixture_step_of(run->runner, cache, &s, rows, &sequence, logits + (size_t)at * (size_t)run->vocab, &error);
    }
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    return ok;
}

static double largest_difference(const float *a, const float *b, size_t count, double *largest) {
    double difference = 0;
    *largest = 0;
    for (size_t i = 0; i < count; i++) {
        difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
        *largest = fmax(*largest, fabs((double)a[i]));
    }
    return difference;
}

/* A model whose matrices were merged computes the same, but for rounding. */
static void test_merged(const char *name, bool mlx) {
    enum { LIMIT = 20000 /* 1 / LIMIT of the largest logit */ };
    Fixture f;
    Modules modules;
    Made made = {.mlx = mlx, .rank = mlx ? 8 : 5, .seed = 3};
    char config[128], adapted[64], merged[64], adapter[64];
    if (!open_fixture(&f, name)) return;
    list_modules(&f, NULL, &modules);
    TEST(modules.count > 0);
    write_adapter(&modules, &made, config_of(&made, config), adapter);
    FixtureFile *file = fixture_tensors(&f, 0);
    Buffer text = {0};
    fixture_config(&f, 0, &text);
    merge(file, &modules, &made);
    bool ok = fixture_write(file, buffer_view(&text), merged) && fixture_write_variant(&f, 0, adapted);
    const AdapterSource source = {"one", adapter};
    const RunnerOptions options = {.backend = fixture_backend("ref", 2, ROWS)};
    FixtureRun one, other;
    ok = ok && fixture_run_open(&one, adapted, &(ModelOptions){.adapters = &source, .adapter_count = 1}, &options);
    if (ok && fixture_run_open(&other, merged, &(ModelOptions){0}, &options)) {
        const size_t count = (size_t)TOKENS * (size_t)one.vocab;
        float *a = malloc(3 * count * sizeof *a), *b = a + count, *base = b + count;
        if (walk_adapted(&one, f.tokens, TOKENS, 1, a) && walk_adapted(&other, f.tokens, TOKENS, 0, b) &&
            walk_adapted(&one, f.tokens, TOKENS, 0, base)) {
            double largest;
            const double difference = largest_difference(b, a, count, &largest);
            TEST_MSG(difference * LIMIT < largest, "%s: %g of %g", name, difference, largest);
            TEST(largest_difference(b, base, count, &largest) > largest / 50); /* it does change the answer */
        }
        free(a);
        fixture_run_close(&other);
    }
    if (ok) fixture_run_close(&one);
    buffer_free(&text);
    fixture_remove(adapted);
    fixture_remove(merged);
    fixture_remove(adapter);
    fixture_close(&f);
}

/* ---- several in one step ---- */

/* Adds the next piece of the sequences of one phase to a step; marked: the backend tells them apart. Most steps have
 * single decode rows: they come again, with the adapters in another order. */
static bool add_phase(StepBuilder *b, KvCache *cache, KvSequence *s, const int32_t *tokens, bool decode, bool marked,
    int step, uint64_t *random, int *added, Error *error) {
    static const int adapters[SEQUENCES] = {0, 1, 2, 1};
    bool ok = true;
    for (int n = 0; ok && n < SEQUENCES; n++) {
        const int i = (step + n) % SEQUENCES, own = (int)(test_random(random) % 18);
        if (decode != (s[i].length >= PROMPT)) continue;
        added[i] = rows_of(s[i].length, decode && step % 3 ? 1 : own);
        if (added[i] == 0) continue;
        ok = kv_reserve(cache, &s[i], added[i], error);
        step_add_sequence(b,
            &(StepSequence){.rows = added[i],
                .decode = decode && marked,
                .kv = &s[i],
                .adapter = adapters[i],
                .tokens = tokens + s[i].length,
                .output_count = added[i]});
    }
    return ok;
}

/* Sequences with adapters 0, 1, 2, 1 take turns with pieces of all sizes; logits: [SEQUENCES][TOKENS, vocab]. */
static bool walk_together(const FixtureRun *run, const int32_t *tokens, float *logits) {
    Error error = {0};
    KvSequence s[SEQUENCES] = {0};
    uint64_t random = 5;
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, SEQUENCES * kv_bytes_for(plan, NULL, TOKENS), &error);
    bool ok = cache != NULL, left = true;
    for (int i = 0; ok && i < SEQUENCES; i++) ok = kv_sequence_open(cache, NULL, &s[i], &error);
    const bool decodes = runner_decode_rows_max(run->runner) > 0;
    for (int step = 0; ok && left; step++) {
        StepBuilder b;
        int added[SEQUENCES] = {0};
        float *out;
        size_t at = 0;
        fixture_builder(&b, ROWS);
        step_begin(&b, false);
        ok = add_phase(&b, cache, s, tokens, true, decodes, step, &random, added, &error) &&
            add_phase(&b, cache, s, tokens, false, decodes, step, &random, added, &error);
        if (b.step.rows > 0) ok = ok && runner_forward(run->runner, cache, step_end(&b, &error), &out, &error);
        for (int n = 0; ok && n < 2 * SEQUENCES; n++) { /* those with decode rows first */
            const int i = (step + n) % SEQUENCES;
            const size_t vocab = (size_t)run->vocab, count = (size_t)added[i] * vocab;
            if (!added[i] || (n < SEQUENCES) != (s[i].length >= PROMPT)) continue;
            memcpy(logits + ((size_t)i * TOKENS + (size_t)s[i].length) * vocab, out + at, count * sizeof *out);
            at += count;
            kv_advance(cache, &s[i], added[i]);
            added[i] = 0;
        }
        left = false;
        for (int i = 0; i < SEQUENCES; i++) left = left || s[i].length < TOKENS;
        step_builder_close(&b);
    }
    TEST_MSG(ok, "%s", error.text);
    for (int i = 0; cache && i < SEQUENCES; i++) kv_sequence_close(cache, &s[i]);
    kv_close(cache);
    return ok;
}

static void compare_all(const FixtureRun *run, const FixtureRun *plain, const char *label, const int32_t *tokens) {
    static const int adapters[SEQUENCES] = {0, 1, 2, 1};
    const size_t count = (size_t)TOKENS * (size_t)run->vocab, bytes = count * sizeof(float);
    float *together = malloc(SEQUENCES * bytes), *alone = malloc(bytes);
    bool ok = walk_together(run, tokens, together);
    for (int i = 0; ok && i < SEQUENCES; i++) {
        for (int chunk = 1; chunk <= TOKENS; chunk += 29) {
            ok = walk_adapted(run, tokens, chunk, adapters[i], alone);
            TEST_MSG(ok && !memcmp(alone, together + (size_t)i * count, bytes), "%s: sequence %d alone in steps of %d",
                label, i, chunk);
        }
    }
    ok = ok && walk_adapted(plain, tokens, TOKENS, 0, alone);
    TEST_MSG(ok && !memcmp(alone, together, bytes), "%s: without adapters", label);
    free(together);
    free(alone);
}

static void test_together(const char *name, int variant) {
    Fixture f;
    Modules some, all;
    const Made made[2] = {{.rank = 3, .seed = 11}, {.mlx = true, .rank = 16, .seed = 12}};
    char config[128], directory[64], adapters[2][64], label[96];
    if (!open_fixture(&f, name)) return;
    list_modules(&f, NULL, &all);
    list_modules(&f, "v_proj", &some);
    write_adapter(some.count ? &some : &all, &made[0], config_of(&made[0], config), adapters[0]);
    write_adapter(&all, &made[1], config_of(&made[1], config), adapters[1]);
    const AdapterSource sources[2] = {{"one", adapters[0]}, {"two", adapters[1]}};
    const ModelOptions options = {.adapters = sources, .adapter_count = 2};
    const bool written = fixture_write_variant(&f, variant, directory);
    for (int c = 0; written && c < FIXTURE_CPUS; c++) {
        const char *cpu = fixture_cpus[c];
        if (!*cpu || !fixture_cpu_due(cpu)) continue;
        const RunnerOptions runner = {.backend = fixture_backend(cpu, 2, ROWS)};
        FixtureRun run, plain;
        snprintf(label, sizeof label, "%s %d %s", name, variant, cpu);
        if (!fixture_run_open(&run, directory, &options, &runner)) continue;
        if (fixture_run_open(&plain, directory, &(ModelOptions){0}, &runner)) {
            compare_all(&run, &plain, label, f.tokens);
            fixture_run_close(&plain);
        }
        fixture_run_close(&run);
    }
    if (written) fixture_remove(directory);
    fixture_remove(adapters[0]);
    fixture_remove(adapters[1]);
    fixture_close(&f);
}

/* Layers on two backends: the same bits. */
static void test_split(const char *name) {
    Fixture f;
    Modules modules;
    const Made made = {.rank = 5, .seed = 21};
    char config[128], directory[64], adapter[64];
    if (!open_fixture(&f, name)) return;
    list_modules(&f, NULL, &modules);
    write_adapter(&modules, &made, config_of(&made, config), adapter);
    const AdapterSource source = {"one", adapter};
    const ModelOptions options = {.adapters = &source, .adapter_count = 1};
    RunnerOptions runner = {.backend = fixture_backend("ref", 2, ROWS), .upper = fixture_backend("ref", 1, 0)};
    FixtureRun whole, split;
    bool ok = fixture_write_variant(&f, 0, directory) && fixture_run_open(&whole, directory, &options, &runner);
    runner.split = 1;
    if (ok && fixture_run_open(&split, directory, &options, &runner)) {
        const size_t count = (size_t)TOKENS * (size_t)whole.vocab;
        float *a = malloc(2 * count * sizeof *a), *b = a + count;
        TEST(walk_adapted(&whole, f.tokens, 7, 1, a) && walk_adapted(&split, f.tokens, 7, 1, b) &&
            !memcmp(a, b, count * sizeof *a));
        free(a);
        fixture_run_close(&split);
    }
    if (ok) fixture_run_close(&whole);
    fixture_remove(directory);
    fixture_remove(adapter);
    fixture_close(&f);
}

/* ---- what does not fit ---- */

static void expect_refusal(const char *directory, const char *adapter, const char *why) {
    Error error = {0};
    FixtureRun run;
    const AdapterSource source = {"mine", adapter};
    const RunnerOptions runner = {.backend = fixture_backend("ref", 1, ROWS)};
    const bool opened =
        fixture_run_try(&run, directory, &(ModelOptions){.adapters = &source, .adapter_count = 1}, &runner, &error);
    TEST_MSG(!opened && strstr(error.text, "mine") && strstr(error.text, why), "%s: %s", why, error.text);
    if (opened) fixture_run_close(&run);
}

static void test_refusals(void) {
    static const struct {
        const char *config, *why;
        Made made;
    } bad[] = {
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":8}", "must be [4, ", {.rank = 4, .more = 2}},
        {"{\"lora_parameters\":{\"scale\":1}}", "must be [", {.mlx = true, .rank = 4, .more = 1}},
        {"{\"peft_type\":\"IA3\",\"lora_alpha\":8}", "peft_type", {.rank = 4}},
        {"{\"use_dora\":true,\"lora_alpha\":8}", "use_dora", {.rank = 4}},
        {"{\"bias\":\"all\",\"lora_alpha\":8}", "bias", {.rank = 4}},
        {"{\"modules_to_save\":[\"lm_head\"],\"lora_alpha\":8}", "modules_to_save", {.rank = 4}},
        {"{\"lora_alpha\":\"8\"}", "lora_alpha", {.rank = 4}},
        {"{\"lora_alpha\":8,\"alpha_pattern\":{\"^a.*\":1}}", "alpha_pattern", {.rank = 4}},
        {"{\"fine_tune_type\":\"dora\"}", "fine_tune_type", {.mlx = true, .rank = 4}},
        {"{\"lora_parameters\":{}}", "lora_parameters.scale", {.mlx = true, .rank = 4}},
        {"[1]", "must be an object", {.rank = 4}},
        {"{\"lora_alpha\":8", "adapter_config.json", {.rank = 4}},
    };
    Fixture f;
    Modules modules, odd;
    char directory[64], adapter[64];
    if (!open_fixture(&f, "llama") || !fixture_write_variant(&f, 0, directory)) return;
    list_modules(&f, NULL, &modules);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        write_adapter(&modules, &bad[i].made, bad[i].config, adapter);
        expect_refusal(directory, adapter, bad[i].why);
        fixture_remove(adapter);
    }
    static const char *const names[] = {
        "model.layers.0.mlp.unknown", "model.layers.99.mlp.up_proj", "lm_head", "model.layers.0.mlp.experts.3.up_proj"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        odd = modules;
        odd.count = 1;
        snprintf(odd.names[0], sizeof odd.names[0], "%s", names[i]);
        write_adapter(&odd, &(Made){.rank = 2}, "{\"lora_alpha\":8}", adapter);
        expect_refusal(directory, adapter, names[i][0] == 'l' ? "lm_head" : names[i] + strlen("model."));
        fixture_remove(adapter);
    }
    expect_refusal(directory, "/nonexistent", "neither adapter_model.safetensors");
    make_directory(adapter);
    TEST(fixture_write_text(adapter, "adapter_model.safetensors", SLICE("not a file of tensors")));
    expect_refusal(directory, adapter, "adapter_model.safetensors");
    fixture_remove(adapter);
    fixture_remove(directory);
    fixture_close(&f);
}

int main(void) {
    test_merged("llama", false);
    test_merged("llama", true);
    test_merged("gemma3-text", true);
    test_merged("phi3", false);
    test_merged("qwen3", true);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (i < 4 || !test_sampled()) test_together(cases[i].name, cases[i].variant);
    test_split("llama");
    test_refusals();
    return test_done();
}
