#include "model/positions.h"

#include <math.h>
#include <string.h>

#include "base/math.h"

/* torch.linspace(0, side − 1, count)[i], which counts from both ends. */
static float corner_place(int i, int count, int side) {
    if (count == 1) return 0;
    const float step = (float)(side - 1) / (float)(count - 1);
    return i < count / 2 ? step * (float)i : (float)(side - 1) - step * (float)(count - 1 - i);
}

static void read_corners(
    const PositionTable *table, const ImageLayout *layout, int row, int column, int64_t hidden, float *out) {
    const int side = table->side;
    const float y = corner_place(row, layout->rows, side), x = corner_place(column, layout->columns, side);
    const int top = (int)y, left = (int)x, bottom = min_int(top + 1, side - 1), right = min_int(left + 1, side - 1);
    const float dy = y - (float)top, dx = x - (float)left;
    const float weights[] = {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx};
    const int places[] = {top * side + left, top * side + right, bottom * side + left, bottom * side + right};
    for (size_t k = 0; k < COUNT_OF(places); k++)
        for (int64_t i = 0; i < hidden; i++) out[i] += weights[k] * table->rows[places[k] * hidden + i];
}

/* Places of the table on one axis, and their weights. */
typedef struct Taps {
    int count;
    int place[POSITION_SIDE_MAX];
    float weight[POSITION_SIDE_MAX];
} Taps;

/* Bicubic with a = −0.75 and half-pixel centres; places beyond the border are those at it: torch's grid_sample() with
 * align_corners false and padding_mode "border". */
static Taps cubic_taps(int i, int count, int side) {
    const float a = -0.75F, place = ((float)i + 0.5F) / (float)count * 2 - 1;
    const float at = ((place + 1) * (float)side - 1) / 2, first = floorf(at), t = at - first;
    Taps taps = {.count = 4};
    for (int k = 0; k < taps.count; k++) {
        const float x = fabsf(t + 1 - (float)k);
        taps.place[k] = max_int(0, min_int((int)first - 1 + k, side - 1));
        taps.weight[k] = x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    }
    return taps;
}

/* Bilinear with half-pixel centres, widened where the table shrinks: torch's interpolate() with antialias. */
static Taps stretched_taps(int i, int count, int side) {
    const float scale = (float)side / (float)count, wide = fmaxf(scale, 1), centre = scale * ((float)i + 0.5F);
    const int first = max_int((int)(centre - wide + 0.5F), 0), end = min_int((int)(centre + wide + 0.5F), side);
    Taps taps = {.count = end - first};
    float sum = 0;
    for (int k = 0; k < taps.count; k++) {
        taps.place[k] = first + k;
        taps.weight[k] = fmaxf(0, 1 - fabsf(((float)(first + k) - centre + 0.5F) / wide));
        sum += taps.weight[k];
    }
    for (int k = 0; k < taps.count; k++) taps.weight[k] /= sum;
    return taps;
}

/* The weighted sum over rows, each of which is one over columns. */
static void read_taps(const PositionTable *table, const Taps *rows, const Taps *columns, int64_t hidden, float *out) {
    for (int y = 0; y < rows->count; y++)
        for (int x = 0; x < columns->count; x++) {
            const float weight = rows->weight[y] * columns->weight[x];
            const float *from = table->rows + (int64_t)(rows->place[y] * table->side + columns->place[x]) * hidden;
            for (int64_t i = 0; i < hidden; i++) out[i] += weight * from[i];
        }
}

void position_read(
    const PositionTable *table, const ImageLayout *layout, int row, int column, int64_t hidden, float *out) {
    const int side = table->side;
    Taps rows, columns;
    memset(out, 0, (size_t)hidden * sizeof *out);
    switch (table->kind) {
    case POSITIONS_NONE: break;
    case POSITIONS_GRID: memcpy(out, table->rows + (row * side + column) * hidden, (size_t)hidden * sizeof *out); break;
    case POSITIONS_CORNERS: read_corners(table, layout, row, column, hidden, out); break;
    case POSITIONS_AXES:
        for (int64_t i = 0; i < hidden; i++)
            out[i] = table->rows[column * hidden + i] + table->rows[(side + row) * hidden + i];
        break;
    case POSITIONS_CUBIC:
        rows = cubic_taps(row, layout->rows, side);
        columns = cubic_taps(column, layout->columns, side);
        read_taps(table, &rows, &columns, hidden, out);
        break;
    case POSITIONS_STRETCHED:
        rows = stretched_taps(row, layout->rows, side);
        columns = stretched_taps(column, layout->columns, side);
        read_taps(table, &rows, &columns, hidden, out);
        break;
    }
}
