/* Constraints: every answer obeys its own, however it is batched, parked or forked, and is the one that it gets alone;
 * an answer ends where nothing else is allowed; a constraint that fails ends its request and no other; the last
 * reference frees it. */
#include "engine/engine_fixture.h"
#include "engine/sampler.h"

enum { CASES = 48, CHOICES = 12, TOKENS = 500, WORDS = (300 + 63) / 64 };

/* An automaton over token ids whose states are hashes: the low byte counts tokens. Which tokens may follow, whether the
 * answer may end and whether anything at all may follow are functions of the state. */
typedef struct Automaton {
    Constraint base;
    int longest; /* answers: 0: for ever */
    int fail_at; /* this mask fails; 0: none */
    atomic_int masks;
    bool forces;         /* tokens where others may follow as well, */
    bool beyond;         /* or one that the model does not have */
    atomic_int sleep_ns; /* a mask takes so long */
    int beside;          /* masks that were computed while a step was */
    atomic_int inside;   /* threads */
} Automaton;

static atomic_int freed;

static bool state_is_free(ConstraintState state) { return state % 7 == 3; }
static bool state_may_end(const Automaton *a, ConstraintState state) {
    return (a->longest && (int)(state & 255) >= a->longest) || (state >> 8) % 301 == 0;
}
static bool state_allows(const Automaton *a, ConstraintState state, int32_t id) {
    if (id == FAKE_EOS) return state_may_end(a, state);
    if (a->longest && (int)(state & 255) >= a->longest) return false;
    uint64_t seed = (uint64_t)state << 32 | (uint32_t)id;
    return state_is_free(state) || test_random(&seed) % (1 + state % 60) == 0 || id == (int32_t)(state % 290) + 5;
}
static ConstraintState state_behind(ConstraintState state, int32_t id) {
    uint64_t seed = (uint64_t)state * 400 + (uint32_t)id;
    return (uint32_t)(test_random(&seed) << 8) | ((state + 1) & 255);
}

static bool automaton_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    Automaton *a = (Automaton *)(void *)constraint;
    CHECK(atomic_fetch_add(&a->inside, 1) == 0);
    a->masks++;
    a->beside += !fake_engine_thread;
    const int sleep_ns = atomic_load(&a->sleep_ns);
    if (sleep_ns) nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
    const bool ok = a->masks != a->fail_at || fail(error, ERROR_LIMIT, "the automaton is tired");
    *any = !a->longest && state_is_free(state) && !state_may_end(a, state);
    memset(mask, 0, WORDS * sizeof *mask);
    for (int32_t id = 0; id < 300; id++)
        if (state_allows(a, state, id)) mask[id / 64] |= (uint64_t)1 << (id % 64);
    mask[WORDS - 1] |= ~(uint64_t)0 << 50; /* ids that the vocabulary does not have */
    atomic_fetch_sub(&a->inside, 1);
    return ok;
}

/* One of those that may follow; nothing is forced behind the last token that an answer may have. */
static bool automaton_forced(
    Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max, int *count, Error *error) {
    const Automaton *a = (Automaton *)(void *)constraint;
    const int most = a->forces && last % 3 == 1 ? 5 : 0;
    tokens[0] = fake.vocab;
    *count = 1;
    if (a->beyond) return true;
    for (*count = 0; *count < most && !(a->longest && (int)(state & 255) >= a->longest); (*count)++) {
        CHECK(*count < max);
        tokens[*count] = (int32_t)(state % 290) + 5;
        state = state_behind(state, tokens[*count]);
    }
    return true;
}

static bool automaton_accept(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    const Automaton *a = (const Automaton *)(void *)constraint;
    CHECK(state_allows(a, *state, token));
    *state = state_behind(*state, token);
    return true;
}

static void automaton_free(Constraint *constraint) {
    atomic_fetch_add(&freed, 1);
    free(constraint);
}

static Automaton *automaton_new(uint32_t start, int longest) {
    static const ConstraintOps ops = {
        .mask = automaton_mask, .jump_ahead = automaton_forced, .accept = automaton_accept, .free = automaton_free};
    Automaton *a = calloc(1, sizeof *a);
    CHECK(a != NULL);
    constraint_init(&a->base, &ops, start << 8, WORDS);
    a->longest = longest;
    return a;
}

