/* Several models in one process: taken by name, counted, loaded on demand and unloaded beside others that answer. */
#include "chat/models.h"

#include "base/clock.h"
#include "chat/chat_fixture.h"
#include "engine/resources.h"

enum { IDLE_MS = 150, TAKERS = 6 };

static ChatFixture fixture;

static Models *open_models(const ModelSource *sources, int count, int64_t idle_ms, Error *error) {
    const ModelsOptions options = {
        .sources = sources, .count = count, .engine = chat_engine_options(&fixture, 2, 4), .idle_unload_ms = idle_ms};
    return models_open(&options, error);
}

static ModelStatus status_of(Models *models, int index) {
    ModelStatus status = {0};
    TEST(models_status(models, index, &status));
    return status;
}

static ModelState state(Models *models, int index) { return status_of(models, index).state; }

static void sleep_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

static bool becomes(Models *models, int index, ModelState wanted) {
    for (int i = 0; i < 500 && state(models, index) != wanted; i++) sleep_ms(10);
    return state(models, index) == wanted;
}

static void test_names(void) {
    const ModelSource two[] = {{.name = "a", .directory = fixture.directory},
        {.name = "b", .directory = fixture.directory}},
                      same[] = {
                          {.name = "a", .directory = fixture.directory}, {.name = "a", .directory = fixture.directory}};
    Error error = {0};
    TEST(!open_models(same, 2, 0, &error) && error.code == ERROR_USAGE && strstr(error.text, "called a"));
    Models *models = open_models(two, 2, 0, &error);
    CHECK(models != NULL);
    TEST(models_count(models) == 2 && models_find(models, SLICE("b")) == 1 && models_find(models, SLICE("c")) == -1);
    TEST(state(models, 0) == MODEL_LOADED && state(models, 1) == MODEL_LOADED);
    TEST(!models_take(models, SLICE("c"), 0, &error) && error.code == ERROR_NOT_FOUND);
    ChatModel *a = models_take(models, SLICE("a"), 0, &error), *b = models_take(models, SLICE("b"), 0, &error);
    TEST(a && b && a != b && !strcmp(a->name, "a") && !strcmp(b->name, "b"));
    models_release(models, a);
    models_release(models, b);
    models_close(models);
}

/* An answer of one model, held in its step. */
static Request *ask(ChatModel *model) {
    const int32_t prompt[] = {1, 2, 3};
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = 3,
        .max_tokens = 5,
        .choices = 1,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = -1}};
    Error error = {0};
    Request *request = engine_submit(model->engine, &options, &error);
    CHECK(request != NULL);
    return request;
}

static bool finished(Request *request) {
    TokenOut tokens[8];
    Finish finish = FINISH_NONE;
    int count = 0;
    while (finish == FINISH_NONE) count += request_read(request, 0, tokens, 8, 10000, &finish);
    request_free(request);
    return finish == FINISH_LENGTH && count == 5;
}

static void test_unload(void) {
    const ModelSource two[] = {
        {.name = "a", .directory = fixture.directory}, {.name = "b", .directory = fixture.directory}};
    Error error = {0};
    Models *models = open_models(two, 2, 0, &error);
    CHECK(models != NULL);
    ChatModel *a = models_take(models, SLICE("a"), 0, &error);
    fake.gated = true;
    Request *request = ask(a);
    fake_wait_arrived(1);
    /* While a computes, b goes and comes. */
    TEST(!models_unload(models, SLICE("a"), &error) && error.code == ERROR_BUSY && strstr(error.text, "a"));
    TEST(models_unload(models, SLICE("b"), &error) && state(models, 1) == MODEL_UNLOADED);
    TEST(models_unload(models, SLICE("b"), &error)); /* again is fine */
    TEST(status_of(models, 1).stats.kv_bytes_total == 0 && status_of(models, 0).stats.running == 1);
    ChatModel *b = models_take(models, SLICE("b"), 0, &error);
    TEST(b && state(models, 1) == MODEL_LOADED && status_of(models, 1).holders == 1);
    fake_open_gate();
    TEST(finished(request));
    TEST(finished(ask(b)));
    models_release(models, b);
    models_release(models, a);
    TEST(models_unload(models, SLICE("a"), &error));
    models_close(models);
}

