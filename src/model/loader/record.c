/* The part of the Loader that records what is read. */
#include "model/loader/record.h"

#include <stdio.h>

#include "model/loader/internal.h"

/* A new item; NULL: nothing is recorded, or loading has failed. */
static Recorded *add(Loader *ld, const char *name, int count) {
    LoadRecord *record = ld->source->record;
    if (!record || ld->failed) return NULL;
    if (record->count == record->capacity) {
        const int capacity = record->capacity ? 2 * record->capacity : 256;
        Recorded *grown = loader_alloc(ld, (size_t)capacity, sizeof *grown);
        if (!grown) return NULL;
        if (record->count) memcpy(grown, record->items, (size_t)record->count * sizeof *grown);
        record->items = grown;
        record->capacity = capacity;
    }
    Recorded item = {.name = arena_copy(ld->source->arena, slice_of(name)), .count = count};
    if (!item.name) {
        loader_fail(ld, ERROR_MEMORY, "no memory for the name of %s", name);
        return NULL;
    }
    record->items[record->count] = item;
    return &record->items[record->count++];
}

static int *item_of(Loader *ld, const TensorEntry *entry) {
    LoadRecord *record = ld->source->record;
    if (!record->item_of_entry)
        record->item_of_entry = loader_alloc(ld, ld->source->checkpoint->entry_count, sizeof *record->item_of_entry);
    return record->item_of_entry ? &record->item_of_entry[entry - ld->source->checkpoint->entries] : NULL;
}

void loader_record_entry(Loader *ld, const TensorEntry *entry) {
    int *item = ld->source->record ? item_of(ld, entry) : NULL;
    if (!item || *item) return;
    Recorded *added = add(ld, arena_copy(ld->source->arena, entry->name), 1);
    if (!added) return;
    added->entries = loader_alloc(ld, 1, sizeof *added->entries);
    if (!added->entries) return;
    added->entries[0] = entry;
    *item = ld->source->record->count;
}

void loader_record_plus(Loader *ld, const TensorEntry *entry, float plus) {
    const int *item = ld->source->record ? item_of(ld, entry) : NULL;
    if (item && *item) ld->source->record->items[*item - 1].plus = plus;
}

void loader_record_unit_rows(Loader *ld, float epsilon) {
    LoadRecord *record = ld->source->record;
    if (record && record->count && !ld->failed) record->items[record->count - 1].unit_epsilon = epsilon;
}

void loader_record_matrix(
    Loader *ld, const char *name, bool bare, const Weight *weight, const TensorEntry *const *entries, int entry_count) {
    LoadRecord *record = ld->source->record;
    if (!record || ld->failed) return;
    for (int i = 0; i < entry_count; i++) {
        int *item = item_of(ld, entries[i]);
        if (!item) return;
        if (*item && record->items[*item - 1].matrix) return; /* read a second time */
        if (*item) record->items[*item - 1].moved = true;
    }
    Recorded *added = add(ld, name, 1);
    Weight *weights = added ? loader_alloc(ld, 1, sizeof *weights) : NULL;
    if (!weights) return;
    weights[0] = *weight;
    added->matrix = true;
    added->bare = bare;
    added->stack = ld->stack;
    added->weights = weights;
    for (int i = 0; i < entry_count; i++) *item_of(ld, entries[i]) = record->count;
}

void loader_record_packed(Loader *ld, const char *name, const PackedMatrix *packed) {
    LoadRecord *record = ld->source->record;
    const Tensor *const parts[] = {&packed->data, &packed->scales, &packed->factor, &packed->zeros, &packed->group_of};
    if (!record || ld->failed) return;
    for (int i = 0; i < record->count; i++) {
        Recorded *item = &record->items[i];
        for (size_t p = 0; !item->matrix && !item->moved && p < COUNT_OF(parts); p++)
            if (parts[p]->data && item->entries[0]->tensor.data == parts[p]->data) item->moved = true;
    }
    Recorded *added = add(ld, name, 1);
    Weight *weights = added ? loader_alloc(ld, 1, sizeof *weights) : NULL;
    const PackedMatrix **own = added ? loader_alloc(ld, 1, sizeof *own) : NULL;
    if (!weights || !own) return;
    weights[0] = packed->form;
    own[0] = packed;
    added->matrix = true;
    added->stack = ld->stack;
    added->weights = weights;
    added->packed = own;
}

