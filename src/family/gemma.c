/* Gemma, Gemma 2, and PaliGemma, which is one of the two behind SigLIP: norms whose weights are stored minus one,
 * embeddings times √hidden. Gemma 2: sandwich norms, scores and logits capped, every other layer with a window.
 * VaultGemma: Gemma 2 without the norms behind both parts.
 * References: mlx_lm/models/gemma.py, gemma2.py, which has no window; transformers/models/gemma2; the activation:
 * transformers/models/gemma, where "gelu" means the tanh form, with which the models were trained and which is the
 * default; mlx-lm's Gemma computes the erf form. */
#include "family/dense.h"
#include "family/gguf/models.h"
#include "family/vision.h"

#include <math.h>

static bool has(Loader *ld, const char *field) {
    return load_text_is(ld, field, "gelu") || load_text_is(ld, field, "gelu_pytorch_tanh");
}

static void load(Loader *ld, Spec *spec, Dense row) {
    row.activation.kind = ACT_GELU_TANH;
    row.theta = 10000;
    row.eps = 1e-6;
    row.head_dim = 256;
    row.activation_field = "hidden_activation";
    row.activation_text = "gelu_pytorch_tanh";
    row.tied = true;
    row.qkv_bias = row.out_bias = (DenseChoice){"attention_bias", false};
    load_require(ld, has(ld, "hidden_act") || !load_has_field(ld, "hidden_act"), "hidden_act must be gelu");
    load_expect_bool(ld, "use_bidirectional_attention", false);
    load_expect_bool(ld, "tie_word_embeddings", true);
    spec->precise = true; /* as Gemma 3 */
    const Dims d = dense_load(ld, spec, &row);
    spec->embedding_scale = sqrtf((float)d.hidden);
}

static const NormNames norms_of_gemma = {
    load_rms_plus_one, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};

static void load_gemma(Loader *ld, Spec *spec) { load(ld, spec, (Dense){.norms = &norms_of_gemma}); }

/* null: there is none. */
static float softcap_of(Loader *ld, const char *field, double absent) {
    return load_null(ld, field) ? 0 : load_positive_or(ld, field, absent);
}

static void load_capped(Loader *ld, Spec *spec, const NormNames *norms) {
    const float scale = 1 / sqrtf(load_positive_or(ld, "query_pre_attn_scalar", 256));
    const float softcap = softcap_of(ld, "attn_logit_softcapping", 50);
    spec->logit_softcap = softcap_of(ld, "final_logit_softcapping", 30);
    load(ld, spec,
        (Dense){.norms = norms, .window = 4096, .full_every = 2, .ignored = {"hidden_act", "cache_implementation"}});
    for (int i = 0; i < spec->layer_count; i++) {
        Attention *op = &spec->layers[i].components[0].attention.op;
        op->scale = scale;
        op->softcap = softcap;
    }
}

static void load_gemma2(Loader *ld, Spec *spec) {
    static const NormNames norms = {load_rms_plus_one, "input_layernorm", "post_attention_layernorm",
        "pre_feedforward_layernorm", "post_feedforward_layernorm"};
    load_capped(ld, spec, &norms);
}

static void load_vaultgemma(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms_plus_one, .attention_input = "input_layernorm", .ffn_input = "pre_feedforward_layernorm"};
    load_capped(ld, spec, &norms);
}

/* Fields beside the two parts tell the same again. */
static void load_images(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_ignore(
        ld, "_vocab_size", "hidden_size", "ignore_index", "num_hidden_layers", "projection_dim", "vocab_size", NULL);
    load_text_part(ld);
    load_ignore(ld, "num_image_tokens", NULL);
    if (load_text_is(ld, "model_type", "gemma2"))
        load_gemma2(ld, spec);
    else
        load(ld, spec, (Dense){.norms = &norms_of_gemma});
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].attention.op.span_rule = SPANS_WHOLE;
    load_return(ld, &root);
    vision_load_paligemma(ld, spec);
}

const Family paligemma_family = {.load = load_images};

const Family vaultgemma_family = {.load = load_vaultgemma};
const Family gemma_family = {.load = load_gemma, .gguf = &gemma_gguf};
const Family gemma2_family = {.load = load_gemma2, .gguf = &gemma2_gguf};
