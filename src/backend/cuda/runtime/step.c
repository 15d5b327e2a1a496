/* Steps: their numbers on the device, and decode steps as CUDA graphs. A step with one token of each sequence, or with
 * several that are verified at once, repeats with other numbers only: it is captured when its key is seen for the
 * second time, and from then on is one launch. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/recurrent.h"
#include "base/digest.h"

/* A block begins with the number of its integers (step_bring) and the step's number, then come arrays of an integer per
 * row, then tables. */
enum { HEADER = 4 };
enum {
    POSITIONS = 0,
    PLACES = POSITION_DIMS_MAX,
    CHUNKS,
    SPAN_BEGINS,
    SPAN_ENDS,
    CHUNK_ROWS,
    CHUNK_OFFSETS,
    TOKENS,
    OUTPUTS,
    HIDDEN_ROWS,
    SCALES, /* f32 of each output */
    UNIFORM_LOWS,
    UNIFORM_HIGHS,
    TOP_KS,
    TOP_PS, /* f32 */
    MIN_PS,
    QUANT_ENDS,
    QUANT_SINKS,
    FULL_PLACES, /* like those above, for kernels of full-precision pages */
    FULL_CHUNK_ROWS,
    FULL_CHUNK_OFFSETS,
    ARRAYS
};

static int32_t *array(const CudaBackend *b, int32_t *block, int which) {
    return block + HEADER + (size_t)which * (size_t)b->block.rows;
}
static int32_t *host_block(const CudaBackend *b) { return b->block.host[b->ticket % CUDA_STEPS]; }

static void forget_graphs(CudaBackend *b) {
    for (int i = 0; i < b->graph_count; i++)
        if (b->graphs[i].exec) cudaGraphExecDestroy(b->graphs[i].exec);
    b->graph_count = 0;
    b->graphs_stale = false;
}

static void block_free(CudaBackend *b) {
    CudaStepBlock *block = &b->block;
    for (int i = 0; i < CUDA_STEPS; i++) cudaFreeHost(block->host[i]);
    cudaFree(block->device);
    memset(block->host, 0, sizeof block->host);
    block->device = NULL;
    block->ints = 0;
}

static size_t up_to_four(size_t n) { return (n + 3) / 4 * 4; }

/* Graphs contain the old address, so they become stale. */
static bool block_grow(CudaBackend *b, size_t least, Error *error) {
    CudaStepBlock *block = &b->block;
    const size_t ints = up_to_four(least);
    if (ints <= block->ints) return true;
    cudaStreamSynchronize(b->stream);
    forget_graphs(b);
    block_free(b);
    for (int i = 0; i < CUDA_STEPS; i++)
        if (!cuda_expect(cudaMallocHost((void **)&block->host[i], ints * sizeof(int32_t)), "memory for a step", error))
            return false;
    if (!cuda_expect(cudaMalloc((void **)&block->device, ints * sizeof(int32_t)), "memory for a step", error))
        return false;
    block->ints = ints;
    return true;
}

bool cuda_steps_open(CudaBackend *b, Error *error) {
    const int32_t first = 1; /* like the first ticket */
    if (!(b->block.turn = cuda_take(b, sizeof first, error)) ||
        !cuda_expect(cuda_send(b, b->block.turn, &first, sizeof first), "memory for a step", error))
        return false;
    for (int i = 0; i < CUDA_STEPS; i++)
        if (!cuda_expect(cudaEventCreateWithFlags(&b->done[i], cudaEventDisableTiming), "an event", error))
            return false;
    const size_t sampled = (size_t)b->base.rows_max * sizeof(int32_t);
    for (int i = 0; i < CUDA_STEPS; i++)
        if (!cuda_expect(cudaMallocHost((void **)&b->sampled.host[i], sampled), "memory for tokens", error))
            return false;
    b->sampled.turn = b->block.turn;
    /* One allocation: the work space of sampling, then the tokens. */
    const size_t each = sizeof *b->sampled.best + sizeof *b->sampled.ended, work = (size_t)b->base.rows_max * each;
    if (!(b->sampled.best = cuda_take(b, work + sampled, error))) return false;
    b->sampled.ended = (int32_t *)(b->sampled.best + b->base.rows_max);
    b->sampled.device = b->sampled.ended + b->base.rows_max;
    return cuda_expect(cudaMemsetAsync(b->sampled.best, 0, work, b->stream), "memory for tokens", error) &&
        block_grow(b, STEP_INTS_LEAST, error);
}

