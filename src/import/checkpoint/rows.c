/* Rows of a source's matrices as numbers, one at a time, whatever form they have there. */
#include <math.h>
#include <stdlib.h>

#include "import/checkpoint/internal.h"
#include "import/mapped.h"

float row_round(DType dtype, float value) {
    uint8_t bytes[sizeof(float)];
    floats_from_f32(bytes, dtype, &value, 1);
    floats_to_f32(&value, bytes, dtype, 1);
    return value;
}

static int64_t matrix_rows(const Output *o) { return o->rows / (o->stack ? o->stack : 1); }

/* The part that holds row `row`, not transposed. */
static int64_t part_of(const Output *o, int64_t row, int64_t *own) {
    const int64_t matrix = row / matrix_rows(o), within = row % matrix_rows(o);
    const bool apart = o->item->count > 1;
    *own = o->first + within + (apart ? 0 : matrix * o->stride);
    return apart ? matrix : 0;
}

/* A row of plain numbers, divided by its length + the item's epsilon, as numbers of its own type. */
static void divide_row(const Output *o, const Weight *w, float *row) {
    float sum = 0;
    for (int64_t i = 0; i < w->cols; i++) sum += row[i] * row[i];
    const float length = sqrtf(sum) + o->item->unit_epsilon;
    for (int64_t i = 0; i < w->cols; i++) row[i] = row_round(w->dtype, row[i] / length);
}

/* MLX rounds products and sums apart; what other programs packed is rounded once, as they do. */
static void read_numbers(const Output *o, const Weight *w, int64_t row, DType dtype, float *out) {
    if (w->quant != QUANT_NONE && !o->item->packed) {
        weight_dequantize_row_as(w, row, dtype, out);
        return;
    }
    weight_dequantize_row(w, row, 0, w->cols, out);
    if (o->item->unit_epsilon > 0 && w->quant == QUANT_NONE) divide_row(o, w, out);
    for (int64_t i = 0; dtype != DTYPE_F32 && (w->quant != QUANT_NONE || dtype != w->dtype) && i < w->cols; i++)
        out[i] = row_round(dtype, out[i]);
}

/* A part of the source, unpacked if need be; NULL after an error. */
static const Weight *part_at(const Output *o, int64_t part, RowRoom *room, Error *error) {
    const PackedMatrix *packed = o->item->packed ? o->item->packed[part] : NULL;
    if (!packed) return &o->item->weights[part];
    if (part == room->part_number) return &room->part;
    room->part_number = part;
    room->part = packed->form;
    room->part.data = room->unpacked[0];
    room->part.scales = packed->form.quant == QUANT_NONE ? NULL : room->unpacked[1];
    room->part.biases = packed->form.quant == QUANT_AFFINE ? room->unpacked[2] : NULL;
    const bool read =
        packed_read(packed, 0, packed->form.rows, room->unpacked[0], room->unpacked[1], room->unpacked[2], error);
    return read ? &room->part : NULL;
}

const Weight *row_weight(const Output *o, int64_t row, int64_t *own, RowRoom *room, Error *error) {
    return part_at(o, part_of(o, row, own), room, error);
}

static bool read_matrix(const Output *o, int64_t matrix, DType dtype, RowRoom *room, Error *error) {
    const Weight *w = part_at(o, matrix, room, error);
    for (int64_t r = 0; w && r < w->rows; r++) {
        read_numbers(o, w, r, dtype, room->column);
        for (int64_t c = 0; c < w->cols; c++) room->transposed[c * w->rows + r] = room->column[c];
    }
    room->matrix = matrix;
    return w;
}

bool row_read(const Output *o, int64_t row, DType dtype, RowRoom *room, Error *error) {
    if (!o->item->transposed) {
        int64_t own;
        const Weight *w = row_weight(o, row, &own, room, error);
        if (w) read_numbers(o, w, own, dtype, room->numbers);
        return w;
    }
    const int64_t matrix = row / matrix_rows(o);
    if (matrix != room->matrix && !read_matrix(o, matrix, dtype, room, error)) return false;
    const int64_t own = o->first + row % matrix_rows(o) * o->step;
    memcpy(room->numbers, room->transposed + own * o->cols, (size_t)o->cols * sizeof(float));
    return true;
}

bool row_room_make(RowRoom *room, const Output *o, Error *error) {
    const Weight *first = &o->item->weights[0];
    const size_t matrix = o->item->transposed ? (size_t)(first->rows * first->cols) : 1;
    const Weight *part = o->item->packed ? &o->item->weights[0] : &(Weight){0};
    const size_t part_scales = (size_t)part->rows * weight_scale_bytes(part);
    *room = (RowRoom){.matrix = -1, .part_number = -1};
    room->numbers = malloc((size_t)o->cols * sizeof *room->numbers);
    room->transposed = malloc(matrix * sizeof(float));
    room->column = malloc((size_t)((o->item->transposed ? first->cols : 0) + 1) * sizeof(float));
    room->unpacked[0] = malloc((size_t)part->rows * weight_row_bytes(part) + 1);
    room->unpacked[1] = malloc(part_scales + 1);
    room->unpacked[2] = malloc(part_scales + 1);
    const bool made = room->numbers && room->transposed && room->column && room->unpacked[0] && room->unpacked[1] &&
        room->unpacked[2];
    return made || fail(error, ERROR_MEMORY, "no memory for %zu bytes", matrix * sizeof(float) + 2 * part_scales);
}

void row_room_free(RowRoom *room) {
    free(room->numbers);
    free(room->transposed);
    free(room->column);
    for (int i = 0; i < 3; i++) free(room->unpacked[i]);
}

void rows_release(const Output *o, int64_t row, int64_t count) {
    int64_t own;
    if (o->item->transposed || o->item->packed) return;
    for (int64_t r = row; r < row + count;) {
        const Weight *w = &o->item->weights[part_of(o, r, &own)];
        const int64_t left = matrix_rows(o) - r % matrix_rows(o),
                      here = left < row + count - r ? left : row + count - r;
        const uint8_t *data = (const uint8_t *)w->data + (size_t)own * weight_row_bytes(w);
        mapped_release(data, data + (size_t)here * weight_row_bytes(w));
        r += here;
    }
}
