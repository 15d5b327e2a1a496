/* Tokens that are drawn where the logits are, and steps that begin before the one before has ended: nobody can tell.
 * Answers are those of an engine that does neither, among strangers who stop, cancel, park and are drawn for by the
 * host; nothing that was computed for nobody stays. */
#include "engine/engine_fixture.h"

enum { CASES = 48, CHOICES = 12, READERS = 9, SLOTS = 8 };

/* Most of them such that a device can draw for them; long enough for several pages. */
static void make_plain(Case *c, int number) {
    make_case(c, (uint64_t)number);
    RequestOptions *o = &c->options;
    if (number % 16 == 15) return; /* whatever that is */
    o->echo_logprobs = false;
    o->choices = number % 8 == 1 ? 3 : 1;
    o->max_tokens = number % 7 == 0 ? 1 + number % 2 : 1 + number * 37 % 600;
    o->sampling = (SamplingOptions){.temperature = number % 3 ? 0.9f : 0,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = (uint64_t)number,
        .min_tokens = number % 5 == 2 ? 4 : 0,
        .logprobs = number % 11 == 10 ? 1 : -1};
}

static Engine *open_with(int slots, size_t kv_bytes, const KvFormat *format) {
    Error error = {0};
    EngineOptions options = {
        .directory = "fake", .slots = slots, .queue_max = CASES, .prefill_size = 40, .kv_bytes = kv_bytes};
    if (format) options.kv_format = *format;
    Engine *engine = engine_open(&options, &error);
    CHECK(engine != NULL);
    return engine;
}

/* ---- answers ---- */

typedef struct Reader {
    Engine *engine;
    const Case *cases;
    Seen (*seen)[CHOICES];
    int first;
} Reader;

/* Every request, and beside it one that goes away amid its answer. */
static void *read_cases(void *argument) {
    const Reader *reader = argument;
    for (int i = reader->first; i < CASES; i += READERS) {
        const RequestOptions *o = &reader->cases[i].options;
        Request *request = submit(reader->engine, o);
        Request *other = submit(reader->engine, &reader->cases[(i + 7) % CASES].options);
        TokenOut token;
        Finish finish;
        (void)request_read(other, 0, &token, 1, 20, &finish);
        if (i % 2) request_stop_choice(other, 0);
        if (i % 3) request_cancel(other);
        request_free(other);
        read_all(request, o->choices, reader->seen[i]);
        request_free(request);
    }
    return NULL;
}

static void setting(const char *name, int window, bool quantised, int refuse, int decode_rows, int pages) {
    const KvFormat codes = {.k = KV_Q4, .v = KV_Q4, .after = 128, .hot = 128};
    static Case cases[CASES];
    static Seen alone[CASES][CHOICES], together[CASES][CHOICES];
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    fake_reset();
    fake.eos_logit = -2;
    fake.window = window;
    fake.quantised = quantised;
    fake.decode_rows = decode_rows;
    for (int i = 0; i < CASES; i++) make_plain(&cases[i], i);
    Engine *engine = open_with(1, 4000 * FAKE_PAGE_BYTES, quantised ? &codes : NULL);
    for (int i = 0; i < CASES; i++) {
        Request *request = submit(engine, &cases[i].options);
        read_all(request, cases[i].options.choices, alone[i]);
        request_free(request);
    }
    close_engine(engine);
    TEST(fake.sampled == 0 && fake.ahead == 0);
    fake.sample_params = true;
    fake.refuse = refuse;
    engine = open_with(SLOTS, (size_t)pages * FAKE_PAGE_BYTES, quantised ? &codes : NULL);
    Thread threads[READERS];
    Reader readers[READERS];
    Error error;
    for (int i = 0; i < READERS; i++) {
        readers[i] = (Reader){engine, cases, together, i};
        CHECK(thread_start(&threads[i], read_cases, &readers[i], "reader", &error));
    }
    for (int i = 0; i < READERS; i++) thread_join(threads[i]);
    wait_idle(engine);
    TEST(only_prefixes(engine));
    const uint64_t preempted = engine_stats(engine).preempted;
    for (int i = 0; i < CASES; i++)
        for (int k = 0; k < cases[i].options.choices; k++)
            TEST_MSG(!memcmp(&alone[i][k], &together[i][k], sizeof(Seen)), "%s: choice %d of request %d", name, k, i);
    /* How often strangers let a step be drawn for everybody in it is a matter of time; for one alone it is not. */
    for (int i = 0; i < CASES / 4; i++) {
        static Seen again[CHOICES];
        memset(again, 0, sizeof again);
        Request *request = submit(engine, &cases[i].options);
        read_all(request, cases[i].options.choices, again);
        request_free(request);
        TEST_MSG(!memcmp(alone[i], again, sizeof again), "%s: request %d by itself", name, i);
    }
    close_engine(engine);
    TEST_MSG(fake.sampled > 100 && fake.ahead > 20, "%s: %d drawn, %d ahead", name, fake.sampled, fake.ahead);
    printf("%s: %d tokens drawn, %d of %d steps ahead, %d parked\n", name, fake.sampled, fake.ahead, fake.steps,
        (int)preempted);
}

