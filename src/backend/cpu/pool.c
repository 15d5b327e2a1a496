/* The pool: an epoch that workers watch, a line per thread for "arrived", and ranges for sharing out work. */
#include "backend/cpu/pool.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Workers sleep on the epoch itself, or, where the system has no futexes (and in test_pool_portable.c), on a condition
 * variable. */
#if defined(__linux__) && !defined(POOL_PORTABLE)
#define POOL_FUTEX 1
#include <linux/futex.h>
#include <sys/syscall.h>
#else
#define POOL_FUTEX 0
#endif

#include "base/clock.h"
#include "base/cores.h"
#include "base/math.h"
#include "base/thread.h"

enum {
    LINE = 64,
    SPIN_NS = 50000,          /* how long a worker watches before it sleeps */
    SPINS_PER_CLOCK = 64,     /* pauses between readings of the clock */
    END_PIECES = 4,           /* the rest of a range is given out in pieces of 1/END_PIECES */
    SPINS_BEFORE_SLEEP = 4096 /* waiting for a thread that has lost its core */
};

typedef struct Line {
    _Alignas(LINE) _Atomic uint32_t value;
} Line;

typedef struct Range {
    _Alignas(LINE) _Atomic int64_t next;
    int64_t end;
} Range;

typedef struct Worker {
    Pool *pool;
    Thread thread;
    int index, cpu;
    _Alignas(LINE) uint32_t barriers; /* passed so far; touched by its own thread only */
} Worker;

