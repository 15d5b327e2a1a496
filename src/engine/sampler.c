#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/checked.h"

enum { BLOCK = LOGIT_BLOCK /* and a word of a mask */, LANES = 16, BUCKET_BITS = 11, BUCKETS = 1 << BUCKET_BITS };
enum { GROUP = LOGIT_GROUP };
static const uint32_t SEEN = 1u << 31;
static const float EXP_MIN = -87;        /* below it e^x counts as 0 */
static const float WEIGHT_ONE = 0x1p40f; /* parts of a candidate's weight of 1; the sum of 2^24 fits */

/* The loops over the whole vocabulary are compiled twice. Both do the same arithmetic in the same 16 lanes and without
 * fused multiply-adds, so they agree bit for bit. */
#if defined(__x86_64__) && defined(__GNUC__)
#define WIDE __attribute__((target("avx2")))
static bool wide(void) { return __builtin_cpu_supports("avx2"); }
#else
#define WIDE
static bool wide(void) { return false; }
#endif
#define INLINE static inline __attribute__((always_inline))

/* ---- whole vocabulary ---- */

/* NaN becomes EXP_MIN. */
INLINE float clamp_exponent(float x) { return x > EXP_MIN ? x : EXP_MIN; }

/* EXP_MIN ≤ x ≤ 0, within 2 ulp; 0 for EXP_MIN. */
INLINE float exp_clamped(float x) {
    const int n = (int)(x * 1.44269504f - 0.5f);
    const float r = (x - (float)n * 0.693359375f) + (float)n * 2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1;
    p = p * r + 1;
    const union { /* half of 2^n, so that the smallest n gives 0 without a comparison */
        uint32_t bits;
        float value;
    } power = {.bits = (uint32_t)(n + 126) << 23};
    return 2 * p * power.value;
}

static float exp_negative(float x) { return exp_clamped(clamp_exponent(x)); }

/* b when a is NaN. */
INLINE float larger(float a, float b) { return a > b ? a : b; }

INLINE void fold_max(float *x, int half) {
    for (int i = 0; i < half; i++) x[i] = larger(x[i + half], x[i]);
}

INLINE float block_max(const float *x, int count) {
    float best = -INFINITY;
    for (int i = 0; i < count; i++) best = x[i] > best ? x[i] : best;
    return best;
}

INLINE float whole_block_max(const float *p) {
    float best[BLOCK / 2];
    for (int i = 0; i < BLOCK / 2; i++) best[i] = larger(p[i], larger(p[i + BLOCK / 2], -INFINITY));
    fold_max(best, 16);
    fold_max(best, 8);
    fold_max(best, 4);
    return block_max(best, 4);
}

INLINE void maxima_body(const float *x, int count, float *maxima) {
    int block = 0;
    for (; (block + 1) * BLOCK <= count; block++) maxima[block] = whole_block_max(x + block * BLOCK);
    if (block * BLOCK < count) maxima[block] = block_max(x + block * BLOCK, count - block * BLOCK);
}

/* Half a block of which only the set bits are allowed. */
INLINE void exclude(float *p, uint32_t bits) {
    float kept[BLOCK / 2];
    for (int i = 0; i < BLOCK / 2; i++) kept[i] = larger(p[i], -FLT_MAX);
    for (int i = 0; i < BLOCK / 2; i++) p[i] = bits & 1u << i ? kept[i] : -INFINITY;
}

/* The same for the tokens of the mask: other logits become −∞, except in blocks without a permitted token, which stay
 * unchanged. Logits of the mask become finite, so that they are sampled before excluded ones. */
INLINE void masked_maxima_body(float *x, int count, const uint64_t *mask, float *maxima) {
    for (int block = 0; block * BLOCK < count; block++) {
        float *p = x + block * BLOCK;
        const int size = count - block * BLOCK < BLOCK ? count - block * BLOCK : BLOCK;
        const uint64_t word = mask[block];
        maxima[block] = -INFINITY;
        if (!word) continue;
        if (size < BLOCK) {
            for (int i = 0; i < size; i++) p[i] = word >> i & 1 ? larger(p[i], -FLT_MAX) : -INFINITY;
            maxima[block] = block_max(p, size);
            continue;
        }
        exclude(p, (uint32_t)word);
        exclude(p + BLOCK / 2, (uint32_t)(word >> BLOCK / 2));
        maxima[block] = whole_block_max(p);
    }
}

