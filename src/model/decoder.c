/* The one decoder. All memory of a step is three blocks taken from each backend at its start (the residual stream, one
 * work area that the parts of a layer use in turn, the rows whose logits are wanted), and the logits. A second backend
 * has its residual stream in memory of its own, where it arrives. */
#include "model/decoder.h"

#include "base/math.h"

/* A step on one backend. */
typedef struct Stage {
    Backend *backend;
    int part;                /* rows that a layer is walked over at once */
    bool walk;               /* the operations are to be called */
    float *h, *work, *extra; /* extra: a parallel layer's input, then the wanted rows */
    float *ahead;            /* one row's work; NULL: no hints are given */
} Stage;

/* On the backend of that number. */
static Stage stage_begin(const Bound *bound, int number, const Step *step) {
    Backend *backend = bound->backends[number];
    const bool parts = number == 0 && bound->layer_tile_rows > 0;
    Stage stage = {.backend = backend,
        .part = parts ? min_int(bound->layer_tile_rows, step->rows) : step->rows,
        .walk = backend->ops->begin(backend, step)};
    const int64_t rows = step->rows, hidden = bound->spec->hidden;
    stage.h = number ? bound->arrival : backend->ops->scratch(backend, rows * hidden);
    stage.work = backend->ops->scratch(backend, stage.part * bound->width);
    stage.extra = backend->ops->scratch(backend, rows * hidden);
    if (bound->prefetches) stage.ahead = backend->ops->scratch(backend, bound->width);
    return stage;
}

/* What reads the residual after layer i's FFN; NULL: another backend, whose norm is no business of this one. */
static const Norm *norm_after(const Bound *bound, int i) {
    if (i + 1 == bound->spec->layer_count) return bound->final_norm;
    return bound->place[i + 1] == bound->place[i] ? bound->layers[i + 1].mixer_in : NULL;
}

/* Rows from `first` on of a step on one layer, and what they work in. */
typedef struct Rows {
    int first, rows, decode_rows, micro_batch;
} Rows;

static Block mixer_block(const Bound *bound, int i, const KvLayer *cache, const Stage *stage, const Rows *r) {
    const Layer *layer = &bound->layers[i];
    float *h = stage->h + (int64_t)r->first * bound->spec->hidden;
    return (Block){.backend = stage->backend,
        .cache = cache,
        .rows = r->rows,
        .decode_rows = r->decode_rows,
        .x = layer->parallel ? stage->extra + (int64_t)r->first * bound->spec->hidden : h,
        .in = layer->parallel ? NULL : layer->mixer_in,
        .work = stage->work,
        .residual = h,
        .out = layer->mixer_out,
        .next = layer->parallel ? NULL : layer->ffn_in,
        .scale = layer->residual_scale,
        .micro_batch = r->micro_batch};
}

static Block ffn_block(const Bound *bound, int i, const KvLayer *cache, const Stage *stage, const Rows *r) {
    const Layer *layer = &bound->layers[i];
    Block block = mixer_block(bound, i, cache, stage, r);
    if (!layer->parallel) block.in = layer->ffn_in;
    block.out = layer->ffn_out;
    block.next = norm_after(bound, i);
    return block;
}

static void mixer_forward(const Bound *bound, int i, const KvLayer *cache, const Stage *stage, const Rows *r) {
    const Layer *layer = &bound->layers[i];
    const Block block = mixer_block(bound, i, cache, stage, r);
    if (layer->parallel) /* `extra` for both parts */
        stage->backend->ops->norm(stage->backend, r->rows, block.residual, layer->mixer_in,
            stage->extra + (int64_t)r->first * bound->spec->hidden);
    mixer_ops(layer)->forward(layer, &block);
}

/* What the next layer would want if this one's FFN changed nothing: it is right about most. */
static void prefetch_next_layer(const Bound *bound, int i, const Stage *stage, const Rows *r) {
    if (i + 1 == bound->spec->layer_count) return;
    const Layer *next = &bound->layers[i + 1];
    if (next->parallel || !ffn_ops(next)->prefetch) return;
    Block block = ffn_block(bound, i + 1, NULL, stage, r);
    block.work = stage->ahead;
    ffn_ops(next)->prefetch(next, &block);
}

