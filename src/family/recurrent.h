/* Layers with a recurrent state that several families have, under the names of MLX's and publishers' files. */
#pragma once
#include "family/family.h"

/* Sizes that the recurrent operations cannot compute are errors. what: the layer's name, for messages. */
void family_check_recurrence(Loader *ld, const char *what, int key_heads, int value_heads, int key_dim, int value_dim);
void family_check_taps(Loader *ld, int taps);

/* Whether layer i is `recurrent`; otherwise it must be `attention`. types: layer_types of that field, counted. What is
 * called mamba and attention may also be called linear_attention and full_attention. */
bool family_is_recurrent(
    Loader *ld, const char *field, const Json *types, int i, const char *recurrent, const char *attention);

/* NAME.weight [channels, taps], and NAME.bias if `bias`, as parts with these channels, in the file's order. */
Conv family_conv(Loader *ld, const char *name, int taps, bool bias, const int64_t *channels, int count);

/* LFM's gated short convolution: conv.in_proj, conv.conv, conv.out_proj. */
Component family_short_conv(Loader *ld, int64_t hidden, int taps, bool bias);

/* ---- gated delta nets ---- */

typedef struct DeltaNet {
    int hidden, key_heads, value_heads, key_dim, value_dim, taps;
    bool tiled; /* Recurrence.tiled: files made from GGUF say so */
    float eps;
} DeltaNet;

/* linear_num_key_heads and the like. */
DeltaNet family_delta_net_open(Loader *ld, const Dims *dims);
/* linear_attn: in_proj_qkv and z, or in_proj_qkvz; in_proj_b and a, or in_proj_ba; conv1d, A_log, dt_bias, norm,
 * out_proj. */
Component family_delta_net(Loader *ld, const DeltaNet *net);

/* ---- Kimi delta attention ---- */

typedef struct DeltaAttention {
    int hidden, heads, head_dim, taps;
    float eps;
    float bound; /* log w lies between −bound and 0: −bound · σ(e^A_log · (a + dt_bias)); 0: no bound */
} DeltaAttention;

/* self_attn: q_proj, k_proj and v_proj with a convolution each, f_proj (decays), or f_a_proj and f_b_proj, b_proj,
 * g_proj (gate), or g_a_proj and g_b_proj, A_log, dt_bias, o_norm, o_proj. The decay is of each element of a key. */
Component family_delta_attention(Loader *ld, const DeltaAttention *attention);

/* ---- Mamba-2 ---- */

typedef struct Mamba2 {
    int hidden, heads, head_dim, state, groups, taps;
    bool bias, out_bias, conv_bias;
    float eps, dt_min, dt_max;
    int64_t norm_group;                                 /* elements of a group of the gated norm; 0: there is no norm */
    bool norm_first;                                    /* the norm is before the gate, not behind it */
    float in_scale;                                     /* multiplies in_proj's input; the scales below contain it */
    float z_scale, x_scale, b_scale, c_scale, dt_scale; /* multiply the parts of in_proj's result */
} Mamba2;

/* time_step_limit into dt_min and dt_max, absent: no limits; and all scales 1. Checks the sizes. */
void family_mamba2_check(Loader *ld, Mamba2 *m);
/* A field that is a number or "auto", which is also what its absence means: inner / heads. */
int family_mamba2_head_dim(Loader *ld, const char *field, int inner, int heads);
/* HOME.in_proj [z, x, B, C, dt], conv1d [x, B, C], A_log, D, dt_bias, norm, out_proj. */
Component family_mamba2(Loader *ld, const char *home, const Mamba2 *m);

/* ---- Mamba-1 ---- */

typedef struct Mamba1 {
    int hidden, inner, state, rank, taps;
    bool bias, conv_bias;
    float eps;
    bool norms;           /* dt, B and C are normalised … */
    const char *names[3]; /* … with the weights of these norms; NULL: with ones */
} Mamba1;

/* A field that is a number or "auto", which is hidden / 16 rounded up. */
int family_mamba_rank(Loader *ld, const char *field, int hidden);
/* HOME.in_proj [x, z], conv1d, x_proj [dt, B, C], dt_proj, A_log, D, out_proj. */
Component family_mamba1(Loader *ld, const char *home, const Mamba1 *m);

/* ---- lightning attention ---- */

/* −slope of each head: factor · 2^(−8 (h + 1) / regular) of the first `regular` heads; those behind lie between the
 * first ones, as in ALiBi (arXiv 2108.12409). */
const float *family_slopes(Loader *ld, int heads, int regular, double factor);
