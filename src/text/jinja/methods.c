/* Methods of str, list, tuple, dict, int, float, range and loop. Those that would change their object are known and
 * refused, as in jinja2's ImmutableSandboxedEnvironment. */
#include <math.h>

#include "base/utf8.h"
#include "text/jinja/eval.h"

static bool want_str(Vm *vm, Jv v, const char *method) {
    if (v.tag == JINJA_UNDEFINED) {
        jinja_fail(vm, "TypeError: %s() argument must be str, not Undefined", method);
        return false;
    }
    if (v.tag == JINJA_STR) return jinja_str_flatten(vm, v.s);
    jinja_fail(vm, "TypeError: %s() argument must be str, not %s", method, jv_type_name(v));
    return false;
}

static bool optional_int(Vm *vm, Jv v, int64_t fallback, int64_t *out) {
    *out = fallback;
    return !jv_given(v) || jinja_as_index(vm, v, out);
}

static Jv str_upper(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_UPPER); }
static Jv str_lower(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_LOWER); }
static Jv str_title(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_TITLE); }
static Jv str_capitalize(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_CAPITALIZE); }
static Jv str_swapcase(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_SWAP); }
static Jv str_casefold(Vm *vm, Jv s, const Jv *a) { return jinja_str_case(vm, s, CASE_FOLD); }
static Jv str_strip(Vm *vm, Jv s, const Jv *a) { return jinja_str_strip(vm, s, a[0], true, true); }
static Jv str_lstrip(Vm *vm, Jv s, const Jv *a) { return jinja_str_strip(vm, s, a[0], true, false); }
static Jv str_rstrip(Vm *vm, Jv s, const Jv *a) { return jinja_str_strip(vm, s, a[0], false, true); }

static Jv str_is(Vm *vm, Jv s, int which) {
    bool result = jinja_str_test(vm, s, which);
    return vm->failed ? jv_error() : jv_bool(result);
}
static Jv str_isupper(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'u'); }
static Jv str_islower(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'l'); }
static Jv str_istitle(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 't'); }
static Jv str_isalpha(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'a'); }
static Jv str_isalnum(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'n'); }
static Jv str_isdecimal(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'd'); }
static Jv str_isdigit(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'g'); }
static Jv str_isnumeric(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'm'); }
static Jv str_isspace(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 's'); }
static Jv str_isprintable(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'p'); }
static Jv str_isascii(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'c'); }
static Jv str_isidentifier(Vm *vm, Jv s, const Jv *a) { return str_is(vm, s, 'i'); }

static Jv str_split_any(Vm *vm, Jv s, const Jv *a, bool from_right) {
    int64_t limit;
    if (!optional_int(vm, a[1], -1, &limit)) return jv_error();
    return jinja_str_split(vm, s, a[0], limit, from_right);
}
static Jv str_split(Vm *vm, Jv s, const Jv *a) { return str_split_any(vm, s, a, false); }
static Jv str_rsplit(Vm *vm, Jv s, const Jv *a) { return str_split_any(vm, s, a, true); }

static Jv str_splitlines(Vm *vm, Jv s, const Jv *a) {
    bool keep = false;
    if (jv_given(a[0]) && !jinja_truth(vm, a[0], &keep)) return jv_error();
    return jinja_str_splitlines(vm, s, keep);
}

static Jv str_replace(Vm *vm, Jv s, const Jv *a) {
    int64_t count;
    if (!want_str(vm, a[0], "replace") || !want_str(vm, a[1], "replace") || !optional_int(vm, a[2], -1, &count))
        return jv_error();
    Jv with = s.s->markup ? jinja_escape(vm, a[1]) : a[1];
    return jv_bad(with) ? with : jinja_str_replace(vm, s, a[0], with, count);
}

static Jv str_pad(Vm *vm, Jv s, const Jv *a, int mode) {
    int64_t width;
    if (!jinja_as_index(vm, a[0], &width)) return jv_error();
    return jinja_str_pad(vm, s, width, a[1], mode);
}
static Jv str_ljust(Vm *vm, Jv s, const Jv *a) { return str_pad(vm, s, a, -1); }
static Jv str_center(Vm *vm, Jv s, const Jv *a) { return str_pad(vm, s, a, 0); }
static Jv str_rjust(Vm *vm, Jv s, const Jv *a) { return str_pad(vm, s, a, 1); }

