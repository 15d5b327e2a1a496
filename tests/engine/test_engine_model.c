/* The engine over real decoders: 64 requests on 8 slots, each equal to the same request alone, bit for bit; so are
 * those of two engines on one directory at once, and those of an engine whose backend nobody can look into. The
 * fixtures are small checkpoints with random weights; a checkpoint named as argument is taken instead:
 * test_engine_model DIRECTORY.
 */
#include "engine/engine.h"

#include "family/fixture.h"
#include "weights/expert_cache_io.h"

#ifdef __SANITIZE_THREAD__
enum { REQUESTS = 12, FEW_REQUESTS = 6 }; /* fifty times slower there */
#else
enum { REQUESTS = 64, FEW_REQUESTS = 16 };
#endif
enum { SAMPLED_REQUESTS = 12, TOKENS_MAX = 24, PROMPT_MAX = 200, CHOICES = 3, TIMEOUT_MS = 600000 };

typedef struct Answer {
    int count[CHOICES];
    TokenOut tokens[CHOICES][TOKENS_MAX];
    Finish finish[CHOICES];
    TokenOut prompt[PROMPT_MAX];
} Answer;

typedef struct Case {
    int32_t prompt[PROMPT_MAX];
    RequestOptions options;
} Case;

static int request_count = REQUESTS;

static void make_case(Case *c, int number, int vocab) {
    uint64_t state = (uint64_t)number * 977 + 3;
    const int count = 1 + (int)(test_random(&state) % PROMPT_MAX);
    for (int i = 0; i < count; i++) c->prompt[i] = (int32_t)(test_random(&state) % (uint64_t)vocab);
    c->options = (RequestOptions){
        .prompt = c->prompt,
        .prompt_count = count,
        .max_tokens = 1 + (int)(test_random(&state) % TOKENS_MAX),
        .choices = number % 6 == 0 ? CHOICES : 1,
        .echo_logprobs = number % 8 == 1,
        .sampling = {.temperature = number % 3 ? 0.9f : 0,
            .top_p = number % 2 ? 0.9f : 1,
            .top_k = number % 4 == 3 ? 20 : 0,
            .repetition_penalty = number % 5 == 2 ? 1.1f : 1,
            .seed = test_random(&state),
            .ignore_eos = true,
            .logprobs = number % 2 ? 3 : -1},
    };
}

static void zero_unused(TokenOut *token) { /* so that answers can be compared as bytes */
    for (int i = token->top_count; i < LOGPROBS_TOP_MAX; i++) memset(&token->top[i], 0, sizeof token->top[i]);
}

static void read_answer(Request *request, const RequestOptions *o, Answer *answer) {
    for (int k = 0; k < o->choices; k++) {
        while (answer->finish[k] == FINISH_NONE) {
            TokenOut *next = answer->tokens[k] + answer->count[k];
            const int room = TOKENS_MAX - answer->count[k];
            const int count = request_read(request, k, next, room, TIMEOUT_MS, &answer->finish[k]);
            if (count == 0 && answer->finish[k] == FINISH_NONE) break;
            for (int i = 0; i < count; i++) zero_unused(&next[i]);
            answer->count[k] += count;
        }
        TEST(answer->finish[k] == FINISH_LENGTH && answer->count[k] == o->max_tokens);
        if (answer->finish[k] == FINISH_ERROR) {
            Error error;
            request_error(request, &error);
            fprintf(stderr, "%s\n", error.text);
        }
    }
    for (int i = 0; o->echo_logprobs && i < o->prompt_count; i++) {
        TEST(request_prompt_logprob(request, i, &answer->prompt[i]));
        zero_unused(&answer->prompt[i]);
    }
}

/* An engine at work on the first `count` requests. */
typedef struct Party {
    Engine *engine;
    int count, slots;
    Case cases[REQUESTS];
    Answer answers[REQUESTS];
    Request *requests[REQUESTS];
} Party;

static Party *party_open_model(
    const char *directory, const ModelOptions *model, const char *cpu, int slots, int prefill_size, int count) {
    Party *p = calloc(1, sizeof *p);
    Error error = {0};
    const EngineOptions options = {.directory = directory,
        .model = *model,
        .backend = fixture_backend(cpu, 2, 0),
        .slots = slots,
        .queue_max = REQUESTS,
        .prefill_size = prefill_size};
    if (!p) abort();
    p->engine = engine_open(&options, &error);
    TEST_MSG(p->engine != NULL, "%s", error.text);
    p->count = p->engine ? count : 0;
    p->slots = slots;
    return p;
}

static Party *party_open(const char *directory, const char *cpu, int slots, int prefill_size, int count) {
    return party_open_model(directory, &(ModelOptions){.context = 512}, cpu, slots, prefill_size, count);
}

static void party_submit(Party *p, int i) {
    Error error = {0};
    make_case(&p->cases[i], i, model_vocab(engine_model(p->engine)));
    p->requests[i] = engine_submit(p->engine, &p->cases[i].options, &error);
    TEST_MSG(p->requests[i] != NULL, "%s", error.text);
}

static void party_read(Party *p, int i) {
    if (!p->requests[i]) return;
    read_answer(p->requests[i], &p->cases[i].options, &p->answers[i]);
    request_free(p->requests[i]);
    p->requests[i] = NULL;
}

static void party_close(Party *p) {
    engine_close(p->engine);
    free(p);
}

/* All requests of all parties in turn, as many at a time as there are slots. */
static void run_parties(Party *const *parties, int count) {
    for (int i = 0; i < REQUESTS; i++)
        for (int n = 0; n < count; n++) {
            if (i < parties[n]->count) party_submit(parties[n], i);
            if (parties[n]->slots == 1) party_read(parties[n], i);
        }
    for (int i = 0; i < REQUESTS; i++)
        for (int n = 0; n < count; n++) party_read(parties[n], i);
}

