/* PTX instructions under the names that translate.py makes of them: dots become underscores; what an opcode says of
 * caches, order and scope is left out. Of operands {a, b} come ins() or outs(), of [a] the address. */
#pragma once
#include "emulator.h"

namespace ptx {
using namespace emulator;

/* ---- operands ---- */
template <class T> inline uint32_t word(T v) {
    static_assert(sizeof(T) <= 4, "an operand of 32 bits");
    return (uint32_t)v;
}
template <class T> inline uint64_t address(T *p) { return (uint64_t)(uintptr_t)p; }
inline uint64_t address(uint64_t v) { return v; }
template <class T, int N> struct Ins { T v[N]; };
template <class T, int N> struct Outs { T *p[N]; };
template <class T, class... R> Ins<T, 1 + sizeof...(R)> ins(T first, R... rest) { return {{first, (T)rest...}}; }
template <class T, class... R> Outs<T, 1 + sizeof...(R)> outs(T &first, R &...rest) { return {{&first, &rest...}}; }

/* ---- what is nothing here ---- */
inline void griddepcontrol_launch_dependents() { leave_if_measuring(); }
inline void griddepcontrol_wait() { leave_if_measuring(); }
inline void fence() {}
inline void fence_cta() {}
inline void fence_sc_cta() {}
inline void fence_sc_gpu() {}
inline void fence_sc_cluster() {}
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async_shared_cluster() {}
inline void fence_proxy_async_global() {}
inline void membar_gl() {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void prefetch_global_L2(uint64_t) {}
inline void prefetch_global_L1(uint64_t) {}
inline void cp_async_bulk_prefetch_L2_global(uint64_t, uint32_t) {}
inline void createpolicy_fractional_b64(uint64_t &policy, double) { policy = 0; }

/* ---- numbers ---- */
uint32_t special_cluster_ctarank();
uint32_t special_cluster_nctarank();
uint32_t special_laneid();
uint64_t special_globaltimer();
uint64_t special_clock64();
inline void max_NaN_f32(float &d, float a, float b) { d = a != a || b != b ? NAN : a > b ? a : b; }
template <class T> inline void mov_u32(T &d, uint32_t v) { d = (T)v; }
template <class T> inline void mov_b32(T &d, uint32_t v) { d = (T)v; }
template <class T> inline void mov_u64(T &d, uint64_t v) { d = (T)v; }
inline void setp_ne_b32(bool &p, int64_t a, int64_t b) { p = (uint32_t)a != (uint32_t)b; }
inline void setp_ne_u32(bool &p, int64_t a, int64_t b) { p = (uint32_t)a != (uint32_t)b; }
inline void setp_eq_u32(bool &p, int64_t a, int64_t b) { p = (uint32_t)a == (uint32_t)b; }
template <class T> inline void selp_u32(T &d, uint32_t a, uint32_t b, bool p) { d = (T)(p ? a : b); }
template <class T> inline void selp_b32(T &d, uint32_t a, uint32_t b, bool p) { d = (T)(p ? a : b); }
void ex2_approx_ftz_f32(float &d, float x);
void ex2_approx_f32(float &d, float x);
void lg2_approx_ftz_f32(float &d, float x);
void lg2_approx_f32(float &d, float x);
void rcp_approx_ftz_f32(float &d, float x);
void rsqrt_approx_ftz_f32(float &d, float x);
void tanh_approx_f32(float &d, float x);
template <class T> inline void lop3_b32(T &d, uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    d = (T)r;
}
template <class T> inline void prmt_b32(T &d, uint32_t a, uint32_t b, uint32_t s) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t choice = s >> 4 * i & 15;
        uint32_t byte = (uint32_t)(((uint64_t)b << 32 | a) >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    d = (T)r;
}
/* The low half comes from the second operand. */
template <class T> void cvt_rn_f16x2_f32(T &d, float high, float low);
template <class T> inline void dp4a_s32_s32(T &d, uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (uint32_t)((int)(int8_t)(a >> i) * (int)(int8_t)(b >> i));
    d = (T)c;
}
template <class T> inline void dp4a_u32_s32(T &d, uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (uint32_t)((int)(uint8_t)(a >> i) * (int)(int8_t)(b >> i));
    d = (T)c;
}

/* ---- loads and stores ---- */
template <class T, class D> inline void load_at(const void *from, D &d) {
    static_assert(sizeof(T) == sizeof(D), "what is loaded has the size of the register");
    aligned(from, sizeof(T));
    d = *(const D *)from;
}
template <class T, class D, int N> inline void load_at(const void *from, Outs<D, N> d) {
    static_assert(sizeof(T) == sizeof(D), "what is loaded has the size of the register");
    aligned(from, sizeof(T) * N);
    for (int i = 0; i < N; i++) *d.p[i] = ((const D *)from)[i];
}
template <class T, class D> inline void store_at(void *to, D v) {
    aligned(to, sizeof(T));
    *(T *)to = (T)v;
}
template <class T, int N, class D> inline void store_some(void *to, const Ins<D, N> &v) {
    static_assert(sizeof(T) == sizeof(D), "what is stored has the size of the register");
    aligned(to, sizeof(T) * N);
    for (int i = 0; i < N; i++) ((D *)to)[i] = v.v[i];
}
#define EMULATOR_ACCESS(type, T)                                                                                       \
    template <class D> inline void ld_global_##type(D &d, uint64_t from) { load_at<T>((const void *)from, d); }        \
    template <class D> inline void ld_shared_##type(D &d, uint32_t from) {                                             \
        load_at<T>(shared_pointer(from, sizeof(T), sizeof(T)), d);                                                     \
    }                                                                                                                  \
    template <class D> inline void ld_shared_cluster_##type(D &d, uint32_t from) { ld_shared_##type(d, from); }        \
    template <class D> inline void st_global_##type(uint64_t to, D v) { store_at<T>((void *)to, v); }                  \
    template <class D> inline void st_shared_##type(uint32_t to, D v) {                                                \
        store_at<T>(shared_pointer(to, sizeof(T), sizeof(T)), v);                                                      \
    }                                                                                                                  \
    template <class D> inline void st_shared_cluster_##type(uint32_t to, D v) { st_shared_##type(to, v); }             \
    template <class D>                                                                                                 \
    inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_##type(uint32_t to, D v, uint32_t barrier) {        \
        const T value = (T)v;                                                                                          \
        store_bulk(to, &value, sizeof value, barrier);                                                                 \
    }
