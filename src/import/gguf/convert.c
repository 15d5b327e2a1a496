/* The conversion, into a partial directory (import/partial.h). A process that finds the lock taken waits for it and
 * then finds the finished work. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/log.h"
#include "base/part_name.h"
#include "import/gguf/internal.h"
#include "import/partial.h"
#include "tensor/safetensors.h"

enum {
    PATH_BYTES_MAX = 4096,
    CHUNK_ELEMENTS = 1 << 20, /* converted at a time; a whole row at least */
    MARKER_BYTES_MAX = 4096,
    CONVERTER_VERSION = 3, /* counts changes of the result */
};

#define MARKER_NAME "gguf-source.json"

typedef struct Conversion {
    GgufFile file;
    GgufPlan plan;
    const char *directory; /* being built */
    const GgufOptions *options;
    const GgufVision *vision; /* NULL: there is no encoder of images */
    uint64_t done, total;
    Error *error;
} Conversion;

/* --- Tensors --------------------------------------------------------------------------------------------------- */

/* weight, scales, biases */
static size_t parts_of(const GgufOutput *output) {
    return output->form.quant == QUANT_NONE ? 1 : output->form.quant == QUANT_AFFINE ? 3 : 2;
}

static DType plain_dtype(const GgufOutput *output) {
    return output->minus_one ? DTYPE_F32 : output->source->info->dtype;
}

static void header_shape(TensorHeader *header, const GgufOutput *output, int64_t cols) {
    const GgufTensor *source = output->source;
    header->rank = output->flat ? 2 : source->stack ? 3 : source->rank;
    if (source->rank == 1) {
        header->shape[0] = output->flat ? 1 : cols;
        header->shape[1] = output->flat ? cols : 0;
    } else if (source->stack) {
        header->shape[0] = source->stack;
        header->shape[1] = source->rows / source->stack;
        header->shape[2] = cols;
    } else {
        header->shape[0] = source->rows;
        header->shape[1] = cols;
    }
}

static bool headers_build(Conversion *c, TensorHeader **headers, size_t *count) {
    *count = 0;
    for (size_t i = 0; i < c->plan.count; i++) *count += parts_of(&c->plan.outputs[i]);
    Arena *arena = &c->file.arena;
    TensorHeader *next = *headers = arena_alloc(arena, *count, sizeof **headers);
    if (!next) return fail(c->error, ERROR_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < c->plan.count; i++) {
        const GgufOutput *output = &c->plan.outputs[i];
        static const char *const parts[] = {"weight", "scales", "biases"};
        const GgufTensor *source = output->source;
        for (size_t p = 0; p < parts_of(output); p++, next++) {
            const char *part = output->form.quant == QUANT_NONE ? output->part : parts[p];
            next->name = arena_printf(arena, "%s%s%s", output->module, part[0] ? "." : "", part);
            if (!next->name) return fail(c->error, ERROR_MEMORY, "no memory for the list of tensors");
            const Weight *form = &output->form;
            int64_t cols = source->cols;
            next->dtype = plain_dtype(output);
            if (form->quant != QUANT_NONE) {
                next->dtype = p == 0 ? DTYPE_U32 : form->dtype;
                cols = (int64_t)(p == 0 ? weight_row_bytes(form) / 4
                                        : weight_scale_bytes(form) / dtype_bytes(form->dtype));
            }
            header_shape(next, output, cols);
        }
    }
    return true;
}

static bool progress_tell(Conversion *c, const GgufOutput *output, size_t bytes) {
    c->done += bytes;
    char name[300];
    snprintf(name, sizeof name, "%.*s", SLICE_ARGS(output->source->name));
    return !c->options->progress || c->options->progress(c->options->context, c->done, c->total, name) ||
        fail(c->error, ERROR_CANCELLED, "the conversion was stopped");
}

/* Rows of a chunk: enough to be worth a call, few enough to stay in cache. */
static int64_t chunk_rows(int64_t cols, int64_t rows) {
    int64_t chunk = cols < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / cols : 1;
    return chunk < rows ? chunk : rows;
}

