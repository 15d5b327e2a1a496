/* Finds the faster of two ways to compute a step. Measures both alternately for a few steps, uses the faster one for
 * many, and repeats, since the answer depends on the state of the machine. Both ways must give the same bits. A zeroed
 * one knows nothing. Threads: one. */
#pragma once
#include <stdbool.h>

enum {
    AUTOTUNER_STEPS = 16,  /* measured steps, half of them each way; even */
    AUTOTUNER_HOLDS = 256, /* steps until the next measurement */
};

typedef struct Autotuner {
    int steps, rows;   /* steps and rows of the measurement */
    double seconds[2]; /* sum for each way */
    double longest[2]; /* longest step of each way; left out, as other causes may have delayed it */
    bool other;        /* the second way is the faster one */
} Autotuner;

/* Whether to compute this step the second way. rows: of the step; a measurement compares steps of one size. */
static inline bool autotuner_begin(Autotuner *t, int rows) {
    if (t->rows != rows && t->steps < AUTOTUNER_STEPS) *t = (Autotuner){.rows = rows, .other = t->other};
    return t->steps < AUTOTUNER_STEPS ? t->steps % 2 : t->other;
}

/* Ends the step. seconds: its duration. */
static inline void autotuner_end(Autotuner *t, double seconds) {
    if (t->steps < AUTOTUNER_STEPS) {
        const int way = t->steps % 2;
        t->seconds[way] += seconds;
        if (seconds > t->longest[way]) t->longest[way] = seconds;
    }
    t->steps++;
    if (t->steps == AUTOTUNER_STEPS) t->other = t->seconds[1] - t->longest[1] < t->seconds[0] - t->longest[0];
    if (t->steps == AUTOTUNER_STEPS + AUTOTUNER_HOLDS) *t = (Autotuner){.rows = t->rows, .other = t->other};
}
