#include "engine/allowed.h"

#include <string.h>

static size_t words_of(int vocab) { return ((size_t)vocab + 63) / 64; }

static bool is_empty(const uint64_t *mask, size_t words) {
    uint64_t any = 0;
    for (size_t i = 0; i < words; i++) any |= mask[i];
    return any == 0;
}

/* Takes the end tokens out; whether there were any. */
static bool take_ends(uint64_t *mask, EndTokens ends) {
    bool found = false;
    for (int i = 0; i < ends.count; i++) {
        uint64_t *word = &mask[ends.ids[i] / 64];
        const uint64_t bit = (uint64_t)1 << (ends.ids[i] % 64);
        found |= (*word & bit) != 0;
        *word &= ~bit;
    }
    return found;
}

static void put_ends(uint64_t *mask, EndTokens ends) {
    for (int i = 0; i < ends.count; i++) mask[ends.ids[i] / 64] |= (uint64_t)1 << (ends.ids[i] % 64);
}

/* What the mask, cut to the vocabulary, leaves to do. */
static Allowed settle(const Request *request, int generated, uint64_t *mask, size_t words, int vocab, EndTokens ends) {
    if (vocab % 64) mask[words - 1] &= ((uint64_t)1 << (vocab % 64)) - 1;
    const bool may_end = take_ends(mask, ends);
    if (is_empty(mask, words)) return ALLOWED_END;
    if (may_end && !request->sampling.ignore_eos && generated >= request->sampling.min_tokens) put_ends(mask, ends);
    return ALLOWED_SOME;
}

bool allowed_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error) {
    Constraint *constraint = request->constraint;
    if (!constraint || choice->allowed != ALLOWED_UNKNOWN) return true;
    bool any = false;
    if (choice->generated == 0) choice->where = constraint->start;
    const int32_t last = choice->generated ? request_answer_id(request, choice, choice->generated - 1) : 0;
    if (choice->generated && !constraint->ops->accept(constraint, &choice->where, last, error)) return false;
    if (!constraint->ops->mask(constraint, choice->where, choice->mask, &any, error)) return false;
    choice->allowed =
        any ? ALLOWED_ANY : settle(request, choice->generated, choice->mask, words_of(vocab), vocab, ends);
    choice->sampler.mask = choice->allowed == ALLOWED_SOME ? choice->mask : NULL;
    return true;
}
