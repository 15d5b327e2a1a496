/* Memory of the KV cache: addresses are reserved for the whole budget, memory is mapped in large pieces as pages are
 * used, and a piece without pages is the first to be mapped elsewhere. */
#include <cuda.h>
#include <stdlib.h>

#include "backend/cuda/cuda.h"

enum {
    PIECE = 32 << 20, /* unit of mapping: 2 MiB is the least, and each mapping takes time */
    PART = 2 << 20,   /* unit of release */
    PARTS = PIECE / PART,
};

typedef struct Piece {
    CUmemGenericAllocationHandle handle;
    bool there;
    uint16_t used; /* bit per part */
} Piece;

struct CudaReserve {
    CudaReserve *next;
    uint8_t *base;
    size_t count, bytes; /* bytes: as requested */
    Piece piece[];
};

/* The driver's functions, found through the runtime. */
static struct {
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*destroy)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*allow)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
} driver;

enum { DRIVER_VERSION = 12000 };
static bool find(const char *name, void *function) {
    enum cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion(name, function, DRIVER_VERSION, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess;
}

bool cuda_reserves_open(int device) {
    int can = 0;
    return find("cuDeviceGetAttribute", (void *)&driver.attribute) &&
        !driver.attribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) && can &&
        find("cuMemAddressReserve", (void *)&driver.reserve) && find("cuMemAddressFree", (void *)&driver.unreserve) &&
        find("cuMemCreate", (void *)&driver.create) && find("cuMemRelease", (void *)&driver.destroy) &&
        find("cuMemMap", (void *)&driver.map) && find("cuMemUnmap", (void *)&driver.unmap) &&
        find("cuMemSetAccess", (void *)&driver.allow);
}

static CUdeviceptr address(const CudaReserve *r, size_t piece) {
    return (CUdeviceptr)(uintptr_t)(r->base + piece * PIECE);
}

static CudaReserve *reserve_of(const CudaBackend *b, const void *memory) {
    const uint8_t *at = memory;
    for (CudaReserve *r = b->reserves; r; r = r->next)
        if (at >= r->base && at < r->base + r->count * PIECE) return r;
    return NULL;
}

void *cuda_reserve(CudaBackend *b, size_t bytes, Error *error) {
    const size_t count = (bytes + PIECE - 1) / PIECE;
    size_t left = 0, total = 0;
    if (!cuda_expect(cudaMemGetInfo(&left, &total), "memory on the GPU", error)) return NULL;
    if (!b->reserves && bytes > left) { /* only the cache allocates this late */
        fail(error, ERROR_MEMORY, "no room on the GPU for %.2f GB, %.2f of %.2f GB are free", (double)bytes * 1e-9,
            (double)left * 1e-9, (double)total * 1e-9);
        return NULL;
    }
    CudaReserve *r = calloc(1, sizeof *r + count * sizeof *r->piece);
    CUdeviceptr at;
    if (!r || driver.reserve(&at, count * PIECE, PART, 0, 0)) {
        free(r);
        fail(error, ERROR_MEMORY, "no addresses for %.2f GB on the GPU", (double)bytes * 1e-9);
        return NULL;
    }
    *r = (CudaReserve){.next = b->reserves, .base = (uint8_t *)(uintptr_t)at, .count = count, .bytes = bytes};
    b->reserves = r;
    return r->base;
}

bool cuda_unreserve(CudaBackend *b, void *memory) {
    CudaReserve **link = &b->reserves;
    while (*link && (*link)->base != memory) link = &(*link)->next;
    CudaReserve *r = *link;
    if (!r) return false;
    *link = r->next;
    for (size_t i = 0; i < r->count; i++) {
        if (!r->piece[i].there) continue;
        b->idle_pieces -= r->piece[i].used == 0;
        (void)driver.unmap(address(r, i), PIECE);
        (void)driver.destroy(r->piece[i].handle);
    }
    (void)driver.unreserve(address(r, 0), r->count * PIECE);
    free(r);
    return true;
}

void cuda_reserves_close(CudaBackend *b) {
    while (b->reserves) cuda_unreserve(b, b->reserves->base);
}

/* Takes the memory of an unused piece. */
static bool take_idle(CudaBackend *b, CUmemGenericAllocationHandle *handle) {
    for (CudaReserve *r = b->reserves; r; r = r->next)
        for (size_t i = 0; i < r->count; i++) {
            Piece *piece = &r->piece[i];
            if (!piece->there || piece->used) continue;
            cudaStreamSynchronize(b->stream); /* a kernel may still be reading it */
            if (driver.unmap(address(r, i), PIECE)) return false;
            *handle = piece->handle;
            piece->there = false;
            b->idle_pieces--;
            return true;
        }
    return false;
}

static bool bring(CudaBackend *b, CudaReserve *r, size_t i) {
    const CUmemAllocationProp kind = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->device}};
    const CUmemAccessDesc access = {.location = kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Piece *piece = &r->piece[i];
    if (!(b->idle_pieces > 0 && take_idle(b, &piece->handle)) && driver.create(&piece->handle, PIECE, &kind, 0))
        return false;
    if (driver.map(address(r, i), PIECE, 0, piece->handle, 0)) {
        (void)driver.destroy(piece->handle);
        return false;
    }
    piece->there = true;
    piece->used = 0;
    b->idle_pieces++;
    return !driver.allow(address(r, i), PIECE, &access, 1) &&
        cuda_ok(b, cudaMemsetAsync(r->base + i * PIECE, 0, PIECE, b->stream), "clearing memory");
}

/* The parts of piece i that overlap the range between two offsets in the reserve (whole: that lie inside it). */
static uint16_t parts_between(const CudaReserve *r, size_t i, size_t first, size_t end, bool whole) {
    uint16_t parts = 0;
    for (size_t p = 0; p < PARTS; p++) {
        const size_t from = i * PIECE + p * PART, to = from + PART < r->bytes ? from + PART : r->bytes;
        if (whole ? from >= first && to <= end && from < to : from < end && to > first) parts |= (uint16_t)(1u << p);
    }
    return parts;
}

bool cuda_commit(Backend *backend, void *memory, size_t bytes) {
    CudaBackend *b = cuda_of(backend);
    CudaReserve *r = reserve_of(b, memory);
    if (!r) return true; /* mapped since its allocation */
    const size_t first = (size_t)((uint8_t *)memory - r->base), end = first + bytes;
    cuda_enter(b);
    for (size_t i = first / PIECE; i * PIECE < end; i++) {
        Piece *piece = &r->piece[i];
        if (!piece->there && !bring(b, r, i)) return false;
        b->idle_pieces -= piece->used == 0;
        piece->used |= parts_between(r, i, first, end, false);
    }
    return true;
}

void cuda_decommit(Backend *backend, void *memory, size_t bytes) {
    CudaBackend *b = cuda_of(backend);
    CudaReserve *r = reserve_of(b, memory);
    if (!r) return;
    const size_t first = (size_t)((uint8_t *)memory - r->base), end = first + bytes;
    for (size_t i = first / PIECE; i * PIECE < end; i++) {
        Piece *piece = &r->piece[i];
        const bool was = piece->there && piece->used;
        piece->used &= (uint16_t)~parts_between(r, i, first, end, true);
        b->idle_pieces += was && !piece->used;
    }
}
