/* Rotary positions: the angles of a row by axes and beyond a dynamic rope's reach, alone and through the attention of
 * every backend, against a naive model. What the plan refuses of sections. */
#include "naive.h"

enum { TOKENS = 300 };

static const Shape half = {"half", 4, 2, 32, 32, DTYPE_F32, TOKENS, 0, 0, ROPE_HALF, 32, NO_NORM, false, false};
static const Shape part = {
    "part", 4, 2, 48, 32, DTYPE_F16, TOKENS, 40, 0, ROPE_INTERLEAVED, 24, NORM_HEAD, false, false};

static void set_mrope_section(Bench *b, int time, int height, int width) {
    const int mrope_section[POSITION_DIMS_MAX] = {time, height, width};
    memcpy(b->rope.mrope_section, mrope_section, sizeof mrope_section);
    b->position_dims = POSITION_DIMS_MAX;
}

/* Text, an image of 9 × 12 patches at one time, text again from the image's largest place on. */
static void make_places(int32_t *places) {
    enum { BEGIN = 50, ROWS = 9, COLS = 12, END = BEGIN + ROWS * COLS, GONE = ROWS * COLS - COLS };
    for (int t = 0; t < TOKENS; t++)
        for (int axis = 0; axis < POSITION_DIMS_MAX; axis++) {
            const int row = (t - BEGIN) / COLS, col = (t - BEGIN) % COLS;
            const int image = BEGIN + (axis == 1 ? row : axis == 2 ? col : 0);
            places[axis * TOKENS + t] = t < BEGIN ? t : t < END ? image : t - GONE;
        }
}

/* ---- through attention ---- */

static void check_position_dims(const Shape *shape, int time, int height, int width, bool interleaved) {
    static int32_t places[POSITION_DIMS_MAX * TOKENS];
    make_places(places);
    Bench b = bench_make(shape);
    set_mrope_section(&b, time, height, width);
    b.rope.mrope_interleaved = interleaved;
    b.sequence[0].places = places;
    b.sequence[0].span_count = 1; /* as an image has it */
    b.sequence[0].spans[0] = (BidirectionalSpan){50, 158};
    check_naive(&b, tolerance(shape));
    bench_free(&b);
}

/* One axis, but not the place in the cache. */
static void check_moved_places(const Shape *shape) {
    static int32_t places[TOKENS];
    for (int t = 0; t < TOKENS; t++) places[t] = 1000 + 3 * t;
    Bench b = bench_make(shape);
    b.sequence[0].places = places;
    check_naive(&b, 10 * tolerance(shape)); /* angles up to 1900 are rounded to 6e-5 by f32 */
    bench_free(&b);
}

/* Text has one place on all axes: as if it had one axis, bit for bit. A stranger's places differ between the axes, so
 * that the step has all of them. */
static void check_text(const char *name, const Shape *shape, int time, int height, int width) {
    Backend *backend = open_backend(name, 2, false, ROWS_MAX);
    if (!backend) return; /* not on this machine */
    Bench b = bench_make(shape);
    const int64_t count = (int64_t)TOKENS * out_width(shape);
    float *one = random_floats(count, 0), *three = random_floats(count, 0);
    compute(backend, &b, 64, true, one);
    set_mrope_section(&b, time, height, width);
    Sequence *stranger = &b.sequence[1];
    int32_t places[POSITION_DIMS_MAX * TOKENS];
    if (stranger->tokens > TOKENS) abort();
    for (int i = 0; i < POSITION_DIMS_MAX * stranger->tokens; i++) places[i] = i;
    stranger->places = places;
    compute(backend, &b, 64, true, three);
    TEST_MSG(same_bits(one, three, count), "%s: %s: text on three axes: %g away", name, shape->name,
        distance(three, one, count));
    free(one);
    free(three);
    bench_free(&b);
    backend_close(backend);
}

/* The first rows of sequence 0 at places beyond 100, turned by one rope after another in the same step; what the last
 * one gives. */
static void turn_by(Backend *backend, Bench *b, const Rope *const *ropes, int count, float *out) {
    enum { ROWS = 20 };
    static float q[ROWS * 4 * 48], k[ROWS * 2 * 48], v[ROWS * 2 * 32];
    float *const in[3] = {q, k, v};
    int32_t positions[POSITION_DIMS_MAX * ROWS];
    Cache cache = cache_make(backend, b);
    StepSequence sequence = next_rows(b, &b->sequence[0], ROWS, 0, positions, in);
    for (int i = 0; i < POSITION_DIMS_MAX * ROWS; i++) positions[i] = 100 + i * i;
    sequence.positions = positions;
    Attention op = attention_of(b, &cache.layer);
    op.out = out;
    backend->ops->begin(backend, step_of(1, &sequence));
    for (int i = 0; i < count; i++) {
        float *own[] = {copy_floats(q, COUNT_OF(q) - 1), copy_floats(k, COUNT_OF(k) - 1)};
        op.rope = ropes[i];
        op.q = own[0];
        op.k = own[1];
        op.v = v;
        backend->ops->attention(backend, &op);
        free(own[0]);
        free(own[1]);
    }
    backend->ops->submit(backend);
    backend->ops->release(backend, cache.memory);
}

