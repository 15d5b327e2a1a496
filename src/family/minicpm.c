/* MiniCPM: a llama whose embeddings, residuals and last hidden states have factors. Reference:
 * mlx_lm/models/minicpm.py, where a tied output matrix reads the last states undivided; transformers and MiniCPM's own
 * code divide them. */
#include "family/dense.h"
#include "family/gguf/models.h"

#include <math.h>

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.theta = 10000};
    const float depth = load_positive_or(ld, "scale_depth", 1), base = load_positive_or(ld, "dim_model_base", 256);
    spec->embedding_scale = load_positive_or(ld, "scale_emb", 1);
    const Dims d = dense_load(ld, spec, &row);
    spec->logit_scale = base / (float)d.hidden;
    for (int i = 0; i < spec->layer_count; i++) {
        Component *components = spec->layers[i].components;
        components[0].residual_scale = components[1].residual_scale = depth / sqrtf((float)spec->layer_count);
    }
}

const Family minicpm_family = {.load = load, .gguf = &minicpm_gguf};
