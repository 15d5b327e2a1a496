/* Threads over pthreads. New threads take no asynchronous signals: those belong to the main thread. */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { THREAD_STACK_BYTES = 4 << 20 }; /* templates recurse, and some systems give half a MiB */

bool thread_start(Thread *thread, void *(*run)(void *), void *argument, const char *name, Error *error) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    pthread_attr_t attributes;
    int status = pthread_attr_init(&attributes);
    if (!status) status = pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    if (!status) status = pthread_create(thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status) return fail(error, ERROR_LIMIT, "cannot start thread %s: %s", name, strerror(status));
#ifdef __linux__
    char short_name[16]; /* the longest name that Linux takes */
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*thread, short_name);
#endif
    return true;
}

void thread_join(Thread thread) { CHECK(pthread_join(thread, NULL) == 0); }

void mutex_init(Mutex *mutex) { CHECK(pthread_mutex_init(mutex, NULL) == 0); }
void mutex_lock(Mutex *mutex) { CHECK(pthread_mutex_lock(mutex) == 0); }
void mutex_unlock(Mutex *mutex) { CHECK(pthread_mutex_unlock(mutex) == 0); }
void mutex_destroy(Mutex *mutex) { CHECK(pthread_mutex_destroy(mutex) == 0); }

void condition_init(Condition *condition) {
#ifdef __APPLE__ /* relative waits need no clock */
    CHECK(pthread_cond_init(condition, NULL) == 0);
#else
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(condition, &attributes) == 0);
    pthread_condattr_destroy(&attributes);
#endif
}

void condition_wait(Condition *condition, Mutex *mutex) { CHECK(pthread_cond_wait(condition, mutex) == 0); }

bool condition_wait_ms(Condition *condition, Mutex *mutex, int64_t timeout_ms) {
    if (timeout_ms < 0) timeout_ms = 0;
    struct timespec limit = {.tv_sec = (time_t)(timeout_ms / 1000), .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
#ifdef __APPLE__
    int status = pthread_cond_timedwait_relative_np(condition, mutex, &limit);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    limit.tv_sec += now.tv_sec;
    limit.tv_nsec += now.tv_nsec;
    if (limit.tv_nsec >= 1000000000) {
        limit.tv_sec++;
        limit.tv_nsec -= 1000000000;
    }
    int status = pthread_cond_timedwait(condition, mutex, &limit);
#endif
    CHECK(status == 0 || status == ETIMEDOUT);
    return status == 0;
}

void condition_signal(Condition *condition) { CHECK(pthread_cond_signal(condition) == 0); }
void condition_broadcast(Condition *condition) { CHECK(pthread_cond_broadcast(condition) == 0); }
void condition_destroy(Condition *condition) { CHECK(pthread_cond_destroy(condition) == 0); }
