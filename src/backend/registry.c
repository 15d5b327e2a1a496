/* The list of backends and the choice among them at run time. */
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/ref/ref.h"
#include "backend/plugin.h"
#include "backend/tensor_parallel.h"
#include "base/slice.h"

static bool always(void) { return true; }

#if defined(__x86_64__)
enum { /* bits of CPUID */
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_BMI2 = 1 << 8,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_VBMI = 1 << 1,
    LEAF7_ECX_GFNI = 1 << 8,
    LEAF7_ECX_VNNI = 1 << 11,
    STATE_YMM = 0x06, /* bits of XCR0: registers that the system saves */
    STATE_ZMM = 0xe6,
};
static const unsigned LEAF7_EBX_AVX512VL = 1u << 31;

static bool has_all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

static bool system_saves(unsigned wanted) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, LEAF1_ECX_OSXSAVE)) return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return has_all(low, wanted);
}

static bool has_avx2(void) {
    unsigned a, b, c, d;
    if (!system_saves(STATE_YMM) || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    if (!has_all(c, LEAF1_ECX_FMA | LEAF1_ECX_F16C)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has_all(b, LEAF7_EBX_AVX2 | LEAF7_EBX_BMI2);
}

static bool has_avx512(void) {
    unsigned a, b, c, d;
    if (!has_avx2() || !system_saves(STATE_ZMM) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return has_all(b, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL) &&
        has_all(c, LEAF7_ECX_VBMI | LEAF7_ECX_VNNI | LEAF7_ECX_GFNI);
}

static Backend *avx2_open(const BackendOptions *options, Error *error) {
    return vector_open(&cpu_kernels_avx2, options, error);
}
static Backend *avx512_open(const BackendOptions *options, Error *error) {
    return vector_open(&cpu_kernels_avx512, options, error);
}

static bool has_amx(void) { return has_avx512() && amx_available(); }
static Backend *amx_open(const BackendOptions *options, Error *error) {
    return vector_open(&cpu_kernels_amx, options, error);
}
#elif defined(__aarch64__)
static Backend *neon_open(const BackendOptions *options, Error *error) {
    return vector_open(&cpu_kernels_neon, options, error);
}
#endif

typedef struct Isa {
    const char *name;
    bool (*available)(void);
    Backend *(*open)(const BackendOptions *options, Error *error);
} Isa;

/* Best first. */
static const Isa isas[] = {
#if defined(__x86_64__)
    {"amx", has_amx, amx_open},
    {"avx512", has_avx512, avx512_open},
    {"avx2", has_avx2, avx2_open},
#elif defined(__aarch64__)
    {"neon", neon_available, neon_open},
#endif
    {"ref", always, ref_open},
};

static void list_available(char *text, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(isas); i++)
        if (isas[i].available() && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", isas[i].name);
}

bool backend_on_device(const char *device) {
    if (!device || !strcmp(device, "cpu")) return false;
    return strcmp(device, "auto") || plugin_usable();
}

static Backend *cpu_open(const BackendOptions *options, Error *error) {
    const bool any = !options->cpu || !strcmp(options->cpu, "auto");
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (any ? isas[i].available() : !strcmp(options->cpu, isas[i].name)) {
            if (!isas[i].available()) break;
            return isas[i].open(options, error);
        }
    }
    char have[64] = "";
    list_available(have, sizeof have);
    fail(error, ERROR_USAGE, "--cpu %s: this processor has %s", options->cpu, have);
    return NULL;
}

static Backend *open_part(const BackendOptions *options, int part, Error *error) {
    return backend_on_device(options->device) ? plugin_open(options, part, error) : cpu_open(options, error);
}

static Backend *open_parts(const BackendOptions *options, Error *error) {
    Backend *parts[BACKEND_RANKS_MAX];
    const int count = options->tensor_parallel;
    if (count > BACKEND_RANKS_MAX) {
        fail(error, ERROR_USAGE, "--tensor-parallel %d: at most %d so far", count, BACKEND_RANKS_MAX);
        return NULL;
    }
    for (int p = 0; p < count; p++) {
        if ((parts[p] = open_part(options, p, error))) continue;
        while (p > 0) backend_close(parts[--p]);
        return NULL;
    }
    return tensor_parallel_open(parts, count, options->scratch_bytes, error);
}

Backend *backend_open(const BackendOptions *options, Error *error) {
    Backend *backend = options->tensor_parallel > 1 ? open_parts(options, error) : open_part(options, 0, error);
    if (backend) backend->bf16_pages = options->bf16_pages && !backend->exact;
    return backend && options->wrap ? options->wrap(backend, error) : backend;
}

void backend_close(Backend *backend) {
    if (backend) backend->ops->close(backend);
}

void backend_move(Backend *one, const void *from, Backend *other, void *to, size_t bytes, void *staging) {
    one->ops->download(one, staging, from, bytes);
    other->ops->upload(other, to, staging, bytes);
}

const char *backend_describe(const Backend *backend) { return backend->description; }
