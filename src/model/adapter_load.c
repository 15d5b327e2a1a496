/* Reads LoRA adapters. Formats: PEFT (peft/tuners/lora/config.py, peft/utils/save_and_load.py), MLX
 * (mlx_lm/tuner/utils.py: load_adapters). A module of an adapter updates the matrix that the checkpoint has under the
 * same name from "layers." on. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "model/adapter_load.h"
#include "model/component.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* One adapter being read. */
typedef struct AdapterFile {
    Model *model;
    int number; /* number of the adapter, from 0 on */
    const AdapterSource *source;
    bool mlx; /* otherwise PEFT */
    Checkpoint tensors;
    Buffer text;
    Arena arena;        /* memory of the JSON nodes */
    const Json *config; /* root of adapter_config.json */
    Adapter *adapter;
    Error *error;
} AdapterFile;

/* The tensors of one module. */
typedef struct Module {
    Slice name;           /* from "layers." on, without suffix */
    const TensorEntry *a; /* PEFT: [rank, cols]; MLX: [cols, rank] */
    const TensorEntry *b; /* PEFT: [rows, rank]; MLX: [rank, rows] */
} Module;

static bool refuse(AdapterFile *f, ErrorCode code, const char *what) {
    return fail(f->error, code, "adapter %s: %s", f->source->name, what);
}

/* ---- adapter_config.json ---- */

/* Fields of PEFT that change what an adapter computes, with the only values that are supported. */
static const struct {
    const char *field;
    JsonType type;
    bool boolean;
    const char *string;
} peft_fields[] = {
    {"peft_type", JSON_STRING, false, "LORA"},
    {"use_dora", JSON_BOOL, false, NULL},
    {"fan_in_fan_out", JSON_BOOL, false, NULL},
    {"bias", JSON_STRING, false, "none"},
    {"lora_bias", JSON_BOOL, false, NULL},
    {"use_qalora", JSON_BOOL, false, NULL},
};

static bool check_peft(AdapterFile *f) {
    for (size_t i = 0; i < COUNT_OF(peft_fields); i++) {
        const Json *value = json_get(f->config, peft_fields[i].field);
        if (!value || value->type == JSON_NULL) continue;
        const bool same = value->type == peft_fields[i].type &&
            (value->type == JSON_BOOL ? value->boolean == peft_fields[i].boolean
                                      : slice_is(json_slice(value), peft_fields[i].string));
        if (!same)
            return fail(f->error, ERROR_UNSUPPORTED, "adapter %s: adapter_config.json: this %s is not supported",
                f->source->name, peft_fields[i].field);
    }
    const Json *saved = json_get(f->config, "modules_to_save");
    if (saved && saved->type == JSON_ARRAY && saved->size > 0)
        return refuse(f, ERROR_UNSUPPORTED, "adapter_config.json: modules_to_save is not supported");
    return true;
}

static bool read_config(AdapterFile *f) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/adapter_config.json", f->source->directory) >= sizeof path)
        return refuse(f, ERROR_USAGE, "its path is too long");
    if (!file_read(path, CONFIG_BYTES_MAX, &f->text, f->error))
        return fail_while(f->error, "adapter %s", f->source->name);
    f->config = json_parse(&f->arena, buffer_view(&f->text), f->error);
    if (!f->config) return fail_while(f->error, "adapter %s: adapter_config.json", f->source->name);
    if (f->config->type != JSON_OBJECT) return refuse(f, ERROR_FORMAT, "adapter_config.json must be an object");
    const Json *type = json_get(f->config, "fine_tune_type");
    if (!f->mlx) return check_peft(f);
    if (type && (type->type != JSON_STRING || !slice_is(json_slice(type), "lora")))
        return refuse(f, ERROR_UNSUPPORTED, "adapter_config.json: this fine_tune_type is not supported");
    return true;
}

/* The value for a module: that of the longest pattern with which its name ends (PEFT's patterns are regular
 * expressions; those that are plain names are read). *number keeps its value without one. */
