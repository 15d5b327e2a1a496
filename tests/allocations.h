/* Makes the N-th allocation fail, for every N: memory (malloc and its kin, anonymous mappings) and threads. The linker
 * puts the functions below in the place of libc's (CMakeLists.txt: tests named …_allocations). Each N runs in a process
 * of its own, so that a crash is a line of the report and not its end. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/slice.h"
#include "test.h"

/* ONE: the N-th fails, for each N. ALL: every one from the N-th on, for every fifth N. */
typedef enum AllocationsMode { ALLOCATIONS_ONE, ALLOCATIONS_ALL } AllocationsMode;

/* A whole life, from opening to closing; false: it failed, and *error says why (error may be NULL). It is run again
 * without failures, and must then be true. */
typedef bool (*AllocationsRun)(Error *error);

enum {
    ALLOCATIONS_ALL_STRIDE = 5,
    ALLOCATIONS_SAMPLE =
        12, /* every twelfth of them, if a sample is asked for; under a sanitizer others than without */
    ALLOCATIONS_LIVE_MAX = 1 << 14,
    ALLOCATIONS_SECONDS_MAX = 120,
    ALLOCATIONS_FDS_MAX = 256
};

typedef struct Allocation {
    void *data;
    long number;
    uintptr_t site; /* where it was asked for, for addr2line */
} Allocation;

static struct {
    pthread_mutex_t mutex;
    bool counting; /* allocations are entered below */
    long fail_at;  /* 0: none fails */
    AllocationsMode mode;
    long count, failed;
    long first_failed;
    uintptr_t failed_site;
    bool failed_thread; /* the first failure was that of a thread */
    int live_count, threads;
    size_t mapped;
    Allocation live[ALLOCATIONS_LIVE_MAX];
} allocations = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool allocations_verbose;

extern char __executable_start[]; /* the linker's */

#define ALLOCATION_SITE ((uintptr_t)__builtin_return_address(0) - (uintptr_t)__executable_start)

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void __real_free(void *data);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __real_pthread_join(pthread_t thread, void **result);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);
void __wrap_free(void *data);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t size);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);

/* True: this one is to fail. */
static bool allocation_fails(uintptr_t site, bool thread) {
    pthread_mutex_lock(&allocations.mutex);
    allocations.count += allocations.counting;
    const bool fails = allocations.counting && allocations.fail_at &&
        (allocations.mode == ALLOCATIONS_ONE ? allocations.count == allocations.fail_at
                                             : allocations.count >= allocations.fail_at);
    if (fails && !allocations.failed++) {
        allocations.first_failed = allocations.count;
        allocations.failed_site = site;
        allocations.failed_thread = thread;
    }
    pthread_mutex_unlock(&allocations.mutex);
    return fails;
}

static void *allocation_enter(void *data, uintptr_t site) {
    pthread_mutex_lock(&allocations.mutex);
    if (data && allocations.counting) {
        CHECK(allocations.live_count < ALLOCATIONS_LIVE_MAX);
        allocations.live[allocations.live_count++] = (Allocation){data, allocations.count, site};
    }
    pthread_mutex_unlock(&allocations.mutex);
    return data;
}

static void allocation_leave(const void *data) {
    pthread_mutex_lock(&allocations.mutex);
    for (int i = allocations.live_count - 1; i >= 0; i--) {
        if (allocations.live[i].data != data) continue;
        allocations.live[i] = allocations.live[--allocations.live_count];
        break;
    }
    pthread_mutex_unlock(&allocations.mutex);
}

void *__wrap_malloc(size_t size) {
    const uintptr_t site = ALLOCATION_SITE;
    return allocation_fails(site, false) ? NULL : allocation_enter(__real_malloc(size), site);
}

void *__wrap_calloc(size_t count, size_t size) {
    const uintptr_t site = ALLOCATION_SITE;
    return allocation_fails(site, false) ? NULL : allocation_enter(__real_calloc(count, size), site);
}

void *__wrap_realloc(void *data, size_t size) {
    const uintptr_t site = ALLOCATION_SITE;
    if (allocation_fails(site, false)) return NULL;
    allocation_leave(data);
    return allocation_enter(__real_realloc(data, size), site);
}

void __wrap_free(void *data) {
    if (data) allocation_leave(data);
    __real_free(data);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size) {
    const uintptr_t site = ALLOCATION_SITE;
    if (allocation_fails(site, false)) return ENOMEM;
    const int status = __real_posix_memalign(out, alignment, size);
    if (status == 0) allocation_enter(*out, site);
    return status;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    const uintptr_t site = ALLOCATION_SITE;
    return allocation_fails(site, false) ? NULL : allocation_enter(__real_aligned_alloc(alignment, size), site);
}

char *__wrap_strdup(const char *text) {
    const uintptr_t site = ALLOCATION_SITE;
    const size_t size = strlen(text) + 1;
    char *copy = allocation_fails(site, false) ? NULL : allocation_enter(__real_malloc(size), site);
    return copy ? memcpy(copy, text, size) : NULL;
}

