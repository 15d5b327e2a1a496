/* Forms of layers that no fixture has. Rearranging the components of a model into other layers must not change a bit;
 * components may share a cache entry, or have two in one layer; norms inside of components are applied. */
#include "fixture.h"
#include "model/component.h"
#include "model/model_internal.h"

enum { LAYERS = 64 };

typedef void Rearrange(Spec *spec);

static Layer layers[LAYERS]; /* of the rearranged Spec */

static void use_layers(Spec *spec, int count) {
    spec->layers = layers;
    spec->layer_count = count;
}

/* All components in order, `each` to a layer. */
static void pack(Spec *spec, int each) {
    static Layer packed[LAYERS];
    int count = 0;
    memset(packed, 0, sizeof packed);
    for (int i = 0; i < spec->layer_count; i++)
        for (int c = 0; c < spec->layers[i].component_count; c++, count++) {
            Layer *layer = &packed[count / each];
            layer->components[layer->component_count++] = spec->layers[i].components[c];
        }
    memcpy(layers, packed, sizeof packed);
    use_layers(spec, (count + each - 1) / each);
}

static void keep(Spec *spec) {}
static void pack_three(Spec *spec) { pack(spec, 3); }

/* Layers with one component, and layers without any at both ends and between them. */
static void pack_one(Spec *spec) {
    pack(spec, 1);
    const int count = spec->layer_count;
    for (int i = count - 1; i >= 0; i--) {
        layers[2 * i + 1] = layers[i];
        layers[2 * i + 2] = (Layer){0};
    }
    layers[0] = (Layer){0};
    use_layers(spec, 2 * count + 1);
}

/* Every attention twice, in parallel; the second one has an entry of its own. */
static void twice(Spec *spec) {
    CHECK(spec->layer_count <= LAYERS);
    memcpy(layers, spec->layers, (size_t)spec->layer_count * sizeof *layers);
    use_layers(spec, spec->layer_count);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &layers[i];
        layer->component_count = 3;
        layer->components[2] = layer->components[1];
        layer->components[1] = layer->components[0];
        layer->components[1].parallel = true;
        layer->components[1].input_norm = NULL;
        layer->components[0].cache_entry = 2 * i;
        layer->components[1].cache_entry = 2 * i + 1;
    }
    spec->cache_entries *= 2;
}

/* The same; the second one attends to the first one's entry. */
static void twice_shared(Spec *spec) {
    twice(spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Component *component = layers[i].components;
        component[0].cache_entry = component[1].cache_entry = i;
        component[1].attention.k = component[1].attention.v = (Weight){0};
    }
    spec->cache_entries /= 2;
}

/* The last layer attends to the first one's entry. */
static void share_far(Spec *spec) {
    memcpy(layers, spec->layers, (size_t)spec->layer_count * sizeof *layers);
    use_layers(spec, spec->layer_count);
    Component *last = &layers[spec->layer_count - 1].components[0];
    last->cache_entry = 0;
    last->attention.k = last->attention.v = (Weight){0};
    spec->cache_entries--;
}

/* ---- running ---- */

typedef struct Case {
    const Fixture *f;
    const char *directory, *cpu;
    int split;
} Case;

/* Logits of the rearranged model; bytes of its cache in *cache_bytes. False with the error. */
static bool logits_of(
    const Case *c, Rearrange *rearrange, int chunk, float *logits, size_t *cache_bytes, Error *error) {
    RunnerOptions options = {.backend = fixture_backend(c->cpu, 1, FIXTURE_TOKENS_MAX), .split = c->split};
    options.upper = options.backend;
    Model *model = model_open(c->directory, &(ModelOptions){.context = c->f->count}, error);
    if (!model) return false;
    rearrange(&model->spec);
    Runner *runner = runner_open(model, &options, error);
    const bool ok = runner && fixture_walk(runner, c->f->tokens, c->f->count, chunk, 2, logits);
    if (runner) *cache_bytes = kv_bytes_for(runner_kv_plan(runner), NULL, c->f->count);
    runner_close(runner);
    model_close(model);
    return ok;
}

static void expect_logits(const Case *c, Rearrange *rearrange, int chunk, float *logits, size_t *cache_bytes) {
    Error error = {0};
    TEST_MSG(
        logits_of(c, rearrange, chunk, logits, cache_bytes, &error), "%s on %s: %s", c->f->name, c->cpu, error.text);
}

