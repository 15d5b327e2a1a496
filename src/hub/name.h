/* Names from outside, checked: repositories, paths within them, hashes. */
#pragma once
#include "base/slice.h"
#include "hub/hub.h"

/* A relative path without empty parts, ".", "..", backslashes and control characters. */
bool hub_path_valid(Slice path);
/* Lower-case hexadecimal of just so many characters. */
bool hub_is_hex(Slice text, size_t size);
bool hub_ends_with(Slice text, const char *end); /* and is longer */
void hub_name_show(const HubName *name, Buffer *out);
