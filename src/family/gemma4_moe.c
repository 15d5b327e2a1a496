/* The experts of Gemma 4 26B-A4B, beside a feed-forward network whose result is added. Reference:
 * mlx_lm/models/gemma4_text.py. */
#include "family/gemma.h"

#include <math.h>

GemmaExperts gemma_experts(Loader *ld) {
    if (!load_bool_or(ld, "enable_moe_block", false)) return (GemmaExperts){0};
    const GemmaExperts e = {.count = load_int(ld, "num_experts"),
        .top_k = load_int(ld, "top_k_experts"),
        .intermediate_size = load_int(ld, "moe_intermediate_size")};
    load_require(ld, e.top_k <= e.count && e.top_k <= EXPERTS_USED_MAX, "top_k_experts is %d of %d, at most %d",
        e.top_k, e.count, EXPERTS_USED_MAX);
    return e;
}

MoeComponent gemma_moe(Loader *ld, const Dims *d, const GemmaExperts *e, GluComponent dense) {
    const int hidden = d->hidden, inner = e->intermediate_size;
    MoeComponent moe = {.experts = e->count,
        .top_k = e->top_k,
        .score = ROUTE_TOP_SOFTMAX,
        .scale = 1,
        .activation = dense.activation,
        .dense = dense};
    moe.router = load_linear(ld, "router.proj", e->count, hidden, false);
    moe.router_norm = load_rms_times(ld, "router.scale", hidden, d->eps, 1 / sqrtf((float)hidden));
    moe.expert_scale = load_vector(ld, "router.per_expert_scale", e->count, 0);
    if (load_has(ld, "experts.gate_up_proj")) { /* as published */
        moe.gate = load_experts(ld, "experts.gate_up_proj", NULL, e->count, 0, 2 * (int64_t)inner, hidden, false);
        moe.up = load_halves(ld, moe.gate, e->count, 0);
        moe.down = load_experts(ld, "experts.down_proj", NULL, e->count, 0, hidden, inner, false);
    } else {
        moe.gate = load_experts(ld, "experts.switch_glu.gate_proj", NULL, e->count, 0, inner, hidden, false);
        moe.up = load_experts(ld, "experts.switch_glu.up_proj", NULL, e->count, 0, inner, hidden, false);
        moe.down = load_experts(ld, "experts.switch_glu.down_proj", NULL, e->count, 0, hidden, inner, false);
    }
    moe.dense_input_norm = load_rms(ld, "pre_feedforward_layernorm", hidden, d->eps);
    moe.dense_output_norm = load_rms(ld, "post_feedforward_layernorm_1", hidden, d->eps);
    moe.experts_output_norm = load_rms(ld, "post_feedforward_layernorm_2", hidden, d->eps);
    return moe;
}
