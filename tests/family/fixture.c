#include "family/fixture.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/fence.h"
#include "backend/generated.h"
#include "base/file.h"

/* ---- the formula ---- */

static uint64_t fixture_fnv(const char *name) {
    uint64_t h = 0xCBF29CE484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001B3u;
    return h;
}

static uint64_t fixture_bits(uint64_t seed, uint64_t i) {
    uint64_t state = seed + i;
    return test_random(&state);
}

/* Elements lie within `range` around `offset`. */
typedef struct FixtureRange {
    double offset, range;
} FixtureRange;

static float *fixture_random(const char *name, int64_t count, FixtureRange range) {
    float *out = malloc((size_t)count * sizeof *out);
    const uint64_t seed = fixture_fnv(name);
    for (int64_t i = 0; i < count; i++) {
        const double unit = (double)(fixture_bits(seed, (uint64_t)i) >> 40) * 0x1p-24 - 0.5;
        out[i] = (float)(rint((range.offset + unit * range.range) * 4096) / 4096);
    }
    return out;
}

static bool fixture_ends(const char *name, Slice suffix) {
    const size_t length = strlen(name);
    return length >= suffix.size && memcmp(name + length - suffix.size, suffix.data, suffix.size) == 0;
}

static FixtureRange fixture_range(
    const char *name, int rank, int64_t cols, double norm_offset, double embedding_range) {
    if (fixture_ends(name, SLICE(".bias"))) return (FixtureRange){0, 0.2};
    if (rank < 2) return (FixtureRange){norm_offset, 0.4};
    return (FixtureRange){0, strstr(name, "embed_tokens") ? embedding_range : 4.0 / sqrt((double)cols)};
}

float *fixture_values(
    const char *name, int rank, int64_t rows, int64_t cols, double norm_offset, double embedding_range) {
    return fixture_random(
        name, rank >= 2 ? rows * cols : rows, fixture_range(name, rank, cols, norm_offset, embedding_range));
}

/* ---- reading ---- */

bool fixture_open(Fixture *f, const char *name) {
    *f = (Fixture){0};
    char path[256];
    Error error = {0};
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(path, sizeof path, FIXTURE_DATA "/%s.json", f->name);
    bool ok = file_read(path, 1 << 20, &f->text, &error);
    f->root = ok ? json_parse(&f->arena, buffer_view(&f->text), &error) : NULL;
    snprintf(path, sizeof path, FIXTURE_DATA "/%s.f32", f->name);
    ok = f->root && file_read(path, 1 << 24, &f->golden_bytes, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return false;
    f->variants = json_get(f->root, "variants");
    f->vocab = (int)json_get(f->root, "vocab")->integer;
    f->steps = (int)json_get(f->root, "steps")->integer;
    for (JSON_EACH(token, json_get(f->root, "tokens"))) f->tokens[f->count++] = (int32_t)token->integer;
    TEST(f->golden_bytes.size == sizeof(float) * f->variants->size * (size_t)(f->count * f->vocab));
    return true;
}

void fixture_close(Fixture *f) {
    arena_free(&f->arena);
    buffer_free(&f->text);
    buffer_free(&f->golden_bytes);
}

const Json *fixture_variant(const Fixture *f, int variant) {
    const Json *v = json_first(f->variants);
    while (variant-- > 0) v = json_next(v);
    return v;
}

const float *fixture_golden(const Fixture *f, int variant) {
    return (const float *)(const void *)f->golden_bytes.data + (size_t)variant * (size_t)(f->count * f->vocab);
}

int fixture_names(char names[][64], int capacity) {
    int count = 0;
    DIR *folder = opendir(FIXTURE_DATA);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot && strcmp(dot, ".json") == 0) {
            if (count == capacity) abort(); /* some would never be tested */
            const size_t length = (size_t)(dot - entry->d_name) < 63 ? (size_t)(dot - entry->d_name) : 63;
            CHECK(count < capacity);
            memcpy(names[count++], entry->d_name, length);
        }
    }
    if (folder) closedir(folder);
    return count;
}

