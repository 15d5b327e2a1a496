/* The part of the Loader that fetches matrices as quantising programs other than MLX pack them (tensor/packed.h). They
 * are unpacked into memory, row by row, unless what is read is only recorded. */
#include <stdio.h>

#include "model/loader/internal.h"

/* --- What config.json says -------------------------------------------------------------------------------------- */

static bool text_is(const Json *object, const char *field, const char *value) {
    const Json *text = json_get(object, field);
    return text && text->type == JSON_STRING && slice_is(json_slice(text), value);
}

static int64_t whole(const Json *number) { return number && number->type == JSON_INTEGER ? number->integer : 0; }

#define ADVICE "use the model's unquantised checkpoint (apus convert -q quantises it), an MLX one or a GGUF file"

static void refuse(Loader *ld, const Json *config, const char *field) {
    const Json *value = json_get(config, field);
    char shown[64] = "(missing)";
    loader_fail(ld, ERROR_UNSUPPORTED, "config.json: quantization_config.%s %s is not supported: " ADVICE, field,
        value ? loader_show(value, shown) : shown);
}

static void read_awq(Loader *ld, const Json *config) {
    ld->packing = (Packing){.method = PACKING_AWQ, .group = whole(json_get(config, "group_size"))};
    const bool gemm =
        !json_get(config, "version") || text_is(config, "version", "gemm") || text_is(config, "version", "GEMM");
    if (!gemm) refuse(ld, config, "version");
    if (json_get(config, "bits") && whole(json_get(config, "bits")) != 4) refuse(ld, config, "bits");
}

static void read_gptq(Loader *ld, const Json *config) {
    const Json *format = json_get(config, "checkpoint_format");
    const bool second = text_is(config, "checkpoint_format", "gptq_v2");
    ld->packing =
        (Packing){.method = PACKING_GPTQ, .group = whole(json_get(config, "group_size")), .zeros_less_one = !second};
    ld->packing.bits = (int)whole(json_get(config, "bits"));
    if (format && format->type != JSON_NULL && !second && !text_is(config, "checkpoint_format", "gptq"))
        refuse(ld, config, "checkpoint_format");
    if (ld->packing.bits != 2 && ld->packing.bits != 4 && ld->packing.bits != 8) refuse(ld, config, "bits");
}

static void read_block(Loader *ld, const Json *config, const char *field) {
    const Json *block = json_get(config, field);
    const bool pair = block && block->type == JSON_ARRAY && block->size == 2;
    if (pair) ld->packing.block_rows = whole(json_first(block));
    if (pair) ld->packing.group = whole(json_next(json_first(block)));
    if (block && block->type != JSON_NULL && (ld->packing.block_rows <= 0 || ld->packing.group <= 0))
        refuse(ld, config, field);
}

static bool has_format(const Json *object) {
    static const char *const formats[] = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"};
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (text_is(object, "format", formats[i])) return true;
    return false;
}

/* config_groups of this object, if it is one. */
static const Json *groups_of(const Json *config) {
    const Json *groups = json_get(config, "config_groups");
    return groups && groups->type == JSON_OBJECT ? groups : NULL;
}

/* Rotations of activations are computed while a model runs; those of weights are in the weights. */
static bool turns_activations(const Json *scheme) {
    const Json *apply = json_get(scheme, "apply");
    if (!apply || apply->type != JSON_ARRAY) return true;
    for (JSON_EACH(one, apply)) {
        const Json *location = json_get(one, "location");
        if (!location || location->type != JSON_STRING || !slice_starts(json_slice(location), SLICE("weight_")))
            return true;
    }
    return false;
}

/* The tensors tell what each matrix is, in mixed-precision too; blocks have one size. */
static void read_compressed(Loader *ld, const Json *config) {
    const bool mixed = text_is(config, "format", "mixed-precision");
    const Json *groups = groups_of(config), *schemes = groups_of(json_get(config, "transform_config"));
    ld->packing = (Packing){.method = PACKING_COMPRESSED};
    if (!mixed && !has_format(config)) refuse(ld, config, "format");
    if (groups)
        for (JSON_EACH_PAIR(name, group, groups)) {
            const Json *weights = json_get(group, "weights");
            if (mixed && !has_format(group)) refuse(ld, group, "format");
            if (text_is(weights, "strategy", "block")) read_block(ld, weights, "block_structure");
        }
    if (schemes)
        for (JSON_EACH_PAIR(name, scheme, schemes))
            if (turns_activations(scheme)) refuse(ld, config, "transform_config");
}