INLINE void fold(float *x, int half) {
    for (int i = 0; i < half; i++) x[i] += x[i + half];
}

INLINE void exp_sums_body(const float *x, int count, const float *maxima, float max, float scale, float *sums) {
    int block = 0;
    for (; (block + 1) * BLOCK <= count; block++) {
        sums[block] = 0;
        if (maxima[block] == -INFINITY) continue;
        const float *p = x + block * BLOCK;
        float e[BLOCK]; /* two loops: gcc 12 vectorises each, but not both in one */
        for (int i = 0; i < BLOCK; i++) e[i] = clamp_exponent((p[i] - max) * scale);
        for (int i = 0; i < BLOCK; i++) e[i] = exp_clamped(e[i]);
        fold(e, 32);
        fold(e, 16);
        fold(e, 8);
        fold(e, 4);
        sums[block] = (e[0] + e[2]) + (e[1] + e[3]);
    }
    if (block * BLOCK == count) return;
    sums[block] = 0;
    if (maxima[block] == -INFINITY) return;
    for (int i = block * BLOCK; i < count; i++) sums[block] += exp_negative((x[i] - max) * scale);
}

static void maxima_base(const float *x, int count, float *maxima) { maxima_body(x, count, maxima); }
WIDE static void maxima_wide(const float *x, int count, float *maxima) { maxima_body(x, count, maxima); }
static void masked_maxima_base(float *x, int count, const uint64_t *mask, float *maxima) {
    masked_maxima_body(x, count, mask, maxima);
}
WIDE static void masked_maxima_wide(float *x, int count, const uint64_t *mask, float *maxima) {
    masked_maxima_body(x, count, mask, maxima);
}
static void exp_sums_base(const float *x, int count, const float *maxima, float max, float scale, float *sums) {
    exp_sums_body(x, count, maxima, max, scale, sums);
}
WIDE static void exp_sums_wide(const float *x, int count, const float *maxima, float max, float scale, float *sums) {
    exp_sums_body(x, count, maxima, max, scale, sums);
}

static float find_max(SamplerScratch *s, const float *logits) {
    (wide() ? maxima_wide : maxima_base)(logits, s->vocab, s->maxima);
    return block_max(s->maxima, s->blocks);
}
static float find_allowed_max(SamplerScratch *s, float *logits, const uint64_t *mask) {
    if (!mask) return find_max(s, logits);
    (wide() ? masked_maxima_wide : masked_maxima_base)(logits, s->vocab, mask, s->maxima);
    return block_max(s->maxima, s->blocks);
}

/* Σ exp((x − max)·scale), with its parts in sums and groups. */
static double exp_total(SamplerScratch *s, const float *logits, float max, float scale) {
    if (s->known_sums && scale == s->known.scale)
        memcpy(s->sums, s->known_sums, (size_t)s->blocks * sizeof *s->sums);
    else
        (wide() ? exp_sums_wide : exp_sums_base)(logits, s->vocab, s->maxima, max, scale, s->sums);
    double total = 0;
    for (int g = 0; g * GROUP < s->blocks; g++) {
        s->groups[g] = 0;
        for (int b = g * GROUP; b < s->blocks && b < (g + 1) * GROUP; b++) s->groups[g] += (double)s->sums[b];
        total += s->groups[g];
    }
    return total;
}

/* The softmax's denominator over e^max, computed once for each set of logits. */
static double whole_total(SamplerScratch *s, const float *logits, float max) {
    if (s->total == 0) s->total = exp_total(s, logits, max, 1);
    return s->total;
}

