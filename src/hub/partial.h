/* A file on its way into the cache: its bytes in blobs/ETAG.apus.incomplete, and in blobs/ETAG.apus.ranges.incomplete
 * how much of each chunk is there, so that several connections can fill it and another process can go on. Both end in
 * ".incomplete", as huggingface_hub expects of what may be removed. Its hash is computed as the beginning grows. */
#pragma once
#include "hub/cache.h"
#include "hub/digest.h"

enum { PARTIAL_CHUNK_BYTES = 8 << 20 };

typedef struct Partial {
    const HubFile *file;
    char *data_path, *ranges_path, *blob_path; /* owned by the arena that partial_open() was given */
    int lock, data, ranges;                    /* descriptors; -1: closed */
    int64_t *done;                             /* [chunks]: bytes from each chunk's beginning */
    size_t chunks;
    int64_t chunk_bytes, done_bytes;
    Digest digest;
    int64_t hashed_bytes;
} Partial;

typedef enum PartialState { PARTIAL_OPEN, PARTIAL_THERE, PARTIAL_BUSY, PARTIAL_FAILED } PartialState;

/* Locks the blob, and finds what is there of it. THERE: the blob is whole. BUSY: another process is at it. */
PartialState partial_open(Partial *partial, const HubSettings *settings, const char *repo, const char *repo_folder,
    const HubFile *file, Arena *arena, Error *error);
/* Keeps what is there for another time, and lets go of the lock. Safe on a zeroed or closed one. */
void partial_close(Partial *partial);
/* Bytes of a chunk, from its done[chunk] on. */
NODISCARD bool partial_write(Partial *partial, size_t chunk, Slice bytes, Error *error);
static inline int64_t partial_chunk_size(const Partial *p, size_t chunk) {
    const int64_t left = p->file->size - (int64_t)chunk * p->chunk_bytes;
    return left < p->chunk_bytes ? left : p->chunk_bytes;
}
/* Forgets a chunk's bytes. */
NODISCARD bool partial_reset_chunk(Partial *partial, size_t chunk, Error *error);
/* Forgets all bytes. whole: the file is one chunk from now on, for servers that know no ranges. */
NODISCARD bool partial_reset(Partial *partial, bool whole, Error *error);
/* Hashes at most `bytes` more of the beginning that is there. */
NODISCARD bool partial_hash(Partial *partial, int64_t bytes, Error *error);
/* All bytes are there and hashed: *right when the hash is the file's name; then the blob is in its place, and on the
 * disk. */
NODISCARD bool partial_finish(Partial *partial, bool *right, Error *error);
/* Bytes of a file that are there without opening it: of a download that was interrupted. */
int64_t partial_present(const char *repo_folder, const HubFile *file);