static void layer_forward(const Bound *bound, int i, const KvLayer *cache, const Stage *stage, const Rows *r) {
    const Layer *layer = &bound->layers[i];
    const ComponentOps *part = ffn_ops(layer);
    mixer_forward(bound, i, cache, stage, r);
    Block block = ffn_block(bound, i, cache, stage, r);
    if (bound->prefetching && r->rows == 1 && part->begin) {
        part->begin(layer, &block);
        block.begun = true;
        prefetch_next_layer(bound, i, stage, r);
    }
    part->forward(layer, &block);
}

/* What operations that multiply by weights are told. */
static int decode_rows_for_matmul(const Step *step) { return step->uniform_matmul ? 0 : step->decode_rows; }

/* So many of the rows from `first` on. */
static int decode_rows_of(const Step *step, int first, int rows) {
    const int left = step->decode_rows - first;
    return left < 0 ? 0 : min_int(left, rows);
}

/* Rows of a step as a step of their own. */
static Step step_tile(const Step *step, int first, int rows, SequenceChunk chunks[LAYER_TILE_ROWS_MAX]) {
    Step part = *step;
    part.rows = rows;
    part.decode_rows = decode_rows_of(step, first, rows);
    part.tokens += first;
    part.positions += first;
    part.chunks = chunks;
    part.chunk_count = 0;
    for (int r = 0; r < step->chunk_count; r++) {
        const SequenceChunk *chunk = &step->chunks[r];
        const int begin = chunk->row > first ? chunk->row : first,
                  end = min_int(chunk->row + chunk->rows, first + rows);
        if (begin >= end) continue;
        CHECK(chunk->span_count == 0);
        SequenceChunk *own = &chunks[part.chunk_count++];
        *own = *chunk;
        own->row = begin - first;
        own->rows = end - begin;
        own->position = chunk->position + begin - chunk->row;
    }
    return part;
}

/* A layer over all rows, part by part: whatever part of it is read from elsewhere for the first one is there for the
 * others. */
static void layer_walk(const Bound *bound, int i, const KvLayer *cache, const Stage *stage, const Step *step) {
    const int part = stage->part;
    if (part == step->rows) {
        layer_forward(bound, i, cache, stage, &(Rows){.rows = step->rows, .decode_rows = decode_rows_for_matmul(step)});
        return;
    }
    CHECK(step->position_dims == 1 && part <= LAYER_TILE_ROWS_MAX);
    for (int first = 0; first < step->rows; first += part) {
        SequenceChunk chunks[LAYER_TILE_ROWS_MAX];
        const Step own = step_tile(step, first, min_int(part, step->rows - first), chunks);
        stage->backend->ops->set_rows(stage->backend, &own);
        layer_forward(bound, i, cache, stage,
            &(Rows){.first = first, .rows = own.rows, .decode_rows = decode_rows_for_matmul(&own)});
    }
}

/* ---- in turns ---- */

/* Some of a step's runs, whole, as a step of their own. */
static Step step_runs(const Step *step, int first, int count, SequenceChunk chunks[MICRO_BATCH_CHUNKS_MAX]) {
    Step own = *step;
    const int row = step->chunks[first].row;
    own.tokens += row;
    own.positions += row;
    own.chunks = chunks;
    own.chunk_count = count;
    own.rows = 0;
    for (int i = 0; i < count; i++) {
        chunks[i] = step->chunks[first + i];
        chunks[i].row -= row;
        own.rows += chunks[i].rows;
    }
    own.decode_rows = decode_rows_of(step, row, own.rows);
    return own;
}

static bool overlaps_two_batches(const Bound *bound, const Stage *stage, const Step *step) {
    return bound->two_batch_overlap && stage->walk && step->chunk_count > 1 &&
        step->chunk_count <= MICRO_BATCH_CHUNKS_MAX && step->position_dims == 1 && stage->part == step->rows;
}

/* Each half's FFN of a layer comes behind the other half's mixer of it: between the choice of experts and their use
 * there is always what the other half computes. Rows do not depend on each other. */
