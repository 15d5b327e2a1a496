/* The parts of the GGUF import, private to this folder and import/export: the parsed file, its block types, the
 * conversion plan, and the writers of the JSON files. Format: github.com/ggml-org/ggml docs/gguf.md; block layouts:
 * ggml-common.h there. */
#pragma once
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/map.h"
#include "family/gguf.h"
#include "import/gguf/gguf.h"
#include "import/mapped.h"
#include "tensor/tensor.h"

enum {
    GGUF_GROUP = 32,       /* elements that share scale and bias after conversion */
    GGUF_SUPERBLOCK = 256, /* elements of the largest block */
    GGUF_DIMS_MAX = 4,
    GGUF_BLOCKS_MAX = 4096, /* layers of a model */
    GGUF_STEPS_MAX = 6,     /* steps of one pre-tokenizer */
};

/* --- Block types (blocks.c) ------------------------------------------------------------------------------------ */

enum { /* as files number them */
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ2_XXS = 16,
    TYPE_IQ2_XS = 17,
    TYPE_IQ3_XXS = 18,
    TYPE_IQ1_S = 19,
    TYPE_IQ4_NL = 20,
    TYPE_IQ3_S = 21,
    TYPE_IQ2_S = 22,
    TYPE_IQ4_XS = 23,
    TYPE_I32 = 26,
    TYPE_IQ1_M = 29,
    TYPE_BF16 = 30,
    TYPE_TQ1_0 = 34,
    TYPE_TQ2_0 = 35,
    TYPE_MXFP4 = 39,
};

typedef struct GgufType {
    const char *name;
    int elements, bytes; /* size of one block; 0: this type cannot be converted */
    int bits, group;     /* affine format; 0: not quantised */
    DType dtype;         /* plain only */
    Quant compact;       /* the form with the scales as they are; QUANT_NONE: there is none but the affine */
    int compact_bits;
} GgufType;

const GgufType *gguf_type(uint32_t type); /* NULL: no such type is known */
/* Writes the names of the convertible types into out. */
void gguf_type_list(char *out, size_t size);
/* count elements (whole blocks) as codes, one a byte, and per group a scale and a bias: w = scale·code + bias. */
void gguf_blocks_convert(
    uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, float *scales, float *biases);
/* Whether the scales of a block fit the compact form. */
bool gguf_block_fits(uint32_t type, const uint8_t *block);
/* The same in the type's compact form: scales as weight_scale() reads them. Exact, but for IQ2_XS and IQ2_S. */
void gguf_blocks_compact(uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, uint8_t *scales);
/* count codes (a multiple of 8) as a stream of bits. */
void gguf_codes_pack(const uint8_t *codes, int64_t count, int bits, uint8_t *out);

/* Blocks of whole numbers: element i is unit · scale[i / 16] · value[i] (blocks_integer.c). */
typedef struct GgufIntegers {
    float unit;
    int8_t scale[GGUF_SUPERBLOCK / 16], value[GGUF_SUPERBLOCK];
} GgufIntegers;

bool gguf_integers(uint32_t type, const uint8_t *block, GgufIntegers *out); /* false: the type is not like that */
extern const int8_t gguf_iq4_levels[16];                                    /* shared by IQ4_NL and IQ4_XS */

/* --- The file (file.c) ----------------------------------------------------------------------------------------- */

typedef enum GgufKind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KIND_COUNT
} GgufKind;

typedef struct GgufValue {
    Slice key;
    bool array;
    GgufKind kind;       /* element type of an array */
    uint64_t count;      /* 1 unless an array */
    const uint8_t *data; /* a string's length and bytes included */
} GgufValue;

typedef struct GgufTensor {
    Slice name;
    uint32_t type;
    const GgufType *info;
    int64_t cols, rows; /* rows: 1 for a vector; of a stack, those of all its matrices */
    int64_t stack;      /* matrices on each other; 0: it is no stack */
    int rank;           /* 1; 2, also of stacks */
    int dim_count;      /* as the file has them, the fastest first */
    int64_t dims[GGUF_DIMS_MAX];
    const uint8_t *data;
    size_t bytes;
} GgufTensor;

