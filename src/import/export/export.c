/* The export from end to end: names and types of the tensors, the header, the weights a row at a time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "import/export/internal.h"
#include "import/partial.h"
#include "model/model.h"

enum { ALIGNMENT = 32, CHUNK_BYTES = 1 << 20 };

/* Families whose files have been compared with gguf-py's and Apus's own reading (tests/import/check_export.py). */
static const char *const model_types[] = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "phi3"};

/* --- Which model ------------------------------------------------------------------------------------------------ */

static bool model_choose(Export *e) {
    const Json *type = json_get(e->config, "model_type");
    const Slice own = type && type->type == JSON_STRING ? json_slice(type) : (Slice){0};
    char list[256];
    size_t size = 0;
    list[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(model_types); i++) {
        size += (size_t)snprintf(list + size, sizeof list - size, "%s%s", i ? ", " : "", model_types[i]);
        if (!slice_is(own, model_types[i])) continue;
        const char *name;
        size_t index = 0;
        for (const GgufModel *model; !e->model && (model = family_gguf(index, &name)); index++)
            if (slice_is(own, name)) e->model = model;
    }
    return e->model ||
        fail(e->error, ERROR_UNSUPPORTED,
            "models of the type %.*s cannot be written as GGUF files (these "
            "can: %s): llama.cpp's convert_hf_to_gguf.py may know it",
            SLICE_SHOWN(own), list);
}

/* --- Tensors ---------------------------------------------------------------------------------------------------- */

static const GgufName *name_of(const GgufModel *model, Slice module, int *block) {
    for (const GgufName *const *list = model->names; *list; list++)
        for (const GgufName *name = *list; name->gguf; name++)
            if (name->module && gguf_name_match(module, name->module, block)) return name;
    return NULL;
}

static const char *file_name(Export *e, const GgufName *name, int block, const char *part) {
    const char *star = strchr(name->gguf, '*');
    if (!star) return arena_printf(&e->arena, "%s%s", name->gguf, part);
    return arena_printf(&e->arena, "%.*s%d%s%s", (int)(star - name->gguf), name->gguf, block, star + 1, part);
}

static uint32_t wanted_type(ExportType type) {
    static const uint32_t types[] = {[EXPORT_Q8_0] = TYPE_Q8_0,
        [EXPORT_Q4_0] = TYPE_Q4_0,
        [EXPORT_Q4_K] = TYPE_Q4_K,
        [EXPORT_F16] = TYPE_F16,
        [EXPORT_BF16] = TYPE_BF16};
    return types[type];
}

/* Routers and vectors are F32, as llama.cpp keeps them. */
static uint32_t type_of(const Export *e, const ExportTensor *t) {
    const uint32_t type = wanted_type(e->options->type);
    if (!t->output->item->matrix || strstr(t->name, "ffn_gate_inp")) return TYPE_F32;
    return t->output->cols % export_block(type) ? TYPE_F16 : type;
}

static int64_t rows_of(const Output *o) { return o->item->matrix ? o->rows : 1; }

static int64_t cols_of(const Output *o) {
    if (o->item->matrix) return o->cols;
    int64_t count = 1;
    const Tensor *t = &o->item->entries[0]->tensor;
    for (int i = 0; i < t->rank; i++) count *= t->shape[i];
    return count;
}

static bool plan_heads(Export *e, ExportTensor *t) {
    const bool kv = t->change == GGUF_KV_HEADS_PAIRED;
    if (!kv && t->change != GGUF_HEADS_PAIRED) return true;
    const Json *heads = kv ? json_get(e->config, "num_key_value_heads") : NULL;
    heads = heads && heads->type == JSON_INTEGER ? heads : json_get(e->config, "num_attention_heads");
    const int64_t rows = t->output->item->matrix ? rows_of(t->output) : cols_of(t->output),
                  count = heads && heads->type == JSON_INTEGER && heads->integer > 0 ? heads->integer : 0;
    if (!count || rows % (2 * count))
        return fail(e->error, ERROR_FORMAT, "%s: %lld rows are not those of whole heads", t->name, (long long)rows);
    t->interleaved = rows / count;
    return true;
}

