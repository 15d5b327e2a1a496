#include "hub/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20 };

typedef struct RangesHead {
    char magic[16];
    int64_t size, chunk_bytes;
} RangesHead;
static const char ranges_magic[16] = "apus ranges 1\n";

static bool fail_io(Error *error, const char *what, const char *path) {
    return fail(error, ERROR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static bool write_at(int fd, const void *bytes, size_t size, int64_t offset) {
    const char *from = bytes;
    while (size) {
        const ssize_t wrote = pwrite(fd, from, size, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        from += wrote;
        offset += wrote;
        size -= (size_t)wrote;
    }
    return true;
}

static bool read_at(int fd, void *bytes, size_t size, int64_t offset) {
    char *to = bytes;
    while (size) {
        const ssize_t got = pread(fd, to, size, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        offset += got;
        size -= (size_t)got;
    }
    return true;
}

/* --- Opening ----------------------------------------------------------------------------------------------------- */

static size_t chunks_of(int64_t size, int64_t chunk_bytes) { return (size_t)((size + chunk_bytes - 1) / chunk_bytes); }

/* What the ranges say, when they are those of this file and its data is as long as it should be. */
static bool ranges_load(Partial *p) {
    RangesHead head;
    struct stat status;
    if (!read_at(p->ranges, &head, sizeof head, 0) || memcmp(head.magic, ranges_magic, sizeof head.magic)) return false;
    if (head.size != p->file->size || (head.chunk_bytes != PARTIAL_CHUNK_BYTES && head.chunk_bytes != head.size))
        return false;
    if (fstat(p->data, &status) || status.st_size != head.size) return false;
    p->chunk_bytes = head.chunk_bytes;
    p->chunks = chunks_of(head.size, head.chunk_bytes);
    if (!read_at(p->ranges, p->done, p->chunks * sizeof *p->done, sizeof head)) return false;
    p->done_bytes = 0;
    for (size_t i = 0; i < p->chunks; i++) {
        if (p->done[i] > partial_chunk_size(p, i)) return false;
        p->done_bytes += p->done[i];
    }
    return true;
}

bool partial_reset(Partial *p, bool whole, Error *error) {
    const int64_t size = p->file->size;
    p->chunk_bytes = whole && size ? size : PARTIAL_CHUNK_BYTES;
    p->chunks = chunks_of(size, p->chunk_bytes);
    p->done_bytes = p->hashed_bytes = 0;
    memset(p->done, 0, p->chunks * sizeof *p->done);
    RangesHead head = {.size = size, .chunk_bytes = p->chunk_bytes};
    memcpy(head.magic, ranges_magic, sizeof head.magic);
    /* The ranges first: they must never speak of bytes that are not there. */
    if (ftruncate(p->ranges, 0) || !write_at(p->ranges, &head, sizeof head, 0) ||
        !write_at(p->ranges, p->done, p->chunks * sizeof *p->done, sizeof head))
        return fail_io(error, "write", p->ranges_path);
    if (ftruncate(p->data, 0) || ftruncate(p->data, (off_t)size)) return fail_io(error, "write", p->data_path);
    return digest_begin(&p->digest, p->file->etag, (size_t)size, error);
}

static bool open_files(Partial *p, Error *error) {
    p->data = open(p->data_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (p->data < 0) return fail_io(error, "create", p->data_path);
    p->ranges = open(p->ranges_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (p->ranges < 0) return fail_io(error, "create", p->ranges_path);
    p->done = calloc(chunks_of(p->file->size, PARTIAL_CHUNK_BYTES) + 1, sizeof *p->done);
    if (!p->done) return fail(error, ERROR_MEMORY, "no memory for the ranges of %s", p->file->path);
    if (ranges_load(p)) return digest_begin(&p->digest, p->file->etag, (size_t)p->file->size, error);
    return partial_reset(p, false, error);
}

static bool make_paths(Partial *p, const char *repo_folder, Arena *arena, Error *error) {
    p->blob_path = arena_printf(arena, "%s/blobs/%s", repo_folder, p->file->etag);
    p->data_path = arena_printf(arena, "%s/blobs/%s.apus.incomplete", repo_folder, p->file->etag);
    p->ranges_path = arena_printf(arena, "%s/blobs/%s.apus.ranges.incomplete", repo_folder, p->file->etag);
    return (p->blob_path && p->data_path && p->ranges_path) || fail(error, ERROR_MEMORY, "no memory for a path");
}

PartialState partial_open(Partial *p, const HubSettings *settings, const char *repo, const char *repo_folder,
    const HubFile *file, Arena *arena, Error *error) {
    bool busy = false;
    *p = (Partial){.file = file, .lock = -1, .data = -1, .ranges = -1};
    if (!make_paths(p, repo_folder, arena, error)) return PARTIAL_FAILED;
    p->lock = cache_lock(settings, repo, file->etag, &busy, error);
    if (busy) return PARTIAL_BUSY;
    if (p->lock < 0) return PARTIAL_FAILED;
    if (cache_has_blob(repo_folder, file)) { /* looked at under the lock: another process may just have finished it */
        partial_close(p);
        return PARTIAL_THERE;
    }
    if (open_files(p, error)) return PARTIAL_OPEN;
    partial_close(p);
    return PARTIAL_FAILED;
}

void partial_close(Partial *p) {
    int *descriptors[] = {&p->data, &p->ranges, &p->lock}; /* the lock last */
    for (size_t i = 0; i < COUNT_OF(descriptors); i++) {
        if (*descriptors[i] > 0) close(*descriptors[i]);
        *descriptors[i] = -1;
    }
    digest_free(&p->digest);
    free(p->done);
    p->done = NULL;
}

int64_t partial_present(const char *repo_folder, const HubFile *file) {
    Arena arena = {0};
    Error ignored;
    Partial p = {.file = file, .lock = -1, .data = -1, .ranges = -1};
    int64_t there = 0;
    if (make_paths(&p, repo_folder, &arena, &ignored)) {
        p.data = open(p.data_path, O_RDONLY | O_CLOEXEC);
        p.ranges = open(p.ranges_path, O_RDONLY | O_CLOEXEC);
        p.done = calloc(chunks_of(file->size, PARTIAL_CHUNK_BYTES) + 1, sizeof *p.done);
        if (p.data >= 0 && p.ranges >= 0 && p.done && ranges_load(&p)) there = p.done_bytes;
    }
    partial_close(&p);
    arena_free(&arena);
    return there;
}

/* --- Filling ----------------------------------------------------------------------------------------------------- */

static bool ranges_write(Partial *p, size_t chunk, Error *error) {
    const int64_t at = (int64_t)sizeof(RangesHead) + (int64_t)(chunk * sizeof *p->done);
    return write_at(p->ranges, &p->done[chunk], sizeof *p->done, at) || fail_io(error, "write", p->ranges_path);
}

bool partial_write(Partial *p, size_t chunk, Slice bytes, Error *error) {
    const int64_t at = (int64_t)chunk * p->chunk_bytes + p->done[chunk];
    if (!write_at(p->data, bytes.data, bytes.size, at)) return fail_io(error, "write", p->data_path);
    p->done[chunk] += (int64_t)bytes.size;
    p->done_bytes += (int64_t)bytes.size;
    return ranges_write(p, chunk, error);
}

bool partial_reset_chunk(Partial *p, size_t chunk, Error *error) {
    if (p->hashed_bytes > (int64_t)chunk * p->chunk_bytes) {
        p->hashed_bytes = 0;
        if (!digest_begin(&p->digest, p->file->etag, (size_t)p->file->size, error)) return false;
    }
    p->done_bytes -= p->done[chunk];
    p->done[chunk] = 0;
    return ranges_write(p, chunk, error);
}

/* --- The end ----------------------------------------------------------------------------------------------------- */

bool partial_hash(Partial *p, int64_t bytes, Error *error) {
    char *block = malloc(READ_BYTES);
    bool ok = block || fail(error, ERROR_MEMORY, "no memory to check %s", p->file->path);
    while (ok && bytes > 0 && p->hashed_bytes < p->file->size) {
        const size_t chunk = (size_t)(p->hashed_bytes / p->chunk_bytes);
        int64_t size = (int64_t)chunk * p->chunk_bytes + p->done[chunk] - p->hashed_bytes;
        if (size <= 0) break;
        if (size > READ_BYTES) size = READ_BYTES;
        ok = read_at(p->data, block, (size_t)size, p->hashed_bytes) || fail_io(error, "read", p->data_path);
        ok = ok && digest_add(&p->digest, (Slice){block, (size_t)size}, error);
        p->hashed_bytes += size;
        bytes -= size;
    }
    free(block);
    return ok;
}

bool partial_finish(Partial *p, bool *right, Error *error) {
    char hex[DIGEST_DIGITS_MAX + 1];
    if (!digest_end(&p->digest, hex, error)) return false;
    *right = !strcmp(hex, p->file->etag);
    if (!*right) return true;
    if (fsync(p->data)) return fail_io(error, "write", p->data_path);
    if (rename(p->data_path, p->blob_path)) return fail_io(error, "rename", p->data_path);
    unlink(p->ranges_path);
    return true;
}
