/* Products on AMX's int8 tiles, in the order that linear.h defines; the other kernels are those of AVX-512.
 *
 * One group is one tile product: 16 activation rows × the group, signed, with the group × 16 weight rows of a panel,
 * unsigned, with bytes [group/4][rows][4], the instruction's layout. Two tiles of activations times the two halves
 * of a panel make a square of up to four products. Their sums go through memory to the vector units. A product has a
 * long latency, and a store that waits for it would stall later instructions: it is stored when the product of the next
 * square begins. Tile instructions among vector instructions halve the throughput of the latter at any distance, so the
 * code only avoids waits of one for the other and keeps all of this in L1. */
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/cpu/cpu.h"
#include "backend/cpu/linear/linear_avx512.h"

enum {
    TILE = LINEAR_AMX_ROWS,
    PAIR = 2 * TILE,
    PIECE = 8, /* activation rows that are brought to floats together: 16 accumulators */
    BATCH = 2, /* most groups whose sums are brought to floats together; and most squares in memory */
    SQUARE = PAIR * PANEL,
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
    const int8_t *q;        /* codes of the first row */
    const float *d, *z;     /* scales and sums of the first row */
    int64_t stride, groups; /* from row to row of q; groups in it, with the padding */
    int rows;
} Call;

/* Some groups of a lane for a pair of tiles. */
typedef struct Batch {
    int row;           /* first activation row */
    int turn;          /* the lane's place in the order of the tree */
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

/* Moves to the next batch; false: there is none. */
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

/* The products of a pair of tiles with the groups of a panel, one square of up to four tiles after the other. */
typedef struct Issue {
    const Call *call;
    int32_t *ring;      /* sums[square % BATCH][row of the pair][weight row] */
    int64_t square;     /* the next square; one past the last has no products */
    int64_t until;      /* it may go as far as this */
    int64_t at;         /* group */
    int row;            /* first activation row */
    int tiles, waiting; /* tiles of this square; tiles of the square before that wait to be stored */
} Issue;

static int tiles_of(const Call *call, int row) { return row >= call->rows ? 0 : call->rows - row > TILE ? 4 : 2; }

/* Stores the square before, tile by tile, and begins this one. */
INLINE void issue_square(Issue *s) {
    const Call *call = s->call;
    const int group = call->panel->group;
    const uint8_t *codes = call->panel->codes + s->at * group * PANEL;
    const int8_t *q = call->q + s->row * call->stride + s->at * group * TILE;
    int32_t *sums = s->ring + (s->square + BATCH - 1) % BATCH * SQUARE;
    if (s->tiles > 0) {
        _tile_loadd(4, q, group);
        _tile_loadd(6, codes, 4 * PANEL);
    }
    if (s->waiting > 0) _tile_stored(0, sums, 4 * PANEL);
    if (s->tiles > 0) {
        _tile_zero(0);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, codes + 64, 4 * PANEL);
    }
    if (s->waiting > 0) _tile_stored(1, sums + 16, 4 * PANEL);
    if (s->tiles > 0) {
        _tile_zero(1);
        _tile_dpbsud(1, 4, 7);
    }
    if (s->tiles > 2) _tile_loadd(5, q + TILE * call->stride, group);
    if (s->waiting > 2) _tile_stored(2, sums + TILE * PANEL, 4 * PANEL);
    if (s->tiles > 2) {
        _tile_zero(2);
        _tile_dpbsud(2, 5, 6);
    }
    if (s->waiting > 2) _tile_stored(3, sums + TILE * PANEL + 16, 4 * PANEL);
    if (s->tiles > 2) {
        _tile_zero(3);
        _tile_dpbsud(3, 5, 7);
    }
    s->square++;
    s->waiting = s->tiles;
    if (++s->at < call->panel->groups) return;
    s->at = 0;
    s->row += PAIR;
    s->tiles = tiles_of(call, s->row);
}

static void issue_all(Issue *s) {
    while (s->square < s->until) issue_square(s);
}

/* The float part of a batch for some rows of one tile. */
typedef struct Piece {
    const int32_t *sums;          /* the ring of Issue */
    int64_t square;               /* square of the first group */
    const float *d, *z;           /* groups TILE apart */
    const float *scales, *biases; /* groups PANEL apart */
    int count;                    /* groups */
    const float *start;           /* sums of the lane so far; NULL: none */
    int merges;                   /* earlier lanes to add: the last at `left`, the other ones before it */
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
        const int32_t *sums = p->sums + (p->square + i) % BATCH * SQUARE;
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
    for (int more = p->merges; more > 0; more--, left -= SQUARE)
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
 * lane that is not. y: results of the pair. */
static void add_rows(const Call *call, const Batch *b, int64_t square, int at, int rows, const int32_t *ring,
    float waiting[][SQUARE], float *y) {
    static void (*const ADD[])(const Piece *) = {
        [1] = add_piece_1, [2] = add_piece_2, [4] = add_piece_4, [8] = add_piece_8};
    const int depth = __builtin_popcount((unsigned)b->turn), from = at * PANEL;
    const int merges = b->left == 0 ? __builtin_ctz(~(unsigned)b->turn) : 0;
    const int64_t scale_at = (b->row + at / TILE * TILE) * call->groups + b->at * TILE + at % TILE;
    const bool last = b->left == 0 && b->turn == LINEAR_LANES - 1;
    const Piece piece = {
        .sums = ring + from,
        .square = square,
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
    int32_t ring[BATCH * SQUARE] __attribute__((aligned(64)));
    float waiting[5][SQUARE] __attribute__((aligned(64)));
    Batch now = batch_first(call->panel);
    Issue issue = {.call = call, .ring = ring, .tiles = tiles_of(call, 0)};
    const int64_t total = (call->rows + PAIR - 1) / PAIR * call->panel->groups;
    for (int64_t square = 0;;) {
        Batch next = now;
        const bool more = batch_next(&next, call);
        if (issue.square < square + now.count + 1) {
            issue.until = square + BATCH < total ? square + BATCH + 1 : total + 1;
            issue_all(&issue);
        }
        const int rows = call->rows - now.row < PAIR ? call->rows - now.row : PAIR;
        for (int at = 0, height = PIECE; at < rows; at += height) {
            while (height > rows - at) height /= 2;
            add_rows(call, &now, square, at, height, ring, waiting, y + now.row * PANEL);
        }
        if (!more) return;
        square += now.count;
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

/* Linux gives a process the tiles on request. No Mac has them. */
bool amx_available(void) {
#ifdef __linux__
    const unsigned wanted = LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & STATE_TILES) != STATE_TILES) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return false;
#endif
}
