/* What the length rule gains and loses on recorded answers (bench/acceptance.csv), computed from times of steps by
 * their rows: the same at any load of this machine. test_draft_replay table prints the figures of
 * docs/speculative-decoding.md. Times are those of one machine each; the rule begins with costs of rows of its own and
 * learns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/math.h"
#include "engine/scheduler.h"
#include "test.h"

enum { KINDS = 6, ANSWERS = 3, POSITIONS_MAX = 1024, VOCAB = 1000, FILE_BYTES_MAX = 1 << 22, PROMPT = 10 };

/* Relative times of steps of 1, 2, …, 8, 9, 12, 16, 32 rows; those between are interpolated. */
typedef struct Machine {
    const char *name;
    float cost[12];
    float least; /* what an answer keeps of its speed */
    float median[KINDS];
} Machine;
static const int ROWS[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32};

static const char *const kinds[KINDS] = {"edit", "json", "summary", "code", "chat", "translation"};
/* Qwen2.5 1.5B with 4 bits on two cores; the last one is a processor that computes AVX2 in halves. Medians are those of
 * 250 tokens, a little below what the rule reaches. */
static const Machine machines[] = {
    {"AMX", {1, 1.11f, 1.12f, 1.27f, 1.48f, 1.61f, 1.71f, 1.82f, 2.4f, 2.8f, 3.1f, 6}, 0.97f,
        {3, 1.45f, 1.45f, 1.1f, 1.09f, 0.98f}},
    {"AVX-512", {1, 1.04f, 1.1f, 1.2f, 1.41f, 1.41f, 1.6f, 1.77f, 2.37f, 2.87f, 3.08f, 6}, 0.97f,
        {3, 1.45f, 1.45f, 1.1f, 1.1f, 0.98f}},
    {"AVX2", {1, 1.12f, 1.34f, 1.52f, 1.9f, 1.94f, 2.2f, 2.43f, 2.67f, 3.45f, 4.5f, 9}, 0.97f,
        {2.5f, 1.3f, 1.3f, 1.08f, 1.05f, 0.98f}},
    /* Long matches may overdraw the ledger by one and a half steps: .03 of 48 tokens. */
    {"AVX2 in halves", {1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 4.5f, 5, 6.5f, 8.5f, 16.5f}, 0.94f,
        {1.5f, 0.99f, 1.3f, 0.98f, 0.98f, 0.98f}},
};

static const int lengths[] = {48, 128, 250}; /* tokens of an answer */

typedef struct Position {
    int match, right;
} Position;
typedef struct Answer {
    int count, kind;
    Position at[POSITIONS_MAX];
} Answer;
static Answer answers[KINDS * ANSWERS];

static void read_recording(void) {
    Buffer text = {0};
    Error error = {0};
    CHECK(file_read("bench/acceptance.csv", FILE_BYTES_MAX, &text, &error));
    buffer_byte(&text, 0);
    int count = 0;
    char *rest = text.data;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *source = strsep(&line, ","), *kind = strsep(&line, ",");
        if (!kind || strcmp(source, "lookup")) continue;
        Answer *a = &answers[count++];
        CHECK(count <= KINDS * ANSWERS);
        while (a->kind < KINDS && strcmp(kinds[a->kind], kind)) a->kind++;
        strsep(&line, ",");
        for (const char *at; a->count < POSITIONS_MAX && (at = strsep(&line, " ")) != NULL; a->count++)
            if (*at != '-') CHECK(sscanf(at, "%d:%d", &a->at[a->count].match, &a->at[a->count].right) == 2);
    }
    CHECK(count == KINDS * ANSWERS);
    buffer_free(&text);
}

static double step_cost(const Machine *m, int rows) {
    int i = 1;
    while (i < 11 && ROWS[i] < rows) i++;
    const double part = (double)(rows - ROWS[i - 1]) / (ROWS[i] - ROWS[i - 1]);
    return (double)m->cost[i - 1] + part * (double)(m->cost[i] - m->cost[i - 1]);
}

/* Offers as many tokens as a lookup would. */
static int offer(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match) {
    const Answer *a = context;
    const int first = position - PROMPT;
    if (!a->at[first].match) return 0;
    for (int i = 0; i < max; i++) tokens[i] = 1;
    *match = a->at[first].match;
    return max;
}

/* Between 1 and 1 + most, longer steps being rarer: others use the machine, too. Its mean is 1 + most / 3. */
static double disturbance(uint64_t *state, double most) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const double u = (double)(*state >> 40) / (double)(1 << 24);
    return 1 + most * u * u;
}

