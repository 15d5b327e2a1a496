/* Rules: nullable rules, unproductive rules and left recursion. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/rules.h"

static bool is_list(const ExprNode *n) { return n->kind == EXPR_IS_SEQ || n->kind == EXPR_IS_OR; }

/* --- Properties that spread from children to parents -------------------------------------------------------------- */

/* The parents of each expression, one after another. */
typedef struct Parents {
    uint32_t *first; /* by expression, and one more */
    Expr *list;
    uint32_t *missing; /* sequence: children without the property so far */
    Expr *queue;
    uint32_t queued, count;
} Parents;

static uint32_t child_count(const Rules *r, const ExprNode *n) {
    return is_list(n) ? n->b : n->kind == EXPR_IS_REPEAT || n->kind == EXPR_IS_RULE;
}
static Expr child_at(const Rules *r, const ExprNode *n, uint32_t i) {
    if (is_list(n)) return r->children[n->a + i];
    return n->kind == EXPR_IS_RULE ? r->rules[n->a].body : n->a;
}

static bool parents_open(Parents *p, const Rules *r) {
    uint32_t edges = 0;
    for (Expr e = 0; e < r->count; e++) edges += child_count(r, &r->nodes[e]);
    *p = (Parents){.first = calloc((size_t)r->count + 2, sizeof *p->first),
        .list = malloc(((size_t)edges + 1) * sizeof *p->list),
        .missing = malloc((size_t)r->count * sizeof *p->missing),
        .queue = malloc((size_t)r->count * sizeof *p->queue),
        .count = r->count};
    if (!p->first || !p->list || !p->missing || !p->queue) return false;
    for (Expr e = 0; e < r->count; e++)
        for (uint32_t i = 0; i < child_count(r, &r->nodes[e]); i++) p->first[child_at(r, &r->nodes[e], i) + 2]++;
    for (uint32_t i = 2; i < r->count + 2; i++) p->first[i] += p->first[i - 1];
    for (Expr e = 0; e < r->count; e++)
        for (uint32_t i = 0; i < child_count(r, &r->nodes[e]); i++)
            p->list[p->first[child_at(r, &r->nodes[e], i) + 1]++] = e;
    return true;
}

static void parents_close(Parents *p) {
    free(p->first);
    free(p->list);
    free(p->missing);
    free(p->queue);
}

static void spread(Parents *p, Rules *r, bool nullable) {
    while (p->queued) {
        const Expr e = p->queue[--p->queued];
        for (uint32_t i = p->first[e]; i < p->first[e + 1]; i++) {
            const Expr parent = p->list[i];
            ExprNode *n = &r->nodes[parent];
            bool *flag = nullable ? &n->nullable : &n->productive;
            if (*flag || (n->kind == EXPR_IS_SEQ && --p->missing[parent] > 0)) continue;
            *flag = true;
            p->queue[p->queued++] = parent;
        }
    }
}

static void find(Parents *p, Rules *r, bool nullable) {
    for (Expr e = 0; e < r->count; e++) {
        ExprNode *n = &r->nodes[e];
        bool has = n->kind == EXPR_IS_EMPTY || (n->kind == EXPR_IS_REPEAT && n->min == 0);
        if (n->kind == EXPR_IS_LEX) has = nullable ? lex_nullable(r->lexicon, n->a) : lex_live(r->lexicon, n->a);
        *(nullable ? &n->nullable : &n->productive) = has;
        p->missing[e] = n->kind == EXPR_IS_SEQ ? n->b : 0;
        if (has) p->queue[p->queued++] = e;
    }
    spread(p, r, nullable);
}

/* --- Beginnings --------------------------------------------------------------------------------------------------- */

static bool begins_with(const Rules *r, Expr e, Rule rule) {
    const ExprNode *n = &r->nodes[e];
    if (n->kind == EXPR_IS_SEQ) n = &r->nodes[r->children[n->a]];
    return n->kind == EXPR_IS_RULE && n->a == rule;
}

