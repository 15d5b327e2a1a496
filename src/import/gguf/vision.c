/* The encoders of images and audio that llama.cpp keeps in a file of their own ("mmproj", architecture clip) beside the
 * language model's: its tensors as a further shard, its fields around those of the text. */
#include "import/gguf/vision.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/safetensors.h"

/* A row of the text model's embedding, which has it too. */
static const char image_break[] = "v.token_embd.img_break";

/* --- Fields ----------------------------------------------------------------------------------------------------- */

enum { SIZE_MAX_OF = 1 << 20, LAYERS_MAX_OF = 1024, WINDOW_USUAL = 112 };

bool gguf_vision_whole(const GgufFile *file, const char *key, int64_t most, int64_t *value, Error *error) {
    if (!gguf_integer(file, key, value)) return fail(error, ERROR_FORMAT, "clip%s is missing", key);
    return (*value > 0 && *value <= most) ||
        fail(error, ERROR_FORMAT, "clip%s is %lld, must be 1 to %lld", key, (long long)*value, (long long)most);
}

/* The same, with a value for files that do not have the key. */
static bool whole_or(
    const GgufFile *file, const char *key, int64_t absent, int64_t most, int64_t *value, Error *error) {
    *value = absent;
    return !gguf_value(file, key) || gguf_vision_whole(file, key, most, value, error);
}

static bool belongs(const VisionKind *kind, const GgufFile *text) {
    for (size_t i = 0; i < COUNT_OF(kind->texts) && kind->texts[i]; i++)
        if (slice_is(text->architecture, kind->texts[i])) return true;
    return false;
}

static bool fail_kind(Slice projector, Error *error) {
    char known[256] = "";
    size_t length = 0;
    for (size_t i = 0; i < gguf_vision_kind_count; i++) {
        const char *name = gguf_vision_kinds[i].projector;
        if (i > 0 && strcmp(name, gguf_vision_kinds[i - 1].projector) == 0) continue;
        const int written = snprintf(known + length, sizeof known - length, "%s%s", i ? ", " : "", name);
        if (written < 0 || (size_t)written >= sizeof known - length) break;
        length += (size_t)written;
    }
    return fail(error, ERROR_UNSUPPORTED, "clip.projector_type %.*s is not supported; supported are %s",
        SLICE_SHOWN(projector), known);
}

static bool find_kind(GgufVision *v, const GgufFile *text, Error *error) {
    Slice projector;
    const VisionKind *other = NULL;
    if (!slice_is(v->file.architecture, "clip"))
        return fail(
            error, ERROR_UNSUPPORTED, "general.architecture is %.*s, must be clip", SLICE_SHOWN(v->file.architecture));
    if (!gguf_string(&v->file, ".vision.projector_type", &projector) &&
        !gguf_string(&v->file, ".projector_type", &projector))
        return fail(error, ERROR_FORMAT, "clip.projector_type is missing");
    for (size_t i = 0; i < gguf_vision_kind_count && !v->kind; i++) {
        const VisionKind *kind = &gguf_vision_kinds[i];
        if (!slice_is(projector, kind->projector) || (kind->with && !gguf_tensor(&v->file, kind->with))) continue;
        if (belongs(kind, text))
            v->kind = kind;
        else if (!other)
            other = kind;
    }
    if (v->kind) return true;
    if (!other) return fail_kind(projector, error);
    return fail(error, ERROR_UNSUPPORTED, "clip.projector_type %s belongs to a %s model, not to a %.*s",
        other->projector, other->texts[0], SLICE_SHOWN(text->architecture));
}

/* The size of a group of patches that become one row. */
static bool read_factor(GgufVision *v, Error *error) {
    const VisionKind *kind = v->kind;
    const int64_t side = v->pixels / v->patch;
    const bool divides = kind->style == STYLE_FIXED || kind->style == STYLE_TILES;
    v->factor = kind->factor;
    if (!kind->factor_key || !v->factor) return true;
    if (!whole_or(&v->file, kind->factor_key, v->factor, side, &v->factor, error)) return false;
    return !divides || side % v->factor == 0 ||
        fail(error, ERROR_FORMAT, "clip%s %lld does not divide %lld patches", kind->factor_key, (long long)v->factor,
            (long long)side);
}

