/* Library functions, attributes and items: everything that the sandbox of jinja2 allows a template to reach. */
#include "text/jinja/run.h"

typedef struct Params {
    Slice names[JINJA_PARAMS_MAX];
    size_t count, required;
} Params;

static Params params_split(const char *params) {
    Params out = {0};
    while (*params) {
        size_t size = strcspn(params, " "), name = strcspn(params, "= ");
        CHECK(out.count < JINJA_PARAMS_MAX);
        out.names[out.count++] = (Slice){params, name};
        if (name == size) out.required = out.count;
        params += size + (params[size] == ' ');
    }
    return out;
}

bool jinja_bind(Vm *vm, const char *what, const char *params, const JinjaArgs *args, Jv out[JINJA_PARAMS_MAX]) {
    bool positional = *params == '/';
    Params p = params_split(params + positional);
    for (size_t i = 0; i < JINJA_PARAMS_MAX; i++) out[i] = jv_missing();
    if (args->count > p.count) {
        jinja_fail(vm, "TypeError: %s() takes at most %zu argument(s) (%zu given)", what, p.count, args->count);
        return false;
    }
    for (size_t i = 0; i < args->count; i++) out[i] = args->values[i];
    for (size_t k = 0; k < args->keyword_count; k++) {
        const Slice name = jinja_str_slice(args->keywords[k].name);
        size_t i = 0;
        while (i < p.count && !slice_equal(p.names[i], name)) i++;
        if (positional || i == p.count || jv_given(out[i])) {
            jinja_fail(vm, "TypeError: %s() got an unexpected keyword argument '%.*s'", what, SLICE_ARGS(name));
            return false;
        }
        out[i] = args->keywords[k].value;
    }
    for (size_t i = 0; i < p.required; i++) {
        if (jv_given(out[i])) continue;
        jinja_fail(vm, "TypeError: %s() missing a required argument: '%.*s'", what, SLICE_ARGS(p.names[i]));
        return false;
    }
    return true;
}

static Jv function_delay(Vm *vm, const JinjaFunction *function, Jv self, const JinjaArgs *args) {
    JinjaIter *iter = jinja_alloc(vm, 1, sizeof *iter);
    Jv *values = iter ? jinja_alloc(vm, args->count, sizeof *values) : NULL;
    if (!values) return jv_error();
    if (args->count) memcpy(values, args->values, args->count * sizeof *values);
    *iter = (JinjaIter){.function = function, .source = self, .args = *args, .type_name = "generator"};
    iter->args.values = values;
    return (Jv){.tag = JINJA_ITER, .iter = iter};
}

Jv jinja_function_call(Vm *vm, const JinjaFunction *function, Jv self, const JinjaArgs *args) {
    Jv values[JINJA_PARAMS_MAX];
    JinjaArgs bound = *args;
    if (function->params) { /* wrong arguments are an error at once, also of a lazy filter */
        if (!jinja_bind(vm, function->name, function->params, args, values)) return jv_error();
        bound = (JinjaArgs){.values = values, .count = JINJA_PARAMS_MAX};
    }
    if (function->flags & FUNCTION_LAZY) return function_delay(vm, function, self, &bound);
    Jv result = function->run(vm, self, &bound);
    return vm->failed ? jv_error() : result;
}

/* Attributes */

static uint16_t method_type(Jv v) {
    switch (v.tag) {
    case JINJA_STR: return METHOD_STR;
    case JINJA_LIST: return METHOD_LIST;
    case JINJA_DICT: return METHOD_DICT;
    default: return 0;
    }
}

/* The method of that name for values of a type; method: the first of its name. */
static const JinjaFunction *method_for(const Vm *vm, const JinjaFunction *method, uint16_t type) {
    const JinjaTable *table = vm->library->methods;
    if (!method || !type) return NULL;
    for (const JinjaFunction *m = method; m < table->functions + table->count && strcmp(m->name, method->name) == 0;
         m++) {
        if (m->flags & type) return m;
    }
    return NULL;
}

static Jv undefined_attribute(Jv object, JinjaStr *name, bool unsafe) {
    return (Jv){.tag = JINJA_UNDEFINED, .kind = object.tag, .flag = unsafe, .s = name};
}

