/* Pages of the KV cache as codes: TurboQuant without its 1-bit sketch (Zandieh et al., arXiv 2504.19874), with exactly
 * those additions that real models were measured to need. Pure functions of host memory: the specification, which
 * backends may vectorise.
 *
 *   bias      a key bias reaches the key as RoPE_p(b), up to 80 times the content. The rope pairs that a page mean
 *             would leave behind (KvCode.bias_pairs) are taken out of the key before the rotation: k − B_p, and come
 *             back in the score as ⟨q, B_p⟩. B_p is computed from the page's start and the offset in it
 *             (kv_bias_angles), alike when coding and when scoring, so that it cancels exactly.
 *   rotation  y = R x, R = D(s2) H D(s1) / √d; H: Hadamard matrix of order d = 2^k · {1, 12, 20, 28} (Paley's for
 *             these), s1 and s2 the published signs.
 *   groups    the d rotated dims are cut into equal groups of at most 128; each token has one f16 scale a group.
 *   centre    keys: z = y − mean of the page's tokens (f16, one vector a page). Values: z = y.
 *   code      index of z √g / |z| (g: the group's dims) in the form's codebook, the Lloyd-Max quantiser of N(0,1), its
 *             cells split at their own Lloyd points for each further bit (CODE8: uniform steps up to the largest).
 *             scale = |z|² / ⟨z, c⟩ makes ⟨q, decoded⟩ unbiased; with it go the factors of the integer codebook.
 *   decoded   scale · c[index] + mean, in the rotated space: queries are rotated once, outputs rotated back once.
 *
 * The codebook is integers, so that scans are integer products; they are what `scale` belongs to. A code's value is
 * kv_codebook(form)[index], an int8; the unsigned kernels add KV_CODE_OFFSET. Tokens are interleaved so that each lane
 * of a vector is a token (keys) or a dimension (values) and sums need no horizontal step:
 *
 *   keys of a kv head:    mean f16[d] | scale f16[groups][128] | codes: 8 blocks of 16 tokens, each
 *     nibbles   [d/8][16 tokens][4]: byte (t, i) of octet o: low nibble = dim 8o + i, high = dim 8o + 4 + i
 *     CODE5     then one plane of bits [⌈d/32⌉][16][4]: bit n of byte (t, i) of part o = dim 32o + 4n + i
 *     CODE6     then one plane of bit pairs [⌈d/16⌉][16][4]: bits 2n, 2n+1 of byte (t, i) of part o = dim 16o + 4n + i
 *     CODE8     instead bytes [d/4][16][4]: the index, 0…255, of dim 4o + i
 *   values of a kv head:  scale f16[groups][128] | codes: d/16 blocks of 16 dims, each
 *     nibbles   [16 octets of tokens][16 dims][4]: byte (j, i) of octet o: low nibble = token 8o + i, high = 8o + 4 + i
 *     CODE3     instead pairs [8][16][4]: bits 2n, 2n+1 of byte (j, i) of part o = token 16o + 4n + i;
 *               then bits [4][16][4]: bit n of byte (j, i) of part o = token 32o + 4n + i, the index's third bit
 *     CODE5     nibbles, then bits as above: index = 2 · nibble + bit
 *     CODE6     nibbles, then pairs as above: index = 4 · nibble + pair
 *     CODE8     bytes [32][16][4]: token 4o + i
 *   CODE3's index = pair + 4 · bit. Parts beyond d hold zeros. Every array begins on 64 bytes. */
#pragma once
#include "backend/backend.h"

enum {
    KV_CODE_DIM = 16,       /* head sizes are multiples of this */
    KV_CODE_GROUP = 128,    /* dims of a group, at most */
    KV_CODE_LEVELS = 256,   /* of the largest codebook */
    KV_CODE_OFFSET = 128,   /* makes a code's value unsigned */
    KV_CODE_BIAS_PAIRS = 64 /* of the rope, that a bias can be taken out of */
};

/* ---- rotation ---- */

/* Whether heads of this size can be coded: a Hadamard matrix is known, and lanes come out even. */
bool kv_code_dim(int d);
/* x[d] ← R x, or Rᵀ x. */
void kv_rotate(int d, float *x);
void kv_rotate_back(int d, float *x);
/* The signs as ±1, [2][d]: s1 then s2. The source: numpy's default_rng(42).choice([-1, 1], …), as the paper's
 * implementations have them. */
void kv_rotation_signs(int d, float *signs);

/* ---- codebooks ---- */

int kv_form_bits(KvForm form);          /* 3 … 8; EXACT: 16 */
int kv_group_dims(int d);               /* the largest equal part of d that is ≤ KV_CODE_GROUP and a multiple of 8 */
const int8_t *kv_codebook(KvForm form); /* [2^bits] ascending, symmetric about −1/2: value = −1 − value of its mirror */
const float *kv_code_edges(KvForm form); /* [2^bits − 1] of N(0,1), between the indices; not for CODE8 */

/* ---- layout of one kv head's page ---- */

typedef struct KvCodeLayout {
    int d, group, groups;
    size_t mean;  /* offset of the means (keys) */
    size_t scale; /* of the scales */
    size_t codes; /* of the nibbles, pairs or bytes */
    size_t extra; /* of the bits or pairs beside them */
    size_t block; /* bytes of codes per 16 tokens (keys) or 16 dims (values) */
    size_t extra_block;
    size_t bytes; /* of the whole; a multiple of 64 */
} KvCodeLayout;
KvCodeLayout kv_code_layout(int d, KvForm form, bool values);
/* Index of one code. */
int kv_code_get(const KvCodeLayout *layout, KvForm form, bool values, const uint8_t *page, int token, int dim);

/* ---- bias ---- */

/* What a key's bias is turned by at offset t of a page that starts at `position`: cos and sin of pair i, as the product
 * of the turns of start and offset. Only for ropes with fixed frequencies on one axis. */
bool kv_bias_possible(const Rope *rope);
/* B_p for the chosen pairs into out[d], all else 0; bias [d]. rope->frequencies readable. */
void kv_bias_at(const Rope *rope, uint64_t pairs, const float *bias, int d, int page_position, int t, float *out);

/* ---- pages ---- */

/* Codes of one kv head of one page. x: [128][d] f32, as exact pages hold them, overwritten. Keys: bias [d] or NULL with
 * its rope and pairs; position: of the page's first token. */
typedef struct KvBias {
    const Rope *rope;
    uint64_t pairs;
    const float *bias; /* [d] of this head */
    int position;
} KvBias;
void kv_code_keys(int d, KvForm form, float *x, const KvBias *bias, uint8_t *page);
void kv_code_values(int d, KvForm form, float *x, uint8_t *page);
/* What a page stands for, in the rotated space: [128][d]; of keys without the bias. */
void kv_decode(int d, KvForm form, bool values, const uint8_t *page, float *out);

/* ---- survey ---- */

/* What the survey measures of one kv head over whole pages. */
typedef struct KvStatistics {
    double q_square; /* mean of |q|² as scores use it (scaled) */
    double k_square; /* mean of |k − its page's mean|² after the bias is out */
    double k_whole;  /* mean of |k|² after the bias is out */
} KvStatistics;
/* Pairs whose bias a page mean leaves behind, largest first, until what stays is below a twentieth of the content. */
uint64_t kv_bias_pairs(const Rope *rope, const float *bias, int d, double content_square);
/* s of a layer from its kv heads (the largest), and the form that its keys then get. */
float kv_noise(const KvStatistics *heads, int kv_heads, int d);
KvForm kv_raised(KvForm form, float noise);
