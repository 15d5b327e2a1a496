/* Expressions: the grammar of jinja2, so that odd corners (left-associative **, "is" binding tighter than arithmetic, a
 * call after a filter) come out the same. Reference: jinja2 3.1 parser.py. */
#include "text/jinja/parser.h"

static JinjaNode *parse_condition(Parser *p, bool with_condition);
static JinjaNode *parse_unary(Parser *p, bool with_filter);
static JinjaNode *parse_postfix(Parser *p, JinjaNode *node);

static JinjaNode *node_name(Parser *p, const JinjaLexeme *lexeme) {
    JinjaNode *node = parser_node(p, NODE_NAME, lexeme->line);
    if (!node) return NULL;
    node->name = parser_name(p, lexeme->text);
    for (unsigned i = 0; i < MACRO_NAMES; i++)
        if (node->name == p->template->macro_names[i]) p->macro_reads |= 1u << i;
    return node;
}

static bool is_tuple_end(const Parser *p, const char *end_name) {
    if (p->current.type == TOKEN_PRINT_END || p->current.type == TOKEN_BLOCK_END || parser_at(p, OP_RPAREN))
        return true;
    return end_name && parser_at_name(p, end_name);
}

JinjaNode *parser_tuple(Parser *p, TupleMode mode, const char *end_name, bool parentheses) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    bool is_tuple = false;
    for (;;) {
        if (list.count && !parser_expect(p, OP_COMMA)) return NULL;
        if (is_tuple_end(p, end_name)) break;
        JinjaNode *item = mode >= TUPLE_TARGET ? parser_primary(p, mode == TUPLE_TARGET_NAMESPACE)
                                               : parse_condition(p, mode == TUPLE_FULL);
        if (!item) return NULL;
        node_list_add(&list, item);
        if (!parser_at(p, OP_COMMA)) break;
        is_tuple = true;
        line = p->current.line;
    }
    if (!is_tuple) {
        if (list.count) return list.first;
        if (!parentheses) return parser_unexpected(p, "an expression");
    }
    return parser_node_list(p, NODE_TUPLE, line, list);
}

static JinjaNode *parse_list(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    parser_next(p);
    while (!parser_at(p, OP_RBRACKET)) {
        if (list.count && !parser_expect(p, OP_COMMA)) return NULL;
        if (parser_at(p, OP_RBRACKET)) break;
        JinjaNode *item = parser_expression(p);
        if (!item) return NULL;
        node_list_add(&list, item);
    }
    parser_next(p);
    return parser_node_list(p, NODE_LIST, line, list);
}

static JinjaNode *parse_dict(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    parser_next(p);
    while (!parser_at(p, OP_RBRACE)) {
        if (list.count && !parser_expect(p, OP_COMMA)) return NULL;
        if (parser_at(p, OP_RBRACE)) break;
        JinjaNode *key = parser_expression(p);
        if (!key || !parser_expect(p, OP_COLON)) return NULL;
        JinjaNode *pair = parser_node_two(p, NODE_PAIR, key->line, OP_NONE, key, parser_expression(p));
        if (!pair) return NULL;
        node_list_add(&list, pair);
    }
    parser_next(p);
    return parser_node_list(p, NODE_DICT, line, list);
}

static JinjaNode *parse_constant(Parser *p, uint32_t line, Jv value) {
    JinjaNode *node = parser_node(p, NODE_CONST, line);
    if (node) node->value = value;
    return node;
}

static JinjaNode *parse_string(Parser *p) {
    uint32_t line = p->current.line;
    Jv value = p->current.value;
    parser_next(p);
    while (p->current.type == TOKEN_STRING) {
        value = jv_str(jinja_str_concat(p->vm, value.s, p->current.value.s));
        if (jv_bad(value) || !jinja_str_flatten(p->vm, value.s)) return NULL;
        parser_next(p);
    }
    return parse_constant(p, line, value);
}

static JinjaNode *parse_primary_name(Parser *p, bool with_namespace) {
    JinjaLexeme name = p->current;
    parser_next(p);
    if (slice_is(name.text, "true") || slice_is(name.text, "True")) return parse_constant(p, name.line, jv_bool(true));
    if (slice_is(name.text, "false") || slice_is(name.text, "False"))
        return parse_constant(p, name.line, jv_bool(false));
    if (slice_is(name.text, "none") || slice_is(name.text, "None")) return parse_constant(p, name.line, jv_none());
    if (!with_namespace || !parser_at(p, OP_DOT)) return node_name(p, &name);
    parser_next(p);
    if (p->current.type != TOKEN_NAME) return parser_unexpected(p, "a name");
    JinjaNode *node = parser_node_text(p, NODE_NSREF, name.line, p->current.text);
    if (node) node->name = parser_name(p, name.text);
    parser_next(p);
    return node;
}