static void walk_two_batches(const Bound *bound, const KvLayer *cache, const Stage *stage, const Step *step) {
    const int layers = bound->spec->layer_count, half = step->chunk_count / 2;
    SequenceChunk chunks[PROVIDER_MICRO_BATCHES][MICRO_BATCH_CHUNKS_MAX];
    const Step steps[] = {
        step_runs(step, 0, half, chunks[0]), step_runs(step, half, step->chunk_count - half, chunks[1])};
    for (int i = 0; i <= layers; i++) {
        for (int micro_batch = 0; micro_batch < PROVIDER_MICRO_BATCHES; micro_batch++) {
            const Rows r = {.first = micro_batch ? steps[0].rows : 0,
                .rows = steps[micro_batch].rows,
                .decode_rows = decode_rows_for_matmul(&steps[micro_batch]),
                .micro_batch = micro_batch};
            Stage own = *stage;
            own.work += r.first * bound->width;
            stage->backend->ops->set_rows(stage->backend, &steps[micro_batch]);
            if (i > 0) {
                Block block = ffn_block(bound, i - 1, &cache[i - 1], &own, &r);
                block.begun = true;
                ffn_ops(&bound->layers[i - 1])->forward(&bound->layers[i - 1], &block);
            }
            if (i == layers) continue;
            mixer_forward(bound, i, &cache[i], &own, &r);
            const Block block = ffn_block(bound, i, &cache[i], &own, &r);
            const ComponentOps *part = ffn_ops(&bound->layers[i]);
            if (part->begin) part->begin(&bound->layers[i], &block);
        }
    }
}

static void embed(const Bound *bound, const Stage *stage, const Step *step) {
    const Embed op = {.rows = step->rows,
        .tokens = step->tokens,
        .table = &bound->embedding,
        .scale = bound->spec->embedding_scale,
        .given = step->embeddings,
        .out = stage->h};
    stage->backend->ops->embed(stage->backend, &op);
}

/* Of the rows that are gathered; they come first there as well. */
static int decode_outputs(const Step *step, int count, const int32_t *output) {
    int decode_rows = 0;
    while (decode_rows < count && output[decode_rows] < step->decode_rows) decode_rows++;
    for (int i = decode_rows; i < count; i++) CHECK(output[i] >= step->decode_rows);
    return step->uniform_matmul ? 0 : decode_rows;
}

static void head_forward(
    const Bound *bound, const Stage *stage, const Step *step, int count, const int32_t *output, float *logits) {
    const Spec *spec = bound->spec;
    const BackendOps *ops = stage->backend->ops;
    ops->gather(stage->backend, count, output, stage->h, spec->hidden, stage->extra);
    const Matmul head = {.rows = count,
        .decode_rows = decode_outputs(step, count, output),
        .x = stage->extra,
        .norm = bound->final_norm,
        .count = 1,
        .weight = {&bound->head},
        .out = {logits},
        .coarse = bound->coarse_head};
    ops->matmul(stage->backend, &head);
    if (spec->logit_scale != 1 || spec->logit_softcap != 0)
        ops->logits(stage->backend, (int64_t)count * spec->vocab, logits, spec->logit_scale, spec->logit_softcap);
}

/* What the output matrix would read. */
static void hidden_rows_forward(const Bound *bound, const Stage *stage, const Step *step, float *hidden_rows) {
    const BackendOps *ops = stage->backend->ops;
    ops->gather(stage->backend, step->hidden_row_count, step->hidden_rows, stage->h, bound->spec->hidden, stage->extra);
    ops->norm(stage->backend, step->hidden_row_count, stage->extra, bound->final_norm, hidden_rows);
}

int64_t decoder_hidden_rows_at(const Spec *spec, int count) {
    enum { ALIGN = 16 };
    return ((int64_t)count * spec->vocab + ALIGN - 1) / ALIGN * ALIGN;
}

int64_t decoder_sums_at(const Spec *spec, const Step *step, int count) {
    const int64_t hidden_rows = (int64_t)step->hidden_row_count * spec->hidden;
    return logit_sums_at(
        hidden_rows ? decoder_hidden_rows_at(spec, count) + hidden_rows : (int64_t)count * spec->vocab);
}
int64_t decoder_results(const Spec *spec, const Step *step, int count, bool summed) {
    const int64_t hidden_rows = (int64_t)step->hidden_row_count * spec->hidden;
    if (summed) return decoder_sums_at(spec, step, count) + 2 * count * logit_blocks(spec->vocab);
    return hidden_rows ? decoder_hidden_rows_at(spec, count) + hidden_rows : (int64_t)count * spec->vocab;
}

