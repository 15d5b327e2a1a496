/* Falcon-H1: attention and Mamba-2 side by side in every layer, then a gated network; constant multipliers nearly
 * everywhere. MLX's converter multiplies them into the weights, but not those of keys and values: mlx_lm/models/
 * falcon_h1.py leaves these two out, so the reference is transformers/models/falcon_h1, which applies all. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

static const NormNames norms = {
    .load = load_rms, .attention_input = "input_layernorm", .ffn_input = "pre_ff_layernorm"};

typedef struct Falcon {
    Dims d;
    Mamba2 mamba;
    const Rope *rope;
    bool raw; /* the weights do not contain the multipliers */
    bool bias, mlp_bias;
    float key, attention_in, attention_out, ssm_out, gate, down; /* multipliers; 1 where the weights contain them */
} Falcon;

/* Multiplier i of a list. */
static float listed(Loader *ld, const char *field, int count, int i) {
    const Json *list = load_list(ld, field, count), *item = list ? family_item(list, i) : NULL;
    if (!list) return 1;
    load_require(ld, item && json_is_number(item) && json_number(item) > 0 && json_number(item) < 1e30,
        "%s must be %d numbers above 0", field, count);
    return item && json_is_number(item) ? (float)json_number(item) : 1;
}

static Mamba2 load_sizes(Loader *ld, const Dims *d, bool raw) {
    const int heads = load_int(ld, "mamba_n_heads"), expand = load_int_or(ld, "mamba_expand", 2);
    const bool wide = (int64_t)expand * d->hidden > MATRIX_COLS_MAX;
    load_require(ld, !wide, "mamba_expand is %d, at most %d channels can be", expand, MATRIX_COLS_MAX);
    const int absent = wide || !load_null(ld, "mamba_d_ssm") ? 1024 : expand * d->hidden;
    const int inner = load_int_or(ld, "mamba_d_ssm", absent);
    Mamba2 m = {.hidden = d->hidden,
        .heads = heads,
        .head_dim = family_mamba2_head_dim(ld, "mamba_d_head", inner, heads),
        .state = load_int(ld, "mamba_d_state"),
        .groups = load_int_or(ld, "mamba_n_groups", 1),
        .taps = load_int_or(ld, "mamba_d_conv", 4),
        .bias = load_bool_or(ld, "mamba_proj_bias", false),
        .out_bias = load_bool_or(ld, "projectors_bias", false),
        .conv_bias = load_bool_or(ld, "mamba_conv_bias", true),
        .eps = d->eps,
        .norm_first = load_bool_or(ld, "mamba_norm_before_gate", true)};
    family_mamba2_check(ld, &m);
    load_require(
        ld, inner == (int64_t)m.heads * m.head_dim, "mamba_d_ssm is %d, not mamba_n_heads · mamba_d_head", inner);
    if (load_bool_or(ld, "mamba_rms_norm", false)) m.norm_group = inner / m.groups;
    float *const scales[] = {&m.z_scale, &m.x_scale, &m.b_scale, &m.c_scale, &m.dt_scale};
    const float in = load_positive_or(ld, "ssm_in_multiplier", 1);
    for (int i = 0; i < 5; i++) {
        const float each = listed(ld, "ssm_multipliers", 5, i);
        if (raw) *scales[i] = in * each;
    }
    m.in_scale = raw ? in : 1;
    return m;
}

static bool has_biases(const Falcon *f) { return f->bias || f->mlp_bias || f->mamba.bias || f->mamba.out_bias; }

static bool has_no_multipliers(Loader *ld) {
    static const char *const fields[] = {
        "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"};
    bool none = true;
    for (size_t i = 0; i < COUNT_OF(fields); i++) none = none && load_positive_or(ld, fields[i], 1) == 1;
    for (int i = 0; i < 5; i++) none = none && listed(ld, "ssm_multipliers", 5, i) == 1;
    return none && listed(ld, "mlp_multipliers", 2, 0) == 1 && listed(ld, "mlp_multipliers", 2, 1) == 1;
}

static Falcon load_fields(Loader *ld, Spec *spec) {
    Falcon f = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5}),
        .bias = load_bool_or(ld, "attention_bias", false),
        .mlp_bias = load_bool_or(ld, "mlp_bias", false),
        .key = load_positive_or(ld, "key_multiplier", 1),
        .attention_in = load_positive_or(ld, "attention_in_multiplier", 1),
        .attention_out = load_positive_or(ld, "attention_out_multiplier", 1),
        .ssm_out = load_positive_or(ld, "ssm_out_multiplier", 1),
        .gate = listed(ld, "mlp_multipliers", 2, 0),
        .down = listed(ld, "mlp_multipliers", 2, 1)};
    load_scope(ld, "model.layers.0.");
    const bool raw = f.raw = load_has_torch_conv(ld, "mamba.conv1d");
    f.mamba = load_sizes(ld, &f.d, raw);
    f.rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = f.d.head_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_require(ld, raw || !has_biases(&f) || has_no_multipliers(ld),
        "biases in a file whose weights contain the multipliers, which MLX's converter does not apply to biases");
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "attn_layer_indices", "mamba_chunk_size", "mamba_use_mlp", "mlp_expansion_factor",
        "num_logits_to_keep", NULL);
    const float embedding = load_positive_or(ld, "embedding_multiplier", 1);
    const float head = load_positive_or(ld, "lm_head_multiplier", 1);
    family_ends_named(ld, spec, &f.d, "model.embed_tokens", "model.final_layernorm");
    if (raw) {
        spec->embedding_scale = embedding;
        spec->logit_scale = head;
        return f;
    }
    if (spec->tied) spec->logit_scale = head / embedding;
    f.attention_out = f.ssm_out = f.gate = f.down = 1;
    return f;
}

static Component load_attention(Loader *ld, const Falcon *f) {
    AttentionComponent a = family_attention(ld, &f->d, "o_proj", f->rope, f->bias, f->bias);
    a.op.scale *= f->key * (f->raw ? f->attention_in * f->attention_in : 1);
    a.value_scale = f->attention_in;
    Weight *const inputs[] = {&a.q, &a.k, &a.v, &a.o}; /* the multiplier is of the input: it reaches no bias */
    for (size_t i = 0; f->raw && i < COUNT_OF(inputs); i++) family_divide_bias(ld, inputs[i], f->attention_in);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = a};
}

static void load(Loader *ld, Spec *spec) {
    const Falcon f = load_fields(ld, spec);
    const Dims *d = &f.d;
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &f), mamba = family_mamba2(ld, "mamba", &f.mamba);
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu = {
                .gate = load_scaled(ld, "feed_forward.gate_proj", d->intermediate_size, d->hidden, f.mlp_bias, f.gate),
                .up = load_linear(ld, "feed_forward.up_proj", d->intermediate_size, d->hidden, f.mlp_bias),
                .down = load_linear(ld, "feed_forward.down_proj", d->hidden, d->intermediate_size, f.mlp_bias),
                .activation = {.kind = ACT_SILU}}};
        Component *first = family_add(spec, layer, &attention);
        first->input_norm = load_rms(ld, norms.attention_input, d->hidden, d->eps);
        first->residual_scale = f.attention_out;
        Component *beside = family_add(spec, layer, &mamba);
        beside->parallel = true;
        beside->residual_scale = f.ssm_out;
        Component *last = family_add(spec, layer, &ffn);
        last->input_norm = load_rms(ld, norms.ffn_input, d->hidden, d->eps);
        last->residual_scale = f.down;
    }
}

const Family falcon_h1_family = {.load = load, .gguf = &falcon_h1_gguf};
