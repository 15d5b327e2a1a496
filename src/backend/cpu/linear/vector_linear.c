/* The operations that multiply, over one instruction set's kernels: embed, matmul, glu, matmul_add.
 *
 * Each runs once on the pool, in two phases: activation rows are normalised and quantised (shared by rows, or by groups
 * for a single row); after a barrier, weight rows are shared. Few activation rows: every weight row is read once, in
 * the file's layout. More: panels of weight rows are unpacked and multiplied with tiles of activation rows. Both give
 * the same bits (linear.h). */
#include <string.h>

#include "base/math.h"
#include "backend/cpu/linear/product.h"

enum {
    UNIT_ROWS = 16,       /* weight rows shared out together, few activation rows */
    SINGLE_UNIT_ROWS = 4, /* units of work for one or two rows */
    LOW_RANK = 64,        /* plain weights of so few rows, as A of adapters, are shared out in such units, too */
    SHORT_COLS = 512,     /* columns of short rows */
    GRAIN_BYTES = 98304,  /* weights that a thread takes at a time */
    CALL_ROWS = 128,      /* weight rows per kernel call: results wait in L1 for their epilogue */
    CHUNK_LEAST = 64,     /* lines of activations that meet a panel, unless there are fewer */
    ITEMS_PER_THREAD = 8, /* pieces of work with panels, so that the threads end together */
    STEP_LINES = 256,     /* most lines between two epilogues */
    SHARED_BYTES = PRODUCT_SPACE_BYTES,
    THREAD_BYTES = 4 << 20,
    ALONE_COLS = 4096,    /* columns of a single row up to which each thread prepares it alone; break-even at 4864 */
    SMALL_VALUES = 16384, /* plain weights that one thread multiplies by a row before others would have begun */
    UPDATE_VALUES = 4096, /* results of updates at a time */
};

/* A quarter of a thread's memory holds a normalised row; or all forms of a short one, and a row to normalise after. */
_Static_assert(MATRIX_COLS_MAX * sizeof(float) <= THREAD_BYTES / 4, "a row of activations has its place");
_Static_assert(NORM_WIDTH_MAX * sizeof(float) <= THREAD_BYTES / 8, "so has a row of results");

size_t linear_work_bytes(int rows_max, int threads) { return (size_t)SHARED_BYTES + (size_t)threads * THREAD_BYTES; }

static int group_kind(int group) { return group == 16 ? 0 : group == 32 ? 1 : 2; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static uint8_t *thread_space(const Product *p, int index) {
    return p->cpu->work + SHARED_BYTES + (size_t)index * THREAD_BYTES;
}

/* ---- activations ---- */

/* Lines of a row of activations that weight i meets. */
static int planes_of(const Product *p, int i) { return i < p->one_line ? 1 : p->planes; }

/* Chooses the layouts of the input that the weights need, for `rows` activation rows together. */
static void choose_inputs(Product *p, int rows) {
    memset(p->wanted, 0, sizeof p->wanted);
    for (int i = 0; i < p->count; i++) {
        const Weight *w = p->weight[i];
        CHECK(w->cols == p->cols);
        if (!linear_is_integer(w)) {
            p->plain_wanted = true;
            continue;
        }
        LinearLayout layout = p->few ? p->kernels->layout(w, rows * planes_of(p, i)) : LAYOUT_PANEL;
        p->wanted[group_kind(linear_group(w))][layout] = true;
    }
}

static size_t align_up(size_t size) { return (size + 63) & ~(size_t)63; }

/* Stride of rows: 16 groups more than needed if all rows, or every other one, would otherwise map to the same lines of
 * the first-level cache. */
static int64_t row_stride(int64_t cols, int group) {
    const int64_t stride = linear_stride(cols, group);
    return stride % 2048 == 0 ? stride + (int64_t)group * LINEAR_LANES : stride;
}

/* Shares out `space` for `rows` rows, their lines rounded up to whole tiles; with space NULL only counts. */
static size_t place_inputs(Product *p, uint8_t *space, int64_t rows) {
    size_t used = 0;
    int64_t lines = rows * p->planes;
    if (!p->few) lines = ceil_div(lines, p->kernels->tile_rows) * p->kernels->tile_rows;
    for (int kind = 0; kind < GROUP_KINDS; kind++) {
        const int group = 16 << kind;
        const int64_t stride = row_stride(p->cols, group);
        bool any = false;
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
            if (!p->wanted[kind][layout]) continue;
            any = true;
            p->q[kind][layout] = space ? (int8_t *)space + used : NULL;
            used += align_up((size_t)(lines * stride));
        }
        if (!any) continue;
        size_t floats = align_up((size_t)(lines * (stride / group)) * sizeof(float));
        p->scales[kind] = space ? (float *)(void *)(space + used) : NULL;
        p->sums[kind] = space ? (float *)(void *)(space + used + floats) : NULL;
        used += 2 * floats;
        LinearInput *input = &p->input[kind];
        *input = (LinearInput){p->cols, group, stride, {0}, p->scales[kind], p->sums[kind]};
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) input->q[layout] = p->q[kind][layout];
    }
    p->plain = NULL;
    if (p->plain_wanted && (p->norm || p->from)) {
        p->plain = space ? (float *)(void *)(space + used) : NULL;
        used += align_up((size_t)(rows * p->cols) * sizeof(float));
    }
    if (p->norm_after) {
        p->out[0] = space ? (float *)(void *)(space + used) : NULL;
        used += align_up((size_t)(rows * p->weight[0]->rows) * sizeof(float));
    }
    return used;
}

