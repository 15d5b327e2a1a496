/* The pool: every thread works in every run, barriers hold, all work is shared out once, and idle threads sleep. */
#include "backend/cpu/pool.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "test.h"

enum { ROUNDS = 210, ITEMS = 1000, MOST_THREADS = 4, SETTLE_MS = 100, IDLE_MS = 300, WAKES_MOST = 40 };

static void sleep_ns(long ns) {
    const struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&time, NULL);
}

typedef struct Counts {
    Pool *pool;
    int chunks[MOST_THREADS];
    _Atomic int first, second; /* threads before and behind the barrier */
    _Atomic int early;         /* that were let through too early */
    _Atomic int taken[ITEMS];
} Counts;

static void count_run(void *argument, int index, int count) {
    Counts *c = argument;
    c->chunks[index]++;
    atomic_fetch_add(&c->first, 1);
    pool_barrier(c->pool, index);
    if (atomic_load(&c->first) % count != 0) atomic_fetch_add(&c->early, 1);
    pool_barrier(c->pool, index);
    for (int64_t item, items; pool_next(c->pool, 0, index, 7, &item, &items);)
        for (int64_t i = item; i < item + items; i++) atomic_fetch_add(&c->taken[i], 1);
}

/* With pauses in which the workers still watch, are about to sleep, and sleep. */
static void check_runs(int threads) {
    static const long pauses_ns[] = {0, 0, 0, 20000, 50000, 60000, 300000};
    Error error = {0};
    static Counts counts;
    counts = (Counts){.pool = pool_open(threads, &error)};
    TEST_MSG(counts.pool, "%s", error.text);
    if (!counts.pool) return;
    TEST(pool_threads(counts.pool) == threads);
    for (int round = 0; round < ROUNDS; round++) {
        const long pause = pauses_ns[round % (int)(sizeof pauses_ns / sizeof *pauses_ns)];
        if (pause) sleep_ns(pause);
        pool_share(counts.pool, 0, ITEMS);
        pool_run(counts.pool, count_run, &counts);
    }
    pool_close(counts.pool);
    for (int i = 0; i < threads; i++) TEST(counts.chunks[i] == ROUNDS);
    TEST(atomic_load(&counts.early) == 0);
    bool once = true;
    for (int i = 0; i < ITEMS; i++) once = once && atomic_load(&counts.taken[i]) == ROUNDS;
    TEST(once);
}

/* How often threads of this process went to sleep of themselves. */
static long sleeps(void) {
    struct rusage usage;
    TEST(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_nvcsw;
}

static void do_nothing(void *argument, int index, int count) {}

static void check_idle(void) {
    Error error = {0};
    Pool *pool = pool_open(MOST_THREADS, &error);
    TEST_MSG(pool, "%s", error.text);
    if (!pool) return;
    pool_run(pool, do_nothing, NULL);
    sleep_ns(SETTLE_MS * 1000000L);
    const long before = sleeps();
    sleep_ns(IDLE_MS * 1000000L);
    const long wakes = sleeps() - before;
    TEST_MSG(wakes <= WAKES_MOST, "%ld wakes of an idle pool in %d ms", wakes, IDLE_MS);
    pool_close(pool);
}

int main(void) {
    for (int threads = 1; threads <= MOST_THREADS; threads++) check_runs(threads);
    check_idle();
    pool_close(NULL);
    return test_done();
}