static bool is_modelopt_algo(const Json *object) {
    static const char *const algos[] = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "MXFP8"};
    for (size_t i = 0; i < COUNT_OF(algos); i++)
        if (text_is(object, "quant_algo", algos[i])) return true;
    return false;
}

/* NVIDIA's. The tensors tell what each matrix is. */
static void read_modelopt(Loader *ld, const Json *config) {
    const Json *own = json_get(config, "quantization"); /* as in hf_quant_config.json */
    if (own && own->type == JSON_OBJECT) config = own;
    const Json *layers = json_get(config, "quantized_layers");
    const bool mixed = text_is(config, "quant_algo", "MIXED_PRECISION");
    ld->packing = (Packing){.method = PACKING_FP8};
    if (!mixed && !is_modelopt_algo(config)) refuse(ld, config, "quant_algo");
    if (!mixed || !layers || layers->type != JSON_OBJECT) return;
    for (JSON_EACH_PAIR(name, layer, layers))
        if (!is_modelopt_algo(layer)) refuse(ld, layer, "quant_algo");
}

/* Intel's AutoRound writes the matrices of other programs; before it named their packing, it was called "backend". */
static void read_auto_round(Loader *ld, const Json *config) {
    const char *field = json_get(config, "packing_format") ? "packing_format" : "backend";
    const Json *format = json_get(config, field);
    const Slice text = format && format->type == JSON_STRING ? json_slice(format) : SLICE("");
    const bool gptq = slice_starts(text, SLICE("auto_round:gptq")) || slice_starts(text, SLICE("auto_round:auto_gptq"));
    if (slice_starts(text, SLICE("auto_round:auto_awq")) || slice_starts(text, SLICE("auto_round:awq"))) {
        read_awq(ld, config);
    } else if (slice_is(text, "auto_round:llm_compressor")) {
        ld->packing = (Packing){.method = PACKING_COMPRESSED};
    } else if (slice_starts(text, SLICE("auto_round:fp8"))) {
        ld->packing = (Packing){.method = PACKING_FP8};
    } else if (gptq || slice_is(text, "auto_round") || slice_is(text, "auto_round:exllamav2") ||
        slice_is(text, "auto_round:tritonv2")) {
        read_gptq(ld, config);
        ld->packing.zeros_less_one = gptq && !slice_starts(text, SLICE("auto_round:gptqmodel"));
    } else {
        refuse(ld, config, field);
    }
    const Json *type = json_get(config, "data_type"), *rotation = json_get(config, "rotation_config");
    if (text_is(config, "data_type", "nvfp4_v2") || (type && type->type != JSON_STRING))
        refuse(ld, config, "data_type");
    if (rotation && rotation->type != JSON_NULL) refuse(ld, config, "rotation_config");
}

static void read_fp8(Loader *ld, const Json *config) {
    ld->packing = (Packing){.method = PACKING_FP8};
    read_block(ld, config, "weight_block_size");
}

/* Offline: matrices are packed, and what is not is plain. Online: they are plain, and made ternary when they are used.
 */
static void read_bitnet(Loader *ld, const Json *config) {
    ld->packing = (Packing){
        .method = PACKING_BITNET, .bits = 2, .inverse_scale = !text_is(config, "linear_class", "autobitlinear")};
    if (text_is(config, "quantization_mode", "online")) refuse(ld, config, "quantization_mode");
    const Json *norm = json_get(config, "use_rms_norm");
    if (norm && norm->type == JSON_BOOL && norm->boolean) refuse(ld, config, "use_rms_norm");
}

/* --- One matrix ------------------------------------------------------------------------------------------------- */

static bool take(Loader *ld, const char *name, const char *suffix, Tensor *tensor) {
    char full[NAME_SIZE];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    if (!loader_find(ld, full)) return false;
    const TensorEntry *entry = loader_take(ld, name, suffix);
    if (entry) *tensor = entry->tensor;
    return entry;
}

static bool has(Loader *ld, const char *name, const char *suffix) {
    char full[NAME_SIZE];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return loader_find(ld, full);
}

