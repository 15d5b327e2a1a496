/* The disk tier behind real decoders: a new engine goes on where an old one's pages end, and answers as a cold one
 * does, bit for bit, exactly or coded, with windows, on damaged files, beside another that has the directory; also
 * where answers are computed otherwise than prompts. */
#include "backend/recurrent.h"
#include "cache/disk_tier.h"
#include "engine/cache_identity.h"
#include "engine/engine.h"

#include "family/fixture.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT = 400, ANSWER = 40, TIMEOUT_MS = 600000, WHOLE_PAGES = (PROMPT - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS };

static char cache[64];

typedef struct Answer {
    int count, cached;
    TokenOut tokens[ANSWER];
} Answer;

typedef struct Wish {
    const KvFormat *format;
    uint64_t salt;
    bool cache_off, no_disk, apart;
} Wish;

static EngineOptions engine_options(const char *directory, const Wish *wish) {
    return (EngineOptions){.directory = directory,
        .model = {.context = 512},
        .backend = fixture_backend(wish->apart ? "generated" : "auto", 2, 0),
        .slots = 2,
        .queue_max = 4,
        .prefill_size = 150,
        .cache_directory = wish->no_disk ? NULL : cache,
        .cache_disk_bytes = 64 << 20};
}

static Engine *open_engine(const char *directory, const Wish *wish) {
    Error error = {0};
    const EngineOptions options = engine_options(directory, wish);
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s", error.text);
    if (!engine) abort();
    return engine;
}

static void make_prompt(const Model *model, int32_t prompt[PROMPT]) {
    uint64_t state = 5;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(test_random(&state) % (uint64_t)model_vocab(model));
}

static Answer ask_this(Engine *engine, const Wish *wish, const int32_t *prompt, int count) {
    Answer answer = {0};
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = count,
        .max_tokens = ANSWER,
        .choices = 1,
        .kv_format = wish->format,
        .cache_salt = wish->salt,
        .cache_off = wish->cache_off,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = 2}};
    Error error = {0};
    Request *request = engine_submit(engine, &options, &error);
    TEST_MSG(request, "%s", error.text);
    Finish finish = FINISH_NONE;
    while (finish == FINISH_NONE)
        answer.count +=
            request_read(request, 0, answer.tokens + answer.count, ANSWER - answer.count, TIMEOUT_MS, &finish);
    TEST(finish == FINISH_LENGTH && answer.count == ANSWER);
    for (int i = 0; i < ANSWER; i++)
        memset(&answer.tokens[i].top[2], 0, sizeof answer.tokens[i].top - 2 * sizeof answer.tokens[i].top[0]);
    answer.cached = request_stats(request).cached_tokens;
    request_free(request);
    return answer;
}

static Answer ask(Engine *engine, const Wish *wish) {
    int32_t prompt[PROMPT];
    make_prompt(engine_model(engine), prompt);
    return ask_this(engine, wish, prompt, PROMPT);
}

/* By an engine of its own. */
static Answer ask_new(const char *directory, const Wish *wish) {
    Engine *engine = open_engine(directory, wish);
    const Answer answer = ask(engine, wish);
    engine_close(engine);
    return answer;
}

static bool same(const Answer *a, const Answer *b) { return !memcmp(a->tokens, b->tokens, sizeof a->tokens); }

/* Cuts every file of pages to so many thirds. */
static void cut_files(int thirds) {
    DIR *models = opendir(cache);
    for (struct dirent *model; models && (model = readdir(models));) {
        if (model->d_name[0] == '.') continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s/pages-00000001", cache, model->d_name);
        struct stat status;
        TEST(!stat(path, &status) && !truncate(path, status.st_size * thirds / 3));
    }
    closedir(models);
}

static void new_cache(void) {
    snprintf(cache, sizeof cache, "/tmp/apus-disk-XXXXXX");
    TEST(mkdtemp(cache));
}

static void remove_cache(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    TEST(system(command) == 0);
}

static void check_form(const char *name, const char *directory, const KvFormat *format) {
    const Wish cold_wish = {.format = format, .no_disk = true}, wish = {.format = format};
    const Wish other = {.format = format, .salt = 1}, off = {.format = format, .cache_off = true};
    new_cache();
    const Answer cold = ask_new(directory, &cold_wish), first = ask_new(directory, &wish);
    TEST_MSG(first.cached == 0 && same(&first, &cold), "%s: %d", name, first.cached);
    Engine *engine = open_engine(directory, &wish), *second = open_engine(directory, &wish);
    const Answer warm = ask(engine, &wish), without = ask(second, &wish);
    TEST_MSG(warm.cached == WHOLE_PAGES && same(&warm, &cold), "%s: %d", name, warm.cached);
    TEST_MSG(without.cached == 0 && same(&without, &cold), "%s: %d", name, without.cached);
    const EngineStats stats = engine_stats(engine);
    TEST(stats.restored_pages == WHOLE_PAGES / KV_PAGE_TOKENS && stats.prefix_tokens == WHOLE_PAGES);
    const Answer foreign = ask(engine, &other), alone = ask(engine, &off);
    TEST(foreign.cached == 0 && same(&foreign, &cold) && alone.cached == 0 && same(&alone, &cold));
    engine_close(second);
    engine_close(engine);
    cut_files(2);
    const Answer torn = ask_new(directory, &wish);
    TEST_MSG(torn.cached > 0 && torn.cached < WHOLE_PAGES && same(&torn, &cold), "%s: %d", name, torn.cached);
    const Answer whole = ask_new(directory, &wish); /* what was missing has been written again */
    TEST_MSG(whole.cached == WHOLE_PAGES && same(&whole, &cold), "%s: %d", name, whole.cached);
    remove_cache();
}

