/* E4M3: floats of eight bits, with three bits of fraction and no infinity. Threads: any. */
#pragma once
#include <stdint.h>

/* The nearest E4M3; what is larger than 448 becomes 448. */
uint8_t f32_to_e4m3(float value);
/* Exact. The pattern of 480, which is no number in E4M3, is a NaN. */
float e4m3_to_f32(uint8_t code);
