/* The backend: opening, memory, pages, and the exports of the library. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/plugin.h"

enum { CAPABILITY_LEAST = 8, DEVICES_MAX = 1024 };

/* A device fault is permanent for this process: its context cannot be recovered, not even by cudaDeviceReset. The
 * server therefore re-executes itself (cli/restart.h). */
static bool broken[DEVICES_MAX];

static bool device_works(int device, Error *error) {
    return !__atomic_load_n(&broken[device], __ATOMIC_RELAXED) ||
        fail(error, ERROR_DEVICE, "the GPU has failed, and the program must be started again");
}

/* ---- memory ---- */

static void *cuda_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    if (owner == MEMORY_CACHE && b->can_reserve) return cuda_reserve(b, bytes, error);
    void *memory = cuda_take(b, bytes, error);
    if (memory && !cuda_expect(cudaMemsetAsync(memory, 0, bytes, b->stream), "clearing memory", error)) {
        cudaFree(memory);
        return NULL;
    }
    return memory;
}

static void cuda_release(Backend *backend, void *memory) {
    CudaBackend *b = cuda_of(backend);
    if (!memory) return;
    cuda_enter(b);
    cudaStreamSynchronize(b->stream);
    b->graphs_stale = true;
    if (!cuda_unreserve(b, memory)) cudaFree(memory);
}

static void move(Backend *backend, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    cuda_ok(b, cudaMemcpyAsync(to, from, bytes, kind, b->stream), "copying");
    if (kind != cudaMemcpyDeviceToDevice) cuda_ok(b, cudaStreamSynchronize(b->stream), "copying");
}
static void cuda_upload(Backend *backend, void *to, const void *from, size_t bytes) {
    move(backend, to, from, bytes, cudaMemcpyHostToDevice);
}
static void cuda_download(Backend *backend, void *to, const void *from, size_t bytes) {
    move(backend, to, from, bytes, cudaMemcpyDeviceToHost);
}
static void cuda_copy(Backend *backend, void *to, const void *from, size_t bytes) {
    move(backend, to, from, bytes, cudaMemcpyDeviceToDevice);
}

/* Pinned host memory. */
static void *cuda_take_host(Backend *backend, size_t bytes, Error *error) {
    void *memory = NULL;
    cuda_enter(cuda_of(backend));
    return cuda_expect(cudaMallocHost(&memory, bytes), "host memory for copies", error) ? memory : NULL;
}
static void cuda_give_host(Backend *backend, void *memory) {
    cuda_enter(cuda_of(backend));
    cudaFreeHost(memory);
}

static float *cuda_scratch(Backend *backend, int64_t count) {
    CudaBackend *b = cuda_of(backend);
    float *memory = b->scratch + b->scratch_used;
    b->scratch_used += ((size_t)count + 15) / 16 * 16;
    CHECK(b->scratch_used <= b->scratch_count);
    return memory;
}

static float *cuda_read_logits(Backend *backend, float *logits, int64_t count) {
    CudaBackend *b = cuda_of(backend);
    if (b->read.there && b->read.from == logits && b->read.count == count) return b->logits;
    cuda_step_note_read(b, logits, count);
    if ((size_t)count > b->logits_count) {
        b->graphs_stale = true;
        cudaFreeHost(b->logits);
        b->logits = NULL;
        b->logits_count = 0;
        const cudaError_t code = cudaMallocHost((void **)&b->logits, (size_t)count * sizeof *logits);
        if (!cuda_ok(b, code, "host memory for logits")) {
            b->logits = NULL;
            return NULL;
        }
        b->logits_count = (size_t)count;
    }
    cuda_download(backend, b->logits, logits, (size_t)count * sizeof *logits);
    return b->fault.code == ERROR_NONE ? b->logits : NULL;
}

/* ---- pages ---- */

/* The buffer for moving such pages to the host and back is allocated now: page calls could not report a failure. */
static size_t cuda_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    CudaBackend *b = cuda_of(backend);
    const size_t bytes = kv_canonical_bytes(layout, KV_PAGE_TOKENS);
    Error error;
    cuda_enter(b);
    (void)cuda_room(b, &b->staging, bytes, &error);
    return bytes;
}

static bool transfer(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *host, bool in) {
    CudaBackend *b = cuda_of(backend);
    const KvLayout *l = &layer->layout;
    const size_t bytes = kv_canonical_bytes(l, tokens);
    uint8_t *there = layer->base + (size_t)page * layer->page_stride + layer->layer_offset;
    cuda_enter(b);
    if (l->kv_heads == 0) { /* a recurrent state, which has the canonical order */
        if (in)
            cuda_upload(backend, there, host, bytes);
        else
            cuda_download(backend, host, there, bytes);
        return b->fault.code == ERROR_NONE;
    }
    if (!cuda_room(b, &b->staging, kv_canonical_bytes(l, KV_PAGE_TOKENS), &b->fault)) {
        b->fault.code = ERROR_DEVICE; /* permanent */
        return false;
    }
    if (in) cuda_upload(backend, b->staging.memory, host, bytes);
    cuda_ok(b,
        page_transfer(b->stream, there, b->staging.memory, tokens, l->kv_heads, l->head_dim, l->value_dim,
            (int)dtype_bytes(l->dtype), in),
        "a page");
    if (!in) cuda_download(backend, host, b->staging.memory, bytes);
    return b->fault.code == ERROR_NONE;
}
static bool cuda_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    return transfer(backend, layer, page, tokens, out, false);
}
static bool cuda_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    return transfer(backend, layer, page, tokens, (void *)from, true);
}

