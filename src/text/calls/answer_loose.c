/* Converts arguments in Python's or a format's own syntax to JSON, byte by byte. Whatever the input, the output is JSON
 * once all brackets are closed. */
#include "text/calls/answer_parts.h"

typedef enum LooseItem { ITEM_NONE, ITEM_TEXT /* a string that may be a key */, ITEM_KEY, ITEM_VALUE } LooseItem;

typedef struct Loose {
    AnswerValue *v;
    const CallFormat *calls;
    Slice text;
    size_t at;
    bool last;
    Buffer out;
} Loose;

static bool in_object(const AnswerValue *v) {
    return v->closers.size <= 1 || v->closers.data[v->closers.size - 1] == '}';
}

static void before_item(Loose *l) {
    AnswerValue *v = l->v;
    if (v->item == ITEM_KEY) return;
    if (v->item == ITEM_TEXT) buffer_text(&l->out, ":null");
    if (v->comma || v->item != ITEM_NONE) buffer_byte(&l->out, ',');
    v->comma = false;
    v->item = ITEM_NONE;
}

/* What a value needs in front of it inside of an object. */
static void before_value(Loose *l) {
    before_item(l);
    if (in_object(l->v) && l->v->item != ITEM_KEY) buffer_text(&l->out, "\"\":");
}

static void write_text(Loose *l, Slice text) {
    buffer_byte(&l->out, '"');
    answer_escape(text, &l->out);
    buffer_byte(&l->out, '"');
}

static bool is_number(Slice word) {
    size_t i = word.size > 0 && word.data[0] == '-', digits = i;
    while (i < word.size && word.data[i] >= '0' && word.data[i] <= '9') i++;
    if (i == digits || (i - digits > 1 && word.data[digits] == '0')) return false;
    if (i < word.size && word.data[i] == '.') {
        for (digits = ++i; i < word.size && word.data[i] >= '0' && word.data[i] <= '9';) i++;
        if (i == digits) return false;
    }
    if (i < word.size && (word.data[i] == 'e' || word.data[i] == 'E')) {
        i++;
        i += i < word.size && (word.data[i] == '+' || word.data[i] == '-');
        for (digits = i; i < word.size && word.data[i] >= '0' && word.data[i] <= '9';) i++;
        if (i == digits) return false;
    }
    return i == word.size;
}

static Slice word_of(const AnswerValue *v) { return (Slice){v->word.data, answer_trimmed(buffer_view(&v->word))}; }

static void write_word(Loose *l) {
    static const char *const words[][2] = {
        {"True", "true"}, {"true", "true"}, {"False", "false"}, {"false", "false"}, {"None", "null"}, {"null", "null"}};
    const Slice word = word_of(l->v);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (slice_is(word, words[i][0])) {
            buffer_text(&l->out, words[i][1]);
            return;
        }
    if (is_number(word))
        buffer_slice(&l->out, word);
    else
        write_text(l, word);
}

/* A word, or a key without a value, ends here. */
static void flush(Loose *l) {
    AnswerValue *v = l->v;
    if (v->word.size > 0) {
        before_value(l);
        write_word(l);
        v->item = ITEM_VALUE;
    } else if (v->item == ITEM_KEY) {
        buffer_text(&l->out, "null");
        v->item = ITEM_VALUE;
    } else if (v->item == ITEM_TEXT) {
        buffer_text(&l->out, ":null");
        v->item = ITEM_VALUE;
    }
    buffer_clear(&v->word);
}

static void write_key(Loose *l) {
    AnswerValue *v = l->v;
    if (v->item == ITEM_KEY) return;
    if (v->item != ITEM_TEXT || v->word.size > 0) {
        before_item(l);
        write_text(l, word_of(v));
    }
    buffer_clear(&v->word);
    buffer_byte(&l->out, ':');
    v->item = ITEM_KEY;
}

/* ---- strings ---- */

static void open_string(Loose *l, char quote) {
    AnswerValue *v = l->v;
    if (v->word.size <= 2) buffer_clear(&v->word); /* r"…" */
    if (v->word.size > 0) flush(l);
    before_item(l);
    buffer_byte(&l->out, '"');
    v->in_string = true;
    v->quote = quote;
}

static void close_string(Loose *l) {
    AnswerValue *v = l->v;
    buffer_byte(&l->out, '"');
    v->in_string = false;
    v->item = in_object(v) && v->item != ITEM_KEY ? ITEM_TEXT : ITEM_VALUE;
}

static bool all_hex(Slice text) {
    for (size_t i = 0; i < text.size; i++)
        if (!text.data[i] || !strchr("0123456789abcdefABCDEF", text.data[i])) return false;
    return true;
}

