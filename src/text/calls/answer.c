#include "text/calls/answer.h"

#include <stdlib.h>

#include "text/calls/answer_parts.h"

void answer_open(
    AnswerParser *p, const CallFormat *calls, const ReasoningFormat *reasoning, bool reasons, const Json *tools) {
    *p = (AnswerParser){.calls = calls, .reasoning = reasoning, .tools = tools, .fresh = true};
    p->state = calls && calls->syntax == CALL_CHANNELS ? ANSWER_IN_HEADER
        : reasons                                      ? ANSWER_IN_REASONING
                                                       : ANSWER_AT_START;
    p->trim = reasons;
}

void answer_close(AnswerParser *p) {
    buffer_free(&p->held);
    buffer_free(&p->value.closers);
    buffer_free(&p->value.word);
}

static Slice rest_of(const AnswerParser *p) { return answer_from(buffer_view(&p->held), p->at); }

static void emit(AnswerParser *p, AnswerEventKind kind, size_t size, AnswerEvents *out) {
    if (kind != ANSWER_CONTENT || !p->only_calls) answer_emit(out, kind, (Slice){rest_of(p).data, size});
    p->at += size;
}

static void skip_blank(AnswerParser *p) { p->at += answer_skip_blank(rest_of(p), 0); }

/* ---- reasoning ---- */

static bool step_start(AnswerParser *p) {
    const Slice text = rest_of(p);
    const size_t begin = answer_skip_blank(text, 0);
    const char *plain = p->calls ? p->calls->plain : NULL;
    const Slice said = answer_from(text, begin);
    const Verdict reasons = p->reasoning ? answer_match(said, p->reasoning->open) : VERDICT_NO;
    const Verdict announced = plain ? answer_match(said, plain) : VERDICT_NO;
    if (!p->last && (reasons == VERDICT_MORE || announced == VERDICT_MORE)) return false;
    p->state = reasons == VERDICT_YES ? ANSWER_IN_REASONING : ANSWER_IN_CONTENT;
    if (reasons == VERDICT_YES || announced == VERDICT_YES) {
        p->at += begin + call_marker(reasons == VERDICT_YES ? p->reasoning->open : plain).size;
        p->trim = true;
    }
    return true;
}

static bool step_reasoning(AnswerParser *p, AnswerEvents *out) {
    if (p->trim) skip_blank(p);
    const Slice text = rest_of(p);
    if (text.size > 0) p->trim = false;
    bool found;
    size_t size = answer_find(text, p->reasoning->close, &found);
    if (!found && p->last) size = text.size;
    const size_t said = answer_trimmed((Slice){text.data, size});
    emit(p, ANSWER_REASONING, said, out);
    if (!found) {
        if (p->last) p->at = p->held.size;
        return false;
    }
    p->at += size - said + call_marker(p->reasoning->close).size;
    p->state = ANSWER_IN_CONTENT;
    p->trim = true;
    return true;
}

/* ---- calls ---- */

static void begin_call(AnswerParser *p, const CallHead *head, bool bare, AnswerEvents *out) {
    memcpy(p->name, head->name.data, head->name.size);
    p->name[head->name.size] = 0;
    p->calls_seen++;
    p->fresh = false;
    p->looked = p->opened = p->retry = 0;
    p->unannounced = bare;
    buffer_free(&p->value.closers);
    buffer_free(&p->value.word);
    p->value = (AnswerValue){0};
    p->state = ANSWER_IN_ARGUMENTS;
    answer_emit(out, ANSWER_CALL, head->name);
    if (p->calls->syntax == CALL_PYTHON || p->calls->syntax == CALL_BRACES)
        answer_loose_begin(&p->value, p->calls, out);
}

static bool is_tool(const AnswerParser *p, Slice name) {
    if (!p->tools) return true;
    for (JSON_EACH(tool, p->tools)) {
        const Json *known = json_get(json_get(tool, "function"), "name");
        if (known && known->type == JSON_STRING && slice_equal(json_slice(known), name)) return true;
    }
    return false;
}

/* The answer was cut at the beginning of a call: the call has its name, if that is complete, and nothing else. */
static void begin_cut_call(AnswerParser *p, const CallHead *head, AnswerEvents *out) {
    if (head->name.size > 0 && is_tool(p, head->name)) {
        begin_call(p, head, false, out);
        answer_emit(out, ANSWER_CALL_END, (Slice){0});
    }
    p->state = ANSWER_AMONG_CALLS;
    p->at = p->held.size;
    p->looked = p->opened = 0;
}

