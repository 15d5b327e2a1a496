/* backend/cpu/recurrent/: recurrent layers of the vector backends. recurrent.c shares the work among threads;
 * recurrent_impl.h computes one item of it and is compiled once per instruction set.
 *
 * Every sum has one order, which depends on the position alone: over the elements of a key from the first to the last,
 * over the tail from the anchor on. Channels, heads and elements of values do not depend on each other, so the lanes of
 * vectors are these. */
#pragma once
#include "backend/cpu/cpu.h"
#include "backend/recurrent.h"

enum {
    CONV_ITEM = 256, /* channels of a part that are one item */
    MAMBA_ITEM = 16, /* channels that are one item */
};

/* One operation over the rows of a step: the pointer of its kind is set. */
typedef struct RecurrentJob {
    const CpuBackend *cpu;
    const Conv *conv;
    const Recurrence *recurrence;
    const Mamba *mamba;
    const RgLru *rg_lru;
    const GatedNorm *gated_norm;
} RecurrentJob;

/* Consecutive rows of a chunk in one page. */
typedef struct PageRows {
    int first, rows; /* the first of these rows in the chunk, and their number */
    int begin;       /* position of the first row in its page */
    int32_t page;    /* −1: not stored */
} PageRows;
/* The run that begins at a row of the chunk. */
PageRows page_rows(const RecurrentPart *place, const SequenceChunk *chunk, int first);
/* The page of the position before a chunk; it must not begin the text. */
int32_t page_before(const RecurrentPart *place, const SequenceChunk *chunk);

/* The inputs of the convolution before a chunk. */
typedef struct ConvHistory {
    const float *input[CONV_TAPS_MAX - 1]; /* inputs of all channels at a position, oldest first; NULL: zeros */
} ConvHistory;
ConvHistory conv_history(const Conv *op, const SequenceChunk *chunk);

struct RecurrentKernels {
    /* Channels [first, first + count) of a part over the rows of a chunk; at: the part's first channel in pages. */
    void (*conv)(const Conv *op, const SequenceChunk *chunk, int part, int64_t at, int64_t first, int64_t count);
    /* Normalises, rotates and scales q and k of one key head in the rows of one page, writes k into the page and the
     * products of these rows with the keys of the page into op->work. */
    void (*products)(const RecurrentJob *job, const SequenceChunk *chunk, int first_row, int key_head);
    /* One value head over a chunk. scratch: recurrent_scratch_bytes(). */
    void (*head)(const RecurrentJob *job, const SequenceChunk *chunk, int head, float *scratch);
    /* Channels [first, first + MAMBA_ITEM) at most, over a chunk. */
    void (*mamba)(const RecurrentJob *job, const SequenceChunk *chunk, int64_t first, float *scratch);
    /* Channels [first, first + RG_LRU_UNIT) over a chunk. */
    void (*rg_lru)(const RgLru *op, const SequenceChunk *chunk, int64_t first);
    void (*gated_norm)(const GatedNorm *op, int64_t row);
};
size_t recurrent_scratch_bytes(void); /* bytes of a thread's scratch */
