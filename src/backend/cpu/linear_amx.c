/* Products on AMX's int8 tiles, in the order that linear.h defines; all but this is linear_avx512.c's.
 *
 * One group is one tile product: 16 activation rows × the group, signed, with the group × 16 weight rows of a panel,
 * unsigned, whose bytes [group/4][rows][4] are what the instruction wants. Two tiles of activations meet the two halves
 * of a panel. The sums go through memory to the vector units, which do more work than the tiles: so the products of the
 * next groups are issued between the pieces of that work. */
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/linear_avx512.h"

enum {
    PANEL = 32,
    TILE = LINEAR_AMX_ROWS,
    PAIR = 2 * TILE,
    PIECE = 8, /* activation rows that are brought to floats together: 16 accumulators */
    BATCH = 3, /* most groups whose sums wait in memory: with those of the batch after, half of L1 */
};

/* Tiles 0–3: sums, 4–5: activations, 6–7: weights. */
typedef struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;
#define TILES_FOR(group)                                                                                               \
    {                                                                                                                  \
        1, 0, {0}, {64, 64, 64, 64, group, group, 64, 64}, { 16, 16, 16, 16, 16, 16, (group) / 4, (group) / 4 }        \
    }
static const TileConfig TILES_16 = TILES_FOR(16), TILES_32 = TILES_FOR(32), TILES_64 = TILES_FOR(64);

/* One call of tile(). */
typedef struct Call {
    const LinearPanel *panel;
    const int8_t *q;        /* of the first row */
    const float *d, *z;     /* likewise */
    int64_t stride, groups; /* from row to row of q; groups in it, with the padding */
    int rows;
} Call;

/* Some groups of a lane for a pair of tiles. */
typedef struct Batch {
    int row;           /* first activation row */
    int turn;          /* of the lane */
    bool fresh;        /* the lane's first groups */
    int64_t at, count; /* place of the first group; how many, also none */
    int64_t left;      /* groups of the lane after these */
} Batch;

static int64_t lane_groups(const LinearPanel *panel, int turn) {
    return (panel->groups - linear_leaf(turn) + LINEAR_LANES - 1) / LINEAR_LANES;
}

static void batch_take(Batch *b) {
    b->count = b->left < BATCH ? b->left : BATCH;
    b->left -= b->count;
}

static Batch batch_first(const LinearPanel *panel) {
    Batch b = {.fresh = true, .left = lane_groups(panel, 0)};
    batch_take(&b);
    return b;
}

/* False: that was the last. */
static bool batch_next(Batch *b, const Call *call) {
    b->at += b->count;
    b->fresh = b->left == 0;
    if (b->fresh) {
        if (++b->turn == LINEAR_LANES) {
            b->turn = 0;
            b->at = 0;
            b->row += PAIR;
            if (b->row >= call->rows) return false;
        }
        b->left = lane_groups(call->panel, b->turn);
    }
    batch_take(b);
    return true;
}

/* Integer sums of group i of a batch: sums[row of the pair][weight row]. */
static void multiply_group(const Call *call, const Batch *b, int64_t i, int32_t *sums) {
    const int group = call->panel->group;
    const uint8_t *codes = call->panel->codes + (b->at + i) * group * PANEL;
    const int8_t *q = call->q + b->row * call->stride + (b->at + i) * group * TILE;
    _tile_loadd(4, q, group);
    _tile_loadd(6, codes, 4 * PANEL);
    _tile_loadd(7, codes + 64, 4 * PANEL);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 6);
    _tile_zero(1);
    _tile_dpbsud(1, 4, 7);
    _tile_stored(0, sums, 4 * PANEL);
    _tile_stored(1, sums + 16, 4 * PANEL);
    if (call->rows - b->row <= TILE) return;
    _tile_loadd(5, q + TILE * call->stride, group);
    _tile_zero(2);
    _tile_dpbsud(2, 5, 6);
    _tile_zero(3);
    _tile_dpbsud(3, 5, 7);
    _tile_stored(2, sums + TILE * PANEL, 4 * PANEL);
    _tile_stored(3, sums + TILE * PANEL + 16, 4 * PANEL);
}

/* The float part of a batch for some rows of one tile. */
typedef struct Piece {
    const int32_t *sums;          /* groups PAIR · PANEL apart */
    const float *d, *z;           /* groups TILE apart */
    const float *scales, *biases; /* groups PANEL apart */
    int count;                    /* groups */
    const float *start;           /* sums of the lane so far; NULL: none */
    int merges;                   /* earlier lanes to be added: the last of them at `left`, the others before it */
    const float *left;
    float *to;
} Piece;

