/* server/admin/: endpoints and records for operators: health, metrics, downloads, the request log.
 *
 * Metrics in Prometheus' text format 0.0.4, each model under its own label. Names are vLLM's where it has
 * them, with apus_ in front. Threads: any. */
#pragma once
#include "server/exchange.h"

typedef struct Metrics Metrics;

NODISCARD Metrics *metrics_open(Error *error);
void metrics_close(Metrics *metrics); /* NULL is fine */

/* What a generation has brought since it was asked last, for the time between tokens. */
void metrics_note_tokens(Metrics *metrics, int model, const Generation *generation, Given *given);
/* A completion that was answered, or given up by its client: before the generation is closed. seconds: since its first
 * byte came. */
void metrics_note_completion(Metrics *metrics, int model, const Generation *generation, double seconds);
void metrics_note_status(Metrics *metrics, int status); /* HTTP status of a response */

/* Vectors that were made of these texts. */
void metrics_note_embeddings(Metrics *metrics, int model, const Tokens *inputs, int count, double seconds);
/* Totals of all models since the start. */
typedef struct MetricsTotals {
    uint64_t requests, tokens; /* answers over HTTP, tokens of those of models */
    double decode_s;
} MetricsTotals;
MetricsTotals metrics_totals(Metrics *metrics);
const char *metrics_finish_name(Finish finish); /* as the metrics and the log have it */

/* A model gets this number: clears the counts of the model that had it before. */
void metrics_note_added(Metrics *metrics, int model);

void metrics_write(const Server *server, Buffer *out);
