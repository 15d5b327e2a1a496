/* The inside of a Loader, for the files of this folder. Order of use: config.c (fields, failures); tensors.c, rope.c,
 * eos.c; experts.c, arrays.c; mla.c, parts.c, load.c. */
#pragma once
#include "model/loader/load.h"
#include "model/loader/loader.h"
#include "model/loader/record.h"
#include "tensor/packed.h"

enum { SKIP_MAX = 8, SKIP_SIZE = 48, PART_SIZE = 160, NAME_SIZE = 512, LAYERS_MAX = 4096 };

/* How config.json says that matrices are packed. */
typedef enum PackingMethod {
    PACKING_NONE,
    PACKING_AWQ,
    PACKING_GPTQ,
    PACKING_COMPRESSED,
    PACKING_FP8,
    PACKING_BITNET
} PackingMethod;
typedef struct Packing {
    PackingMethod method;
    const char *name;          /* as config.json says */
    int bits;                  /* GPTQ */
    int64_t group, block_rows; /* columns and rows that share a scale; 0: as the scales' shape tells */
    bool zeros_less_one;
    bool inverse_scale; /* BitNet */
    /* Fetches the matrix NAME, whose size weight has, if it is packed; false: it is not. NULL: none is. */
    bool (*load)(Loader *ld, const char *name, Weight *weight);
} Packing;

struct Loader {
    const LoadSource *source;
    const char *family; /* model_type as the file says */
    const Json *root;   /* root of config.json */
    const Json *fields; /* root, or the object entered */
    char where[64];     /* "" or "text_config." */
    char prefix[64], scope[160];
    const LoadName *field_names, *names; /* NULL: llama's */
    char body[64]; /* stands for "model." at the beginning of tensor names; "": as in checkpoints without an output
                      matrix */
    uint8_t *field_used;  /* [nodes of root]: FIELD_USED on keys, FIELD_ENTERED on object values */
    uint8_t *tensor_used; /* [entries] */
    char skip[SKIP_MAX][SKIP_SIZE];
    int skip_count;
    bool text_part; /* unused tensors of other parts are counted apart */
    bool in_file;   /* the current matrices are read at once from the mapped file, and not kept */
    int64_t stack;  /* first dimension of the current tensors, which are read as one matrix; 0: they are matrices */
    bool experts;   /* the current matrices are routed experts */
    Packing packing;
    int packed_count; /* matrices that were packed so */
    Spec *spec;
    int scaled_positions; /* tokens to which YaRN stretches a length that the config names; 0: none */
    uint64_t bytes;       /* bytes of the tensors used */
    bool failed;
    Error *error;
};

enum { FIELD_USED = 1, FIELD_ENTERED = 2 };

void loader_fail(Loader *ld, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
void loader_warn(Loader *ld, const char *format, ...) PRINTF_LIKE(2, 3);
/* The value of a field, marked as used; NULL when absent or null. */
const Json *loader_get(Loader *ld, const Json *object, const char *field);
/* The same for an object whose own fields will be read and counted one by one; another type is an error. where: for
 * messages. */
const Json *loader_object(Loader *ld, const Json *object, const char *field, const char *where);
/* A finite number > 0; an error otherwise. */
double loader_positive(Loader *ld, const Json *value, const char *where, const char *field);
/* A short rendering of a value for messages. NULL: nothing. */
const char *loader_show(const Json *value, char out[64]);
/* out[count]: the matrices of NAME.weight [count, rows, cols], as views. */
void loader_stack(Loader *ld, const char *name, int count, int64_t rows, int64_t cols, bool bias, Weight *out);
/* The name in the file: prefix, scope, name and suffix. */
void loader_full_name(const Loader *ld, char out[NAME_SIZE], const char *name, const char *suffix);
const TensorEntry *loader_find(const Loader *ld, const char *name); /* NULL: the file does not have it */
/* Whether the file has the matrix, packed or not. */
bool loader_has_matrix(Loader *ld, const char *name);
/* A stack of matrices as one below the other, while stack says so. */
Tensor loader_flat(const Loader *ld, const Tensor *tensor);
/* A tensor that must be there, NAME + SUFFIX; counts as used. NULL after an error. */
const TensorEntry *loader_take(Loader *ld, const char *name, const char *suffix);
void loader_wrong_shape(Loader *ld, const TensorEntry *entry, const char *expected);
void loader_wrong_dtype(Loader *ld, const TensorEntry *entry, const char *expected);
/* Counts a matrix in the Spec's tally. */
void loader_tally(Loader *ld, const Weight *weight);
/* After the family: the target's eos. */
void loader_eos(Loader *ld, LoadTarget *target);
/* After the family: reports fields and tensors that were not used. */
void loader_check_fields(Loader *ld);
void loader_check_tensors(Loader *ld);
void *loader_alloc(Loader *ld, size_t count, size_t size);

/* ---- packed matrices (packed.c) ---- */

/* What says how other programs than MLX packed matrices: quantization_config, or all of hf_quant_config.json. NULL:
 * nothing does. */
const Json *loader_packing_config(const Loader *ld);
/* Reads that; what is not supported is an error with advice. */
void loader_read_packing(Loader *ld, const Json *config);
/* After the family: an error where no matrix was packed as config.json says. */
void loader_check_packing(Loader *ld);
/* This matrix in memory; only its form where reading is recorded. */
void loader_unpack(Loader *ld, const char *full_name, const PackedMatrix *packed, Weight *weight);

/* NAME_bias [experts, rows · step] of experts: every step-th number from `first` on. as: the module in MLX's files. */
const float *loader_expert_biases(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int first, int step);

/* ---- recording (record.c); without a record nothing happens ---- */

/* A tensor that is read; a second time nothing happens. */
void loader_record_entry(Loader *ld, const TensorEntry *entry);
void loader_record_plus(Loader *ld, const TensorEntry *entry, float plus);
/* The rows of the matrix that was recorded just now are to be divided by their length + epsilon. */
void loader_record_unit_rows(Loader *ld, float epsilon);
/* A module's matrix, which these entries hold: they are no longer items of their own. */
void loader_record_matrix(
    Loader *ld, const char *name, bool bare, const Weight *weight, const TensorEntry *const *entries, int entry_count);
int loader_record_count(const Loader *ld); /* items so far; 0 without a record */
/* A matrix whose parts were read just now. */
void loader_record_packed(Loader *ld, const char *name, const PackedMatrix *packed);
/* The matrix recorded last is `count` matrices, one below the other, each of which is written transposed. alternating:
 * as two, of even and of odd columns. */
void loader_record_transposed(Loader *ld, int count, bool alternating);
/* Every step-th element of a tensor, from `first` on, as a tensor with this name. */
void loader_record_part(Loader *ld, const char *name, const TensorEntry *entry, int64_t first, int64_t step);
/* The items from `first` on, which are an expert each, become one stack with this name, their biases another. */
void loader_record_stack(Loader *ld, int first, const char *name);
/* The matrix `joined` becomes HOME.embed_q and HOME.unembed_out. */
void loader_record_heads(Loader *ld, const char *joined, const char *home, const Weight *both, const HeadSizes *sizes);