INLINE void add_piece(const Piece *p, const int rows) {
    __m512 acc[PIECE][2];
#pragma GCC unroll 8
    for (int t = 0; t < rows; t++) {
        acc[t][0] = p->start ? _mm512_load_ps(p->start + t * PANEL) : _mm512_setzero_ps();
        acc[t][1] = p->start ? _mm512_load_ps(p->start + t * PANEL + 16) : _mm512_setzero_ps();
    }
    for (int i = 0; i < p->count; i++) {
        const int32_t *sums = p->sums + i * PAIR * PANEL;
        const float *d = p->d + i * TILE, *z = p->z + i * TILE;
        const __m512 s0 = _mm512_load_ps(p->scales + i * PANEL), s1 = _mm512_load_ps(p->scales + i * PANEL + 16);
        const __m512 b0 = _mm512_load_ps(p->biases + i * PANEL), b1 = _mm512_load_ps(p->biases + i * PANEL + 16);
#pragma GCC unroll 8
        for (int t = 0; t < rows; t++) {
            const __m512 dt = _mm512_set1_ps(d[t]), zt = _mm512_set1_ps(z[t]);
            const __m512 i0 = _mm512_cvtepi32_ps(_mm512_load_si512(sums + t * PANEL));
            const __m512 i1 = _mm512_cvtepi32_ps(_mm512_load_si512(sums + t * PANEL + 16));
            acc[t][0] = _mm512_fmadd_ps(_mm512_mul_ps(s0, dt), i0, acc[t][0]);
            acc[t][1] = _mm512_fmadd_ps(_mm512_mul_ps(s1, dt), i1, acc[t][1]);
            acc[t][0] = _mm512_fmadd_ps(b0, zt, acc[t][0]);
            acc[t][1] = _mm512_fmadd_ps(b1, zt, acc[t][1]);
        }
    }
    const float *left = p->left;
    for (int more = p->merges; more > 0; more--, left -= PAIR * PANEL)
#pragma GCC unroll 8
        for (int t = 0; t < rows; t++) {
            acc[t][0] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL), acc[t][0]);
            acc[t][1] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL + 16), acc[t][1]);
        }
#pragma GCC unroll 8
    for (int t = 0; t < rows; t++) {
        _mm512_storeu_ps(p->to + t * PANEL, acc[t][0]);
        _mm512_storeu_ps(p->to + t * PANEL + 16, acc[t][1]);
    }
}

static void add_piece_8(const Piece *p) { add_piece(p, 8); }
static void add_piece_4(const Piece *p) { add_piece(p, 4); }
static void add_piece_2(const Piece *p) { add_piece(p, 2); }
static void add_piece_1(const Piece *p) { add_piece(p, 1); }

/* Adds `rows` (8, 4, 2, 1) of a batch's rows, from row `at` of the pair. waiting: finished lanes of the tree, then the
 * lane that is not. y: of the pair. */
static void add_rows(
    const Call *call, const Batch *b, int at, int rows, const int32_t *sums, float waiting[][PAIR * PANEL], float *y) {
    static void (*const ADD[])(const Piece *) = {
        [1] = add_piece_1, [2] = add_piece_2, [4] = add_piece_4, [8] = add_piece_8};
    const int depth = __builtin_popcount((unsigned)b->turn), from = at * PANEL;
    const int merges = b->left == 0 ? __builtin_ctz(~(unsigned)b->turn) : 0;
    const int64_t scale_at = (b->row + at / TILE * TILE) * call->groups + b->at * TILE + at % TILE;
    const bool last = b->left == 0 && b->turn == LINEAR_LANES - 1;
    const Piece piece = {
        .sums = sums + from,
        .d = call->d + scale_at,
        .z = call->z + scale_at,
        .scales = call->panel->scales + b->at * PANEL,
        .biases = call->panel->biases + b->at * PANEL,
        .count = (int)b->count,
        .start = b->fresh ? NULL : waiting[depth] + from,
        .merges = merges,
        .left = merges ? waiting[depth - 1] + from : NULL,
        .to = (last ? y : waiting[depth - merges]) + from,
    };
    ADD[rows](&piece);
}

static void multiply(const Call *call, float *y) {
    int32_t sums[2][BATCH * PAIR * PANEL] __attribute__((aligned(64)));
    float waiting[5][PAIR * PANEL] __attribute__((aligned(64)));
    Batch now = batch_first(call->panel);
    for (int64_t i = 0; i < now.count; i++) multiply_group(call, &now, i, sums[0] + i * PAIR * PANEL);
    for (int turn = 0;; turn ^= 1) {
        Batch next = now;
        const bool more = batch_next(&next, call);
        const int64_t issue = more ? next.count : 0;
        const int rows = call->rows - now.row < PAIR ? call->rows - now.row : PAIR;
        int64_t issued = 0;
        for (int at = 0, height = PIECE; at < rows; at += height) {
            for (; issued < issue && issued * rows <= at * issue; issued++)
                multiply_group(call, &next, issued, sums[turn ^ 1] + issued * PAIR * PANEL);
            while (height > rows - at) height /= 2;
            add_rows(call, &now, at, height, sums[turn], waiting, y + now.row * PANEL);
        }
        if (!more) return;
        for (; issued < issue; issued++) multiply_group(call, &next, issued, sums[turn ^ 1] + issued * PAIR * PANEL);
        now = next;
    }
}

void linear_tile_amx(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    const int64_t groups = x->stride / x->group;
    const Call call = {panel, x->q[LAYOUT_PANEL] + first * x->stride, x->scales + first * groups,
        x->sums + first * groups, x->stride, groups, rows};
    _tile_loadconfig(panel->group == 16 ? &TILES_16 : panel->group == 32 ? &TILES_32 : &TILES_64);
    multiply(&call, y);
    _tile_release(); /* or every switch of threads saves 8 KB of tiles */
}

void linear_arrange_amx(const int8_t *q, int64_t cols, int group, int8_t *out) {
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int8_t *to = out + linear_panel_place(lane, cols / group) * group * TILE;
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES, to += group * TILE)
            for (int i = 0; i < group; i += 16) {
                const __m128i v = _mm_loadu_si128((const __m128i *)(q + g * group + i));
                _mm_storeu_si128((__m128i *)(to + i), _mm_shuffle_epi8(v, split));
            }
    }
}

enum {
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_EDX_AMX_INT8 = 1 << 25,
    STATE_TILES = 1 << 17 | 1 << 18, /* in XCR0: configuration and data */
    ARCH_REQ_XCOMP_PERM = 0x1023,
    TILE_DATA = 18,
};

bool amx_available(void) {
    const unsigned wanted = LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & STATE_TILES) != STATE_TILES) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