#define EMULATOR_VECTORS(count, type, T)                                                                               \
    template <class D> inline void ld_global_v##count##_##type(Outs<D, count> d, uint64_t from) {                      \
        load_at<T>((const void *)from, d);                                                                             \
    }                                                                                                                  \
    template <class D> inline void ld_shared_v##count##_##type(Outs<D, count> d, uint32_t from) {                      \
        load_at<T>(shared_pointer(from, count * sizeof(T), count * sizeof(T)), d);                                     \
    }                                                                                                                  \
    template <class D> inline void ld_shared_cluster_v##count##_##type(Outs<D, count> d, uint32_t from) {              \
        ld_shared_v##count##_##type(d, from);                                                                          \
    }                                                                                                                  \
    template <class D> inline void st_global_v##count##_##type(uint64_t to, Ins<D, count> v) {                         \
        store_some<T>((void *)to, v);                                                                                  \
    }                                                                                                                  \
    template <class D> inline void st_shared_v##count##_##type(uint32_t to, Ins<D, count> v) {                         \
        store_some<T>(shared_pointer(to, count * sizeof(T), count * sizeof(T)), v);                                    \
    }                                                                                                                  \
    template <class D> inline void st_shared_cluster_v##count##_##type(uint32_t to, Ins<D, count> v) {                 \
        st_shared_v##count##_##type(to, v);                                                                            \
    }                                                                                                                  \
    template <class D>                                                                                                 \
    inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_v##count##_##type(                                  \
        uint32_t to, Ins<D, count> v, uint32_t barrier) {                                                              \
        static_assert(sizeof(T) == sizeof(D), "what is stored has the size of the register");                          \
        store_bulk(to, v.v, sizeof v.v, barrier);                                                                      \
    }