void cuda_steps_close(CudaBackend *b) {
    forget_graphs(b);
    block_free(b);
    cudaFree(b->block.turn);
    cudaFree(b->sampled.best);
    for (int i = 0; i < CUDA_STEPS; i++) cudaFreeHost(b->sampled.host[i]);
    for (int i = 0; i < CUDA_STEPS; i++)
        if (b->done[i]) cudaEventDestroy(b->done[i]);
}

/* ---- numbers ---- */

StepRows cuda_step_rows(const CudaBackend *b) {
    int32_t *block = b->block.device;
    return (StepRows){.positions = array(b, block, POSITIONS),
        .places = array(b, block, PLACES),
        .chunks = array(b, block, CHUNKS),
        .span_begins = array(b, block, SPAN_BEGINS),
        .span_ends = array(b, block, SPAN_ENDS),
        .chunk_rows = array(b, block, CHUNK_ROWS),
        .chunk_offsets = array(b, block, CHUNK_OFFSETS),
        .rows = b->step.rows,
        .position_dims = b->step.position_dims};
}
StepRows cuda_step_full_precision(const CudaBackend *b) {
    int32_t *block = b->block.device;
    StepRows rows = cuda_step_rows(b);
    rows.places = array(b, block, FULL_PLACES);
    rows.chunk_rows = array(b, block, FULL_CHUNK_ROWS);
    rows.chunk_offsets = array(b, block, FULL_CHUNK_OFFSETS);
    return rows;
}
const int32_t *cuda_step_quant_ends(const CudaBackend *b) { return array(b, b->block.device, QUANT_ENDS); }
const int32_t *cuda_step_quant_sinks(const CudaBackend *b) { return array(b, b->block.device, QUANT_SINKS); }
const int32_t *cuda_step_tokens(const CudaBackend *b) { return array(b, b->block.device, TOKENS); }
const int32_t *cuda_step_outputs(const CudaBackend *b) { return array(b, b->block.device, OUTPUTS); }
const int32_t *cuda_step_hidden_rows(const CudaBackend *b) { return array(b, b->block.device, HIDDEN_ROWS); }
const float *cuda_step_scales(const CudaBackend *b) {
    return (const float *)(const void *)array(b, b->block.device, SCALES);
}
SampleRows cuda_step_sample_params(const CudaBackend *b) {
    return (SampleRows){.scales = cuda_step_scales(b),
        .top_p = (const float *)(const void *)array(b, b->block.device, TOP_PS),
        .min_p_log = (const float *)(const void *)array(b, b->block.device, MIN_PS),
        .top_k = array(b, b->block.device, TOP_KS),
        .uniform_low = array(b, b->block.device, UNIFORM_LOWS),
        .uniform_high = array(b, b->block.device, UNIFORM_HIGHS)};
}

static void fill_sample(CudaBackend *b, const SampleParams *sample, int output) {
    int32_t *block = host_block(b), halves[2];
    memcpy(halves, &sample->uniform, sizeof halves);
    memcpy(array(b, block, SCALES) + output, &sample->scale, sizeof sample->scale);
    memcpy(array(b, block, TOP_PS) + output, &sample->top_p, sizeof sample->top_p);
    memcpy(array(b, block, MIN_PS) + output, &sample->min_p_log, sizeof sample->min_p_log);
    array(b, block, TOP_KS)[output] = sample->top_k;
    array(b, block, UNIFORM_LOWS)[output] = halves[0];
    array(b, block, UNIFORM_HIGHS)[output] = halves[1];
}