/* a = a x | a y | z becomes a = z (x | y)*. */
static void unroll(Rules *r, Rule rule) {
    const Expr body = r->rules[rule].body;
    const ExprNode n = r->nodes[body];
    const uint32_t count = n.kind == EXPR_IS_OR ? n.b : 1;
    bool any = false;
    for (uint32_t i = 0; i < count && !any; i++)
        any = begins_with(r, n.kind == EXPR_IS_OR ? r->children[n.a + i] : body, rule);
    if (!any) return;
    const uint32_t start = r->work_count;
    for (uint32_t i = 0; i < count; i++) {
        const Expr e = n.kind == EXPR_IS_OR ? r->children[n.a + i] : body;
        if (!begins_with(r, e, rule)) expr_push(r, e);
    }
    const Expr heads = expr_take(r, start, EXPR_IS_OR);
    for (uint32_t i = 0; i < count; i++) {
        const Expr e = n.kind == EXPR_IS_OR ? r->children[n.a + i] : body;
        const ExprNode whole = r->nodes[e];
        if (!begins_with(r, e, rule) || whole.kind != EXPR_IS_SEQ) continue; /* a = a has no effect */
        const uint32_t inner = r->work_count;
        for (uint32_t k = 1; k < whole.b; k++) expr_push(r, r->children[whole.a + k]);
        expr_push(r, expr_take(r, inner, EXPR_IS_SEQ));
    }
    const Expr tails = expr_take(r, start, EXPR_IS_OR);
    r->rules[rule].body = EXPR_SEQ(r, heads, expr_repeat(r, tails, 0, LEX_FOREVER));
}

enum { WHITE, GRAY, BLACK };

/* The i-th expression that may begin an expression, if all before it are nullable; EXPR_NONE: no more. */
static Expr beginning(const Rules *r, const ExprNode *n, uint32_t i) {
    if (i >= child_count(r, n)) return EXPR_NONE;
    if (n->kind == EXPR_IS_SEQ && i && !r->nodes[r->children[n->a + i - 1]].nullable) return EXPR_NONE;
    return child_at(r, n, i);
}

/* A rule that reaches itself without consuming a byte: its parse would not terminate. */
static bool find_circle(Rules *r, Expr root) {
    struct Frame {
        Expr expr;
        uint32_t child;
    } *stack = malloc(((size_t)r->count + 1) * sizeof *stack);
    if (!stack) return budget_fail(r->budget, ERROR_MEMORY, "no memory for a grammar");
    uint32_t depth = 0;
    stack[depth++] = (struct Frame){root, 0};
    r->nodes[root].color = GRAY;
    while (depth && !r->budget->failed) {
        struct Frame *top = &stack[depth - 1];
        const ExprNode *n = &r->nodes[top->expr];
        const Expr child = beginning(r, n, top->child++);
        if (!budget_step(r->budget, 1)) break;
        if (!child && top->child > child_count(r, n)) {
            r->nodes[top->expr].color = BLACK;
            depth--;
        } else if (!child) {
            top->child = child_count(r, n); /* no later child begins the expression, or it is empty */
        } else if (r->nodes[child].color == WHITE) {
            r->nodes[child].color = GRAY;
            stack[depth++] = (struct Frame){child, 0};
        } else if (r->nodes[child].color == GRAY) {
            Slice name = SLICE("?");
            for (uint32_t i = depth; i-- > 0;)
                if (r->nodes[stack[i].expr].kind == EXPR_IS_RULE) name = r->rules[r->nodes[stack[i].expr].a].name;
            budget_fail(
                r->budget, ERROR_UNSUPPORTED, "the rule %.*s begins with itself by way of others", SLICE_SHOWN(name));
        }
    }
    free(stack);
    return !r->budget->failed;
}

bool rules_check(Rules *r, Rule root) {
    for (Rule i = 0; i < r->rule_count && !r->budget->failed; i++) {
        if (!r->rules[i].defined)
            return budget_fail(r->budget, ERROR_FORMAT, "the rule %.*s is not defined", SLICE_SHOWN(r->rules[i].name));
        unroll(r, i);
    }
    if (r->budget->failed) return false;
    Parents parents;
    if (parents_open(&parents, r)) {
        find(&parents, r, true);
        find(&parents, r, false);
    } else {
        budget_fail(r->budget, ERROR_MEMORY, "no memory for a grammar");
    }
    parents_close(&parents);
    for (Rule i = 0; i < r->rule_count && !r->budget->failed; i++)
        if (r->nodes[r->rules[i].body].color == WHITE) find_circle(r, r->rules[i].body);
    if (r->budget->failed) return false;
    return r->nodes[r->rules[root].body].productive ||
        budget_fail(r->budget, ERROR_UNSUPPORTED, "nothing fits the grammar");
}
