/* Requests of all kinds over a real decoder on every instruction set of the processor: answers with forced drafts of 1,
 * 7 and 31 tokens, and of random lengths, right and wrong ones, equal the answers without: tokens, log-probabilities,
 * finish, prompt tokens. test_speculation_requests REQUESTS: so many with drafts, of all lengths on all backends
 * together; ./test.sh long has 10,000. */
#include "engine/speculation_cases.h"
#include "family/fixture.h"

enum { BATCH = 500 /* requests whose answers are kept */ };

static const int lengths[] = {1, 7, DRAFT_TOKENS_MAX, 0}; /* 0: random ones */
static uint64_t compared, drafted, accepted;              /* requests with drafts; tokens */

/* Slots, prompts, pages and forms change from batch to batch. */
static Engine *open_batch(const char *directory, const char *cpu, int batch, const SpeculationOptions *speculation) {
    static const KvFormat format = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 128, .hot = 128};
    Error error = {0};
    const EngineOptions options = {.directory = directory,
        .model.context = 1536,
        .backend = fixture_backend(cpu, 2, 0),
        .slots = 12,
        .queue_max = 64,
        .prefill_size = batch % 2 ? 128 : 48,
        .kv_bytes = batch % 3 == 1 ? (size_t)1 << 20 : 0, /* the longest prompt fits */
        .kv_format = batch % 4 == 3 ? format : (KvFormat){0},
        .speculation = *speculation};
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s: %s", cpu, error.text);
    return engine;
}

static bool run_batch(
    const char *directory, const char *cpu, int batch, const SpeculationOptions *drafts, Answer *out) {
    Engine *engine = open_batch(directory, cpu, batch, drafts);
    if (!engine) return false;
    run_cases(engine, out);
    const EngineStats stats = engine_stats(engine);
    for (int i = 0; i < DRAFT_SOURCES; i++) {
        drafted += stats.drafts[i].drafted;
        accepted += stats.drafts[i].accepted;
    }
    engine_close(engine);
    return true;
}

static void check_backend(const char *directory, const char *cpu, int requests) {
    const SpeculationOptions drafts = {.always = true, .script = script, .script_context = &scripts};
    for (case_first = 0; case_first < requests; case_first += BATCH) {
        const int batch = case_first / BATCH;
        case_count = requests - case_first < BATCH ? requests - case_first : BATCH;
        script_prompts(&scripts);
        if (!run_batch(directory, cpu, batch, &(SpeculationOptions){0}, known)) return;
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            int first = 0;
            scripts.tokens = lengths[i];
            if (!run_batch(directory, cpu, batch, &drafts, answers)) return;
            const int different = different_answers(&first);
            TEST_MSG(different == 0, "%s, drafts of %d: %d of %d requests differ, the first is %d", cpu, lengths[i],
                different, case_count, first);
            compared += (uint64_t)case_count;
        }
        printf("%s: requests to %d of %d, with drafts of %d lengths each\n", cpu, case_first + case_count, requests,
            (int)COUNT_OF(lengths));
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    const char *here[FIXTURE_CPUS];
    int count = 0;
    Fixture f;
    char directory[64];
    for (size_t i = 0; i < COUNT_OF(fixture_cpus); i++)
        if (strcmp(fixture_cpus[i], "fence") && fixture_cpu_here(fixture_cpus[i])) here[count++] = fixture_cpus[i];
    const int each = SANITIZED ? 12 : test_sampled() ? 24 : 100, kinds = count * (int)COUNT_OF(lengths);
    const int wanted = argc > 1 ? (int)strtol(argv[1], NULL, 10) : each * kinds;
    known = calloc(BATCH, sizeof *known);
    answers = calloc(BATCH, sizeof *answers);
    CHECK(known && answers && count > 0);
    if (fixture_open(&f, "llama") && fixture_write_variant(&f, 3, directory) &&
        fixture_write_text(directory, "generation_config.json", slice_of("{\"eos_token_id\": 7}"))) {
        case_vocab = f.vocab;
        for (int i = 0; i < count; i++) check_backend(directory, here[i], (wanted + kinds - 1) / kinds);
        fixture_remove(directory);
        printf("%llu requests with drafts on %d backends: %llu draft tokens, %llu accepted\n",
            (unsigned long long)compared, count, (unsigned long long)drafted, (unsigned long long)accepted);
        TEST(compared >= (uint64_t)wanted && drafted > compared && accepted > 0 && accepted < drafted);
    }
    fixture_close(&f);
    free(known);
    free(answers);
    return test_done();
}
