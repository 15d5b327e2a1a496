#include "text/tokenizer/protobuf.h"

#include <string.h>

static bool take_varint(Slice *in, uint64_t *value) {
    enum { BITS = 7, MORE = 0x80, SHIFT_MAX = 63 };
    *value = 0;
    for (int shift = 0; shift <= SHIFT_MAX && in->size; shift += BITS) {
        const uint8_t byte = (uint8_t)in->data[0];
        *in = (Slice){in->data + 1, in->size - 1};
        *value |= (uint64_t)(byte & ~MORE) << shift;
        if (!(byte & MORE)) return true;
    }
    return false;
}

static bool take_bytes(Slice *in, uint64_t size, Slice *bytes) {
    if (size > in->size) return false;
    *bytes = (Slice){in->data, (size_t)size};
    *in = (Slice){in->data + size, in->size - (size_t)size};
    return true;
}

bool protobuf_take(Slice *in, ProtobufField *field) {
    enum { WIRE_BITS = 3, NUMBER_MAX = (1 << 29) - 1 };
    uint64_t key, size;
    *field = (ProtobufField){0};
    if (!take_varint(in, &key) || key >> WIRE_BITS == 0 || key >> WIRE_BITS > NUMBER_MAX) return false;
    field->number = (uint32_t)(key >> WIRE_BITS);
    field->wire = key & ((1 << WIRE_BITS) - 1);
    if (field->wire == WIRE_VARINT) return take_varint(in, &field->value);
    if (field->wire == WIRE_LENGTH) return take_varint(in, &size) && take_bytes(in, size, &field->bytes);
    if (field->wire != WIRE_FIXED32 && field->wire != WIRE_FIXED64) return false;
    if (!take_bytes(in, field->wire == WIRE_FIXED32 ? sizeof(uint32_t) : sizeof(uint64_t), &field->bytes)) return false;
    memcpy(&field->value, field->bytes.data, field->bytes.size);
    return true;
}
