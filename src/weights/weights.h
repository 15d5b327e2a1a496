/* weights/: where a checkpoint's matrices lie: mapped, or read into memory.
 *
 * How a checkpoint's matrices get into memory.
 * Touched: they stay in the mapped file; threads of their own enter its pages ahead, while the program starts.
 * Read: they are copied into huge pages, which are read faster than a file's and which nothing can evict.
 * Threads: calls from the thread that opens and closes the model. */
#pragma once
#include "tensor/safetensors.h"

typedef struct WeightStore WeightStore;

/* read: matrices are to be copied. The checkpoint outlives the store. */
NODISCARD WeightStore *weights_open(const Checkpoint *checkpoint, bool read, Error *error);
/* Where this tensor's bytes will lie; from now on they are wanted. */
const void *weights_place(WeightStore *store, const TensorEntry *entry);

typedef void WeightsProgress(void *context, uint64_t done, uint64_t total);
/* Everything is placed: copies it (and returns when that is done), or begins to touch it and returns at once.
 * progress may be NULL. */
NODISCARD bool weights_load(WeightStore *store, WeightsProgress *progress, void *context, Error *error);
void weights_close(WeightStore *store); /* ends the touching; NULL is fine */
