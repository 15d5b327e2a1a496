#include "backend/cpu/experts.h"

#include <math.h>
#include <string.h>

/* ---- the router ---- */

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static void softmax(const float *x, int count, float *out) {
    float most = x[0], sum = 0;
    for (int i = 1; i < count; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < count; i++) sum += out[i] = expf(x[i] - most);
    for (int i = 0; i < count; i++) out[i] /= sum;
}

/* The largest that was not taken yet; of equals the first, and NaNs last. */
static int best_left(const float *score, int count, const bool *taken) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || score[i] > score[best])) best = i;
    return best;
}

/* Experts of the groups that are not among the best get the score 0. */
static void keep_groups(const Routing *op, float *score) {
    float worth[EXPERT_GROUPS_MAX];
    bool kept[EXPERT_GROUPS_MAX] = {false};
    const int size = op->experts / op->groups;
    for (int g = 0; g < op->groups; g++) {
        bool taken[EXPERTS_MAX] = {false};
        const float *own = score + g * size;
        const int first = best_left(own, size, taken);
        taken[first] = true;
        const int second = best_left(own, size, taken);
        worth[g] = own[first] + (second < 0 ? 0 : own[second]);
    }
    for (int i = 0; i < op->groups_used; i++) kept[best_left(worth, op->groups, kept)] = true;
    for (int g = 0; g < op->groups; g++)
        for (int i = 0; !kept[g] && i < size; i++) score[g * size + i] = 0;
}

static void route_row(const Routing *op, int row) {
    const float *logits = op->logits + (int64_t)row * op->experts;
    const int slots = op->used + op->shared;
    int32_t *index = op->index + (int64_t)row * slots;
    float *weight = op->weight + (int64_t)row * slots, score[EXPERTS_MAX], choice[EXPERTS_MAX];
    bool taken[EXPERTS_MAX] = {false};
    if (op->score == ROUTE_SOFTMAX)
        softmax(logits, op->experts, score);
    else
        for (int i = 0; i < op->experts; i++) score[i] = op->score == ROUTE_SIGMOID ? sigmoid(logits[i]) : logits[i];
    for (int i = 0; i < op->experts; i++) choice[i] = score[i] + (op->bias ? op->bias[i] : 0);
    if (op->groups) keep_groups(op, choice);
    for (int i = 0; i < op->used; i++) {
        index[i] = best_left(choice, op->experts, taken);
        taken[index[i]] = true;
        weight[i] = score[index[i]];
    }
    if (op->score == ROUTE_TOP_SOFTMAX) softmax(weight, op->used, weight);
    float sum = op->epsilon;
    for (int i = 0; i < op->used; i++) sum += weight[i];
    for (int i = 0; i < op->used; i++) weight[i] *= (op->normalise ? 1 / sum : 1) * op->scale;
    if (!op->shared) return;
    index[op->used] = op->experts;
    weight[op->used] = op->shared_logits ? sigmoid(op->shared_logits[row]) : 1;
}

void cpu_route(Backend *backend, const Routing *op) {
    CHECK(op->experts <= EXPERTS_MAX && op->used <= op->experts && op->groups <= EXPERT_GROUPS_MAX);
    for (int row = 0; row < op->rows; row++) route_row(op, row);
}

/* ---- the experts ---- */

/* Pairs of a row and one of its experts, in the order of the experts: place[pair] is where each went. */
static void sort_pairs(const Experts *op, int32_t *place, int *begin) {
    const int pairs = op->rows * op->used;
    memset(begin, 0, (size_t)(op->count + 1) * sizeof *begin);
    for (int p = 0; p < pairs; p++) begin[op->index[p] + 1]++;
    for (int e = 0; e < op->count; e++) begin[e + 1] += begin[e];
    int next[EXPERTS_MAX + 1];
    memcpy(next, begin, (size_t)op->count * sizeof *next);
    for (int p = 0; p < pairs; p++) place[p] = next[op->index[p]]++;
}

static int64_t widest(const Experts *op) {
    int64_t inner = 0;
    for (int e = 0; e < op->count; e++) inner = op->gate[e].rows > inner ? op->gate[e].rows : inner;
    return inner;
}

/* One expert over the rows that use it: its inputs lie where its results will go. */
static void run_expert(Backend *backend, const Experts *op, int e, int rows, float *inner, float *y) {
    const Glu glu = {
        .rows = rows, .x = y, .gate = &op->gate[e], .up = &op->up[e], .activation = op->activation, .out = inner};
    backend->ops->glu(backend, &glu);
    const Matmul down = {.rows = rows, .x = inner, .count = 1, .weight = {&op->down[e]}, .out = {y}};
    backend->ops->matmul(backend, &down);
}

void cpu_experts(Backend *backend, const Experts *op) {
    const int64_t hidden = op->down[0].rows, pairs = (int64_t)op->rows * op->used, inner = widest(op);
    CHECK(op->count <= EXPERTS_MAX + 1 && op->gate[0].cols == hidden);
    float *y = op->work, *between = y + pairs * hidden;
    int32_t *place = (int32_t *)(void *)(between + pairs * inner);
    int begin[EXPERTS_MAX + 2];
    sort_pairs(op, place, begin);
    for (int64_t p = 0; p < pairs; p++)
        memcpy(y + place[p] * hidden, op->x + p / op->used * hidden, (size_t)hidden * sizeof *y);
    for (int e = 0; e < op->count; e++) {
        const int rows = begin[e + 1] - begin[e];
        if (rows > 0) run_expert(backend, op, e, rows, between + begin[e] * inner, y + begin[e] * hidden);
    }
    memset(op->out, 0, (size_t)(op->rows * hidden) * sizeof *op->out);
    for (int64_t p = 0; p < pairs; p++) {
        const float *from = y + place[p] * hidden, weight = op->weight[p];
        float *to = op->out + p / op->used * hidden;
        for (int64_t i = 0; i < hidden; i++) to[i] += weight * from[i];
    }
}