/* The rounding error of x: x − d·q, exact up to its last bit. */
static void left_over(const float *x, int64_t cols, int group, const int8_t *q, const float *d, float *out) {
    for (int64_t first = 0; first < cols; first += group)
        for (int64_t i = first; i < min_i64(first + group, cols); i++) out[i] = x[i] - d[first / group] * (float)q[i];
}

/* Groups of one line, from first (a multiple of 16 groups), in all needed layouts. spare: cols bytes and more for a
 * thread. rest: receives the rounding error; NULL: not needed. */
static void quantise_line(
    const Product *p, int kind, int line, const float *x, int64_t first, int64_t cols, uint8_t *spare, float *rest) {
    const LinearKernels *k = p->kernels;
    const LinearInput *input = &p->input[kind];
    const int group = input->group;
    const int64_t stride = input->stride, groups = stride / group;
    const bool *wanted = p->wanted[kind];
    float *scales = p->scales[kind] + line * groups, *sums = p->sums[kind] + line * groups;
    int8_t *natural = wanted[LAYOUT_NATURAL] ? p->q[kind][LAYOUT_NATURAL] + line * stride + first : (int8_t *)spare;
    if (!wanted[LAYOUT_PANEL]) {
        k->quantise(x, cols, group, natural, scales + first / group, sums + first / group);
        if (rest) left_over(x, cols, group, natural, scales + first / group, rest);
        for (int layout = LAYOUT_NATURAL + 1; layout < LAYOUT_PANEL; layout++)
            if (wanted[layout])
                k->arrange((LinearLayout)layout, natural, cols, group, p->q[kind][layout] + line * stride + first);
        return;
    }
    float *d = (float *)(void *)(spare + align_up((size_t)stride)), *z = d + groups;
    k->quantise(x, cols, group, natural, d, z);
    if (rest) left_over(x, cols, group, natural, d, rest);
    const int height = k->tile_rows, in_tile = line % height;
    const int64_t tile = line - in_tile;
    k->arrange(LAYOUT_PANEL, natural, cols, group,
        p->q[kind][LAYOUT_PANEL] + tile * stride + in_tile * (k->row_groups ? group : 4));
    scales = p->scales[kind] + tile * groups + in_tile;
    sums = p->sums[kind] + tile * groups + in_tile;
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int64_t place = linear_panel_place(lane, cols / group);
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES, place++) {
            scales[place * height] = d[g];
            sums[place * height] = z[g];
        }
    }
}

/* The same for one row in all its lines: x[first …]. */
static void quantise_part(
    const Product *p, int kind, int row, const float *x, int64_t first, int64_t cols, uint8_t *spare) {
    float *rest = p->planes > 1 ? (float *)(void *)(spare + THREAD_BYTES / 4) : NULL;
    quantise_line(p, kind, row * p->planes, x + first, first, cols, spare, rest);
    if (rest) quantise_line(p, kind, row * p->planes + 1, rest, first, cols, spare, NULL);
}

static int64_t x_stride(const Product *p) { return p->x_stride ? p->x_stride : p->cols; }

static const float *norm_into(const Product *p, int row, float *to) {
    const float *x = p->x + (p->from ? p->from[row] : row) * x_stride(p);
    if (!p->norm) return x;
    p->cpu->kernels->norm_row(x, p->norm, to);
    return to;
}