/* ---- obeying ---- */

static bool obeys(const Automaton *a, const RequestOptions *o, const Seen *seen) {
    ConstraintState state = a->base.start;
    for (int i = 0; i < seen->count; i++) {
        if (!state_allows(a, state, seen->ids[i])) return false;
        state = state_behind(state, seen->ids[i]);
    }
    if (seen->finish == FINISH_LENGTH) return seen->count == o->max_tokens;
    return seen->finish == FINISH_STOP && state_may_end(a, state);
}

typedef struct Result {
    Seen seen[CHOICES];
} Result;

static Case cases[CASES];
static Automaton *automata[CASES];
static Result alone[CASES], together[CASES];

static void make_cases(void) {
    for (int i = 0; i < CASES; i++) {
        make_case(&cases[i], (uint64_t)i + 7);
        cases[i].options.max_tokens = TOKENS;
        cases[i].options.sampling.ignore_eos = i % 9 == 4;
        /* Each third one has none; neighbours share. */
        automata[i] = i % 3 == 2 ? NULL
            : i % 3 == 1         ? automata[i - 1]
                                 : automaton_new((uint32_t)i, i % 2 ? 0 : 5 * i + 5);
        cases[i].options.constraint = automata[i] ? &automata[i]->base : NULL;
        if (automata[i]) automata[i]->forces = i % 4 < 2;
    }
}

static void test_obeying(int decode_rows) {
    fake_reset();
    fake.decode_rows = decode_rows;
    fake.eos_logit = -2;
    atomic_store(&freed, 0);
    make_cases();
    Engine *engine = open_engine(1, 4, 64, 0);
    for (int i = 0; i < CASES; i++) {
        Request *request = submit(engine, &cases[i].options);
        read_all(request, cases[i].options.choices, alone[i].seen);
        request_free(request);
    }
    close_engine(engine);
    engine = open_engine(8, CASES, 40, 16 * FAKE_PAGE_BYTES);
    Request *requests[CASES];
    for (int i = 0; i < CASES; i++) requests[i] = submit(engine, &cases[i].options);
    for (int i = 0; i < CASES; i++) read_all(requests[i], cases[i].options.choices, together[i].seen);
    const uint64_t preempted = engine_stats(engine).preempted;
    TEST_MSG(preempted > 0, "none was parked");
    int stops = 0, ended = 0;
    for (int i = 0; i < CASES; i++) {
        const RequestOptions *o = &cases[i].options;
        TEST_MSG(!memcmp(alone[i].seen, together[i].seen, (size_t)o->choices * sizeof(Seen)), "case %d", i);
        for (int k = 0; automata[i] && k < o->choices; k++) {
            TEST_MSG(obeys(automata[i], o, &together[i].seen[k]), "case %d, choice %d", i, k);
            stops += together[i].seen[k].finish == FINISH_STOP;
            ended += together[i].seen[k].count == automata[i]->longest;
        }
        if (automata[i] && i % 3 == 0) constraint_release(&automata[i]->base); /* the requests have their own */
    }
    TEST_MSG(stops > 20 && ended > 2, "%d ended, %d as nothing else was allowed", stops, ended);
    TEST(atomic_load(&freed) == 0);
    for (int i = 0; i < CASES; i++) request_free(requests[i]);
    close_engine(engine);
    TEST(atomic_load(&freed) == CASES / 3);
}

/* ---- forced tokens, and the thread beside ---- */

/* A state allows one token only, which depends on it, but each seventh. */
static bool narrow_allows(ConstraintState state, int32_t id) {
    return (state & 255) % 7 == 6 ? id != FAKE_EOS && id % 3 == 1 : id == (int32_t)((state >> 8) % 290) + 5;
}

static bool narrow_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    memset(mask, 0, WORDS * sizeof *mask);
    for (int32_t id = 0; id < 300; id++)
        if (narrow_allows(state, id)) mask[id / 64] |= (uint64_t)1 << (id % 64);
    return true;
}

static bool narrow_accept(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    CHECK(narrow_allows(*state, token));
    *state = state_behind(*state, token);
    return true;
}

