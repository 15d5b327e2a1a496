/* model/loader/: from config.json and tensors to a Spec: reading, checking, refusing by name.
 *
 * The interface of family files: they read config.json field by field, fetch tensors by name and shape, and fill the
 * Spec.
 *
 * Errors: the first one sticks. It names file, field or tensor, and value. Every later call returns a harmless value,
 * so a family file contains no error handling. Every field that is asked for counts as used; unused fields are named in
 * a warning (with strict_config in an error). null counts as absent. Ownership: everything returned lives in the
 * model's arena. Threads: one at a time. */
#pragma once
#include "base/json.h"
#include "model/spec.h"
#include "tensor/safetensors.h"

typedef struct Loader Loader;

/* Fills the Spec of one family, which family/registry.c selects by model_type. */
typedef void FamilyLoad(Loader *ld, Spec *spec);

/* ---- config.json ---- */

int load_int(Loader *ld, const char *field); /* 1 … 2^24; must be there */
int load_int_or(Loader *ld, const char *field, int absent);
int load_int_at(Loader *ld, const char *field, int i, int absent); /* the same, or element i of a list of such */
int load_count_or(Loader *ld, const char *field, int absent);      /* 0 … 2^24 */
float load_positive(Loader *ld, const char *field);                /* finite, > 0; must be there */
float load_positive_or(Loader *ld, const char *field, double absent);
float load_number_or(Loader *ld, const char *field, double absent);   /* finite, 0 or more */
float load_negative_or(Loader *ld, const char *field, double absent); /* finite, < 0 */
bool load_bool_or(Loader *ld, const char *field, bool absent);
bool load_truth_or(Loader *ld, const char *field, bool absent); /* the same, or a number, of which 0 is false */
int load_context(const Loader *ld); /* tokens of a sequence that are asked for; 0: as many as the model has */
bool load_has_field(Loader *ld, const char *field);                  /* there, and not null */
bool load_is_list(Loader *ld, const char *field);                    /* an array */
bool load_is_int(Loader *ld, const char *field, int value);          /* there, and this integer */
bool load_null(Loader *ld, const char *field);                       /* there, and null */
bool load_text_is(Loader *ld, const char *field, const char *value); /* there, and this string */
Slice load_string(Loader *ld, const char *field);                    /* a string; empty: absent, or of another type */
/* An array of exactly count elements (−1: of numbers of layers, as many as there can be), or NULL when absent. */
const Json *load_list(Loader *ld, const char *field, int count);
/* An error unless the field is absent or has this value: the family supports no other. */
void load_expect_text(Loader *ld, const char *field, const char *value);
void load_expect_int(Loader *ld, const char *field, int value);
void load_expect_bool(Loader *ld, const char *field, bool value);
/* Marks fields as used that cannot change the result or that mlx-lm ignores as well. The list ends with NULL. */
void load_ignore(Loader *ld, ...);
/* From here on reads fields of the object `field` (text_config of multimodal wrappers), and tensor names begin with
 * prefix. */
void load_enter(Loader *ld, const char *field, const char *prefix);
/* Where fields and tensors are read from, to come back to after load_enter() and load_text_part(). */
typedef struct LoadPlace {
    const Json *fields;
    char where[64], prefix[64], body[64], scope[160];
} LoadPlace;
LoadPlace load_place(const Loader *ld);
void load_return(Loader *ld, const LoadPlace *place);
/* Gives the Spec a vision part, and enters vision_config with tensor names under the vision tower's prefix
 * (vision_tower., model.visual. or visual.). NULL, and nothing has changed: the file has no such part. */
struct VisionSpec *load_vision_part(Loader *ld);
/* The same for a tower of convolutions, without entering vision_config: fields stay those that are read. most: layers
 * that VisionSpec.conv has room for, zeroed. */
struct VisionSpec *load_conv_part(Loader *ld, int most);
/* The same for audio_config and an audio tower (audio_tower.), or the tensors alone that embed audio (embed_audio.). */
struct AudioSpec *load_audio_part(Loader *ld);
/* Allocates its layer_count layers, zeroed. After a failure there are none. */
void load_conformer(Loader *ld, struct AudioSpec *audio);
/* The settings of image preprocessing: preprocessor_config.json, or image_processor of processor_config.json; NULL:
 * there are none. */