static bool write_plain(Conversion *c, SafetensorsWriter *writer, const GgufOutput *output) {
    const GgufTensor *source = output->source;
    /* A vector's elements move as a matrix's rows do. */
    int64_t rows = source->rank == 1 ? source->cols : source->rows, cols = source->rank == 1 ? 1 : source->cols;
    size_t from_bytes = (size_t)cols * dtype_bytes(source->info->dtype),
           to_bytes = (size_t)cols * dtype_bytes(plain_dtype(output));
    int64_t chunk = chunk_rows(cols, rows);
    uint8_t *out = malloc((size_t)chunk * to_bytes);
    bool ok = out || fail(c->error, ERROR_MEMORY, "no memory for %zu bytes", (size_t)chunk * to_bytes);
    for (int64_t row = 0; ok && row < rows; row += chunk) {
        int64_t count = chunk < rows - row ? chunk : rows - row;
        for (int64_t i = 0; i < count; i++) {
            const uint8_t *from = source->data + (size_t)gguf_source_row(output, row + i) * from_bytes;
            if (!output->minus_one) {
                memcpy(out + (size_t)i * to_bytes, from, from_bytes);
                continue;
            }
            for (int64_t k = 0; k < cols; k++) {
                float value;
                floats_to_f32(&value, from + (size_t)k * dtype_bytes(source->info->dtype), source->info->dtype, 1);
                value -= 1;
                memcpy(out + ((size_t)i * (size_t)cols + (size_t)k) * sizeof value, &value, sizeof value);
            }
        }
        ok = safetensors_write(writer, out, (size_t)count * to_bytes, c->error) &&
            progress_tell(c, output, (size_t)count * from_bytes);
    }
    free(out);
    return ok;
}

typedef struct Room {
    uint8_t *codes, *packed;        /* one chunk */
    float *row_scales, *row_biases; /* one row */
    uint8_t *scales, *biases;       /* the whole tensor, in the final type: they follow the codes in the file */
} Room;

static void room_free(Room *room) {
    free(room->codes);
    free(room->packed);
    free(room->row_scales);
    free(room->row_biases);
    free(room->scales);
    free(room->biases);
}

static bool room_alloc(Room *room, const Weight *form, int64_t chunk, Error *error) {
    size_t cols = (size_t)form->cols, groups = cols / GGUF_GROUP;
    size_t all = (size_t)form->rows * weight_scale_bytes(form);
    room->codes = malloc(cols);
    room->packed = malloc((size_t)chunk * weight_row_bytes(form));
    room->row_scales = malloc(groups * sizeof(float));
    room->row_biases = malloc(groups * sizeof(float));
    room->scales = malloc(all);
    room->biases = malloc(all);
    return (room->codes && room->packed && room->row_scales && room->row_biases && room->scales && room->biases) ||
        fail(error, ERROR_MEMORY, "no memory for %zu bytes", 2 * all);
}

/* Codes of a row, and its scales and biases to their places. */
static void convert_row(const GgufOutput *output, const uint8_t *from, int64_t row, Room *room) {
    const Weight *form = &output->form;
    size_t at = (size_t)row * weight_scale_bytes(form);
    if (form->quant != QUANT_AFFINE) {
        gguf_blocks_compact(output->source->type, from, form->cols, room->codes, room->scales + at);
        return;
    }
    gguf_blocks_convert(output->source->type, from, form->cols, room->codes, room->row_scales, room->row_biases);
    floats_from_f32(room->scales + at, form->dtype, room->row_scales, form->cols / form->group);
    floats_from_f32(room->biases + at, form->dtype, room->row_biases, form->cols / form->group);
}

static bool write_codes(Conversion *c, SafetensorsWriter *writer, const GgufOutput *output, Room *room, int64_t chunk) {
    const GgufTensor *source = output->source;
    size_t from_bytes = source->bytes / (size_t)source->rows, to_bytes = weight_row_bytes(&output->form);
    for (int64_t row = 0; row < source->rows; row += chunk) {
        int64_t count = chunk < source->rows - row ? chunk : source->rows - row;
        for (int64_t i = 0; i < count; i++) {
            convert_row(output, source->data + (size_t)gguf_source_row(output, row + i) * from_bytes, row + i, room);
            gguf_codes_pack(room->codes, source->cols, output->form.bits, room->packed + (size_t)i * to_bytes);
        }
        if (!safetensors_write(writer, room->packed, (size_t)count * to_bytes, c->error)) return false;
        mapped_release(source->data + (size_t)row * from_bytes, source->data + (size_t)(row + count) * from_bytes);
        if (!progress_tell(c, output, (size_t)count * from_bytes)) return false;
    }
    return true;
}

