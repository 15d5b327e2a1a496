#include "backend/cuda/dispatch.h"

#include <stdarg.h>
#include <stdio.h>

#define BIT(kind) (1u << (kind))
enum {
    INTEGERS = BIT(TILE_Q2) | BIT(TILE_Q3) | BIT(TILE_Q4) | BIT(TILE_Q5) | BIT(TILE_Q6) | BIT(TILE_Q8) | BIT(TILE_FP4),
    ALL = BIT(TILE_KIND_COUNT) - 1,
    KVQ = BIT(PAGE_KVQ4) | BIT(PAGE_KVQ),
    FULL_PRECISION = BIT(PAGE_F16) | BIT(PAGE_F16_PAD) | BIT(PAGE_F16_ANY) | BIT(PAGE_GENERIC),
    UNIFORM_OR_DECODE = PHASE_UNIFORM | PHASE_DECODE,
    ANY_PHASE = PHASE_PREFILL | PHASE_DECODE | PHASE_UNIFORM,
};

static const KernelRow table[] = {
    {KERNEL_MATMUL, PHASE_DECODE, 1, 4, ARCH_SM90A, INTEGERS, KERNEL_GEMV_INT, "gemv_int",
        "scales of 32 columns or more; the ring and the inputs in shared memory; one aligned row: gemv_int_row"},
    {KERNEL_MATMUL, PHASE_DECODE, 1, 32, ARCH_SM90A, INTEGERS, KERNEL_GEMM_INT_WGMMA, "gemm_int_wgmma",
        "scales of 32 columns or more; the inputs in shared memory"},
    {KERNEL_MATMUL, PHASE_DECODE, 1, KERNEL_ROWS_ANY, ARCH_SM90A, INTEGERS, KERNEL_GEMV_INT, "gemv_int",
        "scales of 32 columns or more; up to 8 rows at a time"},
    {KERNEL_MATMUL, UNIFORM_OR_DECODE, 1, 8, ARCH_SM90, ALL, KERNEL_GEMV_RING, "gemv_ring",
        "the ring and the inputs in shared memory"},
    {KERNEL_MATMUL, UNIFORM_OR_DECODE, 1, 8, ARCH_SM80, ALL, KERNEL_GEMV_MMA, "gemv_mma",
        "the inputs in shared memory"},
    {KERNEL_MATMUL, ANY_PHASE, 1, 64, ARCH_SM90A, ALL, KERNEL_GEMM_SMALL_N, "gemm_small_n", ""},
    {KERNEL_MATMUL, ANY_PHASE, 65, KERNEL_ROWS_ANY, ARCH_SM90A, ALL, KERNEL_GEMM_WGMMA, "gemm_wgmma", ""},
    {KERNEL_MATMUL, PHASE_UNIFORM, 1, KERNEL_ROWS_ANY, ARCH_SM80, ALL, KERNEL_GEMM_MMA, "gemm_mma", ""},

    {KERNEL_ATTENTION, PHASE_DECODE, 1, KERNEL_ROWS_ANY, ARCH_SM90A, BIT(PAGE_F16), KERNEL_FLASH_DECODE, "flash_decode",
        "up to 16 query heads for each kv head"},
    {KERNEL_ATTENTION, PHASE_PREFILL, 1, KERNEL_ROWS_ANY, ARCH_SM90A, BIT(PAGE_F16) | BIT(PAGE_F16_PAD),
        KERNEL_FLASH_PREFILL_WGMMA, "flash_prefill_wgmma", "up to 16 query heads for each kv head"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 1, 1, ARCH_SM90, BIT(PAGE_F16), KERNEL_FLASH_DECODE_ROWS, "flash_decode_rows",
        "one row of each sequence; up to 8 query heads for each kv head; 256 blocks, or no room for "
        "flash_decode_cluster"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 1, 1, ARCH_SM90, BIT(PAGE_F16), KERNEL_FLASH_DECODE_CLUSTER,
        "flash_decode_cluster",
        "one row of each sequence; up to 8 query heads for each kv head; a row's partial results in shared memory"},
    {KERNEL_ATTENTION, ANY_PHASE, 1, 3, ARCH_SM80, BIT(PAGE_F16), KERNEL_FLASH_DECODE_SPLIT, "flash_decode_split",
        "up to 32 query heads for each kv head"},
    {KERNEL_ATTENTION, ANY_PHASE, 4, KERNEL_ROWS_ANY, ARCH_SM80, BIT(PAGE_F16), KERNEL_FLASH_PREFILL_MMA,
        "flash_prefill_mma", "up to 32 query heads for each kv head"},
    {KERNEL_ATTENTION, ANY_PHASE, 1, KERNEL_ROWS_ANY, ARCH_SM80, BIT(PAGE_F16) | BIT(PAGE_F16_PAD) | BIT(PAGE_F16_ANY),
        KERNEL_FLASH_GROUP, "flash_group", "widths that are multiples of 16, up to 512; 64 tokens in shared memory"},
    {KERNEL_ATTENTION, ANY_PHASE, 1, KERNEL_ROWS_ANY, ARCH_SM80, FULL_PRECISION, KERNEL_ATTENTION_GENERIC, "attention",
        ""},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, KERNEL_ROWS_ANY, ARCH_SM90A, BIT(PAGE_KVQ4), KERNEL_FLASH_DECODE_KVQ4,
        "flash_decode_kvq4", "heads of 64 or 128, without key biases"},
    {KERNEL_ATTENTION, ANY_PHASE, 1, 3, ARCH_SM80, KVQ, KERNEL_KVQ_DECODE, "kvq_decode", "heads of 64 or 128"},
    {KERNEL_ATTENTION, ANY_PHASE, 4, KERNEL_ROWS_ANY, ARCH_SM80, KVQ, KERNEL_KVQ_PREFILL, "kvq_prefill",
        "heads of 64 or 128"},
    {KERNEL_ATTENTION, ANY_PHASE, 1, KERNEL_ROWS_ANY, ARCH_SM80, KVQ, KERNEL_KVQ_GENERIC, "kvq_generic", ""},

    {KERNEL_MOE, PHASE_DECODE, 1, 4, ARCH_SM90A, INTEGERS, KERNEL_FUSED_MOE_ROW, "fused_moe_row",
        "experts packed alike; up to 32 of them; the down products in shared memory"},
    {KERNEL_MOE, PHASE_DECODE, 1, KERNEL_ROWS_ANY, ARCH_SM90A, INTEGERS, KERNEL_FUSED_MOE, "fused_moe",
        "experts packed alike"},
    {KERNEL_MOE, ANY_PHASE, 1, 512, ARCH_SM80, ALL, KERNEL_MOE_GEMV, "moe_gemv",
        "experts packed alike; rows times experts of a row up to 512"},
    {KERNEL_MOE, ANY_PHASE, 1, KERNEL_ROWS_ANY, ARCH_SM80, ALL, KERNEL_MOE_GEMM, "matmul",
        "rows sorted by expert, a uniform matmul for each expert"},
};
enum { ROWS = sizeof table / sizeof *table };

