/* Encoders: BERT, XLM-RoBERTa and RoBERTa, Nomic-BERT. Every token sees every other; a layer normalises the residual
 * behind attention and behind the feed-forward network. With a classifier they judge pairs of texts (cross-encoders).
 * References: transformers/models/bert, xlm_roberta, nomic_bert (and modeling_hf_nomic_bert.py of nomic-ai for the
 * published files). */
#include <stdio.h>

#include "family/family.h"

static Activation activation_of(Loader *ld, const char *field) {
    const bool relu = load_text_is(ld, field, "relu");
    const bool tanh = load_text_is(ld, field, "gelu_new") || load_text_is(ld, field, "gelu_pytorch_tanh");
    load_require(ld, relu || tanh || load_text_is(ld, field, "gelu") || !load_has_field(ld, field),
        "%s must be gelu, gelu_new or relu", field);
    return (Activation){.kind = relu ? ACT_RELU : tanh ? ACT_GELU_TANH : ACT_GELU};
}

/* Rows `first` and following of a table of positions, each with the vector of the token type added; below them the same
 * with the second type, if the model has two: token p of that type has position `positions` + p. */
static Weight typed_positions(Loader *ld, int first, int positions, int types, int hidden) {
    const int count = types > 1 ? 2 : 1;
    const float *table =
        positions ? load_array(ld, "embeddings.position_embeddings.weight", first + positions, hidden) : NULL;
    const float *type = load_array(ld, "embeddings.token_type_embeddings.weight", types, hidden);
    float *rows = load_floats(ld, (int64_t)count * positions * hidden);
    for (int64_t i = 0; table && type && rows && i < (int64_t)count * positions * hidden; i++) {
        const int64_t row = i / hidden % positions, kind = i / hidden / positions;
        rows[i] = table[(first + row) * hidden + i % hidden] + type[kind * hidden + i % hidden];
    }
    return (Weight){.rows = (int64_t)count * positions, .cols = hidden, .dtype = DTYPE_F32, .data = rows};
}

/* One row for all positions: the token type alone. */
static Weight repeated_type(Loader *ld, int positions, int types, int hidden) {
    const float *type = load_array(ld, "embeddings.token_type_embeddings.weight", types, hidden);
    float *rows = load_floats(ld, (int64_t)positions * hidden);
    for (int64_t i = 0; type && rows && i < (int64_t)positions * hidden; i++) rows[i] = type[i % hidden];
    return (Weight){.rows = positions, .cols = hidden, .dtype = DTYPE_F32, .data = rows};
}

static void add_norm(Loader *ld, Spec *spec, Layer *layer, const char *name, float eps) {
    Component *replaced = layer_add(spec, layer, COMPONENT_SCALE);
    replaced->scale_factor = 1;
    replaced->input_norm = load_layer_norm(ld, name, spec->hidden, eps);
}

/* Sizes, and what an encoder is: no output matrix of its own, so the embedding stands for it. */
static void finish(Loader *ld, Spec *spec) {
    spec->head = spec->embedding;
    spec->tied = true;
    spec->encoder = true;
    load_layers(ld, spec);
}

/* ---- BERT and XLM-RoBERTa ---- */

static void load_classifier(Loader *ld, Spec *spec, bool roberta) {
    Classifier *classifier = &spec->classifier;
    classifier->dense =
        load_linear(ld, roberta ? "classifier.dense" : "bert.pooler.dense", spec->hidden, spec->hidden, true);
    classifier->out = load_linear(ld, roberta ? "classifier.out_proj" : "classifier", 1, spec->hidden, true);
}

static void load_bert_layer(Loader *ld, Spec *spec, int i, const char *body, const Dims *d, Activation activation) {
    Layer *layer = &spec->layers[i];
    load_scope(ld, "%sencoder.layer.%d.", body, i);
    AttentionComponent attention = family_attention_op(d, NULL);
    attention.q = load_linear(ld, "attention.self.query", d->hidden, d->hidden, true);
    attention.k = load_linear(ld, "attention.self.key", d->hidden, d->hidden, true);
    attention.v = load_linear(ld, "attention.self.value", d->hidden, d->hidden, true);
    attention.o = load_linear(ld, "attention.output.dense", d->hidden, d->hidden, true);
    const Component mlp = {.kind = COMPONENT_MLP,
        .mlp = {.up = load_linear(ld, "intermediate.dense", d->intermediate_size, d->hidden, true),
            .down = load_linear(ld, "output.dense", d->hidden, d->intermediate_size, true),
            .activation = activation}};
    family_add(spec, layer, &(Component){.kind = COMPONENT_ATTENTION, .attention = attention});
    add_norm(ld, spec, layer, "attention.output.LayerNorm", d->eps);
    family_add(spec, layer, &mlp);
    add_norm(ld, spec, layer, "output.LayerNorm", d->eps);
}

