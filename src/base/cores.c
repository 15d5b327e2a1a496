/* Affinity, topology and control groups (cpu.max; cpu.cfs_quota_us of the first version). */
#include "base/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/math.h"
#include "base/thread.h"

typedef struct Quota {
    int least;
    Buffer text;
} Quota;

static void visit_group(void *context, const char *directory, int version, bool own) {
    (void)own;
    Quota *q = context;
    size_t quota, period;
    if (version == 2) {
        Slice line = system_text(&q->text, "%s/cpu.max", directory);
        quota = system_number(system_take(&line, ' '));
        period = system_number(line);
    } else {
        quota = system_number(system_text(&q->text, "%s/cpu.cfs_quota_us", directory)); /* -1: no limit */
        period = system_number(system_text(&q->text, "%s/cpu.cfs_period_us", directory));
    }
    if (quota == SIZE_MAX || period == SIZE_MAX || !quota || !period) return;
    const size_t cpus = quota / period + (quota % period != 0);
    if (cpus < (size_t)q->least) q->least = (int)cpus;
}

/* Processors' worth of time that the control groups allow, rounded up; INT_MAX without a limit. */
static int quota_below(const char *root) {
    Quota quota = {.least = INT_MAX};
    cgroup_visit(root, "cpu", visit_group, &quota);
    buffer_free(&quota.text);
    return quota.least;
}

#if defined(__linux__)
/* Whether a processor shares its core with a lower-numbered one of the set. */
static bool is_second_thread(const char *root, int cpu, const cpu_set_t *allowed, Buffer *text) {
    Slice list = system_text(text, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    while (list.size) { /* "0,64", "0-1" */
        Slice item = system_take(&list, ',');
        const size_t first = system_number(system_take(&item, '-')), last = item.size ? system_number(item) : first;
        if (first == SIZE_MAX) return false;
        for (size_t sibling = first; sibling <= last && sibling < (size_t)cpu; sibling++)
            if (CPU_ISSET(sibling, allowed)) return true;
    }
    return false;
}

/* The affinity of the main thread, which no pool binds. */
static void find_cpus(const char *root, Cores *cores) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) return;
    Buffer text = {0};
    for (int cpu = 0; cpu < CPU_SETSIZE && cores->count < CORES_MAX; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed) && !is_second_thread(root, cpu, &allowed, &text))
            cores->cpus[cores->count++] = cpu;
    buffer_free(&text);
}
#else
static void find_cpus(const char *root, Cores *cores) {
    (void)root;
    (void)cores;
}
#endif

void cores_below(const char *root, Cores *cores) {
    *cores = (Cores){0};
    find_cpus(root, cores);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    cores->threads = cores->count ? cores->count : online < 1 ? 1 : online > CORES_MAX ? CORES_MAX : (int)online;
    cores->threads = min_int(cores->threads, quota_below(root));
}

static Cores found;

static void find(void) { cores_below("", &found); }

const Cores *cores_of_process(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return &found;
}

int cores_threads(int most) { return min_int(most, cores_of_process()->threads); }
