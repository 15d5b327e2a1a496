/* gpt-oss: every other layer sees a window, each head has a sink, biases everywhere, experts with a clamped silu, used
 * with the softmax over the best. Reference: mlx_lm/models/gpt_oss.py, whose names those of MLX's conversions are;
 * YaRN's truncate, and OpenAI's own files: transformers/models/gpt_oss. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {"mlp", "router", "experts", "gate_proj", "up_proj", "down_proj", .shared = NULL};

/* As OpenAI packs them, or as transformers saves them unpacked: gate and up alternate row by row. */
static Component load_published(Loader *ld, const Moe *family, bool packed) {
    MoeComponent moe = family->moe;
    const int experts = moe.experts, inner = family->intermediate_size, hidden = family->hidden;
    static const char both[] = "mlp.experts.gate_up_proj", down[] = "mlp.experts.down_proj";
    Weight *(*load)(Loader *, const char *, const char *, int, int64_t, int64_t, int, int) =
        packed ? load_experts_mxfp4 : load_experts_alternating;
    moe.router = load_linear(ld, "mlp.router", experts, hidden, true);
    moe.gate = load(ld, both, "mlp.experts.gate_proj", experts, inner, hidden, 0, 2);
    moe.up = load(ld, both, "mlp.experts.up_proj", experts, inner, hidden, 1, 2);
    moe.down = load(ld, down, down, experts, hidden, inner, 0, 1);
    return (Component){.kind = COMPONENT_MOE, .moe = moe};
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_TOP_SOFTMAX;
    moe.moe.activation = (Activation){ACT_SILU_CLAMPED, .a = 1.702f, .b = 7};
    moe.bias = moe.router_bias = true;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 150000});
    Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int_or(ld, "sliding_window", 128),
        .full_every = 2};
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", true);
    load_require(ld, load_positive_or(ld, "swiglu_limit", 7) == 7, "swiglu_limit must be 7");
    load_require(ld, load_positive_or(ld, "swiglu_alpha", 1.702) == 1.702f, "swiglu_alpha must be 1.702");
    load_ignore(
        ld, "experts_per_token", "initial_context_length", "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool packed = load_has(ld, "mlp.experts.gate_up_proj_blocks");
        const bool published = packed || load_has(ld, "mlp.experts.gate_up_proj");
        const Component ffn = published ? load_published(ld, &moe, packed) : (Component){0};
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .window = family_window(ld, &windows, i),
                .bias = true,
                .out_bias = true,
                .ffn = published ? &ffn : NULL,
                .moe = &moe});
        layer->components[0].attention.op.sinks = load_vector(ld, "self_attn.sinks", d.heads, 0);
    }
}

const Family gpt_oss_family = {.load = load, .gguf = &gpt_oss_gguf};
