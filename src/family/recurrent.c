/* Layers with a recurrent state: what the families that have them share. Sources: mlx_lm/models/qwen3_next.py, ssm.py,
 * mamba.py; transformers/models/mamba2, whose norm runs over groups as that of training does. */
#include "family/recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void family_check_recurrence(Loader *ld, const char *what, int key_heads, int value_heads, int key_dim, int value_dim) {
    load_require(ld, key_dim <= RECURRENT_DIM_MAX && value_dim <= RECURRENT_DIM_MAX,
        "%s has a state of %d × %d per head, at most %d × %d can be", what, key_dim, value_dim, RECURRENT_DIM_MAX,
        RECURRENT_DIM_MAX);
    load_require(ld, value_heads % key_heads == 0, "%s has %d heads, not a multiple of its %d key heads or groups",
        what, value_heads, key_heads);
}

void family_check_taps(Loader *ld, int taps) {
    load_require(ld, taps <= CONV_TAPS_MAX, "a convolution over %d positions, at most %d can be", taps, CONV_TAPS_MAX);
}

/* Whether a layer has this kind, or what transformers calls the same since its version 5. */
static bool is_kind(Slice name, const char *kind) {
    const bool mamba = strcmp(kind, "mamba") == 0, attention = strcmp(kind, "attention") == 0;
    return slice_is(name, kind) || (mamba && slice_is(name, "linear_attention")) ||
        (attention && slice_is(name, "full_attention"));
}

bool family_is_recurrent(
    Loader *ld, const char *field, const Json *types, int i, const char *recurrent, const char *attention) {
    const Json *type = family_item(types, i);
    const Slice name = type->type == JSON_STRING ? json_slice(type) : (Slice){0};
    const bool is = is_kind(name, recurrent);
    load_require(ld, is || is_kind(name, attention), "%s[%d] is \"%.*s\", must be %s or %s", field, i,
        SLICE_SHOWN(name), recurrent, attention);
    return is;
}

static const float *offset(const float *from, int64_t by) { return from ? from + by : NULL; }

/* HOME.NAME, exactly. */
static const float *vector_of(Loader *ld, const char *home, const char *name, int64_t count) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", home, name);
    return load_array(ld, full, count, 1);
}

static Weight linear_of(Loader *ld, const char *home, const char *name, int64_t rows, int64_t cols, bool bias) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", home, name);
    return load_linear(ld, full, rows, cols, bias);
}

Conv family_conv(Loader *ld, const char *name, int taps, bool bias, const int64_t *channels, int count) {
    char full[96];
    int64_t all = 0;
    for (int i = 0; i < count; i++) all += channels[i];
    snprintf(full, sizeof full, "%s.weight", name);
    const float *weight = load_array(ld, full, all, taps);
    snprintf(full, sizeof full, "%s.bias", name);
    const float *biases = bias ? load_vector(ld, full, all, 0) : NULL;
    Conv conv = {.taps = taps, .silu = true};
    for (int i = 0, first = 0; i < count; first += (int)channels[i++]) {
        conv.part[i].weight = offset(weight, (int64_t)first * taps);
        conv.part[i].bias = offset(biases, first);
    }
    return conv;
}

Component family_short_conv(Loader *ld, int64_t hidden, int taps, bool bias) {
    const Weight in = load_linear(ld, "conv.in_proj", 3 * hidden, hidden, bias);
    ShortConvComponent c = {.conv = family_conv(ld, "conv.conv", taps, bias, &hidden, 1),
        .in_gate = load_part(&in, 0, hidden),
        .out_gate = load_part(&in, hidden, hidden),
        .in = load_part(&in, 2 * hidden, hidden),
        .o = load_linear(ld, "conv.out_proj", hidden, hidden, bias)};
    c.conv.silu = false;
    return (Component){.kind = COMPONENT_SHORT_CONV, .short_conv = c};
}

/* ---- gated delta nets ---- */

