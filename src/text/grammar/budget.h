/* What one grammar may use: bytes for its tables, and steps of work in each call. Whatever runs out, the call in
 * progress fails with an error that says so; the tables stay sound. Internal to text/grammar. Threads: one at a time.
 */
#pragma once
#include <stdint.h>

#include "base/error.h"

typedef struct Budget {
    size_t bytes;   /* current size of all tables */
    uint64_t steps; /* that the call in progress may still take */
    bool failed;    /* the call in progress has failed, for the reason in error */
    Error error;
} Budget;

void budget_begin(Budget *budget, uint64_t steps); /* at the beginning of each public call */
/* The first failure of a call is the one that is told. Always false. */
bool budget_fail(Budget *budget, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
static inline bool budget_step(Budget *budget, uint64_t steps) {
    if (budget->steps < steps) {
        budget->steps = 0;
        return budget_fail(budget, ERROR_LIMIT, "the grammar needs more work than one step of it may take");
    }
    budget->steps -= steps;
    return !budget->failed;
}
/* An array with room for `need` items of size bytes: data itself or what takes its place. On failure data, which stays
 * as it was, and *capacity too. */
void *budget_grow(Budget *budget, void *data, uint32_t *capacity, uint64_t need, size_t size);
void *budget_alloc(Budget *budget, size_t size); /* NULL: it failed */
void budget_free(Budget *budget, void *data, size_t size);
