/* What engines over real decoders share and give up: answers begun with pages that others left, in the same form or as
 * codes, and answers parked over and over, are those of a cold engine bit for bit, logprobs too; also where answers are
 * computed otherwise than prompts. Random weights. */
#include <time.h>

#include "base/log.h"
#include "cache/prefix.h"
#include "engine/engine.h"
#include "family/fixture.h"

enum { REQUESTS_MAX = 24 };
static int request_count; /* fewer in a sample */
enum { CONTEXT = 640, PROMPT_MAX = 400, TIMEOUT_MS = 600000, MANY = 64, PUBLISH_WAITS = 500 };

typedef struct Answer {
    int count;
    Finish finish;
    TokenOut tokens[CONTEXT];
} Answer;

typedef struct Case {
    int32_t prompt[PROMPT_MAX];
    RequestOptions options;
} Case;

static const KvFormat quantised = {
    .k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 256, .hot = 128, .sink = 128};

/* Begins as one of three others do, for a while. */
static void make_case(Case *c, int number, int vocab) {
    uint64_t common = (uint64_t)(number % 3) + 1, own = (uint64_t)number * 977 + 3;
    const int shared = (int)(test_random(&own) % 300), count = 20 + shared + (int)(test_random(&own) % 80);
    for (int i = 0; i < count; i++)
        c->prompt[i] = (int32_t)(test_random(i < shared ? &common : &own) % (uint64_t)vocab);
    c->options = (RequestOptions){.prompt = c->prompt,
        .prompt_count = count,
        .max_tokens = number % 4 ? 40 + (int)(test_random(&own) % 160) : CONTEXT,
        .choices = 1,
        .sampling = {.temperature = number % 3 ? 0.9f : 0,
            .top_p = number % 2 ? 0.9f : 1,
            .repetition_penalty = number % 5 == 2 ? 1.1f : 1,
            .seed = test_random(&own),
            .ignore_eos = true,
            .logprobs = 3}};
}

static const char *cpu = "auto"; /* or "generated": answers are computed otherwise than prompts */

static Engine *open_engine(const char *directory, const KvFormat *format, int slots, size_t bytes, bool prefix_off) {
    Error error = {0};
    const EngineOptions options = {.directory = directory,
        .model = {.context = CONTEXT},
        .backend = fixture_backend(cpu, 2, 0),
        .slots = slots,
        .queue_max = MANY,
        .prefill_size = 96,
        .kv_bytes = bytes,
        .kv_format = *format,
        .prefix_off = prefix_off};
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s", error.text);
    if (!engine) abort();
    return engine;
}

static Request *submit(Engine *engine, const RequestOptions *options) {
    Error error = {0};
    Request *request = engine_submit(engine, options, &error);
    TEST_MSG(request != NULL, "%s", error.text);
    if (!request) abort();
    return request;
}

static void take(Request *request, Answer *answer) {
    memset(answer, 0, sizeof *answer);
    while (answer->finish == FINISH_NONE) {
        TokenOut *next = answer->tokens + answer->count;
        const int count = request_read(request, 0, next, CONTEXT - answer->count, TIMEOUT_MS, &answer->finish);
        if (count == 0 && answer->finish == FINISH_NONE) break;
        for (int i = 0; i < count; i++) /* so that answers can be compared as bytes */
            for (int k = next[i].top_count; k < LOGPROBS_TOP_MAX; k++) memset(&next[i].top[k], 0, sizeof *next->top);
        answer->count += count;
    }
}

static void compare(const char *name, const char *what, int i, const Answer *a, const Answer *b) {
    TEST_MSG(!memcmp(a, b, sizeof *a), "%s: request %d %s", name, i, what);
}

