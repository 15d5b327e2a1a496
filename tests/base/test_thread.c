/* Threads, conditions with time limits, the clock, and log lines that stay whole. */
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "test.h"

enum { THREADS = 4, ROUNDS = 20000 };

typedef struct Shared {
    Mutex lock;
    Condition changed;
    int64_t count;
    int waiting, turn;
} Shared;

static void *count_up(void *argument) {
    Shared *shared = argument;
    for (int i = 0; i < ROUNDS; i++) {
        mutex_lock(&shared->lock);
        shared->count++;
        mutex_unlock(&shared->lock);
    }
    return NULL;
}

static void *wait_for_turn(void *argument) {
    Shared *shared = argument;
    mutex_lock(&shared->lock);
    shared->waiting++;
    condition_signal(&shared->changed);
    while (shared->turn == 0) condition_wait(&shared->changed, &shared->lock);
    shared->waiting--;
    mutex_unlock(&shared->lock);
    return NULL;
}

static void test_lock(void) {
    Shared shared = {0};
    Thread thread[THREADS];
    Error error = {0};
    mutex_init(&shared.lock);
    for (int i = 0; i < THREADS; i++) {
        TEST(thread_start(&thread[i], count_up, &shared, "a name longer than sixteen bytes", &error));
    }
    for (int i = 0; i < THREADS; i++) thread_join(thread[i]);
    TEST(shared.count == (int64_t)THREADS * ROUNDS);
    mutex_destroy(&shared.lock);
}

static void test_condition(void) {
    Shared shared = {0};
    Thread thread[THREADS];
    Error error = {0};
    mutex_init(&shared.lock);
    condition_init(&shared.changed);
    mutex_lock(&shared.lock);
    int64_t before = clock_ns();
    TEST(!condition_wait_ms(&shared.changed, &shared.lock, 20));
    int64_t waited = clock_ns() - before;
    TEST_MSG(
        waited >= 20000000 && waited < 5000000000, "%lld ns", (long long)waited); /* the upper end: a busy machine */
    TEST(!condition_wait_ms(&shared.changed, &shared.lock, -5));
    for (int i = 0; i < THREADS; i++) TEST(thread_start(&thread[i], wait_for_turn, &shared, "wait", &error));
    while (shared.waiting < THREADS) condition_wait_ms(&shared.changed, &shared.lock, 10);
    shared.turn = 1;
    condition_broadcast(&shared.changed);
    mutex_unlock(&shared.lock);
    for (int i = 0; i < THREADS; i++) thread_join(thread[i]);
    TEST(shared.waiting == 0);
    condition_destroy(&shared.changed);
    mutex_destroy(&shared.lock);
}

static void *signals_of(void *argument) {
    pthread_sigmask(SIG_SETMASK, NULL, argument);
    return NULL;
}

static void test_signals(void) {
    Thread thread;
    Error error = {0};
    sigset_t set, mine;
    sigemptyset(&set);
    TEST(thread_start(&thread, signals_of, &set, "signals", &error));
    thread_join(thread);
    TEST(sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) && !sigismember(&set, SIGBUS) &&
        !sigismember(&set, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    TEST(!sigismember(&mine, SIGINT));
}

static void *log_lines(void *argument) {
    for (int i = 0; i < 50; i++) log_info("from %d: %0200d", *(int *)argument, i);
    return NULL;
}

static void test_log(void) {
    char path[] = "/tmp/apus-log-XXXXXX";
    int file = mkstemp(path), screen = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    Thread thread[THREADS];
    int number[THREADS];
    Error error = {0};
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        if (!thread_start(&thread[i], log_lines, &number[i], "log", &error)) return;
    }
    for (int i = 0; i < THREADS; i++) thread_join(thread[i]);
    log_debug("below the level");
    log_set_level(LOG_ERROR);
    log_warn("below it now");
    log_error("two\nlines \x1b[31m");
    log_set_level(LOG_INFO);
    dup2(screen, STDERR_FILENO);

    FILE *in = fopen(path, "r");
    char line[512];
    int lines = 0, whole = 0, errors = 0;
    while (in && fgets(line, sizeof line, in)) {
        int hour, minute, second, millisecond, from, end = 0;
        lines++;
        if (sscanf(line, "%2d:%2d:%2d.%3d info  from %d: %*d%n", &hour, &minute, &second, &millisecond, &from, &end) ==
            5) {
            whole += line[end] == '\n' && strlen(line) == 12 + 7 + 8 + 200 + 1;
        }
        errors += strstr(line, " error two lines  [31m\n") != NULL;
    }
    TEST_MSG(lines == THREADS * 50 + 1 && whole == THREADS * 50 && errors == 1, "%d %d %d", lines, whole, errors);
    if (in) fclose(in);
    unlink(path);
}

int main(void) {
    int64_t start = clock_ns();
    test_lock();
    test_condition();
    test_signals();
    test_log();
    TEST(clock_ns() > start && clock_seconds() > 0);
    return test_done();
}
