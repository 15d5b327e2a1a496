/* SmolLM3: a Llama in which every fourth layer has no rotary embedding. Reference: mlx_lm/models/smollm3.py; the
 * sliding window of those layers, which it lacks: transformers/models/smollm3. */
#include "family/family.h"
#include "family/gguf/models.h"

static bool has_rope(Loader *ld, const Json *list, int interval, int i) {
    return list ? family_flag(ld, "no_rope_layers", list, i) : (i + 1) % interval != 0;
}

static void load(Loader *ld, Spec *spec) {
    llama_load(ld, spec);
    const int interval = load_int_or(ld, "no_rope_layer_interval", 4);
    const Json *list = load_list(ld, "no_rope_layers", spec->layer_count);
    /* With layer_types, llama_load() has read the windows. */
    const bool slides =
        load_bool_or(ld, "use_sliding_window", false) && !load_list(ld, "layer_types", spec->layer_count);
    const int window = slides ? load_int_or(ld, "sliding_window", 0) : 0;
    load_ignore(ld, "max_window_layers", "sliding_window", NULL);
    for (int i = 0; i < spec->layer_count; i++) {
        if (!has_rope(ld, list, interval, i)) {
            Attention *op = &spec->layers[i].components[0].attention.op;
            op->rope = NULL;
            if (slides) op->window = window;
        }
    }
}

const Family smollm3_family = {.load = load, .gguf = &smollm3_gguf};
