/* Encoders in GGUF files. RoBERTa's are files of BERT: the converter cuts off the rows of positions that its padding
 * token takes, and its classifier computes what BERT's does. */
#include "family/gguf/models.h"

/* ---- BERT, RoBERTa, XLM-RoBERTa ---- */

static const GgufName bert_names[] = {
    {"token_embd", "bert.embeddings.word_embeddings", 0},
    {"token_types", "bert.embeddings.token_type_embeddings", 0},
    {"position_embd", "bert.embeddings.position_embeddings", 0},
    {"token_embd_norm", "bert.embeddings.LayerNorm", 0},
    {"blk.*.attn_q", "bert.encoder.layer.*.attention.self.query", 0},
    {"blk.*.attn_k", "bert.encoder.layer.*.attention.self.key", 0},
    {"blk.*.attn_v", "bert.encoder.layer.*.attention.self.value", 0},
    {"blk.*.attn_output", "bert.encoder.layer.*.attention.output.dense", 0},
    {"blk.*.attn_output_norm", "bert.encoder.layer.*.attention.output.LayerNorm", 0},
    {"blk.*.ffn_up", "bert.encoder.layer.*.intermediate.dense", 0},
    {"blk.*.ffn_down", "bert.encoder.layer.*.output.dense", 0},
    {"blk.*.layer_output_norm", "bert.encoder.layer.*.output.LayerNorm", 0},
    {"cls", "bert.pooler.dense", 0},
    {"cls.output", "classifier", 0},
    {0},
};

static const GgufField bert_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"intermediate_size", .key = ".feed_forward_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"type_vocab_size", GGUF_FIELD_ROWS, .key = "token_types.weight"},
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu"},
    {"heads", GGUF_FIELD_EQUAL, .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},
    {"labels", GGUF_FIELD_IGNORED, .key = ".classifier.output_labels"},
    {0},
};

const GgufModel bert_gguf = {.architecture = "bert",
    .encoder = true,
    .no_rope = true,
    .class_name = "BertModel",
    .names = {bert_names},
    .fields = {bert_fields}};

/* ---- Nomic-BERT ---- */

static const GgufName nomic_names[] = {
    {"token_embd", "embeddings.word_embeddings", 0},
    {"token_types", "embeddings.token_type_embeddings", 0},
    {"token_embd_norm", "emb_ln", 0},
    {"blk.*.attn_qkv", "encoder.layers.*.attn.Wqkv", 0},
    {"blk.*.attn_output", "encoder.layers.*.attn.out_proj", 0},
    {"blk.*.attn_output_norm", "encoder.layers.*.norm1", 0},
    {"blk.*.ffn_up", "encoder.layers.*.mlp.fc11", 0},
    {"blk.*.ffn_gate", "encoder.layers.*.mlp.fc12", 0},
    {"blk.*.ffn_down", "encoder.layers.*.mlp.fc2", 0},
    {"blk.*.layer_output_norm", "encoder.layers.*.norm2", 0},
    {0},
};

static const GgufField nomic_fields[] = {
    {"n_embd", .key = ".embedding_length"},
    {"n_inner", .key = ".feed_forward_length"},
    {"n_layer", .key = ".block_count", .compute = gguf_layer_count},
    {"n_head", .key = ".attention.head_count"},
    {"n_positions", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"type_vocab_size", GGUF_FIELD_ROWS, .key = "token_types.weight"},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"activation_function", GGUF_FIELD_TEXT, .text = "swiglu"},
    {"rotary_emb_base", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 10000},
    {0},
};

const GgufModel nomic_bert_gguf = {.architecture = "nomic-bert",
    .encoder = true,
    .rope_in_fields = true,
    .class_name = "NomicBertModel",
    .names = {nomic_names},
    .fields = {nomic_fields}};
