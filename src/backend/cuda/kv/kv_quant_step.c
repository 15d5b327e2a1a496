/* Addresses of quantised pages for the rows of a step. A record of a layer and sequence: the forms of keys and values;
 * for each head the RoPE pairs whose bias is subtracted; the page tables of both. */
#include <string.h>

#include "base/digest.h"
#include "base/math.h"
#include "backend/cuda/cuda.h"

int cuda_full_precision_rows(const SequenceChunk *chunk) {
    if (!chunk->quant) return chunk->rows;
    int low = 0, high = chunk->rows; /* ends never decrease */
    while (low < high) {
        const int t = (low + high) / 2;
        if (kv_cold_end(chunk->quant, chunk->position + t) > chunk->quant->sink)
            high = t;
        else
            low = t + 1;
    }
    return low;
}

bool cuda_only_four(const Step *step, int layer) {
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        if (cuda_full_precision_rows(chunk) == chunk->rows) continue;
        if (chunk->quant->layers[layer].k != KV_Q4 || chunk->quant->layers[layer].v != KV_Q4) return false;
    }
    return true;
}

/* Largest number of full-precision slices of a row that reads quantised pages: those of the sink, and those behind the
 * quantised pages. */
static int full_slices_of(const SequenceChunk *chunk) {
    int longest = 0;
    for (int i = 0; i < chunk->span_count; i++) longest = max_int(longest, chunk->spans[i].end - chunk->spans[i].begin);
    const int tokens = chunk->quant->hot + KV_PAGE_TOKENS + longest;
    return chunk->quant->sink / ATTENTION_SLICE + (tokens + ATTENTION_SLICE - 1) / ATTENTION_SLICE;
}

static void look_at_chunk(CudaQuant *quant, const SequenceChunk *chunk) {
    const int full = cuda_full_precision_rows(chunk);
    if (full > 0) {
        quant->mixed = true;
        if (full < ATTENTION_LONG_CHUNK)
            quant->short_chunks = true;
        else
            quant->long_chunks++;
    }
    if (full == chunk->rows) return;
    const int end = kv_cold_end(chunk->quant, chunk->position + chunk->rows - 1);
    quant->seen = true;
    *(chunk->rows < ATTENTION_LONG_CHUNK ? &quant->quant_short : &quant->quant_long) = true;
    quant->full_slices = max_int(quant->full_slices, full_slices_of(chunk));
    quant->pages = max_int(quant->pages, (end - chunk->quant->sink) / KV_PAGE_TOKENS);
}

size_t cuda_quant_look(CudaBackend *b, const Step *step, bool again) {
    CudaQuant *quant = &b->quant;
    quant->seen = quant->mixed = quant->short_chunks = quant->quant_short = quant->quant_long = false;
    quant->long_chunks = quant->full_slices = quant->pages = 0;
    quant->forms = 0;
    for (int i = 0; i < step->chunk_count; i++) look_at_chunk(quant, &step->chunks[i]);
    if (!quant->seen) return 0;
    if (again) quant->pages = b->block.table_stride;
    for (int layer = 0; layer < quant->layers; layer++) {
        const bool only_four = cuda_only_four(step, layer);
        quant->forms = checksum64_seeded(quant->forms, &only_four, sizeof only_four);
    }
    quant->record_ints = 2 + 2 * quant->heads + 2 * b->block.table_stride;
    return (size_t)quant->layers * (size_t)step->chunk_count * (size_t)quant->record_ints;
}

static void fill_record(const CudaBackend *b, const SequenceChunk *chunk, int layer, int32_t *record) {
    const KvQuantView *quant = chunk->quant;
    const KvQuant *code = &quant->layers[layer];
    const int first = quant->sink / KV_PAGE_TOKENS;
    const int end = kv_cold_end(quant, chunk->position + chunk->rows - 1) / KV_PAGE_TOKENS;
    int32_t *pairs = record + 2, *k = pairs + 2 * b->quant.heads, *v = k + b->block.table_stride;
    record[0] = (int32_t)code->k;
    record[1] = (int32_t)code->v;
    memset(pairs, 0, (size_t)(2 * b->quant.heads) * sizeof *pairs);
    if (code->k == KV_FULL) return;
    memcpy(pairs, code->bias_pairs, b->quant.layer_heads[layer] * sizeof *code->bias_pairs);
    memcpy(k + first, quant->k_pages[layer] + first, (size_t)(end - first) * sizeof *k);
    memcpy(v + first, quant->v_pages[layer] + first, (size_t)(end - first) * sizeof *v);
}

void cuda_quant_fill(const CudaBackend *b, int32_t *records) {
    for (int layer = 0; layer < b->quant.layers; layer++)
        for (int i = 0; i < b->step.chunk_count; i++, records += b->quant.record_ints)
            if (cuda_full_precision_rows(&b->step.chunks[i]) < b->step.chunks[i].rows)
                fill_record(b, &b->step.chunks[i], layer, records);
}
