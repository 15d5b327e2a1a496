/* Quantised pages of the KV cache: TurboQuant without its 1-bit sketch (Zandieh et al., arXiv 2504.19874), with those
 * additions that measurements of real models required. Pure functions of host memory, one head of one page at a time.
 *
 *   bias      a key bias reaches the key as RoPE_p(b), up to 80 times the content. The RoPE pairs whose bias a page
 *             mean would leave behind (KvQuant.bias_pairs) are subtracted from the key before the rotation: k − B_p,
 *             and come back in the score as ⟨q, B_p⟩. B_p is composed of the rotations by the page's start and by the
 *             offset in it (kv_rotation_compose), alike when quantising and when scoring, so that it cancels, and
 *             scoring can keep the rotations by offsets.
 *   rotation  y = R x, R = D(s2) H D(s1) / √d; H: Hadamard matrix of order d = 2^k · {1, 12, 20, 28} (Paley's for
 *             these), s1 and s2 the published signs.
 *   groups    the d rotated dims are cut into equal groups of at most 128; each token has one f16 scale a group.
 *   centre    keys: z = y − mean of the page's tokens (f16, one vector a page). Values: z = y.
 *   code      index of z √g / |z| (g: the group's dims) in the format's codebook, a quantiser of N(0,1)
 *             (kv_codebook.c); KV_Q8: uniform steps up to the group's largest.
 *             scale = |z|² / ⟨z, c⟩ makes ⟨q, decoded⟩ unbiased.
 *   decoded   scale · c[index] + mean, in the rotated space: queries are rotated once, outputs rotated back once.
 *
 * Codebook levels are integers, so that scans are integer products; `scale` refers to these levels: c[index] is
 * kv_codebook(form)[index] + 1/2, an int8 and a half. Tokens are interleaved so that each
 * lane of a vector is a token (keys) or a dimension (values) and sums need no horizontal step:
 *
 *   keys of a kv head:    mean f16[d] | scale f16[groups][128] | codes [8 blocks of 16 tokens][groups]
 *   values of a kv head:  scale f16[groups][128] | codes [d/16 blocks of 16 dims]
 *
 * The codes of a block, and group, are rows of [16 lanes][4] bytes. Byte i of a lane belongs to items 4q + i: dims of
 * the group (keys), tokens (values). The places of the quads q repeat in parts of some rows. A field
 * takes the low bits of a byte first, the index's lowest bits first, unless stated otherwise:
 *
 *     KV_Q4     2 quads in a row: bits 0–3 and 4–7
 *     KV_Q8     a quad in a row
 *     KV_Q3     8 quads in 3 rows. 0, 1, 2: bits 0–2 of these rows; 3, 4, 5: their bits 3–5; 6: bits 6–7 of row 0 and
 *               bit 6 of row 2; 7: bits 6–7 of row 1 and bit 7 of row 2
 *     KV_Q5     8 quads in 5 rows. 0, 1, 2: bits 0–4 of these rows; 3: bits 5–7 of row 0, 6–7 of row 1; 4, 5: bits 0–4
 *               of rows 3, 4; 6: bits 5–7 of row 2, 6–7 of row 3; 7: bits 5–7 of row 4, bit 5 of row 1, of row 3.
 *               A half part at the end has the first 3 rows
 *     KV_Q6     4 quads in 3 rows. 0, 1, 2: bits 0–5 of these rows; 3: bits 6–7 of row 0, of row 1, of row 2
 *
 * Most indices thus are the low bits of a byte, as lookups need them. Every array begins on 64 bytes.
 *
 * MLA latents (KvLayout.latent) are keys and values in one: they are quantised once, like keys, in the format of keys,
 * in the half of keys, and both scores and sums read them. The half of values holds the rotated keys, quantised like
 * keys in KV_Q8 whatever format is requested: they are a ninth of a page's bytes, and some of their dims are large
 * (DeepSeek leaves theirs unquantised). */
#pragma once
#include "backend/backend.h"

enum {
    KV_QUANT_DIM = 16,       /* head sizes are multiples of this */
    KV_QUANT_GROUP = 128,    /* dims of a group, at most */
    KV_QUANT_LEVELS = 256,   /* levels of the largest codebook */
    KV_QUANT_BIAS_PAIRS = 64 /* RoPE pairs whose bias can be subtracted, at most */
};

/* ---- rotation ---- */

/* True if heads of d elements can be quantised: a Hadamard matrix of order d is known, and d is a multiple of
 * KV_QUANT_DIM. */
bool kv_quant_dim(int d);
/* x [d][lanes] ← R x, or Rᵀ x: each lane is a vector of its own. Lanes do not touch each other's bits. */
void kv_rotate(int d, int lanes, float *x);
void kv_rotate_back(int d, int lanes, float *x);
/* The signs as ±1, [2][d]: s1 then s2. */
void kv_rotation_signs(int d, float *signs);

/* ---- codebooks ---- */

