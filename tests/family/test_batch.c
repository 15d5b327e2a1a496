/* What a sequence computes depends on nothing but itself: one prompt = pieces of 1, 7 and 128 tokens = together with
 * seven strangers, bit for bit, on every backend. So does an answer, whose rows may be computed otherwise. */
#include "fixture.h"

enum { TOKENS = 270, STRANGERS = 7, ROWS = 512, PROMPT = 200 /* of them, where an answer follows */, PIECE = 31 };

static const struct {
    const char *name;
    int variant;
    bool on_ref; /* which is slow */
} cases[] = {{"llama-window", 1, true}, {"llama", 0, false}, {"llama", 2, false}, {"gemma3-text", 2, false},
    {"qwen3", 1, false}, {"phi3", 1, false}, {"phi", 1, false}, {"rope-dynamic", 0, true}, {"deepseek-v3", 2, true},
    {"gpt-oss", 3, false}, {"afmoe", 1, false}, {"gemma4-e2b", 1, false}, {"gemma4-a4b", 1, false},
    {"ministral3", 1, false}, {"qwen3-5", 1, false}, {"nemotron-h", 1, false}, {"kimi-linear", 0, false},
    {"deepseek-v4", 0, false}, {"jamba", 1, false}};

/* The next `rows` tokens of a sequence join the step. */
static bool batch_add(
    StepBuilder *b, KvCache *cache, KvSequence *s, const int32_t *tokens, int rows, bool decode, bool outputs) {
    Error error = {0};
    if (!kv_reserve(cache, s, rows, &error)) return false;
    step_add_sequence(b,
        &(StepSequence){
            .rows = rows, .decode = decode, .kv = s, .tokens = tokens + s->length, .output_count = outputs ? rows : 0});
    return true;
}

/* Rows of a sequence in the next step: of its answer a few, or of its prompt. */
static int crowd_rows(const KvSequence *s, int prompt, uint64_t *random) {
    const bool answers = s->length >= prompt;
    const int left = (answers ? TOKENS : prompt) - s->length,
              most = 1 + (int)(test_random(random) % (answers ? 5 : 60));
    return left < most ? left : most;
}

/* One step: ours somewhere among strangers, everybody with a chunk of another size; answers come first. prompt: where
 * each one's ends. */
static bool crowd_step(const FixtureRun *chunk, KvCache *cache, KvSequence s[STRANGERS + 1],
    int32_t tokens[STRANGERS + 1][TOKENS], const int prompt[STRANGERS + 1], int ours, uint64_t *random, float *logits) {
    StepBuilder b;
    Error error = {0};
    int added[STRANGERS + 1] = {0};
    const int decode_rows_max = runner_decode_rows_max(chunk->runner);
    bool ok = true;
    fixture_builder(&b, ROWS);
    step_begin(&b, false);
    for (int turn = 0; turn < 2 * (STRANGERS + 1); turn++) {
        const int i = turn % (STRANGERS + 1);
        const bool answers = s[i].length >= prompt[i];
        if (answers != (turn <= STRANGERS)) continue;
        added[i] = crowd_rows(&s[i], prompt[i], random);
        if (answers && decode_rows_max && added[i] > decode_rows_max - b.step.decode_rows)
            added[i] = decode_rows_max - b.step.decode_rows;
        if (added[i] == 0) continue;
        ok = ok && batch_add(&b, cache, &s[i], tokens[i], added[i], answers && decode_rows_max, i == ours);
    }
    float *out;
    ok = ok && runner_forward(chunk->runner, cache, step_end(&b, &error), &out, &error);
    if (ok)
        memcpy(logits + (size_t)s[ours].length * (size_t)chunk->vocab, out,
            (size_t)added[ours] * (size_t)chunk->vocab * sizeof *out);
    for (int i = 0; i <= STRANGERS; i++) kv_advance(cache, &s[i], ok ? added[i] : 0);
    step_builder_close(&b);
    return ok;
}