static void check_sharing(const char *name, const char *directory, const KvFormat *format, bool states) {
    static Case cases[REQUESTS_MAX];
    static Answer cold[REQUESTS_MAX], answer;
    Engine *engine = open_engine(directory, format, 1, 0, true);
    const size_t context_bytes = engine_stats(engine).kv_bytes_total;
    size_t code_bytes = 0;
    for (int i = 0; i < request_count; i++) {
        make_case(&cases[i], i, model_vocab(engine_model(engine)));
        Request *request = submit(engine, &cases[i].options);
        take(request, &cold[i]);
        TEST(cold[i].finish == FINISH_LENGTH && request_stats(request).cached_tokens == 0);
        const size_t bytes = request_stats(request).kv_quantised_bytes;
        code_bytes = bytes > code_bytes ? bytes : code_bytes;
        request_free(request);
    }
    engine_close(engine);

    engine = open_engine(directory, format, 2, 40 * context_bytes, false);
    uint64_t found = 0;
    for (int i = 0; i < 2 * request_count; i++) {
        Request *request = submit(engine, &cases[i % request_count].options);
        take(request, &answer);
        compare(name, "begun warm", i, &cold[i % request_count], &answer);
        const RequestStats stats = request_stats(request);
        const int whole = (stats.prompt_tokens - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        const int least = states ? whole : stats.prompt_tokens - PREFIX_PART_LEAST;
        TEST_MSG(i < request_count || stats.cached_tokens >= least, "%s: request %d: %d of %d found", name, i,
            stats.cached_tokens, stats.prompt_tokens);
        found += stats.cached_tokens > 0;
        request_free(request);
    }
    /* Figures are published when a round begins, which may be after the last answer was read. */
    const uint64_t hits =
        states ? found : (uint64_t)request_count; /* states are left at whole pages: short prompts have none */
    for (int i = 0; i < PUBLISH_WAITS && engine_stats(engine).prefix_hits < hits; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    TEST_MSG(engine_stats(engine).prefix_hits >= hits && hits > (uint64_t)request_count / 4, "%s: %llu hits", name,
        (unsigned long long)engine_stats(engine).prefix_hits);
    TEST((engine_stats(engine).prefix_state_bytes > 0) == states);
    engine_close(engine);

    Request *requests[REQUESTS_MAX];
    const bool parks = request_count == REQUESTS_MAX && format->k == KV_FULL;
    engine = open_engine(directory, format, 8, context_bytes + context_bytes / (states ? 4 : 2), false);
    /* Which requests run beside each other depends on when they come: again until one was parked. */
    for (int round = 0; round < 8 && (round == 0 || (parks && engine_stats(engine).preempted == 0)); round++) {
        for (int i = 0; i < request_count; i++) requests[i] = submit(engine, &cases[i].options);
        for (int i = 0; i < request_count; i++) {
            take(requests[i], &answer);
            compare(name, "among too many", i, &cold[i], &answer);
            request_free(requests[i]);
        }
    }
    const EngineStats stats = engine_stats(engine);
    TEST_MSG(stats.preempted > 0 || !parks, "%s: none was parked", name);
    printf("%s: %zu bytes of codes, %llu parked, %llu evictions\n", name, code_bytes,
        (unsigned long long)stats.preempted, (unsigned long long)stats.prefix_evictions);
    engine_close(engine);
}

/* Texts that part after 420 tokens: the third goes on where the second has parted from the first, in whole pages, and
 * what lies behind is the same as without. */
static void check_parting(const char *name, const char *directory, const KvFormat *format) {
    enum { SHARED = 420, PROMPT = 560 };
    static Answer cold, warm;
    Engine *alone = open_engine(directory, format, 1, 0, true);
    Engine *engine = open_engine(directory, format, 1, 8 * engine_stats(alone).kv_bytes_total, false);
    for (int number = 0; number < 3; number++) {
        int32_t prompt[PROMPT];
        uint64_t common = 5, own = (uint64_t)number + 77;
        for (int i = 0; i < PROMPT; i++)
            prompt[i] =
                (int32_t)(test_random(i < SHARED ? &common : &own) % (uint64_t)model_vocab(engine_model(engine)));
        const RequestOptions options = {.prompt = prompt,
            .prompt_count = PROMPT,
            .max_tokens = 40,
            .choices = 1,
            .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = 3}};
        Request *one = submit(alone, &options), *other = submit(engine, &options);
        take(one, &cold);
        take(other, &warm);
        compare(name, "behind a shared beginning", number, &cold, &warm);
        const int cached = request_stats(other).cached_tokens;
        TEST_MSG(number < 2 || cached >= SHARED / KV_PAGE_TOKENS * KV_PAGE_TOKENS, "%s: %d found", name, cached);
        request_free(one);
        request_free(other);
    }
    engine_close(alone);
    engine_close(engine);
}

/* Nobody says how long the answer may become; there is memory for two. */
static void check_many(const char *name, const char *directory, bool windows) {
    static Case cases[MANY];
    static Answer answer;
    const KvFormat format = {0};
    Engine *engine = open_engine(directory, &format, 1, 0, true);
    const size_t context_bytes = engine_stats(engine).kv_bytes_total;
    engine_close(engine);
    engine = open_engine(directory, &format, 8, 2 * context_bytes, false);
    Request *requests[MANY];
    const int count = request_count < REQUESTS_MAX ? 8 : MANY;
    for (int i = 0; i < count; i++) {
        make_case(&cases[i], i, model_vocab(engine_model(engine)));
        if (cases[i].options.prompt_count > 100) cases[i].options.prompt_count = 20 + i;
        cases[i].options.max_tokens = INT32_MAX;
        cases[i].options.sampling.logprobs = -1;
        requests[i] = submit(engine, &cases[i].options);
    }
    int most = 0;
    uint64_t round = 0;
    for (int i = 0; i < 200; i++) {
        round = engine_wait(engine, round, 100);
        const int running = engine_stats(engine).running;
        most = running > most ? running : most;
    }
    for (int i = 0; i < count; i++) {
        take(requests[i], &answer);
        TEST_MSG(answer.finish == FINISH_LENGTH && answer.count == CONTEXT - cases[i].options.prompt_count,
            "%s: request %d ended with %d tokens", name, i, answer.count);
        request_free(requests[i]);
    }
    TEST_MSG(
        most > (windows ? 1 : 2), "%s: %d at once", name, most); /* windows cost a short text as much as a long one */
    TEST_MSG(engine_stats(engine).preempted > 0, "%s: none was parked", name);
    engine_close(engine);
}

int main(void) {
    log_set_level(LOG_ERROR);
    request_count = test_sampled() ? 8 : REQUESTS_MAX;
    static const struct {
        const char *name;
        int variant;
        bool states;
    } fixtures[] = {{"llama", 0, false}, {"gemma3-text", 2, false} /* windows, quantised */,
        {"deepseek-v2", 0, false} /* latents */, {"qwen3-next", 0, true} /* recurrent states */};
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, fixtures[i].name) || !fixture_write_variant(&f, fixtures[i].variant, directory)) continue;
        for (int form = 0; form < 2; form++) {
            const KvFormat format = form ? quantised : (KvFormat){0};
            if (test_sampled() && form == (int)i % 2) continue; /* one of the two */
            check_sharing(fixtures[i].name, directory, &format, fixtures[i].states);
            check_parting(fixtures[i].name, directory, &format);
        }
        check_many(fixtures[i].name, directory, i == 1 || fixtures[i].states);
        cpu = "generated";
        if (i < 2) check_sharing(fixtures[i].name, directory, i == 1 ? &quantised : &(KvFormat){0}, false);
        cpu = "auto";
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
