/* Members of JSON objects: reading those of a request, writing those of a response. */
#pragma once
#include "base/buffer.h"
#include "base/json.h"

/* The value of a member; NULL where it is absent or null. object may be NULL. */
const Json *member_get(const Json *object, const char *name);
/* Whether the member is this text. */
bool member_is(const Json *object, const char *name, const char *text);
/* Appends ,"as":value of a member that is neither absent nor null. */
void member_copy(const Json *object, const char *name, const char *as, Buffer *out);
/* Appends ,"name":"text". */
void member_text(const char *name, Slice text, Buffer *out);
