/* The speed of a download over its last seconds. */
#pragma once
#include "hub/hub.h"

typedef struct Speed {
    int64_t ns[2], bytes[2]; /* two marks, the older first */
} Speed;

void speed_begin(Speed *speed);
/* Sets bytes_per_s and eta_s; received_bytes: in all. */
void speed_show(Speed *speed, int64_t received_bytes, HubProgress *progress);
