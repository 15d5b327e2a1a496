/* The code books of GGUF's IQ types: an entry stands for 8 elements of 2 bits each, or for 4 of 3 bits (IQ3), the first
 * in the lowest bits; each is a place in the type's list of levels (blocks_integer.c). */
#pragma once
#include <stdint.h>

extern const uint16_t gguf_grid_iq1_s[2048]; /* shared by IQ1_S and IQ1_M */
extern const uint16_t gguf_grid_iq2_xxs[256];
extern const uint16_t gguf_grid_iq2_xs[512];
extern const uint16_t gguf_grid_iq2_s[1024];
extern const uint16_t gguf_grid_iq3_xxs[256];
extern const uint16_t gguf_grid_iq3_s[512];
