/* The plan: the family of a file, the MLX names of its tensors, and the inverse of the changes that llama.cpp's
 * converter makes, all by the rows of the family (family/gguf.h). */
#include <stdio.h>
#include <string.h>

#include "import/gguf/internal.h"

enum { BLOCKS_MAX = 4096 };

/* --- Which model it is ----------------------------------------------------------------------------------------- */

static bool fail_unknown(const GgufFile *file, Error *error) {
    char list[512];
    size_t size = 0, i = 0;
    const char *type;
    list[0] = '\0';
    for (const GgufModel *model; (model = family_gguf(i, &type)) && size < sizeof list; i++) {
        if (model->with_key) continue; /* another model has this architecture */
        size += (size_t)snprintf(list + size, sizeof list - size, "%s%s", size ? ", " : "", model->architecture);
    }
    return fail(error, ERROR_UNSUPPORTED, "architecture %.*s cannot be converted (these can: %s)",
        SLICE_SHOWN(file->architecture), list);
}

/* A number of 0 says that there is no such thing. */
static bool has_key(const GgufFile *file, const GgufModel *model) {
    int64_t number;
    bool flag;
    if (!gguf_value(file, model->with_key)) return false;
    if (gguf_bool(file, model->with_key, &flag)) return flag;
    if (!gguf_integer(file, model->with_key, &number)) return model->with_value == 0;
    return model->with_value ? number == model->with_value : number != 0;
}

bool gguf_model_find(const GgufFile *file, const GgufModel **model, const char **model_type, Error *error) {
    *model = NULL;
    size_t i = 0;
    const char *type;
    for (const GgufModel *next; (next = family_gguf(i, &type)); i++) {
        if (!slice_is(file->architecture, next->architecture)) continue;
        if (next->with_key ? !has_key(file, next) : *model != NULL) continue;
        *model = next;
        *model_type = type;
    }
    return *model || fail_unknown(file, error);
}

/* --- Ignored metadata ------------------------------------------------------------------------------------------ */

/* Architecture keys that are handled in every file, beside those of the model's fields. Any other key may change the
 * computation, so it is refused. */
static const char *const known_keys[] = {
    ".vocab_size",
    ".attention.head_count", /* 0 where there is no attention */
    ".feed_forward_length",  /* 0 where there is no feed-forward network */
    ".attention.layer_norm_epsilon",
    ".attention.key_length",
    ".attention.value_length",
    ".attention.causal",
    ".rope.dimension_count",
    ".rope.dimension_sections", /* a text position has the same number in each dimension */
    ".rope.freq_base",
    ".rope.scale_linear",
    ".rope.scaling.type",
    ".rope.scaling.factor",
    ".rope.scaling.original_context_length",
    ".rope.scaling.attn_factor",
    ".rope.scaling.finetuned",
    ".rope.scaling.yarn_beta_fast",
    ".rope.scaling.yarn_beta_slow",
    ".rope.scaling.yarn_ext_factor",
    ".rope.scaling.yarn_attn_factor",
    ".expert_count",
    ".expert_used_count",
    ".nextn_predict_layers",
    ".use_parallel_residual",
    ".tensor_data_layout",
    ".pooling_type",
};

static bool field_reads(const GgufModel *model, Slice key) {
    for (const GgufField *const *list = model->fields; *list; list++) {
        for (const GgufField *field = *list; field->name; field++) {
            if ((field->key && slice_is(key, field->key)) || (field->or_key && slice_is(key, field->or_key)))
                return true;
        }
    }
    return model->with_key && slice_is(key, model->with_key);
}

static bool key_known(const GgufModel *model, Slice key) {
    for (size_t i = 0; i < COUNT_OF(known_keys); i++) {
        if (slice_is(key, known_keys[i])) return true;
    }
    return (model->latent && slice_is(key, ".rope.scaling.yarn_log_multiplier")) || field_reads(model, key);
}

