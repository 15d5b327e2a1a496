/* GLM-4 (0414) and GLM-4 9B (glm): gate and up in one matrix, half of each head rotates in pairs of neighbours; GLM-4
 * has sandwich norms. References: mlx_lm/models/glm4.py; transformers/models/glm (in mlx_lm/models/glm.py whole heads
 * rotate). */
#include "family/dense.h"

static void load_glm(Loader *ld, Spec *spec) {
    static const Dense row = {
        .rotary_factor = 0.5, .interleaved = true, .qkv_bias = {"attention_bias", false}, .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

static void load_glm4(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms, "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
    static const Dense row = {.norms = &norms,
        .rotary_factor = 0.5,
        .interleaved = true,
        .qkv_bias = {"attention_bias", true},
        .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

static const GgufName names[] = {
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

static const GgufName names4[] = {
    {"blk.*.post_attention_norm", "model.layers.*.post_self_attn_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_mlp_layernorm", 0},
    {0},
};

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

/* GGUF's "chatglm" is made from THUDM's own files, whose attention is one matrix: those are refused. */
const Family glm_family = {.load = load_glm};

const Family glm4_family = {
    .load = load_glm4,
    .gguf = &(const GgufModel){.architecture = "glm4",
        .class_name = "Glm4ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv, names, names4},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields}},
};
