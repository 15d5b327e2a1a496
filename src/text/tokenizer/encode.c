/* Encoding: added tokens are split off, the text between them is normalised, searched for added tokens that match after
 * normalisation, pre-tokenised and merged. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/internal.h"
#include "text/unicode/unicode.h"

enum {
    REGEX_STEPS_MIN = 10000000, /* regex steps per call, at least */
    REGEX_STEPS_PER_BYTE = 500, /* … and for each byte of the text */
};

typedef enum Policy { POLICY_ALL, POLICY_NO_SPECIAL, POLICY_SPANS } Policy;

typedef struct Encoder {
    const Tokenizer *t;
    Policy policy;
    const uint8_t *seen; /* SPANS: by added token: the template's text of this call holds it */
    RegexWork regex;
    PreWork pre;
    NormalText normal;
    Tokens *out;
    Error *error;
} Encoder;

enum { ORIGIN_DATA = 0, ORIGIN_TEMPLATE = 1 };

static void encoder_free(Encoder *encoder) {
    regex_work_free(&encoder->regex);
    pre_work_free(&encoder->pre);
    normal_text_free(&encoder->normal);
}

static bool no_memory(Error *error) { return fail(error, ERROR_MEMORY, "no memory to tokenize"); }

/* Neither neighbour of [start, end) is a word character. */
static bool stands_alone(Slice text, size_t start, size_t end) {
    uint32_t code;
    if (start > 0) {
        character_before(text, start, &code);
        if (unicode_is_word(code)) return false;
    }
    if (end == text.size) return true;
    utf8_decode(text.data + end, text.size - end, &code);
    return !unicode_is_word(code);
}

static bool is_control(const Encoder *encoder, const AddedToken *token) {
    return token->control || encoder->seen[token - encoder->t->added];
}

/* The longest added token at `at`, or −1. A control token does not cross a boundary of spans. */
static int32_t match_added(
    const Encoder *encoder, const AddedIndex *index, Slice text, const uint8_t *origin, size_t at, size_t *end) {
    int32_t place = added_index_match(index, text, at, end);
    if (place < 0 || !origin || !is_control(encoder, &encoder->t->added[place])) return place;
    const uint8_t *seam = memchr(origin + at, origin[at] == ORIGIN_DATA ? ORIGIN_TEMPLATE : ORIGIN_DATA, *end - at);
    return seam ? added_index_match(index, (Slice){text.data, (size_t)(seam - origin)}, at, end) : place;
}

static bool is_allowed(const Encoder *encoder, const AddedToken *token, const uint8_t *origin, size_t start) {
    if (encoder->policy == POLICY_ALL) return true;
    if (encoder->policy == POLICY_NO_SPECIAL) return !token->special;
    return !is_control(encoder, token) || (origin && origin[start] == ORIGIN_TEMPLATE);
}

typedef bool (*GapFunction)(Encoder *encoder, Slice gap, const uint8_t *origin, bool first);

/* Splits the index's tokens off; the text between them goes to gap. */
static bool split_added(
    Encoder *encoder, const AddedIndex *index, Slice text, const uint8_t *origin, bool first, GapFunction gap) {
    size_t done = 0, from = 0;
    while ((from = added_index_next(index, text, from)) < text.size) {
        size_t start = from, end;
        int32_t place = match_added(encoder, index, text, origin, from, &end);
        if (place < 0) {
            from++;
            continue;
        }
        const AddedToken *token = &encoder->t->added[place];
        from = end; /* a match that does not count is text as a whole */
        if (!is_allowed(encoder, token, origin, start)) continue;
        if (token->single_word && !stands_alone(text, start, end)) continue;
        if (token->left) start = space_before(text, start);
        if (start < done) start = done;
        if (token->right) end = space_behind(text, end);
        if (start > done) {
            Slice piece = {text.data + done, start - done};
            if (!gap(encoder, piece, origin ? origin + done : NULL, first && done == 0)) return false;
        }
        if (!tokens_push(encoder->out, token->id)) return no_memory(encoder->error);
        done = end;
        if (from < end) from = end;
    }
    if (done == text.size) return true;
    return gap(encoder, (Slice){text.data + done, text.size - done}, origin ? origin + done : NULL, first && done == 0);
}

static bool encode_normalized(Encoder *encoder, Slice text, const uint8_t *origin, bool first) {
    (void)origin;
    return pretokenize(&encoder->t->pre, &encoder->t->bpe, &encoder->pre, text, first, encoder->out, encoder->error);
}

