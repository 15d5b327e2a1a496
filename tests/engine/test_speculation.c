/* Speculative decoding: answers with scripted drafts, right and wrong ones of every length, and with looked-up ones
 * equal the answers without: tokens, logprobs, finish, prompt tokens; whatever the cache's form, the device and the
 * requests around them are. test_speculation REQUESTS: so many per setting. */
#include "base/math.h"
#include "engine/engine_fixture.h"
#include "engine/draft_rule.h"
#include "engine/lookup.h"
#include "engine/speculation_cases.h"

typedef struct Setting {
    const char *name;
    int slots, prefill, window, decode_rows, refuse;
    bool quantised, device;
    size_t kv_bytes;
} Setting;

static const Setting settings[] = {
    {"one after the other", 1, 64, 0, 0, 0, false, false, 0},
    {"among others", 8, 48, 0, 0, 0, false, false, 0},
    {"windows", 5, 48, 70, 0, 0, false, false, 0},
    {"quantised", 5, 48, 0, 0, 0, true, false, 0},
    {"short of pages", 8, 48, 0, 0, 0, false, false, (size_t)8 * FAKE_PAGE_BYTES},
    {"a device", 6, 48, 0, 0, 0, false, true, 0},
    {"a device that refuses", 6, 48, 200, 0, 7, false, true, 0},
    {"decode arithmetic", 6, 48, 0, 20, 0, false, true, 0},
    {"uniform arithmetic", 8, 48, 0, 4, 0, true, true, 0},
};

static Engine *open_setting(const Setting *s, const SpeculationOptions *speculation) {
    Error error = {0};
    fake_reset();
    fake.window = s->window;
    fake.quantised = s->quantised;
    fake.sample_params = s->device;
    fake.decode_rows = s->decode_rows;
    fake.refuse = s->refuse;
    fake.eos_logit = 1;
    const KvFormat format = {.k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 128, .hot = 128};
    const EngineOptions options = {.directory = "fake",
        .slots = s->slots,
        .queue_max = 64,
        .prefill_size = s->prefill,
        .kv_format = s->quantised ? format : (KvFormat){0},
        .kv_bytes = s->kv_bytes ? s->kv_bytes : (size_t)FAKE_PAGES * FAKE_PAGE_BYTES,
        .speculation = *speculation};
    Engine *engine = engine_open(&options, &error);
    if (!engine) fprintf(stderr, "%s\n", error.text);
    CHECK(engine != NULL);
    return engine;
}

static DraftStats drafts_of(Engine *engine) {
    const EngineStats stats = engine_stats(engine);
    DraftStats all = {0};
    for (int i = 0; i < DRAFT_SOURCES; i++) {
        all.drafted += stats.drafts[i].drafted;
        all.accepted += stats.drafts[i].accepted;
    }
    return all;
}

static uint64_t preempted; /* choices, in this setting */

static DraftStats compare(const Setting *s, const char *drafts, const SpeculationOptions *speculation) {
    Engine *engine = open_setting(s, speculation);
    run_cases(engine, answers);
    wait_idle(engine);
    const DraftStats stats = drafts_of(engine);
    preempted += engine_stats(engine).preempted;
    close_engine(engine);
    int first = 0;
    const int different = different_answers(&first);
    TEST_MSG(different == 0, "%s, %s: %d of %d requests differ, the first is %d", s->name, drafts, different,
        case_count, first);
    return stats;
}

static void check_setting(const Setting *s) {
    static const int lengths[] = {1, 7, DRAFT_TOKENS_MAX, 0};
    Engine *engine = open_setting(s, &(SpeculationOptions){0});
    script_prompts(&scripts);
    run_cases(engine, known);
    TEST(drafts_of(engine).drafted == 0);
    close_engine(engine);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        char name[32];
        snprintf(name, sizeof name, "drafts of %d", lengths[i]);
        scripts.tokens = lengths[i];
        const DraftStats stats =
            compare(s, name, &(SpeculationOptions){.always = true, .script = script, .script_context = &scripts});
        const double part = (double)stats.accepted / (double)stats.drafted;
        TEST_MSG(stats.drafted > (uint64_t)case_count && part < 0.9, "%s, %s: %llu drafted, %.2f accepted", s->name,
            name, (unsigned long long)stats.drafted, part);
        TEST_MSG(lengths[i] != 1 || part > 0.6, "%s, %s: %.2f accepted", s->name, name, part);
    }
    (void)compare(s, "lookup", &(SpeculationOptions){.lookup = true});
    DraftStats stats = compare(s, "any lookup", &(SpeculationOptions){.lookup = true, .always = true});
    TEST(stats.accepted > 0);
    const SpeculationOptions model = {.draft_directory = "fake", .draft_tokens = 5, .always = true};
    stats = compare(s, "draft model", &model); /* the same model: what it samples is mostly right */
    TEST_MSG(stats.accepted * 5 > stats.drafted || s->decode_rows || s->quantised, "%s: %llu of %llu", s->name,
        (unsigned long long)stats.accepted, (unsigned long long)stats.drafted);
    TEST_MSG(!s->kv_bytes || preempted > 0, "%s: nothing was preempted", s->name);
    preempted = 0;
}

