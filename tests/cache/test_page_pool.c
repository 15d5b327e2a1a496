/* Pages of several sizes under one budget: counted owners, pages that live without a sequence, eviction on demand. */
#include "cache/page_pool.h"

#include <stdlib.h>

#include "test.h"

enum { SMALL = 100, LARGE = 1000, BUDGET = 10000, PAGES = 256 };

static struct {
    uint8_t *memory;
    size_t bytes;
} handed_out[2];
static int discards;

static void *fake_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    const int i = handed_out[0].memory != NULL;
    handed_out[i].memory = calloc(1, bytes);
    handed_out[i].bytes = bytes;
    return handed_out[i].memory;
}
static void fake_release(Backend *backend, void *memory) { free(memory); }

/* What lies beyond is somebody else's. */
static void fake_decommit(Backend *backend, void *memory, size_t bytes) {
    const size_t large = (uint8_t *)memory - handed_out[1].memory < BUDGET && (uint8_t *)memory >= handed_out[1].memory;
    const size_t at = (size_t)((uint8_t *)memory - handed_out[large].memory);
    TEST_MSG(at < handed_out[large].bytes && bytes <= handed_out[large].bytes - at, "%zu bytes at %zu", bytes, at);
    discards++;
}
static void fake_copy(Backend *backend, void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

static const BackendOps fake_ops = {
    .alloc = fake_alloc, .release = fake_release, .decommit = fake_decommit, .copy = fake_copy};
static Backend fake_backend = {.ops = &fake_ops};

/* A backend whose memory comes when pages are used, as long as there is some. */
static int pages_left;
static bool fake_commit(Backend *backend, void *memory, size_t bytes) {
    TEST(bytes == SMALL);
    return pages_left-- > 0;
}
static const BackendOps late_ops = {
    .alloc = fake_alloc, .release = fake_release, .commit = fake_commit, .decommit = fake_decommit, .copy = fake_copy};
static Backend late_backend = {.ops = &late_ops};

/* Somebody who keeps pages beyond their sequences, oldest first. */
typedef struct Keeper {
    PagePool *pool;
    int count, asked;
    struct {
        int kind;
        int32_t page;
    } kept[PAGES];
} Keeper;

static bool keeper_evict(void *context) {
    Keeper *keeper = context;
    keeper->asked++;
    if (keeper->count == 0) return false;
    page_release(keeper->pool, keeper->kept[0].kind, keeper->kept[0].page);
    memmove(keeper->kept, keeper->kept + 1, (size_t)--keeper->count * sizeof keeper->kept[0]);
    return true;
}

static void keep(Keeper *keeper, int kind, int32_t page) {
    page_retain(keeper->pool, kind, page);
    keeper->kept[keeper->count].kind = kind;
    keeper->kept[keeper->count++].page = page;
}

/* What finds no memory is asked of keepers, and a page that got none is free again. */
static void test_late_memory(void) {
    PagePool *pool = page_pool_open(BUDGET, NULL);
    Keeper keeper = {.pool = pool};
    memset(handed_out, 0, sizeof handed_out);
    TEST(page_pool_add(pool, &late_backend, SMALL, SIZE_MAX, NULL) == 0);
    pages_left = 2;
    const int32_t first = page_take(pool, 0), second = page_take(pool, 0);
    TEST(first >= 0 && second >= 0 && page_take(pool, 0) == -1);
    TEST(page_pool_pages(pool, 0) == 2 && page_pool_used(pool) == 2 * SMALL);
    Error error = {0};
    TEST(!page_pool_full(pool, &error) && error.code == ERROR_LIMIT);
    TEST_MSG(strstr(error.text, "the device has no memory") && strstr(error.text, "200 of 10000"), "%s", error.text);
    page_pool_set_evict(pool, keeper_evict, &keeper);
    keep(&keeper, 0, first);
    page_release(pool, 0, first);
    pages_left = 0;
    TEST(page_take(pool, 0) == -1 && keeper.count == 0 && page_pool_pages(pool, 0) == 1);
    pages_left = 1;
    TEST(page_take(pool, 0) >= 0 && page_pool_pages(pool, 0) == 2);
    page_pool_close(pool);
}

int main(void) {
    PagePool *pool = page_pool_open(BUDGET, NULL);
    TEST(page_pool_add(pool, &fake_backend, SMALL, SIZE_MAX, NULL) == 0 &&
        page_pool_add(pool, &fake_backend, LARGE, SIZE_MAX, NULL) == 1);
    Error error = {0};
    TEST(page_pool_add(pool, &fake_backend, BUDGET + 1, SIZE_MAX, &error) == -1 && error.code == ERROR_LIMIT);

    /* One budget for both sizes. */
    int32_t small[PAGES], large[PAGES];
    for (int i = 0; i < 9; i++) TEST((large[i] = page_take(pool, 1)) >= 0);
    for (int i = 0; i < 10; i++) TEST((small[i] = page_take(pool, 0)) >= 0);
    TEST(page_pool_used(pool) == BUDGET && page_take(pool, 0) == -1 && page_take(pool, 1) == -1);
    TEST(!page_pool_full(pool, &error));
    TEST_MSG(!strcmp(error.text, "the KV cache is full: 10000 of 10000 bytes are in use"), "%s", error.text);
    page_release(pool, 1, large[0]);
    for (int i = 10; i < 20; i++) TEST((small[i] = page_take(pool, 0)) >= 0);
    TEST(page_take(pool, 0) == -1);

    /* The lowest free place is taken first. */
    const int32_t low = small[3], high = small[15];
    page_release(pool, 0, high);
    page_release(pool, 0, low);
    TEST(low < high && page_take(pool, 0) == low && page_take(pool, 0) == high);

    /* Contents travel with a copy; numbers of one kind are not another's. */
    uint8_t *base = page_pool_base(pool, 0);
    memset(base + small[3] * SMALL, 42, SMALL);
    page_copy(pool, 0, small[4], small[3]);
    TEST(base[small[4] * SMALL] == 42 && base[small[4] * SMALL + SMALL - 1] == 42);

    /* A kept page outlives its sequence, and gives way when somebody needs the room: as many as it takes. */
    Keeper keeper = {.pool = pool};
    page_pool_set_evict(pool, keeper_evict, &keeper);
    for (int i = 0; i < 20; i++) {
        keep(&keeper, 0, small[i]);
        TEST(page_owners(pool, 0, small[i]) == 2);
        page_release(pool, 0, small[i]);
    }
    TEST(page_pool_used(pool) == BUDGET && keeper.asked == 0);
    TEST((large[0] = page_take(pool, 1)) >= 0);
    TEST_MSG(keeper.count == 10 && keeper.asked == 10, "%d left, asked %d times", keeper.count, keeper.asked);

    /* What a sequence still holds frees nothing when its keeper lets go, so more is asked for. */
    page_retain(pool, 0, keeper.kept[0].page);
    const int32_t held = keeper.kept[0].page;
    TEST(page_take(pool, 0) >= 0 && keeper.count == 8 && page_owners(pool, 0, held) == 1);
    for (int i = 0; i < 8; i++) TEST(page_take(pool, 0) >= 0);
    TEST(page_take(pool, 0) == -1 && keeper.count == 0); /* nothing left to evict */

    /* A kind without pages in use gives its memory back, and no more than its own. */
    discards = 0;
    for (int i = 0; i < 9; i++)
        if (page_owners(pool, 1, large[i]) > 0) page_release(pool, 1, large[i]);
    TEST_MSG(discards == 1, "%d discards", discards);
    page_pool_close(pool);
    test_late_memory();
    return test_done();
}
