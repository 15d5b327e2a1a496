/* Attributes, items and calls: what the sandbox of jinja2 lets a template reach. */
#include "text/jinja/eval.h"

static size_t params_split(const char *params, Slice names[JINJA_PARAMS_MAX]) {
    size_t count = 0;
    while (*params) {
        size_t size = strcspn(params, " ");
        CHECK(count < JINJA_PARAMS_MAX);
        names[count++] = (Slice){params, size};
        params += size + (params[size] == ' ');
    }
    return count;
}

bool jinja_bind(
    Vm *vm, const char *what, const char *params, int required, const JinjaArgs *args, Jv out[JINJA_PARAMS_MAX]) {
    Slice names[JINJA_PARAMS_MAX];
    bool positional = *params == '/';
    size_t count = params_split(params + positional, names);
    for (size_t i = 0; i < JINJA_PARAMS_MAX; i++) out[i] = (Jv){.tag = JINJA_MISSING};
    if (args->count > count) {
        jinja_fail(vm, "TypeError: %s() takes at most %zu argument(s) (%zu given)", what, count, args->count);
        return false;
    }
    for (size_t i = 0; i < args->count; i++) out[i] = args->positional[i];
    for (size_t k = 0; k < args->keyword_count; k++) {
        Slice name = args->keywords[k].name;
        size_t i = 0;
        while (i < count && !slice_equal(names[i], name)) i++;
        if (positional || i == count || jv_given(out[i])) {
            jinja_fail(vm, "TypeError: %s() got an unexpected keyword argument '%.*s'", what, SLICE_ARGS(name));
            return false;
        }
        out[i] = args->keywords[k].value;
    }
    for (int i = 0; i < required; i++) {
        if (jv_given(out[i])) continue;
        jinja_fail(vm, "TypeError: %s() missing a required argument: '%.*s'", what, SLICE_ARGS(names[i]));
        return false;
    }
    return true;
}

Jv jinja_filter_run(Vm *vm, const JinjaFilter *filter, Jv value, const JinjaArgs *args) {
    if (filter->lazy) {
        JinjaIter *iter = jinja_alloc(vm, 1, sizeof *iter);
        if (!iter) return jv_error();
        Jv bound[JINJA_PARAMS_MAX]; /* wrong arguments are an error at once */
        if (filter->params && !jinja_bind(vm, filter->name, filter->params, filter->required, args, bound))
            return jv_error();
        *iter = (JinjaIter){.filter = filter, .source = value, .args = *args, .type_name = "generator"};
        return (Jv){.tag = JINJA_ITER, .iter = iter};
    }
    if (!filter->params) return filter->run_any(vm, value, args);
    Jv bound[JINJA_PARAMS_MAX];
    if (!jinja_bind(vm, filter->name, filter->params, filter->required, args, bound)) return jv_error();
    return filter->run(vm, value, bound);
}

bool jinja_test_run(Vm *vm, const JinjaTest *test, Jv value, const JinjaArgs *args, bool *out) {
    if (args->keyword_count || args->count != (size_t)test->arguments) {
        jinja_fail(vm, "TypeError: the test '%s' takes %d argument(s)", test->name, test->arguments);
        return false;
    }
    return test->run(vm, value, args->positional, out) && !vm->failed;
}

Jv jinja_filter_named(Vm *vm, Jv name, Jv value, const JinjaArgs *args) {
    if (name.tag != JINJA_STR || !jinja_str_flatten(vm, name.s)) return jinja_fail(vm, "a filter is named by a string");
    const JinjaFilter *filter = jinja_filter_find(jinja_str_slice(name.s));
    if (filter) return jinja_filter_run(vm, filter, value, args);
    return jinja_fail(vm, "No filter named '%.*s'", name.s->size > 80 ? 80 : (int)name.s->size, name.s->data);
}

