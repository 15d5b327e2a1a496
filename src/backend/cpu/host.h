/* Operations of the table shared by all backends that compute in host memory. */
#pragma once
#include "backend/backend.h"

void *host_alloc(Backend *, size_t bytes, MemoryOwner owner, Error *);
void host_release(Backend *, void *memory);
void host_decommit(Backend *, void *memory, size_t bytes);
bool host_bind(Backend *, Weight *weight, Error *);
void host_unbind(Backend *, const Weight *weight);
void host_copy(Backend *, void *to, const void *from, size_t bytes);
uint64_t host_submit(Backend *); /* everything has been computed already */
bool host_wait(Backend *, uint64_t ticket, Error *);
float *host_read_logits(Backend *, float *logits, int64_t count);
