/* textwrap.wrap and pprint.pformat. Reference: CPython 3.11 textwrap.py and pprint.py. */
#include "text/jinja/wrap.h"

#include "base/utf8.h"
#include "text/jinja/eval.h"

enum { PPRINT_WIDTH = 80 };

/* A line as code points, with the byte offset of each. */
typedef struct Wrap {
    Vm *vm;
    JinjaStr *line;
    uint32_t *codes;
    size_t *offsets;
    size_t count;
    struct WrapChunk {
        size_t from, to;
    } * chunks;
    size_t chunk_count;
} Wrap;
typedef struct WrapChunk WrapChunk;

static bool is_blank(uint32_t c) { return c == ' ' || (c >= 9 && c <= 13); }
static bool is_word(uint32_t c) { return c == '_' || unicode_is_alnum(c); }
static bool is_letter(uint32_t c) { return is_word(c) && !unicode_is_decimal(c); }
static bool is_punctuation(uint32_t c) { return is_word(c) || (c < 0x80 && c && strchr("!\"'&.,?", (int)c)); }

static uint32_t code_at(const Wrap *w, size_t at) { return at < w->count ? w->codes[at] : 0; }

/* The end of two or more hyphens at `at` that a word follows, or 0. */
static size_t dashes_end(Wrap *w, size_t at) {
    size_t end = at;
    while (code_at(w, end) == '-') end++;
    if (!jinja_step(w->vm, (end - at) / 8)) return 0;
    return end >= at + 2 && end < w->count && is_word(w->codes[end]) ? end : 0;
}

static bool hyphen_breaks(const Wrap *w, size_t at) {
    if (code_at(w, at) != '-') return false;
    bool letters = at >= 2 && is_letter(w->codes[at - 1]) && is_letter(w->codes[at - 2]);
    bool single = at >= 3 && is_letter(w->codes[at - 1]) && w->codes[at - 2] == '-' && is_letter(w->codes[at - 3]);
    if (!letters && !single) return false;
    size_t next = at + 1;
    if (next >= w->count || !is_letter(w->codes[next])) return false;
    next += 1 + (code_at(w, next + 1) == '-');
    return next < w->count && is_letter(w->codes[next]);
}

static size_t chunk_end(Wrap *w, size_t from, bool hyphens) {
    size_t at = from;
    if (is_blank(w->codes[at])) {
        while (at < w->count && is_blank(w->codes[at])) at++;
        return at;
    }
    if (hyphens && at > 0 && w->codes[at] == '-' && is_punctuation(w->codes[at - 1])) {
        size_t end = dashes_end(w, at);
        if (end) return end;
    }
    for (at++; at < w->count && jinja_step(w->vm, 1); at++) {
        if (hyphens && hyphen_breaks(w, at)) return at + 1;
        if (is_blank(w->codes[at])) return at;
        if (hyphens && w->codes[at] == '-' && is_punctuation(w->codes[at - 1]) && dashes_end(w, at)) return at;
    }
    return at;
}

static bool wrap_split(Wrap *w, bool hyphens) {
    JinjaStr *s = w->line;
    if (!jinja_str_flatten(w->vm, s)) return false;
    w->codes = jinja_alloc(w->vm, s->length + 1, sizeof *w->codes);
    w->offsets = jinja_alloc(w->vm, s->length + 1, sizeof *w->offsets);
    w->chunks = jinja_alloc(w->vm, s->length + 1, sizeof *w->chunks);
    if (!w->codes || !w->offsets || !w->chunks) return false;
    for (size_t at = 0; at < s->size; w->count++) {
        w->offsets[w->count] = at;
        at += (size_t)utf8_decode(s->data + at, s->size - at, &w->codes[w->count]);
    }
    w->offsets[w->count] = s->size;
    for (size_t at = 0; at < w->count && !w->vm->failed;) {
        size_t end = chunk_end(w, at, hyphens);
        w->chunks[w->chunk_count++] = (WrapChunk){at, end};
        at = end;
    }
    return !w->vm->failed;
}

static bool chunk_is_space(const Wrap *w, WrapChunk chunk) {
    for (size_t i = chunk.from; i < chunk.to; i++) {
        if (!unicode_is_space(w->codes[i])) return false;
    }
    return true;
}

/* Takes what fits of a chunk that fits on no line: [from, to) of it. */
static size_t long_word_cut(const Wrap *w, WrapChunk chunk, size_t space, bool hyphens) {
    size_t end = chunk.from + space;
    if (!hyphens) return end;
    for (size_t i = end; i-- > chunk.from + 1;) {
        if (w->codes[i] != '-') continue;
        for (size_t j = chunk.from; j < i; j++) {
            if (w->codes[j] != '-') return i + 1;
        }
        break;
    }
    return end;
}

