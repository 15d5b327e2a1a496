/* The plan: the family of a file, the MLX names of its tensors, and the inverse of the changes that llama.cpp's
 * converter makes, all by the rows of the family (family/gguf.h). */
#include <stdio.h>
#include <string.h>

#include "import/gguf/internal.h"

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
    Slice text;
    if (model->with_text) return gguf_string(file, model->with_key, &text) && slice_is(text, model->with_text);
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

bool gguf_model_reads(const GgufModel *model, Slice key) {
    for (const GgufField *const *list = model->fields; *list; list++) {
        for (const GgufField *field = *list; field->name; field++) {
            if ((field->key && slice_is(key, field->key)) || (field->or_key && slice_is(key, field->or_key)))
                return true;
        }
    }
    return false;
}

static bool key_known(const GgufModel *model, Slice key) {
    for (size_t i = 0; i < COUNT_OF(known_keys); i++) {
        if (slice_is(key, known_keys[i])) return true;
    }
    if ((model->latent || model->queries_scaled) && slice_is(key, ".rope.scaling.yarn_log_multiplier")) return true;
    if (model->queries_scaled && slice_is(key, ".attention.temperature_scale")) return true;
    if (model->rope_of_kinds && (slice_is(key, ".rope.freq_base_swa") || slice_is(key, ".rope.dimension_count_swa")))
        return true;
    return gguf_model_reads(model, key) || (model->with_key && slice_is(key, model->with_key));
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
    if (gguf_integer(file, ".expert_count", &number) && number > 0 &&
        !gguf_model_reads(model, SLICE(".expert_count"))) {
        return fail(error, ERROR_UNSUPPORTED, "%s.expert_count is %lld: such a model has no experts here",
            model->architecture, (long long)number);
    }
    if (gguf_bool(file, ".attention.causal", &causal) && !causal && !model->encoder) {
        return fail(error, ERROR_UNSUPPORTED, "%s.attention.causal is false", model->architecture);
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

/* The number at the start of text: its digits, or 0 when it is none of 0 … GGUF_BLOCKS_MAX − 1 as one writes it. */
static size_t number_parse(Slice text, int *number) {
    size_t digits = 0;
    *number = 0;
    while (digits < text.size && text.data[digits] >= '0' && text.data[digits] <= '9' && *number < GGUF_BLOCKS_MAX) {
        *number = *number * 10 + (text.data[digits++] - '0');
    }
    return *number >= GGUF_BLOCKS_MAX || (digits > 1 && text.data[0] == '0') ? 0 : digits;
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
            if (name->change != GGUF_METADATA && gguf_name_match(stem, name->gguf, block)) return name;
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
static bool name_convert(GgufOutput *output, GgufFile *file, const GgufModel *model, const GgufName **row, int *block,
    bool *dropped, Error *error) {
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
    const GgufName *name = name_find(model, stem, block);
    const bool bare = name && (name->change == GGUF_NAMED || name->change == GGUF_RATE);
    if (!name || (!output->part[0] && !bare)) {
        return fail(error, ERROR_UNSUPPORTED, "tensor %.*s is not one that a %s model has",
            SLICE_SHOWN(output->source->name), model->architecture);
    }
    *row = name;
    *dropped = name->change == GGUF_UNUSED;
    if (*dropped) return true;
    if (bare) output->part = "";
    char *module = module_name(&file->arena, name->module, *block);
    char *log = module && name->change == GGUF_RATE ? strrchr(module, '_') : NULL;
    if (log) *log = 0;
    output->module = module;
    return output->module || fail(error, ERROR_MEMORY, "no memory for the names");
}

/* --- What happens to the elements ------------------------------------------------------------------------------ */

static int64_t rows_of(const GgufTensor *tensor) { return tensor->rank == 1 ? tensor->cols : tensor->rows; }

static bool heads_plan(GgufOutput *output, const GgufFile *file, GgufChange change, int block, Error *error) {
    const GgufTensor *tensor = output->source;
    int64_t heads = 0, rows = rows_of(tensor), blocks = 0;
    (void)gguf_integer(file, ".block_count", &blocks);
    const uint64_t at = (uint64_t)block, count = (uint64_t)blocks;
    bool found = change == GGUF_KV_HEADS_PAIRED && gguf_element(file, ".attention.head_count_kv", at, count, &heads);
    if (!found && !gguf_element(file, ".attention.head_count", at, count, &heads)) {
        return fail(error, ERROR_FORMAT, "%.*s.attention.head_count is missing", SLICE_SHOWN(file->architecture));
    }
    if (heads <= 0 || rows % heads || rows / heads % 2) {
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not %lld heads of an even size",
            SLICE_SHOWN(tensor->name), (long long)rows, (long long)heads);
    }
    output->interleaved = rows / heads;
    return true;
}

static bool apart_plan(GgufOutput *output, const GgufFile *file, Error *error) {
    int64_t heads = 0, kv = 0, rows = rows_of(output->source);
    const bool known = gguf_integer(file, ".attention.head_count", &heads) && heads > 0 && heads <= rows;
    if (known && !gguf_integer(file, ".attention.head_count_kv", &kv)) kv = heads;
    if (!known || kv <= 0 || heads % kv || rows % (heads + 2 * kv))
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not those of q, k and v of %lld heads",
            SLICE_SHOWN(output->source->name), (long long)rows, (long long)heads);
    output->apart = rows / (heads + 2 * kv);
    output->queries = heads / kv;
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

static bool output_plan(
    GgufOutput *output, const GgufFile *file, GgufChange change, int block, bool compact, Error *error) {
    const GgufTensor *tensor = output->source;
    bool paired = change == GGUF_HEADS_PAIRED || change == GGUF_KV_HEADS_PAIRED;
    if (paired && !heads_plan(output, file, change, block, error)) return false;
    if (change == GGUF_HEADS_APART && !apart_plan(output, file, error)) return false;
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
    if (output->half) {
        const int64_t matrix = row / output->half;
        return (2 * matrix + output->second) * output->half + row % output->half;
    }
    if (output->apart) {
        const int64_t each = output->apart, queries = output->queries, group = row / each / (queries + 2);
        const int64_t groups = rows_of(output->source) / each / (queries + 2), within = row / each % (queries + 2);
        const int64_t head =
            within < queries ? group * queries + within : (queries + within - queries) * groups + group;
        return head * each + row % each;
    }
    if (!size) return row;
    int64_t head = row / size, within = row % size, half = within / (size / 2), pair = within % (size / 2);
    return head * size + 2 * pair + half;
}

/* --- Tensors that are not one tensor of the file --------------------------------------------------------------- */

/* An output like another one, of a tensor of its own, with text in place of the '#' of its module's name; NULL: no
 * memory. */
static GgufTensor *source_add(GgufPlan *plan, GgufFile *file, GgufOutput like, const char *text) {
    const char *mark = strchr(like.module, '#');
    GgufTensor *source = arena_alloc(&file->arena, 1, sizeof *source);
    char *module = mark ? arena_printf(&file->arena, "%.*s%s%s", (int)(mark - like.module), like.module, text, mark + 1)
                        : arena_copy(&file->arena, slice_of(like.module));
    if (!source || !module) return NULL;
    *source = *like.source;
    like.source = source;
    like.module = module;
    plan->outputs[plan->count++] = like;
    return source;
}

/* Rows from `first` on as an output of their own. */
static bool rows_add(
    GgufPlan *plan, GgufFile *file, const GgufOutput *whole, const char *text, int64_t first, int64_t rows) {
    GgufTensor *source = source_add(plan, file, *whole, text);
    if (!source) return false;
    const int64_t all = rows_of(source);
    const size_t row_bytes = source->bytes / (size_t)all;
    source->stack = 0;
    *(source->rank == 1 ? &source->cols : &source->rows) = rows;
    source->bytes = row_bytes * (size_t)rows;
    source->data += row_bytes * (size_t)first;
    plan->outputs[plan->count - 1].form.rows = rows;
    return true;
}

/* Each matrix of a stack. */
static bool stack_divide(GgufPlan *plan, GgufFile *file, const GgufOutput *whole, Error *error) {
    const int64_t count = whole->source->stack ? whole->source->stack : 1, rows = whole->source->rows / count;
    char text[24];
    for (int64_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%lld", (long long)i);
        if (!rows_add(plan, file, whole, text, i * rows, rows)) return fail(error, ERROR_MEMORY, "no memory");
    }
    return true;
}

static bool qkv_divide(GgufPlan *plan, GgufFile *file, const GgufOutput *whole, Error *error) {
    const int64_t rows = rows_of(whole->source);
    int64_t heads = 0, hidden = 0, size = 0;
    (void)gguf_integer(file, ".attention.head_count", &heads);
    (void)gguf_integer(file, ".embedding_length", &hidden);
    if (!gguf_integer(file, ".attention.key_length", &size)) size = heads > 0 ? hidden / heads : 0;
    const int64_t q = heads > 0 && heads < INT32_MAX && size > 0 && size < INT32_MAX ? heads * size : 0;
    if (q <= 0 || q >= rows || (rows - q) % 2)
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not those of q, k and v",
            SLICE_SHOWN(whole->source->name), (long long)rows);
    const int64_t kv = (rows - q) / 2;
    return (rows_add(plan, file, whole, "q", 0, q) && rows_add(plan, file, whole, "k", q, kv) &&
               rows_add(plan, file, whole, "v", q + kv, kv)) ||
        fail(error, ERROR_MEMORY, "no memory");
}

static bool gate_up_divide(GgufPlan *plan, GgufFile *file, const GgufOutput *whole, Error *error) {
    const int64_t count = whole->source->stack ? whole->source->stack : 1, each = whole->source->rows / count;
    if (each % 2)
        return fail(error, ERROR_FORMAT, "tensor %.*s: %lld rows are not those of gate and up",
            SLICE_SHOWN(whole->source->name), (long long)each);
    for (int i = 0; i < 2; i++) {
        GgufTensor *source = source_add(plan, file, *whole, i ? "up" : "gate");
        if (!source) return fail(error, ERROR_MEMORY, "no memory");
        GgufOutput *output = &plan->outputs[plan->count - 1];
        source->rows /= 2;
        source->bytes /= 2;
        output->form.rows = source->rows;
        output->half = each / 2;
        output->second = i == 1;
    }
    return true;
}

/* A number of each layer, which metadata have, as a tensor. */
static bool metadata_plan(GgufPlan *plan, GgufFile *file, const GgufName *name, Error *error) {
    const GgufValue *value = gguf_value(file, name->gguf);
    const int64_t layers = gguf_layers(file);
    if (!value || !value->array || value->kind != GGUF_F32 || layers > GGUF_BLOCKS_MAX ||
        value->count < (uint64_t)layers)
        return fail(error, ERROR_FORMAT, "%s is missing, or not one number for each layer", name->gguf);
    for (int64_t i = 0; i < layers; i++) {
        const GgufTensor like = {.name = slice_of(name->gguf),
            .type = TYPE_F32,
            .info = gguf_type(TYPE_F32),
            .cols = 1,
            .rows = 1,
            .rank = 1,
            .data = value->data + (size_t)i * sizeof(float),
            .bytes = sizeof(float)};
        const GgufOutput output = {
            .source = &like, .part = "", .module = module_name(&file->arena, name->module, (int)i)};
        if (!output.module || !source_add(plan, file, output, ""))
            return fail(error, ERROR_MEMORY, "no memory for %s", name->gguf);
    }
    return true;
}

/* Puts what the output behind the last, which has been planned, becomes in its place. */
static bool divide(GgufPlan *plan, GgufFile *file, GgufChange change, Error *error) {
    const GgufOutput whole = plan->outputs[plan->count];
    switch (change) {
    case GGUF_STACKED: return stack_divide(plan, file, &whole, error);
    case GGUF_QKV: return qkv_divide(plan, file, &whole, error);
    case GGUF_GATE_UP: return gate_up_divide(plan, file, &whole, error);
    default: plan->count++; return true;
    }
}

/* How many outputs there can be. */
static size_t outputs_most(const GgufFile *file, const GgufModel *model) {
    size_t count = file->tensor_count;
    for (const GgufName *const *list = model->names; *list; list++) {
        for (const GgufName *name = *list; name->gguf; name++) {
            char full[96];
            snprintf(full, sizeof full, "%s.weight", name->gguf);
            const GgufTensor *stack = name->change == GGUF_STACKED ? gguf_tensor(file, full) : NULL;
            count += name->change == GGUF_METADATA ? GGUF_BLOCKS_MAX : stack ? (size_t)stack->stack : 0;
        }
    }
    enum { PARTS_MOST = 3 };
    return count * PARTS_MOST;
}

static bool metadata_tensors(GgufPlan *plan, GgufFile *file, Error *error) {
    for (const GgufName *const *list = plan->model->names; *list; list++)
        for (const GgufName *name = *list; name->gguf; name++)
            if (name->change == GGUF_METADATA && !metadata_plan(plan, file, name, error)) return false;
    return true;
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
    const size_t most = outputs_most(file, plan->model);
    plan->outputs = arena_alloc(&file->arena, most, sizeof *plan->outputs);
    if (!plan->outputs) return fail(error, ERROR_MEMORY, "no memory for %zu tensors", most);
    for (size_t i = 0; i < file->tensor_count; i++) {
        GgufOutput *output = &plan->outputs[plan->count];
        const GgufName *name = NULL;
        bool dropped = false;
        int block = 0;
        output->source = &file->tensors[i];
        if (!name_convert(output, file, plan->model, &name, &block, &dropped, error)) return false;
        if (dropped) continue;
        if (!output_plan(output, file, name->change, block, compact, error) || !divide(plan, file, name->change, error))
            return false;
    }
    return metadata_tensors(plan, file, error);
}
