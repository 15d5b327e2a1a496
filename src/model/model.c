/* Opening a model: config.json → family → Spec. */
#include "base/json_python.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include "model/adapter_load.h"
#include "model/loader/load.h"
#include "model/model_internal.h"
#include "model/component.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };
/* DeepSeek-V3's matrices of heads, where quantised files hold them joined, take 2 GB (loader/latent.c). */
static const size_t ARENA_BYTES_MAX = (size_t)4 << 30;

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
    *out = json_parse_python(&model->arena, buffer_view(text), error);
    if (!*out) {
        return fail_while(error, "%s", name);
    }
    return (*out)->type == JSON_OBJECT ||
        fail(error, ERROR_FORMAT, "%s is %s, must be an object", name, json_type_name(*out));
}

/* preprocessor_config.json and video_preprocessor_config.json; where processor_config.json has an image_processor, a
 * video_processor or a feature_extractor, those. */
static bool read_processor(Model *model, const char *directory, Error *error) {
    const Json *all = NULL, *older = NULL, *frames = NULL;
    if (!read_json(model, directory, "processor_config.json", false, &model->processor_text, &all, error) ||
        !read_json(model, directory, "preprocessor_config.json", false, &model->preprocessor_text, &older, error) ||
        !read_json(model, directory, "video_preprocessor_config.json", false, &model->video_text, &frames, error))
        return false;
    const Json *image = json_get(all, "image_processor"), *sound = json_get(all, "feature_extractor");
    const Json *video = json_get(all, "video_processor");
    model->video_processor = video && video->type == JSON_OBJECT ? video : frames;
    model->processor = image && image->type == JSON_OBJECT ? image : older;
    model->extractor = sound && sound->type == JSON_OBJECT  ? sound
        : older && json_get(older, "sampling_rate") != NULL ? older
                                                            : NULL;
    return true;
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
        .processor = model->processor,
        .video_processor = model->video_processor,
        .extractor = model->extractor,
        .packing = model->packing,
        .checkpoint = &model->checkpoint,
        .weights = model->weights,
        .experts_stay = options->experts.stream,
        .device_layers = options->device_layers,
        .mtp = options->mtp,
        .target = options->target ? &options->target->spec : NULL,
        .context = options->context,
        .strict_config = options->strict_config,
        .warn = options->warn,
        .warn_context = options->warn_context,
        .record = options->record};
    LoadTarget target = {.spec = &model->spec, .eos = model->eos, .eos_max = EOS_MAX};
    /* matrices that are unpacked lie in the arena: 2 bits may become 16 */
    for (int i = 0; i < model->checkpoint.file_count; i++) model->arena.limit += 8 * model->checkpoint.files[i].size;
    const bool ok = spec_load(&source, load, &target, error);
    model->eos_count = target.eos_count;
    model->weight_bytes = target.weight_bytes;
    if (ok && options->device_layers)
        model->device_bytes = model_layer_bytes(model, model->spec.layer_count - options->device_layers);
    return ok;
}

static bool open_weights(Model *model, const ModelOptions *options, Error *error) {
    const WeightsMode mode = options->experts.stream ? WEIGHTS_READ : options->weights;
    if (mode == WEIGHTS_LAZY) return true;
    model->weights = weights_open(&model->checkpoint, mode == WEIGHTS_READ, error);
    return model->weights;
}

static bool load_weights(Model *model, const ModelOptions *options, Error *error) {
    return (!model->weights || weights_load(model->weights, options->progress, options->progress_context, error)) &&
        (!options->experts.stream || model_stream(model, options, error));
}

static bool choose_context(Model *model, const ModelOptions *options, Error *error) {
    const int made_for = model->spec.positions < MODEL_CONTEXT_DEFAULT ? model->spec.positions : MODEL_CONTEXT_DEFAULT;
    model->context = options->context ? options->context : made_for;
    if (options->context < 0) {
        return fail(error, ERROR_USAGE, "a context of %d tokens cannot be", options->context);
    }
    const int64_t rows = model->spec.encoder ? model->spec.positions : model->spec.position_embedding.rows;
    if (rows && model->context > rows)
        return fail(error, ERROR_USAGE, "a context of %d tokens is more than the %d positions that the model has",
            model->context, (int)rows);
    if (model->context > model->spec.positions && options->warn) {
        char line[160];
        snprintf(line, sizeof line, "a context of %d tokens is more than the %d that the model was made for",
            model->context, model->spec.positions);
        options->warn(options->warn_context, line);
    }
    return true;
}

/* Data of a file that shrank while it was read is zeros. */
static bool check_files(const Model *model, Error *error) {
    const char *path = checkpoint_damaged(&model->checkpoint);
    return !path || fail(error, ERROR_IO, "%s shrank while it was in use", path);
}

