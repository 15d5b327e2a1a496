#include "tensor/float8.h"

#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

/* By way of the half with the same bits. */
float e4m3_to_f32(uint8_t code) {
    if ((code & 0x7F) == 0x7F) return NAN;
    const float magnitude = f16_to_f32((uint16_t)((code & 0x7F) << 7)) * 256.0f;
    return code & 0x80 ? -magnitude : magnitude;
}

uint8_t f32_to_e4m3(float value) {
    const uint32_t top = 0x43E00000u /* 448 */, least_normal = 0x3C800000u /* 2^-6 */;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint8_t sign = bits >> 31 ? 0x80 : 0;
    bits &= 0x7FFFFFFF;
    if (bits >= top) return sign | 0x7E;
    if (bits < least_normal) { /* steps of 2^-9: what the sum with 2^14 keeps of it */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 16384.0f;
        memcpy(&bits, &magnitude, sizeof bits);
        return sign | (uint8_t)(bits - 0x46800000u);
    }
    bits += 0x7FFFF + (bits >> 20 & 1); /* half a step, less where the last bit is even */
    return sign | (uint8_t)((bits >> 20) - (120 << 3));
}
