#include "weights/disk_probe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "weights/expert_cache_io_internal.h"

enum {
    SETTINGS = DISK_DEPTHS + 4, /* buffered and direct twice, and large blocks */
    SETTING_NS = 500000000 / SETTINGS,
    USUAL_DEPTH = 2, /* which of disk_depths the settings compare at */
    MEMORY_BYTES_MAX = 64 << 20,
    HUGE_PAGE = 2 << 20,
    PLACE_BYTES = 1 << 16, /* where blocks begin: no system has larger pages */
    PLACES_TRIED = 16,
    SILENCE_MS = 10000,
    BLOCK_BYTES_MAX = 4 << 20,
    LARGE_BYTES_MAX = 8 << 20,
};
static const double NEARLY = 0.9;        /* share of the best rate from which more reads in flight bring nothing */
static const double BUFFERED_GAIN = 1.3; /* the page cache costs a copy, and its memory is not ours: it must pay */

const int disk_depths[DISK_DEPTHS] = {1, 4, 8, 16, 32};

typedef struct Probe {
    const char *path;
    ExpertCacheIoKind kind;
    uint8_t *memory;        /* MEMORY_BYTES_MAX */
    ExpertCacheRead *reads; /* [the largest depth] */
    uint64_t random;
    bool silent; /* reads do not come back: they may yet be written to where they were to go */
} Probe;

static uint64_t next_random(Probe *p) { /* xorshift64 */
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    return p->random ^= p->random << 17;
}

static int64_t whole_blocks(int64_t bytes, int64_t most) {
    const int64_t rounded = (bytes + EXPERT_CACHE_ALIGN - 1) / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN;
    return rounded < EXPERT_CACHE_ALIGN ? EXPERT_CACHE_ALIGN : rounded < most ? rounded : most;
}

/* Whether the page cache holds a part of it: then reading through it would tell of memory, not of the disk. */
static bool is_cached(int fd, uint64_t offset, size_t size) {
    unsigned char pages[LARGE_BYTES_MAX / EXPERT_CACHE_ALIGN]; /* or larger ones than EXPERT_CACHE_ALIGN, and fewer */
    CHECK(size <= LARGE_BYTES_MAX);
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (map == MAP_FAILED) return true;
    bool cached = mincore(map, size, (void *)pages) != 0;
    for (size_t i = 0; i < size / (size_t)sysconf(_SC_PAGESIZE); i++) cached = cached || pages[i] & 1;
    munmap(map, size);
    return cached;
}

/* Begins to read a random block. False: through the page cache, and all those that were tried are in it. */
static bool begin(Probe *p, ExpertCacheIo *io, ExpertCacheRead *read, int64_t block) {
    const ExpertCacheFile *file = &io->files[0];
    const uint64_t places = (file->size - (uint64_t)block) / PLACE_BYTES + 1;
    bool fresh = false;
    for (int i = 0; i < PLACES_TRIED && !fresh; i++) {
        read->offset = next_random(p) % places * PLACE_BYTES;
        fresh = file->direct || !is_cached(file->fd, read->offset, (size_t)block);
    }
    if (!fresh) return false;
    read->size = read->need = (size_t)block;
    expert_cache_io_submit(io, read);
    return true;
}

/* Random blocks of the file, `depth` at a time, until the time of a setting is over. *rate stays 0 when a read fails.
 */
static void run(Probe *p, ExpertCacheIo *io, int64_t block, int depth, double *rate) {
    const int64_t start = clock_ns();
    int64_t bytes = 0, now = start;
    int under_way = 0;
    bool failed = false;
    for (int i = 0; i < depth; i++) {
        p->reads[i] = (ExpertCacheRead){.to = p->memory + (size_t)i * (size_t)block};
        if (begin(p, io, &p->reads[i], block)) under_way++;
    }
    while (under_way > 0) {
        ExpertCacheRead *read = expert_cache_io_wait(io, SILENCE_MS);
        p->silent = !read;
        if (p->silent) return;
        under_way--;
        failed = failed || read->error;
        now = clock_ns();
        bytes += block;
        if (!failed && now - start < SETTING_NS && begin(p, io, read, block)) under_way++;
    }
    if (!failed && bytes > 0) *rate = (double)bytes / ((double)(now - start) * 1e-9);
}