static size_t whole_pages(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* A mapping at a fixed address replaces one that is counted already. */
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    const bool fresh = !(flags & MAP_FIXED);
    if (fresh && allocation_fails(ALLOCATION_SITE, false)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *data = __real_mmap(address, size, protection, flags, fd, offset);
    pthread_mutex_lock(&allocations.mutex);
    if (fresh && data != MAP_FAILED && allocations.counting) allocations.mapped += whole_pages(size);
    pthread_mutex_unlock(&allocations.mutex);
    return data;
}

int __wrap_munmap(void *address, size_t size) {
    pthread_mutex_lock(&allocations.mutex);
    if (allocations.counting) allocations.mapped -= whole_pages(size);
    pthread_mutex_unlock(&allocations.mutex);
    return __real_munmap(address, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    if (allocation_fails(ALLOCATION_SITE, true)) return EAGAIN;
    const int status = __real_pthread_create(thread, attributes, run, argument);
    pthread_mutex_lock(&allocations.mutex);
    allocations.threads += status == 0 && allocations.counting;
    pthread_mutex_unlock(&allocations.mutex);
    return status;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
    pthread_mutex_lock(&allocations.mutex);
    allocations.threads -= allocations.counting;
    pthread_mutex_unlock(&allocations.mutex);
    return __real_pthread_join(thread, result);
}

/* From here on nothing fails: what follows must work, whatever failed before. Returns whether anything has. */
static inline bool allocations_recover(void) {
    pthread_mutex_lock(&allocations.mutex);
    allocations.fail_at = 0;
    const bool failed = allocations.failed > 0;
    pthread_mutex_unlock(&allocations.mutex);
    return failed;
}

static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < ALLOCATIONS_FDS_MAX; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void check_nothing_left(const char *what, int files_before) {
    const int files = open_files();
    TEST_MSG(allocations.live_count == 0, "%s: %d allocations are left", what, allocations.live_count);
    for (int i = 0; i < allocations.live_count && i < 8; i++)
        fprintf(stderr, "    number %ld, from +0x%zx\n", allocations.live[i].number, allocations.live[i].site - 1);
    TEST_MSG(allocations.mapped == 0, "%s: %zu bytes of mappings are left", what, allocations.mapped);
    TEST_MSG(allocations.threads == 0, "%s: %d threads were not joined", what, allocations.threads);
    TEST_MSG(files == files_before, "%s: %d files are open, %d were before", what, files, files_before);
}

static void start_counting(long fail_at, AllocationsMode mode) {
    allocations.counting = true;
    allocations.fail_at = fail_at;
    allocations.mode = mode;
    allocations.count = allocations.failed = 0;
    allocations.live_count = allocations.threads = 0;
    allocations.mapped = 0;
}

/* A text that ends with "no memory" does not say for what. */
static bool says_what(const char *text) {
    static const char *const endings[] = {"", "no memory", "out of memory"};
    const size_t size = strlen(text);
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        const size_t end = strlen(endings[i]);
        if (size == end || (end && size > end && strcmp(text + size - end, endings[i]) == 0)) return false;
    }
    return true;
}

enum { CHILD_FAILED = 64, CHILD_WRONG = 1 }; /* bits of an exit code; the first: an allocation did fail */

/* In the child. */
static int run_with_failure(const char *name, AllocationsRun run, long fail_at, AllocationsMode mode) {
    char what[128];
    snprintf(what, sizeof what, "%s, %s %ld", name, mode == ALLOCATIONS_ONE ? "allocation" : "all from", fail_at);
    alarm(ALLOCATIONS_SECONDS_MAX);
    Error error = {0};
    const int files = open_files();
    start_counting(fail_at, mode);
    const bool ok = run(mode == ALLOCATIONS_ALL ? NULL : &error); /* nobody listens to the second */
    allocations.counting = false;
    const bool failed = allocations.failed > 0;
    check_nothing_left(what, files);
    TEST_MSG(ok || failed, "%s: it fails by itself: %s", what, error.text);
    if (!ok && mode == ALLOCATIONS_ONE) {
        const ErrorCode wanted = allocations.failed_thread ? ERROR_LIMIT : ERROR_MEMORY;
        TEST_MSG(error.code == wanted, "%s: the code is %d", what, error.code);
        TEST_MSG(says_what(error.text), "%s: \"%s\"", what, error.text);
        if (allocations_verbose) fprintf(stderr, "%s: %s\n", what, error.text);
    }
    if (failed) {
        start_counting(0, mode);
        TEST_MSG(run(&error), "%s: afterwards it fails: %s", what, error.text);
        allocations.counting = false;
        check_nothing_left("afterwards", files);
    }
    if (test_failed) fprintf(stderr, "    what failed was asked for at +0x%zx\n", allocations.failed_site - 1);
    return (failed ? CHILD_FAILED : 0) | (test_failed ? CHILD_WRONG : 0);
}

/* The exit code, or the negative of the signal that ended the child. */
static int run_child(const char *name, AllocationsRun run, long fail_at, AllocationsMode mode) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        test_failed = 0;
        const struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        const int code = run_with_failure(name, run, fail_at, mode);
        fflush(NULL);
        _exit(code);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Every allocation of a run fails once. Returns how many there were, about so in mode ALL. */
static inline long allocations_sweep(const char *name, AllocationsRun run, AllocationsMode mode) {
    const int alone = run_child(name, run, 0, mode);
    TEST_MSG(alone == 0, "%s: it fails by itself, %d", name, alone);
    const long sample = getenv("APUS_TEST_SAMPLE") ? ALLOCATIONS_SAMPLE : 1, first = SANITIZED ? 1 : 1 + sample / 2;
    for (long fail_at = first; alone == 0; fail_at += sample * (mode == ALLOCATIONS_ALL ? ALLOCATIONS_ALL_STRIDE : 1)) {
        const int code = run_child(name, run, fail_at, mode);
        TEST_MSG(code == 0 || code == CHILD_FAILED, "%s: %s %ld: ended with %d", name,
            mode == ALLOCATIONS_ONE ? "allocation" : "all from", fail_at, code);
        if (code >= 0 && !(code & CHILD_FAILED)) return fail_at - 1;
    }
    return 0;
}
