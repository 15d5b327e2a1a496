/* Two engines on two checkpoints, and the file of one shrinks while it is in use: its requests end with an error that
 * names the file, those of the other go on as before. */
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "family/fixture.h"

enum { TOKENS = 8, TIMEOUT_MS = 60000 };

typedef struct Life {
    char directory[64], file[96];
    Engine *engine;
    int32_t before[TOKENS];
} Life;

static bool open_life(Fixture *f, Life *life) {
    Error error = {0};
    if (!fixture_write_variant(f, 0, life->directory)) return false;
    snprintf(life->file, sizeof life->file, "%s/model.safetensors", life->directory);
    const EngineOptions options = {.directory = life->directory,
        .model = {.context = 256},
        .backend = {.cpu = "auto", .threads = 2},
        .slots = 2,
        .queue_max = 2,
        .prefill_size = 16};
    life->engine = engine_open(&options, &error);
    TEST_MSG(life->engine, "%s", error.text);
    return life->engine;
}

static void close_life(Life *life) {
    engine_close(life->engine);
    fixture_remove(life->directory);
}

/* The ids of an answer; false: it ended with that error. */
static bool ask(Life *life, int32_t ids[TOKENS], Error *error) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = COUNT_OF(prompt),
        .max_tokens = TOKENS,
        .choices = 1,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = -1}};
    Request *request = engine_submit(life->engine, &options, error);
    if (!request) return false;
    Finish finish = FINISH_NONE;
    for (int count = 0; finish == FINISH_NONE;) {
        TokenOut token[TOKENS];
        const int got = request_read(request, 0, token, TOKENS - count, TIMEOUT_MS, &finish);
        for (int i = 0; i < got; i++) ids[count++] = token[i].id;
        TEST(got > 0 || finish != FINISH_NONE);
        if (got == 0 && finish == FINISH_NONE) break;
    }
    if (finish == FINISH_ERROR) request_error(request, error);
    request_free(request);
    return finish == FINISH_LENGTH;
}

static void check_as_before(Life *life, const char *when) {
    Error error = {0};
    int32_t ids[TOKENS];
    TEST_MSG(ask(life, ids, &error), "%s: %s", when, error.text);
    TEST_MSG(memcmp(ids, life->before, sizeof ids) == 0, "%s: other tokens", when);
}

static void check_fails(Life *life, const char *when) {
    Error error = {0};
    int32_t ids[TOKENS];
    TEST_MSG(!ask(life, ids, &error), "%s: it is answered", when);
    TEST_MSG(error.code == ERROR_IO && strstr(error.text, life->file), "%s: \"%s\" does not name %s", when, error.text,
        life->file);
}

int main(void) {
    Fixture f;
    Life whole = {0}, cut = {0};
    Error error = {0};
    log_set_level(LOG_ERROR + 1); /* a line for each step that fails */
    if (!fixture_open(&f, "llama") || !open_life(&f, &whole) || !open_life(&f, &cut)) return 1;
    TEST_MSG(ask(&whole, whole.before, &error) && ask(&cut, cut.before, &error), "%s", error.text);
    TEST(truncate(cut.file, 0) == 0);
    check_fails(&cut, "once it shrank");
    check_as_before(&whole, "while the other's file is damaged");
    check_fails(&cut, "still");
    close_life(&cut);
    check_as_before(&whole, "when the other is gone");
    close_life(&whole);
    fixture_close(&f);
    return test_done();
}
