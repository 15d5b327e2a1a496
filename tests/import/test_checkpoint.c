/* import/checkpoint: a converted checkpoint is the same model. Every fixture of tests/family, some of which have the
 * publishers' names, is converted without changing numbers; its logits must be the same bits. tests/import/
 * check_convert.py compares the files with mlx-lm's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "family/fixture.h"
#include "import/checkpoint/checkpoint.h"
#include "test.h"

static bool walk(const Fixture *f, const char *directory, float *logits) {
    FixtureRun run;
    const RunnerOptions options = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return false;
    const bool ok = fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, logits);
    fixture_run_close(&run);
    return ok;
}

/* Heads whose rows are divided by their length have unit rows after conversion, rounded to their type, which are
 * divided again when they are loaded, as mlx-lm does both: one unit of bfloat16 in each product. */
static bool nearly(const Fixture *f, const float *before, const float *after) {
    float most = 0, off = 0;
    if (strncmp(f->name, "baichuan", 8) != 0) return false;
    for (int i = 0; i < f->count * f->vocab; i++) {
        most = fmaxf(most, fabsf(before[i]));
        off = fmaxf(off, fabsf(before[i] - after[i]));
    }
    return off <= most / 128;
}

typedef struct Counted {
    uint64_t done, total;
} Counted;

static bool count_bytes(void *context, uint64_t done, uint64_t total, const char *tensor) {
    Counted *counted = context;
    TEST(tensor[0] && done > counted->done);
    *counted = (Counted){done, total};
    return true;
}

static void test_fixture(Fixture *f, int variant) {
    char source[64], target[80];
    const size_t bytes = (size_t)f->count * (size_t)f->vocab * sizeof(float);
    float *before = malloc(bytes), *after = malloc(bytes);
    Error error = {0};
    if (before && after && fixture_write_variant(f, variant, source)) {
        snprintf(target, sizeof target, "%s-converted", source);
        Counted counted = {0};
        const CheckpointOptions options = {.shard_bytes = 20000, .progress = count_bytes, .context = &counted};
        const bool ok = checkpoint_convert(source, target, &options, &error);
        const bool advised = strstr(error.text, "convert it with mlx_lm") || strstr(error.text, "use --dequantize");
        const bool refused = !ok && error.code == ERROR_UNSUPPORTED && advised;
        TEST_MSG(ok || refused, "%s: %s", f->name, error.text);
        TEST_MSG(!ok || (counted.done == counted.total && counted.total), "%s: %llu of %llu bytes", f->name,
            (unsigned long long)counted.done, (unsigned long long)counted.total);
        if (ok && walk(f, source, before) && walk(f, target, after))
            TEST_MSG(!memcmp(before, after, bytes) || nearly(f, before, after), "%s: other logits", f->name);
        if (ok) fixture_remove(target);
        fixture_remove(source);
    }
    free(before);
    free(after);
}

/* A build that ends in the middle leaves nothing. */
static bool stop(void *context, uint64_t done, uint64_t total, const char *tensor) {
    TEST(done <= total && tensor);
    return done < total / 2;
}

static void test_stopped(void) {
    Fixture f;
    char source[64], target[80], partial[96];
    Error error = {0};
    if (!fixture_open(&f, "llama") || !fixture_write_variant(&f, 0, source)) return;
    snprintf(target, sizeof target, "%s-converted", source);
    snprintf(partial, sizeof partial, "%s.partial", target);
    const CheckpointOptions options = {.quantize = true, .form = {QUANT_AFFINE, 4, 32}, .progress = stop};
    TEST(!checkpoint_convert(source, target, &options, &error) && error.code == ERROR_CANCELLED);
    TEST(!file_exists(target) && !file_exists(partial));
    fixture_remove(source);
    fixture_close(&f);
}

int main(void) {
    static char names[FIXTURE_NAMES_MAX][64];
    const int total = fixture_names(names, FIXTURE_NAMES_MAX), step = test_sampled() ? 3 : 1;
    for (int i = 0; i < total; i += step) {
        Fixture f;
        if (!fixture_open(&f, names[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v += test_sampled() ? 8 : 1) test_fixture(&f, v);
        fixture_close(&f);
    }
    Fixture f; /* matrices that are written transposed, each as two: in the sample, too */
    if (fixture_open(&f, "gpt-oss-published")) {
        test_fixture(&f, 0);
        fixture_close(&f);
    }
    test_stopped();
    return test_done();
}
