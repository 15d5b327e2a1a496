/* The normaliser of SentencePiece (src/normalizer.cc: Normalize, NormalizePrefix), and its table. */
#include <string.h>

#include "text/tokenizer/normal_pass.h"

#define BLANK "\xE2\x96\x81" /* U+2581, written for a blank */
enum { BLANK_BYTES = 3 };

/* Units of darts-clone (Susumu Yata): bit 31 marks a value, bit 8 a node with one below it. */
static uint32_t unit_offset(uint32_t unit) { return unit >> 10 << ((unit >> 6) & 8); }

static bool text_at(const NormalizeStep *step, size_t begin, Slice *out) {
    if (begin >= step->content.size) return false;
    const char *end = memchr(step->content.data + begin, 0, step->content.size - begin);
    *out = (Slice){
        step->content.data + begin, end ? (size_t)(end - step->content.data) - begin : step->content.size - begin};
    return true;
}

size_t table_look_up(const NormalizeStep *step, Slice in, bool longest, Slice *out) {
    size_t at = step->unit_count ? unit_offset(step->units[0]) : 0, found = 0;
    for (size_t i = 0; i < in.size; i++) {
        const uint8_t byte = (uint8_t)in.data[i];
        at ^= byte;
        if (byte == 0 || at >= step->unit_count) break;
        const uint32_t unit = step->units[at];
        if ((unit & (UINT32_C(1) << 31 | 0xFF)) != byte) break;
        at ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= step->unit_count || !text_at(step, step->units[at] & INT32_MAX, out)) break;
        found = i + 1;
        if (!longest) break;
    }
    return found;
}

/* What stands for the beginning of the text: a kept text, a key of the table, or one character. */
static size_t next_part(const NormalizeStep *step, Slice in, Slice *out) {
    size_t end;
    uint32_t code;
    if (step->kept.edges && added_index_match(&step->kept, in, 0, &end) >= 0) {
        *out = (Slice){in.data, end};
        return end;
    }
    end = table_look_up(step, in, true, out);
    if (end) return end;
    end = decode_at(in, 0, &code);
    *out = (Slice){in.data, end};
    return end;
}

static Slice behind(Slice text, size_t at) { return (Slice){text.data + at, text.size - at}; }

static void put_marked(Pass *pass, Slice text, uint8_t origin) {
    for (size_t at = 0; at < text.size;) {
        const char *blank = memchr(text.data + at, ' ', text.size - at);
        const size_t end = blank ? (size_t)(blank - text.data) : text.size;
        put_bytes(pass, text.data + at, end - at, origin);
        if (blank) put_bytes(pass, BLANK, BLANK_BYTES, origin);
        at = end + 1;
    }
}

void normalize_pieces(const NormalizeStep *step, Pass *pass) {
    const Slice in = pass->in;
    Slice text;
    size_t at = 0;
    bool blank = step->trim; /* the text so far ends with one */
    while (step->trim && at < in.size) {
        const size_t used = next_part(step, behind(in, at), &text);
        if (!slice_is(text, " ")) break;
        at += used;
    }
    if (at == in.size) return;
    if (step->prefix && !(step->prefix_once && pass->scratch->inside))
        put_bytes(pass, BLANK, BLANK_BYTES, least_origin(pass, at, at + 1));
    while (at < in.size) {
        const size_t used = next_part(step, behind(in, at), &text);
        while (blank && text.size && text.data[0] == ' ') text = behind(text, 1);
        put_marked(pass, text, least_origin(pass, at, at + used));
        if (text.size) blank = step->trim && text.data[text.size - 1] == ' ';
        at += used;
    }
    Buffer *out = pass->out;
    while (step->trim && out->size >= BLANK_BYTES && !memcmp(out->data + out->size - BLANK_BYTES, BLANK, BLANK_BYTES)) {
        out->size -= BLANK_BYTES;
        if (pass->in_origin) pass->out_origin->size -= BLANK_BYTES;
    }
}