/* Two FP4 numbers to a byte: NVFP4 where there is a factor of the whole, else MXFP4. False: it is not such a matrix. */
static bool find_fp4(Loader *ld, const char *name, PackedMatrix *p) {
    const bool own = has(ld, name, ".weight_packed"); /* compressed-tensors' */
    char full[NAME_SIZE];
    snprintf(full, sizeof full, "%s%s", name, own ? ".weight_packed" : ".weight");
    const TensorEntry *entry = loader_find(ld, full);
    if (!entry || entry->tensor.dtype != DTYPE_U8 || (!own && !has(ld, name, ".weight_scale_2"))) return false;
    const char *factor = own ? ".weight_global_scale" : ".weight_scale_2";
    p->kind = has(ld, name, factor) ? PACKED_NVFP4 : PACKED_MXFP4;
    p->inverse_scale = own;
    p->row_step = 1;
    (void)take(ld, name, own ? ".weight_packed" : ".weight", &p->data);
    (void)take(ld, name, ".weight_scale", &p->scales);
    (void)take(ld, name, factor, &p->factor);
    return true;
}

/* Which tensors hold the matrix. False: it is not packed. */
static bool find_parts(Loader *ld, const char *name, PackedMatrix *p) {
    const Packing *packing = &ld->packing;
    p->group = packing->group;
    p->block_rows = packing->block_rows;
    p->bits = packing->bits ? packing->bits : 4;
    if (packing->method == PACKING_AWQ || packing->method == PACKING_GPTQ) {
        p->kind = packing->method == PACKING_AWQ ? PACKED_AWQ : PACKED_GPTQ;
        p->zeros_less_one = packing->zeros_less_one;
        if (!take(ld, name, ".qweight", &p->data)) return false;
        if (p->kind == PACKED_GPTQ) /* a module may have others than quantization_config.bits */
            p->bits = p->data.rank == 2 && p->cols ? (int)(p->data.shape[0] * 32 / p->cols) : 0;
        (void)take(ld, name, ".scales", &p->scales);
        (void)take(ld, name, ".qzeros", &p->zeros);
        (void)take(ld, name, ".g_idx", &p->group_of);
        if (p->kind == PACKED_AWQ) p->group_of.rank = 0;
        return true;
    }
    if (packing->method == PACKING_BITNET) {
        p->kind = PACKED_TERNARY;
        p->inverse_scale = packing->inverse_scale;
        if (!has(ld, name, ".weight_scale") || !take(ld, name, ".weight", &p->data)) return false;
        (void)take(ld, name, ".weight_scale", &p->scales);
        return true;
    }
    if (find_fp4(ld, name, p)) return true;
    if (take(ld, name, ".weight_packed", &p->data)) {
        p->kind = PACKED_WORDS;
        p->bits = p->data.rank == 2 && p->cols ? (int)(p->data.shape[1] * 32 / p->cols) : 0;
        (void)take(ld, name, ".weight_scale", &p->scales);
        (void)take(ld, name, ".weight_zero_point", &p->zeros);
        (void)take(ld, name, ".weight_g_idx", &p->group_of);
        return true;
    }
    static const char *const scales[] = {".weight_scale_inv", ".weight_scale", ".scale", "_scale_inv"};
    size_t i = 0;
    while (i < COUNT_OF(scales) && !has(ld, name, scales[i])) i++;
    if (i == COUNT_OF(scales)) return false;
    const char *scale = scales[i];
    if (!take(ld, name, scale[0] == '.' ? ".weight" : "", &p->data)) return false; /* experts are no modules */
    (void)take(ld, name, scale, &p->scales);
    if (p->data.dtype == DTYPE_I8 && p->scales.dtype == DTYPE_U8) { /* DeepSeek-V4's experts */
        p->kind = PACKED_MXFP4;
        p->row_step = 1;
        return true;
    }
    p->kind = p->data.dtype == DTYPE_I8 ? PACKED_BYTES : PACKED_FP8;
    p->bits = 8;
    p->data = loader_flat(ld, &p->data);
    p->scales = loader_flat(ld, &p->scales);
    if (p->kind == PACKED_BYTES) (void)take(ld, name, ".weight_zero_point", &p->zeros);
    return true;
}

