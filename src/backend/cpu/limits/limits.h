/* backend/cpu/limits/: the highest speeds of this machine, measured on demand: memory reads, integer and float
 * arithmetic. Rooflines are computed from them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/pool.h"

typedef struct LimitsRange {
    const void *data;
    size_t bytes;
} LimitsRange;

/* Memory to read, in address order and cut into pieces. */
typedef struct LimitsMemory {
    LimitsRange *pieces;
    int64_t count;
    size_t bytes; /* bytes of all pieces */
} LimitsMemory;

/* Ranges may be in any order and touch, but not overlap. All of it together should exceed every cache. */
NODISCARD bool limits_memory_open(LimitsMemory *memory, const LimitsRange *ranges, int64_t count, Error *error);
void limits_memory_close(LimitsMemory *memory); /* safe on a zeroed one */

typedef struct LimitsRead {
    double median, best; /* bytes per second */
} LimitsRead;

/* Reads all of the memory with all threads of the pool, which are awake: each thread its own part, then pieces of other
 * threads'. Several passes of at least 20 ms, plain and with prefetching; the median of the better form, and the best
 * pass. */
LimitsRead limits_read(Pool *pool, const LimitsMemory *memory);

/* Operations per second of all threads of the pool: int8 multiplications and additions with the best instruction that
 * the instruction set has (TDPBUSD; VPDPBUSD; VPMADDUBSW with 16-bit sums; SDOT), f32 likewise (FMA). isa: "avx2",
 * "avx512", "amx", "neon"; anything else is the processor's best without AMX. 0: no loop for this instruction set. */
double limits_int8(Pool *pool, const char *isa);
double limits_f32(Pool *pool, const char *isa);
/* Vector instructions per second of all threads, of the kind that the processor issues most of: additions of whole
 * numbers, on the instruction set's registers. */
double limits_issue(Pool *pool, const char *isa);
/* Vector instructions that `queries` queries of a kv head take for a page of codes in these forms, heads of d dims:
 * products, expansion of codes to bytes, once for all of the queries, and floats. Loads, stores, sums across lanes,
 * loops and scalar instructions are not counted, though at least as many are issued. */
double limits_scan(const char *isa, KvForm keys, KvForm values, int d, int queries);

/* Loops of limits_avx2.c, limits_avx512.c and limits_neon.c. Peaks: operations done. */
double limits_int8_avx2(int64_t rounds);
double limits_f32_avx2(int64_t rounds);
double limits_issue_avx2(int64_t rounds); /* instructions */
double limits_int8_avx512(int64_t rounds);
double limits_f32_avx512(int64_t rounds);
double limits_issue_avx512(int64_t rounds);
double limits_int8_amx(int64_t rounds); /* only on the amx backend, after the system has permitted the tiles */
double limits_int8_neon(int64_t rounds);
double limits_f32_neon(int64_t rounds);
double limits_issue_neon(int64_t rounds);
/* Loads every byte: p aligned to 64, bytes a multiple of 64; ahead: how far to prefetch, 0: not at all. */
void limits_read_avx2(const uint8_t *p, size_t bytes, size_t ahead);
void limits_read_avx512(const uint8_t *p, size_t bytes, size_t ahead);
