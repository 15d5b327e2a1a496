/* dots3 note: DeepSeek-V3.2 whose layers with a window have sizes and a rotary embedding of their own and no indexer; a
 * norm on the rotary key, a gate for each head, and factors behind the norms of low-rank spaces. Fields are the
 * publisher's, or those as transformers saves them. Reference: transformers/models/dots3_note. */
#include "family/dots3_note.h"

static void load(Loader *ld, Spec *spec) {
    load_text_part(ld);
    const Dots3 s = dots3_note_fields(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool sliding = dots3_note_sliding(ld, &s, i);
        const bool experts = s.experts ? family_flag(ld, "moe_layer_freq", s.experts, i) && i >= s.full.dense
                                       : i >= s.full.dense && i % s.full.every == 0;
        const MlaFamily own = dots3_note_layer(ld, &s, i);
        Layer *layer = family_layer(ld, spec, i);
        Component attention = mla_load_indexed(ld, spec, layer, &own, i);
        attention.mla.op.window = sliding ? s.window : 0;
        attention.mla.k_norm = load_rms(ld, "self_attn.k_rope_only_layernorm", own.rope_dim, own.d.eps);
        attention.mla.gate = load_linear(ld, "self_attn.g_proj", own.sizes.heads, own.d.hidden, false);
        family_block_here(
            ld, spec, layer, &(Block){.dims = &own.d, .attention = &attention, .moe = experts ? &s.full.moe : NULL});
    }
}

const Family dots3_note_family = {.load = load};
