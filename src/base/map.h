/* A hash map from byte strings to 64-bit values (or pointers). Keys are not copied: they must outlive the map.
 * Hashing is seeded per process, so that keys from outside cannot be chosen to collide. Threads: many readers or one
 * writer. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"

typedef struct Map {
    struct MapSlot *slot;
    size_t count, capacity; /* capacity: 0 or a power of two */
} Map;

NODISCARD bool map_reserve(Map *map, size_t count);          /* false: no memory */
NODISCARD bool map_put(Map *map, Slice key, uint64_t value); /* inserts or replaces; false: no memory */
bool map_get(const Map *map, Slice key, uint64_t *value);    /* value may be NULL */
void map_free(Map *map);
uint64_t hash_bytes(const void *bytes, size_t size);