static void test_idle(void) {
    const ModelSource two[] = {
        {.name = "a", .directory = fixture.directory}, {.name = "b", .directory = fixture.directory}};
    Error error = {0};
    Models *models = open_models(two, 2, IDLE_MS, &error);
    CHECK(models != NULL);
    ChatModel *a = models_take(models, SLICE("a"), 0, &error);
    TEST(becomes(models, 1, MODEL_UNLOADED)); /* nobody asked for it */
    sleep_ms(2 * IDLE_MS);
    TEST(state(models, 0) == MODEL_LOADED); /* whoever holds it has all the time */
    const int64_t before = clock_ns();
    models_release(models, a);
    TEST(becomes(models, 0, MODEL_UNLOADED));
    TEST(clock_ns() - before >= IDLE_MS * INT64_C(1000000));
    a = models_take(models, SLICE("a"), 0, &error); /* on demand */
    TEST(a && finished(ask(a)));
    models_release(models, a);
    models_close(models);
}

typedef struct Taker {
    Models *models;
    Thread thread;
    Error error;
    bool taken;
} Taker;

static void *take(void *argument) {
    Taker *taker = argument;
    ChatModel *model = models_take(taker->models, SLICE("b"), 0, &taker->error);
    taker->taken = model != NULL;
    models_release(taker->models, model);
    return NULL;
}

/* A model that cannot be loaded any more says why to all who wait, and others are not disturbed. */
static void test_failed_load(void) {
    ChatFixture other;
    chat_fixture_open(&other, true);
    const ModelSource two[] = {
        {.name = "a", .directory = fixture.directory}, {.name = "b", .directory = other.directory}};
    Error error = {0};
    Models *models = open_models(two, 2, 0, &error);
    CHECK(models != NULL && models_unload(models, SLICE("b"), &error));
    char path[128], away[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", other.directory);
    snprintf(away, sizeof away, "%s/away", other.directory);
    TEST(rename(path, away) == 0);
    Taker takers[TAKERS];
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (Taker){.models = models};
        CHECK(thread_start(&takers[i].thread, take, &takers[i], "taker", NULL));
    }
    for (int i = 0; i < TAKERS; i++) {
        thread_join(takers[i].thread);
        TEST(!takers[i].taken && strstr(takers[i].error.text, "tokenizer.json"));
    }
    ChatModel *a = models_take(models, SLICE("a"), 0, &error);
    TEST(a && finished(ask(a)));
    models_release(models, a);
    TEST(rename(away, path) == 0);
    TEST(models_load(models, SLICE("b"), 0, &error) && state(models, 1) == MODEL_LOADED);
    models_close(models);
    chat_fixture_close(&other);
}

/* Who waits no longer goes, and the load goes on for the others; with nobody left the process may end. */
static void test_slow_load(void) {
    const ModelSource two[] = {
        {.name = "a", .directory = fixture.directory}, {.name = "b", .directory = fixture.directory}};
    Error error = {0};
    Models *models = open_models(two, 2, 0, &error);
    CHECK(models != NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(models_unload(models, SLICE("b"), &error));
        fake.load_ms = 600;
        const int64_t start = clock_ns();
        TEST(!models_take(models, SLICE("b"), start + 100 * INT64_C(1000000), &error) && error.code == ERROR_CANCELLED);
        const double seconds = (double)(clock_ns() - start) * 1e-9;
        TEST_MSG(seconds >= 0.1 && seconds < 0.5, "%.2f s", seconds);
        TEST(state(models, 1) == MODEL_LOADING);
        fake.load_ms = 0;
        if (i == 1) break;
        ChatModel *b = models_take(models, SLICE("b"), start + 60 * INT64_C(1000000000), &error);
        TEST(b && finished(ask(b)));
        models_release(models, b);
    }
    models_close(models);
}

/* From no model at all: models come and go while others answer; a failure of one is its own. */
static void test_added(void) {
    Error error = {0};
    Models *models = open_models(NULL, 0, 0, &error);
    ModelStatus status;
    CHECK(models != NULL);
    TEST(models_count(models) == 0 && !models_first(models, &status) && !models_status(models, 0, &status));
    TEST(!models_take(models, SLICE("a"), 0, &error) && error.code == ERROR_NOT_FOUND);
    const ModelSource a = {.name = "a", .directory = fixture.directory},
                      b = {.name = "b", .directory = fixture.directory},
                      other = {.name = "a", .directory = "/nonexistent"},
                      broken = {.name = "c", .directory = "/nonexistent"},
                      unnamed = {.name = "", .directory = fixture.directory};
    TEST(models_add(models, &a, &error) == 0 && state(models, 0) == MODEL_UNLOADED);
    TEST(models_add(models, &a, &error) == 0 && models_count(models) == 1); /* the same again */
    TEST(models_add(models, &other, &error) == -1 && error.code == ERROR_USAGE);
    TEST(models_add(models, &unnamed, &error) == -1 && error.code == ERROR_USAGE);
    ChatModel *held = models_take(models, SLICE("a"), 0, &error);
    TEST(held && finished(ask(held)));
    TEST(models_add(models, &broken, &error) == 1 && !models_load(models, SLICE("c"), 0, &error));
    TEST(finished(ask(held)));
    TEST(models_remove(models, SLICE("c"), &error) && models_find(models, SLICE("c")) == -1);
    TEST(models_add(models, &b, &error) == 1 &&
        models_load(models, SLICE("b"), 0, &error)); /* the number is free again */
    TEST(!models_remove(models, SLICE("a"), &error) && error.code == ERROR_BUSY);
    TEST(models_find(models, SLICE("a")) == 0 && finished(ask(held)));
    models_release(models, held);
    TEST(models_remove(models, SLICE("a"), &error) && !models_status(models, 0, &status));
    TEST(!models_remove(models, SLICE("a"), &error) && error.code == ERROR_NOT_FOUND);
    TEST(models_first(models, &status) && !strcmp(status.name, "b"));
    models_close(models);
}

