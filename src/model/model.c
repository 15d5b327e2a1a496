/* Opening a model: config.json → family → Spec, a dry walk on the plan backend, the real backend. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/decoder.h"
#include "model/loader/load.h"
#include "model/model_internal.h"

enum { CONFIG_BYTES_MAX = 16 << 20, ARENA_BYTES_MAX = 1 << 30, ROWS_DEFAULT = 512 };

/* A JSON object from a file of the checkpoint. *out is NULL when the file is absent and may be. */
static bool read_json(Model *model, const char *directory, const char *name, bool required, Buffer *text,
    const Json **out, Error *error) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path) {
        return fail(error, ERROR_USAGE, "the path %s is too long", directory);
    }
    if (!required && !file_exists(path)) {
        return true;
    }
    if (!file_read(path, CONFIG_BYTES_MAX, text, error)) {
        return false;
    }
    *out = json_parse(&model->arena, buffer_view(text), error);
    if (!*out) {
        return fail_while(error, "%s", name);
    }
    return (*out)->type == JSON_OBJECT ||
        fail(error, ERROR_FORMAT, "%s is %s, must be an object", name, json_type_name(*out));
}

/* The family that model_type names. */
static FamilyLoad *find_family(const Model *model, FamilyFind *find, Error *error) {
    const Json *type = json_get(model->config, "model_type");
    if (!type || type->type != JSON_STRING) {
        fail(error, ERROR_FORMAT, "config.json: model_type is %s, must be a string", json_type_name(type));
        return NULL;
    }
    FamilyLoad *load = find(json_slice(type));
    if (!load) {
        fail(error, ERROR_UNSUPPORTED, "config.json: model_type \"%.*s\" is not supported",
            SLICE_SHOWN(json_slice(type)));
    }
    return load;
}

static bool load_spec(Model *model, const ModelOptions *options, FamilyLoad *load, Error *error) {
    const LoadSource source = {.arena = &model->arena,
        .config = model->config,
        .generation = model->generation_config,
        .checkpoint = &model->checkpoint,
        .weights = model->weights,
        .strict_config = options->strict_config,
        .warn = options->warn,
        .warn_context = options->warn_context};
    LoadTarget target = {.spec = &model->spec, .eos = model->eos, .eos_max = EOS_MAX};
    const bool ok = spec_load(&source, load, &target, error);
    model->eos_count = target.eos_count;
    model->weight_bytes = target.weight_bytes;
    return ok && spec_finish(&model->spec, error);
}

static bool open_weights(Model *model, const ModelOptions *options, Error *error) {
    const char *wanted = options->weights;
    if (!wanted) {
        return true;
    }
    const bool read = !strcmp(wanted, "ram");
    if (!read && strcmp(wanted, "mmap")) {
        return fail(error, ERROR_USAGE, "weights \"%s\": mmap or ram", wanted);
    }
    model->weights = weights_open(&model->checkpoint, read, error);
    return model->weights;
}

static bool load_weights(Model *model, const ModelOptions *options, Error *error) {
    return !model->weights || weights_load(model->weights, options->progress, options->progress_context, error);
}

bool spec_finish(Spec *spec, Error *error) {
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &spec->layers[i];
        const int64_t width = layer_width(layer);
        spec->work_width = width > spec->work_width ? width : spec->work_width;
        Attention *op = &layer->attention.op;
        int group = 0;
        while (group < spec->kv_group_count && spec->kv_window[group] != op->window) {
            group++;
        }
        if (group == KV_GROUPS_MAX) {
            return fail(error, ERROR_UNSUPPORTED, "config.json: more than %d kinds of attention window", KV_GROUPS_MAX);
        }
        if (group == spec->kv_group_count) {
            spec->kv_window[spec->kv_group_count++] = op->window;
        }
        op->kv.group = group;
    }
    return true;
}

static void set_cache_dtype(Spec *spec, DType dtype) {
    for (int i = 0; i < spec->layer_count; i++) {
        spec->layers[i].attention.op.kv.layout.dtype = dtype;
    }
}

/* The decoder over a backend that computes nothing, with the largest step there can be: every shape is checked, scratch
 * is counted. */
static bool plan_model(Model *model, int rows, Error *error) {
    Backend *plan = plan_open(rows, error);
    int32_t *zeros = calloc((size_t)rows, sizeof *zeros);
    float unused; /* plan writes nothing */
    bool ok = plan && zeros;
    if (ok) {
        const Run run = {.rows = rows};
        const Step step = {.rows = rows, .tokens = zeros, .positions = zeros, .run_count = 1, .runs = &run};
        decoder_forward(&model->spec, plan, &step, rows, zeros, &unused);
        ok = plan_result(plan, &model->scratch_bytes, error);
    } else if (plan) {
        fail(error, ERROR_MEMORY, "no memory for a step of %d rows", rows);
    }
    free(zeros);
    backend_close(plan);
    return ok;
}