static bool read_pattern(AdapterFile *f, const char *field, Slice module, double *number) {
    const Json *patterns = json_get(f->config, field);
    size_t longest = 0;
    if (!patterns || patterns->type != JSON_OBJECT) return true;
    for (JSON_EACH_PAIR(key, value, patterns)) {
        const Slice name = json_slice(key);
        for (size_t i = 0; i < name.size; i++)
            if (!isalnum((unsigned char)name.data[i]) && !strchr("._-", name.data[i]))
                return fail(f->error, ERROR_UNSUPPORTED,
                    "adapter %s: adapter_config.json: the pattern \"%.*s\" of %s is not supported", f->source->name,
                    SLICE_SHOWN(name), field);
        if (name.size <= longest || name.size > module.size || !json_is_number(value)) continue;
        const size_t at = module.size - name.size;
        if (memcmp(module.data + at, name.data, name.size) || (at > 0 && module.data[at - 1] != '.')) continue;
        longest = name.size;
        *number = json_number(value);
    }
    return true;
}

static bool read_scale(AdapterFile *f, const Module *module, int64_t rank, float *scale) {
    if (f->mlx) {
        const Json *value = json_get(json_get(f->config, "lora_parameters"), "scale");
        if (!json_is_number(value))
            return refuse(f, ERROR_FORMAT, "adapter_config.json has no number lora_parameters.scale");
        *scale = (float)json_number(value);
        return true;
    }
    const Json *value = json_get(f->config, "lora_alpha"), *root = json_get(f->config, "use_rslora");
    if (!json_is_number(value)) return refuse(f, ERROR_FORMAT, "adapter_config.json has no number lora_alpha");
    double alpha = json_number(value);
    if (!read_pattern(f, "alpha_pattern", module->name, &alpha)) return false;
    const bool stabilised = root && root->type == JSON_BOOL && root->boolean;
    *scale = (float)(alpha / (stabilised ? sqrt((double)rank) : (double)rank));
    return true;
}

/* ---- the matrix of a module ---- */

static bool ends_with(Slice text, Slice end) {
    return text.size >= end.size && !memcmp(text.data + text.size - end.size, end.data, end.size);
}

/* "layers.12.self_attn.q_proj" of a longer name; empty: the name has no layer. */
static Slice from_layers(Slice name) {
    static const char word[] = "layers.";
    for (size_t at = 0; at + sizeof word <= name.size; at++)
        if ((at == 0 || name.data[at - 1] == '.') && !memcmp(name.data + at, word, sizeof word - 1) &&
            isdigit((unsigned char)name.data[at + sizeof word - 1]))
            return (Slice){name.data + at, name.size - at};
    return (Slice){0};
}

/* Places where the module's matrix may lie: in the mapped file, or as it was read into memory. */
typedef struct Target {
    AdapterFile *file;
    const Module *module;
    const void *places[2];
    size_t bytes; /* bytes of the whole matrix in the file */
    int64_t rows;
    const ComponentOps *kind;
    Weight *found; /* a first weight of the Spec in it */
    bool failed;
} Target;

