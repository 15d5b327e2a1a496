/* Files: whole reads, read-only mappings, atomic writes. Only regular files are read or mapped: a pipe, a socket, a
 * device or a directory is refused at once, with an error that says what it is.
 * A mapping that turns out shorter than promised (the file was truncated while it was mapped) reads as zeros and
 * marks the file as damaged instead of killing the process: file_damaged() says so. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

typedef struct FileMap {
    const uint8_t *data; /* NULL when size is 0 */
    size_t size;
    int slot; /* internal */
} FileMap;

NODISCARD bool file_map(FileMap *map, const char *path, Error *error);
void file_unmap(FileMap *map); /* safe on a zeroed FileMap */
/* True if a page of the mapping could not be read since it was mapped. One relaxed load, no lock: call it after the
 * readers of a step have been joined; asking for every file of a model is cheap. */
bool file_damaged(const FileMap *map);
/* Appends the whole file; limit: the most bytes it may have, 0 = none. */
NODISCARD bool file_read(const char *path, size_t limit, Buffer *out, Error *error);
/* Writes a new file beside path, syncs it and renames it over path: readers see the old or the new, never half. */
NODISCARD bool file_write_atomic(const char *path, Slice bytes, Error *error);
bool file_exists(const char *path);
bool file_is_directory(const char *path);
NODISCARD bool file_make_directories(const char *path, Error *error);
/* Free bytes of the file system that path, a file or a directory, lies on; UINT64_MAX where it does not say. */
uint64_t file_room(const char *path);
