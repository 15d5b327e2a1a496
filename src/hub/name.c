/* ORG/NAME[:FILE][@REVISION]. The rules for repositories are huggingface_hub's (utils/_validators.py); those for paths
 * keep everything below the folder that it belongs to. */
#include "hub/name.h"

#include <stdio.h>
#include <string.h>

#include "base/slice.h"

enum { NAME_PART_MAX = 96 };

static bool part_valid(Slice part) {
    if (part.size == 0 || part.size > NAME_PART_MAX) return false;
    for (size_t i = 0; i < part.size; i++) {
        const char c = part.data[i];
        const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        const bool edge = i == 0 || i == part.size - 1;
        if (!word && (edge || (c != '-' && c != '.'))) return false;
        if (i > 0 && (c == '-' || c == '.') && part.data[i - 1] == c) return false;
    }
    return part.size < 4 || memcmp(part.data + part.size - 4, ".git", 4) != 0;
}

bool hub_path_valid(Slice path) {
    if (path.size == 0 || path.size >= HUB_FILE_MAX) return false;
    size_t start = 0;
    for (size_t i = 0; i <= path.size; i++) {
        if (i < path.size && ((unsigned char)path.data[i] < 0x20 || path.data[i] == 0x7F || path.data[i] == '\\'))
            return false;
        if (i < path.size && path.data[i] != '/') continue;
        const Slice part = {path.data + start, i - start};
        if (part.size == 0 || part.size > 255 || slice_is(part, ".") || slice_is(part, "..")) return false;
        start = i + 1;
    }
    return true;
}

bool hub_is_hex(Slice text, size_t size) {
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    }
    return text.size == size;
}

bool hub_ends_with(Slice text, const char *end) {
    const size_t size = strlen(end);
    return text.size > size && !memcmp(text.data + text.size - size, end, size);
}

static bool copy(char *to, size_t size, Slice text) {
    if (text.size >= size) return false;
    if (text.size) memcpy(to, text.data, text.size);
    to[text.size] = '\0';
    return true;
}

/* The rest after a prefix, or NULL. */
static const char *after(const char *text, const char *prefix) {
    const size_t size = strlen(prefix);
    return strncmp(text, prefix, size) ? NULL : text + size;
}

/* https://HOST/ORG/NAME[/blob|resolve|tree/REVISION[/FILE]] */
static bool parse_page(const char *rest, HubName *name) {
    const char *slash = strchr(rest, '/'), *end = slash ? strchr(slash + 1, '/') : NULL;
    if (!slash || !copy(name->repo, sizeof name->repo, (Slice){rest, end ? (size_t)(end - rest) : strlen(rest)}))
        return false;
    if (!end || !end[1]) return true;
    const char *revision = after(end, "/blob/");
    if (!revision) revision = after(end, "/resolve/");
    if (!revision) revision = after(end, "/tree/");
    if (!revision || !revision[0]) return false;
    const size_t size = strcspn(revision, "/");
    const char *file = revision[size] ? revision + size + 1 : "";
    return copy(name->revision, sizeof name->revision, (Slice){revision, size}) &&
        copy(name->file, sizeof name->file, (Slice){file, strcspn(file, "?#")});
}

static bool parse_short(const char *text, HubName *name) {
    const size_t repo = strcspn(text, ":@");
    const char *file = text[repo] == ':' ? text + repo + 1 : "", *at = strchr(text + repo, '@');
    if (text[repo] == ':' && (!file[0] || file == at)) return false;
    if (at && !at[1]) return false;
    return copy(name->repo, sizeof name->repo, (Slice){text, repo}) &&
        copy(name->file, sizeof name->file, (Slice){file, at && file[0] ? (size_t)(at - file) : strlen(file)}) &&
        (!at || copy(name->revision, sizeof name->revision, slice_of(at + 1)));
}

bool hub_name_parse(const char *text, HubName *name, Error *error) {
    *name = (HubName){.revision = "main"};
    const char *hf = after(text, "hf://"), *host = after(text, "https://");
    const char *page = host ? strchr(host, '/') : NULL;
    bool ok = page ? parse_page(page + 1, name) : parse_short(hf ? hf : text, name);
    const char *slash = strchr(name->repo, '/');
    ok = ok && slash && part_valid((Slice){name->repo, (size_t)(slash - name->repo)}) &&
        part_valid(slice_of(slash + 1)) && hub_path_valid(slice_of(name->revision)) &&
        (!name->file[0] || hub_path_valid(slice_of(name->file)));
    return ok ||
        fail(error, ERROR_USAGE, "%.100s: not a model's name: want ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION", text);
}

void hub_name_show(const HubName *name, Buffer *out) {
    buffer_text(out, name->repo);
    if (name->file[0]) buffer_printf(out, ":%s", name->file);
    if (strcmp(name->revision, "main") != 0) buffer_printf(out, "@%s", name->revision);
}
