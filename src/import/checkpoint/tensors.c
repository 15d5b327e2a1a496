/* The safetensors files and their index: tensors go from the mapped source to the files a few rows at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "import/checkpoint/internal.h"

enum {
    PATH_MAX_BYTES = 4096,
    CHUNK_ELEMENTS = 1 << 20, /* converted at a time; a whole row at least */
};
static const uint64_t SHARD_BYTES = (uint64_t)5 << 30;

typedef struct Writing {
    const Plan *plan;
    const char *directory;
    int tensor_count;
    TensorHeader *headers;
    int *shard_of; /* [tensor_count] */
    int shard_count;
    int shard, tensor; /* being written */
    SafetensorsWriter *writer;
    uint64_t done;
    Error *error;
} Writing;

/* --- Headers and shards ----------------------------------------------------------------------------------------- */

static const char *const parts[] = {"weight", "scales", "biases"};
static int parts_of(const Output *o) {
    return !o->item->matrix || o->form.quant == QUANT_NONE ? 1 : o->form.quant == QUANT_AFFINE ? 3 : 2;
}

static bool matrix_header(Arena *arena, const Output *o, int part, TensorHeader *header) {
    const Weight *form = &o->form;
    int64_t cols = o->cols;
    header->name = arena_printf(arena, "%s.%s", o->name, parts[part]);
    header->dtype = form->dtype;
    if (form->quant != QUANT_NONE) {
        header->dtype = part == 0 ? DTYPE_U32 : form->dtype;
        cols = (int64_t)(part == 0 ? weight_row_bytes(form) / 4 : weight_scale_bytes(form) / dtype_bytes(form->dtype));
    }
    header->rank = 0;
    if (o->stack) header->shape[header->rank++] = o->stack;
    header->shape[header->rank++] = o->rows / (o->stack ? o->stack : 1);
    header->shape[header->rank++] = cols;
    return header->name;
}

/* A convolution of PyTorch, [channels, 1, taps], is [channels, taps, 1] in MLX: the same elements. */
static bool array_header(const Output *o, TensorHeader *header) {
    const Tensor *t = &o->item->entries[0]->tensor;
    *header = (TensorHeader){.name = o->name, .dtype = o->dtype};
    if (o->stack) header->shape[header->rank++] = o->stack;
    for (int i = 0; i < t->rank; i++) header->shape[header->rank++] = t->shape[i];
    if (o->item->step) header->shape[header->rank - 1] /= o->item->step;
    if (t->rank == 3 && t->shape[1] == 1 && t->shape[2] > 1) {
        header->shape[1] = t->shape[2];
        header->shape[2] = 1;
    }
    return true;
}

static uint64_t header_bytes(const TensorHeader *header) {
    uint64_t bytes = dtype_bytes(header->dtype);
    for (int i = 0; i < header->rank; i++) bytes *= (uint64_t)header->shape[i];
    return bytes;
}

static bool headers_make(Writing *w) {
    const Plan *plan = w->plan;
    for (int i = 0; i < plan->count; i++) w->tensor_count += parts_of(&plan->outputs[i]);
    w->headers = arena_alloc(plan->arena, (size_t)w->tensor_count, sizeof *w->headers);
    w->shard_of = arena_alloc(plan->arena, (size_t)w->tensor_count, sizeof *w->shard_of);
    TensorHeader *next = w->headers;
    for (int i = 0; next && w->shard_of && i < plan->count; i++)
        for (int p = 0; next && p < parts_of(&plan->outputs[i]); p++) {
            const Output *o = &plan->outputs[i];
            const bool made = o->item->matrix ? matrix_header(plan->arena, o, p, next) : array_header(o, next);
            next = made ? next + 1 : NULL;
        }
    if (!next || !w->shard_of) return fail(w->error, ERROR_MEMORY, "no memory for the list of tensors");
    const uint64_t most = plan->options->shard_bytes ? plan->options->shard_bytes : SHARD_BYTES;
    uint64_t size = 0;
    for (int i = 0; i < w->tensor_count; i++) {
        const uint64_t bytes = header_bytes(&w->headers[i]);
        if (i > 0 && size + bytes > most) {
            w->shard_count++;
            size = 0;
        }
        w->shard_of[i] = w->shard_count;
        size += bytes;
    }
    w->shard_count++;
    return true;
}

static void shard_name(const Writing *w, int shard, char name[64]) {
    if (w->shard_count == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, w->shard_count);
}

/* --- Bytes into the files --------------------------------------------------------------------------------------- */

static bool shard_open(Writing *w) {
    char name[64], path[PATH_MAX_BYTES + 64];
    size_t count = 0;
    if (w->writer && !safetensors_finish(w->writer, w->error)) {
        w->writer = NULL;
        return false;
    }
    while (w->tensor + (int)count < w->tensor_count && w->shard_of[w->tensor + (int)count] == w->shard_of[w->tensor])
        count++;
    w->shard = w->shard_of[w->tensor];
    shard_name(w, w->shard, name);
    snprintf(path, sizeof path, "%s/%s", w->directory, name);
    w->writer = safetensors_create(path, w->headers + w->tensor, count, w->error);
    return w->writer;
}

