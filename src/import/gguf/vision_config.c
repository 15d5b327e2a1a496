/* config.json and preprocessor_config.json around the fields of the text. What no key says is as in the published
 * models. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "import/gguf/vision.h"

/* Fields that are not the text's. */
static bool is_outer(Slice key) {
    return slice_is(key, "quantization") || slice_is(key, "quantization_config") || slice_is(key, "eos_token_id") ||
        slice_is(key, "bos_token_id") || slice_is(key, "pad_token_id");
}

enum { GEMMA4_TOKENS = 280 };

static long long group_count(const GgufVision *v) {
    const int64_t side = v->pixels / v->patch / v->factor;
    return side * side;
}

/* --- vision_config ---------------------------------------------------------------------------------------------- */

static void put_number(Buffer *out, const char *name, int64_t value) {
    buffer_printf(out, ", \"%s\": %lld", name, (long long)value);
}

static void put_list(Buffer *out, const char *name, const int64_t *values, int count) {
    buffer_printf(out, ", \"%s\": [", name);
    for (int i = 0; i < count; i++) buffer_printf(out, "%s%lld", i ? ", " : "", (long long)values[i]);
    buffer_text(out, "]");
}

/* Towers that are named as SigLIP's. */
static void put_siglip(Buffer *out, const GgufVision *v) {
    put_number(out, "hidden_size", v->hidden);
    put_number(out, "intermediate_size", v->inner);
    put_number(out, "num_hidden_layers", v->layers);
    put_number(out, "num_attention_heads", v->heads);
    put_number(out, "patch_size", v->patch);
}

static void put_gemma4(Buffer *out, const GgufVision *v) {
    const GgufTensor *q = gguf_vision_find(v, "v.blk.*.attn_q", 0, "weight");
    const GgufTensor *k = gguf_vision_find(v, "v.blk.*.attn_k", 0, "weight");
    const GgufTensor *places = gguf_vision_find(v, "v.position_embd", 0, "weight");
    const int64_t head = q ? q->rows / v->heads : 0;
    put_siglip(out, v);
    put_number(out, "head_dim", head);
    put_number(out, "num_key_value_heads", k && head ? k->rows / head : v->heads);
    put_number(out, "pooling_kernel_size", v->factor);
    put_number(out, "position_embedding_size", places && places->dim_count == 3 ? places->dims[1] : 0);
    buffer_printf(out,
        ", \"rms_norm_eps\": %.9g, \"use_clipped_linears\": %s, \"standardize\": %s, \"hidden_activation\": "
        "\"gelu_pytorch_tanh\", \"rope_parameters\": {\"rope_theta\": 100.0, \"rope_type\": \"axial\"}",
        v->eps, gguf_vision_find(v, "v.blk.*.attn_q", 0, "input_min") ? "true" : "false",
        gguf_tensor(&v->file, "v.std_bias") || gguf_tensor(&v->file, "v.std_bias.weight") ? "true" : "false");
}

static void put_unified(Buffer *out, const GgufVision *v) {
    const GgufTensor *places = gguf_vision_find(v, "v.position_embd", 0, "weight");
    put_number(out, "patch_size", v->patch);
    put_number(out, "pooling_kernel_size", v->factor);
    put_number(out, "model_patch_size", gguf_vision_side(v));
    put_number(out, "mm_embed_dim", v->hidden);
    put_number(out, "output_proj_dims", v->hidden);
    put_number(out, "mm_posemb_size", places ? places->dims[1] : 0);
    put_number(out, "num_soft_tokens", GEMMA4_TOKENS);
    buffer_printf(out, ", \"rms_norm_eps\": %.9g", v->eps);
}