/* The largest logit, finite: extreme inputs are rewritten to the nearest distribution that exists. */
static float prepare(SamplerScratch *s, float *logits, const uint64_t *mask) {
    s->total = 0;
    s->known_sums = NULL;
    if (!mask && s->known.logits == logits) {
        const float max = block_max(s->known.maxima, s->blocks);
        if (isfinite(max)) {
            memcpy(s->maxima, s->known.maxima, (size_t)s->blocks * sizeof *s->maxima);
            s->known_sums = s->known.sums;
            return max;
        }
    }
    s->known.logits = NULL;
    const float max = find_allowed_max(s, logits, mask);
    if (isfinite(max)) return max;
    for (int i = 0; i < s->vocab; i++)
        if (s->maxima[i / BLOCK] > -INFINITY || !mask) logits[i] = max < 0 || logits[i] == INFINITY ? 0 : -INFINITY;
    return find_allowed_max(s, logits, mask);
}

/* ---- candidates ---- */

/* Everything ≥ threshold, which is finite. */
static void collect(SamplerScratch *s, const float *logits, float threshold) {
    s->count = 0;
    for (int b = 0; b < s->blocks; b++) {
        if (s->maxima[b] < threshold) continue;
        const int end = b + 1 < s->blocks ? (b + 1) * BLOCK : s->vocab;
        for (int i = b * BLOCK; i < end; i++) {
            s->ids[s->count] = i;
            s->values[s->count] = logits[i];
            s->count += logits[i] >= threshold;
        }
    }
}

/* Orders as the floats do; the two zeros are equal. */
static uint32_t sort_key(float value) {
    const float positive_zero = value + 0.0f;
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* Candidates' weights are integers, so that the order of adding does not matter. */
static uint64_t count_weight(float weight) { return (uint64_t)(weight * WEIGHT_ONE); }

/* The key at which the sum of weights, from the largest value down, reaches target; *rest: the weight that values of
 * exactly this key contribute. A radix select with 11 bits of the key at a time. weights NULL: each weighs 1. */
static uint32_t find_cut(
    SamplerScratch *s, const float *values, const uint64_t *weights, int count, uint64_t target, uint64_t *rest) {
    static const int shifts[] = {32 - BUCKET_BITS, 32 - 2 * BUCKET_BITS, 0};
    uint32_t cut = 0, known = 0;
    for (int level = 0; level < 3; level++) {
        const int shift = shifts[level];
        const uint32_t buckets = level < 2 ? BUCKETS : 1u << (32 - 2 * BUCKET_BITS);
        memset(s->histogram, 0, buckets * sizeof *s->histogram);
        uint32_t lowest = buckets - 1;
        for (int i = 0; i < count; i++) {
            const uint32_t key = sort_key(values[i]);
            if ((key & known) != cut) continue;
            const uint32_t bucket = (key >> shift) & (buckets - 1);
            s->histogram[bucket] += weights ? weights[i] : 1;
            lowest = bucket < lowest ? bucket : lowest;
        }
        uint32_t bucket = buckets - 1;
        while (bucket > lowest && (s->histogram[bucket] < target || s->histogram[bucket] == 0))
            target -= s->histogram[bucket--];
        cut |= bucket << shift;
        known |= (buckets - 1) << shift;
    }
    *rest = target;
    return cut;
}

/* Keeps the largest candidates until their weight reaches target; always at least one. */
static void keep_top(SamplerScratch *s, const uint64_t *weights, uint64_t target) {
    uint64_t rest;
    const uint32_t cut = find_cut(s, s->values, weights, s->count, target, &rest);
    int kept = 0;
    bool tie = true;
    for (int i = 0; i < s->count; i++) {
        const uint32_t key = sort_key(s->values[i]);
        if (key < cut || (key == cut && !tie)) continue;
        if (key == cut) {
            const uint64_t weight = weights ? weights[i] : 1;
            tie = rest > weight;
            rest -= tie ? weight : 0;
        }
        s->ids[kept] = s->ids[i];
        s->values[kept] = s->values[i];
        s->weights[kept++] = s->weights[i];
    }
    s->count = kept;
}

/* The k largest: k blocks have a maximum ≥ the k-th largest maximum, so nothing below it is needed. */
static void collect_top(SamplerScratch *s, const float *logits, int k) {
    float threshold = -FLT_MAX;
    if (k < s->blocks) {
        uint64_t rest;
        const uint32_t key = find_cut(s, s->maxima, NULL, s->blocks, (uint64_t)k, &rest);
        const uint32_t bits = key >> 31 ? key & ~(1u << 31) : ~key;
        memcpy(&threshold, &bits, sizeof threshold);
        if (threshold < -FLT_MAX) threshold = -FLT_MAX;
    }
    collect(s, logits, threshold);
    if (s->count > k) keep_top(s, NULL, (uint64_t)k);
}

static uint64_t weigh(SamplerScratch *s, float max, float scale) {
    uint64_t total = 0;
    for (int i = 0; i < s->count; i++) {
        s->weights[i] = count_weight(exp_negative((s->values[i] - max) * scale));
        total += s->weights[i];
    }
    return total;
}

/* The fewest of the likeliest tokens that hold `share` of all probability. */
static void collect_nucleus(SamplerScratch *s, const float *logits, float max, double share) {
    const uint64_t target = (uint64_t)(share * whole_total(s, logits, max) * (double)WEIGHT_ONE);
    for (float reach = 4;; reach *= 2) {
        const bool all = reach > -EXP_MIN || max - reach < -FLT_MAX;
        collect(s, logits, all ? -FLT_MAX : max - reach);
        if (weigh(s, max, 1) >= target || all) break;
    }
    keep_top(s, s->weights, target);
}

static void keep_likely(SamplerScratch *s, float max, float min_p_log) {
    int kept = 0;
    const float threshold = max + min_p_log;
    for (int i = 0; i < s->count; i++) {
        if (s->values[i] < threshold && s->values[i] < max) continue;
        s->ids[kept] = s->ids[i];
        s->values[kept++] = s->values[i];
    }
    s->count = kept;
}

/* ---- sampling ---- */

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* In (0, 1). */
static double sample_uniform(uint64_t seed, uint32_t choice, int position) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, choice, 0, 0};
    uint32_t bits[4];
    philox4x32(counter, key, bits);
    const uint64_t wide_bits = (uint64_t)bits[0] << 32 | bits[1];
    return ((double)(wide_bits >> 12) + 0.5) * 0x1p-52;
}

