/* Products of small matrices by warps. The registers of lane 4g + t: of a 16 × 16 matrix of halves a, words (row g;
 * columns 2t, 2t + 1), (g + 8; the same), (g; 2t + 8, 2t + 9), (g + 8; those); of b alike with its columns as rows; of
 * sums (g; 2t, 2t + 1), (g + 8; the same). With integers the same words have four columns. Source: NVIDIA's PTX
 * ISA, 9.7.14 and 9.7.15. */
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "ptx.h"
#include "state.h"

namespace emulator {

enum { ROWS = 16, STEP = 16, BYTES = 32, COLUMNS_MAX = 256 };

/* ---- the arithmetic ---- */

static inline float half_at(uint16_t bits) { return _cvtsh_ss(bits); }

/* sums + a · b, b as [step][column]: 16 products are added up in order as doubles, which holds nearly all of them
 * exactly, and rounded once. The one arithmetic of f16 products here. */
static void multiply_halves(const float (*a)[STEP], const float *b, int columns, float *sums) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c += 8) {
            float *to = sums + r * columns + c;
            __m256d low = _mm256_cvtps_pd(_mm_loadu_ps(to)), high = _mm256_cvtps_pd(_mm_loadu_ps(to + 4));
            for (int k = 0; k < STEP; k++) {
                const __m256d x = _mm256_set1_pd((double)a[r][k]);
                const float *from = b + k * columns + c;
                low = _mm256_fmadd_pd(x, _mm256_cvtps_pd(_mm_loadu_ps(from)), low);
                high = _mm256_fmadd_pd(x, _mm256_cvtps_pd(_mm_loadu_ps(from + 4)), high);
            }
            _mm_storeu_ps(to, _mm256_cvtpd_ps(low));
            _mm_storeu_ps(to + 4, _mm256_cvtpd_ps(high));
        }
}
static void multiply_bytes(const int16_t (*a)[BYTES], const int16_t (*b)[BYTES], int columns, uint32_t *sums) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c++) {
            int sum = 0;
            for (int k = 0; k < BYTES; k++) sum += a[r][k] * b[c][k];
            sums[r * columns + c] += (uint32_t)sum;
        }
}
static inline int16_t byte_of(uint32_t word, int i, bool is_unsigned) {
    return is_unsigned ? (int16_t)(uint8_t)(word >> 8 * i) : (int16_t)(int8_t)(word >> 8 * i);
}

static void a_halves(float (*a)[STEP], int lane, const uint32_t *words) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) a[g + i % 2 * 8][2 * t + i / 2 * 8 + k] = half_at((uint16_t)(words[i] >> 16 * k));
}
static void a_bytes(int16_t (*a)[BYTES], int lane, const uint32_t *words, bool is_unsigned) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) a[g + i % 2 * 8][4 * t + i / 2 * 16 + k] = byte_of(words[i], k, is_unsigned);
}
/* Where number i of a lane's sums is in a matrix of so many columns. */
static inline int sum_at(int lane, int i, int columns) {
    return (lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

/* ---- mma ---- */

static void compute_halves(void *const put[LANES], uint32_t mask) {
    float a[ROWS][STEP], b[STEP * 8], sums[ROWS * 8];
    if (mask != ~0u) fault("mma without all lanes");
    for (int lane = 0; lane < LANES; lane++) {
        const ptx::Multiply &m = *(const ptx::Multiply *)put[lane];
        a_halves(a, lane, m.a);
        for (int i = 0; i < 4; i++) {
            sums[sum_at(lane, i, 8)] = m.from[i];
            b[(lane % 4 * 2 + i / 2 * 8 + i % 2) * 8 + lane / 4] = half_at((uint16_t)(m.b[i / 2] >> 16 * (i % 2)));
        }
    }
    multiply_halves(a, b, 8, sums);
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) *((const ptx::Multiply *)put[lane])->c[i] = sums[sum_at(lane, i, 8)];
}
static void compute_integers(void *const put[LANES], uint32_t mask) {
    int16_t a[ROWS][BYTES], b[8][BYTES];
    uint32_t sums[ROWS * 8];
    if (mask != ~0u) fault("mma without all lanes");
    for (int lane = 0; lane < LANES; lane++) {
        const ptx::MultiplyIntegers &m = *(const ptx::MultiplyIntegers *)put[lane];
        a_bytes(a, lane, m.a, m.a_unsigned);
        for (int i = 0; i < 4; i++) sums[sum_at(lane, i, 8)] = m.from[i];
        for (int i = 0; i < 8; i++)
            b[lane / 4][lane % 4 * 4 + i / 4 * 16 + i % 4] = byte_of(m.b[i / 4], i % 4, m.b_unsigned);
    }
    multiply_bytes(a, b, 8, sums);
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) *((const ptx::MultiplyIntegers *)put[lane])->c[i] = sums[sum_at(lane, i, 8)];
}

