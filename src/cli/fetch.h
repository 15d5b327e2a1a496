/* Models from the hub, with progress on standard error: a line with speed and time left on a terminal, plain lines now
 * and then elsewhere. Ctrl-C stops; what has arrived stays. */
#pragma once
#include "hub/hub.h"

/* Appends the path of a checkpoint directory or a .gguf file. update: ask the hub what is new, else what is whole in
 * the cache will do. */
NODISCARD bool model_fetch(const HubName *name, bool update, Buffer *path, Error *error);
