/* The template language against jinja2: small templates covering every feature, with jinja2's output (or that it
 * fails). Goldens: tools/make_template_goldens.py. */
#include "test.h"

#include "base/file.h"
#include "text/jinja/template.h"

static void check_case(const Json *variables, const Json *item) {
    Slice source = json_slice(json_get(item, "template"));
    const Json *output = json_get(item, "output");
    Error error = {0};
    Rendered rendered = {0};
    Template *template = template_compile(source, &error);
    bool ok = template && template_render(template, variables, &rendered, &error);
    if (!output) {
        TEST_MSG(
            !ok, "%.*s\n  should fail, gives %.*s", SLICE_ARGS(source), (int)rendered.text.size, rendered.text.data);
        TEST_MSG(ok || error.code != ERROR_NONE, "%.*s: no error code", SLICE_ARGS(source));
    } else {
        Slice want = json_slice(output), got = buffer_view(&rendered.text);
        TEST_MSG(ok, "%.*s\n  fails: %s", SLICE_ARGS(source), error.text);
        TEST_MSG(!ok || slice_equal(want, got), "%.*s\n  want %.*s\n  got  %.*s", SLICE_ARGS(source), SLICE_ARGS(want),
            SLICE_ARGS(got));
        size_t covered = 0;
        for (size_t i = 0; i < rendered.span_count; i++) {
            Span span = rendered.spans[i];
            TEST(span.text.size > 0 && span.text.data == rendered.text.data + covered);
            TEST(i == 0 || span.from_template != rendered.spans[i - 1].from_template);
            covered += span.text.size;
        }
        TEST_MSG(covered == rendered.text.size, "%.*s: the spans leave bytes out", SLICE_ARGS(source));
    }
    rendered_free(&rendered);
    template_free(template);
}

int main(void) {
    Error error = {0};
    Buffer text = {0};
    Arena arena = {0};
    const Json *goldens = NULL;
    if (file_read("tests/text/data/jinja_goldens.json", 16 << 20, &text, &error))
        goldens = json_parse(&arena, buffer_view(&text), &error);
    TEST_MSG(goldens != NULL, "%s", error.text);
    const Json *cases = json_get(goldens, "cases"), *variables = json_get(goldens, "variables");
    if (cases) {
        TEST(cases->size > 300);
        for (JSON_EACH(item, cases)) check_case(variables, item);
    }
    arena_free(&arena);
    buffer_free(&text);
    return test_done();
}
