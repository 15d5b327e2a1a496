/* The engine over a fake model: what is asked alone is answered the same among strangers; order, limits, ends and
 * faults. */
#include "engine/engine_fixture.h"
#include "engine/sampler.h"

/* ---- 64 requests ---- */

enum { CASES = 64, CHOICES = 12, READERS = 8 };

typedef struct Result {
    Seen seen[CHOICES];
    uint64_t prompt;
} Result;

typedef struct Reader {
    Engine *engine;
    Case *cases;
    Result *results;
    int first, step;
} Reader;

static void *read_cases(void *argument) {
    const Reader *reader = argument;
    Request *request[CASES] = {NULL};
    for (int i = reader->first; i < CASES; i += reader->step)
        request[i] = submit(reader->engine, &reader->cases[i].options);
    for (int i = reader->first; i < CASES; i += reader->step) {
        const RequestOptions *o = &reader->cases[i].options;
        read_all(request[i], o->choices, reader->results[i].seen);
        reader->results[i].prompt = o->echo_logprobs ? prompt_hash(request[i], o->prompt_count) : 0;
        request_free(request[i]);
    }
    return NULL;
}

static void test_batched_equals_alone(void) {
    fake_reset();
    fake.eos_logit = 2;
    static Case cases[CASES];
    static Result alone[CASES], batched[CASES];
    memset(alone, 0, sizeof alone);
    memset(batched, 0, sizeof batched);
    for (int i = 0; i < CASES; i++) make_case(&cases[i], (uint64_t)i);
    Engine *engine = open_engine(1, 4, 512, 0);
    for (int i = 0; i < CASES; i++) {
        const RequestOptions *o = &cases[i].options;
        Request *request = submit(engine, o);
        read_all(request, o->choices, alone[i].seen);
        if (o->echo_logprobs) alone[i].prompt = prompt_hash(request, o->prompt_count);
        TEST(request_stats(request).prompt_tokens == o->prompt_count);
        request_free(request);
    }
    uint64_t expected_prompt = 0;
    for (int i = 0; i < CASES; i++) expected_prompt += (uint64_t)cases[i].options.prompt_count;
    wait_idle(engine);
    TEST(engine_stats(engine).prompt_tokens == expected_prompt); /* n choices: one prefill */
    close_engine(engine);

    engine = open_engine(8, CASES, 40, 60 * FAKE_PAGE_BYTES);
    Thread threads[READERS];
    Reader readers[READERS];
    Error error;
    for (int i = 0; i < READERS; i++) {
        readers[i] = (Reader){.engine = engine, .cases = cases, .results = batched, .first = i, .step = READERS};
        CHECK(thread_start(&threads[i], read_cases, &readers[i], "reader", &error));
    }
    for (int i = 0; i < READERS; i++) thread_join(threads[i]);
    wait_idle(engine);
    TEST(only_prefixes(engine));
    const EngineStats stats = engine_stats(engine);
    TEST(stats.preempted ? stats.prompt_tokens > expected_prompt : stats.prompt_tokens == expected_prompt);
    TEST(stats.preempted == stats.resumed);
    close_engine(engine);
    int stops = 0, lengths = 0, different = 0;
    for (int i = 0; i < CASES; i++) {
        const int choices = cases[i].options.choices;
        TEST_MSG(memcmp(alone[i].seen, batched[i].seen, (size_t)choices * sizeof(Seen)) == 0, "request %d", i);
        TEST_MSG(alone[i].prompt == batched[i].prompt, "prompt of request %d", i);
        for (int k = 0; k < choices; k++) {
            const Seen *s = &alone[i].seen[k];
            stops += s->finish == FINISH_STOP;
            lengths += s->finish == FINISH_LENGTH;
            TEST(s->finish != FINISH_LENGTH || s->count == cases[i].options.max_tokens);
            for (int n = 0; n < s->count; n++) TEST(s->ids[n] != FAKE_EOS);
            different += k > 0 && s->hash != alone[i].seen[0].hash;
        }
    }
    TEST(stops > 10 && lengths > 10); /* both ends were met */
    TEST(different > 20);             /* sampled choices differ from each other */
    int most = 0;
    for (int i = 0; i < fake.steps && i < FAKE_STEPS; i++) most = fake.log[i].chunks > most ? fake.log[i].chunks : most;
    TEST(most == 8);
}

