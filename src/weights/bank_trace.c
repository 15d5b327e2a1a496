#include "weights/bank_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct BankTrace {
    FILE *file;
};

BankTrace *bank_trace_open(const char *path, Error *error) {
    BankTrace *trace = calloc(1, sizeof *trace);
    if (trace && (trace->file = fopen(path, "we"))) return trace;
    fail(error, trace ? ERROR_IO : ERROR_MEMORY, "cannot write %s: %s", path, strerror(errno));
    free(trace);
    return NULL;
}

void bank_trace_begin(BankTrace *trace, int slots, int cycle, const int *layer_first, int layers, int experts) {
    if (!trace) return;
    fprintf(trace->file, "apus-routes 2 slots %d cycle %d experts", slots, cycle);
    for (int i = 0; i < layers; i++)
        fprintf(trace->file, " %d", (i + 1 < layers ? layer_first[i + 1] : experts) - layer_first[i]);
    fputc('\n', trace->file);
}

void bank_trace_cycle(BankTrace *trace, int cycle) {
    if (trace) fprintf(trace->file, "cycle %d\n", cycle);
}

void bank_trace_want(BankTrace *trace, bool hint, int layer, const int32_t *experts, int count) {
    if (!trace) return;
    fprintf(trace->file, hint ? "hint %d" : "%d", layer);
    for (int i = 0; i < count; i++) fprintf(trace->file, " %" PRId32, experts[i]);
    fputc('\n', trace->file);
}

void bank_trace_close(BankTrace *trace, uint64_t hits, uint64_t misses, uint64_t evictions) {
    if (!trace) return;
    fprintf(trace->file, "hits %" PRIu64 " misses %" PRIu64 " evictions %" PRIu64 "\n", hits, misses, evictions);
    const bool written = !ferror(trace->file);
    if (fclose(trace->file) || !written) log_error("a trace of experts could not be written");
    free(trace);
}
