/* Phi-3, Phi-3.5, Phi-4 (mini, multimodal): a Llama whose projections are fused: qkv_proj = q ‖ k ‖ v, gate_up_proj =
 * gate ‖ up. Reference: mlx_lm/models/phi3.py; the sliding window: transformers/models/phi3. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load_phi3(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = load_rotary_dims(ld, d.head_dim, 1),
            .theta = 10000,
            .interleaved = load_bool_or(ld, "rope_traditional", false),
            .original_positions = 4096});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "lm_head_bias", false);
    load_ignore(ld, "original_max_position_embeddings", NULL);
    load_require(ld, load_int_or(ld, "full_attn_mod", 1) == 1 && load_int_or(ld, "interpolate_factor", 1) == 1,
        "full_attn_mod and interpolate_factor must be 1");
    const int window = load_int_or(ld, "sliding_window", 0);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_fused_attention(ld, &d, "self_attn.qkv_proj", "self_attn.o_proj", rope, false, false)};
        attention.attention.op.window = window;
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu = family_fused_glu(ld, "mlp.gate_up_proj", "mlp.down_proj", d.hidden, d.intermediate_size,
                (Activation){.kind = ACT_SILU}, false)};
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention, .ffn = &ffn});
    }
}

/* The language model alone: its publisher's files (phi4mm) have it beside the adapters for images and sound, which
 * texts do without. */
static void load_phi4_multimodal(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"qkv_proj", "qkv_proj.base_layer"}, {"o_proj", "o_proj.base_layer"},
        {"gate_up_proj", "gate_up_proj.base_layer"}, {"down_proj", "down_proj.base_layer"}, {0}};
    if (load_has_part(ld, ".base_layer.")) load_module_names(ld, names);
    load_skip(ld, ".lora_A.");
    load_skip(ld, ".lora_B.");
    load_skip(ld, "embed_tokens_extend.");
    load_ignore(ld, "vision_config", "audio_config", "embd_layer", "img_processor", "audio_processor", "vision_lora",
        "speech_lora", "image_token_id", "audio_token_id", NULL);
    load_phi3(ld, spec);
}

const Family phi3_family = {.load = load_phi3, .gguf = &phi3_gguf};
const Family phi4_multimodal_family = {.load = load_phi4_multimodal};
