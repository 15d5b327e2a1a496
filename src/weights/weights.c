/* Both ways are one list of pieces, on boundaries of huge pages, which threads take one after another. */
#include "weights/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/memory.h"
#include "base/thread.h"

#if defined(__linux__) && !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels refuse it */
#endif

enum {
    HUGE_PAGE = 2 << 20,
    PIECE_BYTES = 8 << 20,
    READERS_MAX = 8,  /* more do not read a file faster */
    TOUCHERS_MAX = 4, /* beside the threads that start the program */
};

typedef struct Piece {
    int file;
    uint64_t offset; /* in the file */
    size_t size;
} Piece;

struct WeightStore {
    const Checkpoint *checkpoint;
    bool read;
    uint8_t *wanted;  /* [entries] */
    uint8_t **memory; /* [files] address space for a copy, a multiple of HUGE_PAGE; offsets are the file's */
    size_t *sizes;    /* [files] of it */
    int *fds;         /* [files] −1: not open */
    Piece *pieces;
    size_t piece_count;
    uint64_t total;
    Mutex mutex; /* over the following */
    size_t next;
    uint64_t done; /* bytes */
    bool stop;
    int failed_file;  /* −1: none */
    int failed_errno; /* 0: the file is shorter than it was */

    int thread_count;
    Thread threads[READERS_MAX];
};

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

WeightStore *weights_open(const Checkpoint *checkpoint, bool read, Error *error) {
    WeightStore *store = calloc(1, sizeof *store);
    const size_t files = (size_t)checkpoint->file_count;
    if (store) {
        store->checkpoint = checkpoint;
        store->read = read;
        store->failed_file = -1;
        mutex_init(&store->mutex);
        store->wanted = calloc(checkpoint->entry_count + 1, 1);
        store->memory = calloc(files, sizeof *store->memory);
        store->sizes = calloc(files, sizeof *store->sizes);
        store->fds = malloc(files * sizeof *store->fds);
        for (size_t i = 0; store->fds && i < files; i++) store->fds[i] = -1;
    }
    if (store && store->wanted && store->memory && store->sizes && store->fds) return store;
    fail(error, ERROR_MEMORY, "no memory for the table of weights");
    weights_close(store);
    return NULL;
}

/* Address space; memory is taken as it is written. NULL: there is none. */
static uint8_t *reserve(WeightStore *store, int file) {
    if (store->memory[file]) return store->memory[file];
    const size_t size = round_up(store->checkpoint->files[file].size, HUGE_PAGE), room = size + HUGE_PAGE;
    uint8_t *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    const size_t before = -(uintptr_t)start % HUGE_PAGE;
    if (before) munmap(start, before);
    if (before < HUGE_PAGE) munmap(start + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(start + before, size, MADV_HUGEPAGE); /* a wish: without it the pages are small ones */
#endif
    store->sizes[file] = size;
    return store->memory[file] = start + before;
}

const void *weights_place(WeightStore *store, const TensorEntry *entry) {
    store->wanted[entry - store->checkpoint->entries] = 1;
    if (!store->read) return entry->tensor.data;
    uint8_t *memory = reserve(store, entry->file);
    return memory ? memory + entry->offset : entry->tensor.data; /* weights_load will say that there is no memory */
}

/* ---- pieces ---- */

/* The wanted bytes of one file are cut where huge pages end, so that a page has one reader. */
static void cut(WeightStore *store, int file, uint64_t begin, uint64_t end, bool count_only) {
    while (begin < end) {
        const uint64_t limit = (begin / PIECE_BYTES + 1) * PIECE_BYTES, last = limit < end ? limit : end;
        if (!count_only) store->pieces[store->piece_count] = (Piece){file, begin, (size_t)(last - begin)};
        store->piece_count++;
        store->total += last - begin;
        begin = last;
    }
}

/* Neighbouring tensors, and such with a small gap between them, are read in one go. */
static void cut_all(WeightStore *store, bool count_only) {
    const Checkpoint *c = store->checkpoint;
    store->piece_count = 0;
    store->total = 0;
    for (size_t i = 0; i < c->entry_count;) {
        const TensorEntry *first = &c->entries[i];
        uint64_t end = first->offset + first->tensor.bytes;
        const bool wanted = store->wanted[i++];
        if (!wanted) continue;
        for (; i < c->entry_count && c->entries[i].file == first->file; i++) {
            if (!store->wanted[i]) continue;
            if (c->entries[i].offset > end + HUGE_PAGE) break;
            end = c->entries[i].offset + c->entries[i].tensor.bytes;
        }
        cut(store, first->file, first->offset, end, count_only);
    }
}

static bool make_pieces(WeightStore *store, Error *error) {
    cut_all(store, true);
    store->pieces = malloc((store->piece_count + 1) * sizeof *store->pieces);
    if (!store->pieces) return fail(error, ERROR_MEMORY, "no memory for the table of weights");
    cut_all(store, false);
    return true;
}

/* Counts the bytes of the piece that was finished and gives the next; NULL: there is none, or no need. */
static const Piece *next_piece(WeightStore *store, size_t finished) {
    mutex_lock(&store->mutex);
    store->done += finished;
    const bool more = store->next < store->piece_count && !store->stop;
    const Piece *piece = more ? &store->pieces[store->next++] : NULL;
    mutex_unlock(&store->mutex);
    return piece;
}

static void join_all(WeightStore *store) {
    for (int i = 0; i < store->thread_count; i++) thread_join(store->threads[i]);
    store->thread_count = 0;
}

/* ---- reading ---- */

static void read_failed(WeightStore *store, int file, int reason) {
    mutex_lock(&store->mutex);
    store->failed_errno = reason;
    store->failed_file = file;
    store->stop = true;
    mutex_unlock(&store->mutex);
}

/* The bytes read: all, or the reading has failed. */
static size_t read_piece(WeightStore *store, const Piece *piece) {
    uint8_t *to = store->memory[piece->file] + piece->offset;
    size_t have = 0;
    while (have < piece->size) {
        const ssize_t got =
            pread(store->fds[piece->file], to + have, piece->size - have, (off_t)(piece->offset + have));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            read_failed(store, piece->file, got < 0 ? errno : 0);
            break;
        }
        have += (size_t)got;
    }
    return have;
}

