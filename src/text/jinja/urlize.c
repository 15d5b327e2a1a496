/* The urlize filter: turns addresses in a text into links. Reference: jinja2 3.1 utils.urlize, whose regular
 * expressions are written out here. */
#include "base/utf8.h"
#include "text/jinja/eval.h"

typedef struct Urlize {
    Vm *vm;
    JinjaText *out;
    JinjaStr *text;         /* escaped */
    int64_t limit;          /* -1: none */
    JinjaStr *rel, *target; /* escaped, or NULL */
    JinjaList schemes;
} Urlize;

typedef struct Word {
    size_t from, to; /* bytes of the text */
} Word;

static bool has_at(const JinjaStr *s, Word w, size_t at, const char *text) {
    size_t size = strlen(text);
    return at >= w.from && at + size <= w.to && memcmp(s->data + at, text, size) == 0;
}

static bool has_folded(const JinjaStr *s, Word w, size_t at, const char *text) {
    size_t size = strlen(text);
    if (at + size > w.to) return false;
    for (size_t i = 0; i < size; i++) {
        char c = s->data[at + i];
        if ((c >= 'A' && c <= 'Z' ? c | 32 : c) != text[i]) return false;
    }
    return true;
}

static bool is_word(uint32_t code) { return code == '_' || unicode_is_alnum(code); }

/* The end of a run of \w and the characters of also. */
static size_t run_end(const JinjaStr *s, size_t at, size_t to, const char *also) {
    while (at < to) {
        uint32_t code;
        int width = utf8_decode(s->data + at, to - at, &code);
        if (!is_word(code) && !(code && code < 0x80 && strchr(also, (int)code))) break;
        at += (size_t)width;
    }
    return at;
}

/* ( ":" digits{1,5} )? ( [/?#] anything )? end */
static bool port_and_path(const JinjaStr *s, size_t at, size_t to) {
    if (at < to && s->data[at] == ':') {
        size_t digits = 0;
        for (at++; at < to && s->data[at] >= '0' && s->data[at] <= '9' && digits < 5; at++) digits++;
        if (!digits) return false;
    }
    return at == to || strchr("/?#", s->data[at]);
}

static bool is_tld(const JinjaStr *s, size_t from, size_t to) {
    Word label = {from, to};
    if (has_folded(s, label, from, "xn--")) {
        size_t length = utf8_length(s->data + from + 4, to - from - 4);
        if (length >= 2 && length <= 59 && run_end(s, from + 4, to, "%") == to) return true;
    }
    for (size_t i = from; i < to; i++) {
        if ((s->data[i] | 32) < 'a' || (s->data[i] | 32) > 'z') return false;
    }
    return to - from >= 2 && to - from <= 63;
}

/* Labels separated by dots; minimum characters in each but the last, whose start goes to *last. */
static bool labels(const JinjaStr *s, size_t from, size_t to, size_t minimum, size_t maximum, size_t *last) {
    *last = from;
    for (size_t at = from; at < to; at++) {
        if (s->data[at] != '.') continue;
        size_t length = utf8_length(s->data + *last, at - *last);
        if (length < minimum || length > maximum) return false;
        *last = at + 1;
    }
    return true;
}

static bool is_ipv4(const JinjaStr *s, size_t from, size_t to) {
    size_t parts = 0, digits = 0;
    for (size_t at = from; at <= to; at++) {
        if (at < to && s->data[at] >= '0' && s->data[at] <= '9') {
            digits++;
            continue;
        }
        if (digits < 1 || digits > 3 || (at < to && s->data[at] != '.')) return false;
        parts++;
        digits = 0;
    }
    return parts == 4;
}

static size_t hex_run(const JinjaStr *s, size_t at, size_t to) {
    size_t count = 0;
    while (at + count < to && count < 4) {
        char c = s->data[at + count];
        if (!(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'f')) break;
        count++;
    }
    return count;
}

/* "[" … "]"; the end, or 0 */
static size_t ipv6_end(const JinjaStr *s, size_t at, size_t to) {
    if (at >= to || s->data[at] != '[') return 0;
    at++;
    for (int i = 0; i < 2; i++) {
        at += hex_run(s, at, to);
        if (at >= to || s->data[at] != ':') return 0;
        at++;
    }
    for (int i = 0; i < 6; i++) {
        at += hex_run(s, at, to);
        at += at < to && s->data[at] == ':';
        if (at < to && s->data[at] == ']') return at + 1;
    }
    return 0;
}

