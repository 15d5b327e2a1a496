/* Open addressing with linear probing; at most 3/4 of the slots are taken. Nothing is ever removed.
 * The hash is SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF") under a key drawn per process. */
#include "base/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"

enum { MAP_FIRST = 16 };

typedef struct MapSlot {
    const char *data; /* NULL: free */
    uint32_t size, hash;
    uint64_t value;
} MapSlot;

static uint64_t hash_key[2];

__attribute__((constructor)) static void hash_key_draw(void) {
    if (getentropy(hash_key, sizeof hash_key) == 0) return;
    hash_key[0] = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u; /* no entropy device: better than a constant */
    hash_key[1] = (uint64_t)(uintptr_t)&hash_key ^ (uint64_t)getpid() << 32;
}

static inline uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

uint64_t hash_bytes(const void *bytes, size_t size) {
    uint64_t v[4] = {hash_key[0] ^ 0x736f6d6570736575u, hash_key[1] ^ 0x646f72616e646f6du,
        hash_key[0] ^ 0x6c7967656e657261u, hash_key[1] ^ 0x7465646279746573u};
    const uint8_t *at = bytes;
    size_t left = size;
    for (; left >= 8; left -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)size << 56;
    for (size_t i = 0; i < left; i++) last |= (uint64_t)at[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xFF;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The key's slot, or the free one where it belongs. */
static MapSlot *slot_find(MapSlot *slots, size_t capacity, Slice key, uint32_t hash) {
    for (size_t i = hash & (capacity - 1);; i = (i + 1) & (capacity - 1)) {
        MapSlot *slot = &slots[i];
        if (!slot->data) return slot;
        if (slot->hash == hash && slot->size == key.size && memcmp(slot->data, key.data, key.size) == 0) return slot;
    }
}

bool map_reserve(Map *map, size_t count) {
    size_t capacity = map->capacity ? map->capacity : MAP_FIRST;
    while (capacity / 4 * 3 < count) {
        if (!size_mul(capacity, 2, &capacity)) return false;
    }
    if (capacity == map->capacity) return true;
    MapSlot *slots = calloc(capacity, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < map->capacity; i++) {
        const MapSlot *old = &map->slot[i];
        if (old->data) *slot_find(slots, capacity, (Slice){old->data, old->size}, old->hash) = *old;
    }
    free(map->slot);
    map->slot = slots;
    map->capacity = capacity;
    return true;
}

bool map_put(Map *map, Slice key, uint64_t value) {
    if (key.size > UINT32_MAX || !map_reserve(map, map->count + 1)) return false;
    if (!key.data) key = SLICE("");
    uint32_t hash = (uint32_t)hash_bytes(key.data, key.size);
    MapSlot *slot = slot_find(map->slot, map->capacity, key, hash);
    if (!slot->data) {
        *slot = (MapSlot){.data = key.data, .size = (uint32_t)key.size, .hash = hash};
        map->count++;
    }
    slot->value = value;
    return true;
}

bool map_get(const Map *map, Slice key, uint64_t *value) {
    if (!map->count || key.size > UINT32_MAX) return false;
    if (!key.data) key = SLICE("");
    const MapSlot *slot = slot_find(map->slot, map->capacity, key, (uint32_t)hash_bytes(key.data, key.size));
    if (!slot->data) return false;
    if (value) *value = slot->value;
    return true;
}

void map_free(Map *map) {
    free(map->slot);
    *map = (Map){0};
}