DeltaNet family_delta_net_open(Loader *ld, const Dims *dims) {
    const DeltaNet net = {.hidden = dims->hidden,
        .key_heads = load_int(ld, "linear_num_key_heads"),
        .value_heads = load_int(ld, "linear_num_value_heads"),
        .key_dim = load_int(ld, "linear_key_head_dim"),
        .value_dim = load_int(ld, "linear_value_head_dim"),
        .taps = load_int_or(ld, "linear_conv_kernel_dim", 4),
        .tiled = load_bool_or(ld, "linear_value_heads_tiled", false),
        .eps = dims->eps};
    family_check_recurrence(ld, "linear attention", net.key_heads, net.value_heads, net.key_dim, net.value_dim);
    family_check_taps(ld, net.taps);
    return net;
}

/* in_proj_qkvz: of each key head its query, key, values and gates one below the other. */
static void load_inputs(Loader *ld, const DeltaNet *n, RecurrentComponent *c) {
    const int64_t heads = n->key_heads, key = n->key_dim,
                  value = (int64_t)(n->value_heads / n->key_heads) * n->value_dim;
    const int64_t all = 2 * key + 2 * value;
    if (!load_has(ld, "linear_attn.in_proj_qkvz.weight")) {
        const Weight qkv = load_linear(ld, "linear_attn.in_proj_qkv", heads * (2 * key + value), n->hidden, false);
        c->q = load_part(&qkv, 0, heads * key);
        c->k = load_part(&qkv, heads * key, heads * key);
        c->v = load_part(&qkv, 2 * heads * key, heads * value);
        c->gate = load_linear(ld, "linear_attn.in_proj_z", heads * value, n->hidden, false);
        return;
    }
    const char *name = "linear_attn.in_proj_qkvz";
    c->q = load_row_blocks(ld, name, heads * all, n->hidden, false, (RowBlocks){0, key, all, heads});
    c->k = load_row_blocks(ld, name, heads * all, n->hidden, false, (RowBlocks){key, key, all, heads});
    c->v = load_row_blocks(ld, name, heads * all, n->hidden, false, (RowBlocks){2 * key, value, all, heads});
    c->gate = load_row_blocks(ld, name, heads * all, n->hidden, false, (RowBlocks){2 * key + value, value, all, heads});
}

/* in_proj_ba: the same of β and the time step. */
static void load_gates(Loader *ld, const DeltaNet *n, RecurrentComponent *c) {
    const int64_t each = n->value_heads / n->key_heads, rows = 2 * (int64_t)n->value_heads;
    const char *name = "linear_attn.in_proj_ba";
    if (!load_has(ld, "linear_attn.in_proj_ba.weight")) {
        c->b = load_linear(ld, "linear_attn.in_proj_b", n->value_heads, n->hidden, false);
        c->a = load_linear(ld, "linear_attn.in_proj_a", n->value_heads, n->hidden, false);
        return;
    }
    c->b = load_row_blocks(ld, name, rows, n->hidden, false, (RowBlocks){0, each, 2 * each, n->key_heads});
    c->a = load_row_blocks(ld, name, rows, n->hidden, false, (RowBlocks){each, each, 2 * each, n->key_heads});
}

Component family_delta_net(Loader *ld, const DeltaNet *n) {
    const int64_t keys = (int64_t)n->key_heads * n->key_dim, values = (int64_t)n->value_heads * n->value_dim;
    const float key_dim = (float)n->key_dim;
    const Norm *l2 = load_rms(ld, NULL, n->key_dim, 1e-6f / key_dim);
    RecurrentComponent net = {.op = {.kind = RECURRENCE_DELTA,
                                  .key_heads = n->key_heads,
                                  .value_heads = n->value_heads,
                                  .tiled = n->tiled,
                                  .key_dim = n->key_dim,
                                  .value_dim = n->value_dim,
                                  .q_norm = l2,
                                  .k_norm = l2,
                                  .q_scale = 1 / key_dim,
                                  .k_scale = 1 / sqrtf(key_dim),
                                  .dt_scale = 1,
                                  .dt_max = INFINITY},
        .conv = family_conv(ld, "linear_attn.conv1d", n->taps, false, (const int64_t[]){keys, keys, values}, 3),
        .gated_norm = {.group = n->value_dim, .eps = n->eps, .gate_kind = GATE_SILU, .gate_scale = 1},
        .o = load_linear(ld, "linear_attn.out_proj", n->hidden, values, false)};
    load_inputs(ld, n, &net);
    load_gates(ld, n, &net);
    net.op.rate = load_rate(ld, "linear_attn.", n->value_heads, 1);
    net.op.dt_bias = load_vector(ld, "linear_attn.dt_bias", n->value_heads, 0);
    net.gated_norm.weight = load_repeated(ld, "linear_attn.norm.weight", n->value_dim, n->value_heads);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = net};
}

