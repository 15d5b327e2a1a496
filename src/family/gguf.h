/* How GGUF files store a family's models, as constant data: names of tensors, metadata, and what is special about the
 * tokenizer. import/gguf walks the rows from GGUF to config.json and MLX's names; tests/import/test_gguf_families.c
 * walks them backwards. Source of the names: github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py and the
 * converter's model classes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_LISTS_MAX = 10 };

/* --- Tensors --------------------------------------------------------------------------------------------------- */

/* A change that llama.cpp's converter made to a module's elements; the import undoes it. */
typedef enum GgufChange {
    GGUF_UNCHANGED,
    GGUF_HEADS_PAIRED,    /* the halves of each head's rows are interleaved: its rotary embedding turns neighbours */
    GGUF_KV_HEADS_PAIRED, /* the same with the heads of k */
    GGUF_PLUS_ONE,        /* 1 was added, to a bias not */
    GGUF_FLAT,            /* a matrix of one row became a vector */
    GGUF_NAMED,           /* the module's name is the tensor's: nothing follows it */
    GGUF_RATE,            /* GGUF_NAMED, and −e^x was applied: kept so under the module's name without "_log" */
    GGUF_HEADS_APART,     /* rows of q, k and v, for each head of k its queries, it and its v: all of q came first, then
                             all of k, then all of v */
    GGUF_STACKED,         /* modules became one stack; '#' in the module's name is the number of the matrix */
    GGUF_QKV,             /* modules became one, below each other; '#' in the module's name is q, k or v */
    GGUF_GATE_UP,         /* the same of each matrix of two stacks; '#' is gate or up */
    GGUF_METADATA,        /* GGUF_NAMED, and the numbers went into an array of metadata: one for each block */
    GGUF_UNUSED,          /* the tensor is not used here; no module */
} GgufChange;

/* A module's name in both formats, without ".weight" or ".bias"; '*' is the number of the block. */
typedef struct GgufName {
    const char *gguf, *module;
    GgufChange change;
} GgufName;

/* --- Fields of config.json ------------------------------------------------------------------------------------- */

typedef enum GgufFieldKind {
    GGUF_FIELD_INTEGER,  /* 1 … 2^31 − 1 */
    GGUF_FIELD_NUMBER,   /* finite, above 0 */
    GGUF_FIELD_TEXT,     /* always `text`; a file that has `key` must have `absent` there */
    GGUF_FIELD_JSON,     /* always `text`, which is JSON */
    GGUF_FIELD_BOOL,     /* of `key`, else whether `absent` is not 0; no key: always that */
    GGUF_FIELD_CHOICE,   /* `text` if `key` is true, else `otherwise`; absent: whether `absent` is not 0 */
    GGUF_FIELD_HAS,      /* whether the file has the tensor `key`; '*': in any layer */
    GGUF_FIELD_LACKS,    /* whether it has not */
    GGUF_FIELD_LAYERS,   /* list of the kinds of layers */
    GGUF_FIELD_LETTERS,  /* text of the kinds of layers, which have one letter each */
    GGUF_FIELD_FLAGS,    /* list with `text` for layers that are flagged and `otherwise` for the others, both as JSON.
                            Flagged: those with the tensor `key`, if there is a '*' in it; else the metadata `key` has a
                            flag for each layer, or n: all but every nth are flagged. Absent: `absent` is n; 0: no list;
                            −n: all but the first of each n are */
    GGUF_FIELD_WHERE,    /* the integer of the layers that `flags` flags, or does not (`unflagged`), which must be the
                            same in them; no such layers: config.json does not have the field */
    GGUF_FIELD_LIST,     /* list of integers, one for each layer */
    GGUF_FIELD_START,    /* the same, of a list that may go on behind the layers */
    GGUF_FIELD_UNIFORM,  /* a number above 0, or a list with the same number for each layer */
    GGUF_FIELD_NUMBERS,  /* the same of numbers, each changed by `each`; key absent: config.json lacks the field */
    GGUF_FIELD_EACH,     /* list of what `layer` writes of each layer */
    GGUF_FIELD_WITH,     /* list of the numbers of layers with the tensor `key` */
    GGUF_FIELD_COUNT,    /* an integer that may be 0; neither key nor `absent`: config.json lacks the field */
    GGUF_FIELD_AT_0,     /* the integer of the first layer */
    GGUF_FIELD_VARIES,   /* whether the integers of the layers are not all the same */
    GGUF_FIELD_ROWS,     /* rows of the tensor `key`, '*': of the first layer that has it; no such tensor: config.json
                            lacks the field */
    GGUF_FIELD_PARTS,    /* whether some layer has the tensor `key` but not `or_key` */
    GGUF_FIELD_EQUAL,    /* not a field: the number of `key`, if there is one, must be that of `or_key` */
    GGUF_FIELD_IGNORED,  /* not a field: nothing here depends on `key` */
    GGUF_FIELD_FIRST,    /* first layer with the tensor `key`; no such layer: config.json does not have the field */
    GGUF_FIELD_NEGATIVE, /* a number below 0; no key: config.json lacks the field */
    GGUF_FIELD_EVERY,    /* distance of layers with the tensor `key`, which must be regular; the same */
} GgufFieldKind;

