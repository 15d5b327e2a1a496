#include "engine/step_costs.h"

#include <math.h>

#include "base/math.h"

/* Relative durations at some row counts, those between are interpolated: Qwen2.5 1.5B on two cores with AVX-512, an 8B
 * on an H100. */
typedef struct Point {
    int rows;
    float cost;
} Point;
static const Point CPU[] = {
    {1, 1}, {2, 1.1f}, {3, 1.2f}, {4, 1.35f}, {5, 1.5f}, {6, 1.65f}, {8, 2}, {12, 3}, {16, 3.5f}, {32, 6.5f}, {64, 13}};
static const Point GPU[] = {{1, 1}, {2, 1.05f}, {3, 1.24f}, {4, 1.34f}, {5, 1.45f}, {8, 1.48f}, {9, 1.55f}, {12, 1.58f},
    {13, 1.66f}, {16, 1.72f}, {17, 2}, {32, 2.1f}, {64, 3.5f}};

/* A step that was disturbed says little of its rows: what it took counts in full for the first few, when the costs are
 * those of another machine, and less and less behind them. */
enum { SHARE_FULL = 8, SHARE_COUNTED = 1 << 20 };
static const float SHARE_LEAST = 0.5f, SHARE_MOST = 4;

static float between(const Point *points, int rows) {
    while (points[1].rows < rows) points++;
    const float part = (float)(rows - points[0].rows) / (float)(points[1].rows - points[0].rows);
    return points[0].cost + part * (points[1].cost - points[0].cost);
}

void step_costs_init(StepCosts *c, bool device, const float *fanout) {
    *c = (StepCosts){.cost = {0}};
    for (int rows = 1; rows <= STEP_COSTS_ROWS; rows++) {
        c->cost[rows] = between(device ? GPU : CPU, rows);
        /* Experts have most of the weights, and rows of one text share some of them. */
        if (fanout) c->cost[rows] = fmaxf(c->cost[rows], (c->cost[rows] + fanout[rows]) / 2);
        c->least[rows] = (1 + between(device ? GPU : CPU, rows)) / 2;
    }
}

/* A ratio that was measured moves the row counts beside it, too, the less the further away they are. More rows never
 * cost less. */
static void move_costs(StepCosts *c, int rows, float ratio) {
    const float rate = ratio < 1 ? 0.2f : 0.1f; /* as of the unit: disturbed steps are longer */
    for (int r = 2; r <= STEP_COSTS_ROWS; r++)
        c->cost[r] *= 1 + rate * (ratio - 1) / (float)(1 << min_int(r > rows ? r - rows : rows - r, 20));
    for (int r = rows + 1; r <= STEP_COSTS_ROWS; r++) c->cost[r] = fmaxf(c->cost[r], c->cost[r - 1]);
    for (int r = rows - 1; r >= 1; r--) c->cost[r] = fminf(c->cost[r], c->cost[r + 1]);
    for (int r = 1; r <= STEP_COSTS_ROWS; r++) c->cost[r] = fmaxf(c->cost[r], c->least[r]);
}

void step_costs_note(StepCosts *c, int rows, int drafts, double seconds) {
    enum { OUTLIER = 2 };
    if (drafts > 0) c->draft_share = 1;
    if (rows < 1 || rows > STEP_COSTS_ROWS || seconds <= 0) return;
    const double own = seconds / (double)c->cost[rows];
    if (c->unit_s == 0) c->unit_s = own;
    if (drafts == 0) { /* the first steps read weights from their file: what is faster counts more */
        c->unit_s += (own < c->unit_s ? 0.3 : 0.1) * (fmin(own, OUTLIER * c->unit_s) - c->unit_s);
        return;
    }
    const double ratio = own / c->unit_s;
    const float before = c->cost[rows - drafts], added = c->cost[rows] - before;
    c->draft_steps = min_int(c->draft_steps + 1, SHARE_COUNTED);
    if (added > 0) {
        const float share = fminf(fmaxf(((float)ratio * c->cost[rows] - before) / added, SHARE_LEAST), SHARE_MOST);
        c->draft_share = 1 + (share - 1) * fminf(1, SHARE_FULL / (float)c->draft_steps);
    }
    move_costs(c, rows, (float)fmin(fmax(ratio, 1.0 / OUTLIER), OUTLIER));
}

void step_costs_note_most(StepCosts *c, int rows, double seconds) {
    if (rows < 1 || rows > STEP_COSTS_ROWS || seconds <= 0) return;
    const double most = seconds / (double)c->cost[rows];
    if (c->unit_s == 0 || most < c->unit_s) c->unit_s = most;
}
