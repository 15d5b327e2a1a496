/* Qwen 1: gate and up count together as the intermediate size. Scaling of long texts is left out, as in the reference,
 * mlx_lm/models/qwen.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "transformer.h"}, {"model.embed_tokens", "transformer.wte"},
        {"model.norm", "transformer.ln_f"}, {"input_layernorm", "ln_1"}, {"post_attention_layernorm", "ln_2"},
        {"self_attn.qkv_proj", "attn.c_attn"}, {"self_attn.o_proj", "attn.c_proj"}, {"mlp.gate_proj", "mlp.w2"},
        {"mlp.up_proj", "mlp.w1"}, {"mlp.down_proj", "mlp.c_proj"}, {0}};
    static const LoadName fields[] = {{"head_dim", "kv_channels"}, {"rope_theta", "rotary_emb_base"}, {0}};
    const bool bias = !load_bool_or(ld, "no_bias", true);
    load_require(ld, !load_has_field(ld, "visual"), "Qwen-VL, the first one, is not supported; Qwen2-VL and later are");
    const Dense row = {.fields = fields,
        .names = names,
        .eps_field = "layer_norm_epsilon",
        .eps = 1e-6,
        .inner_divisor = 2,
        .qkv_bias = {NULL, true},
        .out_bias = {NULL, bias},
        .mlp_bias = {NULL, bias},
        .fused_qkv = true,
        .ignored = {"attn_dropout_prob", "emb_dropout_prob", "scale_attn_weights", "seq_length", "use_dynamic_ntk",
            "use_flash_attn", "use_logn_attn", "rotary_pct", "fp32", "onnx_safe", "bf16"}};
    dense_load(ld, spec, &row);
    load_scope(ld, "%s", "");
    if (bias) spec->head.bias = load_vector(ld, "lm_head.bias", spec->vocab, 0);
}

const Family qwen_family = {.load = load, .gguf = &qwen_gguf};
