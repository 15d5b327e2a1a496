/* The inside of a Runner, for the files of this folder. */
#pragma once
#include "model/bound.h"
#include "model/decoder_stream.h"
#include "model/runner.h"

_Static_assert((int)BACKENDS_MAX == RUNNER_BACKENDS_MAX, "a ticket for each");

struct Runner {
    const Model *model;
    const Runner *target; /* RunnerOptions.target: owns the backend and the KvPlan; NULL: they are this runner's */
    const Spec *spec;     /* the model's, or its multi-token prediction head's */
    ExpertCache *bank;    /* the model's; NULL: its experts are not streamed, or are not these */
    int backend_count;
    Backend *backends[BACKENDS_MAX];
    size_t scratch_bytes[BACKENDS_MAX];
    int outputs_max, hidden_rows_max;
    /* Results of the step that ended last: */
    const float *hidden_rows, *sums;
    const int32_t *sampled;
    float *hidden_there; /* its hidden rows in memory of the last backend, not read yet; NULL: none */
    int64_t hidden_floats;
    Bound bound;
    KvPlan kv;
    StreamSchedule schedule;
};
