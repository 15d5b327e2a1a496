/* Checks of fields that cannot change a request: each is a FieldReader that leaves the request alone. */
#pragma once
#include "server/api/field_readers.h"

FIELD_READER(check_include);
FIELD_READER(check_summary);
FIELD_READER(check_truncation);
FIELD_READER(check_thinking_type);
FIELD_READER(check_thinking_display);
FIELD_READER(check_message_tier);
FIELD_READER(check_speed);
FIELD_READER(check_encoding);
FIELD_READER(check_keep_alive);
FIELD_READER(read_keep_alive);
FIELD_READER(check_only_zero);
FIELD_READER(check_only_one);
