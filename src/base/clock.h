/* Monotonic time. */
#pragma once
#include <stdint.h>
int64_t clock_ns(void);
static inline double clock_seconds(void) { return (double)clock_ns() * 1e-9; }
