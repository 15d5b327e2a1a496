/* The scheduler, seen through an engine over the fake model: queue, pages, order and shares, and what it costs. */
#include "engine/scheduler.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/engine_fixture.h"

/* ---- allocations of the engine thread after its first step; not under sanitizers, which own malloc ---- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
static atomic_int allocations;
static void (*on_allocation)(void); /* called once, by the engine thread */
static void note_allocation(void) {
    void (*decode_rows_for_matmul)(void) = on_allocation;
    on_allocation = NULL;
    atomic_fetch_add(&allocations, 1);
    if (decode_rows_for_matmul) decode_rows_for_matmul();
}
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *malloc(size_t size) {
    if (fake_engine_thread) note_allocation();
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    if (fake_engine_thread) note_allocation();
    return __libc_calloc(count, size);
}
void *realloc(void *memory, size_t size) {
    if (fake_engine_thread) note_allocation();
    return __libc_realloc(memory, size);
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

/* ---- queue, pages, order ---- */

static void test_queue(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(2, 3, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    Request *requests[5];
    for (int i = 0; i < 5; i++) requests[i] = submit(engine, &c.options); /* 2 run, 3 wait */
    Error error = {0};
    TEST(engine_submit(engine, &c.options, &error) == NULL && error.code == ERROR_BUSY);
    fake_wait_arrived(1);
    TEST(engine_submit(engine, &c.options, &error) == NULL && error.code == ERROR_BUSY);
    TokenOut token;
    Finish finish;
    const int64_t start = clock_ns();
    TEST(request_wait(requests[4], 20) == -1 && request_read(requests[4], 0, &token, 1, 20, &finish) == 0);
    TEST(finish == FINISH_NONE && clock_ns() - start >= 40000000);
    TEST(engine_stats(engine).full);
    const uint64_t round = engine_wait(engine, 0, 0);
    TEST(engine_wait(engine, round, 20) == round && clock_ns() - start >= 60000000);
    fake_permit(1);
    TEST(engine_wait(engine, round, TIMEOUT_MS) > round);
    fake_open_gate();
    for (int i = 0; i < 5; i++) {
        Seen seen;
        read_all(requests[i], 1, &seen);
        const RequestStats stats = request_stats(requests[i]);
        TEST(stats.queued_s >= 0 && stats.prefill_s >= 0 && stats.decode_s >= 0);
        request_free(requests[i]);
    }
    wait_idle(engine);
    TEST(!engine_stats(engine).full);
    request_free(submit(engine, &c.options));
    close_engine(engine);
}

static void test_pages(void) {
    fake_reset();
    Error error = {0};
    const EngineOptions tiny = {.slots = 1, .queue_max = 1, .prefill_size = 8, .kv_bytes = FAKE_PAGE_BYTES / 2};
    TEST(engine_open(&tiny, &error) == NULL && error.code == ERROR_LIMIT);
    Engine *engine = open_engine(4, 40, 64, 5 * FAKE_PAGE_BYTES);
    Case c;
    make_prompt(&c, 640, 1); /* the pool holds 640 tokens */
    TEST(engine_submit(engine, &c.options, &error) == NULL && error.code == ERROR_LIMIT);
    TEST_MSG(strstr(error.text, "640"), "%s", error.text);
    c.options.prompt_count = 630;
    c.options.sampling.ignore_eos = true;
    Seen seen = run_one(engine, &c.options);
    TEST(seen.count == 10 && seen.finish == FINISH_LENGTH);
    c.options.prompt_count = 140;
    c.options.choices = 5; /* 2 pages of prompt, 2 more for each choice: they run one after another */
    c.options.max_tokens = 160;
    Request *requests[10];
    for (int i = 0; i < 10; i++) requests[i] = submit(engine, &c.options);
    Seen first[5], other[5];
    for (int i = 0; i < 10; i++) {
        read_all(requests[i], 5, i ? other : first);
        TEST(i == 0 || memcmp(first, other, sizeof first) == 0);
        TEST(first[0].count == 160 && first[4].count == 160);
        request_free(requests[i]);
    }
    close_engine(engine);
}

/* Small requests may pass one that waits for pages, but not for ever. */
static void test_no_starvation(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(2, 100, 640, 5 * FAKE_PAGE_BYTES);
    Case small, large;
    make_prompt(&small, 10, 1);
    small.options.max_tokens = 2; /* one page, two steps */
    small.options.sampling.ignore_eos = true;
    make_prompt(&large, 600, 2);
    large.options.max_tokens = 2;
    large.options.sampling.ignore_eos = true;
    enum { SMALL = 60 };
    Request *requests[SMALL + 1];
    requests[0] = submit(engine, &small.options);
    fake_wait_arrived(1);
    requests[SMALL] = submit(engine, &large.options);
    for (int i = 1; i < SMALL; i++) requests[i] = submit(engine, &small.options);
    fake_open_gate();
    for (int i = 0; i <= SMALL; i++) {
        Seen seen;
        read_all(requests[i], 1, &seen);
        TEST(seen.count == 2);
    }
    int served = 0, prompts_before = 0;
    for (int i = 0; i < fake.steps && !served; i++) {
        if (fake.log[i].rows >= 600)
            served = i + 1;
        else
            prompts_before += fake.log[i].rows / 10;
    }
    TEST_MSG(prompts_before > 2 && prompts_before <= SKIPS_MAX + 2, "%d before", prompts_before);
    for (int i = 0; i <= SMALL; i++) request_free(requests[i]);
    close_engine(engine);
}

/* Decode rows come first in every step, the prompts share what prefill_size allows. */
static void test_step_order(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(4, 8, 32, 0);
    Case c, longer, shorter;
    make_prompt(&c, 5, 1);
    c.options.max_tokens = 100;
    c.options.sampling.ignore_eos = true;
    make_prompt(&longer, 640, 2);
    make_prompt(&shorter, 30, 3);
    Request *a = submit(engine, &c.options);
    fake_permit(3);
    fake_wait_arrived(4);
    Request *b = submit(engine, &longer.options), *d = submit(engine, &shorter.options);
    fake_permit(1);
    fake_wait_arrived(5); /* the first step with prompts */
    fake_open_gate();
    Seen seen;
    read_all(a, 1, &seen);
    TEST(seen.count == 100);
    read_all(b, 1, &seen);
    read_all(d, 1, &seen);
    bool bounded = true, ordered = true;
    for (int i = 4; i < 24; i++) {
        const FakeStep *step = &fake.log[i];
        bounded = bounded && step->rows <= 4 + 32 && step->largest_run <= 32;
        ordered = ordered && step->first_large_run > 0;
    }
    TEST(bounded);
    TEST(ordered);
    TEST_MSG(fake.log[4].rows == 1 + 32 && fake.log[4].chunks == 3 && fake.log[4].largest_run == 16,
        "%d rows in %d runs", fake.log[4].rows, fake.log[4].chunks);
    TEST(fake.log[6].chunks == 3 && fake.log[6].outputs == 2); /* a, and d has its first token after 2 steps: b not */
    request_free(a);
    request_free(b);
    request_free(d);
    close_engine(engine);
}

/* Beside an answer under way a slow machine reads prompts in smaller pieces; alone, in whole ones. */
static void test_smooth(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(4, 8, 512, 0);
    Case c, longer;
    make_prompt(&c, 128, 1);
    c.options.max_tokens = 100;
    c.options.sampling.ignore_eos = true;
    make_prompt(&longer, 640, 2);
    Request *a = submit(engine, &c.options);
    fake_wait_arrived(1);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* 128 rows take 0.2 s: at most 192 fit STEP_MS */
    fake_permit(1);
    fake_wait_arrived(2);
    Request *b = submit(engine, &longer.options);
    fake_permit(1);
    fake_wait_arrived(3);
    fake_open_gate();
    Seen seen;
    read_all(b, 1, &seen);
    read_all(a, 1, &seen);
    TEST(seen.count == 100);
    TEST_MSG(fake.log[2].rows >= 1 + PREFILL_LEAST && fake.log[2].rows <= 1 + 192, "%d rows", fake.log[2].rows);
    request_free(a);
    request_free(b);
    wait_idle(engine);
    const int before = fake_steps();
    longer.options.cache_off = true;
    (void)run_one(engine, &longer.options);
    TEST_MSG(fake.log[before].rows == 512, "%d rows", fake.log[before].rows);
    close_engine(engine);
}

/* Answers of a step take their part of its time: 60 of them do not make prompts look slower. */
static void test_time_per_row(void) {
    Scheduler *s = calloc(1, sizeof *s);
    const StepPlan plan = {.prompt_rows = 64, .builder.step.rows = 64 + 60};
    scheduler_note_step(s, &plan, 0.124, 0);
    TEST_MSG(fabs(s->prompt_row_s - 0.001) < 1e-9, "%g s", s->prompt_row_s);
    free(s);
}

/* A step that reads a prompt beside answers takes longer than they alone: so their time is never thought to be more,
 * though the first steps, which read weights from their file, may have taken it. */
static void test_time_of_answers(void) {
    Scheduler *s = calloc(1, sizeof *s);
    const StepPlan alone = {.builder.step.rows = 8}, beside = {.prompt_rows = 4, .builder.step.rows = 12};
    const StepPlan longer = {.prompt_rows = 64, .builder.step.rows = 72};
    const StepCosts *costs = &s->speculation.costs;
    step_costs_init(&s->speculation.costs, false, NULL);
    scheduler_note_step(s, &longer, 5, 0);
    TEST(costs->unit_s == 0);
    scheduler_note_step(s, &beside, 0.17, 0);
    TEST_MSG(fabs(costs->unit_s * (double)costs->cost[8] - 0.17) < 1e-6, "%g s", costs->unit_s);
    step_costs_init(&s->speculation.costs, false, NULL);
    scheduler_note_step(s, &alone, 0.5, 0);
    scheduler_note_step(s, &beside, 0.16, 0);
    TEST_MSG(fabs(costs->unit_s * (double)costs->cost[8] - 0.16) < 1e-6, "%g s", costs->unit_s);
    scheduler_note_step(s, &beside, 0.3, 0);
    TEST_MSG(fabs(costs->unit_s * (double)costs->cost[8] - 0.16) < 1e-6, "%g s", costs->unit_s);
    free(s);
}

/* A step with draft tokens cannot begin ahead: on devices the time before it is part of what they cost, unless a draft
 * model has taken it. */
static void test_time_before_step(void) {
    const StepPlan plain = {.builder.step.rows = 1}, drafts = {.builder.step.rows = 2, .draft_rows = 1};
    for (int i = 0; i < 3; i++) {
        Scheduler *s = calloc(1, sizeof *s);
        s->can_lookahead = i > 0;
        if (i == 2) s->speculation.model = (DraftModel *)(void *)s;
        step_costs_init(&s->speculation.costs, true, NULL);
        for (int n = 0; n < 200; n++) {
            scheduler_note_step(s, &plain, 0.001, 0);
            scheduler_note_step(s, &drafts, 0.0012, n ? 0.0003 : 3600);
        }
        const float cost = s->speculation.costs.cost[2], wanted = i == 1 ? 1.5f : 1.2f;
        TEST_MSG(fabsf(cost - wanted) < 0.05f, "%d: %.3f", i, (double)cost);
        free(s);
    }
}

static int wrong_tokens(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match) {
    for (int i = 0; i < max; i++) tokens[i] = 0;
    *match = *(int *)context;
    return max;
}

/* Where a row costs half of a step, twice to five times what is thought before it is measured, an answer of 50 tokens
 * whose draft tokens are all wrong pays the ledger with what they took: it loses one and a half steps where matches are
 * short, up to three and a half where they are long. With the expected costs it lost 2.5 to 8.5. */
static void test_expensive_rows(void) {
    for (int match = 1; match < 30; match++) {
        Scheduler *s = calloc(1, sizeof *s);
        AnswerChoice *choice = calloc(1, sizeof *choice);
        Request request = {.choices = choice, .choice_count = 1, .prompt_count = 10, .sampling.ignore_eos = true};
        mutex_init(&request.mutex);
        Speculation *speculation = &s->speculation;
        *speculation = (Speculation){
            .options = {.script = wrong_tokens, .script_context = &match}, .rows_max = DRAFT_TOKENS_MAX, .vocab = 10};
        step_costs_init(&speculation->costs, false, NULL);
        draft_rule_init(&choice->draft.rule);
        const StepPlan first = {.builder.step.rows = 1};
        scheduler_note_step(s, &first, 0.04, 0);
        const double most = match > 16 ? 3.5 : match > 8 ? 2.5 : match > 5 ? 2 : 1.5;
        double steps = 0;
        for (int token = 0; token < 50; token++) {
            DraftTarget target = {.request = &request, .choice = choice, .most = DRAFT_TOKENS_MAX};
            speculation_plan(speculation, &target, 1, 1, 1, false, DRAFT_TOKENS_MAX);
            const int drafts = choice->draft.count;
            const StepPlan plan = {.builder.step.rows = 1 + drafts, .draft_rows = drafts};
            const double cost = 1 + 0.5 * drafts;
            steps += cost;
            scheduler_note_step(s, &plan, 0.04 * cost, 0);
            speculation_note(speculation, &request, choice, drafts, 0);
        }
        TEST_MSG(steps - 50 <= most + 1e-3, "matches of %d: %.2f steps", match, steps - 50);
        mutex_destroy(&request.mutex);
        free(choice);
        free(s);
    }
}

/* Whether the request's only choice has a token. */
static bool has_token(Request *request) {
    TokenOut token;
    Finish finish;
    return request_read(request, 0, &token, 1, 0, &finish) == 1;
}

/* A short prompt behind many long ones is read in the next step, whose half it takes at most. */
static void test_short_prompt_first(void) {
    enum { LONG = 12 };
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(LONG + 1, 8, 64, 0);
    Case c;
    Request *requests[LONG + 1];
    for (int i = 0; i < LONG; i++) {
        make_prompt(&c, 600, (uint64_t)i);
        requests[i] = submit(engine, &c.options);
    }
    fake_permit(1);
    fake_wait_arrived(2); /* all are admitted, and their second step is under way */
    make_prompt(&c, 30, LONG);
    requests[LONG] = submit(engine, &c.options);
    fake_permit(2);
    fake_wait_arrived(4);
    TEST(has_token(requests[LONG]) && !has_token(requests[0]));
    TEST_MSG(fake.log[2].outputs == 1 && fake.log[2].largest_run == 32 && fake.log[2].rows == 64,
        "%d rows, %d in a run", fake.log[2].rows, fake.log[2].largest_run);
    fake_open_gate();
    for (int i = 0; i <= LONG; i++) request_free(requests[i]);
    close_engine(engine);
}

/* Short prompts that keep coming cannot delay longer ones beyond the half of each step, the oldest of them first. */
static void test_short_prompts_forever(void) {
    enum { SHORT = 200, AT_ONCE = 3 };
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(2 + AT_ONCE, SHORT, 64, 0);
    Case longest, middle, c;
    make_prompt(&longest, 640, 1);
    make_prompt(&middle, 320, 2);
    Request *a = submit(engine, &longest.options), *b = submit(engine, &middle.options), *requests[SHORT];
    for (int i = 0; i < SHORT; i++) {
        make_prompt(&c, 32, 10 + (uint64_t)i);
        c.options.max_tokens = 1; /* one follows another, and at least one of them is there in each step */
        requests[i] = submit(engine, &c.options);
    }
    enum { STEPS_A = 640 / 32, STEPS_B = 320 / 32 };
    fake_permit(STEPS_A);
    fake_wait_arrived(STEPS_A + 1);
    TEST(has_token(a) && !has_token(b));
    fake_permit(STEPS_B);
    fake_wait_arrived(STEPS_A + STEPS_B + 1);
    TEST(has_token(b));
    fake_open_gate();
    for (int i = 0; i < SHORT; i++) request_free(requests[i]);
    request_free(a);
    request_free(b);
    close_engine(engine);
}

/* Prompts beside each other are read in steps that a new request can wait for. */
static void test_prompts_share_time(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(4, 8, 512, 0);
    Case c;
    make_prompt(&c, 256, 1);
    c.options.max_tokens = 1;
    Request *a = submit(engine, &c.options);
    fake_wait_arrived(1);
    Request *others[2];
    for (int i = 0; i < 2; i++) {
        make_prompt(&c, 700, 2 + (uint64_t)i);
        others[i] = submit(engine, &c.options);
    }
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL); /* 256 rows take 0.4 s: at most 384 fit PROMPTS_MS */
    fake_permit(1);
    fake_wait_arrived(2);
    make_prompt(&c, 20, 4);
    Request *brief = submit(engine, &c.options);
    nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL); /* the same: at most 192 fit STEP_MS */
    fake_permit(1);
    fake_wait_arrived(3);
    fake_open_gate();
    Seen seen;
    for (int i = 0; i < 2; i++) read_all(others[i], 1, &seen);
    TEST_MSG(fake.log[1].rows >= PREFILL_LEAST && fake.log[1].rows <= 384, "%d rows", fake.log[1].rows);
    TEST_MSG(fake.log[2].rows >= PREFILL_LEAST && fake.log[2].rows <= 192, "%d rows", fake.log[2].rows);
    request_free(brief);
    request_free(a);
    for (int i = 0; i < 2; i++) request_free(others[i]);
    close_engine(engine);
}

