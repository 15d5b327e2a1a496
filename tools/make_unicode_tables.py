#!/usr/bin/env python3
"""Writes src/text/unicode/unicode_tables.c: all that the server knows about characters, in one packed form.

Pinned: Unicode 16, as the libraries have it whose results are the reference. Categories, scripts and properties come
from the regex engine of tokenizers 0.23.3 (Oniguruma), lower case and normal forms from its normalizers (Rust's tables;
the library's own, older ones), so that both agree on every code point. What that library cannot be asked comes from
Python 3.11 (Unicode 14): upper and title case, digits, and the decompositions proposed to the library. The template
language uses the same tables: its reference, Python 3.11, differs only on characters assigned after Unicode 14 and on
ten whose case or category has changed since, and newer Pythons do as these tables do.

usage: tools/make_unicode_tables.py > src/text/unicode/unicode_tables.c
"""

import collections
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, CODES))
# The order is that of enum UnicodeCategory in unicode.h.
CATEGORIES = [
    "Cn",
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "Mn",
    "Mc",
    "Me",
    "Nd",
    "Nl",
    "No",
    "Pc",
    "Pd",
    "Ps",
    "Pe",
    "Pi",
    "Pf",
    "Po",
    "Sm",
    "Sc",
    "Sk",
    "So",
    "Zs",
    "Zl",
    "Zp",
    "Cc",
    "Cf",
    "Co",
    "Cs",
]
CONTROL_SPACE = len(CATEGORIES)  # control codes that are white space get a category of their own
SCRIPTS = [
    "Arabic",
    "Armenian",
    "Bengali",
    "Bopomofo",
    "Cyrillic",
    "Devanagari",
    "Ethiopic",
    "Georgian",
    "Greek",
    "Gujarati",
    "Gurmukhi",
    "Han",
    "Hangul",
    "Hebrew",
    "Hiragana",
    "Kannada",
    "Katakana",
    "Khmer",
    "Lao",
    "Latin",
    "Malayalam",
    "Mongolian",
    "Myanmar",
    "Oriya",
    "Sinhala",
    "Tamil",
    "Telugu",
    "Thai",
    "Tibetan",
]
BLOCK = 128  # of the two-stage table of categories
REPEAT_MIN = 8
REPEATS = [REPEAT_MIN << i for i in range(9)]
HANGUL = range(0xAC00, 0xD7A4)  # composed and decomposed by arithmetic
WIDTH = 120


def members(regex):
    """The code points that a regex for one character matches."""
    found = set()
    split = pre_tokenizers.Split(Regex(f"(?:{regex})+"), "removed", invert=True)
    for _, (start, end) in split.pre_tokenize_str(TEXT):
        found.update(CODES[start:end])
    return found


# --- Writing C --------------------------------------------------------------------------------------------------------


def emit_array(declaration, items):
    print(f"const {declaration} = {{")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            print(line)
            line = "   "
        line += f" {item},"
    print(f"{line}\n}};")


def emit_count(name, per=1):
    print(f"const size_t {name}_count = sizeof {name} / sizeof {name}[0]{f' / {per}' if per > 1 else ''};\n")


def emit_spans(name, value_of):
    """first << 8 | value: the value holds from first up to the next span."""
    spans, last = [], None
    for c in range(0x110000):
        value = value_of(c)
        if value != last:
            spans.append(c << 8 | value)
            last = value
    emit_array(f"uint32_t {name}[]", [f"0x{s:X}" for s in spans])
    emit_count(name)


def literal(c):
    """A character of a string literal: as itself where an editor shows it in its place."""
    if chr(c) in '"\\?':  # '?' because of trigraphs
        return "\\" + chr(c)
    if 0x20 <= c < 0x7F:
        return chr(c)
    if c < 0xA0:
        return f"\\{c:03o}"
    shown = (
        CATEGORY[c][0] in "LNS" and CATEGORY[c] != "Sk" and unicodedata.bidirectional(chr(c)) in ("L", "EN", "ON", "ET")
    )
    return chr(c) if shown else f"\\u{c:04X}" if c < 0x10000 else f"\\U{c:08X}"


def emit_string(name, codes):
    """Code points as a string literal."""
    print(f"const uint32_t {name}[] =")
    line = ""
    for c in codes:
        if len(line) + len(literal(c)) > WIDTH - 8:
            print(f'    U"{line}"')
            line = ""
        line += literal(c)
    print(f'    U"{line}";')


def repeated(numbers):
    """Numbers as C writes them, runs of one number by the macros R8 and so on."""
    out, at = [], 0
    while at < len(numbers):
        run = next((i for i in range(at, len(numbers)) if numbers[i] != numbers[at]), len(numbers)) - at
        n = max((n for n in REPEATS if n <= run), default=1)
        out.append(f"R{n}({numbers[at]})" if n > 1 else str(numbers[at]))
        at += n
    return out


