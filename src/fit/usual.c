#include <math.h>

#include "fit/fit.h"

enum {
    COLS = 4096,
    ROWS = 4096,
    EXPERT_BYTES = 3 << 20, /* as in a mixture with 30 billion parameters in 4 bits */
    PARTS = 3,
    PRECISE_COST = 2, /* time of a prompt's products with 16-bit activations, relative to 8 bits */
};

FitModel fit_usual_model(void) {
    static const Weight kinds[] = {
        {.quant = QUANT_AFFINE, .bits = 4, .group = 64, .dtype = DTYPE_BF16},
        {.quant = QUANT_AFFINE, .bits = 8, .group = 64, .dtype = DTYPE_BF16},
        {.quant = QUANT_NONE, .dtype = DTYPE_BF16},
        {.quant = QUANT_MXFP4, .bits = 4, .group = 32, .dtype = DTYPE_U8},
        {.quant = QUANT_K, .bits = 4, .group = 32, .dtype = DTYPE_U8},
        {.quant = QUANT_K_SYMMETRIC, .bits = 6, .group = 16, .dtype = DTYPE_U8},
    };
    FitModel model = {.experts = 1, .expert_bytes = EXPERT_BYTES, .parts = PARTS};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        FitKind *kind = &model.kind[model.kind_count++];
        *kind = (FitKind){.like = kinds[i], .share = 1};
        kind->like.rows = ROWS;
        kind->like.cols = COLS;
        kind->bytes = kind->run_bytes = (double)weight_bytes(&kind->like);
        kind->operations = 2.0 * ROWS * COLS;
    }
    return model;
}

static double bits_of(const Weight *w) {
    const Weight row = {
        .rows = 1, .cols = COLS, .quant = w->quant, .bits = w->bits, .group = w->group, .dtype = w->dtype};
    return 8.0 * (double)weight_bytes(&row) / COLS;
}

/* The same format counts more than the same number of bits. */
static int most_alike(const FitModel *usual, const Weight *w) {
    int best = 0;
    double least = INFINITY;
    for (int k = 0; k < usual->kind_count; k++) {
        const Weight *like = &usual->kind[k].like;
        const double apart = fabs(bits_of(like) - bits_of(w)) + (like->quant == w->quant ? 0 : 100);
        if (apart >= least) continue;
        least = apart;
        best = k;
    }
    return best;
}

void fit_transfer(const FitModel *usual, const FitMachine *measured, const FitModel *model, FitMachine *out) {
    *out = (FitMachine){.threads = measured->threads, .read = measured->read, .disk = measured->disk};
    for (int k = 0; k < model->kind_count; k++) {
        const int like = most_alike(usual, &model->kind[k].like);
        out->rows[k] = measured->rows[like];
        out->prompts[k] = measured->prompts[like] / (model->precise ? PRECISE_COST : 1);
    }
}
