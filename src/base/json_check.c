#include "base/json_check.h"

#include "base/json_lex.h"

typedef struct Check {
    const char *at, *end;
    Buffer open; /* the brackets of the containers around `at` */
    JsonVerdict verdict;
} Check;

/* Always false. */
static bool stop(Check *c, JsonVerdict verdict) {
    c->verdict = verdict;
    return false;
}

/* at: behind the opening quote. */
static bool check_string(Check *c) {
    for (;;) {
        c->at = json_string_stop(c->at, c->end, false);
        if (c->at == c->end) return stop(c, JSON_IS_CUT);
        const char found = *c->at++;
        if (found == '"') return true;
        if (found != '\\') return stop(c, JSON_IS_NOT);
        if (c->at == c->end) return stop(c, JSON_IS_CUT);
        const char escape = *c->at++;
        if (json_escaped(escape) >= 0) continue;
        if (escape != 'u') return stop(c, JSON_IS_NOT);
        const char *digits = c->at;
        if (json_unicode_escape(&c->at, c->end) >= 0) continue;
        /* What is wrong with it may be that it goes on behind the text. */
        const char *p = digits;
        while (p < c->end && p < digits + 10 && *p != '"' && (uint8_t)*p >= 0x20) p++;
        return stop(c, p == c->end ? JSON_IS_CUT : JSON_IS_NOT);
    }
}

static bool check_digits(Check *c) {
    const char *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    if (c->at > begin) return true;
    return stop(c, c->at == c->end ? JSON_IS_CUT : JSON_IS_NOT);
}

static bool check_number(Check *c, JsonType *type) {
    *type = JSON_INTEGER;
    c->at += *c->at == '-';
    const char *begin = c->at;
    if (!check_digits(c)) return false;
    if (*begin == '0' && c->at > begin + 1) return stop(c, JSON_IS_NOT);
    if (c->at < c->end && *c->at == '.') {
        *type = JSON_REAL;
        c->at++;
        if (!check_digits(c)) return false;
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        *type = JSON_REAL;
        c->at++;
        c->at += c->at < c->end && (*c->at == '+' || *c->at == '-');
        if (!check_digits(c)) return false;
    }
    return true;
}

static bool check_word(Check *c, Slice word) {
    const Slice rest = {c->at, (size_t)(c->end - c->at)};
    if (!slice_starts(rest, word)) return stop(c, slice_starts(word, rest) ? JSON_IS_CUT : JSON_IS_NOT);
    c->at += word.size;
    return true;
}

static bool open_container(Check *c, char bracket) {
    buffer_byte(&c->open, bracket);
    c->at++;
    return !c->open.failed || stop(c, JSON_NO_MEMORY);
}

/* A value, or only the opening bracket of one. */
static bool check_value(Check *c, JsonType *type) {
    switch (*c->at) {
    case '{': *type = JSON_OBJECT; return open_container(c, '{');
    case '[': *type = JSON_ARRAY; return open_container(c, '[');
    case '"':
        *type = JSON_STRING;
        c->at++;
        return check_string(c);
    case 't': *type = JSON_BOOL; return check_word(c, SLICE("true"));
    case 'f': *type = JSON_BOOL; return check_word(c, SLICE("false"));
    case 'n': *type = JSON_NULL; return check_word(c, SLICE("null"));
    default: return (*c->at == '-' || (*c->at >= '0' && *c->at <= '9')) ? check_number(c, type) : stop(c, JSON_IS_NOT);
    }
}

static bool skip_space(Check *c) {
    c->at = json_skip_space(c->at, c->end);
    return c->at < c->end || stop(c, JSON_IS_CUT);
}

/* A key and its colon. */
static bool check_key(Check *c) {
    if (!skip_space(c)) return false;
    if (*c->at++ != '"') return stop(c, JSON_IS_NOT);
    if (!check_string(c) || !skip_space(c)) return false;
    return *c->at++ == ':' || stop(c, JSON_IS_NOT);
}

/* Behind an opening bracket or a value: up to where the next value begins, or to the end of the outermost one. */
static bool check_between(Check *c, bool opened) {
    while (c->open.size > 0) {
        const bool object = c->open.data[c->open.size - 1] == '{';
        if (!skip_space(c)) return false;
        if (*c->at == (object ? '}' : ']')) {
            c->at++;
            c->open.size--;
            opened = false;
            continue;
        }
        if (!opened && *c->at++ != ',') return stop(c, JSON_IS_NOT);
        return !object || check_key(c);
    }
    return true;
}

JsonVerdict json_check(Slice text, size_t *size, JsonType *type) {
    Check c = {.at = text.data, .end = text.data + text.size, .verdict = JSON_IS_WHOLE};
    JsonType inner;
    size_t depth = 0;
    bool first = true, ok = text.size > 0 || stop(&c, JSON_IS_CUT);
    do {
        ok = ok && skip_space(&c) && check_value(&c, first ? type : &inner);
        if (!ok) break;
        ok = check_between(&c, c.open.size > depth);
        depth = c.open.size;
        first = false;
    } while (ok && depth > 0);
    *size = ok ? (size_t)(c.at - text.data) : 0;
    buffer_free(&c.open);
    return c.verdict;
}

bool json_is_object(Slice text) {
    size_t size;
    JsonType type;
    if (json_check(text, &size, &type) != JSON_IS_WHOLE || type != JSON_OBJECT) return false;
    return json_skip_space(text.data + size, text.data + text.size) == text.data + text.size;
}

void json_write_compact(Buffer *out, Slice text) {
    bool in_string = false;
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if (!in_string && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
        if (c == '"') in_string = !in_string;
        buffer_byte(out, c);
        if (in_string && c == '\\' && i + 1 < text.size) buffer_byte(out, text.data[++i]);
    }
}
