/* The inside of a Runner, for the files of this folder. */
#pragma once
#include "model/bound.h"
#include "model/runner.h"
#include "model/trial.h"

_Static_assert((int)BACKENDS_MAX == RUNNER_PARTS_MAX, "a ticket for each");

struct Runner {
    const Model *model;
    int backend_count;
    Backend *backends[BACKENDS_MAX];
    size_t scratch_bytes[BACKENDS_MAX];
    int outputs_max, states_max, part_rows;
    const float *states, *sums; /* of the step that ended last, */
    const int32_t *drawn;       /* too */
    Bound bound;
    KvPlan kv;
    Trial turns, hints; /* steps of several sequences and of one, with experts that are streamed */
};
