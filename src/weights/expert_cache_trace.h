/* What steps wanted, as a text to be played again without the model (tools/replay_routes.py). Lines:
 *   apus-routes 2 slots S cycle C experts N0 N1 …   room, experts that a token uses in all layers, and each layer's
 *   cycle C                                         from here on as many are wanted by a step in all layers
 *   LAYER EXPERT …                                  wanted, in the order in which they count as used
 *   hint LAYER EXPERT                               read for a hint
 *   hits H misses M evictions E                     the cache's own counters; the end
 * A file that cannot be written ends the trace, and nothing else.
 * Threads: the step's. */
#pragma once
#include <stdint.h>

#include "base/error.h"

typedef struct ExpertCacheTrace ExpertCacheTrace;

NODISCARD ExpertCacheTrace *expert_cache_trace_open(const char *path, Error *error);
void expert_cache_trace_begin(
    ExpertCacheTrace *trace, int slots, int cycle, const int *layer_first, int layers, int experts);
/* NULL is fine for all that follow: there is none. */
void expert_cache_trace_working_set(ExpertCacheTrace *trace, int cycle);
void expert_cache_trace_request(ExpertCacheTrace *trace, bool prefetch, int layer, const int32_t *experts, int count);
void expert_cache_trace_close(ExpertCacheTrace *trace, uint64_t hits, uint64_t misses, uint64_t evictions);
