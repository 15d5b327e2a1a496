/* Methods of str, list and dict. Those that would change their object are known and refused, as in
 * jinja2's ImmutableSandboxedEnvironment. */
#include "text/jinja/library.h"

static bool want_str(Vm *vm, Jv v, const char *method) {
    if (v.tag == JINJA_STR) return jinja_str_flatten(vm, v.s);
    jinja_fail(vm, "TypeError: %s() argument must be str, not %s", method, jv_type_name(v));
    return false;
}

static bool optional_int(Vm *vm, Jv v, int64_t fallback, int64_t *out) {
    *out = fallback;
    return !jv_given(v) || jinja_as_index(vm, v, out);
}

static Jv str_upper(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_case(vm, s, CASE_UPPER); }
static Jv str_lower(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_case(vm, s, CASE_LOWER); }
static Jv str_title(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_case(vm, s, CASE_TITLE); }
static Jv str_capitalize(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_case(vm, s, CASE_CAPITALIZE); }
static Jv str_strip(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_strip(vm, s, a->values[0], true, true); }
static Jv str_lstrip(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_strip(vm, s, a->values[0], true, false); }
static Jv str_rstrip(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_strip(vm, s, a->values[0], false, true); }

static Jv str_is(Vm *vm, Jv s, char which) {
    bool result = jinja_str_test(vm, s, which);
    return vm->failed ? jv_error() : jv_bool(result);
}
static Jv str_isupper(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 'u'); }
static Jv str_islower(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 'l'); }
static Jv str_isalpha(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 'a'); }
static Jv str_isalnum(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 'n'); }
static Jv str_isdigit(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 'd'); }
static Jv str_isspace(Vm *vm, Jv s, const JinjaArgs *a) { return str_is(vm, s, 's'); }

static Jv str_split_any(Vm *vm, Jv s, const JinjaArgs *a, bool from_right) {
    int64_t limit;
    if (!optional_int(vm, a->values[1], -1, &limit)) return jv_error();
    return jinja_str_split(vm, s, a->values[0], limit, from_right);
}
static Jv str_split(Vm *vm, Jv s, const JinjaArgs *a) { return str_split_any(vm, s, a, false); }
static Jv str_rsplit(Vm *vm, Jv s, const JinjaArgs *a) { return str_split_any(vm, s, a, true); }

static Jv str_splitlines(Vm *vm, Jv s, const JinjaArgs *a) {
    bool keep = false;
    if (jv_given(a->values[0]) && !jinja_truth(vm, a->values[0], &keep)) return jv_error();
    return jinja_str_splitlines(vm, s, keep);
}

static Jv str_replace(Vm *vm, Jv s, const JinjaArgs *a) {
    int64_t count;
    Jv old = a->values[0], with = a->values[1];
    if (!want_str(vm, old, "replace") || !want_str(vm, with, "replace") || !optional_int(vm, a->values[2], -1, &count))
        return jv_error();
    if (s.s->markup) with = jinja_escape(vm, with);
    return jv_bad(with) ? with : jinja_str_replace(vm, s, old, with, count);
}

static Jv str_join(Vm *vm, Jv s, const JinjaArgs *a) { return jinja_str_join(vm, s, a->values[0], false); }

/* values: needle, start and end, as in find, count and startswith. The range as byte offsets. False: an error was
 * raised, or start is after the end. */
static bool str_range(Vm *vm, JinjaStr *s, const Jv *values, size_t *from, size_t *to) {
    Jv start = values[1], end = values[2];
    int64_t length = (int64_t)s->length, first = 0, last = length;
    if (jv_given(start) && start.tag != JINJA_NONE && !jinja_as_index(vm, start, &first)) return false;
    if (jv_given(end) && end.tag != JINJA_NONE && !jinja_as_index(vm, end, &last)) return false;
    if (first < 0) first = first + length < 0 ? 0 : first + length;
    if (last < 0) last = last + length < 0 ? 0 : last + length;
    if (last > length) last = length;
    if (!jinja_str_flatten(vm, s) || !jinja_step(vm, s->size / 16) || first > length || first > last) return false;
    *from = jinja_str_offset(s, (size_t)first);
    *to = jinja_str_offset(s, (size_t)last);
    return true;
}

static Jv str_find(Vm *vm, Jv s, const JinjaArgs *a) {
    size_t from, to, found = SIZE_MAX;
    if (!want_str(vm, a->values[0], "find")) return jv_error();
    if (str_range(vm, s.s, a->values, &from, &to)) found = jinja_find_bytes(s.s->data, from, to, a->values[0].s);
    if (vm->failed) return jv_error();
    return jv_int(found == SIZE_MAX ? -1 : (int64_t)utf8_length(s.s->data, found));
}