typedef struct GgufFile {
    FileMap map;
    Arena arena;
    size_t value_count, tensor_count;
    GgufValue *values;
    GgufTensor *tensors;
    Map by_key, by_tensor; /* → index */
    Slice architecture;    /* general.architecture */
    struct GgufFile *rest; /* the parts behind the first one; the file's tensors are those of all parts */
    size_t rest_count;
} GgufFile;

/* path: a whole file, or any part of one (base/part_name.h) with the others beside it. */
NODISCARD bool gguf_open(GgufFile *file, const char *path, Error *error);
void gguf_close(GgufFile *file);
/* file_damaged() of all its parts. */
bool gguf_damaged(const GgufFile *file);
const GgufTensor *gguf_tensor(const GgufFile *file, const char *name);
const GgufValue *gguf_value(const GgufFile *file, const char *key);
/* A key that starts with "." belongs to the architecture: ".block_count" is "llama.block_count". Absent, or of another
 * kind: false. An array of equal numbers counts as that number (per-layer fields that do not differ). */
bool gguf_integer(const GgufFile *file, const char *key, int64_t *value);
/* An array with a number for each layer, or a number for all: the one that is not 0, which must be the same in all
 * layers; only zeros: 0. */
bool gguf_layers_integer(const GgufFile *file, const char *key, int64_t *value);
/* Element `index` of an array of `count`, or a number for all. */
bool gguf_element(const GgufFile *file, const char *key, uint64_t index, uint64_t count, int64_t *value);
/* The same of an array of flags, which may be numbers. */
bool gguf_flag(const GgufFile *file, const char *key, uint64_t index, uint64_t count, bool *value);
bool gguf_number(const GgufFile *file, const char *key, double *value);
bool gguf_bool(const GgufFile *file, const char *key, bool *value);
bool gguf_string(const GgufFile *file, const char *key, Slice *value);
Slice gguf_string_next(const uint8_t **at); /* walks the strings of an array */

/* --- The encoders of images and audio (vision.c)
 * -------------------------------------------------------------------------- */

enum { GGUF_DEEPSTACK_MAX = 8 };

/* The encoder of audio in the same file. */
typedef struct GgufAudio {
    bool present;
    int64_t hidden, layers, heads; /* 0: rows of samples are projected as they are */
    double eps;
} GgufAudio;

typedef struct GgufVision {
    GgufFile file;
    const struct VisionKind *kind;
    int64_t hidden, inner, layers, heads, pixels, patch, factor; /* factor: patches that become one row, on a side */
    int64_t rows;                                                /* elements of a row of the text model */
    int64_t full_every;  /* layers between two without windows, the latter included */
    int64_t window;      /* pixels */
    int64_t sections[3]; /* pairs of the text's rope that turn by time, row and column */
    int deepstack_count;
    int64_t deepstack[GGUF_DEEPSTACK_MAX]; /* layers */
    double eps;
    GgufAudio audio;
    size_t count;
    struct TensorHeader *headers; /* [count] */
    struct VisionOutput *outputs; /* [count] */
} GgufVision;

/* The encoder for a text model. */
NODISCARD bool gguf_vision_open(GgufVision *v, const char *path, const GgufFile *text, Error *error);
void gguf_vision_close(GgufVision *v);
/* text: the config.json of the text model alone. */
NODISCARD bool gguf_vision_config(Buffer *out, const GgufVision *v, Slice text, Error *error);
NODISCARD bool gguf_vision_processor(Buffer *out, const GgufVision *v, Error *error);
NODISCARD bool gguf_vision_weights(const GgufVision *v, const char *path, Error *error);
/* The only mmproj file in a language model's folder. False: there is none, or more than one. */
bool gguf_vision_beside(const char *path, char *found, size_t size);

/* --- The plan (plan.c) ------------------------------------------------------------------------------------------ */