/* What follows the logits: tokens are drawn, or what drawing begins with is found out. */
static void sample_forward(const Bound *bound, const Stage *stage, const Step *step, int count, float *logits) {
    float *work = logits + decoder_sums_at(bound->spec, step, count);
    const LogitSampling sample_params = {.rows = count,
        .vocab = bound->spec->vocab,
        .logits = logits,
        .sample_params = step->sample_params,
        .work = work};
    if (step->sample_params) {
        stage->backend->ops->sample(stage->backend, &sample_params);
        return;
    }
    const LogitSums op = {
        .rows = count, .vocab = bound->spec->vocab, .logits = logits, .scales = step->scales, .out = work};
    stage->backend->ops->sum_logits(stage->backend, &op);
}

/* Of where the pages of all layers lie; never 0. */
static uint64_t cache_number(const Spec *spec, const KvLayer *cache) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < spec->layer_count; i++) {
        const uint64_t parts[] = {(uintptr_t)cache[i].base, cache[i].page_stride, cache[i].layer_offset};
        for (int k = 0; k < 3; k++) hash = (hash ^ parts[k]) * 0x100000001b3;
    }
    return hash | 1;
}

/* The residual goes from one backend to the next before that one's step begins, to memory that stays: so it may repeat
 * a walk, and what was computed before is not repeated. */
static Stage stage_follow(const Bound *bound, const Stage *before, int number, const Step *step, uint64_t *ticket) {
    Backend *backend = before->backend;
    const size_t residual = (size_t)step->rows * (size_t)bound->spec->hidden * sizeof(float);
    *ticket = backend->ops->submit(backend);
    backend_move(backend, before->h, bound->backends[number], bound->arrival, residual, bound->staging);
    return stage_begin(bound, number, step);
}

/* Of a step's generated rows, what a backend is told that makes no difference of them. */
static int decode_rows_on(const Backend *backend, const Step *step) {
    return backend->decode_rows_max ? step->decode_rows : 0;
}

float *decoder_forward(
    const Bound *bound, const KvLayer *cache, const Step *given, int count, const int32_t *output, uint64_t *tickets) {
    const Spec *spec = bound->spec;
    Step whole = *given;
    const Step *step = &whole;
    whole.output_count = count;
    whole.outputs = output;
    whole.cache = step->hidden_row_count > 0 ? 0 : cache_number(spec, cache);
    whole.decode_rows = decode_rows_on(bound->backends[0], given);
    int number = 0;
    Stage stage = stage_begin(bound, number, step);
    if (stage.walk) embed(bound, &stage, step);
    const bool two_batch_overlap = overlaps_two_batches(bound, &stage, step);
    if (two_batch_overlap) walk_two_batches(bound, cache, &stage, step);
    for (int i = 0; i < spec->layer_count && !two_batch_overlap; i++) {
        if (bound->place[i] != number) {
            whole.decode_rows = decode_rows_on(bound->backends[number + 1], given);
            stage = stage_follow(bound, &stage, number + 1, step, &tickets[number]);
            number++;
        }
        if (stage.walk) layer_walk(bound, i, &cache[i], &stage, step);
    }
    float *logits = NULL;
    const BackendOps *ops = stage.backend->ops;
    if (count > 0 || step->hidden_row_count > 0) {
        const int64_t at = decoder_hidden_rows_at(spec, count),
                      hidden_rows = (int64_t)step->hidden_row_count * spec->hidden;
        const bool summed = count > 0 && (step->sample_params || (step->scales && ops->sum_logits));
        logits = ops->scratch(stage.backend, decoder_results(spec, step, count, summed));
        if (stage.walk && count > 0) head_forward(bound, &stage, step, count, output, logits);
        if (stage.walk && hidden_rows > 0) hidden_rows_forward(bound, &stage, step, logits + at);
        if (stage.walk && summed) sample_forward(bound, &stage, step, count, logits);
    }
    tickets[number] = ops->submit(stage.backend);
    return logits;
}