/* ---- steps ---- */

/* A right draft of 7 saves 7 of 8 steps. */
static void check_steps(void) {
    const Setting *s = &settings[0];
    static Case c;
    make_prompt(&c, 10, 1);
    c.options.max_tokens = 64;
    c.options.sampling.ignore_eos = true;
    c.options.sampling.seed = 1;
    Engine *engine = open_setting(s, &(SpeculationOptions){0});
    known[1].seen[0] = run_one(engine, &c.options);
    close_engine(engine);
    scripts.prompts[1] = 10;
    scripts.tokens = 7;
    engine = open_setting(s, &(SpeculationOptions){.always = true, .script = script, .script_context = &scripts});
    const Seen seen = run_one(engine, &c.options);
    TEST(seen.hash == known[1].seen[0].hash && seen.count == 64);
    wait_idle(engine);
    const DraftStats stats = drafts_of(engine);
    TEST_MSG(fake_steps() == 64 - (int)stats.accepted, "%d steps, %llu accepted", fake_steps(),
        (unsigned long long)stats.accepted);
    close_engine(engine);
}

/* A device begins steps ahead as long as nothing is worth drafting. */
static void check_lookahead(void) {
    static Case c;
    make_prompt(&c, 10, 3);
    c.options.max_tokens = 400;
    c.options.sampling.ignore_eos = true;
    const Setting device = {.name = "a device", .slots = 2, .prefill = 48, .device = true};
    Engine *engine = open_setting(&device, &(SpeculationOptions){.lookup = true});
    TEST(run_one(engine, &c.options).count == 400);
    wait_idle(engine);
    const int ahead = atomic_load(&fake.ahead);
    TEST_MSG(ahead > 200 && drafts_of(engine).drafted > 0, "%d steps begun ahead", ahead);
    close_engine(engine);
    /* A plan whose draft tokens the ledger pays for once: the step under way, which has none, is not charged. */
    c.options.sampling.seed = 1;
    engine = open_setting(&device, &(SpeculationOptions){0});
    known[1].seen[0] = run_one(engine, &c.options);
    close_engine(engine);
    scripts.prompts[1] = 10;
    scripts.tokens = 4;
    scripts.match = 4;
    /* The fake model's steps are so short that a busy machine makes draft tokens look expensive: a few tries. */
    DraftStats stats = {0};
    for (int tries = 0; tries < 5 && stats.accepted <= 10; tries++) {
        engine = open_setting(&device, &(SpeculationOptions){.script = script, .script_context = &scripts});
        TEST(run_one(engine, &c.options).hash == known[1].seen[0].hash);
        wait_idle(engine);
        stats = drafts_of(engine);
        close_engine(engine);
    }
    TEST_MSG(stats.accepted > 10, "%llu drafted", (unsigned long long)stats.drafted);
    scripts.match = 0;
}

/* Answers without a limit end where the cache is full: at the same token whatever drafts, slots and other answers there
 * are, also in a model with windows, whose pages hold the rows of a step besides. */
