/* Other ways to write the same config: published files, and those that transformers saves, differ in the names of
 * fields and values, in what they leave out and in what they repeat. Each gives the fixture's golden logits. */
#include "compare.h"

typedef struct Spelling {
    const char *fixture, *from, *to; /* from: text of the config as fixture_config() writes it; NULL: no change */
} Spelling;

static const Spelling spellings[] = {
    {"mamba2-published", "\"expand\":2", "\"expand\":2,\"time_step_limit\":[0.0,Infinity]"},
    {"mamba2-published", "\"expand\":2", "\"expand\":2,\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]"},
    {"granite-hybrid-published", "[\"mamba\",\"mamba\",\"attention\"]",
        "[\"linear_attention\",\"linear_attention\",\"full_attention\"]"},
    {"granite-hybrid-published", "\"mamba_d_head\":32", "\"mamba_d_head\":\"auto\""},
    {"granite-hybrid-published", "\"mamba_d_head\":32,", ""},
    {"falcon-h1-published", "\"mamba_d_head\":16", "\"mamba_d_head\":\"auto\""},
    {"mamba-published", "\"intermediate_size\":192,", "\"expand\":2,"},
    {"kimi-linear-published",
        "\"linear_attn_config\":{\"num_heads\":2,\"head_dim\":32,\"kda_layers\":[2,3],\"full_attn_layers\":[1],"
        "\"short_conv_kernel_size\":3}",
        "\"linear_num_heads\":2,\"linear_head_dim\":32,\"linear_conv_kernel_dim\":3,\"layer_types\":"
        "[\"full_attention\",\"linear_attention\",\"linear_attention\"],\"mlp_layer_types\":"
        "[\"sparse\",\"sparse\",\"sparse\"]"},
};

/* A warning is a failure: it would say that a field is not known. */
static void warn(void *context, const char *line) { TEST_MSG(false, "%s: %s", (const char *)context, line); }

static void check_logits(const Fixture *f, const char *directory) {
    const ModelOptions options = {
        .context = f->count, .strict_config = true, .warn = warn, .warn_context = (void *)f->name};
    const RunnerOptions chunks = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
    FixtureRun run;
    if (!fixture_run_open(&run, directory, &options, &chunks)) return;
    float *ours = calloc((size_t)(f->count * f->vocab), sizeof *ours);
    if (fixture_walk(run.runner, f->tokens, f->count, f->count, 0, ours)) check_exact(f, 0, ours);
    free(ours);
    fixture_run_close(&run);
}

static void test_spelling(const Spelling *s) {
    Fixture f;
    if (!fixture_open(&f, s->fixture)) return;
    Buffer config = {0}, edited = {0};
    char directory[64];
    fixture_config(&f, 0, &config);
    const char *at = strstr(config.data, s->from);
    TEST_MSG(at, "%s is not in %s", s->from, config.data);
    if (at) {
        buffer_append(&edited, config.data, (size_t)(at - config.data));
        buffer_text(&edited, s->to);
        buffer_text(&edited, at + strlen(s->from));
        const bool written = fixture_write(fixture_tensors(&f, 0), buffer_view(&edited), directory);
        TEST(written);
        if (written) check_logits(&f, directory);
        fixture_remove(directory);
    }
    buffer_free(&config);
    buffer_free(&edited);
    fixture_close(&f);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(spellings); i++) test_spelling(&spellings[i]);
    return test_done();
}
