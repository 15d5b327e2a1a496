/* The dispatch table of backend/cuda: which kernel is asked first for what, that every call has a kernel that takes any
 * shape, and that the table is printed whole. No CUDA is needed. */
#include "backend/cuda/dispatch.c"
#include "test.h"

static const KernelRow *first(KernelOp op, KernelPhase phase, int rows, KernelArch arch, int kind) {
    const KernelQuery query = {op, phase, rows, arch, kind};
    return kernel_next(&query, NULL);
}
static const KernelRow *last(KernelOp op, KernelPhase phase, int rows, KernelArch arch, int kind) {
    const KernelQuery query = {op, phase, rows, arch, kind};
    const KernelRow *row = NULL;
    for (const KernelRow *next = kernel_next(&query, NULL); next; next = kernel_next(&query, next)) row = next;
    return row;
}

typedef struct Case {
    KernelOp op;
    KernelPhase phase;
    int rows;
    KernelArch arch;
    int kind;
    const char *name;
} Case;
static const Case cases[] = {
    {KERNEL_MATMUL, PHASE_DECODE, 1, ARCH_SM90A, TILE_Q4, "gemv_int"},
    {KERNEL_MATMUL, PHASE_DECODE, 4, ARCH_SM90A, TILE_FP4, "gemv_int"},
    {KERNEL_MATMUL, PHASE_DECODE, 5, ARCH_SM90A, TILE_Q4, "gemm_int_wgmma"},
    {KERNEL_MATMUL, PHASE_DECODE, 32, ARCH_SM90A, TILE_Q8, "gemm_int_wgmma"},
    {KERNEL_MATMUL, PHASE_DECODE, 1, ARCH_SM90A, TILE_F16, "gemv_ring"},
    {KERNEL_MATMUL, PHASE_DECODE, 9, ARCH_SM90A, TILE_FP8, "gemm_small_n"},
    {KERNEL_MATMUL, PHASE_PREFILL, 1, ARCH_SM90A, TILE_Q4, "gemm_small_n"},
    {KERNEL_MATMUL, PHASE_PREFILL, 64, ARCH_SM90A, TILE_Q4, "gemm_small_n"},
    {KERNEL_MATMUL, PHASE_PREFILL, 65, ARCH_SM90A, TILE_Q4, "gemm_wgmma"},
    {KERNEL_MATMUL, PHASE_UNIFORM, 8, ARCH_SM90A, TILE_Q4, "gemv_ring"},
    {KERNEL_MATMUL, PHASE_UNIFORM, 1, ARCH_SM90, TILE_Q4, "gemv_ring"},
    {KERNEL_MATMUL, PHASE_UNIFORM, 9, ARCH_SM90, TILE_Q4, "gemm_mma"},
    {KERNEL_MATMUL, PHASE_UNIFORM, 8, ARCH_SM80, TILE_Q3, "gemv_mma"},
    {KERNEL_MATMUL, PHASE_UNIFORM, 4096, ARCH_SM80, TILE_F16, "gemm_mma"},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, ARCH_SM90A, PAGE_F16, "flash_decode"},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, ARCH_SM90A, PAGE_KVQ4, "flash_decode_kvq4"},
    {KERNEL_ATTENTION, PHASE_PREFILL, 300, ARCH_SM90A, PAGE_F16, "flash_prefill_wgmma"},
    {KERNEL_ATTENTION, PHASE_PREFILL, 300, ARCH_SM90A, PAGE_F16_PAD, "flash_prefill_wgmma"},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, ARCH_SM90A, PAGE_F16_PAD, "flash_group"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 300, ARCH_SM80, PAGE_F16_PAD, "flash_group"},
    {KERNEL_ATTENTION, PHASE_PREFILL, 300, ARCH_SM90A, PAGE_KVQ, "kvq_prefill"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 1, ARCH_SM90, PAGE_F16, "flash_decode_rows"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 1, ARCH_SM80, PAGE_F16, "flash_decode_split"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 3, ARCH_SM90, PAGE_F16, "flash_decode_split"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 4, ARCH_SM80, PAGE_F16, "flash_prefill_mma"},
    {KERNEL_ATTENTION, PHASE_UNIFORM, 1, ARCH_SM80, PAGE_KVQ, "kvq_decode"},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, ARCH_SM90A, PAGE_F16_ANY, "flash_group"},
    {KERNEL_ATTENTION, PHASE_PREFILL, 300, ARCH_SM90A, PAGE_F16_ANY, "flash_group"},
    {KERNEL_ATTENTION, PHASE_DECODE, 1, ARCH_SM90A, PAGE_GENERIC, "attention"},
    {KERNEL_MOE, PHASE_DECODE, 4, ARCH_SM90A, TILE_Q4, "fused_moe_row"},
    {KERNEL_MOE, PHASE_DECODE, 5, ARCH_SM90A, TILE_Q4, "fused_moe"},
    {KERNEL_MOE, PHASE_DECODE, 64, ARCH_SM90A, TILE_Q8, "fused_moe"},
    {KERNEL_MOE, PHASE_DECODE, 1, ARCH_SM90A, TILE_F16, "moe_gemv"},
    {KERNEL_MOE, PHASE_UNIFORM, 512, ARCH_SM80, TILE_Q4, "moe_gemv"},
    {KERNEL_MOE, PHASE_PREFILL, 513, ARCH_SM90A, TILE_Q4, "matmul"},
};

/* Whatever declines, there is a kernel without conditions, which has the arithmetic of the phase. */
static void check_complete(void) {
    static const int rows[] = {1, 3, 4, 8, 9, 32, 33, 64, 65, 8192};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int arch = ARCH_SM80; arch <= ARCH_SM90A; arch++)
            for (int phase = PHASE_PREFILL; phase <= PHASE_UNIFORM; phase *= 2) {
                if (phase != PHASE_UNIFORM && arch != ARCH_SM90A) continue; /* one arithmetic there */
                for (int kind = 0; kind < TILE_KIND_COUNT; kind++)
                    for (int op = KERNEL_MATMUL; op <= KERNEL_MOE; op++) {
                        if (op == KERNEL_ATTENTION && kind > PAGE_GENERIC) continue;
                        const KernelRow *row = last((KernelOp)op, (KernelPhase)phase, rows[i], (KernelArch)arch, kind);
                        TEST_MSG(row && (op == KERNEL_MOE || !row->needs[0]),
                            "op %d, phase %d, %d rows, arch %d, kind %d", op, phase, rows[i], arch, kind);
                    }
            }
}

static void check_text(void) {
    char text[16 << 10], cut[100];
    kernels_describe(ARCH_SM90A, text, sizeof text);
    int lines = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    TEST(lines == ROWS + 1 && strlen(text) < sizeof text - 1 && !strstr(text, "  no  "));
    kernels_describe(ARCH_SM80, text, sizeof text);
    TEST(strstr(text, "  no  ") && strstr(text, "gemm_mma"));
    memset(cut, 'x', sizeof cut);
    kernels_describe(ARCH_SM90, cut, sizeof cut);
    TEST(strlen(cut) == sizeof cut - 1 && !memcmp(cut, text, 20));
}

int main(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        const KernelRow *row = first(c->op, c->phase, c->rows, c->arch, c->kind);
        TEST_MSG(row && !strcmp(row->name, c->name), "case %zu: %s, not %s", i, row ? row->name : "none", c->name);
    }
    check_complete();
    check_text();
    return test_done();
}