static void check_context(void) {
    enum { ANSWERS = 5 };
    static const int slots[] = {1, 16};
    static Case cases[ANSWERS];
    static Seen seen;
    int expected = 0;
    for (size_t i = 0; i < COUNT_OF(slots); i++)
        for (int drafts = 0; drafts < 3; drafts++) {
            const Setting s = {.slots = slots[i], .prefill = 128, .window = 100, .kv_bytes = 8 * FAKE_PAGE_BYTES};
            const SpeculationOptions options = {.lookup = drafts == 1,
                .draft_directory = drafts == 2 ? "fake" : NULL,
                .draft_tokens = drafts == 2 ? 5 : 0,
                .always = drafts > 0};
            Engine *engine = open_setting(&s, &options);
            Request *requests[ANSWERS];
            for (int k = 0; k < ANSWERS; k++) {
                make_prompt(&cases[k], 10, (uint64_t)k + 1);
                cases[k].options.max_tokens = INT32_MAX;
                cases[k].options.sampling.ignore_eos = true;
                requests[k] = submit(engine, &cases[k].options);
            }
            for (int k = 0; k < ANSWERS; k++) {
                read_all(requests[k], 1, &seen);
                request_free(requests[k]);
                if (expected == 0) expected = seen.count;
                TEST_MSG(seen.count == expected && seen.finish == FINISH_LENGTH,
                    "%d slots, drafts %d, answer %d: %d tokens, not %d", slots[i], drafts, k, seen.count, expected);
            }
            wait_idle(engine);
            TEST(!drafts == !drafts_of(engine).drafted);
            close_engine(engine);
        }
}

/* ---- lookup ---- */

static void check_lookup(void) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 1, 2, 9}, prediction[] = {40, 41, 42, 43};
    const LookupShape shape = {COUNT_OF(prediction), COUNT_OF(prompt), 50, 2};
    size_t bytes = 0;
    TEST(lookup_bytes(&shape, &bytes));
    void *memory = calloc(1, bytes);
    Lookup l;
    int32_t out[8];
    lookup_init(&l, &shape, memory);
    lookup_begin(&l, prediction, prompt);
    lookup_add(&l, 0, 3);
    LookupMatch m = lookup_find(&l, 0, 3, out); /* a single token */
    TEST(m.count == 3 && m.length == 1 && !m.prediction && out[0] == 4 && out[2] == 6);
    lookup_add(&l, 0, 4);
    lookup_add(&l, 0, 5);
    m = lookup_find(&l, 0, 8, out); /* past the prompt's end, into the answer, and on from there */
    TEST(m.count == 8 && m.length == 3 && out[0] == 6 && out[4] == 9 && out[5] == 3 && out[7] == 5);
    lookup_add(&l, 0, 41);
    m = lookup_find(&l, 0, 8, out); /* the prediction ends */
    TEST(m.count == 2 && m.prediction && out[0] == 42 && out[1] == 43);
    lookup_add(&l, 1, 5); /* the other answer: its place behind 9 is known only there */
    m = lookup_find(&l, 1, 8, out);
    TEST(m.count > 0);
    lookup_add(&l, 1, 41);
    m = lookup_find(&l, 1, 8, out); /* 5 41 is what the first answer ends with: nothing follows it yet */
    TEST(m.length <= 2);
    lookup_add(&l, 0, 50);
    lookup_add(&l, 0, 51);
    m = lookup_find(&l, 1, 8, out);
    TEST(m.count == 2 && m.length == 2 && out[0] == 50 && out[1] == 51);
    for (int i = 0; i < 6; i++) lookup_add(&l, 0, i % 2 ? 61 : 60);
    m = lookup_find(&l, 0, 5, out); /* a loop goes on */
    TEST(m.count == 5 && out[0] == 60 && out[1] == 61 && out[4] == 60);
    lookup_add(&l, 0, 99);
    TEST(lookup_find(&l, 0, 5, out).count == 0);
    free(memory);
    TEST(!lookup_bytes(&(LookupShape){0, 10, INT32_MAX, 2}, &bytes));
}

/* ---- the rule ---- */

static float gain(float p, int k, float cost) {
    float tokens = 1, reach = p;
    for (int i = 0; i < k; i++, reach *= p) tokens += reach;
    return tokens / cost;
}