/* The same answer, logprobs and all, as from a sampler that is given each row of logits; in fewer steps than tokens. */
static void test_forced(int decode_rows) {
    enum { COUNT = 60 };
    static const ConstraintOps ops = {.mask = narrow_mask, .accept = narrow_accept, .free = automaton_free};
    fake_reset();
    fake.decode_rows = decode_rows;
    Case c;
    make_prompt(&c, 50, 4);
    c.options.max_tokens = COUNT;
    c.options.sampling.logprobs = 2;
    c.options.sampling.frequency_penalty = 0.5f;
    Automaton *a = automaton_new(9, 0);
    constraint_init(&a->base, &ops, 9 << 8, WORDS);
    c.options.constraint = &a->base;
    Engine *engine = open_engine(1, 1, 64, 0);
    const Seen seen = run_one(engine, &c.options);
    TEST_MSG(fake_steps() < COUNT / 2, "%d steps", fake_steps());
    TEST(seen.count == COUNT && seen.finish == FINISH_LENGTH);
    close_engine(engine);

    uint64_t prompt = 0, all = 0, hash = 0;
    for (int i = 0; i < 50; i++) all += 3 * (prompt = fake_next_hash(prompt, c.prompt[i]));
    Error error;
    SamplerScratch scratch;
    Sampler sampler;
    void *memory = calloc(1, sampler_bytes(&c.options.sampling, 300, 50 + COUNT));
    CHECK(sampler_scratch_open(&scratch, 300, &error) && memory);
    sampler_init(&sampler, &c.options.sampling, 300, 0, memory);
    ConstraintState state = 9 << 8;
    int equal = 0;
    for (int i = 0; i < COUNT; i++) {
        float logits[300];
        uint64_t mask[WORDS] = {0};
        bool any;
        TokenOut token;
        fake_logits(all, logits);
        CHECK(narrow_mask(&a->base, state, mask, &any, &error));
        sampler.mask = mask;
        equal += sampler_next(&sampler, &scratch, logits, 50 + i, &token) == seen.ids[i];
        hash = mix_token(hash, &token);
        CHECK(narrow_accept(&a->base, &state, token.id, &error));
        all += 3 * (prompt = fake_next_hash(prompt, token.id + (decode_rows ? FAKE_GENERATED : 0)));
    }
    TEST_MSG(equal == COUNT && hash == seen.hash, "%d of %d tokens", equal, COUNT);
    sampler_scratch_close(&scratch);
    free(memory);
    constraint_release(&a->base);
}

/* Only one token may ever follow: others are not kept waiting until the whole run is drawn. */
static bool literal_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    memset(mask, 0, WORDS * sizeof *mask);
    mask[state % 290 / 64] |= (uint64_t)1 << state % 290 % 64;
    return true;
}

static bool literal_accept(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) {
    CHECK(token == (int32_t)(*state % 290));
    *state += *state % 290 == 289 ? 10 : 1; /* none of them is an end */
    return true;
}

static void test_literal(void) {
    enum { COUNT = 500 };
    static const ConstraintOps ops = {.mask = literal_mask, .accept = literal_accept, .free = automaton_free};
    fake_reset();
    Case c;
    make_prompt(&c, 50, 4);
    c.options.max_tokens = COUNT;
    Automaton *a = automaton_new(0, 0);
    constraint_init(&a->base, &ops, 9, WORDS);
    c.options.constraint = &a->base;
    Engine *engine = open_engine(1, 1, 64, 0);
    Request *request = submit(engine, &c.options);
    Seen seen;
    read_all(request, 1, &seen);
    TEST(seen.count == COUNT && seen.finish == FINISH_LENGTH && seen.ids[1] == 10);
    TEST_MSG(fake_steps() > 6 && fake_steps() < COUNT / 10, "%d steps", fake_steps());
    request_free(request);
    close_engine(engine);
    constraint_release(&a->base);
}

/* Quick masks, of which some in the midst of a run are slow: others wait for one of them at a time. */
static bool turning_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    if (state >= 20 && state < 30) nanosleep(&(struct timespec){.tv_nsec = 15000000}, NULL);
    return literal_mask(constraint, state, mask, any, error);
}

