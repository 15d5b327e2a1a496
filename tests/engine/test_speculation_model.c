/* Speculative decoding over real decoders: for every family's fixture, in full precision and quantised, on every
 * backend for some of them, answers with scripted and looked-up drafts equal the answers without, logprobs included.
 * So do those with multi-token prediction heads and assistants, also among forks, preempted and resumed sequences; the
 * engine drafts with them what they predict for the whole text. test_speculation_model DIRECTORY: a checkpoint instead
 * of the fixtures; --backend BACKEND NAME…: these fixtures on this backend. */
#include "engine/engine.h"

#include "family/assistant_fixture.h"
#include "family/compare.h"
#include "family/head_reader.h"

enum { REQUESTS = 6, TOKENS = 70, PROMPT = 150, CHOICES = 2, CONTEXT = 512, TIMEOUT_MS = 600000 };

/* Tokens of the requests to a model: as many as there are positions for. */
typedef struct Lengths {
    int context, prompt, answer;
} Lengths;
static const Lengths usual = {CONTEXT, PROMPT, TOKENS};
static Lengths lengths = {CONTEXT, PROMPT, TOKENS};

typedef struct Answer {
    int count[CHOICES];
    TokenOut tokens[CHOICES][TOKENS];
    Finish finish[CHOICES];
} Answer;
static Answer known[REQUESTS], answers[REQUESTS];
static int request_count = REQUESTS; /* fewer on an emulated device */

static int prompt_length(int number) { return lengths.prompt - number * (lengths.prompt / 16); }

static void make_request(RequestOptions *o, int32_t *prompt, int number, int vocab) {
    uint64_t state = (uint64_t)number * 977 + 5;
    const int period = number % 2 ? 11 : PROMPT; /* some repeat themselves, and are easily looked up */
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i < period ? (int32_t)(test_random(&state) % (uint64_t)vocab) : prompt[i - period];
    *o = (RequestOptions){.prompt = prompt,
        .prompt_count = prompt_length(number),
        .max_tokens = lengths.answer - number,
        .choices = number == 3 ? CHOICES : 1,
        .prediction = number == 4 ? prompt : NULL,
        .prediction_count = number == 4 ? lengths.prompt * 4 / 15 : 0,
        .sampling = {.temperature = number % 3 ? 0.8f : 0,
            .top_p = number % 2 ? 0.9f : 1,
            .repetition_penalty = number == 2 ? 1.2f : 1,
            .seed = (uint64_t)number,
            .ignore_eos = number != 1,
            .logprobs = number % 2 ? 3 : -1}};
}

/* The known tokens with wrong ones among them. */
static int script(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match) {
    const Answer *a = &known[seed];
    const int first = position - prompt_length((int)seed), vocab = *(const int *)context;
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
    bool mtp;
    const char *assistant; /* its directory; NULL: none */
    size_t kv_bytes;       /* 0: enough */
} Setting;

static uint64_t preempted; /* choices, of all engines */

static DraftStats run_requests(const Setting *s, const SpeculationOptions *speculation, Answer *out) {
    static const KvFormat format = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 128, .hot = 128};
    Error error = {0};
    static int vocab;
    SpeculationOptions own = *speculation;
    own.script_context = &vocab;
    if (speculation->always && s->assistant) own.draft_directory = s->assistant;
    /* Two threads for one model: with many, small steps wait for each other on cores that other tests use. */
    const int threads = strcmp(s->name, "llama") ? 1 : 2;
    const EngineOptions options = {.directory = s->directory,
        .model = {.context = lengths.context,
            .mtp = speculation->always && s->mtp,
            .experts = {.stream = s->streamed, .bytes_max = s->streamed ? 1 << 19 : 0}},
        .backend = fixture_backend(s->cpu, threads, 0),
        .slots = 4,
        .queue_max = REQUESTS,
        .prefill_size = 48,
        .kv_bytes = s->kv_bytes,
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
    for (int i = 0; i < request_count; i++) {
        make_request(&o[i], prompts[i], i, vocab);
        requests[i] = engine_submit(engine, &o[i], &error);
        TEST_MSG(requests[i] != NULL, "%s: %s", s->name, error.text);
    }
    for (int i = 0; i < request_count; i++) {
        if (!requests[i]) continue;
        read_answer(requests[i], o[i].choices, &out[i]);
        const RequestStats stats = request_stats(requests[i]);
        for (int source = 0; source < DRAFT_SOURCES; source++) {
            all.drafted += stats.drafts[source].drafted;
            all.accepted += stats.drafts[source].accepted;
        }
        request_free(requests[i]);
    }
    preempted += engine_stats(engine).preempted;
    engine_close(engine);
    return all;
}