int kv_form_bits(KvForm form); /* 3 … 8; KV_FULL: 16 */
int kv_group_dims(int d);      /* the largest equal part of d that is ≤ KV_QUANT_GROUP and a multiple of 16 */
const int8_t *kv_codebook(KvForm form); /* [2^bits] ascending, symmetric about −1/2: value = −1 − value of its mirror */
/* [2^(bits−1) − 1] edges between the levels of the positive half, in units of N(0,1), ascending. Not for KV_Q8. */
const float *kv_quant_edges(KvForm form);

/* ---- layout of one kv head's page ---- */

typedef struct KvQuantLayout {
    int d, group, groups;
    size_t mean;  /* offset of the means (keys) */
    size_t scale; /* offset of the scales */
    size_t codes; /* offset of the first block */
    size_t block; /* bytes per 16 tokens (keys) or 16 dims (values) */
    size_t run;   /* bytes per group of a block (keys), or all of it (values) */
    size_t bytes; /* bytes of the whole; a multiple of 64 */
} KvQuantLayout;
KvQuantLayout kv_quant_layout(int d, KvForm form, bool values);
/* The codebook index of one element. */
int kv_quant_get(const KvQuantLayout *layout, KvForm form, bool values, const uint8_t *page, int token, int dim);

/* Contents of one half of a layer's quantised pages: the half of keys or that of values. */
typedef struct KvHalf {
    int d;
    KvForm form;
    bool values;      /* in the layout of values */
    bool from_values; /* quantised from the values of full-precision pages */
} KvHalf;
KvHalf kv_quant_half(const KvLayout *layout, KvForm form, bool values);

/* ---- bias ---- */

/* The bias of one head's keys at one page. */
typedef struct KvBias {
    const Rope *rope;  /* frequencies readable */
    uint64_t pairs;    /* bit i: the bias of RoPE pair i is subtracted */
    const float *bias; /* [d] of this head, before RoPE */
    int position;      /* position of the page's first token */
} KvBias;

typedef struct KvRotation {
    float cosine, sine;
} KvRotation;

/* True if a bias can be computed at any position: RoPE with fixed frequencies on one position dimension. */
bool kv_bias_possible(const Rope *rope);
/* The rotation of a RoPE pair at a position, without Rope.scale; the composition of two rotations. */
KvRotation kv_bias_rotation(const Rope *rope, int pair, int position);
KvRotation kv_rotation_compose(KvRotation a, KvRotation b);
/* B_p at offset t of the page for the chosen pairs into out[d], all else 0. */
void kv_bias_at(const KvBias *bias, int d, int t, float *out);
/* Subtracts the bias from the keys of a page, [8 blocks][d][16 tokens]. */
void kv_subtract_bias(int d, float *x, const KvBias *bias);
/* Pairs whose bias a page mean leaves behind, largest first, until the rest is below a twentieth of the content. */
uint64_t kv_bias_pairs(const Rope *rope, const float *bias, double content_square);
uint64_t kv_bias_all(const Rope *rope); /* every pair that can be chosen */

/* ---- pages ---- */

/* Quantises one kv head of one page. x: [8 blocks][d][16 tokens] f32, overwritten. bias NULL: none. */
void kv_quant_keys(int d, KvForm form, float *x, const KvBias *bias, uint8_t *page);
void kv_quant_values(int d, KvForm form, float *x, uint8_t *page);
/* Dequantises a page in the rotated space: [128][d]; keys without the bias. */
void kv_decode(int d, KvForm form, bool values, const uint8_t *page, float *out);

/* ---- calibration ---- */

/* Sums over the tokens of whole pages of one kv head. */
typedef struct KvStatistics {
    double tokens;
    double q_square; /* sum of |q|² as scores use it (scaled), the mean over the kv head's query heads */
    double k_square; /* sum of |k − its page's mean|² after the bias is subtracted */
    double k_whole;  /* sum of |k|² after the bias is subtracted */
} KvStatistics;

/* Adds a page of a kv head that begins at `position`: x: source of the half of keys, as above, overwritten;
 * q_square [128]. */
void kv_calibrate_page(
    const KvLayer *layer, int head, int position, float *x, const float *q_square, KvStatistics *sums);
/* Merges the decision for one kv head into calibration->code; called for one head after another. asked: the requested
 * code->k. */
void kv_calibrate_decide(const KvCalibration *calibration, KvForm asked, int head, const KvStatistics *sums);
/* The format for keys whose scores have this noise; offset: keys share a large part over all tokens. At most KV_Q6. */
KvForm kv_raised(KvForm form, float noise, bool offset);

/* ---- for operations of backends ---- */

size_t kv_quant_bytes(
    const KvLayout *layout, KvForm form, bool values); /* BackendOps.kv_quant_bytes of backends that quantise */
/* The quantised data of a kv head in page number `page` of the format's store. */
uint8_t *kv_quant_head(const KvLayer *layer, KvForm form, bool values, int32_t page, int head);
KvBias kv_bias_of(const KvLayer *layer, const KvQuant *code, int head, int position); /* pairs 0: none */
/* Quantises a half of one head of a full-precision page. x: its source, as above, overwritten. */
void kv_quantise_half(const KvQuantise *page, int head, bool values, float *x);
