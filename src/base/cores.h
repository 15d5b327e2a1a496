/* The cores that this process may use. */
#pragma once

enum { CORES_MAX = 256 };

typedef struct Cores {
    int cpus[CORES_MAX]; /* a processor of each core that the affinity allows; hyper-threads count once */
    int count;           /* length of cpus; 0 where the system does not say */
    int threads;         /* how many threads can compute at once, at least 1: no more than the processor time that the
                            control groups allow (docker run --cpus) */
} Cores;

/* As they were at the first call; from any thread, also from one that is bound to a core. */
const Cores *cores_of_process(void);
/* How many of most threads to start: no more than cores_of_process()->threads. */
int cores_threads(int most);
/* The same as they are now, with topology and control groups looked for below root (base/cgroup.h): for tests. */
void cores_below(const char *root, Cores *cores);
