/* The names of encoders in mmproj files. References: gguf-py, tensor_mapping.py; the classes of encoders in llama.cpp's
 * converter (conversion/). */
#include "import/gguf/vision.h"

#define LAYER "encoder.layers.*."

static const VisionName siglip[] = {
    {"v.patch_embd", "embeddings.patch_embedding", true, VISION_AS_IT_IS},
    {"v.position_embd", "embeddings.position_embedding", false, VISION_AS_IT_IS},
    {"v.blk.*.ln1", LAYER "layer_norm1", true, VISION_AS_IT_IS},
    {"v.blk.*.ln2", LAYER "layer_norm2", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", LAYER "self_attn.q_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_k", LAYER "self_attn.k_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_v", LAYER "self_attn.v_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_out", LAYER "self_attn.out_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", LAYER "mlp.fc1", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", LAYER "mlp.fc2", true, VISION_AS_IT_IS},
    {"v.post_ln", "post_layernorm", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName gemma3[] = {
    {"mm.input_projection", "mm_input_projection", false, VISION_BARE},
    {"mm.soft_emb_norm", "mm_soft_emb_norm", false, VISION_PLUS_ONE},
    {0},
};
static const VisionName idefics3[] = {{"mm.model.fc", "modality_projection.proj", false, VISION_AS_IT_IS}, {0}};

#define BLOCK "transformer.layers.*."

static const VisionName pixtral_tower[] = {
    {"v.patch_embd", "patch_conv", false, VISION_AS_IT_IS},
    {"v.pre_ln", "ln_pre", false, VISION_AS_IT_IS},
    {"v.blk.*.ln1", BLOCK "attention_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.ln2", BLOCK "ffn_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", BLOCK "attention.q_proj", false, VISION_PAIRED},
    {"v.blk.*.attn_k", BLOCK "attention.k_proj", false, VISION_PAIRED},
    {"v.blk.*.attn_v", BLOCK "attention.v_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_out", BLOCK "attention.o_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_gate", BLOCK "feed_forward.gate_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", BLOCK "feed_forward.up_proj", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", BLOCK "feed_forward.down_proj", false, VISION_AS_IT_IS},
    {0},
};
static const VisionName pixtral[] = {
    {"mm.1", "linear_1", true, VISION_AS_IT_IS},
    {"mm.2", "linear_2", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName mistral3[] = {
    {"mm.input_norm", "norm", false, VISION_AS_IT_IS},
    {"mm.patch_merger", "patch_merger.merging_layer", false, VISION_AS_IT_IS},
    {"mm.1", "linear_1", false, VISION_AS_IT_IS},
    {"mm.2", "linear_2", false, VISION_AS_IT_IS},
    {0},
};

#define QWEN_BLOCK "blocks.*."

static const VisionName qwen2[] = {
    {"v.patch_embd", "patch_embed.proj", false, VISION_FRAMES},
    {"v.blk.*.ln1", QWEN_BLOCK "norm1", true, VISION_AS_IT_IS},
    {"v.blk.*.ln2", QWEN_BLOCK "norm2", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", QWEN_BLOCK "attn.qkv", true, VISION_FUSED},
    {"v.blk.*.attn_out", QWEN_BLOCK "attn.proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", QWEN_BLOCK "mlp.fc1", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", QWEN_BLOCK "mlp.fc2", true, VISION_AS_IT_IS},
    {"v.post_ln", "merger.ln_q", true, VISION_AS_IT_IS},
    {"mm.0", "merger.mlp.0", true, VISION_AS_IT_IS},
    {"mm.2", "merger.mlp.2", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName qwen2_5[] = {
    {"v.patch_embd", "patch_embed.proj", false, VISION_FRAMES},
    {"v.blk.*.ln1", QWEN_BLOCK "norm1", false, VISION_AS_IT_IS},
    {"v.blk.*.ln2", QWEN_BLOCK "norm2", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", QWEN_BLOCK "attn.qkv", true, VISION_FUSED},
    {"v.blk.*.attn_out", QWEN_BLOCK "attn.proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_gate", QWEN_BLOCK "mlp.gate_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", QWEN_BLOCK "mlp.up_proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", QWEN_BLOCK "mlp.down_proj", true, VISION_AS_IT_IS},
    {"v.post_ln", "merger.ln_q", false, VISION_AS_IT_IS},
    {"mm.0", "merger.mlp.0", true, VISION_AS_IT_IS},
    {"mm.2", "merger.mlp.2", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName qwen3[] = {
    {"v.patch_embd", "patch_embed.proj", true, VISION_FRAMES},
    {"v.position_embd", "pos_embed", false, VISION_AS_IT_IS},
    {"v.blk.*.ln1", QWEN_BLOCK "norm1", true, VISION_AS_IT_IS},
    {"v.blk.*.ln2", QWEN_BLOCK "norm2", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_qkv", QWEN_BLOCK "attn.qkv", true, VISION_AS_IT_IS},
    {"v.blk.*.attn_out", QWEN_BLOCK "attn.proj", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_up", QWEN_BLOCK "mlp.linear_fc1", true, VISION_AS_IT_IS},
    {"v.blk.*.ffn_down", QWEN_BLOCK "mlp.linear_fc2", true, VISION_AS_IT_IS},
    {"v.post_ln", "merger.norm", true, VISION_AS_IT_IS},
    {"mm.0", "merger.linear_fc1", true, VISION_AS_IT_IS},
    {"mm.2", "merger.linear_fc2", true, VISION_AS_IT_IS},
    {"v.deepstack.*.norm", "deepstack_merger_list.*.norm", true, VISION_DEEPSTACK},
    {"v.deepstack.*.fc1", "deepstack_merger_list.*.linear_fc1", true, VISION_DEEPSTACK},
    {"v.deepstack.*.fc2", "deepstack_merger_list.*.linear_fc2", true, VISION_DEEPSTACK},
    {0},
};

static const VisionName gemma4_tower[] = {
    {"v.patch_embd", "patch_embedder.input_proj", false, VISION_CHANNELS_LAST},
    {"v.position_embd", "patch_embedder.position_embedding_table", false, VISION_NAMELESS},
    {"v.blk.*.ln1", LAYER "input_layernorm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_post_norm", LAYER "post_attention_layernorm", false, VISION_AS_IT_IS},
    {"v.blk.*.ln2", LAYER "pre_feedforward_layernorm", false, VISION_AS_IT_IS},
    {"v.blk.*.ffn_post_norm", LAYER "post_feedforward_layernorm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_q_norm", LAYER "self_attn.q_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_k_norm", LAYER "self_attn.k_norm", false, VISION_AS_IT_IS},
    {"v.blk.*.attn_q", LAYER "self_attn.q_proj", false, VISION_LINEAR},
    {"v.blk.*.attn_k", LAYER "self_attn.k_proj", false, VISION_LINEAR},
    {"v.blk.*.attn_v", LAYER "self_attn.v_proj", false, VISION_LINEAR},
    {"v.blk.*.attn_out", LAYER "self_attn.o_proj", false, VISION_LINEAR},
    {"v.blk.*.ffn_gate", LAYER "mlp.gate_proj", false, VISION_LINEAR},
    {"v.blk.*.ffn_up", LAYER "mlp.up_proj", false, VISION_LINEAR},
    {"v.blk.*.ffn_down", LAYER "mlp.down_proj", false, VISION_LINEAR},
    {"v.std_bias", "std_bias", false, VISION_OPTIONAL},
    {"v.std_scale", "std_scale", false, VISION_OPTIONAL},
    {0},
};
static const VisionName gemma4[] = {{"mm.input_projection", "embedding_projection", false, VISION_AS_IT_IS}, {0}};
static const VisionName gemma4_unified[] = {
    {"v.patch_norm.1", "patch_ln1", true, VISION_COLOURS_LAST},
    {"v.patch_embd", "patch_dense", false, VISION_COLOURS_LAST},
    {"v.patch_embd.bias", "patch_dense.bias", false, VISION_NAMELESS},
    {"v.patch_norm.2", "patch_ln2", true, VISION_AS_IT_IS},
    {"v.position_embd", "pos_embedding", false, VISION_PLACES_FIRST},
    {"v.patch_norm.3", "pos_norm", true, VISION_AS_IT_IS},
    {0},
};

#define CONFORMER "layers.*."

/* Files have the names of the two norms around the convolution exchanged. */
static const VisionName gemma4_conformer[] = {
    {"a.conv1d.0", "subsample_conv_projection.layer0.conv", false, VISION_AS_IT_IS},
    {"a.conv1d.0.norm", "subsample_conv_projection.layer0.norm", false, VISION_AS_IT_IS},
    {"a.conv1d.1", "subsample_conv_projection.layer1.conv", false, VISION_AS_IT_IS},
    {"a.conv1d.1.norm", "subsample_conv_projection.layer1.norm", false, VISION_AS_IT_IS},
    {"a.input_projection", "subsample_conv_projection.input_proj_linear", false, VISION_AS_IT_IS},
    {"a.blk.*.ffn_norm", CONFORMER "feed_forward1.pre_layer_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.ffn_up", CONFORMER "feed_forward1.ffw_layer_1", false, VISION_LINEAR},
    {"a.blk.*.ffn_down", CONFORMER "feed_forward1.ffw_layer_2", false, VISION_LINEAR},
    {"a.blk.*.ffn_post_norm", CONFORMER "feed_forward1.post_layer_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.attn_pre_norm", CONFORMER "norm_pre_attn", false, VISION_AS_IT_IS},
    {"a.blk.*.attn_q", CONFORMER "self_attn.q_proj", false, VISION_LINEAR},
    {"a.blk.*.attn_k", CONFORMER "self_attn.k_proj", false, VISION_LINEAR},
    {"a.blk.*.attn_v", CONFORMER "self_attn.v_proj", false, VISION_LINEAR},
    {"a.blk.*.attn_out", CONFORMER "self_attn.post", false, VISION_LINEAR},
    {"a.blk.*.attn_k_rel", CONFORMER "self_attn.relative_k_proj", false, VISION_AS_IT_IS},
    {"a.blk.*.per_dim_scale", CONFORMER "self_attn.per_dim_scale", false, VISION_SOFTPLUS},
    {"a.blk.*.attn_post_norm", CONFORMER "norm_post_attn", false, VISION_AS_IT_IS},
    {"a.blk.*.conv_norm", CONFORMER "lconv1d.pre_layer_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.conv_pw1", CONFORMER "lconv1d.linear_start", false, VISION_LINEAR},
    {"a.blk.*.conv_dw", CONFORMER "lconv1d.depthwise_conv1d", false, VISION_AS_IT_IS},
    {"a.blk.*.norm_conv", CONFORMER "lconv1d.conv_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.conv_pw2", CONFORMER "lconv1d.linear_end", false, VISION_LINEAR},
    {"a.blk.*.ffn_norm_1", CONFORMER "feed_forward2.pre_layer_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.ffn_up_1", CONFORMER "feed_forward2.ffw_layer_1", false, VISION_LINEAR},
    {"a.blk.*.ffn_down_1", CONFORMER "feed_forward2.ffw_layer_2", false, VISION_LINEAR},
    {"a.blk.*.ffn_post_norm_1", CONFORMER "feed_forward2.post_layer_norm", false, VISION_AS_IT_IS},
    {"a.blk.*.ln2", CONFORMER "norm_out", false, VISION_AS_IT_IS},
    {"a.pre_encode.out", "output_proj", true, VISION_AS_IT_IS},
    {0},
};
static const VisionName gemma4_audio[] = {
    {"mm.a.input_projection", "embedding_projection", false, VISION_AS_IT_IS}, {0}};

/* Qwen3-VL and Qwen3.5, which have one encoder. */
#define QWEN3_KIND(text, model, class)                                                                                 \
    {                                                                                                                  \
        .projector = "qwen3vl_merger", .texts = {text}, .model_type = model,                                           \
        .class_name = class "ForConditionalGeneration", .tower_type = model, .processor = "Qwen2VLImageProcessorFast", \
        .activation = ".use_gelu", .factor_key = ".vision.spatial_merge_size", .factor = 2, .style = STYLE_QWEN3,      \
        .mrope = true, .mrope_interleaved = true, .homes = {"vision_tower."}, .names = {                               \
            qwen3                                                                                                      \
        }                                                                                                              \
    }

const VisionKind gguf_vision_kinds[] = {
    {.projector = "gemma3",
        .texts = {"gemma3"},
        .model_type = "gemma3",
        .class_name = "Gemma3ForConditionalGeneration",
        .tower_type = "siglip_vision_model",
        .processor = "Gemma3ImageProcessor",
        .activation = ".use_gelu",
        .factor_key = ".vision.projector.scale_factor",
        .factor = 4,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {siglip, gemma3}},
    {.projector = "idefics3",
        .texts = {"llama"},
        .model_type = "smolvlm",
        .class_name = "SmolVLMForConditionalGeneration",
        .tower_type = "smolvlm_vision",
        .processor = "SmolVLMImageProcessor",
        .activation = ".use_gelu",
        .factor_key = ".vision.projector.scale_factor",
        .factor = 2,
        .style = STYLE_TILES,
        .homes = {"vision_model.", "connector."},
        .names = {siglip, idefics3}},
    {.projector = "pixtral",
        .with = "mm.patch_merger.weight",
        .texts = {"llama", "mistral3"},
        .model_type = "mistral3",
        .class_name = "Mistral3ForConditionalGeneration",
        .tower_type = "pixtral",
        .processor = "PixtralImageProcessor",
        .activation = ".use_silu",
        .factor_key = ".vision.spatial_merge_size",
        .factor = 2,
        .style = STYLE_WITHIN,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {pixtral_tower, mistral3}},
    {.projector = "pixtral",
        .texts = {"llama"},
        .model_type = "pixtral",
        .class_name = "LlavaForConditionalGeneration",
        .tower_type = "pixtral",
        .processor = "PixtralImageProcessor",
        .activation = ".use_silu",
        .style = STYLE_WITHIN,
        .homes = {"vision_tower.vision_model.", "multi_modal_projector."},
        .names = {pixtral_tower, pixtral}},
    {.projector = "qwen2vl_merger",
        .texts = {"qwen2vl"},
        .model_type = "qwen2_vl",
        .class_name = "Qwen2VLForConditionalGeneration",
        .tower_type = "qwen2_vl",
        .processor = "Qwen2VLImageProcessor",
        .factor_key = ".vision.spatial_merge_size",
        .factor = 2,
        .style = STYLE_QWEN2,
        .mrope = true,
        .homes = {"vision_tower."},
        .names = {qwen2}},
    {.projector = "qwen2.5vl_merger",
        .texts = {"qwen2vl"},
        .model_type = "qwen2_5_vl",
        .class_name = "Qwen2_5_VLForConditionalGeneration",
        .tower_type = "qwen2_5_vl",
        .processor = "Qwen2VLImageProcessor",
        .activation = ".use_silu",
        .factor_key = ".vision.spatial_merge_size",
        .factor = 2,
        .style = STYLE_QWEN2_5,
        .mrope = true,
        .homes = {"vision_tower."},
        .names = {qwen2_5}},
    QWEN3_KIND("qwen3vl", "qwen3_vl", "Qwen3VL"),
    QWEN3_KIND("qwen3vlmoe", "qwen3_vl_moe", "Qwen3VLMoe"),
    QWEN3_KIND("qwen35", "qwen3_5", "Qwen3_5"),
    QWEN3_KIND("qwen35moe", "qwen3_5_moe", "Qwen3_5Moe"),
    {.projector = "gemma4v",
        .texts = {"gemma4"},
        .model_type = "gemma4",
        .class_name = "Gemma4ForConditionalGeneration",
        .tower_type = "gemma4_vision",
        .processor = "Gemma4ImageProcessor",
        .factor = 3,
        .style = STYLE_GEMMA4,
        .audio = "gemma4a",
        .homes = {"vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."},
        .names = {gemma4_tower, gemma4, gemma4_conformer, gemma4_audio}},
    {.projector = "gemma4uv",
        .texts = {"gemma4"},
        .model_type = "gemma4_unified",
        .class_name = "Gemma4UnifiedForConditionalGeneration",
        .tower_type = "gemma4_unified_vision",
        .processor = "Gemma4UnifiedImageProcessor",
        .audio = "gemma4ua",
        .factor = 3,
        .style = STYLE_UNIFIED,
        .homes = {"vision_embedder.", "embed_vision.", "", "embed_audio."},
        .names = {gemma4_unified, gemma4, NULL, gemma4_audio}},
};
const size_t gguf_vision_kind_count = COUNT_OF(gguf_vision_kinds);
