/* Nanbeige with loops: a llama whose layers are computed several times, each time with keys and values of its own and
 * with the last norm behind it. Reference: mlx_lm/models/nanbeige.py. */
#include "family/family.h"
#include "family/gguf/models.h"

enum { LOOPS_MAX = 16 };

static void load_loop(Loader *ld, Spec *spec, const Dims *d, const Rope *rope, int first, int layers) {
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    for (int i = 0; i < layers; i++) {
        load_scope(ld, "model.layers.%d.", i);
        family_block_here(ld, spec, &spec->layers[first + i],
            &(Block){.dims = d, .rope = rope, .bias = bias, .out_bias = bias, .mlp_bias = mlp_bias});
    }
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const int layers = spec->layer_count;
    const Json *weights = load_list(ld, "loop_loss_weights", -1);
    const int listed = load_int_or(ld, "num_loops", 1),
              loops = weights && weights->size ? (int)weights->size + 1 : listed;
    const bool skip = load_bool_or(ld, "skip_loop_final_norm", false);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "enable_double_loop_split", false);
    load_expect_bool(ld, "loop_share_kv", false);
    load_expect_bool(ld, "enable_depth_attention", false);
    load_require(ld, loops <= LOOPS_MAX, "%d loops, at most %d can be", loops, LOOPS_MAX);
    family_ends(ld, spec, &d);
    spec->layer_count = layers * (loops <= LOOPS_MAX ? loops : 1);
    load_layers(ld, spec);
    for (int first = 0; first < spec->layer_count; first += layers) {
        load_loop(ld, spec, &d, rope, first, layers);
        if (skip || first + layers == spec->layer_count) continue;
        Component *norm = layer_add(spec, &spec->layers[first + layers - 1], COMPONENT_SCALE);
        norm->input_norm = spec->final_norm;
        norm->scale_factor = 1;
    }
}

const Family nanbeige_family = {.load = load, .gguf = &nanbeige_gguf};
