/* The quality loss of a KV cache format: a text's next-token distributions with it against those with full precision.
 * Both read the same tokens; errors propagate through all layers and into all later tokens, as they do in use. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

enum { COMPARE_ROWS = 32 }; /* at a time: logits of as many are kept */
static const double sure_share = 0.5;

typedef struct Quality {
    double *divergence;    /* KL(exact ‖ form) of each compared token, nats */
    double nll, exact_nll; /* sums */
    int count, same, sure, sure_same;
} Quality;

/* ln Σ exp of a row, and its largest. */
static double log_sum(const float *row, int vocab, int *best) {
    *best = 0;
    for (int i = 1; i < vocab; i++)
        if (row[i] > row[*best]) *best = i;
    double sum = 0;
    for (int i = 0; i < vocab; i++) sum += exp((double)row[i] - (double)row[*best]);
    return (double)row[*best] + log(sum);
}

static void compare_row(Quality *q, const float *exact, const float *form, int vocab, int32_t next) {
    int best, form_best;
    const double a = log_sum(exact, vocab, &best), b = log_sum(form, vocab, &form_best);
    double divergence = 0;
    for (int i = 0; i < vocab; i++) {
        const double p = (double)exact[i] - a;
        divergence += exp(p) * (p - ((double)form[i] - b));
    }
    const bool sure = exp((double)exact[best] - a) > sure_share;
    q->divergence[q->count++] = divergence;
    q->same += best == form_best;
    q->sure += sure;
    q->sure_same += sure && best == form_best;
    q->exact_nll += a - (double)exact[next];
    q->nll += b - (double)form[next];
}

/* All sequences up to where the comparison begins. */
static bool feed_first(Walk *walk, const BenchPlan *plan, const int32_t *tokens, int first, Error *error) {
    float *logits;
    for (int f = 0; f < walk->format_count; f++) {
        walk_choose(walk, f);
        for (int done = 0, rows; done < first; done += rows) {
            rows = walk_rows(walk, first - done < plan->chunk ? first - done : plan->chunk);
            if (!walk_step(walk, tokens + done, rows, 0, &logits, error)) return false;
        }
        fprintf(stderr, "form %d of %d: %d tokens read\n", f + 1, walk->format_count, first);
    }
    return true;
}

static bool compare(
    Walk *walk, const BenchPlan *plan, const int32_t *tokens, int first, float *exact, Quality *q, Error *error) {
    const int vocab = model_vocab(walk->model);
    for (int done = first, rows; done < plan->prompt; done += rows) {
        rows = plan->prompt - done < COMPARE_ROWS ? plan->prompt - done : COMPARE_ROWS;
        for (int f = 0; f < walk->format_count; f++) {
            walk_choose(walk, f);
            rows = walk_rows(walk, rows);
        }
        float *logits;
        for (int f = 0; f < walk->format_count; f++) {
            walk_choose(walk, f);
            if (!walk_step(walk, tokens + done, rows, rows, &logits, error)) return false;
            if (f == 0) memcpy(exact, logits, (size_t)rows * (size_t)vocab * sizeof *exact);
            for (int i = 0; f > 0 && i < rows; i++) {
                const size_t at = (size_t)i * (size_t)vocab;
                compare_row(&q[f], exact + at, logits + at, vocab, tokens[done + i + 1]);
            }
        }
    }
    return true;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void write_row(Buffer *out, const BenchPlan *plan, const Walk *walk, int f, Quality *q) {
    char name[KV_FORMAT_NAME_MAX];
    double sum = 0;
    bool quantised;
    for (int i = 0; i < q->count; i++) sum += q->divergence[i];
    qsort(q->divergence, (size_t)q->count, sizeof *q->divergence, by_size);
    kv_format_name(&walk->sequence[f].format, name, sizeof name);
    const double mean = sum / q->count, p99 = q->divergence[(size_t)(q->count - 1) * 99 / 100];
    const double perplexity = exp((q->nll - q->exact_nll) / q->count) - 1;
    const double smaller = (double)walk_kv_bytes(walk, 0, &quantised) / (double)walk_kv_bytes(walk, f, &quantised);
    const double same = 100.0 * q->same / q->count, sure = q->sure ? 100.0 * q->sure_same / q->sure : 100;
    if (plan->json)
        buffer_printf(out,
            "{\"model\":\"%s\",\"kv_cache\":\"%s\",\"tokens\":%d,\"compared\":%d,\"kl\":%.6f,\"kl_p99\":%.6f,"
            "\"same_top\":%.3f,\"same_when_sure\":%.3f,\"perplexity\":%.6f,\"smaller\":%.3f}\n",
            plan->model, name, plan->prompt, q->count, mean, p99, same, sure, perplexity, smaller);
    else
        buffer_printf(out, "%-16s %9.5f %9.5f %9.2f %9.2f %+10.3f %8.2f×\n", name, mean, p99, same, sure,
            100 * perplexity, smaller);
}

static void write_results(Buffer *out, const BenchPlan *plan, const Walk *walk, Quality *q) {
    if (!plan->json)
        buffer_printf(out,
            "%s: the last %d of %d tokens, against f16\nform              mean KL    p99 KL same top %% "
            "when sure  perplexity %% smaller\n",
            plan->model, q[1].count, plan->prompt);
    for (int f = 1; f < walk->format_count; f++) write_row(out, plan, walk, f, &q[f]);
}

static bool measure(const BenchPlan *plan, const Tokens *tokens, Buffer *out, Error *error) {
    Walk walk;
    KvFormat formats[WALK_FORMATS_MAX] = {{.k = KV_FULL}};
    const int count = plan->format_count + 1;
    if (count > WALK_FORMATS_MAX)
        return fail(error, ERROR_USAGE, "--quality compares at most %d forms", WALK_FORMATS_MAX - 1);
    memcpy(formats + 1, plan->formats, (size_t)plan->format_count * sizeof *formats);
    const ModelOptions options = {.context = plan->prompt};
    BackendOptions backend = plan->backend;
    backend.rows_max = plan->chunk;
    if (!walk_open(&walk, plan->directory, &options, &backend, plan->gpu_layers, formats, count, plan->prompt, error))
        return false;
    const int first = plan->prompt / 2; /* the second half is compared */
    Quality *q = calloc((size_t)count, sizeof *q);
    float *exact = malloc(COMPARE_ROWS * (size_t)model_vocab(walk.model) * sizeof *exact);
    double *divergence = calloc((size_t)count * (size_t)(plan->prompt - first), sizeof *divergence);
    bool ok = (q && exact && divergence) || fail(error, ERROR_MEMORY, "no memory for a comparison");
    for (int f = 0; ok && f < count; f++) q[f].divergence = divergence + (size_t)f * (size_t)(plan->prompt - first);
    ok = ok && feed_first(&walk, plan, tokens->ids, first, error) &&
        compare(&walk, plan, tokens->ids, first, exact, q, error);
    if (ok) write_results(out, plan, &walk, q);
    free(divergence);
    free(exact);
    free(q);
    walk_close(&walk);
    return ok;
}

bool bench_quality(const BenchPlan *plan, const char *text, Error *error) {
    Tokens tokens = {0};
    Buffer out = {0};
    bool ok = plan->format_count > 0 || fail(error, ERROR_USAGE, "--quality: name forms with --kv-cache");
    ok = ok && bench_text(plan, text, plan->prompt + 1, &tokens, error) && measure(plan, &tokens, &out, error) &&
        bench_print(&out, error);
    buffer_free(&out);
    tokens_free(&tokens);
    return ok;
}
