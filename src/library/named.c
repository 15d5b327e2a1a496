#include "library/named.h"

#include <string.h>

#include "base/file.h"
#include "library/local.h"

/* Whether a model is meant, and how closely: 3 the name or id, 2 the beginning of one, 0 not. */
static int match(const LocalModel *model, const char *wanted) {
    Buffer id = {0};
    const size_t size = strlen(wanted);
    local_id(model, &id);
    const char *names[] = {model->name, id.failed ? NULL : id.data};
    int best = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!names[i]) continue;
        const int close = !strcmp(names[i], wanted) ? 3 : !strncmp(names[i], wanted, size) ? 2 : 0;
        best = close > best ? close : best;
    }
    buffer_free(&id);
    return best;
}

/* The only model that is meant; NULL: none, or several, which *error says. */
static const LocalModel *choose(const LocalModels *local, const char *wanted, Error *error) {
    const LocalModel *found = NULL, *other = NULL;
    int best = 1;
    for (size_t i = 0; i < local->count; i++) {
        const LocalModel *model = &local->models[i];
        const int close = match(model, wanted);
        const bool same = found && found->conversion && !strcmp(found->conversion, model->path);
        if (close < best || same || close == 0) continue;
        other = close > best ? NULL : found;
        found = model;
        best = close;
    }
    if (!found || !other) return found;
    fail(error, ERROR_USAGE, "%s: several models begin so: %s, %s", wanted, other->name, found->name);
    return NULL;
}

bool named_resolve(const char *model, const LibraryWatch *watch, Buffer *directory, Buffer *id, Error *error) {
    Error why = {0}, ignored;
    LocalModels local;
    const bool path = strchr(model, '/') || file_exists(model) || file_is_directory(model);
    if (path || library_resolve(model, NULL, directory, &ignored) || !local_list(&local, &ignored)) {
        if (id) library_name_of(model, id);
        return library_resolve(model, watch, directory, error);
    }
    const LocalModel *found = model[0] ? choose(&local, model, &why) : NULL;
    bool ok = found && library_resolve(found->conversion ? found->conversion : found->path, watch, directory, error);
    if (ok && id) local_id(found, id);
    local_free(&local);
    if (found) return ok;
    if (why.code) {
        if (error) *error = why;
        return false;
    }
    return library_resolve(model, watch, directory, error); /* for its error, which has suggestions */
}
