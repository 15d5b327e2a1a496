/* Some rows of a step as a step of their own. */
#pragma once
#include "backend/backend.h"

enum { LAYER_TILE_ROWS_MAX = 512 }; /* most rows of such a step */

/* Memory of such a step. */
typedef struct StepRows {
    SequenceChunk chunks[LAYER_TILE_ROWS_MAX];
    int32_t positions[POSITION_DIMS_MAX * LAYER_TILE_ROWS_MAX];
} StepRows;

/* Rows first … first + rows − 1, at most LAYER_TILE_ROWS_MAX of them; `memory` holds its chunks and positions. A span
 * that has some of these rows is whole, and may reach beyond them (SequenceChunk.spans). */
Step step_rows(const Step *step, int first, int rows, StepRows *memory);