static void *read_pieces(void *argument) {
    WeightStore *store = argument;
    size_t have = 0;
    for (const Piece *piece; (piece = next_piece(store, have));) have = read_piece(store, piece);
    return NULL;
}

static uint64_t bytes_done(WeightStore *store) {
    mutex_lock(&store->mutex);
    const uint64_t done = store->done;
    mutex_unlock(&store->mutex);
    return done;
}

static bool open_files(WeightStore *store, Error *error) {
    for (size_t i = 0; i < store->piece_count; i++) {
        const int file = store->pieces[i].file;
        const char *path = store->checkpoint->paths[file];
        if (!store->memory[file])
            return fail(error, ERROR_MEMORY, "no address space for the %zu bytes of %s",
                store->checkpoint->files[file].size, path);
        if (store->fds[file] >= 0) continue;
        store->fds[file] = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe by now would be waited for */
        if (store->fds[file] < 0) return fail(error, ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    return true;
}

static void close_files(WeightStore *store) {
    for (int i = 0; store->fds && i < store->checkpoint->file_count; i++) {
        if (store->fds[i] >= 0) close(store->fds[i]);
        store->fds[i] = -1;
    }
}

static bool check_room(const WeightStore *store, Error *error) {
    const size_t room = memory_available();
    if (store->total <= room) return true;
    return fail(error, ERROR_MEMORY,
        "the weights take %.2f GB of memory and %.2f GB are free; left in the file (--weights mmap) they need none of "
        "their own",
        (double)store->total * 1e-9, (double)room * 1e-9);
}

static bool read_all(WeightStore *store, WeightsProgress *progress, void *context, Error *error) {
    if (!check_room(store, error) || !open_files(store, error)) return false;
    const int helpers = cores_threads(READERS_MAX) - 1;
    while (store->thread_count < helpers) { /* fewer do as well */
        if (!thread_start(&store->threads[store->thread_count], read_pieces, store, "weights", NULL)) break;
        store->thread_count++;
    }
    size_t have = 0;
    for (const Piece *piece; (piece = next_piece(store, have));) {
        have = read_piece(store, piece);
        if (progress) progress(context, bytes_done(store) + have, store->total);
    }
    join_all(store);
    if (store->failed_file >= 0)
        return fail(error, ERROR_IO, "cannot read %s: %s", store->checkpoint->paths[store->failed_file],
            store->failed_errno ? strerror(store->failed_errno) : "it became shorter");
    if (progress) progress(context, store->total, store->total);
    return true;
}

/* ---- touching ---- */

#ifdef MADV_POPULATE_READ
static void *touch_pieces(void *argument) {
    WeightStore *store = argument;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (const Piece *piece; (piece = next_piece(store, 0));) {
        const uintptr_t at = (uintptr_t)store->checkpoint->files[piece->file].data + piece->offset;
        const uintptr_t start = at & ~(page - 1);
        if (madvise((void *)start, at + piece->size - start, MADV_POPULATE_READ)) break; /* it was only a help */
    }
    return NULL;
}

/* Not when the file would push itself out of the memory again. */
static void touch_all(WeightStore *store) {
    if (store->total > memory_available() / 2) return;
    const int touchers = cores_threads(2 * TOUCHERS_MAX) / 2;
    while (store->thread_count < touchers) {
        if (!thread_start(&store->threads[store->thread_count], touch_pieces, store, "weights", NULL)) return;
        store->thread_count++;
    }
}
#else
static void touch_all(WeightStore *store) {}
#endif

/* ---- both ---- */

bool weights_load(WeightStore *store, WeightsProgress *progress, void *context, Error *error) {
    if (!make_pieces(store, error)) return false;
    if (!store->read) {
        touch_all(store);
        return true;
    }
    const bool ok = read_all(store, progress, context, error);
    close_files(store);
    for (int i = 0; ok && i < store->checkpoint->file_count; i++)
        if (store->memory[i]) (void)mprotect(store->memory[i], store->sizes[i], PROT_READ);
    return ok;
}

void weights_close(WeightStore *store) {
    if (!store) return;
    mutex_lock(&store->mutex);
    store->stop = true;
    mutex_unlock(&store->mutex);
    join_all(store);
    mutex_destroy(&store->mutex);
    close_files(store);
    for (int i = 0; store->memory && i < store->checkpoint->file_count; i++)
        if (store->memory[i]) munmap(store->memory[i], store->sizes[i]);
    free(store->wanted);
    free(store->memory);
    free(store->sizes);
    free(store->fds);
    free(store->pieces);
    free(store);
}
