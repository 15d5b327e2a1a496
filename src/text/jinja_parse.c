/* Tokens to tree: the grammar of jinja2 with the tags transformers adds (break, continue, generation).
 * Reference: jinja2 3.1 parser.py, function by function, so that odd corners (left-associative **, is binding tighter than
 * arithmetic, call after a filter) come out the same. */
#include <stdio.h>

#include "text/jinja_ast.h"
#include "text/jinja_eval.h"

enum { END_TAGS_MAX = 3 };

typedef struct Parser {
    Vm *vm;
    Template *template;
    JinjaLexer lexer;
    JinjaLexeme current, ahead;
    bool has_ahead;
} Parser;

typedef struct NodeList {
    JinjaNode *first, *last;
    uint32_t count;
} NodeList;

static JinjaNode *parse_expression(Parser *p);
static JinjaNode *parse_condition(Parser *p, bool with_condition);
static JinjaNode *parse_unary(Parser *p, bool with_filter);
static JinjaNode *parse_primary(Parser *p, bool with_namespace);
static JinjaNode *parse_postfix(Parser *p, JinjaNode *node);
static bool parse_body(Parser *p, const char *const *ends, NodeList *out);

static void next(Parser *p) {
    if (p->has_ahead) {
        p->current = p->ahead;
        p->has_ahead = false;
        return;
    }
    if (p->current.type == TOKEN_END || p->current.type == TOKEN_BAD) return;
    p->current = jinja_lexer_next(&p->lexer);
}

static const JinjaLexeme *look(Parser *p) {
    if (!p->has_ahead) {
        p->ahead = jinja_lexer_next(&p->lexer);
        p->has_ahead = true;
    }
    return &p->ahead;
}

static bool is_op(const Parser *p, JinjaOp op) { return p->current.type == TOKEN_OPERATOR && p->current.op == op; }
static bool is_name(const Parser *p, const char *name) {
    return p->current.type == TOKEN_NAME && slice_is(p->current.text, name);
}

static void *parse_fail(Parser *p, uint32_t line, const char *message) {
    p->vm->line = line;
    jinja_fail(p->vm, "%s", message);
    return NULL;
}

static Slice describe(const JinjaLexeme *lexeme) {
    switch (lexeme->type) {
    case TOKEN_END: return SLICE("end of template");
    case TOKEN_DATA: return SLICE("template data / text");
    case TOKEN_BLOCK_BEGIN: return SLICE("begin of statement block");
    case TOKEN_BLOCK_END: return SLICE("end of statement block");
    case TOKEN_PRINT_BEGIN: return SLICE("begin of print statement");
    case TOKEN_PRINT_END: return SLICE("end of print statement");
    default: return lexeme->text;
    }
}

static void *parse_unexpected(Parser *p, const char *expected) {
    Slice got = describe(&p->current);
    p->vm->line = p->current.line;
    jinja_fail(p->vm, "expected %s, got '%.*s'", expected, got.size > 80 ? 80 : SLICE_ARGS(got));
    return NULL;
}

static bool expect_op(Parser *p, JinjaOp op) {
    if (!is_op(p, op)) {
        char text[16];
        snprintf(text, sizeof text, "'%s'", jinja_op_text(op));
        parse_unexpected(p, text);
        return false;
    }
    next(p);
    return true;
}

static bool expect_type(Parser *p, JinjaToken type, const char *what) {
    if (p->current.type != type) {
        parse_unexpected(p, what);
        return false;
    }
    next(p);
    return true;
}

static bool skip_name(Parser *p, const char *name) {
    if (!is_name(p, name)) return false;
    next(p);
    return true;
}

static bool skip_op(Parser *p, JinjaOp op) {
    if (!is_op(p, op)) return false;
    next(p);
    return true;
}

static JinjaNode *node_new(Parser *p, JinjaKind kind, uint32_t line) {
    JinjaNode *node = p->vm->failed ? NULL : jinja_alloc(p->vm, 1, sizeof *node);
    if (!node) return NULL;
    node->kind = (uint8_t)kind;
    node->line = line;
    return node;
}

static void list_add(NodeList *list, JinjaNode *node) {
    if (!node) return;
    if (list->last) {
        list->last->next = node;
    } else {
        list->first = node;
    }
    list->last = node;
    list->count++;
}

static JinjaNode *node_list(Parser *p, JinjaKind kind, uint32_t line, NodeList list) {
    JinjaNode *node = node_new(p, kind, line);
    if (!node) return NULL;
    node->list = list.first;
    node->count = list.count;
    return node;
}

