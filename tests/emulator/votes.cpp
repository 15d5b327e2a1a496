/* What lanes of a warp tell one another: shuffles and votes (include/cuda_runtime.h). */
#include "state.h"

#include "cuda_runtime.h"

namespace emulator {

/* From a lane that is not there comes garbage. */
void shuffle(void *const put[LANES], uint32_t mask) {
    for (int lane = 0; lane < LANES; lane++) {
        Shuffle *s = (Shuffle *)put[lane];
        if (!s) continue;
        const Shuffle *from = (const Shuffle *)put[s->from & 31];
        s->got = from ? from->value : 0xfffffffffffffead;
    }
}

void vote(void *const put[LANES], uint32_t mask) {
    Vote all = {};
    all.least = UINT64_MAX, all.signed_least = INT64_MAX, all.signed_most = INT64_MIN, all.all = UINT64_MAX;
    for (int lane = 0; lane < LANES; lane++) {
        const Vote *v = (const Vote *)put[lane];
        if (!v) continue;
        const int64_t value = (int64_t)v->value;
        all.ballot |= (uint64_t)(v->value != 0) << lane;
        all.sum += v->value;
        all.all &= v->value, all.any |= v->value, all.odd ^= v->value;
        if (v->value < all.least) all.least = v->value;
        if (v->value > all.most) all.most = v->value;
        if (value < all.signed_least) all.signed_least = value;
        if (value > all.signed_most) all.signed_most = value;
    }
    for (int lane = 0; lane < LANES; lane++) {
        Vote *v = (Vote *)put[lane];
        if (!v) continue;
        uint32_t alike = 0;
        for (int other = 0; other < LANES; other++)
            if (put[other] && ((const Vote *)put[other])->value == v->value) alike |= 1u << other;
        const uint64_t value = v->value;
        *v = all;
        v->value = value;
        v->alike = alike;
    }
}

} // namespace emulator