static bool is_web(const JinjaStr *s, Word w) {
    static const char *const tlds[] = {"com", "net", "int", "edu", "gov", "org", "info", "mil"};
    size_t scheme = has_folded(s, w, w.from, "https://") ? 8 : has_folded(s, w, w.from, "http://") ? 7 : 0;
    size_t start = w.from + (scheme ? scheme : has_folded(s, w, w.from, "www.") ? 4 : 0);
    size_t end = run_end(s, start, w.to, "%-."), last;
    if (start > w.from && labels(s, start, end, 1, SIZE_MAX, &last) && is_tld(s, last, end) &&
        port_and_path(s, end, w.to))
        return true;
    size_t bare_end = run_end(s, w.from, w.to, "%-.");
    if (labels(s, w.from, bare_end, 2, 63, &last) && last > w.from && port_and_path(s, bare_end, w.to)) {
        Word label = {last, bare_end};
        for (size_t i = 0; i < COUNT_OF(tlds); i++) {
            if (strlen(tlds[i]) == bare_end - last && has_folded(s, label, last, tlds[i])) return true;
        }
    }
    if (!scheme) return false;
    if (is_ipv4(s, start, end) && port_and_path(s, end, w.to)) return true;
    size_t bracket = ipv6_end(s, start, w.to);
    return bracket && port_and_path(s, bracket, w.to);
}

static bool is_email(const JinjaStr *s, size_t from, size_t to) {
    size_t at = to;
    while (at > from && s->data[at - 1] != '@') at--;
    if (at <= from + 1) return false;
    size_t dot = to;
    while (dot > at && s->data[dot - 1] != '.') dot--;
    if (dot <= at + 1 || dot == to) return false;
    uint32_t first;
    utf8_decode(s->data + at, to - at, &first);
    return is_word(first) && run_end(s, at, to, ".-") == to && run_end(s, dot, to, "") == to;
}

static void put(Urlize *u, size_t from, size_t to) { jinja_text_part(u->out, u->text, from, to); }

static void put_link(Urlize *u, Word w, const char *before, bool attributes, size_t shown, bool trim) {
    jinja_text_plain(u->out, "<a href=\"");
    jinja_text_plain(u->out, before);
    put(u, w.from, w.to);
    jinja_text_plain(u->out, "\"");
    if (attributes && u->rel) {
        jinja_text_plain(u->out, " rel=\"");
        jinja_text_string(u->out, u->rel);
        jinja_text_plain(u->out, "\"");
    }
    if (attributes && u->target) {
        jinja_text_plain(u->out, " target=\"");
        jinja_text_string(u->out, u->target);
        jinja_text_plain(u->out, "\"");
    }
    jinja_text_plain(u->out, ">");
    size_t end = shown;
    bool cut = trim && u->limit >= 0 && utf8_length(u->text->data + shown, w.to - shown) > (size_t)u->limit;
    for (int64_t i = 0; cut && i < u->limit; i++) end += utf8_width((unsigned char)u->text->data[end]);
    put(u, shown, cut ? end : w.to);
    jinja_text_plain(u->out, cut ? "...</a>" : "</a>");
}

static void put_middle(Urlize *u, Word w) {
    const JinjaStr *s = u->text;
    const char *data = s->data + w.from;
    size_t size = w.to - w.from;
    if (is_web(s, w)) {
        bool scheme = has_at(s, w, w.from, "https://") || has_at(s, w, w.from, "http://");
        put_link(u, w, scheme ? "" : "https://", true, w.from, true);
    } else if (has_at(s, w, w.from, "mailto:") && is_email(s, w.from + 7, w.to)) {
        put_link(u, w, "", false, w.from + 7, false);
    } else if (size && memchr(data, '@', size) && !has_at(s, w, w.from, "www.") && *data != '@' &&
        !memchr(data, ':', size) && is_email(s, w.from, w.to)) {
        put_link(u, w, "mailto:", false, w.from, false);
    } else {
        for (size_t i = 0; i < u->schemes.count; i++) {
            JinjaStr *scheme = u->schemes.items[i].s;
            if (size <= scheme->size || memcmp(data, scheme->data, scheme->size) != 0) continue;
            put_link(u, w, "", true, w.from, false);
            return;
        }
        put(u, w.from, w.to);
    }
}

static size_t count_of(const JinjaStr *s, size_t from, size_t to, const char *text) {
    size_t count = 0, size = strlen(text);
    for (size_t at = from; at + size <= to;) {
        bool here = memcmp(s->data + at, text, size) == 0;
        count += here;
        at += here ? size : 1;
    }
    return count;
}