static JinjaNode *node_two(Parser *p, JinjaKind kind, uint32_t line, JinjaOp op, JinjaNode *a, JinjaNode *b) {
    JinjaNode *node = a && (b || kind == NODE_NOT || kind == NODE_UNARY) ? node_new(p, kind, line) : NULL;
    if (!node) return NULL;
    node->op = (uint16_t)op;
    node->a = a;
    node->b = b;
    return node;
}

static JinjaNode *node_text(Parser *p, JinjaKind kind, uint32_t line, Slice text) {
    JinjaNode *node = node_new(p, kind, line);
    if (!node) return NULL;
    node->value = jv_str(jinja_str_new(p->vm, text.data, text.size, ORIGIN_TEMPLATE));
    return jv_bad(node->value) ? NULL : node;
}

uint32_t jinja_name_id(Vm *vm, Template *template, Slice name) {
    uint64_t id;
    if (map_get(&template->name_ids, name, &id)) return (uint32_t)id;
    if (template->name_count == template->name_capacity) {
        size_t capacity = template->name_capacity ? template->name_capacity * 2 : 64;
        Slice *grown = jinja_alloc(vm, capacity, sizeof *grown);
        if (!grown) return 0;
        if (template->name_count) memcpy(grown, template->names, template->name_count * sizeof *grown);
        template->names = grown;
        template->name_capacity = capacity;
    }
    template->names[template->name_count] = name;
    if (!map_put(&template->name_ids, name, template->name_count)) {
        jinja_raise(vm, ERROR_MEMORY, "no memory");
        return 0;
    }
    return (uint32_t)template->name_count++;
}

static JinjaNode *node_name(Parser *p, const JinjaLexeme *lexeme) {
    JinjaNode *node = node_new(p, NODE_NAME, lexeme->line);
    if (node) node->name = jinja_name_id(p->vm, p->template, lexeme->text);
    return node;
}

/* Expressions */

static bool is_tuple_end(const Parser *p, const char *end_name) {
    if (p->current.type == TOKEN_PRINT_END || p->current.type == TOKEN_BLOCK_END || is_op(p, OP_RPAREN)) return true;
    return end_name && is_name(p, end_name);
}

typedef enum TupleMode { TUPLE_FULL, TUPLE_NO_CONDITION, TUPLE_TARGET, TUPLE_TARGET_NAMESPACE } TupleMode;

static JinjaNode *parse_tuple(Parser *p, TupleMode mode, const char *end_name, bool parentheses) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    bool is_tuple = false;
    for (;;) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        if (is_tuple_end(p, end_name)) break;
        JinjaNode *item = mode >= TUPLE_TARGET ? parse_primary(p, mode == TUPLE_TARGET_NAMESPACE)
                                               : parse_condition(p, mode == TUPLE_FULL);
        if (!item) return NULL;
        list_add(&list, item);
        if (!is_op(p, OP_COMMA)) break;
        is_tuple = true;
        line = p->current.line;
    }
    if (!is_tuple) {
        if (list.count) return list.first;
        if (!parentheses) return parse_unexpected(p, "an expression");
    }
    return node_list(p, NODE_TUPLE, line, list);
}

static JinjaNode *parse_list(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    next(p);
    while (!is_op(p, OP_RBRACKET)) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        if (is_op(p, OP_RBRACKET)) break;
        JinjaNode *item = parse_expression(p);
        if (!item) return NULL;
        list_add(&list, item);
    }
    next(p);
    return node_list(p, NODE_LIST, line, list);
}

static JinjaNode *parse_dict(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    next(p);
    while (!is_op(p, OP_RBRACE)) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        if (is_op(p, OP_RBRACE)) break;
        JinjaNode *key = parse_expression(p);
        if (!key || !expect_op(p, OP_COLON)) return NULL;
        JinjaNode *pair = node_two(p, NODE_PAIR, key->line, OP_NONE, key, parse_expression(p));
        if (!pair) return NULL;
        list_add(&list, pair);
    }
    next(p);
    return node_list(p, NODE_DICT, line, list);
}

static JinjaNode *parse_constant(Parser *p, uint32_t line, Jv value) {
    JinjaNode *node = node_new(p, NODE_CONST, line);
    if (node) node->value = value;
    return node;
}