/* ---- Kimi delta attention ---- */

/* MLX has the convolutions as q_conv.conv, the publisher as q_conv1d. */
static ConvPart load_part_conv(Loader *ld, int taps, const char *of, int64_t width) {
    char name[48];
    snprintf(name, sizeof name, "self_attn.%s_conv1d.weight", of);
    const bool raw = load_has(ld, name);
    snprintf(name, sizeof name, raw ? "self_attn.%s_conv1d" : "self_attn.%s_conv.conv", of);
    return family_conv(ld, name, taps, false, &width, 1).part[0];
}

/* NAME_proj, or, where the file has NAME_a_proj, that one as *low, from which NAME_b_proj projects. */
static Weight load_low_rank(Loader *ld, const DeltaAttention *k, const char *of, Weight *low) {
    char name[48];
    const int64_t width = (int64_t)k->heads * k->head_dim;
    snprintf(name, sizeof name, "self_attn.%s_proj.weight", of);
    const bool whole = load_has(ld, name);
    snprintf(name, sizeof name, "self_attn.%s_proj", of);
    if (whole) return load_linear(ld, name, width, k->hidden, false);
    snprintf(name, sizeof name, "self_attn.%s_a_proj", of);
    *low = load_linear(ld, name, k->head_dim, k->hidden, false);
    snprintf(name, sizeof name, "self_attn.%s_b_proj", of);
    return load_linear(ld, name, width, k->head_dim, false);
}

/* Sets rate and slope of a bounded decay. The rate is −e^A_log before, in files made from GGUF e^A_log. */
static void load_bound(Loader *ld, const DeltaAttention *k, Recurrence *op) {
    float *rate = load_floats(ld, k->heads), *slope = load_floats(ld, k->heads);
    for (int h = 0; rate && slope && op->rate && h < k->heads; h++) {
        slope[h] = fabsf(op->rate[h]);
        rate[h] = -k->bound;
    }
    op->rate = rate;
    op->dt_slope = slope;
}

Component family_delta_attention(Loader *ld, const DeltaAttention *k) {
    const int64_t width = (int64_t)k->heads * k->head_dim, hidden = k->hidden;
    const float size = (float)k->head_dim;
    const Norm *l2 = load_rms(ld, NULL, k->head_dim, 1e-6f / size);
    RecurrentComponent c = {.op = {.kind = RECURRENCE_DELTA,
                                .channel_decay = true,
                                .key_heads = k->heads,
                                .value_heads = k->heads,
                                .key_dim = k->head_dim,
                                .value_dim = k->head_dim,
                                .q_norm = l2,
                                .k_norm = l2,
                                .q_scale = 1 / size,
                                .k_scale = 1 / sqrtf(size),
                                .dt_scale = 1,
                                .dt_max = INFINITY},
        .conv = {.taps = k->taps,
            .silu = true,
            .part = {load_part_conv(ld, k->taps, "q", width), load_part_conv(ld, k->taps, "k", width),
                load_part_conv(ld, k->taps, "v", width)}},
        .gated_norm = {.group = k->head_dim, .eps = k->eps, .gate_kind = GATE_SIGMOID, .gate_scale = 1},
        .q = load_linear(ld, "self_attn.q_proj", width, hidden, false),
        .k = load_linear(ld, "self_attn.k_proj", width, hidden, false),
        .v = load_linear(ld, "self_attn.v_proj", width, hidden, false),
        .b = load_linear(ld, "self_attn.b_proj", k->heads, hidden, false),
        .o = load_linear(ld, "self_attn.o_proj", hidden, width, false)};
    c.a = load_low_rank(ld, k, "f", &c.a_low);
    c.gate = load_low_rank(ld, k, "g", &c.gate_low);
    c.op.rate = load_rate(ld, "self_attn.", k->heads, 1);
    if (k->bound > 0) load_bound(ld, k, &c.op);
    c.op.dt_bias = load_array(ld, "self_attn.dt_bias", width, 1);
    c.gated_norm.weight = load_repeated(ld, "self_attn.o_norm.weight", k->head_dim, k->heads);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = c};
}

