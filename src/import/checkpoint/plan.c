/* The plan: names, shapes, types, quantised forms, and the order of tensors in the files. */
#include <ctype.h>
#include <stdlib.h>

#include "import/checkpoint/internal.h"
#include "model/loader/loader.h"

/* --- Types of numbers ------------------------------------------------------------------------------------------- */

static bool dtype_named(const Json *value, DType *dtype) {
    static const struct {
        const char *name;
        DType dtype;
    } names[] = {{"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}, {"float32", DTYPE_F32}};
    for (size_t i = 0; value && value->type == JSON_STRING && i < COUNT_OF(names); i++) {
        if (!slice_is(json_slice(value), names[i].name)) continue;
        *dtype = names[i].dtype;
        return true;
    }
    return false;
}

static void choose_dtype(Plan *plan) {
    const Json *own = json_get(plan->config, "torch_dtype");
    if (!own || own->type == JSON_NULL) own = json_get(json_get(plan->config, "text_config"), "dtype");
    plan->dtype = plan->options->dtype;
    plan->has_dtype = plan->options->typed || dtype_named(own, &plan->dtype);
}

static DType dtype_of(const Plan *plan, const char *name, DType own) {
    const bool changes = plan->has_dtype && dtype_is_float(own) && !rule_keeps_dtype(plan->model_type, name);
    return changes ? plan->dtype : own;
}

/* --- Names ------------------------------------------------------------------------------------------------------ */

/* In files with more parts than text MLX has the text model under language_model; mlx-lm's gemma3n keeps the names. */
static const char *text_name(const Plan *plan, const char *name) {
    static const char nested[] = "model.language_model.", here[] = "language_model.";
    const bool parts = json_get(plan->config, "text_config") || json_get(plan->config, "vision_config");
    if (!strcmp(plan->model_type, "gemma3n")) return name;
    if (!parts || load_is_media(slice_of(name)) || !strncmp(name, here, strlen(here))) return name;
    if (!strncmp(name, nested, strlen(nested)))
        return arena_printf(plan->arena, "language_model.model.%s", name + strlen(nested));
    return arena_printf(plan->arena, "%s%s", here, name);
}

/* The number after "layers."; −1: none. */
static int layer_of(const char *name) {
    const char *at = strstr(name, "layers.");
    return at && isdigit((unsigned char)at[strlen("layers.")]) ? (int)strtol(at + strlen("layers."), NULL, 10) : -1;
}

/* --- One output ------------------------------------------------------------------------------------------------- */

static bool is_plain(const Weight *w) { return w->quant == QUANT_NONE; }

/* Data type of a dequantised matrix without a requested type. */
static DType own_dtype(const Weight *w) {
    if (is_plain(w) || w->quant == QUANT_AFFINE || w->quant == QUANT_SYMMETRIC) return w->dtype;
    return w->quant == QUANT_K || w->quant == QUANT_K_SYMMETRIC ? DTYPE_F16 : DTYPE_BF16;
}

static bool plan_codes(Plan *plan, Output *o, QuantForm form) {
    const DType dtype = dtype_of(plan, o->name, o->form.dtype);
    o->quant = form;
    o->form.quant = form.quant;
    o->form.bits = form.bits;
    o->form.group = form.group;
    o->form.dtype = form.quant == QUANT_AFFINE ? dtype : DTYPE_U8;
    plan->quantised = plan->coded = true;
    return true;
}

static bool plan_plain(Plan *plan, Output *o) {
    const QuantForm *usual = &plan->options->form;
    const RuleAnswer answer = rule_of_module(plan->model_type, o->name);
    QuantForm form = *usual;
    const int layer = layer_of(o->name);
    if (plan->options->recipe)
        form = rule_of_recipe(plan->options->recipe, usual->group, o->name, layer > 0 ? layer : 0, plan->layer_count);
    else if (answer == RULE_8_BITS)
        form = (QuantForm){QUANT_AFFINE, 8, 64};
    const bool due =
        plan->options->quantize && !load_is_media(slice_of(o->name)) && (answer != RULE_PLAIN || plan->options->recipe);
    if (!due || o->cols % usual->group != 0 || o->cols % form.group != 0) {
        o->form.dtype = dtype_of(plan, o->name, o->form.dtype);
        return true;
    }
    const bool partly = json_get(plan->config, "quantization") != NULL;
    o->named = plan->options->recipe || answer == RULE_8_BITS || partly;
    o->named_mode = plan->options->recipe || (partly && answer != RULE_8_BITS);
    return plan_codes(plan, o, form);
}

static bool plan_quantised(Plan *plan, Output *o) {
    const Weight *w = &o->item->weights[0];
    if (plan->options->dequantize) {
        o->form.quant = QUANT_NONE;
        o->form.dtype = plan->has_dtype ? plan->dtype : own_dtype(w);
        return true;
    }
    if (w->quant >= QUANT_SYMMETRIC)
        return fail(plan->error, ERROR_UNSUPPORTED,
            "%s is in a form that only apus reads (%s): convert the GGUF file without --compact, or use --dequantize",
            o->name, quant_name(w->quant));
    const bool exact = o->item->packed && !plan->options->typed; /* biases may fit f32 only */
    if (w->quant == QUANT_AFFINE && !exact) o->form.dtype = dtype_of(plan, o->name, w->dtype);
    if (!plan->quantised && !plan->options->quantize) plan->usual = (QuantForm){w->quant, w->bits, w->group};
    plan->quantised = true;
    o->named = w->quant != plan->usual.quant || w->bits != plan->usual.bits || w->group != plan->usual.group;
    o->named_mode = true;
    return true;
}

static bool parts_agree(const Plan *plan, const Recorded *item) {
    const Weight *a = &item->weights[0];
    for (int i = 1; i < item->count; i++) {
        const Weight *b = &item->weights[i];
        if (a->quant == b->quant && a->bits == b->bits && a->group == b->group && a->dtype == b->dtype) continue;
        return fail(
            plan->error, ERROR_UNSUPPORTED, "%s: its %d matrices are not stored alike", item->name, item->count);
    }
    return true;
}

size_t output_row_bytes(const Output *o) {
    Weight row = o->item->weights[0];
    row.cols = o->cols;
    return weight_row_bytes(&row);
}

/* half: 0, or 1 of the rows' first half, or 2 of the second. */
static bool plan_matrix(Plan *plan, const Recorded *item, const char *name, int half) {
    const Weight *w = &item->weights[0];
    Output *o = &plan->outputs[plan->count++];
    const int64_t stack = item->stack ? item->stack : 1, rows = item->count == 1 ? w->rows / stack : w->rows;
    *o = (Output){.item = item, .name = name, .stack = item->stack, .stride = rows, .form = *w};
    const int64_t written = item->transposed ? w->cols : rows; /* rows of one matrix */
    o->rows = stack * (half ? written / 2 : written);
    o->cols = item->transposed ? w->rows : w->cols;
    o->step = item->alternating ? 2 : 1;
    o->first = half < 2 ? 0 : item->alternating ? 1 : written / 2;
    o->form.data = o->form.scales = o->form.biases = NULL;
    o->form.bias = NULL;
    const bool planned = is_plain(w) ? plan_plain(plan, o) : plan_quantised(plan, o);
    o->form.rows = o->rows;
    o->form.cols = o->cols;
    plan->total_bytes += (uint64_t)o->rows * output_row_bytes(o);
    return planned &&
        (!item->transposed || is_plain(w) || is_plain(&o->form) ||
            fail(plan->error, ERROR_UNSUPPORTED, "%s is quantised, but has to be transposed: use --dequantize", name));
}

static bool plan_item(Plan *plan, const Recorded *item) {
    const char *name = text_name(plan, item->name), *second = NULL;
    if (name && item->matrix) name = rule_rename(plan, name, item, &second);
    if (!name) return fail(plan->error, ERROR_MEMORY, "no memory for the names");
    if (!item->matrix) {
        Output *o = &plan->outputs[plan->count++];
        *o = (Output){.item = item, .name = name, .stack = item->stack};
        o->dtype = dtype_of(plan, name, item->entries[0]->tensor.dtype);
        for (int i = 0; i < item->count; i++) plan->total_bytes += item->entries[i]->tensor.bytes;
        return true;
    }
    if (!parts_agree(plan, item)) return false;
    if (!second) return plan_matrix(plan, item, name, 0);
    return plan_matrix(plan, item, name, 1) && plan_matrix(plan, item, second, 2);
}

/* --- Order ------------------------------------------------------------------------------------------------------ */

/* Embedding, layers, what follows them; in a layer attention before the feed-forward part before norms, and of that
 * part gate, down, up, as the attributes of mlx-lm's classes are. */
static int order_of(const char *name) {
    const char *layers = strstr(name, "layers.");
    if (!layers) return strstr(name, "norm") || strstr(name, "lm_head") ? 9 : 0;
    const char *module = strchr(layers + strlen("layers."), '.');
    if (!module) return 0;
    const char *inner = strchr(module + 1, '.');
    if (strstr(module, "layernorm") && (!inner || !strchr(inner + 1, '.'))) return 8;
    if (!strncmp(module, ".mlp.down_proj", 14)) return 4;
    return !strncmp(module, ".mlp.up_proj", 12) ? 5 : !strncmp(module, ".mlp.", 5) ? 3 : 2;
}

typedef struct Place {
    int layer, order, index;
} Place;

static int compare_places(const void *a, const void *b) {
    const Place *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool put_in_order(Plan *plan) {
    Place *places = arena_alloc(plan->arena, (size_t)plan->count, sizeof *places);
    Output *sorted = arena_alloc(plan->arena, (size_t)plan->count, sizeof *sorted);
    if (!places || !sorted) return fail(plan->error, ERROR_MEMORY, "no memory for the list of tensors");
    for (int i = 0; i < plan->count; i++) {
        const int order = order_of(plan->outputs[i].name), layer = layer_of(plan->outputs[i].name);
        places[i] = (Place){layer < 0 && order == 9 ? INT32_MAX : layer, order, i};
    }
    qsort(places, (size_t)plan->count, sizeof *places, compare_places);
    for (int i = 0; i < plan->count; i++) sorted[i] = plan->outputs[places[i].index];
    plan->outputs = sorted;
    return true;
}

/* A matrix and the parts into which it can be divided: one or the other is written. */
static bool is_written(const Plan *plan, const Recorded *item) {
    const bool divided = rule_divides(plan->model_type);
    return !item->moved && !(item->whole && divided) && !(item->part && !divided);
}

/* mlx-lm multiplies matrices of this family by factors of the config; unscaled files count as the publisher's while
 * their convolutions are in PyTorch's layout. */
static bool is_scaled(const Plan *plan) {
    for (int i = 0; i < plan->count && !strcmp(plan->model_type, "falcon_h1"); i++) {
        const Output *o = &plan->outputs[i];
        const Tensor *t = o->item->matrix ? NULL : &o->item->entries[0]->tensor;
        if (t && t->rank == 3 && t->shape[1] == 1 && t->shape[2] > 1) return true;
    }
    return false;
}

/* What was asked for would not happen at all. */
static bool refuse_idle(const Plan *plan) {
    if (plan->quantised)
        return fail(
            plan->error, ERROR_UNSUPPORTED, "its matrices are quantised already: write it with --dequantize first");
    return fail(plan->error, ERROR_UNSUPPORTED,
        "nothing can be quantised: no matrix has rows of a multiple of %d numbers, the size of a group",
        plan->options->form.group);
}

bool plan_make(Plan *plan) {
    const LoadRecord *record = plan->record;
    plan->usual = plan->options->form;
    plan->outputs = arena_alloc(plan->arena, 2 * (size_t)record->count, sizeof *plan->outputs);
    if (!plan->outputs) return fail(plan->error, ERROR_MEMORY, "no memory for the list of tensors");
    choose_dtype(plan);
    for (int i = 0; i < record->count; i++)
        plan->has_mixture = plan->has_mixture || strstr(record->items[i].name, ".block_sparse_moe.");
    for (int i = 0; i < record->count; i++)
        if (is_written(plan, &record->items[i]) && !plan_item(plan, &record->items[i])) return false;
    if (is_scaled(plan))
        return fail(plan->error, ERROR_UNSUPPORTED,
            "falcon_h1: its matrices have to be multiplied by the factors of "
            "config.json, which is not supported: convert it with mlx_lm.convert");
    const char *reason = rule_refuses(plan->model_type);
    if (reason)
        return fail(plan->error, ERROR_UNSUPPORTED, "%s: %s: convert it with mlx_lm.convert", plan->model_type, reason);
    if (plan->options->quantize && !plan->coded) return refuse_idle(plan);
    return put_in_order(plan);
}