/* A kind of layer, of which each layer is exactly one. */
typedef struct GgufLayerKind {
    const char *name;   /* in config.json */
    const char *tensor; /* a tensor that these layers alone have */
    const char *key;    /* metadata with a number for each layer that is above 0 for these layers; NULL: none */
} GgufLayerKind;

/* The sizes from which fields are computed. */
typedef struct GgufSizes {
    int64_t hidden, heads, kv_heads, head_dim, rotary_dims, vocab;
    int64_t layers;               /* without those that predict further tokens */
    int64_t plain_dims;           /* MLA: dims of a head's query that are not rotated */
    int64_t ssm_inner, ssm_heads; /* .ssm.inner_size and .ssm.time_step_rank; 0: absent */
    int64_t experts;              /* 0: none */
    int64_t gate_rows;            /* rows of the gate of layer 0's heads; 0: no gate */
    double plain_frequencies;     /* part of the factors of rope_freqs.weight that are 1; without it: 1 */
    double swa_rope_base;         /* rotary embedding of layers with a window: .rope.freq_base_swa, or the common one */
    double rope_base;
    int64_t swa_rotary_dims;                             /* .rope.dimension_count_swa, or the head's size */
    double embedding_scale, residual_scale, logit_scale; /* 0: absent */
} GgufSizes;

/* The same of one layer. */
typedef struct GgufLayerSizes {
    int64_t heads, kv_heads, inner; /* 0: the layer has none */
    bool flagged;                   /* by the field's `flags` */
} GgufLayerSizes;

/* A key begins with "." where the architecture's name stands before it. */
typedef struct GgufField {
    const char *name; /* in config.json; "a.b": b of the object a, whose fields follow each other */
    GgufFieldKind kind;
    const char *key;    /* where the value is; NULL: `absent` is the value */
    const char *or_key; /* where it is when `key` is absent */
    double absent;      /* the value when both are; 0: that is an error */
    bool optional;      /* absent or 0 in the file: config.json does not have the field */
    const char *text, *otherwise;
    const GgufLayerKind *kinds;    /* for GGUF_FIELD_LAYERS and GGUF_FIELD_LETTERS; ends with an empty row */
    const struct GgufField *flags; /* for GGUF_FIELD_WHERE and GGUF_FIELD_EACH, where NULL is: no layer is flagged */
    bool unflagged;
    double (*each)(double number);             /* for GGUF_FIELD_NUMBERS; NULL: as they are */
    double (*compute)(const GgufSizes *sizes); /* the value, if not NULL; 0: config.json does not have the field */
    /* For GGUF_FIELD_EACH: JSON of a layer, `size` bytes at most. */
    void (*layer)(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer);
} GgufField;

/* --- The tokenizer --------------------------------------------------------------------------------------------- */

typedef struct GgufTokenizer {
    const char *pre;           /* the pre-tokenizer of files that name none, as early ones; NULL: that is an error */
    bool late_export;          /* SentencePiece as it was exported from Gemma on: all added tokens are in the vocabulary
                                  as well, user-defined ones have merges, and those of longer parts come first */
    bool no_space_prefix;      /* unless the file says otherwise, a text does not begin with a space */
    bool control_strips_right; /* control tokens swallow the white space that follows them; the file does not say so */
} GgufTokenizer;

/* --- A model --------------------------------------------------------------------------------------------------- */

/* Lists end with an empty row, lists of lists with NULL. A family without a field `head_dim` has heads of
 * hidden_size / num_attention_heads, one without `partial_rotary_factor` turns all of a head, one without
 * `num_attention_heads` has no attention: the import refuses files that say otherwise, as it refuses keys of the
 * architecture that no row names. */
typedef struct GgufModel {
    const char *architecture; /* general.architecture, which also begins the keys */
    const char *with_key;     /* goes before the others of its architecture when the file has this key */
    int64_t with_value;       /* and this number there; 0: any but 0 */
    const char *with_text;    /* or this text; NULL: the number decides */
    bool yarn_bounds_exact;   /* YaRN's bounds are not rounded, which the file does not say */
    bool encoder;             /* makes vectors of texts: attention is not causal, and there is no output matrix */
    bool latent;              /* heads have MLA's sizes, given by its fields */
    bool no_rope;             /* nothing is rotated; the file may have keys of a rotary embedding */
    bool rope_in_fields;      /* the fields say all about rotary embeddings */
    bool rope_of_kinds;  /* config.json has a rotary embedding for each kind of layers, with a window and without */
    bool queries_scaled; /* YaRN has mscale, and queries may grow with the position (Llama 4's scaling) */
    bool own_head; /* the embedding cannot be the output matrix, because it is scaled: output.weight must be there */
    const char *class_name;                  /* in the field `architectures` of config.json */
    const GgufName *names[GGUF_LISTS_MAX];   /* the last entry stays NULL */
    const GgufField *fields[GGUF_LISTS_MAX]; /* in the order of config.json; the same */
    GgufTokenizer tokenizer;
    const struct GgufModel *other; /* the same family's model under another architecture; NULL: none */
} GgufModel;

/* Row `index` of the families that GGUF files can hold, and its model_type; NULL behind the last. */
const GgufModel *family_gguf(size_t index, const char **model_type);
