/* Memory that is shared, given up and had again: whatever is found of a prompt, however often an answer is parked, it
 * is the one that the request gets alone and cold; in every form of the cache. */
#include "backend/recurrent.h"
#include "cache/prefix.h"
#include "engine/engine_fixture.h"

enum { SLOTS = 6, PARTY = 24, CHOICES = 3 };

static const KvFormat turbo = {
    .k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 256, .hot = 128, .sink = 128};

typedef struct Setting {
    const char *name;
    int window;
    bool quantised;
    int decode_rows;
    bool states;
} Setting;
static const Setting settings[] = {{"exact", 0, false, 0, false}, {"windows", 200, false, 0, false},
    {"codes", 0, true, 0, false}, {"codes and windows", 150, true, 0, false}, {"answers apart", 0, false, SLOTS, false},
    {"answers apart and windows", 200, false, 9, false}, {"answers apart and codes", 0, true, 64, false},
    {"answers apart, codes and windows", 150, true, 20, false}, {"states", 0, false, 0, true},
    {"states and codes", 0, true, 0, true}, {"answers apart and states", 0, false, 20, true}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void use_setting(int i) {
    fake_reset();
    fake.context = 1024;
    fake.window = settings[i].window;
    fake.quantised = settings[i].quantised;
    fake.decode_rows = settings[i].decode_rows;
    fake.states = settings[i].states;
}

static Engine *open_sharing(int slots, size_t pages, bool prefix_off) {
    Error error = {0};
    const EngineOptions options = {.directory = "fake",
        .slots = slots,
        .queue_max = 2 * PARTY,
        .prefill_size = 64,
        .kv_format = turbo,
        .prefix_off = prefix_off,
        .kv_bytes = pages * FAKE_PAGE_BYTES};
    Engine *engine = engine_open(&options, &error);
    if (!engine) fprintf(stderr, "%s\n", error.text);
    CHECK(engine != NULL);
    return engine;
}

/* Several begin alike; some have choices, some echo, some ask for an exact cache. */
static void make_party(Case *cases) {
    for (int i = 0; i < PARTY; i++) {
        make_case(&cases[i], (uint64_t)i + 100);
        RequestOptions *o = &cases[i].options;
        Case common;
        make_prompt(&common, 500, (uint64_t)(i % 3));
        o->prompt_count = 30 + 17 * i;
        memcpy(cases[i].prompt, common.prompt, (size_t)(30 * (i % 12)) * sizeof *common.prompt);
        for (int k = 30 * (i % 12); k < o->prompt_count; k++) cases[i].prompt[k] = (k * 7 + i) % 300;
        o->max_tokens = 400 + i * 8;
        o->choices = i % 6 == 5 ? CHOICES : 1;
        o->echo_logprobs = i % 8 == 3;
        o->cache_off = i % 11 == 7;
        o->cache_salt = (uint64_t)(i % 2);
        o->sampling.ignore_eos = true;
    }
}

typedef struct Result {
    Seen seen[CHOICES];
    uint64_t prompt;
} Result;

static Request *start(Engine *engine, const Case *c) { return submit(engine, &c->options); }

static void finish(Request *request, const Case *c, Result *result) {
    *result = (Result){0};
    read_all(request, c->options.choices, result->seen);
    if (c->options.echo_logprobs) result->prompt = prompt_hash(request, c->options.prompt_count);
    const RequestStats stats = request_stats(request);
    TEST(stats.kv_full_bytes > 0 && stats.kv_f16_bytes > 0 && (fake.quantised || stats.kv_quantised_bytes == 0));
    TEST(stats.cached_tokens < stats.prompt_tokens);
    if (c->options.cache_off || c->options.echo_logprobs) TEST(stats.cached_tokens == 0);
    request_free(request);
}

static void compare(const char *what, const Result *a, const Result *b) {
    for (int i = 0; i < PARTY; i++) TEST_MSG(!memcmp(&a[i], &b[i], sizeof *a), "request %d, %s", i, what);
}

/* With room for little more than the longest, over and over, in one order and another. */
static void test_preemption(int setting) {
    static Case cases[PARTY];
    static Result alone[PARTY], crowded[PARTY];
    use_setting(setting);
    make_party(cases);
    Engine *engine = open_sharing(1, 500, true);
    for (int i = 0; i < PARTY; i++) finish(start(engine, &cases[i]), &cases[i], &alone[i]);
    wait_idle(engine);
    TEST(engine_stats(engine).kv_bytes == 0 && engine_stats(engine).preempted == 0);
    close_engine(engine);
    uint64_t preempted = 0;
    for (int round = 0; round < 4; round++) {
        engine = open_sharing(
            SLOTS, (round % 2 ? 9 : 12) + (fake.window ? 5 : 0) + (fake.states ? 2 - fake.quantised : 0), round == 3);
        Request *requests[PARTY];
        for (int i = 0; i < PARTY; i++) requests[i] = start(engine, &cases[round < 2 ? i : PARTY - 1 - i]);
        for (int i = 0; i < PARTY; i++) {
            const int at = round < 2 ? i : PARTY - 1 - i;
            finish(requests[i], &cases[at], &crowded[at]);
        }
        wait_idle(engine);
        const EngineStats stats = engine_stats(engine);
        TEST(only_prefixes(engine) && stats.preempted == stats.resumed);
        preempted += stats.preempted;
        TEST((stats.prefix_evictions > 0) == (round < 3) && (stats.prefix_lookups > 0) == (round < 3));
        close_engine(engine);
        compare(settings[setting].name, alone, crowded);
    }
    TEST_MSG(preempted > 1, "%s: %llu parked", settings[setting].name, (unsigned long long)preempted);
}

/* The same prompt again, its next turn, an edit: what was computed is found, and nothing else changes. */
static void test_warm(int setting) {
    use_setting(setting);
    Engine *cold = open_sharing(1, 500, true), *warm = open_sharing(2, 500, false);
    Case c;
    make_prompt(&c, 310, 5);
    c.options.max_tokens = 90;
    c.options.sampling.ignore_eos = true;
    c.options.sampling.logprobs = 3;
    for (int candidate = 0; candidate < 4; candidate++) {
        const Seen a = run_one(cold, &c.options), b = run_one(warm, &c.options);
        TEST_MSG(!memcmp(&a, &b, sizeof a), "%s, turn %d", settings[setting].name, candidate);
        Request *again = submit(warm, &c.options);
        Seen seen;
        read_all(again, 1, &seen);
        const int cached = request_stats(again).cached_tokens, count = c.options.prompt_count;
        const int least = fake.states ? (count - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS : count - 1;
        TEST_MSG(!memcmp(&a, &seen, sizeof a) && cached >= least && cached < count, "%s, turn %d: %d of %d",
            settings[setting].name, candidate, cached, count);
        request_free(again);
        memcpy(c.prompt + count, a.ids, 90 * sizeof *a.ids);
        c.options.prompt_count = count + 95;
        for (int i = 90; i < 95; i++) c.prompt[count + i] = i;
        Request *next = submit(warm, &c.options);
        read_all(next, 1, &seen);
        const int found = request_stats(next).cached_tokens; /* an answer's last token is not computed */
        const int most = fake.decode_rows ? count : count + 89;
        TEST_MSG(found <= most && found > most - PREFIX_PART_LEAST, "%d of %d", found, count + 95);
        request_free(next);
    }
    c.prompt[200] ^= 1;
    const Seen a = run_one(cold, &c.options), b = run_one(warm, &c.options);
    TEST(!memcmp(&a, &b, sizeof a));
    wait_idle(warm);
    const EngineStats stats = engine_stats(warm);
    TEST(stats.prefix_lookups == 13 && stats.prefix_hits >= 11 && stats.prefix_tokens > 3000);
    if (fake.quantised) TEST(stats.kv_form_pages[KV_Q4] > 0 && stats.kv_form_bytes[KV_Q4] > 0);
    close_engine(cold);
    close_engine(warm);
}

/* A conversation with this beginning and an own rest, which nobody has asked before: how much of it is found. */
static int ask_parting(Engine *cold, Engine *warm, const Case *common, int shared, int number, int choices) {
    static Case c;
    make_prompt(&c, 690, (uint64_t)number + 50);
    for (int i = 0; i < c.options.prompt_count; i++)
        if (c.prompt[i] == FAKE_EOS) c.prompt[i]++;
    memcpy(c.prompt, common->prompt, (size_t)shared * sizeof *c.prompt);
    c.options.max_tokens = 12;
    c.options.choices = choices;
    c.options.sampling.ignore_eos = true;
    c.options.sampling.logprobs = 3;
    Seen a[CHOICES], b[CHOICES];
    Request *alone = submit(cold, &c.options), *request = submit(warm, &c.options);
    read_all(alone, choices, a);
    read_all(request, choices, b);
    TEST_MSG(!memcmp(a, b, (size_t)choices * sizeof *a), "text %d behind %d tokens", number, shared);
    const int cached = request_stats(request).cached_tokens;
    request_free(alone);
    request_free(request);
    return cached;
}

/* Texts that share their beginning only: what a first message ends with is there for the second of them, any other
 * place where two have parted for the third, in whole pages, or of states in pages of theirs. `after` lies below some
 * of these places and above others.
 */
static void test_parting(int setting) {
    static const int places[] = {140, 256, 300, 520, 640};
    use_setting(setting);
    const bool forgets = fake.quantised || fake.window || fake.states;
    Engine *cold = open_sharing(1, 500, true), *warm = open_sharing(2, 500, false);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (int ended = 0; ended < 2; ended++) {
            const int shared = places[i], pages = shared / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
            static Case common;
            make_prompt(&common, shared, 1000 + 2 * i + (uint64_t)ended);
            for (int k = 0; k < shared; k++)
                if (common.prompt[k] == FAKE_EOS) common.prompt[k]++;
            if (ended) common.prompt[shared - 1] = FAKE_EOS;
            const int first = ask_parting(cold, warm, &common, shared, 0, 1);
            const int second = ask_parting(cold, warm, &common, shared, 1, ended ? CHOICES : 1);
            const int third = ask_parting(cold, warm, &common, shared, 2, 1);
            const int least = fake.states ? shared - RECURRENT_PAGE_TOKENS + 1
                : forgets                 ? pages
                                          : shared - PREFIX_PART_LEAST;
            TEST_MSG(first < PREFIX_PART_LEAST && (second >= least || (forgets && !ended)) && third >= least &&
                    third <= shared + PREFIX_PART_LEAST,
                "%s: %d, %d and %d of %d tokens were found", settings[setting].name, first, second, third, shared);
        }
    }
    close_engine(cold);
    close_engine(warm);
}

/* Other spaces, and requests that leave nothing, find nothing. */
static void test_isolation(void) {
    use_setting(0);
    Engine *engine = open_sharing(2, 500, false);
    Case c;
    make_prompt(&c, 300, 5);
    c.options.max_tokens = 3;
    c.options.sampling.ignore_eos = true;
    static const struct {
        uint64_t salt;
        bool off;
        int cached;
    } steps[] = {{1, true, 0}, {1, false, 0}, {1, false, 299}, {2, false, 0}, {1, true, 0}, {2, false, 299}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        c.options.cache_salt = steps[i].salt;
        c.options.cache_off = steps[i].off;
        Request *request = submit(engine, &c.options);
        Seen seen;
        read_all(request, 1, &seen);
        TEST_MSG(request_stats(request).cached_tokens == steps[i].cached, "step %zu", i);
        request_free(request);
    }
    close_engine(engine);
}

/* One that does not fit alone is refused with both numbers; an answer is cut to what fits alone; many that each want
 * all of the memory do not wait for each other's promises. */
static void test_memory_is_used(void) {
    use_setting(0);
    fake.context = 4000;
    Engine *engine = open_sharing(8, 8, false);
    static Case c;
    Error error = {0};
    make_prompt(&c, 700, 1);
    static int32_t prompt[1100];
    for (int i = 0; i < 1100; i++) prompt[i] = i % 300;
    c.options.prompt = prompt;
    c.options.prompt_count = 1024;
    c.options.max_tokens = 4000;
    c.options.sampling.ignore_eos = true;
    TEST(!engine_submit(engine, &c.options, &error) && error.code == ERROR_LIMIT);
    TEST_MSG(strstr(error.text, "9216") && strstr(error.text, "8192"), "%s", error.text); /* bytes */
    c.options.prompt_count = 1000;
    TEST(run_one(engine, &c.options).count == 24);
    Request *requests[16];
    for (int i = 0; i < 16; i++) {
        prompt[0] = i;
        c.options.prompt_count = 20;
        c.options.max_tokens = i == 15 ? 5 : 380;
        requests[i] = submit(engine, &c.options);
    }
    for (int i = 15; i >= 0; i--) {
        Seen seen;
        read_all(requests[i], 1, &seen);
        TEST(seen.count == (i == 15 ? 5 : 380) && seen.finish == FINISH_LENGTH);
        request_free(requests[i]);
    }
    int most = 0;
    for (int i = 0; i < fake.steps && i < FAKE_STEPS; i++) most = fake.log[i].chunks > most ? fake.log[i].chunks : most;
    TEST_MSG(most >= 3, "%d at once", most); /* two, if each had to be promised all that it may ask for */
    close_engine(engine);
}

/* Readers that come, read a little, stop, cancel and vanish, in too little memory. */
typedef struct Reader {
    Engine *engine;
    Case *cases;
    uint64_t seed;
} Reader;

static void *misbehave(void *argument) {
    const Reader *reader = argument;
    uint64_t state = reader->seed;
    for (int i = 0; i < 150; i++) {
        Error error;
        Request *request = engine_submit(reader->engine, &reader->cases[test_random(&state) % PARTY].options, &error);
        if (!request) continue;
        TokenOut tokens[20];
        Finish finish;
        for (uint64_t n = test_random(&state) % 12; n > 0; n--) {
            const int ready = request_wait(request, 5);
            if (ready >= 0) request_read(request, ready, tokens, 20, 0, &finish);
        }
        if (test_random(&state) % 2) request_stop_choice(request, 0);
        if (test_random(&state) % 2) request_cancel(request);
        request_free(request);
    }
    return NULL;
}

static void test_soak(int setting) {
    static Case cases[PARTY];
    use_setting(setting);
    make_party(cases);
    Engine *engine = open_sharing(SLOTS, 18, setting == 1);
    Thread threads[4];
    Reader readers[4];
    Error error;
    for (int i = 0; i < 4; i++) {
        readers[i] = (Reader){engine, cases, (uint64_t)(10 * setting + i)};
        CHECK(thread_start(&threads[i], misbehave, &readers[i], "reader", &error));
    }
    for (int i = 0; i < 4; i++) thread_join(threads[i]);
    wait_idle(engine);
    TEST(only_prefixes(engine) && !engine_stats(engine).full);
    TEST(run_one(engine, &cases[1].options).finish == FINISH_LENGTH);
    close_engine(engine);
}

/* ---- content ids and positions ---- */

enum { MEDIA_PROMPT = 300, MEDIA_AT = 20 /* position of the first placeholder */ };

/* The prompt's tokens found in the prefix cache, and its answer. */
static int cached_tokens(Engine *engine, const RequestOptions *options, Seen *seen) {
    Request *request = submit(engine, options);
    read_all(request, 1, seen);
    const int cached = request_stats(request).cached_tokens;
    request_free(request);
    return cached;
}

/* Prompts with the same placeholder tokens share pages exactly as far as their content ids are equal. */
static void test_content_ids(void) {
    fake_reset();
    static Case c;
    static uint64_t first[MEDIA_PROMPT], second[MEDIA_PROMPT];
    Seen seen, again, other;
    Engine *engine = open_engine(2, 4, 64, 0);
    make_prompt(&c, MEDIA_PROMPT, 5);
    for (int i = 0; i < MEDIA_PROMPT; i++) {
        if (i >= MEDIA_AT && i < 2 * MEDIA_AT) c.prompt[i] = 7;
        first[i] = i == MEDIA_AT ? UINT64_C(0x123456789abcdef0) : (uint64_t)c.prompt[i];
        second[i] = i == MEDIA_AT ? UINT64_C(0x0fedcba987654321) : (uint64_t)c.prompt[i];
    }
    c.options.content_ids = first;
    TEST(cached_tokens(engine, &c.options, &seen) == 0);
    TEST(cached_tokens(engine, &c.options, &again) == MEDIA_PROMPT - 1);
    TEST(seen.hash == again.hash);
    c.options.content_ids = second;
    TEST(cached_tokens(engine, &c.options, &other) <= MEDIA_AT);
    c.options.content_ids = NULL;
    TEST(cached_tokens(engine, &c.options, &other) <= MEDIA_AT);
    close_engine(engine);
}

/* RoPE positions reach each row, of the answer too, however the prompt is cut. */
static void test_positions(void) {
    static Case c;
    static int32_t positions[POSITION_DIMS_MAX * MEDIA_PROMPT];
    static uint64_t ids[MEDIA_PROMPT];
    Seen text, mapped[2], offset;
    make_prompt(&c, MEDIA_PROMPT, 5);
    for (int i = 0; i < MEDIA_PROMPT; i++) ids[i] = (uint64_t)i << 32;
    for (int i = 0; i < POSITION_DIMS_MAX * MEDIA_PROMPT; i++) positions[i] = i % MEDIA_PROMPT / (1 + i / MEDIA_PROMPT);
    for (int cut = 0; cut < 2; cut++) {
        fake_reset();
        Engine *engine = open_engine(2, 4, cut ? 7 : 512, 0);
        c.options.content_ids = NULL;
        c.options.positions = NULL;
        c.options.position_offset = 0;
        text = run_one(engine, &c.options);
        c.options.content_ids = ids;
        c.options.positions = positions;
        c.options.position_offset = -100;
        mapped[cut] = run_one(engine, &c.options);
        c.options.cache_off = true;
        c.options.position_offset = -50;
        offset = run_one(engine, &c.options);
        c.options.cache_off = false;
        close_engine(engine);
    }
    TEST(mapped[0].hash == mapped[1].hash && mapped[0].hash != text.hash && mapped[0].hash != offset.hash);
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (int i = 0; i < SETTINGS; i++) {
        int sampled = SANITIZED ? 1 : 5; /* and the last one, which has both */
        if (SANITIZED_THREADS && test_usual()) sampled = 0;
        if (test_sampled() && i >= sampled && i < SETTINGS - 1) continue;
        test_warm(i);
        test_parting(i);
        test_preemption(i);
        test_soak(i);
    }
    test_isolation();
    test_content_ids();
    test_positions();
    test_memory_is_used();
    return test_done();
}
