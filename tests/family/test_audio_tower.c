/* Audio models against transformers: rows of a clip, logits of a prompt around it in one step, in chunks and in single
 * steps. Parts of layers give the bits of the whole. */
#include "base/file.h"
#include "compare.h"
#include "model/audio_encoder.h"

#include <unistd.h>

#define AUDIO_DATA "tests/family/audio"

/* Of the largest magnitude, on exact backends. */
static const double feature_limit = 1e-4, logit_limit = 3e-4;
/* Of the deviation of all values, on the others. */
static const double fast_feature_limit = 0.03;

static double distance_of(const float *ours, const float *golden, int64_t count) {
    double worst = 0, top = 0;
    for (int64_t i = 0; i < count; i++) {
        const double off = fabs((double)ours[i] - golden[i]);
        top = fmax(top, fabs(golden[i]));
        if (!(off <= worst)) worst = off;
    }
    return worst / top;
}

static double deviation_of(const float *ours, const float *golden, int64_t count) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        off += ((double)ours[i] - golden[i]) * ((double)ours[i] - golden[i]);
        all += (double)golden[i] * golden[i];
    }
    return sqrt(off / all);
}

static bool open_clip(const char *name, double seconds_max, Audio *audio) {
    char path[128];
    Buffer file = {0};
    Error error = {0};
    snprintf(path, sizeof path, AUDIO_DATA "/%s.wav", name);
    const bool ok =
        file_read(path, AUDIO_BYTES_MAX, &file, &error) && audio_decode(buffer_view(&file), seconds_max, audio, &error);
    TEST_MSG(ok, "%s", error.text);
    buffer_free(&file);
    return ok;
}

/* The clip's rows, computed in slices of `parts`, in memory of `to`. */
static float *encode(AudioEncoder *encoder, const Audio *audio, int64_t floats, int parts, Backend *to) {
    Error error = {0};
    bool done = false;
    float *rows = to->ops->alloc(to, (size_t)floats * sizeof(float), MEMORY_STEP, &error);
    bool ok = rows && audio_encoder_begin(encoder, audio, &error);
    while (ok && !done) ok = audio_encoder_continue(encoder, parts, &done, &error);
    if (ok) audio_encoder_take(encoder, to, rows);
    TEST_MSG(ok, "%s", error.text);
    return rows;
}

static float *downloaded(Backend *backend, const float *rows, int64_t count) {
    float *out = malloc((size_t)count * sizeof *out);
    backend->ops->download(backend, out, rows, (size_t)count * sizeof *out);
    return out;
}

/* ---- the text model around a clip ---- */

typedef struct Prompt {
    const Fixture *f;
    const float *rows; /* memory of the backend */
    int hidden, begin, count;
    int prompt; /* tokens before the steps */
} Prompt;

static bool step_of(const Prompt *p, Runner *runner, KvCache *cache, KvSequence *s, int count, float *logits) {
    const int from = s->length, end = from + count, clip_end = p->begin + p->count;
    const int first = from > p->begin ? from : p->begin, last = end < clip_end ? end : clip_end;
    const EmbeddingRange range = {.row = first - from,
        .rows = last - first,
        .values = p->rows + (first - p->begin) * p->hidden,
        .in_backend = true};
    const StepSequence sequence = {
        .tokens = p->f->tokens + from, .embedding_count = last > first, .embeddings = &range};
    Error error = {0};
    const bool ok =
        fixture_step_of(runner, cache, s, count, &sequence, logits + (size_t)from * (size_t)p->f->vocab, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

static bool walk_prompt(const Prompt *p, Runner *runner, int chunk, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, p->f->count), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    TEST_MSG(ok, "%s", error.text);
    while (ok && s.length < p->f->count) {
        const int left = p->prompt - s.length;
        ok = step_of(p, runner, cache, &s, left <= 0 ? 1 : left < chunk ? left : chunk, logits);
    }
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    return ok;
}

static void check_text(const Prompt *p, Runner *runner, const char *cpu) {
    static const int chunks[] = {FIXTURE_TOKENS_MAX, 7, 1};
    const Fixture *f = p->f;
    const int64_t count = (int64_t)f->count * f->vocab;
    float *logits = calloc((size_t)count, sizeof *logits), *whole = calloc((size_t)count, sizeof *whole);
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        float *out = i ? logits : whole;
        if (!walk_prompt(p, runner, chunks[i], out)) continue;
        const double off = distance_of(out, fixture_golden(f, 0), count);
        if (runner_backend(runner)->exact)
            TEST_MSG(off <= logit_limit, "%s on %s in chunks of %d: logits off by %.2e", f->name, cpu, chunks[i], off);
        if (i)
            TEST_MSG(!memcmp(logits, whole, (size_t)count * sizeof *logits), "%s on %s: chunks of %d", f->name, cpu,
                chunks[i]);
    }
    free(logits);
    free(whole);
}

/* ---- a fixture on a backend ---- */

static int warnings;
static void count_warning(void *context, const char *line) {
    warnings++;
    fprintf(stderr, "%s: %s\n", (const char *)context, line);
}

