/* Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 whose feed-forward parts are, in most layers, MoE blocks; Qwen2's
 * have a shared expert behind a gate. With use_sliding_window, every other of Qwen2's first layers has the window, and
 * every one of Qwen3's. Qwen3-VL-MoE is Qwen3-MoE with positions in three dimensions and a vision tower.
 * Reference: mlx_lm/models/qwen2_moe.py, qwen3_moe.py; which layers stay dense in Qwen2, and the sliding window, which
 * they lack: transformers/models/qwen2_moe, qwen3_moe; transformers/models/qwen3_vl_moe. */
#include "family/gguf/models.h"
#include "family/vision.h"

/* What both have. */
typedef struct QwenMoe {
    Dims d;
    const Rope *rope;
    Windows windows;
    const Json *dense; /* layers without experts */
    int every;
    Moe moe;
} QwenMoe;

/* vision: the text part of a model that takes images, whose defaults are others. */
static QwenMoe load_fields(Loader *ld, Spec *spec, bool vision) {
    QwenMoe q = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6}),
        .dense = load_list(ld, "mlp_only_layers", -1),
        .every = load_int_or(ld, "decoder_sparse_step", 1)};
    q.moe = family_moe_fields(ld, &moe_usual, q.d.hidden, "num_experts");
    q.moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", vision);
    if (vision) load_expect_bool(ld, "norm_topk_prob", true); /* mlx-vlm honours false, transformers does not */
    q.rope = load_rope(ld,
        &(RopeOptions){.head_dim = q.d.head_dim,
            .theta = vision ? 5e6 : 1e4,
            .mrope = vision,
            .mrope_interleaved = vision,
            .interleaved = load_bool_or(ld, "rope_traditional", false)});
    q.windows = family_windows_switched(ld, spec);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &q.d);
    load_layers(ld, spec);
    return q;
}

static bool has_experts(const QwenMoe *q, int layer) {
    return (layer + 1) % q->every == 0 && !family_listed(q->dense, layer);
}

static void load_qwen2(Loader *ld, Spec *spec) {
    QwenMoe q = load_fields(ld, spec, false);
    const int behind = q.windows.first; /* the first layers */
    q.windows.first = 0;
    q.moe.names.shared = "shared_expert";
    q.moe.names.shared_gate = "shared_expert_gate";
    q.moe.shared = load_int(ld, "shared_expert_intermediate_size");
    q.moe.shared_gate_rows = 1;
    const bool bias = load_bool_or(ld, "qkv_bias", true);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool slides = q.windows.types || (i % 2 == 0 && i < behind);
        family_block(ld, spec, i,
            &(Block){.dims = &q.d,
                .rope = q.rope,
                .window = slides ? family_window(ld, &q.windows, i) : 0,
                .bias = bias,
                .moe = has_experts(&q, i) ? &q.moe : NULL});
    }
}

static void load_qwen3_text(Loader *ld, Spec *spec, bool vision) {
    QwenMoe q = load_fields(ld, spec, vision);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    load_expect_bool(ld, "qkv_bias", false); /* Qwen3-Coder's files have these */
    load_expect_bool(ld, "use_qk_norm", true);
    load_expect_int(ld, "shared_expert_intermediate_size", 0);
    q.windows.first = 0;
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &q.d,
                .rope = q.rope,
                .window = family_window(ld, &q.windows, i),
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = has_experts(&q, i) ? &q.moe : NULL});
}

static void load_qwen3(Loader *ld, Spec *spec) { load_qwen3_text(ld, spec, false); }

static void load_qwen3_vl(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    load_qwen3_text(ld, spec, true);
    load_return(ld, &root);
    vision_load_qwen3(ld, spec);
}

const Family qwen2_moe_family = {.load = load_qwen2, .gguf = &qwen2_moe_gguf};
const Family qwen3_moe_family = {.load = load_qwen3, .gguf = &qwen3_moe_gguf};
const Family qwen3_vl_moe_family = {.load = load_qwen3_vl, .gguf = &qwen3_vl_moe_gguf};