static int32_t first_equal(const SamplerScratch *s, const float *logits, float max) {
    int block = 0;
    while (s->maxima[block] != max) block++;
    int id = block * BLOCK;
    while (logits[id] != max) id++;
    return id;
}

static int32_t sample_candidate(SamplerScratch *s, float max, float scale, double uniform) {
    uint64_t target = (uint64_t)(uniform * (double)weigh(s, max, scale));
    int32_t last = s->ids[0];
    for (int i = 0; i < s->count; i++) {
        if (s->weights[i] == 0) continue;
        last = s->ids[i];
        if (target < s->weights[i]) break;
        target -= s->weights[i];
    }
    return last;
}

/* From the whole vocabulary: first the group of blocks, then the block, then the token in it. */
static int32_t sample_any(SamplerScratch *s, const float *logits, float max, float scale, double uniform) {
    double target = uniform * exp_total(s, logits, max, scale);
    int group = 0, chosen = 0;
    for (int g = 0; g * GROUP < s->blocks; g++) {
        if (s->groups[g] <= 0) continue;
        group = g;
        if (target < s->groups[g]) break;
        target -= s->groups[g];
    }
    for (int b = group * GROUP; b < s->blocks && b < (group + 1) * GROUP; b++) {
        if (s->sums[b] <= 0) continue;
        chosen = b;
        if (target < (double)s->sums[b]) break;
        target -= (double)s->sums[b];
    }
    const int end = chosen + 1 < s->blocks ? (chosen + 1) * BLOCK : s->vocab;
    int32_t last = chosen * BLOCK;
    for (int i = chosen * BLOCK; i < end; i++) {
        const float weight = exp_negative((logits[i] - max) * scale);
        if (weight <= 0) continue;
        last = i;
        target -= (double)weight;
        if (target < 0) break;
    }
    return last;
}

static float scale_of(const SamplingOptions *o) {
    const float inverse = 1 / o->temperature;
    return inverse < 1e30f ? inverse : 1e30f; /* finite: 0 · scale is 0 */
}

