/* From ids to text, at once or one at a time. The decoder's steps work on a list of strings, one per token; nearly all
 * decoders have a shape that can run along with the ids, and then decoding at once is running along to the end. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/internal.h"

#define REPLACEMENT "\xEF\xBF\xBD"

enum { REGEX_STEPS_PER_TOKEN = 1000000 };

/* "<0xNN>" → NN, or −1; digits of either case, as in the reference. */
static int fallback_byte(Slice token) {
    if (token.size != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = token.data[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (i == 3 && c == '+') digit = 0; /* the reference reads a number, which may have a sign */
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* --- Steps on one string ------------------------------------------------------------------------------------------ */

static bool step_replace(const DecodeStep *step, Slice in, Buffer *out, RegexWork *work) {
    size_t done = 0, from = 0, start, end;
    work->steps = REGEX_STEPS_PER_TOKEN + in.size * 500;
    while (in.size && from <= in.size) {
        RegexResult result = finder_next(&step->finder, work, in, from, &start, &end);
        if (result == REGEX_EXHAUSTED) return false;
        if (result == REGEX_NONE) break;
        buffer_append(out, in.data + done, start - done);
        buffer_slice(out, step->content);
        done = end;
        from = finder_resume(in, start, end);
    }
    if (done < in.size) buffer_append(out, in.data + done, in.size - done);
    return true;
}

static void step_strip(const DecodeStep *step, Slice in, Buffer *out) {
    Slice c = step->content;
    for (uint32_t i = 0; i < step->start && slice_starts(in, c); i++) in = (Slice){in.data + c.size, in.size - c.size};
    for (uint32_t i = 0; i < step->stop && in.size >= c.size; i++) {
        if (memcmp(in.data + in.size - c.size, c.data, c.size) != 0) break;
        in.size -= c.size;
    }
    buffer_slice(out, in);
}

/* The first token loses its replacement characters, all of them, when the pre-tokenizer puts one in front. */
static void step_metaspace(const DecodeStep *step, Slice in, bool first, Buffer *out) {
    bool drop = first && step->scheme != PREPEND_NEVER;
    for (size_t at = 0; at < in.size;) {
        Slice rest = {in.data + at, in.size - at};
        if (slice_starts(rest, step->content)) {
            if (!drop) buffer_byte(out, ' ');
            at += step->content.size;
        } else {
            buffer_byte(out, in.data[at++]);
        }
    }
}

/* decoders/wordpiece.rs: a blank in front of each piece that begins a word, but for the first. */
static void step_wordpiece(const DecodeStep *step, Slice in, bool first, Buffer *out) {
    static const char *const joined[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    if (!first && slice_starts(in, step->content)) {
        buffer_append(out, in.data + step->content.size, in.size - step->content.size);
        return;
    }
    bool blank = !first;
    for (size_t i = 0; step->cleanup && blank && i < COUNT_OF(joined); i++)
        blank = !slice_starts(in, slice_of(joined[i]));
    if (blank) buffer_byte(out, ' ');
    buffer_slice(out, in);
}

static bool run_piece_step(const DecodeStep *step, Slice in, bool first, Buffer *out, RegexWork *work) {
    switch (step->kind) {
    case DECODE_REPLACE: return step_replace(step, in, out, work);
    case DECODE_STRIP: step_strip(step, in, out); return true;
    case DECODE_METASPACE: step_metaspace(step, in, first, out); return true;
    case DECODE_WORDPIECE: step_wordpiece(step, in, first, out); return true;
    default: buffer_slice(out, in); return true;
    }
}

/* --- Running along ------------------------------------------------------------------------------------------------ */

struct Detokenizer {
    const Tokenizer *t;
    bool skip_special;
    bool at_once;            /* a run of bytes waits for its end, as when decoding a whole list */
    bool any;                /* a token came */
    uint32_t to_strip, held; /* Strip: characters still to go at the front; kept back at the end */
    bool in_text;            /* Strip: past the front */
    Buffer bytes;            /* BYTES: the beginning of a character. PIECES: a run of fallback bytes */
    Buffer piece[2];
    RegexWork work;
    Tokens ids; /* WHOLE */
};

/* BYTES: writes the decided bytes; an incomplete character waits unless the text ends. */
static void emit_bytes(Detokenizer *d, Buffer *out, bool end) {
    Slice bytes = buffer_view(&d->bytes);
    size_t keep = end || !bytes.size ? 0 : utf8_incomplete_tail(bytes), size = bytes.size - keep, at = 0, start = 0;
    while (at < size) {
        if ((uint8_t)bytes.data[at] < 0x80) {
            at++;
            continue;
        }
        uint32_t code;
        int length = utf8_decode(bytes.data + at, size - at, &code);
        if (length > 0) {
            at += (size_t)length;
            continue;
        }
        buffer_append(out, bytes.data + start, at - start);
        buffer_text(out, REPLACEMENT);
        at += (size_t)-length;
        start = at;
    }
    if (at > start) buffer_append(out, bytes.data + start, at - start);
    if (keep) memmove(d->bytes.data, d->bytes.data + size, keep);
    if (bytes.size) d->bytes.size = keep;
}

/* PIECES: text on its way out, through Strip. */
static void emit_text(Detokenizer *d, Slice text, Buffer *out) {
    const DecodeStep *strip = d->t->decoder.strip;
    if (!strip) {
        buffer_slice(out, text);
        return;
    }
    Slice c = strip->content;
    while (!d->in_text && d->to_strip && slice_starts(text, c)) {
        text = (Slice){text.data + c.size, text.size - c.size};
        d->to_strip--;
    }
    if (!text.size) return;
    d->in_text = true;
    size_t body = text.size;
    uint32_t tail = 0;
    while (strip->stop && body >= c.size && memcmp(text.data + body - c.size, c.data, c.size) == 0) {
        body -= c.size;
        tail++;
    }
    if (body) {
        for (; d->held; d->held--) buffer_slice(out, c);
        buffer_append(out, text.data, body);
    }
    for (d->held += tail; d->held > strip->stop; d->held--) buffer_slice(out, c);
}

/* Ends a run of fallback bytes. */
static void emit_run(Detokenizer *d, Buffer *out) {
    if (!d->bytes.size) return;
    if (utf8_valid(buffer_view(&d->bytes))) {
        emit_text(d, buffer_view(&d->bytes), out);
    } else {
        for (size_t i = 0; i < d->bytes.size; i++) emit_text(d, SLICE(REPLACEMENT), out);
    }
    buffer_clear(&d->bytes);
}

static bool push_piece(Detokenizer *d, int32_t id, Buffer *out, Error *error) {
    const Decoder *decoder = &d->t->decoder;
    int side = 0;
    buffer_clear(&d->piece[0]);
    if (!token_spelling(d->t, id, &d->piece[0])) return true;
    bool first = !d->any;
    d->any = true;
    if (decoder->absent && !first) buffer_byte(out, ' ');
    for (size_t i = 0; i < decoder->piece_steps; i++) {
        buffer_clear(&d->piece[!side]);
        if (!run_piece_step(&decoder->steps[i], buffer_view(&d->piece[side]), first, &d->piece[!side], &d->work)) {
            return fail(error, ERROR_LIMIT, "the decoder's pattern takes too many steps on a token");
        }
        side = !side;
    }
    Slice piece = buffer_view(&d->piece[side]);
    int byte = decoder->byte_fallback ? fallback_byte(piece) : -1;
    if (byte < 0) {
        emit_run(d, out);
        emit_text(d, piece, out);
    } else {
        buffer_byte(&d->bytes, (char)byte);
        if (!d->at_once && utf8_valid(buffer_view(&d->bytes))) emit_run(d, out);
    }
    return true;
}

static bool is_skipped(const Detokenizer *d, int32_t id) { return d->skip_special && tokenizer_is_special(d->t, id); }

static bool check_memory(const Detokenizer *d, const Buffer *out, Error *error) {
    bool failed = out->failed || d->bytes.failed || d->piece[0].failed || d->piece[1].failed;
    return !failed || fail(error, buffer_failure(out), "no room for the decoded text");
}

bool detokenizer_push(Detokenizer *d, int32_t id, Buffer *out, Error *error) {
    if (is_skipped(d, id)) return true;
    switch (d->t->decoder.shape) {
    case SHAPE_BYTES:
        if (token_bytes(d->t, id, &d->bytes)) emit_bytes(d, out, false);
        break;
    case SHAPE_PIECES:
        if (!push_piece(d, id, out, error)) return false;
        break;
    case SHAPE_WHOLE:
        if (!tokens_push(&d->ids, id)) return fail(error, ERROR_MEMORY, "no memory for ids");
        break;
    }
    return check_memory(d, out, error);
}

/* --- The list of strings, for decoders of any shape --------------------------------------------------------------- */

typedef struct Strings {
    Buffer text;
    size_t *ends;
    size_t count, capacity;
    bool failed;
} Strings;

static void strings_end(Strings *strings) {
    if (strings->count == strings->capacity) {
        size_t capacity = strings->capacity ? strings->capacity * 2 : 64;
        size_t *ends = realloc(strings->ends, capacity * sizeof *ends);
        if (!ends) {
            strings->failed = true;
            return;
        }
        strings->ends = ends;
        strings->capacity = capacity;
    }
    strings->ends[strings->count++] = strings->text.size;
}

static Slice strings_at(const Strings *strings, size_t i) {
    size_t start = i ? strings->ends[i - 1] : 0;
    if (strings->ends[i] == start) return (Slice){"", 0};
    return (Slice){strings->text.data + start, strings->ends[i] - start};
}

static void strings_free(Strings *strings) {
    buffer_free(&strings->text);
    free(strings->ends);
    *strings = (Strings){0};
}

static void end_byte_run(Strings *out, const Buffer *run) {
    if (!run->size) return;
    if (utf8_valid(buffer_view(run))) {
        buffer_slice(&out->text, buffer_view(run));
        strings_end(out);
        return;
    }
    for (size_t i = 0; i < run->size; i++) {
        buffer_text(&out->text, REPLACEMENT);
        strings_end(out);
    }
}

static void list_byte_fallback(const Strings *in, Strings *out) {
    Buffer run = {0};
    for (size_t i = 0; i < in->count; i++) {
        Slice string = strings_at(in, i);
        int byte = fallback_byte(string);
        if (byte >= 0) {
            buffer_byte(&run, (char)byte);
            continue;
        }
        end_byte_run(out, &run);
        buffer_clear(&run);
        buffer_slice(&out->text, string);
        strings_end(out);
    }
    end_byte_run(out, &run);
    out->failed = out->failed || run.failed;
    buffer_free(&run);
}

static void list_byte_level(const Strings *in, Strings *out) {
    Detokenizer d = {0};
    for (size_t i = 0; i < in->count; i++) byte_level_append(strings_at(in, i), &d.bytes);
    out->failed = out->failed || d.bytes.failed;
    emit_bytes(&d, &out->text, true);
    strings_end(out);
    buffer_free(&d.bytes);
}

static bool list_step(const DecodeStep *step, const Strings *in, Strings *out, RegexWork *work) {
    switch (step->kind) {
    case DECODE_BYTE_LEVEL: list_byte_level(in, out); return true;
    case DECODE_BYTE_FALLBACK: list_byte_fallback(in, out); return true;
    case DECODE_FUSE:
        buffer_slice(&out->text, buffer_view(&in->text));
        strings_end(out);
        return true;
    default: break;
    }
    for (size_t i = 0; i < in->count; i++) {
        if (!run_piece_step(step, strings_at(in, i), i == 0, &out->text, work)) return false;
        strings_end(out);
    }
    return true;
}

static bool decode_whole(Detokenizer *d, Buffer *out, Error *error) {
    Strings list[2] = {{.failed = false}, {.failed = false}};
    int side = 0;
    bool steps = true;
    for (size_t i = 0; i < d->ids.count; i++) {
        if (token_spelling(d->t, d->ids.ids[i], &list[0].text)) strings_end(&list[0]);
    }
    for (size_t i = 0; i < d->t->decoder.count && steps; i++) {
        strings_free(&list[!side]);
        steps = list_step(&d->t->decoder.steps[i], &list[side], &list[!side], &d->work);
        list[!side].failed = list[!side].failed || list[side].failed || list[side].text.failed;
        side = !side;
    }
    bool failed = list[side].failed || list[side].text.failed;
    if (steps && !failed) buffer_slice(out, buffer_view(&list[side].text));
    strings_free(&list[0]);
    strings_free(&list[1]);
    if (!steps) return fail(error, ERROR_LIMIT, "the decoder's pattern takes too many steps on a token");
    return (!failed && !out->failed) || fail(error, buffer_failure(out), "no room for the decoded text");
}

/* --- The rest ----------------------------------------------------------------------------------------------------- */

static void detokenizer_start(Detokenizer *d, const Tokenizer *t, bool skip_special) {
    *d = (Detokenizer){.t = t, .skip_special = skip_special};
    if (t->decoder.strip) d->to_strip = t->decoder.strip->start;
}

static void detokenizer_release(Detokenizer *d) {
    buffer_free(&d->bytes);
    buffer_free(&d->piece[0]);
    buffer_free(&d->piece[1]);
    regex_work_free(&d->work);
    tokens_free(&d->ids);
}

bool detokenizer_finish(Detokenizer *d, Buffer *out, Error *error) {
    switch (d->t->decoder.shape) {
    case SHAPE_BYTES: emit_bytes(d, out, true); break;
    case SHAPE_PIECES: emit_run(d, out); break;
    case SHAPE_WHOLE:
        if (!decode_whole(d, out, error)) return false;
        d->ids.count = 0;
        break;
    }
    return check_memory(d, out, error);
}

Detokenizer *detokenizer_new(const Tokenizer *t, bool skip_special, Error *error) {
    Detokenizer *d = malloc(sizeof *d);
    if (!d) {
        fail(error, ERROR_MEMORY, "no memory for a detokenizer");
        return NULL;
    }
    detokenizer_start(d, t, skip_special);
    return d;
}

void detokenizer_free(Detokenizer *d) {
    if (!d) return;
    detokenizer_release(d);
    free(d);
}

bool tokenizer_decode(
    const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special, Buffer *out, Error *error) {
    Detokenizer d;
    detokenizer_start(&d, t, skip_special);
    d.at_once = true;
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) ok = detokenizer_push(&d, ids[i], out, error);
    ok = ok && detokenizer_finish(&d, out, error);
    detokenizer_release(&d);
    return ok;
}

bool tokenizer_bytes(const Tokenizer *t, int32_t id, Buffer *out, Error *error) {
    const Decoder *decoder = &t->decoder;
    bool byte_level = false;
    for (size_t i = 0; i < decoder->count; i++) byte_level = byte_level || decoder->steps[i].kind == DECODE_BYTE_LEVEL;
    if (byte_level) {
        if (!token_bytes(t, id, out)) return fail(error, ERROR_NOT_FOUND, "the id %d is not in the vocabulary", id);
        return !out->failed || fail(error, buffer_failure(out), "no room for the bytes of the id %d", id);
    }
    Buffer piece[2] = {{0}, {0}};
    RegexWork work = {0};
    int side = 0;
    bool known = token_spelling(t, id, &piece[0]), steps = true;
    for (size_t i = 0; i < decoder->piece_steps && steps; i++) {
        if (decoder->steps[i].kind == DECODE_STRIP) continue; /* concerns the ends of a text */
        buffer_clear(&piece[!side]);
        steps = run_piece_step(&decoder->steps[i], buffer_view(&piece[side]), false, &piece[!side], &work);
        side = !side;
    }
    Slice bytes = buffer_view(&piece[side]);
    int byte = decoder->byte_fallback ? fallback_byte(bytes) : -1;
    if (byte >= 0) {
        buffer_byte(out, (char)byte);
    } else {
        buffer_slice(out, bytes);
    }
    bool failed = piece[0].failed || piece[1].failed || out->failed;
    buffer_free(&piece[0]);
    buffer_free(&piece[1]);
    regex_work_free(&work);
    if (!known) return fail(error, ERROR_NOT_FOUND, "the id %d is not in the vocabulary", id);
    if (!steps) return fail(error, ERROR_LIMIT, "the decoder's pattern takes too many steps on a token");
    return !failed || fail(error, buffer_failure(out), "no room for the bytes of the id %d", id);
}