/* Layers whose results are merged into rows, too. */
static bool read_deepstack(GgufVision *v, Error *error) {
    static const char key[] = ".vision.is_deepstack_layers";
    for (int64_t i = 0; gguf_value(&v->file, key) && i < v->layers; i++) {
        bool merged;
        if (!gguf_flag(&v->file, key, (uint64_t)i, (uint64_t)v->layers, &merged))
            return fail(error, ERROR_FORMAT, "clip%s is not one flag for each layer", key);
        if (!merged) continue;
        if (v->deepstack_count == GGUF_DEEPSTACK_MAX)
            return fail(error, ERROR_UNSUPPORTED, "clip%s has more than %d layers", key, GGUF_DEEPSTACK_MAX);
        v->deepstack[v->deepstack_count++] = i;
    }
    return true;
}

static bool read_sections(GgufVision *v, const GgufFile *text, Error *error) {
    static const char key[] = ".rope.dimension_sections";
    const GgufValue *value = gguf_value(text, key);
    for (size_t i = 0; i < COUNT_OF(v->sections); i++)
        if (!value || !gguf_element(text, key, i, value->count, &v->sections[i]) || v->sections[i] < 0 ||
            v->sections[i] > SIZE_MAX_OF)
            return fail(error, ERROR_FORMAT, "the text model's rope.dimension_sections has no number %zu", i);
    return true;
}

static bool read_style(GgufVision *v, const GgufFile *text, Error *error) {
    if (v->kind->mrope && !read_sections(v, text, error)) return false;
    if (v->kind->style == STYLE_QWEN2_5)
        return gguf_vision_whole(&v->file, ".vision.n_wa_pattern", LAYERS_MAX_OF, &v->full_every, error) &&
            whole_or(&v->file, ".vision.window_size", WINDOW_USUAL, SIZE_MAX_OF, &v->window, error);
    return v->kind->style != STYLE_QWEN3 || read_deepstack(v, error);
}

static bool read_eps(const GgufFile *file, const char *key, double *eps, Error *error) {
    return (gguf_number(file, key, eps) && *eps > 0) || fail(error, ERROR_FORMAT, "clip%s is missing", key);
}

static bool read_tower(GgufVision *v, Error *error) {
    const GgufFile *file = &v->file;
    if (!gguf_vision_whole(file, ".vision.feed_forward_length", SIZE_MAX_OF, &v->inner, error) ||
        !gguf_vision_whole(file, ".vision.block_count", LAYERS_MAX_OF, &v->layers, error) ||
        !gguf_vision_whole(file, ".vision.attention.head_count", SIZE_MAX_OF, &v->heads, error))
        return false;
    return (v->hidden % v->heads == 0 && v->hidden / v->heads % 2 == 0) ||
        fail(error, ERROR_FORMAT, "clip.vision.embedding_length %lld is not %lld heads of an even size",
            (long long)v->hidden, (long long)v->heads);
}

/* Rows of the text model are as long as those of the encoder. */
static bool check_rows(const GgufVision *v, const char *key, int64_t rows, const GgufFile *text, Error *error) {
    int64_t hidden = 0;
    (void)gguf_integer(text, ".embedding_length", &hidden);
    return rows == hidden ||
        fail(error, ERROR_FORMAT, "clip%s is %lld, but the text model's embeddings have %lld", key, (long long)rows,
            (long long)hidden);
}

