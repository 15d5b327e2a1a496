/* Encoders: BERT, XLM-RoBERTa and RoBERTa. Every token sees every other; a layer normalises the residual behind
 * attention and behind the feed-forward network. With a classifier they judge pairs of texts (cross-encoders).
 * References: transformers/models/bert, xlm_roberta. */
#include "family/encoder.h"
#include "family/gguf/models.h"

#include <stdio.h>

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

void encoder_add_norm(Loader *ld, Spec *spec, Layer *layer, const char *name, float eps) {
    Component *replaced = layer_add(spec, layer, COMPONENT_SCALE);
    replaced->scale_factor = 1;
    replaced->input_norm = load_layer_norm(ld, name, spec->hidden, eps);
}

void encoder_finish(Loader *ld, Spec *spec) {
    spec->head = spec->embedding;
    spec->tied = true;
    spec->encoder = true;
    load_layers(ld, spec);
}

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
    const Component mlp =
        family_mlp(ld, "intermediate.dense", "output.dense", d->hidden, d->intermediate_size, activation, true);
    family_add(spec, layer, &(Component){.kind = COMPONENT_ATTENTION, .attention = attention});
    encoder_add_norm(ld, spec, layer, "attention.output.LayerNorm", d->eps);
    family_add(spec, layer, &mlp);
    encoder_add_norm(ld, spec, layer, "output.LayerNorm", d->eps);
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
    encoder_finish(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        load_scope(ld, "%s", body);
        if (i == 0) encoder_add_norm(ld, spec, &spec->layers[0], "embeddings.LayerNorm", d.eps);
        load_bert_layer(ld, spec, i, body, &d, activation);
    }
    load_scope(ld, "%s", "");
    if (classifier) load_classifier(ld, spec, roberta);
}

static void load_bert(Loader *ld, Spec *spec) { load_bert_like(ld, spec, false); }
static void load_roberta(Loader *ld, Spec *spec) { load_bert_like(ld, spec, true); }

const Family bert_family = {.load = load_bert, .gguf = &bert_gguf};
const Family roberta_family = {.load = load_roberta};