static Jv str_zfill(Vm *vm, Jv s, const Jv *a) {
    int64_t width;
    if (!jinja_as_index(vm, a[0], &width) || !jinja_str_flatten(vm, s.s)) return jv_error();
    int64_t room = width - (int64_t)s.s->length;
    if (room <= 0) return s;
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    size_t sign = s.s->size && (s.s->data[0] == '-' || s.s->data[0] == '+');
    jinja_text_part(out, s.s, 0, sign);
    jinja_text_repeat(out, '0', (size_t)room, ORIGIN_TEMPLATE);
    jinja_text_part(out, s.s, sign, s.s->size);
    Jv text = jinja_text_finish(vm, out);
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, s.s->markup));
}

static Jv str_join(Vm *vm, Jv s, const Jv *a) { return jinja_str_join(vm, s, a[0], false); }

/* start and end of find, count and startswith, as byte offsets; false when start lies behind the end of the string. */
static bool str_range(Vm *vm, JinjaStr *s, Jv start, Jv end, size_t *from, size_t *to) {
    int64_t length = (int64_t)s->length, first = 0, last = length;
    bool given = jv_given(start) && start.tag != JINJA_NONE;
    if (given && !jinja_as_index(vm, start, &first)) return false;
    if (jv_given(end) && end.tag != JINJA_NONE && !jinja_as_index(vm, end, &last)) return false;
    if (first < 0) first = first + length < 0 ? 0 : first + length;
    if (last < 0) last = last + length < 0 ? 0 : last + length;
    if (last > length) last = length;
    if (!jinja_str_flatten(vm, s) || first > length || first > last) return false;
    *from = jinja_str_offset(s, (size_t)first);
    *to = jinja_str_offset(s, (size_t)last);
    return true;
}

static size_t find_in(const JinjaStr *s, size_t from, size_t to, const JinjaStr *needle) {
    if (needle->size == 0) return from;
    const char *found = memmem(s->data + from, to - from, needle->data, needle->size);
    return found ? (size_t)(found - s->data) : SIZE_MAX;
}

static int64_t str_find_index(Vm *vm, Jv s, const Jv *a, bool last, const char *name) {
    size_t from, to;
    if (!want_str(vm, a[0], name) || !str_range(vm, s.s, a[1], a[2], &from, &to)) return -1;
    if (!jinja_step(vm, s.s->size / 16)) return -1;
    size_t found = find_in(s.s, from, to, a[0].s);
    if (last && found != SIZE_MAX) {
        if (a[0].s->size > to - from) return -1;
        found = to - a[0].s->size;
        while (memcmp(s.s->data + found, a[0].s->data, a[0].s->size) != 0) {
            if (!jinja_step(vm, a[0].s->size / 256 + 1)) return -1;
            found--;
        }
    }
    return found == SIZE_MAX ? -1 : (int64_t)utf8_length(s.s->data, found);
}

static Jv str_found(Vm *vm, int64_t index, bool must) {
    if (vm->failed) return jv_error();
    return index < 0 && must ? jinja_fail(vm, "ValueError: substring not found") : jv_int(index);
}
static Jv str_find(Vm *vm, Jv s, const Jv *a) { return str_found(vm, str_find_index(vm, s, a, false, "find"), false); }
static Jv str_rfind(Vm *vm, Jv s, const Jv *a) { return str_found(vm, str_find_index(vm, s, a, true, "rfind"), false); }
static Jv str_index(Vm *vm, Jv s, const Jv *a) { return str_found(vm, str_find_index(vm, s, a, false, "index"), true); }
static Jv str_rindex(Vm *vm, Jv s, const Jv *a) {
    return str_found(vm, str_find_index(vm, s, a, true, "rindex"), true);
}

