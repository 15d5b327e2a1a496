/* The steps behind the last layer: final norm, output matrix, sampling. */
#include "model/decoder_internal.h"

/* How many of the outputs are decode rows; they come first. */
static int decode_outputs(const Step *step, int count, const int32_t *output) {
    int decode_rows = 0;
    while (decode_rows < count && output[decode_rows] < step->decode_rows) decode_rows++;
    for (int i = decode_rows; i < count; i++) CHECK(output[i] >= step->decode_rows);
    return step->uniform_matmul ? 0 : decode_rows;
}

static void logits_forward(const Stage *stage, const Step *step, int count, const int32_t *output, float *logits) {
    const Spec *spec = stage->bound->spec;
    const BackendOps *ops = stage->backend->ops;
    ops->gather(stage->backend, count, output, stage->residual, spec->hidden, stage->normed);
    const Matmul head = {.rows = count,
        .decode_rows = decode_outputs(step, count, output),
        .x = stage->normed,
        .norm = stage->bound->final_norm,
        .count = 1,
        .weight = {&stage->bound->head},
        .out = {logits},
        .coarse = stage->bound->coarse_head};
    ops->matmul(stage->backend, &head);
    if (spec->logit_scale != 1 || spec->logit_softcap != 0)
        ops->logits(stage->backend, (int64_t)count * spec->vocab, logits, spec->logit_scale, spec->logit_softcap);
}

static void hidden_rows_forward(const Stage *stage, const Step *step, float *out) {
    const BackendOps *ops = stage->backend->ops;
    const Norm *norm = stage->bound->final_norm;
    const Weight *project = &stage->bound->state_output;
    const int count = step->hidden_row_count;
    float *rows = norm || project->rows ? stage->normed : out;
    ops->gather(stage->backend, count, step->hidden_rows, stage->residual, stage->bound->spec->hidden, rows);
    if (project->rows)
        ops->matmul(stage->backend,
            &(Matmul){.rows = count,
                .decode_rows = decode_outputs(step, count, step->hidden_rows),
                .x = rows,
                .norm = norm,
                .count = 1,
                .weight = {project},
                .out = {out}});
    else if (norm)
        ops->norm(stage->backend, count, rows, norm, out);
}

/* Samples tokens, or computes the sums with which sampling begins. */
static void sample_forward(const Stage *stage, const Step *step, int count, float *logits) {
    const Spec *spec = stage->bound->spec;
    float *work = logits + decoder_sums_at(spec, step, count);
    if (step->sample_params) {
        const LogitSampling op = {
            .rows = count, .vocab = spec->vocab, .logits = logits, .sample_params = step->sample_params, .work = work};
        stage->backend->ops->sample(stage->backend, &op);
        return;
    }
    const LogitSums op = {.rows = count, .vocab = spec->vocab, .logits = logits, .scales = step->scales, .out = work};
    stage->backend->ops->sum_logits(stage->backend, &op);
}

int64_t decoder_hidden_rows_at(const Spec *spec, int count) {
    enum { ALIGN = 16 };
    return ((int64_t)count * spec->vocab + ALIGN - 1) / ALIGN * ALIGN;
}

int64_t decoder_state_width(const Spec *spec) {
    return spec->state_output.rows ? spec->state_output.rows : spec->hidden;
}

/* Floats of logits and hidden rows. */
static int64_t row_results(const Spec *spec, const Step *step, int count) {
    const int64_t hidden_rows = step->hidden_row_count * decoder_state_width(spec);
    return hidden_rows ? decoder_hidden_rows_at(spec, count) + hidden_rows : (int64_t)count * spec->vocab;
}

int64_t decoder_sums_at(const Spec *spec, const Step *step, int count) {
    return logit_sums_at(row_results(spec, step, count));
}

int64_t decoder_results(const Spec *spec, const Step *step, int count, bool summed) {
    return summed ? decoder_sums_at(spec, step, count) + 2 * count * logit_blocks(spec->vocab)
                  : row_results(spec, step, count);
}

float *decoder_outputs(const Stage *stage, const Step *step) {
    const int count = step->output_count;
    const int32_t *output = step->outputs;
    const Spec *spec = stage->bound->spec;
    const BackendOps *ops = stage->backend->ops;
    if (count == 0 && step->hidden_row_count == 0) return NULL;
    const bool summed = count > 0 && (step->sample_params || (step->scales && ops->sum_logits));
    float *logits = ops->scratch(stage->backend, decoder_results(spec, step, count, summed));
    if (!stage->walk) return logits;
    if (stage->streams) streams_merge(stage, step);
    if (count > 0) logits_forward(stage, step, count, output, logits);
    if (step->hidden_row_count > 0) hidden_rows_forward(stage, step, logits + decoder_hidden_rows_at(spec, count));
    if (summed) sample_forward(stage, step, count, logits);
    return logits;
}
