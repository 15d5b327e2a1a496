/* One range of reserved memory per kind; one bit and one reference count per page. */
#include "cache/page_pool.h"

#include <stdlib.h>

enum {
    HUGE_PAGE = 2 << 20, /* unit of taking and returning memory: reading huge pages is up to a third faster */
    PAGES_MAX = 1 << 22, /* pages of a kind */
    WORD = 64,
};

typedef struct PageStore {
    Backend *backend;
    size_t bytes; /* bytes of a page */
    uint8_t *base;
    int page_count;  /* pages that fit the budget */
    int used;        /* pages in use */
    int lowest;      /* words of `taken` before this one have no free page */
    uint64_t *taken; /* bit per page, WORD to a word */
    int32_t *owners; /* [page_count] */
} PageStore;

struct PagePool {
    size_t budget, used;
    bool backend_full; /* page_take() failed for the backend's memory, not for the budget */
    PageEvict *evict;
    void *evict_context;
    int count;
    PageStore store[PAGE_KINDS_MAX];
};

PagePool *page_pool_open(size_t budget, Error *error) {
    PagePool *pool = calloc(1, sizeof *pool);
    if (pool)
        pool->budget = budget;
    else
        fail(error, ERROR_MEMORY, "no memory for a pool of pages");
    return pool;
}

static void store_close(PageStore *store) {
    store->backend->ops->release(store->backend, store->base);
    free(store->taken);
    free(store->owners);
}

void page_pool_close(PagePool *pool) {
    if (!pool) return;
    for (int i = 0; i < pool->count; i++) store_close(&pool->store[i]);
    free(pool);
}

int page_pool_add(PagePool *pool, Backend *backend, size_t page_bytes, size_t most, Error *error) {
    CHECK(pool->count < PAGE_KINDS_MAX && page_bytes > 0);
    const size_t fit = (most < pool->budget ? most : pool->budget) / page_bytes,
                 count = fit < PAGES_MAX ? fit : PAGES_MAX;
    if (count == 0) {
        fail(error, ERROR_LIMIT, "--kv-memory: a KV cache of %zu bytes has no room for one page of %zu bytes",
            pool->budget, page_bytes);
        return -1;
    }
    PageStore *store = &pool->store[pool->count];
    *store = (PageStore){.backend = backend, .bytes = page_bytes, .page_count = (int)count};
    store->base = backend->ops->alloc(backend, count * page_bytes, MEMORY_CACHE, error);
    if (!store->base) {
        fail_while(error, "the KV cache");
        return -1;
    }
    store->taken = calloc(count / WORD + 1, sizeof *store->taken);
    store->owners = calloc(count, sizeof *store->owners);
    if (store->taken && store->owners) return pool->count++;
    store_close(store);
    fail(error, ERROR_MEMORY, "no memory for the tables of the KV cache");
    return -1;
}

void page_pool_set_evict(PagePool *pool, PageEvict *evict, void *context) {
    pool->evict = evict;
    pool->evict_context = context;
}

size_t page_pool_used(const PagePool *pool) { return pool->used; }
size_t page_pool_budget(const PagePool *pool) { return pool->budget; }
uint8_t *page_pool_base(const PagePool *pool, int kind) { return pool->store[kind].base; }

/* The lowest, so that pages in use lie close and the memory behind them goes back to the system. */
static int32_t take_lowest(PageStore *store) {
    while (store->taken[store->lowest] == UINT64_MAX) store->lowest++;
    const int bit = __builtin_ctzll(~store->taken[store->lowest]);
    store->taken[store->lowest] |= (uint64_t)1 << bit;
    store->used++;
    return store->lowest * WORD + bit;
}

static bool evict(const PagePool *pool) { return pool->evict && pool->evict(pool->evict_context); }

static void give_up(PageStore *store, int32_t page) {
    store->taken[page / WORD] &= ~((uint64_t)1 << page % WORD);
    if (page / WORD < store->lowest) store->lowest = page / WORD;
    store->used--;
}

static bool commit(const PageStore *store, int32_t page) {
    Backend *backend = store->backend;
    return !backend->ops->commit ||
        backend->ops->commit(backend, store->base + (size_t)page * store->bytes, store->bytes);
}

int32_t page_take(PagePool *pool, int kind) {
    PageStore *store = &pool->store[kind];
    pool->backend_full = false;
    while (pool->used + store->bytes > pool->budget || store->used == store->page_count)
        if (!evict(pool)) return -1;
    const int32_t page = take_lowest(store);
    while (!commit(store, page))
        if (!evict(pool)) {
            give_up(store, page);
            pool->backend_full = true;
            return -1;
        }
    store->owners[page] = 1;
    pool->used += store->bytes;
    return page;
}

void page_retain(PagePool *pool, int kind, int32_t page) {
    CHECK(pool->store[kind].owners[page] > 0);
    pool->store[kind].owners[page]++;
}

size_t page_pool_page_bytes(const PagePool *pool, int kind) { return pool->store[kind].bytes; }

int page_pool_pages(const PagePool *pool, int kind) { return pool->store[kind].used; }

int page_owners(const PagePool *pool, int kind, int32_t page) { return pool->store[kind].owners[page]; }

/* Returns the huge pages that held this page and now hold free pages only: returning a part would break a huge page
 * into small ones. The last one may be cut short, because the memory behind it is not the pool's. */
static void give_back(PageStore *store, int32_t page) {
    const size_t begin = (size_t)page * store->bytes, end = begin + store->bytes;
    const size_t total = (size_t)store->page_count * store->bytes;
    for (size_t huge = begin / HUGE_PAGE * HUGE_PAGE; huge < end; huge += HUGE_PAGE) {
        const size_t size = total - huge < HUGE_PAGE ? total - huge : HUGE_PAGE;
        const size_t last = (huge + size - 1) / store->bytes;
        bool used = false;
        for (size_t i = huge / store->bytes; i <= last && i < (size_t)store->page_count; i++)
            used |= store->owners[i] > 0;
        if (!used) store->backend->ops->decommit(store->backend, store->base + huge, size);
    }
}

void page_release(PagePool *pool, int kind, int32_t page) {
    PageStore *store = &pool->store[kind];
    CHECK(store->owners[page] > 0);
    if (--store->owners[page] > 0) return;
    give_up(store, page);
    pool->used -= store->bytes;
    give_back(store, page);
}

void page_release_range(PagePool *pool, int kind, int32_t *table, int first, int end) {
    for (int i = first; i < end; i++) {
        if (table[i] >= 0) page_release(pool, kind, table[i]);
        table[i] = -1;
    }
}

bool page_pool_full(const PagePool *pool, Error *error) {
    if (pool->backend_full)
        return fail(error, ERROR_LIMIT,
            "the device has no memory for another page of the KV cache, of which %zu of %zu bytes are in use; other "
            "processes may have taken it",
            pool->used, pool->budget);
    return fail(error, ERROR_LIMIT, "the KV cache is full: %zu of %zu bytes are in use", pool->used, pool->budget);
}

void page_copy(PagePool *pool, int kind, int32_t to, int32_t from) {
    const PageStore *store = &pool->store[kind];
    store->backend->ops->copy(store->backend, store->base + (size_t)to * store->bytes,
        store->base + (size_t)from * store->bytes, store->bytes);
}