const Json *load_processor(const Loader *ld);
/* The same of videos: video_preprocessor_config.json, or video_processor of processor_config.json. */
const Json *load_video_processor(const Loader *ld);
/* The same of audio preprocessing: feature_extractor of processor_config.json, or preprocessor_config.json. */
const Json *load_extractor(const Loader *ld);
/* The text model of a file that may have more parts: enters text_config if there is one, and finds how the tensor names
 * of that model begin: "model." stays, in MLX's files behind "language_model."; publishers write
 * "model.language_model.". Tensors of vision and audio are left out, which one warning says. */
void load_text_part(Loader *ld);
/* From here on tensor names that begin with "model." begin with this instead. */
void load_body(Loader *ld, const char *body);
/* A name that this file has in place of a llama's. Lists end with an empty one. */
typedef struct LoadName {
    const char *usual, *here;
} LoadName;
/* From here on the names of fields, and of parts of tensor names between dots, are these where llama's are asked for.
 * Borrowed. A field that has both names counts as used. */
void load_field_names(Loader *ld, const LoadName *names);
void load_module_names(Loader *ld, const LoadName *names);
/* An error with this text unless ok; for checks that involve several fields. */
void load_require(Loader *ld, bool ok, const char *format, ...) PRINTF_LIKE(3, 4);

/* ---- rotary embeddings ---- */

typedef struct RopeOptions {
    int head_dim;
    int dims;                /* rotated elements of a head; 0: all */
    const char *theta_field; /* NULL: rope_theta */
    double theta;            /* default; 0: the file must have one */
    bool backwards;          /* pairs turn the other way */
    double own_theta;        /* not 0: the theta, whatever the file says */
    bool interleaved;
    bool alpha;    /* dynamic scaling has a constant factor (Hunyuan), instead of one that grows with the text */
    bool unscaled; /* rope_scaling does not apply to these layers */
    bool mrope;    /* positions have three dimensions where the file has mrope_section */
    bool mrope_interleaved; /* pairs take the dimensions in turn; a file whose mrope_interleaved differs is refused */
    const char *layer_type; /* key of rope_parameters, if the file has them by layer type; NULL: none */
    double proportional;    /* part of the pairs that rotates ("proportional") where the file says nothing; 0: all */
    int original_positions; /* longrope: default; 0: the file must have it */
} RopeOptions;

/* Factor on the queries of long sequences, from rope_parameters (llama_4_scaling_beta); none: its scale is 0. */
QueryScaling load_query_scaling(Loader *ld);
/* All of mlx-lm's initialize_rope, from rope_theta and rope_scaling or from rope_parameters. */
const Rope *load_rope(Loader *ld, const RopeOptions *options);
/* RoPE of the patches of an image: the first half of the pairs turns by the row, the other half by the column, with the
 * same frequencies; theta: where the file has none; alternating: rows have the 1st, 3rd … of a text model's
 * frequencies, columns the others. */
const Rope *load_grid_rope(Loader *ld, int head_dim, float theta, bool alternating);
/* Factor of YaRN on the scores of MLA: (0.1·mscale_all_dim·ln factor + 1)²; 1 if either is absent. */
float load_yarn_attention(Loader *ld);
/* head_dim · partial_rotary_factor. */
int load_rotary_dims(Loader *ld, int head_dim, double absent);

/* ---- tensors: names are completed to prefix + scope + name ---- */

void load_scope(Loader *ld, const char *format, ...) PRINTF_LIKE(2, 3);
/* Exactly this tensor; of NAME.weight also the tensors of a matrix that another program packed. */
bool load_has(Loader *ld, const char *name);
int load_dim(Loader *ld, const char *name, int dim);    /* its size in this dimension; 0: it has none */
bool load_has_part(const Loader *ld, const char *part); /* a tensor whose full name contains it */
/* NAME.weight, else NAME (with .scales: quantised) as rows × cols, and NAME.bias when bias is set. */
Weight load_linear(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias);
/* One matrix per expert, [experts + extra]: views of STACKED.weight [experts, rows, cols] (as MLX converts), or, if
 * that is absent, one tensor per expert named by the format SINGLE (NULL: STACKED is required). The last `extra` are
 * zeroed. */
