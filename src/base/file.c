/* Files. Mappings are entered in a fixed table that the SIGBUS handler can read without a lock: reading a page behind
 * the end of a file that was truncated (or lies on a bad sector) puts a page of zeros there and marks the mapping. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "base/clock.h"

enum {
    FILE_HUGE_PAGE = 2 << 20,
    FILE_SLOTS = 1024,
    FILE_READ_STEP = 64 * 1024,
    FILE_PATH_MAX = 4096,
    FILE_TEMPORARY_TRIES = 16,
};

typedef struct FileSlot {
    _Atomic uintptr_t begin; /* 0: free */
    _Atomic uintptr_t end;   /* rounded up to whole pages */
    atomic_bool damaged;
} FileSlot;

static FileSlot file_slots[FILE_SLOTS];
static atomic_int file_slots_high;                            /* slots from here on were never used */
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER; /* guards taking and freeing slots */
static bool file_handler_set;
static uintptr_t file_page;
static struct sigaction file_previous;

/* The system call itself: sanitizers replace libc's mmap by one that is not safe in a handler. */
static bool page_zero(uintptr_t at) {
    enum { FLAGS = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS };
#if defined(__linux__) && defined(SYS_mmap)
    return syscall(SYS_mmap, at, file_page, PROT_READ, FLAGS, -1, 0) == (long)at;
#else
    return mmap((void *)at, file_page, PROT_READ, FLAGS, -1, 0) == (void *)at;
#endif
}

static void chain_previous(int number, siginfo_t *info, void *context) {
    if (file_previous.sa_flags & SA_SIGINFO) {
        file_previous.sa_sigaction(number, info, context);
    } else if (file_previous.sa_handler != SIG_DFL && file_previous.sa_handler != SIG_IGN) {
        file_previous.sa_handler(number);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);       /* returning runs into the fault again, which now ends the process */
        if (info->si_code <= 0) raise(number); /* sent by a process: there is no fault to run into */
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved = errno;
    uintptr_t address = (uintptr_t)info->si_addr;
    int high = info->si_code > 0 ? atomic_load(&file_slots_high) : 0;
    for (int i = 0; i < high; i++) {
        FileSlot *slot = &file_slots[i];
        uintptr_t begin = atomic_load(&slot->begin);
        if (!begin || address < begin || address >= atomic_load(&slot->end)) continue;
        if (!page_zero(address & ~(file_page - 1))) break;
        atomic_store(&slot->damaged, true);
        errno = saved;
        return;
    }
    chain_previous(number, info, context);
    errno = saved;
}

/* -1: no slot is free. */
static int slot_take(const void *data, size_t size) {
    pthread_mutex_lock(&file_lock);
    int found = -1;
    for (int i = 0; i < FILE_SLOTS && found < 0; i++) {
        if (!atomic_load(&file_slots[i].begin)) found = i;
    }
    if (found >= 0) {
        FileSlot *slot = &file_slots[found];
        atomic_store(&slot->damaged, false);
        atomic_store(&slot->end, ((uintptr_t)data + size + file_page - 1) & ~(file_page - 1));
        atomic_store(&slot->begin, (uintptr_t)data);
        if (found >= atomic_load(&file_slots_high)) atomic_store(&file_slots_high, found + 1);
    }
    pthread_mutex_unlock(&file_lock);
    return found;
}

static bool handler_install(void) {
    pthread_mutex_lock(&file_lock);
    if (!file_handler_set) {
        file_page = (uintptr_t)sysconf(_SC_PAGESIZE);
        struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        file_handler_set = sigaction(SIGBUS, NULL, &file_previous) == 0 && sigaction(SIGBUS, &action, NULL) == 0;
    }
    bool set = file_handler_set;
    pthread_mutex_unlock(&file_lock);
    return set;
}

