/* The encoder of images that llama.cpp keeps in a file of its own ("mmproj", architecture clip) beside the language
 * model's: its tensors as a further shard, its fields around those of the text. Names: gguf-py, tensor_mapping.py; what
 * the converter does: convert_hf_to_gguf.py, the vision classes. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "import/gguf/internal.h"
#include "tensor/safetensors.h"

typedef enum VisionChange {
    VISION_AS_IT_IS,
    VISION_PLUS_ONE,
    VISION_BARE,  /* the name ends in "_weight" */
    VISION_PAIRED /* in each head the rows of a rotation lie side by side */
} VisionChange;

typedef struct VisionName {
    const char *gguf, *module;
    bool bias;
    VisionChange change;
} VisionName;

#define LAYER "encoder.layers.*."

static const VisionName siglip[] = {
    {"v.patch_embd", "embeddings.patch_embedding", true, VISION_AS_IT_IS},
    {"v.position_embd", "embeddings.position_embedding", false, VISION_AS_IT_IS},
    {"v.blk.*.ln1", LAYER "layer_norm1", true, VISION_AS_IT_IS},
    {"v.blk.*.ln2", LAYER "layer_norm2", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", LAYER "self_attn.q_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_k", LAYER "self_attn.k_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_v", LAYER "self_attn.v_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_out", LAYER "self_attn.out_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", LAYER "mlp.fc1", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", LAYER "mlp.fc2", true, VISION_AS_IT_IS},
    {"v.post_ln", "post_layernorm", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName gemma3[] = {
    {"mm.input_projection", "mm_input_projection", false, VISION_BARE},
    {"mm.soft_emb_norm", "mm_soft_emb_norm", false, VISION_PLUS_ONE},
    {0},
};
static const VisionName idefics3[] = {{"mm.model.fc", "modality_projection.proj", false, VISION_AS_IT_IS}, {0}};

#define BLOCK "transformer.layers.*."

static const VisionName pixtral_tower[] = {
    {"v.patch_embd", "patch_conv", false, VISION_AS_IT_IS},
    {"v.pre_ln", "ln_pre", false, VISION_AS_IT_IS},
    {"v.blk.*.ln1", BLOCK "attention_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.ln2", BLOCK "ffn_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", BLOCK "attention.q_proj", false, VISION_PAIRED},
    {"v.blk.*.attn_k", BLOCK "attention.k_proj", false, VISION_PAIRED},
    {"v.blk.*.attn_v", BLOCK "attention.v_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_out", BLOCK "attention.o_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_gate", BLOCK "feed_forward.gate_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", BLOCK "feed_forward.up_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", BLOCK "feed_forward.down_proj", false, VISION_AS_IT_IS},
    {0},
};
static const VisionName pixtral[] = {
    {"mm.1", "linear_1", true, VISION_AS_IT_IS},
    {"mm.2", "linear_2", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName mistral3[] = {
    {"mm.input_norm", "norm", false, VISION_AS_IT_IS},
    {"mm.patch_merger", "patch_merger.merging_layer", false, VISION_AS_IT_IS},
    {"mm.1", "linear_1", false, VISION_AS_IT_IS},
    {"mm.2", "linear_2", false, VISION_AS_IT_IS},
    {0},
};

/* How images become patches. */
typedef enum VisionStyle {
    STYLE_FIXED, /* each becomes one of the tower's size */
    STYLE_TILES, /* large ones are cut into tiles of that size */
    STYLE_WITHIN /* each keeps its shape within that size */
} VisionStyle;

typedef enum VisionPart { VISION_TOWER, VISION_PROJECTOR, VISION_PARTS } VisionPart;

/* A projector of clip.projector_type, and the text model that it belongs to. */
typedef struct VisionKind {
    const char *projector, *with; /* with: a tensor that only this one of the projector's has, or NULL */
    const char *texts[2];         /* architectures of the text model */
    const char *model_type, *class_name, *tower_type, *processor;
    int64_t factor; /* where the file has none; 0: there is none */
    VisionStyle style;
    const char *homes[VISION_PARTS]; /* beginning of the modules' names */
    const VisionName *names[VISION_PARTS];
} VisionKind;

static const VisionKind kinds[] = {
    {.projector = "gemma3",
        .texts = {"gemma3"},
        .model_type = "gemma3",
        .class_name = "Gemma3ForConditionalGeneration",
        .tower_type = "siglip_vision_model",
        .processor = "Gemma3ImageProcessor",
        .factor = 4,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {siglip, gemma3}},
    {.projector = "idefics3",
        .texts = {"llama"},
        .model_type = "smolvlm",
        .class_name = "SmolVLMForConditionalGeneration",
        .tower_type = "smolvlm_vision",
        .processor = "SmolVLMImageProcessor",
        .factor = 2,
        .style = STYLE_TILES,
        .homes = {"vision_model.", "connector."},
        .names = {siglip, idefics3}},
    {.projector = "pixtral",
        .with = "mm.patch_merger.weight",
        .texts = {"llama", "mistral3"},
        .model_type = "mistral3",
        .class_name = "Mistral3ForConditionalGeneration",
        .tower_type = "pixtral",
        .processor = "PixtralImageProcessor",
        .factor = 2,
        .style = STYLE_WITHIN,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {pixtral_tower, mistral3}},
    {.projector = "pixtral",
        .texts = {"llama"},
        .model_type = "pixtral",
        .class_name = "LlavaForConditionalGeneration",
        .tower_type = "pixtral",
        .processor = "PixtralImageProcessor",
        .style = STYLE_WITHIN,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {pixtral_tower, pixtral}},
};

/* A row of the text model's embedding, which has it too. */
static const char image_break[] = "v.token_embd.img_break";

/* --- Reading ---------------------------------------------------------------------------------------------------- */

static bool whole(const GgufFile *file, const char *key, int64_t most, int64_t *value, Error *error) {
    if (!gguf_integer(file, key, value)) return fail(error, ERROR_FORMAT, "clip%s is missing", key);
    return (*value > 0 && *value <= most) ||
        fail(error, ERROR_FORMAT, "clip%s is %lld, must be 1 to %lld", key, (long long)*value, (long long)most);
}

static bool find_kind(GgufVision *v, const GgufFile *text, Error *error) {
    Slice projector;
    if (!slice_is(v->file.architecture, "clip"))
        return fail(
            error, ERROR_UNSUPPORTED, "general.architecture is %.*s, must be clip", SLICE_SHOWN(v->file.architecture));
    if (!gguf_string(&v->file, ".vision.projector_type", &projector) &&
        !gguf_string(&v->file, ".projector_type", &projector))
        return fail(error, ERROR_FORMAT, "clip.projector_type is missing");
    for (size_t i = 0; i < COUNT_OF(kinds) && !v->kind; i++)
        if (slice_is(projector, kinds[i].projector) && (!kinds[i].with || gguf_tensor(&v->file, kinds[i].with)))
            v->kind = &kinds[i];
    if (!v->kind)
        return fail(error, ERROR_UNSUPPORTED,
            "clip.projector_type %.*s is not supported: gemma3, idefics3 and pixtral are", SLICE_SHOWN(projector));
    for (size_t i = 0; i < COUNT_OF(v->kind->texts) && v->kind->texts[i]; i++)
        if (slice_is(text->architecture, v->kind->texts[i])) return true;
    return fail(error, ERROR_UNSUPPORTED, "clip.projector_type %s belongs to a %s model, not to a %.*s",
        v->kind->projector, v->kind->texts[0], SLICE_SHOWN(text->architecture));
}

/* The size of a group of patches that become one row. */
static bool read_factor(GgufVision *v, Error *error) {
    const char *key = v->kind->style == STYLE_WITHIN ? ".vision.spatial_merge_size" : ".vision.projector.scale_factor";
    const int64_t side = v->pixels / v->patch;
    v->factor = v->kind->factor;
    if (!v->factor) return true;
    if (gguf_value(&v->file, key) && !whole(&v->file, key, side, &v->factor, error)) return false;
    return v->kind->style == STYLE_WITHIN || side % v->factor == 0 ||
        fail(error, ERROR_FORMAT, "clip%s %lld does not divide %lld patches", key, (long long)v->factor,
            (long long)side);
}

static bool read_fields(GgufVision *v, const GgufFile *text, Error *error) {
    enum { SIZE_MAX_OF = 1 << 20, LAYERS_MAX_OF = 1024 };
    const GgufFile *file = &v->file;
    int64_t hidden = 0, projected;
    bool chosen = false;
    if (!whole(file, ".vision.embedding_length", SIZE_MAX_OF, &v->hidden, error) ||
        !whole(file, ".vision.feed_forward_length", SIZE_MAX_OF, &v->inner, error) ||
        !whole(file, ".vision.block_count", LAYERS_MAX_OF, &v->layers, error) ||
        !whole(file, ".vision.attention.head_count", SIZE_MAX_OF, &v->heads, error) ||
        !whole(file, ".vision.image_size", SIZE_MAX_OF, &v->pixels, error) ||
        !whole(file, ".vision.patch_size", SIZE_MAX_OF, &v->patch, error) ||
        !whole(file, ".vision.projection_dim", SIZE_MAX_OF, &projected, error))
        return false;
    const char *activation = v->kind->style == STYLE_WITHIN ? ".use_silu" : ".use_gelu";
    if (!gguf_bool(file, activation, &chosen) || !chosen)
        return fail(error, ERROR_UNSUPPORTED, "clip%s is not true", activation);
    if (!gguf_number(file, ".vision.attention.layer_norm_epsilon", &v->eps) || !(v->eps > 0))
        return fail(error, ERROR_FORMAT, "clip.vision.attention.layer_norm_epsilon is missing");
    if (v->hidden % v->heads || v->hidden / v->heads % 2)
        return fail(error, ERROR_FORMAT, "clip.vision.embedding_length %lld is not %lld heads of an even size",
            (long long)v->hidden, (long long)v->heads);
    (void)gguf_integer(text, ".embedding_length", &hidden);
    if (projected != hidden)
        return fail(error, ERROR_FORMAT,
            "clip.vision.projection_dim is %lld, but the text model's embeddings have %lld", (long long)projected,
            (long long)hidden);
    return read_factor(v, error);
}

static const GgufTensor *part_find(const GgufVision *v, const char *pattern, int64_t block, const char *part) {
    char name[96];
    const char *star = strchr(pattern, '*');
    if (star)
        snprintf(name, sizeof name, "%.*s%lld%s.%s", (int)(star - pattern), pattern, (long long)block, star + 1, part);
    else
        snprintf(name, sizeof name, "%s.%s", pattern, part);
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

static bool add_part(
    GgufVision *v, const char *home, const VisionName *name, int64_t block, const char *part, Error *error) {
    const char *pattern = written_as(v, name->gguf, block), *star = strchr(name->module, '*');
    const GgufTensor *tensor = part_find(v, pattern, block, part);
    if (!tensor) {
        const char *at = strchr(pattern, '*');
        if (!at) return fail(error, ERROR_FORMAT, "tensor %s.%s is missing", pattern, part);
        return fail(error, ERROR_FORMAT, "tensor %.*s%lld%s.%s is missing", (int)(at - pattern), pattern,
            (long long)block, at + 1, part);
    }
    if (tensor->info->bits)
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is of type %s: F32, F16 and BF16 are supported here",
            SLICE_SHOWN(tensor->name), tensor->info->name);
    const char *joint = name->change == VISION_BARE ? "_" : ".";
    char *text = star ? arena_printf(&v->file.arena, "%s%.*s%lld%s%s%s", home, (int)(star - name->module), name->module,
                            (long long)block, star + 1, joint, part)
                      : arena_printf(&v->file.arena, "%s%s%s%s", home, name->module, joint, part);
    if (!text) return fail(error, ERROR_MEMORY, "no memory for the names");
    const bool plus = name->change == VISION_PLUS_ONE;
    TensorHeader *header = &v->headers[v->count];
    *header = (TensorHeader){.name = text, .dtype = plus ? DTYPE_F32 : tensor->info->dtype, .rank = tensor->dim_count};
    for (int i = 0; i < tensor->dim_count; i++) header->shape[i] = tensor->dims[tensor->dim_count - 1 - i];
    v->sources[v->count] = tensor;
    v->changes[v->count++] = name->change;
    if (name->change != VISION_PAIRED || (tensor->rows == v->hidden && tensor->dim_count == 2)) return true;
    return fail(error, ERROR_FORMAT, "tensor %.*s has %lld rows, must have %lld", SLICE_SHOWN(tensor->name),
        (long long)tensor->rows, (long long)v->hidden);
}

static bool list_tensors(GgufVision *v, Error *error) {
    const size_t most = v->file.tensor_count;
    Arena *arena = &v->file.arena;
    v->headers = arena_alloc(arena, most + 1, sizeof *v->headers);
    v->sources = arena_alloc(arena, most + 1, sizeof *v->sources);
    v->changes = arena_alloc(arena, most + 1, sizeof *v->changes);
    if (!v->headers || !v->sources || !v->changes) return fail(error, ERROR_MEMORY, "no memory for the tensors");
    for (int part = 0; part < VISION_PARTS; part++) {
        const char *home = v->kind->homes[part];
        for (const VisionName *name = v->kind->names[part]; name->gguf; name++) {
            const int64_t blocks = strchr(name->gguf, '*') ? v->layers : 1;
            for (int64_t block = 0; block < blocks; block++)
                if (!add_part(v, home, name, block, "weight", error) ||
                    (name->bias && !add_part(v, home, name, block, "bias", error)))
                    return false;
        }
    }
    for (size_t i = 0; i < v->file.tensor_count; i++) {
        bool used = slice_is(v->file.tensors[i].name, image_break) && v->kind->style == STYLE_WITHIN;
        for (size_t k = 0; k < v->count && !used; k++) used = v->sources[k] == &v->file.tensors[i];
        if (!used)
            return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not one that an encoder for %s has",
                SLICE_SHOWN(v->file.tensors[i].name), v->kind->projector);
    }
    return true;
}

bool gguf_vision_open(GgufVision *v, const char *path, const GgufFile *text, Error *error) {
    *v = (GgufVision){0};
    if (!gguf_open(&v->file, path, error)) return false;
    if (find_kind(v, text, error) && read_fields(v, text, error) && list_tensors(v, error)) return true;
    fail_while(error, "%s", path);
    gguf_close(&v->file);
    return false;
}

void gguf_vision_close(GgufVision *v) { gguf_close(&v->file); }

/* --- Writing ---------------------------------------------------------------------------------------------------- */

/* Fields that are not the text's. */
static bool is_outer(Slice key) {
    return slice_is(key, "quantization") || slice_is(key, "quantization_config") || slice_is(key, "eos_token_id") ||
        slice_is(key, "bos_token_id") || slice_is(key, "pad_token_id");
}

static long long group_count(const GgufVision *v) {
    const int64_t side = v->pixels / v->patch / v->factor;
    return side * side;
}

bool gguf_vision_config(Buffer *out, const GgufVision *v, Slice text, Error *error) {
    Arena arena = {0};
    const Json *root = json_parse(&arena, text, error);
    if (root) {
        buffer_printf(
            out, "{\"architectures\": [\"%s\"], \"model_type\": \"%s\"", v->kind->class_name, v->kind->model_type);
        if (v->kind->style == STYLE_FIXED) buffer_printf(out, ", \"mm_tokens_per_image\": %lld", group_count(v));
        if (v->kind->style == STYLE_TILES) buffer_printf(out, ", \"scale_factor\": %lld", (long long)v->factor);
        if (v->kind->style == STYLE_WITHIN && v->factor)
            buffer_printf(out, ", \"spatial_merge_size\": %lld", (long long)v->factor);
        for (int part = 0; part < 2; part++) {
            const char *separator = part ? "" : ",\n";
            if (part) buffer_text(out, ",\n\"text_config\": {");
            for (JSON_EACH_PAIR(key, value, root)) {
                if (is_outer(json_slice(key)) == part || slice_is(json_slice(key), "architectures")) continue;
                buffer_text(out, separator);
                json_write_string(out, json_slice(key));
                buffer_text(out, ": ");
                json_write(out, value);
                separator = ",\n";
            }
        }
        buffer_printf(out,
            "},\n\"vision_config\": {\"model_type\": \"%s\", \"hidden_size\": %lld, "
            "\"intermediate_size\": %lld, \"num_hidden_layers\": %lld, \"num_attention_heads\": %lld, "
            "\"num_channels\": 3, \"image_size\": %lld, \"patch_size\": %lld, ",
            v->kind->tower_type, (long long)v->hidden, (long long)v->inner, (long long)v->layers, (long long)v->heads,
            (long long)v->pixels, (long long)v->patch);
        if (v->kind->style == STYLE_WITHIN)
            buffer_printf(out, "\"head_dim\": %lld, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\"}}\n",
                (long long)(v->hidden / v->heads));
        else
            buffer_printf(out,
                "\"layer_norm_eps\": %.9g, \"hidden_act\": \"gelu_pytorch_tanh\", \"vision_use_head\": false}}\n",
                v->eps);
    }
    arena_free(&arena);
    return root && (!out->failed || fail(error, ERROR_MEMORY, "no memory for config.json"));
}

static bool put_three(Buffer *out, const GgufVision *v, const char *key, Error *error) {
    const GgufValue *value = gguf_value(&v->file, key);
    float numbers[3];
    if (!value || !value->array || value->kind != GGUF_F32 || value->count != COUNT_OF(numbers))
        return fail(error, ERROR_FORMAT, "clip%s is not three numbers", key);
    memcpy(numbers, value->data, sizeof numbers);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        if (!isfinite(numbers[i])) return fail(error, ERROR_FORMAT, "clip%s is not three numbers", key);
        buffer_printf(out, "%s%.9g", i ? ", " : "", (double)numbers[i]);
    }
    return true;
}

bool gguf_vision_processor(Buffer *out, const GgufVision *v, Error *error) {
    enum { TILES_ON_A_SIDE = 4 }; /* as the published models have it */
    int64_t longest = TILES_ON_A_SIDE * v->pixels;
    if (gguf_value(&v->file, ".vision.preproc_image_size") &&
        !whole(&v->file, ".vision.preproc_image_size", 1 << 20, &longest, error))
        return false;
    buffer_printf(out, "{\"image_processor_type\": \"%s\", \"size\": ", v->kind->processor);
    if (v->kind->style == STYLE_WITHIN)
        buffer_printf(out, "{\"longest_edge\": %lld}, \"patch_size\": {\"height\": %lld, \"width\": %lld}",
            (long long)v->pixels, (long long)v->patch, (long long)v->patch);
    else if (v->kind->style == STYLE_TILES)
        buffer_printf(out, "{\"longest_edge\": %lld}, \"max_image_size\": {\"longest_edge\": %lld}", (long long)longest,
            (long long)v->pixels);
    else
        buffer_printf(out, "{\"height\": %lld, \"width\": %lld}", (long long)v->pixels, (long long)v->pixels);
    buffer_text(out, ", \"image_mean\": [");
    if (!put_three(out, v, ".vision.image_mean", error)) return false;
    buffer_text(out, "], \"image_std\": [");
    if (!put_three(out, v, ".vision.image_std", error)) return false;
    buffer_text(out, "]}\n");
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for preprocessor_config.json");
}

static bool write_less_one(SafetensorsWriter *writer, const GgufTensor *tensor, Error *error) {
    const int64_t count = tensor->rows * tensor->cols;
    float *values = malloc((size_t)count * sizeof *values);
    if (!values) return fail(error, ERROR_MEMORY, "no memory for tensor %.*s", SLICE_SHOWN(tensor->name));
    floats_to_f32(values, tensor->data, tensor->info->dtype, count);
    for (int64_t i = 0; i < count; i++) values[i] -= 1;
    const bool ok = safetensors_write(writer, values, (size_t)count * sizeof *values, error);
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

bool gguf_vision_weights(const GgufVision *v, const char *path, Error *error) {
    SafetensorsWriter *writer = safetensors_create(path, v->headers, v->count, error);
    bool ok = writer;
    for (size_t i = 0; ok && i < v->count; i++) {
        const GgufTensor *tensor = v->sources[i];
        ok = v->changes[i] == VISION_PLUS_ONE ? write_less_one(writer, tensor, error)
            : v->changes[i] == VISION_PAIRED  ? write_halves(writer, v, tensor, error)
                                              : safetensors_write(writer, tensor->data, tensor->bytes, error);
        mapped_release(tensor->data, tensor->data + tensor->bytes);
    }
    if (ok && file_damaged(&v->file.map))
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