static Jv str_count(Vm *vm, Jv s, const Jv *a) {
    size_t from, to;
    if (!want_str(vm, a[0], "count")) return jv_error();
    if (!str_range(vm, s.s, a[1], a[2], &from, &to)) return vm->failed ? jv_error() : jv_int(0);
    if (a[0].s->size == 0) return jv_int((int64_t)utf8_length(s.s->data + from, to - from) + 1);
    int64_t count = 0;
    for (size_t at = from; (at = find_in(s.s, at, to, a[0].s)) != SIZE_MAX; at += a[0].s->size) count++;
    return jinja_step(vm, (to - from) / 16) ? jv_int(count) : jv_error();
}

static bool affix_matches(const JinjaStr *s, size_t from, size_t to, const JinjaStr *affix, bool suffix) {
    if (affix->size > to - from) return false;
    return memcmp(s->data + (suffix ? to - affix->size : from), affix->data, affix->size) == 0;
}

static Jv str_affix(Vm *vm, Jv s, const Jv *a, bool suffix) {
    size_t from, to;
    bool tuple = a[0].tag == JINJA_TUPLE;
    if (!tuple && a[0].tag != JINJA_STR) {
        return jinja_fail(vm, "TypeError: %s first arg must be str or a tuple of str, not %s",
            suffix ? "endswith" : "startswith", jv_type_name(a[0]));
    }
    if (!str_range(vm, s.s, a[1], a[2], &from, &to)) return vm->failed ? jv_error() : jv_bool(false);
    const Jv *items = tuple ? a[0].list->items : a;
    for (size_t i = 0; i < (tuple ? a[0].list->count : 1); i++) {
        if (!want_str(vm, items[i], "startswith")) return jv_error();
        if (affix_matches(s.s, from, to, items[i].s, suffix)) return jv_bool(true);
    }
    return jv_bool(false);
}
static Jv str_startswith(Vm *vm, Jv s, const Jv *a) { return str_affix(vm, s, a, false); }
static Jv str_endswith(Vm *vm, Jv s, const Jv *a) { return str_affix(vm, s, a, true); }

static Jv str_remove(Vm *vm, Jv s, const Jv *a, bool suffix) {
    if (!want_str(vm, a[0], "remove") || !jinja_str_flatten(vm, s.s)) return jv_error();
    size_t size = s.s->size, cut = a[0].s->size;
    if (!affix_matches(s.s, 0, size, a[0].s, suffix)) return s;
    return jv_str(suffix ? jinja_str_part(vm, s.s, 0, size - cut) : jinja_str_part(vm, s.s, cut, size));
}
static Jv str_removeprefix(Vm *vm, Jv s, const Jv *a) { return str_remove(vm, s, a, false); }
static Jv str_removesuffix(Vm *vm, Jv s, const Jv *a) { return str_remove(vm, s, a, true); }

static Jv str_partition_at(Vm *vm, Jv s, const Jv *a, bool last) {
    const Jv missing[3] = {a[0], {.tag = JINJA_MISSING}, {.tag = JINJA_MISSING}};
    if (!want_str(vm, a[0], "partition")) return jv_error();
    if (a[0].s->size == 0) return jinja_fail(vm, "ValueError: empty separator");
    int64_t index = str_find_index(vm, s, missing, last, "partition");
    if (vm->failed) return jv_error();
    Jv empty = jv_str(jinja_str_part(vm, s.s, 0, 0));
    Jv parts[3] = {last ? empty : s, empty, last ? s : empty};
    if (index >= 0) {
        size_t at = jinja_str_offset(s.s, (size_t)index), end = at + a[0].s->size;
        parts[0] = jv_str(jinja_str_part(vm, s.s, 0, at));
        parts[1] = jv_str(jinja_str_part(vm, s.s, at, end));
        parts[2] = jv_str(jinja_str_part(vm, s.s, end, s.s->size));
    }
    return vm->failed ? jv_error() : jinja_tuple(vm, parts, 3);
}
static Jv str_partition(Vm *vm, Jv s, const Jv *a) { return str_partition_at(vm, s, a, false); }
static Jv str_rpartition(Vm *vm, Jv s, const Jv *a) { return str_partition_at(vm, s, a, true); }

