/* Splits a template into tokens: trim_blocks, lstrip_blocks, the - and + signs, raw blocks and comments.
 * Reference: jinja2 3.1 lexer.py, whose regular expressions are written out here. */
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/syntax.h"
#include "text/unicode/unicode.h"

bool jinja_lexer_init(JinjaLexer *lexer, Vm *vm, Slice source) {
    *lexer = (JinjaLexer){.vm = vm, .line = 1, .line_starting = true};
    char *copy = jinja_alloc(vm, source.size + 1, 1);
    if (!copy) return false;
    size_t size = 0;
    for (size_t i = 0; i < source.size; i++) {
        char c = source.data[i];
        if (c == '\r') {
            if (i + 1 < source.size && source.data[i + 1] == '\n') i++;
            c = '\n';
        }
        copy[size++] = c;
    }
    if (size && copy[size - 1] == '\n') size--;
    lexer->source = (Slice){copy, size};
    return true;
}

static uint32_t lex_line(JinjaLexer *lexer, size_t at) {
    for (; lexer->line_at < at; lexer->line_at++) lexer->line += lexer->source.data[lexer->line_at] == '\n';
    return lexer->line;
}

static bool lex_at(const JinjaLexer *lexer, size_t at, const char *text) {
    size_t size = strlen(text);
    return lexer->source.size - at >= size && memcmp(lexer->source.data + at, text, size) == 0;
}

static size_t skip_spaces(const JinjaLexer *lexer, size_t at) {
    return jinja_skip_spaces(lexer->source.data, at, lexer->source.size);
}

static void queue_push(JinjaLexer *lexer, JinjaLexeme lexeme) { lexer->queue[lexer->queued++] = lexeme; }

static JinjaLexeme lex_fail(JinjaLexer *lexer, size_t at, const char *message) {
    lexer->vm->line = lex_line(lexer, at);
    jinja_fail(lexer->vm, "%s", message);
    return (JinjaLexeme){.type = TOKEN_BAD};
}

/* The end of the text [from, to) before a tag, after what its sign or lstrip_blocks takes away. */
static size_t trim_before(JinjaLexer *lexer, size_t from, size_t to, char sign, bool print) {
    if (sign == '-') return jinja_strip_spaces(lexer->source.data, from, to);
    if (sign == '+' || print) return to;
    size_t line = to;
    while (line > from && lexer->source.data[line - 1] != '\n') line--;
    if (line == from && !lexer->line_starting) return to;
    return skip_spaces(lexer, line) >= to ? line : to;
}

/* After "%}" and its kin at `at`, or 0 when there is no end there. */
static size_t tag_end(const JinjaLexer *lexer, size_t at, const char *close, bool trim_newline) {
    if (lex_at(lexer, at, "-") && lex_at(lexer, at + 1, close)) return skip_spaces(lexer, at + 3);
    if (trim_newline && lex_at(lexer, at, "+") && lex_at(lexer, at + 1, close)) return at + 3;
    if (!lex_at(lexer, at, close)) return 0;
    at += 2;
    return trim_newline && lex_at(lexer, at, "\n") ? at + 1 : at;
}

static void lex_moved(JinjaLexer *lexer, size_t to) {
    lexer->at = to;
    lexer->line_starting = to > 0 && lexer->source.data[to - 1] == '\n';
}

static void push_data(JinjaLexer *lexer, size_t from, size_t to) {
    if (to <= from) return;
    queue_push(lexer,
        (JinjaLexeme){
            .type = TOKEN_DATA, .line = lex_line(lexer, from), .text = {lexer->source.data + from, to - from}});
}

/* At "{%": after "{% raw %}", or 0. */
static size_t raw_begin(const JinjaLexer *lexer, size_t at) {
    at += 2;
    if (lex_at(lexer, at, "-") || lex_at(lexer, at, "+")) at++;
    at = skip_spaces(lexer, at);
    if (!lex_at(lexer, at, "raw")) return 0;
    at = skip_spaces(lexer, at + 3);
    if (lex_at(lexer, at, "-%}")) return skip_spaces(lexer, at + 3);
    return lex_at(lexer, at, "%}") ? at + 2 : 0;
}

