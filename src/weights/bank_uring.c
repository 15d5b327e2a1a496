/* Reading by io_uring, without its library: two rings that are shared with the kernel (io_uring(7)). */
#include "weights/bank_io_internal.h"

#ifdef __linux__
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct UringIo {
    BankIo io;
    int fd;
    void *rings; /* one mapping for both */
    size_t rings_bytes, entries_bytes;
    struct io_uring_sqe *entries;
    unsigned *sq_tail, sq_mask, *cq_head, *cq_tail, cq_mask;
    struct io_uring_cqe *completions;
    unsigned depth, under_way, unsent;
    BankRead *first, *last; /* that wait for room */
} UringIo;

static void put(UringIo *u, BankRead *read) {
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

static void uring_submit(BankIo *io, BankRead *read) {
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

/* Sends what was put, and waits for a completion if asked to. */
static void enter(UringIo *u, bool block) {
    const long sent =
        syscall(__NR_io_uring_enter, u->fd, u->unsent, block ? 1 : 0, block ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    if (sent > 0) u->unsent -= (unsigned)sent;
    CHECK(sent >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY);
}

static BankRead *uring_wait(BankIo *io, bool block) {
    UringIo *u = (UringIo *)io;
    for (;;) {
        if (u->unsent > 0 || (block && u->under_way > 0 && !completed(u))) enter(u, block && !completed(u));
        if (!completed(u)) {
            if (!block || u->under_way == 0) return NULL;
            continue;
        }
        const struct io_uring_cqe *completion = &u->completions[*u->cq_head & u->cq_mask];
        BankRead *read = (BankRead *)(uintptr_t)completion->user_data;
        const int64_t result = completion->res;
        __atomic_store_n(u->cq_head, *u->cq_head + 1, __ATOMIC_RELEASE);
        u->under_way--;
        const bool finished = bank_read_advance(io, read, result);
        if (!finished) put(u, read);
        while (u->first && u->under_way < u->depth) {
            BankRead *next = u->first;
            u->first = next->next;
            put(u, next);
        }
        if (finished && u->unsent > 0) enter(u, false);
        if (finished) return read;
    }
}

static void uring_close(BankIo *io) {
    UringIo *u = (UringIo *)io;
    if (u->entries) munmap(u->entries, u->entries_bytes);
    if (u->rings) munmap(u->rings, u->rings_bytes);
    if (u->fd >= 0) close(u->fd);
    free(u);
}

static const BankIoOps uring_ops = {uring_submit, uring_wait, uring_close};

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

BankIo *bank_uring_open(int depth, Error *error) {
    struct io_uring_params params = {0};
    UringIo *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    u->io.ops = &uring_ops;
    u->io.way = "io_uring";
    u->fd = (int)syscall(__NR_io_uring_setup, depth, &params);
    u->depth = params.sq_entries;
    const unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS; /* Linux 5.6 */
    if (u->fd >= 0 && (params.features & needed) == needed && map_rings(u, &params)) return &u->io;
    uring_close(&u->io);
    return NULL;
}
#else
BankIo *bank_uring_open(int depth, Error *error) { return NULL; }
#endif
