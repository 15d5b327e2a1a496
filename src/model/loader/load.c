/* Runs a family over the files of a model, and looks at what it left. */
#include "model/loader/load.h"

#include "model/loader/internal.h"

/* Quantisation recorded the Hugging Face way, with other tensors than MLX writes, or with more than weights. */
static void check_quantisation(Loader *ld) {
    const Json *root = ld->root, *block = loader_get(ld, root, "quantization");
    const Json *packing = loader_packing_config(ld);
    if (block && block->type != JSON_OBJECT) {
        loader_fail(ld, ERROR_FORMAT, "config.json: quantization is %s, must be an object", json_type_name(block));
    }
    if (!block && packing) loader_read_packing(ld, packing);
    const Json *activations = loader_get(ld, root, "quantize_activations");
    if (activations && (activations->type != JSON_BOOL || activations->boolean)) {
        loader_fail(ld, ERROR_UNSUPPORTED, "config.json: quantize_activations is not supported");
    }
}

bool spec_load(const LoadSource *source, FamilyLoad *family, LoadTarget *target, Error *error) {
    Loader ld = {
        .source = source, .root = source->config, .fields = source->config, .spec = target->spec, .error = error};
    ld.family = arena_copy(source->arena, json_slice(json_get(source->config, "model_type")));
    ld.field_used = arena_alloc(source->arena, (size_t)(source->config->end - source->config), 1);
    ld.tensor_used = arena_alloc(source->arena, source->checkpoint->entry_count, 1);
    if (!ld.family || !ld.field_used || !ld.tensor_used) {
        return fail(error, ERROR_MEMORY, "no memory for the model's tables");
    }
    const bool bare = checkpoint_find(source->checkpoint, "embed_tokens.weight") &&
        !checkpoint_find(source->checkpoint, "model.embed_tokens.weight");
    load_body(&ld, bare ? "" : "model.");
    *target->spec = (Spec){.family = ld.family, .embedding_scale = 1, .logit_scale = 1};
    check_quantisation(&ld);
    if (!ld.failed) {
        family(&ld, target->spec);
        loader_check_packing(&ld);
    }
    if (!ld.failed && source->mtp && !target->spec->mtp) {
        loader_fail(&ld, ERROR_UNSUPPORTED,
            "--mtp: this file of family %s has no multi-token prediction head that is "
            "supported",
            ld.family);
    }
    if (!ld.failed) {
        loader_check_fields(&ld);
    }
    if (!ld.failed) {
        loader_check_tensors(&ld);
    }
    if (!ld.failed) {
        loader_eos(&ld, target);
    }
    if (ld.scaled_positions > target->spec->positions) target->spec->positions = ld.scaled_positions;
    target->weight_bytes = ld.bytes;
    return !ld.failed;
}
