/* Chat templates: what template.h promises. As "test_template render FILE" it reads one JSON object a line and answers
 * {"prompt": …} or {"error": …}: the other side of tests/text/check_templates.py. */
#include "test.h"

#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "text/template_debug.h"

static int render_lines(const char *path) {
    Error error = {0};
    Buffer source = {0}, answer = {0};
    Template *template = file_read(path, TEMPLATE_SOURCE_MAX, &source, &error) ? template_compile(buffer_view(&source), &error) : NULL;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    while ((size = getline(&line, &capacity, stdin)) > 0) {
        buffer_clear(&answer);
        bool ok = template && template_debug_prompt(template, (Slice){line, (size_t)size}, &answer, &error);
        if (!ok) {
            buffer_clear(&answer);
            buffer_text(&answer, "{\"error\":");
            json_write_string(&answer, slice_of(error.text));
            buffer_text(&answer, "}");
        }
        printf("%.*s\n", (int)answer.size, answer.data);
        fflush(stdout);
    }
    free(line);
    buffer_free(&answer);
    buffer_free(&source);
    template_free(template);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "render") == 0) return render_lines(argv[2]);
    return test_done();
}