static void put_qwen(Buffer *out, const GgufVision *v) {
    put_number(out, "depth", v->layers);
    put_number(out, "num_heads", v->heads);
    put_number(out, "patch_size", v->patch);
    put_number(out, "in_channels", 3);
    put_number(out, "spatial_merge_size", v->factor);
    put_number(out, "temporal_patch_size", 2);
    if (v->kind->style == STYLE_QWEN2) {
        put_number(out, "embed_dim", v->hidden);
        put_number(out, "hidden_size", v->rows);
        put_number(out, "mlp_ratio", v->inner / v->hidden);
        return;
    }
    put_number(out, "hidden_size", v->hidden);
    put_number(out, "intermediate_size", v->inner);
    put_number(out, "out_hidden_size", v->rows);
    if (v->kind->style == STYLE_QWEN3) {
        const GgufTensor *places = gguf_vision_find(v, "v.position_embd", 0, "weight");
        put_number(out, "num_position_embeddings", places ? places->rows : 0);
        put_list(out, "deepstack_visual_indexes", v->deepstack, v->deepstack_count);
        buffer_text(out, ", \"hidden_act\": \"gelu_pytorch_tanh\"");
        return;
    }
    put_number(out, "window_size", v->window);
    put_number(out, "tokens_per_second", 2);
    buffer_text(out, ", \"hidden_act\": \"silu\", \"fullatt_block_indexes\": [");
    for (int64_t i = v->full_every - 1; i < v->layers; i += v->full_every)
        buffer_printf(out, "%s%lld", i >= v->full_every ? ", " : "", (long long)i);
    buffer_text(out, "]");
}

static void put_tower(Buffer *out, const GgufVision *v) {
    buffer_printf(out, "\"vision_config\": {\"model_type\": \"%s\"", v->kind->tower_type);
    switch (v->kind->style) {
    case STYLE_QWEN2:
    case STYLE_QWEN2_5:
    case STYLE_QWEN3: put_qwen(out, v); break;
    case STYLE_GEMMA4: put_gemma4(out, v); break;
    case STYLE_UNIFIED: put_unified(out, v); break;
    default:
        put_siglip(out, v);
        put_number(out, "num_channels", 3);
        put_number(out, "image_size", v->pixels);
        if (v->kind->style == STYLE_WITHIN) {
            put_number(out, "head_dim", v->hidden / v->heads);
            buffer_text(out, ", \"rope_theta\": 10000.0, \"hidden_act\": \"silu\"");
        } else {
            buffer_printf(out,
                ", \"layer_norm_eps\": %.9g, \"hidden_act\": \"gelu_pytorch_tanh\", \"vision_use_head\": false",
                v->eps);
        }
    }
    buffer_text(out, "}");
}

/* --- audio_config ----------------------------------------------------------------------------------------------- */

/* Rows of a tensor that a file with audio has. */
static int64_t rows_of(const GgufVision *v, const char *name) {
    const GgufTensor *tensor = gguf_tensor(&v->file, name);
    return tensor && tensor->dim_count > 0 ? tensor->dims[tensor->dim_count - 1] : 0;
}

static void put_conformer(Buffer *out, const GgufVision *v) {
    const int64_t channels[] = {rows_of(v, "a.conv1d.0.weight"), rows_of(v, "a.conv1d.1.weight")};
    const GgufTensor *taps = gguf_vision_find(v, "a.blk.*.conv_dw", 0, "weight");
    buffer_text(out, "\"model_type\": \"gemma4_audio\"");
    put_number(out, "hidden_size", v->audio.hidden);
    put_number(out, "num_hidden_layers", v->audio.layers);
    put_number(out, "num_attention_heads", v->audio.heads);
    put_list(out, "subsampling_conv_channels", channels, (int)COUNT_OF(channels));
    put_number(out, "conv_kernel_size", taps ? taps->cols : 0);
    put_number(out, "output_proj_dims", rows_of(v, "a.pre_encode.out.weight"));
    buffer_printf(out,
        ", \"rms_norm_eps\": %.9g, \"use_clipped_linears\": %s, \"hidden_act\": \"silu\", \"residual_weight\": 0.5, "
        "\"attention_chunk_size\": 12, \"attention_context_left\": 13, \"attention_context_right\": 0, "
        "\"attention_logit_cap\": 50.0, \"gradient_clipping\": 1e10",
        v->audio.eps, gguf_vision_find(v, "a.blk.*.attn_q", 0, "input_min") ? "true" : "false");
}

