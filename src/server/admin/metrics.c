#include "server/admin/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/process.h"
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

/* Tokens per second. */
static const double rate_buckets[BUCKETS] = {
    .5, 1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500, 1000, 2000, 5000, 10000, 50000};

typedef enum Observed {
    FIRST_TOKEN,
    PER_TOKEN,
    INTER_TOKEN,
    LATENCY,
    QUEUE,
    PREFILL,
    DECODE,
    PREFILL_RATE,
    DECODE_RATE,
    PROMPT,
    GENERATED,
    OBSERVED
} Observed;

static const struct {
    const char *name, *help;
    const double *buckets;
} observed[OBSERVED] = {
    [FIRST_TOKEN] = {"apus_time_to_first_token_seconds", "From a request's arrival in the queue to its first token.",
        seconds_buckets},
    [PER_TOKEN] = {"apus_request_time_per_output_token_seconds", "Mean time between the tokens of an answer.",
        seconds_buckets},
    [INTER_TOKEN] = {"apus_inter_token_latency_seconds", "Time between one token of an answer and the next.",
        seconds_buckets},
    [LATENCY] = {"apus_e2e_request_latency_seconds", "From a request's first byte to the end of its answer.",
        seconds_buckets},
    [QUEUE] = {"apus_request_queue_time_seconds", "Time that a request waited to be let in.", seconds_buckets},
    [PREFILL] = {"apus_request_prefill_time_seconds", "Time in which its prompt was read.", seconds_buckets},
    [DECODE] = {"apus_request_decode_time_seconds", "Time from its first token to its last.", seconds_buckets},
    [PREFILL_RATE] = {"apus_request_prefill_tokens_per_second",
        "Tokens per second that its prompt was read with, cached ones left out.", rate_buckets},
    [DECODE_RATE] = {"apus_request_decode_tokens_per_second", "Tokens per second of an answer behind its first.",
        rate_buckets},
    [PROMPT] = {"apus_request_prompt_tokens", "Tokens of a request's prompts, cached ones included.", tokens_buckets},
    [GENERATED] = {"apus_request_generation_tokens", "Tokens of an answer.", tokens_buckets},
};

static void observe(Histogram *histogram, const double *buckets, double value, uint64_t times) {
    int i = 0;
    while (i < BUCKETS && value > buckets[i]) i++;
    histogram->counts[i] += times;
    histogram->sum += value * (double)times;
}

/* ---- counters ---- */

/* abort: before their end, as their client went, the server stopped or something failed. */
static const char *const finish_names[] = {
    [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "abort"};
enum { FINISHES = sizeof finish_names / sizeof *finish_names };

static Finish finish_of(Finish finish) { return finish == FINISH_NONE ? FINISH_CANCELLED : finish; }
const char *metrics_finish_name(Finish finish) { return finish_names[finish_of(finish)]; }

typedef struct ModelMetrics {
    Histogram histograms[OBSERVED];
    uint64_t finished[FINISHES]; /* answers */
    uint64_t embeddings;
    uint64_t kv_full_bytes, kv_quantised_bytes, kv_f16_bytes; /* bytes of requests' pages when they ended */
} ModelMetrics;

struct Metrics {
    Mutex mutex;
    uint64_t statuses[STATUS_MAX];
    MetricsTotals removed;           /* totals of removed models */
    ModelMetrics models[MODELS_MAX]; /* by number */
};

Metrics *metrics_open(Error *error) {
    Metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics) {
        fail(error, ERROR_MEMORY, "no memory for metrics");
        return NULL;
    }
    mutex_init(&metrics->mutex);
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
    observe(&model->histograms[what], observed[what].buckets, value, 1);
}

static void note_request(ModelMetrics *model, Request *request, double answer_tokens) {
    const RequestStats stats = request_stats(request);
    note(model, PROMPT, stats.prompt_tokens);
    note(model, QUEUE, stats.queued_s);
    model->kv_full_bytes += stats.kv_full_bytes;
    model->kv_quantised_bytes += stats.kv_quantised_bytes;
    model->kv_f16_bytes += stats.kv_f16_bytes;
    if (answer_tokens == 0) return; /* it was given up before its first token */
    note(model, FIRST_TOKEN, stats.queued_s + stats.prefill_s);
    note(model, PREFILL, stats.prefill_s);
    note(model, DECODE, stats.decode_s);
    const int read = stats.prompt_tokens - stats.cached_tokens;
    if (read > 0 && stats.prefill_s > 0) note(model, PREFILL_RATE, read / stats.prefill_s);
    if (answer_tokens <= 1) return;
    note(model, PER_TOKEN, stats.decode_s / (answer_tokens - 1));
    if (stats.decode_s > 0) note(model, DECODE_RATE, (answer_tokens - 1) / stats.decode_s);
}

