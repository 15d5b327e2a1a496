/* From logits to a token: mask → logit bias → penalties → top_k → top_p → min_p → temperature → sample. Linear in the
 * vocabulary, no sort. Total: a NaN counts as −∞, several +∞ share the probability, nothing but −∞ counts as all equal.
 * Ties go to the lowest id. Every result is a function of (logits, history, options, choice, position), on every
 * machine with IEEE floats. Tokens that the mask excludes count as −∞ and are never sampled, whatever the other logits
 * are. Random numbers: Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). */
#pragma once
#include "backend/backend.h"
#include "engine/engine.h"

/* Working memory for one thread that samples. */
typedef struct SamplerScratch {
    int vocab, blocks;
    float *maxima;  /* [blocks] of the logits; −∞: nothing in the block counts, and it may not have been written */
    float *sums;    /* [blocks] sums of exponentials */
    double *groups; /* sums of exponentials of LOGIT_GROUP blocks each */
    double total;   /* sum of all exponentials; 0: not known yet */
    int count;      /* candidates, by ascending id */
    int32_t *ids;   /* [vocab] */
    float *values;  /* [vocab] */
    uint64_t *weights;
    uint64_t *histogram;
    /* Device-computed reductions of a row of logits (LogitSums in backend.h): known.maxima and sums, [blocks], of
     * known.logits with exponents times known.scale. logits NULL: none. Code that changes the row must set logits to
     * NULL. */
    struct {
        const float *logits, *maxima, *sums;
        float scale;
    } known;
    const float *known_sums; /* sums of the row that is being sampled; NULL: none */
} SamplerScratch;

/* The scale of the exponents whose sums sampling with these options needs first. */
float sampler_scale(const SamplingOptions *options);

/* True if the backend can sample with these options, independently of earlier tokens; then the parameters for a
 * choice's token at a position of its sequence. The token is the one that sampler_next() would sample without a mask.
 */
bool sampler_device_possible(const SamplingOptions *options);
SampleParams sampler_device_params(const SamplingOptions *options, int choice, int position);
/* The token that the backend then samples (LogitSampling in backend.h). */
int32_t sampler_sample(SamplerScratch *scratch, const float *logits, const SampleParams *sample);

/* The history of one choice. */
typedef struct Sampler {
    const SamplingOptions *options; /* outlives the sampler */
    uint32_t choice;
    uint32_t *seen;    /* [vocab] SEEN + times in the answer; NULL: no penalty is on */
    int32_t *seen_ids; /* tokens whose `seen` is set */
    int seen_count;
    const uint64_t *mask; /* token mask of the next sample, with at least one token; NULL: all are allowed */
} Sampler;

NODISCARD bool sampler_scratch_open(SamplerScratch *scratch, int vocab, Error *error);
void sampler_scratch_close(SamplerScratch *scratch); /* safe on a zeroed one */

/* Bytes of a sampler for a sequence of `tokens` tokens, prompt and answer; a multiple of 8. */
size_t sampler_bytes(const SamplingOptions *options, int vocab, int tokens);
/* memory: sampler_bytes(), zeroed, aligned to 8. */
void sampler_init(Sampler *sampler, const SamplingOptions *options, int vocab, int choice, void *memory);
/* The prompt, for the repetition penalty; before the first token. */
void sampler_prompt(Sampler *sampler, const int32_t *prompt, int count);
/* Draws the token for this position of the sequence and adds it to the history. logits [vocab] are overwritten. */
int32_t sampler_next(Sampler *sampler, SamplerScratch *scratch, float *logits, int position, TokenOut *out);
/* Log-probability of id and of the `top` likeliest tokens under the softmax of logits. */
void sampler_logprobs(SamplerScratch *scratch, float *logits, int32_t id, int top, TokenOut *out);

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
