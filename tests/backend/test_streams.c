/* Rowwise operations of few families, on every backend that has them: against their definitions in double, and each row
 * alone has the same bits. */
#include <math.h>

#include "backend/ops.h"
#include "backend/steps.h"

enum { ROWS = 5, WIDTH = 37, STREAMS = 3, HEADS = 4 };

/* Streams lie one behind the other: row r of stream i at (i · ROWS + r) · WIDTH. */
static void check_mix(Backend *backend, const char *name) {
    float *x = random_floats(STREAMS * ROWS * WIDTH, 2), *mix = random_floats(ROWS * STREAMS * STREAMS, 1),
          *gain = random_floats(ROWS * STREAMS, 1), *y = random_floats(ROWS * WIDTH, 2);
    float *alone = copy_floats(x, STREAMS * ROWS * WIDTH), wanted[STREAMS * ROWS * WIDTH];
    for (int i = 0; i < STREAMS; i++)
        for (int r = 0; r < ROWS; r++)
            for (int e = 0; e < WIDTH; e++) {
                double sum = x[(i * ROWS + r) * WIDTH + e];
                for (int j = 0; j < STREAMS; j++)
                    sum += (double)mix[(r * STREAMS + i) * STREAMS + j] * x[(j * ROWS + r) * WIDTH + e];
                sum += (1 + (double)gain[r * STREAMS + i]) * y[r * WIDTH + e];
                wanted[(i * ROWS + r) * WIDTH + e] = (float)sum;
            }
    const StreamMix op = {ROWS, STREAMS, WIDTH, ROWS * WIDTH, x, mix, gain, y};
    backend->ops->mix_streams(backend, &op);
    TEST_MSG(distance(x, wanted, STREAMS * ROWS * WIDTH) <= 1e-5, "streams on %s", name);
    for (int r = 0; r < ROWS; r++) {
        const StreamMix one = {1, STREAMS, WIDTH, ROWS * WIDTH, alone + r * WIDTH, mix + r * STREAMS * STREAMS,
            gain + r * STREAMS, y + r * WIDTH};
        backend->ops->mix_streams(backend, &one);
    }
    TEST_MSG(same_bits(x, alone, STREAMS * ROWS * WIDTH), "streams on %s: rows alone", name);
    free(x);
    free(mix);
    free(gain);
    free(y);
    free(alone);
}

static double mean_square(const float *x) {
    double sum = 0;
    for (int e = 0; e < WIDTH; e++) sum += (double)x[e] * x[e];
    return sum / WIDTH;
}

/* The last row is smaller than the floor. */
static void check_match(Backend *backend, const char *name) {
    float *x = random_floats(ROWS * WIDTH, 2), *target = random_floats(ROWS * WIDTH, 1), wanted[ROWS * WIDTH];
    for (int e = 0; e < WIDTH; e++) x[(ROWS - 1) * WIDTH + e] *= 1e-4f;
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < WIDTH; e++)
            wanted[r * WIDTH + e] = (float)(x[r * WIDTH + e] *
                sqrt(mean_square(target + r * WIDTH) / fmax(mean_square(x + r * WIDTH), 1e-5)));
    const MatchRms op = {ROWS, WIDTH, target, 1e-5f, x};
    backend->ops->match_rms(backend, &op);
    TEST_MSG(distance(x, wanted, ROWS * WIDTH) <= 1e-5, "root mean squares on %s", name);
    free(x);
    free(target);
}

static void check_sparsify(Backend *backend, const char *name) {
    float *x = random_floats(ROWS * WIDTH, 2), wanted[ROWS * WIDTH];
    int zeros = 0;
    for (int r = 0; r < ROWS; r++) {
        double mean = 0, square = 0;
        for (int e = 0; e < WIDTH; e++) mean += x[r * WIDTH + e] / (double)WIDTH;
        for (int e = 0; e < WIDTH; e++) square += (x[r * WIDTH + e] - mean) * (x[r * WIDTH + e] - mean) / WIDTH;
        for (int e = 0; e < WIDTH; e++) {
            wanted[r * WIDTH + e] = (float)fmax(x[r * WIDTH + e] - (mean + 0.5 * sqrt(square)), 0);
            zeros += wanted[r * WIDTH + e] == 0;
        }
    }
    const Sparsify op = {ROWS, WIDTH, 0.5f, x};
    backend->ops->sparsify(backend, &op);
    TEST(zeros > 0 && zeros < ROWS * WIDTH);
    TEST_MSG(distance(x, wanted, ROWS * WIDTH) <= 1e-5, "sparse rows on %s", name);
    free(x);
}

static void check_gates(Backend *backend, const char *name, bool softplus) {
    enum { ALL = ROWS * HEADS * WIDTH };
    float *x = random_floats(ALL, 2), *gate = random_floats(ROWS * HEADS, 4), wanted[ALL];
    gate[0] = 100; /* e^100 is none of f32 */
    for (int i = 0; i < ALL; i++) {
        const double g = gate[i / WIDTH];
        wanted[i] = (float)(x[i] * (softplus ? fmax(g, 0) + log1p(exp(-fabs(g))) : 1 / (1 + exp(-g))));
    }
    const HeadGate op = {ROWS, HEADS, WIDTH, gate, softplus, x};
    backend->ops->gate_heads(backend, &op);
    TEST_MSG(distance(x, wanted, ALL) <= 1e-5, "gates of heads on %s", name);
    free(x);
    free(gate);
}

int main(void) {
    for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
        const char *name = n ? vector_names[n - 1] : "ref";
        Backend *backend = open_backend(name, 2, false, ROWS);
        if (!backend) continue;
        if (backend->ops->mix_streams) {
            backend->ops->begin(backend, step_of_rows(ROWS, 0));
            check_mix(backend, name);
            check_match(backend, name);
            check_sparsify(backend, name);
            check_gates(backend, name, false);
            check_gates(backend, name, true);
            backend->ops->wait(backend, backend->ops->submit(backend), NULL);
        }
        backend_close(backend);
    }
    return test_done();
}
