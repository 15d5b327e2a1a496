/* PLaMo 2 and 3 (Preferred Networks): sandwich norms whose weights are stored without 1, 1/5 or 5^−1.5, norms on q and
 * k, fused projections. PLaMo 2 has Mamba layers between, whose time steps and decays are those of heads; PLaMo 3 has
 * windows with a theta of their own. A window of n has n keys before the row's own. References:
 * mlx_lm/models/plamo2.py, plamo3.py; the window of PLaMo 2: its publisher's code. */
#include "family/recurrent.h"

#include <math.h>

typedef struct Plamo {
    Dims d;
    int channels, heads, state, rank, taps, step; /* sizes of Mamba layers; step 0: there are none */
} Plamo;

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope, int window) {
    AttentionComponent attention = family_fused_attention(ld, d, "mixer.qkv_proj", "mixer.o_proj", rope, false, false);
    attention.op.window = window;
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

/* A layer with the mixer and a gated network. */
static void add_layer(Loader *ld, Spec *spec, int i, const Dims *d, const Component *mixer) {
    static const NormNames norms = {
        load_rms_plus_one, .attention_input = "pre_mixer_norm", .ffn_input = "pre_mlp_norm"};
    const Component ffn = {.kind = COMPONENT_GLU,
        .glu = family_fused_glu(ld, "mlp.gate_up_proj", "mlp.down_proj", d->hidden, d->intermediate_size,
            (Activation){.kind = ACT_SILU}, false)};
    Layer *layer = family_block(ld, spec, i, &(Block){.dims = d, .norms = &norms, .attention = mixer, .ffn = &ffn});
    layer->components[0].output_norm = load_rms_plus(ld, "post_mixer_norm", d->hidden, d->eps, 0.2f);
    layer->components[1].output_norm =
        load_rms_plus(ld, "post_mlp_norm", d->hidden, d->eps, (float)(1 / (5 * sqrt(5))));
}

static void load_ends(Loader *ld, Spec *spec, const Dims *d) {
    static const LoadName names[] = {{"model.layers", "model.layers.layers"}, {0}};
    load_module_names(ld, names);
    load_expect_text(ld, "linear_type", "normal");
    load_ignore(ld, "image_token_id", "image_feature_size", "image_proj_type", "fp8_accum_dtype",
        "eval_attention_n_bit", "eval_mlp_n_bit", NULL);
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", load_rms_plus_one,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
}

/* values [heads, width] for each channel of a head: Mamba-1 has a decay and a time step for each channel. */
static const float *for_channels(Loader *ld, const Plamo *p, const float *values, int64_t width) {
    float *out = load_floats(ld, p->channels * width);
    const int each = p->channels / p->heads;
    for (int64_t i = 0; out && values && i < p->channels * width; i++)
        out[i] = values[i / width / each * width + i % width];
    return out;
}

static Weight load_time_step(Loader *ld, const Plamo *p) {
    const Weight heads = load_linear(ld, "mixer.dt_proj", p->heads, p->rank, false);
    float *rows = load_floats(ld, (int64_t)p->heads * p->rank);
    for (int h = 0; rows && heads.data && h < p->heads; h++)
        weight_dequantize_row(&heads, h, 0, p->rank, rows + (int64_t)h * p->rank);
    return (Weight){.rows = p->channels,
        .cols = p->rank,
        .dtype = DTYPE_F32,
        .data = for_channels(ld, p, rows, p->rank),
        .bias = for_channels(ld, p, load_vector(ld, "mixer.dt_bias", p->heads, 0), 1)};
}

static Component load_mamba(Loader *ld, const Plamo *p) {
    const int64_t head = p->channels / p->heads, state = p->state;
    const Weight parts = load_linear(ld, "mixer.bcdt_proj", p->rank + 2 * state, p->channels, false);
    MambaComponent mamba = {.op.state = p->state,
        .conv = family_conv(ld, "mixer.conv1d", p->taps, false, (const int64_t[]){p->channels}, 1),
        .gated_norm = {.gate_kind = GATE_SILU, .gate_scale = 1},
        .o = load_linear(ld, "mixer.out_proj", p->d.hidden, p->channels, false),
        .b = load_part(&parts, 0, state),
        .c = load_part(&parts, state, state),
        .dt_low = load_part(&parts, 2 * state, p->rank),
        .dt = load_time_step(ld, p),
        .dt_norm = load_rms_times(ld, "mixer.dt_norm_weight", p->rank, p->d.eps, 1),
        .b_norm = load_rms_times(ld, "mixer.B_norm_weight", state, p->d.eps, 1),
        .c_norm = load_rms_times(ld, "mixer.C_norm_weight", state, p->d.eps, 1)};
    Weight *const halves[] = {&mamba.gate, &mamba.in};
    for (int i = 0; i < 2; i++)
        *halves[i] = load_row_blocks(ld, "mixer.in_proj", 2 * p->channels, p->d.hidden, false,
            (RowBlocks){.first = i * head, .size = head, .stride = 2 * head, .count = p->heads});
    const float *rates = load_rate(ld, "mixer.", p->heads, 1);
    float *all = load_floats(ld, p->heads * state);
    for (int64_t i = 0; all && rates && i < p->heads * state; i++) all[i] = rates[i / state];
    mamba.op.rate = for_channels(ld, p, all, state);
    mamba.op.skip = for_channels(ld, p, load_vector(ld, "mixer.D", p->heads, 0), 1);
    return (Component){.kind = COMPONENT_MAMBA, .mamba = mamba};
}

static Plamo load_sizes(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"head_dim", "hidden_size_per_head"}, {0}};
    load_field_names(ld, fields);
    Plamo p = {.d = family_sizes(ld, spec, &(Sizes){.kv_heads = 4, .head_dim = 128, .eps = 1e-6}),
        .heads = load_int_or(ld, "mamba_num_heads", 64),
        .state = load_int_or(ld, "mamba_d_state", 64),
        .taps = load_int_or(ld, "mamba_d_conv", 4)};
    p.channels = p.heads * p.d.head_dim;
    p.rank = p.d.hidden / 16 > 64 ? p.d.hidden / 16 : 64;
    p.step = load_bool_or(ld, "mamba_enabled", true) ? load_int_or(ld, "mamba_step", 2) : 0;
    load_require(ld, p.step != 1, "mamba_step must be 2 or more");
    load_require(ld, p.state <= RECURRENT_DIM_MAX, "a state of %d, at most %d can be", p.state, RECURRENT_DIM_MAX);
    load_require(ld, p.channels % MAMBA_SLICE_TOKENS == 0, "%d channels of Mamba, must be a multiple of %d", p.channels,
        MAMBA_SLICE_TOKENS);
    family_check_taps(ld, p.taps);
    load_ignore(ld, "mamba_chunk_size", "sliding_window", NULL);
    return p;
}