typedef struct GgufOutput {
    const GgufTensor *source;
    const char *module;  /* "model.layers.0.mlp.up_proj" */
    const char *part;    /* "weight" or "bias"; "": the module's name is the tensor's */
    bool flat;           /* a vector that is a matrix of one row */
    Weight form;         /* how it is quantised: no data. Affine scales are F16 when that is exact, else F32 */
    int64_t interleaved; /* rows per head whose two halves are interleaved and must be separated; 0: none */
    int64_t half;        /* rows of each matrix that this output has of a stack whose matrices have twice as many */
    bool second;         /* the second half of them */
    int64_t apart;       /* rows per head of q, k and v (GGUF_HEADS_APART); 0: they are as they should be */
    int64_t queries;     /* with apart: heads of q for each one of k */
    bool minus_one;      /* stored with 1 added */
} GgufOutput;

typedef struct GgufPlan {
    const GgufModel *model;
    const char *model_type;
    size_t count;
    GgufOutput *outputs; /* in the arena of the file, in file order */
} GgufPlan;

/* The family's model that the file holds. */
NODISCARD bool gguf_model_find(const GgufFile *file, const GgufModel **model, const char **model_type, Error *error);
/* block_count without the MTP blocks, which are not used. */
int64_t gguf_layers(const GgufFile *file);
/* The field of config.json with this name; NULL: the model has none. */
const GgufField *gguf_field(const GgufModel *model, const char *name);
/* Whether a field of the model is made from the key. */
bool gguf_model_reads(const GgufModel *model, Slice key);
/* Whether name matches the pattern; *block: the number at its '*' (without '*': 0). */
bool gguf_name_match(Slice name, const char *pattern, int *block);
/* Names and shapes. Everything that can be refused is refused here, before anything is written. */
NODISCARD bool gguf_plan(GgufPlan *plan, GgufFile *file, bool compact, Error *error);
/* The row of the source that becomes row of the output. */
int64_t gguf_source_row(const GgufOutput *output, int64_t row);

/* --- The JSON files -------------------------------------------------------------------------------------------- */

NODISCARD bool gguf_config(Buffer *out, const GgufFile *file, const GgufPlan *plan, Error *error);
static const uint32_t GGUF_NESTS_IN_NONE = UINT32_MAX;
/* For each text which other one, the longest, it begins with (or ends with), or GGUF_NESTS_IN_NONE; empty ones are not
 * looked at. No two are alike. False: no memory. (nest.c) */
NODISCARD bool gguf_nest(const Slice *texts, uint32_t count, bool ends, uint32_t *out);

/* A byte-level vocabulary's pre-tokenizer (pre_tokenizers.c). */
typedef struct GgufPre {
    const char *name;                  /* tokenizer.ggml.pre */
    const char *steps[GGUF_STEPS_MAX]; /* JSON, or the pattern of a Split */
    bool nfc, ignore_merges, add_bos;
    bool marks; /* RoBERTa's: <s> A </s>, and pairs with two </s> between them */
} GgufPre;

/* That which the file names, or which its family or its vocabulary tells; NULL with the error set. */
const GgufPre *gguf_pre_find(const GgufFile *file, const GgufTokenizer *rules, Error *error);
const GgufPre *gguf_pre_at(size_t index); /* NULL behind the last */
/* The normalizer, the pre-tokenizer and the decoder of tokenizer.json. */
void gguf_pre_write(Buffer *out, const GgufPre *pre);
NODISCARD bool gguf_tokenizer(
    Buffer *out, GgufFile *file, const GgufTokenizer *rules, Error *error); /* tokenizer.json */
/* The same of an encoder's vocabulary: WordPiece, or Unigram. (tokenizer_encoder.c) */
NODISCARD bool gguf_encoder_tokenizer(Buffer *out, const GgufFile *file, bool unigram, Error *error);
/* tokenizer.ggml.token_type */
typedef enum GgufTokenType {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
} GgufTokenType;
/* The type of token `id` as it acts: user-defined tokens that are control tokens in truth are CONTROL. */
int32_t gguf_token_type(const GgufFile *file, int64_t id, Slice text, int32_t type);
NODISCARD bool gguf_tokenizer_config(Buffer *out, const GgufFile *file, Error *error);
/* Tokens that end an answer: eos first, then those known by key or by name. Returns their number, at most limit. */
int gguf_end_tokens(const GgufFile *file, int64_t *ids, int limit);
void gguf_write_float(Buffer *out, double value); /* the shortest text that parses to the same f32 */