static bool keys_check(const GgufFile *file, const GgufModel *model, Error *error) {
    const Slice architecture = file->architecture;
    for (size_t i = 0; i < file->value_count; i++) {
        Slice key = file->values[i].key;
        if (!slice_starts(key, architecture) || key.size <= architecture.size || key.data[architecture.size] != '.')
            continue;
        if (!key_known(model, (Slice){key.data + architecture.size, key.size - architecture.size}))
            return fail(error, ERROR_UNSUPPORTED, "%.*s: what it means here is not known", SLICE_SHOWN(key));
    }
    int64_t number;
    bool causal;
    if (gguf_integer(file, ".expert_count", &number) && number > 0 && !field_reads(model, SLICE(".expert_count"))) {
        return fail(error, ERROR_UNSUPPORTED, "%s.expert_count is %lld: such a model has no experts here",
            model->architecture, (long long)number);
    }
    if (gguf_bool(file, ".attention.causal", &causal) && !causal) {
        return fail(error, ERROR_UNSUPPORTED, "%s.attention.causal is false", model->architecture);
    }
    if (gguf_integer(file, "split.count", &number) && number > 1) {
        return fail(error, ERROR_UNSUPPORTED, "split.count is %lld: join the parts first", (long long)number);
    }
    return true;
}

const GgufField *gguf_field(const GgufModel *model, const char *name) {
    for (const GgufField *const *list = model->fields; *list; list++) {
        for (const GgufField *field = *list; field->name; field++) {
            if (strcmp(field->name, name) == 0) return field;
        }
    }
    return NULL;
}

/* --- Names ----------------------------------------------------------------------------------------------------- */

/* Frequencies and their factors: config.json says them, or they follow from the base. */
static const char *const dropped_names[] = {"rope_freqs", "rope_factors_long", "rope_factors_short"};

static bool name_dropped(Slice stem) {
    for (size_t i = 0; i < COUNT_OF(dropped_names); i++) {
        if (slice_is(stem, dropped_names[i])) return true;
    }
    Slice end = SLICE(".attn_rot_embd"); /* written by early converters */
    return stem.size > end.size && memcmp(stem.data + stem.size - end.size, end.data, end.size) == 0;
}

int64_t gguf_layers(const GgufFile *file) {
    int64_t blocks = 0, further = 0;
    (void)gguf_integer(file, ".block_count", &blocks);
    (void)gguf_integer(file, ".nextn_predict_layers", &further);
    return further > 0 && further < blocks ? blocks - further : blocks;
}

/* The number at the start of text: its digits, or 0 when it is none of 0 … BLOCKS_MAX − 1 as one writes it. */
static size_t number_parse(Slice text, int *number) {
    size_t digits = 0;
    *number = 0;
    while (digits < text.size && text.data[digits] >= '0' && text.data[digits] <= '9' && *number < BLOCKS_MAX) {
        *number = *number * 10 + (text.data[digits++] - '0');
    }
    return *number >= BLOCKS_MAX || (digits > 1 && text.data[0] == '0') ? 0 : digits;
}

bool gguf_name_match(Slice name, const char *pattern, int *block) {
    const char *star = strchr(pattern, '*');
    *block = 0;
    if (!star) return slice_is(name, pattern);
    Slice before = {pattern, (size_t)(star - pattern)};
    if (!slice_starts(name, before)) return false;
    Slice rest = {name.data + before.size, name.size - before.size};
    size_t digits = number_parse(rest, block);
    return digits && slice_is((Slice){rest.data + digits, rest.size - digits}, star + 1);
}

/* Tensors of MTP blocks after the model's layers. */
static bool predicts_further(const GgufFile *file, Slice stem) {
    const Slice block = SLICE("blk.");
    int number;
    if (!gguf_value(file, ".nextn_predict_layers") || !slice_starts(stem, block)) return false;
    return number_parse((Slice){stem.data + block.size, stem.size - block.size}, &number) &&
        number >= gguf_layers(file);
}

