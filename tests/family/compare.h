/* Logits of a walk against a fixture's golden ones: exactly, and as near as a fast backend must come. */
#pragma once
#include "fixture.h"

/* Another order of summing costs up to 6e-6 of max|logit| (f64 against f32); the smallest mistake worth finding, 1 % in
 * rope theta, costs from 3e-4 on. */
static const double exact_limit = 1e-4;
/* Fast backends round activations to 8 bits: at most this many times what that rounding alone costs in the same model,
 * which covers scales over more than 32 values (2×); and what f16 pages cost. */
static const double kl_factor = 4, kl_floor = 2e-5;

static inline double log_sum(const float *x, int n) {
    double top = x[0], sum = 0;
    for (int i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

static inline double row_kl(const float *golden, const float *ours, int n) {
    const double a = log_sum(golden, n), b = log_sum(ours, n);
    double kl = 0;
    for (int i = 0; i < n; i++) kl += exp(golden[i] - a) * (golden[i] - a - (ours[i] - b));
    return kl;
}

static inline int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Appends a line to the file that APUS_TEST_ERRORS names, for tools/write_models.py. */
static inline void note_error(const char *name, int variant, double error) {
    const char *path = getenv("APUS_TEST_ERRORS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s,%d,%.1e\n", name, variant, error);
    fclose(file);
}

static inline void check_exact(const Fixture *f, int variant, const float *ours) {
    const float *golden = fixture_golden(f, variant);
    double worst = 0, top = 0;
    int at = 0;
    for (int i = 0; i < f->count * f->vocab; i++) {
        const double off = fabs((double)ours[i] - golden[i]);
        top = fmax(top, fabs(golden[i]));
        if (!(off <= worst)) { /* a NaN is the worst there is */
            worst = off;
            at = i;
        }
    }
    note_error(f->name, variant, worst / top);
    TEST_MSG(worst <= exact_limit * top, "%s variant %d: off by %.2e of max|logit| at token %d", f->name, variant,
        worst / top, at / f->vocab);
}

static inline int argmax(const float *x, int n, float *lead) {
    int best = 0;
    float second = -INFINITY;
    for (int i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            second = x[best];
            best = i;
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    *lead = x[best] - second;
    return best;
}

static inline void check_fast(const Fixture *f, int variant, const char *cpu, const float *ours) {
    const float *golden = fixture_golden(f, variant);
    const Json *v = fixture_variant(f, variant), *limits = json_get(v, "int8_kl");
    const double mean_limit = kl_floor + kl_factor * json_number(json_first(limits));
    const double median_limit = kl_floor + kl_factor * json_number(json_next(json_first(limits)));
    double kl[FIXTURE_TOKENS_MAX], mean = 0;
    int clear = 0, same = 0;
    for (int i = 0; i < f->count; i++) {
        const float *g = golden + (size_t)i * (size_t)f->vocab, *o = ours + (size_t)i * (size_t)f->vocab;
        float lead, unused;
        kl[i] = row_kl(g, o, f->vocab);
        mean += kl[i] / f->count;
        const int first = argmax(g, f->vocab, &lead);
        clear += lead >= 0.25F;
        same += lead >= 0.25F && argmax(o, f->vocab, &unused) == first;
    }
    qsort(kl, (size_t)f->count, sizeof *kl, compare_doubles);
    const double top1 = clear ? (double)same / clear : 1, top1_limit = json_number(json_get(v, "int8_top1")) - 0.1;
    TEST_MSG(
        mean <= mean_limit, "%s variant %d on %s: mean KL %.2e, limit %.2e", f->name, variant, cpu, mean, mean_limit);
    TEST_MSG(kl[f->count / 2] <= median_limit, "%s variant %d on %s: median KL %.2e, limit %.2e", f->name, variant, cpu,
        kl[f->count / 2], median_limit);
    TEST_MSG(top1 >= top1_limit, "%s variant %d on %s: first choice kept in %.2f of clear rows, limit %.2f", f->name,
        variant, cpu, top1, top1_limit);
}
