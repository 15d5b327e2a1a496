/* MiniMax-Text-01 and MiniMax-M1: lightning attention in most layers, attention in the others, experts in all. A norm
 * replaces the residual by its result, and what is kept of it and what is added have factors: h = norm(h),
 * h = alpha · h + beta · f(h). Alpha is left out here: the norm behind it divides by it, and its epsilon by the square.
 * References: transformers/models/minimax; rotary_dim, which transformers does not read, and names of fields:
 * modeling_minimax_text_01.py of the publisher. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

#include <math.h>

static const MoeNames names = {"block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", .shared = NULL};

typedef struct Factors {
    float alpha, beta;
} Factors;

typedef struct Text01 {
    Dims d;
    const Rope *rope;
    const Json *types, *numbers; /* layer_types, or attn_type_list; NULL: every second layer is linear */
    Factors linear, full, mlp;
    Moe moe;
} Text01;

/* A factor that transformers calls by the first name, the publisher by the second. */
static float factor(Loader *ld, const char *field, const char *published) {
    return load_positive_or(ld, field, (double)load_positive_or(ld, published, 1));
}

static bool is_linear(Loader *ld, const Text01 *m, int i) {
    if (m->types) return family_is_recurrent(ld, "layer_types", m->types, i, "linear_attention", "full_attention");
    return m->numbers ? !family_flag(ld, "attn_type_list", m->numbers, i) : i % 2 == 1;
}

static Text01 load_fields(Loader *ld, Spec *spec) {
    Text01 m = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5})};
    m.types = load_list(ld, "layer_types", spec->layer_count);
    m.numbers = load_list(ld, "attn_type_list", spec->layer_count);
    m.linear = (Factors){factor(ld, "linear_attn_alpha_factor", "layernorm_linear_attention_alpha"),
        factor(ld, "linear_attn_beta_factor", "layernorm_linear_attention_beta")};
    m.full = (Factors){factor(ld, "full_attn_alpha_factor", "layernorm_full_attention_alpha"),
        factor(ld, "full_attn_beta_factor", "layernorm_full_attention_beta")};
    m.mlp = (Factors){
        factor(ld, "mlp_alpha_factor", "layernorm_mlp_alpha"), factor(ld, "mlp_beta_factor", "layernorm_mlp_beta")};
    m.rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = m.d.head_dim, .dims = load_int_or(ld, "rotary_dim", m.d.head_dim), .theta = 1000000});
    load_scope(ld, "model.layers.0.");
    const bool merged = load_has(ld, "mlp.gate.weight"); /* as transformers has them */
    m.moe = family_moe_open(ld, merged ? &moe_usual : &names, m.d.hidden, m.d.intermediate_size,
        load_int(ld, "num_local_experts"), load_int(ld, "num_experts_per_tok"));
    m.moe.moe.score = ROUTE_TOP_SOFTMAX;
    family_check_recurrence(ld, "lightning attention", m.d.heads, m.d.heads, m.d.head_dim, m.d.head_dim);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "postnorm", true);
    load_require(ld, load_count_or(ld, "shared_intermediate_size", 0) == 0, "shared_intermediate_size must be 0");
    load_ignore(ld, "block_size", "shared_moe_mode", "output_router_logits", "router_aux_loss_coef",
        "router_jitter_noise", "sliding_window", NULL);
    load_skip(ld, "self_attn.slope_rate"); /* constants of the formulas below */
    load_skip(ld, "self_attn.query_decay");
    load_skip(ld, "self_attn.key_decay");
    load_skip(ld, "self_attn.diagonal_decay");
    return m;
}

/* q, k and v of each head lie one below the other. */
static Component load_lightning(Loader *ld, const Text01 *m, int i, int layers) {
    const Dims *d = &m->d;
    const int64_t size = d->head_dim, width = d->heads * size;
    const char *qkv = "self_attn.qkv_proj";
    const double place = 1 - i / (layers - 1 + 1e-5) + 1e-5;
    RecurrentComponent c = {.op = {.kind = RECURRENCE_SSD,
                                .key_heads = d->heads,
                                .value_heads = d->heads,
                                .key_dim = d->head_dim,
                                .value_dim = d->head_dim,
                                .q_scale = 1,
                                .k_scale = 1,
                                .dt_scale = 1,
                                .dt_max = INFINITY},
        .silu = true,
        .gated_norm = {.group = width, .eps = 1e-6f, .gate_kind = GATE_SIGMOID, .gate_scale = 1},
        .q = load_row_blocks(ld, qkv, 3 * width, d->hidden, false, (RowBlocks){0, size, 3 * size, d->heads}),
        .k = load_row_blocks(ld, qkv, 3 * width, d->hidden, false, (RowBlocks){size, size, 3 * size, d->heads}),
        .v = load_row_blocks(ld, qkv, 3 * width, d->hidden, false, (RowBlocks){2 * size, size, 3 * size, d->heads}),
        .gate = load_linear(ld, "self_attn.output_gate", width, d->hidden, false),
        .o = load_linear(ld, load_has(ld, "self_attn.out_proj.weight") ? "self_attn.out_proj" : "self_attn.o_proj",
            d->hidden, width, false)};
    c.op.rate = family_slopes(ld, d->heads, d->heads, place);
    c.gated_norm.weight = load_vector(ld, "self_attn.norm.weight", width, 0);
    return (Component){.kind = COMPONENT_RECURRENT, .recurrent = c};
}

/* The norm of a residual that is `left_out` times too small; then a component that reads and adds to the result. */
static void add(Loader *ld, Spec *spec, Layer *layer, const Text01 *m, const char *norm, float left_out,
    const Component *loaded, Factors factors) {
    const Component replace = {.kind = COMPONENT_SCALE, .scale_factor = 1};
    family_add(spec, layer, &replace)->input_norm = load_rms(ld, norm, m->d.hidden, m->d.eps / (left_out * left_out));
    family_add(spec, layer, loaded)->residual_scale = factors.beta / factors.alpha;
}

static void load(Loader *ld, Spec *spec) {
    const Text01 m = load_fields(ld, spec);
    const Dims *d = &m.d;
    family_ends(ld, spec, d);
    spec->final_norm = load_rms(ld, "model.norm", d->hidden, d->eps / (m.mlp.alpha * m.mlp.alpha));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const bool linear = is_linear(ld, &m, i);
        const Factors factors = linear ? m.linear : m.full;
        const Component mixer = linear ? load_lightning(ld, &m, i, spec->layer_count)
                                       : (Component){.kind = COMPONENT_ATTENTION,
                                             .attention = family_attention(ld, d, "o_proj", m.rope, false, false)};
        const Component experts = {.kind = COMPONENT_MOE, .moe = family_moe(ld, &m.moe)};
        add(ld, spec, layer, &m, "input_layernorm", i ? m.mlp.alpha : 1, &mixer, factors);
        add(ld, spec, layer, &m, "post_attention_layernorm", factors.alpha, &experts, m.mlp);
    }
}

const Family minimax_text_01_family = {.load = load, .gguf = &minimax_text_01_gguf};