static bool read_audio(GgufVision *v, const GgufFile *text, Error *error) {
    enum { MEL_BINS = 128 };
    const GgufFile *file = &v->file;
    GgufAudio *audio = &v->audio;
    Slice projector;
    int64_t bins, rows;
    audio->present = v->kind->audio && gguf_tensor(file, "mm.a.input_projection.weight");
    if (!audio->present) return true;
    if (gguf_string(file, ".audio.projector_type", &projector) && !slice_is(projector, v->kind->audio))
        return fail(error, ERROR_UNSUPPORTED, "clip.audio.projector_type is %.*s, must be %s", SLICE_SHOWN(projector),
            v->kind->audio);
    if (!gguf_vision_whole(file, ".audio.projection_dim", SIZE_MAX_OF, &rows, error) ||
        !check_rows(v, ".audio.projection_dim", rows, text, error) ||
        !read_eps(file, ".audio.attention.layer_norm_epsilon", &audio->eps, error))
        return false;
    if (!v->kind->names[AUDIO_TOWER]) return true;
    if (!gguf_vision_whole(file, ".audio.embedding_length", SIZE_MAX_OF, &audio->hidden, error) ||
        !gguf_vision_whole(file, ".audio.block_count", LAYERS_MAX_OF, &audio->layers, error) ||
        !gguf_vision_whole(file, ".audio.attention.head_count", SIZE_MAX_OF, &audio->heads, error) ||
        !gguf_vision_whole(file, ".audio.num_mel_bins", SIZE_MAX_OF, &bins, error))
        return false;
    return bins == MEL_BINS ||
        fail(error, ERROR_UNSUPPORTED, "clip.audio.num_mel_bins is %lld, must be %d", (long long)bins, MEL_BINS);
}

static bool read_fields(GgufVision *v, const GgufFile *text, Error *error) {
    const GgufFile *file = &v->file;
    const char *activation = v->kind->activation;
    bool chosen = false;
    if (!gguf_vision_whole(file, ".vision.embedding_length", SIZE_MAX_OF, &v->hidden, error) ||
        (v->kind->style != STYLE_UNIFIED && !read_tower(v, error)) ||
        !gguf_vision_whole(file, ".vision.image_size", SIZE_MAX_OF, &v->pixels, error) ||
        !gguf_vision_whole(file, ".vision.patch_size", SIZE_MAX_OF, &v->patch, error) ||
        !gguf_vision_whole(file, ".vision.projection_dim", SIZE_MAX_OF, &v->rows, error))
        return false;
    if (activation && (!gguf_bool(file, activation, &chosen) || !chosen))
        return fail(error, ERROR_UNSUPPORTED, "clip%s is not true", activation);
    return read_eps(file, ".vision.attention.layer_norm_epsilon", &v->eps, error) &&
        check_rows(v, ".vision.projection_dim", v->rows, text, error) && read_factor(v, error) &&
        read_style(v, text, error) && read_audio(v, text, error);
}

int64_t gguf_vision_side(const GgufVision *v) {
    return v->kind->style == STYLE_UNIFIED ? v->patch * v->factor : v->patch;
}

/* --- Tensors ---------------------------------------------------------------------------------------------------- */

/* A name with the number of its block; part NULL: nothing follows. */
static void write_name(char name[128], const char *pattern, int64_t block, const char *joint, const char *part) {
    const char *star = strchr(pattern, '*');
    const int length = star ? (int)(star - pattern) : (int)strlen(pattern);
    int at = snprintf(name, 128, "%.*s", length, pattern);
    if (star && at < 128) at += snprintf(name + at, (size_t)(128 - at), "%lld%s", (long long)block, star + 1);
    if (part && at < 128) snprintf(name + at, (size_t)(128 - at), "%s%s", joint, part);
}

static const GgufTensor *part_find(const GgufVision *v, const char *pattern, int64_t block, const char *part) {
    char name[128];
    write_name(name, pattern, block, ".", part);
    return gguf_tensor(&v->file, name);
}

