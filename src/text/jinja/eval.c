/* Walks the tree: expressions give values, statements write into vm->out. Scoping follows jinja2: for, macros and
 * blocks that capture have their own names, if does not. */
#include "text/jinja/run.h"

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL } Flow;

static Flow run_list(Vm *vm, const JinjaNode *node);
static Jv eval(Vm *vm, const JinjaNode *node);
static Jv call(Vm *vm, Jv callee, const JinjaArgs *args);

/* Scopes */

static Jv scope_get(Vm *vm, uint32_t name) {
    for (JinjaScope *scope = vm->scope; scope; scope = scope->parent) {
        if (scope->root) return scope->root[name];
        for (size_t i = 0; i < scope->count; i++) {
            if (scope->variables[i].name == name) return scope->variables[i].value;
        }
    }
    return jv_missing();
}

static void scope_set(Vm *vm, JinjaScope *scope, uint32_t name, Jv value) {
    if (scope->root) {
        scope->root[name] = value;
        return;
    }
    for (size_t i = 0; i < scope->count; i++) {
        if (scope->variables[i].name == name) {
            scope->variables[i].value = value;
            return;
        }
    }
    JinjaVariable *variables = jinja_grow(vm, scope->variables, scope->count, &scope->capacity, sizeof *variables);
    if (!variables) return;
    scope->variables = variables;
    scope->variables[scope->count++] = (JinjaVariable){name, value};
}

static JinjaScope *scope_push(Vm *vm, JinjaScope *parent) {
    JinjaScope *scope = jinja_alloc(vm, 1, sizeof *scope);
    if (!scope) return NULL;
    scope->parent = parent;
    vm->scope = scope;
    return scope;
}

static void scope_capture(JinjaScope *scope) {
    for (; scope && !scope->captured; scope = scope->parent) scope->captured = true;
}

static bool assign(Vm *vm, JinjaScope *scope, const JinjaNode *target, Jv value) {
    if (jv_bad(value)) return false;
    if (target->kind == NODE_NAME || target->kind == NODE_PARAM) {
        scope_set(vm, scope, target->name, value);
        return !vm->failed;
    }
    vm->line = target->line;
    if (target->kind == NODE_NSREF) {
        Jv ns = scope_get(vm, target->name);
        return jinja_namespace_set(vm, ns, target->value, value);
    }
    Jv items = jinja_iterate(vm, value);
    if (jv_bad(items)) return false;
    if (items.list->count != target->count) {
        jinja_fail(vm, "ValueError: %s values to unpack (expected %u)",
            items.list->count < target->count ? "not enough" : "too many", target->count);
        return false;
    }
    size_t i = 0;
    for (const JinjaNode *item = target->list; item; item = item->next) {
        if (!assign(vm, scope, item, items.list->items[i++])) return false;
    }
    return true;
}

/* Expressions */

static Jv eval_name(Vm *vm, const JinjaNode *node) {
    Jv value = scope_get(vm, node->name);
    if (jv_given(value)) return value;
    Slice name = vm->template->names[node->name];
    JinjaStr *text = jinja_str_new(vm, name.data, name.size, ORIGIN_TEMPLATE);
    return text ? (Jv){.tag = JINJA_UNDEFINED, .s = text} : jv_error();
}

static Jv eval_items(Vm *vm, const JinjaNode *node, JinjaTag tag) {
    Jv out = jinja_list_new(vm, node->count);
    if (jv_bad(out)) return out;
    for (const JinjaNode *item = node->list; item; item = item->next) {
        if (!jinja_list_push(vm, out.list, eval(vm, item))) return jv_error();
    }
    out.tag = (uint8_t)tag;
    return out;
}

static Jv eval_dict(Vm *vm, const JinjaNode *node) {
    Jv out = jinja_dict_new(vm, node->count);
    if (jv_bad(out)) return out;
    for (const JinjaNode *pair = node->list; pair; pair = pair->next) {
        Jv key = eval(vm, pair->a), value = jv_bad(key) ? key : eval(vm, pair->b);
        if (!jinja_dict_set(vm, out.dict, key, value)) return jv_error();
    }
    return out;
}

static Jv eval_getitem(Vm *vm, const JinjaNode *node) {
    Jv object = eval(vm, node->a);
    if (jv_bad(object)) return object;
    if (node->b->kind != NODE_SLICE) {
        Jv key = eval(vm, node->b);
        vm->line = node->line;
        return jv_bad(key) ? key : jinja_getitem(vm, object, key);
    }
    const JinjaNode *parts[3] = {node->b->a, node->b->b, node->b->c};
    Jv values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = parts[i] ? eval(vm, parts[i]) : jv_missing();
        if (jv_bad(values[i])) return values[i];
    }
    vm->line = node->line;
    return jinja_slice(vm, object, values[0], values[1], values[2]);
}