/* Steps of an answer without draft tokens over those with them. s: of a server, which learns from answer to answer. */
static double gain(Scheduler *s, const Machine *m, Answer *a, int tokens, double disturbed, uint64_t *state) {
    AnswerChoice *choice = calloc(1, sizeof *choice);
    Request request = {.choices = choice, .choice_count = 1, .prompt_count = PROMPT, .sampling.ignore_eos = true};
    Speculation *speculation = &s->speculation;
    double steps = 0;
    int plain = 0;
    const int end = min_int(tokens, a->count);
    mutex_init(&request.mutex);
    speculation->options.script_context = a;
    draft_rule_init(&choice->draft.rule);
    /* The first token comes from the prompt. */
    for (choice->generated = 1; choice->generated < end;) {
        const Position at = a->at[choice->generated];
        const int left = end - choice->generated - 1;
        DraftTarget target = {.request = &request, .choice = choice, .most = min_int(DRAFT_TOKENS_MAX, left)};
        speculation_plan(speculation, &target, 1, 1, 1, false, DRAFT_TOKENS_MAX);
        const int drafts = choice->draft.count, accepted = min_int(drafts, at.right);
        const StepPlan plan = {.builder.step.rows = 1 + drafts, .draft_rows = drafts};
        const double cost = step_cost(m, 1 + drafts) * disturbance(state, disturbed);
        steps += cost;
        scheduler_note_step(s, &plan, 0.04 * cost, 0);
        speculation_note(speculation, &request, choice, drafts, accepted);
        choice->generated += 1 + accepted;
        plain += 1 + accepted;
    }
    mutex_destroy(&request.mutex);
    free(choice);
    return plain * (1 + disturbed / 3) / steps;
}

/* The same where it is known how many tokens of each lookup are right: no rule gains more. */
static double oracle(const Machine *m, const Answer *a, int tokens) {
    const int end = min_int(tokens, a->count);
    static double rest[POSITIONS_MAX + 1]; /* steps from a position on */
    rest[end] = 0;
    for (int i = end - 1; i >= 1; i--) {
        rest[i] = INFINITY;
        for (int k = 0; k <= min_int(min_int(a->at[i].right, DRAFT_TOKENS_MAX), end - i - 1); k++)
            rest[i] = fmin(rest[i], step_cost(m, 1 + k) + rest[i + 1 + k]);
    }
    return (end - 1) / rest[1];
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians and the least of each kind, by the rule or by an oracle. */
static void replay(
    const Machine *m, int tokens, double disturbed, bool known, double median[KINDS], double least[KINDS]) {
    Scheduler *s = calloc(1, sizeof *s);
    uint64_t state = 1;
    s->speculation = (Speculation){.options.script = offer, .rows_max = DRAFT_TOKENS_MAX, .vocab = VOCAB};
    step_costs_init(&s->speculation.costs, false, NULL);
    const StepPlan first = {.builder.step.rows = 1};
    scheduler_note_step(s, &first, 0.04, 0);
    double gains[KINDS][ANSWERS];
    int counts[KINDS] = {0};
    for (int i = 0; i < KINDS * ANSWERS; i++)
        gains[answers[i].kind][counts[answers[i].kind]++] =
            known ? oracle(m, &answers[i], tokens) : gain(s, m, &answers[i], tokens, disturbed, &state);
    for (int k = 0; k < KINDS; k++) {
        CHECK(counts[k] == ANSWERS);
        qsort(gains[k], ANSWERS, sizeof gains[k][0], by_size);
        median[k] = gains[k][ANSWERS / 2];
        least[k] = gains[k][0];
    }
    free(s);
}

static void print_line(const char *machine, int tokens, const char *what, const double *median, const double *least) {
    printf("%-16s%-8d%-12s", machine, tokens, what);
    for (int k = 0; k < KINDS; k++) printf("%.2f (%.2f)   ", median[k], least[k]);
    printf("\n");
}

static void print_table(void) {
    printf("%-16s%-8s%-12s", "machine", "tokens", "steps");
    for (int k = 0; k < KINDS; k++) printf("%-14s", kinds[k]);
    printf("medians (least)\n");
    for (size_t i = 0; i < COUNT_OF(machines) * COUNT_OF(lengths); i++) {
        const Machine *m = &machines[i / COUNT_OF(lengths)];
        const int tokens = lengths[i % COUNT_OF(lengths)];
        double median[KINDS], least[KINDS];
        replay(m, tokens, 0, false, median, least);
        print_line(m->name, tokens, "even", median, least);
        replay(m, tokens, 0.4, false, median, least);
        print_line(m->name, tokens, "disturbed", median, least);
        replay(m, tokens, 0, true, median, least);
        print_line(m->name, tokens, "an oracle", median, least);
    }
}

int main(int argc, char **argv) {
    read_recording();
    if (argc > 1 && !strcmp(argv[1], "table")) {
        print_table();
        return 0;
    }
    for (size_t i = 0; i < COUNT_OF(machines) * COUNT_OF(lengths); i++) {
        const Machine *m = &machines[i / COUNT_OF(lengths)];
        const int tokens = lengths[i % COUNT_OF(lengths)];
        double median[KINDS], least[KINDS];
        replay(m, tokens, 0, false, median, least);
        for (int k = 0; k < KINDS; k++) {
            TEST_MSG(
                least[k] >= (double)m->least, "%s, %d tokens of %s: least %.3f", m->name, tokens, kinds[k], least[k]);
            if (tokens == 250)
                TEST_MSG(median[k] >= (double)m->median[k], "%s, %s: %.3f", m->name, kinds[k], median[k]);
        }
    }
    return test_done();
}
