#include "backend/steps.h"

#include "base/error.h"

static StepBuilder builder;

const Step *step_of(int count, const StepSequence *sequences) {
    const StepCapacity capacity = {
        .rows = STEP_ROWS_MAX, .sequences = STEP_SEQUENCES_MAX, .outputs = STEP_ROWS_MAX, .embeddings = STEP_ROWS_MAX};
    Error error = {0};
    if (!builder.tokens) CHECK(step_builder_open(&builder, &capacity, &error));
    step_begin(&builder, false);
    for (int i = 0; i < count; i++) step_add_sequence(&builder, &sequences[i]);
    const Step *step = step_end(&builder, &error);
    CHECK(step);
    return step;
}

const Step *step_of_rows(int rows, int decode_rows) {
    static const int32_t zeros[STEP_ROWS_MAX];
    static const int32_t *const tables[1] = {zeros};
    const StepSequence sequences[2] = {
        {.rows = decode_rows, .decode = true, .tables = tables, .tokens = zeros},
        {.rows = rows - decode_rows, .tables = tables, .tokens = zeros},
    };
    const int first = decode_rows == 0, end = rows > decode_rows ? 2 : 1;
    return step_of(end - first, sequences + first);
}
