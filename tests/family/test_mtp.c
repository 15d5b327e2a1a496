/* Multi-token prediction heads against their definition (tools/oracle/mtp_reference.py): logits for every position, and
 * of a second draft token; read at once, in pieces and in single rows, with the same bits. A file without a head is
 * refused. */
#include "compare.h"
#include "head_reader.h"

/* All rows of the golden logits, read in pieces. states: [count, hidden], those of the model. */
static bool read_head(const Fixture *f, const float *golden, const Model *model, const char *cpu, int piece,
    const float *states, float *logits) {
    Reader r;
    Error error = {0};
    const int hidden = model_hidden(model), known = f->count - 1;
    float *own = calloc((size_t)(f->count * hidden), sizeof *own), lead;
    bool ok = reader_open(&r, model, cpu, true, f->count, &error);
    TEST_MSG(ok, "%s on %s: %s", f->name, cpu, error.text);
    for (int at = 0; ok && at < known; at += piece)
        ok = read_rows(&r, f->tokens + at + 1, states + at * hidden, known - at < piece ? known - at : piece,
            logits + at * f->vocab, own + at * hidden);
    const int32_t next = argmax(golden + (known - 1) * f->vocab, f->vocab, &lead);
    ok = ok && read_rows(&r, &next, own + (known - 1) * hidden, 1, logits + known * f->vocab, own + known * hidden);
    reader_close(&r);
    free(own);
    return ok;
}

static void check_backend(Fixture *f, int variant, const char *directory, const char *cpu) {
    static const int pieces[] = {FIXTURE_TOKENS_MAX, 7, 1};
    Error error = {0};
    Reader target;
    const ModelOptions options = {.context = f->count, .strict_config = true, .mtp = true};
    Model *model = model_open(directory, &options, &error);
    bool ok = model && reader_open(&target, model, cpu, false, f->count, &error);
    TEST_MSG(ok, "%s on %s: %s", f->name, cpu, error.text);
    if (!ok) return;
    const size_t size = (size_t)(f->count * f->vocab);
    float *states = calloc((size_t)(f->count * model_hidden(model)), sizeof *states);
    float *first = calloc(size, sizeof *first), *logits = calloc(size, sizeof *logits);
    CHECK(states && first && logits);
    ok = read_rows(&target, f->tokens, NULL, f->count, logits, states);
    for (size_t i = 0; ok && i < COUNT_OF(pieces); i++) {
        if (!read_head(f, fixture_golden(f, variant), model, cpu, pieces[i], states, i ? logits : first)) break;
        if (i > 0)
            TEST_MSG(!memcmp(first, logits, size * sizeof *first), "%s on %s: pieces of %d", f->name, cpu, pieces[i]);
        else if (runner_backend(target.runner)->exact)
            check_exact(f, variant, first);
        else
            check_fast(f, variant, cpu, first);
    }
    free(states);
    free(first);
    free(logits);
    reader_close(&target);
    model_close(model);
}

static void check_refusals(void) {
    static const char *const without[] = {"llama", "glm4-moe"};
    for (size_t i = 0; i < COUNT_OF(without); i++) {
        Fixture f;
        Error error = {0};
        char directory[64];
        if (!fixture_open(&f, without[i]) || !fixture_write_variant(&f, 0, directory)) continue;
        Model *model = model_open(directory, &(ModelOptions){.mtp = true}, &error);
        TEST_MSG(!model && error.code == ERROR_UNSUPPORTED && strstr(error.text, "--mtp"), "%s", error.text);
        model_close(model);
        fixture_remove(directory);
        fixture_close(&f);
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(head_fixtures); i++) {
        Fixture f;
        if (!fixture_open(&f, head_fixtures[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v++) {
            char directory[64];
            if (!fixture_write_variant(&f, v, directory)) continue;
            for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
                if (fixture_cpu_due(fixture_cpus[c])) check_backend(&f, v, directory, fixture_cpus[c]);
            fixture_remove(directory);
        }
        fixture_close(&f);
    }
    check_refusals();
    return test_done();
}
