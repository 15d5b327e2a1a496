/* A model to measure, one sequence of random tokens or of a text's on it, and the bytes that a token reads. */
#include <stdlib.h>
#include <string.h>

#include "backend/trace.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/bench.h"
#include "model/component.h"

enum { MARGIN_TOKENS = 16, PARTS = 3, TEXT_BYTES_MAX = 64 << 20 };

static void count_weight(void *context, Weight *weight) { ++*(int64_t *)context; }

static void add_weight(void *context, Weight *w) {
    BenchWalk *bench = context;
    const size_t scales = (size_t)w->rows * weight_scale_bytes(w);
    if (!w->data) return; /* streamed */
    LimitsRange *to = bench->ranges + bench->range_count;
    to[0] = (LimitsRange){w->data, (size_t)w->rows * weight_row_bytes(w)};
    to[1] = (LimitsRange){w->scales, w->scales ? scales : 0};
    to[2] = (LimitsRange){w->biases, w->biases ? scales : 0};
    bench->range_count += PARTS;
}

static void visit_weights(const Spec *spec, void (*visit)(void *context, Weight *weight), void *context) {
    const Visitor visitor = {.weight = visit, .context = context};
    for (int i = 0; i < spec->layer_count; i++) {
        Layer layer = spec->layers[i];
        layer_visit(&layer, &visitor);
    }
    Weight head = spec->head;
    visit(context, &head);
}

static bool collect_ranges(BenchWalk *bench, Error *error) {
    const Spec *spec = model_spec(bench->walk.model);
    int64_t count = 0;
    visit_weights(spec, count_weight, &count);
    bench->ranges = calloc((size_t)count * PARTS, sizeof *bench->ranges);
    if (!bench->ranges) return fail(error, ERROR_MEMORY, "no memory for the ranges of the weights");
    visit_weights(spec, add_weight, bench);
    return true;
}

static int32_t random_token(BenchWalk *bench) {
    bench->random = bench->random * 1664525u + 1013904223u;
    return (int32_t)(bench->random % (uint32_t)model_vocab(bench->walk.model));
}

bool bench_text(const BenchPlan *plan, const char *path, int least, Tokens *tokens, Error *error) {
    Buffer text = {0};
    Tokenizer *tokenizer =
        file_read(path, TEXT_BYTES_MAX, &text, error) ? tokenizer_open(plan->directory, error) : NULL;
    bool ok = tokenizer && tokenizer_encode(tokenizer, buffer_view(&text), CONTROL_AS_TEXT, true, tokens, error);
    if (ok && tokens->count < (size_t)least)
        ok = fail(error, ERROR_USAGE, "%s has %zu tokens, want %d", path, tokens->count, least);
    tokenizer_close(tokenizer);
    buffer_free(&text);
    return ok;
}

/* The sequence's tokens: the text's as far as it is wanted, random ones behind it. */
static bool set_tokens(BenchWalk *bench, const BenchPlan *plan, int longest, int count, Error *error) {
    Tokens text = {0};
    bench->random = 1;
    for (int i = 0; i < count; i++) bench->tokens[i] = random_token(bench);
    const bool ok = !plan->text || bench_text(plan, plan->text, longest, &text, error);
    if (ok && plan->text) memcpy(bench->tokens, text.ids, (size_t)longest * sizeof *bench->tokens);
    tokens_free(&text);
    return ok;
}

bool bench_walk_open(BenchWalk *bench, const BenchPlan *plan, bool trace, Error *error) {
    *bench = (BenchWalk){.chunk = plan->chunk};
    int deepest = 0;
    for (int i = 0; i < plan->depth_count; i++) deepest = plan->depths[i] > deepest ? plan->depths[i] : deepest;
    const int more = plan->prompt > plan->generate ? plan->prompt : plan->generate;
    const int longest = deepest + (plan->behind ? plan->prompt + plan->generate : more) + MARGIN_TOKENS;
    const ModelOptions options = {.context = longest, .experts = plan->experts};
    BackendOptions backend = plan->backend;
    backend.wrap = trace ? trace_open : NULL;
    backend.rows_max = plan->chunk;
    const double start = clock_seconds();
    if (!walk_open(&bench->walk, plan->directory, &options, &backend, plan->gpu_layers, plan->formats,
            plan->format_count, longest, error))
        return false;
    bench->load_s = clock_seconds() - start;
    Model *model = bench->walk.model;
    model_step_cost(model, &bench->weight_bytes, &bench->operations);
    const int tokens = longest + WALK_FORMATS_MAX;
    bench->tokens = calloc((size_t)tokens, sizeof *bench->tokens);
    bench->ended = calloc((size_t)(plan->generate + 1), sizeof *bench->ended);
    if (!bench->tokens || !bench->ended) return fail(error, ERROR_MEMORY, "no memory for the tokens of a step");
    if (!set_tokens(bench, plan, longest, tokens, error)) return false;
    /* The first step reads the weights in and touches all of its work space. */
    return collect_ranges(bench, error) &&
        bench_walk_feed(bench, plan->chunk < longest ? plan->chunk : longest, error) &&
        walk_restart(&bench->walk, error);
}

