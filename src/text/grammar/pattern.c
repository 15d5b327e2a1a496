/* Regular expressions: from a pattern to a lexeme. */
#include "text/grammar/pattern.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/utf8.h"
#include "text/grammar/grammar.h"

typedef enum PieceKind { PIECE_LEX, PIECE_CAT, PIECE_ALT, PIECE_REPEAT, PIECE_START, PIECE_END, PIECE_LOOK } PieceKind;

typedef struct Piece {
    PieceKind kind;
    bool negative; /* LOOK */
    bool edges;    /* START, END or LOOK at or below it */
    Lex lex;
    uint32_t min, max;
    struct Piece *first, *next;
} Piece;

typedef struct Parser {
    Lexicon *x;
    Arena arena;
    Slice text;
    size_t at;
    int depth;
    Spelling spelling;
    PatternFlags flags;
    bool search; /* bare text: the match may stand anywhere in it */
    bool loose;  /* the alternative at hand may hold ^ and $ where they need not match: its shape is checked apart */
} Parser;

static Piece *parse_alternatives(Parser *p);

static Piece *broken(Parser *p, const char *what) {
    budget_fail(p->x->budget, ERROR_FORMAT, "regular expression, byte %zu: %s", p->at, what);
    return NULL;
}
static Piece *unsupported(Parser *p, const char *what) {
    budget_fail(p->x->budget, ERROR_UNSUPPORTED, "regular expression, byte %zu: %s is not supported", p->at, what);
    return NULL;
}

static bool at_end(const Parser *p) { return p->at >= p->text.size; }
static char peek(const Parser *p) { return at_end(p) ? '\0' : p->text.data[p->at]; }
static bool accept(Parser *p, const char *text) {
    const Slice rest = {p->text.data + p->at, p->text.size - p->at};
    if (!slice_starts(rest, slice_of(text))) return false;
    p->at += strlen(text);
    return true;
}

static Piece *piece_new(Parser *p, PieceKind kind, Piece *first) {
    Piece *piece = arena_alloc(&p->arena, 1, sizeof *piece);
    if (!piece) {
        budget_fail(p->x->budget, arena_failure(&p->arena), "no memory for a regular expression");
        return NULL;
    }
    piece->kind = kind;
    piece->first = first;
    piece->edges = kind == PIECE_START || kind == PIECE_END || kind == PIECE_LOOK;
    for (const Piece *child = first; child; child = child->next) piece->edges = piece->edges || child->edges;
    return piece;
}

static Piece *piece_of_lex(Parser *p, Lex lex) {
    Piece *piece = piece_new(p, PIECE_LEX, NULL);
    if (piece) piece->lex = lex;
    return p->x->budget->failed ? NULL : piece;
}

static Piece *piece_of_chars(Parser *p, Chars *set) {
    if (p->flags.fold) chars_fold(p->x->budget, set);
    chars_normalize(set);
    const Lex lex = chars_lex(p->x, set, p->spelling);
    chars_free(p->x->budget, set);
    return piece_of_lex(p, lex);
}

/* --- Escapes and classes ------------------------------------------------------------------------------------------ */

