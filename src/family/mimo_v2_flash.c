/* MiMo-V2-Flash: layers with a window and those without have their own heads and rotary base, values narrower than
 * keys, sinks in the first kind; DeepSeek-V3's MoE blocks. Reference: mlx_lm/models/mimo_v2_flash.py. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>

/* Attention of one kind of layers. */
typedef struct Kind {
    int heads, kv_heads, head_dim, value_dim, window;
    bool sinks;
    const Rope *rope;
} Kind;

static Kind load_kind(Loader *ld, bool slides) {
    const char *const names[2][4] = {{"num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"},
        {"swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"}};
    const char *const *n = names[slides];
    Kind kind = {.heads = load_int(ld, n[0]),
        .kv_heads = load_int(ld, n[1]),
        .head_dim = load_int(ld, n[2]),
        .value_dim = load_int(ld, n[3]),
        .window = slides ? load_int(ld, "sliding_window_size") : 0};
    Dims d = {.heads = kind.heads, .kv_heads = kind.kv_heads, .head_dim = kind.head_dim};
    family_check(ld, &d);
    d.head_dim = kind.value_dim;
    family_check(ld, &d);
    kind.sinks = load_bool_or(ld, slides ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias", slides);
    kind.rope = load_rope(ld,
        &(RopeOptions){.head_dim = kind.head_dim,
            .dims = load_rotary_dims(ld, kind.head_dim, 1),
            .theta_field = slides ? "swa_rope_theta" : NULL,
            .theta = 10000});
    return kind;
}

static AttentionComponent load_attention(Loader *ld, const Kind *k, int hidden, float value_scale) {
    const int64_t q = (int64_t)k->heads * k->head_dim, kv = k->kv_heads;
    const KvLayout layout = {.kv_heads = k->kv_heads, .head_dim = k->head_dim, .value_dim = k->value_dim};
    return (AttentionComponent){
        .op = {.heads = k->heads,
            .kv.layout = layout,
            .scale = 1 / sqrtf((float)k->head_dim),
            .window = k->window,
            .rope = k->rope,
            .sinks = k->sinks ? load_vector(ld, "self_attn.attention_sink_bias", k->heads, 0) : NULL},
        .q = load_linear(ld, "self_attn.q_proj", q, hidden, false),
        .k = load_linear(ld, "self_attn.k_proj", kv * k->head_dim, hidden, false),
        .v = load_linear(ld, "self_attn.v_proj", kv * k->value_dim, hidden, false),
        .o = load_linear(ld, "self_attn.o_proj", hidden, (int64_t)k->heads * k->value_dim, false),
        .value_scale = value_scale};
}

static Dims load_sizes(Loader *ld, Spec *spec) {
    const Dims d = {.hidden = load_int(ld, "hidden_size"),
        .intermediate_size = load_int(ld, "intermediate_size"),
        .eps = load_positive(ld, "layernorm_epsilon")};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 32768);
    return d;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = load_sizes(ld, spec);
    const Kind kinds[2] = {load_kind(ld, false), load_kind(ld, true)};
    const float value_scale = load_positive_or(ld, "attention_value_scale", 1);
    const Json *slides = load_list(ld, "hybrid_layer_pattern", spec->layer_count),
               *experts = load_list(ld, "moe_layer_freq", spec->layer_count);
    Moe moe = family_moe_fields(ld, &moe_deepseek, d.hidden, "n_routed_experts");
    family_moe_sigmoid(ld, &moe);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_expect_bool(ld, "attention_bias", false);
    load_ignore(ld, "sliding_window", "attention_chunk_size", "hybrid_block_size", NULL);
    load_skip(ld, "model.mtp");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool sliding = family_flag(ld, "hybrid_layer_pattern", slides, i);
        const bool sparse = family_flag(ld, "moe_layer_freq", experts, i);
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = load_attention(ld, &kinds[sliding], d.hidden, value_scale)};
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention, .moe = sparse ? &moe : NULL});
    }
}

const Family mimo_v2_flash_family = {.load = load, .gguf = &mimo_v2_flash_gguf};