/* ---- pages that cannot be trusted ---- */

static const BackendOps *whole_ops;
static BackendOps spoiled_ops;
static uint16_t spoiled_bits; /* of a number in every page; 0: the device has failed */

static bool spoiled_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    if (!spoiled_bits || !whole_ops->page_read(backend, layer, page, tokens, out)) return false;
    memcpy((uint8_t *)out + 6, &spoiled_bits, sizeof spoiled_bits);
    return true;
}

static Backend *spoil(Backend *inner, Error *error) {
    whole_ops = inner->ops;
    spoiled_ops = *inner->ops;
    spoiled_ops.page_read = spoiled_read;
    inner->ops = &spoiled_ops;
    return inner;
}

/* What a device that fails gives, or one that computes what is no number, does not come to the disk. */
static void check_spoiled(const char *directory) {
    static const uint16_t bits[] = {0, 0x7e00, 0xfc00, 0x3c00}; /* none, NaN, −∞; 1 as a control */
    const Wish wish = {0};
    for (size_t i = 0; i < COUNT_OF(bits); i++) {
        Error error = {0};
        EngineOptions options = engine_options(directory, &wish);
        new_cache();
        spoiled_bits = bits[i];
        options.backend.wrap = spoil;
        Engine *engine = engine_open(&options, &error);
        TEST_MSG(engine, "%s", error.text);
        if (!engine) abort();
        (void)ask(engine, &wish);
        engine_close(engine);
        const Answer after = ask_new(directory, &wish);
        const bool control = i == COUNT_OF(bits) - 1;
        TEST_MSG(after.cached == (control ? WHOLE_PAGES : 0), "%x: %d tokens of spoiled pages", bits[i], after.cached);
        remove_cache();
    }
}

/* Whoever has no time gets a page after another. */
static void check_pieces(const char *directory) {
    const Wish wish = {0};
    const KvFormat exact = {.k = KV_FULL};
    const EngineOptions options = engine_options(directory, &wish);
    RunnerOptions runner_options = {.backend = options.backend, .outputs_max = 1};
    runner_options.backend.rows_max = options.prefill_size;
    int32_t prompt[PROMPT];
    Error error = {0};
    new_cache();
    (void)ask_new(directory, &wish);
    Model *model = model_open(directory, &options.model, &error);
    Runner *runner = model ? runner_open(model, &runner_options, &error) : NULL;
    KvCache *kv = runner ? kv_open(runner_kv_plan(runner), 64 << 20, &error) : NULL;
    Buffer identity = {0};
    DiskTier *tier = NULL;
    if (kv && cache_identity(&options, runner, &identity, &error)) {
        const DiskTierOptions disk = {.directory = cache, .bytes = 64 << 20, .identity = buffer_view(&identity)};
        tier = disk_tier_open(&disk, kv, &error);
    }
    buffer_free(&identity);
    KvSequence sequence = {0};
    if (tier && kv_sequence_open(kv, NULL, &sequence, &error)) {
        make_prompt(model, prompt);
        uint64_t ids[PROMPT];
        for (int i = 0; i < PROMPT; i++) ids[i] = (uint64_t)prompt[i];
        SequenceText text = {.format = &exact, .ids = ids};
        int pages = 1;
        for (; disk_tier_find(tier, &text, PROMPT - 1, 0, &sequence); pages++, text.ids = ids + text.first) {
            text.first = disk_tier_position(&sequence); /* earlier content ids are not read again */
            TEST_MSG(sequence.length == pages * KV_PAGE_TOKENS, "%d tokens after %d calls", sequence.length, pages);
        }
        TEST(sequence.length == WHOLE_PAGES && pages == WHOLE_PAGES / KV_PAGE_TOKENS);
        kv_sequence_close(kv, &sequence);
    }
    TEST_MSG(tier, "%s", error.text);
    disk_tier_close(tier);
    kv_close(kv);
    runner_close(runner);
    model_close(model);
    remove_cache();
}