/* ---- matrices of eight rows ---- */

struct Matrices {
    uint32_t *const *words;
    const uint32_t *from;
    uint8_t *row; /* of matrix lane / 8, its row lane % 8 */
    int count;
    bool rotated;
};
static void compute_load(void *const put[LANES], uint32_t mask) {
    if (mask != ~0u) fault("ldmatrix without all lanes");
    const Matrices &first = *(const Matrices *)put[0];
    for (int m = 0; m < first.count; m++)
        for (int lane = 0; lane < LANES; lane++) {
            uint16_t halves[2];
            for (int k = 0; k < 2; k++) {
                const int row = first.rotated ? lane % 4 * 2 + k : lane / 4,
                          column = first.rotated ? lane / 4 : lane % 4 * 2 + k;
                memcpy(&halves[k], ((const Matrices *)put[8 * m + row])->row + 2 * column, 2);
            }
            *((const Matrices *)put[lane])->words[m] = halves[0] | (uint32_t)halves[1] << 16;
        }
}
static void compute_store(void *const put[LANES], uint32_t mask) {
    if (mask != ~0u) fault("stmatrix without all lanes");
    const Matrices &first = *(const Matrices *)put[0];
    for (int m = 0; m < first.count; m++)
        for (int lane = 0; lane < LANES; lane++)
            for (int k = 0; k < 2; k++) {
                const int row = first.rotated ? lane % 4 * 2 + k : lane / 4,
                          column = first.rotated ? lane / 4 : lane % 4 * 2 + k;
                const uint16_t half = (uint16_t)(((const Matrices *)put[lane])->from[m] >> 16 * k);
                memcpy(((const Matrices *)put[8 * m + row])->row + 2 * column, &half, 2);
            }
}
static void compute_turn(void *const put[LANES], uint32_t mask) {
    uint16_t matrix[8][8];
    if (mask != ~0u) fault("movmatrix without all lanes");
    for (int lane = 0; lane < LANES; lane++)
        for (int k = 0; k < 2; k++)
            matrix[lane / 4][lane % 4 * 2 + k] = (uint16_t)(*(const uint32_t *)put[lane] >> 16 * k);
    for (int lane = 0; lane < LANES; lane++)
        *(uint32_t *)put[lane] = matrix[lane % 4 * 2][lane / 4] | (uint32_t)matrix[lane % 4 * 2 + 1][lane / 4] << 16;
}

/* ---- wgmma ----
 * Its four warps have 16 rows each and share b; here each warp multiplies when all of its own lanes have come. What is
 * under way is done at the latest when it is waited for. */

/* Where row `row`'s byte `byte` of a step of a matrix lies that a descriptor describes; turned: where column `byte` /
 * 2's half lies, rows being next to one another. */