bool jinja_test_named(Vm *vm, Jv name, Jv value, const JinjaArgs *args, bool *out) {
    if (name.tag == JINJA_STR && jinja_str_flatten(vm, name.s)) {
        const JinjaTest *test = jinja_test_find(jinja_str_slice(name.s));
        if (test) return jinja_test_run(vm, test, value, args, out);
        jinja_fail(vm, "No test named '%.*s'", name.s->size > 80 ? 80 : (int)name.s->size, name.s->data);
    } else {
        jinja_fail(vm, "a test is named by a string");
    }
    return false;
}

/* Attributes */

static uint16_t method_type(Jv v) {
    switch (v.tag) {
    case JINJA_STR: return v.s->markup ? METHOD_STR | METHOD_MARKUP : METHOD_STR;
    case JINJA_LIST: return METHOD_LIST;
    case JINJA_TUPLE: return METHOD_TUPLE;
    case JINJA_DICT: return METHOD_DICT;
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_BIG: return METHOD_INT;
    case JINJA_FLOAT: return METHOD_FLOAT;
    case JINJA_RANGE: return METHOD_RANGE;
    case JINJA_LOOP: return METHOD_LOOP;
    default: return 0;
    }
}

static Jv undefined_attribute(Jv object, JinjaStr *name, bool unsafe) {
    return (Jv){.tag = JINJA_UNDEFINED, .kind = object.tag, .flag = unsafe, .s = name};
}

static Jv method_new(Vm *vm, Jv self, uint32_t id) {
    JinjaMethod *method = jinja_alloc(vm, 1, sizeof *method);
    if (!method) return jv_error();
    *method = (JinjaMethod){self, id};
    return (Jv){.tag = JINJA_METHOD, .method = method};
}

static Jv loop_attribute(Vm *vm, JinjaLoop *loop, Slice name) {
    int64_t index = (int64_t)loop->index;
    if (slice_is(name, "index0")) return jv_int(index);
    if (slice_is(name, "index")) return jv_int(index + 1);
    if (slice_is(name, "first")) return jv_bool(index == 0);
    if (slice_is(name, "depth0")) return jv_int(loop->depth);
    if (slice_is(name, "depth")) return jv_int(loop->depth + 1);
    if (slice_is(name, "previtem")) {
        return index > 0 ? loop->items.items[index - 1] : jv_hint(vm, "there is no previous item");
    }
    bool all = slice_is(name, "length") || slice_is(name, "revindex") || slice_is(name, "revindex0");
    if (!all && !slice_is(name, "last") && !slice_is(name, "nextitem")) return (Jv){.tag = JINJA_MISSING};
    if (!jinja_loop_fill(vm, loop, all ? SIZE_MAX : loop->index + 2)) return jv_error();
    int64_t count = (int64_t)loop->items.count;
    if (slice_is(name, "length")) return jv_int(count);
    if (slice_is(name, "revindex")) return jv_int(count - index);
    if (slice_is(name, "revindex0")) return jv_int(count - index - 1);
    if (slice_is(name, "last")) return jv_bool(index + 1 >= count);
    return index + 1 < count ? loop->items.items[index + 1] : jv_hint(vm, "there is no next item");
}

static Jv macro_attribute(Vm *vm, const JinjaMacro *macro, Slice name) {
    const JinjaNode *node = macro->node;
    Slice text = vm->template->names[node->name];
    if (slice_is(name, "name")) return jv_str(jinja_str_new(vm, text.data, text.size, ORIGIN_TEMPLATE));
    if (slice_is(name, "catch_kwargs")) return jv_bool(node->flag & MACRO_KWARGS);
    if (slice_is(name, "catch_varargs")) return jv_bool(node->flag & MACRO_VARARGS);
    if (slice_is(name, "caller")) return jv_bool(node->flag & MACRO_CALLER);
    if (!slice_is(name, "arguments")) return (Jv){.tag = JINJA_MISSING};
    Jv out = jinja_list_new(vm, node->count);
    for (const JinjaNode *param = node->list; param && !jv_bad(out); param = param->next) {
        text = vm->template->names[param->name];
        if (!jinja_list_push(vm, out.list, jv_str(jinja_str_new(vm, text.data, text.size, ORIGIN_TEMPLATE))))
            return jv_error();
    }
    out.tag = jv_bad(out) ? out.tag : JINJA_TUPLE;
    return out;
}