static JinjaNode *parse_string(Parser *p) {
    uint32_t line = p->current.line;
    Jv value = p->current.value;
    next(p);
    while (p->current.type == TOKEN_STRING) {
        value = jv_str(jinja_str_concat(p->vm, value.s, p->current.value.s));
        if (jv_bad(value) || !jinja_str_flatten(p->vm, value.s)) return NULL;
        next(p);
    }
    return parse_constant(p, line, value);
}

static JinjaNode *parse_primary_name(Parser *p, bool with_namespace) {
    JinjaLexeme name = p->current;
    next(p);
    if (slice_is(name.text, "true") || slice_is(name.text, "True")) return parse_constant(p, name.line, jv_bool(true));
    if (slice_is(name.text, "false") || slice_is(name.text, "False")) return parse_constant(p, name.line, jv_bool(false));
    if (slice_is(name.text, "none") || slice_is(name.text, "None")) return parse_constant(p, name.line, jv_none());
    if (!with_namespace || !is_op(p, OP_DOT)) return node_name(p, &name);
    next(p);
    if (p->current.type != TOKEN_NAME) return parse_unexpected(p, "a name");
    JinjaNode *node = node_text(p, NODE_NSREF, name.line, p->current.text);
    if (node) node->name = jinja_name_id(p->vm, p->template, name.text);
    next(p);
    return node;
}

static JinjaNode *parse_primary(Parser *p, bool with_namespace) {
    JinjaLexeme token = p->current;
    switch (token.type) {
    case TOKEN_NAME: return parse_primary_name(p, with_namespace);
    case TOKEN_STRING: return parse_string(p);
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: next(p); return parse_constant(p, token.line, token.value);
    default: break;
    }
    if (is_op(p, OP_LPAREN)) {
        if (!jinja_enter(p->vm)) return NULL;
        next(p);
        JinjaNode *node = parse_tuple(p, TUPLE_FULL, NULL, true);
        p->vm->depth--;
        return node && expect_op(p, OP_RPAREN) ? node : NULL;
    }
    if (is_op(p, OP_LBRACKET)) return parse_list(p);
    if (is_op(p, OP_LBRACE)) return parse_dict(p);
    return parse_unexpected(p, "an expression");
}

static bool slice_part(Parser *p, JinjaNode **out) {
    if (is_op(p, OP_COLON) || is_op(p, OP_RBRACKET) || is_op(p, OP_COMMA)) return true;
    *out = parse_expression(p);
    return *out != NULL;
}

static JinjaNode *parse_subscribed(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *start = NULL, *stop = NULL, *step = NULL;
    if (!is_op(p, OP_COLON)) {
        start = parse_expression(p);
        if (!start || !is_op(p, OP_COLON)) return start;
    }
    next(p);
    if (!slice_part(p, &stop)) return NULL;
    if (skip_op(p, OP_COLON) && !slice_part(p, &step)) return NULL;
    JinjaNode *node = node_new(p, NODE_SLICE, line);
    if (!node) return NULL;
    node->a = start;
    node->b = stop;
    node->c = step;
    return node;
}

static JinjaNode *parse_subscript(Parser *p, JinjaNode *node) {
    uint32_t line = p->current.line;
    bool dot = is_op(p, OP_DOT);
    next(p);
    if (dot) {
        JinjaLexeme attribute = p->current;
        next(p);
        if (attribute.type == TOKEN_INTEGER) {
            return node_two(p, NODE_GETITEM, line, OP_NONE, node, parse_constant(p, attribute.line, attribute.value));
        }
        if (attribute.type != TOKEN_NAME) return parse_fail(p, attribute.line, "expected name or number");
        JinjaNode *get = node_text(p, NODE_GETATTR, line, attribute.text);
        if (!get) return NULL;
        get->a = node;
        get->name = jinja_method_id(attribute.text);
        return get;
    }
    NodeList list = {0};
    while (!is_op(p, OP_RBRACKET)) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        JinjaNode *item = parse_subscribed(p);
        if (!item) return NULL;
        list_add(&list, item);
    }
    next(p);
    JinjaNode *item = list.count == 1 ? list.first : node_list(p, NODE_TUPLE, line, list);
    return node_two(p, NODE_GETITEM, line, OP_NONE, node, item);
}

