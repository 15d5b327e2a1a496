/* AltUp's streams before the first layer and behind the last one. */
#include "model/decoder_internal.h"

/* Mean squares below it do not scale a stream up further (transformers/models/gemma3n). */
static const float mean_square_floor = 1e-5f;

static int64_t stream_stride(const Stage *stage) { return (int64_t)stage->rows * stage->bound->spec->hidden; }

static void copy(const Stage *stage, const float *from, float *to) {
    stage->backend->ops->activate(stage->backend, stream_stride(stage), from, (Activation){.kind = ACT_NONE}, to);
}

/* to = weight · from, scaled to the root mean square of `target`. */
static void project(
    const Stage *stage, const Step *step, const Weight *weight, const float *from, const float *target, float *to) {
    const BackendOps *ops = stage->backend->ops;
    const Matmul product = {.rows = stage->rows,
        .decode_rows = decode_rows_for_matmul(step),
        .x = from,
        .count = 1,
        .weight = {weight},
        .out = {to}};
    const MatchRms match = {.rows = stage->rows,
        .width = stage->bound->spec->hidden,
        .target = target,
        .floor = mean_square_floor,
        .x = to};
    ops->matmul(stage->backend, &product);
    ops->match_rms(stage->backend, &match);
}

void streams_expand(const Stage *stage, const Step *step) {
    const AltUp *altup = &stage->bound->altup;
    copy(stage, stage->residual, stage->streams);
    for (int i = 1; i < altup->streams; i++)
        project(stage, step, &altup->expand[i - 1], stage->residual, stage->residual,
            stage->streams + i * stream_stride(stage));
}

void streams_merge(const Stage *stage, const Step *step) {
    const AltUp *altup = &stage->bound->altup;
    const BackendOps *ops = stage->backend->ops;
    copy(stage, stage->streams, stage->residual);
    for (int i = 1; i < altup->streams; i++) {
        project(stage, step, &altup->merge[i - 1], stage->streams + i * stream_stride(stage), stage->streams,
            stage->normed);
        ops->add(stage->backend, stage->rows, stage->bound->spec->hidden, stage->residual, stage->normed, 1, NULL);
    }
    ops->logits(stage->backend, stream_stride(stage), stage->residual, 1 / (float)altup->streams, 0);
}
