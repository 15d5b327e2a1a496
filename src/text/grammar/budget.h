/* Limits of one grammar: bytes of its tables, and steps of work per call. A call that exceeds one fails with an error
 * that names it; the tables stay valid. Internal to text/grammar. Thread: one at a time. */
#pragma once
#include <stdint.h>

#include "base/error.h"

typedef struct Budget {
    size_t bytes;   /* current size of all tables */
    uint64_t steps; /* left for the current call */
    bool failed;    /* the current call has failed; error has the reason */
    Error error;
} Budget;

void budget_begin(Budget *budget, uint64_t steps); /* at the beginning of each public call */
/* Keeps the first error of a call. Always false. */
bool budget_fail(Budget *budget, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
static inline bool budget_step(Budget *budget, uint64_t steps) {
    if (budget->steps < steps) {
        budget->steps = 0;
        return budget_fail(budget, ERROR_LIMIT, "the grammar needs more work than one step of it may take");
    }
    budget->steps -= steps;
    return !budget->failed;
}
/* The array grown to room for `need` items of `size` bytes; it replaces data. On failure data, unchanged, with its
 * capacity. */
void *budget_grow(Budget *budget, void *data, uint32_t *capacity, uint64_t need, size_t size);
void *budget_alloc(Budget *budget, size_t size); /* NULL: the budget failed */
void budget_free(Budget *budget, void *data, size_t size);
