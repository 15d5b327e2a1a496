/* Mixtures of experts: what the families that have them share. */
#include <stdio.h>

#include "family/family.h"

const MoeNames moe_usual = {
    "mlp", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts", .bias = NULL};
const MoeNames moe_deepseek = {"mlp", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts",
    .bias = "gate.e_score_correction_bias"};

/* What keeps a sum of weights that are all 0 from being divided by; nothing beside any other. */
static const float tiny = 1e-20f;

Moe family_moe_open(Loader *ld, const MoeNames *names, int hidden, int intermediate_size, int experts, int used) {
    load_require(ld, used <= experts && used <= EXPERTS_USED_MAX,
        "%d experts are to be used, of %d experts at most %d can be", used, experts, EXPERTS_USED_MAX);
    return (Moe){.names = *names,
        .ffn = {.experts = experts, .used = used, .score = ROUTE_SOFTMAX, .scale = 1, .activation = ACT_SILU},
        .hidden = hidden,
        .intermediate_size = intermediate_size};
}

int family_moe_shared(Loader *ld, int each, int count) {
    const int64_t width = (int64_t)each * count;
    load_require(ld, width <= MATRIX_COLS_MAX, "%d shared experts of %d are too wide together, at most %d can be",
        count, each, MATRIX_COLS_MAX);
    return width <= MATRIX_COLS_MAX ? (int)width : 0;
}

void family_moe_sigmoid(Loader *ld, Moe *moe) {
    MoeFfn *ffn = &moe->ffn;
    const int groups = load_int_or(ld, "n_group", 1), topk_group = load_int_or(ld, "topk_group", 1);
    ffn->score = ROUTE_SIGMOID;
    ffn->norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true) && ffn->used > 1;
    ffn->epsilon = tiny;
    ffn->scale = load_positive_or(ld, "routed_scaling_factor", 1);
    ffn->groups = groups > 1 ? groups : 0;
    ffn->topk_group = groups > 1 ? topk_group : 0;
    load_expect_text(ld, "topk_method", "noaux_tc");
}

static Weight *bank(Loader *ld, const Moe *moe, const char *part, const char *single, int rows, int cols) {
    char stacked[96], one[96];
    snprintf(stacked, sizeof stacked, "%s.%s.%s", moe->names.home, moe->names.stack, part);
    snprintf(one, sizeof one, "%s.experts.%%d.%s", moe->names.home, single);
    return load_experts(ld, stacked, one, moe->ffn.experts, moe->shared > 0, rows, cols, moe->bias);
}

/* In the room behind the others. */
static void load_shared(Loader *ld, const Moe *moe, MoeFfn *ffn) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", moe->names.home, moe->names.shared);
    const GluFfn shared = family_glu_at(ld, name, moe->hidden, moe->shared, ffn->activation, moe->bias);
    if (!ffn->gate || !ffn->up || !ffn->down) return; /* has failed */
    ffn->shared = 1;
    ffn->gate[ffn->experts] = shared.gate;
    ffn->up[ffn->experts] = shared.up;
    ffn->down[ffn->experts] = shared.down;
}

static MoeFfn load_moe(Loader *ld, const Moe *moe) {
    MoeFfn ffn = moe->ffn;
    char name[96];
    snprintf(name, sizeof name, "%s.%s", moe->names.home, moe->names.router);
    ffn.router = load_linear(ld, name, ffn.experts, moe->hidden, moe->router_bias);
    if (moe->names.bias) {
        snprintf(name, sizeof name, "%s.%s", moe->names.home, moe->names.bias);
        ffn.correction_bias = load_vector(ld, name, ffn.experts, 0);
    }
    ffn.gate = bank(ld, moe, "gate_proj", moe->names.gate, moe->intermediate_size, moe->hidden);
    ffn.up = bank(ld, moe, "up_proj", moe->names.up, moe->intermediate_size, moe->hidden);
    ffn.down = bank(ld, moe, "down_proj", moe->names.down, moe->hidden, moe->intermediate_size);
    if (moe->shared > 0) load_shared(ld, moe, &ffn);
    return ffn;
}

void family_moe_layer(Loader *ld, Layer *layer, const Moe *moe, const Dims *d, bool mlp_bias) {
    if (!moe) {
        layer->glu = family_glu(ld, d, ACT_SILU, mlp_bias);
        return;
    }
    layer->ffn = FFN_MOE;
    layer->moe = load_moe(ld, moe);
}

/* --- GGUF ------------------------------------------------------------------------------------------------------ */

const GgufName gguf_head_norms[] = {
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", 0},
    {0},
};

const GgufName gguf_experts[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.switch_mlp.down_proj", 0},
    {0},
};

const GgufName gguf_shared[] = {
    {"blk.*.ffn_gate_shexp", "model.layers.*.mlp.shared_experts.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.mlp.shared_experts.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.mlp.shared_experts.down_proj", 0},
    {0},
};

const GgufField gguf_moe[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {0},
};
