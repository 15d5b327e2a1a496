/* config.json as mlx-lm saves it: sorted, indented, with the quantisation twice. */
#include <stdio.h>
#include <stdlib.h>

#include "import/checkpoint/internal.h"
#include "model/loader/loader.h"

enum { INDENT = 4, PATH_MAX_BYTES = 4096 };

static void new_line(Buffer *out, int depth) { buffer_printf(out, "\n%*s", depth * INDENT, ""); }

static void write_pretty(Buffer *out, const Json *node, int depth) {
    const bool object = node->type == JSON_OBJECT;
    if ((!object && node->type != JSON_ARRAY) || node->size == 0) {
        json_write(out, node);
        return;
    }
    buffer_byte(out, object ? '{' : '[');
    const Json *child = json_first(node);
    for (uint32_t i = 0; i < node->size; i++) {
        if (i > 0) buffer_byte(out, ',');
        new_line(out, depth + 1);
        if (object) {
            json_write_string(out, json_slice(child));
            buffer_text(out, ": ");
            child++;
        }
        write_pretty(out, child, depth + 1);
        child = json_next(child);
    }
    new_line(out, depth);
    buffer_byte(out, object ? '}' : ']');
}

/* --- The quantisation ------------------------------------------------------------------------------------------- */

static void write_form(Buffer *out, const Weight *form, bool mode, int depth) {
    buffer_byte(out, '{');
    new_line(out, depth + 1);
    buffer_printf(out, "\"group_size\": %d,", form->group);
    new_line(out, depth + 1);
    buffer_printf(out, "\"bits\": %d", form->bits);
    if (mode) {
        buffer_byte(out, ',');
        new_line(out, depth + 1);
        buffer_printf(out, "\"mode\": \"%s\"", quant_name(form->quant));
    }
}

static void write_quantisation(Buffer *out, const Plan *plan) {
    const Json *before = json_get(plan->config, "quantization");
    if (before && before->type == JSON_OBJECT && before->size) {
        buffer_byte(out, '{');
        for (JSON_EACH_PAIR(key, value, before)) {
            if (key != json_first(before)) buffer_byte(out, ',');
            new_line(out, 2);
            json_write_string(out, json_slice(key));
            buffer_text(out, ": ");
            write_pretty(out, value, 2);
        }
    } else {
        const QuantForm *usual = &plan->usual;
        write_form(out, &(Weight){.quant = usual->quant, .bits = usual->bits, .group = usual->group}, true, 1);
    }
    for (int i = 0; i < plan->count; i++) {
        const Output *o = &plan->outputs[i];
        if (!o->item->matrix || !o->named || json_get(before, o->name)) continue;
        buffer_byte(out, ',');
        new_line(out, 2);
        json_write_string(out, slice_of(o->name));
        buffer_text(out, ": ");
        write_form(out, &o->form, o->named_mode, 2);
        new_line(out, 2);
        buffer_byte(out, '}');
    }
    new_line(out, 1);
    buffer_byte(out, '}');
}

/* --- The object ------------------------------------------------------------------------------------------------- */

typedef struct Pair {
    Slice key;
    const Json *value; /* NULL: the quantisation */
} Pair;

static int compare_pairs(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    const size_t size = x->key.size < y->key.size ? x->key.size : y->key.size;
    const int order = memcmp(x->key.data, y->key.data, size);
    return order ? order : (x->key.size > y->key.size) - (x->key.size < y->key.size);
}

/* Fields that mlx-lm does not save, or writes anew. vision_config stays with the tensors that it describes. */
static bool is_left_out(const Plan *plan, Slice key) {
    bool media = false;
    for (int i = 0; i < plan->count && !media; i++) media = load_is_media(slice_of(plan->outputs[i].name));
    return (slice_is(key, "vision_config") && !media) || slice_is(key, "_name_or_path") ||
        slice_is(key, "quantization") || slice_is(key, "quantization_config");
}

/* The ids of generation_config.json precede those of config.json, if it has any. */
static bool has_ids(const Json *ids) {
    if (!ids || ids->type == JSON_NULL) return false;
    return ids->type == JSON_INTEGER ? ids->integer != 0 : ids->type != JSON_ARRAY || ids->size > 0;
}

static void write_object(Buffer *out, const Plan *plan, const Json *generation, Pair *pairs) {
    const Json *ids = json_get(generation, "eos_token_id");
    const bool own = !has_ids(ids);
    size_t count = 0;
    for (JSON_EACH_PAIR(key, value, plan->config)) {
        const bool eos = slice_is(json_slice(key), "eos_token_id");
        if (!is_left_out(plan, json_slice(key)) && (own || !eos)) pairs[count++] = (Pair){json_slice(key), value};
    }
    if (!own) pairs[count++] = (Pair){SLICE("eos_token_id"), ids};
    if (plan->quantised) {
        pairs[count++] = (Pair){SLICE("quantization"), NULL};
        pairs[count++] = (Pair){SLICE("quantization_config"), NULL};
    }
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    buffer_byte(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buffer_byte(out, ',');
        new_line(out, 1);
        json_write_string(out, pairs[i].key);
        buffer_text(out, ": ");
        if (pairs[i].value)
            write_pretty(out, pairs[i].value, 1);
        else
            write_quantisation(out, plan);
    }
    buffer_text(out, "\n}");
}

bool config_write(const Plan *plan, const Json *generation, const char *directory, Error *error) {
    Pair *pairs = arena_alloc(plan->arena, (size_t)plan->config->size + 3, sizeof *pairs);
    Buffer out = {0};
    char path[PATH_MAX_BYTES + 64];
    if (!pairs) return fail(error, ERROR_MEMORY, "no memory for config.json");
    write_object(&out, plan, generation, pairs);
    snprintf(path, sizeof path, "%s/config.json", directory);
    const bool ok = !out.failed ? file_write_atomic(path, buffer_view(&out), error)
                                : fail(error, ERROR_MEMORY, "no memory for config.json");
    buffer_free(&out);
    return ok;
}
