/* A backend that hands every operation to another one and adds up where the time of a step goes: time, bytes and
 * operations per kind of operation and shapes. Results are the inner backend's, bit for bit. */
#pragma once
#include "backend/backend.h"

enum { TRACE_LINES_MAX = 64, TRACE_NAME_MAX = 96 };

/* All calls with one operation and shape in the step that began last. */
typedef struct TraceLine {
    char name[TRACE_NAME_MAX]; /* "matmul 1536→1536,256,256 4-bit g64" */
    int calls;
    int64_t ns;
    uint64_t bytes;      /* bytes of weights and KV cache read, without activations */
    uint64_t operations; /* multiplications and additions of products and attention */
    bool integer;        /* these operations can be computed in int8 */
} TraceLine;

/* Takes ownership of inner, also when it fails (NULL). */
NODISCARD Backend *trace_open(Backend *inner, Error *error);
/* Lines in the order of their first appearance; lines that the step lacks have 0 calls. Borrowed, valid until the next
 * step begins. */
const TraceLine *trace_lines(const Backend *backend, int *count);
