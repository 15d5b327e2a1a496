/* Members of the objects inside requests: messages, their parts, tools. The field tables (fields.h) end at a body's own
 * fields. Each row names the members that are read, those that have no effect by a documented rule, and those that are
 * refused; any other member is ignored and named in the response's header x-ignored-params. */
#pragma once
#include "server/api/fields.h"

typedef struct ObjectMembers {
    unsigned apis;
    const char *path; /* "messages[].content[]" */
    const char *type; /* the value of "type" in objects that the row is about; NULL: any, or none */
    /* Names, separated by spaces; "": none. */
    const char *read, *without_effect, *refused;
} ObjectMembers;

const ObjectMembers *object_members_all(size_t *count);
/* Checks all objects of a body, which has been read. False: a member is refused, and does not ask for what is the
 * default anyway (null, false, {"enabled": false}). */
NODISCARD bool object_members_check(ChatRequest *request, Api api, const Json *body, ApiError *error);