static bool parse_arguments(Parser *p, NodeList *list) {
    uint32_t line = p->current.line;
    bool keywords = false, star = false, stars = false;
    next(p);
    while (!is_op(p, OP_RPAREN)) {
        if (list->count) {
            if (!expect_op(p, OP_COMMA)) return false;
            if (is_op(p, OP_RPAREN)) break;
        }
        JinjaNode *item;
        bool ok = true;
        if (is_op(p, OP_MUL) || is_op(p, OP_POW)) {
            bool mapping = is_op(p, OP_POW);
            ok = !stars && (mapping || !star);
            next(p);
            item = node_new(p, mapping ? NODE_STARS : NODE_STAR, p->current.line);
            if (!item || !ok || !(item->a = parse_expression(p))) item = NULL;
            stars = stars || mapping;
            star = star || !mapping;
        } else if (p->current.type == TOKEN_NAME && look(p)->type == TOKEN_OPERATOR && look(p)->op == OP_ASSIGN) {
            ok = !stars;
            item = node_text(p, NODE_KEYWORD, p->current.line, p->current.text);
            next(p);
            next(p);
            if (!item || !(item->a = parse_expression(p))) item = NULL;
            keywords = true;
        } else {
            ok = !star && !stars && !keywords;
            item = ok ? parse_expression(p) : NULL;
        }
        if (!ok) parse_fail(p, line, "invalid syntax for function call expression");
        if (!item) return false;
        list_add(list, item);
    }
    next(p);
    return true;
}

static JinjaNode *parse_call(Parser *p, JinjaNode *callee) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    if (!parse_arguments(p, &list)) return NULL;
    JinjaNode *node = node_list(p, NODE_CALL, line, list);
    if (node) node->a = callee;
    return node;
}