/* Before the bytes of the next tensor, and after all of them. */
static bool tensor_begin(Writing *w) { return (w->writer && w->shard == w->shard_of[w->tensor]) || shard_open(w); }

static bool tensor_whole(Writing *w, const void *bytes, size_t size) {
    if (!tensor_begin(w) || !safetensors_write(w->writer, bytes, size, w->error)) return false;
    w->tensor++;
    return true;
}

static bool tell(Writing *w, const Output *o, uint64_t bytes) {
    const CheckpointOptions *options = w->plan->options;
    w->done += bytes;
    return !options->progress || options->progress(options->context, w->done, w->plan->total_bytes, o->name) ||
        fail(w->error, ERROR_CANCELLED, "the conversion was stopped");
}

/* --- Matrices ---------------------------------------------------------------------------------------------------- */

typedef struct Room {
    RowRoom rows;
    uint8_t *chunk;           /* codes or plain numbers of a chunk's rows */
    uint8_t *scales, *biases; /* all of them: they follow the codes */
} Room;

static bool room_make(Room *room, const Output *o, int64_t chunk, Error *error) {
    const size_t scales = (size_t)o->rows * weight_scale_bytes(&o->form);
    *room = (Room){0};
    if (!row_room_make(&room->rows, o, error)) return false;
    room->chunk = malloc((size_t)chunk * weight_row_bytes(&o->form));
    room->scales = malloc(scales + 1);
    room->biases = malloc(scales + 1);
    const bool made = room->chunk && room->scales && room->biases;
    return made || fail(error, ERROR_MEMORY, "no memory for %zu bytes", 2 * scales);
}

static void room_free(Room *room) {
    row_room_free(&room->rows);
    free(room->chunk);
    free(room->scales);
    free(room->biases);
}

/* Copies scales or biases, converted to dtype if it differs. */
static void copy_numbers(const void *from, DType own, uint8_t *to, DType dtype, int64_t count) {
    for (int64_t i = 0; own != dtype && i < count; i++) {
        float value;
        floats_to_f32(&value, (const uint8_t *)from + (size_t)i * dtype_bytes(own), own, 1);
        floats_from_f32(to + (size_t)i * dtype_bytes(dtype), dtype, &value, 1);
    }
    if (own == dtype) memcpy(to, from, (size_t)count * dtype_bytes(dtype));
}

static bool copy_codes(const Output *o, int64_t row, uint8_t *codes, Room *room, Error *error) {
    int64_t own;
    const Weight *w = row_weight(o, row, &own, &room->rows, error);
    if (!w) return false;
    const size_t from = (size_t)own * weight_scale_bytes(w), to = (size_t)row * weight_scale_bytes(&o->form);
    const int64_t count = (int64_t)(weight_scale_bytes(w) / dtype_bytes(w->dtype));
    memcpy(codes, (const uint8_t *)w->data + (size_t)own * weight_row_bytes(w), weight_row_bytes(w));
    copy_numbers((const uint8_t *)w->scales + from, w->dtype, room->scales + to, o->form.dtype, count);
    if (w->biases) copy_numbers((const uint8_t *)w->biases + from, w->dtype, room->biases + to, o->form.dtype, count);
    return true;
}

static bool convert_row(const Plan *plan, const Output *o, int64_t row, uint8_t *to, Room *room, Error *error) {
    const size_t at = (size_t)row * weight_scale_bytes(&o->form);
    if (o->quant.quant != QUANT_NONE) {
        const DType source = o->item->weights[0].dtype, own = plan->has_dtype ? plan->dtype : source;
        const DType dtype = o->form.quant == QUANT_AFFINE ? o->form.dtype : own;
        if (!row_read(o, row, dtype, &room->rows, error)) return false;
        quantize_row(o->quant, dtype, room->rows.numbers, o->cols, to, room->scales + at, room->biases + at);
        return true;
    }
    if (o->form.quant != QUANT_NONE) return copy_codes(o, row, to, room, error);
    if (!row_read(o, row, o->form.dtype, &room->rows, error)) return false;
    floats_from_f32(to, o->form.dtype, room->rows.numbers, o->cols);
    return true;
}

static bool write_rows(Writing *w, const Output *o, Room *room, int64_t chunk) {
    const size_t bytes = weight_row_bytes(&o->form);
    if (!tensor_begin(w)) return false;
    for (int64_t row = 0; row < o->rows; row += chunk) {
        const int64_t count = chunk < o->rows - row ? chunk : o->rows - row;
        bool ok = true;
        for (int64_t i = 0; ok && i < count; i++)
            ok = convert_row(w->plan, o, row + i, room->chunk + (size_t)i * bytes, room, w->error);
        if (!ok || !safetensors_write(w->writer, room->chunk, (size_t)count * bytes, w->error)) return false;
        rows_release(o, row, count);
        if (!tell(w, o, (uint64_t)count * output_row_bytes(o))) return false;
    }
    w->tensor++;
    return true;
}