# --- Properties -------------------------------------------------------------------------------------------------------


def read_categories():
    table = ["Cn"] * 0x110000
    table[0xD800:0xE000] = ["Cs"] * 0x800
    for name in CATEGORIES:
        if name not in ("Cn", "Cs"):
            for c in members(rf"\p{{{name}}}"):
                table[c] = name
    return table


def emit_categories():
    table = [CATEGORIES.index(name) for name in CATEGORY]
    control_space = members(r"\s") - {c for c in CODES if CATEGORY[c][0] == "Z"}
    assert control_space == {9, 10, 11, 12, 13, 0x85}, control_space
    for c in control_space:
        table[c] = CONTROL_SPACE
    blocks, index = [], []
    for start in range(0, 0x110000, BLOCK):
        block = table[start : start + BLOCK]
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    print("/* Repetitions: of the index of large blocks of characters. */")
    print(f"#define R{REPEAT_MIN}(x) {', '.join('x' * REPEAT_MIN)}")
    for n in REPEATS[1:]:
        print(f"#define R{n}(x) R{n // 2}(x), R{n // 2}(x)")
    emit_array("uint16_t unicode_block_index[]", repeated(index))
    print(f"\n/* {len(blocks)} blocks of {BLOCK} categories, 'A' + category. */")
    text = "".join(chr(ord("A") + v) for block in blocks for v in block)
    print("const char unicode_blocks[] =")
    for at in range(0, len(text), WIDTH - 8):
        line = text[at : at + WIDTH - 8].replace("\\", "\\\\")
        print(f'    "{line}"')
    print("    ;\n")


def emit_scripts():
    of = {}
    for number, script in enumerate(SCRIPTS, 1):
        of.update((c, number) for c in members(rf"\p{{{script}}}"))
    emit_array("char *const unicode_scripts[]", [f'"{script.lower()}"' for script in SCRIPTS])
    emit_count("unicode_scripts")
    print("/* 1 + place in unicode_scripts; 0: another script */")
    emit_spans("unicode_script_spans", lambda c: of.get(c, 0))


def emit_flags():
    """Properties that follow from the category but for these characters: one bit each, as in unicode_tables.h."""

    def of_category(*names):
        return {c for c in CODES if CATEGORY[c].startswith(names)}

    kept = set()
    for _, (start, end) in pre_tokenizers.Punctuation("removed").pre_tokenize_str(TEXT):
        kept.update(CODES[start:end])
    punctuation = set(CODES) - kept
    properties = [
        (members(r"\w"), of_category("L", "M", "Nd", "Pc")),
        (punctuation, of_category("P")),
        (members(r"\p{Lowercase}"), of_category("Ll")),
        (members(r"\p{Uppercase}"), of_category("Lu")),
        (members(r"\p{Case_Ignorable}"), of_category("Mn", "Me", "Cf", "Lm", "Sk")),
        ({c for c in CODES if chr(c).isdigit()} | of_category("Nd"), of_category("Nd")),
        (members(r"\p{Alphabetic}"), of_category("L", "Nl")),
    ]
    differ = [have ^ category for have, category in properties]
    assert all(c < 0x80 and CATEGORY[c][0] in "PS" for c in punctuation if c < 0x80)
    emit_spans("unicode_flags", lambda c: sum(1 << bit for bit, codes in enumerate(differ) if c in codes))


def check_digits():
    """That a decimal digit's value is the number of digits right before it, modulo ten."""
    before = last = 0
    for c in CODES:
        before = before + 1 if CATEGORY[c] == "Nd" else 0
        if chr(c).isdecimal():
            assert int(chr(c)) == (before - 1) % 10, hex(c)
        assert before or CATEGORY[c - 1] != "Nd" or last % 10 == 0, hex(c)
        last = before


# --- Case -------------------------------------------------------------------------------------------------------------


def emit_case_runs(name, mapping):
    runs = []  # first, last, step, delta
    for c, to in sorted(mapping.items()):
        if runs:
            run, gap = runs[-1], c - runs[-1][1]
            if run[3] == to - c and gap in (1, 2) and run[2] in (0, gap):
                run[1], run[2] = c, gap
                continue
        runs.append([c, c, 0, to - c])
    emit_array(f"UnicodeCase {name}[]", [f"{{0x{a:X}, 0x{b:X}, {max(s, 1)}, {d}}}" for a, b, s, d in runs])
    emit_count(name)