/* Attributes that are values; JINJA_MISSING when there is none of that name. */
static Jv value_attribute(Vm *vm, Jv object, Slice name) {
    JinjaPair *pair;
    const Jv missing = {.tag = JINJA_MISSING};
    switch (object.tag) {
    case JINJA_NAMESPACE: pair = jinja_dict_find_text(object.dict, name); return pair ? pair->value : missing;
    case JINJA_LOOP: return loop_attribute(vm, object.loop, name);
    case JINJA_MACRO: return macro_attribute(vm, object.macro, name);
    case JINJA_TUPLE:
        if (!object.flag) return missing;
        return slice_is(name, "grouper") ? object.list->items[0]
            : slice_is(name, "list")     ? object.list->items[1]
                                         : missing;
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_BIG:
        if (slice_is(name, "real") || slice_is(name, "numerator")) {
            return object.tag == JINJA_BOOL ? jv_int(object.b) : object;
        }
        return slice_is(name, "imag") ? jv_int(0) : slice_is(name, "denominator") ? jv_int(1) : missing;
    case JINJA_FLOAT: return slice_is(name, "real") ? object : slice_is(name, "imag") ? jv_float(0) : missing;
    case JINJA_RANGE:
        if (slice_is(name, "start")) return jv_int(object.range->start);
        if (slice_is(name, "stop")) return jv_int(object.range->stop);
        return slice_is(name, "step") ? jv_int(object.range->step) : missing;
    case JINJA_CYCLER:
        if (slice_is(name, "current")) return object.cycler->items.items[object.cycler->position];
        if (slice_is(name, "pos")) return jv_int((int64_t)object.cycler->position);
        return slice_is(name, "items") ? jinja_tuple(vm, object.cycler->items.items, object.cycler->items.count)
                                       : missing;
    case JINJA_JOINER:
        if (slice_is(name, "sep")) return object.joiner->separator;
        return slice_is(name, "used") ? jv_bool(object.joiner->used) : missing;
    case JINJA_FUNCTION:
        if (object.kind != GLOBAL_DICT || !slice_is(name, "fromkeys")) return missing;
        return (Jv){.tag = JINJA_FUNCTION, .kind = GLOBAL_FROMKEYS};
    default: return missing;
    }
}

/* Attribute without falling back to items; MISSING when there is none. */
static Jv attribute(Vm *vm, Jv object, JinjaStr *name, uint32_t method) {
    const Jv missing = {.tag = JINJA_MISSING};
    if (name->size && name->data[0] == '_') return missing;
    const JinjaMethodEntry *entry = method ? jinja_method_entry(method, method_type(object)) : NULL;
    if (entry) return entry->refused ? undefined_attribute(object, name, true) : method_new(vm, object, method);
    if (object.tag == JINJA_CYCLER &&
        (slice_is(jinja_str_slice(name), "next") || slice_is(jinja_str_slice(name), "reset"))) {
        return method_new(vm, object, slice_is(jinja_str_slice(name), "next") ? UINT32_MAX : UINT32_MAX - 1);
    }
    return value_attribute(vm, object, jinja_str_slice(name));
}

Jv jinja_getattr(Vm *vm, Jv object, JinjaStr *name, uint32_t method) {
    if (object.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, object);
    if (!jinja_str_flatten(vm, name)) return jv_error();
    Jv value = attribute(vm, object, name, method);
    if (value.tag != JINJA_MISSING) return value;
    if (object.tag == JINJA_DICT) {
        JinjaPair *pair = jinja_dict_find_text(object.dict, jinja_str_slice(name));
        if (pair) return pair->value;
    }
    bool hidden = name->size >= 2 && name->data[0] == '_' && name->data[1] == '_';
    return undefined_attribute(object, name, hidden);
}

