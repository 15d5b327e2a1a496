/* Threads, mutexes, conditions: thin names over pthreads. Creation can fail (limits); locking cannot. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef pthread_t Thread;
typedef pthread_mutex_t Mutex;
typedef pthread_cond_t Condition;

NODISCARD bool thread_start(Thread *thread, void *(*run)(void *), void *argument, const char *name, Error *error);
void thread_join(Thread thread);
void mutex_init(Mutex *mutex);
void mutex_lock(Mutex *mutex);
void mutex_unlock(Mutex *mutex);
void mutex_destroy(Mutex *mutex);
void condition_init(Condition *condition); /* waits use the monotonic clock */
void condition_wait(Condition *condition, Mutex *mutex);
bool condition_wait_ms(Condition *condition, Mutex *mutex, int64_t timeout_ms); /* false: time ran out */
void condition_signal(Condition *condition);
void condition_broadcast(Condition *condition);
void condition_destroy(Condition *condition);