static Jv str_expandtabs(Vm *vm, Jv s, const Jv *a) {
    int64_t size, column = 0;
    if (!optional_int(vm, a[0], 8, &size) || !jinja_str_flatten(vm, s.s)) return jv_error();
    if (size > JINJA_TEXT_MAX) return jinja_raise(vm, ERROR_LIMIT, "expandtabs: too wide");
    JinjaText *out = jinja_text_push(vm);
    if (!out) return jv_error();
    for (size_t at = 0, width; at < s.s->size && jinja_step(vm, 1); at += width) {
        char c = s.s->data[at];
        width = utf8_width((unsigned char)c);
        if (c == '\t') {
            int64_t spaces = size > 0 ? size - column % size : 0;
            jinja_text_repeat(out, ' ', (size_t)spaces, jinja_str_origin(s.s, at));
            column += spaces;
            continue;
        }
        jinja_text_part(out, s.s, at, at + width);
        column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    Jv text = jinja_text_finish(vm, out);
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, s.s->markup));
}

static Jv str_format(Vm *vm, Jv s, const JinjaArgs *args) {
    return jinja_str_format(vm, s.s, args, (Jv){.tag = JINJA_MISSING});
}
static Jv str_format_map(Vm *vm, Jv s, const Jv *a) { return jinja_str_format(vm, s.s, &(JinjaArgs){0}, a[0]); }

static Jv str_translate(Vm *vm, Jv s, const Jv *a) {
    if (a[0].tag != JINJA_DICT)
        return jinja_fail(vm, "TypeError: '%s' object is not subscriptable", jv_type_name(a[0]));
    JinjaText *out = jinja_str_flatten(vm, s.s) ? jinja_text_push(vm) : NULL;
    if (!out) return jv_error();
    for (size_t at = 0, width; at < s.s->size && jinja_step(vm, 1); at += width) {
        uint32_t code;
        width = (size_t)utf8_decode(s.s->data + at, s.s->size - at, &code);
        JinjaPair *pair = jinja_dict_find(vm, a[0].dict, jv_int(code));
        if (!pair) {
            jinja_text_part(out, s.s, at, at + width);
        } else if (pair->value.tag == JINJA_STR) {
            jinja_text_string(out, pair->value.s);
        } else if (pair->value.tag == JINJA_INT && pair->value.i >= 0 && pair->value.i < 0x110000 &&
            (pair->value.i < 0xD800 || pair->value.i > 0xDFFF)) {
            jinja_text_code(out, (uint32_t)pair->value.i, jinja_str_origin(s.s, at));
        } else if (pair->value.tag != JINJA_NONE) {
            return jinja_fail(vm, "TypeError: character mapping must return integer, None or str");
        }
    }
    Jv text = jinja_text_finish(vm, out);
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, s.s->markup));
}

static Jv str_unsupported(Vm *vm, Jv s, const JinjaArgs *args) {
    return jinja_raise(vm, ERROR_UNSUPPORTED, "the methods encode and maketrans are not supported");
}

/* Lists, tuples, ranges */

static Jv sequence_count(Vm *vm, Jv self, const Jv *a) {
    Jv items = jinja_iterate(vm, self);
    int64_t count = 0;
    for (size_t i = 0; !jv_bad(items) && i < items.list->count; i++) {
        bool equal;
        if (!jinja_equal(vm, items.list->items[i], a[0], &equal)) return jv_error();
        count += equal;
    }
    return vm->failed ? jv_error() : jv_int(count);
}

static Jv sequence_index(Vm *vm, Jv self, const Jv *a) {
    Jv items = jinja_iterate(vm, self);
    if (jv_bad(items)) return items;
    int64_t length = (int64_t)items.list->count, from, to;
    if (!optional_int(vm, a[1], 0, &from) || !optional_int(vm, a[2], length, &to)) return jv_error();
    if (from < 0) from = from + length < 0 ? 0 : from + length;
    if (to < 0) to = to + length < 0 ? 0 : to + length;
    for (int64_t i = from; i < to && i < length; i++) {
        bool equal;
        if (!jinja_equal(vm, items.list->items[i], a[0], &equal)) return jv_error();
        if (equal) return jv_int(i);
    }
    return jinja_fail(vm, "ValueError: the value is not in the %s", jv_type_name(self));
}

