#include "backend/tensor_parallel_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the step ---- */

static bool parallel_begin(Backend *backend, const Step *step) {
    Parallel *t = parallel_of(backend);
    bool any = false;
    t->scratch_used = 0;
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        t->walks[p] = part->ops->begin(part, step);
        any = any || t->walks[p];
    }
    return any;
}

static uint64_t parallel_submit(Backend *backend) {
    Parallel *t = parallel_of(backend);
    uint64_t *tickets = t->tickets[++t->ticket % PARALLEL_STEPS];
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        tickets[p] = part->ops->submit(part);
    }
    return t->ticket;
}

/* Waits for all ranks, also when one has failed. */
static bool parallel_wait(Backend *backend, uint64_t ticket, Error *error) {
    Parallel *t = parallel_of(backend);
    bool ok = true;
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        ok = part->ops->wait(part, t->tickets[ticket % PARALLEL_STEPS][p], ok ? error : NULL) && ok;
    }
    return ok;
}

/* All ranks carve their scratch alike; its beginning is known when the first piece is taken. */
static float *parallel_scratch(Backend *backend, int64_t count) {
    Parallel *t = parallel_of(backend);
    Region *r = &t->region[0];
    size_t offset = 0;
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        uint8_t *memory = (uint8_t *)part->ops->scratch(part, count);
        if (t->scratch_used == 0) r->part[p] = memory;
        CHECK(p == 0 || (size_t)(memory - r->part[p]) == offset);
        offset = (size_t)(memory - r->part[p]);
    }
    t->scratch_used = offset + (size_t)count * sizeof(float);
    CHECK(t->scratch_used <= r->bytes);
    return (float *)(void *)(r->start + offset);
}

static float *parallel_read_logits(Backend *backend, float *logits, int64_t count) {
    Parallel *t = parallel_of(backend);
    Backend *part = parallel_enter(t, 0);
    return part->ops->read_logits(part, parallel_at(t, 0, logits), count);
}

static const int32_t *parallel_sampled(Backend *backend, uint64_t ticket) {
    Parallel *t = parallel_of(backend);
    Backend *part = parallel_enter(t, 0);
    return part->ops->sampled(part, t->tickets[ticket % PARALLEL_STEPS][0]);
}

/* ---- opening ---- */

static void parallel_close(Backend *backend) {
    Parallel *t = parallel_of(backend);
    parallel_forget(t);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->release(part, t->terms[p]);
        part->ops->close(part);
    }
    while (t->region_count) parallel_region_close(t, &t->region[t->region_count - 1]);
    free(t->columns);
    free(t->sum);
    free(t->more);
    free(t->page);
    free(t);
}

static const BackendOps parallel_ops = {
    .bind = parallel_bind,
    .unbind = parallel_unbind,
    .begin = parallel_begin,
    .submit = parallel_submit,
    .wait = parallel_wait,
    .scratch = parallel_scratch,
    .read_logits = parallel_read_logits,
    .sampled = parallel_sampled,
    .close = parallel_close,
};

static bool join(Parallel *t, size_t scratch_bytes, Error *error) {
    const BackendOps *inner = t->part[0]->ops;
    for (int p = 1; p < t->count; p++) CHECK(!strcmp(t->part[p]->ops->name, inner->name));
    t->base = *t->part[0];
    t->ops = parallel_ops;
    parallel_memory(&t->ops);
    parallel_operations(&t->ops);
    t->ops.name = inner->name;
    if (!inner->sum_logits) t->ops.sum_logits = NULL;
    if (!inner->sample) t->ops.sample = NULL;
    if (!inner->ffn_block) t->ops.ffn_block = NULL;
    if (!inner->attention_block) t->ops.attention_block = NULL;
    if (!inner->recurrence) t->ops.recurrence = NULL;
    t->base.ops = &t->ops;
    t->base.sources = false;
    (void)snprintf(t->base.description, sizeof t->base.description, "%d × %.*s", t->count, BACKEND_DESCRIPTION_MAX - 8,
        t->part[0]->description);
    return parallel_region_open(t, scratch_bytes, false, error) &&
        (!inner->join || inner->join(t->part, t->count, error));
}

Backend *tensor_parallel_open(Backend *const *parts, int count, size_t scratch_bytes, Error *error) {
    CHECK(count > 1 && count <= BACKEND_RANKS_MAX);
    Parallel *t = calloc(1, sizeof *t);
    if (!t) {
        for (int p = 0; p < count; p++) parts[p]->ops->close(parts[p]);
        fail(error, ERROR_MEMORY, "no memory for a backend");
        return NULL;
    }
    t->count = count;
    for (int p = 0; p < count; p++) t->part[p] = parts[p];
    if (join(t, scratch_bytes, error)) return &t->base;
    parallel_close(&t->base);
    return NULL;
}
