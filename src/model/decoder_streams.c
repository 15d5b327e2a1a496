/* AltUp's streams, and those of hyper-connections, before the first layer and behind the last one. */
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

/* Each stream begins as the embedding. */
static void repeat(const Stage *stage) {
    const int64_t hidden = stage->bound->spec->hidden;
    const GroupJoin join = {.rows = stage->rows,
        .groups = stage->bound->hyper.streams,
        .width = hidden,
        .x = stage->residual,
        .repeated = true,
        .out = stage->streams};
    stage->backend->ops->join_groups(stage->backend, &join);
}

/* The sum of the streams that the output reads. */
static void collapse(const Stage *stage, const Step *step) {
    const HyperConnections *hyper = &stage->bound->hyper;
    const BackendOps *ops = stage->backend->ops;
    const Matmul mix = {.rows = stage->rows,
        .decode_rows = decode_rows_for_matmul(step),
        .x = stage->streams,
        .norm = hyper->head.norm,
        .count = 1,
        .weight = {&hyper->head.mix},
        .out = {stage->normed},
        .fine = true};
    const HyperConnection op = {.rows = stage->rows,
        .streams = hyper->streams,
        .width = stage->bound->spec->hidden,
        .eps = hyper->eps,
        .x = stage->streams,
        .logits = stage->normed,
        .scale = hyper->head.scale,
        .base = hyper->head.base,
        .out = stage->residual};
    ops->matmul(stage->backend, &mix);
    ops->hyper_connect(stage->backend, &op);
}

void streams_expand(const Stage *stage, const Step *step) {
    const AltUp *altup = &stage->bound->altup;
    if (stage->bound->hyper.streams) {
        repeat(stage);
        return;
    }
    copy(stage, stage->residual, stage->streams);
    for (int i = 1; i < altup->streams; i++)
        project(stage, step, &altup->expand[i - 1], stage->residual, stage->residual,
            stage->streams + i * stream_stride(stage));
}

void streams_merge(const Stage *stage, const Step *step) {
    const AltUp *altup = &stage->bound->altup;
    const BackendOps *ops = stage->backend->ops;
    if (ops->set_rows) ops->set_rows(stage->backend, step); /* a walk in parts has set the last one's */
    if (stage->bound->hyper.streams) {
        collapse(stage, step);
        return;
    }
    copy(stage, stage->streams, stage->residual);
    for (int i = 1; i < altup->streams; i++) {
        project(stage, step, &altup->merge[i - 1], stage->streams + i * stream_stride(stage), stage->streams,
            stage->normed);
        ops->add(stage->backend, stage->rows, stage->bound->spec->hidden, stage->residual, stage->normed, 1, NULL);
    }
    ops->logits(stage->backend, stream_stride(stage), stage->residual, 1 / (float)altup->streams, 0);
}
