#include "model/decoder_stream.h"

#include <limits.h>

#include "base/clock.h"
#include "base/math.h"
#include "model/decoder_internal.h"

/* ---- choosing ---- */

/* The tuner of the choice that this step has; NULL: it has none. */
static Autotuner *tuner_of(StreamSchedule *schedule, const Step *step) {
    if (!schedule->experts || step->rows != step->chunk_count) return NULL;
    if (step->chunk_count == 1) return schedule->can_prefetch ? &schedule->prefetches : NULL;
    return expert_cache_micro_batches_fit(schedule->experts, step->rows) ? &schedule->overlaps : NULL;
}

void stream_begin(StreamSchedule *schedule, const Step *step) {
    schedule->tuner = tuner_of(schedule, step);
    const bool second_way = schedule->tuner && autotuner_begin(schedule->tuner, step->rows);
    schedule->two_batch_overlap = second_way && schedule->tuner == &schedule->overlaps;
    schedule->prefetch = second_way && schedule->tuner == &schedule->prefetches;
    schedule->start_ns = clock_ns();
}

void stream_end(StreamSchedule *schedule) {
    if (schedule->tuner) autotuner_end(schedule->tuner, (double)(clock_ns() - schedule->start_ns) * 1e-9);
}

int stream_span_rows_max(const StreamSchedule *schedule) { return schedule->tile_rows ? schedule->tile_rows : INT_MAX; }

/* ---- prefetching and tiles ---- */

/* Rows of the tile that begins at `first`: at most tile_rows, and no bidirectional span is cut, since its rows see keys
 * of later ones. */
static int tile_size(const Step *step, int first, int tile_rows) {
    int end = min_int(first + tile_rows, step->rows);
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        const int position = chunk->position + end - chunk->row;
        if (end <= chunk->row || end >= chunk->row + chunk->rows) continue;
        for (int s = 0; s < chunk->span_count; s++)
            if (chunk->spans[s].begin < position && position < chunk->spans[s].end)
                end = chunk->row + chunk->spans[s].begin - chunk->position;
        break;
    }
    CHECK(end > first); /* spans have at most stream_span_rows_max() rows */
    return end - first;
}

/* Requests what the next layer would read if this component changed nothing; that is right for most experts. */
static void prefetch_layer(const Stage *stage, int i, const Rows *rows) {
    if (i == stage->bound->spec->layer_count) return;
    const Layer *layer = &stage->bound->layers[i];
    for (int c = 0; c < layer->component_count; c++) {
        const Component *component = &layer->components[c];
        const ComponentOps *ops = component_ops(component->kind);
        if (!ops->prefetch || is_grouped(layer, c)) continue; /* the group's input is in use */
        ComponentCall call = decoder_call(stage, i, c, rows);
        call.work = stage->prefetch_work;
        ops->prefetch(component, &call);
    }
}

static void stream_component(const Stage *stage, int i, int c, const Rows *rows) {
    const Component *component = &stage->bound->layers[i].components[c];
    const ComponentOps *ops = component_ops(component->kind);
    ComponentCall call = decoder_call(stage, i, c, rows);
    if (stage->schedule->prefetch && rows->rows == 1 && ops->begin) {
        ops->begin(component, &call);
        call.begun = true;
        prefetch_layer(stage, i + 1, rows);
    }
    ops->forward(component, &call);
}

static void stream_tiles(const Stage *stage, int i, int c, const Step *step) {
    for (int first = 0, rows; first < step->rows; first += rows) {
        StepRows tile;
        rows = tile_size(step, first, stage->tile_rows);
        const Step own = step_rows(step, first, rows, &tile);
        stage->backend->ops->set_rows(stage->backend, &own);
        stream_component(
            stage, i, c, &(Rows){.first = first, .rows = rows, .decode_rows = decode_rows_for_matmul(&own)});
    }
}

void stream_layer(const Stage *stage, int i, const Step *step) {
    const Layer *layer = &stage->bound->layers[i];
    const Rows all = {.rows = step->rows, .decode_rows = decode_rows_for_matmul(step)};
    const bool tiled = stage->tile_rows < step->rows;
    for (int c = 0; c < layer->component_count; c++) {
        const bool recurrent = component_recurrent(&layer->components[c]);
        if (tiled && !recurrent) {
            stream_tiles(stage, i, c, step);
            continue;
        }
        /* States behind tiles are not stored: pages inside of a step have no place. */
        if (tiled) stage->backend->ops->set_rows(stage->backend, step);
        stream_component(stage, i, c, &all);
    }
}

/* ---- two micro-batches ---- */

/* Where a micro-batch's walk stands: at the next component. */
typedef struct Cursor {
    int layer, component;
    bool begun; /* begin() of this component was called */
} Cursor;

/* Computes the component that was begun, and what follows up to the next one that reads experts, which is begun. */
static void advance(const Stage *stage, const Rows *rows, Cursor *at) {
    for (; at->layer < stage->bound->spec->layer_count; at->layer++, at->component = 0) {
        const Layer *layer = &stage->bound->layers[at->layer];
        for (; at->component < layer->component_count; at->component++) {
            const Component *component = &layer->components[at->component];
            const ComponentOps *ops = component_ops(component->kind);
            ComponentCall call = decoder_call(stage, at->layer, at->component, rows);
            if (ops->begin && !at->begun) {
                ops->begin(component, &call);
                at->begun = true;
                return;
            }
            call.begun = at->begun;
            at->begun = false;
            ops->forward(component, &call);
        }
    }
}

bool stream_two_batches(const Stage *stage, const Step *step) {
    if (!stage->schedule->two_batch_overlap || step->chunk_count < 2 || step->chunk_count > MICRO_BATCH_CHUNKS_MAX ||
        stage->tile_rows != step->rows || step->rows > LAYER_TILE_ROWS_MAX || step->embedding_count > 0)
        return false;
    StepRows tiles[PROVIDER_MICRO_BATCHES];
    Step steps[PROVIDER_MICRO_BATCHES];
    Rows rows[PROVIDER_MICRO_BATCHES];
    Stage stages[PROVIDER_MICRO_BATCHES];
    Cursor at[PROVIDER_MICRO_BATCHES] = {0};
    const int half = step->chunks[step->chunk_count / 2].row;
    for (int m = 0; m < PROVIDER_MICRO_BATCHES; m++) {
        const int first = m ? half : 0;
        steps[m] = step_rows(step, first, (m ? step->rows : half) - first, &tiles[m]);
        rows[m] = (Rows){first, steps[m].rows, decode_rows_for_matmul(&steps[m]), m};
        stages[m] = *stage;
        stages[m].work += first * stage->bound->width;
    }
    while (at[1].layer < stage->bound->spec->layer_count)
        for (int m = 0; m < PROVIDER_MICRO_BATCHES; m++) {
            stage->backend->ops->set_rows(stage->backend, &steps[m]);
            advance(&stages[m], &rows[m], &at[m]);
        }
    return true;
}