static bool lex_raw(JinjaLexer *lexer, size_t from) {
    size_t size = lexer->source.size;
    for (size_t at = from; at < size; at++) {
        if (!lex_at(lexer, at, "{%")) continue;
        size_t name = at + 2;
        char sign = lex_at(lexer, name, "-") || lex_at(lexer, name, "+") ? lexer->source.data[name] : 0;
        name = skip_spaces(lexer, name + (sign != 0));
        if (!lex_at(lexer, name, "endraw")) continue;
        size_t end = tag_end(lexer, skip_spaces(lexer, name + 6), "%}", true);
        if (!end) continue;
        push_data(lexer, from, trim_before(lexer, from, at, sign, false));
        lex_moved(lexer, end);
        return true;
    }
    lex_fail(lexer, from, "Missing end of raw directive");
    return false;
}

static bool lex_comment(JinjaLexer *lexer, size_t from) {
    for (size_t at = from; at + 1 < lexer->source.size; at++) {
        size_t end = tag_end(lexer, at, "#}", true);
        if (!end) continue;
        lex_moved(lexer, end);
        return true;
    }
    lex_fail(lexer, from, "Missing end of comment tag");
    return false;
}

/* Text up to the next tag; fills the queue. */
static bool lex_root(JinjaLexer *lexer) {
    size_t from = lexer->at, size = lexer->source.size, at = from;
    const char *data = lexer->source.data;
    if (!jinja_step(lexer->vm, 1)) return false;
    while (at < size) {
        const char *brace = memchr(data + at, '{', size - at);
        at = brace ? (size_t)(brace - data) : size;
        if (at + 1 < size && (data[at + 1] == '{' || data[at + 1] == '%' || data[at + 1] == '#')) break;
        if (at < size) at++;
    }
    if (at + 1 >= size) {
        push_data(lexer, from, size);
        lexer->at = size;
        queue_push(lexer, (JinjaLexeme){.type = TOKEN_END, .line = lex_line(lexer, size)});
        return true;
    }
    char kind = data[at + 1];
    size_t raw = kind == '%' ? raw_begin(lexer, at) : 0;
    char sign = at + 2 < size && (data[at + 2] == '-' || data[at + 2] == '+') ? data[at + 2] : 0;
    push_data(lexer, from, trim_before(lexer, from, at, sign, kind == '{'));
    if (raw) {
        lex_moved(lexer, raw);
        return lex_raw(lexer, raw);
    }
    size_t after = at + 2 + (sign != 0);
    if (kind == '#') return lex_comment(lexer, after);
    lexer->state = kind == '%' ? LEX_BLOCK : LEX_PRINT;
    queue_push(lexer,
        (JinjaLexeme){.type = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN,
            .line = lex_line(lexer, at),
            .text = {data + at, 2}});
    lexer->at = after;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t digits_end(const JinjaLexer *lexer, size_t at) {
    while (at < lexer->source.size && is_digit(lexer->source.data[at])) at++;
    return at;
}

/* Decimal digits; with a fraction or an exponent they are a float. After a point (list.1.0) there are integers only. */
static JinjaLexeme lex_number(JinjaLexer *lexer) {
    const char *data = lexer->source.data;
    size_t from = lexer->at, size = lexer->source.size, end = digits_end(lexer, from), more = end;
    if (from == 0 || data[from - 1] != '.') {
        if (end + 1 < size && data[end] == '.' && is_digit(data[end + 1])) more = digits_end(lexer, end + 1);
        size_t exponent = more + 1;
        if (exponent < size && (data[more] | 32) == 'e') {
            if (data[exponent] == '+' || data[exponent] == '-') exponent++;
            if (exponent < size && is_digit(data[exponent])) more = digits_end(lexer, exponent);
        }
    }
    JinjaLexeme lexeme = {.type = more > end ? TOKEN_FLOAT : TOKEN_INTEGER, .line = lex_line(lexer, from)};
    lexeme.text = (Slice){data + from, more - from};
    lexer->at = more;
    lexer->vm->line = lexeme.line;
    bool ok = true;
    lexeme.value = lexeme.type == TOKEN_FLOAT ? jinja_float_parse(lexer->vm, lexeme.text, &ok)
                                              : jinja_int_parse(lexer->vm, lexeme.text, &ok);
    if (!ok || jv_bad(lexeme.value)) return lex_fail(lexer, from, "a number is too long");
    return lexeme;
}

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One escape of Python's unicode-escape after the backslash at `at`; returns bytes consumed, 0 when it is broken. */
static size_t lex_escape(JinjaText *out, const char *at, size_t size) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = at[0] ? strchr(from, at[0]) : NULL;
    if (simple) {
        jinja_text_bytes(out, &to[simple - from], 1, ORIGIN_TEMPLATE);
        return 1;
    }
    if (at[0] == '\n') return 1;
    if (at[0] >= '0' && at[0] <= '7') {
        uint32_t code = 0;
        size_t used = 0;
        while (used < 3 && used < size && at[used] >= '0' && at[used] <= '7')
            code = code * 8 + (uint32_t)(at[used++] - '0');
        jinja_text_code(out, code, ORIGIN_TEMPLATE);
        return used;
    }
    size_t digits = at[0] == 'x' ? 2 : at[0] == 'u' ? 4 : at[0] == 'U' ? 8 : 0;
    if (at[0] == 'N' || (digits && size < digits + 1)) return 0;
    if (digits) {
        uint32_t code = 0;
        for (size_t i = 1; i <= digits; i++) {
            int value = hex_value(at[i]);
            if (value < 0) return 0;
            code = code << 4 | (uint32_t)value;
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 0; /* no lone surrogates here */
        jinja_text_code(out, code, ORIGIN_TEMPLATE);
        return digits + 1;
    }
    jinja_text_plain(out, "\\");
    uint32_t code;
    int width = utf8_decode(at, size, &code);
    if (width == 1) return jinja_text_bytes(out, at, 1, ORIGIN_TEMPLATE), 1;
    char spelled[16]; /* jinja2 spells other characters as escapes first, and this backslash escapes that one */
    int length = snprintf(spelled, sizeof spelled, code < 0x100 ? "x%02x" : code < 0x10000 ? "u%04x" : "U%08x", code);
    jinja_text_bytes(out, spelled, (size_t)length, ORIGIN_TEMPLATE);
    return (size_t)width;
}

static JinjaLexeme lex_string(JinjaLexer *lexer) {
    size_t from = lexer->at, end = from + 1, size = lexer->source.size;
    const char *data = lexer->source.data;
    bool escapes = false;
    while (end < size && data[end] != data[from]) {
        escapes = escapes || data[end] == '\\';
        end += data[end] == '\\' ? 2 : 1;
    }
    if (end >= size) return lex_fail(lexer, from, "a string has no end");
    JinjaLexeme lexeme = {.type = TOKEN_STRING, .line = lex_line(lexer, from), .text = {data + from, end + 1 - from}};
    lexer->at = end + 1;
    lexer->vm->line = lexeme.line;
    if (!escapes) {
        lexeme.value = jv_str(jinja_str_new(lexer->vm, data + from + 1, end - from - 1, ORIGIN_TEMPLATE));
    } else {
        JinjaText *out = jinja_text_push(lexer->vm);
        if (!out) return (JinjaLexeme){.type = TOKEN_BAD};
        for (size_t i = from + 1; i < end;) {
            const char *backslash = memchr(data + i, '\\', end - i);
            size_t stop = backslash ? (size_t)(backslash - data) : end;
            jinja_text_bytes(out, data + i, stop - i, ORIGIN_TEMPLATE);
            i = stop;
            if (i >= end) break;
            size_t used = lex_escape(out, data + i + 1, end - i - 1);
            if (!used) return lex_fail(lexer, i, "a string has a broken escape sequence");
            i += 1 + used;
        }
        lexeme.value = jinja_text_finish(lexer->vm, out);
    }
    if (jv_bad(lexeme.value)) lexeme.type = TOKEN_BAD;
    return lexeme;
}

static JinjaLexeme lex_name(JinjaLexer *lexer) {
    size_t from = lexer->at, at = from;
    bool identifier = true;
    while (at < lexer->source.size) {
        uint32_t code;
        int width = utf8_decode(lexer->source.data + at, lexer->source.size - at, &code);
        if (width < 0 || (code != '_' && !(unicode_set(code) & (UNICODE_L | UNICODE_N)))) break;
        bool letter = code == '_' || (unicode_set(code) & (UNICODE_L | UNICODE_SET(CATEGORY_NL)));
        identifier = identifier && (letter || (at > from && unicode_category(code) == CATEGORY_ND));
        at += (size_t)width;
    }
    if (at == from) return lex_fail(lexer, from, "unexpected character");
    if (!identifier) return lex_fail(lexer, from, "Invalid character in identifier");
    lexer->at = at;
    return (JinjaLexeme){
        .type = TOKEN_NAME, .line = lex_line(lexer, from), .text = {lexer->source.data + from, at - from}};
}

static JinjaLexeme lex_operator(JinjaLexer *lexer) {
    JinjaOp found = OP_NONE;
    for (JinjaOp op = OP_ADD; op <= OP_SEMICOLON; op++) {
        bool longer = found == OP_NONE || strlen(jinja_op_text(op)) > strlen(jinja_op_text(found));
        if (longer && lex_at(lexer, lexer->at, jinja_op_text(op))) found = op;
    }
    if (found == OP_NONE) return lex_name(lexer);
    size_t from = lexer->at;
    if (found == OP_LPAREN || found == OP_LBRACKET || found == OP_LBRACE) {
        if (lexer->balanced == LEXER_BALANCE_MAX) return lex_fail(lexer, from, "too many open brackets");
        lexer->balance[lexer->balanced++] = (char)(found + 1);
    } else if (found == OP_RPAREN || found == OP_RBRACKET || found == OP_RBRACE) {
        if (!lexer->balanced || lexer->balance[--lexer->balanced] != (char)found) {
            lexer->vm->line = lex_line(lexer, from);
            jinja_fail(lexer->vm, "unexpected '%s'", jinja_op_text(found));
            return (JinjaLexeme){.type = TOKEN_BAD};
        }
    }
    lexer->at += strlen(jinja_op_text(found));
    return (JinjaLexeme){.type = TOKEN_OPERATOR,
        .op = found,
        .line = lex_line(lexer, from),
        .text = {lexer->source.data + from, lexer->at - from}};
}

static JinjaLexeme lex_inside(JinjaLexer *lexer) {
    bool block = lexer->state == LEX_BLOCK;
    lexer->at = skip_spaces(lexer, lexer->at);
    if (!jinja_step(lexer->vm, 1)) return (JinjaLexeme){.type = TOKEN_BAD};
    size_t at = lexer->at;
    if (at >= lexer->source.size) return (JinjaLexeme){.type = TOKEN_END, .line = lex_line(lexer, at)};
    size_t end = lexer->balanced ? 0 : tag_end(lexer, at, block ? "%}" : "}}", block);
    if (end) {
        JinjaLexeme lexeme = {.type = block ? TOKEN_BLOCK_END : TOKEN_PRINT_END,
            .line = lex_line(lexer, at),
            .text = {lexer->source.data + at, 2}};
        lexer->state = LEX_ROOT;
        lex_moved(lexer, end);
        return lexeme;
    }
    char c = lexer->source.data[at];
    if (is_digit(c)) return lex_number(lexer);
    if (c == '\'' || c == '"') return lex_string(lexer);
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return lex_name(lexer);
    return lex_operator(lexer);
}

JinjaLexeme jinja_lexer_next(JinjaLexer *lexer) {
    if (lexer->next < lexer->queued) return lexer->queue[lexer->next++];
    if (lexer->state != LEX_ROOT) return lex_inside(lexer);
    lexer->next = lexer->queued = 0;
    while (!lexer->queued) {
        if (!lex_root(lexer)) return (JinjaLexeme){.type = TOKEN_BAD};
    }
    return lexer->queue[lexer->next++];
}
