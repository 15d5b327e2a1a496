/* Strings: flat or ropes, each byte with its origin, and the text buffers that build them. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

enum { ROPE_MIN = 192, TEXT_KEEP = 1 << 16 };

size_t utf8_length(const char *data, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((unsigned char)data[i] & 0xC0) != 0x80;
    return count;
}

JinjaStr *jinja_str_new(Vm *vm, const char *bytes, size_t size, uint8_t origin) {
    JinjaStr *s = jinja_alloc(vm, 1, sizeof *s);
    if (!s) return NULL;
    *s = (JinjaStr){.data = bytes ? bytes : "", .size = size, .length = utf8_length(bytes, size), .origin = origin};
    return s;
}

JinjaStr *jinja_str_copy(Vm *vm, const char *bytes, size_t size, uint8_t origin) {
    if (!jinja_step(vm, size / 64)) return NULL;
    char *copy = jinja_alloc(vm, size + 1, 1);
    if (!copy) return NULL;
    if (size) memcpy(copy, bytes, size);
    return jinja_str_new(vm, copy, size, origin);
}

Jv jinja_literal(Vm *vm, const char *text) { return jv_str(jinja_str_new(vm, text, strlen(text), ORIGIN_TEMPLATE)); }

/* The first run that ends after offset. */
static uint32_t run_find(const JinjaStr *s, size_t offset) {
    uint32_t low = 0, high = s->run_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (s->runs[middle].end <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint8_t jinja_str_origin(const JinjaStr *s, size_t offset) {
    if (!s->run_count) return s->origin;
    uint32_t run = run_find(s, offset);
    return s->runs[run < s->run_count ? run : s->run_count - 1].origin;
}

static bool str_copy_runs(Vm *vm, JinjaStr *out, const JinjaStr *s, size_t from, size_t to) {
    uint32_t first = run_find(s, from), last = run_find(s, to - 1);
    if (first == last) {
        out->origin = s->runs[first].origin;
        return true;
    }
    JinjaRun *runs = jinja_alloc(vm, last - first + 1, sizeof *runs);
    if (!runs) return false;
    for (uint32_t i = first; i <= last; i++) {
        runs[i - first] = (JinjaRun){s->runs[i].end < to ? s->runs[i].end - from : to - from, s->runs[i].origin};
    }
    out->runs = runs;
    out->run_count = last - first + 1;
    return true;
}

JinjaStr *jinja_str_part(Vm *vm, JinjaStr *s, size_t from, size_t to) {
    if (from == 0 && to == s->size) return s;
    if (!jinja_str_flatten(vm, s)) return NULL;
    JinjaStr *part = jinja_alloc(vm, 1, sizeof *part);
    if (!part) return NULL;
    *part = (JinjaStr){.data = s->data + from, .size = to - from, .origin = s->origin, .markup = s->markup};
    bool ascii = s->size == s->length;
    if (!ascii && !jinja_step(vm, part->size / 64)) return NULL;
    part->length = ascii ? part->size : utf8_length(part->data, part->size);
    if (s->run_count && part->size && !str_copy_runs(vm, part, s, from, to)) return NULL;
    return part;
}

JinjaStr *jinja_str_markup(Vm *vm, JinjaStr *s, bool markup) {
    if (s->markup == markup) return s;
    if (!jinja_str_flatten(vm, s)) return NULL;
    JinjaStr *copy = jinja_alloc(vm, 1, sizeof *copy);
    if (!copy) return NULL;
    *copy = *s;
    copy->markup = markup;
    return copy;
}

JinjaStr *jinja_str_concat(Vm *vm, JinjaStr *a, JinjaStr *b) {
    if (a->size == 0 && a->markup == b->markup) return b;
    if (b->size == 0) return a;
    if (a->size + b->size > JINJA_TEXT_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "a string grows beyond %d MiB", JINJA_TEXT_MAX >> 20);
        return NULL;
    }
    if (!jinja_step(vm, 1)) return NULL;
    JinjaStr *s = jinja_alloc(vm, 1, sizeof *s);
    if (!s) return NULL;
    *s = (JinjaStr){.size = a->size + b->size,
        .length = a->length + b->length,
        .origin = a->origin | b->origin,
        .markup = a->markup,
        .left = a,
        .right = b};
    if (s->size < ROPE_MIN && a->data && b->data && !jinja_str_flatten(vm, s)) return NULL;
    return s;
}

size_t jinja_str_offset(const JinjaStr *s, size_t index) {
    if (s->size == s->length) return index < s->size ? index : s->size;
    size_t at = 0;
    while (index > 0 && at < s->size) {
        at += utf8_width((unsigned char)s->data[at]);
        index--;
    }
    return at;
}

Jv jinja_str_like(Vm *vm, Jv text, const JinjaStr *source) {
    return jv_bad(text) ? text : jv_str(jinja_str_markup(vm, text.s, source->markup));
}

size_t jinja_skip_spaces(const char *data, size_t from, size_t to) {
    uint32_t code;
    for (int width; from < to; from += (size_t)width) {
        width = utf8_decode(data + from, to - from, &code);
        if (width <= 0 || !unicode_is_python_space(code)) break;
    }
    return from;
}

size_t jinja_strip_spaces(const char *data, size_t from, size_t to) {
    uint32_t code;
    for (size_t start = to; from < to; to = start) {
        do start--;
        while (start > from && ((unsigned char)data[start] & 0xC0) == 0x80);
        if (utf8_decode(data + start, to - start, &code) <= 0 || !unicode_is_python_space(code)) break;
    }
    return to;
}

size_t jinja_find_bytes(const char *data, size_t from, size_t to, const JinjaStr *needle) {
    if (needle->size == 0) return from;
    const char *found = from < to ? memmem(data + from, to - from, needle->data, needle->size) : NULL;
    return found ? (size_t)(found - data) : SIZE_MAX;
}

/* Text */

/* Room for more than capacity items of size bytes; NULL: raised, and items stay. */
static void *grow(Vm *vm, void *items, size_t *capacity, size_t size, size_t bytes_max) {
    size_t wanted = *capacity ? *capacity * 2 : 16;
    bool fits = wanted <= bytes_max / size;
    void *grown = fits ? realloc(items, wanted * size) : NULL;
    if (grown) {
        *capacity = wanted;
    } else if (fits) {
        jinja_raise(vm, ERROR_MEMORY, "no memory for the pieces of the template's text");
    } else {
        jinja_raise(vm, ERROR_LIMIT, "the text has too many pieces");
    }
    return grown;
}

JinjaText *jinja_text_push(Vm *vm) {
    if (vm->text_depth == vm->text_count) {
        if (vm->text_count == vm->text_capacity) {
            JinjaText **grown = grow(vm, vm->texts, &vm->text_capacity, sizeof *grown, JINJA_BUFFERS_MAX);
            if (!grown) return NULL;
            vm->texts = grown;
        }
        JinjaText *text = calloc(1, sizeof *text);
        if (!text) {
            jinja_raise(vm, ERROR_MEMORY, "no memory for the template's text");
            return NULL;
        }
        text->vm = vm;
        text->bytes.limit = JINJA_TEXT_MAX;
        vm->texts[vm->text_count++] = text;
    }
    return vm->texts[vm->text_depth++];
}

static bool text_grow(JinjaText *text, size_t more) {
    Vm *vm = text->vm;
    size_t before = text->bytes.capacity;
    const bool fits = vm->text_bytes + more <= JINJA_BUFFERS_MAX;
    if (vm->failed || !fits || !buffer_reserve(&text->bytes, more)) {
        if (fits && !text->bytes.limited)
            jinja_raise(vm, ERROR_MEMORY, "no memory for the template's text");
        else
            jinja_raise(vm, ERROR_LIMIT, "the template writes more than %d MiB", JINJA_TEXT_MAX >> 20);
        return false;
    }
    vm->text_bytes += text->bytes.capacity - before;
    return true;
}

static bool text_add_run(JinjaText *text, size_t end, uint8_t origin) {
    if (text->run_count && text->runs[text->run_count - 1].origin == origin) {
        text->runs[text->run_count - 1].end = end;
        return true;
    }
    if (text->run_count == text->run_capacity) {
        JinjaRun *grown = grow(text->vm, text->runs, &text->run_capacity, sizeof *grown, JINJA_BUFFERS_MAX);
        if (!grown) return false;
        text->runs = grown;
    }
    text->runs[text->run_count++] = (JinjaRun){end, origin};
    return true;
}

void jinja_text_bytes(JinjaText *text, const char *bytes, size_t size, uint8_t origin) {
    if (size == 0) return;
    if (text->bytes.capacity - text->bytes.size <= size) {
        if (!text_grow(text, size)) return;
    }
    if (!jinja_step(text->vm, size / 64 + 1) || !text_add_run(text, text->bytes.size + size, origin)) return;
    memcpy(text->bytes.data + text->bytes.size, bytes, size);
    text->bytes.size += size;
    text->bytes.data[text->bytes.size] = '\0';
}

void jinja_text_part(JinjaText *text, const JinjaStr *flat, size_t from, size_t to) {
    if (!flat->run_count) {
        jinja_text_bytes(text, flat->data + from, to - from, flat->origin);
        return;
    }
    for (uint32_t i = run_find(flat, from); from < to && i < flat->run_count; i++) {
        size_t end = flat->runs[i].end < to ? flat->runs[i].end : to;
        jinja_text_bytes(text, flat->data + from, end - from, flat->runs[i].origin);
        from = end;
    }
}

void jinja_text_string(JinjaText *text, JinjaStr *s) {
    Vm *vm = text->vm;
    JinjaStr **pending = NULL; /* right halves of the ropes that s is in the left one of */
    size_t count = 0, capacity = 0;
    while (s && !vm->failed) {
        if (s->data) {
            jinja_text_part(text, s, 0, s->size);
            s = count ? pending[--count] : NULL;
            continue;
        }
        if (count == capacity) {
            JinjaStr **grown = grow(vm, pending, &capacity, sizeof *grown, JINJA_MEMORY_MAX / 4);
            if (!grown) break;
            pending = grown;
        }
        if (!jinja_step(vm, 1)) break;
        pending[count++] = s->right;
        s = s->left;
    }
    free(pending);
}

void jinja_text_code(JinjaText *text, uint32_t code, uint8_t origin) {
    char bytes[4];
    jinja_text_bytes(text, bytes, (size_t)utf8_encode(code, bytes), origin);
}

void jinja_text_repeat(JinjaText *text, char byte, size_t count, uint8_t origin) {
    char block[64];
    memset(block, byte, sizeof block);
    while (count > 0 && !text->vm->failed) {
        size_t size = count < sizeof block ? count : sizeof block;
        jinja_text_bytes(text, block, size, origin);
        count -= size;
    }
}

Jv jinja_text_finish(Vm *vm, JinjaText *text) {
    JinjaStr *s = vm->failed ? NULL : jinja_str_copy(vm, text->bytes.data, text->bytes.size, ORIGIN_TEMPLATE);
    if (s && text->run_count == 1) s->origin = text->runs[0].origin;
    if (s && text->run_count > 1) {
        JinjaRun *runs = jinja_alloc(vm, text->run_count, sizeof *runs);
        if (runs) {
            memcpy(runs, text->runs, text->run_count * sizeof *runs);
            s->runs = runs;
            s->run_count = (uint32_t)text->run_count;
            s->origin = ORIGIN_TEMPLATE | ORIGIN_DATA;
        }
    }
    if (vm->failed) return jv_error();
    vm->text_depth--;
    CHECK(vm->texts[vm->text_depth] == text);
    buffer_clear(&text->bytes);
    text->run_count = 0;
    if (text->bytes.capacity > TEXT_KEEP) {
        vm->text_bytes -= text->bytes.capacity;
        buffer_free(&text->bytes);
    }
    return jv_str(s);
}

bool jinja_str_flatten(Vm *vm, JinjaStr *s) {
    if (s->data) return !vm->failed;
    JinjaText *text = jinja_text_push(vm);
    if (!text) return false;
    jinja_text_string(text, s);
    Jv flat = jinja_text_finish(vm, text);
    if (jv_bad(flat)) return false;
    s->data = flat.s->data;
    s->runs = flat.s->runs;
    s->run_count = flat.s->run_count;
    s->left = s->right = NULL;
    return true;
}
