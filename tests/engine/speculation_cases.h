/* Requests of all kinds for tests of speculative decoding: half of them with a constraint, some with predictions,
 * forced tokens, many choices or long answers; answers without and with drafts; a script with known tokens and wrong
 * ones. */
#pragma once
#include "engine/cases.h"

enum { CASES_MAX = 4000, CASE_CHOICES = 12, WRONG = 20 /* of 100 scripted tokens */ };

static int case_count, case_first, case_vocab; /* requests case_first … case_first + case_count − 1 */

/* ---- a constraint ---- */

/* The state is a hash of the tokens so far: it says which tokens may follow, and now and then which must. */
static inline uint32_t state_behind(uint32_t state, int32_t id) {
    uint64_t seed = (uint64_t)state << 32 | (uint32_t)id;
    return (uint32_t)test_random(&seed);
}
static inline bool automaton_mask(
    Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    memset(mask, 0, (size_t)(case_vocab + 63) / 64 * sizeof *mask);
    *any = state % 5 == 0;
    for (int32_t id = 0; id < case_vocab; id++)
        if (state_behind(state, id) % 4 == 0 || id == 7) mask[id / 64] |= (uint64_t)1 << (id % 64);
    return true;
}
static inline bool automaton_forced(
    Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max, int *count, Error *error) {
    *count = 0;
    for (int most = state % 6 == 1 ? 1 + (int)(state >> 8) % 4 : 0; *count < most; (*count)++)
        tokens[*count] = 5 + (int32_t)((state >> (4 * *count)) % (uint32_t)(case_vocab - 10));
    return true;
}
static inline bool automaton_accept(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    *state = state_behind(*state, token);
    return true;
}
static inline void automaton_free(Constraint *constraint) { free(constraint); }
static const ConstraintOps automaton_ops = {automaton_mask, automaton_forced, automaton_accept, automaton_free};

/* ---- requests ---- */

typedef struct Answer {
    Seen seen[CASE_CHOICES];
    uint64_t prompt;
} Answer;

static Answer *known, *answers; /* [CASES_MAX]; without drafts, with them */

/* The number is the seed, by which a script knows the request. */
static inline void make(Case *c, int number) {
    case_make(c, (uint64_t)number, case_vocab);
    c->options.sampling.seed = (uint64_t)number;
    if (number % 9 == 4) c->options.sampling.min_tokens = 5 + number % 20;
    if (number % 10 == 3) { /* longer than the room that is kept for an answer */
        c->options.max_tokens = 600;
        c->options.sampling.ignore_eos = true;
    }
    if (number % 11 == 2) c->options.sampling.ignore_eos = true;
    if (number % 6 == 5) { /* a text with repetitions, and a prediction */
        for (int i = 20; i < c->options.prompt_count; i++) c->prompt[i] = c->prompt[i % 20];
        c->options.prediction = c->prompt;
        c->options.prediction_count = c->options.prompt_count / 2;
    }
    if (number % 2) return;
    Constraint *constraint = malloc(sizeof *constraint);
    CHECK(constraint);
    constraint_init(constraint, &automaton_ops, 12345, (case_vocab + 63) / 64);
    c->options.constraint = constraint;
}

/* All requests, as many at a time as the queue has room for. */
static inline void run_cases(Engine *engine, Answer *out) {
    enum { AT_ONCE = 32 };
    static Case cases[AT_ONCE];
    for (int first = 0; first < case_count; first += AT_ONCE) {
        Request *requests[AT_ONCE];
        const int end = first + AT_ONCE < case_count ? first + AT_ONCE : case_count;
        for (int i = first; i < end; i++) {
            make(&cases[i - first], case_first + i);
            requests[i - first] = submit(engine, &cases[i - first].options);
            constraint_release(cases[i - first].options.constraint);
        }
        for (int i = first; i < end; i++) {
            const RequestOptions *o = &cases[i - first].options;
            read_all(requests[i - first], o->choices, out[i].seen);
            out[i].prompt = o->echo_logprobs ? prompt_hash(requests[i - first], o->prompt_count) : 0;
            request_free(requests[i - first]);
        }
    }
}

static inline bool same_answer(const Case *c, const Answer *a, const Answer *b) {
    bool same = a->prompt == b->prompt;
    for (int k = 0; k < c->options.choices; k++)
        same = same && a->seen[k].count == b->seen[k].count && a->seen[k].finish == b->seen[k].finish &&
            a->seen[k].hash == b->seen[k].hash;
    return same;
}

/* Answers that differ from the known ones; *first_number: of the first of them. */
static inline int different_answers(int *first_number) {
    static Case c;
    int different = 0;
    for (int i = 0; i < case_count; i++) {
        make(&c, case_first + i);
        constraint_release(c.options.constraint);
        if (!same_answer(&c, &known[i], &answers[i]) && different++ == 0) *first_number = case_first + i;
    }
    return different;
}

/* ---- drafts ---- */

typedef struct Script {
    int tokens; /* per draft; 0: a random number */
    int match;  /* that it is told to have found; 0: the usual one */
    int prompts[CASES_MAX];
} Script;
static Script scripts;

static inline void script_prompts(Script *s) {
    static Case c;
    for (int i = 0; i < case_count; i++) {
        make(&c, case_first + i);
        constraint_release(c.options.constraint);
        s->prompts[i] = c.options.prompt_count;
    }
}

/* The known answer, with wrong tokens in between. */
static inline int script(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match) {
    const Script *s = context;
    const int number = (int)seed - case_first;
    const Seen *seen = &known[number].seen[choice];
    uint64_t state = seed * 7919 + (uint64_t)choice * 104729 + (uint64_t)position * 31 + (uint64_t)s->tokens;
    const int wanted = s->tokens ? s->tokens : (int)(test_random(&state) % DRAFT_TOKENS_MAX);
    const int count = wanted < max ? wanted : max;
    for (int i = 0; i < count; i++) {
        const int at = position - s->prompts[number] + i;
        const bool right = at < seen->count && test_random(&state) % 100 >= WRONG;
        tokens[i] = right ? seen->ids[at] : (int32_t)(test_random(&state) % (uint64_t)case_vocab);
    }
    if (s->match) *match = s->match;
    return count;
}