struct Pool {
    Line epoch;    /* number of runs begun */
    Line sleepers; /* workers asleep, or about to be */
    Line released; /* number of barriers passed */
    Line waiters;  /* threads asleep in wait_until(), or about to be */
    int count;     /* threads, the caller's included */
    bool stop;
    PoolTask *task;
    void *argument;
    Line *done;    /* [count] last run finished */
    Line *arrived; /* [count] barriers reached */
    Range *ranges; /* [POOL_SHARES][count] */
    Worker *workers;
    int cpu;    /* processor of the calling thread; −1: any */
    bool bound; /* the thread that called last has been bound there */
    Thread caller;
#if defined(__linux__)
    cpu_set_t before; /* its affinity before */
#endif
#if !POOL_FUTEX
    Mutex lock;
    Condition begun; /* a run, while workers sleep */
#endif
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#if POOL_FUTEX
static void open_sleep(Pool *pool) {}
static void close_sleep(Pool *pool) {}

static void sleep_while(Pool *pool, uint32_t seen) {
    while (atomic_load(&pool->epoch.value) == seen)
        syscall(SYS_futex, &pool->epoch.value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void wake_line(Line *line) { syscall(SYS_futex, &line->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }
static void wake_all(Pool *pool) { wake_line(&pool->epoch); }
static void sleep_until(Line *line, uint32_t value) {
    for (uint32_t seen; (seen = atomic_load(&line->value)) != value;)
        syscall(SYS_futex, &line->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}
#else
static void open_sleep(Pool *pool) {
    mutex_init(&pool->lock);
    condition_init(&pool->begun);
}

static void close_sleep(Pool *pool) {
    condition_destroy(&pool->begun);
    mutex_destroy(&pool->lock);
}

static void sleep_while(Pool *pool, uint32_t seen) {
    mutex_lock(&pool->lock);
    while (atomic_load(&pool->epoch.value) == seen) condition_wait(&pool->begun, &pool->lock);
    mutex_unlock(&pool->lock);
}

/* Without futexes a thread lets others run instead. */
static void wake_line(Line *line) {}
static void sleep_until(Line *line, uint32_t value) {
    while (atomic_load(&line->value) != value) sched_yield();
}
/* Under the lock: threads that have seen the old epoch are waiting by now. */
static void wake_all(Pool *pool) {
    mutex_lock(&pool->lock);
    condition_broadcast(&pool->begun);
    mutex_unlock(&pool->lock);
}
#endif

/* Another thread's signal: spins, then sleeps, so that a thread without work does not spend the processor time that the
 * system would give it later, when it has some, on a machine that others use too. */
static void wait_until(Pool *pool, Line *line, uint32_t value) {
    for (int spins = 0; atomic_load_explicit(&line->value, memory_order_acquire) != value; spins++) {
        if (spins >= SPINS_BEFORE_SLEEP) {
            atomic_fetch_add(&pool->waiters.value, 1);
            sleep_until(line, value);
            atomic_fetch_sub(&pool->waiters.value, 1);
            return;
        }
        pause_cpu();
    }
}

/* The value and the number of waiters are stored and read in one order by all threads: either the waiter sees the new
 * value, or this thread sees the waiter. */
static void signal_line(Pool *pool, Line *line, uint32_t value) {
    atomic_store(&line->value, value);
    if (atomic_load(&pool->waiters.value) > 0) wake_line(line);
}

/* The next epoch after `seen`, watched for SPIN_NS and then slept for. */
static uint32_t wait_epoch(Pool *pool, uint32_t seen) {
    for (;;) {
        int64_t start = clock_ns();
        do {
            for (int i = 0; i < SPINS_PER_CLOCK; i++) {
                uint32_t epoch = atomic_load_explicit(&pool->epoch.value, memory_order_acquire);
                if (epoch != seen) return epoch;
                pause_cpu();
            }
        } while (clock_ns() - start < SPIN_NS);
        atomic_fetch_add(&pool->sleepers.value, 1);
        sleep_while(pool, seen);
        atomic_fetch_sub(&pool->sleepers.value, 1);
    }
}

static void bind_thread(int cpu) {
#if defined(__linux__)
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set); /* best effort: the thread works without it */
#endif
}

/* The calling thread is bound at its first run: left free, it can end up on a worker's core while another stands idle.
 */
static void bind_caller(Pool *pool) {
#if defined(__linux__)
    if (pool->cpu < 0 || (pool->bound && pthread_equal(pool->caller, pthread_self()))) return;
    pool->caller = pthread_self();
    pool->bound = sched_getaffinity(0, sizeof pool->before, &pool->before) == 0;
    bind_thread(pool->cpu);
#endif
}

static void free_caller(const Pool *pool) {
#if defined(__linux__)
    if (pool->bound && pthread_equal(pool->caller, pthread_self()))
        (void)sched_setaffinity(0, sizeof pool->before, &pool->before);
#endif
}

static void *worker_main(void *argument) {
    Worker *worker = argument;
    Pool *pool = worker->pool;
    bind_thread(worker->cpu);
    for (uint32_t seen = 0;;) {
        seen = wait_epoch(pool, seen);
        if (pool->stop) return NULL;
        pool->task(pool->argument, worker->index, pool->count);
        signal_line(pool, &pool->done[worker->index], seen);
    }
}

static void begin_epoch(Pool *pool) {
    atomic_fetch_add(&pool->epoch.value, 1);
    if (atomic_load(&pool->sleepers.value) > 0) wake_all(pool);
}

void pool_run(Pool *pool, PoolTask *task, void *argument) {
    if (pool->count == 1) {
        task(argument, 0, 1);
        return;
    }
    bind_caller(pool);
    pool->task = task;
    pool->argument = argument;
    begin_epoch(pool);
    task(argument, 0, pool->count);
    uint32_t epoch = atomic_load_explicit(&pool->epoch.value, memory_order_relaxed);
    for (int i = 1; i < pool->count; i++) wait_until(pool, &pool->done[i], epoch);
}

/* Each thread signals on a line of its own; thread 0 collects the signals and releases all. */
void pool_barrier(Pool *pool, int index) {
    if (pool->count == 1) return;
    uint32_t turn = ++pool->workers[index].barriers;
    if (index > 0) {
        signal_line(pool, &pool->arrived[index], turn);
        wait_until(pool, &pool->released, turn);
        return;
    }
    for (int i = 1; i < pool->count; i++) wait_until(pool, &pool->arrived[i], turn);
    signal_line(pool, &pool->released, turn);
}

void pool_share(Pool *pool, int slot, int64_t items) {
    for (int i = 0; i < pool->count; i++) {
        Range *range = &pool->ranges[slot * pool->count + i];
        atomic_store_explicit(&range->next, items * i / pool->count, memory_order_relaxed);
        range->end = items * (i + 1) / pool->count;
    }
}

bool pool_next(Pool *pool, int slot, int index, int64_t grain, int64_t *first, int64_t *count) {
    Range *ranges = &pool->ranges[slot * pool->count];
    for (int i = 0; i < pool->count; i++) {
        int owner = index + i;
        Range *range = &ranges[owner < pool->count ? owner : owner - pool->count];
        int64_t left = range->end - atomic_load_explicit(&range->next, memory_order_relaxed);
        if (left <= 0) continue;
        int64_t take = left / END_PIECES < grain ? left / END_PIECES : grain;
        if (take < 1) take = 1;
        int64_t next = atomic_fetch_add_explicit(&range->next, take, memory_order_relaxed);
        if (next >= range->end) continue;
        *first = next;
        *count = range->end - next < take ? range->end - next : take;
        return true;
    }
    return false;
}

int pool_threads(const Pool *pool) { return pool->count; }

/* ---- life ---- */

static void *alloc_lines(size_t count, size_t size) {
    void *memory = aligned_alloc(LINE, count * size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

static void free_pool(Pool *pool) {
    close_sleep(pool);
    free(pool->done);
    free(pool->arrived);
    free(pool->ranges);
    free(pool->workers);
    free(pool);
}

static void stop_workers(Pool *pool, int started) {
    pool->stop = true;
    begin_epoch(pool);
    for (int i = 1; i < started; i++) thread_join(pool->workers[i].thread);
}

Pool *pool_open(int threads, Error *error) {
    const Cores *cores = cores_of_process();
    if (threads == 0) threads = min_int(cores->threads, POOL_THREADS_MAX);
    if (threads < 1 || threads > POOL_THREADS_MAX) {
        fail(error, ERROR_USAGE, "%d threads: 1 to %d are possible", threads, POOL_THREADS_MAX);
        return NULL;
    }
    Pool *pool = alloc_lines(1, sizeof *pool);
    size_t count = (size_t)threads;
    if (pool) {
        open_sleep(pool);
        pool->count = threads;
        pool->done = alloc_lines(count, sizeof *pool->done);
        pool->arrived = alloc_lines(count, sizeof *pool->arrived);
        pool->ranges = alloc_lines(count * POOL_SHARES, sizeof *pool->ranges);
        pool->workers = alloc_lines(count, sizeof *pool->workers);
    }
    if (!pool || !pool->done || !pool->arrived || !pool->ranges || !pool->workers) {
        fail(error, ERROR_MEMORY, "no memory for a pool of %d threads", threads);
        if (pool) free_pool(pool);
        return NULL;
    }
    /* Bound only when the pool takes all the cores there are: otherwise the kernel knows better which are free. */
    const bool bind = threads == cores->count;
    pool->cpu = bind ? cores->cpus[0] : -1;
    for (int i = 1; i < threads; i++) {
        Worker *worker = &pool->workers[i];
        *worker = (Worker){.pool = pool, .index = i, .cpu = bind ? cores->cpus[i] : -1};
        if (!thread_start(&worker->thread, worker_main, worker, "worker", error)) {
            fail_while(error, "starting thread %d of %d", i + 1, threads);
            stop_workers(pool, i);
            free_pool(pool);
            return NULL;
        }
    }
    return pool;
}

void pool_close(Pool *pool) {
    if (!pool) return;
    stop_workers(pool, pool->count);
    free_caller(pool);
    free_pool(pool);
}
