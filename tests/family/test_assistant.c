/* Assistants against transformers (tools/oracle/assistant_reference.py): logits behind every token, and of a second
 * draft token; rows at once, in pieces and single, with the same bits. What an assistant does not fit is refused. */
#include "assistant_fixture.h"
#include "compare.h"
#include "head_reader.h"

static const char *const fixtures[] = {"assistant/gemma4"};

/* All golden rows: behind tokens 1, 2 …, and the second draft token in row 0. states: [count, hidden], of the target.
 */
static bool draft_all(const Fixture *f, const float *golden, Runner *assistant, Reader *target, int piece,
    const float *states, float *logits) {
    const int vocab = f->vocab, last = f->count - 1, hidden = model_hidden(runner_model(target->runner));
    float *own = calloc((size_t)(f->count * hidden), sizeof *own), lead;
    bool ok = own;
    for (int at = 1; ok && at <= last; at += piece)
        ok = assistant_rows(assistant, target->kv, &target->sequence, &target->builder, f->tokens + at,
            states + (at - 1) * hidden, at - 1, last + 1 - at < piece ? last + 1 - at : piece, logits + at * vocab,
            own + at * hidden);
    const int32_t next = argmax(golden + last * vocab, vocab, &lead);
    ok = ok &&
        assistant_rows(assistant, target->kv, &target->sequence, &target->builder, &next, own + last * hidden, last - 1,
            1, logits, own);
    free(own);
    return ok;
}

static void check_backend(
    Fixture *f, int variant, const char *directory, const char *assistant_directory, const char *cpu) {
    static const int pieces[] = {FIXTURE_TOKENS_MAX, 7, 1};
    Error error = {0};
    Reader target = {0};
    const ModelOptions options = {.context = f->count, .strict_config = true};
    Model *model = model_open(directory, &options, &error);
    bool ok = model && reader_open(&target, model, cpu, false, f->count, &error);
    ModelOptions own = options;
    own.target = model;
    Model *assistant = ok ? model_open(assistant_directory, &own, &error) : NULL;
    const RunnerOptions runner_options = {
        .backend.rows_max = f->count, .target = target.runner, .outputs_max = f->count, .hidden_rows_max = f->count};
    Runner *runner = assistant ? runner_open(assistant, &runner_options, &error) : NULL;
    TEST_MSG(runner != NULL, "%s on %s: %s", f->name, cpu, error.text);
    if (runner) {
        const size_t size = (size_t)(f->count * f->vocab);
        float *states = calloc((size_t)(f->count * model_hidden(model)), sizeof *states);
        float *first = calloc(size, sizeof *first), *logits = calloc(size, sizeof *logits);
        CHECK(states && first && logits);
        ok = read_rows(&target, f->tokens, NULL, f->count, logits, states);
        for (size_t i = 0; ok && i < COUNT_OF(pieces); i++) {
            float *out = i ? logits : first;
            if (!draft_all(f, fixture_golden(f, variant), runner, &target, pieces[i], states, out)) break;
            if (i > 0)
                TEST_MSG(
                    !memcmp(first, logits, size * sizeof *first), "%s on %s: pieces of %d", f->name, cpu, pieces[i]);
            else if (runner_backend(target.runner)->exact)
                check_exact(f, variant, first);
            else
                check_fast(f, variant, cpu, first);
        }
        free(states);
        free(first);
        free(logits);
    }
    runner_close(runner);
    model_close(assistant);
    reader_close(&target);
    model_close(model);
}

static void refuse(const char *assistant, const Model *target, const char *why) {
    Error error = {0};
    Model *model = model_open(assistant, &(ModelOptions){.target = target}, &error);
    TEST_MSG(!model && strstr(error.text, why), "not refused with \"%s\": %s", why, error.text);
    model_close(model);
}

/* An assistant alone, and with a model of other sizes. */
static void check_refusals(const char *assistant) {
    static const struct {
        const char *target, *why;
    } others[] = {{"gemma4-a4b", "layer 0 has other heads"}, {"gemma4-31b", "has 64 and 96"}};
    refuse(assistant, NULL, "--draft-model");
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        Fixture f;
        Error error = {0};
        char directory[64];
        if (!fixture_open(&f, others[i].target) || !fixture_write_variant(&f, 0, directory)) continue;
        Model *target = model_open(directory, &(ModelOptions){0}, &error);
        TEST_MSG(target != NULL, "%s", error.text);
        if (target) refuse(assistant, target, others[i].why);
        model_close(target);
        fixture_remove(directory);
        fixture_close(&f);
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        Fixture f;
        if (!fixture_open(&f, fixtures[i])) continue;
        for (int v = 0; v < (int)f.variants->size; v++) {
            char directory[64], assistant[64];
            if (!assistant_write(&f, v, directory, assistant)) continue;
            for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
                if (fixture_cpu_due(fixture_cpus[c])) check_backend(&f, v, directory, assistant, fixture_cpus[c]);
            if (v == 0) check_refusals(assistant);
            fixture_remove(directory);
            fixture_remove(assistant);
        }
        fixture_close(&f);
    }
    return test_done();
}