/* Reads the beginning of a call at index `at`. MORE: incomplete. */
static Verdict try_head(AnswerParser *p, size_t at, bool bare, AnswerEvents *out) {
    const Slice text = answer_from(rest_of(p), at);
    if (text.size < p->retry && !p->last) return VERDICT_MORE;
    CallHead head;
    Verdict verdict = answer_head(p->calls, text, bare, &head);
    if (verdict == VERDICT_MORE && p->last && p->cut && (!bare || p->only_calls)) {
        begin_cut_call(p, &head, out);
        return VERDICT_YES;
    }
    if (verdict == VERDICT_MORE && p->last) verdict = VERDICT_NO;
    if (verdict == VERDICT_YES && bare && !is_tool(p, head.name)) verdict = VERDICT_NO;
    p->retry = verdict == VERDICT_MORE && text.size > 2 * ANSWER_NAME_MAX ? text.size + text.size / 8 : 0;
    if (verdict != VERDICT_YES) return verdict;
    begin_call(p, &head, bare, out);
    if (head.arguments.data) {
        size_t used;
        answer_json(&p->value, head.arguments, true, out, &used);
        answer_emit(out, ANSWER_CALL_END, (Slice){0});
        p->state = ANSWER_AMONG_CALLS;
    }
    p->at += at + head.size;
    return verdict;
}

static bool step_arguments(AnswerParser *p, AnswerEvents *out) {
    const Slice text = rest_of(p);
    const CallSyntax syntax = p->calls->syntax;
    size_t used = 0;
    const bool over = syntax == CALL_TAGGED              ? answer_tags(p, text, out, &used)
        : syntax == CALL_PYTHON || syntax == CALL_BRACES ? answer_loose(&p->value, p->calls, text, p->last, out, &used)
                                                         : answer_json(&p->value, text, p->last, out, &used);
    p->at += used;
    if (!over) return false;
    answer_emit(out, ANSWER_CALL_END, (Slice){0});
    p->state = syntax == CALL_JSON ? ANSWER_BEHIND_ARGUMENTS : ANSWER_AMONG_CALLS;
    p->value.depth = 1;
    p->value.in_string = p->value.escaped = false;
    return true;
}

static bool step_behind_arguments(AnswerParser *p) {
    size_t used;
    const bool over = answer_json_rest(&p->value, rest_of(p), &used);
    p->at += used;
    if (over) p->state = ANSWER_AMONG_CALLS;
    return over;
}

/* Skips text between calls that has no meaning. */
static size_t skip_between(const AnswerParser *p, Slice text, size_t at) {
    const CallFormat *f = p->calls;
    while (at < text.size &&
        (answer_blank(text.data[at]) || (f->list_open && strchr("[],", text.data[at])) ||
            (f->syntax == CALL_JSON && text.data[at] == ';')))
        at++;
    return at;
}

/* A list's closing bracket is no content, whatever follows. */
static void drop_list_end(AnswerParser *p) {
    const Slice text = rest_of(p);
    size_t size = p->looked;
    while (size > 0 && text.data[size - 1] != ']') size--;
    p->at += size;
    p->looked -= size;
}

/* No call is here. */
static void back_to_content(AnswerParser *p, AnswerEvents *out) {
    p->state = ANSWER_IN_CONTENT;
    p->trim = p->opened == 0;
    if (p->opened > 0) {
        emit(p, ANSWER_CONTENT, p->opened, out);
        p->fresh = false;
    }
    p->looked = p->opened = p->retry = 0;
}

/* A marker after a call. YES: it was read. */
static Verdict read_behind(AnswerParser *p, Slice said, size_t at) {
    const CallFormat *f = p->calls;
    const char *foot = f->syntax == CALL_NAMED ? f->foot : NULL;
    const char *markers[] = {foot, f->close};
    Verdict all = VERDICT_NO;
    for (size_t i = 0; i < COUNT_OF(markers); i++) {
        if (!markers[i]) continue;
        const Verdict one = answer_match(said, markers[i]);
        if (one == VERDICT_MORE) all = one;
        if (one != VERDICT_YES) continue;
        p->at += at + call_marker(markers[i]).size;
        p->looked = 0;
        if (markers[i] != foot) {
            p->state = ANSWER_IN_CONTENT;
            p->trim = true;
        }
        return one;
    }
    return all;
}

