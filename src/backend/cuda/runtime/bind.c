/* Binds weights: rows of the file pass through two pinned buffers to the device and are packed into tiles there
 * (gemm/gemm.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/runtime/copy.h"
#include "backend/cuda/cuda.h"

enum { LOADER_BYTES = 32 << 20, LOADER_BUFFERS = 2, ALIGN = 256 };

typedef struct CudaLoader {
    uint8_t *host[LOADER_BUFFERS], *device[LOADER_BUFFERS];
    cudaEvent_t free[LOADER_BUFFERS]; /* the data sent from this buffer has been packed */
    Copier *copier;
    size_t bytes;
    int turn;
} CudaLoader;

static size_t up_to(size_t size, size_t align) { return (size + align - 1) / align * align; }

void cuda_loader_close(CudaBackend *b) {
    CudaLoader *loader = b->loader;
    if (!loader) return;
    cudaStreamSynchronize(b->stream);
    for (int i = 0; i < LOADER_BUFFERS; i++) {
        cudaFreeHost(loader->host[i]);
        cudaFree(loader->device[i]);
        if (loader->free[i]) cudaEventDestroy(loader->free[i]);
    }
    copier_close(loader->copier);
    free(loader);
    b->loader = NULL;
}

/* Ensures buffers of at least `bytes` bytes. */
static bool loader_open(CudaBackend *b, size_t bytes, Error *error) {
    if (b->loader && b->loader->bytes >= bytes) return true;
    cuda_loader_close(b);
    CudaLoader *loader = calloc(1, sizeof *loader);
    if (!loader) return fail(error, ERROR_MEMORY, "no memory to load weights");
    b->loader = loader;
    loader->bytes = bytes > LOADER_BYTES ? bytes : LOADER_BYTES;
    loader->copier = copier_open(error);
    if (!loader->copier) return false;
    for (int i = 0; i < LOADER_BUFFERS; i++)
        if (!cuda_expect(cudaMallocHost((void **)&loader->host[i], loader->bytes), "memory to load weights", error) ||
            !cuda_expect(cudaMalloc((void **)&loader->device[i], loader->bytes), "memory to load weights", error) ||
            !cuda_expect(cudaEventCreateWithFlags(&loader->free[i], cudaEventDisableTiming), "an event", error))
            return false;
    return true;
}

static int kind_of(const Weight *w) {
    switch (w->quant) {
    case QUANT_NONE: return TILE_F16;
    case QUANT_MXFP4:
    case QUANT_NVFP4: return TILE_FP4;
    case QUANT_MXFP8: return TILE_FP8;
    default: break;
    }
    static const int kinds[] = {
        [2] = TILE_Q2, [3] = TILE_Q3, [4] = TILE_Q4, [5] = TILE_Q5, [6] = TILE_Q6, [8] = TILE_Q8};
    CHECK(w->bits >= 2 && w->bits <= 8 && w->bits != 7);
    return kinds[w->bits];
}

static Tiles tiles_of(const Weight *w) {
    Tiles t = {.rows = (int)w->rows, .cols = (int)w->cols, .kind = kind_of(w)};
    t.groups = (t.cols + TILE_COLS - 1) / TILE_COLS;
    if (t.kind != TILE_F16) t.subs = w->group >= TILE_COLS ? 1 : TILE_COLS / w->group;
    t.bytes = tile_code_bytes(t.kind) + t.subs * 64;
    return t;
}

/* Sends rows of the file's weight from `first` on through the loader's next buffer. */
static bool send_rows(CudaBackend *b, const Weight *w, int64_t first, int count, RawRows *raw, Error *error) {
    CudaLoader *loader = b->loader;
    const int turn = loader->turn;
    const size_t rows = (size_t)count, data = weight_row_bytes(w), scales = weight_scale_bytes(w);
    if (!cuda_expect(cudaEventSynchronize(loader->free[turn]), "loading weights", error)) return false;
    size_t used = 0;
    const struct {
        const void *from;
        size_t bytes;
        const uint8_t **to;
    } parts[] = {{w->data, data, &raw->data}, {w->scales, scales, &raw->scales}, {w->biases, scales, &raw->biases}};
    *raw = (RawRows){.row_bytes = (int64_t)data,
        .scale_bytes = (int64_t)scales,
        .rows = count,
        .cols = (int)w->cols,
        .quant = w->quant,
        .bits = w->bits,
        .group = w->group,
        .dtype = w->dtype};
    for (int i = 0; i < 3; i++) {
        if (!parts[i].from) continue;
        copier_copy(loader->copier, loader->host[turn] + used,
            (const uint8_t *)parts[i].from + (size_t)first * parts[i].bytes, rows * parts[i].bytes);
        *parts[i].to = loader->device[turn] + used;
        used += up_to(rows * parts[i].bytes, ALIGN);
    }
    return cuda_expect(
        cudaMemcpyAsync(loader->device[turn], loader->host[turn], used, cudaMemcpyHostToDevice, b->stream),
        "loading weights", error);
}

