/* backend/cuda/kv/: the memory of the KV cache, its pages in canonical order, their quantisation and calibration. This
 * header: functions that host code calls, as runtime/runtime.h says. The formats are those of backend/kv_quant.h. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies tokens of a page to (in 0) or from (in 1) canonical order. bytes: of an element. */
cudaError_t page_transfer(cudaStream_t stream, uint8_t *page, uint8_t *canonical, int tokens, int kv_heads,
    int head_dim, int value_dim, int bytes, int in);

/* Rope (backend.h). */
typedef struct RopeParams {
    int dims; /* 0: no RoPE */
    int interleaved;
    const float *frequencies;
    float scale;
    int mrope_section[3];
    int mrope_interleaved;
    int dynamic_positions;
    float dynamic_theta, dynamic_factor;
} RopeParams;

/* ---- quantised pages ---- */

enum { KVQ_FORMS = 6 /* KV_FORMS */, KVQ_DIM_MAX = 256, KVQ_JOBS_MAX = 64 };

/* Levels of every form, four to a word. KV_Q8 has none: its codes are the levels. */
typedef struct KvqCodebooks {
    uint32_t words[KVQ_FORMS][16];
} KvqCodebooks;
/* Boundaries between the non-negative levels of every form. */
typedef struct KvqEdges {
    float edge[KVQ_FORMS][31];
} KvqEdges;

/* The rotation R of kv_quant.h. */
typedef struct Rotation {
    int d;
    const float *matrix; /* [d][d]; NULL where d is a power of two: signs and a Hadamard transform */
    uint32_t signs[2][KVQ_DIM_MAX / 32];
} Rotation;

/* A layer, for quantisation and calibration. */
typedef struct KvqLayer {
    int kv_heads, head_dim, value_dim, dtype;
    int k_group, v_group; /* dims that share a scale */
    const float *bias;    /* [kv_heads · head_dim]; NULL: none */
    RopeParams rope;
} KvqLayer;

/* A page to quantise or to calibrate with. The fields behind `position` are for quantisation. */
typedef struct KvqJob {
    KvqLayer layer;
    const uint8_t *from;        /* the full-precision page of the layer */
    int position;               /* position of the page's first token */
    uint8_t *k_to, *v_to;       /* quantised pages */
    int k_form, v_form;         /* KvForm */
    int rotation_k, rotation_v; /* indices into `rotations` */
    const uint64_t *pairs;      /* [kv_heads] RoPE pairs whose bias is taken out */
} KvqJob;

/* Bytes of a head's keys or values in a quantised page. */
size_t kvq_head_bytes(int d, int group, int form, int values);
/* jobs, rotations: device memory. heads: the largest number of kv heads of any job. */
cudaError_t kvq_encode(cudaStream_t stream, const KvqJob *jobs, int count, int heads, int dims,
    const Rotation *rotations, const KvqCodebooks *books, const KvqEdges *edges);
/* out [count][heads][3]: for a page, Σ |k − mean k|², Σ |k|² and Σ of the queries' energies, with biases taken out. */
cudaError_t kvq_calibrate(cudaStream_t stream, const KvqJob *jobs, int count, int heads, double *out);

#ifdef __cplusplus
}
#endif