static bool write_quantised(Conversion *c, SafetensorsWriter *writer, const GgufOutput *output) {
    const Weight *form = &output->form;
    int64_t chunk = chunk_rows(form->cols, form->rows);
    size_t all = (size_t)form->rows * weight_scale_bytes(form);
    Room room = {0};
    bool ok = room_alloc(&room, form, chunk, c->error) && write_codes(c, writer, output, &room, chunk) &&
        safetensors_write(writer, room.scales, all, c->error) &&
        (form->quant != QUANT_AFFINE || safetensors_write(writer, room.biases, all, c->error));
    room_free(&room);
    return ok;
}

static bool write_tensors(Conversion *c, SafetensorsWriter *writer) {
    for (size_t i = 0; i < c->plan.count; i++) {
        const GgufOutput *output = &c->plan.outputs[i];
        if (!(output->form.quant == QUANT_NONE ? write_plain(c, writer, output) : write_quantised(c, writer, output))) {
            return fail_while(c->error, "tensor %.*s", SLICE_SHOWN(output->source->name));
        }
        mapped_release(output->source->data, output->source->data + output->source->bytes);
    }
    if (!gguf_damaged(&c->file)) return true;
    return fail(c->error, ERROR_IO, "the file became shorter, or could not be read, while it was converted");
}

static bool write_weights(Conversion *c) {
    TensorHeader *headers;
    size_t count;
    char path[PATH_BYTES_MAX + 32];
    snprintf(path, sizeof path, "%s/model.safetensors", c->directory);
    if (!headers_build(c, &headers, &count)) return false;
    for (size_t i = 0; i < c->plan.count; i++) c->total += c->plan.outputs[i].source->bytes;
    SafetensorsWriter *writer = safetensors_create(path, headers, count, c->error);
    if (!writer) return false;
    if (!write_tensors(c, writer)) {
        safetensors_abandon(writer);
        return false;
    }
    return safetensors_finish(writer, c->error);
}

/* --- The other files ------------------------------------------------------------------------------------------- */

