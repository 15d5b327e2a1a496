/* EXAONE 3 (exaone): a llama with GPT-2's names. EXAONE 4: norms behind both parts of a layer and on the heads of q and
 * k; where some layers have a window, the others have no rotary embedding.
 * References: mlx_lm/models/exaone.py, exaone4.py. */
#include "family/dense.h"

static void load_exaone(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_hidden_layers", "num_layers"}, {"hidden_act", "activation_function"}, {0}};
    static const LoadName names[] = {{"model.layers", "transformer.h"}, {"model.embed_tokens", "transformer.wte"},
        {"model.norm", "transformer.ln_f"}, {"self_attn.o_proj", "attn.attention.out_proj"},
        {"self_attn", "attn.attention"}, {"mlp.gate_proj", "mlp.c_fc_0"}, {"mlp.up_proj", "mlp.c_fc_1"},
        {"mlp.down_proj", "mlp.c_proj"}, {"input_layernorm", "ln_1"}, {"post_attention_layernorm", "ln_2"}, {0}};
    static const Dense row = {.fields = fields,
        .names = names,
        .eps_field = "layer_norm_epsilon",
        .eps = 1e-5,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .tied = true,
        .ignored = {"embed_dropout"}};
    dense_load(ld, spec, &row);
}

static void load_exaone4(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};
    static const Dense row = {.norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .full_every = 4,
        .full_unrotated = true,
        .ignored = {"layer_types"}};
    dense_load(ld, spec, &row);
}

static const GgufName names[] = {
    {"output_norm", "transformer.ln_f", 0},
    {"token_embd", "transformer.wte", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "transformer.h.*.ln_1", 0},
    {"blk.*.ffn_norm", "transformer.h.*.ln_2", 0},
    {"blk.*.attn_q", "transformer.h.*.attn.attention.q_proj", 0},
    {"blk.*.attn_k", "transformer.h.*.attn.attention.k_proj", 0},
    {"blk.*.attn_v", "transformer.h.*.attn.attention.v_proj", 0},
    {"blk.*.attn_output", "transformer.h.*.attn.attention.out_proj", 0},
    {"blk.*.ffn_gate", "transformer.h.*.mlp.c_fc_0", 0},
    {"blk.*.ffn_up", "transformer.h.*.mlp.c_fc_1", 0},
    {"blk.*.ffn_down", "transformer.h.*.mlp.c_proj", 0},
    {0},
};

static const GgufField fields[] = {
    {"num_layers", .key = ".block_count"},
    {"activation_function", GGUF_FIELD_TEXT, .text = "silu"},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {0},
};

static const GgufName names4[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", 0},
    {0},
};

static const GgufField fields4[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const Family exaone_family = {
    .load = load_exaone,
    .gguf = &(const GgufModel){.architecture = "exaone",
        .class_name = "ExaoneForCausalLM",
        .names = {names},
        .fields = {gguf_sizes, fields},
        .tokenizer = {.pre = "exaone"}},
};

const Family exaone4_family = {
    .load = load_exaone4,
    .gguf = &(const GgufModel){.architecture = "exaone4",
        .class_name = "Exaone4ForCausalLM",
        .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, names4},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields4}},
};