Jv jinja_wrap_line(Vm *vm, JinjaStr *line, const WrapOptions *options) {
    Wrap w = {.vm = vm, .line = line};
    Jv out = jinja_list_new(vm, 0);
    if (options->width <= 0) return jinja_fail(vm, "ValueError: invalid width (must be > 0)");
    if (jv_bad(out) || !wrap_split(&w, options->break_hyphens)) return jv_error();
    size_t width = (size_t)options->width, next = 0;
    while (next < w.chunk_count && jinja_step(vm, 1)) {
        if (out.list->count && chunk_is_space(&w, w.chunks[next])) next++;
        size_t from = next < w.chunk_count ? w.chunks[next].from : w.count, end = from, last = from;
        while (next < w.chunk_count && w.chunks[next].to - from <= width) {
            last = w.chunks[next].from;
            end = w.chunks[next++].to;
        }
        if (next < w.chunk_count && w.chunks[next].to - w.chunks[next].from > width) {
            if (options->break_words) {
                last = w.chunks[next].from;
                end = long_word_cut(&w, w.chunks[next], width - (last - from), options->break_hyphens);
                w.chunks[next].from = end;
            } else if (end == from) {
                end = w.chunks[next++].to;
            }
        }
        if (chunk_is_space(&w, (WrapChunk){last, end})) end = last; /* white space at the end of a line goes */
        if (end == from) continue;
        JinjaStr *part = jinja_str_part(vm, line, w.offsets[from], w.offsets[end]);
        if (!jinja_list_push(vm, out.list, jv_str(part))) return jv_error();
    }
    return vm->failed ? jv_error() : out;
}

/* pprint */

static bool print_value(Vm *vm, JinjaText *out, Jv v, size_t indent, size_t allowance, int level);

static Jv sorted_pairs(Vm *vm, const JinjaDict *dict) {
    Jv list = jinja_iterate(vm, (Jv){.tag = JINJA_VIEW, .flag = 'i', .dict = (JinjaDict *)dict});
    JinjaList keys = {0};
    bool sortable = true;
    for (size_t i = 0; i < dict->count; i++) {
        bool number = jv_integral(dict->pairs[i].key) || dict->pairs[i].key.tag == JINJA_FLOAT;
        bool first_number = jv_integral(dict->pairs[0].key) || dict->pairs[0].key.tag == JINJA_FLOAT;
        sortable = sortable && (number || dict->pairs[i].key.tag == JINJA_STR) && number == first_number;
        if (!jinja_list_push(vm, &keys, dict->pairs[i].key)) return jv_error();
    }
    return jv_bad(list) || (sortable && !jinja_sort(vm, list.list, keys.items, false)) ? jv_error() : list;
}

/* repr() with the keys of dictionaries in order */
static bool print_repr(Vm *vm, JinjaText *out, Jv v) {
    bool ok = true;
    if (v.tag != JINJA_DICT && v.tag != JINJA_LIST && v.tag != JINJA_TUPLE) return jinja_write_repr(vm, out, v);
    if (!jinja_enter(vm)) return false;
    Jv items = v.tag == JINJA_DICT ? sorted_pairs(vm, v.dict) : jinja_iterate(vm, v);
    jinja_text_plain(out, v.tag == JINJA_DICT ? "{" : v.tag == JINJA_LIST ? "[" : "(");
    for (size_t i = 0; ok && !jv_bad(items) && i < items.list->count; i++) {
        if (i) jinja_text_plain(out, ", ");
        Jv item = items.list->items[i];
        ok = print_repr(vm, out, v.tag == JINJA_DICT ? item.list->items[0] : item);
        if (v.tag != JINJA_DICT) continue;
        jinja_text_plain(out, ": ");
        ok = ok && print_repr(vm, out, item.list->items[1]);
    }
    if (v.tag == JINJA_TUPLE && v.list->count == 1) jinja_text_plain(out, ",");
    jinja_text_plain(out, v.tag == JINJA_DICT ? "}" : v.tag == JINJA_LIST ? "]" : ")");
    vm->depth--;
    return ok && !vm->failed;
}

static Jv repr_of(Vm *vm, Jv v) {
    JinjaText *text = jinja_text_push(vm);
    return text && print_repr(vm, text, v) ? jinja_text_finish(vm, text) : jv_error();
}

static void print_line(JinjaText *out, size_t indent, bool comma) {
    jinja_text_plain(out, comma ? ",\n" : "\n");
    jinja_text_repeat(out, ' ', indent, ORIGIN_TEMPLATE);
}

static bool print_dict(Vm *vm, JinjaText *out, const JinjaDict *dict, size_t indent, size_t allowance, int level) {
    Jv items = sorted_pairs(vm, dict);
    if (jv_bad(items)) return false;
    jinja_text_plain(out, "{");
    for (size_t i = 0; i < items.list->count; i++) {
        const Jv *pair = items.list->items[i].list->items;
        Jv key = repr_of(vm, pair[0]);
        if (jv_bad(key)) return false;
        if (i) print_line(out, indent + 1, true);
        jinja_text_string(out, key.s);
        jinja_text_plain(out, ": ");
        bool last = i + 1 == items.list->count;
        if (!print_value(vm, out, pair[1], indent + 1 + key.s->length + 2, last ? allowance + 1 : 1, level))
            return false;
    }
    jinja_text_plain(out, "}");
    return true;
}

