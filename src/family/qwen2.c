/* Qwen2, Qwen2.5: a Llama with biases on q, k and v. Reference: mlx_lm/models/qwen2.py; the sliding
 * window, which it lacks: transformers/models/qwen2. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 1000000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    const Windows windows = family_windows_switched(ld, spec);
    load_expect_bool(ld, "use_mrope", false);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &spec->layers[i];
        load_scope(ld, "model.layers.%d.", i);
        layer->mixer_in = load_rms(ld, "input_layernorm", d.hidden, d.eps);
        layer->attention = family_attention(ld, &d, "o_proj", rope, true, false);
        layer->attention.op.window = family_window(ld, &windows, i);
        layer->ffn_in = load_rms(ld, "post_attention_layernorm", d.hidden, d.eps);
        layer->glu = family_glu(ld, &d, ACT_SILU, false);
    }
}

static const GgufField fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {0},
};

const Family qwen2_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "qwen2",
        .class_name = "Qwen2ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
        .fields = {gguf_sizes, gguf_rms, fields},
        .tokenizer = {.pre = "qwen2"}},
};