/* ---- Mamba-2 ---- */

/* A number, or {"__float__": "Infinity"}, as transformers writes what JSON lacks; else −1. */
static double limit_of(const Json *value) {
    const Json *tagged = json_get(value, "__float__");
    if (tagged && tagged->type == JSON_STRING && slice_is(json_slice(tagged), "Infinity")) return INFINITY;
    return json_is_number(value) ? json_number(value) : -1;
}

void family_mamba2_check(Loader *ld, Mamba2 *m) {
    const Json *limits = load_list(ld, "time_step_limit", 2);
    m->dt_max = INFINITY;
    if (limits) {
        const double low = limit_of(json_first(limits)), high = limit_of(family_item(limits, 1));
        load_require(
            ld, low >= 0 && high >= low, "time_step_limit must be two numbers from 0 on, the smaller one first");
        m->dt_min = (float)low;
        m->dt_max = (float)high;
    }
    m->in_scale = m->z_scale = m->x_scale = m->b_scale = m->c_scale = m->dt_scale = 1;
    family_check_recurrence(ld, "Mamba-2", m->groups, m->heads, m->state, m->head_dim);
    family_check_taps(ld, m->taps);
}

int family_mamba2_head_dim(Loader *ld, const char *field, int inner, int heads) {
    if (load_has_field(ld, field) && !load_text_is(ld, field, "auto")) return load_int(ld, field);
    load_require(ld, inner % heads == 0, "Mamba-2 has %d channels, not a multiple of its %d heads", inner, heads);
    return inner / heads > 0 ? inner / heads : 1;
}

/* Scales one part's weights, not its biases, which the scales do not reach. */
static void scale_part(Loader *ld, Conv *conv, int part, int64_t channels, float scale) {
    const float *from = conv->part[part].weight;
    float *to = from && scale != 1 ? load_floats(ld, channels * conv->taps) : NULL;
    for (int64_t i = 0; to && i < channels * conv->taps; i++) to[i] = from[i] * scale;
    if (to) conv->part[part].weight = to;
}

Component family_mamba2(Loader *ld, const char *home, const Mamba2 *m) {
    const int64_t inner = (int64_t)m->heads * m->head_dim, group = (int64_t)m->groups * m->state;
    Weight in = linear_of(ld, home, "in_proj", 2 * inner + 2 * group + m->heads, m->hidden, m->bias);
    char name[96];
    family_divide_bias(ld, &in, m->in_scale);
    snprintf(name, sizeof name, "%s.conv1d", home);
    Conv conv = family_conv(ld, name, m->taps, m->conv_bias, (const int64_t[]){inner, group, group}, 3);
    scale_part(ld, &conv, 0, inner, m->x_scale);
    scale_part(ld, &conv, 1, group, m->b_scale);
    scale_part(ld, &conv, 2, group, m->c_scale);
    const ConvPart x = conv.part[0];
    conv.part[0] = conv.part[2]; /* the recurrence's order: q = C, k = B, v = x */
    conv.part[2] = x;
    RecurrentComponent mamba = {.op = {.kind = RECURRENCE_SSD,
                                    .key_heads = m->groups,
                                    .value_heads = m->heads,
                                    .key_dim = m->state,
                                    .value_dim = m->head_dim,
                                    .q_scale = 1,
                                    .k_scale = 1,
                                    .dt_scale = m->dt_scale,
                                    .dt_min = m->dt_min,
                                    .dt_max = m->dt_max},
        .conv = conv,
        .gated_norm = {.group = m->norm_group,
            .eps = m->eps,
            .gate_kind = GATE_SILU,
            .gate_first = !m->norm_first,
            .gate_scale = m->z_scale},
        .gate = load_part(&in, 0, inner),
        .v = load_part(&in, inner, inner),
        .k = load_part(&in, 2 * inner, group),
        .q = load_part(&in, 2 * inner + group, group),
        .a = load_part(&in, 2 * inner + 2 * group, m->heads),
        .o = linear_of(ld, home, "out_proj", m->hidden, inner, m->out_bias)};
    snprintf(name, sizeof name, "%s.", home);
    mamba.op.rate = load_rate(ld, name, m->heads, 1);
    mamba.op.skip = vector_of(ld, home, "D", m->heads);
    mamba.op.dt_bias = vector_of(ld, home, "dt_bias", m->heads);
    if (m->norm_group) mamba.gated_norm.weight = vector_of(ld, home, "norm.weight", inner);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = mamba};
}

