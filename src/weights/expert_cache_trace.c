#include "weights/expert_cache_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct ExpertCacheTrace {
    FILE *file;
};

ExpertCacheTrace *expert_cache_trace_open(const char *path, Error *error) {
    ExpertCacheTrace *trace = calloc(1, sizeof *trace);
    if (trace && (trace->file = fopen(path, "we"))) return trace;
    fail(error, trace ? ERROR_IO : ERROR_MEMORY, "cannot write %s: %s", path, strerror(errno));
    free(trace);
    return NULL;
}

void expert_cache_trace_begin(
    ExpertCacheTrace *trace, int slots, int cycle, const int *layer_first, int layers, int experts) {
    if (!trace) return;
    fprintf(trace->file, "apus-routes 2 slots %d cycle %d experts", slots, cycle);
    for (int i = 0; i < layers; i++)
        fprintf(trace->file, " %d", (i + 1 < layers ? layer_first[i + 1] : experts) - layer_first[i]);
    fputc('\n', trace->file);
}

void expert_cache_trace_working_set(ExpertCacheTrace *trace, int cycle) {
    if (trace) fprintf(trace->file, "cycle %d\n", cycle);
}

void expert_cache_trace_request(ExpertCacheTrace *trace, bool prefetch, int layer, const int32_t *experts, int count) {
    if (!trace) return;
    fprintf(trace->file, prefetch ? "hint %d" : "%d", layer);
    for (int i = 0; i < count; i++) fprintf(trace->file, " %" PRId32, experts[i]);
    fputc('\n', trace->file);
}

void expert_cache_trace_close(ExpertCacheTrace *trace, uint64_t hits, uint64_t misses, uint64_t evictions) {
    if (!trace) return;
    fprintf(trace->file, "hits %" PRIu64 " misses %" PRIu64 " evictions %" PRIu64 "\n", hits, misses, evictions);
    const bool written = !ferror(trace->file);
    if (fclose(trace->file) || !written) log_error("a trace of experts could not be written");
    free(trace);
}
