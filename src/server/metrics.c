#include "server/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"

enum { BUCKETS = 18, STATUS_MAX = 600 };

/* ---- histograms ---- */

static const double seconds_buckets[BUCKETS] = {
    .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500};
static const double tokens_buckets[BUCKETS] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};

typedef struct Histogram {
    uint64_t counts[BUCKETS + 1]; /* not yet summed up; the last: above all */
    double sum;
} Histogram;

typedef enum Observed { FIRST_TOKEN, PER_TOKEN, LATENCY, QUEUE, PREFILL, DECODE, PROMPT, GENERATED, OBSERVED } Observed;

static const struct {
    const char *name, *help;
    const double *buckets;
} observed[OBSERVED] = {
    [FIRST_TOKEN] = {"apus_time_to_first_token_seconds", "From a request's arrival in the queue to its first token.",
        seconds_buckets},
    [PER_TOKEN] = {"apus_request_time_per_output_token_seconds", "Mean time between the tokens of an answer.",
        seconds_buckets},
    [LATENCY] = {"apus_e2e_request_latency_seconds", "From a request's first byte to the end of its answer.",
        seconds_buckets},
    [QUEUE] = {"apus_request_queue_time_seconds", "Time that a request waited to be let in.", seconds_buckets},
    [PREFILL] = {"apus_request_prefill_time_seconds", "Time in which its prompt was read.", seconds_buckets},
    [DECODE] = {"apus_request_decode_time_seconds", "Time from its first token to its last.", seconds_buckets},
    [PROMPT] = {"apus_request_prompt_tokens", "Tokens of a request's prompts, cached ones included.", tokens_buckets},
    [GENERATED] = {"apus_request_generation_tokens", "Tokens of an answer.", tokens_buckets},
};

static void observe(Histogram *histogram, const double *buckets, double value) {
    int i = 0;
    while (i < BUCKETS && value > buckets[i]) i++;
    histogram->counts[i]++;
    histogram->sum += value;
}

/* ---- what is kept ---- */