/* True if the whole vocabulary is sampled. */
static bool draws_any(const SamplingOptions *o) {
    return o->temperature > 0 && o->top_k <= 0 && !(o->top_p < 1) && !(o->min_p > 0);
}

float sampler_scale(const SamplingOptions *o) { return draws_any(o) ? scale_of(o) : 1; }

SampleParams sampler_device_params(const SamplingOptions *o, int choice, int position) {
    if (!(o->temperature > 0)) return (SampleParams){.scale = 0};
    return (SampleParams){.uniform = sample_uniform(o->seed, (uint32_t)choice, position),
        .scale = scale_of(o),
        .top_p = o->top_p < 1 ? o->top_p : 1,
        .min_p_log = o->min_p > 0 ? logf(o->min_p) : -INFINITY,
        .top_k = o->top_k > 0 ? o->top_k : 0};
}

static int32_t sample(SamplerScratch *s, const float *logits, float max, const SampleParams *d) {
    if (d->scale == 0) return first_equal(s, logits, max);
    const bool top_k = d->top_k > 0 && d->top_k < s->vocab, top_p = d->top_p<1, min_p = d->min_p_log> - INFINITY;
    if (!top_k && !top_p && !min_p) return sample_any(s, logits, max, d->scale, d->uniform);
    if (top_k) {
        collect_top(s, logits, d->top_k);
        if (top_p) {
            const uint64_t total = weigh(s, max, 1);
            keep_top(s, s->weights, (uint64_t)((double)d->top_p * (double)total));
        }
    } else if (top_p) {
        collect_nucleus(s, logits, max, (double)d->top_p);
    } else {
        const float threshold = max + d->min_p_log;
        collect(s, logits, threshold < max ? threshold : max);
    }
    if (min_p) keep_likely(s, max, d->min_p_log);
    return sample_candidate(s, max, d->scale, d->uniform);
}

int32_t sampler_sample(SamplerScratch *scratch, const float *logits, const SampleParams *d) {
    scratch->total = 0;
    scratch->known_sums = NULL;
    const float max = find_max(scratch, logits);
    return isfinite(max) ? sample(scratch, logits, max, d) : -1;
}

/* ---- history ---- */

static bool penalties_on(const SamplingOptions *o) {
    return o->repetition_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0;
}

static size_t seen_bytes(int vocab) { return ((size_t)vocab * sizeof(uint32_t) + 7) / 8 * 8; }

size_t sampler_bytes(const SamplingOptions *options, int vocab, int tokens) {
    if (!penalties_on(options)) return 0;
    const size_t distinct = (size_t)(tokens < vocab ? tokens : vocab);
    return seen_bytes(vocab) + (distinct * sizeof(int32_t) + 7) / 8 * 8;
}

void sampler_init(Sampler *sampler, const SamplingOptions *options, int vocab, int choice, void *memory) {
    *sampler = (Sampler){.options = options, .choice = (uint32_t)choice};
    if (!penalties_on(options)) return;
    sampler->seen = memory;
    sampler->seen_ids = (int32_t *)((char *)memory + seen_bytes(vocab));
}

static void see(Sampler *sampler, int32_t id) {
    if (sampler->seen[id]) return;
    sampler->seen[id] = SEEN;
    sampler->seen_ids[sampler->seen_count++] = id;
}

void sampler_prompt(Sampler *sampler, const int32_t *prompt, int count) {
    if (!sampler->seen || sampler->options->repetition_penalty == 1) return;
    for (int i = 0; i < count; i++) see(sampler, prompt[i]);
}

static void penalise(const Sampler *sampler, SamplerScratch *scratch, float *logits) {
    const SamplingOptions *o = sampler->options;
    if (o->bias_count > 0 || sampler->seen_count > 0) scratch->known.logits = NULL;
    for (int i = 0; i < o->bias_count; i++) logits[o->bias_ids[i]] += o->bias_values[i];
    for (int i = 0; i < sampler->seen_count; i++) {
        const int32_t id = sampler->seen_ids[i];
        const uint32_t times = sampler->seen[id] & ~SEEN;
        float x = logits[id];
        if (o->repetition_penalty != 1) x = x > 0 ? x / o->repetition_penalty : x * o->repetition_penalty;
        if (times) x -= o->presence_penalty + o->frequency_penalty * (float)times;
        logits[id] = x;
    }
}