/* One row: each thread normalises all of it, then quantises its own part. */
static void prepare_one(const Product *p, uint8_t *spare, int index, int count) {
    float *normed = (float *)(void *)(spare + THREAD_BYTES / 2);
    const float *x = norm_into(p, 0, normed);
    if (p->plain && index == 0) memcpy(p->plain, x, (size_t)p->cols * sizeof *x);
    for (int kind = 0; kind < GROUP_KINDS; kind++) {
        if (!p->scales[kind]) continue;
        const int64_t block = (int64_t)p->input[kind].group * LINEAR_LANES, blocks = ceil_div(p->cols, block);
        const int64_t first = blocks * index / count * block, last = blocks * (index + 1) / count * block;
        if (first < last) quantise_part(p, kind, 0, x, first, min_i64(last, p->cols) - first, spare);
    }
}

/* Whole tiles to a thread: their rows share lines of memory. turn: this thread's share. */
void product_prepare(const Product *p, int index, int turn, int count) {
    uint8_t *spare = thread_space(p, index);
    float *normed = (float *)(void *)(spare + THREAD_BYTES / 2);
    const int height = p->few ? 1 : p->kernels->tile_rows / p->planes;
    for (int row = turn * height; row < p->rows; row += row % height == height - 1 ? 1 + (count - 1) * height : 1) {
        float *to = p->plain ? p->plain + row * p->cols : normed;
        const float *x = norm_into(p, row, to);
        if (p->plain && x != to) memcpy(to, x, (size_t)p->cols * sizeof *x);
        for (int kind = 0; kind < GROUP_KINDS; kind++)
            if (p->scales[kind]) quantise_part(p, kind, row, x, 0, p->cols, spare);
    }
}

/* ---- results ---- */

/* y[t·stride + r]: n weight rows from `row` of weight i, activation rows from first. Adds the layer's bias. */
static void add_bias(const Weight *w, int64_t row, int64_t n, int rows, float *y, int64_t stride) {
    if (!w->bias) return;
    for (int t = 0; t < rows; t++)
        for (int64_t r = 0; r < n; r++) y[t * stride + r] += w->bias[row + r];
}

static int64_t out_stride(const Product *p, const Weight *w) { return p->out_stride ? p->out_stride : w->rows; }

/* The update of weight i: to[t·stride + r] += … for the same rows. */
static void add_update(
    const Product *p, int i, int64_t row, int64_t n, int first, int rows, float *to, int64_t stride) {
    if (!p->updates || !p->updates[i].b) return;
    const ProductUpdate *update = &p->updates[i];
    const int64_t rank = update->b->cols;
    float y[UPDATE_VALUES];
    for (int done = 0, taken; done < rows; done += taken) {
        taken = (int)min_i64(rows - done, UPDATE_VALUES / n);
        p->kernels->plain(update->b, row, n, update->x + (first + done) * rank, rank, taken, y, n);
        for (int t = 0; t < taken; t++)
            for (int64_t r = 0; r < n; r++) to[(done + t) * stride + r] += update->scale * y[t * n + r];
    }
}

static void finish(const Product *p, int i, int64_t row, int64_t n, int first, int rows, float *y, int64_t stride) {
    const Weight *w = p->weight[i];
    const int64_t to_stride = out_stride(p, w), at = first * to_stride + row;
    const bool stores = p->finish == FINISH_STORE || p->norm_after;
    add_bias(w, row, n, rows, y, stride);
    if (stores) add_update(p, i, row, n, first, rows, y, stride);
    for (int t = 0; t < rows; t++) {
        const float *from = y + t * stride;
        if (stores) {
            memcpy(p->out[i] + at + t * to_stride, from, (size_t)n * sizeof *from);
            continue;
        }
        float *to = p->residual + at + t * to_stride;
        for (int64_t r = 0; r < n; r++) to[r] += p->scale * from[r];
    }
    if (!stores) add_update(p, i, row, n, first, rows, p->residual + at, to_stride);
}

static void finish_glu(const Product *p, int64_t row, int64_t n, int first, int rows, float *gate, float *up,
    int64_t gate_stride, int64_t up_stride) {
    add_bias(p->weight[0], row, n, rows, gate, gate_stride);
    add_update(p, 0, row, n, first, rows, gate, gate_stride);
    if (p->count > 1) {
        add_bias(p->weight[1], row, n, rows, up, up_stride);
        add_update(p, 1, row, n, first, rows, up, up_stride);
    }
    for (int t = 0; t < rows; t++)
        p->cpu->kernels->glu_row(n, gate + t * gate_stride, up + t * up_stride, p->activation,
            p->out[0] + (first + t) * p->weight[0]->rows + row);
}