/* An escape as JSON has it; false: it is cut. */
static bool read_escape(Loose *l) {
    const Slice rest = answer_from(l->text, l->at + 1);
    if (rest.size == 0) return false;
    const char c = rest.data[0];
    const size_t digits = c == 'u' ? 4 : c == 'x' ? 2 : 0;
    if (rest.size < 1 + digits && !l->last) return false;
    if (digits > 0 && rest.size >= 1 + digits && all_hex((Slice){rest.data + 1, digits})) {
        buffer_printf(&l->out, "\\u%s%.*s", c == 'x' ? "00" : "", (int)digits, rest.data + 1);
        l->at += 2 + digits;
        return true;
    }
    if (c && strchr("nrtbf\"\\/", c))
        buffer_printf(&l->out, "\\%c", c);
    else if (c == '\'')
        buffer_byte(&l->out, c);
    else if (c != '\n') { /* no escape: a literal backslash */
        buffer_text(&l->out, "\\\\");
        l->at++;
        return true;
    }
    l->at += 2;
    return true;
}

/* False: more input is needed. */
static bool read_string(Loose *l) {
    AnswerValue *v = l->v;
    if (!v->quote) {
        bool found;
        const Slice rest = answer_from(l->text, l->at);
        size_t size = answer_find(rest, l->calls->quote, &found);
        if (!found && l->last) size = rest.size;
        answer_escape((Slice){rest.data, size}, &l->out);
        l->at += size;
        if (!found) return false;
        l->at += call_marker(l->calls->quote).size;
        close_string(l);
        return true;
    }
    const char c = l->text.data[l->at];
    if (c == '\\') return read_escape(l);
    if (c == v->quote)
        close_string(l);
    else
        answer_escape((Slice){&c, 1}, &l->out);
    l->at++;
    return true;
}

/* ---- the rest ---- */

static void open_container(Loose *l, char c) {
    AnswerValue *v = l->v;
    if (v->word.size > 0) flush(l);
    before_value(l);
    buffer_byte(&l->out, c == '{' ? '{' : '[');
    buffer_byte(&v->closers, c == '{' ? '}' : c == '(' ? ')' : ']');
    v->item = ITEM_NONE;
    v->comma = false;
}

/* True: the outermost one. */
static bool close_container(Loose *l) {
    AnswerValue *v = l->v;
    flush(l);
    buffer_byte(&l->out, in_object(v) ? '}' : ']');
    if (v->closers.size > 0) v->closers.size--;
    v->item = ITEM_VALUE;
    v->comma = false;
    return v->closers.size == 0;
}

typedef enum Progress { GOES_ON, WAITS, ENDS } Progress;

static Progress read_byte(Loose *l) {
    AnswerValue *v = l->v;
    const bool python = l->calls->syntax == CALL_PYTHON;
    const char c = l->text.data[l->at];
    if (v->in_string) return read_string(l) ? GOES_ON : WAITS;
    if (!python) {
        const Verdict quote = answer_match(answer_from(l->text, l->at), l->calls->quote);
        if (quote == VERDICT_MORE && !l->last) return WAITS;
        if (quote == VERDICT_YES) {
            l->at += call_marker(l->calls->quote).size;
            open_string(l, 0);
            return GOES_ON;
        }
    }
    l->at++;
    if (c == '"' || (python && c == '\''))
        open_string(l, c);
    else if (c == '{' || c == '[' || (python && c == '('))
        open_container(l, c);
    else if (c == '}' || c == ']' || (python && c == ')'))
        return close_container(l) ? ENDS : GOES_ON;
    else if (c == ',') {
        flush(l);
        v->comma = v->item != ITEM_NONE;
        v->item = ITEM_NONE;
    } else if (in_object(v) && (python && v->closers.size == 1 ? c == '=' : c == ':'))
        write_key(l);
    else if (!answer_blank(c) || v->word.size > 0)
        buffer_byte(&v->word, c);
    return GOES_ON;
}

void answer_loose_begin(AnswerValue *v, const CallFormat *calls, AnswerEvents *out) {
    buffer_byte(&v->closers, calls->syntax == CALL_PYTHON ? ')' : '}');
    out->failed |= v->closers.failed;
    answer_emit(out, ANSWER_ARGUMENTS, SLICE("{"));
}

bool answer_loose(AnswerValue *v, const CallFormat *calls, Slice text, bool last, AnswerEvents *out, size_t *used) {
    Loose l = {.v = v, .calls = calls, .text = text, .last = last};
    Progress progress = GOES_ON;
    while (progress == GOES_ON && l.at < text.size) progress = read_byte(&l);
    if (last && progress != ENDS) {
        l.at = text.size;
        if (!v->in_string && v->word.size > 0) flush(&l);
    }
    answer_emit(out, ANSWER_ARGUMENTS, buffer_view(&l.out));
    out->failed |= l.out.failed || v->word.failed || v->closers.failed;
    buffer_free(&l.out);
    *used = l.at;
    return progress == ENDS;
}