static bool matches(const KernelRow *row, const KernelQuery *q) {
    return row->op == q->op && (row->phases & q->phase) && q->rows >= row->rows_min && q->rows <= row->rows_max &&
        row->arch <= q->arch && (row->kinds & BIT(q->kind));
}

const KernelRow *kernel_next(const KernelQuery *query, const KernelRow *after) {
    for (const KernelRow *row = after ? after + 1 : table; row < table + ROWS; row++)
        if (matches(row, query)) return row;
    return NULL;
}

/* ---- as text ---- */

typedef struct Text {
    char *at;
    size_t left; /* with the final zero */
} Text;

static void __attribute__((format(printf, 2, 3))) put(Text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int size = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    const size_t used = size < 0 ? 0 : (size_t)size < text->left ? (size_t)size : text->left - 1;
    text->at += used;
    text->left -= used;
}

static void put_names(char *out, size_t size, unsigned bits, const char *const *names, int count) {
    Text text = {out, size};
    *out = 0;
    for (int i = 0; i < count; i++)
        if (bits & BIT(i)) put(&text, "%s%s", text.left < size ? "," : "", names[i]);
}

static void put_row(Text *text, const KernelRow *row, KernelArch arch) {
    static const char *const ops[] = {"matmul", "attention", "moe"}, *const archs[] = {"sm_80", "sm_90", "sm_90a"},
                             *const phases[] = {"prefill", "decode", "uniform"},
                             *const tiles[] = {"q2", "q3", "q4", "q5", "q6", "q8", "fp4", "fp8", "f16"},
                             *const pages[] = {"f16", "f16-pad", "kvq4", "kvq", "f16-any", "generic"};
    char phase[32], kinds[64], rows[32];
    const bool paged = row->op == KERNEL_ATTENTION;
    put_names(phase, sizeof phase, row->phases, phases, 3);
    if (row->phases == ANY_PHASE) snprintf(phase, sizeof phase, "any");
    put_names(kinds, sizeof kinds, row->kinds, paged ? pages : tiles, paged ? PAGE_KIND_COUNT : TILE_KIND_COUNT);
    if (!paged && row->kinds == ALL) snprintf(kinds, sizeof kinds, "any");
    if (row->rows_max == KERNEL_ROWS_ANY)
        snprintf(rows, sizeof rows, "%d-", row->rows_min);
    else
        snprintf(rows, sizeof rows, "%d-%d", row->rows_min, row->rows_max);
    put(text, "%-9s  %-14s  %-6s  %-6s  %-23s  %-20s  %-4s  %s\n", ops[row->op], phase, rows, archs[row->arch], kinds,
        row->name, row->arch <= arch ? "yes" : "no", row->needs);
}

void kernels_describe(KernelArch arch, char *text, size_t size) {
    Text out = {text, size};
    *text = 0;
    put(&out, "%-9s  %-14s  %-6s  %-6s  %-23s  %-20s  %-4s  %s\n", "operation", "rows of", "rows", "device",
        "weights, pages", "kernel", "here", "needs");
    for (int i = 0; i < ROWS; i++) put_row(&out, &table[i], arch);
}