static const uint8_t *matrix_at(uint64_t matrix, int row, int byte, bool rotated) {
    const uint32_t first = (uint32_t)(matrix & 0x3fff) << 4, leading = (uint32_t)(matrix >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(matrix >> 32 & 0x3fff) << 4, swizzle = (uint32_t)(matrix >> 62);
    const uint32_t r = (uint32_t)row, b = (uint32_t)byte, bits = swizzle ? 4 - swizzle : 0, width = 16u << bits;
    uint32_t at;
    if (matrix >> 49 & 7) fault("a matrix of wgmma with a base offset");
    if (rotated) /* rows in pieces of `width` bytes, eight columns in a unit */
        at = first + r * 2 / width * leading + r * 2 % width + b / 2 % 8 * width + b / 2 / 8 * stride;
    else if (swizzle)
        at = first + r / 8 * stride + r % 8 * width + b;
    else
        at = first + r / 8 * stride + r % 8 * 16 + b / 16 * leading + b % 16;
    if (rotated && !swizzle) fault("a turned matrix of wgmma without swizzle");
    if (bits) at ^= (at >> 7 & ((1u << bits) - 1)) << 4;
    return (const uint8_t *)shared_pointer(at, 2, 1);
}

static void product_halves(const Product &p) {
    static float b[STEP * COLUMNS_MAX], sums[ROWS * COLUMNS_MAX];
    float a[ROWS][STEP];
    const auto half = [](uint64_t matrix, int row, int k, bool rotated) {
        uint16_t bits;
        memcpy(&bits, matrix_at(matrix, row, 2 * k, rotated), 2);
        return half_at(bits);
    };
    for (int lane = 0; lane < LANES; lane++) {
        if (!p.a_shared) a_halves(a, lane, p.a[lane]);
        for (int i = 0; i < p.columns / 2; i++)
            sums[sum_at(lane, i, p.columns)] = p.adds ? ((const float *)p.sums[lane])[i] : 0;
    }
    for (int k = 0; k < STEP; k++) {
        if (p.a_shared)
            for (int r = 0; r < ROWS; r++) a[r][k] = half(p.a_matrix, p.warp_row + r, k, p.a_turned);
        for (int c = 0; c < p.columns; c++) b[k * p.columns + c] = half(p.b_matrix, c, k, p.b_turned);
    }
    multiply_halves(a, b, p.columns, sums);
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < p.columns / 2; i++) ((float *)p.sums[lane])[i] = sums[sum_at(lane, i, p.columns)];
}
static void product_integers(const Product &p) {
    static int16_t b[COLUMNS_MAX][BYTES];
    static uint32_t sums[ROWS * COLUMNS_MAX];
    int16_t a[ROWS][BYTES];
    for (int lane = 0; lane < LANES; lane++) {
        if (!p.a_shared) a_bytes(a, lane, p.a[lane], p.a_unsigned);
        for (int i = 0; i < p.columns / 2; i++)
            sums[sum_at(lane, i, p.columns)] = p.adds ? ((const uint32_t *)p.sums[lane])[i] : 0;
    }
    for (int k = 0; k < BYTES; k++) {
        if (p.a_shared)
            for (int r = 0; r < ROWS; r++)
                a[r][k] = byte_of(*matrix_at(p.a_matrix, p.warp_row + r, k, false), 0, p.a_unsigned);
        for (int c = 0; c < p.columns; c++) b[c][k] = byte_of(*matrix_at(p.b_matrix, c, k, false), 0, p.b_unsigned);
    }
    multiply_bytes(a, b, p.columns, sums);
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < p.columns / 2; i++) ((uint32_t *)p.sums[lane])[i] = sums[sum_at(lane, i, p.columns)];
}

/* All but those of the last keep_groups closed groups and of the open one. */
static void products_finish(Warp *warp, size_t keep_groups, bool open_too) {
    size_t kept = 0, grouped = 0, groups = warp->groups.size();
    for (size_t count : warp->groups) grouped += count;
    for (size_t i = 0; i < keep_groups && i < groups; i++) kept += warp->groups[groups - 1 - i];
    const size_t done = open_too ? warp->products.size() : grouped - kept;
    for (size_t i = 0; i < done; i++) {
        const Product &p = warp->products[i];
        p.integers ? product_integers(p) : product_halves(p);
    }
    warp->products.erase(warp->products.begin(), warp->products.begin() + (ptrdiff_t)done);
    if (open_too) {
        for (size_t &count : warp->groups) count = 0;
    } else if (groups > keep_groups) {
        warp->groups.erase(warp->groups.begin(), warp->groups.end() - (ptrdiff_t)keep_groups);
    }
}

