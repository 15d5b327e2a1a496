/* The fence holds: whoever touches its memory from outside dies, whatever kind of memory it is and whatever operation
 * came before; an operation that is given somebody else's memory aborts. */
#include "backend/fence.h"
#include "backend/steps.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops.h"

enum { COLS = 64, ROWS = 4 };

typedef struct Place {
    Backend *fence;
    uint8_t *pages; /* of fenced memory */
    Weight weight;  /* bound, f32 */
    float *scratch; /* of a step under way, [COLS] */
    float host[COLS];
} Place;

/* ---- what must not be done ---- */

static volatile float sink;

static void read_pages(const Place *p) { sink = p->pages[0]; }
static void write_pages(const Place *p) { p->pages[0] = 1; }
static void read_weight(const Place *p) { sink = *(const float *)p->weight.data; }
static void read_bias(const Place *p) { sink = p->weight.bias[0]; }
static void read_scratch(const Place *p) { sink = p->scratch[0]; }
static void write_scratch(const Place *p) { p->scratch[0] = 1; }
static void copy_out(const Place *p) { memcpy((void *)p->host, p->scratch, sizeof p->host); }

static void use_unbound(const Place *p) {
    float values[COLS * ROWS] = {0};
    Weight weight = {.rows = ROWS, .cols = COLS, .dtype = DTYPE_F32, .data = values};
    p->fence->ops->matmul(
        p->fence, &(Matmul){.rows = 1, .x = p->scratch, .count = 1, .weight = {&weight}, .out = {p->scratch + COLS}});
}
static void put_elsewhere(const Place *p) {
    p->fence->ops->matmul(
        p->fence, &(Matmul){.rows = 1, .x = p->scratch, .count = 1, .weight = {&p->weight}, .out = {(float *)p->host}});
}
static void allocate_within_step(const Place *p) {
    Error error;
    p->fence->ops->alloc(p->fence, 1, MEMORY_CACHE, &error);
}
static void read_too_early(const Place *p) { p->fence->ops->read_logits(p->fence, p->scratch, COLS); }
static void forget_memory(const Place *p) {
    p->fence->ops->submit(p->fence);
    backend_close(p->fence);
}
static void discard_too_much(const Place *p) { p->fence->ops->decommit(p->fence, p->pages, 4097); }
static void nothing(const Place *p) {}

/* The signal that ends a process that does this; 0: none does. */
static int signal_of(void (*act)(const Place *), const Place *place) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would catch them */
        signal(SIGBUS, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        act(place);
        _exit(0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void check_touches(const Place *p, const char *when) {
    static void (*const touches[])(const Place *) = {
        read_pages, write_pages, read_weight, read_bias, read_scratch, write_scratch, copy_out};
    for (size_t i = 0; i < COUNT_OF(touches); i++) {
        const int died = signal_of(touches[i], p);
        TEST_MSG(died == SIGSEGV || died == SIGBUS, "touch %zu %s ended with %d", i, when, died);
    }
}

static void check_misuse(const Place *p) {
    static void (*const misuses[])(const Place *) = {
        use_unbound, put_elsewhere, allocate_within_step, read_too_early, forget_memory, discard_too_much};
    for (size_t i = 0; i < COUNT_OF(misuses); i++) {
        const int died = signal_of(misuses[i], p);
        TEST_MSG(died == SIGABRT, "misuse %zu ended with %d", i, died);
    }
    TEST(signal_of(nothing, p) == 0);
}

/* ---- what may ---- */

static void walk(Place *p, const float *values, const float *bias) {
    Backend *f = p->fence;
    const BackendOps *ops = f->ops;
    Error error = {0};
    const Step *step = step_of_rows(1, 0);
    TEST(ops->begin(f, step));
    p->scratch = ops->scratch(f, COLS);
    float *out = ops->scratch(f, ROWS);
    check_touches(p, "in a step");
    ops->upload(f, p->scratch, p->host, sizeof p->host);
    check_touches(p, "after an upload");
    ops->matmul(f, &(Matmul){.rows = 1, .x = p->scratch, .count = 1, .weight = {&p->weight}, .out = {out}});
    check_touches(p, "after an operation");
    check_misuse(p);
    TEST_MSG(ops->wait(f, ops->submit(f), &error), "%s", error.text);
    const float *logits = ops->read_logits(f, out, ROWS);
    for (int r = 0; r < ROWS; r++) {
        double sum = (double)bias[r];
        for (int i = 0; i < COLS; i++) sum += (double)values[r * COLS + i] * p->host[i];
        TEST_MSG(fabs(logits[r] - sum) < 1e-4, "%g, expected %g", logits[r], sum); /* 64 products ≤ 1 in f32 */
    }
    check_touches(p, "after the logits");
    ops->begin(f, step);
    TEST(isnan(logits[0])); /* valid until now */
    ops->submit(f);
}

int main(void) {
    Error error = {0};
    const BackendOptions options = {
        .cpu = "ref", .threads = 1, .rows_max = 1, .scratch_bytes = 1 << 12, .wrap = fence_open};
    Place p = {.fence = backend_open(&options, &error)};
    TEST_MSG(p.fence != NULL, "%s", error.text);
    if (!p.fence) return test_done();
    float *values = random_floats(ROWS * COLS, 1), *bias = random_floats(ROWS, 1), *x = random_floats(COLS, 1);
    memcpy(p.host, x, sizeof p.host);
    p.weight = (Weight){.rows = ROWS, .cols = COLS, .dtype = DTYPE_F32, .data = values, .bias = bias};
    p.pages = p.fence->ops->alloc(p.fence, 4096, MEMORY_CACHE, &error);
    TEST(p.pages && p.fence->ops->bind(p.fence, &p.weight, &error) && p.weight.data != values);
    uint8_t first = 1;
    p.fence->ops->download(p.fence, &first, p.pages + 4095, 1);
    TEST(first == 0);
    walk(&p, values, bias);
    p.fence->ops->unbind(p.fence, &p.weight);
    p.fence->ops->release(p.fence, p.pages);
    backend_close(p.fence);
    free(values);
    free(bias);
    free(x);
    return test_done();
}