static void compare(const Setting *s, const char *drafts) {
    for (int i = 0; i < request_count; i++)
        TEST_MSG(!memcmp(&known[i], &answers[i], sizeof known[i]), "%s, %s%s, %s: request %d", s->name, s->cpu,
            s->quantised ? ", quantised" : "", drafts, i);
}

/* Published checkpoints whose experts are transposed when they load: these have no place in a file to be read from, and
 * are refused. */
static const char *const unstreamable[] = {"dbrx-published", "llama4"};
static int refused;

static bool is_unstreamable(const char *name) {
    for (size_t i = 0; i < COUNT_OF(unstreamable); i++)
        if (!strcmp(name, unstreamable[i])) return true;
    return false;
}

static void expect_refusal(const Setting *s) {
    Error error = {0};
    Model *model = model_open(s->directory, &(ModelOptions){.experts.stream = true}, &error);
    TEST_MSG(!model && strstr(error.text, "lies in no file"), "%s: %s", s->name, error.text);
    model_close(model);
    refused++;
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

/* Prompts that a draft model reads in the step of its first draft token; with recurrent states the drafts go on over
 * several of their pages. */
static void check_short_prompts(const char *name) {
    Fixture f;
    char directory[64];
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, 0, directory)) return;
    const Setting s = {.name = name, .directory = directory, .cpu = "auto"};
    const SpeculationOptions own = {.draft_directory = directory, .draft_tokens = DRAFT_TOKENS_MAX, .always = true};
    lengths = (Lengths){CONTEXT, 30, TOKENS};
    (void)run_requests(&s, &(SpeculationOptions){0}, known);
    const DraftStats model = run_requests(&s, &own, answers);
    compare(&s, "itself as a draft model behind short prompts");
    TEST_MSG(model.accepted > 100, "%s: %llu of %llu", name, (unsigned long long)model.accepted,
        (unsigned long long)model.drafted);
    lengths = usual;
    fixture_remove(directory);
    fixture_close(&f);
}

static void check_streamed(Setting s) {
    s.streamed = true;
    if (is_unstreamable(s.name))
        expect_refusal(&s);
    else
        check_setting(&s);
}

/* GPT-2 and GPT-BigCode have a vector for each of few positions. */
static Lengths fitting_lengths(const Fixture *f) {
    const Json *positions = json_get(json_get(f->root, "config"), "n_positions");
    if (!positions || positions->integer >= CONTEXT) return usual;
    const int count = (int)positions->integer;
    return (Lengths){count, count / 2, count / 2 - 1};
}

/* Whether it has experts, which can come from their file. */
static bool is_mixture(const Fixture *f) {
    for (JSON_EACH_PAIR(name, shape, json_get(f->root, "tensors")))
        if (memmem(name->string, name->size, "experts", 7) || memmem(name->string, name->size, "switch_mlp", 10))
            return true;
    return false;
}

/* The fence changes the protection of pages around each operation, and operations of other tests are on it. */
static bool is_due(const char *cpu) { return !test_sampled() || strcmp(cpu, "fence"); }

static void check_fixture(const char *name, bool every_backend) {
    Fixture f;
    char directory[64];
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, 0, directory)) return;
    lengths = fitting_lengths(&f);
    check_setting(&(Setting){.name = name, .directory = directory, .cpu = "auto"});
    for (size_t i = 0; i < COUNT_OF(fixture_cpus) && every_backend; i++) {
        if (!fixture_cpu_here(fixture_cpus[i]) || !is_due(fixture_cpus[i])) continue;
        check_setting(
            &(Setting){.name = name, .directory = directory, .cpu = fixture_cpus[i], .quantised = i % 2 == 0});
    }
    if (every_backend) check_setting(&(Setting){.name = name, .directory = directory, .cpu = "generated"});
    if (!every_backend)
        check_setting(&(Setting){.name = name, .directory = directory, .cpu = "auto", .quantised = true});
    if (!strcmp(name, "olmoe") || (is_mixture(&f) && !test_sampled()))
        check_streamed((Setting){.name = name, .directory = directory, .cpu = "auto"});
    lengths = usual;
    fixture_remove(directory);
    fixture_close(&f);
}

