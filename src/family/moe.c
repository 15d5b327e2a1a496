/* Mixtures of experts: what the families that have them share. */
#include <stdio.h>

#include "family/family.h"

const MoeNames moe_usual = {
    "mlp", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts", .bias = NULL};
const MoeNames moe_deepseek = {"mlp", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts",
    .bias = "gate.e_score_correction_bias"};

/* Keeps a sum of weights that are all 0 from being a divisor of 0; vanishes beside any other sum. */
static const float tiny = 1e-20f;

Moe family_moe_open(Loader *ld, const MoeNames *names, int hidden, int intermediate_size, int experts, int top_k) {
    load_require(ld, top_k <= experts && top_k <= EXPERTS_USED_MAX,
        "%d experts are to be used, of %d experts at most %d can be", top_k, experts, EXPERTS_USED_MAX);
    return (Moe){.names = *names,
        .moe =
            {.experts = experts, .top_k = top_k, .score = ROUTE_SOFTMAX, .scale = 1, .activation = {.kind = ACT_SILU}},
        .hidden = hidden,
        .intermediate_size = intermediate_size};
}

Moe family_moe_fields(Loader *ld, const MoeNames *names, int hidden, const char *experts) {
    const char *other = "num_local_experts"; /* transformers 5 saves it in place of some names */
    if (!load_has_field(ld, experts) && load_has_field(ld, other)) experts = other;
    return family_moe_open(ld, names, hidden, load_int(ld, "moe_intermediate_size"), load_int(ld, experts),
        load_int(ld, "num_experts_per_tok"));
}

int family_moe_shared(Loader *ld, int each, int count) {
    const int64_t width = (int64_t)each * count;
    load_require(ld, width <= MATRIX_COLS_MAX, "%d shared experts of %d are too wide together, at most %d can be",
        count, each, MATRIX_COLS_MAX);
    return width <= MATRIX_COLS_MAX ? (int)width : 0;
}

void family_moe_sigmoid(Loader *ld, Moe *moe) {
    MoeComponent *ffn = &moe->moe;
    const int groups = load_int_or(ld, "n_group", 1), topk_group = load_int_or(ld, "topk_group", 1);
    ffn->score = ROUTE_SIGMOID;
    ffn->norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true) && ffn->top_k > 1;
    ffn->epsilon = tiny;
    ffn->scale = load_positive_or(ld, "routed_scaling_factor", 1);
    ffn->groups = groups > 1 ? groups : 0;
    ffn->topk_group = groups > 1 ? topk_group : 0;
    load_expect_text(ld, "topk_method", "noaux_tc");
}

static Weight *bank(Loader *ld, const Moe *moe, const char *part, const char *single, int rows, int cols) {
    char stacked[96], one[96];
    const char *stack = moe->names.stack;
    snprintf(stacked, sizeof stacked, "%s%s%s.%s", moe->names.home, *stack ? "." : "", stack, part);
    snprintf(one, sizeof one, "%s.experts.%%d.%s", moe->names.home, single);
    return load_experts(ld, stacked, one, moe->moe.experts, moe->shared > 0, rows, cols, moe->bias);
}

/* As transformers saves them: gate and up of each expert one below the other. */
static bool load_fused(Loader *ld, const Moe *family, MoeComponent *moe) {
    const MoeNames *names = &family->names;
    const int inner = family->intermediate_size, hidden = family->hidden;
    char both[96], down[96], weight[104];
    snprintf(both, sizeof both, "%s.%s", names->home, names->fused ? names->fused : "experts.gate_up_proj");
    snprintf(down, sizeof down, "%s.%s", names->home, names->fused_down ? names->fused_down : "experts.down_proj");
    snprintf(weight, sizeof weight, "%s.weight", both);
    if (!load_has(ld, both) && !load_has(ld, weight)) return false;
    const bool extra = family->shared > 0, transposed = names->fused_transposed;
    moe->gate = transposed ? load_experts_transposed(ld, both, false, moe->experts, extra, 2 * (int64_t)inner, hidden)
                           : load_experts(ld, both, NULL, moe->experts, extra, 2 * (int64_t)inner, hidden, false);
    moe->up = load_halves(ld, moe->gate, moe->experts, extra);
    moe->down = transposed ? load_experts_transposed(ld, down, false, moe->experts, extra, hidden, inner)
                           : load_experts(ld, down, NULL, moe->experts, extra, hidden, inner, false);
    return true;
}

/* The banks have room for it behind the others. */
static void load_shared(Loader *ld, const Moe *family, MoeComponent *moe) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", family->names.home, family->names.shared);
    const GluComponent shared = family_glu(ld, name, family->hidden, family->shared, moe->activation, family->bias);
    if (!moe->gate || !moe->up || !moe->down) return; /* loading has failed */
    moe->shared = 1;
    moe->gate[moe->experts] = shared.gate;
    moe->up[moe->experts] = shared.up;
    moe->down[moe->experts] = shared.down;
}

MoeComponent family_moe(Loader *ld, const Moe *family) {
    MoeComponent moe = family->moe;
    const MoeNames *names = &family->names;
    char name[96];
    snprintf(name, sizeof name, "%s.%s", names->home, names->router);
    const int routed = moe.experts + moe.identities;
    moe.router = load_linear(ld, name, routed, family->hidden, family->router_bias);
    if (names->bias) {
        snprintf(name, sizeof name, "%s.%s", names->home, names->bias);
        moe.correction_bias = load_vector(ld, name, routed, 0);
    }
    if (!load_fused(ld, family, &moe)) {
        moe.gate = bank(ld, family, "gate_proj", names->gate, family->intermediate_size, family->hidden);
        moe.up = bank(ld, family, "up_proj", names->up, family->intermediate_size, family->hidden);
        moe.down = bank(ld, family, "down_proj", names->down, family->hidden, family->intermediate_size);
    }
    if (family->shared > 0 && names->shared) load_shared(ld, family, &moe);
    if (family->shared_gate_rows) {
        snprintf(name, sizeof name, "%s.%s", names->home, names->shared_gate);
        moe.shared_gate = load_linear(ld, name, family->shared_gate_rows, family->hidden, family->shared_gate_bias);
    }
    return moe;
}
