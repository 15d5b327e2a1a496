/* GPT-J: attention and a network without a gate in parallel behind one layer norm, partly rotated heads whose
 * neighbours turn together; biases of the network, the norms and the output matrix alone.
 * References: mlx_lm/models/gptj.py, transformers/models/gptj. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"hidden_size", "n_embd"}, {"num_hidden_layers", "n_layer"},
        {"num_attention_heads", "n_head"}, {"intermediate_size", "n_inner"}, {"max_position_embeddings", "n_positions"},
        {0}};
    static const LoadName here[] = {
        {"model.embed_tokens", "model.wte"}, {"model.layers", "model.h"}, {"self_attn", "attn"}, {0}};
    static const LoadName published[] = {
        {"model.embed_tokens", "transformer.wte"}, {"model.layers", "transformer.h"}, {"self_attn", "attn"}, {0}};
    static const NormNames norms = {load_layer_norm, .attention_input = "ln_1"};
    static const Activation gelu = {.kind = ACT_GELU_TANH};
    const bool raw = load_has(ld, "transformer.wte.weight");
    load_field_names(ld, fields);
    Dims d = family_sizes(ld, spec,
        &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"});
    d.intermediate_size = load_int_or(ld, "intermediate_size", 4 * d.hidden);
    const int rotated = load_int_or(ld, "rotary_dim", load_null(ld, "rotary_dim") ? d.head_dim : 64);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .dims = rotated, .own_theta = 10000, .interleaved = true});
    load_expect_text(ld, "activation_function", "gelu_new");
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "embd_pdrop", "attn_pdrop", "resid_pdrop", "rotary", "scale_attn_weights", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "n_ctx",
        "gradient_checkpointing", NULL);
    load_skip(ld, ".attn.bias");
    load_skip(ld, ".attn.masked_bias");
    load_module_names(ld, raw ? published : here);
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->final_norm = load_layer_norm(ld, raw ? "transformer.ln_f" : "model.ln_f", d.hidden, d.eps);
    spec->head = load_linear(ld, "lm_head", spec->vocab, d.hidden, true);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "out_proj", rope, false, false)};
        Component mlp = family_mlp(ld, "mlp.fc_in", "mlp.fc_out", d.hidden, d.intermediate_size, gelu, true);
        mlp.parallel = true;
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family gptj_family = {.load = load};
