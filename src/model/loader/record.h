/* What a family reads from a checkpoint, for a program that writes the checkpoint anew (import/checkpoint): each module
 * with weights and each other tensor once, in the order of reading. Filled while a model opens with
 * ModelOptions.record. Then matrices are views of the mapped files, nothing is computed from them, and the model is not
 * to be run. Everything lives as long as the model. Threads: one at a time. */
#pragma once
#include "tensor/packed.h"
#include "tensor/safetensors.h"

typedef struct Recorded {
    const char *name; /* a matrix: its module, as the file calls it, or the stack that MLX makes of experts; else of
                         the tensor. Complete */
    bool matrix;      /* weights of a product or an embedding, which may be quantised */
    bool bare;        /* a matrix whose tensor has the module's name, without ".weight" */
    int64_t stack;    /* first dimension of the tensor that MLX writes; 0: it is no stack */
    int count;        /* parts, one below the other */
    Weight *weights;  /* [count], a matrix */
    const PackedMatrix **packed; /* [count]: how the weights, which have no data, are to be read; NULL: they have */
    const TensorEntry **entries; /* [count], of other tensors */
    bool transposed;             /* each weight's columns are rows of the written one */
    bool alternating;            /* even columns are rows of one written matrix, odd ones of another */
    float plus;                  /* added to each element of a vector as the model uses it */
    float unit_epsilon;          /* > 0: the model divides each row of the matrix by its length + this */
    bool whole, part;            /* a matrix that the file has, and those of MLA into which it can be divided */
    int64_t first, step;         /* the elements first, first + step, … of a tensor that is no matrix; step 0: all */
    bool moved;                  /* part of another one; not to be written */
} Recorded;

typedef struct LoadRecord {
    int count, capacity;
    Recorded *items;
    int *item_of_entry; /* [entries of the checkpoint] number of the item that has it, plus 1 */
    size_t unused;      /* tensors of the file that the model does not have */
} LoadRecord;