static void compare_answers(const char *name, const char *what, const Party *p, const Party *alone) {
    for (int i = 0; i < p->count && i < alone->count; i++)
        TEST_MSG(!memcmp(&p->answers[i], &alone->answers[i], sizeof p->answers[i]), "%s: request %d %s", name, i, what);
}

static void check_model(const char *name, const char *directory) {
    Party *alone = party_open(directory, "auto", 1, 256, request_count);
    run_parties(&alone, 1);
    Party *batched = party_open(directory, "auto", 8, 48, request_count);
    run_parties(&batched, 1);
    compare_answers(name, "among others", batched, alone);
    party_close(batched);
    const int few = request_count < FEW_REQUESTS ? request_count : FEW_REQUESTS;
    Party *two[] = {party_open(directory, "auto", 3, 64, few), party_open(directory, "auto", 8, 48, few)};
    run_parties(two, COUNT_OF(two));
    for (size_t i = 0; i < COUNT_OF(two); i++) {
        compare_answers(name, "beside another engine", two[i], alone);
        party_close(two[i]);
    }
    party_close(alone);
}

static void check_fence(const char *name, const char *directory) {
    Party *parties[] = {
        party_open(directory, "ref", 1, 256, FEW_REQUESTS), party_open(directory, "fence", 8, 48, FEW_REQUESTS)};
    for (size_t i = 0; i < COUNT_OF(parties); i++) run_parties(&parties[i], 1);
    compare_answers(name, "behind the fence", parties[1], parties[0]);
    for (size_t i = 0; i < COUNT_OF(parties); i++) party_close(parties[i]);
}

/* Experts that come from the file, a layer's at a time and with hitches: nobody can tell from the answers. */
static void check_stream(const char *name, const char *directory) {
    const ModelOptions model = {.context = 512,
        .experts.stream = true,
        .experts.bytes_max = 1 << 19,
        .experts.cache.faults = {.fail = 0.001, .cut = 0.2, .seed = 3}};
    Party *alone = party_open(directory, "auto", 1, 256, FEW_REQUESTS);
    Party *streamed = party_open_model(directory, &model, "auto", 8, 48, FEW_REQUESTS);
    run_parties(&alone, 1);
    run_parties(&streamed, 1);
    compare_answers(name, "with streamed experts", streamed, alone);
    const ExpertProviderStats stats = engine_stats(streamed->engine).experts;
    TEST(
        stats.evictions > 0 && stats.misses > stats.evictions && stats.bytes <= 1 << 19 && stats.slots < stats.experts);
    party_close(alone);
    party_close(streamed);
}

/* Every budget that is not refused as too small will do. */
static void check_budgets(const char *directory) {
    uint64_t small = 1, enough = (uint64_t)1 << 30;
    while (enough - small > 1) {
        const uint64_t budget = small + (enough - small) / 2;
        const EngineOptions options = {.directory = directory,
            .model = {.context = 512, .experts.stream = true, .experts.memory_budget = budget},
            .backend = fixture_backend("auto", 2, 0),
            .slots = 1,
            .prefill_size = 48};
        Error error = {0};
        Engine *engine = engine_open(&options, &error);
        TEST_MSG(engine || strstr(error.text, "a memory budget of"), "%s", error.text);
        *(engine ? &enough : &small) = budget;
        engine_close(engine);
    }
}

/* A disk that fails fails requests, one after the other, and nothing else. */
static void check_broken_disk(const char *directory) {
    const ModelOptions model = {.context = 512, .experts.stream = true, .experts.cache.faults = {.fail = 1}};
    Party *p = party_open_model(directory, &model, "auto", 2, 48, 2);
    for (int i = 0; i < p->count; i++) {
        Error error = {0};
        TokenOut token;
        Finish finish = FINISH_NONE;
        party_submit(p, i);
        while (finish == FINISH_NONE && request_read(p->requests[i], 0, &token, 1, TIMEOUT_MS, &finish)) {}
        request_error(p->requests[i], &error);
        TEST_MSG(finish == FINISH_ERROR && error.code == ERROR_IO, "%d: %s", (int)finish, error.text);
        request_free(p->requests[i]);
    }
    party_close(p);
}

int main(int argc, char **argv) {
    if (argc > 2 && strtol(argv[2], NULL, 10) < REQUESTS) request_count = (int)strtol(argv[2], NULL, 10);
    if (SANITIZED && test_usual() && request_count > SAMPLED_REQUESTS) request_count = SAMPLED_REQUESTS;
    if (argc > 1) {
        check_model(argv[1], argv[1]);
        return test_done();
    }
    static const struct {
        const char *name;
        int variant;
    } fixtures[] = {{"llama", 0}, {"gemma3-text", 2} /* windows, quantised */};
    for (size_t i = SANITIZED_THREADS && test_usual(); i < COUNT_OF(fixtures); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, fixtures[i].name) || !fixture_write_variant(&f, fixtures[i].variant, directory)) continue;
        check_model(fixtures[i].name, directory);
        if (!SANITIZED) check_fence(fixtures[i].name, directory); /* a sanitizer proves the same */
        fixture_remove(directory);
        fixture_close(&f);
    }
    Fixture f;
    char directory[64];
    if (fixture_open(&f, "olmoe") && fixture_write_variant(&f, 1, directory)) {
        check_stream("olmoe", directory);
        check_broken_disk(directory);
        check_budgets(directory);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