static bool measure(Probe *p, bool buffered, int64_t block, int at, double *rate, Error *error) {
    int depth = disk_depths[at];
    while (depth > 1 && depth * block > MEMORY_BYTES_MAX) depth /= 2;
    ExpertCacheIo *io = expert_cache_io_open(p->kind, &p->path, 1, depth, NULL, error);
    if (!io) return false;
    const bool there = expert_cache_io_size(io, 0) >= (size_t)block && (!buffered || expert_cache_io_buffer(io, false));
    if (there) run(p, io, block, depth, rate);
    if (p->silent) return fail(error, ERROR_IO, "%s: the disk does not answer", p->path);
    expert_cache_io_close(io);
    return true;
}

/* In turn and twice, the better of each: whatever else happens on the machine meets both. */
static bool choose_way(Probe *p, DiskProbe *out, double *direct, Error *error) {
    for (int round = 0; round < 2; round++) {
        double around = 0, through = 0;
        if (!measure(p, false, out->block_bytes, USUAL_DEPTH, &around, error) ||
            !measure(p, true, out->block_bytes, USUAL_DEPTH, &through, error))
            return false;
        *direct = around > *direct ? around : *direct;
        out->buffered = through > out->buffered ? through : out->buffered;
    }
    out->direct = *direct > 0 && *direct * BUFFERED_GAIN >= out->buffered;
    return true;
}

static bool probe(Probe *p, DiskProbe *out, Error *error) {
    double direct = 0;
    if (!choose_way(p, out, &direct, error)) return false;
    double best = 0;
    for (int i = 0; i < DISK_DEPTHS; i++) {
        out->rate[i] = out->direct ? direct : out->buffered;
        if (i != USUAL_DEPTH && !measure(p, !out->direct, out->block_bytes, i, &out->rate[i], error)) return false;
        best = out->rate[i] > best ? out->rate[i] : best;
    }
    int at = DISK_DEPTHS - 1;
    while (out->rate[at] < NEARLY * best) at--;
    out->depth = disk_depths[at];
    return measure(p, !out->direct, out->large_bytes, USUAL_DEPTH, &out->large, error);
}

bool disk_probe(
    const char *path, ExpertCacheIoKind kind, int64_t block_bytes, int64_t large_bytes, DiskProbe *out, Error *error) {
    *out = (DiskProbe){.block_bytes = whole_blocks(block_bytes, BLOCK_BYTES_MAX),
        .large_bytes = whole_blocks(large_bytes, LARGE_BYTES_MAX)};
    Probe p = {.path = path, .kind = kind, .random = (uint64_t)clock_ns() | 1};
    p.memory = aligned_alloc(HUGE_PAGE, MEMORY_BYTES_MAX);
    p.reads = calloc((size_t)disk_depths[DISK_DEPTHS - 1], sizeof *p.reads);
    bool ok = (p.memory && p.reads) || fail(error, ERROR_MEMORY, "no memory to measure the disk");
    if (ok) { /* the kernel would take pages within the reads, three times slower */
#ifdef MADV_HUGEPAGE
        (void)madvise(p.memory, MEMORY_BYTES_MAX, MADV_HUGEPAGE); /* a wish */
#endif
        memset(p.memory, 1, MEMORY_BYTES_MAX);
    }
    ok = ok && probe(&p, out, error);
    if (p.silent) return false; /* and what it was to read into is left to it */
    free(p.memory);
    free(p.reads);
    return ok;
}

double disk_rate(const DiskProbe *probe, double under_way) {
    if (under_way <= disk_depths[0]) return probe->rate[0];
    for (int i = 1; i < DISK_DEPTHS; i++) {
        if (under_way > disk_depths[i]) continue;
        const double part = (under_way - disk_depths[i - 1]) / (disk_depths[i] - disk_depths[i - 1]);
        return probe->rate[i - 1] + part * (probe->rate[i] - probe->rate[i - 1]);
    }
    return probe->rate[DISK_DEPTHS - 1];
}
