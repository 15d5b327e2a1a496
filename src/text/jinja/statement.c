/* Statements: jinja2's grammar with the tags transformers adds (break, continue, generation). Reference: jinja2 3.1
 * parser.py. */
#include "text/jinja/parser.h"

static bool parse_body(Parser *p, const char *const *ends, NodeList *out);

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
    JinjaNode *target = tuple ? parser_tuple(p, mode, end_name, false) : parser_primary(p, false);
    if (!target) return NULL;
    if (!can_assign(target)) return parser_fail(p, line, "can't assign to this expression");
    return target;
}

static JinjaNode *parse_name_target(Parser *p) {
    if (p->current.type != TOKEN_NAME) return parser_unexpected(p, "a name");
    JinjaNode *node = parser_primary(p, false);
    if (node && node->kind != NODE_NAME) return parser_fail(p, node->line, "can't assign to a constant");
    return node;
}

static bool parse_statements(Parser *p, const char *const *ends, NodeList *out) {
    parser_skip(p, OP_COLON);
    return parser_expect_type(p, TOKEN_BLOCK_END, "end of statement block") && parse_body(p, ends, out);
}

/* A body up to one of the ends, which becomes the current token and is then skipped. */
static JinjaNode *parse_body_node(Parser *p, const char *end, JinjaKind kind, uint32_t line) {
    const char *ends[] = {end, NULL};
    NodeList list = {0};
    if (!parse_statements(p, ends, &list)) return NULL;
    parser_next(p);
    return parser_node_list(p, kind, line, list);
}

static JinjaNode *parse_for(Parser *p, uint32_t line) {
    JinjaNode *node = parser_node(p, NODE_FOR, line);
    if (!node || !(node->a = parse_target(p, TUPLE_TARGET, "in", true))) return NULL;
    if (!parser_at_name(p, "in")) return parser_unexpected(p, "'in'");
    parser_next(p);
    if (!(node->b = parser_tuple(p, TUPLE_NO_CONDITION, "recursive", false))) return NULL;
    if (parser_skip_name(p, "if") && !(node->c = parser_expression(p))) return NULL;
    if (parser_at_name(p, "recursive")) return parser_unsupported(p);
    const char *ends[] = {"endfor", "else", NULL};
    NodeList list = {0};
    if (!parse_statements(p, ends, &list)) return NULL;
    node->list = list.first;
    node->count = list.count;
    bool has_else = parser_at_name(p, "else");
    parser_next(p);
    if (has_else && !(node->d = parse_body_node(p, "endfor", NODE_BODY, line))) return NULL;
    return node;
}

static JinjaNode *parse_if(Parser *p, uint32_t line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    JinjaNode *first = parser_node(p, NODE_IF, line), *node = first;
    while (node) {
        NodeList list = {0};
        if (!(node->a = parser_tuple(p, TUPLE_NO_CONDITION, NULL, false)) || !parse_statements(p, ends, &list))
            return NULL;
        node->list = list.first;
        node->count = list.count;
        bool is_elif = parser_at_name(p, "elif"), is_else = parser_at_name(p, "else");
        parser_next(p);
        if (is_else && !(node->b = parse_body_node(p, "endif", NODE_BODY, line))) return NULL;
        if (!is_elif) return first;
        node->b = parser_node(p, NODE_IF, p->current.line);
        node = node->b;
    }
    return NULL;
}

static JinjaNode *parse_set(Parser *p, uint32_t line) {
    JinjaNode *target = parse_target(p, TUPLE_TARGET_NAMESPACE, NULL, true);
    if (!target) return NULL;
    if (parser_skip(p, OP_ASSIGN))
        return parser_node_two(p, NODE_SET, line, OP_NONE, target, parser_tuple(p, TUPLE_FULL, NULL, false));
    JinjaNode *filter = parser_at(p, OP_PIPE) ? parser_filter(p, NULL, false) : NULL;
    if (p->vm->failed) return NULL;
    JinjaNode *node = parse_body_node(p, "endset", NODE_SET_BLOCK, line);
    if (!node) return NULL;
    node->a = target;
    node->b = filter;
    return node;
}

static bool parse_signature(Parser *p, JinjaNode *macro) {
    NodeList list = {0};
    bool defaults = false;
    if (!parser_expect(p, OP_LPAREN)) return false;
    while (!parser_at(p, OP_RPAREN)) {
        if (list.count && !parser_expect(p, OP_COMMA)) return false;
        JinjaNode *parameter = parse_name_target(p);
        if (!parameter) return false;
        parameter->kind = NODE_PARAM;
        if (parser_skip(p, OP_ASSIGN)) {
            if (!(parameter->a = parser_expression(p))) return false;
            defaults = true;
        } else if (defaults) {
            parser_fail(p, p->current.line, "non-default argument follows default argument");
            return false;
        }
        node_list_add(&list, parameter);
    }
    parser_next(p);
    macro->list = list.first;
    macro->count = list.count;
    return true;
}