/* One stream: drafts that are always right get long, wrong ones cost at most the ledger, unlikely ones stay away. */
static void check_rule(void) {
    StepCosts costs;
    DraftRule rule;
    step_costs_init(&costs, false, NULL);
    draft_rule_init(&rule);
    double time = 0, tokens = 0;
    int longest = 0;
    for (int i = 0; i < 200; i++) {
        DraftOffer offer = {&rule, draft_bucket(20), DRAFT_TOKENS_MAX};
        const float cost = draft_choose(&costs, 1, 1, &offer, 1, DRAFT_TOKENS_MAX);
        longest = offer.count > longest ? offer.count : longest;
        time += 1 + (double)cost;
        tokens += 1 + offer.count;
        draft_note(&rule, draft_bucket(20), offer.count, offer.count, cost);
    }
    TEST_MSG(longest >= 24 && tokens / time > 3, "%d, %.2f", longest, tokens / time);
    for (int length = 1; length < 30; length += 3) {
        draft_rule_init(&rule);
        time = tokens = 0;
        for (int i = 0; i < 400; i++) {
            DraftOffer offer = {&rule, draft_bucket(length), DRAFT_TOKENS_MAX};
            const float cost = draft_choose(&costs, 1, 1, &offer, 1, DRAFT_TOKENS_MAX);
            time += 1 + (double)cost;
            tokens += 1;
            draft_note(&rule, draft_bucket(length), offer.count, 0, cost);
        }
        TEST_MSG(tokens / time > 0.985, "matches of %d, all wrong: %.3f", length, tokens / time);
    }
    draft_rule_init(&rule);
    DraftOffer best = {&rule, draft_bucket(4), DRAFT_TOKENS_MAX};
    rule.balance = 40;
    (void)draft_choose(&costs, 1, 1, &best, 1, DRAFT_TOKENS_MAX);
    const float p = draft_probability(&rule, draft_bucket(4));
    for (int k = 1; k < DRAFT_TOKENS_MAX; k++)
        TEST(gain(p, k, costs.cost[1 + k]) <= gain(p, best.count, costs.cost[1 + best.count]) * 1.0001f);
}

/* Drafts that are likely are not held up by the ledger at the beginning of an answer: not where rows have experts of
 * their own, 8 of 64, and not those of a head. */
static void check_beginning(void) {
    StepCosts costs;
    DraftRule rule;
    float fanout[STEP_COSTS_ROWS + 1];
    for (int rows = 1; rows <= STEP_COSTS_ROWS; rows++) fanout[rows] = 8 * (1 - powf(0.875f, (float)rows));
    step_costs_init(&costs, false, fanout);
    draft_rule_init(&rule);
    float time = 0;
    int tokens = 0;
    while (tokens < 100) {
        DraftOffer offer = {&rule, draft_bucket(20), min_int(DRAFT_TOKENS_MAX, 100 - tokens - 1)};
        const float cost = draft_choose(&costs, 1, 1, &offer, 1, DRAFT_TOKENS_MAX);
        TEST(offer.count > 0 || tokens > 0);
        time += 1 + cost;
        tokens += 1 + offer.count;
        draft_note(&rule, draft_bucket(20), offer.count, offer.count, cost);
    }
    TEST_MSG((float)tokens > 2.5f * time, "experts, drafts that are right: %.2f", (double)((float)tokens / time));
    step_costs_init(&costs, false, NULL);
    draft_rule_init(&rule);
    TEST(draft_length(&costs, &rule, 1, 1, 0.25f, 4) == 2);
    /* Without --num-draft-tokens a head that is right gets all that pays. */
    for (int i = 0; i < 40; i++) draft_note(&rule, DRAFT_BUCKET_MODEL, 4, 4, 0);
    TEST(draft_length(&costs, &rule, 1, 1, 0.1f, DRAFT_MODEL_TOKENS) > 4);
}

/* The pace follows measurements; one that was disturbed does not end drafts for good. */
static void check_pace(void) {
    DraftPace pace = {.weight_share = 0.1};
    TEST(fabs(draft_pace_seconds(&pace, 0.05) - 0.005) < 1e-9 && fabs(draft_pace_seconds(&pace, 0.03) - 0.003) < 1e-9);
    draft_pace_note(&pace, 0.2);
    TEST(draft_pace_seconds(&pace, 0.03) > 0.15);
    double seconds = 0;
    for (int i = 0; i < 600; i++) seconds = draft_pace_seconds(&pace, 0.03);
    TEST_MSG(seconds < 0.004, "%.4f", seconds);
    for (int i = 0; i < 60; i++) draft_pace_note(&pace, 0.006);
    TEST_MSG(fabs(draft_pace_seconds(&pace, 0.03) - 0.006) < 5e-4, "%.4f", draft_pace_seconds(&pace, 0.03));
}