/* end: of our prompt; those of strangers end anywhere, if ours does. */
static bool crowd_walk(const FixtureRun *chunk, const int32_t *mine, int end, float *logits) {
    static int32_t tokens[STRANGERS + 1][TOKENS];
    const int ours = 3;
    int prompt[STRANGERS + 1];
    uint64_t random = 7;
    Error error = {0};
    KvSequence s[STRANGERS + 1] = {0};
    const KvPlan *plan = runner_kv_plan(chunk->runner);
    KvCache *cache = kv_open(plan, (STRANGERS + 1) * kv_bytes_for(plan, NULL, TOKENS), &error);
    bool ok = cache != NULL;
    for (int i = 0; ok && i <= STRANGERS; i++) {
        for (int t = 0; t < TOKENS; t++) {
            tokens[i][t] = i == ours ? mine[t] : (int32_t)(test_random(&random) % (uint64_t)chunk->vocab);
        }
        prompt[i] = i == ours || end == TOKENS ? end : 1 + (int)(test_random(&random) % TOKENS);
        ok = kv_sequence_open(cache, NULL, &s[i], &error);
    }
    while (ok && s[ours].length < TOKENS) ok = crowd_step(chunk, cache, s, tokens, prompt, ours, &random, logits);
    for (int i = 0; cache && i <= STRANGERS; i++) kv_sequence_close(cache, &s[i]);
    kv_close(cache);
    return ok;
}

/* A prompt, then its answer in pieces, as one is read again. */
static bool pieces_walk(const FixtureRun *chunk, const int32_t *tokens, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(chunk->runner);
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, TOKENS), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    while (ok && s.length < TOKENS) {
        const bool answers = s.length >= PROMPT;
        const int at = s.length, left = (answers ? TOKENS : PROMPT) - at, rows = left < PIECE ? left : PIECE;
        const StepSequence sequence = {.tokens = tokens + at, .decode = answers};
        ok = fixture_step_of(
            chunk->runner, cache, &s, rows, &sequence, logits + (size_t)at * (size_t)chunk->vocab, &error);
    }
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    return ok;
}

enum { VERIFIED_MAX = 16 };

/* Several decode rows of one sequence have the bits of as many steps with a row: k tokens of its answer are computed in
 * one step, forgotten, and computed again, as the verification of drafts does, which repeats a step's shape. single:
 * logits of single decode rows. */
static void test_verification(const FixtureRun *run, const char *label, const int32_t *tokens, const float *single) {
    Error error = {0};
    KvSequence s = {0};
    const size_t vocab = (size_t)run->vocab;
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, 2 * kv_bytes_for(plan, NULL, TOKENS), &error);
    float *logits = malloc(PIECE * vocab * sizeof *logits); /* PIECE > VERIFIED_MAX */
    bool ok = logits && cache && kv_sequence_open(cache, NULL, &s, &error);
    while (ok && s.length < PROMPT)
        ok = fixture_step(run->runner, cache, &s, tokens + s.length,
            PIECE < PROMPT - s.length ? PIECE : PROMPT - s.length, logits, &error);
    for (int k = 1; ok && k <= VERIFIED_MAX; k++)
        for (int again = 0; ok && again < 3; again++) {
            const StepSequence rows = {.tokens = tokens + PROMPT, .decode = true};
            memset(logits, 0, VERIFIED_MAX * vocab * sizeof *logits);
            ok = fixture_step_of(run->runner, cache, &s, k, &rows, logits, &error) && kv_truncate(cache, &s, PROMPT);
            TEST_MSG(memcmp(logits, single + PROMPT * vocab, (size_t)k * vocab * sizeof *logits) == 0,
                "%s: %d decode rows in a step", label, k);
        }
    TEST_MSG(ok, "%s: %s", label, error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    free(logits);
}

static bool open_run(FixtureRun *chunk, const char *directory, const char *cpu, int threads) {
    const RunnerOptions options = {.backend = fixture_backend(cpu, threads, ROWS)};
    return fixture_run_open(chunk, directory, &(ModelOptions){.context = TOKENS}, &options);
}

