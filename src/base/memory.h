/* What the machine has. */
#pragma once
#include <stddef.h>

/* Bytes that could be used now without swapping: what the system says (on Linux MemAvailable), and no more than what is
 * left in the memory control group of this process and in every group above it, as containers and systemd's MemoryMax
 * and MemoryHigh set them. What a group uses counts without its inactive file pages, which the kernel gives up first;
 * active ones count, for weights that are in use are among them. Half of the machine's when the system does not say. */
size_t memory_available(void);
/* The same, with /proc and the control groups looked for below root: for tests. */
size_t memory_available_below(const char *root);

/* Added to the least that would do where it is printed in GB with three digits: who gives what was printed gets
 * through. */
static const double MEMORY_HALF_DIGIT = 0.0005;
