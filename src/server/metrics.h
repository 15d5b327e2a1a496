/* What operators watch, in Prometheus' text form 0.0.4, each model under its own label. Names are vLLM's where it has
 * them, with apus_ in front. Threads: any. */
#pragma once
#include "chat/generation.h"
#include "chat/models.h"

typedef struct Metrics Metrics;

NODISCARD Metrics *metrics_open(int models, Error *error);
void metrics_close(Metrics *metrics); /* NULL is fine */

/* A completion that was answered, or given up by its client: before the generation is closed. seconds: since its first
 * byte came. */
void metrics_note_completion(Metrics *metrics, int model, const Generation *generation, double seconds);
void metrics_note_status(Metrics *metrics, int status); /* of an answer */

void metrics_write(Metrics *metrics, Models *models, Buffer *out);