static void copy_matrix(
    void *to, const TensorEntry *entry, bool transpose, int64_t first, int64_t count, int64_t cols) {
    const size_t bytes = dtype_bytes(entry->tensor.dtype);
    const uint8_t *from = entry->tensor.data;
    const int64_t stride = entry->tensor.shape[1];
    for (int64_t r = 0; r < count; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy((uint8_t *)to + (size_t)(r * cols + c) * bytes,
                from + (size_t)(transpose ? c * stride + first + r : (first + r) * stride + c) * bytes, bytes);
}

/* Rows first … first + rows − 1 of a matrix of the adapter. */
static bool take_matrix(
    AdapterFile *f, const TensorEntry *entry, int64_t first, int64_t rows, int64_t cols, Weight *out) {
    *out = (Weight){.rows = rows, .cols = cols, .dtype = entry->tensor.dtype};
    void *memory = arena_alloc(&f->model->arena, (size_t)(rows * cols), dtype_bytes(entry->tensor.dtype));
    if (!memory) return refuse(f, ERROR_MEMORY, "no memory for it");
    copy_matrix(memory, entry, f->mlx, first, rows, cols);
    out->data = memory;
    f->adapter->checksum =
        checksum64_seeded(f->adapter->checksum, memory, (size_t)(rows * cols) * dtype_bytes(entry->tensor.dtype));
    return true;
}

static bool add_update(Target *target, Weight *weight, int64_t first) {
    AdapterFile *f = target->file;
    const Module *module = target->module;
    const int64_t rank = module->a->tensor.shape[f->mlx ? 1 : 0];
    if (!weight->updates) weight->updates = arena_alloc(&f->model->arena, ADAPTERS_MAX, sizeof *weight->updates);
    if (!weight->updates) return refuse(f, ERROR_MEMORY, "no memory for it");
    LowRank *update = &weight->updates[f->number];
    if (!read_scale(f, module, rank, &update->scale)) return false;
    if (!take_matrix(f, module->a, 0, rank, weight->cols, &update->a)) return false;
    if (!take_matrix(f, module->b, first, weight->rows, rank, &update->b)) return false;
    f->adapter->checksum = checksum64_seeded(f->adapter->checksum, &update->scale, sizeof update->scale);
    f->adapter->checksum = checksum64_seeded(f->adapter->checksum, module->name.data, module->name.size);
    f->adapter->rank = rank > f->adapter->rank ? (int)rank : f->adapter->rank;
    return true;
}

static bool check_shape(Target *target, const TensorEntry *entry, int64_t rows, int64_t cols) {
    AdapterFile *f = target->file;
    const Tensor *t = &entry->tensor;
    const int64_t first = f->mlx ? cols : rows, second = f->mlx ? rows : cols;
    if (t->shape[0] == first && t->shape[1] == second) return true;
    return fail(f->error, ERROR_FORMAT,
        "adapter %s: tensor %.*s has shape [%lld, %lld], must be [%lld, %lld] for this model", f->source->name,
        SLICE_SHOWN(entry->name), (long long)t->shape[0], (long long)t->shape[1], (long long)first, (long long)second);
}

static void visit(void *context, Weight *weight) {
    Target *target = context;
    if (target->failed || !weight->data) return;
    for (int i = 0; i < 2; i++) {
        const uint8_t *place = target->places[i], *data = weight->data;
        const size_t stride = weight_row_bytes(weight);
        if (!place || data < place || data >= place + target->bytes) continue;
        const int64_t first = (int64_t)((size_t)(data - place) / stride),
                      rank = target->module->a->tensor.shape[target->file->mlx ? 1 : 0];
        target->found = weight;
        target->failed = !check_shape(target, target->module->a, rank, weight->cols) ||
            !check_shape(target, target->module->b, target->rows, rank) || !add_update(target, weight, first);
        return;
    }
}

static void visit_bank_not(void *context, Weight **weights, int count, Split split) {}

/* Kinds whose products are component_matmul()'s and component_matmul_add()'s. */
static bool takes_updates(ComponentKind kind) {
    static const uint32_t kinds = 1U << COMPONENT_ATTENTION | 1U << COMPONENT_MLA | 1U << COMPONENT_GLU |
        1U << COMPONENT_MLP | 1U << COMPONENT_RECURRENT | 1U << COMPONENT_SHORT_CONV | 1U << COMPONENT_MAMBA;
    return kinds >> kind & 1;
}

static bool apply_module(AdapterFile *f, const Module *module) {
    Model *model = f->model;
    const long number = strtol(module->name.data + strlen("layers."), NULL, 10);
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%.*s.weight", (int)module->name.size, module->name.data);
    Target target = {.file = f, .module = module};
    const Visitor visitor = {.weight = visit, .bank = visit_bank_not, .context = &target};
    if (!module->a || !module->b)
        return fail(f->error, ERROR_FORMAT, "adapter %s: %.*s has only one of its two matrices", f->source->name,
            SLICE_SHOWN(module->name));
    for (size_t i = 0; i < model->checkpoint.entry_count && !target.found && number < model->spec.layer_count; i++) {
        const TensorEntry *entry = &model->checkpoint.entries[i];
        if (!ends_with(entry->name, slice_of(wanted)) || entry->tensor.rank != 2) continue;
        target.places[0] = entry->tensor.data;
        target.places[1] = model->weights ? weights_place(model->weights, entry) : NULL;
        target.bytes = entry->tensor.bytes;
        target.rows = entry->tensor.shape[0];
        Layer *layer = &model->spec.layers[number];
        for (int c = 0; c < layer->component_count && !target.failed; c++)
            if (takes_updates(layer->components[c].kind)) component_visit(&layer->components[c], &visitor);
    }
    if (target.failed) return false;
    if (target.found) {
        f->adapter->matrices++;
        return true;
    }
    return fail(f->error, ERROR_UNSUPPORTED,
        "adapter %s: %.*s is no matrix of this model's attention or feed-forward networks", f->source->name,
        SLICE_SHOWN(module->name));
}

/* ---- the file ---- */

/* Divides a tensor's name. False: it is none of an adapter's. */
static bool parse_name(const AdapterFile *f, const TensorEntry *entry, Slice *module, bool *is_a) {
    static const char *const suffixes[2][2] = {{".lora_A.weight", ".lora_B.weight"}, {".lora_a", ".lora_b"}};
    const Slice name = from_layers(entry->name);
    for (int i = 0; i < 2; i++) {
        const Slice suffix = slice_of(suffixes[f->mlx][i]);
        if (!ends_with(name, suffix) || name.size == suffix.size) continue;
        *module = (Slice){name.data, name.size - suffix.size};
        *is_a = i == 0;
        return entry->tensor.rank == 2 && dtype_is_float(entry->tensor.dtype) && module->size < 400;
    }
    return false;
}

/* The module of that name; a new one behind the others. */
static Module *module_of(Module *modules, size_t *count, Slice name) {
    for (size_t i = *count; i-- > 0;)
        if (modules[i].name.size == name.size && !memcmp(modules[i].name.data, name.data, name.size))
            return &modules[i];
    modules[*count] = (Module){.name = name};
    return &modules[(*count)++];
}

static bool check_rank(AdapterFile *f, const Module *module) {
    const int64_t rank = module->a ? module->a->tensor.shape[f->mlx ? 1 : 0] : 1;
    if (rank >= 1 && rank <= ADAPTER_RANK_MAX) return true;
    return fail(f->error, ERROR_LIMIT, "adapter %s: %.*s has rank %lld, must be 1 to %d", f->source->name,
        SLICE_SHOWN(module->name), (long long)rank, ADAPTER_RANK_MAX);
}

static bool apply(AdapterFile *f) {
    Module *modules = arena_alloc(&f->arena, f->tensors.entry_count, sizeof *modules);
    size_t count = 0;
    if (!modules) return refuse(f, ERROR_MEMORY, "no memory for it");
    for (size_t i = 0; i < f->tensors.entry_count; i++) {
        const TensorEntry *entry = &f->tensors.entries[i];
        Slice name;
        bool is_a;
        if (!parse_name(f, entry, &name, &is_a))
            return fail(f->error, ERROR_UNSUPPORTED,
                "adapter %s: tensor %.*s is not supported: want matrices %s of layers", f->source->name,
                SLICE_SHOWN(entry->name), f->mlx ? "lora_a and lora_b" : "lora_A and lora_B");
        Module *module = module_of(modules, &count, name);
        *(is_a ? &module->a : &module->b) = entry;
    }
    for (size_t i = 0; i < count; i++)
        if (!check_rank(f, &modules[i]) || !apply_module(f, &modules[i])) return false;
    f->adapter->checksum |= f->adapter->checksum == 0;
    return count > 0 || refuse(f, ERROR_FORMAT, "it has no tensors");
}

static bool open_tensors(AdapterFile *f) {
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors"};
    char path[4096];
    for (int i = 0; i < 2; i++) {
        if ((size_t)snprintf(path, sizeof path, "%s/%s", f->source->directory, names[i]) >= sizeof path) break;
        if (!file_exists(path)) continue;
        f->mlx = i == 1;
        return checkpoint_open_file(&f->tensors, f->source->directory, names[i], f->error) ||
            fail_while(f->error, "adapter %s", f->source->name);
    }
    return fail(f->error, ERROR_NOT_FOUND,
        "adapter %s: %s has neither adapter_model.safetensors nor adapters.safetensors", f->source->name,
        f->source->directory);
}

bool adapters_load(Model *model, const AdapterSource *sources, int count, Error *error) {
    if (count == 0) return true;
    if (count > ADAPTERS_MAX) return fail(error, ERROR_LIMIT, "%d adapters, at most %d can be", count, ADAPTERS_MAX);
    Adapter *adapters = arena_alloc(&model->arena, (size_t)count, sizeof *adapters);
    bool ok = adapters || fail(error, ERROR_MEMORY, "no memory for adapters");
    for (int i = 0; ok && i < count; i++) {
        AdapterFile f = {.model = model, .number = i, .source = &sources[i], .adapter = &adapters[i], .error = error};
        adapters[i].name = arena_copy(&model->arena, slice_of(sources[i].name));
        ok = adapters[i].name || fail(error, ERROR_MEMORY, "no memory for adapters");
        for (int j = 0; ok && j < i; j++)
            if (!strcmp(sources[i].name, sources[j].name))
                ok = fail(error, ERROR_USAGE, "two adapters are called %s", sources[i].name);
        ok = ok && open_tensors(&f) && read_config(&f) && apply(&f);
        buffer_free(&f.text);
        arena_free(&f.arena);
        checkpoint_close(&f.tensors);
    }
    model->spec.adapters = adapters;
    model->spec.adapter_count = ok ? count : 0;
    return ok;
}
