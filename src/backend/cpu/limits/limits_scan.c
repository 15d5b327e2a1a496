/* Number of vector instructions of a scan of quantised pages, counted in scan_impl.h and what it includes. */
#include <string.h>

#include "backend/cpu/limits/limits.h"
#include "base/slice.h"

/* Instructions of one instruction set per register of codes. */
typedef struct Costs {
    const char *isa;
    int bytes;                /* bytes of a register */
    double choose;            /* selecting bits of two registers */
    double look_up[KV_FORMS]; /* table lookup of an index */
    double prepare_wide_keys; /* for products with any query */
    double narrow;            /* a product, its share of widening and the sum */
    double wide_keys, wide_values;
    double floats; /* 16 of a query's: see limits_scan */
} Costs;

/* To scores: converted, scaled twice, the largest: 4. To exponentials: scaled, bounded, rounded, subtracted, a
 * polynomial of 4, raised and added: 10, 12 where raising is 3. To bytes: scaled, the largest, added up, rounded,
 * subtracted, packed: 5 and 3 in four. What values give, of as many dims: converted, offset, two multiplications: 4. */
enum { FLOATS = 24, RAISED_BY_INTEGERS = 26 };

static const Costs costs[] = {
    {"avx2", 32, 3, {[KV_Q3] = 2, [KV_Q4] = 2, [KV_Q5] = 5, [KV_Q6] = 10, [KV_Q8] = 1}, 1, 2.5, 4, 3,
        2 * RAISED_BY_INTEGERS},
    {"neon", 16, 1, {[KV_Q3] = 2, [KV_Q4] = 2, [KV_Q5] = 2, [KV_Q6] = 2, [KV_Q8] = 1}, 0, 1, 1, 1,
        4 * RAISED_BY_INTEGERS},
    {"avx512", 64, 1, {[KV_Q3] = 1, [KV_Q4] = 1, [KV_Q5] = 1, [KV_Q6] = 1, [KV_Q8] = 0.5}, 0, 1, 1, 1, FLOATS},
};

/* Shifts and choices of bits that give the indices of a quad, on the average of a part (scan_int.h). */
static const struct {
    double shifts, choices;
} indices[KV_FORMS] = {
    [KV_Q3] = {7. / 8, 2. / 8}, [KV_Q4] = {1. / 2, 0}, [KV_Q5] = {7. / 8, 4. / 8}, [KV_Q6] = {3. / 4, 2. / 4}};

double limits_scan(const char *isa, KvForm keys, KvForm values, int d, int queries) {
    const Costs *c = costs;
    while (c < costs + COUNT_OF(costs) - 1 && strcmp(c->isa, isa)) c++;
    const KvForm forms[] = {keys, values};
    const double codes = (double)KV_PAGE_TOKENS * d / c->bytes;
    double all = c->floats * queries * KV_PAGE_TOKENS / 16;
    for (int half = 0; half < 2; half++) {
        const KvForm form = forms[half];
        const bool wide = form > KV_Q4;
        all += codes * (indices[form].shifts + indices[form].choices * c->choose + c->look_up[form]);
        if (wide && half == 0) all += codes * c->prepare_wide_keys;
        all += codes * queries * (!wide ? c->narrow : half == 0 ? c->wide_keys : c->wide_values);
    }
    return all;
}