bool bench_walk_machine(const BenchWalk *bench, const BenchPlan *plan, Machine *machine, Error *error) {
    const Runner *runner = bench->walk.runner;
    *machine = (Machine){0};
    if (!backend_on_device(plan->backend.device))
        return machine_open(machine, plan->backend.threads, runner_backend(runner)->ops->name, bench->ranges,
            bench->range_count, error);
    if (runner_backend(runner) == runner_upper(runner)) machine->gpu = plan->backend;
    return true;
}

void bench_walk_close(BenchWalk *bench) {
    walk_close(&bench->walk);
    free(bench->tokens);
    free(bench->ended);
    free(bench->ranges);
    *bench = (BenchWalk){0};
}

void bench_walk_json(const BenchWalk *bench, const BenchPlan *plan, Buffer *out) {
    const Backend *backend = runner_backend(bench->walk.runner);
    buffer_text(out, "{\"model\":");
    json_write_string(out, slice_of(plan->model));
    buffer_text(out, ",\"backend\":");
    json_write_string(out, slice_of(backend_describe(backend)));
    buffer_printf(out, ",\"isa\":\"%s\",\"threads\":%d", backend->ops->name, plan->backend.threads);
}

ExpertProviderStats bench_experts_now(const BenchWalk *bench) {
    ExpertProvider *source = model_experts(bench->walk.model);
    return source ? source->stats(source) : (ExpertProviderStats){0};
}

void bench_experts_count(const BenchWalk *bench, const ExpertProviderStats *before, ExpertProviderStats *sum) {
    const ExpertProviderStats now = bench_experts_now(bench);
    sum->hits += now.hits - before->hits;
    sum->misses += now.misses - before->misses;
    sum->missing += now.missing - before->missing;
    sum->prefetches += now.prefetches - before->prefetches;
    sum->prefetch_hits += now.prefetch_hits - before->prefetch_hits;
    sum->read_bytes += now.read_bytes - before->read_bytes;
    sum->read_s += now.read_s - before->read_s;
    sum->stall_s += now.stall_s - before->stall_s;
}

void bench_experts_json(Buffer *out, const char *name, const ExpertProviderStats *s) {
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"hits", s->hits}, {"misses", s->misses}, {"missing", s->missing}, {"hints", s->prefetches},
        {"hint_hits", s->prefetch_hits}, {"read_bytes", s->read_bytes}};
    buffer_printf(out, ",\"%s\":{", name);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        buffer_printf(out, "\"%s\":%llu,", counts[i].name, (unsigned long long)counts[i].value);
    buffer_printf(out, "\"read_s\":%.6g,\"stall_s\":%.6g}", s->read_s, s->stall_s);
}

uint64_t bench_walk_kv_bytes(const BenchWalk *bench, int depth) {
    const Walk *walk = &bench->walk;
    bool quantised;
    const size_t bytes = walk_kv_bytes(walk, walk->chosen, &quantised);
    return quantised ? bytes : runner_kv_bytes(walk->runner, depth);
}

bool bench_walk_feed(BenchWalk *bench, int count, Error *error) {
    for (int done = 0; done < count;) {
        const int rows = walk_rows(&bench->walk, count - done < bench->chunk ? count - done : bench->chunk);
        const int32_t *tokens = bench->tokens + walk_length(&bench->walk);
        if (!walk_step(&bench->walk, tokens, rows, done + rows == count, &bench->logits, error)) return false;
        done += rows;
    }
    return true;
}

bool bench_walk_on(BenchWalk *bench, Error *error) {
    return walk_step_on(&bench->walk, bench->tokens[walk_length(&bench->walk)], &bench->logits, error);
}

/* Tokens that no other sequence has a step later: experts that it used would be there for the next one. */
static bool step_together(BenchWalk *bench, int streams, Error *error) {
    int32_t tokens[WALK_FORMATS_MAX];
    for (int i = 0; i < streams; i++) tokens[i] = random_token(bench);
    return walk_step_together(&bench->walk, tokens, streams, &bench->logits, error);
}

bool bench_walk_generate(BenchWalk *bench, int first, int count, int steps, float temperature, Error *error) {
    int32_t tokens[WALK_FORMATS_MAX];
    if (runner_can_lookahead(bench->walk.runner)) {
        for (int i = 0; i < count; i++) tokens[i] = random_token(bench);
        return walk_sample(&bench->walk, first, count, tokens, steps, temperature, bench->ended, error);
    }
    for (int i = 0; i < steps; i++) {
        if (!(count > 1 ? step_together(bench, count, error) : bench_walk_on(bench, error))) return false;
        bench->ended[i] = clock_seconds();
    }
    return true;
}

bool bench_walk_go(BenchWalk *bench, int depth, Error *error) {
    bool there;
    if (!walk_return(&bench->walk, depth, &there, error)) return false;
    if (there) return true;
    uint64_t peak, before, after;
    if (walk_length(&bench->walk) > depth) {
        if (!walk_restart(&bench->walk, error)) return false;
        bench->kv_resident[bench->walk.chosen] = 0;
    }
    bench_memory(&peak, &before);
    if (!bench_walk_feed(bench, depth - walk_length(&bench->walk), error)) return false;
    bench_memory(&peak, &after);
    bench->kv_resident[bench->walk.chosen] += (int64_t)after - (int64_t)before;
    return walk_mark(&bench->walk, error);
}
