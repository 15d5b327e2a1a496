/* A safetensors checkpoint: one file, or shards named by model.safetensors.index.json (or model*.safetensors without
 * one). Everything in the headers is checked before use: sizes, offsets, overlaps, dtypes, shapes × dtype = bytes.
 * Memory-mapped; tensors stay valid until close. Threads: immutable once open. Format:
 * github.com/huggingface/safetensors. */
#pragma once
#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "tensor/tensor.h"

typedef struct TensorEntry {
    Slice name;
    Tensor tensor;
    int file;        /* index into files */
    uint64_t offset; /* position of the data in its file, in bytes */
} TensorEntry;

typedef struct Checkpoint {
    Arena arena;
    int file_count;
    FileMap *files;
    const char **paths;
    size_t entry_count;
    TensorEntry *entries; /* in file order */
    Map by_name;          /* name → index of entry */
} Checkpoint;

NODISCARD bool checkpoint_open(Checkpoint *checkpoint, const char *directory, Error *error);
/* One file of a directory, whatever its name. */
NODISCARD bool checkpoint_open_file(Checkpoint *checkpoint, const char *directory, const char *name, Error *error);
void checkpoint_close(Checkpoint *checkpoint);                                      /* safe on a zeroed struct */
const TensorEntry *checkpoint_find(const Checkpoint *checkpoint, const char *name); /* NULL when absent */
/* The path of a file that was truncated since, so that tensors of it read as zeros, or NULL: a load per file. */
const char *checkpoint_damaged(const Checkpoint *checkpoint);

/* Writing, tensor by tensor, with the header fixed beforehand. The file appears under its name only when finished. */
typedef struct SafetensorsWriter SafetensorsWriter;
typedef struct TensorHeader {
    const char *name;
    DType dtype;
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
} TensorHeader;
NODISCARD SafetensorsWriter *safetensors_create(
    const char *path, const TensorHeader *headers, size_t count, Error *error);
/* Appends bytes of the data area, in header order, in pieces of any size. */
NODISCARD bool safetensors_write(SafetensorsWriter *writer, const void *bytes, size_t size, Error *error);
NODISCARD bool safetensors_finish(SafetensorsWriter *writer, Error *error); /* sync, rename, free */
void safetensors_abandon(SafetensorsWriter *writer);                        /* removes what was written; NULL is fine */
