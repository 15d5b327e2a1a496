/* Rules: their expressions. */
#include "text/grammar/rules.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar.h"

static Expr node_new(Rules *r, ExprNode node) {
    r->nodes = budget_grow(r->budget, r->nodes, &r->capacity, (uint64_t)r->count + 1, sizeof *r->nodes);
    if (!budget_step(r->budget, 1)) return EXPR_NONE;
    r->nodes[r->count] = node;
    return r->count++;
}

bool rules_open(Rules *r, Lexicon *lexicon) {
    *r = (Rules){.lexicon = lexicon, .budget = lexicon->budget};
    node_new(r, (ExprNode){.kind = EXPR_IS_NONE});
    node_new(r, (ExprNode){.kind = EXPR_IS_EMPTY});
    return !r->budget->failed;
}

void rules_close(Rules *r) {
    free(r->nodes);
    free(r->children);
    free(r->rules);
    free(r->work);
}

Expr expr_lex(Rules *r, Lex lex) {
    if (lex == LEX_NONE) return EXPR_NONE;
    if (lex == LEX_EMPTY) return EXPR_EMPTY;
    return node_new(r, (ExprNode){.kind = EXPR_IS_LEX, .a = lex});
}

Expr expr_rule(Rules *r, Rule rule) { return node_new(r, (ExprNode){.kind = EXPR_IS_RULE, .a = rule}); }

Lex expr_as_lex(const Rules *r, Expr a) {
    if (a == EXPR_EMPTY) return LEX_EMPTY;
    return r->nodes[a].kind == EXPR_IS_LEX ? r->nodes[a].a : LEX_NONE;
}

/* The expression's lexeme if it is small enough to be merged, otherwise LEX_NONE. */
static Lex small_lex(const Rules *r, Expr a) {
    const Lex lex = expr_as_lex(r, a);
    return r->lexicon->nodes[lex].size <= EXPR_LEX_SIZE_MAX ? lex : LEX_NONE;
}

void expr_push(Rules *r, Expr a) {
    r->work = budget_grow(r->budget, r->work, &r->work_capacity, (uint64_t)r->work_count + 1, sizeof *r->work);
    if (r->work_count < r->work_capacity) r->work[r->work_count++] = a;
}

/* Merges neighbours that are small lexemes and drops empty texts. False: the sequence is unproductive. */
static bool join_sequence(Rules *r, uint32_t start) {
    uint32_t kept = start;
    for (uint32_t i = start; i < r->work_count; i++) {
        const Expr a = r->work[i];
        if (a == EXPR_NONE) return false;
        if (a == EXPR_EMPTY) continue;
        const Lex last = kept > start ? small_lex(r, r->work[kept - 1]) : LEX_NONE, lex = small_lex(r, a);
        if (last && lex) {
            r->work[kept - 1] = expr_lex(r, lex_cat(r->lexicon, last, lex));
        } else {
            r->work[kept++] = a;
        }
    }
    r->work_count = kept;
    return true;
}

/* Merges all small lexemes into one and drops unproductive choices. */
static void join_choice(Rules *r, uint32_t start) {
    uint32_t kept = start;
    Lex joined = LEX_NONE;
    for (uint32_t i = start; i < r->work_count; i++) {
        const Expr a = r->work[i];
        const Lex lex = small_lex(r, a);
        if (a == EXPR_NONE) continue;
        if (lex) {
            joined = lex_or2(r->lexicon, joined, lex);
        } else {
            r->work[kept++] = a;
        }
    }
    r->work_count = kept;
    if (joined) expr_push(r, expr_lex(r, joined));
}

Expr expr_take(Rules *r, uint32_t start, ExprKind kind) {
    Expr result = EXPR_NONE;
    bool fits = true;
    if (kind == EXPR_IS_SEQ) {
        fits = join_sequence(r, start);
    } else {
        join_choice(r, start);
    }
    const uint32_t count = r->work_count - start;
    if (fits && count == 0) result = kind == EXPR_IS_SEQ ? EXPR_EMPTY : EXPR_NONE;
    if (fits && count == 1) result = r->work[start];
    if (fits && count > 1) {
        r->children = budget_grow(
            r->budget, r->children, &r->child_capacity, (uint64_t)r->child_count + count, sizeof *r->children);
        result = node_new(r, (ExprNode){.kind = (uint8_t)kind, .a = r->child_count, .b = count});
        if (result) {
            memcpy(r->children + r->child_count, r->work + start, count * sizeof *r->work);
            r->child_count += count;
        }
    }
    r->work_count = start;
    return r->budget->failed ? EXPR_NONE : result;
}

static Expr take_list(Rules *r, const Expr *list, uint32_t count, ExprKind kind) {
    const uint32_t start = r->work_count;
    for (uint32_t i = 0; i < count; i++) expr_push(r, list[i]);
    return expr_take(r, start, kind);
}
Expr expr_seq(Rules *r, const Expr *list, uint32_t count) { return take_list(r, list, count, EXPR_IS_SEQ); }
Expr expr_or(Rules *r, const Expr *list, uint32_t count) { return take_list(r, list, count, EXPR_IS_OR); }

Expr expr_repeat(Rules *r, Expr a, uint32_t min, uint32_t max) {
    if (min > max) return EXPR_NONE;
    if (max == 0 || a == EXPR_EMPTY) return EXPR_EMPTY;
    if (a == EXPR_NONE) return min ? EXPR_NONE : EXPR_EMPTY;
    if (min == 1 && max == 1) return a;
    const Lex lex = small_lex(r, a);
    if (lex) return expr_lex(r, lex_repeat(r->lexicon, lex, min, max));
    return node_new(r, (ExprNode){.kind = EXPR_IS_REPEAT, .a = a, .min = min, .max = max});
}

Rule rule_new(Rules *r, Slice name) {
    if (r->rule_count >= GRAMMAR_RULES_MAX)
        budget_fail(r->budget, ERROR_LIMIT, "the grammar needs more than %d rules", GRAMMAR_RULES_MAX);
    r->rules = budget_grow(r->budget, r->rules, &r->rule_capacity, (uint64_t)r->rule_count + 1, sizeof *r->rules);
    if (r->budget->failed) return 0;
    r->rules[r->rule_count] = (RuleNode){.name = name};
    return r->rule_count++;
}

void rule_define(Rules *r, Rule rule, Expr body) {
    if (r->budget->failed) return;
    r->rules[rule].body = body;
    r->rules[rule].defined = true;
}