static void put_audio(Buffer *out, const GgufVision *v) {
    const GgufTensor *rows = gguf_tensor(&v->file, "mm.a.input_projection.weight");
    if (!v->audio.present) return;
    buffer_text(out, ",\n\"audio_config\": {");
    if (v->audio.layers) {
        put_conformer(out, v);
    } else {
        buffer_text(out, "\"model_type\": \"gemma4_unified_audio\"");
        put_number(out, "audio_samples_per_token", rows ? rows->cols : 0);
        put_number(out, "audio_embed_dim", rows ? rows->cols : 0);
        put_number(out, "hidden_size", rows ? rows->cols : 0);
        put_number(out, "output_proj_dims", rows ? rows->cols : 0);
        buffer_printf(out, ", \"rms_norm_eps\": %.9g", v->audio.eps);
    }
    buffer_text(out, "}");
}

/* --- config.json ------------------------------------------------------------------------------------------------ */

static bool is_rope(const Json *key) {
    return slice_is(json_slice(key), "rope_scaling") || slice_is(json_slice(key), "rope_parameters");
}

/* The rope of the text, whose positions have three dimensions. */
static void put_rope(Buffer *out, const GgufVision *v, const Json *rope) {
    buffer_text(out, "{");
    if (rope && rope->type == JSON_OBJECT)
        for (JSON_EACH_PAIR(key, value, rope)) {
            json_write_string(out, json_slice(key));
            buffer_text(out, ": ");
            json_write(out, value);
            buffer_text(out, ", ");
        }
    else
        buffer_text(out, "\"rope_type\": \"default\", ");
    buffer_printf(out, "\"mrope_interleaved\": %s", v->kind->mrope_interleaved ? "true" : "false");
    put_list(out, "mrope_section", v->sections, (int)COUNT_OF(v->sections));
    buffer_text(out, "}");
}

/* The fields of the text model, with what only a model of images has. */
static void put_text(Buffer *out, const GgufVision *v, const Json *root) {
    const char *separator = "";
    bool rope = false;
    buffer_text(out, "\"text_config\": {");
    for (JSON_EACH_PAIR(key, value, root)) {
        if (is_outer(json_slice(key)) || slice_is(json_slice(key), "architectures")) continue;
        buffer_text(out, separator);
        separator = ",\n";
        json_write_string(out, json_slice(key));
        buffer_text(out, ": ");
        if (v->kind->mrope && is_rope(key)) {
            rope = true;
            put_rope(out, v, value);
        } else {
            json_write(out, value);
        }
    }
    if (v->kind->mrope && !rope) {
        buffer_printf(out, "%s\"rope_scaling\": ", separator);
        put_rope(out, v, NULL);
    }
    if (v->kind->audio) { /* Gemma 4: the models with inputs for each layer (E2B, E4B) were trained without */
        const Json *inputs = json_get(root, "hidden_size_per_layer_input");
        const bool causal = inputs && inputs->type == JSON_INTEGER && inputs->integer > 0;
        buffer_printf(out, "%s\"use_bidirectional_attention\": %s", separator, causal ? "null" : "\"vision\"");
    }
    buffer_text(out, "},\n");
}

static void put_outer(Buffer *out, const GgufVision *v, const Json *root) {
    const VisionKind *kind = v->kind;
    buffer_printf(out, "{\"architectures\": [\"%s\"], \"model_type\": \"%s\"", kind->class_name, kind->model_type);
    if (kind->style == STYLE_FIXED) put_number(out, "mm_tokens_per_image", group_count(v));
    if (kind->style == STYLE_TILES) put_number(out, "scale_factor", v->factor);
    if (kind->style == STYLE_WITHIN && v->factor) put_number(out, "spatial_merge_size", v->factor);
    for (JSON_EACH_PAIR(key, value, root)) {
        if (!is_outer(json_slice(key))) continue;
        buffer_text(out, ",\n");
        json_write_string(out, json_slice(key));
        buffer_text(out, ": ");
        json_write(out, value);
    }
    buffer_text(out, ",\n");
}