/* ---- ends ---- */

/* So many tokens take so many steps, and no more: what ends for certain is not gone on with. */
static void test_lengths(void) {
    fake_reset();
    fake.sample_params = true;
    fake.context = 512;
    Engine *engine = open_engine(2, 2, 512, 0);
    Case c;
    make_prompt(&c, 10, 1);
    c.options.sampling.ignore_eos = true;
    for (int tokens = 1; tokens < 5; tokens++) {
        const int before = fake_steps();
        c.options.max_tokens = tokens;
        const Seen seen = run_one(engine, &c.options);
        TEST(seen.count == tokens && seen.finish == FINISH_LENGTH);
        wait_idle(engine);
        TEST_MSG(fake_steps() == before + tokens, "%d tokens: %d steps", tokens, fake_steps() - before);
    }
    make_prompt(&c, 500, 1);
    c.options.max_tokens = INT32_MAX; /* as much as the context holds */
    c.options.sampling.ignore_eos = true;
    const Seen seen = run_one(engine, &c.options);
    TEST_MSG(seen.count == 12 && seen.finish == FINISH_LENGTH, "%d tokens", seen.count);
    close_engine(engine);
}

/* The step behind the end of an answer is under way when the next request comes, which finds the answer's pages. */
static void test_found_again(int decode_rows) {
    fake_reset();
    fake.decode_rows = decode_rows;
    fake.eos_logit = 1;
    static Case c;
    Seen first[40], second[40];
    for (int sample_params = 0; sample_params < 2; sample_params++) {
        fake.sample_params = sample_params;
        Engine *engine = open_engine(2, 2, 64, 0);
        for (int i = 0; i < 40; i++) {
            make_prompt(&c, 60 + 3 * i, (uint64_t)i);
            c.options.max_tokens = 200;
            const Seen seen = run_one(engine, &c.options);
            Seen *result = sample_params ? second : first;
            const int prompt = c.options.prompt_count; /* goes on behind the answer */
            memcpy(c.prompt + prompt, seen.ids, (size_t)seen.count * sizeof *seen.ids);
            c.options.prompt_count += seen.count;
            c.options.max_tokens = 20;
            result[i] = run_one(engine, &c.options);
        }
        wait_idle(engine);
        TEST(only_prefixes(engine));
        close_engine(engine);
    }
    for (int i = 0; i < 40; i++) TEST_MSG(!memcmp(&first[i], &second[i], sizeof(Seen)), "request %d", i);
}

/* A parked answer is read again row by row: nothing is drawn behind such a row, so no step begins ahead of it. least:
 * so many rows of prompts and answers are read one at a time beside others that draw. */
static void test_row_by_row(int prefill_size, int count, int least) {
    enum { MOST = 4, PARKED = 2 };
    static const int prompts[MOST] = {200, 10, 200, 10}, tokens[MOST] = {700, 800, 700, 300};
    static Case c[MOST];
    Seen alone[MOST], seen;
    Request *requests[MOST];
    fake_reset();
    for (int i = 0; i < count; i++) {
        make_prompt(&c[i], prompts[i], (uint64_t)i + 3);
        c[i].options.max_tokens = tokens[i];
        c[i].options.sampling.ignore_eos = true;
        Engine *engine = open_engine(1, 1, 64, 0);
        alone[i] = run_one(engine, &c[i].options);
        close_engine(engine);
    }
    const int before = fake.steps;
    fake.sample_params = fake.gated = true;
    Engine *engine = open_engine(3, MOST, prefill_size, 18 * FAKE_PAGE_BYTES);
    for (int i = 0; i < count; i++) requests[i] = submit(engine, &c[i].options);
    fake_open_gate();
    for (int i = 0; i < count; i++) {
        read_all(requests[i], 1, &seen);
        TEST_MSG(!memcmp(&seen, &alone[i], sizeof seen), "request %d", i);
    }
    TEST(request_stats(requests[PARKED]).preempted > 0);
    for (int i = 0; i < count; i++) request_free(requests[i]);
    close_engine(engine);
    int rows = 0;
    for (int i = before; i < fake.steps; i++) {
        const FakeStep *step = &fake.log[i % FAKE_STEPS];
        rows += step->rows == step->chunks && step->outputs > 0 && step->outputs < step->chunks;
    }
    TEST_MSG(rows >= least, "%d rows", rows);
}