/* Adds the lines of each row: y[t] ← y[planes·t] + …; rows in place, n results each. */
static void fold_planes(int planes, int rows, int64_t n, float *y, int64_t stride) {
    if (planes == 1) return;
    for (int t = 0; t < rows; t++)
        for (int64_t r = 0; r < n; r++) y[t * stride + r] = y[2 * t * stride + r] + y[(2 * t + 1) * stride + r];
}

/* ---- few activation rows ---- */

static void multiply_few(const Product *p, int i, int64_t row, int64_t n, float *y) {
    const Weight *w = p->weight[i];
    if (linear_is_integer(w)) {
        const int planes = planes_of(p, i);
        p->kernels->few(w, row, n, &p->input[group_kind(linear_group(w))], p->rows * planes, y, CALL_ROWS);
        fold_planes(planes, p->rows, n, y, CALL_ROWS);
        return;
    }
    p->kernels->plain(w, row, n, p->plain ? p->plain : p->x, p->plain ? p->cols : x_stride(p), p->rows, y, CALL_ROWS);
}

/* Fetches rows of an update while the weight's own are multiplied. */
static void prefetch_update(const Product *p, int i, int64_t row, int64_t n) {
    if (!p->updates || !p->updates[i].b) return;
    const Weight *b = p->updates[i].b;
    const size_t row_bytes = weight_row_bytes(b);
    const uint8_t *at = (const uint8_t *)b->data + (size_t)row * row_bytes;
    for (size_t done = 0; done < (size_t)n * row_bytes; done += 64) __builtin_prefetch(at + done, 0, 2);
}

static void few_rows(const Product *p, int i, int64_t row, int64_t n) {
    float y[LINEAR_FEW * CALL_ROWS], up[LINEAR_FEW * CALL_ROWS];
    prefetch_update(p, i, row, n);
    if (p->finish == FINISH_GLU && p->count > 1) prefetch_update(p, 1, row, n);
    multiply_few(p, i, row, n, y);
    if (p->finish != FINISH_GLU) {
        finish(p, i, row, n, 0, p->rows, y, CALL_ROWS);
        return;
    }
    if (p->count > 1) multiply_few(p, 1, row, n, up);
    finish_glu(p, row, n, 0, p->rows, y, p->count > 1 ? up : y, CALL_ROWS, CALL_ROWS);
}

static int64_t units_of(const Product *p, int64_t unit_rows) {
    int64_t units = 0;
    for (int i = 0; i < (p->finish == FINISH_GLU ? 1 : p->count); i++) units += ceil_div(p->weight[i]->rows, unit_rows);
    return units;
}

/* Kernels for more than two lines, and for short rows, also of updates, take weight rows together. */
static int64_t few_unit(const Product *p) {
    if (p->weight[0]->rows <= LOW_RANK && !linear_is_integer(p->weight[0])) return SINGLE_UNIT_ROWS;
    return p->rows * p->planes > 2 || p->updates || p->cols <= SHORT_COLS ? UNIT_ROWS : SINGLE_UNIT_ROWS;
}

static void few_items(const Product *p, int64_t unit, int64_t units) {
    const int64_t height = few_unit(p);
    for (int i = 0; units > 0; i++) {
        const int64_t rows = p->weight[i]->rows, own = ceil_div(rows, height);
        if (unit >= own) {
            unit -= own;
            continue;
        }
        const int64_t taken = min_i64(units, own - unit), last = min_i64((unit + taken) * height, rows);
        for (int64_t row = unit * height; row < last; row += CALL_ROWS)
            few_rows(p, i, row, min_i64(CALL_ROWS, last - row));
        units -= taken;
        unit = 0;
    }
}

/* ---- many ---- */

/* Weight rows from `row` of weight i, unpacked into space. */
static LinearPanel unpack_panel(const Product *p, int i, int64_t row, uint8_t *space) {
    const Weight *w = p->weight[i];
    if (!linear_is_integer(w)) return (LinearPanel){0};
    const int group = linear_group(w), height = p->kernels->panel_rows;
    const int64_t groups = w->cols / group;
    LinearPanel panel = {groups, group, linear_code_max(w), space, NULL, NULL};
    panel.scales = (float *)(void *)(space + align_up((size_t)(w->cols * height)));
    panel.biases = panel.scales + groups * height;
    p->kernels->unpack(w, row, &panel);
    return panel;
}

