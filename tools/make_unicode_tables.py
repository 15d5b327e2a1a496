#!/usr/bin/env python3
"""Writes src/text/unicode/unicode_tables.c: the character data that tokenizers need, taken from the library whose ids are the
reference, so that both agree on every code point.

Pinned: Python 3.11 (unicodedata 14.0 proposes decompositions; each is checked against the library), tokenizers 0.23.3
(Oniguruma with Unicode 16 for categories; its own, older tables for normalisation; Rust's for lower case).

usage: tools/make_unicode_tables.py > src/text/unicode/unicode_tables.c
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, CODES))
# The order is that of enum UnicodeCategory in unicode.h.
CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"]
CONTROL_SPACE = len(CATEGORIES)  # control codes that are white space get a category of their own
SCRIPTS = ["Arabic", "Armenian", "Bengali", "Bopomofo", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
           "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer", "Lao",
           "Latin", "Malayalam", "Mongolian", "Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan"]
BLOCK = 128


def members(regex):
    """The code points that a regex for one character matches."""
    found = set()
    split = pre_tokenizers.Split(Regex(f"(?:{regex})+"), "removed", invert=True)
    for _, (start, end) in split.pre_tokenize_str(TEXT):
        found.update(CODES[start:end])
    return found


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def emit_array(ctype, name, items, per_line=12, sized=True, storage=""):
    print(f"{storage}const {ctype} {name}[] = {{")
    for i in range(0, len(items), per_line):
        print("    " + ", ".join(items[i:i + per_line]) + ",")
    print("};")
    if sized:
        print(f"const size_t {name}_count = sizeof {name} / sizeof {name}[0];")
    print()


def emit_ranges(name, codes):
    emit_array("UnicodeRange", name, [f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(codes)], 6)


def emit_categories():
    table = bytearray(0x110000)
    table[0xD800:0xE000] = bytes([CATEGORIES.index("Cs")]) * 0x800
    for index, name in enumerate(CATEGORIES):
        if name in ("Cn", "Cs"):
            continue
        for c in members(rf"\p{{{name}}}"):
            table[c] = index
    control_space = members(r"\s") - {c for c in CODES if CATEGORIES[table[c]] in ("Zs", "Zl", "Zp")}
    assert control_space == {9, 10, 11, 12, 13, 0x85}, control_space
    for c in control_space:
        table[c] = CONTROL_SPACE
    blocks, index = [], []
    for start in range(0, 0x110000, BLOCK):
        block = bytes(table[start:start + BLOCK])
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    assert len(blocks) < 65536
    # Trailing blocks are all alike; the index is run-length friendly but small enough as it is (17 KB).
    emit_array("uint16_t", "unicode_block_index", [str(i) for i in index], 30, False)
    print(f"/* {len(blocks)} blocks of {BLOCK} categories, 'A' + category */")
    print(f"const char unicode_blocks[][{BLOCK}] = {{")
    for block in blocks:
        text = "".join(chr(ord("A") + v) for v in block).replace("\\", "\\\\")
        print(f'    "{text}",')
    print("};\n")
    return table


def emit_words(table):
    word = members(r"\w")
    base = {c for c in CODES if CATEGORIES[min(table[c], 29)][0] in "LM" or
            CATEGORIES[min(table[c], 29)] in ("Nd", "Pc")}
    assert base <= word
    print("/* Word characters beside letters, marks, Nd and Pc. */")
    emit_ranges("unicode_word_extra", word - base)


def emit_punctuation(table):
    split = pre_tokenizers.Punctuation("removed")
    kept = set()
    for _, (start, end) in split.pre_tokenize_str(TEXT):
        kept.update(CODES[start:end])
    removed = set(CODES) - kept
    category = {c for c in CODES if CATEGORIES[min(table[c], 29)][0] == "P"}
    print("/* Where the Punctuation pre-tokenizer (older data, and ASCII symbols) and the category P differ. */")
    emit_ranges("unicode_punctuation_flip", removed ^ category)


def emit_case():
    lower = normalizers.Lowercase()
    mapping = {}
    for c in CODES:
        low = lower.normalize_str(chr(c))
        if low != chr(c) and c != 0x130:  # U+0130 alone becomes two characters
            assert len(low) == 1, hex(c)
            mapping[c] = ord(low)
    assert lower.normalize_str("\u0130") == "i\u0307"
    runs = []  # first, last, step, delta
    for c, low in sorted(mapping.items()):
        delta = low - c
        if runs:
            run = runs[-1]
            gap = c - run[1]
            if run[3] == delta and gap in (1, 2) and (run[2] in (0, gap)):
                run[1], run[2] = c, gap
                continue
        runs.append([c, c, 0, delta])
    emit_array("UnicodeCase", "unicode_lower_runs",
               [f"{{0x{a:X}, 0x{b:X}, {max(s, 1)}, {d}}}" for a, b, s, d in runs], 5)
    extra = []
    for c in CODES:
        fold = chr(c).casefold()
        if len(fold) != 1 or mapping.get(c, c) != c:
            continue
        fold = ord(fold)
        fold = mapping.get(fold, fold)
        if fold != c:
            extra.append((c, fold))
    print("/* Case-insensitive matching: characters that stay apart in lower case but are alike. */")
    emit_array("UnicodePair", "unicode_fold_extra", [f"{{0x{a:X}, 0x{b:X}}}" for a, b in extra], 6)


def emit_normalization():
    nfd, nfc, nfkd = normalizers.NFD(), normalizers.NFC(), normalizers.NFKD()
    classes, canonical, compatible = [], [], []
    hangul = range(0xAC00, 0xD7A4)
    for c in CODES:
        klass = unicodedata.combining(chr(c))
        if klass == 0:
            continue
        probe, after = (chr(c) + "\u0334", "\u0334" + chr(c)) if klass > 1 else ("\u0315" + chr(c), chr(c) + "\u0315")
        if nfd.normalize_str("a" + probe) == unicodedata.normalize("NFD", "a" + after):
            classes.append((c, klass))
    runs = []
    for c, klass in classes:
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == klass:
            runs[-1][1] = c
        else:
            runs.append([c, c, klass])
    emit_array("UnicodeClass", "unicode_classes", [f"{{0x{a:X}, 0x{b:X}, {k}}}" for a, b, k in runs], 6)
    composed = []
    for c in CODES:
        if c in hangul:
            continue
        full = nfd.normalize_str(chr(c))
        if full != chr(c):
            canonical.append((c, full))
            first = unicodedata.decomposition(chr(c)).split()
            if len(first) == 2 and nfc.normalize_str(chr(int(first[0], 16)) + chr(int(first[1], 16))) == chr(c):
                composed.append((int(first[0], 16), int(first[1], 16), c))
        kfull = nfkd.normalize_str(chr(c))
        if kfull != full:
            compatible.append((c, kfull))
    pool = []

    def place(text):
        """The offset of text in the pool, shared where it occurs already."""
        codes = [ord(x) for x in text]
        for i in range(len(pool) - len(codes) + 1):
            if pool[i:i + len(codes)] == codes:
                return i
        pool.extend(codes)
        return len(pool) - len(codes)

    for name, items in (("unicode_canonical", canonical), ("unicode_compatible", compatible)):
        rows = [f"{{0x{c:X}, {place(t)}, {len(t)}}}" for c, t in items]
        emit_array("UnicodeExpansion", name, rows, 7)
    emit_array("uint32_t", "unicode_expansion_pool", [f"0x{c:X}" for c in pool], 16, False)
    emit_array("UnicodeComposition", "unicode_compositions",
               [f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for a, b, c in sorted(composed)], 5)


def emit_scripts():
    for script in SCRIPTS:
        rows = [f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(members(rf"\p{{{script}}}"))]
        emit_array("UnicodeRange", f"script_{script.lower()}", rows, 6, False, "static ")
    print("const UnicodeScript unicode_scripts[] = {")
    for script in SCRIPTS:
        name = f"script_{script.lower()}"
        print(f'    {{"{script.lower()}", {name}, sizeof {name} / sizeof {name}[0]}},')
    print("};")
    print("const size_t unicode_scripts_count = sizeof unicode_scripts / sizeof unicode_scripts[0];")


def main():
    print("/* Written by tools/make_unicode_tables.py from tokenizers 0.23.3 and Python "
          f"{sys.version_info[0]}.{sys.version_info[1]}; do not edit. */")
    print("/* clang-format off */")
    print('#include "text/unicode/unicode_tables.h"\n')
    table = emit_categories()
    emit_words(table)
    emit_punctuation(table)
    emit_case()
    emit_normalization()
    emit_scripts()


main()
