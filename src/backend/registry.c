/* Which backends there are, and the choice among them at run time. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/ref.h"
#include "base/slice.h"

static bool always(void) { return true; }

#if defined(__x86_64__)
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vbmi");
}
static Backend *avx2_open(const BackendOptions *options, Error *error) { return vector_open(&cpu_kernels_avx2, options, error); }
static Backend *avx512_open(const BackendOptions *options, Error *error) { return vector_open(&cpu_kernels_avx512, options, error); }
#endif

typedef struct Isa {
    const char *name;
    bool (*available)(void);
    Backend *(*open)(const BackendOptions *options, Error *error);
} Isa;

/* Best first. */
static const Isa isas[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512_open},
    {"avx2", has_avx2, avx2_open},
#endif
    {"ref", always, ref_open},
};

static void list_available(char *text, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(isas); i++)
        if (isas[i].available() && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", isas[i].name);
}

Backend *backend_open(const BackendOptions *options, Error *error) {
    const bool any = !options->cpu || !strcmp(options->cpu, "auto");
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (any ? isas[i].available() : !strcmp(options->cpu, isas[i].name)) {
            if (isas[i].available()) return isas[i].open(options, error);
            break;
        }
    }
    char have[64] = "";
    list_available(have, sizeof have);
    fail(error, ERROR_USAGE, "--cpu %s: this processor has %s", options->cpu, have);
    return NULL;
}

void backend_close(Backend *backend) {
    if (backend) backend->ops->close(backend);
}

const char *backend_describe(const Backend *backend) {
    if (backend->exact || !strcmp(backend->ops->name, "plan")) return backend->ops->name;
    return ((const CpuBackend *)backend)->description;
}