void loader_record_part(Loader *ld, const char *name, const TensorEntry *entry, int64_t first, int64_t step) {
    LoadRecord *record = ld->source->record;
    const int *item = record ? item_of(ld, entry) : NULL;
    if (!item || !*item) return;
    record->items[*item - 1].moved = true;
    Recorded *added = add(ld, name, 1);
    added = added && (added->entries = loader_alloc(ld, 1, sizeof *added->entries)) ? added : NULL;
    if (!added) return;
    added->entries[0] = entry;
    added->first = first;
    added->step = step;
}

void loader_record_transposed(Loader *ld, int count, bool alternating) {
    LoadRecord *record = ld->source->record;
    Recorded *item = record && record->count ? &record->items[record->count - 1] : NULL;
    if (ld->failed || !item || !item->matrix || item->packed || item->transposed) return;
    const Weight all = item->weights[0];
    Weight *parts = loader_alloc(ld, (size_t)count, sizeof *parts);
    if (!parts) return;
    for (int i = 0; i < count; i++) parts[i] = weight_rows(&all, all.rows / count * i, all.rows / count);
    item->weights = parts;
    item->count = count;
    item->transposed = true;
    item->alternating = alternating;
}

int loader_record_count(const Loader *ld) { return ld->source->record ? ld->source->record->count : 0; }

/* Joins the items from `first` on of one kind. suffix: of the name behind the module's. */
static void join(Loader *ld, int first, bool matrix, const char *name) {
    LoadRecord *record = ld->source->record;
    int count = 0, last = record->count;
    for (int i = first; i < last; i++) count += !record->items[i].moved && record->items[i].matrix == matrix;
    Recorded *joined = count ? add(ld, name, count) : NULL;
    if (!joined) return;
    joined->matrix = matrix;
    joined->stack = count;
    joined->weights = matrix ? loader_alloc(ld, (size_t)count, sizeof *joined->weights) : NULL;
    joined->entries = matrix ? NULL : loader_alloc(ld, (size_t)count, sizeof *joined->entries);
    bool packed = false;
    for (int i = first; i < last; i++) packed = packed || record->items[i].packed;
    joined->packed = matrix && packed ? loader_alloc(ld, (size_t)count, sizeof *joined->packed) : NULL;
    if ((!joined->weights && !joined->entries) || (matrix && packed && !joined->packed)) return;
    for (int i = first, n = 0; i < last; i++) {
        Recorded *item = &record->items[i];
        if (item->moved || item->matrix != matrix) continue;
        if (matrix && packed) joined->packed[n] = item->packed ? item->packed[0] : NULL;
        if (matrix)
            joined->weights[n++] = item->weights[0];
        else
            joined->entries[n++] = item->entries[0];
        item->moved = true;
    }
}

void loader_record_stack(Loader *ld, int first, const char *name) {
    char bias[PART_SIZE + 128];
    if (!ld->source->record || ld->failed) return;
    snprintf(bias, sizeof bias, "%s.bias", name);
    join(ld, first, true, name);
    join(ld, first, false, bias);
}

void loader_record_heads(Loader *ld, const char *joined, const char *home, const Weight *both, const HeadSizes *s) {
    LoadRecord *record = ld->source->record;
    const int64_t each = s->nope_dim + s->width;
    const PackedMatrix *packed = NULL;
    for (int i = 0; i < record->count; i++) {
        if (strcmp(record->items[i].name, joined) != 0) continue;
        record->items[i].whole = true;
        packed = record->items[i].packed ? record->items[i].packed[0] : NULL;
    }
    for (int part = 0; part < 2; part++) {
        char name[PART_SIZE + 128];
        snprintf(name, sizeof name, "%s.%s", home, part ? "unembed_out" : "embed_q");
        Recorded *item = add(ld, name, s->heads);
        Weight *weights = item ? loader_alloc(ld, (size_t)s->heads, sizeof *weights) : NULL;
        PackedMatrix *parts = item && packed ? loader_alloc(ld, (size_t)s->heads, sizeof *parts) : NULL;
        const PackedMatrix **own = parts ? loader_alloc(ld, (size_t)s->heads, sizeof *own) : NULL;
        if (!weights || (packed && !own)) return;
        for (int h = 0; h < s->heads; h++) {
            const int64_t first = h * each + (part ? s->nope_dim : 0), rows = part ? s->width : s->nope_dim;
            if (packed) {
                parts[h] = packed_rows(packed, first, rows);
                own[h] = &parts[h];
                weights[h] = parts[h].form;
            } else {
                weights[h] = weight_rows(both, first, rows);
            }
        }
        item->packed = own;
        item->matrix = item->part = true;
        item->stack = s->heads;
        item->transposed = !part;
        item->weights = weights;
    }
}
