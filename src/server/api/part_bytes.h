/* Bytes that a content part holds or names: base64, data URLs, and addresses of hosts that the operator allows
 * (hub/fetch.h). Other URLs are refused by name. */
#pragma once
#include "server/api/message_builder.h"

/* What a part may hold. */
typedef struct PartBytes {
    const char *has, *are; /* subject and verb, for errors: "an image has", "images are" */
    const char *example;   /* media type: "image/png" */
    int bytes_max;
} PartBytes;

/* Members besides these are an error. param: the object's path. */
NODISCARD bool part_check_members(
    const Json *object, const char *const *known, size_t count, const char *param, ApiError *error);
/* data:[<type>][;<parameter>]*;base64,<data>: the data. The type is not looked at, the bytes tell what they are. False:
 * this is no such URL. */
bool part_data_url(Slice url, Slice *data);
/* These give the bytes, in the builder's arena. field: path of the member that has the text. */
NODISCARD bool part_from_base64(
    MessageBuilder *builder, const PartBytes *kind, Slice text, const char *field, Slice *bytes, ApiError *error);
NODISCARD bool part_from_url(
    MessageBuilder *builder, const PartBytes *kind, Slice url, const char *field, Slice *bytes, ApiError *error);