/* The answer is what the model's logits say, computed here without engine or cache. */
static void test_against_naive(void) {
    fake_reset();
    Case c;
    make_prompt(&c, 200, 9);
    c.options.sampling.temperature = 0;
    c.options.sampling.logprobs = 2;
    c.options.echo_logprobs = true;
    c.options.max_tokens = 150;
    Engine *engine = open_engine(2, 2, 64, 0);
    Request *request = submit(engine, &c.options);
    Seen seen;
    read_all(request, 1, &seen);
    float logits[300];
    CHECK(fake.vocab == 300);
    uint64_t hash = 0, all = 0;
    bool equal = seen.count <= 150, prompt_equal = true;
    for (int i = 0; i < 200 + seen.count; i++) {
        const int32_t id = i < 200 ? c.prompt[i] : seen.ids[i - 200];
        TokenOut token;
        if (i < 200) {
            prompt_equal = prompt_equal && request_prompt_logprob(request, i, &token) && token.id == id;
            prompt_equal = prompt_equal && isnan(token.logprob) == (i == 0);
        }
        int best = 0;
        double total = 0;
        for (int v = 0; v < 300 && i > 0; v++) {
            total += exp((double)logits[v]);
            if (logits[v] > logits[best]) best = v;
        }
        if (i > 0 && i < 200) { /* 1e-5: 300 float terms of 2 ulp each */
            prompt_equal = prompt_equal && fabs((double)token.logprob - ((double)logits[id] - log(total))) < 1e-5;
            prompt_equal = prompt_equal && token.top_count == 2 && token.top[0].id == best;
        }
        if (i >= 200) equal = equal && id == best;
        hash = fake_next_hash(hash, id);
        fake_logits(all += 3 * hash, logits);
    }
    TEST(equal);
    TEST(prompt_equal);
    TokenOut token;
    TEST(!request_prompt_logprob(request, 200, &token) && !request_prompt_logprob(request, -1, &token));
    request_free(request);
    close_engine(engine);
}

/* Choices that draw: each is the sampler's walk with its own number, positions and history. */
static void test_choices_against_naive(void) {
    fake_reset();
    Case c;
    make_prompt(&c, 130, 4);
    RequestOptions *o = &c.options;
    o->choices = 3;
    o->max_tokens = 40;
    o->sampling.top_p = 0.95f;
    o->sampling.repetition_penalty = 1.3f;
    o->sampling.frequency_penalty = 0.2f;
    o->sampling.ignore_eos = true;
    o->sampling.bias_count = 1;
    o->sampling.bias_ids = c.bias_ids;
    o->sampling.bias_values = c.bias_values;
    c.bias_ids[0] = 7;
    c.bias_values[0] = 3;
    Engine *engine = open_engine(2, 2, 64, 0);
    Request *request = submit(engine, o);
    Seen seen[3];
    read_all(request, 3, seen);
    request_free(request);
    close_engine(engine);
    uint64_t prompt = 0, prompt_all = 0;
    for (int i = 0; i < 130; i++) prompt_all += 3 * (prompt = fake_next_hash(prompt, c.prompt[i]));
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, 300, &error));
    for (int k = 0; k < 3; k++) {
        void *memory = calloc(1, sampler_bytes(&o->sampling, 300, 170));
        CHECK(memory != NULL);
        Sampler sampler;
        sampler_init(&sampler, &o->sampling, 300, k, memory);
        sampler_prompt(&sampler, c.prompt, 130);
        uint64_t hash = prompt, all = prompt_all;
        int equal = 0;
        for (int i = 0; i < 40; i++) {
            float logits[300];
            TokenOut token;
            fake_logits(all, logits);
            const int32_t id = sampler_next(&sampler, &scratch, logits, 130 + i, &token);
            equal += id == seen[k].ids[i];
            all += 3 * (hash = fake_next_hash(hash, id));
        }
        TEST_MSG(equal == 40 && seen[k].count == 40, "choice %d: %d of %d tokens", k, equal, seen[k].count);
        free(memory);
    }
    sampler_scratch_close(&scratch);
}

/* ---- ends ---- */

