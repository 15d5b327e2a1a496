/* Rules: expressions over lexemes; rules may refer to each other and to themselves. Expressions that are regular and
 * small are merged into lexemes, which run by automaton rows instead of stacks. Internal to text/grammar. */
#pragma once
#include "base/arena.h"
#include "text/grammar/lex.h"

typedef uint32_t Expr; /* index into Rules.nodes */
typedef uint32_t Rule;
enum { EXPR_NONE, EXPR_EMPTY };
enum { EXPR_LEX_SIZE_MAX = 32 }; /* lexemes up to this size are merged into a larger one */

typedef enum ExprKind {
    EXPR_IS_NONE,
    EXPR_IS_EMPTY,
    EXPR_IS_LEX,    /* a: the lexeme */
    EXPR_IS_SEQ,    /* b children from a on */
    EXPR_IS_OR,     /* b children from a on */
    EXPR_IS_REPEAT, /* a, min to max times */
    EXPR_IS_RULE    /* a: the rule */
} ExprKind;

typedef struct ExprNode {
    uint8_t kind;
    bool nullable;   /* rules_check: matches the empty text */
    bool productive; /* rules_check: some text matches */
    uint8_t color;   /* rules_check */
    uint32_t a, b, min, max;
} ExprNode;

typedef struct RuleNode {
    Expr body;
    Slice name; /* for messages; borrowed from the source */
    bool defined;
} RuleNode;

typedef struct Rules {
    Lexicon *lexicon;
    Budget *budget;
    ExprNode *nodes;
    uint32_t count, capacity;
    uint32_t *children;
    uint32_t child_count, child_capacity;
    RuleNode *rules;
    uint32_t rule_count, rule_capacity;
    Expr *work; /* scratch, a stack */
    uint32_t work_count, work_capacity;
} Rules;

NODISCARD bool rules_open(Rules *r, Lexicon *lexicon);
void rules_close(Rules *r);

/* On failure budget->failed is set and the result is EXPR_NONE. */
Expr expr_lex(Rules *r, Lex lex);
Expr expr_seq(Rules *r, const Expr *list, uint32_t count);
Expr expr_or(Rules *r, const Expr *list, uint32_t count);
Expr expr_repeat(Rules *r, Expr a, uint32_t min, uint32_t max);
Expr expr_rule(Rules *r, Rule rule);
static inline Expr expr_optional(Rules *r, Expr a) { return expr_or(r, (const Expr[]){EXPR_EMPTY, a}, 2); }
#define EXPR_SEQ(r, ...) expr_seq((r), (const Expr[]){__VA_ARGS__}, sizeof((const Expr[]){__VA_ARGS__}) / sizeof(Expr))
#define EXPR_OR(r, ...) expr_or((r), (const Expr[]){__VA_ARGS__}, sizeof((const Expr[]){__VA_ARGS__}) / sizeof(Expr))
/* Lists of unknown length: expr_push pushes onto the scratch stack, expr_take pops everything from index start on. */
void expr_push(Rules *r, Expr a);
Expr expr_take(Rules *r, uint32_t start, ExprKind kind);
/* The lexeme of an expression that is one, otherwise LEX_NONE. */
Lex expr_as_lex(const Rules *r, Expr a);

Rule rule_new(Rules *r, Slice name);
void rule_define(Rules *r, Rule rule, Expr body);

/* After all rules are defined: computes nullable and productive, turns direct left recursion into repeats and refuses
 * other left recursion. Unproductive rules are never entered. False: the budget has the error. */
bool rules_check(Rules *r, Rule root);