JinjaNode *parser_primary(Parser *p, bool with_namespace) {
    JinjaLexeme token = p->current;
    switch (token.type) {
    case TOKEN_NAME: return parse_primary_name(p, with_namespace);
    case TOKEN_STRING: return parse_string(p);
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: parser_next(p); return parse_constant(p, token.line, token.value);
    default: break;
    }
    if (parser_at(p, OP_LPAREN)) {
        if (!jinja_enter(p->vm)) return NULL;
        parser_next(p);
        JinjaNode *node = parser_tuple(p, TUPLE_FULL, NULL, true);
        p->vm->depth--;
        return node && parser_expect(p, OP_RPAREN) ? node : NULL;
    }
    if (parser_at(p, OP_LBRACKET)) return parse_list(p);
    if (parser_at(p, OP_LBRACE)) return parse_dict(p);
    return parser_unexpected(p, "an expression");
}

static bool slice_part(Parser *p, JinjaNode **out) {
    if (parser_at(p, OP_COLON) || parser_at(p, OP_RBRACKET) || parser_at(p, OP_COMMA)) return true;
    *out = parser_expression(p);
    return *out != NULL;
}

static JinjaNode *parse_subscribed(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *start = NULL, *stop = NULL, *step = NULL;
    if (!parser_at(p, OP_COLON)) {
        start = parser_expression(p);
        if (!start || !parser_at(p, OP_COLON)) return start;
    }
    parser_next(p);
    if (!slice_part(p, &stop)) return NULL;
    if (parser_skip(p, OP_COLON) && !slice_part(p, &step)) return NULL;
    JinjaNode *node = parser_node(p, NODE_SLICE, line);
    if (!node) return NULL;
    node->a = start;
    node->b = stop;
    node->c = step;
    return node;
}

static JinjaNode *parse_subscript(Parser *p, JinjaNode *node) {
    uint32_t line = p->current.line;
    bool dot = parser_at(p, OP_DOT);
    parser_next(p);
    if (dot) {
        JinjaLexeme attribute = p->current;
        parser_next(p);
        if (attribute.type == TOKEN_INTEGER) {
            return parser_node_two(
                p, NODE_GETITEM, line, OP_NONE, node, parse_constant(p, attribute.line, attribute.value));
        }
        if (attribute.type != TOKEN_NAME) return parser_fail(p, attribute.line, "expected name or number");
        JinjaNode *get = parser_node(p, NODE_GETATTR, line);
        JinjaStr *name = jinja_str_new(p->vm, attribute.text.data, attribute.text.size, ORIGIN_TEMPLATE);
        if (!get || !name) return NULL;
        get->a = node;
        get->text = name;
        get->function = jinja_find(p->vm->library->methods, attribute.text);
        return get;
    }
    NodeList list = {0};
    while (!parser_at(p, OP_RBRACKET)) {
        if (list.count && !parser_expect(p, OP_COMMA)) return NULL;
        JinjaNode *item = parse_subscribed(p);
        if (!item) return NULL;
        node_list_add(&list, item);
    }
    parser_next(p);
    JinjaNode *item = list.count == 1 ? list.first : parser_node_list(p, NODE_TUPLE, line, list);
    return parser_node_two(p, NODE_GETITEM, line, OP_NONE, node, item);
}

static bool parse_arguments(Parser *p, NodeList *list) {
    uint32_t line = p->current.line;
    bool keywords = false, star = false, stars = false;
    parser_next(p);
    while (!parser_at(p, OP_RPAREN)) {
        if (list->count) {
            if (!parser_expect(p, OP_COMMA)) return false;
            if (parser_at(p, OP_RPAREN)) break;
        }
        JinjaNode *item;
        bool ok = true;
        if (parser_at(p, OP_MUL) || parser_at(p, OP_POW)) {
            bool mapping = parser_at(p, OP_POW);
            ok = !stars && (mapping || !star);
            parser_next(p);
            item = parser_node(p, mapping ? NODE_STARS : NODE_STAR, p->current.line);
            if (!item || !ok || !(item->a = parser_expression(p))) item = NULL;
            stars = stars || mapping;
            star = star || !mapping;
        } else if (p->current.type == TOKEN_NAME && parser_look(p)->type == TOKEN_OPERATOR &&
            parser_look(p)->op == OP_ASSIGN) {
            ok = !stars;
            item = parser_node_text(p, NODE_KEYWORD, p->current.line, p->current.text);
            parser_next(p);
            parser_next(p);
            if (!item || !(item->a = parser_expression(p))) item = NULL;
            keywords = true;
        } else {
            ok = !star && !stars && !keywords;
            item = ok ? parser_expression(p) : NULL;
        }
        if (!ok) parser_fail(p, line, "invalid syntax for function call expression");
        if (!item) return false;
        node_list_add(list, item);
    }
    parser_next(p);
    return true;
}

