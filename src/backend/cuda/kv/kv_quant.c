/* Quantised pages on the host side: tables of levels and rotations, quantisation and calibration between steps. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/kv_quant.h"

/* ---- tables of formats and rotations ---- */

static void open_books(CudaQuant *quant) {
    for (KvForm form = KV_Q3; form < KV_Q8; form++) {
        const int count = 1 << kv_form_bits(form);
        memcpy(quant->books.words[form], kv_codebook(form), (size_t)count);
        memcpy(quant->edges.edge[form], kv_quant_edges(form), (size_t)(count / 2 - 1) * sizeof(float));
    }
    quant->ready = true;
}

static bool is_power_of_two(int d) { return (d & (d - 1)) == 0; }

/* R on the device, computed by rotating unit vectors, one per lane. */
static float *matrix_of(CudaBackend *b, int d) {
    const size_t bytes = (size_t)d * (size_t)d * sizeof(float);
    float *host = calloc(1, bytes), *device = NULL;
    if (!host) {
        fail(&b->fault, ERROR_MEMORY, "no memory for a rotation");
        return NULL;
    }
    for (int i = 0; i < d; i++) host[i * d + i] = 1;
    kv_rotate(d, d, host);
    device = cuda_take(b, bytes, &b->fault);
    if (device) cuda_ok(b, cuda_send(b, device, host, bytes), "a rotation");
    free(host);
    return device;
}

int cuda_rotation(CudaBackend *b, int d) {
    CudaQuant *quant = &b->quant;
    for (int i = 0; i < quant->rotation_count; i++)
        if (quant->rotations[i].d == d) return i;
    CHECK(quant->rotation_count < CUDA_ROTATIONS_MAX);
    Rotation *r = &quant->rotations[quant->rotation_count];
    *r = (Rotation){.d = d};
    float signs[2 * KVQ_DIM_MAX];
    kv_rotation_signs(d, signs);
    for (int i = 0; i < 2 * d; i++)
        if (signs[i] < 0) r->signs[i / d][i % d / 32] |= UINT32_C(1) << i % d % 32;
    if (!is_power_of_two(d) && !(r->matrix = matrix_of(b, d))) return 0;
    if (!quant->on_device) quant->on_device = cuda_take(b, sizeof quant->rotations, &b->fault);
    if (!quant->on_device) return 0;
    quant->rotation_count++;
    cuda_ok(b, cuda_send(b, quant->on_device, quant->rotations, sizeof quant->rotations), "rotations");
    return quant->rotation_count - 1;
}

void cuda_quant_close(CudaBackend *b) {
    CudaQuant *quant = &b->quant;
    for (int i = 0; i < quant->rotation_count; i++) cudaFree((void *)(uintptr_t)quant->rotations[i].matrix);
    cudaFree(quant->on_device);
    cudaFree(quant->jobs.memory);
    cudaFree(quant->queries.memory);
}

/* MLA latents stay in full precision, and so do heads larger than the kernels support. */
size_t cuda_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    const int d = values ? layout->value_dim : layout->head_dim;
    if (layout->latent || layout->head_dim > KVQ_DIM_MAX || layout->value_dim > KVQ_DIM_MAX) return 0;
    if (!kv_quant_dim(layout->head_dim) || !kv_quant_dim(layout->value_dim)) return 0;
    return (size_t)layout->kv_heads * kvq_head_bytes(d, kv_group_dims(d), (int)form, values);
}

/* ---- quantisation ---- */

static KvqLayer kvq_layer(const KvLayer *layer) {
    const KvLayout *l = &layer->layout;
    const bool biased = layer->k_bias && kv_bias_possible(layer->rope);
    return (KvqLayer){.kv_heads = l->kv_heads,
        .head_dim = l->head_dim,
        .value_dim = l->value_dim,
        .dtype = l->dtype,
        .k_group = kv_group_dims(l->head_dim),
        .v_group = kv_group_dims(l->value_dim),
        .bias = biased ? layer->k_bias : NULL,
        .rope = cuda_rope_params(biased ? layer->rope : NULL)};
}

