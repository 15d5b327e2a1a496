/* The engine over real decoders: 64 requests on 8 slots, each equal to the same request alone, bit for bit. The
 * fixtures are small checkpoints with random weights; a checkpoint named as argument is taken instead:
 * test_engine_model DIRECTORY. */
#include "engine/engine.h"

#include "family/fixture.h"

#ifdef __SANITIZE_THREAD__
enum { REQUESTS = 12 }; /* fifty times slower there */
#else
enum { REQUESTS = 64 };
#endif
enum { TOKENS_MAX = 24, PROMPT_MAX = 200, CHOICES = 3, TIMEOUT_MS = 600000 };

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

/* All requests, as many at a time as there are slots. */
static bool run_all(const char *directory, int slots, int prefill_size, Case *cases, Answer *answers) {
    Error error = {0};
    const EngineOptions options = {.directory = directory,
        .model = {.context = 512},
        .backend = {.cpu = "auto", .threads = 2},
        .slots = slots,
        .queue_max = REQUESTS,
        .prefill_size = prefill_size};
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s", error.text);
    if (!engine) return false;
    Request *requests[REQUESTS] = {NULL};
    for (int i = 0; i < request_count; i++) {
        make_case(&cases[i], i, model_vocab(engine_model(engine)));
        requests[i] = engine_submit(engine, &cases[i].options, &error);
        TEST_MSG(requests[i] != NULL, "%s", error.text);
        if (requests[i] && slots == 1) read_answer(requests[i], &cases[i].options, &answers[i]);
    }
    for (int i = 0; i < request_count; i++) {
        if (!requests[i]) continue;
        if (slots > 1) read_answer(requests[i], &cases[i].options, &answers[i]);
        request_free(requests[i]);
    }
    engine_close(engine);
    return true;
}

static void check_model(const char *name, const char *directory) {
    static Case cases[REQUESTS];
    Answer *alone = calloc(REQUESTS, sizeof *alone), *batched = calloc(REQUESTS, sizeof *batched);
    if (run_all(directory, 1, 256, cases, alone) && run_all(directory, 8, 48, cases, batched)) {
        for (int i = 0; i < request_count; i++)
            TEST_MSG(memcmp(&alone[i], &batched[i], sizeof *alone) == 0, "%s: request %d", name, i);
    }
    free(alone);
    free(batched);
}

int main(int argc, char **argv) {
    if (argc > 2 && strtol(argv[2], NULL, 10) < REQUESTS) request_count = (int)strtol(argv[2], NULL, 10);
    if (argc > 1) {
        check_model(argv[1], argv[1]);
        return test_done();
    }
    static const struct {
        const char *name;
        int variant;
    } fixtures[] = {{"llama", 0}, {"gemma3-text", 2} /* windows, quantised */};
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, fixtures[i].name) || !fixture_write_variant(&f, fixtures[i].variant, directory)) continue;
        check_model(fixtures[i].name, directory);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
