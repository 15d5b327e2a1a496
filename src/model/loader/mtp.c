/* Multi-token prediction heads, and models that read another one. */
#include "model/loader/internal.h"

Spec *load_mtp(Loader *ld, const Spec *spec, const char *projection) {
    if (!ld->source->mtp || ld->failed || !load_has(ld, projection)) return NULL;
    Spec *mtp = loader_alloc(ld, 1, sizeof *mtp);
    if (!mtp) return NULL;
    *mtp = (Spec){.family = spec->family,
        .hidden = spec->hidden,
        .vocab = spec->vocab,
        .layer_count = 1,
        .positions = spec->positions,
        .embedding = spec->embedding,
        .embedding_scale = spec->embedding_scale,
        .head = spec->head,
        .tied = spec->tied,
        .logit_scale = spec->logit_scale,
        .logit_softcap = spec->logit_softcap,
        .precise = spec->precise};
    load_layers(ld, mtp);
    return mtp;
}

static Weight columns(Loader *ld, const Weight *both, int64_t first) {
    Weight half = *both;
    half.cols = both->cols / 2;
    void *memory = loader_alloc(ld, weight_columns_bytes(&half), 1);
    if (!memory) return half;
    half = weight_columns(both, first, half.cols, memory);
    loader_tally(ld, &half);
    return half;
}

void load_state_input(Loader *ld, Spec *spec, const char *name, int64_t width, bool state_first) {
    ld->in_file = true;
    const Weight both = load_linear(ld, name, spec->hidden, 2 * width, false);
    ld->in_file = false;
    spec->input.token = spec->input.state = (Weight){.rows = spec->hidden, .cols = width};
    if (ld->failed) return;
    load_require(
        ld, width % weight_column_unit(&both) == 0, "tensor %s cannot be divided behind column %d", name, (int)width);
    if (ld->failed) return;
    spec->input.token = columns(ld, &both, state_first ? width : 0);
    spec->input.state = columns(ld, &both, state_first ? 0 : width);
}

const Spec *load_target(const Loader *ld) { return ld->source->target; }
