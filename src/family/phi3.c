/* Phi-3, Phi-3.5, Phi-4 (mini): a Llama whose projections are fused: qkv_proj = q ‖ k ‖ v, gate_up_proj = gate ‖ up.
 * Reference: mlx_lm/models/phi3.py; the sliding window: transformers/models/phi3. */
#include "family/family.h"

static AttentionComponent load_attention(Loader *ld, const Dims *d, const Rope *rope, int window) {
    AttentionComponent attention = family_fused_attention(ld, d, "self_attn.qkv_proj", rope, false);
    attention.o = load_linear(ld, "self_attn.o_proj", d->hidden, (int64_t)d->heads * d->head_dim, false);
    attention.op.window = window;
    return attention;
}

static GluComponent load_glu(Loader *ld, const Dims *d) {
    const int inner = d->intermediate_size;
    const Weight gate_up = load_linear(ld, "mlp.gate_up_proj", 2 * (int64_t)inner, d->hidden, false);
    return (GluComponent){.gate = load_part(&gate_up, 0, inner),
        .up = load_part(&gate_up, inner, inner),
        .down = load_linear(ld, "mlp.down_proj", d->hidden, inner, false),
        .activation = {.kind = ACT_SILU}};
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = load_rotary_dims(ld, d.head_dim, 1),
            .theta = 10000,
            .interleaved = load_bool_or(ld, "rope_traditional", false),
            .original_positions = 4096});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "lm_head_bias", false);
    load_ignore(ld, "original_max_position_embeddings", NULL);
    load_require(ld, load_int_or(ld, "full_attn_mod", 1) == 1 && load_int_or(ld, "interpolate_factor", 1) == 1,
        "full_attn_mod and interpolate_factor must be 1");
    const int window = load_int_or(ld, "sliding_window", 0);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {.kind = COMPONENT_ATTENTION, .attention = load_attention(ld, &d, rope, window)};
        const Component ffn = {.kind = COMPONENT_GLU, .glu = load_glu(ld, &d)};
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention, .ffn = &ffn});
    }
}

static const GgufName names[] = {
    {"blk.*.attn_qkv", "model.layers.*.self_attn.qkv_proj", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

/* Files of models that rotate whole heads have no such field. */
static double partial_rotary_factor(const GgufSizes *sizes) {
    const double factor = gguf_rotary_factor(sizes);
    return factor == 1 ? 0 : factor;
}

static const GgufField fields[] = {
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = partial_rotary_factor},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const Family phi3_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "phi3",
        .class_name = "Phi3ForCausalLM",
        .names = {gguf_ends, gguf_norms, names},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields},
        .tokenizer = {.control_strips_right = true}},
};
