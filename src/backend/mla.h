/* MLA, the same for all backends. */
#pragma once
#include "backend/backend.h"

/* Copies count floats of every row; rows are from_width and to_width floats apart, in backend memory. */
typedef void CopyColumns(
    Backend *backend, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count);

/* Computes MLA with the backend's own matmul and attention. */
void mla_attend(Backend *backend, const Mla *op, CopyColumns *copy);
/* The same for backends that compute in host memory. */
void host_mla(Backend *backend, const Mla *op);
