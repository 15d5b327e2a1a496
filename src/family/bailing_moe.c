/* Ling and Ring (bailing_moe): q, k and v fused, scores of softmax or of sigmoids, biases and groups in some.
 * Reference: mlx_lm/models/bailing_moe.py. */
#include "family/bailing.h"
#include "family/gguf/models.h"

Component bailing_attention(Loader *ld, const Dims *d, const Bailing *b, const Rope *rope) {
    if (load_has(ld, "self_attn.q_proj.weight")) /* from GGUF */
        return (Component){
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, d, "o_proj", rope, b->qkv_bias, b->bias)};
    AttentionComponent attention =
        family_fused_attention(ld, d, "attention.query_key_value", "attention.dense", rope, b->qkv_bias, b->bias);
    if (b->norms) {
        attention.op.q_norm = load_rms(ld, "attention.query_layernorm", d->head_dim, d->eps);
        attention.op.k_norm = load_rms(ld, "attention.key_layernorm", d->head_dim, d->eps);
    }
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static Moe load_moe(Loader *ld, const Dims *d, bool bias) {
    Moe moe = family_moe_fields(ld, &moe_usual, d->hidden, "num_experts");
    const bool sigmoid = load_text_is(ld, "score_function", "sigmoid");
    if (!sigmoid) load_expect_text(ld, "score_function", "softmax");
    family_moe_sigmoid(ld, &moe);
    if (!sigmoid) moe.moe.score = ROUTE_SOFTMAX;
    moe.names.bias = load_bool_or(ld, "moe_router_enable_expert_bias", false) ? "gate.expert_bias" : NULL;
    moe.bias = bias;
    const int shared = load_int_or(ld, "moe_shared_expert_intermediate_size", moe.intermediate_size);
    const int count = load_count_or(ld, "num_shared_experts", 0);
    if (load_bool_or(ld, "moe_router_enable_shared_expert", true)) moe.shared = family_moe_shared(ld, shared, count);
    return moe;
}

Bailing bailing_open(Loader *ld, const Dims *d) {
    Bailing b = {.bias = load_bool_or(ld, "use_bias", false),
        .qkv_bias = load_bool_or(ld, "use_qkv_bias", false),
        .norms = load_bool_or(ld, "use_qk_norm", false),
        .dense = load_count_or(ld, "first_k_dense_replace", 0)};
    b.moe = load_moe(ld, d, b.bias);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "norm_head", false);
    load_expect_bool(ld, "use_sliding_window", false);
    load_ignore(ld, "norm_softmax", "moe_router_enable_routed_scaling", "embedding_dropout", "output_dropout",
        "output_router_logits", "max_window_layers", "sliding_window", "use_rmsnorm", "rope_traditional",
        "num_nextn_predict_layers", "mtp_loss_scaling_factor", "multi_gate", "ep_size", "router_dtype", NULL);
    return b;
}

const Rope *bailing_rope(Loader *ld, int head_dim) {
    const int rotary = load_count_or(ld, "rotary_dim", 0), part = load_rotary_dims(ld, head_dim, 1);
    return load_rope(ld, &(RopeOptions){.head_dim = head_dim, .dims = rotary ? rotary : part, .theta = 10000});
}

void bailing_ends(Loader *ld, Spec *spec, const Dims *d) {
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    family_ends_named(ld, spec, d, "model.word_embeddings", "model.norm");
}

void bailing_block(Loader *ld, Spec *spec, int i, const Dims *d, Bailing *b, const Component *mixer) {
    b->moe.names.router = load_has(ld, "mlp.gate.weight") ? "gate" : "gate.gate_proj"; /* before and after MLX */
    family_block(ld, spec, i,
        &(Block){.dims = d, .attention = mixer, .moe = i >= b->dense ? &b->moe : NULL, .mlp_bias = b->bias});
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    Bailing b = bailing_open(ld, &d);
    const Rope *rope = bailing_rope(ld, d.head_dim);
    bailing_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = bailing_attention(ld, &d, &b, rope);
        bailing_block(ld, spec, i, &d, &b, &attention);
    }
}

const Family bailing_moe_family = {.load = load, .gguf = &bailing_moe_gguf};
