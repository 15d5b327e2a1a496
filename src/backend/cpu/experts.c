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

/* The largest score not taken yet (of equals the first); always an index, also with NaNs. */
static int best_left(const float *score, int count, const bool *taken) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || score[i] > score[best])) best = i;
    return best;
}

/* Experts of the groups that are not among the best get the score −∞, as transformers and DeepSeek mask them. */
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
        worth[g] = own[first] + (second < 0 || op->group_best ? 0 : own[second]);
    }
    for (int i = 0; i < op->topk_group; i++) kept[best_left(worth, op->groups, kept)] = true;
    for (int g = 0; g < op->groups; g++)
        for (int i = 0; !kept[g] && i < size; i++) score[g * size + i] = -INFINITY;
}

/* ROUTE_SPARSEMIXER. */
static void mix_sparsely(const Routing *op, const float *x, int32_t *index, float *weight) {
    bool taken[EXPERTS_MAX] = {false};
    for (int i = 0; i < op->top_k; i++) {
        index[i] = best_left(x, op->experts, taken);
        const float top = x[index[i]];
        float sum = 0;
        for (int e = 0; e < op->experts; e++)
            if (!taken[e] && !((top - x[e]) / fmaxf(fabsf(x[e]), top) > op->jitter_eps)) sum += expf(x[e] - top);
        weight[i] = 1 / sum;
        taken[index[i]] = true;
    }
}

/* The weight of the shared expert, behind the others. */
static void weigh_shared(const Routing *op, int row, float *weight) {
    const float *logits = op->shared_logits;
    if (!op->shared_pair) {
        weight[op->top_k] = logits ? sigmoid(logits[row]) : 1;
        return;
    }
    float pair[2];
    softmax(logits + 2 * (int64_t)row, 2, pair);
    for (int i = 0; i < op->top_k; i++) weight[i] *= pair[0];
    weight[op->top_k] = pair[1];
}

static float score_of(RouteScore kind, float logit) {
    if (kind == ROUTE_SIGMOID) return sigmoid(logit);
    /* ln(1 + e^x) without overflow */
    if (kind == ROUTE_SQRT_SOFTPLUS) return sqrtf(fmaxf(logit, 0) + log1pf(expf(-fabsf(logit))));
    return logit;
}

/* The experts of the row's token. */
static void take_from_table(const Routing *op, int row, const float *score, int32_t *index, float *weight) {
    const int32_t token = op->tokens[row] < 0 ? 0 : op->tokens[row];
    for (int i = 0; i < op->top_k; i++) {
        index[i] = (int32_t)op->table[(int64_t)token * op->top_k + i];
        weight[i] = score[index[i]];
    }
}

/* Chooses the best experts by score; the bias affects the choice only. */
static void choose(const Routing *op, int row, const float *logits, int32_t *index, float *weight) {
    float score[EXPERTS_MAX], choice[EXPERTS_MAX];
    bool taken[EXPERTS_MAX] = {false};
    if (op->score == ROUTE_SOFTMAX)
        softmax(logits, op->experts, score);
    else
        for (int i = 0; i < op->experts; i++) score[i] = score_of(op->score, logits[i]);
    if (op->table) {
        take_from_table(op, row, score, index, weight);
        return;
    }
    for (int i = 0; i < op->experts; i++) choice[i] = score[i] + (op->bias ? op->bias[i] : 0);
    if (op->groups) keep_groups(op, choice);
    for (int i = 0; i < op->top_k; i++) {
        index[i] = best_left(choice, op->experts, taken);
        taken[index[i]] = true;
        weight[i] = score[index[i]];
    }
    if (op->score == ROUTE_TOP_SOFTMAX) softmax(weight, op->top_k, weight);
    for (int i = 0; op->score == ROUTE_TOP_SIGMOID && i < op->top_k; i++) weight[i] = sigmoid(weight[i]);
}