static Jv loop_attribute(Vm *vm, JinjaLoop *loop, Slice name) {
    int64_t index = (int64_t)loop->index;
    if (slice_is(name, "index0")) return jv_int(index);
    if (slice_is(name, "index")) return jv_int(index + 1);
    if (slice_is(name, "first")) return jv_bool(index == 0);
    if (slice_is(name, "depth")) return jv_int(1); /* more in recursive loops, which there are none of */
    if (slice_is(name, "depth0")) return jv_int(0);
    if (slice_is(name, "previtem")) {
        return index > 0 ? loop->items.items[index - 1] : jv_hint(vm, "there is no previous item");
    }
    bool all = slice_is(name, "length") || slice_is(name, "revindex") || slice_is(name, "revindex0");
    if (!all && !slice_is(name, "last") && !slice_is(name, "nextitem")) return jv_missing();
    if (!loop->fill(vm, loop, all ? SIZE_MAX : loop->index + 2)) return jv_error();
    int64_t count = (int64_t)loop->items.count;
    if (slice_is(name, "length")) return jv_int(count);
    if (slice_is(name, "revindex")) return jv_int(count - index);
    if (slice_is(name, "revindex0")) return jv_int(count - index - 1);
    if (slice_is(name, "last")) return jv_bool(index + 1 >= count);
    return index + 1 < count ? loop->items.items[index + 1] : jv_hint(vm, "there is no next item");
}

/* Attribute without falling back to items; MISSING when there is none. */
static Jv attribute(Vm *vm, Jv object, JinjaStr *name, const JinjaFunction *named) {
    if (name->size && name->data[0] == '_') return jv_missing();
    const JinjaFunction *function = method_for(vm, named, method_type(object));
    if (function && (function->flags & METHOD_REFUSED)) return undefined_attribute(object, name, true);
    if (function) {
        JinjaMethod *method = jinja_alloc(vm, 1, sizeof *method);
        if (!method) return jv_error();
        *method = (JinjaMethod){object, function};
        return (Jv){.tag = JINJA_METHOD, .method = method};
    }
    if (object.tag == JINJA_LOOP) return loop_attribute(vm, object.loop, jinja_str_slice(name));
    JinjaPair *pair = object.tag == JINJA_NAMESPACE ? jinja_dict_find_text(object.dict, jinja_str_slice(name)) : NULL;
    return pair ? pair->value : jv_missing();
}

Jv jinja_getattr(Vm *vm, Jv object, JinjaStr *name, const JinjaFunction *method) {
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
    if (object.tag != JINJA_STR) return object.list->items[index];
    JinjaStr *s = object.s;
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size == s->length ? 0 : (size_t)index / 16)) return jv_error();
    size_t at = jinja_str_offset(s, (size_t)index);
    return jv_str(jinja_str_part(vm, s, at, at + utf8_width((unsigned char)s->data[at])));
}

Jv jinja_getitem(Vm *vm, Jv object, Jv key) {
    if (object.tag == JINJA_UNDEFINED) return jv_undefined_error(vm, object);
    bool sequence = object.tag == JINJA_STR || object.tag == JINJA_LIST || object.tag == JINJA_TUPLE ||
        (object.tag == JINJA_VIEW && object.flag == 'r');
    if (sequence && jv_integral(key)) {
        int64_t index;
        return jinja_as_index(vm, key, &index) ? sequence_item(vm, object, index) : jv_error();
    }
    if (object.tag == JINJA_DICT && jinja_hashable(vm, key)) {
        JinjaPair *pair = jinja_dict_find(vm, object.dict, key);
        if (pair) return pair->value;
    }
    if (vm->failed) return jv_error();
    if (key.tag != JINJA_STR) return undefined_attribute(object, NULL, false);
    if (!jinja_str_flatten(vm, key.s)) return jv_error();
    Jv value = attribute(vm, object, key.s, jinja_find(vm->library->methods, jinja_str_slice(key.s)));
    return value.tag != JINJA_MISSING ? value : undefined_attribute(object, key.s, false);
}

/* Namespaces */

bool jinja_namespace_set(Vm *vm, Jv ns, Jv name, Jv value) {
    if (ns.tag != JINJA_NAMESPACE) {
        jinja_fail(vm, "cannot assign attribute on non-namespace object");
        return false;
    }
    if (name.tag == JINJA_STR && !jinja_str_flatten(vm, name.s)) return false;
    if (name.tag == JINJA_STR && name.s->size && name.s->data[0] == '_') {
        jinja_fail(vm, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'",
            name.s->size > 80 ? 80 : (int)name.s->size, name.s->data);
        return false;
    }
    return jinja_dict_set(vm, ns.dict, name, value);
}