static void test_ends(void) {
    fake_reset();
    fake.context = 512;
    Engine *engine = open_engine(4, 4, 64, 0);
    Case c;
    make_prompt(&c, 500, 1);
    c.options.max_tokens = INT32_MAX; /* as much as the context holds */
    c.options.sampling.ignore_eos = true;
    Seen seen = run_one(engine, &c.options);
    TEST_MSG(seen.count == 12 && seen.finish == FINISH_LENGTH, "%d tokens", seen.count);

    make_prompt(&c, 511, 1);
    c.options.sampling.ignore_eos = true;
    seen = run_one(engine, &c.options);
    TEST(seen.count == 1 && seen.finish == FINISH_LENGTH);

    Error error = {0};
    make_prompt(&c, 512, 1);
    TEST(engine_submit(engine, &c.options, &error) == NULL && error.code == ERROR_LIMIT);
    c.options.prompt_count = 600;
    TEST(engine_submit(engine, &c.options, &error) == NULL && error.code == ERROR_LIMIT);
    TEST_MSG(strstr(error.text, "512") && strstr(error.text, "600"), "%s", error.text);
    close_engine(engine);

    fake_reset();
    fake.eos_logit = 100;
    engine = open_engine(4, 4, 64, 0);
    make_prompt(&c, 10, 1);
    seen = run_one(engine, &c.options);
    TEST(seen.count == 0 && seen.finish == FINISH_STOP);
    c.options.choices = 3; /* all end with their first token: nothing is forked */
    Seen three[3];
    Request *request = submit(engine, &c.options);
    read_all(request, 3, three);
    for (int i = 0; i < 3; i++) TEST(three[i].count == 0 && three[i].finish == FINISH_STOP);
    request_free(request);
    c.options.choices = 1;
    c.options.sampling.ignore_eos = true;
    seen = run_one(engine, &c.options);
    TEST(seen.count == 20 && seen.finish == FINISH_LENGTH && seen.ids[0] == FAKE_EOS);
    close_engine(engine);
}