/* Results of one panel for activation rows first … first+rows−1 at y[t·panel_rows + r]. */
static void multiply_panel(
    const Product *p, int i, int64_t row, const LinearPanel *panel, int first, int rows, float *y) {
    const Weight *w = p->weight[i];
    const LinearKernels *k = p->kernels;
    const int height = k->panel_rows;
    if (!linear_is_integer(w)) {
        const int64_t width = p->plain ? p->cols : x_stride(p);
        const float *x = (p->plain ? p->plain : p->x) + first * width;
        k->plain(w, row, min_i64(height, w->rows - row), x, width, rows, y, height);
        return;
    }
    const int lines = rows * p->planes;
    const int step = k->many_tiles ? lines : k->tile_rows;
    for (int from = 0; from < lines; from += step) {
        const int n = lines - from < step ? lines - from : step;
        k->tile(
            panel, &p->input[group_kind(panel->group)], first * p->planes + from, n, y + (size_t)from * (size_t)height);
    }
    fold_planes(p->planes, rows, height, y, height);
}

/* Bytes of one panel: codes, then scales and biases. */
static size_t panel_bytes(const Product *p) {
    size_t most = 0;
    for (int i = 0; i < p->count; i++) {
        const Weight *w = p->weight[i];
        if (!linear_is_integer(w)) continue;
        size_t height = (size_t)p->kernels->panel_rows, groups = (size_t)(w->cols / linear_group(w));
        size_t bytes = align_up((size_t)w->cols * height) + align_up(2 * groups * height * sizeof(float));
        if (bytes > most) most = bytes;
    }
    return most;
}

static size_t result_bytes(void) { return align_up((size_t)STEP_LINES * LINEAR_PANEL_ROWS * sizeof(float)); }
/* Two buffers of results, then a panel, or those of gate and up. */
static size_t panels_bytes(const Product *p) {
    return 2 * result_bytes() + (p->finish == FINISH_GLU && p->count > 1 ? 2 : 1) * panel_bytes(p);
}

/* Activation rows of a chunk: whole tiles, and as many in each chunk. As many as there are, since each chunk unpacks
 * the weights again; fewer where the threads would have too little to share. */
static int chunk_rows(const Product *p) {
    const int64_t height = p->kernels->tile_rows, lines = (int64_t)p->rows * p->planes;
    const int64_t items = (int64_t)pool_threads(p->cpu->pool) * ITEMS_PER_THREAD;
    int64_t most = ceil_div(lines, ceil_div(items, units_of(p, p->kernels->panel_rows)));
    if (p->kernels->chunk_bytes) most = min_i64(most, p->kernels->chunk_bytes / p->cols);
    if (most < CHUNK_LEAST) most = CHUNK_LEAST;
    const int64_t tiles = ceil_div(lines, height);
    return (int)(ceil_div(tiles, ceil_div(tiles, ceil_div(most, height))) * height) / p->planes;
}

/* Fetches the lines where results will go while they are computed. */
static void prefetch_results(const Product *p, int i, int64_t row, int64_t n, int first, int rows) {
    const int64_t stride = out_stride(p, p->weight[i]);
    const float *out = p->finish == FINISH_ADD && !p->norm_after ? p->residual : p->out[i];
    for (int t = 0; t < rows; t++)
        for (int64_t r = 0; r < n; r += 16) __builtin_prefetch(out + (first + t) * stride + row + r, 1);
}

static void panel_items(const Product *p, int index, int64_t item, int64_t items) {
    const int height = p->kernels->panel_rows, count = p->finish == FINISH_GLU ? p->count : 1;
    uint8_t *space = thread_space(p, index);
    float *y[2] = {(float *)(void *)space, (float *)(void *)(space + result_bytes())};
    uint8_t *panels = space + 2 * result_bytes();
    const size_t own = panel_bytes(p);
    const int64_t units = units_of(p, height);
    const int chunk = chunk_rows(p);
    /* Single tiles, so that their results are still in L1 when they are finished. */
    const int step = (p->plain_wanted || p->kernels->many_tiles ? STEP_LINES : p->kernels->tile_rows) / p->planes;
    for (const int64_t last = item + items; item < last; item++) {
        const int begin = (int)(item / units) * chunk, end = (int)min_i64(begin + chunk, p->rows);
        int64_t unit = item % units;
        int i = 0;
        while (unit >= ceil_div(p->weight[i]->rows, height)) unit -= ceil_div(p->weight[i++]->rows, height);
        const int64_t row = unit * height, n = min_i64(height, p->weight[i]->rows - row);
        LinearPanel panel[2];
        for (int j = 0; j < count; j++) panel[j] = unpack_panel(p, i + j, row, panels + (size_t)j * own);
        for (int first = begin; first < end; first += step) {
            const int rows = end - first < step ? end - first : step;
            if (step < STEP_LINES / p->planes) prefetch_results(p, i, row, n, first, rows);
            for (int j = 0; j < count; j++) multiply_panel(p, i + j, row, &panel[j], first, rows, y[j]);
            if (p->finish == FINISH_GLU)
                finish_glu(p, row, n, first, rows, y[0], y[count - 1], height, height);
            else
                finish(p, i, row, n, first, rows, y[0], height);
        }
    }
}

