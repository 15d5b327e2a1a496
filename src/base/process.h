/* What this process uses. */
#pragma once
#include <stddef.h>

typedef struct ProcessUse {
    size_t resident_bytes, peak_bytes; /* mapped files included; 0: the system does not say */
    double cpu_s;                      /* on processors, of all threads */
} ProcessUse;

ProcessUse process_use(void);
size_t process_memory(void); /* bytes that the machine has; 0: the system does not say */
