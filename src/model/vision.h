/* The vision part of a model as plain data: how an image becomes patches, the tower that computes with them, and the
 * merger that makes rows of the text model's first layer of its results. Filled by a family file, constant afterwards;
 * computed by encoder.h. */
#pragma once
#include "media/image_rule.h"
#include "media/video.h"
#include "model/conv.h"
#include "model/spec.h"

enum {
    MERGER_STAGES_MAX = 4,
    DEEPSTACK_MAX = 8,
    VISION_LAYERS_MAX = 128, /* layers of a tower with windows */
};

/* x = act(output_norm(W · norm(x))), or with a gate act(gate · norm(x)) ∘ (W · norm(x)) */
typedef struct MergerStage {
    const Norm *norm, *output_norm; /* NULL: none; no output norm with a gate */
    Weight weight, gate;            /* gate rows 0: none */
    Activation activation;
} MergerStage;

/* From the rows of a group's patches to one row. */
typedef struct Merger {
    const Norm *norm; /* norm of each patch's row; NULL: none */
    /* Not 0: the mean of the rows (PATCHES_SPREAD) times this; otherwise one row behind the other (PATCHES_GROUPED). */
    float average;
    Weight shift, factors; /* [1, hidden] (mean − shift) · factors; rows 0: none */
    int stage_count;
    MergerStage stages[MERGER_STAGES_MAX];
} Merger;

/* Rows that are added to the text model's rows behind its layer number i, for the i-th of these. */
typedef struct Deepstack {
    int layer; /* layer of the tower whose results are merged */
    Merger merger;
} Deepstack;

/* Learned positions, added to the embedded patches. */
typedef enum PositionKind {
    POSITIONS_NONE,
    POSITIONS_GRID,      /* one for each place of the largest grid, whose side every grid has */
    POSITIONS_CORNERS,   /* a grid's corners lie on those of the table, bilinear in between (Qwen3-VL) */
    POSITIONS_AXES,      /* the sum of one for the column and one for the row */
    POSITIONS_CUBIC,     /* bicubic between those of a table that covers the image (GLM-4V) */
    POSITIONS_STRETCHED, /* bilinear, with an average where the table has more places than the image (LFM2-VL) */
} PositionKind;

typedef struct PositionTable {
    PositionKind kind;
    int side;
    /* [side · side, hidden], or with POSITIONS_AXES [2, side, hidden] of columns and of rows; host memory; NULL with
     * POSITIONS_NONE. */
    const float *rows;
} PositionTable;

/* How the time of a video's frames is written into the prompt. */
typedef enum VideoTime {
    VIDEO_UNTIMED,
    VIDEO_TENTHS,       /* "1.5": seconds, the mean of those of the first and the last frame of a group */
    VIDEO_BEGIN_TENTHS, /* the same, of the first one */
    VIDEO_SECONDS,      /* "1": of the first one */
    VIDEO_CLOCK,        /* "00:01": minutes and seconds of the first one */
} VideoTime;

/* A video in the prompt: frames in groups, each of which becomes rows as an image does. */
typedef struct VideoSpec {
    VideoRule rule;          /* together 0: the model takes no videos */
    const char *placeholder; /* what a chat template writes for a video */
    const char *opening,
        *closing; /* around all groups; in opening %s is the number of frames in words, then the length */
    /* Around the tokens of a group, printf's formats of its time; NULL: nothing. */
    const char *before, *after;
    const char *between; /* two groups */
    const char *token;   /* once for each row */
    VideoTime time;
    /* RoPE positions in time: those of all groups count on from where the first one begins, the group number i by i, or
     * with tokens_per_second by that times its time (Qwen2-VL). Otherwise each group has those of an image. */
    bool one_grid;
    double tokens_per_second;
} VideoSpec;

typedef struct VisionSpec {
    ImageRule rule;
    VideoSpec video;
    Spec tower; /* hidden and layers, which share one cache entry; final_norm may be NULL; no embedding, no head */
    /* With ImageRule.window: 1 for layers of the tower whose patches see those of their window alone. */
    uint8_t windowed[VISION_LAYERS_MAX];
    /* A tower of convolutions, in place of embedding and layers: its results are the rows of patches, `hidden` elements
     * each; NULL: none. */
    ConvSpec *conv;
    Weight patch;               /* [hidden, patch² · 3]; rows 0: with `conv` */
    Weight pair;                /* [hidden, 2 · patch² · 3] of two frames of a video; rows 0: frames are images */
    const Norm *pixel_norm;     /* norm of a patch's values; NULL: none */
    const Norm *embedding_norm; /* norm of the embedded patches, before their positions are added; NULL: none */
    const Norm *patch_norm;     /* norm of their sum; NULL: none */
    PositionTable positions;
    Merger merger;
    int deepstack_count;
    Deepstack deepstack[DEEPSTACK_MAX];
    bool bidirectional;                 /* the rows of an image see each other */
    bool whole_prompt;                  /* bidirectional: so do all tokens of a prompt with images (PaliGemma) */
    bool grid_positions;                /* RoPE positions of an image's rows are those of its grid (M-RoPE) */
    const char *chat_template;          /* used where the model's files have none, or one without images; NULL: none */
    const char *spare_token;            /* stands for rows where the tokenizer has no `token`; NULL: none does */
    const char *opening;                /* what stands in front of all that replaces an image; NULL: nothing */
    const char *placeholder;            /* what a chat template writes for an image */
    const char *before, *token, *after; /* what replaces that in the prompt: token once for each row */
    /* What stands before the token of a tile, printf's format of its row and column from 1 on; NULL: no tiles. */
    const char *tile;
    const char *tile_row_end, *tiles_end; /* behind the tiles of a row, behind all of them */
    const char *row_end; /* what stands behind the tokens of a row of the grid, the last one excepted; NULL: nothing */
} VisionSpec;