static void load_bert_like(Loader *ld, Spec *spec, bool roberta) {
    const char *own = roberta ? "roberta." : "bert.";
    const bool classifier = load_has(ld, roberta ? "classifier.out_proj.weight" : "classifier.weight");
    char name[64];
    snprintf(name, sizeof name, "%sembeddings.word_embeddings.weight", own);
    const char *body = load_has(ld, name) ? own : "";
    Dims d = {.hidden = load_int(ld, "hidden_size"),
        .heads = load_int(ld, "num_attention_heads"),
        .intermediate_size = load_int(ld, "intermediate_size"),
        .eps = load_positive_or(ld, "layer_norm_eps", 1e-12)};
    d.kv_heads = d.heads;
    family_check(ld, &d);
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    /* RoBERTa counts positions from behind the padding token's number. */
    const int first = roberta ? load_count_or(ld, "pad_token_id", 1) + 1 : 0;
    const int types = load_int_or(ld, "type_vocab_size", roberta ? 1 : 2);
    spec->positions = load_int_or(ld, "max_position_embeddings", 512) - first;
    load_require(ld, spec->positions > 0, "max_position_embeddings is too small");
    const Activation activation = activation_of(ld, "hidden_act");
    load_expect_text(ld, "position_embedding_type", "absolute");
    load_expect_bool(ld, "is_decoder", false);
    load_expect_bool(ld, "add_cross_attention", false);
    load_ignore(ld, "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout",
        "gradient_checkpointing", "output_past", "num_labels", "sentence_transformers", "pooler_fc_size",
        "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "directionality",
        "tie_word_embeddings", NULL);
    if (!roberta) load_ignore(ld, "pad_token_id", NULL);
    load_skip(ld, "position_ids");
    load_skip(ld, "cls.");
    load_skip(ld, "lm_head.");
    if (!classifier) load_skip(ld, "pooler.dense");
    load_scope(ld, "%s", body);
    spec->embedding = load_linear(ld, "embeddings.word_embeddings", spec->vocab, d.hidden, false);
    spec->position_embedding = typed_positions(ld, first, spec->positions, types, d.hidden);
    spec->token_types = types > 1 ? 2 : 1;
    finish(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        load_scope(ld, "%s", body);
        if (i == 0) add_norm(ld, spec, &spec->layers[0], "embeddings.LayerNorm", d.eps);
        load_bert_layer(ld, spec, i, body, &d, activation);
    }
    load_scope(ld, "%s", "");
    if (classifier) load_classifier(ld, spec, roberta);
}

static void load_bert(Loader *ld, Spec *spec) { load_bert_like(ld, spec, false); }
static void load_roberta(Loader *ld, Spec *spec) { load_bert_like(ld, spec, true); }

const Family bert_family = {.load = load_bert};
const Family roberta_family = {.load = load_roberta};

/* ---- Nomic-BERT ---- */

/* The names of the published files; transformers' own differ. */
static void load_nomic(Loader *ld, Spec *spec) {
    Dims d = {.hidden = load_int(ld, "n_embd"),
        .heads = load_int(ld, "n_head"),
        .eps = load_positive_or(ld, "layer_norm_epsilon", 1e-12)};
    d.intermediate_size = load_int_or(ld, "n_inner", 4 * d.hidden);
    d.kv_heads = d.heads;
    family_check(ld, &d);
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "n_layer");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "n_positions", 2048);
    const float part = load_positive_or(ld, "rotary_emb_fraction", 1);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = (int)(part * (float)d.head_dim),
            .theta = load_positive_or(ld, "rotary_emb_base", 1e4),
            .interleaved = load_bool_or(ld, "rotary_emb_interleaved", false)});
    const int types = load_int_or(ld, "type_vocab_size", 2);
    const bool bias = load_bool_or(ld, "qkv_proj_bias", false);
    const bool up_bias = load_bool_or(ld, "mlp_fc1_bias", false), down_bias = load_bool_or(ld, "mlp_fc2_bias", false);
    load_expect_text(ld, "activation_function", "swiglu");
    load_expect_bool(ld, "prenorm", false);
    load_expect_bool(ld, "parallel_block", false);
    load_expect_bool(ld, "use_rms_norm", false);
    load_expect_bool(ld, "causal", false);
    load_require(ld, !load_has_field(ld, "rotary_scaling_factor"), "rotary_scaling_factor is not supported");
    load_require(ld, !load_has_field(ld, "rotary_emb_scale_base"), "rotary_emb_scale_base is not supported");
    load_ignore(ld, "attn_pdrop", "embd_pdrop", "resid_pdrop", "dense_seq_output", "fused_bias_fc",
        "fused_dropout_add_ln", "initializer_range", "last_layer_subset", "max_trained_positions",
        "pad_vocab_size_multiple", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "use_flash_attn", "use_xentropy", NULL);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "embeddings.word_embeddings", spec->vocab, d.hidden, false);
    spec->position_embedding = repeated_type(ld, spec->positions, types, d.hidden);
    spec->token_types = 1;
    finish(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &spec->layers[i];
        load_scope(ld, "%s", "");
        if (i == 0) add_norm(ld, spec, layer, "emb_ln", d.eps);
        load_scope(ld, "encoder.layers.%d.", i);
        AttentionComponent attention = family_fused_attention(ld, &d, "attn.Wqkv", rope, bias);
        attention.o = load_linear(ld, "attn.out_proj", d.hidden, d.hidden, bias);
        const Component glu = {.kind = COMPONENT_GLU,
            .glu = {.gate = load_linear(ld, "mlp.fc12", d.intermediate_size, d.hidden, up_bias),
                .up = load_linear(ld, "mlp.fc11", d.intermediate_size, d.hidden, up_bias),
                .down = load_linear(ld, "mlp.fc2", d.hidden, d.intermediate_size, down_bias),
                .activation = {.kind = ACT_SILU}}};
        family_add(spec, layer, &(Component){.kind = COMPONENT_ATTENTION, .attention = attention});
        add_norm(ld, spec, layer, "norm1", d.eps);
        family_add(spec, layer, &glu);
        add_norm(ld, spec, layer, "norm2", d.eps);
    }
}

const Family nomic_bert_family = {.load = load_nomic};