static void check_forms(const Fixture *f, const char *directory, const char *cpu, bool attention) {
    const size_t bytes = (size_t)(f->count * f->vocab) * sizeof(float);
    float *expected = calloc(1, bytes), *found = calloc(1, bytes);
    size_t usual = 0, own = 0;
    Case c = {f, directory, cpu, 0};
    if (!expected || !found) abort();
    expect_logits(&c, keep, 7, expected, &usual);
    Rearrange *const forms[] = {pack_one, pack_three};
    for (int split = 0; split < 2; split++) {
        c.split = split;
        for (size_t i = 0; i < COUNT_OF(forms); i++) {
            expect_logits(&c, forms[i], 7, found, &own);
            TEST_MSG(!memcmp(expected, found, bytes) && own == usual, "%s on %s: form %zu, split %d", f->name, cpu, i,
                split);
        }
    }
    c.split = 0;
    if (attention) {
        float *second = calloc(1, bytes);
        size_t shared = 0;
        expect_logits(&c, twice, 5, found, &own);
        expect_logits(&c, twice_shared, 9, second, &shared);
        TEST_MSG(
            !memcmp(found, second, bytes) && memcmp(found, expected, bytes), "%s on %s: shared entries", f->name, cpu);
        TEST_MSG(own == 2 * usual && shared == usual, "%zu, %zu and %zu bytes", usual, own, shared);
        free(second);
    }
    free(expected);
    free(found);
}

/* A component on one device cannot attend to what is on another one. */
static void check_devices(const Fixture *f, const char *directory) {
    const Case c = {f, directory, "ref", 1};
    float *logits = calloc((size_t)(f->count * f->vocab), sizeof *logits);
    size_t bytes;
    Error error = {0};
    TEST(!logits_of(&c, share_far, 7, logits, &bytes, &error));
    TEST_MSG(
        error.code == ERROR_UNSUPPORTED && strstr(error.text, "attends to the cache of layer 0"), "%s", error.text);
    free(logits);
}

/* ---- norms inside of components ---- */

enum { SCALED_MAX = 64 };
static void *scaled_data[SCALED_MAX];
static int scaled_count;

static Weight scaled(const Weight *weight, float factor) {
    float *data = malloc((size_t)(weight->rows * weight->cols) * sizeof *data);
    if (!data || scaled_count == SCALED_MAX) abort();
    scaled_data[scaled_count++] = data;
    for (int64_t r = 0; r < weight->rows; r++) {
        weight_dequantize_row(weight, r, 0, weight->cols, data + r * weight->cols);
        for (int64_t i = 0; i < weight->cols; i++) data[r * weight->cols + i] *= factor;
    }
    return (Weight){.rows = weight->rows, .cols = weight->cols, .dtype = DTYPE_F32, .data = data};
}

static float sub_factor; /* of values and of up, a power of two */
static bool sub_norms;

/* An RMS norm without an epsilon does not see a power of two. */
static void with_sub_norms(Spec *spec) {
    static Norm attention_norm, glu_norm;
    memcpy(layers, spec->layers, (size_t)spec->layer_count * sizeof *layers);
    use_layers(spec, spec->layer_count);
    for (int i = 0; i < spec->layer_count; i++) {
        AttentionComponent *attention = &layers[i].components[0].attention;
        GluComponent *glu = &layers[i].components[1].glu;
        attention_norm = (Norm){.kind = NORM_RMS, .width = attention->o.cols};
        glu_norm = (Norm){.kind = NORM_RMS, .width = glu->down.cols};
        attention->v = scaled(&attention->v, sub_factor);
        glu->up = scaled(&glu->up, sub_factor);
        attention->sub_norm = sub_norms ? &attention_norm : NULL;
        glu->sub_norm = sub_norms ? &glu_norm : NULL;
    }
}

static void check_sub_norms(const Fixture *f, const char *directory) {
    const Case c = {f, directory, "ref", 0};
    const size_t bytes = (size_t)(f->count * f->vocab) * sizeof(float);
    float *once = calloc(1, bytes), *more = calloc(1, bytes);
    size_t cache;
    for (int with = 0; with < 2; with++) {
        sub_norms = with;
        sub_factor = 1;
        expect_logits(&c, with_sub_norms, 7, once, &cache);
        sub_factor = 4;
        expect_logits(&c, with_sub_norms, 7, more, &cache);
        while (scaled_count > 0) free(scaled_data[--scaled_count]);
        TEST_MSG(with == !memcmp(once, more, bytes), "%s: %s norms inside", f->name, with ? "with" : "without");
    }
    free(once);
    free(more);
}

int main(void) {
    static const struct {
        const char *name;
        int variant;
        bool attention; /* components[0] is an attention with a norm before it */
    } cases[] = {{"llama", 0, true}, {"gemma3-text", 0, true}, {"mimo-v2-flash", 0, true}, {"deepseek-v2", 0, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
            if (fixture_cpu_due(fixture_cpus[c])) check_forms(&f, directory, fixture_cpus[c], cases[i].attention);
        if (i == 0) {
            check_devices(&f, directory);
            check_sub_norms(&f, directory);
        }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