Weight *load_experts(
    Loader *ld, const char *stacked, const char *single, int experts, int extra, int64_t rows, int64_t cols, bool bias);
/* The same of matrices beside experts, one tensor each. */
Weight *load_numbered(Loader *ld, const char *single, int count, int64_t rows, int64_t cols);
/* The matrices of experts as OpenAI packs MXFP4, [experts]: NAME_blocks [experts, rows · step, cols / 32, 16],
 * NAME_scales and NAME_bias; row i of an expert is row first + i · step. as: the module in MLX's files. */
Weight *load_experts_mxfp4(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int64_t cols, int first, int step);
/* The same as transformers saves them unpacked: NAME [experts, cols, rows · step] and NAME_bias. */
Weight *load_experts_alternating(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int64_t cols, int first, int step);
/* The matrices of MLA's heads (Mla of backend.h): HOME.embed_q [heads, latent, nope_dim] and HOME.unembed_out [heads,
 * width, latent] (as MLX converts), or both from HOME.kv_b_proj [heads · (nope_dim + width), latent], whose first part
 * of each head is transposed into memory. */
typedef struct HeadSizes {
    int heads, nope_dim, width, latent;
} HeadSizes;
void load_mla_heads(Loader *ld, const char *home, const HeadSizes *sizes, Weight **w_uk, Weight **w_uv);
/* The matrices of `count` experts that lie in one, one below the other: views. */
Weight *load_split(Loader *ld, const Weight *all, int count);
/* Splits each [2n, cols] matrix: both[i] keeps rows [0, n); returns rows [n, 2n), [count + extra], the last zeroed. */
Weight *load_halves(Loader *ld, Weight *both, int count, int extra);
/* Rows [first, first + count) of a fused matrix, as a view. */
Weight load_part(const Weight *fused, int64_t first, int64_t count);
/* Rows of a matrix that lie in blocks at equal distances, such as the queries of a matrix that has each head's query
 * and gate one below the other: first + i · stride + [0, size), i < count; behind the last row comes the first. */
typedef struct RowBlocks {
    int64_t first, size, stride, count;
} RowBlocks;
/* The matrix of these rows of NAME, which has `rows` rows: a copy in memory. */
Weight load_row_blocks(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, RowBlocks blocks);
/* NAME as load_linear reads it, its rows in another order: of each `period` rows, row i is order[i]. A copy. */
Weight load_reordered(
    Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, const int *order, int period);
const float *load_vector(Loader *ld, const char *name, int64_t count, float plus); /* exactly this tensor, plus added */
/* Exactly this tensor as rows × cols; its dimensions of 1 do not count, and of a vector (cols 1) none do. */
const float *load_array(Loader *ld, const char *name, int64_t rows, int64_t cols);
/* Exactly this tensor of integers from 0 to limit − 1, [rows, cols]. */
const float *load_numbers(Loader *ld, const char *name, int64_t rows, int64_t cols, int limit);
/* [2, side, width]: for each of two axes the first `side` of its `count` vectors, from exactly this tensor, which has
 * [2, count, width], or with `paired` [count, 2, width]. */
const float *load_axes(Loader *ld, const char *name, int64_t count, int64_t width, int64_t side, bool paired);
/* The weights of a convolution whose steps are its size, as a matrix of f32: [out, height · width · in], channels last
 * as in MLX's files; publishers' files have them first. times > 1: the sum over that many equal inputs in time. */
Weight load_convolution(Loader *ld, const char *name, int out, int in, int size, int times, bool bias);
/* The same over images of three colours, and with times 2 over two different ones: *pair is [out, 2 · height · width ·
 * 3], the first input's columns first. times 1: it has no rows. */
Weight load_patch_convolution(Loader *ld, const char *name, int out, int size, int times, bool bias, Weight *pair);
/* Exactly this tensor, which has [cols, rows], as a matrix [rows, cols] of f32. */
Weight load_transposed(Loader *ld, const char *name, int64_t rows, int64_t cols);
/* Matrices of experts as load_experts() returns them, from NAME, which has [experts, cols, rows], or if flat [experts ·
 * cols, rows], of plain elements: copies in memory. */
