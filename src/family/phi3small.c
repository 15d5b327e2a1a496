/* Phi-3-small: layer norms, q, k and v of each kv head in one matrix, gate and up in alternate rows, block-sparse
 * attention in all layers but every n-th, factors on embeddings, scores and logits. References:
 * mlx_lm/models/phi3small.py; modeling_phi3_small.py and triton_blocksparse_attention_layer.py of
 * microsoft/Phi-3-small-8k-instruct, for the layers that are dense and the heads' patterns. */
#include "family/family.h"

#include <math.h>

/* Tokens of Phi-3's vocabulary without a meaning, whose logits the publisher's code removes. */
static bool is_dummy(int token) {
    const bool named = token == 100256 || (token >= 100258 && token <= 100260) || token == 100264 || token == 100265;
    return named || (token >= 100267 && token < 100352);
}

static const float *load_dummy_bias(Loader *ld, int vocab) {
    enum { FIRST = 100256 };
    const float removed = -1e30f; /* finite, as log-probabilities are numbers of JSON */
    float *bias = vocab > FIRST ? load_floats(ld, vocab) : NULL;
    for (int i = FIRST; bias && i < vocab; i++) bias[i] = is_dummy(i) ? removed : 0;
    return bias;
}

static KeySelection load_selection(Loader *ld, const Dims *d) {
    const int stride = load_int_or(ld, "blocksparse_vert_stride", 8);
    const bool same = load_bool_or(ld, "blocksparse_homo_head_pattern", false);
    return (KeySelection){.block = load_int_or(ld, "blocksparse_block_size", 64),
        .local = load_int_or(ld, "blocksparse_num_local_blocks", 16),
        .stride = stride,
        .head_step = same       ? 0
            : stride > d->heads ? stride / d->heads
                                : 1};
}

static AttentionComponent load_attention(Loader *ld, const Dims *d, const Rope *rope) {
    const char *name = "self_attn.query_key_value";
    const int64_t kv = d->kv_heads, head = d->head_dim, own = d->heads / kv * head, stride = own + 2 * head;
    AttentionComponent attention = family_attention_op(d, rope);
    attention.q = load_row_blocks(ld, name, kv * stride, d->hidden, true, (RowBlocks){0, own, stride, kv});
    attention.k = load_row_blocks(ld, name, kv * stride, d->hidden, true, (RowBlocks){own, head, stride, kv});
    attention.v = load_row_blocks(ld, name, kv * stride, d->hidden, true, (RowBlocks){own + head, head, stride, kv});
    attention.o = load_linear(ld, "self_attn.dense", d->hidden, (int64_t)d->heads * head, true);
    return attention;
}

static GluComponent load_glu(Loader *ld, const Dims *d, float limit) {
    const int64_t inner = d->intermediate_size;
    return (GluComponent){
        .gate = load_row_blocks(ld, "mlp.up_proj", 2 * inner, d->hidden, true, (RowBlocks){0, 1, 2, inner}),
        .up = load_row_blocks(ld, "mlp.up_proj", 2 * inner, d->hidden, true, (RowBlocks){1, 1, 2, inner}),
        .down = load_linear(ld, "mlp.down_proj", d->hidden, inner, true),
        .activation = {.kind = ACT_SILU_CLAMPED, .a = 1.702f, .b = limit}};
}

static void load(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    Dims d = family_sizes(
        ld, spec, &(Sizes){.intermediate_size = SIZE_OWN, .positions = 8192, .eps_field = "layer_norm_epsilon"});
    d.intermediate_size = load_int(ld, "ff_intermediate_size");
    const float limit = load_positive_or(ld, "gegelu_limit", 20);
    const float multiplier = load_positive_or(ld, "mup_attn_multiplier", 1);
    const bool mup = load_bool_or(ld, "mup_use_scaling", true);
    const int dense = load_count_or(ld, "dense_attention_every_n_layers", 0);
    KeySelection selection = load_selection(ld, &d);
    const int64_t latest = (int64_t)selection.block * selection.local;
    if (load_context(ld) > 0 && load_context(ld) <= latest) selection.block = 0; /* all blocks are among the latest */
    load_require(ld, !load_has_field(ld, "rope_scaling"), "rope_scaling (Phi-3-small-128k) is not supported");
    load_require(ld, load_positive_or(ld, "rope_position_scale", 1) == 1, "rope_position_scale must be 1");
    load_expect_text(ld, "hidden_act", "gegelu");
    load_ignore(ld, "blocksparse_triton_kernel_block_size", "gegelu_pad_to_256", "ff_dim_multiplier",
        "pad_sequence_to_multiple_of_64", "reorder_and_upcast_attn", "attention_dropout_prob", "ffn_dropout_prob",
        "embedding_dropout_prob", NULL);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta_field = "rope_embedding_base", .theta = 1e6});
    spec->embedding_scale = load_positive_or(ld, "mup_embedding_multiplier", 10);
    spec->logit_scale = 1 / load_positive_or(ld, "mup_width_multiplier", 8);
    load_scope(ld, "%s", "");
    spec->head = spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->head.bias = load_dummy_bias(ld, spec->vocab);
    spec->tied = !spec->head.bias;
    spec->final_norm = load_layer_norm(ld, "model.final_layernorm", d.hidden, d.eps);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION, .attention = load_attention(ld, &d, rope)};
        Component ffn = {.kind = COMPONENT_GLU, .glu = load_glu(ld, &d, limit)};
        attention.attention.op.scale = mup ? multiplier / (float)d.head_dim : 1 / sqrtf((float)d.head_dim);
        if (!dense || (i + 1) % dense) attention.attention.op.selection = selection;
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &ffn});
    }
}

const Family phi3small_family = {.load = load};