static Jv list_copy(Vm *vm, Jv self, const Jv *a) {
    Jv out = jinja_tuple(vm, self.list->items, self.list->count);
    if (!jv_bad(out)) out.tag = JINJA_LIST;
    return out;
}

/* Dictionaries */

static Jv dict_get(Vm *vm, Jv self, const Jv *a) {
    JinjaPair *pair = jinja_dict_find(vm, self.dict, a[0]);
    if (vm->failed) return jv_error();
    return pair ? pair->value : jv_given(a[1]) ? a[1] : jv_none();
}

static Jv dict_view(Jv self, char what) { return (Jv){.tag = JINJA_VIEW, .flag = (uint8_t)what, .dict = self.dict}; }
static Jv dict_items(Vm *vm, Jv self, const Jv *a) { return dict_view(self, 'i'); }
static Jv dict_keys(Vm *vm, Jv self, const Jv *a) { return dict_view(self, 'k'); }
static Jv dict_values(Vm *vm, Jv self, const Jv *a) { return dict_view(self, 'v'); }
static Jv dict_copy(Vm *vm, Jv self, const Jv *a) {
    JinjaArgs args = {.positional = &self, .count = 1};
    return jinja_global_call(vm, GLOBAL_DICT, &args);
}
static Jv dict_fromkeys(Vm *vm, Jv self, const JinjaArgs *args) { return jinja_global_call(vm, GLOBAL_FROMKEYS, args); }

/* Numbers and loops */

static Jv int_bit_length(Vm *vm, Jv self, const Jv *a) { return jv_int(jinja_int_bits(self)); }
static Jv int_conjugate(Vm *vm, Jv self, const Jv *a) { return self.tag == JINJA_BOOL ? jv_int(self.b) : self; }
static Jv float_is_integer(Vm *vm, Jv self, const Jv *a) {
    return jv_bool(isfinite(self.f) && floor(self.f) == self.f);
}

static Jv loop_cycle(Vm *vm, Jv self, const JinjaArgs *args) {
    if (!args->count || args->keyword_count) return jinja_fail(vm, "TypeError: no items for cycling given");
    return args->positional[self.loop->index % args->count];
}

static Jv loop_changed(Vm *vm, Jv self, const JinjaArgs *args) {
    Jv now = jinja_tuple(vm, args->positional, args->count);
    bool same = false;
    if (jv_bad(now) || args->keyword_count) return jinja_fail(vm, "TypeError: changed() takes no keyword arguments");
    if (jv_given(self.loop->changed) && !jinja_equal(vm, self.loop->changed, now, &same)) return jv_error();
    self.loop->changed = now;
    return jv_bool(!same);
}

static Jv markup_unescape(Vm *vm, Jv self, const Jv *a) { return jinja_html_unescape(vm, self); }
static Jv markup_striptags(Vm *vm, Jv self, const Jv *a) { return jinja_striptags(vm, self); }

