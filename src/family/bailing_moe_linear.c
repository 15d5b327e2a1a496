/* Ring-linear and Ling-linear (bailing_moe_linear): lightning attention, and attention in the last layer of each group;
 * experts as bailing_moe's. Reference: mlx_lm/models/bailing_moe_linear.py. (The publisher's code lets the decay of
 * layer 0 follow the formula of the others, with layer number −1; mlx-lm takes 0 there. Other ports differ again.) */
#include "family/bailing.h"
#include "family/recurrent.h"

#include <math.h>

typedef struct Ring {
    Dims d;
    Bailing b;
    const Rope *rope, *linear_rope;
    int group, norm_groups;
} Ring;

Component bailing_lightning(
    Loader *ld, const Dims *d, const Bailing *b, int size, const Rope *rope, int norm_groups, double factor) {
    const int64_t width = (int64_t)d->heads * size;
    const Weight qkv = load_linear(ld, "attention.query_key_value", 3 * width, d->hidden, b->qkv_bias);
    int regular = 1;
    while (2 * regular <= d->heads) regular *= 2;
    RecurrentComponent c = {.op = {.kind = RECURRENCE_SSD,
                                .key_heads = d->heads,
                                .value_heads = d->heads,
                                .key_dim = size,
                                .value_dim = size,
                                .rope = rope,
                                .q_scale = 1 / sqrtf((float)size),
                                .k_scale = 1,
                                .dt_scale = 1,
                                .dt_max = INFINITY},
        .gated_norm = {.group = width / norm_groups, .eps = d->eps, .gate_kind = GATE_SIGMOID, .gate_scale = 1},
        .q = load_part(&qkv, 0, width),
        .k = load_part(&qkv, width, width),
        .v = load_part(&qkv, 2 * width, width),
        .gate = load_linear(ld, "attention.g_proj", width, d->hidden, false),
        .o = load_linear(ld, "attention.dense", d->hidden, width, b->bias)};
    if (b->norms) {
        c.op.q_norm = load_rms(ld, "attention.query_layernorm", size, d->eps);
        c.op.k_norm = load_rms(ld, "attention.key_layernorm", size, d->eps);
    }
    c.op.rate = family_slopes(ld, d->heads, regular, factor);
    c.gated_norm.weight = load_vector(ld, "attention.g_norm.weight", width, 0);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = c};
}

static Component load_lightning(Loader *ld, const Ring *r, int i, int layers) {
    const double place = (double)(i > 1 ? i - 1 : 0) / (layers > 2 ? layers - 1 : 1);
    return bailing_lightning(
        ld, &r->d, &r->b, r->d.hidden / r->d.heads, r->linear_rope, r->norm_groups, 1 - place + 1e-5);
}

static void load(Loader *ld, Spec *spec) {
    Ring r = {.d = family_dims(ld, spec),
        .group = load_int(ld, "layer_group_size"),
        .norm_groups = load_int_or(ld, "group_norm_size", 1)};
    const int size = r.d.hidden / r.d.heads;
    r.b = bailing_open(ld, &r.d);
    r.rope = bailing_rope(ld, r.d.head_dim);
    r.linear_rope = bailing_rope(ld, size);
    family_check_recurrence(ld, "lightning attention", r.d.heads, r.d.heads, size, size);
    load_require(
        ld, r.d.hidden % r.d.heads == 0, "hidden_size is %d, which %d heads do not divide", r.d.hidden, r.d.heads);
    load_require(ld, r.d.hidden % r.norm_groups == 0, "group_norm_size is %d, which does not divide the heads' results",
        r.norm_groups);
    load_ignore(ld, "linear_attn_norm_group_size", "linear_silu", "linear_mode", "use_linear_silu", NULL);
    bailing_ends(ld, spec, &r.d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool whole = (i + 1) % r.group == 0 || i >= spec->layer_count / r.group * r.group;
        const Component mixer =
            whole ? bailing_attention(ld, &r.d, &r.b, r.rope) : load_lightning(ld, &r, i, spec->layer_count);
        bailing_block(ld, spec, i, &r.d, &r.b, &mixer);
    }
}

const Family bailing_moe_linear_family = {.load = load};
