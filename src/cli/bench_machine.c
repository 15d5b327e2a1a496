/* The machine beside the measurements: its limits, a quiet place on it, and series of figures. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/plugin.h"
#include "cli/bench.h"

/* ---- series ---- */

void series_add(Series *series, double value) {
    if (series->count < SERIES_MAX) series->value[series->count++] = value;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

double series_at(const Series *series, double part) {
    double sorted[SERIES_MAX];
    if (!series->count) return 0;
    memcpy(sorted, series->value, (size_t)series->count * sizeof *sorted);
    qsort(sorted, (size_t)series->count, sizeof *sorted, ascending);
    return sorted[(int)lround(part * (series->count - 1))];
}

void series_json(Buffer *out, const char *name, const Series *series) {
    if (!series->count) return;
    buffer_printf(out, ",\"%s\":%.5g,\"%s_min\":%.5g,\"%s_max\":%.5g", name, series_median(series), name,
        series_at(series, 0), name, series_at(series, 1));
}

/* ---- limits ---- */

bool machine_open(
    Machine *machine, int threads, const char *isa, const LimitsRange *ranges, int64_t count, Error *error) {
    *machine = (Machine){.isa = isa};
    if (!limits_memory_open(&machine->memory, ranges, count, error)) return false;
    machine->pool = pool_open(threads, error);
    return machine->pool != NULL;
}

void machine_close(Machine *machine) {
    pool_close(machine->pool);
    limits_memory_close(&machine->memory);
    machine->pool = NULL;
}

double machine_read(Machine *machine) {
    if (machine->gpu.device) {
        const double speed = plugin_read_speed(&machine->gpu) * 1e-9;
        if (speed > 0) series_add(&machine->read, speed);
        return speed;
    }
    if (!machine->pool) return 0;
    const LimitsRead read = limits_read(machine->pool, &machine->memory);
    series_add(&machine->read, read.median * 1e-9);
    series_add(&machine->read_best, read.best * 1e-9);
    return read.median * 1e-9;
}

void machine_peaks(Machine *machine) {
    if (!machine->pool) return;
    series_add(&machine->int8, limits_int8(machine->pool, machine->isa) * 1e-9);
    series_add(&machine->f32, limits_f32(machine->pool, machine->isa) * 1e-9);
    series_add(&machine->issue, limits_issue(machine->pool, machine->isa) * 1e-9);
}

void machine_forget(Machine *machine) {
    machine->read.count = machine->read_best.count = machine->int8.count = machine->f32.count = machine->issue.count =
        0;
}

double machine_floor(const Machine *machine, double bytes, double operations, bool integer, const char **by) {
    const double read = series_median(&machine->read), peak = series_median(integer ? &machine->int8 : &machine->f32);
    const double reading = read > 0 ? bytes * 1e-9 / read : 0, computing = peak > 0 ? operations * 1e-9 / peak : 0;
    *by = reading >= computing ? "read" : integer ? "int8" : "f32";
    return fmax(reading, computing);
}

/* ---- a quiet place ---- */

#if defined(__linux__)
static cpu_set_t all_cores; /* what we might use at the start */
static bool all_cores_known;

/* The lowest-numbered processor of the core that this one belongs to. */
static int first_of_core(int cpu) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    int first = cpu;
    if (file) {
        if (fscanf(file, "%d", &first) != 1) first = cpu;
        fclose(file);
    }
    return first;
}

/* With as many cores as threads, the pool binds each thread to one. */
static void take_cores(int threads) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    all_cores_known = sched_getaffinity(0, sizeof all_cores, &all_cores) == 0;
    if (!all_cores_known || !threads) return;
    int taken = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && taken < threads; cpu++) {
        const int first = first_of_core(cpu);
        if (!CPU_ISSET((size_t)cpu, &all_cores) || (first != cpu && CPU_ISSET((size_t)first, &all_cores))) continue;
        CPU_SET((size_t)cpu, &mine);
        taken++;
    }
    if (taken == threads) (void)sched_setaffinity(0, sizeof mine, &mine);
}
#endif

/* On a shared machine the scheduler's group of this session would share its cores with whatever else runs. Without the
 * right to a better place nothing changes. */
void bench_quiet(int threads) {
    setsid();
    FILE *group = fopen("/proc/self/autogroup", "w");
    if (group) {
        fputs("-20", group);
        fclose(group);
    }
    setpriority(PRIO_PROCESS, 0, -20);
#if defined(__linux__)
    take_cores(threads);
#endif
}

FILE *bench_popen(const char *shell) {
#if defined(__linux__)
    cpu_set_t mine;
    const bool free_child = all_cores_known && sched_getaffinity(0, sizeof mine, &mine) == 0;
    if (free_child) (void)sched_setaffinity(0, sizeof all_cores, &all_cores);
    FILE *pipe = popen(shell, "r");
    if (free_child) (void)sched_setaffinity(0, sizeof mine, &mine);
    return pipe;
#else
    return popen(shell, "r");
#endif
}

void bench_memory(uint64_t *peak, uint64_t *anonymous) {
    struct rusage usage;
    *peak = *anonymous = 0;
#if defined(__linux__)
    if (getrusage(RUSAGE_SELF, &usage) == 0) *peak = (uint64_t)usage.ru_maxrss << 10;
#else
    if (getrusage(RUSAGE_SELF, &usage) == 0) *peak = (uint64_t)usage.ru_maxrss;
#endif
    FILE *status = fopen("/proc/self/status", "re");
    if (!status) return;
    char bench_case[256];
    unsigned long long kilobytes;
    while (fgets(bench_case, sizeof bench_case, status))
        if (sscanf(bench_case, "RssAnon: %llu kB", &kilobytes) == 1) *anonymous = kilobytes << 10;
    fclose(status);
}

bool bench_print(const Buffer *text, Error *error) {
    if (text->failed) return fail(error, ERROR_MEMORY, "no memory for the table");
    fwrite(text->data, 1, text->size, stdout);
    return true;
}

void bench_pad(Buffer *out, const char *text, int width) {
    buffer_text(out, text);
    int shown = 0;
    for (const char *c = text; *c; c++) shown += (*c & 0xC0) != 0x80;
    for (; shown < width; shown++) buffer_byte(out, ' ');
}