#define EMULATOR_TYPE(type, T)                                                                                         \
    EMULATOR_ACCESS(type, T)                                                                                           \
    EMULATOR_VECTORS(2, type, T)                                                                                       \
    EMULATOR_VECTORS(4, type, T)
EMULATOR_TYPE(u32, uint32_t)
EMULATOR_TYPE(s32, int32_t)
EMULATOR_TYPE(b32, uint32_t)
EMULATOR_TYPE(f32, float)
EMULATOR_ACCESS(u64, uint64_t)
EMULATOR_ACCESS(b64, uint64_t)
EMULATOR_VECTORS(2, u64, uint64_t)
EMULATOR_VECTORS(2, b64, uint64_t)
EMULATOR_ACCESS(u16, uint16_t)
EMULATOR_ACCESS(b16, uint16_t)
EMULATOR_VECTORS(4, u16, uint16_t)
EMULATOR_VECTORS(4, b16, uint16_t)
template <class D> inline void ld_shared_u8(D &d, uint32_t from) {
    d = (D) * (const uint8_t *)shared_pointer(from, 1, 1);
}
template <class D> inline void st_shared_u8(uint32_t to, D v) { *(uint8_t *)shared_pointer(to, 1, 1) = (uint8_t)v; }
inline void red_global_add_u32(uint64_t to, uint32_t v) { *(uint32_t *)to += v; }
inline void red_global_add_f32(uint64_t to, float v) { *(float *)to += v; }
inline void red_shared_add_u32(uint32_t to, uint32_t v) { *(uint32_t *)shared_pointer(to, 4, 4) += v; }
template <class D> inline void atom_global_add_u32(D &d, uint64_t at, uint32_t v) {
    d = (D) * (uint32_t *)at;
    *(uint32_t *)at += v;
}
template <class D> inline void atom_add_global_u32(D &d, uint64_t at, uint32_t v) { atom_global_add_u32(d, at, v); }

/* ---- barriers ---- */
inline void bar_sync(uint32_t barrier, uint32_t threads) { sync_some(barrier, threads); }
inline void bar_sync(uint32_t barrier) { sync_some(barrier, 0); }
inline void bar_arrive(uint32_t barrier, uint32_t threads) { arrive_some(barrier, threads); }
inline void barrier_sync(uint32_t barrier, uint32_t threads) { sync_some(barrier, threads); }
inline void barrier_cluster_arrive_aligned() { cluster_arrive(); }
inline void barrier_cluster_arrive() { cluster_arrive(); }
inline void barrier_cluster_wait_aligned() { cluster_wait(); }
inline void barrier_cluster_wait() { cluster_wait(); }
template <class T> inline void mapa_shared_cluster_u32(T &d, uint32_t at, uint32_t rank) {
    d = (T)block_address(at, rank);
}
inline void mbarrier_init_shared_b64(uint32_t at, uint32_t count) { barrier_init(at, count); }
inline void mbarrier_inval_shared_b64(uint32_t at) {}
inline void mbarrier_arrive_shared_b64(uint32_t at) { barrier_arrive(at, 1, 0); }
inline void mbarrier_arrive_shared_b64(uint32_t at, uint32_t count) { barrier_arrive(at, count, 0); }
inline void mbarrier_arrive_shared_cluster_b64(uint32_t at) { barrier_arrive(at, 1, 0); }
inline void mbarrier_arrive_shared_cluster_b64(uint32_t at, uint32_t count) { barrier_arrive(at, count, 0); }
inline void mbarrier_arrive_expect_tx_shared_b64(uint32_t at, uint32_t bytes) { barrier_arrive(at, 1, bytes); }
inline void mbarrier_arrive_expect_tx_shared_cluster_b64(uint32_t at, uint32_t bytes) { barrier_arrive(at, 1, bytes); }
inline void mbarrier_expect_tx_shared_b64(uint32_t at, uint32_t bytes) { barrier_expect(at, bytes); }
inline void mbarrier_try_wait_parity_shared_b64(bool &p, uint32_t at, uint32_t parity) {
    p = barrier_passed(at, parity, true);
}
inline void mbarrier_test_wait_parity_shared_b64(bool &p, uint32_t at, uint32_t parity) {
    p = barrier_passed(at, parity, false);
    if (!p) give_way();
}