Model *model_load(const char *directory, const ModelOptions *options, FamilyFind *find, Error *error) {
    Model *model = calloc(1, sizeof *model);
    if (!model) {
        fail(error, ERROR_MEMORY, "no memory for a model");
        return NULL;
    }
    model->arena.limit = ARENA_BYTES_MAX;
    model->directory = arena_copy(&model->arena, slice_of(directory));
    if (!model->directory) {
        fail(error, ERROR_MEMORY, "no memory for a model");
        model_close(model);
        return NULL;
    }
    FamilyLoad *load = NULL; /* found before the weights: of a model of an unknown kind, the kind is what matters */
    if (read_json(model, directory, "config.json", true, &model->config_text, &model->config, error) &&
        read_json(model, directory, "generation_config.json", false, &model->generation_text, &model->generation_config,
            error) &&
        read_json(model, directory, "hf_quant_config.json", false, &model->packing_text, &model->packing, error) &&
        read_processor(model, directory, error) && (load = find_family(model, find, error)) != NULL &&
        checkpoint_open(&model->checkpoint, directory, error) && open_weights(model, options, error) &&
        load_spec(model, options, load, error) &&
        (!options->experts_used || model_cut_experts(model, options->experts_used, error)) &&
        choose_context(model, options, error) && load_weights(model, options, error) &&
        adapters_load(model, options->adapters, options->adapter_count, error) && check_files(model, error)) {
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
    expert_cache_close(model->bank);
    weights_close(model->weights);
    checkpoint_close(&model->checkpoint);
    buffer_free(&model->config_text);
    buffer_free(&model->generation_text);
    buffer_free(&model->processor_text);
    buffer_free(&model->preprocessor_text);
    buffer_free(&model->video_text);
    buffer_free(&model->packing_text);
    arena_free(&model->arena);
    free(model);
}

const Spec *model_spec(const Model *model) { return &model->spec; }

int model_adapter_count(const Model *model) { return model->spec.adapter_count; }

int model_adapter(const Model *model, Slice name) {
    for (int i = 0; i < model->spec.adapter_count; i++)
        if (slice_is(name, model->spec.adapters[i].name)) return i + 1;
    return 0;
}

int model_layers(const Model *model) { return model->spec.layer_count; }
int model_hidden(const Model *model) { return (int)model->spec.hidden; }
int model_vocab(const Model *model) { return model->spec.vocab; }
int model_context(const Model *model) { return model->context; }
uint64_t model_weight_bytes(const Model *model) { return model->weight_bytes; }

void model_step_cost(const Model *model, uint64_t *bytes, uint64_t *operations) {
    const Spec *spec = &model->spec;
    *bytes = weight_bytes(&spec->head);
    *operations = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        const ComponentCost cost = layer_cost(&spec->layers[i], 0);
        *bytes += cost.weight_bytes;
        *operations += cost.operations;
    }
}

uint64_t model_mtp_bytes(const Model *model) {
    const Spec *mtp = model->spec.mtp;
    if (!mtp) return 0;
    uint64_t bytes = weight_bytes(&mtp->head) + weight_bytes(&mtp->input.token) + weight_bytes(&mtp->input.state);
    for (int i = 0; i < mtp->layer_count; i++) bytes += layer_cost(&mtp->layers[i], 0).weight_bytes;
    return bytes;
}

bool model_is_assistant(const Model *model) { return model->spec.input.state.rows > 0; }

bool model_expert_fanout(const Model *model, int rows_max, float *fanout) {
    const Spec *spec = &model->spec;
    int layers = 0;
    for (int rows = 1; rows <= rows_max; rows++) fanout[rows] = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        const MoeComponent *moe = layer_moe(&spec->layers[i]);
        if (!moe) continue;
        layers++;
        const double experts = moe->experts, used = moe->top_k;
        for (int rows = 1; rows <= rows_max; rows++)
            fanout[rows] += (float)((1 - pow(1 - used / experts, rows)) * experts / used);
    }
    for (int rows = 1; rows <= rows_max && layers; rows++) fanout[rows] /= (float)layers;
    return layers > 0;
}

const char *model_largest_file(const Model *model) {
    const Checkpoint *c = &model->checkpoint;
    int largest = 0;
    for (int f = 1; f < c->file_count; f++)
        if (c->files[f].size > c->files[largest].size) largest = f;
    return c->paths[largest];
}

const char *model_damaged(const Model *model) { return checkpoint_damaged(&model->checkpoint); }
const Json *model_generation_config(const Model *model) { return model->generation_config; }

int model_eos(const Model *model, int32_t out[EOS_MAX]) {
    memcpy(out, model->eos, sizeof model->eos);
    return model->eos_count;
}
