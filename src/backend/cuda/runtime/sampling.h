/* The kernels of sampling.cu, as kernels.h has the others. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* sum_logits in backend.h; copy: where sums go as well; NULL: nowhere */
cudaError_t rows_sum_logits(
    cudaStream_t stream, int rows, int vocab, const float *logits, const float *scales, float *sums, float *copy);

/* Of each row that is drawn, in the step's block (Draw); the tokens: on the device, and in host[(*turn + 1) % 2] for
 * the step that has moved *turn on. */
enum { DRAW_VOCAB_MAX = 1 << 20 };
typedef struct SampleRows {
    const float *scales, *top_p, *min_p_log;
    const int32_t *top_k, *uniform_low, *uniform_high; /* halves of doubles */
} SampleRows;
typedef struct SampledTokens {
    int32_t *device, *host[2];
    const int32_t *turn;
    uint64_t *best; /* [rows] what drawing works in: 0, and is again afterwards; */
    int32_t *ended; /* [rows] too */
} SampledTokens;
/* largest: no row's scale is another than 0. work as in LogitSampling; of larger vocabularies than DRAW_VOCAB_MAX
 * nothing is drawn */
cudaError_t rows_sample(cudaStream_t stream, int rows, int vocab, const float *logits, int largest, float *work,
    const SampleRows *sample_params, const SampledTokens *sampled);

#ifdef __cplusplus
}
#endif
