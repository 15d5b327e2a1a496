/* Each layer divided between two backends: the same model, other sums. */
#include "compare.h"

static int divided, refused, recurrent, hybrids, odd;

static bool open_parts(FixtureRun *run, const Fixture *f, const char *directory, const char *cpu, Error *error) {
    RunnerOptions options = {.backend = fixture_backend(cpu, 1, FIXTURE_TOKENS_MAX)};
    options.backend.tensor_parallel = 2;
    return fixture_run_try(run, directory, &(ModelOptions){.context = f->count}, &options, error);
}

/* The first page of the first layer after a prompt, in canonical order; it is also written to the second page and read
 * from there. What the caller frees. */
static uint8_t *first_page(const FixtureRun *run, const Fixture *f, int tokens, size_t *bytes) {
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(run->runner);
    float *logits = calloc((size_t)(tokens * f->vocab), sizeof *logits);
    KvCache *cache = kv_open(plan, 2 * kv_bytes_for(plan, NULL, tokens), &error);
    uint8_t *page = NULL, *again = NULL;
    if (logits && cache && kv_sequence_open(cache, NULL, &s, &error) &&
        fixture_step(run->runner, cache, &s, f->tokens, tokens, logits, &error)) {
        const KvLayer *layer = &kv_entries(cache)[0];
        Backend *backend = plan->group[layer->group].backend;
        const int32_t from = s.tables[layer->group][0], to = from + 1;
        *bytes = kv_canonical_bytes(&layer->layout, tokens);
        page = calloc(1, *bytes);
        again = calloc(1, *bytes);
        TEST(backend->ops->page_read(backend, layer, from, tokens, page));
        TEST(backend->ops->page_write(backend, layer, to, tokens, page));
        TEST(backend->ops->page_read(backend, layer, to, tokens, again));
        TEST_MSG(!memcmp(page, again, *bytes), "%s: a page that was written is another", f->name);
    }
    TEST_MSG(page != NULL, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    free(logits);
    free(again);
    return page;
}

/* The first layer's keys and values are sums that nobody divides: the same bits, in the same order of heads. A state
 * is in the order of the ranks. */
static void check_page(const Fixture *f, const FixtureRun *divided_run, const char *cpu, const char *directory) {
    FixtureRun run;
    size_t bytes = 0, own_bytes = 0;
    const KvPlan *plan = runner_kv_plan(divided_run->runner);
    const bool state = plan->entries[0].layout.kv_heads == 0;
    const int page_tokens = plan->entries[0].page_tokens, tokens = f->count < page_tokens ? f->count : page_tokens;
    const RunnerOptions options = {.backend = fixture_backend(cpu, 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    uint8_t *whole = first_page(&run, f, tokens, &bytes), *own = first_page(divided_run, f, tokens, &own_bytes);
    TEST_MSG(whole && own && bytes == own_bytes && (state || !memcmp(whole, own, bytes)), "%s on two %s: pages",
        f->name, cpu);
    free(whole);
    free(own);
    fixture_run_close(&run);
}

/* Within the bounds of one backend, and the same bits in any cut. */
static void check_parts(const Fixture *f, int variant, const FixtureRun *run, const char *cpu) {
    const size_t size = (size_t)(f->count * f->vocab);
    float *whole = calloc(size, sizeof *whole), *pieces = calloc(size, sizeof *pieces);
    if (whole && pieces && fixture_walk(run->runner, f->tokens, f->count, f->count, f->steps, whole)) {
        if (runner_backend(run->runner)->exact)
            check_exact(f, variant, whole);
        else
            check_fast(f, variant, cpu, whole);
        static const int chunks[] = {1, 7};
        for (size_t c = 0; c < COUNT_OF(chunks); c++) {
            TEST(fixture_walk(run->runner, f->tokens, f->count, chunks[c], f->steps, pieces));
            TEST_MSG(
                !memcmp(whole, pieces, size * sizeof *whole), "%s on two %s in pieces of %d", f->name, cpu, chunks[c]);
        }
    }
    free(whole);
    free(pieces);
}

/* A model that cannot be divided is refused with the reason. Not counted are recurrent layers and operations
 * of few families, which never can, and a GPU, which may be alone. */
static void check_variant(const Fixture *f, int variant, const char *cpu, const char *directory) {
    FixtureRun run;
    Error error = {0};
    if (!open_parts(&run, f, directory, cpu, &error)) {
        if (strstr(error.text, "needs as many GPUs")) return;
        TEST_MSG(strstr(error.text, "divided") || strstr(error.text, "cannot compute"), "%s variant %d: %s", f->name,
            variant, error.text);
        if (strstr(error.text, "recurrent layer")) {
            TEST_MSG(strstr(error.text, "--tensor-parallel 2: layer "), "%s", error.text);
            odd += strstr(error.text, " of a recurrent layer cannot be divided") != NULL;
            recurrent++;
        } else if (strcmp(cpu, "cuda") != 0 && !strstr(error.text, "cannot compute"))
            refused++;
        return;
    }
    divided++;
    const KvPlan *plan = runner_kv_plan(run.runner);
    for (int g = 0, any = 0; g < plan->group_count; g++)
        if (plan->group[g].recurrent && !any++) hybrids++;
    check_parts(f, variant, &run, cpu);
    if (variant == 0) check_page(f, &run, cpu, directory);
    fixture_run_close(&run);
}

int main(int count, char **arguments) {
    static char names[FIXTURE_NAMES_MAX][64];
    int total = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 1; i < count; i++) snprintf(names[i - 1], sizeof names[0], "%s", arguments[i]);
    total = count > 1 ? count - 1 : total;
    for (int i = 0; i < total; i++) {
        Fixture f;
        if (!fixture_open(&f, names[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v++) {
            char directory[64];
            const bool written = fixture_write_variant(&f, v, directory);
            TEST(written);
            for (size_t c = 0; written && c < COUNT_OF(fixture_cpus); c++) {
                const char *cpu = fixture_cpus[c];
                const bool ref = strcmp(cpu, "ref") == 0, fence = strcmp(cpu, "fence") == 0;
                if (!fence && (ref ? fixture_cpu_here(cpu) : fixture_case_due((size_t)(i + v), c)))
                    check_variant(&f, v, cpu, directory);
            }
            fixture_remove(directory);
        }
        fixture_close(&f);
    }
    printf(
        "%d divided, of these %d with recurrent layers; %d refused, and %d with recurrent layers, %d of them for their "
        "heads\n",
        divided, hybrids, refused, recurrent, odd);
    /* Groups of 32 and more are too large for most halves of these models, and many have heads of an odd number. */
    TEST_MSG(count > 1 || divided > refused / 2, "%d divided, %d refused", divided, refused);
    TEST_MSG(count > 1 || (recurrent > 0 && odd > 0 && hybrids > 0), "%d, %d and %d", recurrent, odd, hybrids);
    return test_done();
}
