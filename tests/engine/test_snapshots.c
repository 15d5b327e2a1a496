/* Prompts of models with recurrent states in the prefix cache: a long one is found at its second occurrence, whatever
 * came between; an edited conversation is read again from one message or RESUME_SPACING tokens before the edit; answers
 * are those of a cold engine. */
#include "engine/engine_fixture.h"
#include "engine/resume_points.h"

enum { LONG = 20000, TURNS = 30, TURN = 300, GENERATION = 5 };

static Engine *open_long(bool prefix_off, size_t pages) {
    Error error = {0};
    fake_reset();
    fake.context = 32768;
    fake.states = true;
    const EngineOptions options = {.directory = "fake",
        .slots = 2,
        .queue_max = 8,
        .prefill_size = 512,
        .prefix_off = prefix_off,
        .kv_bytes = pages * FAKE_PAGE_BYTES};
    Engine *engine = engine_open(&options, &error);
    if (!engine) fprintf(stderr, "%s\n", error.text);
    CHECK(engine != NULL);
    return engine;
}

/* Tokens without ends of messages. */
static void fill(int32_t *tokens, int count, uint64_t seed) {
    for (int i = 0; i < count; i++) {
        tokens[i] = (int32_t)(test_random(&seed) % (uint64_t)fake.vocab);
        if (tokens[i] == FAKE_EOS) tokens[i]++;
    }
}

static RequestOptions options_of(const int32_t *prompt, int count) {
    return (RequestOptions){.prompt = prompt,
        .prompt_count = count,
        .max_tokens = 8,
        .choices = 1,
        .sampling = {
            .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 3, .ignore_eos = true, .logprobs = 2}};
}

/* Answers on both engines agree; tokens of the prompt that the second one computed. */
static int ask(Engine *cold, Engine *warm, const int32_t *prompt, int count) {
    const RequestOptions options = options_of(prompt, count);
    const Seen expected = run_one(cold, &options);
    Request *request = submit(warm, &options);
    Seen seen;
    read_all(request, 1, &seen);
    TEST_MSG(!memcmp(&expected, &seen, sizeof seen), "%d tokens", count);
    const int computed = count - request_stats(request).cached_tokens;
    request_free(request);
    return computed;
}

static void test_again(void) {
    static int32_t prompt[LONG], other[3000];
    Engine *cold = open_long(true, 2000), *warm = open_long(false, 2000);
    fill(prompt, LONG, 1);
    TEST(ask(cold, warm, prompt, LONG) == LONG);
    for (int i = 0; i < 2; i++) {
        fill(other, 3000, 10 + (uint64_t)i);
        TEST(ask(cold, warm, other, 3000) == 3000);
        const int computed = ask(cold, warm, prompt, LONG);
        TEST_MSG(computed <= LONG / 50, "%d of %d tokens were computed again", computed, LONG);
    }
    /* An edit in the middle of a text without messages. */
    prompt[12000] ^= 1;
    const int computed = ask(cold, warm, prompt, LONG);
    TEST_MSG(computed <= LONG - 12000 + RESUME_SPACING_MOST, "%d computed", computed);
    const EngineStats stats = engine_stats(warm);
    TEST(stats.prefix_state_bytes > 0 && stats.prefix_state_bytes < stats.prefix_bytes);
    close_engine(cold);
    close_engine(warm);
}

/* Messages of TURN tokens that end with the end token, and a generation prompt behind the last. */
static int conversation(int32_t *tokens, int turns, uint64_t seed) {
    for (int t = 0; t < turns; t++) {
        fill(tokens + t * TURN, TURN, seed + (uint64_t)t);
        tokens[(t + 1) * TURN - 1] = FAKE_EOS;
    }
    fill(tokens + turns * TURN, GENERATION, 99);
    return turns * TURN + GENERATION;
}

/* In one request, or growing turn by turn. */
static void test_conversation(bool grows) {
    static int32_t tokens[TURNS * TURN + GENERATION];
    Engine *cold = open_long(true, 2000), *warm = open_long(false, 2000);
    for (int turns = grows ? 1 : TURNS; turns <= TURNS; turns++) {
        const int computed = ask(cold, warm, tokens, conversation(tokens, turns, 1000));
        TEST_MSG(turns == TURNS || computed <= 2 * TURN, "turn %d: %d tokens", turns, computed);
    }
    for (int turn = TURNS - 1; turn > 0; turn -= 7) {
        const int count = conversation(tokens, TURNS, 1000), edit = turn * TURN + TURN / 2;
        tokens[edit] ^= 1;
        const int computed = ask(cold, warm, tokens, count), before = computed - (count - edit);
        TEST_MSG(before <= TURN + RESUME_SPACING, "turn %d: %d tokens before the edit", turn, before);
    }
    close_engine(cold);
    close_engine(warm);
}

/* With room for little: nothing fails, and answers stay. */
static void test_little_room(void) {
    static int32_t tokens[TURNS * TURN + GENERATION];
    Engine *cold = open_long(true, 2000), *warm = open_long(false, 85);
    for (int turns = 1; turns <= TURNS; turns++) (void)ask(cold, warm, tokens, conversation(tokens, turns, 1000));
    const int computed = ask(cold, warm, tokens, conversation(tokens, TURNS, 1000));
    TEST_MSG(computed <= KV_PAGE_TOKENS + GENERATION, "%d tokens", computed);
    TEST(engine_stats(warm).prefix_evictions > 0);
    TEST(engine_stats(warm).prefix_bytes <= 85 * FAKE_PAGE_BYTES);
    close_engine(cold);
    close_engine(warm);
}

/* Without --kv-memory there is room for snapshots beside what the slots can take. */
static void test_default_room(void) {
    enum { LINE = 64, STATE_PAGE = 5 * LINE /* an anchor and 32 rows of 8 bytes */, SNAPSHOT = LINE };
    Engine *engine = open_long(false, 0);
    const size_t slot = 32768 / KV_PAGE_TOKENS * FAKE_PAGE_BYTES + 2 * STATE_PAGE;
    TEST_MSG(engine_stats(engine).kv_bytes_total == 2 * slot + SNAPSHOTS_DEFAULT * SNAPSHOT, "%zu bytes",
        engine_stats(engine).kv_bytes_total);
    close_engine(engine);
}

int main(void) {
    test_again();
    test_conversation(false);
    test_conversation(true);
    test_little_room();
    test_default_room();
    return test_done();
}
