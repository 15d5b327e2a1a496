/* InternLM (the first) and openPangu Embedded: llamas with biases in attention. References: modeling_internlm.py of
 * internlm/internlm-7b, modeling_openpangu_dense.py of openPangu-Embedded-7B: transformers/models/llama. */
#include "family/dense.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-6, .qkv_bias = {"bias", true}, .out_bias = {"bias", true}};
    load_ignore(ld, "rotary", NULL);
    dense_load(ld, spec, &row);
}

const Family internlm_family = {.load = load};