static void compute_wide(void *const put[LANES], uint32_t mask) {
    const ptx::Wide &w = *(const ptx::Wide *)put[0];
    Warp *warp = self->warp;
    if (mask != ~0u) fault("wgmma without all lanes");
    if (warp->block->thread_count % (4 * LANES)) fault("wgmma in a block that is not of warpgroups");
    Product p = {{}, {}, w.a_matrix, w.b_matrix, w.columns, warp->number % 4 * ROWS, w.integers, w.a_unsigned,
        w.b_unsigned, w.a_shared, w.adds, w.a_turned, w.b_turned, self->where};
    for (int lane = 0; lane < LANES; lane++) {
        const ptx::Wide &other = *(const ptx::Wide *)put[lane];
        if (other.a_matrix != w.a_matrix || other.b_matrix != w.b_matrix || other.columns != w.columns ||
            other.adds != w.adds)
            fault("lanes of a warp have different wgmma");
        p.sums[lane] = other.sums;
        memcpy(p.a[lane], other.a, sizeof other.a);
    }
    warp->products.push_back(p);
    if (chance(2)) products_finish(warp, 0, true);
}
static void compute_commit(void *const put[LANES], uint32_t mask) {
    Warp *warp = self->warp;
    size_t grouped = 0;
    for (size_t count : warp->groups) grouped += count;
    warp->groups.push_back(warp->products.size() - grouped);
}
static void compute_wait(void *const put[LANES], uint32_t mask) {
    products_finish(self->warp, *(const uint32_t *)put[0], false);
}

} // namespace emulator

namespace ptx {

void multiply(Multiply &m) { meet(~0u, &m, compute_halves, "mma"); }
void multiply(MultiplyIntegers &m) { meet(~0u, &m, compute_integers, "mma"); }
void matrices_load(uint32_t *const *words, int count, bool rotated, uint32_t from) {
    uint8_t *row = self->lane < 8 * count ? (uint8_t *)shared_pointer(from, 16, 16) : NULL;
    Matrices m = {words, NULL, row, count, rotated};
    meet(~0u, &m, compute_load, "ldmatrix");
}
void matrices_store(const uint32_t *words, int count, bool rotated, uint32_t to) {
    uint8_t *row = self->lane < 8 * count ? (uint8_t *)shared_pointer(to, 16, 16) : NULL;
    Matrices m = {NULL, words, row, count, rotated};
    meet(~0u, &m, compute_store, "stmatrix");
}
uint32_t matrix_turned(uint32_t word) {
    meet(~0u, &word, compute_turn, "movmatrix");
    return word;
}
void multiply_wide(Wide &wide) { meet(~0u, &wide, compute_wide, "wgmma"); }
void wgmma_fence_sync_aligned() {}
void wgmma_commit_group_sync_aligned() { meet(~0u, NULL, compute_commit, "wgmma.commit_group"); }
void wgmma_wait_group_sync_aligned(uint32_t groups) { meet(~0u, &groups, compute_wait, "wgmma.wait_group"); }

uint32_t special_cluster_ctarank() { return cluster_rank(); }
uint32_t special_cluster_nctarank() { return cluster_size(); }
uint32_t special_laneid() { return (uint32_t)self->lane; }
uint64_t special_globaltimer() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
uint64_t special_clock64() { return special_globaltimer(); }

/* Below 2^-126 it is 0. */
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
void ex2_approx_f32(float &d, float x) { d = exp2f(x); }
void ex2_approx_ftz_f32(float &d, float x) { d = flushed(exp2f(flushed(x))); }
void lg2_approx_f32(float &d, float x) { d = log2f(x); }
void lg2_approx_ftz_f32(float &d, float x) { d = flushed(log2f(flushed(x))); }
void rcp_approx_ftz_f32(float &d, float x) { d = flushed(1 / flushed(x)); }
void rsqrt_approx_ftz_f32(float &d, float x) { d = (float)(1 / sqrt((double)flushed(x))); }
void tanh_approx_f32(float &d, float x) { d = tanhf(x); }

} // namespace ptx
