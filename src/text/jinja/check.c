/* What jinja2's compiler checks before a template runs: unknown filters and tests (an error now, unless the place may
 * never run), break and continue outside loops, assignments to loop. */
#include "text/jinja/syntax.h"

typedef struct Place {
    bool soft;    /* directly in an if or a conditional expression */
    bool in_loop; /* break and continue are allowed */
    bool in_for;  /* "loop" cannot be assigned */
} Place;

static bool check_node(Vm *vm, JinjaNode *node, Place place);

static bool check_list(Vm *vm, JinjaNode *node, Place place) {
    for (; node; node = node->next) {
        if (!check_node(vm, node, place)) return false;
    }
    return true;
}

static bool check_fail(Vm *vm, const JinjaNode *node, const char *message) {
    vm->line = node->line;
    jinja_fail(vm, "%s", message);
    return false;
}

static bool check_known(Vm *vm, const JinjaNode *node, Place place) {
    bool filter = node->kind == NODE_FILTER;
    if (node->function || place.soft) return true;
    vm->line = node->line;
    jinja_fail(vm, "No %s named '%.*s'", filter ? "filter" : "test", (int)node->text->size, node->text->data);
    return false;
}

static bool check_target(Vm *vm, const JinjaNode *target, Place place) {
    if (target->kind == NODE_NAME && target->name == vm->template->name_loop && place.in_for) {
        return check_fail(vm, target, "Can't assign to special loop variable in for-loop target");
    }
    if (target->kind != NODE_TUPLE) return true;
    for (const JinjaNode *item = target->list; item; item = item->next) {
        if (!check_target(vm, item, place)) return false;
    }
    return true;
}

static bool check_macro(Vm *vm, JinjaNode *node) {
    Place place = {0};
    for (const JinjaNode *param = node->list; param; param = param->next) {
        if (param->a && !check_node(vm, param->a, place)) return false;
    }
    return check_node(vm, node->b, place);
}

static bool check_for(Vm *vm, JinjaNode *node, Place place) {
    Place body = {.in_loop = true, .in_for = true};
    Place test = {.in_for = true};
    Place otherwise = {.in_loop = place.in_loop, .in_for = true};
    return check_target(vm, node->a, body) && check_node(vm, node->b, place) &&
        (!node->c || check_node(vm, node->c, test)) && check_list(vm, node->list, body) &&
        (!node->d || check_node(vm, node->d, otherwise));
}

static bool check_if(Vm *vm, JinjaNode *node, Place place) {
    place.soft = true;
    for (; node->kind == NODE_IF; node = node->b) {
        if (!check_node(vm, node->a, place) || !check_list(vm, node->list, place)) return false;
        if (!node->b) return true;
    }
    return check_node(vm, node, place);
}

static bool check_children(Vm *vm, JinjaNode *node, Place place) {
    return (!node->a || check_node(vm, node->a, place)) && (!node->b || check_node(vm, node->b, place)) &&
        (!node->c || check_node(vm, node->c, place)) && check_list(vm, node->list, place);
}

static bool check_statement(Vm *vm, JinjaNode *node, Place place) {
    Place inner = place, apart = {.in_for = place.in_for};
    inner.soft = false;
    switch (node->kind) {
    case NODE_IF: return check_if(vm, node, place);
    case NODE_FOR: return check_for(vm, node, place);
    case NODE_MACRO: return check_macro(vm, node);
    case NODE_CALL_BLOCK: return check_node(vm, node->a, place) && check_macro(vm, node->b);
    case NODE_SET: return check_target(vm, node->a, place) && check_node(vm, node->b, place);
    case NODE_SET_BLOCK:
        return check_target(vm, node->a, place) && (!node->b || check_node(vm, node->b, inner)) &&
            check_list(vm, node->list, inner);
    case NODE_FILTER_BLOCK: return check_node(vm, node->a, inner) && check_list(vm, node->list, inner);
    case NODE_SCOPE: return check_list(vm, node->list, apart);
    case NODE_BREAK:
    case NODE_CONTINUE: return place.in_loop || check_fail(vm, node, "break or continue outside a loop");
    default: return check_children(vm, node, place);
    }
}

static bool check_node(Vm *vm, JinjaNode *node, Place place) {
    if (!jinja_enter(vm)) return false;
    bool ok = true;
    if (node->kind == NODE_FILTER || node->kind == NODE_TEST) ok = check_known(vm, node, place);
    if (node->kind == NODE_COND) place.soft = true;
    if (node->kind >= NODE_DATA) {
        ok = check_statement(vm, node, place);
    } else if (ok && node->kind != NODE_CONST && node->kind != NODE_NAME) {
        ok = check_children(vm, node, place);
    }
    vm->depth--;
    return ok;
}

bool jinja_check(Vm *vm, JinjaNode *body) { return check_node(vm, body, (Place){0}); }
