/* Which of two ways of doing steps is the faster one, here and now: both are taken by turns for some steps, the faster
 * one for many, and so on. Zeroed: nothing is known. Threads: one. */
#pragma once
#include <stdbool.h>

enum {
    AUTOTUNER_STEPS = 16, /* even: as many of each way, one after the other */
    AUTOTUNER_HOLDS = 256,
};

typedef struct Autotuner {
    int steps, rows;
    double seconds[2],
        longest[2]; /* of all steps of each way, and of the longest, which may have been anybody's fault */
    bool other;     /* the way that was the faster one: the second */
} Autotuner;

/* Of a step of so many rows: whether to take the second way. */
static inline bool autotuner_begin(Autotuner *t, int rows) {
    if (t->rows != rows && t->steps < AUTOTUNER_STEPS) *t = (Autotuner){.rows = rows, .other = t->other};
    return t->steps < AUTOTUNER_STEPS ? t->steps % 2 : t->other;
}

/* What it took. */
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