/* Early files have the names of the two matrices exchanged. */
static const char *written_as(const GgufVision *v, const char *pattern, int64_t block) {
    static const char up[] = "v.blk.*.ffn_up", down[] = "v.blk.*.ffn_down";
    if (strcmp(pattern, up) != 0 && strcmp(pattern, down) != 0) return pattern;
    const GgufTensor *first = part_find(v, up, block, "weight"), *second = part_find(v, down, block, "weight");
    const bool exchanged = first && second && first->cols != v->hidden && second->cols == v->hidden;
    return !exchanged ? pattern : strcmp(pattern, up) == 0 ? down : up;
}

const GgufTensor *gguf_vision_find(const GgufVision *v, const char *pattern, int64_t block, const char *part) {
    return part_find(v, written_as(v, pattern, block), block, part);
}

static bool fail_missing(const GgufVision *v, const char *pattern, int64_t block, const char *part, Error *error) {
    char name[128];
    write_name(name, written_as(v, pattern, block), block, ".", part);
    return fail(error, ERROR_FORMAT, "tensor %s is missing", name);
}

/* Adds a source to an output. All have one type and one shape. */
static bool add_source(
    const GgufVision *v, VisionOutput *output, const char *pattern, int64_t block, const char *part, Error *error) {
    const GgufTensor *tensor = gguf_vision_find(v, pattern, block, part), *first = output->sources[0];
    if (!tensor) return fail_missing(v, pattern, block, part, error);
    if (tensor->info->bits)
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is of type %s: F32, F16 and BF16 are supported here",
            SLICE_SHOWN(tensor->name), tensor->info->name);
    if (first && (first->info != tensor->info || first->bytes != tensor->bytes))
        return fail(error, ERROR_FORMAT, "tensors %.*s and %.*s differ in type or size", SLICE_SHOWN(first->name),
            SLICE_SHOWN(tensor->name));
    output->sources[output->count++] = tensor;
    return true;
}

static bool add_sources(
    const GgufVision *v, VisionOutput *output, const VisionName *name, int64_t block, const char *part, Error *error) {
    if (!add_source(v, output, name->gguf, block, part, error)) return false;
    if (output->change == VISION_FUSED)
        return add_source(v, output, "v.blk.*.attn_k", block, part, error) &&
            add_source(v, output, "v.blk.*.attn_v", block, part, error);
    return output->change != VISION_FRAMES || strcmp(part, "weight") != 0 ||
        add_source(v, output, name->gguf, block, "weight.1", error);
}

/* Type and shape of what the sources become. */
static bool set_header(
    const GgufVision *v, VisionOutput *output, const char *part, TensorHeader *header, Error *error) {
    const GgufTensor *tensor = output->sources[0];
    const size_t element = dtype_bytes(tensor->info->dtype);
    int64_t *shape = header->shape;
    const bool computed = output->change == VISION_PLUS_ONE || output->change == VISION_SOFTPLUS;
    header->dtype = computed ? DTYPE_F32 : tensor->info->dtype;
    header->rank = tensor->dim_count;
    for (int i = 0; i < tensor->dim_count; i++) shape[i] = tensor->dims[tensor->dim_count - 1 - i];
    output->piece = tensor->bytes;
    const bool image = header->rank == 4 && shape[1] == 3 && shape[2] == v->patch && shape[3] == v->patch;
    if ((output->change == VISION_CHANNELS_LAST || output->count == 2) && !image)
        return fail(error, ERROR_FORMAT, "tensor %.*s is no convolution of %lld × %lld pixels",
            SLICE_SHOWN(tensor->name), (long long)v->patch, (long long)v->patch);
    const int64_t side = gguf_vision_side(v);
    if (output->change == VISION_COLOURS_LAST && (tensor->dim_count > 2 || tensor->dims[0] != 3 * side * side))
        return fail(error, ERROR_FORMAT, "tensor %.*s has no values of %lld × %lld pixels", SLICE_SHOWN(tensor->name),
            (long long)side, (long long)side);
    if (output->change == VISION_PLACES_FIRST) {
        if (tensor->dim_count != 3 || shape[0] != 2)
            return fail(error, ERROR_FORMAT, "tensor %.*s does not have places of two axes", SLICE_SHOWN(tensor->name));
        shape[0] = shape[1];
        shape[1] = 2;
    }
    if (output->change == VISION_FUSED) shape[0] *= output->count;
    if (output->change == VISION_CHANNELS_LAST) {
        header->rank = 2;
        shape[1] *= v->patch * v->patch;
    }
    if (output->count == 2) { /* [out, 3, frames, patch, patch] */
        output->piece = element * (size_t)(v->patch * v->patch);
        header->rank = 5;
        shape[4] = v->patch;
        shape[2] = output->count;
    }
    if (strchr(part, '_')) header->rank = 0; /* a bound */
    if (output->change != VISION_PAIRED || (tensor->rows == v->hidden && tensor->dim_count == 2)) return true;
    return fail(error, ERROR_FORMAT, "tensor %.*s has %lld rows, must have %lld", SLICE_SHOWN(tensor->name),
        (long long)tensor->rows, (long long)v->hidden);
}

