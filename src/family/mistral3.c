/* Llamas and Mistrals with images: Mistral Small 3, Ministral 3, Devstral, Pixtral; Idefics 3 and SmolVLM. References:
 * transformers/models/mistral3, pixtral, llava, idefics3. */
#include "family/vision.h"

/* The text model of Mistral Small 3, Ministral 3, Devstral, Pixtral. */
static void load_mistral_text(Loader *ld, Spec *spec) {
    load_text_part(ld);
    if (load_text_is(ld, "model_type", "ministral3"))
        ministral3_load(ld, spec);
    else if (load_text_is(ld, "model_type", "mistral4"))
        mistral4_load(ld, spec);
    else
        mistral_load(ld, spec);
}

/* merge: 0, or the default of spatial_merge_size. */
static void load_with_images(Loader *ld, Spec *spec, int merge, bool bias) {
    const LoadPlace root = load_place(ld);
    if (merge) merge = load_int_or(ld, "spatial_merge_size", merge);
    bias = load_bool_or(ld, "multimodal_projector_bias", bias);
    load_expect_text(ld, "projector_hidden_act", "gelu");
    load_expect_int(ld, "vision_feature_layer", -1);
    load_ignore(ld, "vision_feature_select_strategy", "image_seq_length", NULL);
    load_mistral_text(ld, spec);
    load_return(ld, &root);
    vision_load_pixtral(ld, spec, merge, bias);
}

static void mistral3_load(Loader *ld, Spec *spec) { load_with_images(ld, spec, 2, false); }
static void pixtral_load(Loader *ld, Spec *spec) { load_with_images(ld, spec, 0, true); }

/* Idefics 3 and SmolVLM: a llama with images. */
static void idefics3_load(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const int merge = load_int_or(ld, "scale_factor", 2);
    load_ignore(ld, "vocab_size", "pad_token_id", NULL);
    load_text_part(ld);
    llama_load(ld, spec);
    load_return(ld, &root);
    vision_load_idefics3(ld, spec, merge);
}

const Family mistral3_family = {.load = mistral3_load};
const Family pixtral_family = {.load = pixtral_load};
const Family idefics3_family = {.load = idefics3_load};
