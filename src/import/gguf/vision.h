/* Encoders of images and audio in mmproj files: what each kind of projector has (vision_kinds.c), and the fields that a
 * checkpoint needs around those of the text (vision_config.c). Names of modules are MLX's. */
#pragma once
#include "import/gguf/internal.h"

/* What the converter did to a tensor, or how its name differs. */
typedef enum VisionChange {
    VISION_AS_IT_IS,
    VISION_PLUS_ONE,
    VISION_BARE,     /* the module's name ends in "_weight" */
    VISION_PAIRED,   /* in each head the rows of a rotation lie side by side */
    VISION_LINEAR,   /* the module's weight is that of its part "linear"; bounds of inputs and results are its own */
    VISION_NAMELESS, /* the module's name is the tensor's */
    VISION_OPTIONAL, /* the same, and files may lack it */
    VISION_CHANNELS_LAST, /* a convolution as a matrix: rows, columns, channels */
    VISION_FUSED,         /* q, k and v are one matrix, one behind the other: the name is that of q */
    VISION_FRAMES,        /* a convolution over two frames: ".weight" has the first one, ".weight.1" the second one */
    VISION_DEEPSTACK,     /* blocks are those of clip.vision.is_deepstack_layers; the module has their number among
                             these */
    VISION_COLOURS_LAST,  /* rows of a patch's values: rows, columns, channels */
    VISION_PLACES_FIRST,  /* the module's name is the tensor's; both axes of a place lie side by side */
    VISION_SOFTPLUS,      /* the module's name is the tensor's; elements are softplus of its own */
} VisionChange;

typedef struct VisionName {
    const char *gguf, *module; /* '*': number of the block */
    bool bias;
    VisionChange change;
} VisionName;

/* How images become patches, and what config.json calls that. */
typedef enum VisionStyle {
    STYLE_FIXED,   /* each becomes one of the tower's size */
    STYLE_TILES,   /* large ones are cut into tiles of that size */
    STYLE_WITHIN,  /* each keeps its shape within that size */
    STYLE_QWEN2,   /* each keeps its shape, its area lies between two limits */
    STYLE_QWEN2_5, /* the same, with windows */
    STYLE_QWEN3,   /* the same, with learned positions */
    STYLE_GEMMA4,  /* each keeps its shape with a number of patches */
    STYLE_UNIFIED, /* the same, and there is no tower: groups of patches are rows */
} VisionStyle;

typedef enum VisionPart { VISION_TOWER, VISION_PROJECTOR, AUDIO_TOWER, AUDIO_PROJECTOR, VISION_PARTS } VisionPart;

/* A projector of clip.projector_type, and the text model that it belongs to. */
typedef struct VisionKind {
    const char *projector, *with; /* with: a tensor that only this one of the projector's has, or NULL */
    const char *texts[2];         /* architectures of the text model */
    const char *model_type, *class_name, *tower_type, *processor;
    const char *audio;      /* clip.audio.projector_type; NULL: the model takes no audio */
    const char *activation; /* key that must be true; NULL: none */
    const char *factor_key; /* key of the side of a group of patches; NULL: it is always `factor` */
    int64_t factor;         /* where the file has none; 0: there are no groups */
    VisionStyle style;
    bool mrope, mrope_interleaved;   /* positions of the text have three dimensions */
    const char *homes[VISION_PARTS]; /* beginning of the modules' names */
    const VisionName *names[VISION_PARTS];
} VisionKind;

extern const VisionKind gguf_vision_kinds[];
extern const size_t gguf_vision_kind_count;

enum { VISION_SOURCES_MAX = 3 };

/* A tensor of the checkpoint: pieces of its sources in turn. */
typedef struct VisionOutput {
    const GgufTensor *sources[VISION_SOURCES_MAX];
    int count;
    size_t piece; /* bytes */
    VisionChange change;
} VisionOutput;

/* A whole number of a key, 1 to `most`. */
NODISCARD bool gguf_vision_whole(const GgufFile *file, const char *key, int64_t most, int64_t *value, Error *error);
/* Pixels of the side of what becomes a row of the embedding: a patch, or with STYLE_UNIFIED a group of patches. */
int64_t gguf_vision_side(const GgufVision *v);
/* The tensor of a block, in files that exchanged the names of the two matrices, too. NULL: the file has none. */
const GgufTensor *gguf_vision_find(const GgufVision *v, const char *pattern, int64_t block, const char *part);