/* The module's name is that of the tensor, which files may call "weight" nevertheless. */
static bool is_nameless(VisionChange change) {
    return change == VISION_NAMELESS || change == VISION_OPTIONAL || change == VISION_PLACES_FIRST ||
        change == VISION_SOFTPLUS;
}

/* block: of the file; number: of the module. */
static bool add_part(GgufVision *v, const char *home, const VisionName *name, int64_t block, int64_t number,
    const char *part, Error *error) {
    VisionOutput *output = &v->outputs[v->count];
    TensorHeader *header = &v->headers[v->count];
    const bool nameless = is_nameless(name->change), bound = strchr(part, '_');
    const char *joint = name->change == VISION_BARE ? "_" : name->change == VISION_LINEAR && !bound ? ".linear." : ".";
    const char *source = nameless && !part_find(v, name->gguf, block, part) ? NULL : part;
    char text[128];
    *output = (VisionOutput){.change = name->change};
    *header = (TensorHeader){0};
    if (!add_sources(v, output, name, block, source, error) || !set_header(v, output, part, header, error))
        return false;
    write_name(text, name->module, number, joint, nameless ? NULL : part);
    header->name = arena_printf(&v->file.arena, "%s%s", home, text);
    v->count++;
    return header->name || fail(error, ERROR_MEMORY, "no memory for the names");
}

static bool add_block(
    GgufVision *v, const char *home, const VisionName *name, int64_t block, int64_t number, Error *error) {
    static const char *const bounds[] = {"input_min", "input_max", "output_min", "output_max"};
    bool ok = add_part(v, home, name, block, number, "weight", error) &&
        (!name->bias || add_part(v, home, name, block, number, "bias", error));
    if (name->change != VISION_LINEAR || !part_find(v, name->gguf, block, bounds[0])) return ok;
    for (size_t i = 0; i < COUNT_OF(bounds); i++) ok = ok && add_part(v, home, name, block, number, bounds[i], error);
    return ok;
}

/* layers: of the name's part. */
static bool add_name(GgufVision *v, const char *home, const VisionName *name, int64_t layers, Error *error) {
    const bool deepstack = name->change == VISION_DEEPSTACK;
    const int64_t blocks = deepstack ? v->deepstack_count : strchr(name->gguf, '*') ? layers : 1;
    if (name->change == VISION_OPTIONAL && !part_find(v, name->gguf, 0, "weight") && !part_find(v, name->gguf, 0, NULL))
        return true;
    for (int64_t i = 0; i < blocks; i++)
        if (!add_block(v, home, name, deepstack ? v->deepstack[i] : i, i, error)) return false;
    return true;
}

static bool is_used(const GgufVision *v, const GgufTensor *tensor) {
    if (slice_is(tensor->name, image_break)) return v->kind->style == STYLE_WITHIN;
    for (size_t i = 0; i < v->count; i++)
        for (int k = 0; k < v->outputs[i].count; k++)
            if (v->outputs[i].sources[k] == tensor) return true;
    return false;
}

