/* Renders one JSON object for comparison with other implementations. */
#include "text/jinja/template_debug.h"

#include "base/json.h"

bool template_debug_prompt(const Template *template, Slice json, Buffer *out, Error *error) {
    Arena arena = {.limit = TEMPLATE_MEMORY_MAX / 4};
    Rendered rendered = {0};
    const Json *variables = json_parse(&arena, json, error);
    bool ok = variables && template_render(template, variables, &rendered, error);
    if (ok) {
        buffer_text(out, "{\"prompt\":");
        json_write_string(out, buffer_view(&rendered.text));
        buffer_text(out, "}");
        if (out->failed) ok = fail(error, ERROR_MEMORY, "no memory for the prompt");
    }
    rendered_free(&rendered);
    arena_free(&arena);
    return ok;
}
