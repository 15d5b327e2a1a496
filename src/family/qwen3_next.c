/* Qwen3-Next and Qwen3.5: gated delta nets, and in every fourth layer attention whose values a gate of the query
 * projection multiplies. Qwen3.5 is dense or an MoE model; Qwen3-Next has one matrix for what its delta nets project,
 * ordered by key heads. References: mlx_lm/models/qwen3_next.py, qwen3_5.py; where config.json has rope_theta and
 * partial_rotary_factor outside of rope_parameters: transformers/models/qwen3_5. */
#include "family/gguf/models.h"
#include "family/recurrent.h"
#include "family/vision.h"

#include <math.h>

typedef struct Qwen {
    Dims d;
    DeltaNet net;
    const Rope *rope;
    const Json *types; /* NULL: every `interval`th layer has attention */
    int interval;
    bool bias;
    NormNames norms; /* in published files stored as w − 1 */
} Qwen;

static bool has_delta_net(Loader *ld, const Qwen *q, int i) {
    if (!q->types) return (i + 1) % q->interval != 0;
    return family_is_recurrent(ld, "layer_types", q->types, i, "linear_attention", "full_attention");
}

/* An unconverted file has the convolutions of PyTorch, and norms about 0. */
static bool as_published(Loader *ld, const Spec *spec) {
    bool raw = false;
    for (int i = 0; i < spec->layer_count && !raw; i++) {
        load_scope(ld, "model.layers.%d.", i);
        raw = load_has_torch_conv(ld, "linear_attn.conv1d");
    }
    load_scope(ld, "%s", "");
    return raw;
}

static Qwen load_fields(Loader *ld, Spec *spec, int intermediate_size) {
    load_text_part(ld);
    const Sizes absent = {.intermediate_size = intermediate_size, .eps = 1e-6};
    Qwen q = {.d = family_sizes(ld, spec, &absent),
        .interval = load_int_or(ld, "full_attention_interval", 4),
        .bias = load_bool_or(ld, "attention_bias", false)};
    q.types = load_list(ld, "layer_types", spec->layer_count);
    q.net = family_delta_net_open(ld, &q.d);
    q.rope = load_rope(ld,
        &(RopeOptions){.head_dim = q.d.head_dim,
            .dims = load_rotary_dims(ld, q.d.head_dim, 0.25),
            .theta = 10000,
            .mrope = true,
            .mrope_interleaved = true});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attn_output_gate", true);
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", "mamba_ssm_dtype", "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings", "attention_dropout", "use_sliding_window", "mlp_only_layers", NULL);
    load_skip(ld, "mtp.");
    q.norms = norms_usual;
    if (as_published(ld, spec)) q.norms.load = load_rms_plus_one;
    const bool tied = load_bool_or(ld, "tie_word_embeddings", !load_has(ld, "lm_head.weight"));
    family_ends_as(ld, spec, &q.d, "model.embed_tokens", "model.norm", q.norms.load, tied);
    load_layers(ld, spec);
    return q;
}

static Component load_attention(Loader *ld, const Qwen *q) {
    const Dims *d = &q->d;
    const int64_t size = d->head_dim, rows = 2 * d->heads * size, kv = d->kv_heads * size;
    AttentionComponent a = family_attention_op(d, q->rope);
    a.q = load_row_blocks(ld, "self_attn.q_proj", rows, d->hidden, q->bias, (RowBlocks){0, size, 2 * size, d->heads});
    a.gate =
        load_row_blocks(ld, "self_attn.q_proj", rows, d->hidden, q->bias, (RowBlocks){size, size, 2 * size, d->heads});
    a.k = load_linear(ld, "self_attn.k_proj", kv, d->hidden, q->bias);
    a.v = load_linear(ld, "self_attn.v_proj", kv, d->hidden, q->bias);
    a.o = load_linear(ld, "self_attn.o_proj", d->hidden, d->heads * size, q->bias);
    a.op.q_norm = q->norms.load(ld, "self_attn.q_norm", size, d->eps);
    a.op.k_norm = q->norms.load(ld, "self_attn.k_norm", size, d->eps);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = a};
}

static void load_block(Loader *ld, Spec *spec, const Qwen *q, int i, const Moe *moe) {
    family_layer(ld, spec, i);
    const Component mixer = has_delta_net(ld, q, i) ? family_delta_net(ld, &q->net) : load_attention(ld, q);
    family_block(ld, spec, i, &(Block){.dims = &q->d, .norms = &q->norms, .attention = &mixer, .moe = moe});
}

/* The multi-token prediction head: a layer with attention. References: vllm/model_executor/models/qwen3_next_mtp.py,
 * qwen3_5_mtp.py. */
static void load_mtp_head(Loader *ld, Spec *spec, const Qwen *q, const Moe *moe) {
    static const MtpNames names = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", .state_first = false};
    load_scope(ld, "mtp.");
    Spec *mtp = family_mtp(ld, spec, &names, q->norms.load, q->d.eps);
    if (!mtp) return;
    load_scope(ld, "mtp.layers.0.");
    const Component attention = load_attention(ld, q);
    family_block_here(
        ld, mtp, mtp->layers, &(Block){.dims = &q->d, .norms = &q->norms, .attention = &attention, .moe = moe});
}

/* always: the weights of the chosen experts have the sum 1, and a file that says otherwise is refused. */
static Moe load_moe(Loader *ld, const Qwen *q, bool always) {
    Moe moe = family_moe_fields(ld, &moe_usual, q->d.hidden, "num_experts");
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true);
    if (always) load_expect_bool(ld, "norm_topk_prob", true); /* as Qwen3-VL's mixtures */
    moe.names.shared = "shared_expert";
    moe.names.shared_gate = "shared_expert_gate";
    moe.shared = load_int(ld, "shared_expert_intermediate_size");
    moe.shared_gate_rows = 1;
    return moe;
}

static void load_dense(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const Qwen q = load_fields(ld, spec, 0);
    for (int i = 0; i < spec->layer_count; i++) load_block(ld, spec, &q, i, NULL);
    load_mtp_head(ld, spec, &q, NULL);
    load_return(ld, &root);
    vision_load_qwen3(ld, spec);
}

static void load_mixture(Loader *ld, Spec *spec, bool always) {
    const Qwen q = load_fields(ld, spec, 1);
    const Moe moe = load_moe(ld, &q, always);
    const Json *dense = load_list(ld, "mlp_only_layers", -1);
    const int every = load_int_or(ld, "decoder_sparse_step", 1);
    for (int i = 0; i < spec->layer_count; i++)
        load_block(ld, spec, &q, i, (i + 1) % every == 0 && !family_listed(dense, i) ? &moe : NULL);
    load_mtp_head(ld, spec, &q, &moe);
}

static void load_next(Loader *ld, Spec *spec) { load_mixture(ld, spec, false); }
static void load_moe_5(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_mixture(ld, spec, true);
    load_return(ld, &root);
    vision_load_qwen3(ld, spec);
}

const Family qwen3_5_family = {.load = load_dense, .gguf = &qwen3_5_gguf};
const Family qwen3_5_moe_family = {.load = load_moe_5, .gguf = &qwen3_5_moe_gguf};
const Family qwen3_next_family = {.load = load_next, .gguf = &qwen3_next_gguf};