typedef struct Arguments {
    JinjaList positional;
    JinjaKeyword *keywords;
    size_t count, capacity; /* keyword arguments */
} Arguments;

static bool keyword_add(Vm *vm, Arguments *to, JinjaStr *name, Jv value) {
    for (size_t i = 0; i < to->count; i++) {
        if (!slice_equal(jinja_str_slice(to->keywords[i].name), jinja_str_slice(name))) continue;
        jinja_fail(vm, "TypeError: got multiple values for keyword argument '%.*s'", (int)name->size, name->data);
        return false;
    }
    JinjaKeyword *keywords = jinja_grow(vm, to->keywords, to->count, &to->capacity, sizeof *keywords);
    if (!keywords) return false;
    to->keywords = keywords;
    to->keywords[to->count++] = (JinjaKeyword){name, value};
    return true;
}

/* *value */
static bool star_add(Vm *vm, Arguments *to, Jv value) {
    Jv items = jinja_iterate(vm, value);
    for (size_t i = 0; !jv_bad(items) && i < items.list->count; i++) {
        if (!jinja_list_push(vm, &to->positional, items.list->items[i])) return false;
    }
    return !vm->failed;
}

/* **value */
static bool stars_add(Vm *vm, Arguments *to, Jv value) {
    if (value.tag != JINJA_DICT) {
        jinja_fail(vm, "TypeError: argument after ** must be a mapping, not %s", jv_type_name(value));
        return false;
    }
    for (size_t i = 0; i < value.dict->count; i++) {
        const JinjaPair *pair = &value.dict->pairs[i];
        if (pair->key.tag != JINJA_STR) jinja_fail(vm, "TypeError: keywords must be strings");
        if (vm->failed || !jinja_str_flatten(vm, pair->key.s)) return false;
        if (!keyword_add(vm, to, pair->key.s, pair->value)) return false;
    }
    return true;
}

/* Evaluates arguments; caller: the value of {% call %}, or MISSING. */
static bool eval_arguments(Vm *vm, const JinjaNode *node, Jv caller, JinjaArgs *out) {
    Arguments to = {0};
    for (const JinjaNode *item = node->list; item; item = item->next) {
        bool wrapped = item->kind == NODE_KEYWORD || item->kind == NODE_STAR || item->kind == NODE_STARS;
        Jv value = eval(vm, wrapped ? item->a : item);
        if (jv_bad(value)) return false;
        bool ok = item->kind == NODE_KEYWORD ? keyword_add(vm, &to, item->value.s, value)
            : item->kind == NODE_STAR        ? star_add(vm, &to, value)
            : item->kind == NODE_STARS       ? stars_add(vm, &to, value)
                                             : jinja_list_push(vm, &to.positional, value);
        if (!ok) return false;
    }
    if (jv_given(caller)) {
        JinjaStr *name = jinja_str_new(vm, "caller", strlen("caller"), ORIGIN_TEMPLATE);
        if (!name || !keyword_add(vm, &to, name, caller)) return false;
    }
    *out = (JinjaArgs){to.positional.items, to.positional.count, to.keywords, to.count};
    return true;
}

static Jv eval_call(Vm *vm, const JinjaNode *node, Jv caller) {
    Jv callee = eval(vm, node->a);
    JinjaArgs args;
    if (jv_bad(callee) || !eval_arguments(vm, node, caller, &args)) return jv_error();
    vm->line = node->line;
    return call(vm, callee, &args);
}

/* A filter or a test. input: the captured text of a filter or set block; only its innermost filter has no node->a. */
static Jv eval_function(Vm *vm, const JinjaNode *node, Jv input) {
    Jv value = !node->a ? input : node->a->kind == NODE_FILTER ? eval_function(vm, node->a, input) : eval(vm, node->a);
    JinjaArgs args;
    if (jv_bad(value)) return value;
    if (!node->function) {
        vm->line = node->line;
        return jinja_fail(vm, "No %s named '%.*s' found", node->kind == NODE_FILTER ? "filter" : "test",
            (int)node->text->size, node->text->data);
    }
    if (!eval_arguments(vm, node, jv_missing(), &args)) return jv_error();
    vm->line = node->line;
    if (!jinja_enter(vm)) return jv_error();
    Jv result = jinja_function_call(vm, node->function, value, &args);
    vm->depth--;
    return result;
}

