/* The row and attention kernels for NEON. */
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "backend/cpu/attention/attention_impl.h"
#include "backend/cpu/rows_impl.h"
#include "backend/cpu/attention/scan_impl.h"

bool neon_available(void) {
#if defined(__linux__)
    const unsigned long wanted = HWCAP_ASIMDDP | HWCAP_ASIMDHP;
    return (getauxval(AT_HWCAP) & wanted) == wanted;
#else
    return true; /* every processor of Apple's */
#endif
}

const CpuKernels cpu_kernels_neon = {
    .name = "neon",
    .description = "neon (dotprod)",
    .linear = &linear_kernels_neon,
    .norm_row = norm_row,
    .glu_row = glu_row,
    .activate_row = activate_row,
    .logits_row = logits_row,
    .attention = &attention_kernels,
    .recurrent = &recurrent_kernels_neon,
    .compressed = &compressed_kernels_neon,
};