/* ---- pieces ---- */

int64_t product_items(const Product *p) {
    if (p->few) return units_of(p, few_unit(p));
    return units_of(p, p->kernels->panel_rows) * ceil_div(p->rows, chunk_rows(p));
}

int64_t product_grain(const Product *p) {
    const int64_t most = p->few ? GRAIN_BYTES / ((int64_t)weight_row_bytes(p->weight[0]) * few_unit(p)) : 1;
    return most > 1 ? most : 1;
}

void product_run(const Product *p, int index, int64_t first, int64_t count) {
    if (p->few)
        few_items(p, first, count);
    else
        panel_items(p, index, first, count);
}

static void run_shared(const Product *p, int slot, int index) {
    const int64_t grain = product_grain(p);
    for (int64_t item, items; pool_next(p->cpu->pool, slot, index, grain, &item, &items);)
        product_run(p, index, item, items);
}

/* ---- the operations ---- */

static void add_normed(const Product *p, int index, int count) {
    const int64_t width = p->weight[0]->rows;
    for (int row = index; row < p->rows; row += count) {
        float *y = p->out[0] + row * width, *to = p->residual + row * width;
        p->cpu->kernels->norm_row(y, p->norm_after, y);
        for (int64_t r = 0; r < width; r++) to[r] += p->scale * y[r];
    }
}

/* One short row: each thread prepares all of it, which takes less time than a barrier and fetching the other threads'
 * parts. */
static Product prepare_alone(const Product *p, int index) {
    uint8_t *space = thread_space(p, index);
    Product own = *p;
    CHECK(place_inputs(&own, space + THREAD_BYTES / 4 * 3, 1) <= THREAD_BYTES / 4);
    own.out[0] = p->out[0]; /* results go where all threads' go */
    prepare_one(&own, space, 0, 1);
    return own;
}

static bool is_alone(const Product *p) { return p->rows == 1 && p->cols <= ALONE_COLS; }

/* Inside a run of the pool: a thread's share of the rows, where they are prepared together. */
static void prepare_together(const Product *p, int index, int count) {
    if (p->rows == 1)
        prepare_one(p, thread_space(p, index), index, count);
    else
        product_prepare(p, index, index, count);
}

/* A product that is done before the pool would have begun, as those of LoRA adapters are. */
static bool is_small(const Product *p) {
    int64_t values = 0;
    for (int i = 0; i < p->count; i++) {
        if (linear_is_integer(p->weight[i])) return false;
        values += p->weight[i]->rows * p->cols;
    }
    return is_alone(p) && p->few && !p->norm_after && values <= SMALL_VALUES;
}

static void product_task(void *argument, int index, int count) {
    const Product *p = argument;
    Pool *pool = p->cpu->pool;
    if (is_alone(p)) {
        const Product own = prepare_alone(p, index);
        run_shared(&own, 0, index);
    } else {
        prepare_together(p, index, count);
        pool_barrier(pool, index);
        run_shared(p, 0, index);
    }
    if (!p->norm_after) return;
    pool_barrier(pool, index);
    add_normed(p, index, count);
}

/* The most rows for few() that suits the weights of the product: the integer ones where it has both kinds, since plain
 * ones, as those of adapters, have one kernel for any number of rows. */
static int few_limit(const Product *p) {
    int few = LINEAR_FEW;
    bool any = false;
    for (int i = 0; i < p->count; i++) {
        if (!linear_is_integer(p->weight[i])) continue;
        few = min_int(few, linear_group(p->weight[i]) < 64 ? p->kernels->few_rows_narrow : p->kernels->few_rows);
        any = true;
    }
    return any ? few : p->kernels->few_rows;
}

