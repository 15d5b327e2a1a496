/* What the steps of a normalizer write with. Internal to text/tokenizer. */
#pragma once
#include "base/utf8.h"
#include "text/tokenizer/normalize.h"

/* One pass from a text to a text, with or without origins. */
typedef struct Pass {
    Slice in;
    const uint8_t *in_origin; /* NULL: not tracked */
    Buffer *out, *out_origin;
    NormalText *scratch;
} Pass;

static inline void put_bytes(Pass *pass, const char *bytes, size_t size, uint8_t origin) {
    buffer_append(pass->out, bytes, size);
    if (!pass->in_origin) return;
    for (size_t i = 0; i < size; i++) buffer_byte(pass->out_origin, (char)origin);
}
static inline void put_code(Pass *pass, uint32_t code, uint8_t origin) {
    char bytes[4];
    put_bytes(pass, bytes, (size_t)utf8_encode(code, bytes), origin);
}
static inline void put_range(Pass *pass, size_t start, size_t end) {
    buffer_append(pass->out, pass->in.data + start, end - start);
    if (pass->in_origin) buffer_append(pass->out_origin, pass->in_origin + start, end - start);
}
static inline uint8_t least_origin(const Pass *pass, size_t start, size_t end) {
    if (!pass->in_origin) return 0;
    uint8_t least = UINT8_MAX;
    for (size_t i = start; i < end; i++) {
        if (pass->in_origin[i] < least) least = pass->in_origin[i];
    }
    return start < end ? least : 0;
}
static inline size_t decode_at(Slice text, size_t at, uint32_t *code) {
    int length = utf8_decode(text.data + at, text.size - at, code);
    return (size_t)(length < 0 ? -length : length);
}

/* --- normalize_pieces.c ----------------------------------------------------------------------------------------- */

/* The bytes of the shortest or the longest key of SentencePiece's table that `in` begins with, and its text; 0: there
 * is none. */
size_t table_look_up(const NormalizeStep *step, Slice in, bool longest, Slice *out);
void normalize_pieces(const NormalizeStep *step, Pass *pass);
