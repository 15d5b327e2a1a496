/* The parts of the conversion of checkpoints: the plan, rows of matrices, the writers. import/export uses the first
 * two.
 */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "import/checkpoint/checkpoint.h"
#include "model/loader/record.h"

/* A module's weights, or another tensor, in the written file. */
typedef struct Output {
    const Recorded *item;
    const char *name;      /* a tensor, or the module of a matrix */
    int64_t stack;         /* matrices on each other; 0: it is one */
    int64_t rows, cols;    /* a matrix: its size, all of its stack together */
    int64_t first, stride; /* each matrix of the stack: its first row in the source, and the source's rows */
    int64_t step;          /* columns of the source from one row of a transposed matrix to the next */
    Weight form;           /* a matrix: how it is written, without data; plain: its type */
    QuantForm quant;       /* codes that are made here; quant.quant QUANT_NONE: they are copied, or it is plain */
    DType dtype;           /* a tensor that is no matrix: its type */
    bool named;            /* config.json has its form under its name */
    bool named_mode;       /* with the mode */
} Output;

typedef struct Plan {
    Arena *arena;
    const CheckpointOptions *options;
    const char *model_type;
    const Json *config;
    const LoadRecord *record;
    int layer_count;
    bool has_mixture; /* block_sparse_moe */
    bool has_dtype;
    DType dtype;     /* numbers become this, where has_dtype */
    bool quantised;  /* config.json gets `quantization` */
    bool coded;      /* a matrix is quantised that was not */
    QuantForm usual; /* form of modules that the config does not name */
    int count;
    Output *outputs;      /* in the order of MLX's files */
    uint64_t total_bytes; /* the source's tensors, scales aside */
    Error *error;
} Plan;

NODISCARD bool plan_make(Plan *plan);
/* Bytes of codes or plain numbers of the source that a row of a matrix is made of: what progress counts. */
size_t output_row_bytes(const Output *o);

/* --- rows.c ------------------------------------------------------------------------------------------------------- */

typedef struct RowRoom {
    float *numbers;             /* one row */
    float *transposed, *column; /* one matrix as it is written, and a row of it as it was */
    int64_t matrix;             /* number of the transposed one; -1: none yet */
    uint8_t *unpacked[3];       /* data, scales and biases of a part that was packed */
    Weight part;
    int64_t part_number; /* -1: none yet */
} RowRoom;

/* Freed with row_room_free() also after an error. */
NODISCARD bool row_room_make(RowRoom *room, const Output *o, Error *error);
void row_room_free(RowRoom *room);
/* Row `row` of a matrix as it is written, as numbers of `dtype`, into room->numbers[cols]. */
NODISCARD bool row_read(const Output *o, int64_t row, DType dtype, RowRoom *room, Error *error);
/* The matrix of the source that has it, as row *own; NULL after an error. */
const Weight *row_weight(const Output *o, int64_t row, int64_t *own, RowRoom *room, Error *error);
/* Rows that are not read again. */
void rows_release(const Output *o, int64_t row, int64_t count);
float row_round(DType dtype, float value);

/* --- rules.c: mlx-lm's per-class rules for modules, by name ----------------------------------------------------- */

typedef enum RuleAnswer { RULE_USUAL, RULE_PLAIN, RULE_8_BITS } RuleAnswer;
/* Quantisation of a module of a family: as usual, not at all, or 8 bits in groups of 64. */
RuleAnswer rule_of_module(const char *model_type, const char *module);
/* Whether a tensor keeps its data type even if the other tensors are cast. */
bool rule_keeps_dtype(const char *model_type, const char *name);
/* Whether `plus`, which the model adds to a norm's weights, is added when the file is written. */
bool rule_adds_plus(const char *model_type);
/* The form that a recipe gives a module. layer: its number, 0 where it has none. */
QuantForm rule_of_recipe(QuantRecipe recipe, int group, const char *module, int layer, int layer_count);
/* The reason why models of this type cannot be converted; NULL: they can. */
const char *rule_refuses(const char *model_type);
/* MLX's name of a module with a publisher's name, as `item` was recorded; *second: set if its rows are those of two
 * modules, concatenated. Names are in the arena. NULL: no memory. */
const char *rule_rename(const Plan *plan, const char *module, const Recorded *item, const char **second);
/* Whether MLA's kv_b_proj becomes embed_q and unembed_out. */
bool rule_divides(const char *model_type);

/* --- The files -------------------------------------------------------------------------------------------------- */

NODISCARD bool tensors_write(const Plan *plan, const char *directory, Error *error);
NODISCARD bool config_write(const Plan *plan, const Json *generation, const char *directory, Error *error);
