/* Regular expressions: from a tree to a lexeme. */
#include "text/grammar/pattern.h"

#include "base/arena.h"
#include "base/utf8.h"
#include "text/grammar/grammar.h"
#include "text/regex/regex_ast.h"

typedef struct Lowering {
    Lexicon *x;
    Spelling spelling;
    int depth;
    bool search; /* text that is not JSON: the match may be anywhere in it */
    bool loose;  /* the alternative at hand may hold ^ and $ where they need not match: its shape is checked apart */
} Lowering;

static Lex unsupported(Lowering *p, const char *what) {
    budget_fail(p->x->budget, ERROR_UNSUPPORTED, "regular expression: %s is not supported", what);
    return LEX_NONE;
}

static bool is_assert(const Node *node, AssertKind kind) { return node->kind == NODE_ASSERT && node->assert == kind; }

/* --- Sets of characters ------------------------------------------------------------------------------------------- */

static void add_set(Budget *budget, Chars *out, const CharSet *set) {
    Chars own = {0};
    for (size_t i = 0; i < set->range_count; i++) chars_add(budget, &own, set->ranges[i].first, set->ranges[i].last);
    if (set->categories) chars_add_categories(budget, &own, set->categories);
    for (const CharSet *child = set->child; child; child = child->sibling) add_set(budget, &own, child);
    if (set->fold) chars_fold(budget, &own);
    if (set->negated) chars_negate(budget, &own);
    chars_add_all(budget, out, &own);
    chars_free(budget, &own);
}

static Lex lower_set(Lowering *p, const CharSet *set) {
    Chars chars = {0};
    add_set(p->x->budget, &chars, set);
    chars_normalize(&chars);
    const Lex lex = chars_lex(p->x, &chars, p->spelling);
    chars_free(p->x->budget, &chars);
    return lex;
}

bool pattern_escape(Lexicon *x, Slice text, size_t *at, Chars *set, int64_t *code) {
    Arena arena = {.limit = GRAMMAR_BYTES_MAX};
    Error error = {0};
    const CharSet *named = NULL;
    uint32_t character = 0;
    const bool ok = regex_parse_escape(&arena, text, REGEX_ECMA, at, &named, &character, &error) ||
        budget_fail(x->budget, error.code, "%s", error.text);
    *code = ok && !named ? (int64_t)character : -1;
    if (named) add_set(x->budget, set, named);
    arena_free(&arena);
    return ok && !x->budget->failed;
}

/* --- To lexemes --------------------------------------------------------------------------------------------------- */

/* In JSON, ^ and $ match the quotes, which cannot be inside of the string. Other text is matched as a whole: ^ and $ at
 * its edges are no constraint, and elsewhere they cannot match. */
static Lex lower(Lowering *p, const Node *node) {
    Lexicon *x = p->x;
    const uint32_t start = x->work.count;
    Lex all = LEX_EMPTY;
    if (!budget_step(x->budget, 1)) return LEX_NONE;
    switch (node->kind) {
    case NODE_SET: return lower_set(p, node->set);
    case NODE_ASSERT: return p->spelling == SPELLING_JSON ? lex_range(x, '"', '"') : LEX_NONE;
    case NODE_REPEAT: return lex_repeat(x, lower(p, node->first), node->min, node->max);
    case NODE_LOOK: return unsupported(p, "look-ahead inside of a group");
    case NODE_ATOMIC: return unsupported(p, "an atomic group");
    case NODE_ALT:
        for (const Node *child = node->first; child; child = child->next) lex_push(x, lower(p, child));
        return lex_combine(x, start, LEX_IS_OR);
    case NODE_CAT: break;
    }
    for (const Node *child = node->first; child; child = child->next) lex_push(x, lower(p, child));
    while (x->work.count > start) all = lex_cat(x, x->work.data[--x->work.count], all);
    return x->budget->failed ? LEX_NONE : all;
}

static Lex any_text(Lowering *p) { return lex_repeat(p->x, chars_any(p->x, p->spelling), 0, LEX_FOREVER); }
static Lex quote(Lowering *p) { return lex_range(p->x, '"', '"'); }

static bool holds(const Node *node, AssertKind kind) {
    if (is_assert(node, kind)) return true;
    for (const Node *child = node->first; child; child = child->next)
        if (holds(child, kind)) return true;
    return false;
}

/* What a look-ahead demands of the rest of the text. */
static Lex lower_look(Lowering *p, const Node *node) {
    if (holds(node, ASSERT_START) || (p->spelling == SPELLING_UTF8 && holds(node, ASSERT_END)))
        return unsupported(p, "^ or $ in a look-ahead");
    const Lex look = lex_cat(p->x, lower(p, node->first), LEX_ALL);
    return node->negative ? lex_not(p->x, look) : look;
}