/* Sorted by name, entries of one name together. */
static const JinjaMethodEntry methods[] = {
    {"append", METHOD_LIST, true, "", 0, NULL, NULL},
    {"as_integer_ratio", 0, true, "", 0, NULL, NULL},
    {"bit_length", METHOD_INT, false, "", 0, int_bit_length, NULL},
    {"capitalize", METHOD_STR, false, "", 0, str_capitalize, NULL},
    {"casefold", METHOD_STR, false, "", 0, str_casefold, NULL},
    {"center", METHOD_STR, false, "/width fillchar", 1, str_center, NULL},
    {"changed", METHOD_LOOP, false, NULL, 0, NULL, loop_changed},
    {"clear", METHOD_LIST | METHOD_DICT, true, "", 0, NULL, NULL},
    {"conjugate", METHOD_INT, false, "", 0, int_conjugate, NULL},
    {"copy", METHOD_DICT, false, "", 0, dict_copy, NULL},
    {"copy", METHOD_LIST, false, "", 0, list_copy, NULL},
    {"count", METHOD_LIST | METHOD_TUPLE | METHOD_RANGE, false, "/value", 1, sequence_count, NULL},
    {"count", METHOD_STR, false, "/sub start end", 1, str_count, NULL},
    {"cycle", METHOD_LOOP, false, NULL, 0, NULL, loop_cycle},
    {"encode", METHOD_STR, false, NULL, 0, NULL, str_unsupported},
    {"endswith", METHOD_STR, false, "/suffix start end", 1, str_endswith, NULL},
    {"expandtabs", METHOD_STR, false, "tabsize", 0, str_expandtabs, NULL},
    {"extend", METHOD_LIST, true, "", 0, NULL, NULL},
    {"find", METHOD_STR, false, "/sub start end", 1, str_find, NULL},
    {"format", METHOD_STR, false, NULL, 0, NULL, str_format},
    {"format_map", METHOD_STR, false, "/mapping", 1, str_format_map, NULL},
    {"fromkeys", METHOD_DICT, false, NULL, 0, NULL, dict_fromkeys},
    {"get", METHOD_DICT, false, "/key default", 1, dict_get, NULL},
    {"index", METHOD_LIST | METHOD_TUPLE | METHOD_RANGE, false, "/value start stop", 1, sequence_index, NULL},
    {"index", METHOD_STR, false, "/sub start end", 1, str_index, NULL},
    {"insert", METHOD_LIST, true, "", 0, NULL, NULL},
    {"is_integer", METHOD_FLOAT, false, "", 0, float_is_integer, NULL},
    {"isalnum", METHOD_STR, false, "", 0, str_isalnum, NULL},
    {"isalpha", METHOD_STR, false, "", 0, str_isalpha, NULL},
    {"isascii", METHOD_STR, false, "", 0, str_isascii, NULL},
    {"isdecimal", METHOD_STR, false, "", 0, str_isdecimal, NULL},
    {"isdigit", METHOD_STR, false, "", 0, str_isdigit, NULL},
    {"isidentifier", METHOD_STR, false, "", 0, str_isidentifier, NULL},
    {"islower", METHOD_STR, false, "", 0, str_islower, NULL},
    {"isnumeric", METHOD_STR, false, "", 0, str_isnumeric, NULL},
    {"isprintable", METHOD_STR, false, "", 0, str_isprintable, NULL},
    {"isspace", METHOD_STR, false, "", 0, str_isspace, NULL},
    {"istitle", METHOD_STR, false, "", 0, str_istitle, NULL},
    {"isupper", METHOD_STR, false, "", 0, str_isupper, NULL},
    {"items", METHOD_DICT, false, "", 0, dict_items, NULL},
    {"join", METHOD_STR, false, "/iterable", 1, str_join, NULL},
    {"keys", METHOD_DICT, false, "", 0, dict_keys, NULL},
    {"ljust", METHOD_STR, false, "/width fillchar", 1, str_ljust, NULL},
    {"lower", METHOD_STR, false, "", 0, str_lower, NULL},
    {"lstrip", METHOD_STR, false, "/chars", 0, str_lstrip, NULL},
    {"maketrans", METHOD_STR, false, NULL, 0, NULL, str_unsupported},
    {"partition", METHOD_STR, false, "/sep", 1, str_partition, NULL},
    {"pop", METHOD_LIST | METHOD_DICT, true, "", 0, NULL, NULL},
    {"popitem", METHOD_DICT, true, "", 0, NULL, NULL},
    {"remove", METHOD_LIST, true, "", 0, NULL, NULL},
    {"removeprefix", METHOD_STR, false, "/prefix", 1, str_removeprefix, NULL},
    {"removesuffix", METHOD_STR, false, "/suffix", 1, str_removesuffix, NULL},
    {"replace", METHOD_STR, false, "/old new count", 2, str_replace, NULL},
    {"reverse", METHOD_LIST, true, "", 0, NULL, NULL},
    {"rfind", METHOD_STR, false, "/sub start end", 1, str_rfind, NULL},
    {"rindex", METHOD_STR, false, "/sub start end", 1, str_rindex, NULL},
    {"rjust", METHOD_STR, false, "/width fillchar", 1, str_rjust, NULL},
    {"rpartition", METHOD_STR, false, "/sep", 1, str_rpartition, NULL},
    {"rsplit", METHOD_STR, false, "sep maxsplit", 0, str_rsplit, NULL},
    {"rstrip", METHOD_STR, false, "/chars", 0, str_rstrip, NULL},
    {"setdefault", METHOD_DICT, true, "", 0, NULL, NULL},
    {"sort", METHOD_LIST, true, "", 0, NULL, NULL},
    {"split", METHOD_STR, false, "sep maxsplit", 0, str_split, NULL},
    {"splitlines", METHOD_STR, false, "keepends", 0, str_splitlines, NULL},
    {"startswith", METHOD_STR, false, "/prefix start end", 1, str_startswith, NULL},
    {"strip", METHOD_STR, false, "/chars", 0, str_strip, NULL},
    {"striptags", METHOD_MARKUP, false, "", 0, markup_striptags, NULL},
    {"swapcase", METHOD_STR, false, "", 0, str_swapcase, NULL},
    {"title", METHOD_STR, false, "", 0, str_title, NULL},
    {"translate", METHOD_STR, false, "/table", 1, str_translate, NULL},
    {"unescape", METHOD_MARKUP, false, "", 0, markup_unescape, NULL},
    {"update", METHOD_DICT, true, "", 0, NULL, NULL},
    {"upper", METHOD_STR, false, "", 0, str_upper, NULL},
    {"values", METHOD_DICT, false, "", 0, dict_values, NULL},
    {"zfill", METHOD_STR, false, "/width", 1, str_zfill, NULL},
};