/* Writes the quantised range of each row of a chunk, and the chunk as kernels of full-precision pages see it. */
static void fill_quant(CudaBackend *b, const SequenceChunk *chunk) {
    int32_t *block = host_block(b);
    const int full = cuda_full_precision_rows(chunk);
    for (int t = 0; t < chunk->rows; t++) {
        const int row = chunk->row + t, place = chunk->position + t;
        const bool quantised = t >= full;
        array(b, block, QUANT_ENDS)[row] = quantised ? kv_cold_end(chunk->quant, place) : 0;
        array(b, block, QUANT_SINKS)[row] = quantised ? chunk->quant->sink : 0;
        array(b, block, FULL_PLACES)[row] = quantised ? -1 : place;
        array(b, block, FULL_CHUNK_ROWS)[row] = quantised ? 1 : full;
        array(b, block, FULL_CHUNK_OFFSETS)[row] = quantised ? 0 : t;
    }
}

static void fill_chunk(CudaBackend *b, const SequenceChunk *chunk, int index) {
    int32_t *block = host_block(b);
    if (b->quant.seen) fill_quant(b, chunk);
    for (int t = 0; t < chunk->rows; t++) {
        const int row = chunk->row + t, place = chunk->position + t;
        array(b, block, PLACES)[row] = place;
        array(b, block, CHUNKS)[row] = index;
        array(b, block, CHUNK_ROWS)[row] = chunk->rows;
        array(b, block, CHUNK_OFFSETS)[row] = t;
        int begin = 0, end = 0;
        for (int i = 0; i < chunk->span_count; i++)
            if (chunk->spans[i].begin <= place && place < chunk->spans[i].end) {
                begin = chunk->spans[i].begin;
                end = chunk->spans[i].end;
            }
        array(b, block, SPAN_BEGINS)[row] = begin;
        array(b, block, SPAN_ENDS)[row] = end;
    }
}

static void fill_rows(CudaBackend *b, const Step *step) {
    int32_t *block = host_block(b);
    const size_t rows = (size_t)step->rows * sizeof(int32_t);
    memcpy(array(b, block, POSITIONS), step->positions, rows * (size_t)step->position_dims);
    memcpy(array(b, block, TOKENS), step->tokens, rows);
    if (step->outputs) memcpy(array(b, block, OUTPUTS), step->outputs, (size_t)step->output_count * sizeof(int32_t));
    if (step->hidden_row_count)
        memcpy(array(b, block, HIDDEN_ROWS), step->hidden_rows, (size_t)step->hidden_row_count * sizeof(int32_t));
    if (step->scales) memcpy(array(b, block, SCALES), step->scales, (size_t)step->output_count * sizeof *step->scales);
    for (int i = 0; step->sample_params && i < step->output_count; i++) fill_sample(b, &step->sample_params[i], i);
    for (int i = 0; i < step->chunk_count; i++) fill_chunk(b, &step->chunks[i], i);
    if (b->quant.seen) cuda_quant_fill(b, block + b->quant.records);
}

static int pages_of(const SequenceChunk *chunk) { return (chunk->position + chunk->rows - 1) / KV_PAGE_TOKENS + 1; }

/* Offset of a group's page tables in a block. */
static size_t tables_at(const CudaBackend *b, int group) {
    return b->block.tables + (size_t)group * (size_t)b->block.chunk_count * (size_t)b->block.table_stride;
}

static void fill_tables(CudaBackend *b, int group) {
    int32_t *to = host_block(b) + tables_at(b, group);
    for (int i = 0; i < b->step.chunk_count; i++, to += b->block.table_stride) {
        const SequenceChunk *chunk = &b->step.chunks[i];
        const int32_t *table = chunk->tables[group];
        if (b->block.states[group]) {
            to[0] = chunk->position > 0 ? table[(chunk->position - 1) / RECURRENT_PAGE_TOKENS] : -1;
            to[1] = table[(chunk->position + chunk->rows - 1) / RECURRENT_PAGE_TOKENS];
        } else {
            memcpy(to, table, (size_t)pages_of(chunk) * sizeof *to);
        }
    }
    b->block.filled[group] = true;
}

static void send(CudaBackend *b, size_t first, size_t count) {
    cuda_ok(b,
        cudaMemcpyAsync(
            b->block.device + first, host_block(b) + first, count * sizeof(int32_t), cudaMemcpyHostToDevice, b->stream),
        "sending a step");
}