/* The rest of one alternative of the whole pattern, from node on to the end of the text. */
static Lex lower_rest(Lowering *p, const Node *node) {
    Lexicon *x = p->x;
    const bool json = p->spelling == SPELLING_JSON;
    const uint32_t start = x->work.count;
    if (node && node->edges) {
        if (is_assert(node, ASSERT_END) && !node->next) return json ? quote(p) : LEX_EMPTY;
        if (++p->depth > GRAMMAR_DEPTH_MAX) return unsupported(p, "so many assertions in a row");
        const Lex rest = lower_rest(p, node->next);
        return node->kind == NODE_LOOK ? lex_and2(x, rest, lower_look(p, node)) : lex_cat(x, lower(p, node), rest);
    }
    for (; node && !node->edges; node = node->next) lex_push(x, lower(p, node));
    Lex all = LEX_EMPTY;
    if (node) {
        all = lower_rest(p, node);
    } else if (json) {
        all = lex_cat(x, any_text(p), quote(p));
        if (p->loose) all = lex_or2(x, LEX_EMPTY, all);
    } else if (p->search) {
        all = any_text(p);
    }
    while (x->work.count > start) all = lex_cat(x, x->work.data[--x->work.count], all);
    return all;
}

static Lex lower_alternatives(Lowering *p, const Node *node);

static Lex lower_alternative(Lowering *p, const Node *sequence) {
    Lexicon *x = p->x;
    const Node *node = sequence->first;
    const bool group = node && (node->kind == NODE_ALT || node->kind == NODE_CAT);
    if (group && !node->next && node->edges) return lower_alternatives(p, node); /* one group around it all */
    const bool begins = node && is_assert(node, ASSERT_START);
    if (begins) node = node->next;
    p->loose = false;
    for (const Node *other = node; other; other = other->next)
        p->loose =
            p->loose || (other->edges && other->kind != NODE_LOOK && !(is_assert(other, ASSERT_END) && !other->next));
    Lex all = lower_rest(p, node);
    if (p->search && p->loose) return unsupported(p, "^ or $ inside of the pattern");
    if (p->spelling == SPELLING_UTF8) return begins || !p->search ? all : lex_cat(x, any_text(p), all);
    if (begins) {
        all = lex_cat(x, quote(p), all);
    } else { /* where it is loose, the match may begin with the quote itself */
        const Lex before = lex_cat(x, quote(p), any_text(p));
        all = lex_cat(x, p->loose ? lex_or2(x, LEX_EMPTY, before) : before, all);
    }
    return p->loose ? lex_and2(x, all, lex_cat(x, quote(p), lex_cat(x, any_text(p), quote(p)))) : all;
}

static Lex lower_alternatives(Lowering *p, const Node *node) {
    const uint32_t start = p->x->work.count;
    if (node->kind != NODE_ALT) return lower_alternative(p, node);
    for (const Node *child = node->first; child; child = child->next) lex_push(p->x, lower_alternative(p, child));
    return lex_combine(p->x, start, LEX_IS_OR);
}

static Lex compile(Lexicon *x, Slice pattern, Spelling spelling, bool search, PatternFlags flags) {
    const RegexSyntax syntax = {
        .dialect = REGEX_ECMA, .fold = flags.fold, .dot_all = flags.dot_all, .depth_max = GRAMMAR_DEPTH_MAX};
    Lowering p = {.x = x, .spelling = spelling, .search = search};
    Arena arena = {.limit = GRAMMAR_BYTES_MAX};
    Error error = {0};
    const uint32_t start = x->work.count;
    const Node *node = regex_parse(&arena, pattern, &syntax, &error);
    if (!node) budget_fail(x->budget, error.code, "%s", error.text);
    const Lex all = node && !x->budget->failed ? lower_alternatives(&p, node) : LEX_NONE;
    x->work.count = start;
    arena_free(&arena);
    return x->budget->failed ? LEX_NONE : all;
}

Lex pattern_whole(Lexicon *x, Slice pattern, PatternFlags flags) {
    return compile(x, pattern, SPELLING_UTF8, false, flags);
}
Lex pattern_in_text(Lexicon *x, Slice pattern) { return compile(x, pattern, SPELLING_UTF8, true, (PatternFlags){0}); }
Lex pattern_in_json(Lexicon *x, Slice pattern) { return compile(x, pattern, SPELLING_JSON, false, (PatternFlags){0}); }