/* ---- opening ---- */

static void cuda_close(Backend *backend) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    cudaStreamSynchronize(b->stream);
    cuda_loader_close(b);
    cuda_steps_close(b);
    while (b->weights) {
        CudaWeight *one = b->weights;
        b->weights = one->next;
        cudaFree(one->memory);
        free(one);
    }
    cuda_banks_forget(b);
    cuda_quant_close(b);
    cuda_reserves_close(b);
    CudaRoom *rooms[] = {
        &b->inputs, &b->partials, &b->spare, &b->staging, &b->choice, &b->arrivals, &b->moe_block, &b->given.room};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) cudaFree(rooms[i]->memory);
    cuda_ranks_close(b);
    cudaFree(b->scratch);
    cudaFreeHost(b->logits);
    if (b->beside.begins) cudaEventDestroy(b->beside.begins);
    if (b->beside.ends) cudaEventDestroy(b->beside.ends);
    if (b->beside.stream) cudaStreamDestroy(b->beside.stream);
    if (b->stream) cudaStreamDestroy(b->stream);
    if (b->fault.code == ERROR_DEVICE) __atomic_store_n(&broken[b->device], true, __ATOMIC_RELAXED);
    free(b);
}

static const BackendOps cuda_ops = {
    .name = "cuda",
    .one_precision = true,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .commit = cuda_commit,
    .decommit = cuda_decommit,
    .bind = cuda_bind,
    .unbind = cuda_unbind,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .take_host = cuda_take_host,
    .give_host = cuda_give_host,
    .kv_layer_bytes = cuda_kv_layer_bytes,
    .page_read = cuda_page_read,
    .page_write = cuda_page_write,
    .kv_quant_bytes = cuda_kv_quant_bytes,
    .kv_calibrate = cuda_kv_calibrate,
    .kv_quantise = cuda_kv_quantise,
    .begin = cuda_begin,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .scratch = cuda_scratch,
    .read_logits = cuda_read_logits,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .matmul = cuda_matmul,
    .glu = cuda_glu,
    .matmul_add = cuda_matmul_add,
    .ffn_block = cuda_ffn_block,
    .attention = cuda_attention,
    .attention_block = cuda_attention_block,
    .mla = cuda_mla,
    .index_select = cuda_index_select,
    .conv = cuda_conv,
    .recurrence = cuda_recurrence,
    .mamba = cuda_mamba,
    .rg_lru = cuda_rg_lru,
    .gated_norm = cuda_gated_norm,
    .recurrent_block = cuda_recurrent_block,
    .route = cuda_route,
    .experts = cuda_experts,
    .moe_block = cuda_moe_block,
    .activate = cuda_activate,
    .multiply = cuda_multiply,
    .scale_queries = cuda_scale_queries,
    .gather = cuda_gather,
    .logits = cuda_logits,
    .sum_logits = cuda_sum_logits,
    .sample = cuda_sample,
    .sampled = cuda_sampled,
    .add = cuda_add,
    .mix_streams = cuda_mix_streams,
    .match_rms = cuda_match_rms,
    .sparsify = cuda_sparsify,
    .gate_heads = cuda_gate_heads,
    .compress = cuda_compress,
    .compressed_select = cuda_compressed_select,
    .compressed_attention = cuda_compressed_attention,
    .join_groups = cuda_join_groups,
    .hyper_connect = cuda_hyper_connect,
    .enter = cuda_ranks_enter,
    .join = cuda_ranks_join,
    .all_reduce = cuda_all_reduce,
    .close = cuda_close,
};

static int device_count(Error *error) {
    int count = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) || driver == 0) {
        (void)cudaGetLastError();
        fail(error, ERROR_UNSUPPORTED, "CUDA: no NVIDIA driver");
        return 0;
    }
    if (driver / 1000 < CUDART_VERSION / 1000) {
        fail(error, ERROR_UNSUPPORTED, "CUDA: the driver knows CUDA %d.%d, at least %d.0 is needed", driver / 1000,
            driver % 1000 / 10, CUDART_VERSION / 1000);
        return 0;
    }
    if (!cuda_expect(cudaGetDeviceCount(&count), "CUDA", error)) return 0;
    if (count == 0) fail(error, ERROR_UNSUPPORTED, "CUDA: no device");
    return count;
}

