/* Pages of several sizes under one budget, reference-counted. A page belongs to a kind (a size on a backend) and has a
 * number there; it lives as long as a sequence, or the prefix cache, holds a reference. Memory is the backend's:
 * address space is reserved at the start, memory is taken from the system when a page is first used, and returned when
 * all pages of its huge page are free. The lowest free page is taken first, so that pages in use share few huge pages.
 * Threads: the engine thread. */
#pragma once
#include "backend/backend.h"

typedef struct PagePool PagePool;

enum { PAGE_KINDS_MAX = 64 };

/* Called when the budget is spent: releases at least one page of its own, of any kind. False: it has none. */
typedef bool PageEvict(void *context);

NODISCARD PagePool *page_pool_open(size_t budget, Error *error);
void page_pool_close(PagePool *pool); /* NULL is fine */
/* Adds a kind of pages, at most `most` bytes of which are in use at once; returns its number, or −1. */
int page_pool_add(PagePool *pool, Backend *backend, size_t page_bytes, size_t most, Error *error);
void page_pool_set_evict(PagePool *pool, PageEvict *evict, void *context);
size_t page_pool_used(const PagePool *pool);
size_t page_pool_budget(const PagePool *pool);
uint8_t *page_pool_base(const PagePool *pool, int kind); /* page n lies at base + n · page_bytes */

/* A page with one reference, its contents undefined. −1: the budget is spent, and nothing could be evicted. */
int32_t page_take(PagePool *pool, int kind);
void page_retain(PagePool *pool, int kind, int32_t page);
void page_release(PagePool *pool, int kind, int32_t page);
/* Releases entries first ≤ i < end of a table and sets them to −1; entries that are −1 are skipped. */
void page_release_range(PagePool *pool, int kind, int32_t *table, int first, int end);
/* Reports why the last page_take() failed (budget, or memory of the backend) with ERROR_LIMIT; returns false. */
bool page_pool_full(const PagePool *pool, Error *error);
size_t page_pool_page_bytes(const PagePool *pool, int kind);
int page_pool_pages(const PagePool *pool, int kind); /* in use */
int page_owners(const PagePool *pool, int kind, int32_t page);
void page_copy(PagePool *pool, int kind, int32_t to, int32_t from);