static const int32_t *step_tables(CudaBackend *b, int group, bool states) {
    CHECK(group >= 0 && group < CUDA_GROUPS_MAX);
    if (!b->block.filled[group]) b->block.states[group] = states;
    CHECK(b->block.states[group] == states);
    if (!b->block.filled[group] && b->block.ints > 0) { /* none: the step has failed */
        fill_tables(b, group);
        if (b->capturing)
            b->capturing->groups = group + 1 > b->capturing->groups ? group + 1 : b->capturing->groups;
        else
            send(b, tables_at(b, group), (size_t)b->step.chunk_count * (size_t)b->block.table_stride);
    }
    return b->block.device + tables_at(b, group);
}

const int32_t *cuda_step_tables(CudaBackend *b, int group) { return step_tables(b, group, false); }
const int32_t *cuda_step_states(CudaBackend *b, int group) { return step_tables(b, group, true); }

/* ---- graphs ---- */

enum { REPEATED_CHUNK_ROWS_MAX = 16 };

void cuda_bring_given(CudaBackend *b, int count, const EmbeddingRange *given, int64_t width, float *out) {
    for (int i = 0; i < count; i++)
        cuda_ok(b,
            cudaMemcpyAsync(out + given[i].row * width, given[i].values,
                (size_t)given[i].rows * (size_t)width * sizeof(float),
                given[i].in_backend ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, b->stream),
            "embeddings");
}

/* Copies the states to b->given, before anything else of the step. */
static void bring_states(CudaBackend *b) {
    cuda_bring_given(b, b->step.embedding_count, b->step.embeddings, b->given.width, b->given.room.memory);
    b->given.there = true;
}

/* Whether the step's embeddings are hidden states, beside the tokens of all rows. */
static bool has_states(const Step *step) {
    return step->embedding_count > 0 && step->embeddings[0].row == 0 && step->tokens[0] != TOKEN_GIVEN;
}

static bool repeatable(const CudaBackend *b, const Step *step) {
    if (!step->cache || step->position_dims != 1 || (step->embedding_count > 0 && !b->given.there)) return false;
    if (step->chunk_count != step->rows && step->decode_rows != step->rows) return false;
    for (int i = 0; i < step->chunk_count; i++)
        if (step->chunks[i].span_count || step->chunks[i].rows > REPEATED_CHUNK_ROWS_MAX) return false;
    return true;
}

/* Properties of the step that the host code depends on besides the numbers of rows and chunks: a bit for each kind of
 * chunk that the step has. The number of long chunks matters to prefill rows alone, which steps of several rows per
 * chunk do not have. */
static int layout_of(const CudaBackend *b) {
    const CudaQuant *quant = &b->quant;
    const bool bits[] = {b->short_chunks, b->long_chunks > 0, b->single_rows, quant->seen && quant->mixed,
        quant->seen && quant->short_chunks, quant->seen && quant->long_chunks > 0, quant->seen && quant->quant_short,
        quant->seen && quant->quant_long, b->chunk_rows <= FLASH_DECODE_CHUNK_ROWS};
    int layout = 0;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) layout |= bits[i] << i;
    return layout;
}

/* The decoder calls other operations for rows of other adapters. */
static uint64_t adapters_of(const Step *step) {
    uint64_t hash = 0;
    bool any = false;
    for (int i = 0; i < step->chunk_count; i++) {
        const int32_t own[2] = {step->chunks[i].rows, step->chunks[i].adapter};
        any = any || own[1];
        hash = checksum64_seeded(hash, own, sizeof own);
    }
    return any ? hash : 0;
}

static CudaGraph *find_graph(CudaBackend *b, const CudaKey *key) {
    for (int i = 0; i < b->graph_count; i++) {
        const CudaKey *k = &b->graphs[i].key;
        if (k->rows == key->rows && k->decode_rows == key->decode_rows && k->uniform_matmul == key->uniform_matmul &&
            k->outputs == key->outputs && k->hidden_rows == key->hidden_rows && k->pages == key->pages &&
            k->sampling_now == key->sampling_now && k->cache == key->cache && k->quantised == key->quantised &&
            k->full_slices == key->full_slices && k->forms == key->forms && k->adapters == key->adapters &&
            k->chunk_count == key->chunk_count && k->layout == key->layout)
            return &b->graphs[i];
    }
    return NULL;
}

