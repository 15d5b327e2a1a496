/* What the machine has. */
#pragma once
#include <stddef.h>

/* Bytes that could be used without swapping, the control group's limit regarded; half of the machine's when the system
 * does not say. */
size_t memory_available(void);