static bool write_text(const Conversion *c, const char *name, const Buffer *text) {
    char path[PATH_BYTES_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", c->directory, name);
    return file_write_atomic(path, buffer_view(text), c->error);
}

static bool write_config(Conversion *c) {
    Buffer text = {0}, both = {0};
    const GgufVision *v = c->vision;
    bool ok = gguf_config(&text, &c->file, &c->plan, c->error) &&
        (!v || gguf_vision_config(&both, v, buffer_view(&text), c->error)) &&
        write_text(c, "config.json", v ? &both : &text);
    buffer_free(&text);
    buffer_free(&both);
    return ok;
}

static bool write_vision(const Conversion *c) {
    char path[PATH_BYTES_MAX + 32];
    Buffer text = {0};
    if (!c->vision) return true;
    snprintf(path, sizeof path, "%s/model-vision.safetensors", c->directory);
    const bool ok = gguf_vision_processor(&text, c->vision, c->error) &&
        write_text(c, "preprocessor_config.json", &text) && gguf_vision_weights(c->vision, path, c->error);
    buffer_free(&text);
    return ok;
}

/* A file without vocabulary becomes a checkpoint without tokenizer. */
static bool write_tokenizer(Conversion *c) {
    Slice model;
    if (!gguf_string(&c->file, "tokenizer.ggml.model", &model) || slice_is(model, "no_vocab")) return true;
    Buffer text = {0};
    bool ok =
        gguf_tokenizer(&text, &c->file, &c->plan.model->tokenizer, c->error) && write_text(c, "tokenizer.json", &text);
    buffer_clear(&text);
    ok = ok && gguf_tokenizer_config(&text, &c->file, c->error) && write_text(c, "tokenizer_config.json", &text);
    buffer_free(&text);
    return ok;
}

/* How an encoder's vectors become one, as sentence-transformers' modules.json has it, with the module's own config in
 * it. A cross-encoder (4) has none. */
static bool write_pooling(const Conversion *c) {
    static const char *const modes[] = {NULL, "mean_tokens", "cls_token", "lasttoken"};
    int64_t kind = 0;
    if (!c->plan.model->encoder || !gguf_integer(&c->file, ".pooling_type", &kind)) return true;
    if (kind <= 0 || kind >= (int64_t)COUNT_OF(modes)) return true;
    Buffer text = {0};
    buffer_printf(&text,
        "[{\"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},\n {\"path\": \"1_Pooling\", "
        "\"type\": "
        "\"sentence_transformers.models.Pooling\", \"config\": {\"pooling_mode_%s\": true}}]\n",
        modes[kind]);
    const bool ok = write_text(c, "modules.json", &text);
    buffer_free(&text);
    return ok;
}

/* --- Finished or not ------------------------------------------------------------------------------------------- */

static int64_t modified_ns(const struct stat *status) {
#ifdef __APPLE__
    return (int64_t)status->st_mtimespec.tv_sec * 1000000000 + status->st_mtimespec.tv_nsec;
#else
    return (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
#endif
}

/* Sizes and times of all parts as one number. One that is missing is an error later. */
static void parts_mark(Buffer *out, const char *path, const PartName *name) {
    Buffer states = {0}, part = {0};
    for (int number = 1; number <= name->count && !part.failed; number++) {
        struct stat status = {0};
        buffer_clear(&part);
        part_name_write(&part, path, name, number);
        if (part.failed || stat(part.data, &status) != 0) continue;
        buffer_printf(&states, "%lld %lld\n", (long long)status.st_size, (long long)modified_ns(&status));
    }
    buffer_printf(out, ", \"parts\": \"%016" PRIx64 "\"", checksum64(states.data, states.size));
    out->failed |= states.failed || part.failed;
    buffer_free(&states);
    buffer_free(&part);
}

/* Identification of the source, written last: its presence proves a complete conversion. */
static bool marker_build(Buffer *out, const char *path, const GgufOptions *options, Error *error) {
    struct stat status;
    PartName name;
    if (stat(path, &status) != 0) {
        return fail(error, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    buffer_printf(out, "{\"converter\": %d, \"compact\": %s, \"size\": %lld, \"modified_ns\": %lld", CONVERTER_VERSION,
        options->compact ? "true" : "false", (long long)status.st_size, (long long)modified_ns(&status));
    if (part_name_parse(path, &name)) parts_mark(out, path, &name);
    if (options->mmproj && stat(options->mmproj, &status) == 0)
        buffer_printf(out, ", \"mmproj_size\": %lld, \"mmproj_modified_ns\": %lld", (long long)status.st_size,
            (long long)modified_ns(&status));
    buffer_text(out, "}\n");
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for the source's mark");
}

/* directory exists. True: it is the finished conversion of this source. False: *stale: it may be replaced, as its
 * marker proves that it is a conversion; otherwise error is set. */
static bool finished_check(
    const char *path, const char *directory, const GgufOptions *options, bool *stale, Error *error) {
    Buffer expected = {0}, found = {0};
    Error missing;
    char marker[PATH_BYTES_MAX + 32];
    snprintf(marker, sizeof marker, "%s/" MARKER_NAME, directory);
    *stale = false;
    bool ok = marker_build(&expected, path, options, error);
    if (ok) {
        bool marked = file_read(marker, MARKER_BYTES_MAX, &found, &missing);
        ok = marked && slice_equal(buffer_view(&expected), buffer_view(&found));
        *stale = marked && !ok && options->replace;
        if (!ok && !*stale)
            fail(error, ERROR_USAGE, "%s exists and is not a conversion of %s as it is now%s", directory, path,
                options->compact ? ", in compact form" : "");
    }
    buffer_free(&expected);
    buffer_free(&found);
    return ok;
}

/* --- All of it ------------------------------------------------------------------------------------------------- */

/* One that was found beside the file, not asked for, is left out when it is of another model or kind. */
static bool open_vision(Conversion *c, GgufVision *vision, bool asked) {
    Error why = {0};
    if (!c->options->mmproj) return true;
    if (gguf_vision_open(vision, c->options->mmproj, &c->file, asked ? c->error : &why)) {
        c->vision = vision;
        return true;
    }
    if (asked) return false;
    log_warn("without images: %s", why.text);
    return true;
}

static bool convert_into(const char *path, const char *partial, const GgufOptions *options, bool asked, Error *error) {
    GgufVision vision;
    Conversion c = {.directory = partial, .options = options, .error = error};
    Buffer marker = {0};
    /* before reading: a file that changes meanwhile is not this one */
    bool ok = marker_build(&marker, path, options, error);
    if (ok) ok = gguf_open(&c.file, path, error);
    if (ok) {
        ok = open_vision(&c, &vision, asked);
        if (ok) {
            ok = gguf_plan(&c.plan, &c.file, options->compact, error) && write_config(&c) && write_tokenizer(&c) &&
                write_pooling(&c) && write_weights(&c) && write_vision(&c);
            if (!ok) fail_while(error, "%s", path);
        }
        if (c.vision) gguf_vision_close(&vision);
        gguf_close(&c.file);
    }
    ok = ok && write_text(&c, MARKER_NAME, &marker);
    buffer_free(&marker);
    return ok;
}

/* Atomic for readers: one of the two directories always exists, or a lock to wait for. */
static bool directory_replace(const char *directory, const char *partial, Error *error) {
    char old[PATH_BYTES_MAX + 16];
    snprintf(old, sizeof old, "%s.old", directory);
    partial_remove(old);
    if (rename(directory, old) != 0)
        return fail(error, ERROR_IO, "cannot rename %s to %s: %s", directory, old, strerror(errno));
    bool ok = rename(partial, directory) == 0 ||
        fail(error, ERROR_IO, "cannot rename %s to %s: %s", partial, directory, strerror(errno));
    partial_remove(old);
    return ok;
}

static bool convert_locked(const char *path, const char *directory, const char *partial, const GgufOptions *options,
    bool asked, Error *error) {
    bool stale = false;
    if (file_exists(directory)) { /* finished by another process meanwhile, or to be replaced */
        bool finished = finished_check(path, directory, options, &stale, error);
        if (!stale) {
            rmdir(partial);
            return finished;
        }
    }
    partial_clear(partial); /* left by a process that died */
    bool ok = convert_into(path, partial, options, asked, error);
    if (ok && stale) {
        ok = directory_replace(directory, partial, error);
    } else if (ok && rename(partial, directory) != 0) {
        ok = fail(error, ERROR_IO, "cannot rename %s to %s: %s", partial, directory, strerror(errno));
    }
    if (ok)
        partial_sync_parent(directory);
    else
        partial_remove(partial);
    return ok;
}

/* path: of the first part, where a file has several. */
static bool convert_first(const char *path, const char *directory, const GgufOptions *given, Error *error) {
    PartialNames names;
    GgufOptions with = *given;
    const GgufOptions *options = &with;
    const bool asked = given->mmproj;
    char beside[PATH_BYTES_MAX];
    if (!asked && gguf_vision_beside(path, beside, sizeof beside)) with.mmproj = beside;
    if (!partial_names(&names, directory, error)) return false;
    for (;;) {
        bool same = true, stale;
        if (file_exists(names.directory)) {
            if (finished_check(path, names.directory, options, &stale, error)) return true;
            if (!stale) return false;
        }
        int fd = partial_lock(names.partial, &same, error);
        if (fd < 0 && same) return false;
        if (fd < 0) continue;
        bool ok = same && convert_locked(path, names.directory, names.partial, options, asked, error);
        close(fd);
        if (same) return ok;
    }
}

bool gguf_convert(const char *path, const char *directory, const GgufOptions *options, Error *error) {
    Buffer first = {0};
    part_name_first(&first, path);
    const bool ok = first.failed ? fail(error, ERROR_MEMORY, "no memory for the path of a file")
                                 : convert_first(first.data, directory, options, error);
    buffer_free(&first);
    return ok;
}