static Jv eval_logic(Vm *vm, const JinjaNode *node) {
    Jv left = eval(vm, node->a);
    bool truth;
    if (!jinja_truth(vm, left, &truth)) return jv_error();
    return truth == (node->kind == NODE_OR) ? left : eval(vm, node->b);
}

static Jv eval_concat(Vm *vm, const JinjaNode *node) {
    JinjaStr *joined = NULL;
    for (const JinjaNode *item = node->list; item; item = item->next) {
        Jv text = jinja_to_str(vm, eval(vm, item));
        if (jv_bad(text)) return text;
        joined = joined ? jinja_str_concat(vm, joined, text.s) : text.s;
        if (!joined) return jv_error();
    }
    return jv_str(joined);
}

static Jv eval_compare(Vm *vm, const JinjaNode *node) {
    Jv left = eval(vm, node->a);
    bool result = true;
    for (const JinjaNode *operand = node->list; operand && result; operand = operand->next) {
        Jv right = jv_bad(left) ? left : eval(vm, operand->a);
        if (jv_bad(right)) return right;
        vm->line = node->line;
        if (!jinja_compare(vm, (JinjaOp)operand->op, left, right, &result)) return jv_error();
        left = right;
    }
    return jv_bool(result);
}

static Jv eval_condition(Vm *vm, const JinjaNode *node) {
    Jv test = eval(vm, node->a);
    bool truth;
    if (!jinja_truth(vm, test, &truth)) return jv_error();
    if (truth) return eval(vm, node->b);
    if (node->c) return eval(vm, node->c);
    return jv_hint(vm, "the inline if-expression evaluated to false and no else section was defined");
}

static Jv eval_binary(Vm *vm, const JinjaNode *node) {
    Jv left = eval(vm, node->a), right = jv_bad(left) ? left : eval(vm, node->b);
    if (jv_bad(right)) return right;
    vm->line = node->line;
    return jinja_binary(vm, (JinjaOp)node->op, left, right);
}

static Jv eval_kind(Vm *vm, const JinjaNode *node) {
    Jv value;
    bool truth;
    switch (node->kind) {
    case NODE_CONST: return node->value;
    case NODE_NAME: return eval_name(vm, node);
    case NODE_TUPLE: return eval_items(vm, node, JINJA_TUPLE);
    case NODE_LIST: return eval_items(vm, node, JINJA_LIST);
    case NODE_DICT: return eval_dict(vm, node);
    case NODE_GETATTR:
        value = eval(vm, node->a);
        vm->line = node->line;
        return jv_bad(value) ? value : jinja_getattr(vm, value, node->text, node->function);
    case NODE_GETITEM: return eval_getitem(vm, node);
    case NODE_CALL: return eval_call(vm, node, jv_missing());
    case NODE_FILTER:
    case NODE_TEST: return eval_function(vm, node, jv_missing());
    case NODE_NOT: value = eval(vm, node->a); return jinja_truth(vm, value, &truth) ? jv_bool(!truth) : jv_error();
    case NODE_UNARY:
        value = eval(vm, node->a);
        return jv_bad(value) ? value : jinja_unary(vm, (JinjaOp)node->op, value);
    case NODE_BINARY: return eval_binary(vm, node);
    case NODE_AND:
    case NODE_OR: return eval_logic(vm, node);
    case NODE_CONCAT: return eval_concat(vm, node);
    case NODE_COMPARE: return eval_compare(vm, node);
    case NODE_COND: return eval_condition(vm, node);
    case NODE_SLICE: return jinja_fail(vm, "a slice inside a tuple");
    default: CHECK(false); return jv_error();
    }
}

static Jv eval(Vm *vm, const JinjaNode *node) {
    if (node->kind == NODE_CONST) return node->value;
    if (!jinja_enter(vm)) return jv_error();
    Jv value = eval_kind(vm, node);
    vm->depth--;
    return vm->failed ? jv_error() : value;
}

/* Statements */

/* Runs a list of statements into a string. */
static Jv capture(Vm *vm, const JinjaNode *list) {
    JinjaText *text = jinja_text_push(vm), *outer = vm->out;
    if (!text) return jv_error();
    vm->out = text;
    Flow flow = run_list(vm, list);
    vm->out = outer;
    return flow == FLOW_FAIL ? jv_error() : jinja_text_finish(vm, text);
}