static void test_bad_requests(void) {
    fake_reset();
    Engine *engine = open_engine(1, 1, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    for (int kind = 0; kind < 8; kind++) {
        RequestOptions o = c.options;
        const int32_t bad[] = {5, kind % 2 ? 300 : -1};
        const float values[] = {1, 1};
        if (kind < 2) o.prompt = bad, o.prompt_count = 2;
        if (kind == 2) o.prompt_count = 0;
        if (kind == 3) o.max_tokens = 0;
        if (kind == 4) o.choices = 0;
        if (kind == 5) o.choices = CHOICES_MAX + 1;
        if (kind == 6) o.sampling.logprobs = LOGPROBS_TOP_MAX + 1;
        if (kind == 7) o.sampling.bias_count = 2, o.sampling.bias_ids = bad, o.sampling.bias_values = values;
        Error error = {0};
        TEST_MSG(engine_submit(engine, &o, &error) == NULL && error.code == ERROR_USAGE, "kind %d", kind);
    }
    TEST(run_one(engine, &c.options).finish != FINISH_ERROR);
    close_engine(engine);
}

/* Values that no distribution comes from are refused by their names. */
static void test_bad_sampling(void) {
    fake_reset();
    Engine *engine = open_engine(1, 1, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    const struct {
        const char *name;
        size_t field;
        float bad[4];
    } fields[] = {
        {"temperature", offsetof(SamplingOptions, temperature), {-0.1f, NAN, INFINITY, -INFINITY}},
        {"top_p", offsetof(SamplingOptions, top_p), {-0.1f, NAN, 1.1f, INFINITY}},
        {"min_p", offsetof(SamplingOptions, min_p), {-0.1f, NAN, 1.1f, INFINITY}},
        {"repetition_penalty", offsetof(SamplingOptions, repetition_penalty), {0, NAN, -1, INFINITY}},
        {"frequency_penalty", offsetof(SamplingOptions, frequency_penalty), {NAN, INFINITY, -INFINITY, NAN}},
        {"presence_penalty", offsetof(SamplingOptions, presence_penalty), {NAN, INFINITY, -INFINITY, NAN}},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (int k = 0; k < 4; k++) {
            RequestOptions o = c.options;
            memcpy((char *)&o.sampling + fields[i].field, &fields[i].bad[k], sizeof(float));
            Error error = {0};
            Request *request = engine_submit(engine, &o, &error);
            TEST_MSG(!request && error.code == ERROR_USAGE && strstr(error.text, fields[i].name), "%s = %g: %s",
                fields[i].name, (double)fields[i].bad[k], error.text);
            if (request) request_free(request);
        }
    }
    const int32_t id = 5;
    const float nan = NAN;
    for (int kind = 0; kind < 4; kind++) {
        RequestOptions o = c.options;
        if (kind == 0) o.sampling.top_k = -1;
        if (kind == 1) o.sampling.logprobs = -2;
        if (kind == 2) o.sampling.bias_count = -1;
        if (kind == 3) o.sampling.bias_count = 1, o.sampling.bias_ids = &id, o.sampling.bias_values = &nan;
        Error error = {0};
        Request *request = engine_submit(engine, &o, &error);
        TEST_MSG(!request && error.code == ERROR_USAGE, "kind %d", kind);
        if (request) request_free(request);
    }
    close_engine(engine);
}

static void test_stop_choice(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(4, 4, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    c.options.choices = 3;
    c.options.max_tokens = 30;
    c.options.sampling.ignore_eos = true;
    Request *request = submit(engine, &c.options);
    fake_permit(5); /* prefill, which gives everybody's first token, and four more */
    fake_wait_arrived(6);
    request_stop_choice(request, 1);
    fake_open_gate();
    Seen seen[3];
    read_all(request, 3, seen);
    TEST_MSG(seen[1].finish == FINISH_STOP && seen[1].count >= 5 && seen[1].count <= 6, "%d", seen[1].count);
    TEST(seen[0].finish == FINISH_LENGTH && seen[0].count == 30 && seen[2].count == 30);
    request_free(request);
    close_engine(engine);
}

/* ---- cancelling ---- */

static void test_cancel(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(1, 4, 64, 0);
    Case first, second;
    make_prompt(&first, 10, 1);
    make_prompt(&second, 33, 2);
    first.options.max_tokens = 300;
    first.options.sampling.ignore_eos = true;
    Request *a = submit(engine, &first.options), *b = submit(engine, &second.options);
    Request *c = submit(engine, &second.options);
    fake_permit(4);
    fake_wait_arrived(5); /* the fifth step of a is under way */
    request_cancel(a);
    request_cancel(a);
    request_cancel(c); /* while it waits */
    fake_permit(1);
    fake_wait_arrived(6);
    fake_permit(1);
    fake_wait_arrived(7);
    TEST(fake.log[4].rows == 1);  /* a's last token */
    TEST(fake.log[5].rows == 33); /* one step later b has the slot */
    Seen seen;
    read_all(a, 1, &seen);
    TEST(seen.finish == FINISH_CANCELLED && seen.count == 5);
    fake_open_gate();
    read_all(b, 1, &seen);
    TEST(seen.finish != FINISH_CANCELLED);
    Seen dropped;
    read_all(c, 1, &dropped);
    TEST(dropped.finish == FINISH_CANCELLED && dropped.count == 0);
    request_free(a);
    request_free(b);
    request_free(c);

    a = submit(engine, &first.options); /* freed while it runs */
    request_free(a);
    wait_idle(engine);
    TEST(only_prefixes(engine));
    close_engine(engine);
}

static void test_close_while_running(void) {
    fake_reset();
    Engine *engine = open_engine(2, 8, 64, 0);
    Case c;
    Request *requests[6];
    for (int i = 0; i < 6; i++) {
        make_prompt(&c, 50, (uint64_t)i);
        c.options.max_tokens = 4000;
        c.options.choices = 1 + i % 3;
        c.options.sampling.ignore_eos = true;
        requests[i] = submit(engine, &c.options);
    }
    const int64_t start = clock_ns();
    close_engine(engine);
    TEST(clock_ns() - start < 2000000000);
    for (int i = 0; i < 6; i++) { /* requests outlive the engine */
        for (int k = 0; k < 1 + i % 3; k++) {
            static TokenOut tokens[4000];
            Finish finish;
            request_read(requests[i], k, tokens, 4000, TIMEOUT_MS, &finish);
            TEST(finish == FINISH_CANCELLED);
        }
        request_cancel(requests[i]);
        request_free(requests[i]);
    }
}

/* ---- faults ---- */

static void test_fault(void) {
    fake_reset();
    fake.gated = true;
    fake.fail_at = 4;
    Engine *engine = open_engine(1, 8, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    c.options.sampling.ignore_eos = true;
    c.options.choices = 2;
    Request *a = submit(engine, &c.options);
    c.options.choices = 1;
    Request *b = submit(engine, &c.options); /* waits: it is not in the step that fails */
    fake_wait_arrived(1);
    log_set_level(LOG_ERROR + 1); /* the failure is meant */
    fake_open_gate();
    Seen seen[2];
    read_all(a, 2, seen);
    TEST(seen[0].finish == FINISH_ERROR && seen[1].finish == FINISH_ERROR && seen[0].count == 3);
    Error error = {0};
    request_error(a, &error);
    TEST_MSG(error.code == ERROR_DEVICE && strstr(error.text, "fake device"), "%s", error.text);
    read_all(b, 1, seen);
    log_set_level(LOG_ERROR);
    TEST(seen[0].finish == FINISH_LENGTH && seen[0].count == 20);
    request_free(a);
    request_free(b);
    wait_idle(engine);
    TEST(only_prefixes(engine));
    close_engine(engine);
}

/* Of a step that gave no numbers there is no answer and no vector, and nothing stays to be found. */
static void test_no_numbers(void) {
    fake_reset();
    Error error = {0};
    const EngineOptions options = {.directory = "fake",
        .slots = 1,
        .queue_max = 1,
        .prefill_size = 512,
        .kv_bytes = 16 * FAKE_PAGE_BYTES,
        .pooling = POOLING_LAST};
    Engine *engine = engine_open(&options, &error);
    CHECK(engine != NULL);
    for (int embeds = 0; embeds < 2; embeds++) {
        Case c;
        make_prompt(&c, 300, (uint64_t)embeds + 1);
        c.options.embeds = embeds;
        c.options.max_tokens = 1;
        c.options.sampling.ignore_eos = true;
        fake.nan_at = fake_steps() + 1;
        for (int good = 0; good < 2; good++) {
            Request *request = submit(engine, &c.options);
            Seen seen;
            read_all(request, 1, &seen);
            if (good) TEST(seen.finish == (embeds ? FINISH_STOP : FINISH_LENGTH));
            if (!good) TEST(seen.finish == FINISH_ERROR);
            TEST_MSG(request_stats(request).cached_tokens == 0, "%d tokens", request_stats(request).cached_tokens);
            if (good && embeds) TEST(request_embedding(request)[0] == (float)c.prompt[299]);
            request_free(request);
        }
    }
    wait_idle(engine);
    TEST(only_prefixes(engine));
    close_engine(engine);
}

/* Readers that come, read a little, stop, cancel and vanish. */
static void *misbehave(void *argument) {
    const Reader *reader = argument;
    uint64_t state = (uint64_t)reader->first;
    for (int i = 0; i < 40; i++) {
        Error error;
        Request *request = engine_submit(reader->engine, &reader->cases[test_random(&state) % CASES].options, &error);
        if (!request) continue;
        TokenOut tokens[3];
        Finish finish;
        for (uint64_t n = test_random(&state) % 6; n > 0; n--) {
            const int ready = request_wait(request, 5);
            if (ready >= 0) request_read(request, ready, tokens, 3, 0, &finish);
        }
        if (test_random(&state) % 2) request_stop_choice(request, 0);
        if (test_random(&state) % 2) request_cancel(request);
        request_stats(request);
        engine_stats(reader->engine);
        request_free(request);
    }
    return NULL;
}

static void test_misbehaviour(void) {
    fake_reset();
    static Case cases[CASES];
    for (int i = 0; i < CASES; i++) make_case(&cases[i], (uint64_t)i);
    Engine *engine = open_engine(4, 6, 64, 40 * FAKE_PAGE_BYTES);
    Thread threads[READERS];
    Reader readers[READERS];
    Error error;
    for (int i = 0; i < READERS; i++) {
        readers[i] = (Reader){.engine = engine, .cases = cases, .first = i};
        CHECK(thread_start(&threads[i], misbehave, &readers[i], "reader", &error));
    }
    for (int i = 0; i < READERS; i++) thread_join(threads[i]);
    wait_idle(engine);
    TEST(only_prefixes(engine));
    make_case(&cases[0], 1);
    TEST(run_one(engine, &cases[0].options).finish != FINISH_CANCELLED);
    close_engine(engine);
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_batched_equals_alone();
    test_against_naive();
    test_choices_against_naive();
    test_ends();
    test_bad_requests();
    test_bad_sampling();
    test_stop_choice();
    test_cancel();
    test_close_while_running();
    test_fault();
    test_no_numbers();
    test_misbehaviour();
    return test_done();
}