static const uint8_t *full_page(const KvLayer *layer, int32_t page) {
    CHECK(page >= 0);
    return layer->base + (size_t)page * layer->page_stride + layer->layer_offset;
}

static uint8_t *kvq_page(const KvStore *store, int32_t page) {
    CHECK(page >= 0 && store->base);
    return store->base + (size_t)page * store->stride;
}

/* Copies jobs and the data that they point to, `bytes` in all, to the device. */
static void *send_jobs(CudaBackend *b, const void *jobs, size_t bytes, size_t more) {
    if (!cuda_room(b, &b->quant.jobs, bytes + more, &b->fault)) return NULL;
    cuda_ok(b, cuda_send(b, b->quant.jobs.memory, jobs, bytes), "sending pages");
    return b->quant.jobs.memory;
}

static void note_layer(CudaBackend *b, const KvLayer *layer) {
    CudaQuant *quant = &b->quant;
    if (!quant->ready) open_books(quant);
    CHECK(layer->index < CUDA_QUANT_LAYERS_MAX);
    quant->layer_heads[layer->index] = (uint16_t)layer->layout.kv_heads;
    if (layer->index < quant->layers && layer->layout.kv_heads <= quant->heads) return;
    if (layer->index >= quant->layers) quant->layers = layer->index + 1;
    if (layer->layout.kv_heads > quant->heads) quant->heads = layer->layout.kv_heads;
    b->graphs_stale = true; /* the records have moved */
}

void cuda_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    int heads = 1, dims = 1;
    for (int i = 0; i < count; i++) {
        const KvLayout *l = &pages[i].layer->layout;
        note_layer(b, pages[i].layer);
        heads = l->kv_heads > heads ? l->kv_heads : heads;
        dims = l->head_dim > dims ? l->head_dim : dims;
        dims = l->value_dim > dims ? l->value_dim : dims;
    }
    const size_t each = (size_t)heads * sizeof(uint64_t), bytes = (size_t)count * (sizeof(KvqJob) + each);
    KvqJob *jobs = calloc(1, bytes);
    if (!jobs || !cuda_room(b, &b->quant.jobs, bytes, &b->fault)) {
        /* Permanent: the page's content would be wrong. */
        fail(&b->fault, ERROR_DEVICE, "no memory to quantise KV pages");
        free(jobs);
        return;
    }
    uint64_t *pairs = (uint64_t *)(void *)(jobs + count);
    const uint64_t *there = (const uint64_t *)(const void *)((const KvqJob *)b->quant.jobs.memory + count);
    for (int i = 0; i < count; i++) {
        const KvQuantise *page = &pages[i];
        const KvLayer *layer = page->layer;
        memcpy(pairs + (size_t)(i * heads), page->code->bias_pairs, (size_t)layer->layout.kv_heads * sizeof *pairs);
        jobs[i] = (KvqJob){.layer = kvq_layer(layer),
            .from = full_page(layer, page->from),
            .position = page->position,
            .k_to = kvq_page(&layer->k_quant[page->code->k], page->k_to),
            .v_to = kvq_page(&layer->v_quant[page->code->v], page->v_to),
            .k_form = page->code->k,
            .v_form = page->code->v,
            .rotation_k = cuda_rotation(b, layer->layout.head_dim),
            .rotation_v = cuda_rotation(b, layer->layout.value_dim),
            .pairs = there + (size_t)(i * heads)};
    }
    if (send_jobs(b, jobs, bytes, 0) && b->quant.on_device)
        cuda_ok(b,
            kvq_encode(b->stream, b->quant.jobs.memory, count, heads, dims, b->quant.on_device, &b->quant.books,
                &b->quant.edges),
            "coding pages");
    free(jobs);
}

/* ---- calibration ---- */

