/* Speculative decoding over real decoders: for every family's fixture, in full precision and quantised, on every
 * backend for some of them, answers with scripted and looked-up drafts equal the answers without, logprobs included.
 * test_speculation_model DIRECTORY: a checkpoint instead of the fixtures. */
#include "engine/engine.h"

#include "family/fixture.h"

enum { REQUESTS = 6, TOKENS = 70, PROMPT = 150, CHOICES = 2, TIMEOUT_MS = 600000 };

typedef struct Answer {
    int count[CHOICES];
    TokenOut tokens[CHOICES][TOKENS];
    Finish finish[CHOICES];
} Answer;
static Answer known[REQUESTS], answers[REQUESTS];

static void make_request(RequestOptions *o, int32_t *prompt, int number, int vocab) {
    uint64_t state = (uint64_t)number * 977 + 5;
    const int period = number % 2 ? 11 : PROMPT; /* some repeat themselves, and are easily looked up */
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i < period ? (int32_t)(test_random(&state) % (uint64_t)vocab) : prompt[i - period];
    *o = (RequestOptions){.prompt = prompt,
        .prompt_count = PROMPT - number * 9,
        .max_tokens = TOKENS - number,
        .choices = number == 3 ? CHOICES : 1,
        .prediction = number == 4 ? prompt : NULL,
        .prediction_count = number == 4 ? 40 : 0,
        .sampling = {.temperature = number % 3 ? 0.8f : 0,
            .top_p = number % 2 ? 0.9f : 1,
            .repetition_penalty = number == 2 ? 1.2f : 1,
            .seed = (uint64_t)number,
            .ignore_eos = number != 1,
            .logprobs = number % 2 ? 3 : -1}};
}

/* The known tokens with wrong ones among them. */
static int script(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens) {
    const Answer *a = &known[seed];
    const int first = position - (PROMPT - (int)seed * 9), vocab = *(const int *)context;
    uint64_t state = seed * 7919 + (uint64_t)choice * 104729 + (uint64_t)position;
    const int wanted = (int)(test_random(&state) % DRAFT_TOKENS_MAX), count = wanted < max ? wanted : max;
    for (int i = 0; i < count; i++) {
        const bool right = first + i < a->count[choice] && test_random(&state) % 8;
        tokens[i] = right ? a->tokens[choice][first + i].id : (int32_t)(test_random(&state) % (uint64_t)vocab);
    }
    return count;
}

static void read_answer(Request *request, int choices, Answer *answer) {
    memset(answer, 0, sizeof *answer);
    for (int k = 0; k < choices; k++) {
        while (answer->finish[k] == FINISH_NONE) {
            const int room = TOKENS - answer->count[k];
            TokenOut *next = answer->tokens[k] + answer->count[k];
            const int count = request_read(request, k, next, room, TIMEOUT_MS, &answer->finish[k]);
            for (int i = 0; i < count; i++)
                for (int t = next[i].top_count; t < LOGPROBS_TOP_MAX; t++)
                    memset(&next[i].top[t], 0, sizeof next[i].top[t]);
            answer->count[k] += count;
            if (count == 0 && answer->finish[k] == FINISH_NONE) break;
        }
        TEST(answer->finish[k] == FINISH_LENGTH || answer->finish[k] == FINISH_STOP);
    }
}

typedef struct Setting {
    const char *name, *directory, *cpu;
    bool quantised;
    bool streamed; /* experts come from their file */
} Setting;