static bool plan_tensor(Export *e, const Output *o, ExportTensor *t) {
    Slice module = slice_of(o->name);
    const char *part = ".weight";
    int block;
    if (!o->item->matrix) {
        const char *dot = strrchr(o->name, '.');
        part = dot ? arena_copy(&e->arena, slice_of(dot)) : "";
        module.size = dot ? (size_t)(dot - o->name) : module.size;
    }
    const GgufName *name = name_of(e->model, module, &block);
    const bool same = name && name->change <= GGUF_PLUS_ONE;
    if (!same || !part || (!o->item->matrix && (o->item->count != 1 || o->item->step)))
        return fail(e->error, ERROR_UNSUPPORTED, "tensor %s is not one that a GGUF file of the architecture %s has",
            o->name, e->model->architecture);
    *t = (ExportTensor){.output = o, .name = file_name(e, name, block, part), .change = name->change};
    if (!t->name) return fail(e->error, ERROR_MEMORY, "no memory for the names");
    t->type = type_of(e, t);
    t->bytes =
        (uint64_t)rows_of(o) * (uint64_t)(cols_of(o) / export_block(t->type)) * (uint64_t)gguf_type(t->type)->bytes;
    return plan_heads(e, t);
}

static bool plan_tensors(Export *e) {
    e->tensor_count = e->plan.count;
    e->tensors = arena_alloc(&e->arena, (size_t)e->plan.count, sizeof *e->tensors);
    if (!e->tensors) return fail(e->error, ERROR_MEMORY, "no memory for the list of tensors");
    for (int i = 0; i < e->plan.count; i++)
        if (!plan_tensor(e, &e->plan.outputs[i], &e->tensors[i])) return false;
    return true;
}

/* --- The header ------------------------------------------------------------------------------------------------- */

static void put_name(Buffer *out, const char *name) {
    const uint64_t size = strlen(name);
    buffer_append(out, &size, sizeof size);
    buffer_text(out, name);
}