static Jv str_count(Vm *vm, Jv s, const JinjaArgs *a) {
    size_t from, to;
    Jv needle = a->values[0];
    if (!want_str(vm, needle, "count")) return jv_error();
    if (!str_range(vm, s.s, a->values, &from, &to)) return vm->failed ? jv_error() : jv_int(0);
    if (needle.s->size == 0) return jv_int((int64_t)utf8_length(s.s->data + from, to - from) + 1);
    int64_t count = 0;
    for (size_t at = from; (at = jinja_find_bytes(s.s->data, at, to, needle.s)) != SIZE_MAX; at += needle.s->size)
        count++;
    return jv_int(count);
}

static bool affix_matches(const JinjaStr *s, size_t from, size_t to, const JinjaStr *affix, bool suffix) {
    if (affix->size > to - from) return false;
    return memcmp(s->data + (suffix ? to - affix->size : from), affix->data, affix->size) == 0;
}

static Jv str_affix(Vm *vm, Jv s, const JinjaArgs *a, bool suffix) {
    const char *name = suffix ? "endswith" : "startswith";
    size_t from, to;
    Jv first = a->values[0];
    bool tuple = first.tag == JINJA_TUPLE;
    if (!tuple && first.tag != JINJA_STR) {
        return jinja_fail(
            vm, "TypeError: %s first arg must be str or a tuple of str, not %s", name, jv_type_name(first));
    }
    if (!str_range(vm, s.s, a->values, &from, &to)) return vm->failed ? jv_error() : jv_bool(false);
    const Jv *items = tuple ? first.list->items : &first;
    for (size_t i = 0; i < (tuple ? first.list->count : 1); i++) {
        if (!want_str(vm, items[i], name)) return jv_error();
        if (affix_matches(s.s, from, to, items[i].s, suffix)) return jv_bool(true);
    }
    return jv_bool(false);
}
static Jv str_startswith(Vm *vm, Jv s, const JinjaArgs *a) { return str_affix(vm, s, a, false); }
static Jv str_endswith(Vm *vm, Jv s, const JinjaArgs *a) { return str_affix(vm, s, a, true); }

static Jv str_remove(Vm *vm, Jv s, Jv affix, bool suffix) {
    if (!want_str(vm, affix, "remove") || !jinja_str_flatten(vm, s.s)) return jv_error();
    size_t size = s.s->size, cut = affix.s->size;
    if (!affix_matches(s.s, 0, size, affix.s, suffix)) return s;
    return jv_str(suffix ? jinja_str_part(vm, s.s, 0, size - cut) : jinja_str_part(vm, s.s, cut, size));
}
static Jv str_removeprefix(Vm *vm, Jv s, const JinjaArgs *a) { return str_remove(vm, s, a->values[0], false); }
static Jv str_removesuffix(Vm *vm, Jv s, const JinjaArgs *a) { return str_remove(vm, s, a->values[0], true); }

/* str.format(): {}, {0}, {name}. Formats behind a colon, conversions, and attributes and items of fields are in no chat
 * template. */
static Jv format_field(Vm *vm, Slice name, const JinjaArgs *args, size_t *automatic) {
    bool digits = name.size > 0 && name.size < 10;
    size_t index = 0;
    for (size_t i = 0; i < name.size; i++) {
        char c = name.data[i];
        if (strchr(":!.[{", c)) {
            return jinja_raise(vm, ERROR_UNSUPPORTED, "str.format: the field '{%.*s}' is not supported",
                name.size > 80 ? 80 : SLICE_ARGS(name));
        }
        digits = digits && c >= '0' && c <= '9';
        index = digits ? index * 10 + (size_t)(c - '0') : 0;
    }
    if (name.size == 0) index = (*automatic)++;
    if (name.size == 0 || digits) {
        if (index < args->count) return args->values[index];
        return jinja_fail(vm, "IndexError: Replacement index %zu out of range for positional args tuple", index);
    }
    for (size_t i = 0; i < args->keyword_count; i++) {
        if (slice_equal(jinja_str_slice(args->keywords[i].name), name)) return args->keywords[i].value;
    }
    return jinja_fail(vm, "KeyError: '%.*s'", name.size > 80 ? 80 : SLICE_ARGS(name));
}

