/* Sequences kept as codes: however the text is cut into steps, alone or among strangers of other forms, forked or taken
 * back, the same bits, on every backend; and not the bits of an exact sequence once codes are seen. */
#include "fixture.h"

enum { TOKENS = 1000, STRANGERS = 3, ROWS = 512, CONTEXT = 1024 };

static const KvFormat formats[] = {
    {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 256, .hot = 128, .sink = 128},
    {.k = KV_Q5, .v = KV_Q3, .after = 384, .hot = 256, .sink = 0},
    {.k = KV_Q8, .v = KV_Q6, .raise = KV_RAISE_LISTED, .after = 256, .hot = 128, .sink = 128, .raised = {1}},
};

/* Widths of 16, of 32 in half of which a rope turns a large bias, of 32 beside windows, of 256 under norms, and latents
 * of 64 with keys of 16; of 32 and of 16 beside layers with recurrent states. */
static const struct {
    const char *name;
    int variant;
    float bias; /* of the keys, so many times the fixture's */
    bool on_ref, latents, states;
} cases[] = {{"llama", 0, 1, true, false, false}, {"phi", 0, 300, true, false, false},
    {"gemma3-text", 2, 1, false, false, false}, {"qwen3", 1, 1, false, false, false},
    {"deepseek-v2", 0, 1, true, true, false}, {"deepseek-v3", 1, 1, false, true, false},
    {"qwen3-next", 0, 1, false, false, true}, {"granite-hybrid", 0, 1, false, false, true}};

static int32_t tokens[STRANGERS + 1][TOKENS];
static bool large_bias, latents, states; /* of this case */

/* ---- steps ---- */

static bool batch_add(StepBuilder *b, KvCache *cache, KvSequence *s, const int32_t *text, int rows, bool outputs) {
    Error error = {0};
    if (!kv_reserve(cache, s, rows, &error)) {
        TEST_MSG(false, "%s", error.text);
        return false;
    }
    step_add_sequence(
        b, &(StepSequence){.rows = rows, .kv = s, .tokens = text + s->length, .output_count = outputs ? rows : 0});
    return true;
}

/* Rows that sequence `ours` adds now, at most `most` as its codes allow. */
static int rows_of(const KvSequence *s, int most) {
    const int left = TOKENS - s->length, allowed = kv_step_rows(s);
    if (most > left) most = left;
    return most > allowed ? allowed : most;
}

/* One step of the first `count` sequences; rows [count]. Logits of sequence 0 go to their place. */
static bool step_all(const FixtureRun *run, KvCache *cache, KvSequence *s, int count, const int *rows, float *logits) {
    StepBuilder b;
    fixture_builder(&b, ROWS);
    step_begin(&b, false);
    bool ok = true;
    for (int n = 0; ok && n < count; n++) { /* ours comes second, if there are two */
        const int i = count == 1 ? 0 : n == 0 ? 1 : n == 1 ? 0 : n;
        if (rows[i] == 0) continue;
        ok = batch_add(&b, cache, &s[i], tokens[i], rows[i], i == 0);
    }
    Error error = {0};
    float *out;
    ok = ok && runner_forward(run->runner, cache, step_end(&b, &error), &out, &error);
    if (ok && logits)
        memcpy(
            logits + (size_t)s[0].length * (size_t)run->vocab, out, (size_t)rows[0] * (size_t)run->vocab * sizeof *out);
    step_builder_close(&b);
    for (int i = 0; i < count; i++) kv_advance(cache, &s[i], ok ? rows[i] : 0);
    return ok;
}

static KvCache *open_cache(const FixtureRun *run) {
    Error error = {0};
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, 4 * (STRANGERS + 2) * kv_bytes_for(plan, NULL, CONTEXT), &error);
    TEST_MSG(cache, "%s", error.text);
    return cache;
}

