/* Latent attention in host memory. */
#pragma once
#include "backend/backend.h"

/* Over the backend's own matmul and attention. */
void cpu_latent(Backend *backend, const Latent *op);
