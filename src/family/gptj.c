/* GPT-J, CodeGen: attention and a network without a gate in parallel behind one layer norm, partly rotated heads whose
 * neighbours turn together; biases of the network, the norms and the output matrix alone.
 * CodeGen has four parts of q, v and k in one matrix. References: mlx_lm/models/gptj.py, transformers/models/gptj,
 * codegen. */
#include "family/family.h"

/* CodeGen's: each quarter of the matrix has the queries, then the values and the keys of a quarter of the heads. */
static AttentionComponent load_quarters(Loader *ld, const Dims *d, const Rope *rope) {
    enum { PARTS = 4 };
    const int64_t width = (int64_t)d->heads * d->head_dim, each = width / PARTS;
    load_require(ld, d->heads % PARTS == 0, "n_head is %d, not a multiple of %d", d->heads, PARTS);
    AttentionComponent attention = family_attention_op(d, rope);
    Weight *const parts[] = {&attention.q, &attention.v, &attention.k};
    for (int i = 0; i < 3; i++)
        *parts[i] = load_row_blocks(ld, "self_attn.qkv_proj", 3 * width, d->hidden, false,
            (RowBlocks){.first = i * each, .size = each, .stride = 3 * each, .count = PARTS});
    attention.o = load_linear(ld, "self_attn.out_proj", d->hidden, width, false);
    return attention;
}

static void load(Loader *ld, Spec *spec, bool quarters) {
    static const LoadName fields[] = {{"hidden_size", "n_embd"}, {"num_hidden_layers", "n_layer"},
        {"num_attention_heads", "n_head"}, {"intermediate_size", "n_inner"}, {"max_position_embeddings", "n_positions"},
        {0}};
    static const LoadName here[] = {
        {"model.embed_tokens", "model.wte"}, {"model.layers", "model.h"}, {"self_attn", "attn"}, {0}};
    static const LoadName published[] = {
        {"model.embed_tokens", "transformer.wte"}, {"model.layers", "transformer.h"}, {"self_attn", "attn"}, {0}};
    static const NormNames norms = {load_layer_norm, .attention_input = "ln_1"};
    static const Activation gelu = {.kind = ACT_GELU_TANH};
    const bool raw = load_has(ld, "transformer.wte.weight");
    load_field_names(ld, fields);
    Dims d = family_sizes(ld, spec,
        &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"});
    d.intermediate_size = load_int_or(ld, "intermediate_size", 4 * d.hidden);
    const int rotated = load_int_or(ld, "rotary_dim", load_null(ld, "rotary_dim") ? d.head_dim : 64);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .dims = rotated, .own_theta = 10000, .interleaved = true});
    load_expect_text(ld, "activation_function", "gelu_new");
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "embd_pdrop", "attn_pdrop", "resid_pdrop", "rotary", "scale_attn_weights", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "n_ctx",
        "gradient_checkpointing", NULL);
    load_skip(ld, ".attn.bias");
    load_skip(ld, ".attn.masked_bias");
    load_module_names(ld, raw ? published : here);
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->final_norm = load_layer_norm(ld, raw ? "transformer.ln_f" : "model.ln_f", d.hidden, d.eps);
    spec->head = load_linear(ld, "lm_head", spec->vocab, d.hidden, true);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {.kind = COMPONENT_ATTENTION,
            .attention =
                quarters ? load_quarters(ld, &d, rope) : family_attention(ld, &d, "out_proj", rope, false, false)};
        Component mlp = family_mlp(ld, "mlp.fc_in", "mlp.fc_out", d.hidden, d.intermediate_size, gelu, true);
        mlp.parallel = true;
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

static void load_gptj(Loader *ld, Spec *spec) { load(ld, spec, false); }
static void load_codegen(Loader *ld, Spec *spec) { load(ld, spec, true); }

const Family gptj_family = {.load = load_gptj};
const Family codegen_family = {.load = load_codegen};