bool gguf_vision_config(Buffer *out, const GgufVision *v, Slice text, Error *error) {
    Arena arena = {0};
    const Json *root = json_parse(&arena, text, error);
    if (root) {
        put_outer(out, v, root);
        put_text(out, v, root);
        put_tower(out, v);
        put_audio(out, v);
        buffer_text(out, "}\n");
    }
    arena_free(&arena);
    return root && (!out->failed || fail(error, ERROR_MEMORY, "no memory for config.json"));
}

/* --- preprocessor_config.json ----------------------------------------------------------------------------------- */

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

/* How large images are. */
static bool put_sizes(Buffer *out, const GgufVision *v, Error *error) {
    enum { TILES_ON_A_SIDE = 4, AREA_MOST = 1 << 26 };
    const GgufFile *file = &v->file;
    const bool positions = v->kind->style == STYLE_QWEN3;
    int64_t longest = TILES_ON_A_SIDE * v->pixels, least = positions ? 65536 : 3136;
    int64_t most = positions ? 16777216 : 12845056;
    switch (v->kind->style) {
    case STYLE_FIXED:
        buffer_printf(
            out, ", \"size\": {\"height\": %lld, \"width\": %lld}", (long long)v->pixels, (long long)v->pixels);
        return true;
    case STYLE_TILES:
        if (gguf_value(file, ".vision.preproc_image_size") &&
            !gguf_vision_whole(file, ".vision.preproc_image_size", 1 << 20, &longest, error))
            return false;
        buffer_printf(out, ", \"size\": {\"longest_edge\": %lld}, \"max_image_size\": {\"longest_edge\": %lld}",
            (long long)longest, (long long)v->pixels);
        return true;
    case STYLE_WITHIN:
        buffer_printf(out, ", \"size\": {\"longest_edge\": %lld}, \"patch_size\": {\"height\": %lld, \"width\": %lld}",
            (long long)v->pixels, (long long)v->patch, (long long)v->patch);
        return true;
    case STYLE_GEMMA4:
    case STYLE_UNIFIED:
        put_number(out, "patch_size", v->patch);
        put_number(out, "pooling_kernel_size", v->factor);
        put_number(out, "max_soft_tokens", GEMMA4_TOKENS);
        buffer_text(out, ", \"do_normalize\": false");
        return true;
    default:
        if ((gguf_value(file, ".vision.image_min_pixels") &&
                !gguf_vision_whole(file, ".vision.image_min_pixels", AREA_MOST, &least, error)) ||
            (gguf_value(file, ".vision.image_max_pixels") &&
                !gguf_vision_whole(file, ".vision.image_max_pixels", AREA_MOST, &most, error)))
            return false;
        put_number(out, "patch_size", v->patch);
        put_number(out, "merge_size", v->factor);
        put_number(out, "temporal_patch_size", 2);
        buffer_printf(
            out, ", \"size\": {\"shortest_edge\": %lld, \"longest_edge\": %lld}", (long long)least, (long long)most);
        return true;
    }
}

bool gguf_vision_processor(Buffer *out, const GgufVision *v, Error *error) {
    buffer_printf(out, "{\"image_processor_type\": \"%s\"", v->kind->processor);
    if (!put_sizes(out, v, error)) return false;
    buffer_text(out, ", \"image_mean\": [");
    if (!put_three(out, v, ".vision.image_mean", error)) return false;
    buffer_text(out, "], \"image_std\": [");
    if (!put_three(out, v, ".vision.image_std", error)) return false;
    buffer_text(out, "]}\n");
    return !out->failed || fail(error, ERROR_MEMORY, "no memory for preprocessor_config.json");
}