static Jv sequence_item(Vm *vm, Jv object, int64_t index) {
    size_t length;
    if (!jinja_length(vm, object, &length)) return jv_error();
    if (index < 0 && index >= -(int64_t)length) index += (int64_t)length;
    if (index < 0 || index >= (int64_t)length) return undefined_attribute(object, NULL, false);
    switch (object.tag) {
    case JINJA_STR: {
        if (!jinja_str_flatten(vm, object.s) ||
            !jinja_step(vm, object.s->size == object.s->length ? 0 : (size_t)index / 16)) {
            return jv_error();
        }
        size_t at = jinja_str_offset(object.s, (size_t)index);
        return jv_str(jinja_str_part(vm, object.s, at, at + utf8_width((unsigned char)object.s->data[at])));
    }
    case JINJA_RANGE: return jinja_range_at(object.range, index);
    default: return object.list->items[index];
    }
}

Jv jinja_getitem(Vm *vm, Jv object, Jv key) {
    if (object.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, object);
    bool sequence =
        object.tag == JINJA_STR || object.tag == JINJA_LIST || object.tag == JINJA_TUPLE || object.tag == JINJA_RANGE;
    if (sequence && jv_integral(key)) {
        int64_t index;
        return jinja_as_index(vm, key, &index) ? sequence_item(vm, object, index) : jv_error();
    }
    if (object.tag == JINJA_DICT && jinja_hashable(key)) {
        JinjaPair *pair = jinja_dict_find(vm, object.dict, key);
        if (pair) return pair->value;
        if (vm->failed) return jv_error();
    }
    if (key.tag != JINJA_STR) return undefined_attribute(object, NULL, false);
    if (!jinja_str_flatten(vm, key.s)) return jv_error();
    Jv value = attribute(vm, object, key.s, jinja_method_id(jinja_str_slice(key.s)));
    return value.tag != JINJA_MISSING ? value : undefined_attribute(object, key.s, false);
}

/* Calls */

bool jinja_callable(Jv v) {
    return v.tag == JINJA_MACRO || v.tag == JINJA_FUNCTION || v.tag == JINJA_METHOD || v.tag == JINJA_LOOP ||
        v.tag == JINJA_JOINER || v.tag == JINJA_UNDEFINED;
}

static Jv cycler_call(Vm *vm, JinjaCycler *cycler, bool next, const JinjaArgs *args) {
    if (args->count || args->keyword_count) return jinja_fail(vm, "TypeError: a cycler's method takes no arguments");
    Jv current = cycler->items.items[cycler->position];
    cycler->position = next ? (cycler->position + 1) % cycler->items.count : 0;
    return next ? current : jv_none();
}

static Jv call_inner(Vm *vm, Jv callee, const JinjaArgs *args) {
    switch (callee.tag) {
    case JINJA_MACRO: return jinja_macro_call(vm, callee.macro, args);
    case JINJA_FUNCTION: return jinja_global_call(vm, (JinjaGlobal)callee.kind, args);
    case JINJA_METHOD:
        if (callee.method->self.tag == JINJA_CYCLER) {
            return cycler_call(vm, callee.method->self.cycler, callee.method->id == UINT32_MAX, args);
        }
        return jinja_method_call(vm, callee.method, args);
    case JINJA_LOOP:
        if (args->count != 1 || args->keyword_count) return jinja_fail(vm, "TypeError: loop() takes one argument");
        return jinja_loop_call(vm, callee.loop, args->positional[0]);
    case JINJA_JOINER: {
        if (args->count || args->keyword_count) return jinja_fail(vm, "TypeError: a joiner takes no arguments");
        bool used = callee.joiner->used;
        callee.joiner->used = true;
        return used ? callee.joiner->separator : jinja_literal(vm, "");
    }
    case JINJA_UNDEFINED: return jv_undefined_error(vm, callee);
    default: return jinja_fail(vm, "TypeError: '%s' object is not callable", jv_type_name(callee));
    }
}

Jv jinja_call(Vm *vm, Jv callee, const JinjaArgs *args) {
    if (!jinja_enter(vm)) return jv_error();
    Jv value = call_inner(vm, callee, args);
    vm->depth--;
    return vm->failed ? jv_error() : value;
}