/* ---- multi-token prediction heads ---- */

enum { DRAFTS = 3 };

/* Draft tokens behind the first `count` tokens of a text, which the head reads anew. states: of all its positions. */
static bool predict(Reader *head, const int32_t *text, int count, const float *states, int32_t *drafts) {
    static float logits[(PROMPT + TOKENS) * 64], own[(PROMPT + TOKENS) * 128];
    Error error = {0};
    const Model *model = runner_model(head->runner);
    const int hidden = model_hidden(model), vocab = model_vocab(model);
    float lead;
    CHECK(vocab <= 64 && hidden <= 128);
    kv_sequence_close(head->kv, &head->sequence);
    bool ok = kv_sequence_open(head->kv, NULL, &head->sequence, &error) &&
        read_rows(head, text + 1, states, count - 1, logits, own);
    const float *last = logits + (count - 2) * vocab;
    memmove(own, own + (count - 2) * hidden, (size_t)hidden * sizeof *own);
    for (int i = 0; ok && i < DRAFTS; i++) {
        drafts[i] = argmax(last, vocab, &lead);
        ok = read_rows(head, &drafts[i], own, 1, logits, own);
        last = logits;
    }
    return ok;
}

/* The same of an assistant, which reads what the target has read of the text. */
static bool predict_beside(
    Runner *assistant, Reader *target, const int32_t *text, int count, const float *states, int32_t *drafts) {
    static float logits[64], own[128];
    const int hidden = model_hidden(runner_model(target->runner)), vocab = model_vocab(runner_model(assistant));
    float lead;
    bool ok = true;
    for (int i = 0; ok && i < DRAFTS; i++) {
        ok = assistant_rows(assistant, target->kv, &target->sequence, &target->builder,
            i ? &drafts[i - 1] : &text[count - 1], i ? own : states + (count - 2) * hidden, count - 2, 1, logits, own);
        drafts[i] = argmax(logits, vocab, &lead);
    }
    return ok;
}

/* What a greedy answer drafts and accepts; assistant NULL: with the model's head. */
static DraftStats simulate(
    const char *directory, const char *assistant, const RequestOptions *o, const Answer *answer) {
    static float logits[(PROMPT + TOKENS) * 64], states[(PROMPT + TOKENS) * 128];
    Error error = {0};
    DraftStats stats = {0};
    int32_t text[PROMPT + TOKENS], drafts[DRAFTS];
    Reader target = {0}, head = {0};
    Model *model = model_open(directory, &(ModelOptions){.context = 512, .mtp = !assistant}, &error), *small = NULL;
    Runner *beside = NULL;
    bool ok = model && reader_open(&target, model, "ref", false, PROMPT + TOKENS, &error);
    if (ok && assistant) {
        const RunnerOptions one = {
            .backend.rows_max = 1, .target = target.runner, .outputs_max = 1, .hidden_rows_max = 1};
        small = model_open(assistant, &(ModelOptions){.context = 512, .target = model}, &error);
        ok = small && (beside = runner_open(small, &one, &error)) != NULL;
    } else if (ok) {
        ok = reader_open(&head, model, "ref", true, PROMPT + TOKENS, &error);
    }
    TEST_MSG(ok, "%s", error.text);
    memcpy(text, o->prompt, (size_t)o->prompt_count * sizeof *text);
    for (int i = 0; i < answer->count[0]; i++) text[o->prompt_count + i] = answer->tokens[0][i].id;
    ok = ok && read_rows(&target, text, NULL, o->prompt_count + answer->count[0], logits, states);
    for (int done = 1; ok && done < o->max_tokens; done++) {
        const int left = o->max_tokens - done - 1, most = left < DRAFTS ? left : DRAFTS;
        const int count = o->prompt_count + done;
        if (most > 0)
            ok = assistant ? predict_beside(beside, &target, text, count, states, drafts)
                           : predict(&head, text, count, states, drafts);
        int accepted = 0;
        while (accepted < most && drafts[accepted] == text[o->prompt_count + done + accepted]) accepted++;
        stats.drafted += (uint64_t)most;
        stats.accepted += (uint64_t)accepted;
        done += accepted;
    }
    reader_close(&head);
    runner_close(beside);
    model_close(small);
    reader_close(&target);
    model_close(model);
    return stats;
}

