/* JSON: what is read can be walked, is valid UTF-8 throughout, and written, read and written again gives the same text;
 * and the scan steps over it as over one value. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_scan.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY_MAX = 64 << 20 };

static size_t walk(const Json *node) {
    size_t nodes = 1;
    if (node->type == JSON_STRING) CHECK(utf8_valid(json_slice(node)));
    if (node->type == JSON_ARRAY) {
        uint32_t children = 0;
        for (JSON_EACH(child, node)) {
            nodes += walk(child);
            children++;
        }
        CHECK(children == node->size);
    } else if (node->type == JSON_OBJECT) {
        uint32_t pairs = 0;
        for (JSON_EACH_PAIR(key, value, node)) {
            nodes += walk(key) + walk(value);
            pairs++;
        }
        CHECK(pairs == node->size);
    }
    CHECK((size_t)(json_next(node) - node) == nodes);
    return nodes;
}

static void check_scan(Slice text, bool valid) {
    Error error = {0};
    JsonScan scan = {.begin = text.data, .at = text.data, .end = text.data + text.size, .error = &error};
    Slice value;
    bool skipped = json_scan_skip(&scan, &value);
    json_scan_space(&scan);
    CHECK(!valid || (skipped && scan.at == scan.end));
    scan.at = scan.begin;
    CHECK(!json_scan_string(&scan, &value) || scan.at[-1] == '"');
    buffer_free(&scan.unescaped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena arena = {.limit = MEMORY_MAX};
    Error error = {0};
    const Json *root = json_parse(&arena, (Slice){(const char *)data, size}, &error);
    check_scan((Slice){(const char *)data, size}, root);
    if (!root) {
        CHECK(error.code != ERROR_NONE && utf8_valid(slice_of(error.text)));
        arena_free(&arena);
        return 0;
    }
    walk(root);
    Buffer once = {0}, twice = {0};
    json_write(&once, root);
    const Json *again = json_parse(&arena, buffer_view(&once), &error);
    CHECK(again);
    json_write(&twice, again);
    CHECK(slice_equal(buffer_view(&once), buffer_view(&twice)));
    buffer_free(&once);
    buffer_free(&twice);
    arena_free(&arena);
    return 0;
}
