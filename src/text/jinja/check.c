/* What jinja2's compiler checks and finds out before a template runs: unknown filters and tests (an error now, unless
 * the place may never run), break and continue outside loops. */
#include "text/jinja/syntax.h"

typedef struct Check {
    Vm *vm;
    Template *template;
} Check;

typedef struct Place {
    bool soft;    /* directly in an if or a conditional expression */
    bool in_loop; /* break and continue are allowed */
    bool in_for;  /* "loop" cannot be assigned */
} Place;

static bool check_node(Check *c, JinjaNode *node, Place place);

static bool check_list(Check *c, JinjaNode *node, Place place) {
    for (; node; node = node->next) {
        if (!check_node(c, node, place)) return false;
    }
    return true;
}

static bool check_fail(Check *c, const JinjaNode *node, const char *message) {
    c->vm->line = node->line;
    jinja_fail(c->vm, "%s", message);
    return false;
}

static bool check_known(Check *c, const JinjaNode *node, Place place) {
    bool filter = node->kind == NODE_FILTER;
    if (node->function || place.soft) return true;
    c->vm->line = node->line;
    jinja_fail(c->vm, "No %s named '%.*s'", filter ? "filter" : "test", (int)node->text->size, node->text->data);
    return false;
}

static bool check_target(Check *c, const JinjaNode *target, Place place) {
    if (target->kind == NODE_NAME && target->name == c->template->name_loop && place.in_for) {
        return check_fail(c, target, "Can't assign to special loop variable in for-loop target");
    }
    if (target->kind != NODE_TUPLE) return true;
    for (const JinjaNode *item = target->list; item; item = item->next) {
        if (!check_target(c, item, place)) return false;
    }
    return true;
}

static bool check_macro(Check *c, JinjaNode *node) {
    Place place = {0};
    for (const JinjaNode *param = node->list; param; param = param->next) {
        if (param->a && !check_node(c, param->a, place)) return false;
    }
    return check_node(c, node->b, place);
}

static bool check_for(Check *c, JinjaNode *node, Place place) {
    Place body = {.in_loop = true, .in_for = true};
    Place test = {.in_for = true};
    Place otherwise = {.in_loop = node->flag ? false : place.in_loop, .in_for = true};
    return check_target(c, node->a, body) && check_node(c, node->b, place) &&
        (!node->c || check_node(c, node->c, test)) && check_list(c, node->list, body) &&
        (!node->d || check_node(c, node->d, otherwise));
}

static bool check_if(Check *c, JinjaNode *node, Place place) {
    place.soft = true;
    for (; node->kind == NODE_IF; node = node->b) {
        if (!check_node(c, node->a, place) || !check_list(c, node->list, place)) return false;
        if (!node->b) return true;
    }
    return check_node(c, node, place);
}

static bool check_children(Check *c, JinjaNode *node, Place place) {
    return (!node->a || check_node(c, node->a, place)) && (!node->b || check_node(c, node->b, place)) &&
        (!node->c || check_node(c, node->c, place)) && check_list(c, node->list, place);
}

static bool check_statement(Check *c, JinjaNode *node, Place place) {
    Place inner = place, apart = {.in_for = place.in_for};
    inner.soft = false;
    switch (node->kind) {
    case NODE_IF: return check_if(c, node, place);
    case NODE_FOR: return check_for(c, node, place);
    case NODE_MACRO: return check_macro(c, node);
    case NODE_CALL_BLOCK: return check_node(c, node->a, place) && check_macro(c, node->b);
    case NODE_SET: return check_target(c, node->a, place) && check_node(c, node->b, place);
    case NODE_SET_BLOCK:
        return check_target(c, node->a, place) && (!node->b || check_node(c, node->b, inner)) &&
            check_list(c, node->list, inner);
    case NODE_FILTER_BLOCK: return check_node(c, node->a, inner) && check_list(c, node->list, inner);
    case NODE_WITH: return check_list(c, node->list, place) && check_node(c, node->b, inner);
    case NODE_SCOPE: return check_list(c, node->list, apart);
    case NODE_BREAK:
    case NODE_CONTINUE: return place.in_loop || check_fail(c, node, "break or continue outside a loop");
    default: return check_children(c, node, place);
    }
}

static bool check_node(Check *c, JinjaNode *node, Place place) {
    if (!jinja_enter(c->vm)) return false;
    bool ok = true;
    if (node->kind == NODE_FILTER || node->kind == NODE_TEST) ok = check_known(c, node, place);
    if (node->kind == NODE_COND) place.soft = true;
    if (node->kind >= NODE_DATA) {
        ok = check_statement(c, node, place);
    } else if (ok && node->kind != NODE_CONST && node->kind != NODE_NAME) {
        ok = check_children(c, node, place);
    }
    c->vm->depth--;
    return ok;
}

bool jinja_check(Vm *vm, Template *template) {
    Check check = {vm, template};
    return check_node(&check, template->body, (Place){0});
}