/* A request with many choices leaves slots to those who come later. */
static void test_choices_share_slots(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(2, 8, 64, 0);
    Case uniform_matmul, one;
    make_prompt(&uniform_matmul, 10, 1);
    uniform_matmul.options.choices = 12;
    uniform_matmul.options.max_tokens = 10;
    uniform_matmul.options.sampling.ignore_eos = true;
    make_prompt(&one, 12, 2);
    one.options.max_tokens = 3;
    one.options.sampling.ignore_eos = true;
    Request *a = submit(engine, &uniform_matmul.options);
    fake_permit(2);
    fake_wait_arrived(3);
    Request *b = submit(engine, &one.options);
    fake_open_gate();
    Seen seen;
    read_all(b, 1, &seen);
    TEST(seen.count == 3);
    Seen all[12];
    read_all(a, 12, all);
    for (int i = 0; i < 12; i++) TEST(all[i].count == 10 && all[i].finish == FINISH_LENGTH);
    int at = 0;
    while (at < fake.steps && fake.log[at].largest_run != 12) at++;
    TEST_MSG(at <= 12, "step %d", at); /* as soon as one of the first two choices has ended */
    request_free(a);
    request_free(b);
    close_engine(engine);
}

/* Between the end of a request's only running choice and the start of its next one, its slot is not for others: with a
 * queue for nobody, whoever submits then is refused. */