static bool fail_io(Error *error, const char *what, const char *path) {
    int reason = errno;
    const ErrorCode code = reason == ENOENT || reason == ENOTDIR ? ERROR_NOT_FOUND
        : reason == ENOMEM                                       ? ERROR_MEMORY
                                                                 : ERROR_IO;
    return fail(error, code, "cannot %s %s: %s", what, path, strerror(reason));
}

/* As in "it is a pipe". */
static const char *kind_name(mode_t mode) {
    return S_ISDIR(mode) ? "a directory"
        : S_ISFIFO(mode) ? "a pipe"
        : S_ISSOCK(mode) ? "a socket"
        : S_ISCHR(mode)  ? "a device"
        : S_ISBLK(mode)  ? "a disk"
                         : "something else";
}

/* Opens a regular file for reading; anything else is refused: opening a pipe would wait for its writer, opening a
 * device may do something. The second look is for what took the name in between. -1: *error says why. */
static int open_regular(const char *path, struct stat *status, Error *error) {
    int fd = -1;
    bool found = stat(path, status) == 0;
    if (found && S_ISREG(status->st_mode)) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        found = fd >= 0 && fstat(fd, status) == 0;
    }
    if (!found) {
        fail_io(error, "open", path);
    } else if (!S_ISREG(status->st_mode)) {
        fail(error, ERROR_IO, "cannot read %s: it is %s, not a regular file", path, kind_name(status->st_mode));
    } else {
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

/* Large files begin at a multiple of a huge page and ask for such pages: where the file system's cache can hold them,
 * what is read in through this mapping lies in huge pages, and reading weights is up to 40 % faster. */
static void *map_pages(int fd, size_t size) {
#if defined(__linux__)
    if (size >= FILE_HUGE_PAGE) {
        const size_t room = size + FILE_HUGE_PAGE;
        uint8_t *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) return MAP_FAILED;
        const size_t before = -(uintptr_t)start % FILE_HUGE_PAGE, used = (size + file_page - 1) & ~(file_page - 1);
        uint8_t *data = mmap(start + before, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
        const int reason = errno;
        if (data == MAP_FAILED) {
            munmap(start, room);
            errno = reason;
            return MAP_FAILED;
        }
        if (before) munmap(start, before);
        if (before + used < room) munmap(data + used, room - before - used);
        (void)madvise(data, size, MADV_HUGEPAGE); /* a wish: without it the pages are small ones */
        return data;
    }
#endif
    return mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
}

bool file_map(FileMap *map, const char *path, Error *error) {
    *map = (FileMap){0};
    if (!handler_install()) return fail_io(error, "install the handler of bus errors for", path);
    struct stat status;
    int fd = open_regular(path, &status, error);
    if (fd < 0) return false;
    if (status.st_size == 0) {
        close(fd);
        return true;
    }
    size_t size = (size_t)status.st_size;
    void *data = map_pages(fd, size);
    bool mapped = data != MAP_FAILED;
    if (!mapped) fail_io(error, "map", path);
    close(fd);
    if (!mapped) return false;
    int slot = slot_take(data, size);
    if (slot < 0) {
        munmap(data, size);
        return fail(error, ERROR_LIMIT, "cannot map %s: more than %d files are mapped", path, FILE_SLOTS);
    }
    *map = (FileMap){.data = data, .size = size, .slot = slot};
    return true;
}

void file_unmap(FileMap *map) {
    if (map->data) {
        FileSlot *slot = &file_slots[map->slot];
        pthread_mutex_lock(&file_lock);
        atomic_store(&slot->begin, 0); /* before the addresses can become another mapping's */
        pthread_mutex_unlock(&file_lock);
        munmap((void *)map->data, map->size);
    }
    *map = (FileMap){0};
}

/* Relaxed: the fault happened in a reader thread, and a caller that asks after the reader's work is ordered behind it.
 */
bool file_damaged(const FileMap *map) {
    return map->data && atomic_load_explicit(&file_slots[map->slot].damaged, memory_order_relaxed);
}

static ssize_t read_some(int fd, void *to, size_t size) {
    ssize_t got;
    do {
        got = read(fd, to, size);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* expected: 0 where the system does not know it, as in /proc. */
static bool read_all(int fd, const char *path, size_t expected, size_t limit, Buffer *out, Error *error) {
    size_t total = 0;
    for (;;) {
        char next; /* one byte asks whether anything follows, before room for it is taken */
        ssize_t got = read_some(fd, &next, 1);
        if (got < 0) return fail_io(error, "read", path);
        if (got == 0) return true;
        if (limit && total == limit) {
            return fail(error, ERROR_LIMIT, "%s has more than the limit of %zu bytes", path, limit);
        }
        buffer_byte(out, next);
        total++;
        size_t step = expected > total ? expected - total : expected == total ? 0 : FILE_READ_STEP;
        if (limit && step > limit - total) step = limit - total;
        if (!buffer_reserve(out, step)) {
            return fail(error, ERROR_MEMORY, "cannot read %s: no room for %zu bytes", path, out->size + step);
        }
        got = read_some(fd, out->data + out->size, step);
        if (got < 0) return fail_io(error, "read", path);
        out->size += (size_t)got;
        out->data[out->size] = '\0';
        total += (size_t)got;
    }
}

bool file_read(const char *path, size_t limit, Buffer *out, Error *error) {
    struct stat status;
    int fd = open_regular(path, &status, error);
    if (fd < 0) return false;
    bool ok = read_all(fd, path, (size_t)status.st_size, limit, out, error);
    close(fd);
    return ok;
}

static bool write_all(int fd, Slice bytes) {
    while (bytes.size) {
        ssize_t wrote = write(fd, bytes.data, bytes.size);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return false;
        bytes.data += wrote;
        bytes.size -= (size_t)wrote;
    }
    return true;
}

/* A new file of a name of its own beside path; its name goes to temporary. */
static int temporary_open(const char *path, char temporary[FILE_PATH_MAX]) {
    for (int i = 0; i < FILE_TEMPORARY_TRIES; i++) {
        int length =
            snprintf(temporary, FILE_PATH_MAX, "%s.%d-%llx.tmp", path, (int)getpid(), (unsigned long long)clock_ns());
        if (length >= FILE_PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

/* A rename lasts through a power cut only when its directory is synced; not every file system can, so none must. */
static void directory_sync(const char *path) {
    char directory[FILE_PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + 1 : 1;
    snprintf(directory, sizeof directory, "%.*s", length, slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

bool file_write_atomic(const char *path, Slice bytes, Error *error) {
    char temporary[FILE_PATH_MAX];
    int fd = temporary_open(path, temporary);
    if (fd < 0) return fail_io(error, "create a file beside", path);
    bool ok = write_all(fd, bytes) && fsync(fd) == 0;
    int reason = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        reason = errno;
    }
    if (!ok) {
        unlink(temporary);
        errno = reason;
        return fail_io(error, "write", path);
    }
    directory_sync(path);
    return true;
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

bool file_is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

bool file_make_directories(const char *path, Error *error) {
    char part[FILE_PATH_MAX];
    size_t size = strlen(path);
    if (size == 0 || size >= sizeof part) {
        errno = size ? ENAMETOOLONG : ENOENT;
        return fail_io(error, "create directory", path);
    }
    for (size_t i = 1; i <= size; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) == 0) continue;
        const int reason = errno;
        if (file_is_directory(part)) continue;
        errno = reason; /* why it could not be made, not why it is not there */
        return fail_io(error, "create directory", part);
    }
    return true;
}

uint64_t file_room(const char *path) {
    struct statvfs disk;
    return statvfs(path, &disk) || !disk.f_blocks ? UINT64_MAX : (uint64_t)disk.f_bavail * disk.f_frsize;
}
