/* The kernels of sampling.cu, as runtime.h says. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* sum_logits in backend.h; copy: second destination of the sums; NULL: none */
cudaError_t rows_sum_logits(
    cudaStream_t stream, int rows, int vocab, const float *logits, const float *scales, float *sums, float *copy);

/* Parameters of each sampled row, in the step's block. Tokens are stored on the device and in host[(*turn + 1) % 2],
 * *turn being already incremented for the step. */
enum { SAMPLE_VOCAB_MAX = 1 << 20 };
typedef struct SampleRows {
    const float *scales, *top_p, *min_p_log;
    const int32_t *top_k, *uniform_low, *uniform_high; /* halves of doubles */
} SampleRows;
typedef struct SampledTokens {
    int32_t *device, *host[2];
    const int32_t *turn;
    uint64_t *best; /* [rows] work space; 0 before and after a call */
    int32_t *ended; /* [rows] work space; 0 before and after a call */
} SampledTokens;
/* largest: every row's scale is 0. work: as in LogitSampling. Vocabularies larger than SAMPLE_VOCAB_MAX are not sampled
 */
cudaError_t rows_sample(cudaStream_t stream, int rows, int vocab, const float *logits, int largest, float *work,
    const SampleRows *sample_params, const SampledTokens *sampled);

#ifdef __cplusplus
}
#endif