uint32_t jinja_method_id(Slice name) {
    size_t low = 0, high = COUNT_OF(methods);
    while (low < high) {
        size_t middle = (low + high) / 2, size = strlen(methods[middle].name),
               shared = size < name.size ? size : name.size;
        int order = memcmp(methods[middle].name, name.data, shared);
        if (order < 0 || (order == 0 && size < name.size)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < COUNT_OF(methods) && slice_is(name, methods[low].name) ? (uint32_t)low + 1 : 0;
}

const JinjaMethodEntry *jinja_method_entry(uint32_t id, uint16_t types) {
    if (!id || id > COUNT_OF(methods) || !types) return NULL;
    for (size_t i = id - 1; i < COUNT_OF(methods) && strcmp(methods[i].name, methods[id - 1].name) == 0; i++) {
        if (methods[i].types & types) return &methods[i];
    }
    return NULL;
}

Jv jinja_method_call(Vm *vm, JinjaMethod *method, const JinjaArgs *args) {
    static const uint16_t types[] = {[JINJA_STR] = METHOD_STR | METHOD_MARKUP,
        [JINJA_LIST] = METHOD_LIST,
        [JINJA_TUPLE] = METHOD_TUPLE,
        [JINJA_DICT] = METHOD_DICT,
        [JINJA_BOOL] = METHOD_INT,
        [JINJA_INT] = METHOD_INT,
        [JINJA_BIG] = METHOD_INT,
        [JINJA_FLOAT] = METHOD_FLOAT,
        [JINJA_RANGE] = METHOD_RANGE,
        [JINJA_LOOP] = METHOD_LOOP};
    const JinjaMethodEntry *entry = jinja_method_entry(method->id, types[method->self.tag]);
    CHECK(entry && !entry->refused);
    Jv bound[JINJA_PARAMS_MAX];
    if (!entry->params) return entry->run_any(vm, method->self, args);
    if (!jinja_bind(vm, entry->name, entry->params, entry->required, args, bound)) return jv_error();
    return entry->run(vm, method->self, bound);
}
