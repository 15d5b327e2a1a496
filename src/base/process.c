#include "base/process.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static double seconds(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec * 1e-6; }

/* proc(5): size and resident, in pages. */
static size_t resident(void) {
    unsigned long long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    const int count = fscanf(file, "%llu %llu", &size, &pages);
    fclose(file);
    return count == 2 ? (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

ProcessUse process_use(void) {
#ifdef __APPLE__
    const size_t unit = 1;
#else
    const size_t unit = 1024;
#endif
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage)) return (ProcessUse){0};
    return (ProcessUse){.resident_bytes = resident(),
        .peak_bytes = (size_t)usage.ru_maxrss * unit,
        .cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

size_t process_memory(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}
