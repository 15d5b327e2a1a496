/* The contents of a SentencePiece model, checked. */
#pragma once
#include "base/arena.h"
#include "base/map.h"

typedef enum PieceType {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER,
    PIECE_UNUSED,
    PIECE_BYTE
} PieceType;
typedef enum ModelType { TYPE_UNIGRAM = 1, TYPE_BPE, TYPE_WORD, TYPE_CHARACTER } ModelType;

typedef struct Piece {
    Slice text;
    float score;
    PieceType type;
} Piece;

typedef struct Merge {
    uint32_t left, right, piece; /* ids */
} Merge;

typedef struct PieceModel {
    Arena arena;
    Piece *pieces;
    uint32_t count, capacity;
    Map by_text;   /* → id */
    Merge *merges; /* BPE alone; in the order of their pieces' scores */
    size_t merge_count, merge_capacity;
    int64_t type, unknown, bos, eos; /* ids; below zero: none */
    bool byte_fallback, suffix, prefix, trim, marked;
    Slice table, back_table;
    Error *error; /* borrowed */
} PieceModel;

/* Reads a tokenizer.model, whose bytes outlive the model. Its error is set by the caller; sentencepiece_model_close()
 * follows, also after an error. */
NODISCARD bool sentencepiece_model_read(PieceModel *model, Slice bytes);
/* Fills the merges of a BPE model. */
NODISCARD bool sentencepiece_model_merge(PieceModel *model);
void sentencepiece_model_close(PieceModel *model);