/* ---- writing ---- */

void fixture_add(
    Fixture *f, FixtureFile *out, const char *name, DType dtype, int rank, int64_t rows, int64_t cols, void *bytes) {
    const int i = out->count++, stacked = out->stacked;
    TensorHeader *header = &out->header[i];
    *header = (TensorHeader){arena_printf(&f->arena, "%s", name), dtype, rank + stacked, {rows, cols}};
    out->bytes[i] = bytes;
    out->size[i] = dtype_bytes(dtype) * (size_t)(rank == 2 ? rows * cols : rows);
    if (!stacked) return;
    header->shape[stacked + 1] = cols;
    header->shape[stacked] = rows;
    for (int d = 0; d < stacked; d++) {
        header->shape[d] = out->stack[d];
        header->shape[stacked] /= out->stack[d];
    }
}

static void fixture_add_floats(
    Fixture *f, FixtureFile *out, const char *name, DType dtype, int rank, int64_t rows, int64_t cols, float *values) {
    const int64_t count = rank == 2 ? rows * cols : rows;
    void *bytes = malloc((size_t)count * sizeof(float));
    floats_from_f32(bytes, dtype, values, count);
    free(values);
    fixture_add(f, out, name, dtype, rank, rows, cols, bytes);
}

static char *fixture_sibling(Fixture *f, const char *name, const char *part) { /* NAME.weight → NAME.part */
    return arena_printf(&f->arena, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, part);
}

static void fixture_add_affine(Fixture *f, FixtureFile *out, const char *name, DType dtype, int64_t rows, int64_t cols,
    int bits, int group, float *values) {
    const size_t row_bytes = (size_t)(cols * bits / 8);
    const int64_t groups = cols / group;
    uint8_t *data = malloc((size_t)rows * row_bytes);
    float *scales = malloc((size_t)(rows * groups) * sizeof(float)),
          *biases = malloc((size_t)(rows * groups) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        quantize_affine_row(values + r * cols, cols, bits, group, data + (size_t)r * row_bytes, scales + r * groups,
            biases + r * groups);
    }
    free(values);
    fixture_add(f, out, name, DTYPE_U32, 2, rows, cols * bits / 32, data);
    fixture_add_floats(f, out, fixture_sibling(f, name, "scales"), dtype, 2, rows, groups, scales);
    fixture_add_floats(f, out, fixture_sibling(f, name, "biases"), dtype, 2, rows, groups, biases);
}

/* Random codes and scales: there is no quantiser for these. */
static void fixture_add_fp(Fixture *f, FixtureFile *out, const char *name, int64_t rows, int64_t cols, Slice mode) {
    const bool eight = slice_is(mode, "mxfp8"), nv = slice_is(mode, "nvfp4");
    const int bits = eight ? 8 : 4, group = nv ? 16 : 32;
    const int64_t size = rows * cols * bits / 8, scale_count = rows * cols / group;
    uint8_t *data = malloc((size_t)size), *scales = malloc((size_t)scale_count);
    char *scale_name = arena_printf(&f->arena, "%s.scales", name);
    for (int64_t i = 0; i < size; i++) {
        data[i] = (uint8_t)(fixture_bits(fixture_fnv(name), (uint64_t)i) >> 56) & (eight ? 0xB7 : 0xFF);
    }
    for (int64_t i = 0; i < scale_count; i++) {
        const int random = (int)(fixture_bits(fixture_fnv(scale_name), (uint64_t)i) >> 62);
        scales[i] = (uint8_t)(random + (nv ? 0x18 : eight ? 125 : 122));
    }
    fixture_add(f, out, name, DTYPE_U32, 2, rows, cols * bits / 32, data);
    fixture_add(f, out, fixture_sibling(f, name, "scales"), DTYPE_U8, 2, rows, cols / group, scales);
}

