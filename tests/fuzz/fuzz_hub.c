/* What comes from a hub and from users about it: by the first byte a name, a page of a list of files with the choice
 * among them, or the head of an answer. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/choose.h"
#include "hub/http.h"
#include "hub/name.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_name(Slice text) {
    Error error;
    HubName name;
    char *copy = malloc(text.size + 1);
    if (!copy) return;
    if (text.size) memcpy(copy, text.data, text.size);
    copy[text.size] = '\0';
    if (hub_name_parse(copy, &name, &error)) {
        CHECK(hub_path_valid(slice_of(name.repo)) && hub_path_valid(slice_of(name.revision)));
        CHECK(!strstr(name.repo, "..") && !strstr(name.repo, "--"));
        CHECK(!name.file[0] || hub_path_valid(slice_of(name.file)));
    }
    free(copy);
}

static void take_page(Slice text) {
    Error error;
    HubTree tree = {0};
    HubChoice choice;
    const HubName name = {.repo = "org/name", .revision = "main"};
    if (tree_add_page(&tree, text, &error)) {
        tree_sort(&tree);
        for (size_t i = 0; i < tree.count; i++) {
            CHECK(hub_path_valid(slice_of(tree.files[i].path)) && tree.files[i].size >= 0);
            CHECK(tree_find(&tree, slice_of(tree.files[i].path)));
        }
        if (choose_files(&tree, &name, 1000, &choice, &error)) choice_free(&choice);
    }
    tree_free(&tree);
}

static void take_head(Slice text) {
    HttpHead head = {0};
    while (text.size) {
        const char *end = memchr(text.data, '\n', text.size);
        const size_t line = end ? (size_t)(end - text.data) + 1 : text.size;
        http_head_line(&head, (Slice){text.data, line});
        text = (Slice){text.data + line, text.size - line};
    }
    CHECK(memchr(head.next, '\0', sizeof head.next) && memchr(head.message, '\0', sizeof head.message));
    CHECK(head.status >= 0 && http_delay_ms(&head, 3) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const Slice text = {(const char *)data + 1, size - 1};
    if (data[0] % 3 == 0)
        take_name(text);
    else if (data[0] % 3 == 1)
        take_page(text);
    else
        take_head(text);
    return 0;
}