static uint64_t head_accepted; /* draft tokens, of all heads and assistants */

/* An answer alone, by the reference backend; assistant NULL: with the model's head. */
static void check_drafts(const char *name, const char *directory, const char *assistant) {
    Error error = {0};
    int32_t prompt[PROMPT];
    RequestOptions o;
    Answer plain, drafted;
    DraftStats stats = {0};
    for (int with = 0; with < 2; with++) {
        const EngineOptions options = {.directory = directory,
            .model = {.context = 512, .mtp = with && !assistant},
            .backend = fixture_backend("ref", 1, 0),
            .slots = 1,
            .prefill_size = 48,
            .speculation = {.draft_directory = with ? assistant : NULL, .draft_tokens = DRAFTS, .always = true}};
        Engine *engine = engine_open(&options, &error);
        TEST_MSG(engine != NULL, "%s: %s", name, error.text);
        if (!engine) return;
        make_request(&o, prompt, 0, model_vocab(engine_model(engine)));
        Request *request = engine_submit(engine, &o, &error);
        TEST_MSG(request != NULL, "%s: %s", name, error.text);
        if (request) read_answer(request, 1, with ? &drafted : &plain);
        if (request && with) stats = request_stats(request).drafts[assistant ? DRAFT_MODEL : DRAFT_MTP];
        request_free(request);
        engine_close(engine);
    }
    TEST_MSG(!memcmp(&plain, &drafted, sizeof plain), "%s: with and without drafts", name);
    const DraftStats expected = simulate(directory, assistant, &o, &plain);
    head_accepted += expected.accepted;
    TEST_MSG(stats.drafted == expected.drafted && stats.accepted == expected.accepted && stats.drafted > TOKENS,
        "%s: %llu of %llu accepted, not %llu of %llu", name, (unsigned long long)stats.accepted,
        (unsigned long long)stats.drafted, (unsigned long long)expected.accepted, (unsigned long long)expected.drafted);
}

/* In full precision, quantised, and with too few pages for all sequences. */
static void check_settings(Setting setting, const char *drafts) {
    for (int i = 0; i < 3; i++) {
        setting.quantised = i == 1;
        setting.kv_bytes = i == 2 ? (size_t)1 << 18 : 0;
        (void)run_requests(&setting, &(SpeculationOptions){0}, known);
        const DraftStats stats =
            run_requests(&setting, &(SpeculationOptions){.draft_tokens = 5, .always = true}, answers);
        compare(&setting, drafts);
        TEST_MSG(stats.drafted > 100, "%s: %llu drafts", setting.name, (unsigned long long)stats.drafted);
    }
}

static void check_head(const char *name) {
    Fixture f;
    char directory[64];
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, 0, directory)) return;
    check_drafts(name, directory, NULL);
    check_settings((Setting){.name = name, .directory = directory, .cpu = "auto", .mtp = true}, "its head");
    fixture_remove(directory);
    fixture_close(&f);
}

