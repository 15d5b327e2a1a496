/* A model to measure, one sequence of random tokens on it, and the bytes that a token reads. */
#include <stdlib.h>

#include "base/clock.h"
#include "cli/bench.h"
#include "model/spec.h"

enum { WARM_TOKENS = 16, MARGIN_TOKENS = 16, LAYER_WEIGHTS = 7, PARTS = 3 };

static void add_weight(BenchWalk *bench, const Weight *w) {
    const size_t scales = (size_t)w->rows * weight_scale_bytes(w);
    LimitsRange *to = bench->ranges + bench->range_count;
    to[0] = (LimitsRange){w->data, (size_t)w->rows * weight_row_bytes(w)};
    to[1] = (LimitsRange){w->scales, w->scales ? scales : 0};
    to[2] = (LimitsRange){w->biases, w->biases ? scales : 0};
    bench->range_count += PARTS;
}

static bool collect_ranges(BenchWalk *bench, Error *error) {
    const Spec *spec = model_spec(bench->walk.model);
    bench->ranges = calloc((size_t)(spec->layer_count * LAYER_WEIGHTS + 1) * PARTS, sizeof *bench->ranges);
    if (!bench->ranges) return fail(error, ERROR_MEMORY, "out of memory");
    for (int i = 0; i < spec->layer_count; i++) {
        const Layer *layer = &spec->layers[i];
        const AttentionMixer *mixer = &layer->attention;
        const Weight *weights[LAYER_WEIGHTS] = {&mixer->q, &mixer->k, &mixer->v, &mixer->o};
        if (layer->ffn == FFN_GLU) {
            weights[4] = &layer->glu.gate;
            weights[5] = &layer->glu.up;
            weights[6] = &layer->glu.down;
        } else {
            weights[4] = &layer->mlp.up;
            weights[5] = &layer->mlp.down;
        }
        for (int k = 0; k < LAYER_WEIGHTS && weights[k]; k++) add_weight(bench, weights[k]);
    }
    add_weight(bench, &spec->head);
    return true;
}

bool bench_walk_open(BenchWalk *bench, const BenchPlan *plan, bool trace, Error *error) {
    *bench = (BenchWalk){.chunk = plan->chunk};
    int deepest = 0;
    for (int i = 0; i < plan->depth_count; i++) deepest = plan->depths[i] > deepest ? plan->depths[i] : deepest;
    const int longest = deepest + (plan->prompt > plan->generate ? plan->prompt : plan->generate) + MARGIN_TOKENS;
    const ModelOptions options = {.backend = {.cpu = plan->cpu,
                                      .threads = plan->threads,
                                      .precise = plan->precise,
                                      .trace = trace,
                                      .rows_max = plan->chunk},
        .context = longest};
    const double start = clock_seconds();
    if (!walk_open(&bench->walk, plan->directory, &options, longest, error)) return false;
    bench->load_s = clock_seconds() - start;
    Model *model = bench->walk.model;
    model_step_cost(model, &bench->weight_bytes, &bench->operations);
    const int vocab = model_vocab(model);
    bench->tokens = calloc((size_t)longest, sizeof *bench->tokens);
    bench->logits = malloc((size_t)vocab * sizeof *bench->logits);
    if (!bench->tokens || !bench->logits) return fail(error, ERROR_MEMORY, "out of memory");
    uint32_t random = 1;
    for (int i = 0; i < longest; i++)
        bench->tokens[i] = (int32_t)((random = random * 1664525u + 1013904223u) % (uint32_t)vocab);
    /* The first step reads the weights in. */
    return collect_ranges(bench, error) && bench_walk_feed(bench, WARM_TOKENS, error);
}

void bench_walk_close(BenchWalk *bench) {
    walk_close(&bench->walk);
    free(bench->tokens);
    free(bench->logits);
    free(bench->ranges);
    *bench = (BenchWalk){0};
}

bool bench_walk_feed(BenchWalk *bench, int count, Error *error) {
    for (int done = 0; done < count;) {
        const int rows = count - done < bench->chunk ? count - done : bench->chunk;
        const int32_t *tokens = bench->tokens + bench->walk.sequence.length;
        if (!walk_step(&bench->walk, tokens, rows, done + rows == count, bench->logits, error)) return false;
        done += rows;
    }
    return true;
}

bool bench_walk_go(BenchWalk *bench, int depth, Error *error) {
    if (bench->walk.sequence.length > depth && !walk_rewind(&bench->walk, depth)) walk_restart(&bench->walk);
    return bench_walk_feed(bench, depth - bench->walk.sequence.length, error);
}

uint64_t bench_walk_kv_bytes(const BenchWalk *bench, int depth) {
    const Spec *spec = model_spec(bench->walk.model);
    uint64_t bytes = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        const Attention *op = &spec->layers[i].attention.op;
        const KvLayout *l = &op->kv.layout;
        const int seen = op->window && op->window < depth + 1 ? op->window : depth + 1;
        bytes += (uint64_t)seen * (uint64_t)(l->kv_heads * (l->head_dim + l->value_dim)) * dtype_bytes(l->dtype);
    }
    return bytes;
}
