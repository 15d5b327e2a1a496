/* A backend of plain memory for the tests of the cache: what operations on pages do to bytes, and nothing else. */
#pragma once
#include <string.h>
#include <sys/mman.h>

#include "backend/backend.h"

static size_t fake_token_bytes = sizeof(uint64_t); /* of a layer's page */
static size_t fake_decommited;                     /* bytes so far */

static void *fake_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    CHECK(owner == MEMORY_CACHE);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory; /* never given back: the tests are short */
}
static void fake_release(Backend *backend, void *memory) {}
static void fake_decommit(Backend *backend, void *memory, size_t bytes) { fake_decommited += bytes; }
static void fake_copy(Backend *backend, void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static size_t fake_layer_bytes(Backend *backend, const KvLayout *layout) { return KV_PAGE_TOKENS * fake_token_bytes; }

#define FAKE_PAGE_OPS                                                                                                  \
    .name = "fake", .alloc = fake_alloc, .release = fake_release, .decommit = fake_decommit, .copy = fake_copy,        \
    .kv_layer_bytes = fake_layer_bytes
