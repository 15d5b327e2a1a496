/* Character classes and case mappings by binary search in generated tables (tools/make_jinja_unicode.py). */
#include "text/jinja/unicode_tables.h"
#include "text/jinja/value.h"

static uint16_t unicode_flags(uint32_t code) {
    size_t low = 0, high = COUNT_OF(unicode_spans);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (unicode_spans[middle] >> 8 <= code) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return unicode_classes[unicode_spans[low] & 0xFF];
}

static bool unicode_has(uint32_t code, uint16_t flag) { return (unicode_flags(code) & flag) != 0; }

bool unicode_is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x1F);
    return unicode_has(code, UNICODE_SPACE);
}
bool unicode_is_printable(uint32_t code) { return code < 0x7F ? code >= 0x20 : unicode_has(code, UNICODE_PRINTABLE); }
bool unicode_is_alpha(uint32_t code) { return unicode_has(code, UNICODE_ALPHA); }
bool unicode_is_decimal(uint32_t code) { return unicode_has(code, UNICODE_DECIMAL); }
bool unicode_is_digit(uint32_t code) { return unicode_has(code, UNICODE_DIGIT); }
bool unicode_is_numeric(uint32_t code) { return unicode_has(code, UNICODE_NUMERIC); }
bool unicode_is_lower(uint32_t code) { return unicode_has(code, UNICODE_LOWER); }
bool unicode_is_upper(uint32_t code) { return unicode_has(code, UNICODE_UPPER); }
bool unicode_is_title(uint32_t code) { return unicode_has(code, UNICODE_TITLE); }
bool unicode_is_cased(uint32_t code) { return unicode_has(code, UNICODE_CASED); }
bool unicode_is_case_ignorable(uint32_t code) { return unicode_has(code, UNICODE_IGNORABLE); }
bool unicode_is_id_start(uint32_t code) { return unicode_has(code, UNICODE_ID_START); }
bool unicode_is_id_continue(uint32_t code) { return unicode_has(code, UNICODE_ID_CONTINUE); }

int unicode_decimal(uint32_t code) {
    if (code < 0x80) return code >= '0' && code <= '9' ? (int)(code - '0') : -1;
    for (size_t i = 0; i < COUNT_OF(unicode_zeros); i++) {
        if (code >= unicode_zeros[i] && code < unicode_zeros[i] + 10) return (int)(code - unicode_zeros[i]);
    }
    return -1;
}

static int unicode_map(uint32_t code, const UnicodeCase *simple, size_t simple_count, const UnicodeSpecial *special,
    size_t special_count, uint32_t out[3]) {
    size_t low = 0, high = simple_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const UnicodeCase *range = &simple[middle];
        if (code < range->first) {
            high = middle;
        } else if (code > range->last) {
            low = middle + 1;
        } else {
            bool on_step = (code - range->first) % range->step == 0;
            out[0] = on_step ? (uint32_t)((int32_t)code + range->delta) : code;
            if (on_step) return 1;
            break;
        }
    }
    low = 0, high = special_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (special[middle].code == code) {
            memcpy(out, special[middle].to, sizeof special[middle].to);
            return out[2] ? 3 : 2;
        }
        if (special[middle].code < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    out[0] = code;
    return 1;
}

#define UNICODE_MAP(name)                                                                                              \
    int jinja_##name(uint32_t code, uint32_t out[3]) {                                                                 \
        return unicode_map(code, unicode_##name##_simple, COUNT_OF(unicode_##name##_simple), unicode_##name##_special, \
            COUNT_OF(unicode_##name##_special), out);                                                                  \
    }
UNICODE_MAP(upper)
UNICODE_MAP(lower)
UNICODE_MAP(title)
UNICODE_MAP(fold)
