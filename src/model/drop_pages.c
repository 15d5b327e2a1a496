/* Gives back pages of mapped files whose weights were bound to a device. */
#include <sys/mman.h>
#include <unistd.h>

#include "model/model_internal.h"
#include "model/component.h"

static bool in_files(const Checkpoint *checkpoint, const uint8_t *at, size_t bytes) {
    for (int f = 0; f < checkpoint->file_count; f++) {
        const uint8_t *start = (const uint8_t *)checkpoint->files[f].data;
        if (at >= start && at + bytes <= start + checkpoint->files[f].size) return true;
    }
    return false;
}

/* Only whole pages: those at the ends may hold other data. */
static void leave(const Model *model, const void *data, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    const uintptr_t first = (at + page - 1) / page * page, end = (at + bytes) / page * page;
    if (data && end > first && in_files(&model->checkpoint, data, bytes))
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

static void leave_weight(void *context, Weight *w) {
    const Model *model = context;
    const size_t rows = (size_t)w->rows;
    leave(model, w->data, rows * weight_row_bytes(w));
    leave(model, w->scales, rows * weight_scale_bytes(w));
    leave(model, w->biases, rows * weight_scale_bytes(w));
}

static void count_weight(void *context, Weight *w) { *(uint64_t *)context += weight_bytes(w); }

uint64_t model_layer_bytes(const Model *model, int first) {
    uint64_t bytes = 0;
    const Visitor visitor = {.weight = count_weight, .context = &bytes};
    for (int i = first > 0 ? first : 0; i < model->spec.layer_count; i++) {
        Layer layer = model->spec.layers[i];
        layer_visit(&layer, &visitor);
    }
    return bytes;
}

void model_drop_host_pages(const Model *model, int first) {
    const Visitor visitor = {.weight = leave_weight, .context = (void *)model};
    for (int i = first; i < model->spec.layer_count; i++) {
        Layer layer = model->spec.layers[i];
        layer_visit(&layer, &visitor);
    }
}