/* The body of a macro, which has a caller, kwargs and varargs when it reads them without a parameter of that name. */
static bool parse_macro_body(Parser *p, JinjaNode *macro, const char *end) {
    const unsigned outer = p->macro_reads;
    p->macro_reads = 0;
    if (!(macro->b = parse_body_node(p, end, NODE_BODY, macro->line))) return false;
    const bool reads_caller = p->macro_reads & 1u << MACRO_CALLER;
    macro->flag = (uint8_t)p->macro_reads;
    for (const JinjaNode *param = macro->list; param; param = param->next) {
        for (unsigned i = 0; i < MACRO_NAMES; i++)
            if (param->name == p->template->macro_names[i]) macro->flag &= (uint8_t) ~(1u << i);
        if (param->name == p->template->macro_names[MACRO_CALLER] && reads_caller && !param->a) {
            parser_fail(p, macro->line, "the special \"caller\" argument must be omitted or be given a default");
            return false;
        }
    }
    p->macro_reads |= outer;
    return true;
}

static JinjaNode *parse_macro(Parser *p, uint32_t line) {
    JinjaNode *node = parser_node(p, NODE_MACRO, line), *name = parse_name_target(p);
    if (!node || !name || !parse_signature(p, node)) return NULL;
    node->name = name->name;
    return parse_macro_body(p, node, "endmacro") ? node : NULL;
}

static JinjaNode *parse_call_block(Parser *p, uint32_t line) {
    JinjaNode *macro = parser_node(p, NODE_MACRO, line);
    if (!macro || (parser_at(p, OP_LPAREN) && !parse_signature(p, macro))) return NULL;
    JinjaNode *call = parser_expression(p);
    if (!call) return NULL;
    if (call->kind != NODE_CALL) return parser_fail(p, line, "expected call");
    macro->name = p->template->macro_names[MACRO_CALLER];
    if (!parse_macro_body(p, macro, "endcall")) return NULL;
    return parser_node_two(p, NODE_CALL_BLOCK, line, OP_NONE, call, macro);
}

static JinjaNode *parse_filter_block(Parser *p, uint32_t line) {
    JinjaNode *filter = parser_filter(p, NULL, true);
    JinjaNode *node = filter ? parse_body_node(p, "endfilter", NODE_FILTER_BLOCK, line) : NULL;
    if (node) node->a = filter;
    return node;
}

static JinjaNode *parse_generation(Parser *p, uint32_t line) {
    return parse_body_node(p, "endgeneration", NODE_SCOPE, line);
}

static JinjaNode *parse_break(Parser *p, uint32_t line) { return parser_node(p, NODE_BREAK, line); }
static JinjaNode *parse_continue(Parser *p, uint32_t line) { return parser_node(p, NODE_CONTINUE, line); }

static JinjaNode *parse_statement(Parser *p) {
    static const struct {
        const char *name;
        JinjaNode *(*parse)(Parser *p, uint32_t line);
    } statements[] = {{"for", parse_for}, {"if", parse_if}, {"set", parse_set}, {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block}, {"generation", parse_generation},
        {"break", parse_break}, {"continue", parse_continue}};
    static const char *const refused[] = {
        "import", "from", "include", "extends", "block", "autoescape", "print", "with"};
    JinjaLexeme tag = p->current;
    if (tag.type != TOKEN_NAME) return parser_fail(p, tag.line, "tag name expected");
    p->vm->line = tag.line;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        if (slice_is(tag.text, refused[i])) return parser_unsupported(p);
    }
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        if (!slice_is(tag.text, statements[i].name)) continue;
        parser_next(p);
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
        if (parser_at_name(p, *ends)) return true;
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
            node = parser_node_text(p, NODE_DATA, line, p->current.text);
            parser_next(p);
            break;
        case TOKEN_PRINT_BEGIN:
            parser_next(p);
            node = parser_node(p, NODE_PRINT, line);
            if (!node || !(node->a = parser_tuple(p, TUPLE_FULL, NULL, false))) return false;
            if (!parser_expect_type(p, TOKEN_PRINT_END, "end of print statement")) return false;
            break;
        case TOKEN_BLOCK_BEGIN:
            parser_next(p);
            if (is_end(p, ends)) return true;
            node = parse_statement(p);
            if (!node || !parser_expect_type(p, TOKEN_BLOCK_END, "end of statement block")) return false;
            break;
        default: return false;
        }
        if (!node) return false;
        node_list_add(out, node);
    }
}

bool jinja_parse(Vm *vm, Template *template, Slice source) {
    Parser p = {.vm = vm, .template = template};
    vm->template = template;
    template->name_loop = parser_name(&p, SLICE("loop"));
    template->macro_names[MACRO_CALLER] = parser_name(&p, SLICE("caller"));
    template->macro_names[MACRO_KWARGS] = parser_name(&p, SLICE("kwargs"));
    template->macro_names[MACRO_VARARGS] = parser_name(&p, SLICE("varargs"));
    if (vm->failed || !jinja_lexer_init(&p.lexer, vm, source)) return false;
    template->source = p.lexer.source;
    p.current.type = TOKEN_DATA;
    parser_next(&p);
    NodeList list = {0};
    if (!parse_body(&p, NULL, &list) || vm->failed) {
        if (!vm->failed) parser_fail(&p, p.current.line, "the template cannot be parsed");
        return false;
    }
    template->body = parser_node_list(&p, NODE_BODY, 1, list);
    return template->body && jinja_check(vm, template->body);
}