/* Several streams share the rows of a step; the cliff of a cost table is seen. */
static void check_streams(void) {
    StepCosts costs;
    DraftRule rules[8];
    DraftOffer offers[8];
    step_costs_init(&costs, false, NULL);
    for (int rows = 13; rows <= STEP_COSTS_ROWS; rows++) costs.cost[rows] = 100;
    for (int rows = 1; rows <= 12; rows++) costs.cost[rows] = 1 + 0.01f * (float)rows;
    for (int i = 0; i < 8; i++) {
        draft_rule_init(&rules[i]);
        rules[i].balance = 40;
        offers[i] = (DraftOffer){&rules[i], draft_bucket(i < 2 ? 20 : 1), 10};
    }
    (void)draft_choose(&costs, 8, 8, offers, 8, DRAFT_TOKENS_MAX);
    int total = 0;
    for (int i = 0; i < 8; i++) total += offers[i].count;
    TEST_MSG(
        total == 4 && offers[0].count + offers[1].count == 4, "%d, %d, %d", total, offers[0].count, offers[1].count);
    /* On a CPU the rows of eight streams are worth more than drafts, and none is tried. */
    int drafts = 0;
    step_costs_init(&costs, false, NULL);
    for (int step = 0; step < 200; step++) {
        for (int i = 0; i < 8; i++) offers[i] = (DraftOffer){&rules[i], draft_bucket(1 + i % 3), 10};
        (void)draft_choose(&costs, 8, 8, offers, 8, DRAFT_TOKENS_MAX);
        for (int i = 0; i < 8; i++) drafts += offers[i].count + draft_length(&costs, &rules[i], 8, 8, 1, 4);
    }
    TEST_MSG(drafts == 0, "%d draft tokens", drafts);
    /* What was measured replaces the model of the machine. */
    step_costs_init(&costs, false, NULL);
    for (int i = 0; i < 100; i++) {
        step_costs_note(&costs, 1, 0, 0.040);
        step_costs_note(&costs, 5, 4, 0.160);
    }
    TEST_MSG(fabsf(costs.cost[5] - 4) < 0.1f && costs.cost[6] > costs.cost[5] * 0.9f, "%.2f %.2f",
        (double)costs.cost[5], (double)costs.cost[6]);
    /* A second row on a GPU is not taken for dearer than it is. */
    StepCosts device;
    step_costs_init(&device, true, NULL);
    for (int i = 0; i < 100; i++) {
        step_costs_note(&device, 1, 0, 0.00176);
        step_costs_note(&device, 2, 1, 0.00184);
    }
    TEST_MSG(device.cost[2] < 1.06f, "%.3f", (double)device.cost[2]);
    step_costs_init(&costs, false, NULL);
    for (int i = 0; i < 100; i++) step_costs_note(&costs, 2 - i % 2, 1 - i % 2, 0.040);
    TEST_MSG(
        costs.cost[1] == 1 && costs.cost[2] > 1.04f, "rows that seem to cost nothing: %.3f", (double)costs.cost[2]);
    TEST(draft_length(&costs, &rules[0], 1, 1, 0.45f, 4) == 0 || costs.cost[2] < 1.5f);
    /* What the first draft tokens take is what an answer pays; later a step that was disturbed costs it little. */
    step_costs_init(&costs, false, NULL);
    step_costs_note(&costs, 1, 0, 0.040);
    step_costs_note(&costs, 2, 1, 0.052);
    TEST_MSG(fabsf(costs.draft_share - 3) < 0.01f, "%.2f", (double)costs.draft_share);
    for (int i = 0; i < 200; i++) step_costs_note(&costs, 2, 1, 0.044);
    step_costs_note(&costs, 2, 1, 0.060);
    TEST_MSG(costs.draft_share > 1 && costs.draft_share < 1.2f, "%.2f", (double)costs.draft_share);
}

int main(int argc, char **argv) {
    case_count = SANITIZED ? 24 : test_sampled() ? 60 : 280;
    if (argc > 1) case_count = (int)strtol(argv[1], NULL, 10);
    if (case_count > CASES_MAX) case_count = CASES_MAX;
    known = calloc(CASES_MAX, sizeof *known);
    answers = calloc(CASES_MAX, sizeof *answers);
    CHECK(known && answers);
    fake_reset();
    case_vocab = fake.vocab;
    check_lookup();
    check_rule();
    check_beginning();
    check_pace();
    check_streams();
    check_steps();
    check_lookahead();
    check_context();
    for (size_t i = 0; i < COUNT_OF(settings); i++) check_setting(&settings[i]);
    free(known);
    free(answers);
    return test_done();
}
