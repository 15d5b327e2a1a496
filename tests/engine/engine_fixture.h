/* What the engine's tests share: an engine over the fake model, requests made from a number, a reader that streams. */
#pragma once
#include "base/clock.h"
#include "base/log.h"
#include "engine/cases.h"
#include "engine/fake_model.h"

static inline Engine *open_engine(int slots, int queue_max, int prefill_size, size_t kv_bytes) {
    Error error = {0};
    const EngineOptions options = {.directory = "fake",
        .slots = slots,
        .queue_max = queue_max,
        .prefill_size = prefill_size,
        .kv_bytes = kv_bytes ? kv_bytes : (size_t)FAKE_PAGES * FAKE_PAGE_BYTES};
    Engine *engine = engine_open(&options, &error);
    if (!engine) fprintf(stderr, "%s\n", error.text);
    CHECK(engine != NULL);
    return engine;
}

static inline void close_engine(Engine *engine) {
    engine_close(engine);
    TEST_MSG(fake.leaked_bytes == 0, "%zu bytes of pages were left in use", fake.leaked_bytes);
}

static inline void make_prompt(Case *c, int count, uint64_t seed) { case_prompt(c, count, seed, fake.vocab); }
static inline void make_case(Case *c, uint64_t seed) { case_make(c, seed, fake.vocab); }

static inline Seen run_one(Engine *engine, const RequestOptions *options) {
    Seen seen;
    Request *request = submit(engine, options);
    read_all(request, 1, &seen);
    request_free(request);
    return seen;
}

/* No page is in use but those that the prefix cache holds. */
static inline bool only_prefixes(Engine *engine) {
    const EngineStats stats = engine_stats(engine);
    return stats.kv_bytes <= stats.prefix_bytes;
}

static inline void wait_idle(Engine *engine) {
    for (int i = 0; i < 2000; i++) {
        const EngineStats stats = engine_stats(engine);
        if (stats.running == 0 && stats.waiting == 0) return;
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    TEST(!"idle");
}
