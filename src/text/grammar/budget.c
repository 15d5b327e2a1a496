/* Bytes and steps. */
#include "text/grammar/budget.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/grammar/grammar.h"

enum { CAPACITY_FIRST = 16 };

void budget_begin(Budget *budget, uint64_t steps) {
    budget->steps = steps;
    budget->failed = false;
}

bool budget_fail(Budget *budget, ErrorCode code, const char *format, ...) {
    if (budget->failed) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(budget->error.text, sizeof budget->error.text, format, arguments);
    va_end(arguments);
    budget->error.code = code;
    budget->failed = true;
    return false;
}

static bool take(Budget *budget, size_t bytes) {
    if (budget->failed) return false;
    if (bytes > GRAMMAR_BYTES_MAX - budget->bytes)
        return budget_fail(budget, ERROR_LIMIT, "the grammar needs more than %d MiB", GRAMMAR_BYTES_MAX >> 20);
    budget->bytes += bytes;
    return true;
}

void *budget_grow(Budget *budget, void *data, uint32_t *capacity, uint64_t need, size_t size) {
    if (need <= *capacity) return data;
    uint64_t room = *capacity ? (uint64_t)*capacity * 2 : CAPACITY_FIRST;
    if (room < need) room = need;
    if (room > GRAMMAR_BYTES_MAX) room = GRAMMAR_BYTES_MAX;
    if (need > room || !take(budget, ((size_t)room - *capacity) * size)) {
        budget_fail(budget, ERROR_LIMIT, "the grammar needs more than %d MiB", GRAMMAR_BYTES_MAX >> 20);
        return data;
    }
    void *more = realloc(data, (size_t)room * size);
    if (!more) {
        budget->bytes -= ((size_t)room - *capacity) * size;
        budget_fail(budget, ERROR_MEMORY, "no memory for a grammar");
        return data;
    }
    *capacity = (uint32_t)room;
    return more;
}

void *budget_alloc(Budget *budget, size_t size) {
    if (!take(budget, size)) return NULL;
    void *data = malloc(size);
    if (data) return data;
    budget->bytes -= size;
    budget_fail(budget, ERROR_MEMORY, "no memory for a grammar");
    return NULL;
}

void budget_free(Budget *budget, void *data, size_t size) {
    if (data) budget->bytes -= size;
    free(data);
}
