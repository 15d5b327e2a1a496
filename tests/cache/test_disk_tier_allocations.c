/* The disk tier on a step's path: filling pages costs one digest each, reads no content id twice, and allocates
 * nothing; pages restored by another process are those that were written. */
#include "cache/disk_tier.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/fake_pages.h"
#include "test.h"

enum { CONTEXT = 2048, PAGES = CONTEXT / KV_PAGE_TOKENS, ENTRIES = 2, STEP_MAX = 300, TOKEN_BYTES = 4 };

/* ---- allocations of this thread ---- */

static _Thread_local bool counting;
static int allocated;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void __real_free(void *data);
int __real_posix_memalign(void **out, size_t align, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
char *__real_strdup(const char *text);
void *__real_mmap(void *at, size_t size, int access, int flags, int file, off_t offset);
int __real_munmap(void *at, size_t size);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __real_pthread_join(pthread_t thread, void **result);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);
void __wrap_free(void *data);
int __wrap_posix_memalign(void **out, size_t align, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *at, size_t size, int access, int flags, int file, off_t offset);
int __wrap_munmap(void *at, size_t size);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);

void *__wrap_malloc(size_t size) { return allocated += counting, __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return allocated += counting, __real_calloc(count, size); }
void *__wrap_realloc(void *data, size_t size) { return allocated += counting, __real_realloc(data, size); }
void __wrap_free(void *data) { __real_free(data); }
int __wrap_posix_memalign(void **out, size_t align, size_t size) {
    return allocated += counting, __real_posix_memalign(out, align, size);
}
void *__wrap_aligned_alloc(size_t align, size_t size) {
    return allocated += counting, __real_aligned_alloc(align, size);
}
char *__wrap_strdup(const char *text) { return allocated += counting, __real_strdup(text); }
void *__wrap_mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    return allocated += counting, __real_mmap(at, size, access, flags, file, offset);
}
int __wrap_munmap(void *at, size_t size) { return __real_munmap(at, size); }
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    return __real_pthread_create(out, attributes, run, argument);
}
int __wrap_pthread_join(pthread_t thread, void **result) { return __real_pthread_join(thread, result); }

/* ---- a cache whose canonical pages are its pages ---- */

static size_t no_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }
static uint8_t *page_memory(const KvLayer *layer, int32_t page) {
    return layer->base + (size_t)page * layer->page_stride + layer->layer_offset;
}
static bool page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    memcpy(out, page_memory(layer, page), (size_t)tokens * TOKEN_BYTES);
    return true;
}
static bool page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    memcpy(page_memory(layer, page), from, (size_t)tokens * TOKEN_BYTES);
    return true;
}
static const BackendOps fake_ops = {
    FAKE_PAGE_OPS, .kv_quant_bytes = no_quant_bytes, .page_read = page_read, .page_write = page_write};
static Backend fake_backend = {.ops = &fake_ops, .rows_max = STEP_MAX};

static char directory[64];
static const KvFormat full = {.k = KV_FULL};
static KvPlan plan;

static uint64_t content_id(uint64_t text, int position) {
    uint64_t state = position < 3 * KV_PAGE_TOKENS ? (uint64_t)position : text * 10000 + (uint64_t)position;
    return test_random(&state); /* all 64 bits count */
}

static uint32_t value_of(uint64_t id, int layer) { return (uint32_t)(id >> 7) * 5 + (uint32_t)layer; }

static uint32_t *token_memory(const KvCache *cache, const KvSequence *s, int layer, int position) {
    const KvLayer *kv = &kv_entries(cache)[layer];
    uint8_t *page = page_memory(kv, s->tables[kv->group][position / KV_PAGE_TOKENS]);
    return (uint32_t *)(void *)page + position % KV_PAGE_TOKENS;
}

typedef struct Process {
    KvCache *cache;
    DiskTier *tier;
} Process;

static Process open_process(const char *identity) {
    Process process = {.cache = kv_open(&plan, (size_t)1 << 24, NULL)};
    Error error = {0};
    const DiskTierOptions options = {
        .directory = directory, .bytes = 64 << 20, .identity = {identity, strlen(identity)}};
    process.tier = disk_tier_open(&options, process.cache, &error);
    TEST_MSG(process.tier, "%s", error.text);
    return process;
}

static void close_process(Process *process) {
    disk_tier_close(process->tier);
    kv_close(process->cache);
}