/* ---- Mamba-1 ---- */

int family_mamba_rank(Loader *ld, const char *field, int hidden) {
    return load_text_is(ld, field, "auto") ? (hidden + 15) / 16 : load_int_or(ld, field, (hidden + 15) / 16);
}

static const Norm *mamba_norm(Loader *ld, const char *home, const Mamba1 *m, int i, int64_t width) {
    char name[96];
    if (!m->norms) return NULL;
    if (m->names[i]) snprintf(name, sizeof name, "%s.%s", home, m->names[i]);
    return load_rms(ld, m->names[i] ? name : NULL, width, m->eps);
}

Component family_mamba1(Loader *ld, const char *home, const Mamba1 *m) {
    char name[96];
    load_require(ld, m->state <= RECURRENT_DIM_MAX, "a state of %d, at most %d can be", m->state, RECURRENT_DIM_MAX);
    load_require(ld, m->inner % MAMBA_SLICE_TOKENS == 0, "%d channels of Mamba, must be a multiple of %d", m->inner,
        MAMBA_SLICE_TOKENS);
    family_check_taps(ld, m->taps);
    const Weight in = linear_of(ld, home, "in_proj", 2 * (int64_t)m->inner, m->hidden, m->bias);
    const Weight x = linear_of(ld, home, "x_proj", m->rank + 2 * (int64_t)m->state, m->inner, false);
    snprintf(name, sizeof name, "%s.conv1d", home);
    MambaComponent mamba = {.op.state = m->state,
        .conv = family_conv(ld, name, m->taps, m->conv_bias, (const int64_t[]){m->inner}, 1),
        .gated_norm = {.gate_kind = GATE_SILU, .gate_scale = 1},
        .in = load_part(&in, 0, m->inner),
        .gate = load_part(&in, m->inner, m->inner),
        .o = linear_of(ld, home, "out_proj", m->hidden, m->inner, m->bias),
        .dt_low = load_part(&x, 0, m->rank),
        .b = load_part(&x, m->rank, m->state),
        .c = load_part(&x, m->rank + m->state, m->state),
        .dt = linear_of(ld, home, "dt_proj", m->inner, m->rank, true),
        .dt_norm = mamba_norm(ld, home, m, 0, m->rank),
        .b_norm = mamba_norm(ld, home, m, 1, m->state),
        .c_norm = mamba_norm(ld, home, m, 2, m->state)};
    snprintf(name, sizeof name, "%s.", home);
    mamba.op.rate = load_rate(ld, name, m->inner, m->state);
    mamba.op.skip = vector_of(ld, home, "D", m->inner);
    return (Component){.kind = COMPONENT_MAMBA, .mamba = mamba};
}

/* ---- lightning attention ---- */

const float *family_slopes(Loader *ld, int heads, int regular, double factor) {
    float *rate = load_floats(ld, heads);
    for (int h = 0; rate && h < heads; h++) {
        const double exponent = h < regular ? 8.0 * (h + 1) / regular : 4.0 * (2 * (h - regular) + 1) / regular;
        rate[h] = (float)(-factor * pow(2, -exponent));
    }
    return rate;
}

const float *family_alibi(Loader *ld, int heads) {
    int regular = 1;
    while (2 * regular <= heads) regular *= 2;
    return family_slopes(ld, heads, regular, -1);
}