static Jv str_format(Vm *vm, Jv self, const JinjaArgs *args) {
    JinjaStr *s = self.s;
    JinjaText *out = jinja_str_flatten(vm, s) ? jinja_text_push(vm) : NULL;
    size_t plain = 0, automatic = 0;
    if (!out) return jv_error();
    for (size_t at = 0; at < s->size; at++) {
        char c = s->data[at];
        if (c != '{' && c != '}') continue;
        jinja_text_part(out, s, plain, at);
        plain = at + 1;
        if (plain < s->size && s->data[plain] == c) { /* doubled: itself */
            at++;
            continue;
        }
        const char *end = c == '{' ? memchr(s->data + at, '}', s->size - at) : NULL;
        if (!end) return jinja_fail(vm, "ValueError: Single '%c' encountered in format string", c);
        Slice name = {s->data + plain, (size_t)(end - s->data) - plain};
        Jv value = format_field(vm, name, args, &automatic);
        if (!jv_bad(value) && s->markup) value = jinja_escape(vm, value); /* as Markup.format does */
        if (jv_bad(value) || !jinja_write_str(vm, out, value)) return jv_error();
        at = (size_t)(end - s->data);
        plain = at + 1;
    }
    jinja_text_part(out, s, plain, s->size);
    Jv text = jinja_text_finish(vm, out);
    return jinja_str_like(vm, text, s);
}

static Jv dict_get(Vm *vm, Jv self, const JinjaArgs *a) {
    JinjaPair *pair = jinja_dict_find(vm, self.dict, a->values[0]);
    if (vm->failed) return jv_error();
    return pair ? pair->value : jv_given(a->values[1]) ? a->values[1] : jv_none();
}

static Jv dict_items(Vm *vm, Jv self, const JinjaArgs *a) { return jinja_dict_view(vm, self.dict, 'i'); }
static Jv dict_keys(Vm *vm, Jv self, const JinjaArgs *a) { return jinja_dict_view(vm, self.dict, 'k'); }
static Jv dict_values(Vm *vm, Jv self, const JinjaArgs *a) { return jinja_dict_view(vm, self.dict, 'v'); }

static const JinjaFunction methods[] = {
    {"append", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"capitalize", METHOD_STR, "", str_capitalize},
    {"clear", METHOD_REFUSED | METHOD_LIST | METHOD_DICT, "", NULL},
    {"count", METHOD_STR, "/sub start= end=", str_count},
    {"endswith", METHOD_STR, "/suffix start= end=", str_endswith},
    {"extend", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"find", METHOD_STR, "/sub start= end=", str_find},
    {"format", METHOD_STR, NULL, str_format},
    {"get", METHOD_DICT, "/key default=", dict_get},
    {"insert", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"isalnum", METHOD_STR, "", str_isalnum},
    {"isalpha", METHOD_STR, "", str_isalpha},
    {"isdigit", METHOD_STR, "", str_isdigit},
    {"islower", METHOD_STR, "", str_islower},
    {"isspace", METHOD_STR, "", str_isspace},
    {"isupper", METHOD_STR, "", str_isupper},
    {"items", METHOD_DICT, "", dict_items},
    {"join", METHOD_STR, "/iterable", str_join},
    {"keys", METHOD_DICT, "", dict_keys},
    {"lower", METHOD_STR, "", str_lower},
    {"lstrip", METHOD_STR, "/chars=", str_lstrip},
    {"pop", METHOD_REFUSED | METHOD_LIST | METHOD_DICT, "", NULL},
    {"popitem", METHOD_REFUSED | METHOD_DICT, "", NULL},
    {"remove", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"removeprefix", METHOD_STR, "/prefix", str_removeprefix},
    {"removesuffix", METHOD_STR, "/suffix", str_removesuffix},
    {"replace", METHOD_STR, "/old new count=", str_replace},
    {"reverse", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"rsplit", METHOD_STR, "sep= maxsplit=", str_rsplit},
    {"rstrip", METHOD_STR, "/chars=", str_rstrip},
    {"setdefault", METHOD_REFUSED | METHOD_DICT, "", NULL},
    {"sort", METHOD_REFUSED | METHOD_LIST, "", NULL},
    {"split", METHOD_STR, "sep= maxsplit=", str_split},
    {"splitlines", METHOD_STR, "keepends=", str_splitlines},
    {"startswith", METHOD_STR, "/prefix start= end=", str_startswith},
    {"strip", METHOD_STR, "/chars=", str_strip},
    {"title", METHOD_STR, "", str_title},
    {"update", METHOD_REFUSED | METHOD_DICT, "", NULL},
    {"upper", METHOD_STR, "", str_upper},
    {"values", METHOD_DICT, "", dict_values},
};
const JinjaTable jinja_methods = {methods, COUNT_OF(methods)};