/* ---- copies ---- */
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(
    uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier, uint64_t policy = 0) {
    copy_bulk(to, (const void *)from, bytes, barrier);
}
inline void cp_async_bulk_shared_global_mbarrier_complete_tx_bytes(
    uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier, uint64_t policy = 0) {
    copy_bulk(to, (const void *)from, bytes, barrier);
}
inline void cp_async_bulk_shared_cluster_shared_mbarrier_complete_tx_bytes(
    uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
    copy_bulk(to, shared_pointer(from, bytes, 16), bytes, barrier);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    uint32_t to, uint64_t map, TensorPlace place, uint32_t barrier) {
    copy_tensor(to, (const TensorMap *)map, place, barrier);
}
inline void cp_async_cg_shared_global(uint32_t to, uint64_t from, uint32_t bytes, uint32_t there = 16) {
    if (bytes != 16) fault("cp.async.cg of %u bytes", bytes);
    copy_async(to, (const void *)from, bytes, there);
}
inline void cp_async_ca_shared_global(uint32_t to, uint64_t from, uint32_t bytes, uint32_t there) {
    if (bytes != 4 && bytes != 8 && bytes != 16) fault("cp.async.ca of %u bytes", bytes);
    copy_async(to, (const void *)from, bytes, there);
}
inline void cp_async_ca_shared_global(uint32_t to, uint64_t from, uint32_t bytes) {
    cp_async_ca_shared_global(to, from, bytes, bytes);
}
inline void cp_async_commit_group() { copies_commit(); }
inline void cp_async_wait_group(uint32_t groups) { copies_wait(groups); }
inline void cp_async_wait_all() { copies_wait(~0u); }
/* Arrives when this thread's copies so far are there, which is now at the latest. */
inline void cp_async_mbarrier_arrive_noinc_shared_b64(uint32_t at) {
    copies_wait(~0u);
    barrier_arrive(at, 1, 0);
}