def emit_case():
    library = normalizers.Lowercase()
    lower = {}
    for c in CODES:
        low = library.normalize_str(chr(c))
        if low != chr(c) and c != 0x130:  # U+0130 alone becomes two characters
            assert len(low) == 1, hex(c)
            lower[c] = ord(low)
    assert library.normalize_str("\u0130") == "i\u0307"
    emit_case_runs("unicode_lower_runs", lower)

    upper, special = {}, []
    for c in CODES:
        up, title = chr(c).upper(), chr(c).title()
        if len(up) == 1 and up != chr(c):
            upper[c] = ord(up)
        if len(up) > 1 or title != up:
            special.append((c, up, title))
    for c, low in lower.items():  # pairs that Python does not know yet
        if unicodedata.category(chr(c)) == "Cn" and low not in upper:
            assert chr(low).upper() == chr(low), hex(low)
            upper[low] = c
    emit_case_runs("unicode_upper_runs", upper)
    print("/* Where title case or three characters come in: character, upper case, title case, filled up with NUL. */")
    emit_string(
        "unicode_case_special",
        [ord(x) for c, up, title in special for x in chr(c) + up.ljust(3, "\0") + title.ljust(3, "\0")],
    )
    emit_count("unicode_case_special", 7)

    extra = []
    for c in CODES:
        fold = chr(c).casefold()
        if len(fold) != 1 or c in lower:
            continue
        fold = lower.get(ord(fold), ord(fold))
        if fold != c:
            extra.append((c, fold))
    folds = {**lower, **dict(extra)}
    assert max(collections.Counter(folds.values()).values()) < 8  # UNICODE_VARIANTS_MAX
    print("/* Case-insensitive matching: pairs of characters that stay apart in lower case but are alike. */")
    emit_string("unicode_fold_extra", [c for pair in extra for c in pair])
    emit_count("unicode_fold_extra", 2)


# --- Normal forms -----------------------------------------------------------------------------------------------------


def emit_combining(nfd):
    classes = {}
    for c in CODES:
        klass = unicodedata.combining(chr(c))
        if klass == 0:
            continue
        probe, after = (chr(c) + "\u0334", "\u0334" + chr(c)) if klass > 1 else ("\u0315" + chr(c), chr(c) + "\u0315")
        if nfd.normalize_str("a" + probe) == unicodedata.normalize("NFD", "a" + after):
            classes[c] = klass
    emit_spans("unicode_combining_spans", lambda c: classes.get(c, 0))


def find(pool, codes):
    """Where codes occur in the pool, appended as far as they do not."""
    for at in range(len(pool) - len(codes) + 1):
        if pool[at : at + len(codes)] == codes:
            return at
    shared = next(n for n in range(len(codes), -1, -1) if n == 0 or pool[-n:] == codes[:n])
    pool.extend(codes[shared:])
    return len(pool) - len(codes)


def emit_expansions(name, mapping, pool):
    """Full decompositions: runs of neighbours whose expansions are equally long and stand one after the other in the
    pool.
    """
    assert max(map(len, mapping.values())) <= 18  # UNICODE_EXPANSION_MAX
    runs = []
    for c, text in sorted(mapping.items()):
        if runs and runs[-1][0] + runs[-1][1] == c and runs[-1][2] == len(text):
            runs[-1][1] += 1
            runs[-1][3] += text
        else:
            runs.append([c, 1, len(text), text])
    rows = [f"{{0x{c:X}, {count}, {size}, {find(pool, [ord(x) for x in text])}}}" for c, count, size, text in runs]
    emit_array(f"UnicodeExpansion {name}[]", rows)
    emit_count(name)


def emit_normalization():
    nfd, nfc, nfkd = normalizers.NFD(), normalizers.NFC(), normalizers.NFKD()
    emit_combining(nfd)
    canonical, compatible, composed, pool = {}, {}, [], []
    for c in CODES:
        if c in HANGUL:
            continue
        full, compatible_full = nfd.normalize_str(chr(c)), nfkd.normalize_str(chr(c))
        if full != chr(c):
            canonical[c] = full
            first = [int(x, 16) for x in unicodedata.decomposition(chr(c)).split()]
            if len(first) == 2 and nfc.normalize_str("".join(map(chr, first))) == chr(c):
                composed.append((*first, c))
        if compatible_full != full:
            compatible[c] = compatible_full
    emit_expansions("unicode_canonical", canonical, pool)
    emit_expansions("unicode_compatible", compatible, pool)
    emit_string("unicode_expansion_pool", pool)
    print("\n/* first, second, composed; sorted */")
    emit_string("unicode_compositions", [c for row in sorted(composed) for c in row])
    emit_count("unicode_compositions", 3)


CATEGORY = read_categories()


def main():
    print("/* Written by tools/make_unicode_tables.py from tokenizers 0.23.3 and Python 3.11; do not edit. */")
    print("/* clang-format off */")
    print('#include "text/unicode/unicode_tables.h"\n')
    print("/* Long strings are no trouble to the compilers that the project supports. */")
    print('#pragma GCC diagnostic ignored "-Woverlength-strings"\n')
    emit_categories()
    emit_scripts()
    check_digits()
    emit_flags()
    emit_case()
    emit_normalization()


main()
