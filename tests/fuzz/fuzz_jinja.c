/* Chat templates: any source compiles or fails with a reason; what renders is UTF-8 whose spans cover it exactly. A NUL
 * in the input separates the template from its variables (JSON). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char default_variables[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi "
    "\\u00e9\"},{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\","
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true,null]}}}]}],\"tools\":[{\"type\":"
    "\"function\"}],"
    "\"s\":\"Gr\\u00f6\\u00dfe x\",\"n\":7,\"f\":-2.5,\"l\":[3,1,2],\"d\":{\"a\":1,\"B\":\"x\"},\"bos_token\":\"<s>\","
    "\"now\":\"2025-01-02T03:04:05\"}";

static void check_rendered(const Rendered *rendered) {
    size_t covered = 0;
    CHECK(utf8_valid(buffer_view(&rendered->text)));
    for (size_t i = 0; i < rendered->span_count; i++) {
        CHECK(rendered->spans[i].text.data == rendered->text.data + covered && rendered->spans[i].text.size > 0);
        covered += rendered->spans[i].text.size;
    }
    CHECK(covered == rendered->text.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *split = size ? memchr(data, 0, size) : NULL;
    size_t source_size = split ? (size_t)(split - data) : size;
    Slice json = split ? (Slice){(const char *)split + 1, size - source_size - 1} : SLICE(default_variables);
    Error error = {0};
    Arena arena = {.limit = 16 << 20};
    Template *template = template_compile((Slice){(const char *)data, source_size}, &error);
    const Json *variables = template ? json_parse(&arena, json, &error) : NULL;
    Rendered rendered;
    if (variables && template_render(template, variables, &rendered, &error)) {
        check_rendered(&rendered);
        rendered_free(&rendered);
    } else {
        CHECK(error.code != ERROR_NONE && utf8_valid(slice_of(error.text)));
    }
    template_free(template);
    arena_free(&arena);
    return 0;
}
