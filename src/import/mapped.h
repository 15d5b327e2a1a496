/* Pages of a mapped file. Threads: any. */
#pragma once
#include <stdint.h>

/* Pages that were read count as this process's memory until they are let go. They are read again on access. */
void mapped_release(const uint8_t *begin, const uint8_t *end);