/* Adds a graph in a free place, or in that of the least recently used one. */
static void add_graph(CudaBackend *b, const CudaKey *key) {
    CudaGraph *at = &b->graphs[b->graph_count];
    if (b->graph_count < CUDA_GRAPHS_MAX) {
        b->graph_count++;
    } else {
        at = b->graphs;
        for (int i = 1; i < b->graph_count; i++)
            if (b->graphs[i].used < at->used) at = &b->graphs[i];
        if (at->exec) cudaGraphExecDestroy(at->exec);
    }
    *at = (CudaGraph){.key = *key, .used = ++b->clock};
}

static void replay(CudaBackend *b, CudaGraph *graph) {
    for (int g = 0; g < graph->groups; g++)
        if (!b->block.filled[g]) fill_tables(b, g);
    host_block(b)[0] = (int32_t)up_to_four(tables_at(b, graph->groups));
    cuda_ok(b, cudaGraphLaunch(graph->exec, b->stream), "a step");
    graph->used = ++b->clock;
    if (!graph->logits) return;
    b->read.there = true;
    b->read.from = graph->logits;
    b->read.count = graph->logits_count;
}

static void end_capture(CudaBackend *b) {
    CudaGraph *graph = b->capturing;
    cudaGraph_t captured = NULL;
    b->capturing = NULL;
    if (!graph->copied && graph->logits)
        cuda_ok(b,
            cudaMemcpyAsync(b->logits, graph->logits, (size_t)graph->logits_count * sizeof(float),
                cudaMemcpyDeviceToHost, b->stream),
            "capturing a step");
    const bool ok = cuda_ok(b, cudaStreamEndCapture(b->stream, &captured), "capturing a step") &&
        cuda_ok(b, cudaGraphInstantiate(&graph->exec, captured, 0), "instantiating a step");
    if (captured) cudaGraphDestroy(captured);
    if (ok) replay(b, graph);
}

/* ---- the step ---- */

enum { TABLE_LEAST = 2 }; /* integers of a table of recurrent states */

static bool set_tables(CudaBackend *b, const Step *step, bool again) {
    int pages = TABLE_LEAST;
    for (int i = 0; i < step->chunk_count; i++)
        pages = pages_of(&step->chunks[i]) > pages ? pages_of(&step->chunks[i]) : pages;
    if (again)
        while (pages & (pages - 1)) pages += pages & -pages;
    b->pages = b->block.table_stride = pages;
    b->short_chunks = false;
    b->long_chunks = 0;
    b->single_rows = true;
    b->chunk_rows = 0;
    for (int i = 0; i < step->chunk_count; i++) {
        const bool is_long = step->chunks[i].rows >= ATTENTION_LONG_CHUNK;
        b->short_chunks = b->short_chunks || !is_long;
        b->long_chunks += is_long;
        b->single_rows = b->single_rows && step->chunks[i].rows == 1 && step->chunks[i].span_count == 0;
        const int rows = step->chunks[i].span_count ? INT_MAX : step->chunks[i].rows;
        b->chunk_rows = rows > b->chunk_rows ? rows : b->chunk_rows;
    }
    b->block.chunk_count = step->chunk_count;
    memset(b->block.filled, 0, sizeof b->block.filled);
    b->block.rows = step->rows;
    b->quant.records = HEADER + (size_t)ARRAYS * (size_t)step->rows;
    b->block.tables = b->quant.records + cuda_quant_look(b, step, again);
    return block_grow(
        b, b->block.tables + (size_t)CUDA_GROUPS_MAX * (size_t)step->chunk_count * (size_t)pages, &b->fault);
}

static CudaSampling sampling_of(const Step *step) {
    if (!step->sample_params) return step->scales ? SAMPLING_SUMS : SAMPLING_NONE;
    for (int i = 0; i < step->output_count; i++)
        if (step->sample_params[i].scale != 0) return SAMPLING_ANY;
    return SAMPLING_LARGEST;
}