static void test_literal_slow(void) {
    static const ConstraintOps ops = {.mask = turning_mask, .accept = literal_accept, .free = automaton_free};
    fake_reset();
    Case c;
    make_prompt(&c, 50, 4);
    c.options.max_tokens = 60;
    Automaton *a = automaton_new(0, 0);
    constraint_init(&a->base, &ops, 9, WORDS);
    c.options.constraint = &a->base;
    Engine *engine = open_engine(1, 1, 64, 0);
    const Seen seen = run_one(engine, &c.options);
    TEST(seen.count == 60 && seen.ids[59] == 68);
    TEST_MSG(fake_steps() > 10, "%d steps", fake_steps());
    close_engine(engine);
    constraint_release(&a->base);
}

/* What is forced comes whatever the model would say, in fewer steps than tokens and without masks; but not where the
 * request chooses itself, or wants to know how likely each token is. */
static void test_forced_runs(void) {
    enum { COUNT = 120 };
    fake_reset();
    Case c;
    make_prompt(&c, 50, 4);
    c.options.max_tokens = COUNT;
    const float bias = 1;
    const int32_t biased = 7;
    for (int kind = 0; kind < 3; kind++) {
        Automaton *a = automaton_new(9, 0);
        a->forces = true;
        c.options.constraint = &a->base;
        c.options.sampling.logprobs = kind == 1 ? 0 : -1;
        c.options.sampling.bias_count = kind == 2;
        c.options.sampling.bias_ids = &biased;
        c.options.sampling.bias_values = &bias;
        c.options.sampling.ignore_eos = true;
        Engine *engine = open_engine(1, 1, 64, 0);
        const int before = fake_steps();
        const Seen seen = run_one(engine, &c.options);
        const int steps = fake_steps() - before;
        close_engine(engine);
        ConstraintState state = a->base.start;
        int chunks = 0, jump_ahead = 0, different = 0;
        for (int i = 0, left = 0; i < seen.count; i++) {
            if (left == 0 && i > 0 && seen.ids[i - 1] % 3 == 1) left = 5, chunks++;
            jump_ahead += left > 0;
            different += left > 0 && seen.ids[i] != (int32_t)(state % 290) + 5;
            left -= left > 0;
            state = state_behind(state, seen.ids[i]);
        }
        TEST_MSG(seen.count == COUNT && chunks > 5, "%d tokens, %d runs", seen.count, chunks);
        TEST_MSG(kind ? different > 0 : different == 0, "%d of %d forced tokens differ", different, jump_ahead);
        TEST_MSG(kind ? steps > COUNT * 3 / 4 : steps < COUNT - jump_ahead / 2, "%d steps", steps);
        TEST_MSG(kind ? a->masks > COUNT * 3 / 4 : a->masks <= COUNT - jump_ahead + 1, "%d masks", a->masks);
        constraint_release(&a->base);
    }
}

/* A tokenizer may know a token that the model does not have: it is not forced. */
static void test_forced_beyond(void) {
    fake_reset();
    Case c;
    make_prompt(&c, 50, 4);
    Automaton *a = automaton_new(9, 0);
    c.options.constraint = &a->base;
    Engine *engine = open_engine(1, 1, 64, 0);
    const Seen expected = run_one(engine, &c.options);
    a->beyond = true;
    const Seen seen = run_one(engine, &c.options);
    TEST(seen.count > 0 && !memcmp(&seen, &expected, sizeof seen));
    close_engine(engine);
    constraint_release(&a->base);
}

/* Masks are computed beside steps, however long they take; those behind a run of forced tokens, too. */
static void test_beside(void) {
    for (int forces = 0; forces < 2; forces++) {
        fake_reset();
        Case c;
        make_prompt(&c, 30, 6);
        c.options.max_tokens = 50;
        Automaton *a = automaton_new(5, 0);
        a->sleep_ns = 200000;
        a->forces = forces;
        c.options.constraint = &a->base;
        Engine *engine = open_engine(1, 1, 64, 0);
        const Seen seen = run_one(engine, &c.options);
        close_engine(engine);
        TEST_MSG(seen.count > 10 && a->beside >= a->masks * 3 / 4, "%d of %d masks beside steps", a->beside, a->masks);
        constraint_release(&a->base);
    }
}

