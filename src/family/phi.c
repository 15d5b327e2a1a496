/* Phi-1, Phi-1.5, Phi-2: attention and a plain MLP in parallel behind one layer norm, biases everywhere, partly rotated
 * heads. Reference: mlx_lm/models/phi.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec,
        &(Sizes){.hidden = 2560,
            .heads = 32,
            .intermediate_size = 10240,
            .layers = 32,
            .vocab = 51200,
            .positions = 2048,
            .eps = 1e-5,
            .eps_field = "layer_norm_eps"});
    const Rope *rope = load_rope(
        ld, &(RopeOptions){.head_dim = d.head_dim, .dims = load_rotary_dims(ld, d.head_dim, 0.4), .theta = 10000});
    load_expect_text(ld, "hidden_act", "gelu_new");
    load_expect_bool(ld, "qk_layernorm", false);
    load_expect_bool(ld, "tie_word_embeddings", false);
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->final_norm = load_layer_norm(ld, "model.final_layernorm", d.hidden, d.eps);
    spec->head = load_linear(ld, "lm_head", spec->vocab, d.hidden, true);
    load_layers(ld, spec);
    const NormNames norms = {load_layer_norm, .attention_input = "input_layernorm"};
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "dense", rope, true, true)};
        Component mlp = family_mlp(
            ld, "mlp.fc1", "mlp.fc2", d.hidden, d.intermediate_size, (Activation){.kind = ACT_GELU_TANH}, true);
        mlp.parallel = true;
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family phi_family = {.load = load, .gguf = &phi_gguf};