/* Groups as the shape of the scales tells. */
static void complete(PackedMatrix *p) {
    const Tensor *s = &p->scales;
    const bool by_group = p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ;
    const int64_t groups = s->rank == 2 ? s->shape[by_group ? 0 : 1] : 1;
    if (p->kind == PACKED_TERNARY) return;
    if (p->kind == PACKED_FP8 && s->rank >= 1 && s->shape[0] == p->rows && groups > 0 && p->cols % groups == 0) {
        p->block_rows = 1;
        p->group = p->cols / groups;
    } else if (p->kind != PACKED_FP8 && groups > 0 && p->cols % groups == 0) {
        p->group = p->cols / groups;
    }
}

/* FP8 of experts one below the other has a scale for each, or for blocks that end where an expert ends. */
static bool complete_stack(const Loader *ld, PackedMatrix *p) {
    const int64_t each = p->rows / ld->stack;
    if (p->kind != PACKED_FP8) return false;
    if (p->scales.rank && p->scales.shape[0] == ld->stack) p->block_rows = each;
    return p->block_rows <= 0 || each % p->block_rows == 0;
}

/* Tensors beside it that do not change its numbers. */
static void leave_others(Loader *ld, const char *name) {
    static const char *const ends[] = {".weight_shape", ".input_scale", ".input_global_scale", ".input_zero_point",
        ".activation_scale", ".output_scale", ".k_scale", ".v_scale"};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        char full[NAME_SIZE];
        snprintf(full, sizeof full, "%s%s", name, ends[i]);
        const TensorEntry *entry = loader_find(ld, full);
        if (entry) ld->tensor_used[entry - ld->source->checkpoint->entries] = 1;
    }
}

void loader_unpack(Loader *ld, const char *full, const PackedMatrix *packed, Weight *weight) {
    Error why = {0};
    PackedMatrix *own = loader_alloc(ld, 1, sizeof *own);
    if (!own) return;
    *own = *packed;
    own->for_file = ld->source->record != NULL;
    if (!packed_check(own, &why)) {
        loader_fail(ld, why.code, "matrix %s: %s", full, why.text);
        return;
    }
    if (own->data.bytes == 0 || ld->source->record) {
        *weight = own->form;
        loader_record_packed(ld, full, own);
        return;
    }
    if (ld->experts && ld->source->experts_stay) {
        loader_fail(ld, ERROR_UNSUPPORTED,
            "matrix %s: experts that have to be unpacked cannot be read from their files: write the model anew with "
            "apus convert",
            full);
        return;
    }
    if (own->kind == PACKED_MXFP4 && own->row_step == 1) { /* as they lie in the file */
        *weight = own->form;
        weight->data = own->data.data;
        weight->scales = own->scales.data;
        return;
    }
    const size_t rows = (size_t)own->rows, scales = weight_scale_bytes(&own->form);
    uint8_t *data = loader_alloc(ld, rows, weight_row_bytes(&own->form));
    uint8_t *scale = scales ? loader_alloc(ld, rows, scales) : NULL;
    uint8_t *bias = own->form.quant == QUANT_AFFINE ? loader_alloc(ld, rows, scales) : NULL;
    if (ld->failed) return;
    if (!packed_read(own, 0, own->rows, data, scale, bias, &why)) {
        loader_fail(ld, why.code, "matrix %s: %s", full, why.text);
        return;
    }
    *weight = own->form;
    weight->data = data;
    weight->scales = scale;
    weight->biases = bias;
}

static bool load_packed(Loader *ld, const char *name, Weight *weight) {
    /* factors of the input, parts of low rank: without them the numbers of the product are others */
    static const char *const corrections[] = {".pre_quant_scale", ".svdquant_lora_a"};
    PackedMatrix packed = {.rows = weight->rows, .cols = weight->cols};
    char full[NAME_SIZE];
    if (ld->failed || !find_parts(ld, name, &packed)) return false;
    loader_full_name(ld, full, name, "");
    if (ld->stack && !complete_stack(ld, &packed)) {
        loader_fail(ld, ERROR_UNSUPPORTED,
            "matrix %s: experts in one tensor that are packed so are not supported: " ADVICE, full);
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(corrections); i++)
        if (has(ld, name, corrections[i])) {
            loader_fail(ld, ERROR_UNSUPPORTED, "matrix %s: %s is not supported: " ADVICE, full, corrections[i] + 1);
            return true;
        }
    ld->packed_count++;
    complete(&packed);
    leave_others(ld, name);
    loader_unpack(ld, full, &packed, weight);
    return true;
}

