/* The Vm: memory, errors and the bounds that end every render. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "text/jinja/value.h"

enum { VM_BLOCK = 1 << 15, VM_BLOCK_LARGEST = 1 << 11, VM_CLOCK_EVERY = 4096 };

Jv jinja_raise(Vm *vm, ErrorCode code, const char *format, ...) {
    if (vm->failed) return jv_error();
    vm->failed = true;
    char text[ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (vm->line) {
        fail(vm->error, code, "line %u: %s", vm->line, text);
    } else {
        fail(vm->error, code, "%s", text);
    }
    return jv_error();
}

void *jinja_alloc(Vm *vm, size_t count, size_t size) {
    size_t bytes;
    void *memory = NULL;
    if (size_mul(count, size, &bytes) && bytes <= VM_BLOCK_LARGEST) {
        bytes = bytes ? (bytes + 15) & ~(size_t)15 : 16;
        if (bytes > vm->block_left) {
            vm->block = arena_alloc(&vm->arena, 1, VM_BLOCK);
            vm->block_left = vm->block ? VM_BLOCK : 0;
        }
        if (bytes <= vm->block_left) {
            memory = vm->block;
            vm->block += bytes;
            vm->block_left -= bytes;
        }
    } else {
        memory = arena_alloc(&vm->arena, count, size);
    }
    if (!memory && vm->arena.limited) {
        jinja_raise(vm, ERROR_LIMIT, "the template needs more than %d MiB of memory", JINJA_MEMORY_MAX >> 20);
    } else if (!memory) {
        jinja_raise(vm, ERROR_MEMORY, "no memory for the template's values");
    }
    return memory;
}

void *jinja_grow(Vm *vm, void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return items;
    size_t wanted = *capacity ? *capacity * 2 : 4;
    void *grown = jinja_alloc(vm, wanted, size);
    if (!grown) return NULL;
    if (count) memcpy(grown, items, count * size);
    *capacity = wanted;
    return grown;
}

static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void jinja_vm_init(Vm *vm, const JinjaLibrary *library, int64_t cpu_ms, Error *error) {
    *vm = (Vm){.arena = {.limit = JINJA_MEMORY_MAX}, .library = library, .error = error};
    vm->cpu_end_ns = cpu_ns() + cpu_ms * 1000000;
}

bool jinja_step(Vm *vm, size_t cost) {
    vm->budget -= cost < (size_t)1 << 40 ? (int64_t)cost : (int64_t)1 << 40;
    if (vm->budget >= 0) return !vm->failed;
    vm->steps += VM_CLOCK_EVERY - vm->budget;
    vm->budget = VM_CLOCK_EVERY;
    if (vm->failed) return false;
    if (vm->steps > JINJA_STEPS_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "the template takes too many steps");
    } else if (cpu_ns() > vm->cpu_end_ns) {
        jinja_raise(vm, ERROR_LIMIT, "the template takes too long");
    }
    return !vm->failed;
}

bool jinja_enter(Vm *vm) {
    if (vm->depth >= JINJA_DEPTH_MAX) {
        jinja_raise(vm, ERROR_LIMIT, "the template nests more than %d evaluations", JINJA_DEPTH_MAX);
        return false;
    }
    vm->depth++;
    return jinja_step(vm, 1);
}

void jinja_vm_free(Vm *vm) {
    for (size_t i = 0; i < vm->text_count; i++) {
        buffer_free(&vm->texts[i]->bytes);
        free(vm->texts[i]->runs);
        free(vm->texts[i]);
    }
    free(vm->texts);
    vm->texts = NULL;
    vm->text_count = 0;
    arena_free(&vm->arena);
}
