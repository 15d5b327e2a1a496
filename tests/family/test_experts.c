/* Mixtures of experts: the router against hand-made cases, and checkpoints whose experts lie one by one against the
 * same ones stacked. */
#include "fixture.h"

#include "backend/cpu/experts.h"

/* ---- the router ---- */

enum { SLOTS = 4 };

static void route(const Routing *wanted, const float *logits, int32_t *index, float *weight) {
    Routing op = *wanted;
    op.rows = 1;
    op.logits = logits;
    op.index = index;
    op.weight = weight;
    cpu_route(NULL, &op);
}

static void expect_near(float got, double wanted) { TEST_MSG(fabs(got - wanted) < 1e-6, "%g, not %g", got, wanted); }

static void test_softmax(void) {
    const float logits[4] = {0, 1, 3, 1};
    const double sum = 1 + 2 * exp(1) + exp(3);
    int32_t index[SLOTS];
    float weight[SLOTS];
    route(&(Routing){.experts = 4, .used = 2, .score = ROUTE_SOFTMAX, .scale = 1}, logits, index, weight);
    TEST(index[0] == 2 && index[1] == 1); /* of equals the first */
    expect_near(weight[0], exp(3) / sum);
    expect_near(weight[1], exp(1) / sum);
    route(&(Routing){.experts = 4, .used = 2, .score = ROUTE_SOFTMAX, .normalise = true, .scale = 2}, logits, index,
        weight);
    expect_near(weight[0], 2 * exp(3) / (exp(3) + exp(1)));
    route(&(Routing){.experts = 4, .used = 2, .score = ROUTE_TOP_SOFTMAX, .scale = 1}, logits, index, weight);
    expect_near(weight[1], exp(1) / (exp(3) + exp(1)));
}

static void test_sigmoid(void) {
    const float logits[4] = {2, -1, 0, 1}, bias[4] = {-1, 1, 0, 0};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {.experts = 4,
        .used = 2,
        .score = ROUTE_SIGMOID,
        .bias = bias,
        .normalise = true,
        .epsilon = 0.5f,
        .scale = 2,
        .shared = 1};
    route(&op, logits, index, weight);
    /* Chosen with the bias, weighted without it. */
    const double a = 1 / (1 + exp(1)), b = 1 / (1 + exp(-1));
    TEST(index[0] == 1 && index[1] == 3 && index[2] == 4);
    expect_near(weight[0], 2 * a / (a + b + 0.5));
    expect_near(weight[1], 2 * b / (a + b + 0.5));
    expect_near(weight[2], 1);
    const float gate = 3;
    Routing gated = op;
    gated.shared_logits = &gate;
    route(&gated, logits, index, weight);
    expect_near(weight[2], 1 / (1 + exp(-3)));
}

static void test_groups(void) {
    /* The best expert stands in a group whose two best are worse together than another group's. */
    const float logits[6] = {4, -9, 2, 2, 1, -9};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {.experts = 6, .used = 2, .score = ROUTE_SIGMOID, .groups = 3, .groups_used = 1, .scale = 1};
    route(&op, logits, index, weight);
    TEST(index[0] == 2 && index[1] == 3);
}

/* ---- checkpoints ---- */

/* The tensors of a fixture, its stacks of experts cut into matrices of their own. Takes `from` over. */
static FixtureFile *cut_stacks(Fixture *f, FixtureFile *from, const char *const parts[3]) {
    static const char *const banks[3] = {"gate_proj", "up_proj", "down_proj"};
    FixtureFile *out = calloc(1, sizeof *out);
    for (int i = 0; i < from->count; i++) {
        const TensorHeader *h = &from->header[i];
        const char *at = strstr(h->name, ".switch_mlp.");
        if (!at) {
            out->header[out->count] = *h;
            out->bytes[out->count] = from->bytes[i];
            out->size[out->count++] = from->size[i];
            continue;
        }
        const char *bank = at + strlen(".switch_mlp."), *rest = strchr(bank, '.');
        int part = 0;
        while (strncmp(bank, banks[part], (size_t)(rest - bank))) part++;
        const int64_t experts = h->shape[0];
        const size_t size = from->size[i] / (size_t)experts;
        for (int64_t e = 0; e < experts; e++) {
            char *name = arena_printf(
                &f->arena, "%.*s.experts.%lld.%s%s", (int)(at - h->name), h->name, (long long)e, parts[part], rest);
            void *bytes = malloc(size);
            memcpy(bytes, (uint8_t *)from->bytes[i] + (size_t)e * size, size);
            out->header[out->count] = (TensorHeader){name, h->dtype, 2, {h->shape[1], h->shape[2]}};
            out->bytes[out->count] = bytes;
            out->size[out->count++] = size;
        }
        free(from->bytes[i]);
    }
    TEST(out->count > from->count);
    free(from);
    return out;
}

static void test_single(const char *name, int variant, const char *const parts[3]) {
    Fixture f;
    char directory[64];
    Buffer config = {0};
    FixtureRun run;
    TEST(fixture_open(&f, name));
    fixture_config(&f, variant, &config);
    float *stacked = malloc(f.golden_bytes.size), *single = malloc(f.golden_bytes.size);
    const RunnerOptions options = {.backend = fixture_backend("auto", 1, FIXTURE_TOKENS_MAX)};
    for (int cut = 0; cut < 2; cut++) {
        FixtureFile *file = fixture_tensors(&f, variant);
        if (cut) file = cut_stacks(&f, file, parts);
        TEST(fixture_write(file, buffer_view(&config), directory));
        if (fixture_run_open(&run, directory, &(ModelOptions){.strict_config = true}, &options)) {
            TEST(fixture_walk(run.runner, f.tokens, f.count, FIXTURE_TOKENS_MAX, 0, cut ? single : stacked));
            fixture_run_close(&run);
        }
        fixture_remove(directory);
    }
    TEST(!memcmp(stacked, single, sizeof(float) * (size_t)(f.count * f.vocab)));
    free(stacked);
    free(single);
    buffer_free(&config);
    fixture_close(&f);
}

int main(void) {
    test_softmax();
    test_sigmoid();
    test_groups();
    static const char *const usual[3] = {"gate_proj", "up_proj", "down_proj"}, *const numbers[3] = {"w1", "w3", "w2"};
    test_single("olmoe", 0, usual);
    test_single("olmoe", 1, usual);
    test_single("mixtral", 2, numbers);
    return test_done();
}