/* ModelOpt says null where it quantised the KV cache alone. */
static const Json *unless_plain(const Json *config) {
    const Json *own = json_get(config, "quantization"), *algo = json_get(own ? own : config, "quant_algo");
    return algo && algo->type == JSON_NULL ? NULL : config;
}

const Json *loader_packing_config(const Loader *ld) {
    const Json *root = ld->root, *config = json_get(root, "quantization_config"), *other = ld->source->packing;
    config = config ? config : json_get(json_get(root, "text_config"), "quantization_config");
    if (json_get(config, "quant_method")) return unless_plain(config);
    return text_is(json_get(other, "producer"), "name", "modelopt") ? unless_plain(other) : NULL;
}

void loader_read_packing(Loader *ld, const Json *config) {
    static const struct {
        const char *method;
        void (*read)(Loader *ld, const Json *config);
    } methods[] = {{"awq", read_awq}, {"gptq", read_gptq}, {"compressed-tensors", read_compressed}, {"fp8", read_fp8},
        {"bitnet", read_bitnet}, {"modelopt", read_modelopt}, {"auto-round", read_auto_round}};
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        const bool own_file = config == ld->source->packing && methods[i].read == read_modelopt;
        if (!own_file && !text_is(config, "quant_method", methods[i].method)) continue;
        methods[i].read(ld, config);
        ld->packing.name = methods[i].method;
        ld->packing.load = load_packed;
        return;
    }
    if (!text_is(config, "quant_method", "mxfp4") && !text_is(config, "quant_method", "mxfp8"))
        refuse(ld, config, "quant_method");
}

void loader_check_packing(Loader *ld) {
    if (ld->packing.method && !ld->packed_count)
        loader_fail(ld, ERROR_FORMAT,
            "config.json: quantization_config.quant_method is \"%s\", but no matrix of the files is packed so",
            ld->packing.name);
}

const float *loader_expert_biases(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int first, int step) {
    const TensorEntry *entry = loader_take(ld, name, "_bias");
    char full[NAME_SIZE];
    if (!entry) return NULL;
    const Tensor *t = &entry->tensor;
    const int64_t count = experts * rows;
    if (!dtype_is_float(t->dtype) || t->rank != 2 || t->shape[0] != experts || t->shape[1] != rows * step) {
        loader_wrong_shape(ld, entry, "a number for each row of the experts");
        return NULL;
    }
    loader_full_name(ld, full, as, ".bias");
    loader_record_part(ld, full, entry, first, step);
    float *out = loader_alloc(ld, (size_t)count, sizeof *out);
    for (int64_t i = 0; out && i < count; i++)
        floats_to_f32(
            &out[i], (const uint8_t *)t->data + (size_t)(i * step + first) * dtype_bytes(t->dtype), t->dtype, 1);
    return out;
}

Weight *load_experts_mxfp4(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int64_t cols, int first, int step) {
    const TensorEntry *blocks = loader_take(ld, name, "_blocks"), *scales = loader_take(ld, name, "_scales");
    Weight *out = loader_alloc(ld, (size_t)experts, sizeof *out), all = {.rows = experts * rows, .cols = cols};
    char full[NAME_SIZE];
    if (!blocks || !scales || !out) return out;
    const PackedMatrix packed = {.kind = PACKED_MXFP4,
        .rows = all.rows,
        .cols = cols,
        .first_row = first,
        .row_step = step,
        .data = blocks->tensor,
        .scales = scales->tensor};
    loader_full_name(ld, full, as, "");
    ld->experts = true;
    ld->stack = experts;
    loader_unpack(ld, full, &packed, &all);
    ld->stack = 0;
    ld->experts = false;
    if (!ld->failed) loader_tally(ld, &all);
    all.bias = loader_expert_biases(ld, name, as, experts, rows, first, step);
    for (int e = 0; !ld->failed && e < experts; e++) out[e] = load_part(&all, e * rows, rows);
    return out;
}