static JinjaNode *parse_call(Parser *p, JinjaNode *callee) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    if (!parse_arguments(p, &list)) return NULL;
    JinjaNode *node = parser_node_list(p, NODE_CALL, line, list);
    if (node) node->a = callee;
    return node;
}

static JinjaNode *parse_postfix(Parser *p, JinjaNode *node) {
    while (node && p->current.type == TOKEN_OPERATOR) {
        if (parser_at(p, OP_DOT) || parser_at(p, OP_LBRACKET)) {
            node = parse_subscript(p, node);
        } else if (parser_at(p, OP_LPAREN)) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

static JinjaNode *parse_function(Parser *p, JinjaKind kind, uint32_t line) {
    if (p->current.type != TOKEN_NAME) return parser_unexpected(p, "a name");
    Slice name = p->current.text;
    const JinjaLibrary *library = p->vm->library;
    parser_next(p);
    JinjaNode *node = parser_node(p, kind, line);
    JinjaStr *text = node ? jinja_str_new(p->vm, name.data, name.size, ORIGIN_TEMPLATE) : NULL;
    if (!text) return NULL;
    node->text = text;
    node->function = jinja_find(kind == NODE_FILTER ? library->filters : library->tests, name);
    return node;
}

/* A chain of filters applied to input (NULL in a filter block or set block). */
JinjaNode *parser_filter(Parser *p, JinjaNode *input, bool inline_start) {
    while (parser_at(p, OP_PIPE) || inline_start) {
        if (!inline_start) parser_next(p);
        inline_start = false;
        JinjaNode *node = parse_function(p, NODE_FILTER, p->current.line);
        NodeList list = {0};
        if (!node || (parser_at(p, OP_LPAREN) && !parse_arguments(p, &list))) return NULL;
        node->a = input;
        node->list = list.first;
        node->count = list.count;
        input = node;
    }
    return input;
}

static bool starts_argument(const Parser *p) {
    switch (p->current.type) {
    case TOKEN_NAME: return !parser_at_name(p, "else") && !parser_at_name(p, "or") && !parser_at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: return true;
    default: return parser_at(p, OP_LBRACKET) || parser_at(p, OP_LBRACE);
    }
}

static JinjaNode *parse_test(Parser *p, JinjaNode *input) {
    uint32_t line = p->current.line;
    parser_next(p);
    bool negated = parser_skip_name(p, "not");
    JinjaNode *node = parse_function(p, NODE_TEST, line);
    NodeList list = {0};
    if (!node) return NULL;
    if (parser_at(p, OP_LPAREN)) {
        if (!parse_arguments(p, &list)) return NULL;
    } else if (starts_argument(p)) {
        if (parser_at_name(p, "is")) return parser_fail(p, p->current.line, "You cannot chain multiple tests with is");
        JinjaNode *argument = parse_postfix(p, parser_primary(p, false));
        if (!argument) return NULL;
        node_list_add(&list, argument);
    }
    node->a = input;
    node->list = list.first;
    node->count = list.count;
    return negated ? parser_node_two(p, NODE_NOT, line, OP_NONE, node, NULL) : node;
}

static JinjaNode *parse_filter_expression(Parser *p, JinjaNode *node) {
    while (node) {
        if (parser_at(p, OP_PIPE)) {
            node = parser_filter(p, node, false);
        } else if (parser_at_name(p, "is")) {
            node = parse_test(p, node);
        } else if (parser_at(p, OP_LPAREN)) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

static JinjaNode *parse_unary(Parser *p, bool with_filter) {
    JinjaNode *node;
    if (parser_at(p, OP_SUB) || parser_at(p, OP_ADD)) {
        JinjaOp op = parser_at(p, OP_SUB) ? OP_NEG : OP_POS;
        uint32_t line = p->current.line;
        if (!jinja_enter(p->vm)) return NULL;
        parser_next(p);
        node = parser_node_two(p, NODE_UNARY, line, op, parse_unary(p, false), NULL);
        p->vm->depth--;
    } else {
        node = parser_primary(p, false);
    }
    node = parse_postfix(p, node);
    return with_filter ? parse_filter_expression(p, node) : node;
}

/* operand ( op operand )*, left-associative; at_op gives the operator at the current token, or OP_NONE. */
static JinjaNode *parse_left(Parser *p, JinjaNode *(*operand)(Parser *p), JinjaOp (*at_op)(const Parser *p)) {
    uint32_t line = p->current.line;
    JinjaNode *left = operand(p);
    for (JinjaOp op; left && (op = at_op(p)) != OP_NONE;) {
        parser_next(p);
        left = parser_node_two(p, NODE_BINARY, line, op, left, operand(p));
    }
    return left;
}

static JinjaOp operator_at(const Parser *p) { return p->current.type == TOKEN_OPERATOR ? p->current.op : OP_NONE; }
static JinjaOp power_op(const Parser *p) { return operator_at(p) == OP_POW ? OP_POW : OP_NONE; }
static JinjaOp product_op(const Parser *p) {
    JinjaOp op = operator_at(p);
    return op == OP_MUL || op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD ? op : OP_NONE;
}
static JinjaOp sum_op(const Parser *p) {
    JinjaOp op = operator_at(p);
    return op == OP_ADD || op == OP_SUB ? op : OP_NONE;
}

static JinjaNode *parse_operand(Parser *p) { return parse_unary(p, true); }
static JinjaNode *parse_power(Parser *p) { return parse_left(p, parse_operand, power_op); }
static JinjaNode *parse_product(Parser *p) { return parse_left(p, parse_power, product_op); }

static JinjaNode *parse_concat(Parser *p) {
    uint32_t line = p->current.line;
    NodeList list = {0};
    JinjaNode *item = parse_product(p);
    if (!item || !parser_at(p, OP_TILDE)) return item;
    node_list_add(&list, item);
    while (parser_skip(p, OP_TILDE)) {
        item = parse_product(p);
        if (!item) return NULL;
        node_list_add(&list, item);
    }
    return parser_node_list(p, NODE_CONCAT, line, list);
}

static JinjaNode *parse_sum(Parser *p) { return parse_left(p, parse_concat, sum_op); }

static JinjaOp compare_op(Parser *p) {
    if (p->current.type == TOKEN_OPERATOR) {
        return p->current.op >= OP_EQ && p->current.op <= OP_LE ? p->current.op : OP_NONE;
    }
    if (parser_at_name(p, "in")) return OP_IN;
    bool not_in =
        parser_at_name(p, "not") && parser_look(p)->type == TOKEN_NAME && slice_is(parser_look(p)->text, "in");
    return not_in ? OP_NOT_IN : OP_NONE;
}

static JinjaNode *parse_compare(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_sum(p);
    NodeList list = {0};
    JinjaOp op;
    while (left && (op = compare_op(p)) != OP_NONE) {
        parser_next(p);
        if (op == OP_NOT_IN) parser_next(p);
        JinjaNode *right = parse_sum(p), *operand = right ? parser_node(p, NODE_OPERAND, right->line) : NULL;
        if (!operand) return NULL;
        operand->op = (uint16_t)op;
        operand->a = right;
        node_list_add(&list, operand);
    }
    if (!left || !list.count) return left;
    JinjaNode *node = parser_node_list(p, NODE_COMPARE, line, list);
    if (node) node->a = left;
    return node;
}

static JinjaNode *parse_not(Parser *p) {
    uint32_t line = p->current.line;
    if (!parser_at_name(p, "not")) return parse_compare(p);
    if (!jinja_enter(p->vm)) return NULL;
    parser_next(p);
    JinjaNode *node = parser_node_two(p, NODE_NOT, line, OP_NONE, parse_not(p), NULL);
    p->vm->depth--;
    return node;
}

static JinjaNode *parse_and(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_not(p);
    while (left && parser_skip_name(p, "and")) left = parser_node_two(p, NODE_AND, line, OP_NONE, left, parse_not(p));
    return left;
}

static JinjaNode *parse_or(Parser *p) {
    uint32_t line = p->current.line;
    JinjaNode *left = parse_and(p);
    while (left && parser_skip_name(p, "or")) left = parser_node_two(p, NODE_OR, line, OP_NONE, left, parse_and(p));
    return left;
}

static JinjaNode *parse_condition(Parser *p, bool with_condition) {
    if (!jinja_enter(p->vm)) return NULL;
    uint32_t line = p->current.line;
    JinjaNode *node = parse_or(p);
    while (node && with_condition && parser_skip_name(p, "if")) {
        JinjaNode *test = parse_or(p), *otherwise = NULL;
        if (!test) return NULL;
        if (parser_skip_name(p, "else") && !(otherwise = parse_condition(p, true))) return NULL;
        JinjaNode *condition = parser_node_two(p, NODE_COND, line, OP_NONE, test, node);
        if (!condition) return NULL;
        condition->c = otherwise;
        node = condition;
    }
    p->vm->depth--;
    return node;
}

JinjaNode *parser_expression(Parser *p) { return parse_condition(p, true); }