/* A page that an answer has filled is none of a prompt's that has the same text. */
static void check_apart(const char *name, const char *directory) {
    enum { BEGIN = 2 * KV_PAGE_TOKENS - ANSWER / 2 };
    const Wish wish = {.apart = true}, cold_wish = {.apart = true, .no_disk = true};
    int32_t prompt[PROMPT];
    new_cache();
    Engine *engine = open_engine(directory, &wish);
    make_prompt(engine_model(engine), prompt);
    const Answer first = ask_this(engine, &wish, prompt, BEGIN);
    engine_close(engine);
    for (int i = 0; i < ANSWER; i++) prompt[BEGIN + i] = first.tokens[i].id;
    engine = open_engine(directory, &cold_wish);
    const Answer cold = ask_this(engine, &cold_wish, prompt, PROMPT);
    engine_close(engine);
    for (int again = 0; again < 2; again++) {
        engine = open_engine(directory, &wish);
        const Answer warm = ask_this(engine, &wish, prompt, PROMPT);
        TEST_MSG(same(&warm, &cold), "%s: not as cold", name);
        TEST_MSG(warm.cached == (again ? WHOLE_PAGES : KV_PAGE_TOKENS), "%s: %d were found", name, warm.cached);
        engine_close(engine);
    }
    remove_cache();
}

/* Snapshots of recurrent states come back from files as well, for the same text and salt only. */
static void check_states(const char *name, const char *directory) {
    const Wish cold_wish = {.no_disk = true}, wish = {0}, other = {.salt = 1};
    new_cache();
    const Answer cold = ask_new(directory, &cold_wish), first = ask_new(directory, &wish);
    TEST_MSG(first.cached == 0 && same(&first, &cold), "%s: %d", name, first.cached);
    const Answer warm = ask_new(directory, &wish), foreign = ask_new(directory, &other);
    const int found = (PROMPT - 2) / RECURRENT_PAGE_TOKENS * RECURRENT_PAGE_TOKENS + 1;
    TEST_MSG(warm.cached == found && same(&warm, &cold), "%s: %d tokens from files", name, warm.cached);
    TEST_MSG(foreign.cached == 0 && same(&foreign, &cold), "%s: %d of another salt", name, foreign.cached);
    cut_files(1);
    const Answer torn = ask_new(directory, &wish);
    TEST_MSG(torn.cached < WHOLE_PAGES && same(&torn, &cold), "%s: %d", name, torn.cached);
    remove_cache();
}

/* Also short prompts, and within a page: up to the first row of the last page of states. */
static void check_short_states(const char *name, const char *directory) {
    static const int counts[] = {40, 100, 130, 200, 259, PROMPT - ANSWER};
    const Wish cold_wish = {.no_disk = true}, wish = {0};
    int32_t prompt[PROMPT];
    Answer cold[COUNT_OF(counts)];
    new_cache();
    for (int round = 0; round < 3; round++) { /* cold, to be written, and in a later process */
        Engine *engine = open_engine(directory, round ? &wish : &cold_wish);
        for (size_t i = 0; i < COUNT_OF(counts); i++) {
            make_prompt(engine_model(engine), prompt);
            prompt[0] = (int32_t)i; /* texts of their own */
            const Answer answer = ask_this(engine, &wish, prompt, counts[i]);
            if (round == 0) cold[i] = answer;
            const int least = round < 2 ? 0 : (counts[i] - 2) / RECURRENT_PAGE_TOKENS * RECURRENT_PAGE_TOKENS + 1;
            TEST_MSG(answer.cached == least, "%s: %d of %d from files", name, answer.cached, counts[i]);
            TEST_MSG(same(&answer, &cold[i]), "%s: %d tokens: not as cold", name, counts[i]);
            if (round < 2) continue;
            /* The next turn, of which the answer was never written alone. */
            for (int k = 0; k < ANSWER; k++) prompt[counts[i] + k] = answer.tokens[k].id;
            const Answer next = ask_this(engine, &wish, prompt, counts[i] + ANSWER);
            TEST_MSG(next.cached == counts[i] + ANSWER - 1, "%s: %d of the next turn", name, next.cached);
        }
        engine_close(engine);
    }
    remove_cache();
}

static void check_model(const char *name, const char *directory) {
    KvFormat turbo;
    TEST(kv_format_parse("turbo", &turbo, NULL));
    turbo.after = 256;
    turbo.hot = turbo.sink = KV_PAGE_TOKENS;
    check_pieces(directory);
    check_spoiled(directory);
    check_apart(name, directory);
    check_form(name, directory, NULL);
    check_form(name, directory, &turbo);
}

int main(void) {
    static const struct {
        const char *name;
        int variant;
        bool states;
    } fixtures[] = {{"llama", 0, false}, {"qwen2", 0, false} /* key biases */,
        {"gemma3-text", 2, false} /* windows, quantised */, {"deepseek-v3", 0, false} /* latents */,
        {"qwen3-5", 0, true}, {"nemotron-h-experts", 0, true}, {"lfm2", 0, true}};
    for (size_t i = 0; i < COUNT_OF(fixtures); i += SANITIZED ? 2 : 1) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, fixtures[i].name) || !fixture_write_variant(&f, fixtures[i].variant, directory)) continue;
        (fixtures[i].states ? check_states : check_model)(fixtures[i].name, directory);
        if (fixtures[i].states) check_short_states(fixtures[i].name, directory);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