static bool write_matrix(Writing *w, const Output *o) {
    const size_t scales = (size_t)o->rows * weight_scale_bytes(&o->form);
    int64_t chunk = o->cols < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / o->cols : 1;
    if (chunk > o->rows) chunk = o->rows;
    Room room;
    const bool ok = room_make(&room, o, chunk, w->error) && write_rows(w, o, &room, chunk) &&
        (parts_of(o) < 2 || tensor_whole(w, room.scales, scales)) &&
        (parts_of(o) < 3 || tensor_whole(w, room.biases, scales));
    room_free(&room);
    return ok;
}

static int64_t elements_of(const Tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->shape[i];
    return count;
}

static void convert_array(const Plan *plan, const Output *o, const Tensor *t, uint8_t *to) {
    const bool plus = o->item->plus != 0 && rule_adds_plus(plan->model_type);
    const size_t size = dtype_bytes(o->dtype);
    const int64_t step = o->item->step ? o->item->step : 1;
    if (t->dtype == o->dtype && !plus && step == 1) {
        memcpy(to, t->data, t->bytes);
        return;
    }
    for (int64_t i = 0; i < elements_of(t) / step; i++) {
        const uint8_t *from = (const uint8_t *)t->data + (size_t)(i * step + o->item->first) * dtype_bytes(t->dtype);
        float value;
        floats_to_f32(&value, from, t->dtype, 1);
        if (plus) value = row_round(t->dtype, value + o->item->plus);
        floats_from_f32(to + (size_t)i * size, o->dtype, &value, 1);
    }
}

static bool write_array(Writing *w, const Output *o) {
    if (!tensor_begin(w)) return false;
    for (int i = 0; i < o->item->count; i++) {
        const Tensor *t = &o->item->entries[i]->tensor;
        const size_t bytes = (size_t)(elements_of(t) / (o->item->step ? o->item->step : 1)) * dtype_bytes(o->dtype);
        uint8_t *out = malloc(bytes + 1);
        if (!out) return fail(w->error, ERROR_MEMORY, "no memory for %zu bytes", bytes);
        convert_array(w->plan, o, t, out);
        const bool ok = safetensors_write(w->writer, out, bytes, w->error) && tell(w, o, t->bytes);
        free(out);
        if (!ok) return false;
    }
    w->tensor++;
    return true;
}

/* --- The index -------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    const TensorHeader *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static uint64_t parameters_of(const Plan *plan) {
    uint64_t count = 0;
    for (int i = 0; i < plan->count; i++) {
        const Output *o = &plan->outputs[i];
        for (int e = 0; !o->item->matrix && e < o->item->count; e++)
            count += (uint64_t)elements_of(&o->item->entries[e]->tensor);
        if (o->item->matrix) count += (uint64_t)o->rows * (uint64_t)o->cols;
    }
    return count;
}

static bool index_write(const Writing *w) {
    const TensorHeader **sorted = arena_alloc(w->plan->arena, (size_t)w->tensor_count, sizeof(void *));
    uint64_t bytes = 0;
    Buffer out = {0};
    char name[64], path[PATH_MAX_BYTES + 64];
    if (!sorted) return fail(w->error, ERROR_MEMORY, "no memory for the index");
    for (int i = 0; i < w->tensor_count; i++) {
        sorted[i] = &w->headers[i];
        bytes += header_bytes(&w->headers[i]);
    }
    qsort(sorted, (size_t)w->tensor_count, sizeof *sorted, compare_names);
    buffer_printf(&out, "{\n    \"metadata\": {\n        \"total_size\": %llu,\n        \"total_parameters\": %llu\n",
        (unsigned long long)bytes, (unsigned long long)parameters_of(w->plan));
    buffer_text(&out, "    },\n    \"weight_map\": {");
    for (int i = 0; i < w->tensor_count; i++) {
        shard_name(w, w->shard_of[sorted[i] - w->headers], name);
        buffer_text(&out, i ? ",\n        " : "\n        ");
        json_write_string(&out, slice_of(sorted[i]->name));
        buffer_printf(&out, ": \"%s\"", name);
    }
    buffer_text(&out, "\n    }\n}");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->directory);
    const bool ok = !out.failed ? file_write_atomic(path, buffer_view(&out), w->error)
                                : fail(w->error, ERROR_MEMORY, "no memory for the index");
    buffer_free(&out);
    return ok;
}

bool tensors_write(const Plan *plan, const char *directory, Error *error) {
    Writing w = {.plan = plan, .directory = directory, .shard = -1, .error = error};
    bool ok = headers_make(&w);
    for (int i = 0; ok && i < plan->count; i++) {
        const Output *o = &plan->outputs[i];
        ok = (o->item->matrix ? write_matrix(&w, o) : write_array(&w, o)) || fail_while(error, "tensor %s", o->name);
    }
    if (ok)
        ok = (!w.writer || safetensors_finish(w.writer, error)) && index_write(&w);
    else
        safetensors_abandon(w.writer);
    return ok;
}