/* Masks that take longer than steps: their answer waits for them, alone, and is the same. */
static void test_late(void) {
    enum { SLOW = 3, QUICK = 2, SLOW_NS = 30000000, SLOW_TOKENS = 300, QUICK_TOKENS = 400 };
    fake_reset();
    Case c[SLOW + QUICK];
    Automaton *a[SLOW + QUICK];
    Seen expected[SLOW + QUICK][2];
    for (int i = 0; i < SLOW + QUICK; i++) {
        make_prompt(&c[i], 50 + i, (uint64_t)i + 4);
        c[i].options.choices = i == 0 ? 2 : 1;
        c[i].options.max_tokens = i < SLOW ? SLOW_TOKENS : QUICK_TOKENS;
        c[i].options.sampling.ignore_eos = true;
        a[i] = automaton_new((uint32_t)i + 5, 0);
        c[i].options.constraint = &a[i]->base;
        Engine *engine = open_engine(1, 1, 64, 0);
        Request *request = submit(engine, &c[i].options);
        read_all(request, c[i].options.choices, expected[i]);
        request_free(request);
        close_engine(engine);
        atomic_store(&a[i]->masks, 0);
        if (i < SLOW) a[i]->sleep_ns = SLOW_NS;
    }
    Engine *engine = open_engine(SLOW + QUICK + 1, 8, 64, 0);
    Request *requests[SLOW + QUICK];
    for (int i = 0; i < SLOW + QUICK; i++) requests[i] = submit(engine, &c[i].options);
    for (int i = SLOW + QUICK; i-- > 0;) {
        Seen seen[2] = {0};
        read_all(requests[i], c[i].options.choices, seen);
        TEST_MSG(!memcmp(seen, expected[i], (size_t)c[i].options.choices * sizeof *seen), "request %d", i);
        if (i != SLOW) continue;
        /* The quick ones have all their tokens, which took as many steps; the slow ones would take nine seconds. */
        TEST(a[SLOW]->masks > QUICK_TOKENS / 2);
        for (int k = 0; k < SLOW; k++) {
            TEST_MSG(a[k]->masks < SLOW_TOKENS, "%d slow masks", a[k]->masks);
            atomic_store(&a[k]->sleep_ns, 0);
        }
    }
    for (int i = 0; i < SLOW + QUICK; i++) request_free(requests[i]);

    /* A reader that goes away leaves nobody waiting, and nothing behind. */
    atomic_store(&a[0]->sleep_ns, SLOW_NS);
    requests[0] = submit(engine, &c[0].options);
    Seen seen;
    requests[1] = submit(engine, &c[SLOW].options);
    request_cancel(requests[0]);
    request_free(requests[0]);
    read_all(requests[1], 1, &seen);
    TEST(!memcmp(&seen, &expected[SLOW][0], sizeof seen));
    requests[0] = submit(engine, &c[0].options); /* and closing while a mask is under way */
    request_free(requests[1]);
    nanosleep(&(struct timespec){.tv_nsec = SLOW_NS / 2}, NULL);
    close_engine(engine);
    request_free(requests[0]);
    atomic_store(&freed, 0);
    for (int i = 0; i < SLOW + QUICK; i++) constraint_release(&a[i]->base);
    TEST(atomic_load(&freed) == SLOW + QUICK);
}

/* Readers go away while masks of theirs wait for a thread, and others take their places at once: there is room for all.
 */
