/* Ling and Ring (bailing_moe): q, k and v fused, scores of softmax or of sigmoids, biases and groups in some.
 * Reference: mlx_lm/models/bailing_moe.py. */
#include "family/family.h"

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope, bool qkv_bias, bool bias, bool norms) {
    AttentionComponent attention = family_fused_attention(ld, d, "attention.query_key_value", rope, qkv_bias);
    attention.o = load_linear(ld, "attention.dense", d->hidden, (int64_t)d->heads * d->head_dim, bias);
    if (norms) {
        attention.op.q_norm = load_rms(ld, "attention.query_layernorm", d->head_dim, d->eps);
        attention.op.k_norm = load_rms(ld, "attention.key_layernorm", d->head_dim, d->eps);
    }
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static Moe load_moe(Loader *ld, const Dims *d, bool bias) {
    Moe moe = family_moe_open(ld, &moe_usual, d->hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "num_experts"), load_int(ld, "num_experts_per_tok"));
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

static void load_ends(Loader *ld, Spec *spec, const Dims *d) {
    spec->embedding = load_linear(ld, "model.word_embeddings", spec->vocab, d->hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", d->hidden, d->eps);
    family_head(ld, spec, d, load_bool_or(ld, "tie_word_embeddings", false));
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "use_bias", false), qkv_bias = load_bool_or(ld, "use_qkv_bias", false);
    const bool norms = load_bool_or(ld, "use_qk_norm", false);
    const int dense = load_count_or(ld, "first_k_dense_replace", 0);
    Moe moe = load_moe(ld, &d, bias);
    const int rotary = load_count_or(ld, "rotary_dim", 0), part = load_rotary_dims(ld, d.head_dim, 1);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .dims = rotary ? rotary : part, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "norm_head", false);
    load_expect_bool(ld, "use_sliding_window", false);
    load_ignore(ld, "norm_softmax", "moe_router_enable_routed_scaling", "embedding_dropout", "output_dropout",
        "output_router_logits", "max_window_layers", "sliding_window", "use_rmsnorm", "rope_traditional",
        "num_nextn_predict_layers", "mtp_loss_scaling_factor", "multi_gate", "ep_size", "router_dtype", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    load_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &d, rope, qkv_bias, bias, norms);
        moe.names.router = load_has(ld, "mlp.gate.weight") ? "gate" : "gate.gate_proj"; /* before and after MLX */
        family_block(ld, spec, i,
            &(Block){.dims = &d, .attention = &attention, .moe = i >= dense ? &moe : NULL, .mlp_bias = bias});
    }
}

const Family bailing_moe_family = {.load = load};