void metrics_note_completion(Metrics *metrics, int index, const Generation *g, double seconds) {
    mutex_lock(&metrics->mutex);
    ModelMetrics *model = &metrics->models[index];
    for (int r = 0; r < g->request_count; r++) {
        int64_t longest = 0; /* longest of its answers, which are computed beside each other */
        for (int i = 0; i < g->choice_count; i++)
            if (g->choices[i].request == g->requests[r] && g->choices[i].generated > longest)
                longest = g->choices[i].generated;
        note_request(model, g->requests[r], (double)longest);
    }
    for (int i = 0; i < g->choice_count; i++) {
        note(model, GENERATED, (double)g->choices[i].generated);
        model->finished[finish_of(g->choices[i].finish)]++;
    }
    note(model, LATENCY, seconds);
    mutex_unlock(&metrics->mutex);
}

void metrics_note_tokens(Metrics *metrics, int index, const Generation *g, Given *given) {
    const int64_t now = clock_ns();
    Histogram *histogram = &metrics->models[index].histograms[INTER_TOKEN];
    mutex_lock(&metrics->mutex);
    for (int i = 0; i < g->choice_count; i++) {
        Given *seen = &given[i];
        const int64_t fresh = g->choices[i].generated - seen->tokens;
        if (fresh == 0) continue;
        if (seen->tokens > 0) /* several at once, as of a reader that comes late, were apart from each other */
            observe(histogram, seconds_buckets, (double)(now - seen->told_ns) * 1e-9 / (double)fresh, (uint64_t)fresh);
        seen->tokens += fresh;
        seen->told_ns = now;
    }
    mutex_unlock(&metrics->mutex);
}

void metrics_note_embeddings(Metrics *metrics, int index, const Tokens *inputs, int count, double seconds) {
    mutex_lock(&metrics->mutex);
    ModelMetrics *model = &metrics->models[index];
    for (int i = 0; i < count; i++) note(model, PROMPT, (double)inputs[i].count);
    model->embeddings += (uint64_t)count;
    note(model, LATENCY, seconds);
    mutex_unlock(&metrics->mutex);
}

static void add_totals(const ModelMetrics *model, MetricsTotals *totals) {
    totals->tokens += (uint64_t)model->histograms[GENERATED].sum;
    totals->decode_s += model->histograms[DECODE].sum;
}

void metrics_note_added(Metrics *metrics, int index) {
    mutex_lock(&metrics->mutex);
    add_totals(&metrics->models[index], &metrics->removed);
    metrics->models[index] = (ModelMetrics){0};
    mutex_unlock(&metrics->mutex);
}

