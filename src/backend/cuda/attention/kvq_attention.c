/* Attention of the rows of a step that see quantised pages: which kernels, and their work space. */
#include "backend/cuda/cuda.h"
#include "backend/kv_quant.h"

bool cuda_sees_quant(const CudaBackend *b, const KvLayer *layer) {
    bool any = false;
    for (int form = 0; b->quant.seen && form < KV_FORMS; form++) any = any || layer->k_quant[form].base;
    return any;
}

static AttendQuant quant_of(CudaBackend *b, const KvLayer *layer) {
    const CudaQuant *quant = &b->quant;
    const KvLayout *l = &layer->layout;
    const bool biased = layer->k_bias && kv_bias_possible(layer->rope);
    AttendQuant c = {.ends = cuda_step_quant_ends(b),
        .sinks = cuda_step_quant_sinks(b),
        .records = b->block.device + quant->records +
            (size_t)layer->index * (size_t)b->block.chunk_count * (size_t)quant->record_ints,
        .record_ints = quant->record_ints,
        .heads = quant->heads,
        .table_stride = b->block.table_stride,
        .four = cuda_only_four(&b->step, layer->index),
        .k_group = kv_group_dims(l->head_dim),
        .v_group = kv_group_dims(l->value_dim),
        .bias = biased ? layer->k_bias : NULL,
        .rope = cuda_rope_params(biased ? layer->rope : NULL),
        .k_rotation = quant->rotations[cuda_rotation(b, l->head_dim)],
        .v_rotation = quant->rotations[cuda_rotation(b, l->value_dim)],
        .books = quant->books,
        .full_slices = quant->full_slices};
    for (int form = 0; form < KV_FORMS; form++) {
        c.k_base[form] = layer->k_quant[form].base;
        c.v_base[form] = layer->v_quant[form].base;
        c.k_stride[form] = (int64_t)layer->k_quant[form].stride;
        c.v_stride[form] = (int64_t)layer->v_quant[form].stride;
    }
    return c;
}

/* Computes rows first … end − 1 of a step, in calls of as many rows as have room for their parts of `each` floats. */
static void quant_rows(CudaBackend *b, Attend a, const AttendQuant *c, int first, int end, size_t each,
    cudaError_t (*kernel)(cudaStream_t stream, const Attend *attend, const AttendQuant *quant)) {
    int rows = (int)(CUDA_PARTIALS_BYTES / (each * sizeof(float)));
    rows = rows < 1 ? 1 : rows > end - first ? end - first : rows;
    if (first == end || !cuda_room(b, &b->partials, each * sizeof(float) * (size_t)rows, &b->fault)) return;
    a.partials = b->partials.memory;
    for (a.first_row = first; a.first_row < end; a.first_row += rows) {
        a.rows = end - a.first_row < rows ? end - a.first_row : rows;
        cuda_ok(b, kernel(b->stream, &a, c), "attention over quantised pages");
    }
}

bool cuda_kvq4_takes_decode_rows(CudaBackend *b, const KvLayer *layer, const Attend *a) {
    const AttendQuant c = quant_of(b, layer);
    return c.four && flash_decode_kvq4_fits(a, &c);
}

/* Computes rows from `first` on with the kernels for all formats. */
static void others(CudaBackend *b, Attend a, AttendQuant c, int first) {
    CudaQuant *quant = &b->quant;
    const bool fast = cuda_attention_kernel(b, &a, PHASE_PREFILL, 1, PAGE_KVQ) == KERNEL_KVQ_DECODE;
    c.pages = quant->quant_short || !fast ? quant->pages : 0;
    const size_t heads = (size_t)(a.step.rows * a.heads), each_query = (kvq_query_bytes(&a) + 15) / 16 * 16;
    const size_t query_bytes = heads * each_query,
                 folded_bytes = fast && quant->quant_long ? heads * (size_t)(a.value_dim + 2) * sizeof(float) : 0;
    if (!cuda_room(b, &quant->queries, query_bytes + folded_bytes, &b->fault)) return;
    c.queries = quant->queries.memory;
    c.folded = (float *)(void *)(c.queries + query_bytes);
    cuda_ok(b, kvq_queries(b->stream, &a, &c), "attention over quantised pages");
    if (fast && quant->quant_long) cuda_ok(b, kvq_chunks(b->stream, &a, &c), "attention over quantised pages");
    quant_rows(b, a, &c, first, a.step.rows, (size_t)a.heads * kvq_partial_floats(&a, &c), kvq_rows);
}

void cuda_attend_quant(CudaBackend *b, const Attention *op, const Attend *attend) {
    CudaQuant *quant = &b->quant;
    Attend a = *attend;
    CHECK(op->kv.index < quant->layers && a.window == 0 && !a.q_latent);
    AttendQuant c = quant_of(b, &op->kv);
    const bool decode_rows = a.decode_rows && flash_decode_kvq4_fits(&a, &c);
    const int first = decode_rows && c.four ? a.decode_rows : 0; /* first row for the other kernels */
    if (first < a.step.rows) others(b, a, c, first);
    if (!decode_rows) return;
    if (!cuda_room(b, &b->arrivals, FLASH_DECODE_ARRIVALS * sizeof *a.arrivals, &b->fault)) return; /* zeros */
    a.arrivals = b->arrivals.memory;
    for (int row = 0, end; row < a.decode_rows; row = end) {
        end = row + FLASH_DECODE_ROWS_MAX < a.decode_rows ? row + FLASH_DECODE_ROWS_MAX : a.decode_rows;
        quant_rows(b, a, &c, row, end, flash_decode_kvq4_floats(&a, &c), flash_decode_kvq4);
    }
}