static bool step_among(AnswerParser *p, AnswerEvents *out) {
    p->looked = skip_between(p, rest_of(p), p->looked);
    if (p->opened == 0) drop_list_end(p);
    const Slice text = rest_of(p);
    const Slice said = answer_from(text, p->looked);
    if (said.size == 0) {
        if (p->last && (p->opened == 0 || p->cut))
            p->at = p->held.size;
        else if (p->last)
            back_to_content(p, out);
        return p->last;
    }
    Verdict behind = VERDICT_NO;
    if (p->opened == 0) {
        behind = read_behind(p, said, p->looked);
        if (behind == VERDICT_YES) return true;
        const Verdict again = answer_match(said, p->calls->open);
        if (again == VERDICT_YES) {
            p->opened = p->looked = p->looked + call_marker(p->calls->open).size;
            p->unannounced = false;
            return true;
        }
        if (again == VERDICT_MORE) behind = VERDICT_MORE;
    }
    if (behind == VERDICT_MORE && !p->last) return false;
    const bool more = p->opened > 0 || p->calls->section || p->unannounced;
    const Verdict head = more ? try_head(p, p->looked, p->unannounced, out) : VERDICT_NO;
    if (head == VERDICT_MORE) return false;
    if (head == VERDICT_NO) back_to_content(p, out);
    return true;
}

/* ---- content ---- */

/* Reads the beginning of a call without an `open` marker, at the beginning of an answer. YES: it was read; MORE: the
 * text so far does not decide. */
static Verdict try_bare(AnswerParser *p, AnswerEvents *out) {
    const Slice text = rest_of(p);
    const CallFormat *f = p->calls;
    size_t begin = answer_skip_blank(text, 0);
    if (begin == text.size) return p->last ? VERDICT_NO : VERDICT_MORE;
    if (f->list_open) {
        if (text.data[begin] != f->list_open[0]) return VERDICT_NO;
        begin = answer_skip_blank(text, begin + 1);
    }
    return try_head(p, begin, true, out);
}

static bool step_content(AnswerParser *p, AnswerEvents *out) {
    if (p->trim) skip_blank(p);
    if (p->calls && (p->calls->bare || (p->calls->forgetful && !p->formatted)) && p->fresh) {
        const Verdict bare = try_bare(p, out);
        if (bare == VERDICT_MORE) return false;
        if (bare == VERDICT_YES) return true;
        p->fresh = false;
    }
    const Slice text = rest_of(p);
    if (p->formatted && p->calls) { /* the beginning decides */
        const Slice said = answer_from(text, answer_skip_blank(text, 0));
        const Verdict call = said.size > 0 ? answer_match(said, p->calls->open) : VERDICT_MORE;
        if (call == VERDICT_MORE && !p->last) return false;
        if (call == VERDICT_NO) p->calls = NULL;
        p->formatted = false;
    }
    if (text.size > 0) p->trim = false;
    bool found = false;
    size_t size = p->calls ? answer_find(text, p->calls->open, &found) : text.size;
    /* After calls, a cut marker is the beginning of another call. */
    const bool marker = p->last && p->cut && p->calls_seen > 0 && answer_trimmed((Slice){text.data, size}) == 0;
    if (!found && p->last && marker) {
        p->at = p->held.size;
        return false;
    }
    if (!found && p->last) size = text.size;
    const bool all = !p->calls || (!found && p->last);
    const size_t said = all ? size : answer_trimmed((Slice){text.data, size});
    if (said > 0) p->fresh = false;
    emit(p, ANSWER_CONTENT, said, out);
    if (!found) return false;
    p->state = ANSWER_AMONG_CALLS;
    p->opened = p->looked = size - said + call_marker(p->calls->open).size;
    return true;
}

static bool step(AnswerParser *p, AnswerEvents *out) {
    switch (p->state) {
    case ANSWER_AT_START: return step_start(p);
    case ANSWER_IN_REASONING: return step_reasoning(p, out);
    case ANSWER_IN_CONTENT: return step_content(p, out);
    case ANSWER_AMONG_CALLS: return step_among(p, out);
    case ANSWER_IN_ARGUMENTS: return step_arguments(p, out);
    case ANSWER_BEHIND_ARGUMENTS: return step_behind_arguments(p);
    default: return answer_channels(p, rest_of(p), out);
    }
}

void answer_push(AnswerParser *p, Slice text, AnswerEvents *out) {
    buffer_slice(&p->held, text);
    out->failed |= p->held.failed;
    while (!out->failed && p->at < p->held.size && step(p, out)) continue;
    if (p->at == 0) return;
    memmove(p->held.data, p->held.data + p->at, p->held.size - p->at);
    p->held.size -= p->at;
    p->at = 0;
}

void answer_finish(AnswerParser *p, bool cut, AnswerEvents *out) {
    p->last = true;
    p->cut = cut;
    while (!out->failed && p->at < p->held.size && step(p, out)) continue;
    const bool in_call =
        p->state == ANSWER_IN_ARGUMENTS || (p->state == ANSWER_IN_MESSAGE && p->message == ANSWER_ARGUMENTS);
    if (in_call) answer_emit(out, ANSWER_CALL_END, (Slice){0});
    buffer_clear(&p->held);
    p->at = 0;
}