static bool read_hex(Slice text, size_t *at, size_t digits, uint32_t *code) {
    *code = 0;
    for (size_t i = 0; i < digits; i++, (*at)++) {
        const char c = *at < text.size ? text.data[*at] : '\0';
        const int digit = c >= '0' && c <= '9'       ? c - '0'
            : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                     : -1;
        if (digit < 0) return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

/* \uHHHH, also as a pair of surrogates, and \u{…}: behind the letter. */
static bool read_unicode(Slice text, size_t *at, uint32_t *code) {
    if (*at < text.size && text.data[*at] == '{') {
        size_t digits = 0;
        (*at)++;
        while (*at + digits < text.size && text.data[*at + digits] != '}') digits++;
        return digits >= 1 && digits <= 6 && read_hex(text, at, digits, code) && (*at)++ < text.size;
    }
    uint32_t low;
    if (!read_hex(text, at, 4, code)) return false;
    size_t behind = *at + 2;
    if (*code < 0xD800 || *code > 0xDBFF || behind > text.size || text.data[*at] != '\\' || text.data[*at + 1] != 'u')
        return true;
    if (!read_hex(text, &behind, 4, &low) || low < 0xDC00 || low > 0xDFFF) return true;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    *at = behind;
    return true;
}

static bool escape_fail(Lexicon *x, size_t at, const char *what) {
    return budget_fail(x->budget, ERROR_FORMAT, "regular expression, byte %zu: %s", at, what);
}

/* \p{Name}, \p{gc=Name}: behind the letter. */
static bool read_property(Lexicon *x, Slice text, size_t *at, Chars *set, bool negated) {
    const size_t start = *at + 1;
    size_t end = start;
    if (*at >= text.size || text.data[*at] != '{') return escape_fail(x, *at, "expected { behind \\p");
    while (end < text.size && text.data[end] != '}') end++;
    if (end >= text.size) return escape_fail(x, *at, "\\p{ without }");
    Slice name = {text.data + start, end - start};
    const char *equals = memchr(name.data, '=', name.size);
    if (equals && (slice_starts(name, SLICE("gc=")) || slice_starts(name, SLICE("General_Category=")))) {
        name.size -= (size_t)(equals + 1 - name.data);
        name.data = equals + 1;
    }
    *at = end + 1;
    return chars_add_property(x->budget, set, name, negated) ||
        budget_fail(x->budget, ERROR_UNSUPPORTED,
            "regular expression, byte %zu: the property \\p{%.*s} is not supported", start, SLICE_SHOWN(name));
}

bool pattern_escape(Lexicon *x, Slice text, size_t *at, Chars *set, int64_t *code) {
    static const char controls[] = "t\tn\nv\vf\fr\r0\0";
    uint32_t value = 0;
    if (*at >= text.size) return escape_fail(x, *at, "a backslash at the end");
    const char c = text.data[(*at)++];
    *code = -1;
    if (chars_add_named(x->budget, set, c)) return !x->budget->failed;
    if (c == 'p' || c == 'P') return read_property(x, text, at, set, c == 'P');
    if (c == 'x' || c == 'u') {
        const bool read = c == 'x' ? read_hex(text, at, 2, &value) : read_unicode(text, at, &value);
        *code = value;
        return (read && value <= UNICODE_MAX) || escape_fail(x, *at, "expected hexadecimal digits of a character");
    }
    if (c == 'c' && *at < text.size && (text.data[*at] | 0x20) >= 'a' && (text.data[*at] | 0x20) <= 'z') {
        *code = text.data[(*at)++] & 31;
        return true;
    }
    for (size_t i = 0; i + 1 < sizeof controls; i += 2) {
        if (controls[i] != c) continue;
        *code = controls[i + 1];
        return true;
    }
    const bool letter = (c >= '1' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (letter)
        return budget_fail(
            x->budget, ERROR_UNSUPPORTED, "regular expression, byte %zu: \\%c is not supported", *at - 1, c);
    (*at)--;
    *at += (size_t)abs(utf8_decode(text.data + *at, text.size - *at, &value));
    *code = value;
    return true;
}

/* A character, or behind a backslash perhaps a set. */
static bool class_item(Parser *p, Chars *set, int64_t *code) {
    if (accept(p, "\\b")) {
        *code = '\b';
        return true;
    }
    if (accept(p, "\\")) return pattern_escape(p->x, p->text, &p->at, set, code);
    uint32_t value;
    p->at += (size_t)abs(utf8_decode(p->text.data + p->at, p->text.size - p->at, &value));
    *code = value;
    return true;
}

/* Behind the opening bracket. */
static Piece *parse_class(Parser *p) {
    Chars set = {0};
    const bool negated = accept(p, "^");
    while (!at_end(p) && peek(p) != ']') {
        int64_t first, last;
        if (!class_item(p, &set, &first)) break;
        const bool range = first >= 0 && p->at + 1 < p->text.size && peek(p) == '-' && p->text.data[p->at + 1] != ']';
        last = first;
        if (range) {
            p->at++;
            if (!class_item(p, &set, &last)) break;
            if (last < first) broken(p, "a range ends before it begins");
        }
        if (first >= 0 && !p->x->budget->failed) chars_add(p->x->budget, &set, (uint32_t)first, (uint32_t)last);
    }
    if (!accept(p, "]")) broken(p, "a class is not closed");
    if (p->flags.fold) chars_fold(p->x->budget, &set);
    if (negated) chars_negate(p->x->budget, &set);
    return piece_of_chars(p, &set);
}

/* --- Groups and repeats ------------------------------------------------------------------------------------------- */

/* Behind the opening parenthesis. */
static Piece *parse_group(Parser *p) {
    if (++p->depth > GRAMMAR_DEPTH_MAX) {
        budget_fail(p->x->budget, ERROR_LIMIT, "regular expression, byte %zu: more than %d nested groups", p->at,
            GRAMMAR_DEPTH_MAX);
        return NULL;
    }
    const bool ahead = accept(p, "?="), not_ahead = !ahead && accept(p, "?!");
    if (accept(p, "?<=") || accept(p, "?<!")) return unsupported(p, "look-behind");
    if (!ahead && !not_ahead && !accept(p, "?:") && peek(p) == '?') {
        if (!accept(p, "?<") && !accept(p, "?P<")) return unsupported(p, "this kind of group");
        while (!at_end(p) && peek(p) != '>') p->at++;
        if (!accept(p, ">")) return broken(p, "the name of a group does not end");
    }
    Piece *piece = parse_alternatives(p);
    if (!piece) return NULL;
    if (!accept(p, ")")) return broken(p, "a parenthesis is not closed");
    p->depth--;
    if (ahead || not_ahead) {
        piece = piece_new(p, PIECE_LOOK, piece);
        if (piece) piece->negative = not_ahead;
    }
    return piece;
}

static Piece *parse_atom(Parser *p) {
    Chars set = {0};
    int64_t code = -1;
    if (accept(p, "(")) return parse_group(p);
    if (accept(p, "[")) return parse_class(p);
    if (accept(p, "^")) return piece_new(p, PIECE_START, NULL);
    if (accept(p, "$")) return piece_new(p, PIECE_END, NULL);
    if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?') return broken(p, "nothing to repeat");
    if (accept(p, "\\b") || accept(p, "\\B")) return unsupported(p, "a word boundary");
    if (accept(p, ".")) {
        if (!p->flags.dot_all) {
            chars_add(p->x->budget, &set, '\n', '\n');
            chars_add(p->x->budget, &set, '\r', '\r');
            chars_add(p->x->budget, &set, 0x2028, 0x2029);
        }
        chars_negate(p->x->budget, &set);
    } else if (!class_item(p, &set, &code)) {
        chars_free(p->x->budget, &set);
        return NULL;
    }
    if (code >= 0) chars_add(p->x->budget, &set, (uint32_t)code, (uint32_t)code);
    return piece_of_chars(p, &set);
}

static bool read_count(Parser *p, uint32_t *count) {
    uint64_t value = 0;
    const size_t start = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        value = value < LEX_FOREVER ? value * 10 + (uint64_t)(peek(p) - '0') : value;
    *count = value < LEX_FOREVER ? (uint32_t)value : LEX_FOREVER - 1;
    return p->at > start;
}

/* {n}, {n,}, {n,m}; anything else is a brace as such, and nothing is consumed. */
static bool parse_interval(Parser *p, uint32_t *min, uint32_t *max) {
    const size_t start = p->at++;
    if (read_count(p, min)) {
        *max = *min;
        if (accept(p, ",") && !read_count(p, max)) *max = LEX_FOREVER;
        if (accept(p, "}")) return true;
    }
    p->at = start;
    return false;
}

static Piece *parse_repeats(Parser *p, Piece *piece) {
    while (piece) {
        uint32_t min = 0, max = LEX_FOREVER;
        if (peek(p) == '{') {
            if (!parse_interval(p, &min, &max)) return piece;
            if (min > max) return broken(p, "a repeat ends before it begins");
        } else if (accept(p, "+")) {
            min = 1;
        } else if (accept(p, "?")) {
            max = 1;
        } else if (!accept(p, "*")) {
            return piece;
        }
        accept(p, "?"); /* lazy: the same language */
        if (piece->edges) return unsupported(p, "repeating an assertion");
        piece = piece_new(p, PIECE_REPEAT, piece);
        if (!piece) return NULL;
        piece->min = min;
        piece->max = max;
    }
    return NULL;
}

static Piece *parse_sequence(Parser *p) {
    Piece *first = NULL, **tail = &first;
    while (!at_end(p) && peek(p) != '|' && peek(p) != ')') {
        Piece *piece;
        if (peek(p) == '{') { /* not behind anything: a character */
            piece = piece_of_lex(p, lex_range(p->x, '{', '{'));
            p->at++;
        } else {
            piece = parse_repeats(p, parse_atom(p));
        }
        if (!piece || !budget_step(p->x->budget, 1)) return NULL;
        *tail = piece;
        tail = &piece->next;
    }
    return piece_new(p, PIECE_CAT, first);
}

static Piece *parse_alternatives(Parser *p) {
    Piece *first = parse_sequence(p), *last = first;
    while (last && accept(p, "|")) {
        last->next = parse_sequence(p);
        last = last->next;
        if (!last) return NULL;
    }
    return last ? piece_new(p, PIECE_ALT, first) : NULL;
}

/* --- To lexemes --------------------------------------------------------------------------------------------------- */

/* In JSON a string begins and ends with quotes that cannot stand inside: they are what ^ and $ match. In bare text,
 * which is matched as a whole, ^ and $ at its edges say nothing, and elsewhere they cannot match. */
static Lex lower(Parser *p, const Piece *piece) {
    Lexicon *x = p->x;
    const uint32_t start = x->work.count;
    Lex all = LEX_EMPTY;
    switch (piece->kind) {
    case PIECE_LEX: return piece->lex;
    case PIECE_START:
    case PIECE_END: return p->spelling == SPELLING_JSON ? lex_range(x, '"', '"') : LEX_NONE;
    case PIECE_REPEAT: return lex_repeat(x, lower(p, piece->first), piece->min, piece->max);
    case PIECE_LOOK: unsupported(p, "look-ahead inside of a group"); return LEX_NONE;
    case PIECE_ALT:
        for (const Piece *child = piece->first; child; child = child->next) lex_push(x, lower(p, child));
        return lex_combine(x, start, LEX_IS_OR);
    case PIECE_CAT: break;
    }
    for (const Piece *child = piece->first; child; child = child->next) lex_push(x, lower(p, child));
    while (x->work.count > start) all = lex_cat(x, x->work.data[--x->work.count], all);
    return x->budget->failed ? LEX_NONE : all;
}

static Lex any_text(Parser *p) { return lex_repeat(p->x, chars_any(p->x, p->spelling), 0, LEX_FOREVER); }
static Lex quote(Parser *p) { return lex_range(p->x, '"', '"'); }

static bool holds(const Piece *piece, PieceKind kind) {
    if (piece->kind == kind) return true;
    for (const Piece *child = piece->first; child; child = child->next)
        if (holds(child, kind)) return true;
    return false;
}

/* What a look-ahead demands of the rest of the text. */
static Lex lower_look(Parser *p, const Piece *piece) {
    if (holds(piece, PIECE_START) || (p->spelling == SPELLING_UTF8 && holds(piece, PIECE_END))) {
        unsupported(p, "^ or $ in a look-ahead");
        return LEX_NONE;
    }
    const Lex look = lex_cat(p->x, lower(p, piece->first), LEX_ALL);
    return piece->negative ? lex_not(p->x, look) : look;
}

/* The rest of one alternative of the whole pattern, from piece on to the end of the text. */
static Lex lower_rest(Parser *p, const Piece *piece) {
    Lexicon *x = p->x;
    const bool json = p->spelling == SPELLING_JSON;
    const uint32_t start = x->work.count;
    if (piece && piece->edges) {
        if (piece->kind == PIECE_END && !piece->next) return json ? quote(p) : LEX_EMPTY;
        if (++p->depth > GRAMMAR_DEPTH_MAX) {
            unsupported(p, "so many assertions in a row");
            return LEX_NONE;
        }
        const Lex rest = lower_rest(p, piece->next);
        return piece->kind == PIECE_LOOK ? lex_and2(x, rest, lower_look(p, piece)) : lex_cat(x, lower(p, piece), rest);
    }
    for (; piece && !piece->edges; piece = piece->next) lex_push(x, lower(p, piece));
    Lex all = LEX_EMPTY;
    if (piece) {
        all = lower_rest(p, piece);
    } else if (json) {
        all = lex_cat(x, any_text(p), quote(p));
        if (p->loose) all = lex_or2(x, LEX_EMPTY, all);
    } else if (p->search) {
        all = any_text(p);
    }
    while (x->work.count > start) all = lex_cat(x, x->work.data[--x->work.count], all);
    return all;
}

static Lex lower_alternative(Parser *p, const Piece *sequence) {
    Lexicon *x = p->x;
    const Piece *piece = sequence->first;
    if (piece && !piece->next && piece->kind == PIECE_ALT && piece->edges) { /* one group around it all */
        const uint32_t start = x->work.count;
        for (const Piece *child = piece->first; child; child = child->next) lex_push(x, lower_alternative(p, child));
        return lex_combine(x, start, LEX_IS_OR);
    }
    const bool begins = piece && piece->kind == PIECE_START;
    if (begins) piece = piece->next;
    p->loose = false;
    for (const Piece *other = piece; other; other = other->next)
        p->loose =
            p->loose || (other->edges && other->kind != PIECE_LOOK && !(other->kind == PIECE_END && !other->next));
    Lex all = lower_rest(p, piece);
    if (p->search && p->loose) {
        unsupported(p, "^ or $ inside of the pattern");
        return LEX_NONE;
    }
    if (p->spelling == SPELLING_UTF8) return begins || !p->search ? all : lex_cat(x, any_text(p), all);
    if (begins) {
        all = lex_cat(x, quote(p), all);
    } else { /* where it is loose, the match may begin with the quote itself */
        const Lex before = lex_cat(x, quote(p), any_text(p));
        all = lex_cat(x, p->loose ? lex_or2(x, LEX_EMPTY, before) : before, all);
    }
    return p->loose ? lex_and2(x, all, lex_cat(x, quote(p), lex_cat(x, any_text(p), quote(p)))) : all;
}

static Lex compile(Lexicon *x, Slice pattern, Spelling spelling, bool search, PatternFlags flags) {
    Parser p = {.x = x,
        .text = pattern,
        .spelling = spelling,
        .search = search,
        .flags = flags,
        .arena = {.limit = GRAMMAR_BYTES_MAX}};
    const uint32_t start = x->work.count;
    Lex all = LEX_NONE;
    const Piece *piece = utf8_valid(pattern) ? parse_alternatives(&p) : broken(&p, "it is not UTF-8");
    if (piece && !at_end(&p)) piece = broken(&p, "a parenthesis too many");
    if (piece && !x->budget->failed) {
        p.depth = 0;
        for (const Piece *child = piece->first; child; child = child->next) lex_push(x, lower_alternative(&p, child));
        all = lex_combine(x, start, LEX_IS_OR);
    }
    x->work.count = start;
    arena_free(&p.arena);
    return x->budget->failed ? LEX_NONE : all;
}

Lex pattern_whole(Lexicon *x, Slice pattern, PatternFlags flags) {
    return compile(x, pattern, SPELLING_UTF8, false, flags);
}
Lex pattern_in_text(Lexicon *x, Slice pattern) { return compile(x, pattern, SPELLING_UTF8, true, (PatternFlags){0}); }
Lex pattern_in_json(Lexicon *x, Slice pattern) { return compile(x, pattern, SPELLING_JSON, false, (PatternFlags){0}); }
