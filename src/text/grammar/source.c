/* Written rules: their common parts. */
#include "text/grammar/source.h"

#include "base/utf8.h"

bool source_fail(Source *s, ErrorCode code, const char *what) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < s->at && i < s->text.size; i++) {
        column = s->text.data[i] == '\n' ? 1 : column + 1;
        line += s->text.data[i] == '\n';
    }
    return budget_fail(s->rules->budget, code, "grammar, line %zu, column %zu: %s", line, column, what);
}

bool source_accept(Source *s, const char *text) {
    const Slice rest = {s->text.data + s->at, s->text.size - s->at};
    if (!slice_starts(rest, slice_of(text))) return false;
    s->at += strlen(text);
    return true;
}

Slice source_name(Source *s, const char *more) {
    const size_t start = s->at;
    for (; !source_ends(s); s->at++) {
        const char c = source_peek(s), letter = c | 0x20;
        if (!(letter >= 'a' && letter <= 'z') && !(c >= '0' && c <= '9') && !strchr(more, c)) break;
    }
    return (Slice){s->text.data + start, s->at - start};
}

Rule source_rule(Source *s, Slice name) {
    uint64_t rule;
    if (map_get(&s->names, name, &rule)) return (Rule)rule;
    rule = rule_new(s->rules, name);
    if (!map_put(&s->names, name, rule)) budget_fail(s->rules->budget, ERROR_MEMORY, "no memory for a grammar");
    return (Rule)rule;
}

static bool hex_digits(Source *s, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, s->at++) {
        const char c = source_peek(s), letter = c | 0x20;
        const bool digit = c >= '0' && c <= '9';
        if (!digit && !(letter >= 'a' && letter <= 'f'))
            return source_fail(s, ERROR_FORMAT, "expected a hexadecimal digit");
        *code = *code << 4 | (uint32_t)(digit ? c - '0' : letter - 'a' + 10);
    }
    return *code <= UNICODE_MAX || source_fail(s, ERROR_FORMAT, "not a character");
}

bool source_string(Source *s, char quote, Buffer *out) {
    static const char shorts[] = "n\nr\rt\tb\bf\fv\v";
    while (!source_ends(s) && source_peek(s) != '\n') {
        const char c = s->text.data[s->at++];
        if (c == quote) return true;
        if (c != '\\') {
            buffer_byte(out, c);
            continue;
        }
        if (source_ends(s)) break;
        const char escape = s->text.data[s->at++];
        const int digits = escape == 'x' ? 2 : escape == 'u' ? 4 : escape == 'U' ? 8 : 0;
        uint32_t code;
        char bytes[4];
        if (digits) {
            if (!hex_digits(s, digits, &code)) return false;
            buffer_append(out, bytes, (size_t)utf8_encode(code, bytes));
            continue;
        }
        const char *found = escape ? strchr(shorts, escape) : NULL;
        const bool is_short = found && (found - shorts) % 2 == 0;
        buffer_byte(out, is_short ? found[1] : escape);
    }
    return source_fail(s, ERROR_FORMAT, "a text is not closed");
}

bool source_number(Source *s, uint32_t *number) {
    uint64_t value = 0;
    const size_t start = s->at;
    for (; source_peek(s) >= '0' && source_peek(s) <= '9'; s->at++)
        value = value < LEX_FOREVER ? value * 10 + (uint64_t)(source_peek(s) - '0') : value;
    *number = value < LEX_FOREVER ? (uint32_t)value : LEX_FOREVER - 1;
    return s->at > start;
}

static void skip_blanks(Source *s) {
    while (source_peek(s) == ' ' || source_peek(s) == '\t') s->at++;
}

/* Behind the opening brace. */
static bool read_interval(Source *s, uint32_t *min, uint32_t *max) {
    skip_blanks(s);
    const bool low = source_number(s, min);
    skip_blanks(s);
    const bool comma = source_accept(s, ",");
    skip_blanks(s);
    const bool high = comma && source_number(s, max);
    skip_blanks(s);
    if (!comma) *max = *min;
    if (!source_accept(s, "}") || (!low && !high)) return source_fail(s, ERROR_FORMAT, "expected a number of repeats");
    return *min <= *max || source_fail(s, ERROR_FORMAT, "a repeat ends before it begins");
}

Expr source_repeat(Source *s, Expr e, bool *any) {
    uint32_t min = 0, max = LEX_FOREVER;
    *any = true;
    if (source_accept(s, "*")) return expr_repeat(s->rules, e, 0, LEX_FOREVER);
    if (source_accept(s, "+")) return expr_repeat(s->rules, e, 1, LEX_FOREVER);
    if (source_accept(s, "?")) return expr_repeat(s->rules, e, 0, 1);
    *any = source_accept(s, "{");
    if (!*any) return e;
    return read_interval(s, &min, &max) ? expr_repeat(s->rules, e, min, max) : EXPR_NONE;
}