static void check_rows(const char *name, const float *rows, int64_t count, bool exact, const char *cpu) {
    char path[128];
    Buffer golden = {0};
    Error error = {0};
    snprintf(path, sizeof path, AUDIO_DATA "/%s.features.f32", name);
    TEST_MSG(file_read(path, 1 << 24, &golden, &error), "%s", error.text);
    TEST_MSG(golden.size == (size_t)count * sizeof(float), "%s: %zu bytes of features", name, golden.size);
    if (golden.size == (size_t)count * sizeof(float)) {
        const float *values = (const float *)(const void *)golden.data;
        const double off = exact ? distance_of(rows, values, count) : deviation_of(rows, values, count);
        TEST_MSG(off <= (exact ? feature_limit : fast_feature_limit), "%s on %s: features off by %.2e", name, cpu, off);
    }
    buffer_free(&golden);
}

static void check_clip(
    const Fixture *f, const char *name, FixtureRun *run, const RunnerOptions *options, const char *cpu) {
    const AudioSpec *spec = model_spec(run->model)->audio;
    Backend *backend = runner_backend(run->runner);
    Audio audio = {0};
    Error error = {0};
    AudioEncoder *encoder = audio_encoder_open(run->model, &options->backend, &error);
    TEST_MSG(encoder, "%s", error.text);
    if (encoder && open_clip(name, spec->seconds_max, &audio)) {
        Prompt prompt = {.f = f,
            .hidden = model_hidden(run->model),
            .count = audio_rows(spec, audio.count),
            .prompt = f->count - f->steps};
        const int64_t token = json_get(f->root, "audio_token")->integer, count = (int64_t)prompt.count * prompt.hidden;
        float *rows = encode(encoder, &audio, count, 1, backend), *again = encode(encoder, &audio, count, 100, backend);
        float *values = downloaded(backend, rows, count), *others = downloaded(backend, again, count);
        TEST_MSG(!memcmp(values, others, (size_t)count * sizeof *values), "%s on %s: parts of a layer", name, cpu);
        check_rows(name, values, count, backend->exact, cpu);
        int found = 0;
        const Json *last = json_get(f->root, "last_token"); /* the last row has another token */
        for (int i = 0; i < prompt.prompt; i++)
            found += f->tokens[i] == token || (last && f->tokens[i] == last->integer);
        TEST_MSG(found == prompt.count, "%s: %d tokens of the clip, expected %d", name, prompt.count, found);
        while (prompt.begin < f->count && f->tokens[prompt.begin] != token) prompt.begin++;
        prompt.rows = rows;
        check_text(&prompt, run->runner, cpu);
        free(values);
        free(others);
        backend->ops->release(backend, rows);
        backend->ops->release(backend, again);
    }
    audio_free(&audio);
    audio_encoder_close(encoder);
}

static void check_backend(Fixture *f, const char *name, const char *directory, const char *cpu) {
    const ModelOptions options = {
        .context = f->count, .strict_config = true, .warn = count_warning, .warn_context = f->name};
    const RunnerOptions chunks = {.backend = fixture_backend(cpu, 2, FIXTURE_TOKENS_MAX)};
    FixtureRun run;
    warnings = 0;
    if (!fixture_run_open(&run, directory, &options, &chunks)) return;
    TEST(model_spec(run.model)->audio && warnings == 0);
    if (model_spec(run.model)->audio) check_clip(f, name, &run, &chunks, cpu);
    fixture_run_close(&run);
}

/* Settings of the spectrogram, where the fixture has some. */
static void write_extractor(const Fixture *f, const char *directory) {
    const Json *extractor = json_get(f->root, "extractor");
    Buffer text = {0};
    if (!extractor) return;
    buffer_text(&text, "{\"feature_extractor\":");
    json_write(&text, extractor);
    buffer_byte(&text, '}');
    TEST(fixture_write_text(directory, "processor_config.json", buffer_view(&text)));
    buffer_free(&text);
}

static void check_fixture(const char *name, const bool *here) {
    Fixture f;
    char path[64], directory[64];
    snprintf(path, sizeof path, "../audio/%s", name);
    if (!fixture_open(&f, path)) return;
    if (fixture_write_variant(&f, 0, directory)) {
        write_extractor(&f, directory);
        for (size_t c = 0; c < FIXTURE_CPUS; c++)
            if (here[c]) check_backend(&f, name, directory, fixture_cpus[c]);
    }
    snprintf(path, sizeof path, "%s/processor_config.json", directory);
    unlink(path);
    fixture_remove(directory);
    fixture_close(&f);
}

/* test_audio_tower [NAME…]: these fixtures only. */
int main(int count, char **arguments) {
    static const char *const names[] = {"gemma4", "gemma4-2", "gemma4-unified", "gemma3n"};
    bool here[FIXTURE_CPUS];
    for (size_t c = 0; c < FIXTURE_CPUS; c++) here[c] = fixture_cpu_here(fixture_cpus[c]);
    for (int i = 1; i < count; i++) check_fixture(arguments[i], here);
    for (size_t i = 0; i < COUNT_OF(names) && count == 1; i++) check_fixture(names[i], here);
    return test_done();
}
