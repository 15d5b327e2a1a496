/* SigLIP with the projectors of Gemma 3 and PaliGemma. References: transformers, models/gemma3/modeling_gemma3.py,
 * models/paligemma/modeling_paligemma.py. */
#include "family/vision_siglip.h"

#include <math.h>

static const Siglip so400m = {
    .d = {.hidden = 1152, .heads = 16, .intermediate_size = 4304}, .layers = 27, .patch = 14, .pixels = 896};

void vision_load_gemma3(Loader *ld, Spec *spec, int tokens) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    const Siglip s = siglip_fields(ld, &so400m, false);
    const int side = s.pixels / s.patch, grid = (int)lround(sqrt(tokens)), hidden = s.d.hidden;
    load_require(ld, grid * grid == tokens && grid > 0 && side % grid == 0,
        "mm_tokens_per_image is %d, which is no square that divides %d × %d patches", tokens, side, side);
    vision_expect_switch(ld, "do_pan_and_scan", false);
    vision->rule = siglip_fixed_rule(ld, &s, grid ? side / grid : 1, IMAGE_BILINEAR);
    vision->rule.order = PATCHES_SPREAD;
    siglip_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    siglip_enter_projector(ld, "multi_modal_projector", "mm_input_projection_weight");
    vision->merger.average = 1;
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){.norm = load_rms_plus_one(ld, "mm_soft_emb_norm", hidden, s.eps),
        .weight = load_transposed(ld, "mm_input_projection_weight", spec->hidden, hidden),
        .activation = {.kind = ACT_NONE}};
    vision->bidirectional = true;
    vision->placeholder = "<start_of_image>";
    vision->before = "\n\n<start_of_image>";
    vision->token = "<image_soft_token>";
    vision->after = "<end_of_image>\n\n";
    load_return(ld, &root);
}

/* As the model was trained, and as its processor writes prompts; its files have no template. */
static const char paligemma_template[] =
    "{%- for m in messages -%}{%- if m['content'] is not string -%}{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}<image>{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
    "{{ bos_token }}"
    "{%- for m in messages -%}{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}"
    "{%- for c in m['content'] -%}{%- if c['type'] == 'text' -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}{{ '\n' }}";

void vision_load_paligemma(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    VisionSpec *vision = load_vision_part(ld);
    if (!vision) return;
    Siglip usual = so400m;
    usual.pixels = 224;
    const Siglip s = siglip_fields(ld, &usual, false);
    load_expect_int(ld, "projection_dim", spec->hidden);
    load_ignore(ld, "num_image_tokens", "num_positions", "projector_hidden_act", NULL);
    vision->rule = siglip_fixed_rule(ld, &s, 1, IMAGE_BICUBIC);
    siglip_tower(ld, vision, &s, POSITIONS_GRID);
    load_return(ld, &root);
    siglip_enter_projector(ld, "multi_modal_projector", "linear.weight");
    vision->merger.stage_count = 1;
    vision->merger.stages[0] = (MergerStage){
        .weight = load_linear(ld, "linear", spec->hidden, s.d.hidden, true), .activation = {.kind = ACT_NONE}};
    vision->bidirectional = vision->whole_prompt = true;
    vision->chat_template = paligemma_template;
    vision->placeholder = vision->token = "<image>";
    vision->before = vision->after = "";
    load_return(ld, &root);
}
