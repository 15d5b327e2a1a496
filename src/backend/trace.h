/* A backend that hands every operation to another one and adds up where the time of a step goes: time, bytes and
 * operations per kind of operation and shapes. Results are the other's, bit for bit. */
#pragma once
#include "backend/backend.h"

enum { TRACE_LINES_MAX = 64, TRACE_NAME_MAX = 96 };

/* All calls of one kind in the step that began last. */
typedef struct TraceLine {
    char name[TRACE_NAME_MAX]; /* "matmul 1536→1536,256,256 4-bit g64" */
    int calls;
    int64_t ns;
    uint64_t bytes;      /* of weights and KV cache read; activations do not count */
    uint64_t operations; /* multiplications and additions of products and attention */
    bool integer;        /* they can be done in int8 */
} TraceLine;

/* Takes inner over, also when it fails. */
NODISCARD Backend *trace_open(Backend *inner, Error *error);
/* In the order of their first appearance; lines that the step lacks have 0 calls. Valid until the next step begins. */
const TraceLine *trace_lines(const Backend *backend, int *count);
