/* What the cache takes from the system, read from the process: the pages of models with the attention of Qwen 2.5 1.5B
 * and of DeepSeek-V2-Lite, filled step by step as a prompt fills them, exactly and as codes. */
#include <stdlib.h>

#include "cache/kv_cache.h"
#include "test.h"

enum { LAYERS = 28, LATENT_LAYERS = 27, STEP = 512, SHORT = 8192, LONG = 32768 };

static Backend *backend;
static KvPlan plan;

static double resident(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kilobytes = 0;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %llu kB", &kilobytes) == 1) break;
    if (status) fclose(status);
    return (double)kilobytes * 1024;
}

/* What a step writes: whole pages, in f16 of an ordinary size. */
static void write_pages(const KvCache *cache, const KvSequence *sequence, const uint8_t *contents) {
    const KvLayer *first = &kv_entries(cache)[0];
    for (int page = sequence->length / KV_PAGE_TOKENS;
         page < (sequence->reserved + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS; page++)
        memcpy(first->base + (size_t)sequence->tables[0][page] * first->page_stride, contents, first->page_stride);
}

/* Bytes that a sequence of so many tokens has taken, and what its pages say. */
static double taken(const char *form, int tokens, const uint8_t *contents, double *pages) {
    KvFormat format = {.k = KV_FULL};
    TEST(kv_format_parse(form, &format, NULL));
    KvCache *cache = kv_open(&plan, (size_t)2 << 30, NULL);
    KvSequence sequence;
    TEST(cache && kv_sequence_open(cache, &format, &sequence, NULL));
    const double before = resident();
    while (sequence.length < tokens) {
        const int most = kv_step_rows(&sequence), left = tokens - sequence.length;
        const int rows = most < STEP ? most : STEP;
        TEST(kv_reserve(cache, &sequence, rows < left ? rows : left, NULL));
        write_pages(cache, &sequence, contents);
        kv_advance(cache, &sequence, rows < left ? rows : left);
    }
    const double bytes = resident() - before;
    *pages = (double)kv_bytes_used(cache);
    kv_sequence_close(cache, &sequence);
    kv_close(cache);
    return bytes;
}

static void check_length(int tokens, double turbo4, double turbo3, const uint8_t *contents) {
    double pages, exact_pages;
    const double exact = taken("f16", tokens, contents, &exact_pages);
    const struct {
        const char *form;
        double smaller;
    } bars[] = {{"turbo4", turbo4}, {"turbo3", turbo3}};
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++) {
        const double bytes = taken(bars[i].form, tokens, contents, &pages);
        printf("%s at %d tokens: %.1f of %.1f MB, %.2f times smaller; its pages alone %.2f times\n", bars[i].form,
            tokens, bytes * 1e-6, exact * 1e-6, exact / bytes, exact_pages / pages);
        TEST_MSG(exact >= bars[i].smaller * bytes, "%s at %d tokens", bars[i].form, tokens);
    }
}

/* Times smaller at both lengths, turbo4 and turbo3. */
typedef struct Bars {
    double at_short[2], at_long[2];
} Bars;

static void check_model(CacheSpec spec, int layers, const Bars *bars) {
    CacheSpec specs[LAYERS];
    Backend *backends[LAYERS];
    for (int i = 0; i < layers; i++) {
        specs[i] = spec;
        backends[i] = backend;
    }
    TEST(kv_plan_make(&plan, specs, backends, layers, LONG, NULL) && plan.group_count == 1);
    const size_t page = plan.group[0].page_bytes;
    uint16_t *contents = malloc(page);
    uint64_t random = 1;
    for (size_t i = 0; contents && i < page / sizeof *contents; i++)
        contents[i] = (uint16_t)(0x3000 | (test_random(&random) & 0x8fff)); /* ±0.125 … 0.5 */
    double pages; /* the first time also takes what coding works in */
    (void)taken("turbo4", SHORT / 2, (const uint8_t *)contents, &pages);
    check_length(SHORT, bars->at_short[0], bars->at_short[1], (const uint8_t *)contents);
    if (!test_sampled()) check_length(LONG, bars->at_long[0], bars->at_long[1], (const uint8_t *)contents);
    free(contents);
    kv_plan_free(&plan);
}

int main(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return test_skip_all("memory of kinds of pages: a sanitizer has memory of its own");
#endif
    if (resident() == 0) return test_skip_all("memory of kinds of pages: the system does not say what is resident");
    backend = backend_open(&(BackendOptions){.cpu = "auto", .threads = 1, .rows_max = STEP}, NULL);
    if (!backend) return test_skip_all("memory of kinds of pages: no backend");
    const CacheSpec usual = {.kv_heads = 2, .head_dim = 128, .value_dim = 128};
    check_model(usual, LAYERS, &(Bars){{3.2, 3.5}, {3.6, 4.1}});
    /* Latents have one form fewer, and 8 bits beside them: 3.4 times at last. */
    const CacheSpec latents = {.kv_heads = 1, .head_dim = 64, .value_dim = 512, .latent = true};
    check_model(latents, LATENT_LAYERS, &(Bars){{2.9, 2.9}, {3.2, 3.2}});
    backend_close(backend);
    return test_done();
}
