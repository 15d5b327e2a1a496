/* Hyper-connections: what the families that have them share. */
#include "family/family.h"

#include <math.h>
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

/* Their logits do not depend on the streams: pre is 1 / n for each of n. */
HyperMix family_hyper_mean(Loader *ld, const Spec *spec) {
    const HyperConnections *hyper = &spec->hyper;
    const int n = hyper->streams;
    const int64_t width = (int64_t)n * spec->hidden;
    float *base = load_floats(ld, n), *scale = load_floats(ld, 1);
    const double each = 1.0 / n - (double)hyper->eps;
    load_require(ld, n > 1 && each > 0, "hc_mult is %d with hc_eps %g: streams have no mean", n, (double)hyper->eps);
    for (int i = 0; base && i < n; i++) base[i] = (float)log(each / (1 - each));
    return (HyperMix){.mix = {.rows = n, .cols = width, .dtype = DTYPE_F32, .data = load_floats(ld, n * width)},
        .norm = load_rms(ld, NULL, width, hyper->eps),
        .scale = scale,
        .base = base,
        .scales = 1};
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