static DraftStats run_requests(const Setting *s, const SpeculationOptions *speculation, Answer *out) {
    static const KvFormat format = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 128, .hot = 128};
    Error error = {0};
    static int vocab;
    SpeculationOptions own = *speculation;
    own.script_context = &vocab;
    const EngineOptions options = {.directory = s->directory,
        .model = {.context = 512, .experts = {.stream = s->streamed, .bytes_max = s->streamed ? 1 << 19 : 0}},
        .backend = fixture_backend(s->cpu, 2, 0),
        .slots = 4,
        .queue_max = REQUESTS,
        .prefill_size = 48,
        .kv_format = s->quantised ? format : (KvFormat){0},
        .speculation = own};
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s: %s", s->name, error.text);
    DraftStats all = {0};
    if (!engine) return all;
    Request *requests[REQUESTS];
    RequestOptions o[REQUESTS];
    static int32_t prompts[REQUESTS][PROMPT];
    vocab = model_vocab(engine_model(engine));
    for (int i = 0; i < REQUESTS; i++) {
        make_request(&o[i], prompts[i], i, vocab);
        requests[i] = engine_submit(engine, &o[i], &error);
        TEST_MSG(requests[i] != NULL, "%s: %s", s->name, error.text);
    }
    for (int i = 0; i < REQUESTS; i++) {
        if (!requests[i]) continue;
        read_answer(requests[i], o[i].choices, &out[i]);
        const RequestStats stats = request_stats(requests[i]);
        for (int source = 0; source < DRAFT_SOURCES; source++) {
            all.drafted += stats.drafts[source].drafted;
            all.accepted += stats.drafts[source].accepted;
        }
        request_free(requests[i]);
    }
    engine_close(engine);
    return all;
}

static void compare(const Setting *s, const char *drafts) {
    for (int i = 0; i < REQUESTS; i++)
        TEST_MSG(!memcmp(&known[i], &answers[i], sizeof known[i]), "%s, %s%s, %s: request %d", s->name, s->cpu,
            s->quantised ? ", quantised" : "", drafts, i);
}

static void check_setting(const Setting *s) {
    const DraftStats none = run_requests(s, &(SpeculationOptions){0}, known);
    const DraftStats scripted = run_requests(s, &(SpeculationOptions){.always = true, .script = script}, answers);
    compare(s, "scripted drafts");
    TEST_MSG(none.drafted == 0 && scripted.accepted > 30 && scripted.accepted < scripted.drafted, "%s: %llu of %llu",
        s->name, (unsigned long long)scripted.accepted, (unsigned long long)scripted.drafted);
    (void)run_requests(s, &(SpeculationOptions){.lookup = true, .always = true}, answers);
    compare(s, "lookup");
    const SpeculationOptions own = {.draft_directory = s->directory, .draft_tokens = 3, .always = true};
    const DraftStats model = run_requests(s, &own, answers);
    compare(s, "itself as a draft model");
    TEST_MSG(model.accepted * 2 > model.drafted, "%s: %llu of %llu", s->name, (unsigned long long)model.accepted,
        (unsigned long long)model.drafted);
}

static void check_fixture(const char *name, bool every_backend) {
    Fixture f;
    char directory[64];
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, 0, directory)) return;
    check_setting(&(Setting){name, directory, "auto", false, false});
    for (size_t i = 0; i < COUNT_OF(fixture_cpus) && every_backend; i++) {
        if (!fixture_cpu_here(fixture_cpus[i]) || (test_sampled() && !strcmp(fixture_cpus[i], "fence"))) continue;
        check_setting(&(Setting){name, directory, fixture_cpus[i], i % 2 == 0, false});
    }
    if (every_backend) check_setting(&(Setting){name, directory, "generated", false, false});
    if (!every_backend) check_setting(&(Setting){name, directory, "auto", true, false});
    if (!strcmp(name, "olmoe")) check_setting(&(Setting){name, directory, "auto", false, true});
    fixture_remove(directory);
    fixture_close(&f);
}

int main(int argc, char **argv) {
    static char names[FIXTURE_NAMES_MAX][64];
    if (argc > 1) {
        check_setting(&(Setting){argv[1], argv[1], "auto", false, false});
        check_setting(&(Setting){argv[1], argv[1], "auto", true, false});
        return test_done();
    }
    const int count = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 0; i < count; i++) {
        const bool every_backend = !strcmp(names[i], "llama") || (!test_sampled() && !strcmp(names[i], "gemma3-text"));
        if (test_sampled() && i % 30 && !every_backend && strcmp(names[i], "olmoe")) continue;
        check_fixture(names[i], every_backend);
    }
    return test_done();
}
