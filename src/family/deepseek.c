/* DeepSeek-V2 and V3 (R1, Kimi-K2, the text model of Kimi-K2.5): MLA, MoE blocks after the first layers. V2 uses the
 * softmax over all experts, V3 sigmoids with a bias for the choice. Reference: mlx_lm/models/deepseek_v2.py,
 * deepseek_v3.py, kimi_k25.py. */
#include "family/gguf/models.h"
#include "family/mla.h"

static void load_v2(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    MoeComponent *moe = &s.moe.moe;
    moe->scale = load_positive_or(ld, "routed_scaling_factor", 1);
    if (load_text_is(ld, "topk_method", "group_limited_greedy")) {
        moe->groups = load_int(ld, "n_group");
        moe->topk_group = load_int(ld, "topk_group");
        moe->group_best = true;
    }
    load_expect_text(ld, "scoring_func", "softmax");
    load_expect_bool(ld, "norm_topk_prob", false);
    load_ignore(ld, "n_group", "topk_group", NULL);
    mla_load_blocks(ld, spec, &s);
}

static void load_v3(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    s.moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 2.5);
    load_expect_text(ld, "scoring_func", "sigmoid");
    mla_load_blocks(ld, spec, &s);
}

static void load_kimi_k25(Loader *ld, Spec *spec) {
    load_text_part(ld);
    load_v3(ld, spec);
}

const Family deepseek_v2_family = {.load = load_v2, .gguf = &deepseek_v2_gguf};
const Family deepseek_v3_family = {.load = load_v3, .gguf = &deepseek_v3_gguf};
const Family kimi_k25_family = {.load = load_kimi_k25};