/* whole: as if all were a prompt; other: as much room. */
static void test_answer(const FixtureRun *two, const FixtureRun *chunk, const char *label, const int32_t *tokens,
    float *whole, float *other) {
    const size_t size = (size_t)TOKENS * (size_t)chunk->vocab, begin = (size_t)PROMPT * (size_t)chunk->vocab;
    const bool differs = strcmp(runner_backend(chunk->runner)->ops->name, "generated") == 0;
    memcpy(other, whole, size * sizeof *whole);
    TEST(fixture_walk(two->runner, tokens, TOKENS, TOKENS, TOKENS - PROMPT, whole));
    TEST_MSG(memcmp(whole, other, begin * sizeof *whole) == 0, "%s before an answer", label);
    for (size_t i = begin; differs && i < size; i += (size_t)chunk->vocab)
        TEST_MSG(memcmp(whole + i, other + i, (size_t)chunk->vocab * sizeof *whole) != 0, "%s: no difference", label);
    memset(other, 0, size * sizeof *other);
    TEST(pieces_walk(chunk, tokens, other));
    TEST_MSG(memcmp(whole, other, size * sizeof *whole) == 0, "%s with an answer in pieces", label);
    memset(other, 0, size * sizeof *other);
    TEST(crowd_walk(chunk, tokens, PROMPT, other));
    TEST_MSG(memcmp(whole, other, size * sizeof *whole) == 0, "%s with an answer among strangers", label);
}

/* Two threads for the whole prompt, one for what must equal it. */
static void test_model(const FixtureRun *two, const FixtureRun *chunk, const char *label) {
    const size_t size = (size_t)TOKENS * (size_t)chunk->vocab;
    float *whole = calloc(size, sizeof *whole), *other = calloc(size, sizeof *other);
    static int32_t tokens[TOKENS];
    uint64_t random = 99;
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(test_random(&random) % (uint64_t)chunk->vocab);
    TEST(fixture_walk(two->runner, tokens, TOKENS, TOKENS, 0, whole));
    const int chunks[] = {1, 7, 128};
    for (size_t c = test_sampled(); c < COUNT_OF(chunks); c++) { /* single rows are among the crowd's */
        memset(other, 0, size * sizeof *other);
        TEST(fixture_walk(chunk->runner, tokens, TOKENS, chunks[c], 0, other));
        TEST_MSG(memcmp(whole, other, size * sizeof *whole) == 0, "%s in pieces of %d", label, chunks[c]);
    }
    memset(other, 0, size * sizeof *other);
    TEST(crowd_walk(chunk, tokens, TOKENS, other));
    TEST_MSG(memcmp(whole, other, size * sizeof *whole) == 0, "%s among strangers", label);
    if (runner_decode_rows_max(chunk->runner)) test_answer(two, chunk, label, tokens, whole, other);
    test_verification(chunk, label, tokens, whole);
    free(whole);
    free(other);
}

static void test_case(const char *directory, size_t i, const char *cpu) {
    char label[128];
    FixtureRun two, one;
    const bool open = open_run(&two, directory, cpu, 2) && open_run(&one, directory, cpu, 1);
    snprintf(label, sizeof label, "%s variant %d on %s", cases[i].name, cases[i].variant, cpu);
    if (open) test_model(&two, &one, label);
    if (open) fixture_run_close(&one);
    fixture_run_close(&two);
}

/* short, for an emulator: without the fence and answers of a CPU, whose proofs are the same everywhere. */
int main(int argc, char **argv) {
    const bool in_short = argc > 1 && !strcmp(argv[1], "short");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++) {
            if (strcmp(fixture_cpus[c], "ref") == 0 && !cases[i].on_ref) continue;
            const bool fence = strcmp(fixture_cpus[c], "fence") == 0;
            if (fence && (in_short || (test_sampled() && !cases[i].on_ref))) continue; /* test_golden has all on it */
            if (fixture_case_due(i, c)) test_case(directory, i, fixture_cpus[c]);
        }
        if (!in_short && (!test_sampled() || i % 3 == 0)) test_case(directory, i, "generated");
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
