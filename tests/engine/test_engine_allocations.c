/* Load, request and unload with every allocation failing once: no crash, nothing left behind, an error that says what
 * failed, and an engine that lives answers the next request. */
#include "allocations.h"
#include "base/log.h"
#include "engine/engine.h"
#include "family/assistant_fixture.h"

enum { CHOICES = 2, PROMPT = 10, LONG_PROMPT = 300, TOKENS = 3, TIMEOUT_MS = 60000 };

static char directory[64], disk[64];
static char assistant[64]; /* directory of the draft model of `directory`; "": none */
static const char *cpu;
static WeightsMode weights;
static int threads;
static bool paged; /* a prompt of several pages, some of them codes, left to be found in memory and on disk */

/* Reads all choices; false: one ended with an error. */
static bool read_all(Request *request, Error *error) {
    bool ok = true;
    for (int k = 0; k < CHOICES; k++) {
        Finish finish = FINISH_NONE;
        TokenOut tokens[TOKENS];
        int count = 0;
        while (finish == FINISH_NONE) {
            const int got = request_read(request, k, tokens, TOKENS, TIMEOUT_MS, &finish);
            CHECK(got > 0 || finish != FINISH_NONE);
            count += got;
        }
        ok = ok && finish == FINISH_LENGTH && count == TOKENS;
    }
    TokenOut token;
    if (ok) {
        for (int i = 0; !paged && i < PROMPT; i++) CHECK(request_prompt_logprob(request, i, &token));
    } else {
        Error why;
        request_error(request, &why);
        TEST(why.code != ERROR_NONE && why.text[0]);
        if (error) *error = why;
    }
    return ok;
}

static bool ask(Engine *engine, Error *error) {
    int32_t prompt[LONG_PROMPT];
    for (int i = 0; i < LONG_PROMPT; i++) prompt[i] = (i * 7 + 1) % 40;
    const int32_t bias_ids[] = {3, 5};
    const float bias_values[] = {1, -1};
    const RequestOptions options = {.prompt = prompt,
        .prompt_count = paged ? LONG_PROMPT : PROMPT,
        .max_tokens = TOKENS,
        .choices = CHOICES,
        .echo_logprobs = !paged,
        .sampling = {.temperature = 0.8f,
            .top_p = 0.9f,
            .top_k = 20,
            .min_p = 0.01f,
            .repetition_penalty = 1.1f,
            .frequency_penalty = 0.1f,
            .presence_penalty = 0.1f,
            .seed = 7,
            .ignore_eos = true,
            .bias_count = 2,
            .bias_ids = bias_ids,
            .bias_values = bias_values,
            .logprobs = 3}};
    Request *request = engine_submit(engine, &options, error);
    if (!request) return false;
    const bool ok = read_all(request, error);
    request_free(request);
    return ok;
}

static bool live_once(bool last, Error *error) {
    const KvFormat codes = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 128, .hot = 128};
    const EngineOptions options = {.directory = directory,
        .model = {.weights = weights, .context = 512},
        .backend = {.cpu = cpu, .threads = threads},
        .slots = 2,
        .queue_max = 4,
        .prefill_size = paged ? 150 : 16,
        .kv_format = paged ? codes : (KvFormat){0},
        .cache_directory = paged ? disk : NULL,
        .cache_disk_bytes = 64 << 20,
        .speculation = {.lookup = true,
            .draft_directory = *assistant ? assistant
                : paged                   ? directory
                                          : NULL,
            .always = true}};
    Engine *engine = engine_open(&options, error);
    if (!engine) return false;
    const bool ok = ask(engine, error);
    Error second = {0};
    if (last && allocations_recover()) TEST_MSG(ask(engine, &second), "the next request fails: %s", second.text);
    engine_close(engine);
    return ok;
}

/* With a disk also a second engine, which finds there what the first has left. */
static bool live(Error *error) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", disk);
    if (!paged) return live_once(true, error);
    CHECK(system(command) == 0);
    return live_once(false, error) && live_once(true, error);
}

static void sweep(const char *fixture, const char *with_cpu, int with_threads, WeightsMode with_weights) {
    Fixture f;
    if (!fixture_open(&f, fixture)) return;
    const bool two = json_get(json_get(f.root, "config"), "assistant") != NULL;
    const bool written =
        (two ? assistant_write(&f, 0, directory, assistant) : fixture_write_variant(&f, 0, directory)) &&
        fixture_write_text(directory, "generation_config.json", SLICE("{\"temperature\":0.5}"));
    TEST(written);
    cpu = with_cpu;
    threads = with_threads;
    weights = with_weights;
    char name[128];
    snprintf(name, sizeof name, "%s on %s%s", fixture, cpu, weights ? ", weights read" : "");
    for (int mode = ALLOCATIONS_ONE; written && mode <= ALLOCATIONS_ALL; mode++)
        printf("%s: %ld allocations\n", name, allocations_sweep(name, live, mode));
    fixture_remove(directory);
    if (two) fixture_remove(assistant);
    *assistant = 0;
    fixture_close(&f);
}

int main(int argc, char **argv) {
    allocations_verbose = argc > 1;
    log_set_level(LOG_ERROR + 1); /* a line for each step that fails */
    sweep("llama", "ref", 1, WEIGHTS_LAZY);
    sweep("gemma3", "auto", 2, WEIGHTS_READ);
    sweep("assistant/gemma4", "ref", 1, WEIGHTS_LAZY);
    snprintf(disk, sizeof disk, "/tmp/apus-allocations-XXXXXX");
    paged = mkdtemp(disk);
    TEST(paged);
    sweep("gemma3", "auto", 1, WEIGHTS_LAZY);
    rmdir(disk);
    return test_done();
}
