/* Minimum and maximum of two integers, and subtraction that stops at 0. Arguments are evaluated once. */
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
/* a − b, or 0 where b is larger. */
static inline size_t sub_size(size_t a, size_t b) { return a > b ? a - b : 0; }
