/* Forms: an input is a Content-Type, a line feed, and a body. The texts of what is accepted lie within the body. */
#include "base/utf8.h"
#include "server/http/form.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *line = size ? memchr(text, '\n', size) : NULL;
    if (!line) return 0;
    const Slice type = {text, (size_t)(line - text)}, body = {line + 1, size - type.size - 1};
    Arena arena = {.limit = 1 << 20};
    ApiError error = {0};
    const Json *form = form_object(type, body, "file", &arena, &error);
    CHECK(form ? form->type == JSON_OBJECT : error.status == 400);
    if (form)
        for (JSON_EACH_PAIR(key, value, form)) {
            CHECK(value->string >= body.data && value->string + value->size <= body.data + body.size);
            CHECK(utf8_valid(json_slice(key)) && (slice_is(json_slice(key), "file") || utf8_valid(json_slice(value))));
        }
    arena_free(&arena);
    return 0;
}