static void put_word(Urlize *u, Word w) {
    static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    const JinjaStr *s = u->text;
    Word middle = w;
    if (!jinja_step(u->vm, (w.to - w.from) * 4)) return; /* the passes over it below */
    for (;;) {
        size_t skip = has_at(s, middle, middle.from, "(") || has_at(s, middle, middle.from, "<") ? 1
            : has_at(s, middle, middle.from, "&lt;")                                             ? 4
                                                                                                 : 0;
        if (!skip) break;
        middle.from += skip;
    }
    while (middle.to > middle.from) {
        if (middle.to - middle.from >= 4 && has_at(s, middle, middle.to - 4, "&gt;")) {
            middle.to -= 4;
        } else if (strchr(")>.,\n", s->data[middle.to - 1])) {
            middle.to--;
        } else {
            break;
        }
    }
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        size_t opened = count_of(s, middle.from, middle.to, pairs[i][0]),
               closed = count_of(s, middle.to, w.to, pairs[i][1]);
        if (opened <= count_of(s, middle.from, middle.to, pairs[i][1])) continue;
        for (size_t moved = 0; moved < opened && moved < closed; moved++) {
            while (!has_at(s, w, middle.to, pairs[i][1])) middle.to++;
            middle.to += strlen(pairs[i][1]);
        }
    }
    put(u, w.from, middle.from);
    put_middle(u, middle);
    put(u, middle.to, w.to);
}

/* rel: the words given, nofollow if asked for, and noopener, sorted */
static bool make_rel(Urlize *u, Jv given, bool nofollow) {
    Vm *vm = u->vm;
    Jv words = given.tag == JINJA_STR ? jinja_str_split(vm, given, jv_none(), -1, false) : jinja_list_new(vm, 0);
    Jv set = jinja_dict_new(vm, 0);
    if (jv_bad(words) || jv_bad(set)) return false;
    if (nofollow && !jinja_list_push(vm, words.list, jinja_literal(vm, "nofollow"))) return false;
    if (!jinja_list_push(vm, words.list, jinja_literal(vm, "noopener"))) return false;
    for (size_t i = 0; i < words.list->count; i++) {
        if (!jinja_dict_set(vm, set.dict, words.list->items[i], jv_none())) return false;
    }
    Jv sorted = jinja_iterate(vm, set);
    if (jv_bad(sorted) || !jinja_sort(vm, sorted.list, sorted.list->items, false)) return false;
    Jv joined = jinja_str_join(vm, jinja_literal(vm, " "), sorted, true);
    Jv escaped = jv_bad(joined) ? joined : jinja_escape(vm, joined);
    u->rel = jv_bad(escaped) ? NULL : escaped.s;
    return u->rel != NULL;
}

static bool make_schemes(Urlize *u, Jv given) {
    if (!jv_given(given) || given.tag == JINJA_NONE) return true;
    Jv list = jinja_iterate(u->vm, given);
    for (size_t i = 0; !jv_bad(list) && i < list.list->count; i++) {
        Jv item = list.list->items[i];
        if (item.tag != JINJA_STR || !jinja_str_flatten(u->vm, item.s)) {
            jinja_fail(u->vm, "TypeError: a URI scheme is a string");
            return false;
        }
        const JinjaStr *s = item.s;
        size_t end = run_end(s, 0, s->size, ".+-");
        bool ok = utf8_length(s->data, end) >= 2 && end < s->size && s->data[end] == ':' && s->size - end <= 3;
        for (size_t j = end + 1; ok && j < s->size; j++) ok = s->data[j] == '/';
        if (!ok) {
            jinja_fail(u->vm, "'%.*s' is not a valid URI scheme prefix.", s->size > 80 ? 80 : (int)s->size, s->data);
            return false;
        }
        if (!jinja_list_push(u->vm, &u->schemes, item)) return false;
    }
    return !u->vm->failed;
}

Jv jinja_filter_urlize(Vm *vm, Jv value, const Jv *a) {
    Urlize u = {.vm = vm, .limit = -1};
    bool nofollow = false;
    if (jv_given(a[0]) && a[0].tag != JINJA_NONE && !jinja_as_index(vm, a[0], &u.limit)) return jv_error();
    if (jv_given(a[1]) && !jinja_truth(vm, a[1], &nofollow)) return jv_error();
    if (!make_rel(&u, a[3], nofollow) || !make_schemes(&u, a[4])) return jv_error();
    if (jv_given(a[2]) && a[2].tag != JINJA_NONE) {
        Jv target = jinja_escape(vm, a[2]);
        if (jv_bad(target)) return target;
        u.target = target.s;
    }
    Jv text = jinja_escape(vm, value);
    if (jv_bad(text) || !jinja_str_flatten(vm, text.s)) return jv_error();
    u.text = text.s;
    u.out = jinja_text_push(vm);
    if (!u.out) return jv_error();
    bool space = false;
    Word word = {0, 0};
    for (size_t at = 0; at < u.text->size && jinja_step(vm, 1);) {
        uint32_t code;
        size_t width = (size_t)utf8_decode(u.text->data + at, u.text->size - at, &code);
        if (unicode_is_space(code) != space) {
            if (space) put(&u, word.from, at);
            if (!space) put_word(&u, (Word){word.from, at});
            space = !space;
            word.from = at;
        }
        at += width;
    }
    if (space) put(&u, word.from, u.text->size);
    if (!space) put_word(&u, (Word){word.from, u.text->size});
    return jinja_text_finish(vm, u.out);
}