static void test_late_and_gone(void) {
    enum { SLOTS = 4, WAVES = 4, SLOW_NS = 30000000 };
    fake_reset();
    Case c[SLOTS * WAVES];
    Request *requests[SLOTS * WAVES];
    Automaton *a[SLOTS * WAVES];
    Engine *engine = open_engine(SLOTS, SLOTS * WAVES, 64, 0);
    for (int i = 0; i < SLOTS * WAVES; i++) {
        make_prompt(&c[i], 10 + i, (uint64_t)i + 4);
        a[i] = automaton_new((uint32_t)i + 5, 0);
        a[i]->sleep_ns = SLOW_NS;
        c[i].options.max_tokens = 2;
        c[i].options.constraint = &a[i]->base;
        requests[i] = submit(engine, &c[i].options);
    }
    for (int i = 0; i < SLOTS * (WAVES - 1); i++) {
        while (i % SLOTS == 0 && a[i]->masks == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        request_cancel(requests[i]);
    }
    Seen seen;
    for (int i = 0; i < SLOTS * WAVES; i++) {
        read_all(requests[i], 1, &seen);
        TEST(i < SLOTS * (WAVES - 1) || seen.count > 0);
        request_free(requests[i]);
    }
    close_engine(engine);
    for (int i = 0; i < SLOTS * WAVES; i++) constraint_release(&a[i]->base);
}

/* Who waits for a mask keeps its pages; those who go on meanwhile and find no more wait for it, and do not fail. */
static void test_late_and_large(void) {
    enum { SLOW_NS = 200000000, PAGES = 8, LONG = 600 };
    for (int first = 0; first < 2; first++) {
        fake_reset();
        Case c[2];
        Seen expected[2], seen[2];
        Request *requests[2];
        Automaton *a = automaton_new(5, 0);
        for (int i = 0; i < 2; i++) {
            make_prompt(&c[i], i ? 10 : 500, (uint64_t)i + 4);
            c[i].options.max_tokens = i ? LONG : 3;
            c[i].options.sampling.ignore_eos = true;
            if (i == 0) c[i].options.constraint = &a->base;
            Engine *engine = open_engine(1, 1, 64, 0);
            expected[i] = run_one(engine, &c[i].options);
            close_engine(engine);
        }
        a->sleep_ns = SLOW_NS;
        Engine *engine = open_engine(2, 2, 64, PAGES * FAKE_PAGE_BYTES);
        for (int i = 0; i < 2; i++) requests[i ^ first] = submit(engine, &c[i ^ first].options);
        for (int i = 0; i < 2; i++) {
            read_all(requests[i], 1, &seen[i]);
            TEST_MSG(!memcmp(&seen[i], &expected[i], sizeof seen[i]), "%d: request %d: %d tokens, finish %d", first, i,
                seen[i].count, (int)seen[i].finish);
            request_free(requests[i]);
        }
        close_engine(engine);
        constraint_release(&a->base);
    }
}

/* ---- faults ---- */

static void test_faults(void) {
    fake_reset();
    atomic_store(&freed, 0);
    Case c, other;
    make_prompt(&c, 40, 1);
    make_prompt(&other, 40, 2);
    c.options.max_tokens = other.options.max_tokens = 30;
    c.options.choices = 3;
    Engine *engine = open_engine(4, 4, 64, 0);
    const Seen expected = run_one(engine, &other.options);
    Automaton *a = automaton_new(1, 0);
    a->fail_at = 20;
    c.options.constraint = &a->base;
    Request *request = submit(engine, &c.options), *free_one = submit(engine, &other.options);
    constraint_release(&a->base);
    Seen seen[3], unhurt;
    read_all(request, 3, seen);
    read_all(free_one, 1, &unhurt);
    Error error = {0};
    request_error(request, &error);
    TEST(seen[0].finish == FINISH_ERROR && seen[2].finish == FINISH_ERROR && error.code == ERROR_LIMIT);
    TEST(!memcmp(&unhurt, &expected, sizeof unhurt));
    request_free(request);
    request_free(free_one);

    /* One that is refused holds nothing. */
    a = automaton_new(2, 0);
    c.options.constraint = &a->base;
    c.options.max_tokens = 0;
    TEST(engine_submit(engine, &c.options, &error) == NULL);
    constraint_release(&a->base);
    close_engine(engine);
    TEST(atomic_load(&freed) == 2);
}

/* Nothing but an end may come at all: the answer is empty. */
static void test_nothing(void) {
    fake_reset();
    Case c;
    make_prompt(&c, 10, 3);
    Automaton *a = automaton_new(0, 1);
    a->base.start = 255;
    c.options.constraint = &a->base;
    Engine *engine = open_engine(1, 1, 64, 0);
    for (int ignore = 0; ignore < 2; ignore++) {
        c.options.sampling.ignore_eos = ignore;
        const Seen seen = run_one(engine, &c.options);
        TEST(seen.count == 0 && seen.finish == FINISH_STOP);
    }
    close_engine(engine);
    constraint_release(&a->base);
}

int main(void) {
    log_set_level(LOG_ERROR);
    if (!SANITIZED) test_obeying(0);
    test_obeying(9);
    if (!SANITIZED) test_forced(0);
    test_forced(4); /* fewer than a run has tokens */
    test_literal();
    test_literal_slow();
    test_forced_runs();
    test_forced_beyond();
    test_beside();
    test_late();
    test_late_and_gone();
    test_late_and_large();
    test_faults();
    test_nothing();
    return test_done();
}