static Flow write_string(Vm *vm, Jv value) {
    if (jv_bad(value)) return FLOW_FAIL;
    if (value.tag != JINJA_STR) {
        jinja_fail(vm, "TypeError: sequence item 0: expected str instance, %s found", jv_type_name(value));
        return FLOW_FAIL;
    }
    jinja_text_string(vm->out, value.s);
    return vm->failed ? FLOW_FAIL : FLOW_NEXT;
}

static Flow run_scope(Vm *vm, const JinjaNode *node) {
    JinjaScope *outer = vm->scope;
    if (!scope_push(vm, outer)) return FLOW_FAIL;
    Flow flow = run_list(vm, node->list);
    vm->scope = outer;
    return flow;
}

static Flow run_if(Vm *vm, const JinjaNode *node) {
    for (; node && node->kind == NODE_IF; node = node->b) {
        bool truth;
        if (!jinja_truth(vm, eval(vm, node->a), &truth)) return FLOW_FAIL;
        if (truth) return run_list(vm, node->list);
    }
    return node ? run_list(vm, node->list) : FLOW_NEXT;
}

static bool loop_fill(Vm *vm, JinjaLoop *loop, size_t count) {
    if (!loop->node->c) return !vm->failed;
    JinjaScope *outer = vm->scope;
    while (loop->items.count < count && loop->source_next < loop->source->count) {
        Jv item = loop->source->items[loop->source_next++];
        JinjaScope *scope = scope_push(vm, loop->scope);
        bool truth;
        if (!scope || !assign(vm, scope, loop->node->a, item) || !jinja_truth(vm, eval(vm, loop->node->c), &truth))
            return false;
        vm->scope = outer;
        if (truth && !jinja_list_push(vm, &loop->items, item)) return false;
    }
    return !vm->failed;
}

static Flow run_iterations(Vm *vm, const JinjaNode *node, Jv loop, bool *completed) {
    JinjaScope *outer = loop.loop->scope, *scope = NULL;
    Flow flow = FLOW_NEXT;
    while (flow != FLOW_BREAK) {
        size_t index = ++loop.loop->index;
        if (!loop_fill(vm, loop.loop, index + 1)) return FLOW_FAIL;
        if (index >= loop.loop->items.count) break;
        if (!scope || scope->captured) scope = scope_push(vm, outer);
        if (!scope) return FLOW_FAIL;
        scope->count = 0;
        vm->scope = scope;
        scope_set(vm, scope, vm->template->name_loop, loop);
        if (!assign(vm, scope, node->a, loop.loop->items.items[index])) return FLOW_FAIL;
        flow = run_list(vm, node->list);
        if (flow == FLOW_FAIL) return flow;
        if (flow == FLOW_NEXT) *completed = true;
    }
    return FLOW_NEXT;
}

static Flow run_for(Vm *vm, const JinjaNode *node) {
    JinjaScope *outer = vm->scope;
    Jv iterable = eval(vm, node->b);
    vm->line = node->line;
    Jv items = jv_bad(iterable) ? iterable : jinja_iterate(vm, iterable);
    JinjaLoop *loop = jv_bad(items) ? NULL : jinja_alloc(vm, 1, sizeof *loop);
    if (!loop) return FLOW_FAIL;
    *loop = (JinjaLoop){.source = items.list, .index = SIZE_MAX, .node = node, .scope = outer, .fill = loop_fill};
    if (!node->c) loop->items = *items.list;
    bool completed = false; /* as in jinja2, an iteration left by break or continue does not count for else */
    Flow flow = run_iterations(vm, node, (Jv){.tag = JINJA_LOOP, .loop = loop}, &completed);
    vm->scope = outer;
    return flow == FLOW_FAIL || completed || !node->d ? flow : run_scope(vm, node->d);
}

/* Only a namespace can be assigned to by attribute; jinja2 says so before it evaluates the value. */
static bool check_namespaces(Vm *vm, const JinjaNode *target) {
    if (target->kind == NODE_NSREF && scope_get(vm, target->name).tag != JINJA_NAMESPACE) {
        vm->line = target->line;
        jinja_fail(vm, "cannot assign attribute on non-namespace object");
        return false;
    }
    if (target->kind != NODE_TUPLE) return true;
    for (const JinjaNode *item = target->list; item; item = item->next) {
        if (!check_namespaces(vm, item)) return false;
    }
    return true;
}