/* Layers of a step may turn by different ropes: each as if it were alone. */
static void check_several_ropes(const char *name, const Shape *shape) {
    Backend *backend = open_backend(name, 2, false, ROWS_MAX);
    if (!backend) return; /* not on this machine */
    enum { ROPES = 7 };
    Bench b = bench_make(shape);
    Rope ropes[ROPES];
    const Rope *one[ROPES], *all[ROPES];
    float other[16];
    for (int i = 0; i < 16; i++) other[i] = 0.5f * b.frequencies[i % (shape->rope_dims / 2)];
    for (int i = 0; i < ROPES; i++) ropes[i] = b.rope;
    ropes[1].mrope_section[0] = ropes[1].mrope_section[1] = 5;
    ropes[2].mrope_section[0] = 3;
    ropes[2].mrope_section[2] = 7;
    ropes[3].dynamic.positions = 90;
    ropes[3].dynamic.theta = 5000;
    ropes[3].dynamic.factor = 2;
    ropes[4] = ropes[3];
    ropes[4].dynamic.factor = 3;
    ropes[5].frequencies = other;
    ropes[6] = ropes[2];
    ropes[6].mrope_interleaved = true;
    const int64_t count = 20 * out_width(shape);
    float *alone = random_floats(count, 0), *after = random_floats(count, 0), *before = random_floats(count, 0);
    for (int i = 0; i < ROPES; i++) {
        for (int n = 0; n < ROPES; n++) all[n] = &ropes[(i + 1 + n) % ROPES]; /* i comes last */
        one[0] = &ropes[i];
        turn_by(backend, &b, one, 1, alone);
        turn_by(backend, &b, all, ROPES, after);
        TEST_MSG(same_bits(alone, after, count), "%s: rope %d after others of its step", name, i);
        TEST_MSG(i == 0 || !same_bits(alone, before, count), "%s: rope %d turns like the one before", name, i);
        memcpy(before, alone, (size_t)count * sizeof *before);
    }
    free(alone);
    free(after);
    free(before);
    bench_free(&b);
    backend_close(backend);
}

/* Beyond its reach each row grows by its own place, so strangers that go further change nothing. f32 rounds theta's
 * logarithm, up to 12, to 5e-7, so angles up to 300 to 1.5e-4 and scores, some 5 at most, to 1e-3. */
static void check_dynamic(const Shape *shape, int reach) {
    Bench b = bench_make(shape);
    for (int i = 0; i < shape->rope_dims / 2; i++)
        b.frequencies[i] = powf(10000, -2.0f * (float)i / (float)shape->rope_dims);
    b.rope.dynamic.positions = reach;
    b.rope.dynamic.theta = 10000;
    b.rope.dynamic.factor = 4;
    check_naive(&b, fmax(2e-3, tolerance(shape)));
    bench_free(&b);
}

/* ---- angles ---- */

static void check_angles(void) {
    enum { ROWS = 3, PAIRS = 6 };
    static const int32_t positions[POSITION_DIMS_MAX * ROWS] = {0, 7, 100, 1, 8, 200, 2, 9, 300};
    static const float frequencies[PAIRS] = {1, 0.5f, 0.25f, 0.125f, 0, 2};
    static const struct {
        int position_dims, mrope_section[POSITION_DIMS_MAX], axis_of[PAIRS];
        bool interleaved;
    } cases[] = {
        {1, {0, 0, 0}, {0, 0, 0, 0, 0, 0}, false},
        {3, {0, 0, 0}, {0, 0, 0, 0, 0, 0}, false},
        {1, {2, 2, 2}, {0, 0, 0, 0, 0, 0}, false},
        {3, {2, 2, 2}, {0, 0, 1, 1, 2, 2}, false},
        {3, {1, 2, 3}, {0, 1, 1, 2, 2, 2}, false},
        {3, {1, 1, 1}, {0, 1, 2, 0, 0, 0}, false}, /* the rest turns by axis 0 */
        {3, {2, 0, 4}, {0, 0, 2, 2, 2, 2}, false},
        {3, {0, 3, 3}, {1, 1, 1, 2, 2, 2}, false},
        {3, {2, 2, 2}, {0, 1, 2, 0, 1, 2}, true},
        {3, {4, 1, 1}, {0, 1, 2, 0, 0, 0}, true},
        {3, {3, 2, 1}, {0, 1, 2, 0, 1, 0}, true},
        {1, {2, 2, 2}, {0, 0, 0, 0, 0, 0}, true},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Rope rope = {.dims = 2 * PAIRS, .frequencies = frequencies, .scale = 1};
        memcpy(rope.mrope_section, cases[c].mrope_section, sizeof rope.mrope_section);
        rope.mrope_interleaved = cases[c].interleaved;
        const Step step = {.rows = ROWS, .positions = positions, .position_dims = cases[c].position_dims};
        for (int row = 0; row < ROWS; row++) {
            float angles[PAIRS];
            rope_angles(&rope, &step, row, angles);
            for (int i = 0; i < PAIRS; i++) {
                const float wanted = (float)positions[cases[c].axis_of[i] * ROWS + row] * frequencies[i];
                TEST_MSG(
                    angles[i] == wanted, "case %zu: row %d, pair %d: %g, expected %g", c, row, i, angles[i], wanted);
            }
        }
    }
}