Weight *load_experts_transposed(
    Loader *ld, const char *name, bool flat, int experts, int extra, int64_t rows, int64_t cols);
/* Exactly this tensor, which has [rows, in · parts], as a matrix [rows, parts · in] of f32. */
Weight load_unfolded(Loader *ld, const char *name, int64_t rows, int in, int parts);
/* [count, width]: one vector from each tensor that the format names by its number. */
const float *load_rows(Loader *ld, const char *format, int count, int64_t width);
/* −e^A_log, the rate of a recurrence's decay, [rows, cols]; stem: the tensor's name without "A_log". Files made from
 * GGUF have the rate itself, under the name A. */
const float *load_rate(Loader *ld, const char *stem, int64_t rows, int64_t cols);
/* Zeroed memory for a vector that a family computes. */
float *load_floats(Loader *ld, int64_t count);
/* NAME as load_linear reads it, times scale: a copy, in f32 where the file's elements are plain. */
Weight load_scaled(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, float scale);
/* NAME as load_linear reads it, each row divided by its length + epsilon: a copy. Quantised files have them so. */
Weight load_unit_rows(Loader *ld, const char *name, int64_t rows, int64_t cols, float epsilon);
/* Whether NAME.weight is a convolution as PyTorch has it, [channels, 1, taps]: as publishers write files, unlike MLX's
 * converter. */
bool load_has_torch_conv(Loader *ld, const char *name);
/* `count` copies of a vector of `size` elements, one behind the other. */
const float *load_repeated(Loader *ld, const char *name, int64_t size, int64_t count);
const Norm *load_rms(Loader *ld, const char *name, int64_t width, float eps); /* NAME.weight; name NULL: only ones */
const Norm *load_rms_plus_one(Loader *ld, const char *name, int64_t width, float eps);         /* stored as w − 1 */
const Norm *load_rms_plus(Loader *ld, const char *name, int64_t width, float eps, float plus); /* as w − plus */
const Norm *load_layer_norm(Loader *ld, const char *name, int64_t width, float eps); /* NAME.weight, NAME.bias */
/* The same whose weights are stored without `plus`. */
const Norm *load_layer_norm_plus(Loader *ld, const char *name, int64_t width, float eps, float plus);
/* This vector times a factor as the weights of an RMS norm. */
const Norm *load_rms_times(Loader *ld, const char *name, int64_t width, float eps, float factor);
/* Norms whose weights, NAME.weight and NAME.bias, are in another order: weight i is order[i]. */
const Norm *load_rms_reordered(Loader *ld, const char *name, int64_t width, float eps, const int *order);
const Norm *load_layer_norm_reordered(Loader *ld, const char *name, int64_t width, float eps, const int *order);
/* Bounds of the products NAMES[i]: NAMES[i].input_min, input_max, output_min and output_max, [count]. */
const Clip *load_clips(Loader *ld, const char *const *names, int count);
/* NAME's tensors, if there are any, are not reported as unused. */
void load_leave(Loader *ld, const char *name);
/* Whether a tensor of this name belongs to a part for images or sound. */
bool load_is_media(Slice name);
/* Tensors whose full name contains this text are not reported as unused. */
void load_skip(Loader *ld, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- multi-token prediction ---- */

/* The Spec of a multi-token prediction head, with embedding, head and sizes of `spec`, which has them already, and one
 * layer without components; the family fills input, layer and final norm and sets spec->mtp. NULL: none is asked for,
 * or the file does not have the tensor `projection`, by which it is known. */
Spec *load_mtp(Loader *ld, const Spec *spec, const char *projection);
/* Both matrices of spec->input from NAME, [hidden, 2 · width], copied. Its first half of columns is that of the token,
 * or with state_first that of the state. */
void load_state_input(Loader *ld, Spec *spec, const char *name, int64_t width, bool state_first);
/* The model that this one drafts for, borrowed; NULL: none was named. */
const Spec *load_target(const Loader *ld);

/* Allocates the layer_count layers of the Spec, without components. After a failure there are none. */
void load_layers(Loader *ld, Spec *spec);