static Flow run_set(Vm *vm, const JinjaNode *node) {
    if (!check_namespaces(vm, node->a)) return FLOW_FAIL;
    return assign(vm, vm->scope, node->a, eval(vm, node->b)) ? FLOW_NEXT : FLOW_FAIL;
}

static Flow run_set_block(Vm *vm, const JinjaNode *node) {
    JinjaScope *outer = vm->scope;
    if (!check_namespaces(vm, node->a) || !scope_push(vm, outer)) return FLOW_FAIL;
    Jv value = capture(vm, node->list);
    if (node->b && !jv_bad(value)) value = eval_function(vm, node->b, value);
    vm->scope = outer;
    return assign(vm, outer, node->a, value) ? FLOW_NEXT : FLOW_FAIL;
}

static Jv macro_new(Vm *vm, const JinjaNode *node) {
    JinjaMacro *macro = jinja_alloc(vm, 1, sizeof *macro);
    if (!macro) return jv_error();
    scope_capture(vm->scope);
    *macro = (JinjaMacro){node, vm->scope};
    return (Jv){.tag = JINJA_MACRO, .macro = macro};
}

static Flow run_macro(Vm *vm, const JinjaNode *node) {
    Jv macro = macro_new(vm, node);
    if (jv_bad(macro)) return FLOW_FAIL;
    scope_set(vm, vm->scope, node->name, macro);
    return vm->failed ? FLOW_FAIL : FLOW_NEXT;
}

static Flow run_call_block(Vm *vm, const JinjaNode *node) {
    Jv caller = macro_new(vm, node->b);
    return jv_bad(caller) ? FLOW_FAIL : write_string(vm, eval_call(vm, node->a, caller));
}

static Flow run_filter_block(Vm *vm, const JinjaNode *node) {
    JinjaScope *outer = vm->scope;
    if (!scope_push(vm, outer)) return FLOW_FAIL;
    Jv value = capture(vm, node->list);
    if (!jv_bad(value)) value = eval_function(vm, node->a, value);
    vm->scope = outer;
    return write_string(vm, value);
}

static Flow run_print(Vm *vm, const JinjaNode *node) {
    Jv value = eval(vm, node->a);
    return !jv_bad(value) && jinja_write_str(vm, vm->out, value) && !vm->failed ? FLOW_NEXT : FLOW_FAIL;
}

static Flow run_node(Vm *vm, const JinjaNode *node) {
    switch (node->kind) {
    case NODE_DATA: return write_string(vm, node->value);
    case NODE_PRINT: return run_print(vm, node);
    case NODE_IF: return run_if(vm, node);
    case NODE_BODY: return run_list(vm, node->list);
    case NODE_FOR: return run_for(vm, node);
    case NODE_SET: return run_set(vm, node);
    case NODE_SET_BLOCK: return run_set_block(vm, node);
    case NODE_MACRO: return run_macro(vm, node);
    case NODE_CALL_BLOCK: return run_call_block(vm, node);
    case NODE_FILTER_BLOCK: return run_filter_block(vm, node);
    case NODE_SCOPE: return run_scope(vm, node);
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: CHECK(false); return FLOW_FAIL;
    }
}

static Flow run_list(Vm *vm, const JinjaNode *node) {
    if (!jinja_enter(vm)) return FLOW_FAIL;
    Flow flow = FLOW_NEXT;
    for (; node && flow == FLOW_NEXT; node = node->next) {
        vm->line = node->line;
        flow = jinja_step(vm, 1) ? run_node(vm, node) : FLOW_FAIL;
        if (vm->failed) flow = FLOW_FAIL;
    }
    vm->depth--;
    return flow;
}

/* Macros. Reference: jinja2 3.1 runtime.Macro. */

static const Jv *keyword_find(const JinjaArgs *args, Slice name) {
    for (size_t i = 0; i < args->keyword_count; i++) {
        if (slice_equal(jinja_str_slice(args->keywords[i].name), name)) return &args->keywords[i].value;
    }
    return NULL;
}

/* Whether a parameter of the macro takes this keyword of a call with `positional` positional arguments. */
static bool takes_keyword(const Vm *vm, const JinjaNode *node, size_t positional, Slice keyword) {
    size_t at = 0;
    for (const JinjaNode *param = node->list; param; param = param->next, at++)
        if (at >= positional && slice_equal(vm->template->names[param->name], keyword)) return true;
    return false;
}