/* ---- who is there while a step ahead is under way ---- */

static void test_cancel(void) {
    fake_reset();
    fake.sample_params = fake.gated = true;
    Engine *engine = open_engine(1, 4, 64, 0);
    Case first, second;
    make_prompt(&first, 10, 1);
    make_prompt(&second, 33, 2);
    first.options.max_tokens = 300;
    first.options.sampling.ignore_eos = true;
    Request *a = submit(engine, &first.options), *b = submit(engine, &second.options);
    fake_permit(4); /* the prompt, a step, and two ahead */
    fake_wait_arrived(5);
    request_cancel(a);
    fake_open_gate();
    Seen seen;
    read_all(a, 1, &seen);
    TEST_MSG(seen.finish == FINISH_CANCELLED && seen.count >= 3 && seen.count <= 5, "%d tokens", seen.count);
    read_all(b, 1, &seen);
    TEST(seen.finish == FINISH_STOP || seen.finish == FINISH_LENGTH);
    request_free(a);
    request_free(b);
    close_engine(engine);
}

static void test_close(void) {
    fake_reset();
    fake.sample_params = true;
    for (int round = 0; round < 20; round++) {
        Engine *engine = open_engine(2, 2, 64, 0);
        Case c;
        make_prompt(&c, 10, (uint64_t)round);
        c.options.max_tokens = 4000;
        c.options.sampling.ignore_eos = true;
        Request *request = submit(engine, &c.options);
        TokenOut tokens[4];
        Finish finish;
        CHECK(request_read(request, 0, tokens, 4, TIMEOUT_MS, &finish) > 0);
        close_engine(engine);
        static TokenOut rest[4000];
        request_read(request, 0, rest, 4000, TIMEOUT_MS, &finish);
        TEST(finish == FINISH_CANCELLED);
        request_free(request);
    }
}

/* The device fails in a step, ahead or not: who was in it hears of it, and the next request is answered. */
static void test_fault(ErrorCode code) {
    Case c;
    make_prompt(&c, 10, 1);
    c.options.sampling.ignore_eos = true;
    c.options.max_tokens = 12;
    fake_reset();
    Engine *engine = open_engine(2, 2, 64, 0);
    const Seen good = run_one(engine, &c.options);
    close_engine(engine);
    for (int at = 1; at < 8; at++) {
        fake_reset();
        fake.sample_params = true;
        fake.fail_at = at;
        fake.fail_code = code;
        engine = open_engine(2, 2, 64, 0);
        log_set_level(LOG_ERROR + 1); /* the failure is meant */
        const Seen bad = run_one(engine, &c.options);
        log_set_level(LOG_ERROR);
        TEST_MSG(bad.finish == FINISH_ERROR && bad.count == at - 1, "step %d: %d tokens", at, bad.count);
        TEST(!memcmp(bad.ids, good.ids, (size_t)bad.count * sizeof *bad.ids));
        const Seen after = run_one(engine, &c.options);
        TEST(!memcmp(&after, &good, sizeof good));
        wait_idle(engine);
        TEST(only_prefixes(engine));
        close_engine(engine);
    }
}

/* Of logits that are no numbers the host is asked, which says so. */
static void test_no_numbers(void) {
    for (int at = 1; at < 6; at++) {
        fake_reset();
        fake.sample_params = true;
        fake.refuse = 1; /* as a device that cannot draw from them */
        fake.nan_at = at;
        Engine *engine = open_engine(1, 1, 64, 0);
        Case c;
        make_prompt(&c, 10, 1);
        c.options.sampling.ignore_eos = true;
        const Seen seen = run_one(engine, &c.options);
        TEST(seen.finish == (at == 1 ? FINISH_LENGTH : FINISH_ERROR)); /* the first one was computed again */
        close_engine(engine);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    setting("exact", 0, false, 0, 0, 400);
    setting("few pages", 0, false, 0, 0, 14);
    if (!SANITIZED) {
        setting("a window", 150, false, 0, 0, 100);
        setting("codes", 0, true, 0, 0, 60);
        setting("not always drawn", 0, false, 97, 0, 400);
        setting("answers apart", 0, false, 97, SLOTS, 400);
        setting("answers apart, few pages", 0, false, 0, 64, 14);
    }
    setting("answers apart, a window", 150, false, 0, 10, 60);
    setting("answers apart, codes", 0, true, 97, 10, 60);
    test_lengths();
    test_found_again(0);
    test_found_again(2);
    test_row_by_row(1, 3, 260);
    test_cancel();
    test_close();
    test_fault(ERROR_DEVICE);
    test_fault(ERROR_MEMORY);
    test_no_numbers();
    return test_done();
}
