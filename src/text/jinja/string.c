/* Strings: flat or ropes, each byte with its origin, and the text buffers that build them. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/jinja/value.h"

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

/* Calls visit with every flat piece of s from left to right. */
typedef struct RopeWalk {
    JinjaStr **pending;
    size_t count, capacity;
} RopeWalk;

static bool rope_push(Vm *vm, RopeWalk *walk, JinjaStr *s) {
    if (walk->count == walk->capacity) {
        size_t capacity = walk->capacity ? walk->capacity * 2 : 64;
        const bool fits = capacity <= JINJA_MEMORY_MAX / sizeof(JinjaStr *) / 4;
        JinjaStr **grown = fits ? realloc(walk->pending, capacity * sizeof *grown) : NULL;
        if (!grown) {
            if (fits)
                jinja_raise(vm, ERROR_MEMORY, "no memory for the pieces of a string");
            else
                jinja_raise(vm, ERROR_LIMIT, "a string has too many pieces");
            return false;
        }
        walk->pending = grown;
        walk->capacity = capacity;
    }
    walk->pending[walk->count++] = s;
    return true;
}

static JinjaStr *rope_next(Vm *vm, RopeWalk *walk) {
    if (walk->count == 0) return NULL;
    JinjaStr *s = walk->pending[--walk->count];
    while (!s->data) {
        if (!jinja_step(vm, 1) || !rope_push(vm, walk, s->right)) return NULL;
        s = s->left;
    }
    return s;
}

static size_t runs_add(JinjaRun *runs, size_t count, size_t end, uint8_t origin) {
    if (count && runs[count - 1].origin == origin) count--;
    runs[count] = (JinjaRun){end, origin};
    return count + 1;
}

static size_t runs_add_string(JinjaRun *runs, size_t count, size_t base, const JinjaStr *s) {
    if (!s->run_count) return runs_add(runs, count, base + s->size, s->origin);
    for (uint32_t i = 0; i < s->run_count; i++) count = runs_add(runs, count, base + s->runs[i].end, s->runs[i].origin);
    return count;
}

bool jinja_str_flatten(Vm *vm, JinjaStr *s) {
    if (s->data) return !vm->failed;
    if (!jinja_step(vm, s->size / 64)) return false;
    char *data = jinja_alloc(vm, s->size + 1, 1);
    RopeWalk walk = {0};
    if (!data || !rope_push(vm, &walk, s)) return false;
    bool mixed = s->origin == (ORIGIN_TEMPLATE | ORIGIN_DATA);
    size_t at = 0, run_count = 0, pieces = 0;
    JinjaStr *piece;
    while ((piece = rope_next(vm, &walk))) {
        memcpy(data + at, piece->data, piece->size);
        at += piece->size;
        pieces += piece->run_count ? piece->run_count : 1;
    }
    JinjaRun *scratch = mixed && !vm->failed ? malloc(pieces * sizeof *scratch) : NULL;
    if (mixed && !vm->failed && !scratch) jinja_raise(vm, ERROR_MEMORY, "no memory for the template's text");
    if (scratch) {
        size_t end = 0;
        walk.count = 0;
        if (rope_push(vm, &walk, s)) {
            while ((piece = rope_next(vm, &walk))) {
                if (piece->size) run_count = runs_add_string(scratch, run_count, end, piece);
                end += piece->size;
            }
        }
        JinjaRun *runs = vm->failed ? NULL : jinja_alloc(vm, run_count, sizeof *runs);
        if (runs) {
            memcpy(runs, scratch, run_count * sizeof *runs);
            s->runs = runs;
            s->run_count = (uint32_t)run_count;
        }
        free(scratch);
    }
    free(walk.pending);
    if (vm->failed) return false;
    s->data = data;
    s->left = s->right = NULL;
    return true;
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

/* Text */

JinjaText *jinja_text_push(Vm *vm) {
    if (vm->text_depth == vm->text_count) {
        if (vm->text_count % 16 == 0) {
            JinjaText **grown = realloc(vm->texts, (vm->text_count + 16) * sizeof *grown);
            if (!grown) {
                jinja_raise(vm, ERROR_MEMORY, "no memory for the template's text");
                return NULL;
            }
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
        size_t capacity = text->run_capacity ? text->run_capacity * 2 : 16;
        const bool fits = capacity * sizeof(JinjaRun) <= JINJA_BUFFERS_MAX;
        JinjaRun *grown = fits ? realloc(text->runs, capacity * sizeof *grown) : NULL;
        if (!grown) {
            if (fits)
                jinja_raise(text->vm, ERROR_MEMORY, "no memory for the pieces of the template's text");
            else
                jinja_raise(text->vm, ERROR_LIMIT, "the text has too many pieces");
            return false;
        }
        text->runs = grown;
        text->run_capacity = capacity;
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
    if (s->data) {
        jinja_text_part(text, s, 0, s->size);
        return;
    }
    RopeWalk walk = {0};
    JinjaStr *piece;
    if (!rope_push(text->vm, &walk, s)) return;
    while ((piece = rope_next(text->vm, &walk))) jinja_text_part(text, piece, 0, piece->size);
    free(walk.pending);
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

void jinja_text_drop(Vm *vm, JinjaText *text) {
    vm->text_depth--;
    CHECK(vm->texts[vm->text_depth] == text);
    buffer_clear(&text->bytes);
    text->run_count = 0;
    if (text->bytes.capacity > TEXT_KEEP) {
        vm->text_bytes -= text->bytes.capacity;
        buffer_free(&text->bytes);
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
    jinja_text_drop(vm, text);
    return jv_str(s);
}
