/* The conversion of a checkpoint from end to end. */
#include <dirent.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json_python.h"
#include "import/checkpoint/internal.h"
#include "import/partial.h"
#include "model/model.h"
#include "model/spec.h"

enum { TEXT_BYTES_MAX = 64 << 20, PATH_MAX_BYTES = 4096 };

typedef struct Conversion {
    const char *source;
    const CheckpointOptions *options;
    CheckpointOptions complete; /* options with the form complete */
    Arena arena;
    Buffer config_text, generation_text;
} Conversion;

static const Json *read_object(Conversion *c, const char *name, bool required, Buffer *text, bool *ok, Error *error) {
    char path[PATH_MAX_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", c->source, name);
    if (!required && !file_exists(path)) return NULL;
    *ok = file_read(path, TEXT_BYTES_MAX, text, error);
    const Json *root = *ok ? json_parse_python(&c->arena, buffer_view(text), error) : NULL;
    if (*ok && (!root || root->type != JSON_OBJECT)) {
        *ok = false;
        if (root)
            fail(error, ERROR_FORMAT, "%s is %s, must be an object", path, json_type_name(root));
        else
            fail_while(error, "%s", path);
    }
    return *ok ? root : NULL;
}

/* --- Files beside the weights ----------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t size = strlen(name), length = strlen(end);
    return size >= length && !strcmp(name + size - length, end);
}

/* The tokenizer, chat templates, settings of generation and images; neither the weights nor the files written anew. */
static bool is_copied(const char *name) {
    static const char *const ends[] = {".json", ".jinja", ".model", ".tiktoken", ".txt", ".py"};
    static const char *const anew[] = {"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json",
        "hf_quant_config.json", "quantize_config.json", "quant_config.json", "gguf-source.json"};
    for (size_t i = 0; i < COUNT_OF(anew); i++)
        if (!strcmp(name, anew[i])) return false;
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (name[0] != '.' && ends_with(name, ends[i])) return true;
    return false;
}

static bool copy_file(const char *source, const char *directory, const char *name, Error *error) {
    char from[PATH_MAX_BYTES + 300], to[PATH_MAX_BYTES + 300];
    Buffer bytes = {0};
    snprintf(from, sizeof from, "%s/%s", source, name);
    snprintf(to, sizeof to, "%s/%s", directory, name);
    const bool ok = file_read(from, TEXT_BYTES_MAX, &bytes, error) &&
        file_write_atomic(to, bytes.data ? buffer_view(&bytes) : SLICE(""), error);
    buffer_free(&bytes);
    return ok;
}

static bool copy_files(const char *source, const char *directory, Error *error) {
    DIR *list = opendir(source);
    bool ok = list || fail(error, ERROR_IO, "cannot list %s", source);
    for (struct dirent *item; ok && (item = readdir(list));) {
        char path[PATH_MAX_BYTES + 300];
        snprintf(path, sizeof path, "%s/%s", source, item->d_name);
        if (is_copied(item->d_name) && !file_is_directory(path)) ok = copy_file(source, directory, item->d_name, error);
    }
    if (list) closedir(list);
    return ok;
}

/* --- All of it -------------------------------------------------------------------------------------------------- */

static bool write_all(Conversion *c, const Model *model, const LoadRecord *record, const char *partial, Error *error) {
    bool ok = true;
    const Json *config = read_object(c, "config.json", true, &c->config_text, &ok, error);
    const Json *generation =
        ok ? read_object(c, "generation_config.json", false, &c->generation_text, &ok, error) : NULL;
    if (!ok) return false;
    Plan plan = {.arena = &c->arena,
        .options = &c->complete,
        .model_type = arena_copy(&c->arena, json_slice(json_get(config, "model_type"))),
        .config = config,
        .record = record,
        .layer_count = model_layers(model),
        .error = error};
    if (!plan.model_type) return fail(error, ERROR_MEMORY, "no memory for the plan");
    ok = plan_make(&plan) && config_write(&plan, generation, partial, error) && copy_files(c->source, partial, error) &&
        tensors_write(&plan, partial, error);
    const char *damaged = model_damaged(model);
    return ok && (!damaged || fail(error, ERROR_IO, "%s shrank while it was converted", damaged));
}

static bool build(void *context, const char *partial, Error *error) {
    Conversion *c = context;
    LoadRecord record = {0};
    Model *model = model_open(
        c->source, &(ModelOptions){.weights = WEIGHTS_LAZY, .warn = c->options->warn, .record = &record}, error);
    const bool ok = model && write_all(c, model, &record, partial, error);
    model_close(model);
    return ok;
}

static bool check_options(CheckpointOptions *options, Error *error) {
    if (options->quantize && options->dequantize) return fail(error, ERROR_USAGE, "quantise or dequantise, not both");
    if (options->recipe && (!options->quantize || options->form.quant != QUANT_AFFINE))
        return fail(error, ERROR_USAGE, "a recipe of mixed bits goes with affine quantisation");
    return !options->quantize || quant_form_complete(&options->form, error);
}

bool checkpoint_convert(const char *source, const char *directory, const CheckpointOptions *options, Error *error) {
    Conversion c = {.source = source, .options = options, .complete = *options};
    const bool ok = check_options(&c.complete, error) && partial_build(directory, build, &c, error);
    buffer_free(&c.config_text);
    buffer_free(&c.generation_text);
    arena_free(&c.arena);
    return ok;
}
