/* RecurrentGemma (Griffin): layers with a real-gated linear recurrent unit, every third one with windowed attention,
 * half of whose heads rotates. Names are the same in MLX's and its publisher's files. References:
 * transformers/models/recurrent_gemma; mlx_lm/models/recurrent_gemma.py, whose norms in layers have an epsilon of 1e-5.
 */
#include "family/recurrent.h"

#include <math.h>

static float softplus(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

static Component load_rg_lru(Loader *ld, const Dims *d, int width, int taps) {
    const int64_t each = width / d->heads;
    RgLruComponent unit = {.op.heads = d->heads,
        .conv = family_conv(ld, "temporal_block.conv_1d", taps, true, (const int64_t[]){width}, 1),
        .in = load_linear(ld, "temporal_block.linear_x", width, d->hidden, true),
        .gate = load_linear(ld, "temporal_block.linear_y", width, d->hidden, true),
        .o = load_linear(ld, "temporal_block.linear_out", d->hidden, width, true)};
    unit.conv.silu = false;
    unit.op.decay_gate = load_array(ld, "temporal_block.rg_lru.recurrent_gate_weight", width * each, 1);
    unit.op.decay_bias = load_array(ld, "temporal_block.rg_lru.recurrent_gate_bias", width, 1);
    unit.op.input_gate = load_array(ld, "temporal_block.rg_lru.input_gate_weight", width * each, 1);
    unit.op.input_bias = load_array(ld, "temporal_block.rg_lru.input_gate_bias", width, 1);
    const float *parameter = load_vector(ld, "temporal_block.rg_lru.recurrent_param", width, 0);
    float *rate = load_floats(ld, width);
    for (int i = 0; parameter && rate && i < width; i++) rate[i] = -8 * softplus(parameter[i]);
    unit.op.rate = rate;
    return (Component){.kind = COMPONENT_RG_LRU, .rg_lru = unit};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.norm", "model.final_norm"}, {"self_attn", "temporal_block"}, {0}};
    static const NormNames norms = {
        load_rms_plus_one, .attention_input = "temporal_pre_norm", .ffn_input = "channel_pre_norm"};
    static const Activation gelu = {.kind = ACT_GELU_TANH};
    load_module_names(ld, names);
    Dims d = family_sizes(ld, spec, &(Sizes){.positions = 8192, .eps = 1e-6});
    d.intermediate_size /= 2;
    const int width = load_int_or(ld, "lru_width", d.hidden), taps = load_int_or(ld, "conv1d_width", 4);
    const int window = load_int_or(ld, "attention_window_size", 2048);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const char *field = load_has_field(ld, "block_types") ? "block_types" : "_block_types";
    const Json *kinds = load_list(ld, field, -1);
    const Rope *rope = load_rope(
        ld, &(RopeOptions){.head_dim = d.head_dim, .dims = load_rotary_dims(ld, d.head_dim, 0.5), .theta = 10000});
    family_check_taps(ld, taps);
    load_require(ld, width % (d.heads * RG_LRU_UNIT) == 0,
        "lru_width is %d, must be a multiple of %d for each of %d heads", width, RG_LRU_UNIT, d.heads);
    load_require(ld, !kinds || kinds->size > 0, "%s is empty", field);
    load_expect_text(ld, "hidden_activation", "gelu_pytorch_tanh");
    load_ignore(ld, "w_init_variance_scale", "final_w_init_variance_scale", NULL);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_rms_plus_one,
        load_bool_or(ld, "tie_word_embeddings", !load_has(ld, "lm_head.weight")));
    if (load_bool_or(ld, "embeddings_scale_by_sqrt_dim", true))
        spec->embedding_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)d.hidden))); /* as the model was trained */
    spec->logit_softcap = load_number_or(ld, "logits_soft_cap", 30);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int at = kinds && kinds->size ? i % (int)kinds->size : i % 3;
        const bool recurrent = kinds ? family_kind(ld, field, kinds, at, "recurrent", "attention") : at < 2;
        family_layer(ld, spec, i);
        Component mixer = recurrent ? load_rg_lru(ld, &d, width, taps)
                                    : (Component){.kind = COMPONENT_ATTENTION,
                                          .attention = family_attention(ld, &d, "o_proj", rope, bias, true)};
        if (!recurrent) mixer.attention.op.window = window;
        const Component ffn = {
            .kind = COMPONENT_GLU, .glu = family_glu(ld, "mlp_block", d.hidden, d.intermediate_size, gelu, true)};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &mixer, .ffn = &ffn});
    }
}

const Family recurrent_gemma_family = {.load = load};
