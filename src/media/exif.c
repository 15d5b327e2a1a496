/* Orientation of images: tag 274 of EXIF (CIPA DC-008, TIFF 6.0), else tiff:Orientation of XMP. */
#include "media/image_internal.h"

enum { TAG_ORIENTATION = 0x112, ENTRY_BYTES = 12 };

/* Bytes of whole numbers by their type; 0: it is none. Pillow takes no bytes as an orientation. */
static const uint8_t type_bytes[] = {[3] = 2, [4] = 4, [6] = 1, [8] = 2, [9] = 4, [13] = 4};

typedef struct Tiff {
    const uint8_t *bytes;
    size_t size;
    bool big_endian;
} Tiff;

/* A number of `count` bytes, at most 4; false: it lies outside. */
static bool read_number(const Tiff *tiff, size_t at, int count, uint32_t *number) {
    if (at > tiff->size || tiff->size - at < (size_t)count) return false;
    *number = 0;
    for (int i = 0; i < count; i++)
        *number |= (uint32_t)tiff->bytes[at + (size_t)i] << 8 * (tiff->big_endian ? count - 1 - i : i);
    return true;
}

int exif_orientation(Slice block) {
    Tiff tiff = {(const uint8_t *)block.data, block.size, false};
    uint32_t magic, directory, count;
    if (block.size < 8) return 0;
    if (block.data[0] == 'M' && block.data[1] == 'M')
        tiff.big_endian = true;
    else if (block.data[0] != 'I' || block.data[1] != 'I')
        return 0;
    if (!read_number(&tiff, 2, 2, &magic) || magic != 42 || !read_number(&tiff, 4, 4, &directory) ||
        !read_number(&tiff, directory, 2, &count))
        return 0;
    int orientation = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t at = (size_t)directory + 2 + (size_t)i * ENTRY_BYTES;
        uint32_t tag, type, values, place, value;
        if (!read_number(&tiff, at, 2, &tag) || !read_number(&tiff, at + 2, 2, &type) ||
            !read_number(&tiff, at + 4, 4, &values) || !read_number(&tiff, at + 8, 4, &place))
            break;
        const int bytes = type < sizeof type_bytes ? type_bytes[type] : 0;
        if (tag != TAG_ORIENTATION || bytes == 0 || values == 0) continue;
        at = values > 4 / (uint32_t)bytes ? place : at + 8; /* the first of several */
        if (read_number(&tiff, at, bytes, &value)) orientation = value <= 8 ? (int)value : 1;
    }
    return orientation;
}

/* tiff:Orientation="6" and <tiff:Orientation>6</tiff:Orientation> */
int xmp_orientation(Slice packet) {
    static const char key[] = "tiff:Orientation";
    const size_t size = sizeof key - 1;
    for (const char *at = packet.data, *end = packet.data + packet.size; at && at < end; at++) {
        at = memmem(at, (size_t)(end - at), key, size);
        if (!at) return 0;
        const char *value = at + size;
        if (end - value >= 2 && value[0] == '=' && value[1] == '"')
            value += 2;
        else if (end - value >= 1 && value[0] == '>')
            value += 1;
        else
            continue;
        if (value < end && *value >= '0' && *value <= '9') return *value - '0';
    }
    return 0;
}