static bool pack(CudaBackend *b, const Weight *w, const Tiles *t, uint8_t *data, float *factors, Error *error) {
    const size_t each = weight_row_bytes(w) + 2 * weight_scale_bytes(w);
    if (!loader_open(b, TILE_ROWS * each + 3 * ALIGN, error)) return false;
    CudaLoader *loader = b->loader;
    const int64_t step = (int64_t)((loader->bytes - 3 * ALIGN) / (TILE_ROWS * each)) * TILE_ROWS;
    for (int64_t first = 0; first < w->rows; first += step) {
        const int count = (int)(w->rows - first < step ? w->rows - first : step);
        RawRows raw;
        if (!send_rows(b, w, first, count, &raw, error)) return false;
        const int64_t row = first / TILE_ROWS;
        if (!cuda_expect(tiles_pack(b->stream, &raw, t, data + row * t->groups * t->bytes, factors + row),
                "packing weights", error) ||
            !cuda_expect(cudaEventRecord(loader->free[loader->turn], b->stream), "packing weights", error))
            return false;
        loader->turn = (loader->turn + 1) % LOADER_BUFFERS;
    }
    return true;
}

/* Bytes of the consecutive parts of a bound weight's memory. */
typedef struct Parts {
    size_t tiles, factors, bias, row;
} Parts;

static Parts parts_of(const Weight *w) {
    const Tiles t = tiles_of(w);
    const size_t tile_rows = ((size_t)t.rows + TILE_ROWS - 1) / TILE_ROWS;
    const bool vector = w->rows == 1 && w->quant == QUANT_NONE && w->dtype == DTYPE_F32;
    return (Parts){.tiles = up_to(tile_rows * (size_t)t.groups * (size_t)t.bytes, ALIGN),
        .factors = up_to(tile_rows * sizeof(float), ALIGN),
        .bias = w->bias ? up_to((size_t)t.rows * sizeof(float), ALIGN) : 0,
        .row = vector ? (size_t)w->cols * sizeof(float) : 0};
}

uint64_t cuda_weight_bytes(const Weight *weight) {
    const Parts p = parts_of(weight);
    return p.tiles + p.factors + p.bias + p.row;
}

size_t cuda_loader_bytes(void) { return (size_t)LOADER_BYTES * LOADER_BUFFERS; }

static bool make(CudaBackend *b, CudaWeight *made, const Weight *w, Error *error) {
    Tiles *t = &made->tiles;
    *t = tiles_of(w);
    const Parts p = parts_of(w);
    const size_t tiles = p.tiles, factors = p.factors, bias = p.bias, row = p.row;
    uint8_t *memory = made->memory = cuda_take(b, tiles + factors + bias + row, error);
    if (!memory) return false;
    t->data = memory;
    t->factors = (const float *)(const void *)(memory + tiles);
    if (row) {
        made->vector = (float *)(void *)(memory + tiles + factors + bias);
        if (!cuda_expect(cuda_send(b, made->vector, w->data, row), "loading weights", error)) return false;
    }
    if (bias) {
        t->bias = (const float *)(const void *)(memory + tiles + factors);
        if (!cuda_expect(
                cuda_send(b, (void *)t->bias, w->bias, (size_t)t->rows * sizeof(float)), "loading weights", error))
            return false;
    }
    return pack(b, w, t, memory, (float *)(void *)(memory + tiles), error);
}

