/* What the parser works with: tokens, nodes, names. */
#include <stdio.h>

#include "text/jinja/parser.h"

void parser_next(Parser *p) {
    if (p->has_ahead) {
        p->current = p->ahead;
        p->has_ahead = false;
        return;
    }
    if (p->current.type == TOKEN_END || p->current.type == TOKEN_BAD) return;
    p->current = jinja_lexer_next(&p->lexer);
}

const JinjaLexeme *parser_look(Parser *p) {
    if (!p->has_ahead) {
        p->ahead = jinja_lexer_next(&p->lexer);
        p->has_ahead = true;
    }
    return &p->ahead;
}

bool parser_at(const Parser *p, JinjaOp op) { return p->current.type == TOKEN_OPERATOR && p->current.op == op; }
bool parser_at_name(const Parser *p, const char *name) {
    return p->current.type == TOKEN_NAME && slice_is(p->current.text, name);
}

void *parser_fail(Parser *p, uint32_t line, const char *message) {
    p->vm->line = line;
    jinja_fail(p->vm, "%s", message);
    return NULL;
}

void *parser_unexpected(Parser *p, const char *expected) {
    Slice got = p->current.type == TOKEN_END ? SLICE("the end of the template") : p->current.text;
    p->vm->line = p->current.line;
    jinja_fail(p->vm, "expected %s, got '%.*s'", expected, got.size > 80 ? 80 : SLICE_ARGS(got));
    return NULL;
}

void *parser_unsupported(Parser *p) {
    p->vm->line = p->current.line;
    jinja_raise(p->vm, ERROR_UNSUPPORTED, "'%.*s' is not supported in chat templates", SLICE_ARGS(p->current.text));
    return NULL;
}

bool parser_expect(Parser *p, JinjaOp op) {
    if (!parser_at(p, op)) {
        char text[16];
        snprintf(text, sizeof text, "'%s'", jinja_op_text(op));
        parser_unexpected(p, text);
        return false;
    }
    parser_next(p);
    return true;
}

bool parser_expect_type(Parser *p, JinjaToken type, const char *what) {
    if (p->current.type != type) {
        parser_unexpected(p, what);
        return false;
    }
    parser_next(p);
    return true;
}

bool parser_skip_name(Parser *p, const char *name) {
    if (!parser_at_name(p, name)) return false;
    parser_next(p);
    return true;
}

bool parser_skip(Parser *p, JinjaOp op) {
    if (!parser_at(p, op)) return false;
    parser_next(p);
    return true;
}

JinjaNode *parser_node(Parser *p, JinjaKind kind, uint32_t line) {
    JinjaNode *node = p->vm->failed ? NULL : jinja_alloc(p->vm, 1, sizeof *node);
    if (!node) return NULL;
    node->kind = (uint8_t)kind;
    node->line = line;
    return node;
}

void node_list_add(NodeList *list, JinjaNode *node) {
    if (!node) return;
    if (list->last) {
        list->last->next = node;
    } else {
        list->first = node;
    }
    list->last = node;
    list->count++;
}

JinjaNode *parser_node_list(Parser *p, JinjaKind kind, uint32_t line, NodeList list) {
    JinjaNode *node = parser_node(p, kind, line);
    if (!node) return NULL;
    node->list = list.first;
    node->count = list.count;
    return node;
}

JinjaNode *parser_node_two(Parser *p, JinjaKind kind, uint32_t line, JinjaOp op, JinjaNode *a, JinjaNode *b) {
    JinjaNode *node = a && (b || kind == NODE_NOT || kind == NODE_UNARY) ? parser_node(p, kind, line) : NULL;
    if (!node) return NULL;
    node->op = (uint16_t)op;
    node->a = a;
    node->b = b;
    return node;
}

JinjaNode *parser_node_text(Parser *p, JinjaKind kind, uint32_t line, Slice text) {
    JinjaNode *node = parser_node(p, kind, line);
    if (!node) return NULL;
    node->value = jv_str(jinja_str_new(p->vm, text.data, text.size, ORIGIN_TEMPLATE));
    return jv_bad(node->value) ? NULL : node;
}

uint32_t parser_name(Parser *p, Slice name) {
    Vm *vm = p->vm;
    Template *template = p->template;
    uint64_t id;
    if (map_get(&template->name_ids, name, &id)) return (uint32_t)id;
    Slice *names = jinja_grow(vm, template->names, template->name_count, &template->name_capacity, sizeof *names);
    if (!names) return 0;
    template->names = names;
    template->names[template->name_count] = name;
    if (!map_put(&template->name_ids, name, template->name_count)) {
        jinja_raise(vm, ERROR_MEMORY, "no memory for the template's names");
        return 0;
    }
    return (uint32_t) template->name_count++;
}