bool cuda_begin(Backend *backend, const Step *step) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    cuda_loader_close(b);
    if (b->graphs_stale) forget_graphs(b);
    b->step = *step;
    b->sampling_now = sampling_of(step);
    b->read.there = false;
    b->scratch_used = 0;
    b->ticket++;
    const int turn = (int)(b->ticket % CUDA_STEPS);
    cuda_ok(b, cudaEventSynchronize(b->done[turn]), "the step before the last");
    b->given.all = has_states(step);
    b->given.there = false;
    if (b->given.all && b->given.width && step->rows <= CUDA_GIVEN_MAX) bring_states(b);
    const bool again = step->rows < b->host_rows && repeatable(b, step);
    if (!set_tables(b, step, again) || b->fault.code != ERROR_NONE) return false; /* wait() says so */
    fill_rows(b, step);
    host_block(b)[1] = (int32_t)b->ticket;
    b->rank.sums = 0;
    const CudaKey key = {.rows = step->rows,
        .decode_rows = step->decode_rows,
        .uniform_matmul = step->uniform_matmul,
        .outputs = step->output_count,
        .hidden_rows = step->hidden_row_count,
        .chunk_count = step->chunk_count,
        .layout = layout_of(b),
        .pages = b->pages,
        .sampling_now = b->sampling_now,
        .quantised = b->quant.seen + (b->quant.seen && !b->quant.mixed),
        .full_slices = b->quant.seen ? b->quant.full_slices : 0,
        .forms = b->quant.seen ? b->quant.forms : 0,
        .adapters = adapters_of(step),
        .cache = step->cache};
    CudaGraph *graph = again ? find_graph(b, &key) : NULL;
    b->key = again ? key : (CudaKey){0};
    if (graph && graph->exec) {
        replay(b, graph);
        return false;
    }
    if (graph && b->fault.code == ERROR_NONE) {
        b->capturing = graph;
        /* The other of two GPUs begins the same step while this one is already capturing, and waits for events. */
        const enum cudaStreamCaptureMode mode =
            b->rank.other ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
        cuda_ok(b, cudaStreamBeginCapture(b->stream, mode), "capturing a step");
    } else {
        if (again) add_graph(b, &key);
        host_block(b)[0] = (int32_t)up_to_four(b->block.tables);
    }
    cuda_ok(b, step_bring(b->stream, b->block.host, b->block.device, b->block.turn), "sending a step");
    return true;
}

void cuda_step_note_read(CudaBackend *b, const float *logits, int64_t count) {
    CudaGraph *graph = find_graph(b, &b->key);
    if (!graph || graph->exec) return;
    graph->logits = logits;
    graph->logits_count = count;
}

uint64_t cuda_submit(Backend *backend) {
    CudaBackend *b = cuda_of(backend);
    if (b->capturing) end_capture(b);
    const int turn = (int)(b->ticket % CUDA_STEPS);
    cuda_ok(b, cudaEventRecord(b->done[turn], b->stream), "a step");
    return b->ticket;
}

/* The device works, and the next step may fit. But this step may have ended before its numbers were copied, so that the
 * device would take the next step's numbers from the wrong host array, and before all memory that capturing such a step
 * needs was allocated. */
static void recover(CudaBackend *b) {
    const int32_t next = (int32_t)((b->ticket + 1) % CUDA_STEPS);
    b->fault = (Error){0};
    b->graphs_stale = true;
    b->base.ops->upload(&b->base, b->block.turn, &next, sizeof next);
}

bool cuda_wait(Backend *backend, uint64_t ticket, Error *error) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    if (ticket + CUDA_STEPS > b->ticket) cuda_ok(b, cudaEventSynchronize(b->done[ticket % CUDA_STEPS]), "a step");
    cuda_ok(b, cudaGetLastError(), "a step");
    if (b->fault.code == ERROR_NONE && cuda_ranks_lost(b))
        fail(&b->fault, ERROR_DEVICE, "the other GPU did not answer");
    if (b->fault.code == ERROR_NONE) return true;
    if (error) *error = b->fault;
    if (b->fault.code == ERROR_MEMORY) recover(b);
    return false;
}