bool cuda_bind(Backend *backend, Weight *weight, Error *error) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    CudaWeight *made = calloc(1, sizeof *made);
    if (!made) return fail(error, ERROR_MEMORY, "no memory for a weight");
    if (!make(b, made, weight, error) ||
        (weight->cols > b->cols_max &&
            !cuda_room(b, &b->inputs, product_input_bytes(b->base.rows_max, weight->cols), error))) {
        cudaFree(made->memory);
        free(made);
        return false;
    }
    if (weight->split == SPLIT_COLUMNS && !cuda_ranks_room(b, weight->rows, error)) {
        cudaFree(made->memory);
        free(made);
        return false;
    }
    if (weight->cols > b->cols_max) b->cols_max = weight->cols;
    made->next = b->weights;
    b->weights = made;
    weight->data = made->vector ? (const void *)made->vector : made;
    weight->bias = made->tiles.bias;
    weight->scales = weight->biases = NULL;
    return true;
}

void cuda_unbind(Backend *backend, const Weight *weight) {
    CudaBackend *b = cuda_of(backend);
    cuda_enter(b);
    b->graphs_stale = true;
    cuda_banks_forget(b);
    for (CudaWeight **at = &b->weights; *at; at = &(*at)->next) {
        CudaWeight *one = *at;
        if (weight->data != one && (!one->vector || weight->data != one->vector)) continue;
        *at = one->next;
        cudaStreamSynchronize(b->stream);
        cudaFree(one->memory);
        free(one);
        return;
    }
    CHECK(!"a weight that was bound");
}

/* A vector may also be used as a matrix of one row. */
const Tiles *cuda_tiles(CudaBackend *b, const Weight *weight) {
    if (weight->rows > 1 || weight->quant != QUANT_NONE || weight->dtype != DTYPE_F32)
        return &((const CudaWeight *)weight->data)->tiles;
    const CudaWeight *one = b->weights;
    while (one && one->vector != weight->data) one = one->next;
    CHECK(one != NULL);
    return &one->tiles;
}

/* ---- banks ---- */

static void bank_free(CudaBank *bank) {
    cudaFree(bank->tiles);
    free(bank);
}

void cuda_banks_forget(CudaBackend *b) {
    if (!b->banks) return;
    cudaStreamSynchronize(b->stream);
    while (b->banks) {
        CudaBank *one = b->banks;
        b->banks = one->next;
        bank_free(one);
    }
}

static CudaBank *bank_make(CudaBackend *b, const Weight *weights, int count) {
    const size_t bytes = (size_t)count * sizeof(Tiles);
    CudaBank *bank = calloc(1, sizeof *bank);
    Tiles *tiles = malloc(bytes);
    if (!bank || !tiles) fail(&b->fault, ERROR_MEMORY, "no memory for experts");
    if (bank && tiles && (bank->tiles = cuda_take(b, bytes, &b->fault))) {
        *bank = (CudaBank){.weights = weights, .tiles = bank->tiles, .most = *cuda_tiles(b, weights), .alike = true};
        for (int e = 0; e < count; e++) {
            const Tiles *t = &tiles[e];
            tiles[e] = *cuda_tiles(b, &weights[e]);
            bank->alike = bank->alike && t->kind == bank->most.kind && t->bytes == bank->most.bytes;
            if (t->rows > bank->most.rows) bank->most.rows = t->rows;
            if (e < count - 1 && t->rows > bank->rows_but_last) bank->rows_but_last = t->rows;
            if (t->groups > bank->most.groups) bank->most.groups = t->groups;
        }
        cuda_ok(b, cuda_send(b, bank->tiles, tiles, bytes), "experts");
    }
    free(tiles);
    if (b->fault.code == ERROR_NONE) return bank;
    if (bank) bank_free(bank);
    return NULL;
}

const CudaBank *cuda_bank(CudaBackend *b, const Weight *weights, int count) {
    for (CudaBank *bank = b->banks; bank; bank = bank->next)
        if (bank->weights == weights) return bank;
    CHECK(!b->capturing); /* an equal step has run before and made the bank */
    if (b->fault.code != ERROR_NONE) return NULL;
    CudaBank *bank = bank_make(b, weights, count);
    if (!bank) return NULL;
    bank->next = b->banks;
    return b->banks = bank;
}
