/* Hyper-connections: what the families that have them share. */
#include "family/family.h"

#include <stdio.h>

static HyperMix load_mix(Loader *ld, const Spec *spec, float eps, const char *format, int iterations, float magnitude) {
    const HyperConnections *hyper = &spec->hyper;
    const int64_t width = (int64_t)hyper->streams * spec->hidden;
    const int64_t rows = hyper_logits(hyper->streams, iterations, magnitude);
    const int scales = hyper_scales(iterations, magnitude);
    char mix[64], scale[64], base[64];
    snprintf(mix, sizeof mix, format, "fn");
    snprintf(scale, sizeof scale, format, "scale");
    snprintf(base, sizeof base, format, "base");
    return (HyperMix){.mix = load_linear(ld, mix, rows, width, false),
        .norm = load_rms(ld, NULL, width, eps),
        .scale = load_vector(ld, scale, scales, 0),
        .base = load_vector(ld, base, rows, 0),
        .scales = scales};
}

HyperMix family_hyper(Loader *ld, const Spec *spec, float eps, const char *format) {
    return load_mix(ld, spec, eps, format, spec->hyper.iterations, spec->hyper.magnitude);
}

HyperMix family_hyper_head(Loader *ld, const Spec *spec, float eps, const char *format) {
    return load_mix(ld, spec, eps, format, 0, 0);
}

/* The residual begins as the sum of the streams, which is kept, then as nothing. */
Component *family_between(Spec *spec, Layer *layer, const HyperMix *hyper, const Component *loaded, const Norm *norm,
    const Component *beside) {
    const int zero = layer->component_count;
    layer_add(spec, layer, COMPONENT_SCALE)->scale_factor = 0;
    Component *own = family_add(spec, layer, loaded);
    own->input_norm = norm;
    own->reads = zero;
    if (beside) family_add(spec, layer, beside)->parallel = true;
    layer_add(spec, layer, COMPONENT_HYPER_EXPAND)->hyper = *hyper;
    return own;
}