static void test_limit(void) {
    Error error = {0};
    Models *models = open_models(NULL, 0, 0, &error);
    char name[8];
    for (int i = 0; i <= MODELS_MAX; i++) {
        snprintf(name, sizeof name, "m%d", i);
        const ModelSource source = {.name = name, .directory = fixture.directory};
        TEST(models_add(models, &source, &error) == (i < MODELS_MAX ? i : -1));
    }
    TEST(error.code == ERROR_LIMIT);
    models_close(models);
}

/* A model that is removed while it is loaded for a request: the request hears of it, the removal waits for the load. */
static void test_removed_while_loading(void) {
    Error error = {0};
    Models *models = open_models(NULL, 0, 0, &error);
    const ModelSource b = {.name = "b", .directory = fixture.directory};
    CHECK(models && models_add(models, &b, &error) == 0);
    fake.load_ms = 400;
    Taker taker = {.models = models};
    CHECK(thread_start(&taker.thread, take, &taker, "taker", NULL));
    TEST(becomes(models, 0, MODEL_LOADING));
    while (!models_remove(models, SLICE("b"), &error)) TEST(error.code == ERROR_BUSY);
    thread_join(taker.thread);
    TEST(taker.taken || taker.error.code == ERROR_NOT_FOUND);
    TEST(models_count(models) == 0);
    fake.load_ms = 0;
    models_close(models);
}

/* What one engine was promised, the next does not count on; used memory is not counted twice. */
static void test_accounts(void) {
    Resources *resources = resources_open(1, NULL);
    const size_t slack = (size_t)64 << 20; /* others use the machine meanwhile */
    MemoryAccount account = {.promised = (size_t)1 << 30};
    const size_t before = resources_available(resources);
    resources_enter(resources, &account);
    const size_t promised = resources_available(resources);
    TEST(before - promised > account.promised - slack && before - promised < account.promised + slack);
    atomic_store(&account.used, account.promised);
    TEST(resources_available(resources) + slack > before);
    resources_leave(resources, &account);
    resources_leave(resources, &account);
    resources_close(resources);
}

typedef struct Stepper {
    Resources *resources;
    Thread thread;
    int *order, *steps;
    int number;
} Stepper;

static void *step(void *argument) {
    Stepper *s = argument;
    for (int i = 0; i < 200; i++) {
        resources_begin_step(s->resources);
        s->order[(*s->steps)++] = s->number; /* one at a time: TSan would see it otherwise */
        sleep_ms(0);
        resources_end_step(s->resources);
    }
    return NULL;
}

static void test_turns(void) {
    int order[400], steps = 0, alternations = 0;
    Resources *resources = resources_open(1, NULL);
    Stepper steppers[2];
    for (int i = 0; i < 2; i++) {
        steppers[i] = (Stepper){.resources = resources, .order = order, .steps = &steps, .number = i};
        CHECK(thread_start(&steppers[i].thread, step, &steppers[i], "stepper", NULL));
    }
    for (int i = 0; i < 2; i++) thread_join(steppers[i].thread);
    for (int i = 1; i < 400; i++) alternations += order[i] != order[i - 1];
    TEST(steps == 400);
    TEST_MSG(alternations > 100, "%d", alternations); /* neither has to wait for all of the other's */
    resources_close(resources);
}

int main(void) {
    log_set_level(LOG_ERROR + 1);
    chat_fixture_open(&fixture, true);
    test_names();
    test_unload();
    test_idle();
    test_failed_load();
    test_slow_load();
    test_added();
    test_limit();
    test_removed_while_loading();
    chat_fixture_close(&fixture);
    test_accounts();
    test_turns();
    return test_done();
}
