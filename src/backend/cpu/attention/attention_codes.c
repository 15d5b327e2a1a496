/* Attention to quantised pages: the pages of each row, queries in the rotated space, the rotations of biases.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_job.h"
#include "backend/cpu/cpu.h"

/* ---- which rows ---- */

static const KvQuant *code_of(const Job *job, const SequenceChunk *chunk) {
    const KvQuant *code = chunk->quant ? &chunk->quant->layers[job->op->kv.index] : NULL;
    return code && code->k != KV_FULL ? code : NULL;
}

int codes_end(const Job *job, const SequenceChunk *chunk, int position) {
    if (!code_of(job, chunk)) return 0;
    const int end = kv_cold_end(chunk->quant, position);
    return end > chunk->quant->sink ? end : 0;
}

/* ---- biases ---- */

/* Rotations of one frequency: by offsets in a page and by the starts of the pages seen so far. Kept from step to step.
 */
struct BiasTurns {
    float frequency;
    int pages;
    float cosines[KV_PAGE_TOKENS], sines[KV_PAGE_TOKENS];
    KvRotation start[BIAS_PAGES];
};

size_t attention_turns_bytes(void) { return BIAS_FREQUENCIES * sizeof(struct BiasTurns); }

static uint64_t pairs_of(const Job *job, const SequenceChunk *chunk, int kv_head) {
    return kv_bias_of(&job->op->kv, code_of(job, chunk), kv_head, 0).pairs;
}

static int find_turns(const CpuBackend *cpu, float frequency) {
    int i = 0;
    while (i < cpu->turn_count && memcmp(&cpu->turns[i].frequency, &frequency, sizeof frequency)) i++;
    return i;
}

static void extend_turns(CpuBackend *cpu, const Rope *rope, int pair, int end) {
    const int at = find_turns(cpu, rope->frequencies[pair]);
    struct BiasTurns *turns = &cpu->turns[at];
    if (at == cpu->turn_count) {
        cpu->turn_count++;
        turns->frequency = rope->frequencies[pair];
        turns->pages = 0;
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            const KvRotation turn = kv_bias_rotation(rope, pair, t);
            turns->cosines[t] = turn.cosine;
            turns->sines[t] = turn.sine;
        }
    }
    for (; turns->pages < BIAS_PAGES && turns->pages * KV_PAGE_TOKENS < end; turns->pages++)
        turns->start[turns->pages] = kv_bias_rotation(rope, pair, turns->pages * KV_PAGE_TOKENS);
}

/* Computes all rotations that the job's threads will read. */
static void prepare_turns(const Job *job) {
    CpuBackend *cpu = job->cpu;
    if (cpu->turn_count > BIAS_FREQUENCIES - KV_QUANT_BIAS_PAIRS) cpu->turn_count = 0; /* one operation's fit */
    for (int i = 0; i < cpu->step.chunk_count; i++) {
        const SequenceChunk *chunk = &cpu->step.chunks[i];
        const int end = codes_end(job, chunk, chunk->position + chunk->rows - 1);
        if (!end) continue;
        uint64_t pairs = 0;
        for (int h = 0; h < job->layout->kv_heads; h++) pairs |= pairs_of(job, chunk, h);
        for (int pair = 0; pair < KV_QUANT_BIAS_PAIRS; pair++)
            if (pairs >> pair & 1) extend_turns(cpu, job->op->kv.rope, pair, end);
    }
}

/* The elements of a head that form a RoPE pair. */
static void pair_dims(const Rope *rope, int pair, int *one, int *other) {
    *one = rope->interleaved ? 2 * pair : pair;
    *other = rope->interleaved ? 2 * pair + 1 : pair + rope->dims / 2;
}

/* ---- planning ---- */

static void open_form(const Job *job, ScanForm *to, KvForm form, bool values) {
    if (to->layout.d) return;
    const KvHalf half = kv_quant_half(job->layout, form, values);
    to->form = half.form;
    to->layout = kv_quant_layout(half.d, half.form, half.values);
    CHECK(to->layout.groups <= SCAN_GROUPS_MAX);
    job->kernels->scan->table(half.form, half.values, to->table);
}

void codes_plan(Job *job) {
    const Step *step = &job->cpu->step;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        if (!codes_end(job, chunk, chunk->position + chunk->rows - 1)) continue;
        CHECK(job->op->window == 0);
        const KvQuant *code = code_of(job, chunk);
        open_form(job, &job->keys[code->k], code->k, false);
        open_form(job, &job->values[code->v], code->v, true);
        job->quantised = true;
    }
    if (job->quantised) prepare_turns(job);
}

/* ---- queries ---- */

size_t codes_record_bytes(const KvLayout *l) {
    return l->latent ? scan_query_bytes(l->value_dim) + scan_query_bytes(l->head_dim) : scan_query_bytes(l->head_dim);
}