static void route_row(const Routing *op, int row) {
    const float *logits = op->logits + (int64_t)row * op->experts;
    const int slots = op->top_k + op->shared;
    int32_t *index = op->index + (int64_t)row * slots;
    float *weight = op->weight + (int64_t)row * slots;
    if (op->score == ROUTE_SPARSEMIXER)
        mix_sparsely(op, logits, index, weight);
    else
        choose(op, row, logits, index, weight);
    float sum = op->epsilon;
    for (int i = 0; i < op->top_k; i++) sum += weight[i];
    for (int i = 0; i < op->top_k; i++) weight[i] *= (op->norm_topk_prob ? 1 / sum : 1) * op->scale;
    for (int i = 0; op->expert_scale && i < op->top_k; i++) weight[i] *= op->expert_scale[index[i]];
    if (!op->shared) return;
    index[op->top_k] = op->experts;
    weigh_shared(op, row, weight);
}

void cpu_route(Backend *backend, const Routing *op) {
    CHECK(op->experts <= EXPERTS_MAX && op->top_k <= op->experts && op->groups <= EXPERT_GROUPS_MAX);
    for (int row = 0; row < op->rows; row++) route_row(op, row);
}

/* ---- the experts ---- */

static int64_t widest(const Experts *op) {
    int64_t inner = 0;
    for (int e = 0; e < op->count; e++) inner = op->gate[e].rows > inner ? op->gate[e].rows : inner;
    return inner;
}

/* Sorts the pairs by expert. */
static ExpertPairs expert_pairs(const Experts *op) {
    const int64_t pairs = (int64_t)op->rows * op->top_k;
    ExpertPairs p = {.hidden = op->down[0].rows, .inner = widest(op)};
    CHECK(op->count <= EXPERTS_MAX + 1 && op->gate[0].cols == p.hidden);
    p.y = op->work;
    p.between = p.y + pairs * p.hidden;
    p.place = (int32_t *)(void *)(p.between + pairs * p.inner);
    p.row = p.place + pairs;
    for (int64_t i = 0; i < pairs; i++)
        if (op->index[i] < op->count) p.begin[op->index[i] + 1]++;
    for (int e = 0; e < op->count; e++) p.begin[e + 1] += p.begin[e];
    int next[EXPERTS_MAX + 1];
    memcpy(next, p.begin, (size_t)op->count * sizeof *next);
    for (int64_t i = 0; i < pairs; i++) {
        p.place[i] = op->index[i] < op->count ? next[op->index[i]]++ : -1;
        if (p.place[i] < 0) continue;
        p.row[p.place[i]] = (int32_t)(i / op->top_k);
    }
    return p;
}

void expert_weigh_inputs(const Experts *op, const ExpertPairs *p, int expert, int first, int rows) {
    for (int i = first; i < first + rows; i++) {
        const float *x = op->x + p->row[i] * p->hidden;
        const int64_t pair = (int64_t)p->row[i] * op->top_k;
        float *y = p->y + i * p->hidden, weight = 0;
        for (int slot = 0; slot < op->top_k; slot++)
            if (op->index[pair + slot] == expert) weight = op->weight[pair + slot];
        for (int64_t e = 0; e < p->hidden; e++) y[e] = weight * x[e];
    }
}

void expert_sum(const Experts *op, const ExpertPairs *p, int row) {
    float *to = op->out + row * p->hidden;
    memset(to, 0, (size_t)p->hidden * sizeof *to);
    for (int64_t pair = (int64_t)row * op->top_k; pair < (int64_t)(row + 1) * op->top_k; pair++) {
        const bool identity = p->place[pair] < 0;
        const float *from = identity ? op->x + row * p->hidden : p->y + p->place[pair] * p->hidden;
        const float weight = op->weigh_inputs ? 1 : op->weight[pair];
        for (int64_t i = 0; i < p->hidden; i++) to[i] += weight * from[i];
    }
}