bool sampler_device_possible(const SamplingOptions *o) {
    return !penalties_on(o) && o->bias_count == 0 && o->logprobs < 0;
}

/* ---- the whole ---- */

/* Descending; insertion keeps ties in order of id. For a handful. */
static void sort_candidates(SamplerScratch *s) {
    for (int i = 1; i < s->count; i++) {
        const int32_t id = s->ids[i];
        const float value = s->values[i];
        int at = i;
        for (; at > 0 && s->values[at - 1] < value; at--) {
            s->ids[at] = s->ids[at - 1];
            s->values[at] = s->values[at - 1];
        }
        s->ids[at] = id;
        s->values[at] = value;
    }
}

static void fill_logprobs(SamplerScratch *s, const float *logits, float max, int32_t id, int top, TokenOut *out) {
    const double base = (double)max + log(whole_total(s, logits, max));
    const float own = isnan(logits[id]) ? -INFINITY : logits[id];
    out->logprob = (float)((double)own - base);
    out->top_count = 0;
    if (top <= 0) return;
    collect_top(s, logits, top < s->vocab ? top : s->vocab);
    sort_candidates(s);
    out->top_count = s->count;
    for (int i = 0; i < s->count; i++) {
        out->top[i].id = s->ids[i];
        out->top[i].logprob = (float)((double)s->values[i] - base);
    }
}

void sampler_logprobs(SamplerScratch *scratch, float *logits, int32_t id, int top, TokenOut *out) {
    out->id = id;
    fill_logprobs(scratch, logits, prepare(scratch, logits, NULL), id, top, out);
}

int32_t sampler_next(Sampler *sampler, SamplerScratch *scratch, float *logits, int position, TokenOut *out) {
    penalise(sampler, scratch, logits);
    const float max = prepare(scratch, logits, sampler->mask);
    const SampleParams left = sampler_device_params(sampler->options, (int)sampler->choice, position);
    out->id = sample(scratch, logits, max, &left);
    out->logprob = NAN;
    out->top_count = 0;
    if (sampler->options->logprobs >= 0) fill_logprobs(scratch, logits, max, out->id, sampler->options->logprobs, out);
    if (sampler->seen) {
        see(sampler, out->id);
        sampler->seen[out->id]++;
    }
    return out->id;
}

bool sampler_scratch_open(SamplerScratch *scratch, int vocab, Error *error) {
    const int blocks = (vocab + BLOCK - 1) / BLOCK;
    *scratch = (SamplerScratch){.vocab = vocab, .blocks = blocks};
    scratch->maxima = malloc((size_t)blocks * sizeof(float));
    scratch->sums = malloc((size_t)blocks * sizeof(float));
    scratch->groups = malloc((size_t)(blocks / GROUP + 1) * sizeof(double));
    scratch->ids = malloc((size_t)(vocab + 1) * sizeof(int32_t)); /* collect writes one past what it keeps */
    scratch->values = malloc((size_t)(vocab + 1) * sizeof(float));
    scratch->weights = malloc((size_t)(vocab + 1) * sizeof(uint64_t));
    scratch->histogram = malloc(BUCKETS * sizeof(uint64_t));
    if (scratch->maxima && scratch->sums && scratch->groups && scratch->ids && scratch->values && scratch->weights &&
        scratch->histogram)
        return true;
    sampler_scratch_close(scratch);
    return fail(error, ERROR_MEMORY, "no memory to sample from %d tokens", vocab);
}

void sampler_scratch_close(SamplerScratch *scratch) {
    free(scratch->maxima);
    free(scratch->sums);
    free(scratch->groups);
    free(scratch->ids);
    free(scratch->values);
    free(scratch->weights);
    free(scratch->histogram);
    *scratch = (SamplerScratch){0};
}
