/* Builds small GGUF files in memory, right or wrong, for the tests. */
#pragma once
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "import/gguf/internal.h"

typedef struct Builder {
    Buffer values, infos, data;
    uint64_t value_count, tensor_count;
} Builder;

static inline void put_u32(Buffer *out, uint32_t value) { buffer_append(out, &value, sizeof value); }
static inline void put_u64(Buffer *out, uint64_t value) { buffer_append(out, &value, sizeof value); }
static inline void put_string(Buffer *out, const char *text) {
    put_u64(out, strlen(text));
    buffer_text(out, text);
}

static inline void build_key(Builder *b, const char *key, uint32_t kind) {
    put_string(&b->values, key);
    put_u32(&b->values, kind);
    b->value_count++;
}
static inline void build_u32(Builder *b, const char *key, uint32_t value) {
    build_key(b, key, GGUF_U32);
    put_u32(&b->values, value);
}
static inline void build_f32(Builder *b, const char *key, float value) {
    build_key(b, key, GGUF_F32);
    buffer_append(&b->values, &value, sizeof value);
}
static inline void build_bool(Builder *b, const char *key, bool value) {
    build_key(b, key, GGUF_BOOL);
    buffer_byte(&b->values, (char)value);
}
static inline void build_string(Builder *b, const char *key, const char *value) {
    build_key(b, key, GGUF_STRING);
    put_string(&b->values, value);
}
static inline void build_array(Builder *b, const char *key, uint32_t kind, uint64_t count) {
    build_key(b, key, GGUF_ARRAY);
    put_u32(&b->values, kind);
    put_u64(&b->values, count);
}
static inline void build_strings(Builder *b, const char *key, const char *const *values, size_t count) {
    build_array(b, key, GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) put_string(&b->values, values[i]);
}
static inline void build_words(Builder *b, const char *key, uint32_t kind, const void *values, size_t count) {
    build_array(b, key, kind, count);
    buffer_append(&b->values, values, count * 4);
}

/* rows 0: a vector; of a stack, all its matrices'. stack 0: none. bytes NULL: zeros. */
static inline void build_stack(
    Builder *b, const char *name, uint32_t type, int64_t cols, int64_t rows, int64_t stack, const void *bytes) {
    const GgufType *info = gguf_type(type);
    size_t size =
        info && info->elements ? (size_t)(cols / info->elements * info->bytes) * (size_t)(rows ? rows : 1) : 32;
    put_string(&b->infos, name);
    put_u32(&b->infos, stack ? 3 : rows ? 2 : 1);
    put_u64(&b->infos, (uint64_t)cols);
    if (rows) put_u64(&b->infos, (uint64_t)(stack ? rows / stack : rows));
    if (stack) put_u64(&b->infos, (uint64_t)stack);
    put_u32(&b->infos, type);
    put_u64(&b->infos, b->data.size);
    for (size_t i = 0; i < size; i++) buffer_byte(&b->data, bytes ? ((const char *)bytes)[i] : 0);
    while (b->data.size % 32) buffer_byte(&b->data, 0);
    b->tensor_count++;
}

static inline void build_tensor(
    Builder *b, const char *name, uint32_t type, int64_t cols, int64_t rows, const void *bytes) {
    build_stack(b, name, type, cols, rows, 0, bytes);
}

/* Appends the file and empties the builder. */
static inline void build_file(Builder *b, Buffer *out) {
    buffer_text(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, b->tensor_count);
    put_u64(out, b->value_count);
    buffer_slice(out, buffer_view(&b->values));
    buffer_slice(out, buffer_view(&b->infos));
    while (out->size % 32) buffer_byte(out, 0);
    buffer_slice(out, buffer_view(&b->data));
    buffer_free(&b->values);
    buffer_free(&b->infos);
    buffer_free(&b->data);
    *b = (Builder){0};
}