static void prefetch_next_layer(const Experts *op) {
    int32_t likely[EXPERTS_USED_MAX + 1];
    int count = 0;
    for (int i = 0; i < op->top_k; i++) /* experts of the first row, best first */
        if (op->index[i] < op->count && !op->gate[op->index[i]].data) likely[count++] = op->index[i];
    op->source->prefetch(op->source, op->layer, likely, count);
}

/* Requests (or, for EXPERTS_PREFETCH, prefetches) the experts that rows use and that have no address. True: the stage
 * ends here. */
static bool request_experts(const Experts *op, const ExpertPairs *p) {
    if (op->stage == EXPERTS_PREFETCH) prefetch_next_layer(op);
    if (op->stage == EXPERTS_COMPUTE || op->stage == EXPERTS_PREFETCH) return op->stage == EXPERTS_PREFETCH;
    int32_t wanted[EXPERTS_MAX + 1];
    int count = 0;
    for (int e = 0; e < op->count; e++)
        if (p->begin[e + 1] > p->begin[e] && !op->gate[e].data) wanted[count++] = e;
    op->source->request(op->source, op->micro_batch, op->layer, wanted, count);
    return op->stage == EXPERTS_REQUEST;
}

/* True if rows use an expert that has an address already. */
static bool is_due(const Experts *op, const ExpertPairs *pairs, int e) {
    return pairs->begin[e + 1] > pairs->begin[e] && (!op->source || op->gate[e].data);
}

static void flush(ExpertsDriver *driver) {
    if (driver->flush) driver->flush(driver);
}

void experts_run(ExpertsDriver *driver, const Experts *op) {
    ExpertProvider *source = op->source;
    ProvidedExpert loaded[EXPERTS_BATCH_MAX];
    driver->op = op;
    driver->pairs = expert_pairs(op);
    if (source && request_experts(op, &driver->pairs)) return;
    for (int e = 0; e < op->count; e++)
        if (is_due(op, &driver->pairs, e))
            driver->add(driver, &(ExpertWeights){e, &op->gate[e], &op->up[e], &op->down[e]});
    flush(driver);
    for (int count; source && (count = source->acquire(source, op->micro_batch, driver->batch, loaded)) > 0;) {
        for (int i = 0; i < count; i++)
            driver->add(driver, &(ExpertWeights){loaded[i].expert, &loaded[i].gate, &loaded[i].up, &loaded[i].down});
        flush(driver);
    }
    driver->sum(driver);
}

/* ---- the reference ---- */

typedef struct RefExperts {
    ExpertsDriver driver;
    Backend *backend;
} RefExperts;

/* One expert over the rows that use it; its inputs are stored in the place of its results. */
static void ref_add(ExpertsDriver *driver, const ExpertWeights *weights) {
    Backend *backend = ((RefExperts *)driver)->backend;
    const ExpertPairs *p = &driver->pairs;
    const Experts *op = driver->op;
    const int first = p->begin[weights->expert], rows = p->begin[weights->expert + 1] - first;
    float *y = p->y + first * p->hidden, *between = p->between + first * p->inner;
    for (int i = 0; i < rows && !op->weigh_inputs; i++)
        memcpy(y + i * p->hidden, op->x + p->row[first + i] * p->hidden, (size_t)p->hidden * sizeof *y);
    if (op->weigh_inputs) expert_weigh_inputs(op, p, weights->expert, first, rows);
    const Glu glu = {
        .rows = rows, .x = y, .gate = weights->gate, .up = weights->up, .activation = op->activation, .out = between};
    backend->ops->glu(backend, &glu);
    const Matmul down = {.rows = rows, .x = between, .count = 1, .weight = {weights->down}, .out = {y}};
    backend->ops->matmul(backend, &down);
}

static void ref_sum(ExpertsDriver *driver) {
    for (int row = 0; row < driver->op->rows; row++) expert_sum(driver->op, &driver->pairs, row);
}

void cpu_experts(Backend *backend, const Experts *op) {
    RefExperts ref = {.driver = {.batch = 1, .add = ref_add, .sum = ref_sum}, .backend = backend};
    experts_run(&ref.driver, op);
}