/* 8 positions of a theta of 10000, factor 2: the row at 7 is the last that turns as it was made to. */
static void check_dynamic_angles(void) {
    enum { ROWS = 4, DIMS = 8 };
    static const int32_t positions[ROWS] = {7, 8, 100, 3};
    float frequencies[DIMS / 2], angles[DIMS / 2], alone[DIMS / 2];
    for (int i = 0; i < DIMS / 2; i++) frequencies[i] = powf(10000, -2.0f * (float)i / DIMS);
    const Rope rope = {
        .dims = DIMS, .frequencies = frequencies, .scale = 1, .dynamic = {.positions = 8, .theta = 10000, .factor = 2}};
    const Step step = {.rows = ROWS, .positions = positions, .position_dims = 1};
    for (int row = 0; row < ROWS; row++) {
        const int place = positions[row];
        const double grown = 2.0 * (place + 1) / 8 - 1, theta = 10000 * pow(grown, (double)DIMS / (DIMS - 2));
        rope_angles(&rope, &step, row, angles);
        rope_angles(&rope, &(Step){.rows = 1, .positions = positions + row, .position_dims = 1}, 0, alone);
        for (int i = 0; i < DIMS / 2; i++) {
            const double wanted =
                place < 8 ? (double)((float)place * frequencies[i]) : place * pow(theta, -2.0 * i / DIMS);
            TEST_MSG(fabs(angles[i] - wanted) <= 2e-6 * wanted, "position %d, pair %d: %g, expected %g", place, i,
                angles[i], wanted);
            TEST(angles[i] == alone[i]);
        }
    }
}

/* ---- the plan ---- */

static bool planned(const int mrope_section[POSITION_DIMS_MAX], Error *error) {
    const float frequencies[16] = {0};
    Rope rope = {.dims = 32, .frequencies = frequencies, .scale = 1};
    memcpy(rope.mrope_section, mrope_section, sizeof rope.mrope_section);
    float x = 0;
    size_t bytes;
    Backend *plan = plan_open(1, error);
    if (!plan) return false;
    plan->ops->attention(plan,
        &(Attention){
            .heads = 2, .kv.layout = {2, 32, 32, DTYPE_F16}, .rope = &rope, .q = &x, .k = &x, .v = &x, .out = &x});
    const bool ok = plan_result(plan, &bytes, error);
    backend_close(plan);
    return ok;
}

static void check_plan(void) {
    static const int good[][POSITION_DIMS_MAX] = {{0, 0, 0}, {16, 0, 0}, {6, 5, 5}, {4, 4, 4}, {8, 0, 8}};
    static const int bad[][POSITION_DIMS_MAX] = {
        {17, 0, 0}, {6, 6, 5}, {-1, 8, 8}, {8, 8, -1}, {INT32_MAX, INT32_MAX, 18}};
    Error error = {0};
    for (size_t i = 0; i < COUNT_OF(good); i++) TEST_MSG(planned(good[i], &error), "sections %zu: %s", i, error.text);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        TEST_MSG(!planned(bad[i], &error) && strstr(error.text, "sections"), "bad sections %zu: %s", i, error.text);
}

int main(void) {
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};
    check_angles();
    check_dynamic_angles();
    check_plan();
    check_position_dims(&half, 6, 5, 5, false);
    check_position_dims(&part, 4, 4, 2, false);
    check_position_dims(&half, 6, 5, 5, true);
    check_position_dims(&part, 6, 3, 3, true);
    check_moved_places(&half);
    check_dynamic(&half, 100);
    check_dynamic(&part, 20);
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        check_text(names[n], &half, 6, 5, 5);
        check_text(names[n], &part, 4, 4, 4);
        check_several_ropes(names[n], &half);
    }
    return test_done();
}