static bool print_items(Vm *vm, JinjaText *out, Jv v, size_t indent, size_t allowance, int level) {
    const char *close = v.tag == JINJA_LIST ? "]" : v.list->count == 1 ? ",)" : ")";
    jinja_text_plain(out, v.tag == JINJA_LIST ? "[" : "(");
    for (size_t i = 0; i < v.list->count; i++) {
        if (i) print_line(out, indent + 1, true);
        bool last = i + 1 == v.list->count;
        if (!print_value(vm, out, v.list->items[i], indent + 1, last ? allowance + strlen(close) : 1, level))
            return false;
    }
    jinja_text_plain(out, close);
    return true;
}

/* The pieces of one line of a string, each a word and the white space after it. */
static Jv line_words(Vm *vm, JinjaStr *line) {
    Jv out = jinja_list_new(vm, 0);
    bool space = false;
    size_t from = 0, width;
    for (size_t at = 0; at < line->size && !jv_bad(out); at += width) {
        uint32_t code;
        width = (size_t)utf8_decode(line->data + at, line->size - at, &code);
        bool now = unicode_is_space(code);
        if (space && !now) {
            if (!jinja_list_push(vm, out.list, jv_str(jinja_str_part(vm, line, from, at)))) return jv_error();
            from = at;
        }
        space = now;
    }
    return !jv_bad(out) && jinja_list_push(vm, out.list, jv_str(jinja_str_part(vm, line, from, line->size)))
        ? out
        : jv_error();
}

static bool line_chunks(Vm *vm, JinjaStr *line, size_t room, size_t last_room, JinjaList *chunks) {
    Jv words = line_words(vm, line);
    JinjaStr *current = NULL;
    for (size_t i = 0; !jv_bad(words) && i < words.list->count; i++) {
        JinjaStr *word = words.list->items[i].s, *both = current ? jinja_str_concat(vm, current, word) : word;
        Jv text = both ? repr_of(vm, jv_str(both)) : jv_error();
        if (jv_bad(text)) return false;
        bool fits = text.s->length <= (i + 1 == words.list->count ? last_room : room);
        if (!fits && current && !jinja_list_push(vm, chunks, repr_of(vm, jv_str(current)))) return false;
        current = fits ? both : word;
    }
    return !vm->failed && (!current || jinja_list_push(vm, chunks, repr_of(vm, jv_str(current))));
}

static bool print_string(Vm *vm, JinjaText *out, Jv v, size_t indent, size_t allowance, int level) {
    Jv lines = jinja_str_splitlines(vm, v, true);
    JinjaList chunks = {0};
    if (jv_bad(lines)) return false;
    if (level == 1) {
        indent++;
        allowance++;
    }
    size_t room = indent < PPRINT_WIDTH ? PPRINT_WIDTH - indent : 0,
           last_room = room > allowance ? room - allowance : 0;
    for (size_t i = 0; i < lines.list->count; i++) {
        JinjaStr *line = lines.list->items[i].s;
        bool last = i + 1 == lines.list->count;
        Jv text = repr_of(vm, jv_str(line));
        if (jv_bad(text)) return false;
        bool ok = text.s->length <= (last ? last_room : room)
            ? jinja_list_push(vm, &chunks, text)
            : line_chunks(vm, line, room, last ? last_room : room, &chunks);
        if (!ok) return false;
    }
    if (chunks.count > 1 && level == 1) jinja_text_plain(out, "(");
    for (size_t i = 0; i < chunks.count; i++) {
        if (i) print_line(out, indent, false);
        jinja_text_string(out, chunks.items[i].s);
    }
    if (chunks.count > 1 && level == 1) jinja_text_plain(out, ")");
    return true;
}

static bool print_value(Vm *vm, JinjaText *out, Jv v, size_t indent, size_t allowance, int level) {
    Jv text = repr_of(vm, v);
    if (jv_bad(text) || !jinja_enter(vm)) return false;
    bool wide = text.s->length + indent + allowance > PPRINT_WIDTH, ok = true;
    if (wide && v.tag == JINJA_DICT && v.dict->count) {
        ok = print_dict(vm, out, v.dict, indent, allowance, level + 1);
    } else if (wide && (v.tag == JINJA_LIST || v.tag == JINJA_TUPLE)) {
        ok = print_items(vm, out, v, indent, allowance, level + 1);
    } else if (wide && v.tag == JINJA_STR && !v.s->markup && v.s->size) {
        ok = print_string(vm, out, v, indent, allowance, level + 1);
    } else {
        jinja_text_string(out, text.s);
    }
    vm->depth--;
    return ok && !vm->failed;
}

Jv jinja_pprint(Vm *vm, Jv value) {
    JinjaText *out = jinja_text_push(vm);
    return out && print_value(vm, out, value, 0, 0, 0) ? jinja_text_finish(vm, out) : jv_error();
}