static void device_describe(int device, char *text, size_t size) {
    struct cudaDeviceProp p;
    size_t free = 0, total = 0;
    *text = 0;
    if (cudaGetDeviceProperties(&p, device) || cudaSetDevice(device) || cudaMemGetInfo(&free, &total)) return;
    snprintf(text, size, "%s, %.0f GB, %.0f GB free", p.name, (double)total * 1e-9, (double)free * 1e-9);
}

static bool device_memory(int device, DeviceMemory *out, Error *error) {
    size_t free = 0, total = 0;
    if (!device_works(device, error)) return false;
    cudaError_t code = cudaSetDevice(device);
    if (!code) code = cudaMemGetInfo(&free, &total);
    /* A device without memory for a context has none for weights either. */
    struct cudaDeviceProp p;
    if (code == cudaErrorMemoryAllocation && !cudaGetDeviceProperties(&p, device)) {
        (void)cudaGetLastError();
        *out = (DeviceMemory){0, p.totalGlobalMem};
        return true;
    }
    *out = (DeviceMemory){free, total};
    return cuda_expect(code, "CUDA", error);
}

static size_t code_bytes(const KvLayout *layout, KvForm form, bool values) {
    return cuda_kv_quant_bytes(NULL, layout, form, values);
}

/* Kernels, graphs, events, blocks of steps: the measured memory of one context with a model of 32 layers, with a
 * margin. */
enum { OTHER_BYTES = 192 << 20 };
static uint64_t work_bytes(int rows_max, int64_t cols_max) {
    return product_input_bytes(rows_max, cols_max) + CUDA_PARTIALS_BYTES + PRODUCT_PARTIAL_BYTES + cuda_loader_bytes() +
        OTHER_BYTES;
}

static KernelArch arch_of(const struct cudaDeviceProp *p) {
    if (p->major == 9 && p->minor == 0 && kernels_have_sm90a()) return ARCH_SM90A;
    return p->major >= 9 ? ARCH_SM90 : ARCH_SM80;
}

static bool open_device(CudaBackend *b, const BackendOptions *options, Error *error) {
    struct cudaDeviceProp p;
    if (!cuda_expect(cudaGetDeviceProperties(&p, b->device), "CUDA", error) ||
        !cuda_expect(cudaSetDevice(b->device), "CUDA", error))
        return false;
    if (p.major < CAPABILITY_LEAST)
        return fail(error, ERROR_UNSUPPORTED, "%s is too old: compute capability %d.%d, at least %d.0 is needed",
            p.name, p.major, p.minor, CAPABILITY_LEAST);
    b->multiprocessors = p.multiProcessorCount;
    b->shared_bytes = (int)p.sharedMemPerBlockOptin;
    kernels_begin_early(p.major >= 9);
    b->can_reserve = cuda_reserves_open(b->device);
    if (!b->can_reserve) b->ops.commit = NULL;
    b->arch = arch_of(&p);
    b->sm90a = b->arch == ARCH_SM90A;
    b->base.decode_rows_max = b->sm90a ? DECODE_ROWS_MAX : 0;
    snprintf(b->base.description, sizeof b->base.description, "%s, f16 activations", p.name);
    b->scratch_count = options->scratch_bytes / sizeof(float);
    if (!cuda_expect(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "CUDA", error) ||
        !cuda_expect(cudaStreamCreateWithFlags(&b->beside.stream, cudaStreamNonBlocking), "CUDA", error) ||
        !cuda_expect(cudaEventCreateWithFlags(&b->beside.begins, cudaEventDisableTiming), "an event", error) ||
        !cuda_expect(cudaEventCreateWithFlags(&b->beside.ends, cudaEventDisableTiming), "an event", error))
        return false;
    b->scratch = cuda_alloc(&b->base, options->scratch_bytes, MEMORY_STEP, error);
    return b->scratch && cuda_steps_open(b, error);
}

static Backend *cuda_open(const BackendOptions *options, int device, Error *error) {
    CHECK(device >= 0 && device < DEVICES_MAX);
    CudaBackend *b = calloc(1, sizeof *b);
    if (!b) fail(error, ERROR_MEMORY, "no memory for a backend");
    if (!b || !device_works(device, error)) {
        free(b);
        return NULL;
    }
    b->ops = cuda_ops;
    b->base = (Backend){.ops = &b->ops, .rows_max = options->rows_max};
    b->device = device;
    b->host_rows = INT_MAX;
    if (open_device(b, options, error)) return &b->base;
    cuda_close(&b->base);
    return NULL;
}

static void device_kernels(int device, char *text, size_t size) {
    struct cudaDeviceProp p;
    *text = 0;
    if (!cudaGetDeviceProperties(&p, device)) kernels_describe(arch_of(&p), text, size);
}

__attribute__((visibility("default"))) const Plugin *apus_plugin(void);
const Plugin *apus_plugin(void) {
    static const Plugin plugin = {PLUGIN_ABI, sizeof(BackendOps), sizeof(BackendOptions), device_count, device_describe,
        cuda_open, device_memory, cuda_weight_bytes, code_bytes, work_bytes, cuda_read_speed, device_kernels};
    return &plugin;
}
