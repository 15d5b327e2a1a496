#include "base/background.h"

#include "base/thread.h"

#ifdef __linux__
#include <sys/resource.h>
#elif defined(__APPLE__)
#include <pthread/qos.h>
#endif

enum { NICENESS = 10 }; /* beside a busy thread it takes a tenth of a core */

typedef struct Work {
    void (*run)(void *context);
    void *context;
} Work;

/* Best effort. Linux gives each thread a niceness of its own, whatever POSIX says. */
static void lower_priority(void) {
#ifdef __linux__
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICENESS);
#elif defined(__APPLE__)
    (void)pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
#endif
}

static void *run_work(void *argument) {
    const Work *work = argument;
    lower_priority();
    work->run(work->context);
    return NULL;
}

void background_run(void (*run)(void *context), void *context, const char *name) {
    Work work = {run, context};
    Thread thread;
    Error ignored;
    if (thread_start(&thread, run_work, &work, name, &ignored))
        thread_join(thread);
    else
        run(context);
}
