/* An arena: many small allocations with one lifetime, freed at once. Grows by chunks up to a limit.
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/slice.h"

typedef struct Arena {
    struct ArenaChunk *chunk; /* newest first */
    size_t used;              /* bytes handed out, for limits and statistics */
    size_t limit;             /* largest `used`; 0 = none */
    bool limited;             /* the last failure was the limit's, not the memory's */
} Arena;

/* Zeroed memory for count elements of size bytes, aligned to 64 when that large, else to 16. NULL when count*size
 * overflows, the limit is reached or the system has no memory; asking for 0 bytes gives a valid pointer. */
NODISCARD void *arena_alloc(Arena *arena, size_t count, size_t size);
/* The reason for a NULL from an arena: ERROR_LIMIT or ERROR_MEMORY. */
static inline ErrorCode arena_failure(const Arena *arena) { return arena->limited ? ERROR_LIMIT : ERROR_MEMORY; }
/* A NUL-terminated copy. */
NODISCARD char *arena_copy(Arena *arena, Slice text);
NODISCARD char *arena_printf(Arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);
/* For a result whose size is known only at the end: address space for at most size bytes, not zeroed and not yet
 * counted against the limit; memory is taken as it is written. Then arena_keep says how much of it stays (0: none),
 * before any other call on the arena. arena_keep is false, and nothing stays, when that passes the limit. */
NODISCARD void *arena_reserve(Arena *arena, size_t size);
bool arena_keep(Arena *arena, void *reserved, size_t size);
void arena_free(Arena *arena); /* frees everything; the arena is empty and usable afterwards */