static void load_plamo2(Loader *ld, Spec *spec) {
    const Plamo p = load_sizes(ld, spec);
    const Dims *d = &p.d;
    const Json *full = load_list(ld, "full_attention_idx", -1);
    const int window = load_int_or(ld, "attention_window_size", 2048) + 1;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d->head_dim, .own_theta = 10000});
    load_ends(ld, spec, d);
    for (int i = 0; i < spec->layer_count; i++) {
        const int middle = p.step / 2;
        family_layer(ld, spec, i);
        const bool mamba = p.step && (spec->layer_count <= middle ? i != spec->layer_count - 1 : i % p.step != middle);
        Component mixer = mamba ? load_mamba(ld, &p) : load_attention(ld, d, rope, family_listed(full, i) ? 0 : window);
        if (!mamba) {
            mixer.attention.head_norm = load_rms(ld, NULL, d->head_dim, 1e-6f);
            mixer.attention.q_factors = load_array(ld, "mixer.q_weight", d->heads, d->head_dim);
            mixer.attention.k_factors = load_array(ld, "mixer.k_weight", d->kv_heads, d->head_dim);
        }
        add_layer(ld, spec, i, d, &mixer);
    }
}

static void load_plamo3(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.kv_heads = 4, .head_dim = 128, .eps = 1e-6});
    const int own = load_int_or(ld, "window_size", 2048), window = load_int_or(ld, "sliding_window", own) + 1;
    const int every = load_int_or(ld, "sliding_window_pattern", 8);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 1e6}),
               *local = load_rope(
                   ld, &(RopeOptions){.head_dim = d.head_dim, .theta_field = "rope_local_theta", .theta = 10000});
    load_ends(ld, spec, &d);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool full = (i + 1) % every == 0;
        family_layer(ld, spec, i);
        Component mixer = load_attention(ld, &d, full ? rope : local, full ? 0 : window);
        mixer.attention.op.q_norm = load_rms_plus_one(ld, "mixer.q_norm", d.head_dim, d.eps);
        mixer.attention.op.k_norm = load_rms_plus_one(ld, "mixer.k_norm", d.head_dim, d.eps);
        add_layer(ld, spec, i, &d, &mixer);
    }
}

const Family plamo2_family = {.load = load_plamo2};
const Family plamo3_family = {.load = load_plamo3};
