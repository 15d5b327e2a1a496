/* Steps for tests of single operations, made by the step builder. Bad input aborts. A step is valid until the next call
 * of either function. Threads: one. */
#pragma once
#include "model/step_builder.h"

enum { STEP_ROWS_MAX = 4096, STEP_SEQUENCES_MAX = 16 };

const Step *step_of(int count, const StepSequence *sequences);
/* Rows with token 0 from position 0 on, in page 0: the first decode_rows as one sequence, the others as another. */
const Step *step_of_rows(int rows, int decode_rows);
