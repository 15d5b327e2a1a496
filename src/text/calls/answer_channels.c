/* Harmony: an answer is a series of messages, each with a header that gives its kind. Reference: openai-harmony. */
#include "text/calls/answer_parts.h"

enum { HEADER_MAX = 2 * ANSWER_NAME_MAX };
static const char message_marker[] = "<|message|>", recipient[] = "to=functions.";
static const char *const ends[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"};

static bool has(Slice text, const char *part) {
    return text.size > 0 && memmem(text.data, text.size, part, strlen(part)) != NULL;
}

/* The function that a header is addressed to; empty: none. */
static Slice called(Slice header) {
    const size_t size = sizeof recipient - 1;
    const char *at = header.size ? memmem(header.data, header.size, recipient, size) : NULL;
    if (!at) return (Slice){0};
    Slice name = {at + size, 0};
    const char *end = header.data + header.size;
    while (name.data + name.size < end && !answer_blank(name.data[name.size]) && name.data[name.size] != '<')
        name.size++;
    return name.size <= ANSWER_NAME_MAX ? name : (Slice){0};
}

static void begin_message(AnswerParser *p, Slice header, AnswerEvents *out) {
    const Slice name = called(header);
    p->state = ANSWER_IN_MESSAGE;
    p->message = name.size > 0 ? ANSWER_ARGUMENTS : has(header, "analysis") ? ANSWER_REASONING : ANSWER_CONTENT;
    if (name.size == 0) return;
    p->value = (AnswerValue){.closers = p->value.closers, .word = p->value.word};
    p->calls_seen++;
    answer_emit(out, ANSWER_CALL, name);
}

/* Without a header, or with one that does not end, a message is content. */
static bool read_header(AnswerParser *p, Slice text, AnswerEvents *out) {
    const Slice said = answer_from(text, answer_skip_blank(text, 0));
    bool header = !p->fresh || answer_match(said, "<") != VERDICT_NO || answer_match(said, recipient) != VERDICT_NO;
    bool found = false;
    const size_t size = header ? answer_find(text, message_marker, &found) : 0;
    header = header && size <= HEADER_MAX;
    if (header && !found && !p->last) return false;
    found = found && header;
    begin_message(p, (Slice){text.data, found ? size : 0}, out);
    if (found) p->at += size + sizeof message_marker - 1;
    return true;
}

/* Arguments end by their own syntax: a string in them may contain a marker. True: they go on behind the text. */
static bool read_arguments(AnswerParser *p, Slice text, AnswerEvents *out) {
    const size_t begin = answer_skip_blank(text, 0);
    size_t used;
    if (!p->value.begun && (begin == text.size || text.data[begin] != '{')) return false;
    if (p->value.begun && p->value.depth == 0) return false; /* they have ended */
    const bool over = answer_json(&p->value, text, p->last, out, &used);
    p->at += used;
    if (over) p->value.depth = 0;
    return !over;
}

static bool read_message(AnswerParser *p, Slice text, AnswerEvents *out) {
    const size_t before = p->at;
    if (p->message == ANSWER_ARGUMENTS && read_arguments(p, text, out)) return false;
    text = answer_from(text, p->at - before);
    const bool ended = p->message == ANSWER_ARGUMENTS && p->value.begun;
    size_t size = text.size, marker = 0;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        bool found;
        const size_t at = answer_find(text, ends[i], &found);
        if (found && (at < size || (at == size && marker == 0))) {
            size = at;
            marker = strlen(ends[i]);
        } else if (!found && !p->last && at < size) {
            size = at;
            marker = 0;
        }
    }
    const Slice said = {text.data, size};
    const size_t keep = marker || p->last ? size : answer_trimmed(said);
    if (!ended && (p->message != ANSWER_CONTENT || !p->only_calls))
        answer_emit(out, p->message,
            (Slice){text.data, p->message == ANSWER_CONTENT && p->last && !marker ? size : answer_trimmed(said)});
    p->at += marker ? size + marker : keep;
    if (marker == 0) return false;
    if (p->message == ANSWER_ARGUMENTS) answer_emit(out, ANSWER_CALL_END, (Slice){0});
    p->state = ANSWER_IN_HEADER;
    p->fresh = false;
    return true;
}

bool answer_channels(AnswerParser *p, Slice text, AnswerEvents *out) {
    return p->state == ANSWER_IN_HEADER ? read_header(p, text, out) : read_message(p, text, out);
}
