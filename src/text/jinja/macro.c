/* Calling macros: parameters, defaults and the special names caller, kwargs and varargs. Reference: jinja2 3.1
 * runtime.Macro. */
#include "text/jinja/eval.h"

static bool keyword_take(JinjaKeyword *keywords, size_t *count, Slice name, Jv *out) {
    for (size_t i = 0; i < *count; i++) {
        if (!slice_equal(keywords[i].name, name)) continue;
        *out = keywords[i].value;
        memmove(keywords + i, keywords + i + 1, (*count - i - 1) * sizeof *keywords);
        (*count)--;
        return true;
    }
    return false;
}

static bool bind_parameters(Vm *vm, const JinjaNode *node, JinjaScope *scope, const JinjaArgs *args,
    JinjaKeyword *keywords, size_t *keyword_count) {
    size_t at = 0;
    for (const JinjaNode *param = node->list; param; param = param->next, at++) {
        Jv value = {.tag = JINJA_MISSING};
        if (at < args->count) {
            value = args->positional[at];
        } else {
            keyword_take(keywords, keyword_count, vm->template->names[param->name], &value);
        }
        if (jv_given(value)) jinja_scope_set(vm, scope, param->name, value);
    }
    at = 0; /* defaults see the parameters before them */
    for (const JinjaNode *param = node->list; param; param = param->next, at++) {
        bool given = false;
        for (uint32_t i = 0; i < scope->count && !given; i++) given = scope->variables[i].name == param->name;
        if (given) continue;
        Jv value = param->a ? jinja_eval(vm, param->a) : jv_hint(vm, "a macro parameter was not provided");
        if (jv_bad(value)) return false;
        jinja_scope_set(vm, scope, param->name, value);
    }
    return !vm->failed;
}

static bool bind_specials(Vm *vm, const JinjaNode *node, JinjaScope *scope, const JinjaArgs *args,
    JinjaKeyword *keywords, size_t keyword_count) {
    const Template *t = vm->template;
    Jv caller;
    if ((node->flag & MACRO_CALLER) && !(node->flag & MACRO_EXPLICIT_CALLER)) {
        if (!keyword_take(keywords, &keyword_count, SLICE("caller"), &caller))
            caller = jv_hint(vm, "No caller defined");
        jinja_scope_set(vm, scope, t->name_caller, caller);
    }
    if (node->flag & MACRO_KWARGS) {
        Jv dict = jinja_dict_new(vm, keyword_count);
        for (size_t i = 0; i < keyword_count && !jv_bad(dict); i++) {
            JinjaStr *name = jinja_str_new(vm, keywords[i].name.data, keywords[i].name.size, ORIGIN_TEMPLATE);
            if (!jinja_dict_set(vm, dict.dict, jv_str(name), keywords[i].value)) return false;
        }
        jinja_scope_set(vm, scope, t->name_kwargs, dict);
    } else if (keyword_count) {
        jinja_fail(vm, "TypeError: macro takes no keyword argument '%.*s'", SLICE_ARGS(keywords[0].name));
    }
    if (node->flag & MACRO_VARARGS) {
        size_t extra = args->count > node->count ? args->count - node->count : 0;
        Jv varargs = jinja_tuple(vm, extra ? args->positional + node->count : NULL, extra);
        jinja_scope_set(vm, scope, t->name_varargs, varargs);
    } else if (args->count > node->count) {
        jinja_fail(vm, "TypeError: macro takes not more than %u argument(s)", node->count);
    }
    return !vm->failed;
}

Jv jinja_macro_call(Vm *vm, JinjaMacro *macro, const JinjaArgs *args) {
    if (!jinja_enter(vm)) return jv_error();
    JinjaScope *outer = vm->scope;
    uint32_t line = vm->line;
    JinjaScope *scope = jinja_scope_push(vm, macro->scope);
    JinjaKeyword *keywords = jinja_alloc(vm, args->keyword_count, sizeof *keywords);
    size_t keyword_count = args->keyword_count;
    if (!scope || !keywords) return jv_error();
    if (keyword_count) memcpy(keywords, args->keywords, keyword_count * sizeof *keywords);
    /* the specials are refused or taken before defaults run */
    JinjaKeyword *rest = keywords;
    if (!bind_parameters(vm, macro->node, scope, args, rest, &keyword_count)) return jv_error();
    vm->line = line;
    if (!bind_specials(vm, macro->node, scope, args, rest, keyword_count)) return jv_error();
    Jv text = jinja_capture(vm, macro->node->b->list);
    vm->scope = outer;
    vm->depth--;
    return text;
}