/* Integers below `limit`, in each row as many different ones. */
static void fixture_add_integers(
    Fixture *f, FixtureFile *out, const char *name, int64_t rows, int64_t cols, int64_t limit) {
    int64_t *numbers = malloc((size_t)(rows * cols) * sizeof *numbers);
    for (int64_t i = 0; i < rows * cols; i++) {
        const uint64_t bits = fixture_bits(fixture_fnv(name), (uint64_t)(i - i % cols)) >> 40;
        numbers[i] = (int64_t)((bits + (uint64_t)(i % cols)) % (uint64_t)limit);
    }
    fixture_add(f, out, name, DTYPE_I64, 2, rows, cols, numbers);
}

/* The limit of a tensor of integers, which the fixture names by a third number; 0: its elements are floats. */
static int64_t fixture_limit(const Fixture *f, const char *name) {
    const Json *rules = json_get(f->root, "values");
    if (!rules) return 0;
    for (JSON_EACH_PAIR(suffix, rule, rules))
        if (rule->size == 3 && fixture_ends(name, json_slice(suffix)))
            return json_next(json_next(json_first(rule)))->integer;
    return 0;
}

/* The range that the fixture itself names for tensors of this suffix. */
static void fixture_rule(const Fixture *f, const char *name, FixtureRange *range) {
    const Json *rules = json_get(f->root, "values");
    if (!rules) return;
    for (JSON_EACH_PAIR(suffix, rule, rules)) {
        if (!fixture_ends(name, json_slice(suffix))) continue;
        *range = (FixtureRange){json_number(json_first(rule)), json_number(json_next(json_first(rule)))};
        return;
    }
}

static void fixture_add_tensor(Fixture *f, FixtureFile *out, const char *name, const Json *shape, const Json *variant) {
    const Json *block = json_get(variant, "quantization"), *dtype_field = json_get(variant, "dtype");
    const int rank = shape->size < 2 ? 1 : 2;
    int64_t rows = 1, cols = 1;
    out->stacked = shape->size > 2 ? (int)shape->size - rank : 0; /* a scalar becomes a vector */
    int d = 0;
    for (JSON_EACH(size, shape)) {
        if (d < out->stacked) out->stack[d] = size->integer;
        if (rank == 1 || d < (int)shape->size - 1)
            rows *= size->integer;
        else
            cols = size->integer;
        d++;
    }
    const int64_t limit = fixture_limit(f, name);
    if (limit) {
        fixture_add_integers(f, out, name, rows, cols, limit);
        return;
    }
    const double offset = json_number(json_get(f->root, "norm_offset"));
    const DType dtype = slice_is(json_slice(dtype_field), "f16") ? DTYPE_F16
        : slice_is(json_slice(dtype_field), "bf16")              ? DTYPE_BF16
                                                                 : DTYPE_F32;
    FixtureRange range = fixture_range(name, rank, cols, offset, json_number(json_get(f->root, "embedding_range")));
    fixture_rule(f, name, &range);
    float *values = fixture_random(name, rows * cols, range);
    if (dtype != DTYPE_F32) { /* quantisers see what is left after the cast */
        const int64_t count = rank == 2 ? rows * cols : rows;
        for (int64_t i = 0; i < count; i++) {
            values[i] = dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(values[i])) : bf16_to_f32(f32_to_bf16(values[i]));
        }
    }
    const Json *rule = json_get(block, arena_printf(&f->arena, "%.*s", (int)(strlen(name) - strlen(".weight")), name));
    rule = rule ? rule : block;
    const Json *group = json_get(rule, "group_size"), *mode = json_get(rule, "mode");
    const size_t length = strlen(name);
    const bool bias = length > 5 && strcmp(name + length - 5, ".bias") == 0; /* of experts: rows of them */
    if (rank != 2 || bias || !group || cols % group->integer != 0) {
        fixture_add_floats(f, out, name, dtype, rank, rows, cols, values);
    } else if (mode && !slice_is(json_slice(mode), "affine")) {
        free(values);
        fixture_add_fp(f, out, name, rows, cols, json_slice(mode));
    } else {
        const DType scales = json_get(variant, "scales") ? DTYPE_BF16 : DTYPE_F32;
        fixture_add_affine(
            f, out, name, scales, rows, cols, (int)json_get(rule, "bits")->integer, (int)group->integer, values);
    }
    out->stacked = 0;
}