/* ---- matrices (product.cpp) ---- */
struct Multiply {
    float *c[4];
    float from[4];
    uint32_t a[4], b[2];
};
struct MultiplyIntegers {
    uint32_t *c[4];
    uint32_t from[4], a[4], b[2];
    bool a_unsigned, b_unsigned;
};
void multiply(Multiply &m);
void multiply(MultiplyIntegers &m);
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    Outs<float, 4> d, Ins<uint32_t, 4> a, Ins<uint32_t, 2> b, Outs<float, 4> c) {
    Multiply m = {{d.p[0], d.p[1], d.p[2], d.p[3]}, {*c.p[0], *c.p[1], *c.p[2], *c.p[3]},
        {a.v[0], a.v[1], a.v[2], a.v[3]}, {b.v[0], b.v[1]}};
    multiply(m);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    Outs<float, 4> d, Ins<uint32_t, 4> a, Ins<uint32_t, 2> b, Ins<float, 4> c) {
    Multiply m = {{d.p[0], d.p[1], d.p[2], d.p[3]}, {c.v[0], c.v[1], c.v[2], c.v[3]}, {a.v[0], a.v[1], a.v[2], a.v[3]},
        {b.v[0], b.v[1]}};
    multiply(m);
}
template <class T, class C>
inline void multiply_integers(
    Outs<T, 4> d, Ins<uint32_t, 4> a, Ins<uint32_t, 2> b, C c, bool a_unsigned, bool b_unsigned) {
    MultiplyIntegers m = {{(uint32_t *)d.p[0], (uint32_t *)d.p[1], (uint32_t *)d.p[2], (uint32_t *)d.p[3]},
        {c(0), c(1), c(2), c(3)}, {a.v[0], a.v[1], a.v[2], a.v[3]}, {b.v[0], b.v[1]}, a_unsigned, b_unsigned};
    multiply(m);
}
#define EMULATOR_INTEGERS(a_type, b_type)                                                                              \
    template <class T>                                                                                                 \
    inline void mma_sync_aligned_m16n8k32_row_col_s32_##a_type##8_##b_type##8_s32(                                     \
        Outs<T, 4> d, Ins<uint32_t, 4> a, Ins<uint32_t, 2> b, Outs<T, 4> c) {                                          \
        multiply_integers(                                                                                             \
            d, a, b, [&](int i) { return (uint32_t)*c.p[i]; }, *#a_type == 'u', *#b_type == 'u');                      \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    inline void mma_sync_aligned_m16n8k32_row_col_s32_##a_type##8_##b_type##8_s32(                                     \
        Outs<T, 4> d, Ins<uint32_t, 4> a, Ins<uint32_t, 2> b, Ins<uint32_t, 4> c) {                                    \
        multiply_integers(                                                                                             \
            d, a, b, [&](int i) { return c.v[i]; }, *#a_type == 'u', *#b_type == 'u');                                 \
    }
EMULATOR_INTEGERS(s, s)
EMULATOR_INTEGERS(u, s)
EMULATOR_INTEGERS(s, u)
EMULATOR_INTEGERS(u, u)

/* ldmatrix: a lane's row of the matrices, its words of them. */
void matrices_load(uint32_t *const *words, int count, bool rotated, uint32_t from);
void matrices_store(const uint32_t *words, int count, bool rotated, uint32_t to);
template <class T> inline void ldmatrix_some(T *const *p, int count, bool rotated, uint32_t from) {
    matrices_load((uint32_t *const *)p, count, rotated, from);
}
template <class T> inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(Outs<T, 4> d, uint32_t from) {
    ldmatrix_some(d.p, 4, false, from);
}
template <class T> inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(Outs<T, 4> d, uint32_t from) {
    ldmatrix_some(d.p, 4, true, from);
}
template <class T> inline void ldmatrix_sync_aligned_m8n8_x2_shared_b16(Outs<T, 2> d, uint32_t from) {
    ldmatrix_some(d.p, 2, false, from);
}
template <class T> inline void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(Outs<T, 2> d, uint32_t from) {
    ldmatrix_some(d.p, 2, true, from);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t to, Ins<uint32_t, 4> v) {
    matrices_store(v.v, 4, false, to);
}
inline void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t to, Ins<uint32_t, 4> v) {
    matrices_store(v.v, 4, true, to);
}
inline void stmatrix_sync_aligned_m8n8_x2_shared_b16(uint32_t to, Ins<uint32_t, 2> v) {
    matrices_store(v.v, 2, false, to);
}
inline void stmatrix_sync_aligned_m8n8_x2_trans_shared_b16(uint32_t to, Ins<uint32_t, 2> v) {
    matrices_store(v.v, 2, true, to);
}
uint32_t matrix_turned(uint32_t word);
template <class T> inline void movmatrix_sync_aligned_m8n8_trans_b16(T &d, uint32_t v) { d = (T)matrix_turned(v); }

/* ---- wgmma ---- */
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(uint32_t groups);
struct Wide {
    void *sums; /* columns / 2 of them */
    uint32_t a[4];
    uint64_t a_matrix, b_matrix;
    int columns;
    bool integers, a_unsigned, b_unsigned, a_shared, adds, a_turned, b_turned;
};
void multiply_wide(Wide &wide);

template <int N, class T> inline void *registers(Outs<T, N / 2> d) {
    static_assert(sizeof(T) == 4, "sums of 32 bits");
    for (int i = 1; i < N / 2; i++)
        if (d.p[i] != d.p[0] + i) fault("the sums of a wgmma are no array");
    return d.p[0];
}
template <int N, class T>
inline void wide_halves(
    Outs<T, N / 2> d, Ins<uint32_t, 4> a, uint64_t b, bool adds, int a_scale, int b_scale, int b_turned) {
    if (a_scale != 1 || b_scale != 1) fault("a wgmma with negative operands");
    Wide w = {registers<N>(d), {a.v[0], a.v[1], a.v[2], a.v[3]}, 0, b, N, false, false, false, false, adds, false,
        b_turned != 0};
    multiply_wide(w);
}
template <int N, class T>
inline void wide_halves(
    Outs<T, N / 2> d, uint64_t a, uint64_t b, bool adds, int a_scale, int b_scale, int a_turned, int b_turned) {
    if (a_scale != 1 || b_scale != 1) fault("a wgmma with negative operands");
    Wide w = {registers<N>(d), {}, a, b, N, false, false, false, true, adds, a_turned != 0, b_turned != 0};
    multiply_wide(w);
}
template <int N, class T>
inline void wide_integers(
    Outs<T, N / 2> d, Ins<uint32_t, 4> a, uint64_t b, bool adds, bool a_unsigned, bool b_unsigned) {
    Wide w = {registers<N>(d), {a.v[0], a.v[1], a.v[2], a.v[3]}, 0, b, N, true, a_unsigned, b_unsigned, false, adds,
        false, false};
    multiply_wide(w);
}
template <int N, class T>
inline void wide_integers(Outs<T, N / 2> d, uint64_t a, uint64_t b, bool adds, bool a_unsigned, bool b_unsigned) {
    Wide w = {registers<N>(d), {}, a, b, N, true, a_unsigned, b_unsigned, true, adds, false, false};
    multiply_wide(w);
}
#define EMULATOR_WIDE_INTEGERS(N, a_type, b_type)                                                                      \
    template <class... P> inline void wgmma_mma_async_sync_aligned_m64n##N##k32_s32_##a_type##8_##b_type##8(P... p) {  \
        wide_integers<N>(p..., *#a_type == 'u', *#b_type == 'u');                                                      \
    }
#define EMULATOR_WIDE(N)                                                                                               \
    template <class... P> inline void wgmma_mma_async_sync_aligned_m64n##N##k16_f32_f16_f16(P... p) {                  \
        wide_halves<N>(p...);                                                                                          \
    }                                                                                                                  \
    EMULATOR_WIDE_INTEGERS(N, s, s)                                                                                    \
    EMULATOR_WIDE_INTEGERS(N, u, s)                                                                                    \
    EMULATOR_WIDE_INTEGERS(N, s, u)                                                                                    \
    EMULATOR_WIDE_INTEGERS(N, u, u)
EMULATOR_WIDE(8)
EMULATOR_WIDE(16)
EMULATOR_WIDE(24)
EMULATOR_WIDE(32)
EMULATOR_WIDE(48)
EMULATOR_WIDE(64)
EMULATOR_WIDE(80)
EMULATOR_WIDE(96)
EMULATOR_WIDE(112)
EMULATOR_WIDE(128)
EMULATOR_WIDE(160)
EMULATOR_WIDE(192)
EMULATOR_WIDE(224)
EMULATOR_WIDE(256)

} // namespace ptx
