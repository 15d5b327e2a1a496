/* ChatGLM 2 and 3, CodeGeeX2, GLM-4-9B as their publisher's own code has them: GLM under other names, with q, k and v
 * in one matrix. References: modeling_chatglm.py of zai-org/glm-4-9b-chat; transformers/models/glm. */
#include "family/dense.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_hidden_layers", "num_layers"}, {"rms_norm_eps", "layernorm_epsilon"},
        {"head_dim", "kv_channels"}, {"intermediate_size", "ffn_hidden_size"},
        {"max_position_embeddings", "seq_length"}, {"vocab_size", "padded_vocab_size"},
        {"num_key_value_heads", "multi_query_group_num"}, {0}};
    static const LoadName names[] = {{"model.embed_tokens", "transformer.embedding.word_embeddings"},
        {"model.norm", "transformer.encoder.final_layernorm"}, {"lm_head", "transformer.output_layer"},
        {"model.layers", "transformer.encoder.layers"}, {"self_attn", "self_attention"},
        {"qkv_proj", "query_key_value"}, {"o_proj", "dense"}, {"gate_up_proj", "dense_h_to_4h"},
        {"down_proj", "dense_4h_to_h"}, {0}};
    const Dense row = {.fields = fields,
        .names = names,
        .head_dim = 128,
        .eps = 1e-5,
        .theta = 10000 * load_positive_or(ld, "rope_ratio", 1),
        .rotary_factor = 0.5,
        .interleaved = true,
        .qkv_bias = {"add_qkv_bias", false},
        .fused_qkv = true,
        .ffn = DENSE_FUSED_GLU,
        .ignored = {"apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion",
            "classifier_dropout", "fp32_residual_connection", "hidden_dropout", "interleaved_qkv",
            "prefix_projection"}};
    load_expect_bool(ld, "multi_query_attention", true);
    load_expect_bool(ld, "rmsnorm", true);
    load_expect_bool(ld, "post_layer_norm", true);
    load_expect_bool(ld, "apply_residual_connection_post_layernorm", false);
    load_expect_bool(ld, "add_bias_linear", false);
    load_expect_bool(ld, "original_rope", true);
    load_expect_int(ld, "quantization_bit", 0);
    load_require(ld, !load_has_field(ld, "pre_seq_len"), "pre_seq_len: tuned prefixes are not supported");
    load_require(ld, !load_has_field(ld, "vision_config"), "vision_config: GLM-4V is not supported");
    load_skip(ld, "rotary_pos_emb.inv_freq");
    dense_load(ld, spec, &row);
}

const Family chatglm_family = {.load = load};