/* A text that grows over ends of pages, of which older ones are quantised: what an assistant reads changes there. */
static void check_page_ends(const char *name, const char *directory, const char *assistant) {
    enum { LONG = 340, MORE = 120 };
    static const KvFormat format = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 256, .hot = 128};
    int32_t prompt[LONG];
    TokenOut tokens[2][MORE] = {0};
    uint64_t drafted = 0;
    for (int with = 0; with < 2; with++) {
        Error error = {0};
        const EngineOptions options = {.directory = directory,
            .model.context = CONTEXT,
            .backend = fixture_backend("auto", 2, 0),
            .slots = 1,
            .prefill_size = 64,
            .kv_format = format,
            .speculation = {.draft_directory = with ? assistant : NULL, .draft_tokens = DRAFTS, .always = true}};
        Engine *engine = engine_open(&options, &error);
        TEST_MSG(engine != NULL, "%s: %s", name, error.text);
        if (!engine) return;
        for (int i = 0; i < LONG; i++) prompt[i] = (i * i + 3) % model_vocab(engine_model(engine));
        const RequestOptions o = {.prompt = prompt,
            .prompt_count = LONG,
            .max_tokens = MORE,
            .choices = 1,
            .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = -1}};
        Request *request = engine_submit(engine, &o, &error);
        TEST_MSG(request != NULL, "%s: %s", name, error.text);
        Finish finish = FINISH_NONE;
        for (int count = 0; request && finish == FINISH_NONE;)
            count += request_read(request, 0, tokens[with] + count, MORE - count, TIMEOUT_MS, &finish);
        if (request) drafted = request_stats(request).drafts[DRAFT_MODEL].drafted;
        request_free(request);
        engine_close(engine);
    }
    int same = 0;
    while (same < MORE && tokens[0][same].id == tokens[1][same].id) same++;
    TEST_MSG(same == MORE && drafted > MORE, "%s: %d tokens are the same, %llu drafted", name, same,
        (unsigned long long)drafted);
}

static void check_assistant(const char *name) {
    Fixture f;
    char directory[64], assistant[64];
    if (!fixture_open(&f, name) || !assistant_write(&f, 0, directory, assistant)) return;
    check_drafts(name, directory, assistant);
    check_page_ends(name, directory, assistant);
    for (size_t i = 0; i < COUNT_OF(fixture_cpus); i++)
        if (is_due(fixture_cpus[i]) && fixture_case_due(0, i) && strcmp(fixture_cpus[i], "cuda"))
            check_settings(
                (Setting){.name = name, .directory = directory, .cpu = fixture_cpus[i], .assistant = assistant},
                "its assistant");
    fixture_remove(directory);
    fixture_remove(assistant);
    fixture_close(&f);
}

static void check_backend(const char *cpu, const char *name) {
    Fixture f;
    char directory[64];
    if (strcmp(cpu, "auto") && !fixture_cpu_here(cpu)) return;
    if (!strcmp(cpu, "cuda")) request_count = 2;
    if (!fixture_open(&f, name) || !fixture_write_variant(&f, 0, directory)) return;
    lengths = fitting_lengths(&f);
    check_setting(&(Setting){.name = name, .directory = directory, .cpu = cpu});
    if (is_mixture(&f) && strcmp(cpu, "cuda"))
        check_streamed((Setting){.name = name, .directory = directory, .cpu = cpu});
    lengths = usual;
    fixture_remove(directory);
    fixture_close(&f);
}

int main(int argc, char **argv) {
    static char names[FIXTURE_NAMES_MAX][64];
    if (argc > 2 && !strcmp(argv[1], "--backend")) {
        for (int i = 3; i < argc; i++) check_backend(argv[2], argv[i]);
        return test_done();
    }
    if (argc > 1) {
        check_setting(&(Setting){.name = argv[1], .directory = argv[1], .cpu = "auto"});
        check_setting(&(Setting){.name = argv[1], .directory = argv[1], .cpu = "auto", .quantised = true});
        return test_done();
    }
    for (size_t i = 0; i < COUNT_OF(head_fixtures); i += test_sampled() ? 3 : 1) check_head(head_fixtures[i]);
    check_assistant("assistant/gemma4");
    check_short_prompts("qwen3-5");
    TEST_MSG(preempted > 0 && head_accepted > 0, "%llu preempted, %llu accepted", (unsigned long long)preempted,
        (unsigned long long)head_accepted);
    const int count = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 0; i < count; i++) {
        const bool every_backend = !strcmp(names[i], "llama") || (!test_sampled() && !strcmp(names[i], "gemma3-text"));
        if (test_sampled() && i % 30 && !every_backend && strcmp(names[i], "olmoe")) continue;
        check_fixture(names[i], every_backend);
    }
    if (!test_sampled()) TEST_MSG(refused == COUNT_OF(unstreamable), "%d refused", refused);
    return test_done();
}
