/* A fixture of tools/oracle/assistant_reference.py as two checkpoints: a model, and the assistant that drafts for it.
 */
#pragma once
#include "fixture.h"
#include "model/spec.h"

static const char assistant_prefix[] = "assistant.";

static inline void write_assistant_config(const Fixture *f, int variant, bool assistant, Buffer *out) {
    const Json *config = json_get(f->root, "config"), *own = json_get(config, "assistant");
    const Json *quantization = json_get(fixture_variant(f, variant), "quantization");
    buffer_byte(out, '{');
    for (JSON_EACH_PAIR(key, value, assistant ? own : config)) {
        if (value == own) continue;
        json_write(out, key);
        buffer_byte(out, ':');
        json_write(out, value);
        buffer_byte(out, ',');
    }
    out->size--; /* the last comma */
    if (quantization) {
        buffer_text(out, ",\"quantization\":");
        json_write(out, quantization);
    }
    buffer_byte(out, '}');
}

/* The assistant's tensors, or the others, with what belongs to them. */
static inline bool write_assistant_part(Fixture *f, int variant, bool assistant, char directory[64]) {
    FixtureFile *all = fixture_tensors(f, variant), *part = calloc(1, sizeof *part);
    const size_t prefix = sizeof assistant_prefix - 1;
    Buffer config = {0};
    CHECK(part);
    for (int i = 0; i < all->count; i++) {
        const bool own = !strncmp(all->header[i].name, assistant_prefix, prefix);
        if (own != assistant) {
            free(all->bytes[i]);
            continue;
        }
        part->header[part->count] = all->header[i];
        if (own) part->header[part->count].name += prefix;
        part->bytes[part->count] = all->bytes[i];
        part->size[part->count++] = all->size[i];
    }
    free(all);
    write_assistant_config(f, variant, assistant, &config);
    const bool ok = fixture_write(part, buffer_view(&config), directory);
    buffer_free(&config);
    return ok;
}

static inline bool assistant_write(Fixture *f, int variant, char target[64], char assistant[64]) {
    return write_assistant_part(f, variant, false, target) && write_assistant_part(f, variant, true, assistant);
}

/* Reads rows of an assistant at places from `place` on, each of which stands for the position behind it; states: those
 * of the places. logits: [rows, vocab], hidden: [rows, hidden of the target]. */
static inline bool assistant_rows(Runner *assistant, KvCache *cache, const KvSequence *kv, StepBuilder *builder,
    const int32_t *tokens, const float *states, int place, int rows, float *logits, float *hidden) {
    Error error = {0};
    float *out;
    int32_t positions[POSITION_DIMS_MAX * FIXTURE_TOKENS_MAX];
    const EmbeddingRange range = {.rows = rows, .values = states};
    const Model *model = runner_model(assistant);
    const size_t width = (size_t)model_spec(model)->state_output.rows;
    SequenceChunk chunk;
    kv_run(kv, &chunk);
    for (int i = 0; i < POSITION_DIMS_MAX * rows; i++) positions[i] = place + 1 + i % rows;
    step_begin(builder, true);
    step_add_sequence(builder,
        &(StepSequence){.rows = rows,
            .position = place,
            .tables = chunk.tables,
            .quant = chunk.quant,
            .tokens = tokens,
            .embedding_count = 1,
            .embeddings = &range,
            .states = true,
            .positions = positions,
            .output_count = rows,
            .hidden_row_count = rows});
    const bool ok = runner_forward(assistant, cache, step_end(builder, &error), &out, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return false;
    memcpy(logits, out, (size_t)(rows * model_vocab(model)) * sizeof *out);
    memcpy(hidden, runner_hidden_rows(assistant), (size_t)rows * width * sizeof *out);
    return true;
}