static bool list_tensors(GgufVision *v, Error *error) {
    const size_t most = v->file.tensor_count;
    Arena *arena = &v->file.arena;
    v->headers = arena_alloc(arena, most + 1, sizeof *v->headers);
    v->outputs = arena_alloc(arena, most + 1, sizeof *v->outputs);
    if (!v->headers || !v->outputs) return fail(error, ERROR_MEMORY, "no memory for the tensors");
    for (int part = 0; part < VISION_PARTS; part++) {
        const bool audio = part == AUDIO_TOWER || part == AUDIO_PROJECTOR;
        if (audio && !v->audio.present) continue;
        for (const VisionName *name = v->kind->names[part]; name && name->gguf; name++)
            if (!add_name(v, v->kind->homes[part], name, audio ? v->audio.layers : v->layers, error)) return false;
    }
    for (size_t i = 0; i < v->file.tensor_count; i++)
        if (!is_used(v, &v->file.tensors[i]))
            return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not one that an encoder for %s has",
                SLICE_SHOWN(v->file.tensors[i].name), v->kind->projector);
    return true;
}

/* Converters have written another length for Qwen2-VL. */
static void measure_inner(GgufVision *v) {
    const GgufTensor *up = gguf_vision_find(v, "v.blk.*.ffn_up", 0, "weight");
    if (v->kind->style == STYLE_QWEN2 && up) v->inner = up->rows;
}

bool gguf_vision_open(GgufVision *v, const char *path, const GgufFile *text, Error *error) {
    *v = (GgufVision){0};
    if (!gguf_open(&v->file, path, error)) return false;
    if (find_kind(v, text, error) && read_fields(v, text, error) && list_tensors(v, error)) {
        measure_inner(v);
        return true;
    }
    fail_while(error, "%s", path);
    gguf_close(&v->file);
    return false;
}

void gguf_vision_close(GgufVision *v) { gguf_close(&v->file); }

/* --- Writing ---------------------------------------------------------------------------------------------------- */

/* The inverse of ln(1 + e^x); NAN: there is none. */
static float softplus_inverse(float y) { return y > 20 ? y : y > 0 ? logf(expm1f(y)) : NAN; }

static bool write_computed(SafetensorsWriter *writer, const GgufTensor *tensor, VisionChange change, Error *error) {
    const int64_t count = tensor->rows * tensor->cols;
    float *values = malloc((size_t)count * sizeof *values);
    bool ok = true;
    if (!values) return fail(error, ERROR_MEMORY, "no memory for tensor %.*s", SLICE_SHOWN(tensor->name));
    floats_to_f32(values, tensor->data, tensor->info->dtype, count);
    for (int64_t i = 0; i < count; i++) {
        values[i] = change == VISION_SOFTPLUS ? softplus_inverse(values[i]) : values[i] - 1;
        ok = ok && !isnan(values[i]);
    }
    if (!ok && change == VISION_SOFTPLUS)
        ok = fail(error, ERROR_FORMAT, "tensor %.*s has elements that are not positive", SLICE_SHOWN(tensor->name));
    else
        ok = safetensors_write(writer, values, (size_t)count * sizeof *values, error);
    free(values);
    return ok;
}

static bool write_halves(SafetensorsWriter *writer, const GgufVision *v, const GgufTensor *tensor, Error *error) {
    const int64_t size = v->hidden / v->heads;
    const size_t row_bytes = tensor->bytes / (size_t)tensor->rows;
    for (int64_t row = 0; row < tensor->rows; row++) {
        const int64_t within = row % size, from = row - within + 2 * (within % (size / 2)) + within / (size / 2);
        if (!safetensors_write(writer, tensor->data + (size_t)from * row_bytes, row_bytes, error)) return false;
    }
    return true;
}