#if COUNTS_ALLOCATIONS
static struct {
    Engine *engine;
    const RequestOptions *options;
    Request *request;
    Error error;
} intruder;

static void intrude(void) { intruder.request = engine_submit(intruder.engine, intruder.options, &intruder.error); }

static void test_slot_between_choices(void) {
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(2, 0, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    c.options.choices = 2;
    c.options.cache_off = true; /* so that a's end allocates nothing */
    c.options.max_tokens = 2;
    c.options.sampling.ignore_eos = true;
    intruder.engine = engine;
    intruder.options = &c.options;
    Request *a = submit(engine, &c.options);
    fake_wait_arrived(1);
    Request *b = submit(engine, &c.options); /* forks in the step that ends the first choice of a */
    fake_permit(1);
    fake_wait_arrived(2);
    on_allocation = intrude;
    fake_open_gate();
    Seen seen[2];
    read_all(a, 2, seen);
    read_all(b, 2, seen);
    TEST(!on_allocation && !intruder.request && intruder.error.code == ERROR_BUSY);
    if (intruder.request) request_free(intruder.request);
    request_free(a);
    request_free(b);
    close_engine(engine);
}
#else
static void test_slot_between_choices(void) {}
#endif

/* ---- costs ---- */

static void test_no_allocation(void) {
    if (!COUNTS_ALLOCATIONS) return;
    fake_reset();
    fake.gated = true;
    Engine *engine = open_engine(4, 8, 64, 0);
    Case c;
    Request *requests[3];
    for (int i = 0; i < 3; i++) {
        make_prompt(&c, 30 + i, (uint64_t)i);
        c.options.max_tokens = 390;
        c.options.sampling.ignore_eos = true;
        c.options.sampling.logprobs = 20;
        c.options.sampling.repetition_penalty = 1.1f;
        requests[i] = submit(engine, &c.options);
    }
    fake_permit(5);
    fake_wait_arrived(6);
#if COUNTS_ALLOCATIONS
    const int before = atomic_load(&allocations);
    TEST(before > 0); /* the counter works: admission opened page tables */
    fake_permit(300);
    fake_wait_arrived(306);
    TEST_MSG(atomic_load(&allocations) == before, "%d", atomic_load(&allocations) - before);
#endif
    fake_open_gate();
    for (int i = 0; i < 3; i++) request_free(requests[i]);
    close_engine(engine);
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
        (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void test_idle(void) {
    fake_reset();
    Engine *engine = open_engine(4, 8, 64, 0);
    Case c;
    make_prompt(&c, 10, 1);
    run_one(engine, &c.options);
    wait_idle(engine);
    const double before = cpu_seconds();
    const int steps = fake_steps();
    struct timespec pause = {.tv_nsec = 200000000};
    nanosleep(&pause, NULL);
    const double used = cpu_seconds() - before;
    TEST_MSG(used < 0.01, "%g s of 0.2", used); /* a spinning thread takes 0.2 */
    TEST(fake_steps() == steps);
    close_engine(engine);
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_queue();
    test_pages();
    test_no_starvation();
    test_step_order();
    test_smooth();
    test_time_per_row();
    test_time_of_answers();
    test_time_before_step();
    test_expensive_rows();
    test_short_prompt_first();
    test_short_prompts_forever();
    test_prompts_share_time();
    test_choices_share_slots();
    test_slot_between_choices();
    test_no_allocation();
    test_idle();
    return test_done();
}