static bool fixture_write_tensors(const char *directory, FixtureFile *file) {
    char path[256];
    Error error = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    SafetensorsWriter *writer = safetensors_create(path, file->header, (size_t)file->count, &error);
    bool ok = writer != NULL;
    for (int i = 0; i < file->count; i++) {
        ok = ok && safetensors_write(writer, file->bytes[i], file->size[i], &error);
        free(file->bytes[i]);
    }
    ok = ok && safetensors_finish(writer, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

bool fixture_write_text(const char *directory, const char *name, Slice text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    const bool ok = file && fwrite(text.data, 1, text.size, file) == text.size;
    const bool closed = file && fclose(file) == 0;
    TEST_MSG(ok && closed, "cannot write %s", path);
    return ok && closed;
}

void fixture_config(const Fixture *f, int variant, Buffer *out) {
    const Json *block = json_get(fixture_variant(f, variant), "quantization");
    json_write(out, json_get(f->root, "config"));
    if (block) {
        out->size--; /* the closing brace */
        buffer_text(out, ",\"quantization\":");
        json_write(out, block);
        buffer_byte(out, '}');
    }
}

FixtureFile *fixture_tensors(Fixture *f, int variant) {
    FixtureFile *file = calloc(1, sizeof *file);
    for (JSON_EACH_PAIR(key, shape, json_get(f->root, "tensors"))) {
        char *name = arena_printf(&f->arena, "%.*s", SLICE_ARGS(json_slice(key)));
        fixture_add_tensor(f, file, name, shape, fixture_variant(f, variant));
    }
    return file;
}

bool fixture_write(FixtureFile *file, Slice config, char directory[64]) {
    snprintf(directory, 64, "/tmp/apus-fixture-XXXXXX");
    bool ok = mkdtemp(directory) && fixture_write_text(directory, "config.json", config);
    ok = fixture_write_tensors(directory, file) && ok;
    free(file);
    return ok;
}

bool fixture_write_variant(Fixture *f, int variant, char directory[64]) {
    Buffer config = {0};
    fixture_config(f, variant, &config);
    const bool ok = fixture_write(fixture_tensors(f, variant), buffer_view(&config), directory);
    buffer_free(&config);
    return ok;
}

void fixture_remove(const char *directory) {
    const char *const names[] = {"config.json", "generation_config.json", "model.safetensors", "adapter_config.json",
        "adapter_model.safetensors", "adapters.safetensors"};
    char path[256];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
}

/* ---- running ---- */

const char *const fixture_cpus[FIXTURE_CPUS] = {
    "ref", SANITIZED ? "" : "fence", "avx2", "avx512", "amx", "neon", "cuda"};

BackendOptions fixture_backend(const char *cpu, int threads, int rows_max) {
    const bool fence = strcmp(cpu, "fence") == 0, decode_rows = strcmp(cpu, "generated") == 0;
    return (BackendOptions){.device = strcmp(cpu, "cuda") ? NULL : cpu,
        .cpu = fence      ? "ref"
            : decode_rows ? "auto"
                          : cpu,
        .threads = threads,
        .rows_max = rows_max,
        .wrap = fence     ? fence_open
            : decode_rows ? generated_open
                          : NULL};
}

bool fixture_cpu_due(const char *cpu) {
    return !(test_sampled() && !SANITIZED && strcmp(cpu, "ref") == 0) && fixture_cpu_here(cpu);
}

bool fixture_case_due(size_t number, size_t index) {
    const char *cpu = fixture_cpus[index];
    const bool vector = !strncmp(cpu, "avx", 3) || !strcmp(cpu, "amx");
    return !(vector && test_sampled() && (number + index) % 2) && fixture_cpu_due(cpu);
}

bool fixture_cpu_here(const char *cpu) {
    if (!test_takes_backend(cpu)) return false;
    BackendOptions options = fixture_backend(cpu, 1, 1);
    options.scratch_bytes = 1 << 20;
    Error error = {0};
    Backend *backend = backend_open(&options, &error);
    const bool here = backend && strcmp(backend->ops->name, cpu) == 0;
    backend_close(backend);
    if (!here && *cpu && strcmp(cpu, "fence") && strcmp(cpu, "generated")) test_skip_backend(cpu);
    return here || strcmp(cpu, "ref") == 0; /* ref missing is a failure that shows when a model is opened */
}

void fixture_run_close(FixtureRun *run) {
    runner_close(run->runner);
    model_close(run->model);
    *run = (FixtureRun){0};
}

bool fixture_run_try(
    FixtureRun *run, const char *directory, const ModelOptions *model, const RunnerOptions *options, Error *error) {
    *run = (FixtureRun){.model = model_open(directory, model, error)};
    run->runner = run->model ? runner_open(run->model, options, error) : NULL;
    if (run->runner) run->vocab = model_vocab(run->model);
    if (!run->runner) fixture_run_close(run);
    return run->runner != NULL;
}

bool fixture_lacking(const RunnerOptions *options, const Error *error) {
    const bool device =
        backend_on_device(options->backend.device) || (options->split && backend_on_device(options->upper.device));
    return device && error->code == ERROR_UNSUPPORTED && strstr(error->text, "cannot compute");
}

bool fixture_run_open(FixtureRun *run, const char *directory, const ModelOptions *model, const RunnerOptions *options) {
    Error error = {0};
    const bool ok = fixture_run_try(run, directory, model, options, &error);
    const bool lacking = !ok && fixture_lacking(options, &error);
    if (lacking) printf("%s: %s\n", directory, error.text);
    TEST_MSG(ok || lacking, "%s", error.text);
    return ok;
}

void fixture_builder(StepBuilder *builder, int rows) {
    Error error = {0};
    const StepCapacity capacity = {.rows = rows, .sequences = rows, .outputs = rows, .embeddings = rows};
    if (!step_builder_open(builder, &capacity, &error)) abort();
}

bool fixture_step_of(
    Runner *runner, KvCache *cache, KvSequence *s, int rows, const StepSequence *of, float *logits, Error *error) {
    StepBuilder builder;
    StepSequence sequence = *of;
    float *out;
    if (!kv_reserve(cache, s, rows, error)) return false;
    sequence.rows = sequence.output_count = rows;
    sequence.decode = of->decode && runner_decode_rows_max(runner);
    sequence.kv = s;
    fixture_builder(&builder, rows);
    step_begin(&builder, false);
    step_add_sequence(&builder, &sequence);
    const bool ok = runner_forward(runner, cache, step_end(&builder, error), &out, error);
    step_builder_close(&builder);
    if (!ok) return false;
    memcpy(logits, out, (size_t)rows * (size_t)model_vocab(runner_model(runner)) * sizeof *out);
    kv_advance(cache, s, rows);
    return true;
}

bool fixture_step(
    Runner *runner, KvCache *cache, KvSequence *s, const int32_t *tokens, int rows, float *logits, Error *error) {
    return fixture_step_of(runner, cache, s, rows, &(StepSequence){.tokens = tokens}, logits, error);
}

bool fixture_walk(Runner *runner, const int32_t *tokens, int count, int chunk, int steps, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    const int vocab = model_vocab(runner_model(runner));
    KvCache *cache = kv_open(runner_kv_plan(runner), kv_bytes_for(runner_kv_plan(runner), NULL, count), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    for (int done = 0; ok && done < count;) {
        const int left = count - steps - done;
        const int rows = left <= 0 ? 1 : left < chunk ? left : chunk;
        const StepSequence sequence = {.tokens = tokens + done, .decode = left <= 0};
        ok = fixture_step_of(runner, cache, &s, rows, &sequence, logits + (size_t)done * (size_t)vocab, &error);
        done += rows;
    }
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    return ok;
}
