#!/usr/bin/env python3
"""Writes src/text/jinja/unicode_tables.h: what Python's str methods know about characters.

Run with Python 3.11 (unicodedata.unidata_version 14.0.0): that is the Python whose output the templates are compared with.
    python3 tools/make_jinja_unicode.py > src/text/jinja/unicode_tables.h
"""
import sys
import unicodedata

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version

FLAGS = ["SPACE", "PRINTABLE", "ALPHA", "DECIMAL", "DIGIT", "NUMERIC", "LOWER", "UPPER", "TITLE", "CASED", "IGNORABLE",
         "ID_START", "ID_CONTINUE"]


def ignorable(c):
    # Word_Break MidLetter, MidNumLet, Single_Quote and the categories Mn, Me, Cf, Lm, Sk
    return unicodedata.category(c) in ("Mn", "Me", "Cf", "Lm", "Sk") or c in "'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"


def flags(code):
    c = chr(code)
    lower, upper, title = c.islower(), c.isupper(), unicodedata.category(c) == "Lt"
    cased = lower or upper or title
    tests = [c.isspace(), c.isprintable(), c.isalpha(), c.isdecimal(), c.isdigit(), c.isnumeric(), lower, upper, title,
             cased, ignorable(c), c.isidentifier(), ("a" + c).isidentifier()]
    return sum(1 << i for i, t in enumerate(tests) if t)


def spans(function):
    out, last = [], None
    for code in range(0x110000):
        value = 0 if 0xD800 <= code < 0xE000 else function(code)
        if value != last:
            out.append((code, value))
            last = value
    return out


def case_ranges(function):
    """(first, last, step, delta) for one-to-one mappings, and a list for the others."""
    simple, special = {}, []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        mapped = function(chr(code))
        if mapped == chr(code):
            continue
        if len(mapped) == 1:
            simple[code] = ord(mapped) - code
        else:
            special.append((code, [ord(c) for c in mapped]))
    out, codes = [], sorted(simple)
    i = 0
    while i < len(codes):
        best = 1
        step = 1
        for s in (1, 2):
            j = 1
            while i + j < len(codes) and codes[i + j] == codes[i] + s * j and simple[codes[i + j]] == simple[codes[i]]:
                j += 1
            if j > best:
                best, step = j, s
        out.append((codes[i], codes[i] + step * (best - 1), step, simple[codes[i]]))
        i += best
    return out, special


def print_table(declaration, rows):
    print(declaration + " = {")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 120:
            print(line)
            line = "   "
        line += " " + row + ","
    print(line)
    print("};")


def main():
    print("/* Made by tools/make_jinja_unicode.py with Python 3.11 (Unicode 14.0.0); do not edit. */")
    print("#pragma once\n#include <stdint.h>\n")
    print("enum {")
    for i, name in enumerate(FLAGS):
        print(f"    UNICODE_{name} = 1 << {i},")
    print("};\n")
    table = spans(flags)
    classes = sorted({value for _, value in table})
    print_table("static const uint16_t unicode_classes[]", [hex(c) for c in classes])
    print("/* first code point << 8 | class, sorted */")
    assert len(classes) < 256
    print_table("static const uint32_t unicode_spans[]", [hex(code << 8 | classes.index(value)) for code, value in table])
    zeros = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and chr(c).isdecimal() and int(chr(c)) == 0]
    for zero in zeros:
        assert all(int(chr(zero + i)) == i for i in range(10))
    print_table("static const uint32_t unicode_zeros[]", [hex(z) for z in zeros])
    print("\ntypedef struct UnicodeCase {\n    uint32_t first, last;\n    int32_t delta;\n    uint32_t step;\n} UnicodeCase;")
    print("typedef struct UnicodeSpecial {\n    uint32_t code, to[3];\n} UnicodeSpecial;")
    for name, function in (("upper", str.upper), ("lower", str.lower), ("title", str.title), ("fold", str.casefold)):
        simple, special = case_ranges(function)
        if name == "lower":
            assert special == [(0x130, [0x69, 0x307])], special
        print_table(f"static const UnicodeCase unicode_{name}_simple[]",
                    [f"{{{hex(a)}, {hex(b)}, {d}, {s}}}" for a, b, s, d in simple])
        print_table(f"static const UnicodeSpecial unicode_{name}_special[]",
                    [f"{{{hex(c)}, {{{', '.join(map(hex, to))}}}}}" for c, to in special])


if __name__ == "__main__":
    sys.exit(main())
