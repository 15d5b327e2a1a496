/* Pages of several sizes under one budget, with counted owners. A page belongs to a kind (a size on a backend) and has
 * a number there; whoever holds a reference keeps it alive: a sequence's table, or something that lives longer. Memory
 * is the backend's: reserved at the start, taken from the system with a page's first use, given back when the pages
 * that share its huge pages are free; the lowest free page is taken first, so that few huge pages are shared in vain.
 * Threads: the engine thread. */
#pragma once
#include "backend/backend.h"

typedef struct PagePool PagePool;

enum { PAGE_KINDS_MAX = 64 };

/* Asked for memory when the budget is spent: releases a page or more of its own, of any kind. False: it has none. */
typedef bool PageEvict(void *context);

NODISCARD PagePool *page_pool_open(size_t budget, Error *error);
void page_pool_close(PagePool *pool); /* NULL is fine */
/* A kind of pages, of which at most `most` bytes are in use, which may be the whole budget; its number, or −1. */
int page_pool_add(PagePool *pool, Backend *backend, size_t page_bytes, size_t most, Error *error);
void page_pool_set_evict(PagePool *pool, PageEvict *evict, void *context);
size_t page_pool_used(const PagePool *pool);
size_t page_pool_budget(const PagePool *pool);
uint8_t *page_pool_base(const PagePool *pool, int kind); /* page n lies at base + n · page_bytes */

/* A page with one owner, its contents undefined. −1: the budget is spent, and nothing could be evicted. */
int32_t page_take(PagePool *pool, int kind);
void page_retain(PagePool *pool, int kind, int32_t page);
void page_release(PagePool *pool, int kind, int32_t page);
/* Entries first ≤ i < end of a table, which become −1; those that are −1 already are passed over. */
void page_release_range(PagePool *pool, int kind, int32_t *table, int first, int end);
/* ERROR_LIMIT that says why the last page_take() failed: the budget is spent, or the backend has no memory; false. */
bool page_pool_full(const PagePool *pool, Error *error);
size_t page_pool_page_bytes(const PagePool *pool, int kind);
int page_pool_pages(const PagePool *pool, int kind); /* in use */
int page_owners(const PagePool *pool, int kind, int32_t page);
void page_copy(PagePool *pool, int kind, int32_t to, int32_t from);
