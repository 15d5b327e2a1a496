/* model/loader/: from config.json and tensors to a Spec: reading, checking, refusing by name.
 *
 * What a family file works with: reads config.json field by field, fetches tensors by name and shape, fills the Spec.
 *
 * The first failure sticks, names file, field or tensor and value, and makes every later call return something
 * harmless, so a family reads straight through without a single if. Every field asked for counts as used; what remains
 * is named in a warning (with strict_config an error). null counts as absent, as in the files themselves. Threads: one
 * at a time. Everything returned lives in the model's arena. */
#pragma once
#include "base/json.h"
#include "model/spec.h"
#include "tensor/safetensors.h"

typedef struct Loader Loader;

/* A family: fills the Spec. A row of family/registry.c ties it to values of model_type. */
typedef void FamilyLoad(Loader *ld, Spec *spec);

/* ---- config.json ---- */

int load_int(Loader *ld, const char *field); /* 1 … 2^24; must be there */
int load_int_or(Loader *ld, const char *field, int absent);
int load_int_at(Loader *ld, const char *field, int i, int absent); /* the same, or element i of a list of such */
int load_count_or(Loader *ld, const char *field, int absent);      /* 0 … 2^24 */
float load_positive(Loader *ld, const char *field);                /* finite, > 0; must be there */
float load_positive_or(Loader *ld, const char *field, double absent);
bool load_bool_or(Loader *ld, const char *field, bool absent);
bool load_text_is(Loader *ld, const char *field, const char *value); /* there, and this string */
/* An array of exactly count elements (−1: of numbers of layers, as many as there can be), or NULL when absent. */
const Json *load_list(Loader *ld, const char *field, int count);
/* The field must be absent or have this value: the family computes nothing else. */
void load_expect_text(Loader *ld, const char *field, const char *value);
void load_expect_bool(Loader *ld, const char *field, bool value);
/* Fields that cannot change the result, and fields that mlx-lm ignores as well. Ends with NULL. */
void load_ignore(Loader *ld, ...);
/* From here on fields are those of the object in `field` (text_config of the multimodal wrappers), tensors begin with
 * prefix. */
void load_enter(Loader *ld, const char *field, const char *prefix);
/* The rest of a check that spans fields: sets the error unless ok. */
void load_require(Loader *ld, bool ok, const char *format, ...) PRINTF_LIKE(3, 4);

/* ---- rotary embeddings ---- */

typedef struct RopeOptions {
    int head_dim;
    int dims;                /* that rotate; 0: all of the head */
    const char *theta_field; /* NULL: rope_theta */
    double theta;            /* when the file has none; 0: it must */
    bool interleaved;
    bool alpha;             /* dynamic scaling has a factor of its own (Hunyuan), which does not grow with the text */
    bool unscaled;          /* rope_scaling is for other layers */
    const char *layer_type; /* whose part of a rope_parameters by layer type; NULL: none */
    int original_positions; /* longrope: when the file has none; 0: it must */
} RopeOptions;

/* All of mlx-lm's initialize_rope, from rope_theta and rope_scaling or from rope_parameters. */
const Rope *load_rope(Loader *ld, const RopeOptions *options);
/* What yarn multiplies the scores of latent attention by: (0.1·mscale_all_dim·ln factor + 1)²; without both: 1. */
float load_yarn_attention(Loader *ld);
/* head_dim · partial_rotary_factor. */
int load_rotary_dims(Loader *ld, int head_dim, double absent);

/* ---- tensors: names are completed to prefix + scope + name ---- */

void load_scope(Loader *ld, const char *format, ...) PRINTF_LIKE(2, 3);
bool load_has(Loader *ld, const char *name); /* exactly this tensor */
/* NAME.weight (with .scales: quantised) as rows × cols, and NAME.bias when bias is set. */
Weight load_linear(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias);
/* A matrix per expert: one tensor STACKED.weight [experts, rows, cols] (as MLX converts), or, when there is no such,
 * one of each expert: SINGLE, a format with its number; NULL: it must be there. extra: room for so many more matrices,
 * zeroed, behind them. */
Weight *load_experts(
    Loader *ld, const char *stacked, const char *single, int experts, int extra, int64_t rows, int64_t cols, bool bias);
/* What latent attention needs of each head (Latent of backend.h), under HOME: HOME.embed_q [heads, latent, plain] and
 * HOME.w_uv_out [heads, width, latent] (as MLX converts), or both from HOME.kv_b_proj [heads · (plain + width),
 * latent], whose first part of each head is transposed into memory. */
typedef struct HeadSizes {
    int heads, plain, width, latent;
} HeadSizes;
void load_mla_heads(Loader *ld, const char *home, const HeadSizes *sizes, Weight **embed, Weight **w_uv);
/* Of matrices of twice as many rows: leaves the first halves there and gives the second ones. */
Weight *load_halves(Loader *ld, Weight *both, int count);
/* Rows of a fused matrix, as a view. */
Weight load_part(const Weight *fused, int64_t first, int64_t count);
const float *load_vector(Loader *ld, const char *name, int64_t count, float plus); /* exactly this tensor, plus added */
const Norm *load_rms(Loader *ld, const char *name, int64_t width, float eps); /* NAME.weight; name NULL: only ones */
const Norm *load_rms_plus_one(Loader *ld, const char *name, int64_t width, float eps); /* stored as w − 1 */
const Norm *load_layer_norm(Loader *ld, const char *name, int64_t width, float eps);   /* NAME.weight, NAME.bias */
/* Tensors whose full name contains this text are left alone in silence. */
void load_skip(Loader *ld, const char *format, ...) PRINTF_LIKE(2, 3);

/* Allocates the layer_count layers of the Spec, without components. After a failure there are none. */
void load_layers(Loader *ld, Spec *spec);
