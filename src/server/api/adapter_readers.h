/* What fields of the doors other than chat/completions mean, where that is more than a type and a range. Each is a
 * FieldReader (fields.h) that only checks: its request is NULL. */
#pragma once
#include "server/api/field_readers.h"

FIELD_READER(check_include);
FIELD_READER(check_summary);
FIELD_READER(check_truncation);
FIELD_READER(check_effort);
FIELD_READER(check_thinking_type);
FIELD_READER(check_thinking_display);
FIELD_READER(check_message_tier);
FIELD_READER(check_speed);
FIELD_READER(check_stop_list);
FIELD_READER(check_think);
FIELD_READER(check_encoding);
FIELD_READER(check_keep_alive);
FIELD_READER(check_repeat_last);
FIELD_READER(check_only_zero);
FIELD_READER(check_only_one);
FIELD_READER(check_predict);
