/* Fields of a message of protocol buffers, in their order. Source: protobuf.dev/programming-guides/encoding. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"

typedef struct ProtobufField {
    uint32_t number, wire;
    uint64_t value; /* the number of VARINT, FIXED32 and FIXED64 */
    Slice bytes;    /* the text of LENGTH; the number itself of FIXED32 and FIXED64 */
} ProtobufField;
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };

/* The next field of a message that has one; *in: what is left of it. False: the message is broken. */
bool protobuf_take(Slice *in, ProtobufField *field);
