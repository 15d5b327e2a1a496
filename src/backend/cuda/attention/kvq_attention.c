/* Attention of the rows of a step that see quantised pages: which kernels, and their work space. */
#include "backend/cuda/cuda.h"
#include "backend/kv_quant.h"

bool cuda_sees_codes(const CudaBackend *b, const KvLayer *layer) {
    bool any = false;
    for (int form = 0; b->codes.seen && form < KV_FORMS; form++) any = any || layer->k_quant[form].base;
    return any;
}

static AttendCodes codes_of(CudaBackend *b, const KvLayer *layer) {
    const CudaCodes *codes = &b->codes;
    const KvLayout *l = &layer->layout;
    const bool biased = layer->k_bias && kv_bias_possible(layer->rope);
    AttendCodes c = {.ends = cuda_step_code_ends(b),
        .sinks = cuda_step_code_sinks(b),
        .records = b->block.device + codes->records +
            (size_t)layer->index * (size_t)b->block.chunk_count * (size_t)codes->record_ints,
        .record_ints = codes->record_ints,
        .heads = codes->heads,
        .table_stride = b->block.table_stride,
        .four = cuda_only_four(&b->step, layer->index),
        .k_group = kv_group_dims(l->head_dim),
        .v_group = kv_group_dims(l->value_dim),
        .bias = biased ? layer->k_bias : NULL,
        .rope = cuda_rope_params(biased ? layer->rope : NULL),
        .k_rotation = codes->rotations[cuda_rotation(b, l->head_dim)],
        .v_rotation = codes->rotations[cuda_rotation(b, l->value_dim)],
        .books = codes->books,
        .exact = codes->exact};
    for (int form = 0; form < KV_FORMS; form++) {
        c.k_base[form] = layer->k_quant[form].base;
        c.v_base[form] = layer->v_quant[form].base;
        c.k_stride[form] = (int64_t)layer->k_quant[form].stride;
        c.v_stride[form] = (int64_t)layer->v_quant[form].stride;
    }
    return c;
}

/* Computes rows first … end − 1 of a step, in calls of as many rows as have room for their parts of `each` floats. */
static void codes_rows(CudaBackend *b, Attend a, const AttendCodes *c, int first, int end, size_t each,
    cudaError_t (*kernel)(cudaStream_t stream, const Attend *attend, const AttendCodes *codes)) {
    int rows = (int)(CUDA_PARTIALS_BYTES / (each * sizeof(float)));
    rows = rows < 1 ? 1 : rows > end - first ? end - first : rows;
    if (first == end || !cuda_room(b, &b->partials, each * sizeof(float) * (size_t)rows, &b->fault)) return;
    a.partials = b->partials.memory;
    for (a.first_row = first; a.first_row < end; a.first_row += rows) {
        a.rows = end - a.first_row < rows ? end - a.first_row : rows;
        cuda_ok(b, kernel(b->stream, &a, c), "attention to codes");
    }
}

bool cuda_codes_generated(CudaBackend *b, const KvLayer *layer, const Attend *a) {
    const AttendCodes c = codes_of(b, layer);
    return c.four && attention_generated_codes_fits(a, &c);
}

/* Computes rows from `first` on with the kernels for all formats. */
static void others(CudaBackend *b, Attend a, AttendCodes c, int first) {
    CudaCodes *codes = &b->codes;
    const bool fast = cuda_attention_kernel(b, &a, PHASE_PREFILL, 1, PAGE_KVQ) == KERNEL_KVQ_DECODE;
    c.pages = codes->coded_short || !fast ? codes->pages : 0;
    const size_t heads = (size_t)(a.step.rows * a.heads), each_query = (code_query_bytes(&a) + 15) / 16 * 16;
    const size_t query_bytes = heads * each_query,
                 folded_bytes = fast && codes->coded_long ? heads * (size_t)(a.value_dim + 2) * sizeof(float) : 0;
    if (!cuda_room(b, &codes->queries, query_bytes + folded_bytes, &b->fault)) return;
    c.queries = codes->queries.memory;
    c.folded = (float *)(void *)(c.queries + query_bytes);
    cuda_ok(b, attention_codes_queries(b->stream, &a, &c), "attention to codes");
    if (fast && codes->coded_long) cuda_ok(b, attention_codes_runs(b->stream, &a, &c), "attention to codes");
    codes_rows(b, a, &c, first, a.step.rows, (size_t)a.heads * code_part_floats(&a, &c), attention_codes_rows);
}

void cuda_attend_codes(CudaBackend *b, const Attention *op, const Attend *attend) {
    CudaCodes *codes = &b->codes;
    Attend a = *attend;
    CHECK(op->kv.index < codes->layers && a.window == 0 && !a.q_latent);
    AttendCodes c = codes_of(b, &op->kv);
    const bool decode_rows = a.decode_rows && attention_generated_codes_fits(&a, &c);
    const int first = decode_rows && c.four ? a.decode_rows : 0; /* first row for the other kernels */
    if (first < a.step.rows) others(b, a, c, first);
    if (!decode_rows) return;
    if (!cuda_room(b, &b->arrivals, GENERATED_ARRIVALS * sizeof *a.arrivals, &b->fault)) return; /* zeros */
    a.arrivals = b->arrivals.memory;
    for (int row = 0, end; row < a.decode_rows; row = end) {
        end = row + ATTENTION_GENERATED_ROWS < a.decode_rows ? row + ATTENTION_GENERATED_ROWS : a.decode_rows;
        codes_rows(b, a, &c, row, end, attention_generated_codes_floats(&a, &c), attention_generated_codes);
    }
}
