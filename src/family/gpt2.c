/* GPT-2 and GPT-BigCode (StarCoder, SantaCoder): learned positions, layer norms, biases everywhere, a feed-forward
 * network without a gate. Publishers' GPT-2 files have their matrices transposed. References: transformers/models/gpt2,
 * gpt_bigcode (whose q, k and v lie head by head where there are as many of each); mlx_lm/models/gpt2.py,
 * gpt_bigcode.py. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>
#include <stdio.h>

typedef struct Gpt {
    Dims d;
    bool transposed, by_head, bias, mlp_bias;
    Activation activation;
    float scale;   /* factor of scores */
    bool by_layer; /* scores are divided by the layer's number, from 1 */
} Gpt;

static Activation load_activation(Loader *ld) {
    const bool erf = load_text_is(ld, "activation_function", "gelu"),
               relu = load_text_is(ld, "activation_function", "relu");
    load_require(ld,
        erf || relu || !load_has_field(ld, "activation_function") ||
            load_text_is(ld, "activation_function", "gelu_new") ||
            load_text_is(ld, "activation_function", "gelu_pytorch_tanh"),
        "activation_function must be gelu, gelu_new, gelu_pytorch_tanh or relu");
    return (Activation){.kind = erf ? ACT_GELU : relu ? ACT_RELU : ACT_GELU_TANH};
}

static Gpt load_fields(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"hidden_size", "n_embd"}, {"num_attention_heads", "n_head"},
        {"num_hidden_layers", "n_layer"}, {"max_position_embeddings", "n_positions"}, {0}};
    load_field_names(ld, names);
    Gpt s = {
        .d = family_sizes(ld, spec,
            &(Sizes){.intermediate_size = SIZE_OWN, .positions = 1024, .eps = 1e-5, .eps_field = "layer_norm_epsilon"}),
        .bias = load_bool_or(ld, "attention_bias", true),
        .mlp_bias = load_bool_or(ld, "mlp_bias", true),
        .activation = load_activation(ld),
        .by_layer = load_bool_or(ld, "scale_attn_by_inverse_layer_idx", false)};
    s.d.kv_heads = s.d.heads;
    s.d.intermediate_size = load_int_or(ld, "n_inner", 4 * s.d.hidden);
    s.scale = load_bool_or(ld, "scale_attn_weights", true) ? 1 / sqrtf((float)s.d.head_dim) : 1;
    load_expect_bool(ld, "add_cross_attention", false);
    load_ignore(ld, "n_ctx", "num_key_value_heads", "attn_pdrop", "embd_pdrop", "resid_pdrop",
        "reorder_and_upcast_attn", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
        NULL);
    load_skip(ld, ".attn.bias");
    load_skip(ld, ".attn.masked_bias");
    return s;
}

/* NAME with a bias. */
static Weight load_matrix(Loader *ld, const Gpt *s, const char *name, int64_t rows, int64_t cols, bool bias) {
    if (!s->transposed) return load_linear(ld, name, rows, cols, bias);
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    Weight weight = load_transposed(ld, full, rows, cols);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) weight.bias = load_vector(ld, full, rows, 0);
    return weight;
}

static Component load_attention(Loader *ld, const Gpt *s, int layer) {
    const Dims *d = &s->d;
    const int64_t head = d->head_dim, q = head * d->heads, kv = head * d->kv_heads;
    AttentionComponent attention = family_attention_op(d, NULL);
    attention.op.scale = s->by_layer ? s->scale / (float)(layer + 1) : s->scale;
    Weight *const parts[] = {&attention.q, &attention.k, &attention.v};
    if (s->by_head)
        for (int i = 0; i < 3; i++)
            *parts[i] = load_row_blocks(ld, "attn.c_attn", q + 2 * kv, d->hidden, s->bias,
                (RowBlocks){.first = i * head, .size = head, .stride = 3 * head, .count = d->heads});
    else {
        const Weight all = load_matrix(ld, s, "attn.c_attn", q + 2 * kv, d->hidden, s->bias);
        attention.q = load_part(&all, 0, q);
        attention.k = load_part(&all, q, kv);
        attention.v = load_part(&all, q + kv, kv);
    }
    attention.o = load_matrix(ld, s, "attn.c_proj", d->hidden, q, s->bias);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load_model(Loader *ld, Spec *spec, const Gpt *s) {
    static const LoadName names[] = {{"model.layers", "model.h"}, {"model.embed_tokens", "model.wte"}, {0}};
    static const NormNames norms = {load_layer_norm, .attention_input = "ln_1", .ffn_input = "ln_2"};
    const Dims *d = &s->d;
    load_module_names(ld, names);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d->hidden, false);
    spec->position_embedding = load_linear(ld, "model.wpe", spec->positions, d->hidden, false);
    spec->final_norm = load_layer_norm(ld, "model.ln_f", d->hidden, d->eps);
    family_head(ld, spec, d, load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, s, i);
        const Component mlp = {.kind = COMPONENT_MLP,
            .mlp = {.up = load_matrix(ld, s, "mlp.c_fc", d->intermediate_size, d->hidden, s->mlp_bias),
                .down = load_matrix(ld, s, "mlp.c_proj", d->hidden, d->intermediate_size, s->mlp_bias),
                .activation = s->activation}};
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

/* MLX's files have "model." before all names. */
static void load_gpt2(Loader *ld, Spec *spec) {
    Gpt s = load_fields(ld, spec);
    s.transposed = !load_has(ld, "model.wte.weight");
    if (s.transposed) load_body(ld, load_has(ld, "transformer.wte.weight") ? "transformer." : "");
    load_model(ld, spec, &s);
}

static void load_gpt_bigcode(Loader *ld, Spec *spec) {
    Gpt s = load_fields(ld, spec);
    const bool single = load_bool_or(ld, "multi_query", true);
    s.d.kv_heads = single ? 1 : s.d.heads;
    s.by_head = !single;
    load_body(ld, "transformer.");
    load_model(ld, spec, &s);
}

const Family gpt2_family = {.load = load_gpt2, .gguf = &gpt2_gguf};
const Family gpt_bigcode_family = {.load = load_gpt_bigcode, .gguf = &gpt_bigcode_gguf};