/* Computes `rows` more positions of a text and writes the full pages. Only content ids from the running key's end on
 * are passed. */
static void compute(Process *process, KvSequence *s, uint64_t salt, uint64_t text, int rows) {
    static uint64_t ids[CONTEXT];
    const int end = s->length + rows, first = disk_tier_position(s);
    TEST(kv_reserve(process->cache, s, rows, NULL));
    for (int p = s->length; p < end; p++)
        for (int l = 0; l < ENTRIES; l++)
            *token_memory(process->cache, s, l, p) = value_of(content_id(text, p), l) & 0x3fff3fff;
    for (int p = first; p < end; p++) ids[p - first] = content_id(text, p);
    TEST(first <= s->length && s->length - first < KV_PAGE_TOKENS);
    const SequenceText all = {.salt = salt, .format = &full, .first = first, .ids = ids};
    counting = true;
    disk_tier_put(process->tier, &all, s, end);
    kv_advance(process->cache, s, rows);
    counting = false;
}

/* Tokens of a text that a new process finds; what it finds must be what was computed. */
static int found(const char *identity, uint64_t salt, uint64_t text) {
    static uint64_t ids[CONTEXT];
    Process process = open_process(identity);
    KvSequence s;
    TEST(kv_sequence_open(process.cache, NULL, &s, NULL));
    for (int p = 0; p < CONTEXT; p++) ids[p] = content_id(text, p);
    const SequenceText all = {.salt = salt, .format = &full, .ids = ids};
    TEST(!disk_tier_find(process.tier, &all, CONTEXT, INT64_MAX, &s));
    TEST(disk_tier_position(&s) == s.length);
    int wrong = 0;
    for (int p = 0; p < s.length; p++)
        for (int l = 0; l < ENTRIES; l++)
            wrong += *token_memory(process.cache, &s, l, p) != (value_of(ids[p], l) & 0x3fff3fff);
    TEST(wrong == 0);
    const int length = s.length;
    kv_sequence_close(process.cache, &s);
    close_process(&process);
    return length;
}

static void test_cuts(const int *cuts, int count) {
    snprintf(directory, sizeof directory, "/tmp/apus-tier-XXXXXX");
    TEST(mkdtemp(directory));
    Process process = open_process("one");
    KvSequence s, fork;
    TEST(kv_sequence_open(process.cache, NULL, &s, NULL) && kv_sequence_open(process.cache, NULL, &fork, NULL));
    for (int i = 0; s.length + cuts[i % count] <= 1000; i++) compute(&process, &s, 1, 7, cuts[i % count]);
    const int length = s.length, whole = length / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    kv_fork(process.cache, &s, &fork); /* continues the running key */
    for (int i = 0; i < 2; i++) compute(&process, &fork, 1, 7, STEP_MAX);
    /* A shorter sequence has another key, from its beginning on. */
    TEST(kv_truncate(process.cache, &s, 3 * KV_PAGE_TOKENS - 5) && disk_tier_position(&s) == 0);
    TEST(kv_reserve(process.cache, &s, 5, NULL));
    kv_sequence_close(process.cache, &s);
    const int longer = fork.length / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    kv_sequence_close(process.cache, &fork);
    close_process(&process);
    TEST_MSG(allocated == 0, "%d allocations in steps", allocated);
    TEST(longer > whole && found("one", 1, 7) == longer);
    TEST(found("one", 1, 8) == 3 * KV_PAGE_TOKENS); /* texts that begin alike share these pages */
    TEST(found("one", 2, 7) == 0);                  /* another salt */
    TEST(found("two", 1, 7) == 0);                  /* another computation */
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    TEST(system(command) == 0);
}

int main(void) {
    static const CacheSpec spec = {.kv_heads = 1, .head_dim = 1, .value_dim = 1};
    const CacheSpec specs[ENTRIES] = {spec, spec};
    Backend *const backends[ENTRIES] = {&fake_backend, &fake_backend};
    fake_token_bytes = TOKEN_BYTES;
    TEST(kv_plan_make(&plan, specs, backends, ENTRIES, CONTEXT, NULL));
    test_cuts((const int[]){1}, 1);
    test_cuts((const int[]){127, 1, 2, 300, 128}, 5);
    test_cuts((const int[]){300}, 1);
    kv_plan_free(&plan);
    return test_done();
}