MetricsTotals metrics_totals(Metrics *metrics) {
    mutex_lock(&metrics->mutex);
    MetricsTotals totals = metrics->removed;
    for (int status = 0; status < STATUS_MAX; status++) totals.requests += metrics->statuses[status];
    for (int i = 0; i < MODELS_MAX; i++) add_totals(&metrics->models[i], &totals);
    mutex_unlock(&metrics->mutex);
    return totals;
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
    {"apus_slots", "gauge", "Answers that can be computed at once.", FIGURE(slots, FIGURE_INT)},
    {"apus_num_requests_running", "gauge", "Answers that are being computed.", FIGURE(running, FIGURE_INT)},
    {"apus_num_requests_waiting", "gauge", "Requests in the queue.", FIGURE(waiting, FIGURE_INT)},
    {"apus_kv_cache_used_bytes", "gauge", "Memory of pages in use.", FIGURE(kv_bytes, FIGURE_SIZE)},
    {"apus_kv_cache_limit_bytes", "gauge", "Memory that pages may take.", FIGURE(kv_bytes_total, FIGURE_SIZE)},
    {"apus_kv_cache_idle_bytes", "gauge", "Used memory that only the prefix cache holds, which it frees for requests.",
        FIGURE(kv_idle_bytes, FIGURE_SIZE)},
    /* These two names are the defaults of routers of the Kubernetes gateway's inference extension
     * (docs/proposals/003-model-server-protocol). */
    {"vllm:num_requests_running", "gauge", "The same as apus_num_requests_running.", FIGURE(running, FIGURE_INT)},
    {"vllm:num_requests_waiting", "gauge", "The same as apus_num_requests_waiting.", FIGURE(waiting, FIGURE_INT)},
    {"apus_media_cache_bytes", "gauge", "Memory of the rows of images and audio that are kept.",
        FIGURE(media_bytes, FIGURE_SIZE)},
    {"apus_media_encoder_bytes", "gauge", "Memory that encoding the largest image so far has taken.",
        FIGURE(media_encoder_bytes, FIGURE_SIZE)},
    {"apus_media_seconds_total", "counter", "Time in which images and audio were encoded.",
        FIGURE(media_s, FIGURE_SECONDS)},
    {"apus_prefix_cache_bytes", "gauge", "Memory of pages that the prefix cache holds.",
        FIGURE(prefix_bytes, FIGURE_SIZE)},
    {"apus_prefix_cache_state_bytes", "gauge", "Memory of snapshots of recurrent states in the prefix cache.",
        FIGURE(prefix_state_bytes, FIGURE_SIZE)},
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
    {"apus_prefix_cache_evictions_total", "counter", "Pages evicted from the prefix cache.",
        FIGURE(prefix_evictions, FIGURE_COUNT)},
    {"apus_num_preemptions_total", "counter", "Answers that were preempted to make room for older ones.",
        FIGURE(preempted, FIGURE_COUNT)},
    {"apus_num_resumptions_total", "counter", "Preempted answers that were resumed.", FIGURE(resumed, FIGURE_COUNT)},
    {"apus_experts", "gauge", "Experts that are streamed, of all layers.", FIGURE(experts.experts, FIGURE_INT)},
    {"apus_expert_cache_slots", "gauge", "Experts that fit into memory at once.", FIGURE(experts.slots, FIGURE_INT)},
    {"apus_expert_cache_bytes", "gauge", "Memory that streamed experts may take.", FIGURE(experts.bytes, FIGURE_SIZE)},
    {"apus_expert_cache_hits_total", "counter", "Streamed experts that a step used and that were in memory.",
        FIGURE(experts.hits, FIGURE_COUNT)},
    {"apus_expert_cache_misses_total", "counter", "Streamed experts that a step used and that were read from files.",
        FIGURE(experts.misses, FIGURE_COUNT)},
    {"apus_expert_cache_evictions_total", "counter", "Streamed experts that were evicted from memory.",
        FIGURE(experts.evictions, FIGURE_COUNT)},
    {"apus_expert_hints_total", "counter", "Streamed experts read ahead (--ssd-prefetch).",
        FIGURE(experts.prefetches, FIGURE_COUNT)},
    {"apus_expert_hint_hits_total", "counter", "Experts read ahead that were used afterwards.",
        FIGURE(experts.prefetch_hits, FIGURE_COUNT)},
    {"apus_expert_hint_losses_total", "counter", "Experts that were evicted for one read ahead and used afterwards.",
        FIGURE(experts.prefetch_losses, FIGURE_COUNT)},
    {"apus_expert_read_bytes_total", "counter", "Bytes of experts read from files.",
        FIGURE(experts.read_bytes, FIGURE_COUNT)},
    {"apus_expert_read_seconds_total", "counter", "Time in which experts were being read.",
        FIGURE(experts.read_s, FIGURE_SECONDS)},
    {"apus_expert_stall_seconds_total", "counter", "Time in which steps waited for experts and nothing was computed.",
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

/* The models that there are. */
typedef struct Listed {
    int count;
    int number[MODELS_MAX];
    ModelStatus status[MODELS_MAX];
} Listed;

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

/* Writes the figures of the loaded models. */
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

static void write_drafts(const ModelStatus *status, int count, bool accepted, Buffer *out) {
    static const char *const sources[DRAFT_SOURCES] = {"lookup", "prediction", "model", "mtp"};
    const char *name = accepted ? "apus_draft_tokens_accepted_total" : "apus_draft_tokens_total";
    write_help(
        name, "counter", accepted ? "Draft tokens that were right, by source." : "Draft tokens, by source.", out);
    for (int i = 0; i < count; i++) {
        for (int source = 0; source < DRAFT_SOURCES && status[i].state == MODEL_LOADED; source++) {
            char label[32];
            snprintf(label, sizeof label, ",source=\"%s\"", sources[source]);
            const DraftStats *drafts = &status[i].stats.drafts[source];
            write_count(name, status[i].name, label, (double)(accepted ? drafts->accepted : drafts->drafted), out);
        }
    }
}

/* What else those routers look for: the share of pages that requests need, and how much a page and all pages are. */
static void write_usage(const ModelStatus *status, int count, Buffer *out) {
    static const char *const names[] = {
        "apus_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"};
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        const bool info = n == 2;
        write_help(names[n], "gauge",
            info ? "Pages of the KV cache: tokens of one, and how many fit."
                 : "Share of the KV cache that requests hold, 0 to 1.",
            out);
        for (int i = 0; i < count; i++) {
            const EngineStats *s = &status[i].stats;
            char label[96] = "";
            if (status[i].state != MODEL_LOADED) continue;
            if (info)
                snprintf(label, sizeof label, ",block_size=\"%d\",num_gpu_blocks=\"%llu\"", KV_PAGE_TOKENS,
                    (unsigned long long)s->kv_blocks);
            const size_t held = s->kv_bytes > s->kv_idle_bytes ? s->kv_bytes - s->kv_idle_bytes : 0;
            const double share = s->kv_bytes_total ? (double)held / (double)s->kv_bytes_total : 0;
            write_count(names[n], status[i].name, label, info ? 1 : share, out);
        }
    }
}

static void write_loaded(const ModelStatus *status, int count, Buffer *out) {
    write_help("apus_model_loaded", "gauge", "Whether the model is in memory.", out);
    for (int i = 0; i < count; i++)
        write_count("apus_model_loaded", status[i].name, "", status[i].state == MODEL_LOADED, out);
}

/* Under the mutex, as the following. */
static void write_requests(const Metrics *metrics, const Listed *models, Buffer *out) {
    write_help("apus_request_success_total", "counter", "Answers, by the reason for their end.", out);
    for (int i = 0; i < models->count; i++) {
        for (int finish = FINISH_STOP; finish < FINISHES; finish++) {
            char label[48];
            snprintf(label, sizeof label, ",finished_reason=\"%s\"", finish_names[finish]);
            write_count("apus_request_success_total", models->status[i].name, label,
                metrics->models[models->number[i]].finished[finish], out);
        }
    }
    write_help("apus_embeddings_total", "counter", "Texts of which vectors were made.", out);
    for (int i = 0; i < models->count; i++)
        write_count(
            "apus_embeddings_total", models->status[i].name, "", metrics->models[models->number[i]].embeddings, out);
    write_help("apus_request_kv_cache_bytes_total", "counter",
        "Memory of requests' pages when they ended: kept exactly, kept as codes; f16: had all been kept exactly.", out);
    for (int i = 0; i < models->count; i++) {
        const ModelMetrics *m = &metrics->models[models->number[i]];
        const char *name = "apus_request_kv_cache_bytes_total";
        write_count(name, models->status[i].name, ",kept=\"exact\"", m->kv_full_bytes, out);
        write_count(name, models->status[i].name, ",kept=\"coded\"", m->kv_quantised_bytes, out);
        write_count(name, models->status[i].name, ",kept=\"f16\"", m->kv_f16_bytes, out);
    }
    for (int what = 0; what < OBSERVED; what++) {
        write_help(observed[what].name, "histogram", observed[what].help, out);
        for (int i = 0; i < models->count; i++)
            write_histogram(observed[what].name, models->status[i].name, observed[what].buckets,
                &metrics->models[models->number[i]].histograms[what], out);
    }
}

static void write_statuses(const Metrics *metrics, Buffer *out) {
    write_help("apus_http_responses_total", "counter", "Answers over HTTP, by status.", out);
    for (int status = 0; status < STATUS_MAX; status++)
        if (metrics->statuses[status] > 0)
            buffer_printf(out, "apus_http_responses_total{status=\"%d\"} %llu\n", status,
                (unsigned long long)metrics->statuses[status]);
}

static void write_number(const char *name, const char *type, const char *help, double value, Buffer *out) {
    write_help(name, type, help, out);
    buffer_printf(out, "%s %.15g\n", name, value);
}

/* Metrics of the process, named as by Prometheus' own clients, and of the server's limits. */
static void write_server(const Server *server, Buffer *out) {
    const ProcessUse use = process_use();
    write_number("process_resident_memory_bytes", "gauge", "Memory that the process has, mapped files included.",
        (double)use.resident_bytes, out);
    write_number("process_cpu_seconds_total", "counter", "Time on processors.", use.cpu_s, out);
    write_number(
        "process_start_time_seconds", "gauge", "When the process began, since 1970.", (double)server->started, out);
    write_number("apus_http_connections", "gauge", "Connections of clients.",
        __atomic_load_n(&server->connections, __ATOMIC_RELAXED), out);
    write_number("apus_http_requests_active", "gauge", "Requests whose answer is not out.",
        __atomic_load_n(&server->answering, __ATOMIC_RELAXED), out);
    write_number("apus_http_body_bytes", "gauge", "Bodies of requests that are held.",
        (double)__atomic_load_n(&server->body_bytes, __ATOMIC_RELAXED), out);
}

void metrics_write(const Server *server, Buffer *out) {
    Metrics *metrics = server->metrics;
    Listed *models = calloc(1, sizeof *models);
    out->failed |= !models;
    if (!models) return;
    for (int i = 0; i < MODELS_MAX; i++)
        if (models_status(server->models, i, &models->status[models->count])) models->number[models->count++] = i;
    write_loaded(models->status, models->count, out);
    write_figures(models->status, models->count, out);
    write_usage(models->status, models->count, out);
    write_forms(models->status, models->count, false, out);
    write_forms(models->status, models->count, true, out);
    write_drafts(models->status, models->count, false, out);
    write_drafts(models->status, models->count, true, out);
    mutex_lock(&metrics->mutex);
    write_requests(metrics, models, out);
    write_statuses(metrics, out);
    mutex_unlock(&metrics->mutex);
    write_server(server, out);
    free(models);
}
