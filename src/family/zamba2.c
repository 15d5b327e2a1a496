/* Zamba 2: Mamba-2 layers, some of which read, beside the residual, what a block of attention and a gated network makes
 * of it and of the embedding. Few such blocks serve all layers in turn; each layer adds its own low-rank matrices.
 * Reference: transformers/models/zamba2. */
#include "family/recurrent.h"

#include <stdio.h>

typedef struct Zamba2 {
    Dims d; /* sizes of the blocks, whose heads divide twice the hidden size */
    Mamba2 mamba;
    const Rope *rope;
    Activation activation;
    int blocks, rank;
    bool own_attention, bias;
} Zamba2;

enum { BLOCKS_MAX = 16 };

static Zamba2 load_sizes(Loader *ld, Spec *spec) {
    Zamba2 z = {.d = family_sizes(ld, spec, &(Sizes){.positions = 4096, .eps = 1e-5}),
        .blocks = load_int_or(ld, "num_mem_blocks", 1),
        .rank = load_int_or(ld, "adapter_rank", 128),
        .own_attention = load_bool_or(ld, "use_shared_attention_adapter", false),
        .bias = load_bool_or(ld, "add_bias_linear", false),
        .activation = {.kind = ACT_GELU}};
    const int hidden = spec->hidden, heads = load_int_or(ld, "n_mamba_heads", 8);
    const int inner = load_int_or(ld, "mamba_expand", 2) * hidden, groups = load_int_or(ld, "mamba_ngroups", 1);
    z.d.head_dim = 2 * hidden / z.d.heads;
    load_require(ld, z.blocks <= BLOCKS_MAX, "num_mem_blocks is %d, at most %d can be", z.blocks, BLOCKS_MAX);
    load_require(ld, inner % heads == 0, "%d channels, not a multiple of n_mamba_heads %d", inner, heads);
    load_require(ld, inner % groups == 0, "%d channels, not a multiple of mamba_ngroups %d", inner, groups);
    z.mamba = (Mamba2){.hidden = hidden,
        .heads = heads,
        .head_dim = inner / heads,
        .state = load_int_or(ld, "mamba_d_state", 64),
        .groups = groups,
        .taps = load_int_or(ld, "mamba_d_conv", 4),
        .bias = z.bias,
        .out_bias = z.bias,
        .conv_bias = true,
        .eps = 1e-5f,
        .norm_group = inner / groups};
    family_mamba2_check(ld, &z.mamba);
    z.mamba.dt_min = load_number_or(ld, "time_step_min", 0.001);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = z.d.head_dim, .theta = 10000});
    if (load_bool_or(ld, "use_mem_rope", false)) z.rope = rope;
    load_expect_text(ld, "hidden_act", "gelu");
    load_expect_bool(ld, "use_long_context", false);
    load_expect_bool(ld, "use_conv_bias", true);
    load_ignore(ld, "time_step_max", "time_step_floor", "use_mamba_kernels", "chunk_size", "use_mem_eff_path",
        "num_logits_to_keep", "attention_hidden_size", "attention_head_dim", "mamba_headdim", "kv_channels",
        "num_query_groups", "hybrid_layer_ids", "ffn_hidden_size", NULL);
    return z;
}

static LowRank load_low_rank(Loader *ld, const char *list, int number, int64_t rank, int64_t rows, int64_t cols) {
    char down[96], up[96];
    snprintf(down, sizeof down, "%s.%d.0", list, number);
    snprintf(up, sizeof up, "%s.%d.1", list, number);
    return (LowRank){.a = load_linear(ld, down, rank, cols, false), .b = load_linear(ld, up, rows, rank, false)};
}

/* The block that hybrid layer `number` uses, whose tensors lie in layer `home`, with what is that layer's own. */
static Component load_block(Loader *ld, const Spec *spec, const Zamba2 *z, int number, int home, int layer) {
    const int64_t hidden = spec->hidden, both = 2 * hidden, q = both, kv = (int64_t)z->d.kv_heads * z->d.head_dim;
    const int64_t inner = z->d.intermediate_size;
    SharedAttentionComponent block = {.op = family_attention_op(&z->d, z->rope).op, .activation = z->activation};
    load_scope(ld, "model.layers.%d.", layer);
    block.out = load_linear(ld, "linear", hidden, hidden, false);
    load_scope(ld, "model.layers.%d.shared_transformer.", home);
    block.op.scale *= 1.41421356f; /* as for half a head */
    block.q = load_linear(ld, "self_attn.q_proj", q, both, false);
    block.k = load_linear(ld, "self_attn.k_proj", kv, both, false);
    block.v = load_linear(ld, "self_attn.v_proj", kv, both, false);
    block.o = load_linear(ld, "self_attn.o_proj", hidden, q, false);
    block.ffn_norm = load_rms(ld, "pre_ff_layernorm", hidden, z->d.eps);
    const Weight gate_up = load_linear(ld, "feed_forward.gate_up_proj", 2 * inner, hidden, z->bias);
    block.gate = load_part(&gate_up, 0, inner);
    block.up = load_part(&gate_up, inner, inner);
    block.down = load_linear(ld, "feed_forward.down_proj", hidden, inner, z->bias);
    const LowRank own = load_low_rank(ld, "feed_forward.gate_up_proj_adapter_list", number, z->rank, 2 * inner, hidden);
    block.own_down = own.a;
    block.own_gate = load_part(&own.b, 0, inner);
    block.own_up = load_part(&own.b, inner, inner);
    if (z->own_attention) {
        block.own_q = load_low_rank(ld, "self_attn.linear_q_adapter_list", number, z->rank, q, both);
        block.own_k = load_low_rank(ld, "self_attn.linear_k_adapter_list", number, z->rank, kv, both);
        block.own_v = load_low_rank(ld, "self_attn.linear_v_adapter_list", number, z->rank, kv, both);
    }
    return (Component){.kind = COMPONENT_SHARED_ATTENTION,
        .shared_attention = block,
        .input_norm = load_rms(ld, "input_layernorm", both, z->d.eps)};
}

static void load(Loader *ld, Spec *spec) {
    const Zamba2 z = load_sizes(ld, spec);
    const Json *kinds = load_list(ld, "layers_block_type", spec->layer_count);
    int homes[BLOCKS_MAX] = {0}, count = 0;
    load_require(ld, kinds, "layers_block_type is missing");
    family_ends_as(ld, spec, &z.d, "model.embed_tokens", "model.final_layernorm", load_rms,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_skip(ld, ".shared_transformer."); /* files may repeat the blocks in layers that do not hold them */
    spec->layer_inputs.width = spec->hidden;
    load_layers(ld, spec);
    for (int i = 0; kinds && i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const bool hybrid = !family_is_recurrent(ld, "layers_block_type", kinds, i, "mamba", "hybrid");
        if (hybrid) {
            if (count < z.blocks) homes[count] = i;
            const Component block = load_block(ld, spec, &z, count, homes[count % z.blocks], i);
            family_add(spec, layer, &block);
            count++;
        }
        load_scope(ld, hybrid ? "model.layers.%d.mamba_decoder." : "model.layers.%d.", i);
        const Component mamba = family_mamba2(ld, "mamba", &z.mamba);
        Component *own = family_add(spec, layer, &mamba);
        own->input_norm = load_rms(ld, "input_layernorm", spec->hidden, z.d.eps);
        own->reads = hybrid ? READS_ASIDE : 0;
    }
}

const Family zamba2_family = {.load = load};
