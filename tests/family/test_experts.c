/* Mixtures of experts: the router against hand-made cases, and checkpoints whose experts lie one by one against the
 * same ones stacked. */
#include "fixture.h"

#include "backend/cpu/experts.h"
#include "model/spec.h"

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
    route(&(Routing){.experts = 4, .top_k = 2, .score = ROUTE_SOFTMAX, .scale = 1}, logits, index, weight);
    TEST(index[0] == 2 && index[1] == 1); /* of equals the first */
    expect_near(weight[0], exp(3) / sum);
    expect_near(weight[1], exp(1) / sum);
    route(&(Routing){.experts = 4, .top_k = 2, .score = ROUTE_SOFTMAX, .norm_topk_prob = true, .scale = 2}, logits,
        index, weight);
    expect_near(weight[0], 2 * exp(3) / (exp(3) + exp(1)));
    route(&(Routing){.experts = 4, .top_k = 2, .score = ROUTE_TOP_SOFTMAX, .scale = 1}, logits, index, weight);
    expect_near(weight[1], exp(1) / (exp(3) + exp(1)));
}

static void test_sigmoid(void) {
    const float logits[4] = {2, -1, 0, 1}, bias[4] = {-1, 1, 0, 0};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {.experts = 4,
        .top_k = 2,
        .score = ROUTE_SIGMOID,
        .bias = bias,
        .norm_topk_prob = true,
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
    /* The bias is added to the logits. */
    route(
        &(Routing){.experts = 4, .top_k = 2, .score = ROUTE_TOP_SIGMOID, .bias = (float[]){-3, 1.5f, 0, 0}, .scale = 1},
        logits, index, weight);
    TEST(index[0] == 3 && index[1] == 1);
    expect_near(weight[0], b);
    expect_near(weight[1], a);
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
    const Routing op = {.experts = 6, .top_k = 2, .score = ROUTE_SIGMOID, .groups = 3, .topk_group = 1, .scale = 1};
    route(&op, logits, index, weight);
    TEST(index[0] == 2 && index[1] == 3);
    /* As good as its best alone. */
    Routing best = op;
    best.group_best = true;
    route(&best, logits, index, weight);
    TEST(index[0] == 0 && index[1] == 1);
    /* Other groups are not chosen, even where the biased scores of the best one are below 0. */
    const float bias[6] = {-9, -9, -3, -4, -9, -9};
    Routing biased = op;
    biased.bias = bias;
    route(&biased, logits, index, weight);
    TEST(index[0] == 2 && index[1] == 3);
}

static void test_sparse_mixer(void) {
    /* Near the best: (4 − 3) / 4 and (4 − 2) / 4, not (4 + 1) / 4; then without the best (3 − 2) / 3, 4 / 3. */
    const float logits[4] = {-1, 4, 2, 3};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {.experts = 4, .top_k = 2, .score = ROUTE_SPARSEMIXER, .jitter_eps = 0.5f, .scale = 1};
    route(&op, logits, index, weight);
    TEST(index[0] == 1 && index[1] == 3);
    expect_near(weight[0], 1 / (1 + exp(-1) + exp(-2)));
    expect_near(weight[1], 1 / (1 + exp(-1)));
}

/* Factors of the experts come last. */
static void test_expert_scale(void) {
    const float logits[3] = {0, 1, 3}, factors[3] = {5, 0.5f, 2};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {
        .experts = 3, .top_k = 2, .score = ROUTE_TOP_SOFTMAX, .scale = 1, .expert_scale = factors, .shared = 1};
    route(&op, logits, index, weight);
    expect_near(weight[0], 2 * exp(3) / (exp(3) + exp(1)));
    expect_near(weight[1], 0.5 * exp(1) / (exp(3) + exp(1)));
    expect_near(weight[2], 1);
}

/* What the chosen and the shared expert count for is a softmax over two numbers. */
static void test_shared_pair(void) {
    const float logits[2] = {0, -1}, pair[2] = {1, 2};
    int32_t index[SLOTS];
    float weight[SLOTS];
    const Routing op = {.experts = 2,
        .top_k = 1,
        .score = ROUTE_SIGMOID,
        .scale = 1,
        .shared = 1,
        .shared_logits = pair,
        .shared_pair = true};
    route(&op, logits, index, weight);
    TEST(index[0] == 0 && index[1] == 2);
    expect_near(weight[0], 0.5 / (1 + exp(1)));
    expect_near(weight[1], 1 / (1 + exp(-1)));
}

/* ---- checkpoints ---- */

/* How a family's checkpoints lie before MLX converts them. */
typedef struct Raw {
    const char *stack;    /* of MLX: ".switch_mlp." */
    const char *parts[3]; /* names of an expert's gate, up and down */
    const char *fused[2]; /* names of the stacks of gate and up, one below the other in each expert, and of down; NULL:
                             one tensor for each matrix */
} Raw;

static const char *const banks[3] = {"gate_proj", "up_proj", "down_proj"};

/* Takes bytes over. */
static void add_tensor(FixtureFile *out, TensorHeader header, void *bytes, size_t size) {
    out->header[out->count] = header;
    out->bytes[out->count] = bytes;
    out->size[out->count++] = size;
}

static void cut_stack(Fixture *f, FixtureFile *out, const FixtureFile *from, int i, const char *at, const Raw *raw) {
    const TensorHeader *h = &from->header[i];
    const char *bank = at + strlen(raw->stack), *rest = strchr(bank, '.');
    int part = 0;
    while (strncmp(bank, banks[part], (size_t)(rest - bank))) part++;
    const size_t size = from->size[i] / (size_t)h->shape[0];
    for (int64_t e = 0; e < h->shape[0]; e++) {
        char *name = arena_printf(
            &f->arena, "%.*s.experts.%lld.%s%s", (int)(at - h->name), h->name, (long long)e, raw->parts[part], rest);
        void *bytes = malloc(size);
        memcpy(bytes, (uint8_t *)from->bytes[i] + (size_t)e * size, size);
        add_tensor(out, (TensorHeader){name, h->dtype, 2, {h->shape[1], h->shape[2]}}, bytes, size);
    }
    free(from->bytes[i]);
}

/* Three stacks in alphabetical order: down, gate, up. */
static void fuse_stacks(
    Fixture *f, FixtureFile *out, const FixtureFile *from, const int stacks[3], const char *at, const Raw *raw) {
    const TensorHeader *down = &from->header[stacks[2]], *gate = &from->header[stacks[0]];
    const int home = (int)(at - gate->name);
    const size_t experts = (size_t)gate->shape[0], size = from->size[stacks[0]] / experts;
    uint8_t *both = malloc(2 * experts * size);
    for (size_t e = 0; e < 2 * experts; e++)
        memcpy(both + e * size, (uint8_t *)from->bytes[stacks[e % 2]] + e / 2 * size, size);
    add_tensor(out,
        (TensorHeader){arena_printf(&f->arena, "%.*s.%s.weight", home, gate->name, raw->fused[0]), gate->dtype, 3,
            {gate->shape[0], 2 * gate->shape[1], gate->shape[2]}},
        both, 2 * experts * size);
    TensorHeader whole = *down;
    whole.name = arena_printf(&f->arena, "%.*s.%s.weight", home, gate->name, raw->fused[1]);
    add_tensor(out, whole, from->bytes[stacks[2]], from->size[stacks[2]]);
    free(from->bytes[stacks[0]]);
    free(from->bytes[stacks[1]]);
}

static int find_bank(const FixtureFile *file, const char *first, const char *at, const char *stack, int bank) {
    char name[160];
    snprintf(name, sizeof name, "%.*s%s%s.weight", (int)(at - first), first, stack, banks[bank]);
    int i = 0;
    while (strcmp(file->header[i].name, name)) i++;
    return i;
}

/* The tensors of a fixture with its stacks of experts as they lie before. Takes `from` over. */
static FixtureFile *unstack(Fixture *f, FixtureFile *from, const Raw *raw) {
    FixtureFile *out = calloc(1, sizeof *out);
    int changed = 0;
    for (int i = 0; i < from->count; i++) {
        const TensorHeader *h = &from->header[i];
        const char *at = h->rank == 3 ? strstr(h->name, raw->stack) : NULL;
        changed += at != NULL;
        if (!at)
            add_tensor(out, *h, from->bytes[i], from->size[i]);
        else if (!raw->fused[0])
            cut_stack(f, out, from, i, at, raw);
        else if (strstr(at, ".gate_proj.")) {
            int stacks[3];
            for (int b = 0; b < 3; b++) stacks[b] = find_bank(from, h->name, at, raw->stack, b);
            fuse_stacks(f, out, from, stacks, at, raw);
        }
    }
    TEST(changed > 0);
    free(from);
    return out;
}

static void test_raw(const char *name, int variant, const Raw *raw) {
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
        if (cut) file = unstack(&f, file, raw);
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

/* ---- latent attention ---- */

static int find_tensor(const FixtureFile *file, const char *name) {
    int i = 0;
    while (strcmp(file->header[i].name, name)) i++;
    return i;
}

/* embed_q [heads, latent, plain] and w_uv_out [heads, width, latent] of f32 as kv_b_proj, which takes the place of
 * the second. The first goes. */
static void join_heads(Fixture *f, FixtureFile *file, int layer) {
    const char *home = arena_printf(&f->arena, "model.layers.%d.self_attn", layer);
    const int q = find_tensor(file, arena_printf(&f->arena, "%s.embed_q.weight", home)),
              out = find_tensor(file, arena_printf(&f->arena, "%s.unembed_out.weight", home));
    const int64_t heads = file->header[q].shape[0], latent = file->header[q].shape[1], plain = file->header[q].shape[2],
                  width = file->header[out].shape[1], each = plain + width;
    const float *embed = file->bytes[q], *w_uv = file->bytes[out];
    float *both = malloc((size_t)(heads * each * latent) * sizeof *both);
    for (int64_t h = 0; h < heads; h++) {
        float *own = both + h * each * latent;
        for (int64_t r = 0; r < plain; r++)
            for (int64_t c = 0; c < latent; c++) own[r * latent + c] = embed[(h * latent + c) * plain + r];
        memcpy(own + plain * latent, w_uv + h * width * latent, (size_t)(width * latent) * sizeof *both);
    }
    free(file->bytes[q]);
    free(file->bytes[out]);
    file->bytes[out] = both;
    file->size[out] = (size_t)(heads * each * latent) * sizeof *both;
    file->header[out] =
        (TensorHeader){arena_printf(&f->arena, "%s.kv_b_proj.weight", home), DTYPE_F32, 2, {heads * each, latent}};
    file->count--;
    file->header[q] = file->header[file->count];
    file->bytes[q] = file->bytes[file->count];
    file->size[q] = file->size[file->count];
}

static uint64_t parameters_of(const Model *model) {
    const Spec *spec = model_spec(model);
    uint64_t sum = 0;
    for (int i = 0; i < spec->tally_count; i++) sum += spec->tally[i].parameters;
    return sum;
}

static void test_joined_heads(void) {
    Fixture f;
    char directory[64];
    Buffer config = {0};
    FixtureRun run;
    TEST(fixture_open(&f, "deepseek-v3"));
    fixture_config(&f, 0, &config);
    float *logits[2] = {malloc(f.golden_bytes.size), malloc(f.golden_bytes.size)};
    uint64_t parameters[2] = {0};
    const RunnerOptions options = {.backend = fixture_backend("auto", 1, FIXTURE_TOKENS_MAX)};
    for (int joined = 0; joined < 2; joined++) {
        FixtureFile *file = fixture_tensors(&f, 0);
        for (int layer = 0; joined && layer < 3; layer++) join_heads(&f, file, layer);
        TEST(fixture_write(file, buffer_view(&config), directory));
        if (fixture_run_open(&run, directory, &(ModelOptions){.strict_config = true}, &options)) {
            TEST(fixture_walk(run.runner, f.tokens, f.count, FIXTURE_TOKENS_MAX, 0, logits[joined]));
            parameters[joined] = parameters_of(run.model);
            fixture_run_close(&run);
        }
        fixture_remove(directory);
    }
    TEST(!memcmp(logits[0], logits[1], sizeof(float) * (size_t)(f.count * f.vocab)));
    TEST(parameters[0] == parameters[1]);
    free(logits[0]);
    free(logits[1]);
    buffer_free(&config);
    fixture_close(&f);
}

int main(void) {
    test_softmax();
    test_sigmoid();
    test_groups();
    test_sparse_mixer();
    test_shared_pair();
    test_expert_scale();
    static const Raw usual = {".switch_mlp.", {"gate_proj", "up_proj", "down_proj"}, {NULL}};
    static const Raw experts = {".experts.", {"gate_proj", "up_proj", "down_proj"}, {NULL}};
    static const Raw numbers = {".switch_mlp.", {"w1", "w3", "w2"}, {NULL}};
    static const Raw fused = {".switch_mlp.", {NULL}, {"input_linear", "output_linear"}};
    test_joined_heads();
    test_raw("olmoe", 0, &usual);
    test_raw("olmoe", 1, &usual);
    test_raw("mixtral", 2, &numbers);
    test_raw("dots1", 1, &experts);
    test_raw("minimax", 0, &numbers);
    test_raw("glm4-moe", 0, &usual);
    test_raw("granitemoe", 1, &fused);
    return test_done();
}