int product_begin(Product *p, CpuBackend *cpu, int rows) {
    p->cpu = cpu;
    p->kernels = cpu->kernels->linear;
    p->cols = p->weight[0]->cols;
    const bool panels_fit = panels_bytes(p) <= THREAD_BYTES;
    CHECK(p->cols <= MATRIX_COLS_MAX && (!p->norm_after || p->norm_after->width <= NORM_WIDTH_MAX));
    p->planes = p->fine || (cpu->precise && !p->coarse) ? 2 : 1;
    if (cpu->precise && !p->coarse) p->one_line = 0;
    const int few = few_limit(p);
    p->few = rows * p->planes <= few || !panels_fit;
    int chunk = rows;
    if (p->few && chunk > few / p->planes) chunk = few / p->planes;
    choose_inputs(p, chunk);
    const size_t per_row = place_inputs(p, NULL, 1) + 64; /* with panels: of a whole tile, so there is room to round */
    if ((size_t)chunk > SHARED_BYTES / per_row) chunk = (int)(SHARED_BYTES / per_row);
    CHECK(chunk > 0);
    return chunk;
}

size_t product_place(Product *p, int rows, uint8_t *space) {
    p->rows = rows;
    choose_inputs(p, rows);
    return place_inputs(p, space, rows);
}

static void run_product(Product *p, CpuBackend *cpu, int rows) {
    const int chunk = product_begin(p, cpu, rows);
    const float *x = p->x;
    float *out[PRODUCT_WEIGHTS_MAX], *residual = p->residual;
    memcpy(out, p->out, sizeof out);
    for (int done = 0; done < rows; done += chunk) {
        const int taken = rows - done < chunk ? rows - done : chunk;
        p->x = x + done * p->cols;
        if (residual) p->residual = residual + done * p->weight[0]->rows;
        for (int i = 0; i < p->count; i++)
            if (out[i]) p->out[i] = out[i] + done * p->weight[i]->rows;
        product_place(p, taken, cpu->work);
        if (is_small(p)) {
            const Product own = prepare_alone(p, 0);
            product_run(&own, 0, 0, product_items(&own));
            continue;
        }
        pool_share(cpu->pool, 0, product_items(p));
        pool_run(cpu->pool, product_task, p);
    }
}

/* Some of the matrices: of a single row, the first `one_line` of them meet one line. */
static void multiply_some(Backend *backend, const Matmul *op, int first, int count, bool fine, int one_line) {
    Product p = {.x = op->x,
        .norm = op->norm,
        .count = count,
        .coarse = op->coarse,
        .fine = fine,
        .one_line = one_line,
        .finish = FINISH_STORE};
    for (int i = 0; i < count; i++) {
        p.weight[i] = op->weight[first + i];
        p.out[i] = op->out[first + i];
    }
    run_product(&p, cpu_backend(backend), op->rows);
}

/* The lines of a single row lie one behind the other, so that other weights can take the first. */
void cpu_matmul(Backend *backend, const Matmul *op) {
    const int others = op->fine && op->fine_last > 0 ? op->count - op->fine_last : 0;
    if (others > 0 && op->rows > 1) {
        multiply_some(backend, op, 0, others, false, 0);
        multiply_some(backend, op, others, op->fine_last, true, 0);
        return;
    }
    multiply_some(backend, op, 0, op->count, op->fine, others);
}

void cpu_glu(Backend *backend, const Glu *op) {
    CHECK(op->gate->rows == op->up->rows);
    Product p = {.x = op->x, .norm = op->norm, .count = 2, .finish = FINISH_GLU, .activation = op->activation};
    p.weight[0] = op->gate;
    p.weight[1] = op->up;
    p.out[0] = op->out;
    run_product(&p, cpu_backend(backend), op->rows);
}

void cpu_matmul_add(Backend *backend, const MatmulAdd *op) {
    Product p = {.x = op->x, .count = 1, .finish = FINISH_ADD, .scale = op->scale, .norm_after = op->norm};
    p.weight[0] = op->weight;
    p.residual = op->residual;
    run_product(&p, cpu_backend(backend), op->rows);
}

/* ---- updates of low rank ---- */

enum { SHARE_A, SHARE_W };

typedef struct LowRankWork {
    Product both;                      /* W, then A: they have the same input; `finish` is of W */
    int weights;                       /* number of W */
    ProductUpdate updates[MATMUL_MAX]; /* B */
} LowRankWork;

