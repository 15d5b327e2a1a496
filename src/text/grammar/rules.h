/* Rules: expressions over lexemes, which may name each other and themselves. What is only a lexeme stays one as long as
 * it is small, so that it is run by rows and not by stacks. Internal to text/grammar. */
#pragma once
#include "base/arena.h"
#include "text/grammar/lex.h"

typedef uint32_t Expr; /* a number in its Rules */
typedef uint32_t Rule;
enum { EXPR_NONE, EXPR_EMPTY };
enum { EXPR_LEX_SIZE_MAX = 32 }; /* lexemes up to this size are merged into a larger one */

typedef enum ExprKind {
    EXPR_IS_NONE,
    EXPR_IS_EMPTY,
    EXPR_IS_LEX,    /* a: the lexeme */
    EXPR_IS_SEQ,    /* b children from a on */
    EXPR_IS_OR,     /* the same */
    EXPR_IS_REPEAT, /* a, min to max times */
    EXPR_IS_RULE    /* a: the rule */
} ExprKind;

typedef struct ExprNode {
    uint8_t kind;
    bool nullable;   /* rules_check: may be empty */
    bool productive; /* rules_check: some text fits */
    uint8_t color;   /* rules_check */
    uint32_t a, b, min, max;
} ExprNode;

typedef struct RuleNode {
    Expr body;
    Slice name; /* for messages; of the source */
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

/* Failures show in the budget; the result is then EXPR_NONE. */
Expr expr_lex(Rules *r, Lex lex);
Expr expr_seq(Rules *r, const Expr *list, uint32_t count);
Expr expr_or(Rules *r, const Expr *list, uint32_t count);
Expr expr_repeat(Rules *r, Expr a, uint32_t min, uint32_t max);
Expr expr_rule(Rules *r, Rule rule);
static inline Expr expr_optional(Rules *r, Expr a) { return expr_or(r, (const Expr[]){EXPR_EMPTY, a}, 2); }
#define EXPR_SEQ(r, ...) expr_seq((r), (const Expr[]){__VA_ARGS__}, sizeof((const Expr[]){__VA_ARGS__}) / sizeof(Expr))
#define EXPR_OR(r, ...) expr_or((r), (const Expr[]){__VA_ARGS__}, sizeof((const Expr[]){__VA_ARGS__}) / sizeof(Expr))
/* Lists of unknown length: pushed onto the scratch stack, and taken from it from start on. */
void expr_push(Rules *r, Expr a);
Expr expr_take(Rules *r, uint32_t start, ExprKind kind);
/* The lexeme that an expression is, or LEX_NONE. */
Lex expr_as_lex(const Rules *r, Expr a);

Rule rule_new(Rules *r, Slice name);
void rule_define(Rules *r, Rule rule, Expr body);

/* Once all rules are defined: finds what may be empty and what no text can fit (it is never begun), turns rules that
 * begin with themselves into repeats and refuses other circles at the beginning. False: the budget has why. */
bool rules_check(Rules *r, Rule root);
