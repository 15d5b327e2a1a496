/* Answers that are computed otherwise than prompts: a token of an answer always is, and one of a prompt never, whoever
 * else has computed the same text as what. Forced tokens, steps ahead, codes and windows: test_constraint, test_ahead,
 * test_sharing. */
#include "engine/engine_fixture.h"

enum { SLOTS = 4, PREFILL = 16, POOL = 400 };

static Engine *open_apart(int slots, int prefill_size, size_t pages, int decode_rows) {
    fake_reset();
    fake.decode_rows = decode_rows;
    return open_engine(slots, 16, prefill_size, pages * FAKE_PAGE_BYTES);
}

static void make_long(Case *c, int prompt, int tokens, uint64_t seed) {
    make_prompt(c, prompt, seed);
    c->options.max_tokens = tokens;
    c->options.sampling.ignore_eos = true;
    c->options.sampling.logprobs = 2;
}

static int largest_generated(void) {
    int most = 0;
    for (int i = 0; i < fake.steps && i < FAKE_STEPS; i++)
        most = fake.log[i].decode_rows > most ? fake.log[i].decode_rows : most;
    return most;
}

/* Every step of an answer is one, but not what draws its first token. */
static void test_alone(void) {
    Case c;
    Engine *engine = open_apart(1, PREFILL, POOL, 1);
    make_long(&c, 100, 30, 1);
    const Seen seen = run_one(engine, &c.options);
    close_engine(engine);
    int prompts = 0, answers = 0;
    for (int i = 0; i < fake.steps; i++) {
        prompts += fake.log[i].decode_rows == 0 ? fake.log[i].rows : 0;
        answers += fake.log[i].decode_rows;
    }
    TEST_MSG(prompts == 100 && answers == 29, "%d and %d rows", prompts, answers);
    engine = open_apart(1, PREFILL, POOL, 0);
    const Seen same = run_one(engine, &c.options);
    close_engine(engine);
    TEST(largest_generated() == 0 && memcmp(&seen, &same, sizeof seen)); /* so there is a difference */
}

/* With more slots than products can tell, steps say so, and of attention answers are told from prompts all the same. */
static void test_many_slots(void) {
    Seen seen[2];
    for (int uniform_matmul = 0; uniform_matmul < 2; uniform_matmul++) {
        Case c;
        Engine *engine = open_apart(SLOTS, PREFILL, POOL, SLOTS - uniform_matmul);
        make_long(&c, 100, 200, 1);
        seen[uniform_matmul] = run_one(engine, &c.options);
        close_engine(engine);
        TEST(largest_generated() == 1);
        for (int i = 0; i < fake.steps && i < FAKE_STEPS; i++) TEST(fake.log[i].uniform_matmul == uniform_matmul);
    }
    TEST(!memcmp(&seen[0], &seen[1], sizeof *seen));
}

/* What was parked is read again in pieces that are not too large, together with whoever goes on meanwhile. */
static void test_read_again(int most) {
    enum { REQUESTS = 6 };
    static Case cases[REQUESTS];
    static Seen alone[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        make_long(&cases[i], 40 + 60 * i, 700, (uint64_t)i + 9);
        Engine *engine = open_apart(SLOTS, PREFILL, POOL, most);
        alone[i] = run_one(engine, &cases[i].options);
        close_engine(engine);
    }
    Engine *engine = open_apart(SLOTS, 64, 9, most);
    Request *requests[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) requests[i] = submit(engine, &cases[i].options);
    int preempted = 0;
    for (int i = 0; i < REQUESTS; i++) {
        Seen seen;
        read_all(requests[i], 1, &seen);
        TEST_MSG(!memcmp(&seen, &alone[i], sizeof seen), "at most %d: request %d", most, i);
        preempted += request_stats(requests[i]).preempted;
        request_free(requests[i]);
    }
    wait_idle(engine);
    TEST(only_prefixes(engine));
    close_engine(engine);
    TEST_MSG(preempted > 0 && largest_generated() == most, "%d parked, steps of up to %d of %d", preempted,
        largest_generated(), most);
}

/* While an answer is parked, somebody older has read a prompt that goes on with it: its pages hold the same text, but
 * not what the answer computes. */
static void test_answer_in_a_prompt(void) {
    enum { BEGIN = 128, COMMON = 572, TOKENS = 620 };
    static Case answer, prompt;
    Engine *engine = open_apart(2, 2, POOL, 64);
    make_long(&answer, BEGIN, TOKENS, 1);
    const Seen alone = run_one(engine, &answer.options);
    close_engine(engine);
    make_long(&prompt, BEGIN + COMMON, 30, 1);
    memcpy(prompt.prompt + BEGIN, alone.ids, COMMON * sizeof *prompt.prompt);
    engine = open_apart(2, 2, POOL, 64);
    const Seen expected = run_one(engine, &prompt.options);
    close_engine(engine);

    engine = open_apart(2, 2, 9, 64); /* six pages for the older one, three for the younger */
    fake.gated = true;
    Request *older = submit(engine, &prompt.options);
    fake_wait_arrived(1);
    Request *younger = submit(engine, &answer.options);
    fake_open_gate();
    Seen seen;
    read_all(older, 1, &seen);
    TEST(!memcmp(&seen, &expected, sizeof seen));
    TEST_MSG(request_stats(younger).preempted == 1 && request_stats(older).preempted == 0, "it was not parked");
    read_all(younger, 1, &seen);
    TEST(!memcmp(&seen, &alone, sizeof seen));
    request_free(older);
    request_free(younger);
    close_engine(engine);
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_alone();
    test_many_slots();
    test_read_again(SLOTS);
    test_read_again(13);
    test_answer_in_a_prompt();
    return test_done();
}
