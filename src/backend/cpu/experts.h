/* Mixtures of experts in host memory: which experts a row uses, and their products grouped by expert, so that each
 * expert's weights are read once however many rows use it. */
#pragma once
#include "backend/backend.h"

/* Routing as backend.h defines it; both CPU backends compute it so. */
void cpu_route(Backend *backend, const Routing *op);
/* Over the backend's own glu and matmul. A row's sum has the order of its own list, so its bits depend on it alone. */
void cpu_experts(Backend *backend, const Experts *op);