static const GgufName *name_find(const GgufModel *model, Slice stem, int *block) {
    for (const GgufName *const *list = model->names; *list; list++) {
        for (const GgufName *name = *list; name->gguf; name++) {
            if (gguf_name_match(stem, name->gguf, block)) return name;
        }
    }
    return NULL;
}

/* NULL: no memory. */
static char *module_name(Arena *arena, const char *pattern, int block) {
    const char *star = strchr(pattern, '*');
    if (!star) return arena_copy(arena, slice_of(pattern));
    return arena_printf(arena, "%.*s%d%s", (int)(star - pattern), pattern, block, star + 1);
}

/* "blk.3.attn_q.weight" → module "model.layers.3.self_attn.q_proj", part "weight" and the inverse transformation.
 * dropped: there is no output. */
static bool name_convert(
    GgufOutput *output, GgufFile *file, const GgufModel *model, GgufChange *change, bool *dropped, Error *error) {
    Slice stem = output->source->name;
    size_t last = stem.size; /* after the last dot; 0: no dot */
    while (last > 0 && stem.data[last - 1] != '.') last--;
    const Slice part = last ? (Slice){stem.data + last, stem.size - last} : (Slice){0};
    output->part = slice_is(part, "weight") ? "weight" : slice_is(part, "bias") ? "bias" : NULL;
    if (output->part)
        stem.size -= part.size + 1;
    else
        output->part = ""; /* vectors of recurrent layers have neither */
    *dropped = name_dropped(stem) || predicts_further(file, stem);
    if (*dropped) return true;
    int block;
    const GgufName *name = name_find(model, stem, &block);
    const bool bare = name && (name->change == GGUF_NAMED || name->change == GGUF_RATE);
    if (!name || (!output->part[0] && !bare)) {
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not one that a %s model has",
            SLICE_SHOWN(output->source->name), model->architecture);
    }
    *change = name->change;
    if (bare) output->part = "";
    char *module = module_name(&file->arena, name->module, block);
    char *log = module && *change == GGUF_RATE ? strrchr(module, '_') : NULL;
    if (log) *log = 0;
    output->module = module;
    return output->module || fail(error, ERROR_MEMORY, "no memory for the names");
}

/* --- What happens to the elements ------------------------------------------------------------------------------ */

static bool heads_plan(GgufOutput *output, const GgufFile *file, GgufChange change, Error *error) {
    const GgufTensor *tensor = output->source;
    int64_t heads = 0, rows = tensor->rank == 1 ? tensor->cols : tensor->rows;
    bool found = change == GGUF_KV_HEADS_PAIRED && gguf_layers_integer(file, ".attention.head_count_kv", &heads);
    if (!found && !gguf_integer(file, ".attention.head_count", &heads)) {
        return fail(error, ERROR_FORMAT, "%.*s.attention.head_count is missing", SLICE_SHOWN(file->architecture));
    }
    if (heads <= 0 || rows % heads || rows / heads % 2) {
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not %lld heads of an even size",
            SLICE_SHOWN(tensor->name), (long long)rows, (long long)heads);
    }
    output->interleaved = rows / heads;
    return true;
}

/* True when every scale and bias of the tensor is a half exactly. */
static bool scales_fit_half(const GgufTensor *tensor) {
    uint8_t codes[GGUF_SUPERBLOCK];
    float scales[2][GGUF_SUPERBLOCK / GGUF_GROUP];
    size_t blocks = tensor->bytes / (size_t)tensor->info->bytes;
    int groups = tensor->info->elements / tensor->info->group;
    for (size_t i = 0; i < blocks; i++) {
        gguf_blocks_convert(tensor->type, tensor->data + i * (size_t)tensor->info->bytes, tensor->info->elements, codes,
            scales[0], scales[1]);
        for (int k = 0; k < 2 * groups; k++) {
            float value = scales[k / groups][k % groups];
            if (f16_to_f32(f32_to_f16(value)) != value) return false;
        }
    }
    return true;
}

