/* The parser: declarations shared by its three files; each uses only those before it. */
#pragma once
#include "text/jinja/syntax.h"

typedef struct Parser {
    Vm *vm;
    Template *template;
    JinjaLexer lexer;
    JinjaLexeme current, ahead;
    bool has_ahead;
    unsigned macro_reads; /* bit 1 << n: the name n (MacroName) was read since the macro began */
} Parser;

typedef struct NodeList {
    JinjaNode *first, *last;
    uint32_t count;
} NodeList;

/* parser.c: tokens. What expects raises when it does not find. */
void parser_next(Parser *p);
const JinjaLexeme *parser_look(Parser *p); /* the one after the current */
bool parser_at(const Parser *p, JinjaOp op);
bool parser_at_name(const Parser *p, const char *name);
bool parser_skip(Parser *p, JinjaOp op);
bool parser_skip_name(Parser *p, const char *name);
bool parser_expect(Parser *p, JinjaOp op);
bool parser_expect_type(Parser *p, JinjaToken type, const char *what);
void *parser_fail(Parser *p, uint32_t line, const char *message); /* raises; NULL */
void *parser_unexpected(Parser *p, const char *expected);         /* raises; NULL */
void *parser_unsupported(Parser *p);                              /* the current token; raises; NULL */

/* Nodes; NULL when an error was raised. */
JinjaNode *parser_node(Parser *p, JinjaKind kind, uint32_t line);
JinjaNode *parser_node_two(Parser *p, JinjaKind kind, uint32_t line, JinjaOp op, JinjaNode *a, JinjaNode *b);
JinjaNode *parser_node_text(Parser *p, JinjaKind kind, uint32_t line, Slice text);
JinjaNode *parser_node_list(Parser *p, JinjaKind kind, uint32_t line, NodeList list);
void node_list_add(NodeList *list, JinjaNode *node);
uint32_t parser_name(Parser *p, Slice name); /* the id of a variable */

/* expression.c */
typedef enum TupleMode { TUPLE_FULL, TUPLE_NO_CONDITION, TUPLE_TARGET, TUPLE_TARGET_NAMESPACE } TupleMode;
JinjaNode *parser_expression(Parser *p);
JinjaNode *parser_tuple(Parser *p, TupleMode mode, const char *end_name, bool parentheses);
JinjaNode *parser_primary(Parser *p, bool with_namespace);
JinjaNode *parser_filter(
    Parser *p, JinjaNode *input, bool inline_start); /* input NULL in a filter block or set block */