static bool open_sequence(KvCache *cache, const KvFormat *format, KvSequence *s) {
    Error error = {0};
    *s = (KvSequence){0};
    const bool ok = kv_sequence_open(cache, format, s, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

static bool walk_to(const FixtureRun *run, KvCache *cache, KvSequence *s, int end, int chunk, float *logits) {
    bool ok = true;
    while (ok && s->length < end) {
        const int left = end - s->length, rows = rows_of(s, left < chunk ? left : chunk);
        ok = step_all(run, cache, s, 1, &rows, logits);
    }
    return ok;
}

/* ---- walks; each gives the logits of all rows ---- */

/* Whether some layer's keys had a bias taken out. */
static bool has_pairs(const FixtureRun *run, const KvSequence *s) {
    const KvPlan *plan = runner_kv_plan(run->runner);
    for (int i = 0; i < plan->entry_count; i++)
        for (int h = 0; s->quant->layers[i].bias_pairs && h < plan->entries[i].layout.kv_heads; h++)
            if (s->quant->layers[i].bias_pairs[h]) return true;
    return false;
}

static bool walk(const FixtureRun *run, const KvFormat *format, int chunk, float *logits) {
    KvCache *cache = open_cache(run);
    KvSequence s;
    if (!cache || !open_sequence(cache, format, &s)) return false;
    const bool ok = walk_to(run, cache, &s, TOKENS, chunk, logits);
    const bool coded = s.quant && s.quant->active && s.quant->freed > format->sink;
    TEST_MSG(coded == (format != NULL), "codes of a sequence: %d (a head's width may have none)", coded);
    if (coded) TEST(has_pairs(run, &s) == large_bias);
    kv_sequence_close(cache, &s);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    return ok;
}

/* Among strangers, one of each other format and an exact one, all with chunks of other sizes. */
static bool walk_in_crowd(const FixtureRun *run, const KvFormat *format, float *logits) {
    KvCache *cache = open_cache(run);
    KvSequence s[STRANGERS + 1];
    uint64_t random = 5;
    if (!cache || !open_sequence(cache, format, &s[0])) return false;
    for (int i = 1; i <= STRANGERS; i++)
        if (!open_sequence(cache, i == STRANGERS ? NULL : &formats[((format - formats) + i) % 3], &s[i])) return false;
    bool ok = true;
    while (ok && s[0].length < TOKENS) {
        int rows[STRANGERS + 1];
        for (int i = 0; i <= STRANGERS; i++) rows[i] = rows_of(&s[i], (int)(test_random(&random) % 90));
        if (rows[0] == 0) rows[0] = 1;
        ok = step_all(run, cache, s, STRANGERS + 1, rows, logits);
    }
    for (int i = 0; i <= STRANGERS; i++) kv_sequence_close(cache, &s[i]);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    return ok;
}

/* Forked in the middle of a page; the copy goes on, the original goes another way first, is taken back as far as its
 * exact pages and states allow, and goes on too. */
static bool walk_forked(const FixtureRun *run, const KvFormat *format, float *logits, float *copied) {
    enum { ASTRAY = 20 };
    const int fork = states ? 680 : 700; /* states are taken back within 32 positions */
    KvCache *cache = open_cache(run);
    KvSequence s, copy;
    if (!cache || !open_sequence(cache, format, &s) || !open_sequence(cache, format, &copy)) return false;
    bool ok = walk_to(run, cache, &s, fork, 100, logits);
    kv_fork(cache, &s, &copy);
    memcpy(copied, logits, (size_t)fork * (size_t)run->vocab * sizeof *logits);
    int32_t right[ASTRAY];
    memcpy(right, tokens[0] + fork, sizeof right);
    for (int i = 0; i < ASTRAY; i++) tokens[0][fork + i] = 3;
    ok = ok && walk_to(run, cache, &s, fork + ASTRAY, 7, logits);
    memcpy(tokens[0] + fork, right, sizeof right);
    TEST(kv_truncate(cache, &s, fork));
    ok = ok && walk_to(run, cache, &copy, TOKENS, 33, copied) && walk_to(run, cache, &s, TOKENS, 50, logits);
    kv_sequence_close(cache, &s);
    kv_sequence_close(cache, &copy);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    return ok;
}

/* ---- comparisons ---- */

static double difference(const FixtureRun *run, const float *a, const float *b, int from, int to) {
    double error = 0, square = 0;
    for (int i = from * run->vocab; i < to * run->vocab; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        square += (double)a[i] * a[i];
    }
    return sqrt(error / square);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the rows that may see codes, the one in the middle. */
static double usual_difference(const FixtureRun *run, const float *a, const float *b, int from) {
    double rows[TOKENS];
    for (int t = from; t < TOKENS; t++) rows[t - from] = difference(run, a, b, t, t + 1);
    qsort(rows, (size_t)(TOKENS - from), sizeof *rows, by_size);
    return rows[(TOKENS - from) / 2];
}

/* Random weights attend to everything alike, which is the worst case: 4 bits lose 10 %, 3 bits 20 % of a value. Latents
 * are in the scores as well, √2 of that: 14 % with 4 bits, half with each bit more, and 8 bits lose a percent. Behind
 * them some rows get other experts, which are anything: so of these models the usual row. */
static void check_seen(
    const FixtureRun *run, const KvFormat *format, const float *exact, const float *coded, const char *label) {
    static const double most[KV_FORMS] = {[KV_Q4] = 0.14, [KV_Q5] = 0.07, [KV_Q8] = 0.02};
    const double bound = latents ? most[format->k] : format->v == KV_Q3 ? 0.2 : 0.1;
    const double seen = latents ? usual_difference(run, exact, coded, format->after)
                                : difference(run, exact, coded, format->after, TOKENS);
    TEST_MSG(seen > 0 && seen < bound, "%s: codes change logits by %g", label, seen);
}

static void test_format(const FixtureRun *two, const FixtureRun *one, const KvFormat *format, bool few,
    const float *exact, const char *label) {
    const size_t size = (size_t)TOKENS * (size_t)one->vocab;
    float *whole = calloc(size, sizeof *whole), *other = calloc(size, sizeof *other);
    float *copied = calloc(size, sizeof *copied);
    TEST(walk(two, format, ROWS, whole));
    TEST_MSG(difference(one, exact, whole, 0, format->after) == 0, "%s: codes too soon", label);
    check_seen(one, format, exact, whole, label);
    const int chunks[] = {384, 7, 128, 1};
    for (size_t c = 0; c < (few ? 2 : COUNT_OF(chunks)); c++) {
        memset(other, 0, size * sizeof *other);
        TEST(walk(one, format, chunks[c], other));
        TEST_MSG(!memcmp(whole, other, size * sizeof *whole), "%s in pieces of %d", label, chunks[c]);
    }
    memset(other, 0, size * sizeof *other);
    TEST(walk_in_crowd(one, format, other));
    TEST_MSG(!memcmp(whole, other, size * sizeof *whole), "%s among strangers", label);
    TEST(walk_forked(one, format, other, copied));
    TEST_MSG(!memcmp(whole, other, size * sizeof *whole), "%s taken back", label);
    TEST_MSG(!memcmp(whole, copied, size * sizeof *whole), "%s forked", label);
    free(whole);
    free(other);
    free(copied);
}

static bool open_run(FixtureRun *run, const char *directory, const char *cpu, int threads) {
    const RunnerOptions options = {.backend = fixture_backend(cpu, threads, ROWS)};
    return fixture_run_open(run, directory, &(ModelOptions){.context = CONTEXT}, &options);
}

static bool is_slow(const char *cpu) { return !strcmp(cpu, "ref") || !strcmp(cpu, "fence"); }

/* Two threads for the whole text, one for what must equal it. */
static void test_case(const char *directory, size_t number, const char *cpu) {
    const char *name = cases[number].name;
    FixtureRun two = {0}, one = {0};
    const bool slow = is_slow(cpu);
    if (open_run(&two, directory, cpu, 2) && open_run(&one, directory, cpu, 1)) {
        uint64_t random = 99;
        for (int i = 0; i < (STRANGERS + 1) * TOKENS; i++)
            (&tokens[0][0])[i] = (int32_t)(test_random(&random) % (uint64_t)one.vocab);
        float *exact = calloc((size_t)TOKENS * (size_t)one.vocab, sizeof *exact);
        TEST(walk(&one, NULL, ROWS, exact));
        for (size_t f = 0; f < (slow ? 1 : COUNT_OF(formats)); f++) {
            if (test_sampled() && !slow && f != number % COUNT_OF(formats)) continue;
            char label[128];
            snprintf(label, sizeof label, "%s on %s, format %zu", name, cpu, f);
            test_format(&two, &one, &formats[f], test_sampled() || slow || f > 0, exact, label);
        }
        free(exact);
    }
    fixture_run_close(&one);
    fixture_run_close(&two);
}

/* ---- fixtures ---- */

static void scale_biases(FixtureFile *file, float factor) {
    for (int i = 0; i < file->count; i++) {
        if (!strstr(file->header[i].name, "k_proj.bias")) continue;
        float *values = file->bytes[i];
        for (size_t j = 0; j < file->size[i] / sizeof *values; j++) values[j] *= factor;
    }
}

/* The variant for a longer context than goldens need. */
static bool write_long(Fixture *f, int variant, float bias, char directory[64]) {
    Buffer config = {0}, longer = {0};
    fixture_config(f, variant, &config);
    buffer_byte(&config, 0);
    const char *key = "\"max_position_embeddings\":", *text = (const char *)config.data, *at = strstr(text, key);
    TEST(at);
    buffer_append(&longer, text, (size_t)(at - text) + strlen(key));
    buffer_printf(&longer, "%d%s", CONTEXT, at + strlen(key) + strspn(at + strlen(key), "0123456789"));
    FixtureFile *file = fixture_tensors(f, variant);
    scale_biases(file, bias);
    const bool ok = fixture_write(file, buffer_view(&longer), directory);
    buffer_free(&config);
    buffer_free(&longer);
    return ok;
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        large_bias = cases[i].bias > 1;
        latents = cases[i].latents;
        states = cases[i].states;
        if (!fixture_open(&f, cases[i].name) || !write_long(&f, cases[i].variant, cases[i].bias, directory)) continue;
        for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++) {
            if (is_slow(fixture_cpus[c]) && !cases[i].on_ref) continue;
            if (!strcmp(fixture_cpus[c], "cuda") && latents) continue; /* it keeps latents exact */
            if (fixture_case_due(i, c)) test_case(directory, i, fixture_cpus[c]);
        }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
