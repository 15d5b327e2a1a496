/* Phi-1, Phi-1.5, Phi-2: attention and a plain MLP in parallel behind one layer norm, biases everywhere, partly rotated
 * heads. Reference: mlx_lm/models/phi.py. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    Dims d = {.hidden = load_int_or(ld, "hidden_size", 2560),
        .heads = load_int_or(ld, "num_attention_heads", 32),
        .intermediate_size = load_int_or(ld, "intermediate_size", 10240),
        .eps = load_positive_or(ld, "layer_norm_eps", 1e-5)};
    d.kv_heads = load_int_or(ld, "num_key_value_heads", d.heads);
    family_check(ld, &d);
    spec->hidden = d.hidden;
    spec->layer_count = load_int_or(ld, "num_hidden_layers", 32);
    spec->vocab = load_int_or(ld, "vocab_size", 51200);
    spec->positions = load_int_or(ld, "max_position_embeddings", 2048);
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
        const Component mlp = {.kind = COMPONENT_MLP,
            .parallel = true,
            .mlp = {.up = load_linear(ld, "mlp.fc1", d.intermediate_size, d.hidden, true),
                .down = load_linear(ld, "mlp.fc2", d.hidden, d.intermediate_size, true),
                .activation = {.kind = ACT_GELU_TANH}}};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

static const GgufName names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.final_layernorm", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.dense", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.fc1", 0},
    {"blk.*.ffn_down", "model.layers.*.mlp.fc2", 0},
    {0},
};

static const GgufField fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu_new"},
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {0},
};

/* Files of early converters, in which q, k and v are one matrix, are refused. */
const Family phi_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "phi2",
        .class_name = "PhiForCausalLM",
        .names = {gguf_qkv, names},
        .fields = {gguf_sizes, fields},
        .tokenizer = {.pre = "phi-2"}},
};
