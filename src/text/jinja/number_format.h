/* Numbers laid out by a format: shared by %-formatting and str.format(). */
#pragma once
#include "text/jinja/value.h"

enum { FORMAT_PRECISION_MAX = 4096, FORMAT_WIDTH_MAX = 1 << 20 };

typedef struct NumberFormat {
    char type; /* as in Python; 0: none */
    bool alternate, zero;
    char sign;  /* '+', ' ' or '-' */
    char group; /* ',' or '_' or 0 */
    char align; /* '<', '>', '^', '=' or 0 */
    uint32_t fill;
    int64_t width;
    int precision; /* -1: none */
} NumberFormat;

/* An integer with type b, d, o, x, X or none, or a float with e, f, g, %, n or none. */
bool jinja_format_integer(Vm *vm, JinjaText *out, Jv value, const NumberFormat *format);
bool jinja_format_float(Vm *vm, JinjaText *out, double value, const NumberFormat *format);
/* Pads text to the width; fallback: the alignment when none is given. */
bool jinja_format_pad(Vm *vm, JinjaText *out, JinjaStr *text, const NumberFormat *format, char fallback);
