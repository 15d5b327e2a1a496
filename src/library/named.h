/* One name per model: a path, a name of the list of local models, the id of the API, or the beginning of one that no
 * other begins with. Threads: any. */
#pragma once
#include "library/library.h"

/* library_resolve() for such names. Appends the directory of the checkpoint and, unless NULL, the id under which the
 * model is served. ERROR_USAGE: several models begin so. watch: NULL: none. */
NODISCARD bool named_resolve(const char *model, const LibraryWatch *watch, Buffer *directory, Buffer *id, Error *error);
