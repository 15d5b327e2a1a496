/* Reading by io_uring, without its library: two rings that are shared with the kernel (io_uring(7)). */
#include "weights/expert_cache_io_internal.h"

#ifdef __linux__
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct UringIo {
    ExpertCacheIo io;
    int fd;
    void *rings; /* one mapping for both */
    size_t rings_bytes, entries_bytes;
    struct io_uring_sqe *entries;
    unsigned *sq_tail, sq_mask, *cq_head, *cq_tail, cq_mask;
    struct io_uring_cqe *completions;
    unsigned depth, under_way, unsent;
    ExpertCacheRead *first, *last; /* that wait for room */
    ExpertCacheRead *hung;         /* faults */
} UringIo;

static void put(UringIo *u, ExpertCacheRead *read) {
    const unsigned tail = *u->sq_tail, index = tail & u->sq_mask;
    struct io_uring_sqe *entry = &u->entries[index];
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_READ;
    entry->fd = u->io.files[read->file].fd;
    entry->addr = (uintptr_t)(read->to + read->done);
    entry->len = (uint32_t)(read->size - read->done < 1u << 30 ? read->size - read->done : 1u << 30);
    entry->off = read->offset + read->done;
    entry->user_data = (uintptr_t)read;
    __atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
    u->under_way++;
    u->unsent++;
}

static void uring_submit(ExpertCacheIo *io, ExpertCacheRead *read) {
    UringIo *u = (UringIo *)io;
    read->next = NULL;
    if (u->under_way < u->depth) {
        put(u, read);
        return;
    }
    if (u->first)
        u->last->next = read;
    else
        u->first = read;
    u->last = read;
}

static bool completed(const UringIo *u) { return *u->cq_head != __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE); }

/* Sends what was put, and waits so long for a completion. */
static void enter(UringIo *u, int64_t timeout_ns) {
    struct __kernel_timespec time = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    struct io_uring_getevents_arg wait = {.ts = (uintptr_t)&time};
    const long sent = timeout_ns > 0 ? syscall(__NR_io_uring_enter, u->fd, u->unsent, 1,
                                           IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait)
                                     : syscall(__NR_io_uring_enter, u->fd, u->unsent, 0, 0, NULL, 0);
    if (sent > 0) u->unsent -= (unsigned)sent;
    CHECK(sent >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY || errno == ETIME);
}

/* One that a fault had hang, when no more of them shall. */
static ExpertCacheRead *take_hung(UringIo *u) {
    ExpertCacheRead *read = u->hung;
    if (!read || !__atomic_load_n(&u->io.stopping, __ATOMIC_RELAXED)) return NULL;
    u->hung = read->next;
    read->error = EIO;
    return read;
}

static ExpertCacheRead *uring_wait(ExpertCacheIo *io, int timeout_ms) {
    UringIo *u = (UringIo *)io;
    const int64_t end_ns = clock_ns() + timeout_ms * INT64_C(1000000);
    for (;;) {
        const int64_t left_ns = timeout_ms > 0 ? end_ns - clock_ns() : 0;
        ExpertCacheRead *hung = take_hung(u);
        if (hung) return hung;
        if (u->unsent > 0 || (left_ns > 0 && (u->under_way > 0 || u->hung) && !completed(u)))
            enter(u, completed(u) ? 0 : left_ns);
        if (!completed(u)) {
            if (left_ns <= 0 || (u->under_way == 0 && !u->hung)) return NULL;
            continue;
        }
        const struct io_uring_cqe *completion = &u->completions[*u->cq_head & u->cq_mask];
        ExpertCacheRead *read = (ExpertCacheRead *)(uintptr_t)completion->user_data;
        const int64_t result = completion->res;
        __atomic_store_n(u->cq_head, *u->cq_head + 1, __ATOMIC_RELEASE);
        u->under_way--;
        const bool hangs = expert_cache_read_hangs(io),
                   finished = !hangs && expert_cache_read_advance(io, read, result);
        if (hangs) {
            read->next = u->hung;
            u->hung = read;
        } else if (!finished) {
            put(u, read);
        }
        while (u->first && u->under_way < u->depth) {
            ExpertCacheRead *next = u->first;
            u->first = next->next;
            put(u, next);
        }
        if (finished && u->unsent > 0) enter(u, 0);
        if (finished) return read;
    }
}

static void uring_close(ExpertCacheIo *io) {
    UringIo *u = (UringIo *)io;
    if (u->entries) munmap(u->entries, u->entries_bytes);
    if (u->rings) munmap(u->rings, u->rings_bytes);
    if (u->fd >= 0) close(u->fd);
    free(u);
}

static const ExpertCacheIoOps uring_ops = {uring_submit, uring_wait, uring_close};

static bool map_rings(UringIo *u, const struct io_uring_params *p) {
    const size_t sq = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    const size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    u->rings_bytes = sq > cq ? sq : cq;
    u->entries_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    void *rings =
        mmap(NULL, u->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, IORING_OFF_SQ_RING);
    if (rings == MAP_FAILED) return false;
    u->rings = rings;
    void *entries =
        mmap(NULL, u->entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, IORING_OFF_SQES);
    if (entries == MAP_FAILED) return false;
    u->entries = entries;
    uint8_t *base = rings;
    u->sq_tail = (unsigned *)(void *)(base + p->sq_off.tail);
    u->sq_mask = *(unsigned *)(void *)(base + p->sq_off.ring_mask);
    u->cq_head = (unsigned *)(void *)(base + p->cq_off.head);
    u->cq_tail = (unsigned *)(void *)(base + p->cq_off.tail);
    u->cq_mask = *(unsigned *)(void *)(base + p->cq_off.ring_mask);
    u->completions = (struct io_uring_cqe *)(void *)(base + p->cq_off.cqes);
    unsigned *array = (unsigned *)(void *)(base + p->sq_off.array);
    for (unsigned i = 0; i < p->sq_entries; i++) array[i] = i; /* entries are used in the ring's own order */
    return true;
}

ExpertCacheIo *expert_cache_uring_open(int depth, Error *error) {
    struct io_uring_params params = {0};
    UringIo *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    u->io.ops = &uring_ops;
    u->io.way = "io_uring";
    u->fd = (int)syscall(__NR_io_uring_setup, depth, &params);
    u->depth = params.sq_entries;
    const unsigned needed =
        IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS | IORING_FEAT_EXT_ARG; /* Linux 5.11 */
    if (u->fd >= 0 && (params.features & needed) == needed && map_rings(u, &params)) return &u->io;
    uring_close(&u->io);
    return NULL;
}
#else
ExpertCacheIo *expert_cache_uring_open(int depth, Error *error) { return NULL; }
#endif
