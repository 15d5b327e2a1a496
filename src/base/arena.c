/* Arena: a list of chunks, the newest being filled. Large reservations get address space of their own from the system,
 * so that a generous upper bound costs memory only where it is written. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

enum {
    ARENA_CHUNK_FIRST = 4096,
    ARENA_CHUNK_MAX = 1 << 20,
    ARENA_MAP_MIN = 1 << 18, /* reservations from here on are mapped */
};

typedef struct ArenaChunk {
    struct ArenaChunk *older;
    char *data;
    size_t used, size;
    bool mapped;
} ArenaChunk;

static size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

static ArenaChunk *chunk_new(Arena *arena, size_t size, bool mapped) {
    ArenaChunk *chunk = malloc(sizeof *chunk);
    if (!chunk) return NULL;
    void *data;
    if (mapped) {
        data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED) data = NULL;
    } else if (posix_memalign(&data, 64, size) != 0) {
        data = NULL;
    }
    if (!data) {
        free(chunk);
        return NULL;
    }
    *chunk = (ArenaChunk){.older = arena->chunk, .data = data, .size = size, .mapped = mapped};
    arena->chunk = chunk;
    return chunk;
}

static void chunk_free(ArenaChunk *chunk) {
    if (chunk->mapped) {
        munmap(chunk->data, chunk->size);
    } else {
        free(chunk->data);
    }
    free(chunk);
}

/* Room in the newest chunk, in a new one if need be. */
static char *arena_place(Arena *arena, size_t size, size_t alignment) {
    ArenaChunk *chunk = arena->chunk;
    size_t at = chunk ? align_up(chunk->used, alignment) : 0;
    if (!chunk || at > chunk->size || size > chunk->size - at) {
        size_t next = chunk && chunk->size <= ARENA_CHUNK_MAX / 2 ? chunk->size * 2 : ARENA_CHUNK_MAX;
        if (!chunk) next = ARENA_CHUNK_FIRST;
        chunk = chunk_new(arena, size > next ? align_up(size, 64) : next, false);
        if (!chunk) return NULL;
        at = 0;
    }
    chunk->used = at + size;
    return chunk->data + at;
}

static bool arena_fits(Arena *arena, size_t size) {
    size_t used;
    const bool fits = size_add(arena->used, size, &used);
    arena->limited = arena->limit && (!fits || used > arena->limit);
    return fits && !arena->limited;
}

void *arena_alloc(Arena *arena, size_t count, size_t size) {
    size_t bytes;
    if (!size_mul(count, size, &bytes)) bytes = SIZE_MAX;
    if (!arena_fits(arena, bytes) || bytes > SIZE_MAX / 2) return NULL;
    char *data = arena_place(arena, bytes ? bytes : 1, bytes >= 64 ? 64 : 16);
    if (!data) return NULL;
    memset(data, 0, bytes);
    arena->used += bytes;
    return data;
}

void *arena_reserve(Arena *arena, size_t size) {
    if (size > SIZE_MAX / 2) return NULL;
    if (size < ARENA_MAP_MIN) return arena_place(arena, size, 64);
    ArenaChunk *chunk = chunk_new(arena, align_up(size, (size_t)sysconf(_SC_PAGESIZE)), true);
    if (!chunk) return NULL;
    chunk->used = chunk->size;
    return chunk->data;
}

bool arena_keep(Arena *arena, void *reserved, size_t size) {
    ArenaChunk *chunk = arena->chunk;
    bool fits = arena_fits(arena, size);
    size_t keep = fits ? size : 0;
    chunk->used = (size_t)((char *)reserved - chunk->data) + keep;
    size_t whole = align_up(chunk->used, (size_t)sysconf(_SC_PAGESIZE));
    if (chunk->used == 0) {
        arena->chunk = chunk->older;
        chunk_free(chunk);
    } else if (chunk->mapped && whole < chunk->size) {
        munmap(chunk->data + whole, chunk->size - whole);
        chunk->size = whole;
    }
    arena->used += keep;
    return fits;
}

char *arena_copy(Arena *arena, Slice text) {
    size_t size;
    char *copy = size_add(text.size, 1, &size) ? arena_alloc(arena, size, 1) : NULL;
    if (copy && text.size) memcpy(copy, text.data, text.size);
    return copy;
}

char *arena_printf(Arena *arena, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : arena_alloc(arena, (size_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

void arena_free(Arena *arena) {
    for (ArenaChunk *chunk = arena->chunk, *older; chunk; chunk = older) {
        older = chunk->older;
        chunk_free(chunk);
    }
    *arena = (Arena){.limit = arena->limit};
}