static uint64_t aligned(uint64_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* dims: fastest first. */
static void put_info(
    Buffer *out, const char *name, uint32_t type, const uint64_t *dims, uint32_t rank, uint64_t offset) {
    put_name(out, name);
    buffer_append(out, &rank, sizeof rank);
    buffer_append(out, dims, rank * sizeof *dims);
    buffer_append(out, &type, sizeof type);
    buffer_append(out, &offset, sizeof offset);
}

static const char *factor_name(const Export *e, int i) {
    return !e->factors[1] ? "rope_freqs.weight" : i ? "rope_factors_short.weight" : "rope_factors_long.weight";
}

/* Everything before the data, padded. *data_bytes: the data's size. */
static bool put_header(Export *e, Buffer *out, uint64_t *data_bytes) {
    uint64_t offset = 0, tensors = (uint64_t)e->tensor_count + (e->factors[0] != NULL) + (e->factors[1] != NULL);
    const uint32_t version = 3;
    buffer_text(out, "GGUF");
    buffer_append(out, &version, sizeof version);
    buffer_append(out, &tensors, sizeof tensors);
    buffer_append(out, &e->key_count, sizeof e->key_count);
    buffer_slice(out, buffer_view(&e->keys));
    for (int i = 0; i < 2 && e->factors[i]; i++) {
        const uint64_t dims[1] = {(uint64_t)e->factor_count};
        put_info(out, factor_name(e, i), TYPE_F32, dims, 1, offset);
        offset += aligned(dims[0] * sizeof(float));
    }
    for (int i = 0; i < e->tensor_count; i++) {
        ExportTensor *t = &e->tensors[i];
        const Output *o = t->output;
        const uint64_t stack = (uint64_t)(o->item->matrix && o->stack ? o->stack : 1);
        const uint64_t dims[3] = {(uint64_t)cols_of(o), (uint64_t)rows_of(o) / stack, stack};
        put_info(out, t->name, t->type, dims, !o->item->matrix ? 1 : o->stack ? 3 : 2, offset);
        t->offset = offset;
        offset += aligned(t->bytes);
    }
    while (out->size % ALIGNMENT && !out->failed) buffer_byte(out, 0);
    *data_bytes = offset;
    return !out->failed || fail(e->error, ERROR_MEMORY, "no memory for the header");
}

/* --- The data --------------------------------------------------------------------------------------------------- */

typedef struct Writing {
    Export *e;
    FILE *file;
    uint64_t done, total;
} Writing;

static bool put_bytes(Writing *w, const void *bytes, size_t size) {
    return fwrite(bytes, 1, size, w->file) == size ||
        fail(w->e->error, ERROR_IO, "cannot write the file: %s", strerror(errno));
}

static bool put_padding(Writing *w, uint64_t bytes) {
    static const uint8_t zeros[ALIGNMENT];
    return put_bytes(w, zeros, (size_t)(aligned(bytes) - bytes));
}

/* The row of the module that is row `row` of the file. */
static int64_t module_row(const ExportTensor *t, int64_t row) {
    const int64_t size = t->interleaved;
    if (!size) return row;
    const int64_t within = row % size;
    return row - within + within % 2 * (size / 2) + within / 2;
}

static bool tell(Writing *w, const ExportTensor *t, uint64_t bytes) {
    const ExportOptions *options = w->e->options;
    w->done += bytes;
    return !options->progress || options->progress(options->context, w->done, w->total, t->name) ||
        fail(w->e->error, ERROR_CANCELLED, "the conversion was stopped");
}

static bool write_matrix(Writing *w, const ExportTensor *t, RowRoom *room, uint8_t *out) {
    const Output *o = t->output;
    const size_t bytes = (size_t)(o->cols / export_block(t->type)) * (size_t)gguf_type(t->type)->bytes;
    const int64_t chunk = bytes < CHUNK_BYTES ? (int64_t)(CHUNK_BYTES / bytes) : 1;
    for (int64_t row = 0; row < o->rows; row++) {
        if (!row_read(o, module_row(t, row), DTYPE_F32, room, w->e->error)) return false;
        export_row(t->type, room->numbers, o->cols, out);
        if (!put_bytes(w, out, bytes)) return false;
        if ((row + 1) % chunk && row + 1 < o->rows) continue;
        const int64_t since = (row + 1) % chunk ? (row + 1) % chunk : chunk;
        if (!tell(w, t, (uint64_t)since * bytes)) return false;
    }
    rows_release(o, 0, o->rows);
    return true;
}

static bool write_vector(Writing *w, const ExportTensor *t, uint8_t *out) {
    const Tensor *from = &t->output->item->entries[0]->tensor;
    const int64_t count = cols_of(t->output);
    const bool plus = t->change == GGUF_PLUS_ONE && !strstr(t->name, ".bias");
    for (int64_t i = 0; i < count; i++) {
        float value;
        floats_to_f32(
            &value, (const uint8_t *)from->data + (size_t)module_row(t, i) * dtype_bytes(from->dtype), from->dtype, 1);
        value += plus ? 1 : 0;
        memcpy(out + (size_t)i * sizeof value, &value, sizeof value);
    }
    return put_bytes(w, out, t->bytes) && tell(w, t, t->bytes);
}

static bool write_tensor(Writing *w, const ExportTensor *t) {
    RowRoom room = {0};
    const bool matrix = t->output->item->matrix;
    uint8_t *out = malloc(matrix ? (size_t)t->output->cols * sizeof(float) : t->bytes);
    bool ok = out || fail(w->e->error, ERROR_MEMORY, "no memory for a row");
    if (ok && matrix)
        ok = row_room_make(&room, t->output, w->e->error) && write_matrix(w, t, &room, out);
    else if (ok)
        ok = write_vector(w, t, out);
    if (matrix) row_room_free(&room);
    free(out);
    return (ok && put_padding(w, t->bytes)) || fail_while(w->e->error, "tensor %s", t->output->name);
}

static bool write_factors(Export *e, FILE *file) {
    Writing w = {.e = e, .file = file};
    for (int i = 0; i < 2 && e->factors[i]; i++) {
        const size_t bytes = (size_t)e->factor_count * sizeof(float);
        if (!put_bytes(&w, e->factors[i], bytes) || !put_padding(&w, bytes)) return false;
    }
    return true;
}

static bool write_data(Export *e, FILE *file) {
    Writing w = {.e = e, .file = file};
    for (int i = 0; i < e->tensor_count; i++) w.total += e->tensors[i].bytes;
    for (int i = 0; i < e->tensor_count; i++)
        if (!write_tensor(&w, &e->tensors[i])) return false;
    return true;
}

/* --- The file --------------------------------------------------------------------------------------------------- */

/* The header and the factors, with room for the weights, so that they can be checked before those are written. */
static bool write_file(Export *e, FILE *file, const char *partial) {
    Buffer header = {0};
    uint64_t data_bytes = 0;
    bool ok = put_header(e, &header, &data_bytes);
    if (ok && fwrite(header.data, 1, header.size, file) != header.size)
        ok = fail(e->error, ERROR_IO, "cannot write %s: %s", partial, strerror(errno));
    ok = ok && write_factors(e, file);
    if (ok && (fflush(file) != 0 || ftruncate(fileno(file), (off_t)(header.size + data_bytes)) != 0))
        ok = fail(e->error, ERROR_IO, "cannot write %s: %s", partial, strerror(errno));
    ok = ok && export_check(e, partial) && write_data(e, file);
    if (ok && (fflush(file) != 0 || fsync(fileno(file)) != 0))
        ok = fail(e->error, ERROR_IO, "cannot write %s: %s", partial, strerror(errno));
    buffer_free(&header);
    return ok;
}

/* A file that a process which died left is written anew; one that another process writes is held by its lock. */
static bool write_locked(Export *e, const char *path) {
    char partial[PARTIAL_PATH_MAX + 16];
    snprintf(partial, sizeof partial, "%s.partial", path);
    const int fd = open(partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "r+b") : NULL;
    if (!file) {
        const bool failed = fail(e->error, ERROR_IO, "cannot create %s: %s", partial, strerror(errno));
        if (fd >= 0) close(fd);
        return failed;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        fclose(file);
        return fail(e->error, ERROR_USAGE, "another process is writing %s", partial);
    }
    bool ok = ftruncate(fd, 0) == 0 || fail(e->error, ERROR_IO, "cannot write %s: %s", partial, strerror(errno));
    ok = ok && write_file(e, file, partial);
    if (ok && rename(partial, path) != 0)
        ok = fail(e->error, ERROR_IO, "cannot rename %s to %s: %s", partial, path, strerror(errno));
    if (ok)
        partial_sync_parent(path);
    else
        unlink(partial);
    fclose(file);
    return ok;
}

/* --- All of it -------------------------------------------------------------------------------------------------- */

static bool export_model(Export *e, const Model *model, const LoadRecord *record, const char *path) {
    static const CheckpointOptions plain = {.dequantize = true};
    bool ok = true;
    const Json *config = export_read(e, "config.json", &ok);
    if (!ok || !config) return ok ? fail(e->error, ERROR_NOT_FOUND, "%s has no config.json", e->source) : false;
    e->config = config;
    if (!model_choose(e)) return false;
    e->plan = (Plan){.arena = &e->arena,
        .options = &plain,
        .model_type = arena_copy(&e->arena, json_slice(json_get(config, "model_type"))),
        .config = config,
        .record = record,
        .layer_count = model_layers(model),
        .error = e->error};
    if (!e->plan.model_type) return fail(e->error, ERROR_MEMORY, "no memory for the plan");
    ok = plan_make(&e->plan) && plan_tensors(e) && export_metadata(e) && export_tokenizer(e) && write_locked(e, path);
    const char *damaged = model_damaged(model);
    if (ok && damaged) {
        unlink(path);
        ok = fail(e->error, ERROR_IO, "%s shrank while it was converted", damaged);
    }
    return ok;
}

bool gguf_export(const char *source, const char *path, const ExportOptions *options, Error *error) {
    Export e = {.source = source, .options = options, .error = error};
    LoadRecord record = {0};
    if (strlen(path) >= PARTIAL_PATH_MAX) return fail(error, ERROR_USAGE, "the path is too long");
    if (file_exists(path)) return fail(error, ERROR_USAGE, "%s exists: name a file that does not, or remove it", path);
    Model *model =
        model_open(source, &(ModelOptions){.weights = WEIGHTS_LAZY, .warn = options->warn, .record = &record}, error);
    const bool ok = model && export_model(&e, model, &record, path);
    model_close(model);
    buffer_free(&e.keys);
    arena_free(&e.arena);
    return ok;
}
