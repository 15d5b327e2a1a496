/* Integer primitives of the scans: rows of codes (kv_quant.h) to bytes, and sums of four products of bytes per lane.
 * Each instruction set has its registers, tables and products in a file of its own. A quad is multiplied by one load of
 * four query elements or weights: 16 lanes of four bytes, as many as a row has. */
#pragma once
#include "backend/cpu/attention/scan.h"
#include "backend/cpu/vec16.h"

/* Source of a product: codes of a format, or bytes looked up before for many queries. Formats are wide if the codebook
 * uses the full int8 range. */
typedef enum Source {
    SOURCE_CODE3 = KV_Q3,
    SOURCE_CODE4 = KV_Q4,
    SOURCE_CODE5 = KV_Q5,
    SOURCE_CODE6 = KV_Q6,
    SOURCE_CODE8 = KV_Q8,
    SOURCE_NARROW = KV_FORMS,
    SOURCE_WIDE,
    SOURCES
} Source;

VEC_INLINE bool source_is_wide(Source source) { return source > SOURCE_CODE4 && source != SOURCE_NARROW; }
VEC_INLINE bool form_is_wide(KvForm form) { return source_is_wide((Source)form); }
VEC_INLINE int form_levels(KvForm form) { return form == KV_Q3 ? 8 : form == KV_Q4 ? 16 : form == KV_Q5 ? 32 : 64; }

#if defined(__AVX512F__)
#include "backend/cpu/attention/scan_avx512.h"
#elif defined(__aarch64__)
#include "backend/cpu/attention/scan_neon.h"
#else
#include "backend/cpu/attention/scan_avx2.h"
#endif

enum { QUAD_BYTES = 64, QUAD_REGS = 16 / INT_LANES, PART_QUADS_MAX = 8 };

/* Quads of the part that repeats along a lane; for bytes, quads processed together. */
VEC_INLINE int part_quads(Source source) {
    switch (source) {
    case SOURCE_CODE3:
    case SOURCE_CODE5: return 8;
    case SOURCE_CODE6: return 4;
    default: return 2;
    }
}
VEC_INLINE int layer_tile_rows(Source source) {
    switch (source) {
    case SOURCE_CODE3:
    case SOURCE_CODE6: return 3;
    case SOURCE_CODE4: return 1;
    case SOURCE_CODE5: return 5;
    default: return 2;
    }
}
/* A register of row n. */
VEC_INLINE Ints part_row(const uint8_t *part, int n) { return ints_load(part + n * QUAD_BYTES); }
/* The same, each byte's bits from n on at its bottom and anything above. */
VEC_INLINE Ints part_bits(const uint8_t *part, int row, int n) { return ints_right(part_row(part, row), n); }

/* Indices of quad n of a part, with anything above them. */
VEC_INLINE Ints quad_index(const Source source, const uint8_t *part, const int n) {
    switch (source) {
    case SOURCE_CODE3:
        if (n < 6) return part_bits(part, n % 3, n / 3 * 3);
        return bits_of(4, part_bits(part, 2, n - 2), part_bits(part, n - 6, 6));
    case SOURCE_CODE4: return part_bits(part, 0, 4 * n);
    case SOURCE_CODE5:
        if (n == 3 || n == 6) return bits_of(24, part_bits(part, n / 2, 3), part_bits(part, n - 3 - n / 6, 5));
        if (n < 7) return part_row(part, n < 3 ? n : n - 1);
        return bits_of(16, part_bits(part, 3, 1), bits_of(8, part_bits(part, 1, 2), part_bits(part, 4, 5)));
    case SOURCE_CODE6:
        if (n < 3) return part_row(part, n);
        return bits_of(48, part_bits(part, 2, 2), bits_of(12, part_bits(part, 1, 4), part_bits(part, 0, 6)));
    default: return part_row(part, n);
    }
}

/* Bytes of quad n of a part, as products take them. */
VEC_INLINE Ints quad_bytes(
    const Source source, const bool values, const uint8_t *part, const int n, const Table *table) {
    const Ints index = quad_index(source, part, n);
    if (source == SOURCE_CODE8) return values || !KEYS_UNSIGNED ? ints_flip(index) : index;
    return source < SOURCE_CODE8 ? look_up(form_levels((KvForm)source), table, index) : index;
}
