#include "model/step_rows.h"

#include <string.h>

#include "base/math.h"

/* The rows [begin, end) of a chunk, with the spans that have some of them. */
static SequenceChunk chunk_rows(const SequenceChunk *chunk, int begin, int end) {
    SequenceChunk own = *chunk;
    own.position = chunk->position + begin - chunk->row;
    own.rows = end - begin;
    while (own.span_count > 0 && own.spans[0].end <= own.position) own.spans++, own.span_count--;
    while (own.span_count > 0 && own.spans[own.span_count - 1].begin >= own.position + own.rows) own.span_count--;
    return own;
}

Step step_rows(const Step *step, int first, int rows, StepRows *memory) {
    Step own = *step;
    const int left = step->decode_rows - first;
    CHECK(rows <= LAYER_TILE_ROWS_MAX && first + rows <= step->rows);
    own.rows = rows;
    own.decode_rows = left < 0 ? 0 : min_int(left, rows);
    own.tokens += first;
    for (int d = 0; d < step->position_dims; d++)
        memcpy(memory->positions + d * rows, step->positions + (int64_t)d * step->rows + first,
            (size_t)rows * sizeof *memory->positions);
    own.positions = memory->positions;
    own.chunks = memory->chunks;
    own.chunk_count = 0;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        const int begin = chunk->row > first ? chunk->row : first;
        const int end = min_int(chunk->row + chunk->rows, first + rows);
        if (begin >= end) continue;
        SequenceChunk *part = &memory->chunks[own.chunk_count++];
        *part = chunk_rows(chunk, begin, end);
        part->row = begin - first;
    }
    return own;
}