/* abort: before their end, as their client went, the server stopped or something failed. */
static const char *const finish_names[] = {
    [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "abort"};
enum { FINISHES = sizeof finish_names / sizeof *finish_names };

typedef struct ModelMetrics {
    Histogram histograms[OBSERVED];
    uint64_t finished[FINISHES];                           /* answers */
    uint64_t kv_exact_bytes, kv_coded_bytes, kv_f16_bytes; /* of requests, when they ended */
} ModelMetrics;

struct Metrics {
    Mutex mutex;
    uint64_t statuses[STATUS_MAX];
    int model_count;
    ModelMetrics models[];
};

Metrics *metrics_open(int models, Error *error) {
    Metrics *metrics = calloc(1, sizeof *metrics + (size_t)models * sizeof *metrics->models);
    if (!metrics) {
        fail(error, ERROR_MEMORY, "no memory for metrics");
        return NULL;
    }
    mutex_init(&metrics->mutex);
    metrics->model_count = models;
    return metrics;
}

void metrics_close(Metrics *metrics) {
    if (!metrics) return;
    mutex_destroy(&metrics->mutex);
    free(metrics);
}

void metrics_note_status(Metrics *metrics, int status) {
    if (status < 0 || status >= STATUS_MAX) return;
    mutex_lock(&metrics->mutex);
    metrics->statuses[status]++;
    mutex_unlock(&metrics->mutex);
}

static void note(ModelMetrics *model, Observed what, double value) {
    observe(&model->histograms[what], observed[what].buckets, value);
}

static void note_request(ModelMetrics *model, Request *request, double answer_tokens) {
    const RequestStats stats = request_stats(request);
    note(model, PROMPT, stats.prompt_tokens);
    note(model, QUEUE, stats.queued_s);
    model->kv_exact_bytes += stats.kv_exact_bytes;
    model->kv_coded_bytes += stats.kv_coded_bytes;
    model->kv_f16_bytes += stats.kv_f16_bytes;
    if (answer_tokens == 0) return; /* it was given up before its first token */
    note(model, FIRST_TOKEN, stats.queued_s + stats.prefill_s);
    note(model, PREFILL, stats.prefill_s);
    note(model, DECODE, stats.decode_s);
    if (answer_tokens > 1) note(model, PER_TOKEN, stats.decode_s / (answer_tokens - 1));
}

void metrics_note_completion(Metrics *metrics, int index, const Generation *g, double seconds) {
    mutex_lock(&metrics->mutex);
    ModelMetrics *model = &metrics->models[index];
    for (int r = 0; r < g->request_count; r++) {
        int64_t longest = 0; /* of its answers: they are computed beside each other */
        for (int i = 0; i < g->choice_count; i++)
            if (g->choices[i].request == g->requests[r] && g->choices[i].generated > longest)
                longest = g->choices[i].generated;
        note_request(model, g->requests[r], (double)longest);
    }
    for (int i = 0; i < g->choice_count; i++) {
        const Finish finish = g->choices[i].finish;
        note(model, GENERATED, (double)g->choices[i].generated);
        model->finished[finish == FINISH_NONE ? FINISH_CANCELLED : finish]++;
    }
    note(model, LATENCY, seconds);
    mutex_unlock(&metrics->mutex);
}

/* ---- the engine's figures ---- */

typedef enum FigureKind {
    FIGURE_INT,
    FIGURE_SIZE,
    FIGURE_COUNT,
    FIGURE_SECONDS
} FigureKind; /* int, size_t, uint64_t, double */
#define FIGURE(field, kind) offsetof(EngineStats, field), kind

static const struct Figure {
    const char *name, *type, *help;
    size_t offset;
    FigureKind kind;
} figures[] = {
    {"apus_num_requests_running", "gauge", "Answers that are being computed.", FIGURE(running, FIGURE_INT)},
    {"apus_num_requests_waiting", "gauge", "Requests in the queue.", FIGURE(waiting, FIGURE_INT)},
    {"apus_kv_cache_used_bytes", "gauge", "Memory of pages in use.", FIGURE(kv_bytes, FIGURE_SIZE)},
    {"apus_kv_cache_limit_bytes", "gauge", "Memory that pages may take.", FIGURE(kv_bytes_total, FIGURE_SIZE)},
    {"apus_prefix_cache_bytes", "gauge", "Memory of pages that the prefix cache holds.",
        FIGURE(prefix_bytes, FIGURE_SIZE)},
    {"apus_steps_total", "counter", "Steps computed.", FIGURE(steps, FIGURE_COUNT)},
    {"apus_step_seconds_total", "counter", "Time in steps.", FIGURE(step_s, FIGURE_SECONDS)},
    {"apus_prompt_tokens_total", "counter", "Prompt tokens computed.", FIGURE(prompt_tokens, FIGURE_COUNT)},
    {"apus_generation_tokens_total", "counter", "Tokens generated.", FIGURE(generated_tokens, FIGURE_COUNT)},
    {"apus_prefix_cache_lookups_total", "counter", "Prompts looked up in the prefix cache.",
        FIGURE(prefix_lookups, FIGURE_COUNT)},
    {"apus_prefix_cache_found_total", "counter", "Prompts of which the prefix cache had a part.",
        FIGURE(prefix_hits, FIGURE_COUNT)},
    {"apus_prefix_cache_hits_total", "counter", "Prompt tokens that were not computed, as the prefix cache had them.",
        FIGURE(prefix_tokens, FIGURE_COUNT)},
    {"apus_prefix_cache_evictions_total", "counter", "Pages that left the prefix cache to make room.",
        FIGURE(prefix_evictions, FIGURE_COUNT)},
    {"apus_num_preemptions_total", "counter", "Answers that were parked to make room for others.",
        FIGURE(parked, FIGURE_COUNT)},
    {"apus_num_resumptions_total", "counter", "Parked answers that went on.", FIGURE(resumed, FIGURE_COUNT)},
    {"apus_experts", "gauge", "Experts that are streamed, of all layers.", FIGURE(experts.experts, FIGURE_INT)},
    {"apus_expert_cache_slots", "gauge", "Experts that fit into memory at once.", FIGURE(experts.slots, FIGURE_INT)},
    {"apus_expert_cache_bytes", "gauge", "Memory that streamed experts may take.", FIGURE(experts.bytes, FIGURE_SIZE)},
    {"apus_expert_cache_hits_total", "counter", "Streamed experts that a step wanted and that were in memory.",
        FIGURE(experts.hits, FIGURE_COUNT)},
    {"apus_expert_cache_misses_total", "counter", "Streamed experts that a step wanted and that were read.",
        FIGURE(experts.misses, FIGURE_COUNT)},
    {"apus_expert_cache_evictions_total", "counter", "Streamed experts that left memory to make room.",
        FIGURE(experts.evictions, FIGURE_COUNT)},
    {"apus_expert_hints_total", "counter", "Streamed experts read ahead (--ssd-prefetch).",
        FIGURE(experts.hints, FIGURE_COUNT)},
    {"apus_expert_hint_hits_total", "counter", "Experts read ahead that were wanted afterwards.",
        FIGURE(experts.hint_hits, FIGURE_COUNT)},
    {"apus_expert_hint_losses_total", "counter",
        "Experts that made room for one read ahead and were wanted afterwards.",
        FIGURE(experts.hint_losses, FIGURE_COUNT)},
    {"apus_expert_read_bytes_total", "counter", "Bytes of experts read from files.",
        FIGURE(experts.read_bytes, FIGURE_COUNT)},
    {"apus_expert_read_seconds_total", "counter", "Time in which experts were being read.",
        FIGURE(experts.read_s, FIGURE_SECONDS)},
    {"apus_expert_stall_seconds_total", "counter", "Time in which nothing was computed, as experts were waited for.",
        FIGURE(experts.stall_s, FIGURE_SECONDS)},
    {"apus_disk_cache_written_pages_total", "counter", "Pages written to the disk cache.",
        FIGURE(spilled_pages, FIGURE_COUNT)},
    {"apus_disk_cache_written_bytes_total", "counter", "Bytes written to the disk cache.",
        FIGURE(spilled_bytes, FIGURE_COUNT)},
    {"apus_disk_cache_restored_pages_total", "counter", "Pages read back from the disk cache.",
        FIGURE(restored_pages, FIGURE_COUNT)},
};
enum { FIGURES = sizeof figures / sizeof *figures };

static double figure_value(const EngineStats *stats, const struct Figure *figure) {
    const char *at = (const char *)stats + figure->offset;
    switch (figure->kind) {
    case FIGURE_INT: return *(const int *)at;
    case FIGURE_SIZE: return (double)*(const size_t *)at;
    case FIGURE_SECONDS: return *(const double *)at;
    case FIGURE_COUNT: break;
    }
    return (double)*(const uint64_t *)at;
}

/* ---- the text ---- */

static void write_help(const char *name, const char *type, const char *help, Buffer *out) {
    buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* name{model="…" and opens for more labels. */
static void write_name(const char *name, const char *suffix, const char *model, Buffer *out) {
    buffer_printf(out, "%s%s{model_name=\"", name, suffix);
    for (const char *c = model; *c; c++) {
        if (*c == '\\' || *c == '"') buffer_byte(out, '\\');
        if (*c == '\n')
            buffer_text(out, "\\n");
        else
            buffer_byte(out, *c);
    }
    buffer_byte(out, '"');
}

static void write_count(const char *name, const char *model, const char *labels, double value, Buffer *out) {
    write_name(name, "", model, out);
    buffer_printf(out, "%s} %.15g\n", labels, value); /* whole numbers up to 10¹⁵ as such */
}

static void write_histogram(
    const char *name, const char *model, const double *buckets, const Histogram *histogram, Buffer *out) {
    uint64_t below = 0;
    for (int i = 0; i < BUCKETS; i++) {
        below += histogram->counts[i];
        write_name(name, "_bucket", model, out);
        buffer_printf(out, ",le=\"%g\"} %llu\n", buckets[i], (unsigned long long)below);
    }
    below += histogram->counts[BUCKETS];
    write_name(name, "_bucket", model, out);
    buffer_printf(out, ",le=\"+Inf\"} %llu\n", (unsigned long long)below);
    write_name(name, "_sum", model, out);
    buffer_printf(out, "} %.9g\n", histogram->sum);
    write_name(name, "_count", model, out);
    buffer_printf(out, "} %llu\n", (unsigned long long)below);
}

/* Of the models that are loaded. */
static void write_figures(const ModelStatus *status, int count, Buffer *out) {
    for (int f = 0; f < FIGURES; f++) {
        write_help(figures[f].name, figures[f].type, figures[f].help, out);
        for (int i = 0; i < count; i++)
            if (status[i].state == MODEL_LOADED)
                write_count(figures[f].name, status[i].name, "", figure_value(&status[i].stats, &figures[f]), out);
    }
}

static void write_forms(const ModelStatus *status, int count, bool pages, Buffer *out) {
    const char *name = pages ? "apus_kv_cache_form_pages" : "apus_kv_cache_form_bytes";
    write_help(name, "gauge", pages ? "Pages in use, by their form." : "Memory of pages in use, by their form.", out);
    for (int i = 0; i < count; i++) {
        for (int form = 0; form < KV_FORMS && status[i].state == MODEL_LOADED; form++) {
            char label[32];
            snprintf(label, sizeof label, ",form=\"%s\"", kv_form_name((KvForm)form));
            const EngineStats *stats = &status[i].stats;
            write_count(
                name, status[i].name, label, pages ? stats->kv_form_pages[form] : stats->kv_form_bytes[form], out);
        }
    }
}

static void write_loaded(const ModelStatus *status, int count, Buffer *out) {
    write_help("apus_model_loaded", "gauge", "Whether the model is in memory.", out);
    for (int i = 0; i < count; i++)
        write_count("apus_model_loaded", status[i].name, "", status[i].state == MODEL_LOADED, out);
}

/* Under the mutex, as the following. */
static void write_requests(const Metrics *metrics, const ModelStatus *status, Buffer *out) {
    write_help("apus_request_success_total", "counter", "Answers, by the reason for their end.", out);
    for (int i = 0; i < metrics->model_count; i++) {
        for (int finish = FINISH_STOP; finish < FINISHES; finish++) {
            char label[48];
            snprintf(label, sizeof label, ",finished_reason=\"%s\"", finish_names[finish]);
            write_count("apus_request_success_total", status[i].name, label, metrics->models[i].finished[finish], out);
        }
    }
    write_help("apus_request_kv_cache_bytes_total", "counter",
        "Memory of requests' pages when they ended: kept exactly, kept as codes; f16: had all been kept exactly.", out);
    for (int i = 0; i < metrics->model_count; i++) {
        const ModelMetrics *m = &metrics->models[i];
        const char *name = "apus_request_kv_cache_bytes_total";
        write_count(name, status[i].name, ",kept=\"exact\"", m->kv_exact_bytes, out);
        write_count(name, status[i].name, ",kept=\"coded\"", m->kv_coded_bytes, out);
        write_count(name, status[i].name, ",kept=\"f16\"", m->kv_f16_bytes, out);
    }
    for (int what = 0; what < OBSERVED; what++) {
        write_help(observed[what].name, "histogram", observed[what].help, out);
        for (int i = 0; i < metrics->model_count; i++)
            write_histogram(
                observed[what].name, status[i].name, observed[what].buckets, &metrics->models[i].histograms[what], out);
    }
}

static void write_statuses(const Metrics *metrics, Buffer *out) {
    write_help("apus_http_responses_total", "counter", "Answers over HTTP, by status.", out);
    for (int status = 0; status < STATUS_MAX; status++)
        if (metrics->statuses[status] > 0)
            buffer_printf(out, "apus_http_responses_total{status=\"%d\"} %llu\n", status,
                (unsigned long long)metrics->statuses[status]);
}

void metrics_write(Metrics *metrics, Models *models, Buffer *out) {
    ModelStatus status[MODELS_MAX];
    CHECK(metrics->model_count <= MODELS_MAX);
    for (int i = 0; i < metrics->model_count; i++) status[i] = models_status(models, i);
    write_loaded(status, metrics->model_count, out);
    write_figures(status, metrics->model_count, out);
    write_forms(status, metrics->model_count, false, out);
    write_forms(status, metrics->model_count, true, out);
    mutex_lock(&metrics->mutex);
    write_requests(metrics, status, out);
    write_statuses(metrics, out);
    mutex_unlock(&metrics->mutex);
}