static JinjaNode *parse_postfix(Parser *p, JinjaNode *node) {
    while (node && p->current.type == TOKEN_OPERATOR) {
        if (is_op(p, OP_DOT) || is_op(p, OP_LBRACKET)) {
            node = parse_subscript(p, node);
        } else if (is_op(p, OP_LPAREN)) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

/* name ( "." name )* of a filter or test */
static JinjaNode *parse_dotted(Parser *p, JinjaKind kind, uint32_t line) {
    if (p->current.type != TOKEN_NAME) return parse_unexpected(p, "a name");
    Slice name = p->current.text;
    next(p);
    JinjaStr *text = jinja_str_new(p->vm, name.data, name.size, ORIGIN_TEMPLATE);
    while (text && skip_op(p, OP_DOT)) {
        if (p->current.type != TOKEN_NAME) return parse_unexpected(p, "a name");
        text = jinja_str_concat(p->vm, text, jinja_literal(p->vm, ".").s);
        JinjaStr *part = jinja_str_new(p->vm, p->current.text.data, p->current.text.size, ORIGIN_TEMPLATE);
        if (text && part) text = jinja_str_concat(p->vm, text, part);
        if (!text || !jinja_str_flatten(p->vm, text)) return NULL;
        next(p);
    }
    JinjaNode *node = text ? node_new(p, kind, line) : NULL;
    if (!node) return NULL;
    node->text = text;
    if (kind == NODE_FILTER) {
        node->filter = jinja_filter_find(jinja_str_slice(text));
    } else {
        node->test = jinja_test_find(jinja_str_slice(text));
    }
    return node;
}

/* A chain of filters applied to input (NULL in a filter block or set block). */
static JinjaNode *parse_filter(Parser *p, JinjaNode *input, bool inline_start) {
    while (is_op(p, OP_PIPE) || inline_start) {
        if (!inline_start) next(p);
        inline_start = false;
        JinjaNode *node = parse_dotted(p, NODE_FILTER, p->current.line);
        NodeList list = {0};
        if (!node || (is_op(p, OP_LPAREN) && !parse_arguments(p, &list))) return NULL;
        node->a = input;
        node->list = list.first;
        node->count = list.count;
        input = node;
    }
    return input;
}

static bool starts_argument(const Parser *p) {
    switch (p->current.type) {
    case TOKEN_NAME: return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: return true;
    default: return is_op(p, OP_LBRACKET) || is_op(p, OP_LBRACE);
    }
}

static JinjaNode *parse_test(Parser *p, JinjaNode *input) {
    uint32_t line = p->current.line;
    next(p);
    bool negated = skip_name(p, "not");
    JinjaNode *node = parse_dotted(p, NODE_TEST, line);
    NodeList list = {0};
    if (!node) return NULL;
    if (is_op(p, OP_LPAREN)) {
        if (!parse_arguments(p, &list)) return NULL;
    } else if (starts_argument(p)) {
        if (is_name(p, "is")) return parse_fail(p, p->current.line, "You cannot chain multiple tests with is");
        JinjaNode *argument = parse_postfix(p, parse_primary(p, false));
        if (!argument) return NULL;
        list_add(&list, argument);
    }
    node->a = input;
    node->list = list.first;
    node->count = list.count;
    return negated ? node_two(p, NODE_NOT, line, OP_NONE, node, NULL) : node;
}

static JinjaNode *parse_filter_expression(Parser *p, JinjaNode *node) {
    while (node) {
        if (is_op(p, OP_PIPE)) {
            node = parse_filter(p, node, false);
        } else if (is_name(p, "is")) {
            node = parse_test(p, node);
        } else if (is_op(p, OP_LPAREN)) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

static JinjaNode *parse_unary(Parser *p, bool with_filter) {
    JinjaNode *node;
    if (is_op(p, OP_SUB) || is_op(p, OP_ADD)) {
        JinjaOp op = is_op(p, OP_SUB) ? OP_NEG : OP_POS;
        uint32_t line = p->current.line;
        if (!jinja_enter(p->vm)) return NULL;
        next(p);
        node = node_two(p, NODE_UNARY, line, op, parse_unary(p, false), NULL);
        p->vm->depth--;
    } else {
        node = parse_primary(p, false);
    }
    node = parse_postfix(p, node);
    return with_filter ? parse_filter_expression(p, node) : node;
}

static JinjaNode *parse_power(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_unary(p, true);
    while (left && skip_op(p, OP_POW)) left = node_two(p, NODE_BINARY, line, OP_POW, left, parse_unary(p, true));
    return left;
}

static JinjaNode *parse_product(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_power(p);
    while (left && (is_op(p, OP_MUL) || is_op(p, OP_DIV) || is_op(p, OP_FLOORDIV) || is_op(p, OP_MOD))) {
        JinjaOp op = p->current.op;
        next(p);
        left = node_two(p, NODE_BINARY, line, op, left, parse_power(p));
    }
    return left;
}

static JinjaNode *parse_concat(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    JinjaNode *item = parse_product(p);
    if (!item || !is_op(p, OP_TILDE)) return item;
    list_add(&list, item);
    while (skip_op(p, OP_TILDE)) {
        item = parse_product(p);
        if (!item) return NULL;
        list_add(&list, item);
    }
    return node_list(p, NODE_CONCAT, line, list);
}

static JinjaNode *parse_sum(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_concat(p);
    while (left && (is_op(p, OP_ADD) || is_op(p, OP_SUB))) {
        JinjaOp op = p->current.op;
        next(p);
        left = node_two(p, NODE_BINARY, line, op, left, parse_concat(p));
    }
    return left;
}

static JinjaOp compare_op(Parser *p) {
    if (p->current.type == TOKEN_OPERATOR) {
        return p->current.op >= OP_EQ && p->current.op <= OP_LE ? p->current.op : OP_NONE;
    }
    if (is_name(p, "in")) return OP_IN;
    bool not_in = is_name(p, "not") && look(p)->type == TOKEN_NAME && slice_is(look(p)->text, "in");
    return not_in ? OP_NOT_IN : OP_NONE;
}

static JinjaNode *parse_compare(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_sum(p);
    NodeList list = {0};
    JinjaOp op;
    while (left && (op = compare_op(p)) != OP_NONE) {
        next(p);
        if (op == OP_NOT_IN) next(p);
        JinjaNode *right = parse_sum(p), *operand = right ? node_new(p, NODE_OPERAND, right->line) : NULL;
        if (!operand) return NULL;
        operand->op = (uint16_t)op;
        operand->a = right;
        list_add(&list, operand);
    }
    if (!left || !list.count) return left;
    JinjaNode *node = node_list(p, NODE_COMPARE, line, list);
    if (node) node->a = left;
    return node;
}

static JinjaNode *parse_not(Parser *p) {
    uint32_t line = p->current.line;
    if (!is_name(p, "not")) return parse_compare(p);
    if (!jinja_enter(p->vm)) return NULL;
    next(p);
    JinjaNode *node = node_two(p, NODE_NOT, line, OP_NONE, parse_not(p), NULL);
    p->vm->depth--;
    return node;
}

static JinjaNode *parse_and(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_not(p);
    while (left && skip_name(p, "and")) left = node_two(p, NODE_AND, line, OP_NONE, left, parse_not(p));
    return left;
}

static JinjaNode *parse_or(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_and(p);
    while (left && skip_name(p, "or")) left = node_two(p, NODE_OR, line, OP_NONE, left, parse_and(p));
    return left;
}

static JinjaNode *parse_condition(Parser *p, bool with_condition) {
    if (!jinja_enter(p->vm)) return NULL;
    uint32_t line = p->current.line;
    JinjaNode *node = parse_or(p);
    while (node && with_condition && skip_name(p, "if")) {
        JinjaNode *test = parse_or(p), *otherwise = NULL;
        if (!test) return NULL;
        if (skip_name(p, "else") && !(otherwise = parse_condition(p, true))) return NULL;
        JinjaNode *condition = node_two(p, NODE_COND, line, OP_NONE, test, node);
        if (!condition) return NULL;
        condition->c = otherwise;
        node = condition;
    }
    p->vm->depth--;
    return node;
}

static JinjaNode *parse_expression(Parser *p) { return parse_condition(p, true); }

/* Statements */

static bool can_assign(const JinjaNode *node) {
    if (node->kind == NODE_NAME || node->kind == NODE_NSREF) return true;
    if (node->kind != NODE_TUPLE) return false;
    for (const JinjaNode *item = node->list; item; item = item->next) {
        if (!can_assign(item)) return false;
    }
    return true;
}

static JinjaNode *parse_target(Parser *p, TupleMode mode, const char *end_name, bool tuple) {
    uint32_t line = p->current.line;
    JinjaNode *target = tuple ? parse_tuple(p, mode, end_name, false) : parse_primary(p, false);
    if (!target) return NULL;
    if (!can_assign(target)) return parse_fail(p, line, "can't assign to this expression");
    return target;
}

static JinjaNode *parse_name_target(Parser *p) {
    if (p->current.type != TOKEN_NAME) return parse_unexpected(p, "a name");
    JinjaNode *node = parse_primary(p, false);
    if (node && node->kind != NODE_NAME) return parse_fail(p, node->line, "can't assign to a constant");
    return node;
}

static bool parse_statements(Parser *p, const char *const *ends, NodeList *out) {
    skip_op(p, OP_COLON);
    return expect_type(p, TOKEN_BLOCK_END, "end of statement block") && parse_body(p, ends, out);
}

/* A body up to one of the ends, which becomes the current token and is then skipped. */
static JinjaNode *parse_body_node(Parser *p, const char *end, JinjaKind kind, uint32_t line) {
    const char *ends[] = {end, NULL};
    NodeList list = {0};
    if (!parse_statements(p, ends, &list)) return NULL;
    next(p);
    return node_list(p, kind, line, list);
}

static JinjaNode *parse_for(Parser *p, uint32_t line) {
    JinjaNode *node = node_new(p, NODE_FOR, line);
    if (!node || !(node->a = parse_target(p, TUPLE_TARGET, "in", true))) return NULL;
    if (!is_name(p, "in")) return parse_unexpected(p, "'in'");
    next(p);
    if (!(node->b = parse_tuple(p, TUPLE_NO_CONDITION, "recursive", false))) return NULL;
    if (skip_name(p, "if") && !(node->c = parse_expression(p))) return NULL;
    node->flag = skip_name(p, "recursive");
    const char *ends[] = {"endfor", "else", NULL};
    NodeList list = {0};
    if (!parse_statements(p, ends, &list)) return NULL;
    node->list = list.first;
    node->count = list.count;
    bool has_else = is_name(p, "else");
    next(p);
    if (has_else && !(node->d = parse_body_node(p, "endfor", NODE_BODY, line))) return NULL;
    return node;
}

static JinjaNode *parse_if(Parser *p, uint32_t line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    JinjaNode *first = node_new(p, NODE_IF, line), *node = first;
    while (node) {
        NodeList list = {0};
        if (!(node->a = parse_tuple(p, TUPLE_NO_CONDITION, NULL, false)) || !parse_statements(p, ends, &list)) return NULL;
        node->list = list.first;
        node->count = list.count;
        bool is_elif = is_name(p, "elif"), is_else = is_name(p, "else");
        next(p);
        if (is_else && !(node->b = parse_body_node(p, "endif", NODE_BODY, line))) return NULL;
        if (!is_elif) return first;
        node->b = node_new(p, NODE_IF, p->current.line);
        node = node->b;
    }
    return NULL;
}

static JinjaNode *parse_set(Parser *p, uint32_t line) {
    JinjaNode *target = parse_target(p, TUPLE_TARGET_NAMESPACE, NULL, true);
    if (!target) return NULL;
    if (skip_op(p, OP_ASSIGN)) return node_two(p, NODE_SET, line, OP_NONE, target, parse_tuple(p, TUPLE_FULL, NULL, false));
    JinjaNode *filter = is_op(p, OP_PIPE) ? parse_filter(p, NULL, false) : NULL;
    if (p->vm->failed) return NULL;
    JinjaNode *node = parse_body_node(p, "endset", NODE_SET_BLOCK, line);
    if (!node) return NULL;
    node->a = target;
    node->b = filter;
    return node;
}

static JinjaNode *parse_with(Parser *p, uint32_t line) {
    NodeList list = {0};
    while (p->current.type != TOKEN_BLOCK_END) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        JinjaNode *target = parse_target(p, TUPLE_TARGET, NULL, true);
        if (!target || !expect_op(p, OP_ASSIGN)) return NULL;
        JinjaNode *set = node_two(p, NODE_SET, line, OP_NONE, target, parse_expression(p));
        if (!set) return NULL;
        list_add(&list, set);
    }
    JinjaNode *node = node_list(p, NODE_WITH, line, list);
    return node && (node->b = parse_body_node(p, "endwith", NODE_BODY, line)) ? node : NULL;
}

static bool parse_signature(Parser *p, JinjaNode *macro) {
    NodeList list = {0};
    bool defaults = false;
    if (!expect_op(p, OP_LPAREN)) return false;
    while (!is_op(p, OP_RPAREN)) {
        if (list.count && !expect_op(p, OP_COMMA)) return false;
        JinjaNode *parameter = parse_name_target(p);
        if (!parameter) return false;
        parameter->kind = NODE_PARAM;
        if (skip_op(p, OP_ASSIGN)) {
            if (!(parameter->a = parse_expression(p))) return false;
            defaults = true;
        } else if (defaults) {
            parse_fail(p, p->current.line, "non-default argument follows default argument");
            return false;
        }
        list_add(&list, parameter);
    }
    next(p);
    macro->list = list.first;
    macro->count = list.count;
    return true;
}

static JinjaNode *parse_macro(Parser *p, uint32_t line) {
    JinjaNode *node = node_new(p, NODE_MACRO, line), *name = parse_name_target(p);
    if (!node || !name || !parse_signature(p, node)) return NULL;
    node->name = name->name;
    return (node->b = parse_body_node(p, "endmacro", NODE_BODY, line)) ? node : NULL;
}

static JinjaNode *parse_call_block(Parser *p, uint32_t line) {
    JinjaNode *macro = node_new(p, NODE_MACRO, line);
    if (!macro || (is_op(p, OP_LPAREN) && !parse_signature(p, macro))) return NULL;
    JinjaNode *call = parse_expression(p);
    if (!call) return NULL;
    if (call->kind != NODE_CALL) return parse_fail(p, line, "expected call");
    macro->name = p->template->name_caller;
    if (!(macro->b = parse_body_node(p, "endcall", NODE_BODY, line))) return NULL;
    return node_two(p, NODE_CALL_BLOCK, line, OP_NONE, call, macro);
}

static JinjaNode *parse_filter_block(Parser *p, uint32_t line) {
    JinjaNode *filter = parse_filter(p, NULL, true);
    JinjaNode *node = filter ? parse_body_node(p, "endfilter", NODE_FILTER_BLOCK, line) : NULL;
    if (node) node->a = filter;
    return node;
}

static JinjaNode *parse_print(Parser *p, uint32_t line) {
    NodeList list = {0};
    while (p->current.type != TOKEN_BLOCK_END) {
        if (list.count && !expect_op(p, OP_COMMA)) return NULL;
        JinjaNode *value = parse_expression(p), *print = value ? node_new(p, NODE_PRINT, value->line) : NULL;
        if (!print) return NULL;
        print->a = value;
        list_add(&list, print);
    }
    return node_list(p, NODE_BODY, line, list);
}

static JinjaNode *parse_block(Parser *p, uint32_t line) {
    if (p->current.type != TOKEN_NAME) return parse_unexpected(p, "a name");
    Slice name = p->current.text;
    next(p);
    bool scoped = skip_name(p, "scoped");
    if (is_name(p, "required")) return parse_fail(p, line, "a required block cannot be rendered here");
    JinjaNode *node = parse_body_node(p, "endblock", NODE_BLOCK, line);
    if (!node) return NULL;
    if (p->current.type == TOKEN_NAME && slice_equal(p->current.text, name)) next(p);
    node->flag = scoped;
    return node;
}

static JinjaNode *parse_autoescape(Parser *p, uint32_t line) {
    JinjaNode *value = parse_expression(p);
    if (!value) return NULL;
    if (value->kind != NODE_CONST || value->value.tag != JINJA_BOOL || value->value.b) {
        p->vm->line = line;
        jinja_raise(p->vm, ERROR_UNSUPPORTED, "autoescape is not supported");
        return NULL;
    }
    return parse_body_node(p, "endautoescape", NODE_SCOPE, line);
}

static JinjaNode *parse_generation(Parser *p, uint32_t line) {
    JinjaNode *node = parse_body_node(p, "endgeneration", NODE_SCOPE, line);
    if (node) node->flag = true;
    return node;
}

static JinjaNode *parse_break(Parser *p, uint32_t line) { return node_new(p, NODE_BREAK, line); }
static JinjaNode *parse_continue(Parser *p, uint32_t line) { return node_new(p, NODE_CONTINUE, line); }

static JinjaNode *parse_statement(Parser *p) {
    static const struct {
        const char *name;
        JinjaNode *(*parse)(Parser *p, uint32_t line);
    } statements[] = {{"for", parse_for}, {"if", parse_if}, {"set", parse_set}, {"with", parse_with},
        {"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block}, {"print", parse_print},
        {"block", parse_block}, {"autoescape", parse_autoescape}, {"generation", parse_generation},
        {"break", parse_break}, {"continue", parse_continue}};
    static const char *const refused[] = {"import", "from", "include", "extends"};
    JinjaLexeme tag = p->current;
    if (tag.type != TOKEN_NAME) return parse_fail(p, tag.line, "tag name expected");
    p->vm->line = tag.line;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        if (!slice_is(tag.text, refused[i])) continue;
        jinja_raise(p->vm, ERROR_UNSUPPORTED, "'%s' needs other templates, and a chat template is alone", refused[i]);
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        if (!slice_is(tag.text, statements[i].name)) continue;
        next(p);
        if (!jinja_enter(p->vm)) return NULL;
        JinjaNode *node = statements[i].parse(p, tag.line);
        p->vm->depth--;
        return node;
    }
    jinja_fail(p->vm, "Encountered unknown tag '%.*s'", tag.text.size > 80 ? 80 : SLICE_ARGS(tag.text));
    return NULL;
}

static bool is_end(const Parser *p, const char *const *ends) {
    for (; ends && *ends; ends++) {
        if (is_name(p, *ends)) return true;
    }
    return false;
}

static bool parse_body(Parser *p, const char *const *ends, NodeList *out) {
    uint32_t opened = p->current.line;
    for (;;) {
        JinjaNode *node;
        uint32_t line = p->current.line;
        switch (p->current.type) {
        case TOKEN_END:
            if (!ends) return true;
            p->vm->line = opened;
            jinja_fail(p->vm, "Unexpected end of template: '%s' is missing", ends[0]);
            return false;
        case TOKEN_DATA:
            node = node_text(p, NODE_DATA, line, p->current.text);
            next(p);
            break;
        case TOKEN_PRINT_BEGIN:
            next(p);
            node = node_new(p, NODE_PRINT, line);
            if (!node || !(node->a = parse_tuple(p, TUPLE_FULL, NULL, false))) return false;
            if (!expect_type(p, TOKEN_PRINT_END, "end of print statement")) return false;
            break;
        case TOKEN_BLOCK_BEGIN:
            next(p);
            if (is_end(p, ends)) return true;
            node = parse_statement(p);
            if (!node || !expect_type(p, TOKEN_BLOCK_END, "end of statement block")) return false;
            break;
        default: return false;
        }
        if (!node) return false;
        list_add(out, node);
    }
}

bool jinja_parse(Vm *vm, Template *template, Slice source) {
    Parser p = {.vm = vm, .template = template};
    template->name_loop = jinja_name_id(vm, template, SLICE("loop"));
    template->name_caller = jinja_name_id(vm, template, SLICE("caller"));
    template->name_kwargs = jinja_name_id(vm, template, SLICE("kwargs"));
    template->name_varargs = jinja_name_id(vm, template, SLICE("varargs"));
    if (vm->failed || !jinja_lexer_init(&p.lexer, vm, source)) return false;
    template->source = p.lexer.source;
    p.current.type = TOKEN_DATA;
    next(&p);
    NodeList list = {0};
    if (!parse_body(&p, NULL, &list) || vm->failed) {
        if (!vm->failed) parse_fail(&p, p.current.line, "the template cannot be parsed");
        return false;
    }
    template->body = node_list(&p, NODE_BODY, 1, list);
    return template->body && jinja_check(vm, template);
}