/* Writes calibrate->code, which the sequence owns, from the sums of its pages and a host copy of the layer's bias and
 * frequencies. sums: [page][heads][k_square, k_whole, q_square], where `heads` is the largest of the call. */
static void calibration_decide(CudaBackend *b, const KvCalibration *calibrate, const double *sums, int heads) {
    const KvLayout *l = &calibrate->layer->layout;
    const int pages = calibrate->tokens / KV_PAGE_TOKENS;
    float *bias = NULL, *frequencies = NULL;
    KvLayer layer = *calibrate->layer;
    Rope rope = {0};
    if (layer.rope) rope = *layer.rope;
    if (layer.k_bias && layer.rope) {
        const size_t bias_bytes = (size_t)(l->kv_heads * l->head_dim) * sizeof(float),
                     rope_bytes = (size_t)(rope.dims / 2) * sizeof(float);
        bias = malloc(bias_bytes);
        frequencies = malloc(rope_bytes + 1);
        if (bias && frequencies) {
            b->base.ops->download(&b->base, bias, layer.k_bias, bias_bytes);
            b->base.ops->download(&b->base, frequencies, rope.frequencies, rope_bytes);
        } else {
            /* Permanent: the sequence's code would be decided without the bias. */
            fail(&b->fault, ERROR_DEVICE, "no memory for the calibration of a KV cache");
        }
        rope.frequencies = frequencies;
        layer.rope = &rope;
    }
    layer.k_bias = bias && frequencies ? bias : NULL;
    KvCalibration own = *calibrate;
    own.layer = &layer;
    const KvForm asked = calibrate->code->k;
    for (int h = 0; h < l->kv_heads; h++) {
        KvStatistics s = {.tokens = calibrate->tokens};
        for (int page = 0; page < pages; page++) {
            const double *of = sums + ((size_t)(page * heads) + (size_t)h) * 3;
            s.k_square += of[0];
            s.k_whole += of[1];
            s.q_square += of[2];
        }
        kv_calibrate_decide(&own, asked, h, &s);
    }
    free(bias);
    free(frequencies);
}

void cuda_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    int heads = 1, pages = 0;
    for (int i = 0; i < count; i++) {
        heads = calibrations[i].layer->layout.kv_heads > heads ? calibrations[i].layer->layout.kv_heads : heads;
        pages += calibrations[i].tokens / KV_PAGE_TOKENS;
    }
    const size_t bytes = (size_t)pages * sizeof(KvqJob), sums_bytes = (size_t)(pages * heads) * 3 * sizeof(double);
    KvqJob *jobs = calloc(1, bytes + 1);
    double *sums = calloc(1, sums_bytes + 1);
    int n = 0;
    for (int i = 0; jobs && i < count; i++)
        for (int page = 0; page < calibrations[i].tokens / KV_PAGE_TOKENS; page++)
            jobs[n++] = (KvqJob){.layer = kvq_layer(calibrations[i].layer),
                .from = full_page(calibrations[i].layer, calibrations[i].table[page]),
                .position = page * KV_PAGE_TOKENS};
    if (!jobs || !sums) {
        fail(&b->fault, ERROR_DEVICE, "no memory for the calibration of a KV cache"); /* permanent, see above */
    } else if (pages && send_jobs(b, jobs, bytes, sums_bytes)) {
        double *there = (double *)(void *)((KvqJob *)b->quant.jobs.memory + pages);
        cuda_ok(b, kvq_calibrate(b->stream, b->quant.jobs.memory, pages, heads, there), "a calibration");
        b->base.ops->download(backend, sums, there, sums_bytes);
    }
    const double *of = sums;
    for (int i = 0; sums && i < count; i++) {
        calibration_decide(b, &calibrations[i], of, heads);
        of += (size_t)(calibrations[i].tokens / KV_PAGE_TOKENS * heads) * 3;
    }
    free(jobs);
    free(sums);
}
