/* Phi-3, Phi-3.5, Phi-4 (mini): a Llama whose projections are fused: qkv_proj = q ‖ k ‖ v, gate_up_proj = gate ‖ up.
 * Reference: mlx_lm/models/phi3.py (longrope always with long_factor); the sliding window: transformers/models/phi3. */
#include "family/family.h"

static AttentionMixer attention(Loader *ld, const Dims *d, const Rope *rope) {
    const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    const Weight qkv = load_linear(ld, "self_attn.qkv_proj", q + 2 * kv, d->hidden, false);
    AttentionMixer mixer = family_attention_op(d, rope);
    mixer.q = load_part(&qkv, 0, q);
    mixer.k = load_part(&qkv, q, kv);
    mixer.v = load_part(&qkv, q + kv, kv);
    mixer.o = load_linear(ld, "self_attn.o_proj", d->hidden, q, false);
    return mixer;
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
        Layer *layer = &spec->layers[i];
        load_scope(ld, "model.layers.%d.", i);
        layer->mixer_in = load_rms(ld, "input_layernorm", d.hidden, d.eps);
        layer->attention = attention(ld, &d, rope);
        layer->attention.op.window = window;
        layer->ffn_in = load_rms(ld, "post_attention_layernorm", d.hidden, d.eps);
        const Weight gate_up = load_linear(ld, "mlp.gate_up_proj", 2 * (int64_t)d.intermediate_size, d.hidden, false);
        layer->glu = (GluFfn){.gate = load_part(&gate_up, 0, d.intermediate_size),
            .up = load_part(&gate_up, d.intermediate_size, d.intermediate_size),
            .down = load_linear(ld, "mlp.down_proj", d.hidden, d.intermediate_size, false),
            .activation = ACT_SILU};
    }
}

static const GgufName names[] = {
    {"blk.*.attn_qkv", "model.layers.*.self_attn.qkv_proj", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

static double rotary_factor(const GgufSizes *sizes) {
    return sizes->rotary_dims == sizes->head_dim ? 0 : (double)sizes->rotary_dims / (double)sizes->head_dim;
}

static const GgufField fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = rotary_factor},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const Family phi3_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "phi3",
        .class_name = "Phi3ForCausalLM",
        .names = {gguf_ends, gguf_norms, names},
        .fields = {gguf_sizes, gguf_rms, fields},
        .tokenizer = {.control_strips_right = true}},
};