/* Rows of patches: [3, patch, patch] becomes [patch, patch, 3]. */
static bool write_channels_last(
    SafetensorsWriter *writer, const GgufVision *v, const GgufTensor *tensor, Error *error) {
    const size_t size = dtype_bytes(tensor->info->dtype), pixels = (size_t)(gguf_vision_side(v) * gguf_vision_side(v));
    const size_t row_bytes = 3 * pixels * size;
    uint8_t *row = malloc(row_bytes);
    bool ok = row || fail(error, ERROR_MEMORY, "no memory for tensor %.*s", SLICE_SHOWN(tensor->name));
    for (size_t at = 0; ok && at < tensor->bytes; at += row_bytes) {
        const uint8_t *from = tensor->data + at;
        for (size_t i = 0; i < 3 * pixels; i++) memcpy(row + i * size, from + (i % 3 * pixels + i / 3) * size, size);
        ok = safetensors_write(writer, row, row_bytes, error);
    }
    free(row);
    return ok;
}

/* [2, places, hidden] becomes [places, 2, hidden]. */
static bool write_places_first(SafetensorsWriter *writer, const GgufTensor *tensor, Error *error) {
    const size_t row_bytes = tensor->bytes / (size_t)tensor->rows;
    const int64_t places = tensor->rows / 2;
    for (int64_t i = 0; i < 2 * places; i++)
        if (!safetensors_write(writer, tensor->data + (size_t)(i % 2 * places + i / 2) * row_bytes, row_bytes, error))
            return false;
    return true;
}

static bool write_pieces(SafetensorsWriter *writer, const VisionOutput *output, Error *error) {
    const size_t bytes = output->sources[0]->bytes;
    for (size_t at = 0; at < bytes; at += output->piece)
        for (int i = 0; i < output->count; i++)
            if (!safetensors_write(writer, output->sources[i]->data + at, output->piece, error)) return false;
    return true;
}

static bool write_output(SafetensorsWriter *writer, const GgufVision *v, const VisionOutput *output, Error *error) {
    const GgufTensor *first = output->sources[0];
    switch (output->change) {
    case VISION_PLUS_ONE:
    case VISION_SOFTPLUS: return write_computed(writer, first, output->change, error);
    case VISION_PAIRED: return write_halves(writer, v, first, error);
    case VISION_CHANNELS_LAST:
    case VISION_COLOURS_LAST: return write_channels_last(writer, v, first, error);
    case VISION_PLACES_FIRST: return write_places_first(writer, first, error);
    default: return write_pieces(writer, output, error);
    }
}

bool gguf_vision_weights(const GgufVision *v, const char *path, Error *error) {
    SafetensorsWriter *writer = safetensors_create(path, v->headers, v->count, error);
    bool ok = writer;
    for (size_t i = 0; ok && i < v->count; i++) {
        const VisionOutput *output = &v->outputs[i];
        ok = write_output(writer, v, output, error);
        for (int k = 0; k < output->count; k++)
            mapped_release(output->sources[k]->data, output->sources[k]->data + output->sources[k]->bytes);
    }
    if (ok && gguf_damaged(&v->file))
        ok = fail(error, ERROR_IO, "the file became shorter, or could not be read, while it was converted");
    if (ok) return safetensors_finish(writer, error);
    safetensors_abandon(writer);
    return false;
}

bool gguf_vision_beside(const char *path, char *found, size_t size) {
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) + 1 : 0;
    char folder[4096];
    int count = 0;
    if (strstr(slash ? slash + 1 : path, "mmproj")) return false;
    snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? path : ".");
    DIR *directory = opendir(folder);
    if (!directory) return false;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        const size_t end = strlen(entry->d_name);
        if (!strstr(entry->d_name, "mmproj") || end < 5 || strcmp(entry->d_name + end - 5, ".gguf") != 0) continue;
        const int written = snprintf(found, size, "%.*s%s", length, path, entry->d_name);
        count += written > 0 && (size_t)written < size ? 1 : 2;
    }
    closedir(directory);
    return count == 1;
}
