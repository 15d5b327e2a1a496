/* The source's JSON files. */
#include <stdio.h>

#include "base/json_python.h"
#include "import/export/internal.h"
#include "import/partial.h"

enum { TEXT_BYTES_MAX = 64 << 20 };

const Json *export_read(Export *e, const char *name, bool *ok) {
    char path[PARTIAL_PATH_MAX + 64];
    Buffer text = {0};
    snprintf(path, sizeof path, "%s/%s", e->source, name);
    if (!file_exists(path)) return NULL;
    *ok = file_read(path, TEXT_BYTES_MAX, &text, e->error);
    const char *copy = *ok ? arena_copy(&e->arena, buffer_view(&text)) : NULL;
    const size_t size = text.size;
    buffer_free(&text);
    if (!copy) {
        if (*ok) *ok = fail(e->error, ERROR_MEMORY, "no memory for %s", name);
        return NULL;
    }
    const Json *root = json_parse_python(&e->arena, (Slice){copy, size}, e->error);
    if (!root) *ok = fail_while(e->error, "%s", path);
    return root;
}