/* A's part of the product, or W's, on the input that `both` has. */
static Product low_rank_part(const LowRankWork *work, const Product *both, int share) {
    Product part = *both;
    const int first = share == SHARE_A ? work->weights : 0;
    part.count = share == SHARE_A ? both->count - work->weights : work->weights;
    part.plain_wanted = false;
    for (int i = 0; i < part.count; i++) {
        part.weight[i] = both->weight[first + i];
        part.out[i] = both->out[first + i];
        if (!linear_is_integer(part.weight[i])) part.plain_wanted = true;
    }
    part.updates = share == SHARE_A ? NULL : work->updates;
    if (share == SHARE_A) part.finish = FINISH_STORE;
    return part;
}

static void run_part(const LowRankWork *work, const Product *both, int share, int index) {
    const Product part = low_rank_part(work, both, share);
    run_shared(&part, share, index);
}

/* A's products are small and come first, so that B's rows are multiplied beside those of W. */
static void low_rank_task(void *argument, int index, int count) {
    const LowRankWork *work = argument;
    Pool *pool = work->both.cpu->pool;
    const bool alone = is_alone(&work->both);
    const Product own = alone ? prepare_alone(&work->both, index) : work->both;
    const bool ready = alone || !own.plain; /* A's input does not wait for other threads */
    if (ready) run_part(work, &own, SHARE_A, index);
    if (!alone) prepare_together(&own, index, count);
    if (!ready) {
        pool_barrier(pool, index);
        run_part(work, &own, SHARE_A, index);
    }
    pool_barrier(pool, index);
    run_part(work, &own, SHARE_W, index);
}

static void run_low_rank(LowRankWork *work, CpuBackend *cpu, int rows) {
    const LowRankWork all = *work;
    const int chunk = product_begin(&work->both, cpu, rows);
    for (int done = 0; done < rows; done += chunk) {
        Product *both = &work->both;
        both->x = all.both.x + done * both->cols;
        for (int i = 0; i < both->count; i++)
            if (all.both.out[i]) both->out[i] = all.both.out[i] + done * both->weight[i]->rows;
        if (all.both.residual) both->residual = all.both.residual + done * both->weight[0]->rows;
        for (int i = 0; i < work->weights; i++)
            if (work->updates[i].b) work->updates[i].x = all.updates[i].x + done * work->updates[i].b->cols;
        product_place(both, rows - done < chunk ? rows - done : chunk, cpu->work);
        for (int share = SHARE_A; share <= SHARE_W; share++) {
            const Product part = low_rank_part(work, both, share);
            pool_share(cpu->pool, share, product_items(&part));
        }
        pool_run(cpu->pool, low_rank_task, work);
    }
}

void cpu_low_rank_matmul(Backend *backend, const LowRankMatmul *op) {
    const Matmul *product = &op->product;
    LowRankWork work = {.weights = product->count,
        .both = {.x = product->x,
            .norm = product->norm,
            .count = product->count,
            .coarse = product->coarse,
            .fine = product->fine,
            .finish = op->gated ? FINISH_GLU
                : op->residual  ? FINISH_ADD
                                : FINISH_STORE,
            .activation = op->activation,
            .scale = op->residual_scale,
            .residual = op->residual}};
    for (int i = 0; i < product->count; i++) {
        work.both.weight[i] = product->weight[i];
        work.both.out[i] = product->out[i];
    }
    for (int i = 0; i < product->count; i++) {
        if (!op->a[i]) continue;
        work.both.weight[work.both.count] = op->a[i];
        work.both.out[work.both.count++] = op->low_rank[i];
        work.updates[i] = (ProductUpdate){op->b[i], op->low_rank[i], op->scale[i]};
    }
    run_low_rank(&work, cpu_backend(backend), product->rows);
}

static void embed_rows(void *argument, int index, int count) {
    const Embed *e = argument;
    const int64_t width = e->table->cols;
    for (int row = index; row < e->rows; row += count) {
        float *out = e->out + row * width;
        if (e->tokens[row] == TOKEN_GIVEN && !e->placeholder) continue;
        weight_dequantize_row(e->table, embed_token(e, row), 0, width, out);
        for (int64_t i = 0; i < width; i++) out[i] *= e->scale;
    }
}

void cpu_embed(Backend *backend, const Embed *op) {
    Embed e = *op;
    const int64_t width = op->table->cols;
    for (int i = 0; i < op->given_count; i++) /* the backend's memory is the host's */
        memcpy(op->out + op->given[i].row * width, op->given[i].values,
            (size_t)(op->given[i].rows * width) * sizeof *op->out);
    if (e.rows == 1)
        embed_rows(&e, 0, 1);
    else
        pool_run(cpu_backend(backend)->pool, embed_rows, &e);
}