/* Keyword arguments that no parameter takes. */
static Jv other_keywords(Vm *vm, const JinjaNode *node, const JinjaArgs *args) {
    Jv dict = jinja_dict_new(vm, args->keyword_count);
    for (size_t i = 0; !jv_bad(dict) && i < args->keyword_count; i++) {
        JinjaStr *key = args->keywords[i].name;
        const Slice name = jinja_str_slice(key);
        if (takes_keyword(vm, node, args->count, name)) continue;
        if (node->flag & 1u << MACRO_CALLER && slice_is(name, "caller")) continue;
        if (!jinja_dict_set(vm, dict.dict, jv_str(key), args->keywords[i].value)) return jv_error();
    }
    return dict;
}

/* kwargs and varargs: the arguments that no parameter takes. */
static bool bind_others(Vm *vm, const JinjaNode *node, JinjaScope *scope, const JinjaArgs *args) {
    const uint32_t *names = vm->template->macro_names;
    if (node->flag & 1u << MACRO_KWARGS) {
        const Jv dict = other_keywords(vm, node, args);
        if (jv_bad(dict)) return false;
        scope_set(vm, scope, names[MACRO_KWARGS], dict);
    }
    if (node->flag & 1u << MACRO_VARARGS) {
        const size_t taken = args->count < node->count ? args->count : node->count;
        const Jv tuple = jinja_tuple(vm, args->values + taken, args->count - taken);
        if (jv_bad(tuple)) return false;
        scope_set(vm, scope, names[MACRO_VARARGS], tuple);
    }
    return true;
}

/* Gives parameters, caller, kwargs and varargs their values; defaults see the parameters that were given and those
 * before them. */
static bool bind_parameters(Vm *vm, const JinjaNode *node, JinjaScope *scope, const JinjaArgs *args) {
    const Slice *names = vm->template->names;
    size_t at = 0, taken = 0;
    for (const JinjaNode *param = node->list; param; param = param->next, at++) {
        const Jv *given = at < args->count ? &args->values[at] : keyword_find(args, names[param->name]);
        taken += given && at >= args->count;
        if (given) scope_set(vm, scope, param->name, *given);
    }
    for (const JinjaNode *param = node->list; param; param = param->next) {
        bool given = false;
        for (size_t i = 0; i < scope->count && !given; i++) given = scope->variables[i].name == param->name;
        if (given) continue;
        Jv value = param->a ? eval(vm, param->a) : jv_hint(vm, "a macro parameter was not provided");
        if (jv_bad(value)) return false;
        scope_set(vm, scope, param->name, value);
    }
    if (node->flag & 1u << MACRO_CALLER) {
        const Jv *caller = keyword_find(args, SLICE("caller"));
        taken += caller != NULL;
        scope_set(
            vm, scope, vm->template->macro_names[MACRO_CALLER], caller ? *caller : jv_hint(vm, "No caller defined"));
    }
    const bool more_keywords = taken < args->keyword_count && !(node->flag & 1u << MACRO_KWARGS);
    if (more_keywords || (args->count > node->count && !(node->flag & 1u << MACRO_VARARGS))) {
        jinja_fail(
            vm, "TypeError: macro '%.*s' was given an argument that it does not take", SLICE_ARGS(names[node->name]));
    }
    return !vm->failed && bind_others(vm, node, scope, args);
}

static Jv macro_call(Vm *vm, JinjaMacro *macro, const JinjaArgs *args) {
    JinjaScope *outer = vm->scope, *scope = scope_push(vm, macro->scope);
    if (!scope || !bind_parameters(vm, macro->node, scope, args)) return jv_error();
    Jv text = capture(vm, macro->node->b->list);
    vm->scope = outer;
    return text;
}

/* Calls */

static Jv call_inner(Vm *vm, Jv callee, const JinjaArgs *args) {
    switch (callee.tag) {
    case JINJA_MACRO: return macro_call(vm, callee.macro, args);
    case JINJA_FUNCTION: return jinja_function_call(vm, callee.function, callee, args);
    case JINJA_METHOD: return jinja_function_call(vm, callee.method->function, callee.method->self, args);
    case JINJA_UNDEFINED: return jv_undefined_error(vm, callee);
    default: return jinja_fail(vm, "TypeError: '%s' object is not callable", jv_type_name(callee));
    }
}

static Jv call(Vm *vm, Jv callee, const JinjaArgs *args) {
    if (!jinja_enter(vm)) return jv_error();
    Jv value = call_inner(vm, callee, args);
    vm->depth--;
    return vm->failed ? jv_error() : value;
}

bool jinja_run(Vm *vm, const JinjaNode *body) { return run_list(vm, body->list) != FLOW_FAIL; }