static void record_part(const Job *job, const ScanForm *f, const float *q, ScanQuery *record) {
    memcpy(scan_rotated(record), q, (size_t)f->layout.d * sizeof *q);
    kv_rotate(f->layout.d, 1, scan_rotated(record));
    job->kernels->scan->quantise(record, f->form, f->layout.d, f->layout.group);
}

void codes_record(const Job *job, const SequenceChunk *chunk, int row, int head, ScanQuery *record) {
    const Attention *op = job->op;
    const KvQuant *code = code_of(job, chunk);
    const int d = job->layout->head_dim, width = job->layout->value_dim, kv_head = head / job->group;
    const float *q = op->q + ((int64_t)row * op->heads + head) * d;
    if (job->layout->latent) {
        record_part(job, &job->keys[code->k], op->q_latent + ((int64_t)row * op->heads + head) * width, record);
        record_part(job, &job->values[code->v], q, scan_rotating(record, width));
        return;
    }
    const Rope *rope = op->kv.rope;
    uint64_t pairs = pairs_of(job, chunk, kv_head);
    for (int n = 0, pair = 0; pairs; pair++, pairs >>= 1) {
        if (!(pairs & 1)) continue;
        const float *bias = op->kv.k_bias + (int64_t)kv_head * d;
        int a, b;
        pair_dims(rope, pair, &a, &b);
        record->turns[n][0] = rope->scale * (q[a] * bias[a] + q[b] * bias[b]);
        record->turns[n++][1] = rope->scale * (q[b] * bias[a] - q[a] * bias[b]);
    }
    record_part(job, &job->keys[code->k], q, record);
}

ScanQuery *codes_shared_record(const Job *job, const SequenceChunk *chunk, int kv_head, int query) {
    const int64_t at = (int64_t)chunk->row * job->op->heads + (int64_t)kv_head * chunk->rows * job->group + query;
    return (ScanQuery *)(void *)(job->records + (size_t)at * codes_record_bytes(job->layout));
}

/* ---- tiles ---- */

void codes_tile(const Job *job, const Place *place, const ScanQuery *records, QuantTile *tile) {
    const SequenceChunk *chunk = place->chunk;
    for (int i = 0; i < place->count; i++)
        tile->end[i] = codes_end(job, chunk, chunk->position + (place->first + i) / job->group);
    tile->code = code_of(job, chunk);
    if (!tile->end[place->count - 1]) return;
    tile->page = (ScanPage){.keys = &job->keys[tile->code->k],
        .values = &job->values[tile->code->v],
        .queries = records,
        .stride = codes_record_bytes(job->layout)};
    job->kernels->scan->plan(&tile->page, place->count);
    uint64_t pairs = pairs_of(job, chunk, place->kv_head);
    for (int pair = 0; pairs; pair++, pairs >>= 1) {
        if (!(pairs & 1)) continue;
        const int n = tile->page.pairs++, at = find_turns(job->cpu, job->op->kv.rope->frequencies[pair]);
        tile->pairs[n] = pair;
        tile->turns[n] = at;
        tile->page.cosines[n] = job->cpu->turns[at].cosines;
        tile->page.sines[n] = job->cpu->turns[at].sines;
    }
}

void codes_visit(const Job *job, const Place *place, QuantTile *quantised, AttentionTile *tile, int first, int base,
    ScanWork *work) {
    const KvLayer *kv = &job->op->kv;
    const KvQuantView *quant = place->chunk->quant;
    const int number = base / KV_PAGE_TOKENS;
    const bool next = base + KV_PAGE_TOKENS < quantised->end[tile->queries - 1];
    const int32_t *k_pages = quant->k_pages[kv->index] + number, *v_pages = quant->v_pages[kv->index] + number;
    const KvForm k = quantised->code->k, v = quantised->code->v;
    ScanPage *page = &quantised->page;
    tile->base = base;
    page->k = kv_quant_head(kv, k, false, k_pages[0], place->kv_head);
    page->v = kv_quant_head(kv, v, true, v_pages[0], place->kv_head);
    page->next_k = next ? kv_quant_head(kv, k, false, k_pages[1], place->kv_head) : page->k;
    for (int n = 0; n < page->pairs; n++) {
        const struct BiasTurns *turns = &job->cpu->turns[quantised->turns[n]];
        const KvRotation start =
            number < turns->pages ? turns->start[number] : kv_bias_rotation(kv->rope, quantised->pairs[n], base);
        page->start_cosine[n] = start.cosine;
        page->start_sine[n] = start.sine;
    }
    const ScanKernels *scan = job->kernels->scan;
    (job->layout->latent ? scan->latent_page : scan->page)(tile, first, page, work);
}

void codes_add(const Job *job, float *quantised, float *o) {
    const int d = job->layout->value_dim;
    kv_rotate_back(d, 1, quantised);
    for (int i = 0; i < d; i++) o[i] += quantised[i];
}
