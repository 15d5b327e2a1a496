/* What a request must be to enter the engine's queue: its options checked against the model, the largest step and the
 * cache. Threads: any; the engine's constants are read alone. */
#pragma once
#include "engine/request.h"
#include "engine/scheduler.h"

/* Constants of an engine, valid as long as it is. All are borrowed. */
typedef struct Admission {
    const Model *model;
    const Scheduler *scheduler;
    const MediaCache *media;   /* NULL: the model takes neither images nor audio */
    const KvFormat *kv_format; /* format of requests that name none */
    Pooling pooling;           /* NONE: the model makes no embeddings */
    int span_rows_max;         /* rows of a span that is read whole (runner_span_rows_max) */
} Admission;

/* The request, whose reference is the caller's; NULL with the error. ERROR_USAGE: a value out of its range;
 * ERROR_UNSUPPORTED: what the model does not do; ERROR_LIMIT: more tokens than fit. */
NODISCARD Request *admission_take(const Admission *admission, const RequestOptions *asked, Error *error);