static bool choose_context(Model *model, const ModelOptions *options, Error *error) {
    const int made_for = model->spec.positions < MODEL_CONTEXT_DEFAULT ? model->spec.positions : MODEL_CONTEXT_DEFAULT;
    model->context = options->context ? options->context : made_for;
    if (options->context < 0) {
        return fail(error, ERROR_USAGE, "a context of %d tokens cannot be", options->context);
    }
    if (model->context > model->spec.positions && options->warn) {
        char line[160];
        snprintf(line, sizeof line, "a context of %d tokens is more than the %d that the model was made for%s",
            model->context, model->spec.positions,
            model->spec.dynamic_rope ? "; with its dynamic rope, results there depend on how the text is cut into steps"
                                     : "");
        options->warn(options->warn_context, line);
    }
    return true;
}

static bool open_backend(Model *model, const ModelOptions *options, Error *error) {
    BackendOptions wanted = options->backend;
    if (wanted.rows_max == 0) {
        wanted.rows_max = ROWS_DEFAULT;
    }
    if (wanted.rows_max < 0 || wanted.rows_max > MODEL_ROWS_MAX) {
        return fail(error, ERROR_USAGE, "a step of %d rows cannot be, at most %d", wanted.rows_max, MODEL_ROWS_MAX);
    }
    if (!plan_model(model, wanted.rows_max, error)) {
        return false;
    }
    wanted.scratch_bytes = model->scratch_bytes;
    model->spec.coarse_head = !wanted.precise;
    wanted.precise = wanted.precise || model->spec.precise;
    model->backend = backend_open(&wanted, error);
    if (!model->backend) {
        return false;
    }
    set_cache_dtype(&model->spec, model->backend->exact ? DTYPE_F32 : DTYPE_F16);
    return true;
}

Model *model_load(const char *directory, const ModelOptions *options, FamilyFind *find, Error *error) {
    Model *model = calloc(1, sizeof *model);
    if (!model) {
        fail(error, ERROR_MEMORY, "no memory for a model");
        return NULL;
    }
    model->arena.limit = ARENA_BYTES_MAX;
    FamilyLoad *load = NULL; /* found before the weights: of a model of an unknown kind, the kind is what matters */
    if (read_json(model, directory, "config.json", true, &model->config_text, &model->config, error) &&
        read_json(model, directory, "generation_config.json", false, &model->generation_text, &model->generation_config,
            error) &&
        (load = find_family(model, find, error)) != NULL && checkpoint_open(&model->checkpoint, directory, error) &&
        open_weights(model, options, error) && load_spec(model, options, load, error) &&
        choose_context(model, options, error) && open_backend(model, options, error) &&
        load_weights(model, options, error)) {
        return model;
    }
    if (error && !strstr(error->text, directory)) { /* or it names a file there already */
        fail_while(error, "%s", directory);
    }
    model_close(model);
    return NULL;
}

void model_close(Model *model) {
    if (!model) {
        return;
    }
    backend_close(model->backend);
    weights_close(model->weights);
    checkpoint_close(&model->checkpoint);
    buffer_free(&model->config_text);
    buffer_free(&model->generation_text);
    arena_free(&model->arena);
    free(model);
}

const Spec *model_spec(const Model *model) { return &model->spec; }
Backend *model_backend(const Model *model) { return model->backend; }
int model_vocab(const Model *model) { return model->spec.vocab; }
int model_context(const Model *model) { return model->context; }
uint64_t model_weight_bytes(const Model *model) { return model->weight_bytes; }

void model_step_cost(const Model *model, uint64_t *bytes, uint64_t *operations) {
    const Spec *spec = &model->spec;
    *bytes = *operations = 0;
    for (int i = 0; i < spec->tally_count; i++) {
        *bytes += spec->tally[i].bytes;
        *operations += 2 * spec->tally[i].parameters;
    }
    const uint64_t table = 2 * (uint64_t)(spec->embedding.rows * spec->embedding.cols);
    *operations -= spec->tied ? table : 2 * table;
    if (!spec->tied) { /* of an embedding of its own, a token reads one row */
        *bytes -= weight_bytes(&spec->embedding);
    }
}
const Json *model_generation_config(const Model *model) { return model->generation_config; }

int model_eos(const Model *model, int32_t out[EOS_MAX]) {
    memcpy(out, model->eos, sizeof model->eos);
    return model->eos_count;
}

/* A step must hold together: runs in row order over all rows, every position that a row may see in a page of the
 * sequence. */
static void check_step(const Model *model, const Step *step) {
    int row = 0;
    for (int r = 0; r < step->run_count; r++) {
        const Run *run = &step->runs[r];
        CHECK(run->row == row && run->rows > 0 && run->position >= 0);
        row += run->rows;
        const int last_page = (run->position + run->rows - 1) / KV_PAGE_TOKENS;
        for (int g = 0; g < model->spec.kv_group_count; g++) {
            const int window = model->spec.kv_window[g];
            const int first = window && run->position >= window ? run->position - window + 1 : 0;
            for (int page = first / KV_PAGE_TOKENS; page <= last_page; page++) CHECK(run->tables[g][page] >= 0);
        }
    }
    CHECK(row == step->rows && row > 0 && row <= model->backend->rows_max);
    for (int i = 0; i < row; i++) CHECK(step->tokens[i] >= 0 && step->tokens[i] < model->spec.vocab);
}

bool model_forward(Model *model, const Step *step, int count, const int32_t *output, float *logits, Error *error) {
    check_step(model, step);
    CHECK(count >= 0 && count <= step->rows);
    decoder_forward(&model->spec, model->backend, step, count, output, logits);
    return model->backend->ops->sync(model->backend, error);
}
