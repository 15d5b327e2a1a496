/* Durations of decode steps by their number of rows, relative to each other: a model of the machine at first, then what
 * was measured. Thread: the engine's. */
#pragma once
#include <stdbool.h>

enum { STEP_COSTS_ROWS = 64 };

typedef struct StepCosts {
    float cost[STEP_COSTS_ROWS + 1];  /* [rows]; cost[1] is 1 */
    float least[STEP_COSTS_ROWS + 1]; /* [rows] measurements cannot say less: a busy machine disturbs them */
    double unit_s;                    /* duration of cost 1; 0: not measured yet */
    int draft_steps;                  /* that were measured; counted to a limit */
    float draft_share; /* what the draft tokens of the last step that had any took, in terms of what was expected of
                          them, 0.5 to 4; the more steps were measured, the closer to 1. 0: there was none */
} StepCosts;

/* device: of a GPU, otherwise of a CPU. fanout: expert weights that rows read, relative to one row, [rows]; NULL: the
 * model has no experts. */
void step_costs_init(StepCosts *costs, bool device, const float *fanout);
/* A step of so many rows, of which `drafts` are draft tokens, took so long. */
void step_costs_note(StepCosts *costs, int rows, int drafts, double seconds);
/* A step with these rows and others took so long: they alone take no longer. */
void step_costs_note_most(StepCosts *costs, int rows, double seconds);