/* Whether the compact form holds the tensor: IQ3_XXS and IQ1_M want a half or an eighth of their f16 scales. */
static bool compact_fits(const GgufTensor *tensor) {
    const uint8_t *end = tensor->data + tensor->bytes, *block = tensor->data;
    while (block < end && gguf_block_fits(tensor->type, block)) block += tensor->info->bytes;
    mapped_release(tensor->data, end);
    return block >= end;
}

static bool output_plan(GgufOutput *output, const GgufFile *file, GgufChange change, bool compact, Error *error) {
    const GgufTensor *tensor = output->source;
    bool paired = change == GGUF_HEADS_PAIRED || change == GGUF_KV_HEADS_PAIRED;
    if (paired && !heads_plan(output, file, change, error)) return false;
    output->minus_one = change == GGUF_PLUS_ONE && strcmp(output->part, "bias") != 0;
    output->flat = change == GGUF_FLAT && tensor->rank == 1;
    if (!tensor->info->bits) return true;
    if (tensor->rank != 2 || strcmp(output->part, "weight") != 0 || output->minus_one) {
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not a matrix, but of type %s", SLICE_SHOWN(tensor->name),
            tensor->info->name);
    }
    const bool own = compact || tensor->info->compact == QUANT_MXFP4; /* which MLX has as well */
    const Quant form = own && compact_fits(tensor) ? tensor->info->compact : QUANT_NONE;
    output->form = (Weight){.rows = tensor->rows, .cols = tensor->cols, .group = tensor->info->group};
    if (form != QUANT_NONE) {
        output->form.quant = form;
        output->form.bits = tensor->info->compact_bits;
        output->form.group = form == QUANT_K_SYMMETRIC ? 16 : GGUF_GROUP;
        output->form.dtype = form == QUANT_SYMMETRIC ? DTYPE_F16 : DTYPE_U8;
        return true;
    }
    output->form.quant = QUANT_AFFINE;
    output->form.bits = tensor->info->bits;
    output->form.dtype = scales_fit_half(tensor) ? DTYPE_F16 : DTYPE_F32;
    mapped_release(tensor->data, tensor->data + tensor->bytes);
    return true;
}

int64_t gguf_source_row(const GgufOutput *output, int64_t row) {
    int64_t size = output->interleaved;
    if (!size) return row;
    int64_t head = row / size, within = row % size, half = within / (size / 2), pair = within % (size / 2);
    return head * size + 2 * pair + half;
}

bool gguf_plan(GgufPlan *plan, GgufFile *file, bool compact, Error *error) {
    *plan = (GgufPlan){0};
    if (!gguf_model_find(file, &plan->model, &plan->model_type, error)) return false;
    if (!keys_check(file, plan->model, error)) return false;
    if (!gguf_tensor(file, "token_embd.weight"))
        return fail(error, ERROR_NOT_FOUND, "there is no tensor token_embd.weight");
    if (plan->model->own_head && !gguf_tensor(file, "output.weight"))
        return fail(error, ERROR_NOT_FOUND,
            "there is no tensor output.weight; the embedding is scaled, so it cannot be the output matrix of a %s "
            "model",
            plan->model->architecture);
    plan->outputs = arena_alloc(&file->arena, file->tensor_count, sizeof *plan->outputs);
    if (!plan->outputs) return fail(error, ERROR_MEMORY, "no memory for %zu tensors", file->tensor_count);
    for (size_t i = 0; i < file->tensor_count; i++) {
        GgufOutput *output = &plan->outputs[plan->count];
        GgufChange change = GGUF_UNCHANGED;
        bool dropped = false;
        output->source = &file->tensors[i];
        if (!name_convert(output, file, plan->model, &change, &dropped, error)) return false;
        if (dropped) continue;
        if (!output_plan(output, file, change, compact, error)) return false;
        plan->count++;
    }
    return true;
}