static bool encode_raw(Encoder *encoder, Slice text, const uint8_t *origin, bool first) {
    const Tokenizer *t = encoder->t;
    if (!t->normalized.edges) origin = NULL; /* unused below */
    encoder->normal.inside = !first;
    if (!normalizer_run(&t->normalizer, &encoder->normal, &encoder->regex, &text, &origin, encoder->error))
        return false;
    if (!t->normalized.edges) return encode_normalized(encoder, text, origin, first);
    return split_added(encoder, &t->normalized, text, origin, first, encode_normalized);
}

static bool encode_text(Encoder *encoder, Slice text, const uint8_t *origin) {
    if (!utf8_valid(text)) return fail(encoder->error, ERROR_FORMAT, "the text to tokenize is not UTF-8");
    encoder->regex.steps = REGEX_STEPS_MIN + (uint64_t)text.size * REGEX_STEPS_PER_BYTE;
    encoder->pre.regex = &encoder->regex;
    return split_added(encoder, &encoder->t->raw, text, origin, true, encode_raw);
}

static bool push_all(Tokens *out, const int32_t *ids, size_t count, Error *error) {
    for (size_t i = 0; i < count; i++) {
        if (!tokens_push(out, ids[i])) return no_memory(error);
    }
    return true;
}

bool tokenizer_encode(const Tokenizer *t, Slice text, ControlTokens control, bool bos, Tokens *out, Error *error) {
    Encoder encoder = {
        .t = t, .policy = control == CONTROL_AS_TEXT ? POLICY_NO_SPECIAL : POLICY_ALL, .out = out, .error = error};
    bool ok = !bos || push_all(out, t->prefix, t->prefix_count, error);
    ok = ok && encode_text(&encoder, text, NULL);
    ok = ok && (!bos || push_all(out, t->suffix, t->suffix_count, error));
    encoder_free(&encoder);
    return ok;
}

bool tokenizer_encode_pair(const Tokenizer *t, Slice first, Slice second, Tokens *out, size_t *types, Error *error) {
    const size_t before = out->count;
    bool ok = t->pair_count || fail(error, ERROR_UNSUPPORTED, "the tokenizer has no template for pairs of texts");
    *types = SIZE_MAX;
    for (size_t i = 0; ok && i < t->pair_count; i++) {
        const PairItem *item = &t->pair[i];
        if (item->second && *types == SIZE_MAX) *types = out->count - before;
        if (item->part == PAIR_TOKEN)
            ok = push_all(out, &item->id, 1, error);
        else
            ok = tokenizer_encode(t, item->part == PAIR_FIRST ? first : second, CONTROL_AS_TEXT, false, out, error);
    }
    if (*types == SIZE_MAX) *types = out->count - before;
    return ok;
}

/* The added tokens in the template's own text: not white space, so that they mean something there. */
static void note_template_tokens(const Tokenizer *t, const AddedIndex *index, Slice text, uint8_t *seen) {
    for (size_t at = 0; index->edges && at < text.size;) {
        size_t end;
        int32_t place = index->first[(uint8_t)text.data[at]] ? added_index_match(index, text, at, &end) : -1;
        if (place < 0) {
            at++;
            continue;
        }
        Slice content = t->added[place].content;
        if (space_behind(content, 0) < content.size) seen[place] = 1;
        at = end;
    }
}

bool tokenizer_encode_spans(const Tokenizer *t, const Span *spans, size_t count, Tokens *out, Error *error) {
    Buffer joined = {0}, origin = {0};
    uint8_t *seen = calloc(t->added_count ? t->added_count : 1, 1);
    bool ok = seen;
    size_t size = 0;
    for (size_t i = 0; i < count; i++) size += spans[i].text.size;
    ok = ok && buffer_reserve(&joined, size) && buffer_reserve(&origin, size);
    for (size_t i = 0; ok && i < count; i++) {
        Slice text = spans[i].text;
        if (!text.size) continue;
        buffer_slice(&joined, text);
        memset(origin.data + origin.size, spans[i].from_template ? ORIGIN_TEMPLATE : ORIGIN_DATA, text.size);
        origin.size += text.size;
        if (!spans[i].from_template) continue;
        note_template_tokens(t, &t->raw, text, seen);
        note_template_tokens(t, &t->normalized, text, seen);
    }
    if (!ok || joined.failed) ok = no_memory(error);
    Encoder encoder = {.t = t, .policy = POLICY_SPANS, .seen = seen, .out = out, .error = error};
    ok = ok && encode_text(&encoder, buffer_view(&joined), (const uint8_t *)origin.data);
    encoder_free(&encoder);
    buffer_free(&joined);
    buffer_free(&origin);
    free(seen);
    return ok;
}
