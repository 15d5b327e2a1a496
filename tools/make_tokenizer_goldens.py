#!/usr/bin/env python3
"""Varied strings for tokenizer tests (`strings()`, deterministic), and the committed goldens of tests/text/test_tokenizer.c:
small synthetic tokenizer.json files with the ids and texts that the reference library gives for them.

Pinned: tokenizers 0.23.3.

usage: tools/make_tokenizer_goldens.py [DIRECTORY]     (default: tests/text/tokenizers)
"""
import json
import os
import random
import sys

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<bos>", "<eos>", "<s>", "</s>",
            "<unk>", "<start_of_turn>", "<end_of_turn>", "<|begin_of_text|>", "<|eot_id|>", "<|start|>", "<|channel|>",
            "<|message|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<|fim_prefix|>", "<EOT>", "<META>",
            "<unused5>", "</h1>", "<table>", "\n\n\n", "▁▁▁", "<|reserved_special_token_7|>", "<0x41>", "<|python_tag|>", "[INST]"]
WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
         "hello world don't I'm you're we'll they'd she's it've HELLO'S McDonald's tokenization internationalisation naïve "
         "façade Zürich Straße ΑΘΗΝΑ Ελλάδα Москва привет здравствуйте שלום עולם مرحبا بالعالم हिन्दी भाषा ภาษาไทย 日本語 "
         "東京 こんにちは カタカナ ｶﾀｶﾅ 한국어 안녕하세요 中文字符 你好世界 繁體中文 Việt Nam tiếng ﬁ ﬂ ﬆ ǅ ǈ ʰ ªº "
         "x86_64 foo_bar fooBar HTTPServer parseJSON2 iPhone15 3.14159 1,234,567 0xDEADBEEF 1e-9 ½ ² ⅷ ① ٣٤٥ १२३ 𝟘𝟙 "
         "https://example.com/a?b=c&d=%20 user@example.org C++ C# F# .NET node.js #include @decorator $var ${x} `code`").split()
CODE = ["def f(x):\n    return x ** 2  # square\n", "int main(void) {\n\tprintf(\"%d\\n\", 42);\n\treturn 0;\n}\n",
        "for (let i = 0; i < n; i++) { a[i] += b[i] * c[i]; }", "SELECT * FROM t WHERE a = 'x' AND b IS NOT NULL;",
        "{\"key\": [1, 2, {\"nested\": null}], \"t\": true}", "<div class=\"a b\">&nbsp;</div>\r\n", "fn main() -> Result<(), E> {}",
        "\t\t\tif err != nil {\n\t\t\t\treturn nil, err\n\t\t\t}\n", "# Title\n\n* item\n  * sub\n\n```c\nx = 1;\n```\n",
        "a = b if c else d; e //= 2; f <<= 3; g = ~h | (i & j) ^ k", "\\begin{equation} \\frac{a}{b} \\end{equation}"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n", "\n ", "\t \t", "\u00a0", "\u2003", "\u3000", "\u200b",
          "\u2028", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u180e", "\ufeff", "\u1680", "\u202f", "          ", "\n\n\n\n\n"]
UGLY = ["e\u0301", "\u0301a", "A\u030a", "\u212b", "\u2126", "\u1100\u1161\u11a8", "\uac00\u11a8", "q\u0323\u0307", "q\u0307\u0323",
        "\u0f71\u0f72\u0f74", "\U000105d2\u0307", "\U000113c2\U000113b8", "\U00016121\U0001611e", "\ufb1d", "\u0958", "\u2adc",
        "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "☃\ufe0f", "'ſ", "'S", "'LL", "'Re", "K", "\u0295", "\u088f", "\u0c5c", "\ua7ce",
        "\x00", "\x01", "\x7f", "\ufffd", "\uffff", "\ue000", "\U0010ffff", "\U000e0001", "\u0378", "ẞ", "İ", "ı", "Ǆ", "\u0345",
        "﷽", "…", "—", "“”", "‘’", "«»", "·", "°", "€", "₿", "×", "∑", "√", "→", "█", "♥", "№", "℃", "㎏", "㍿", "ｱ", "Ａ", "１"]


def random_code(rng):
    kind = rng.random()
    if kind < 0.3:
        return rng.randrange(0x20, 0x7f)
    if kind < 0.5:
        return rng.randrange(0xa0, 0x600)
    if kind < 0.7:
        return rng.randrange(0x600, 0x3000)
    if kind < 0.9:
        return rng.choice([rng.randrange(0x3000, 0xd800), rng.randrange(0xe000, 0x10000)])
    return rng.randrange(0x10000, 0x110000)


def fragment(rng, specials):
    kind = rng.random()
    if kind < 0.32:
        return rng.choice(WORDS)
    if kind < 0.52:
        return rng.choice(SPACES)
    if kind < 0.60:
        return rng.choice(UGLY)
    if kind < 0.66:
        return rng.choice(specials)
    if kind < 0.72:
        return rng.choice(CODE)
    if kind < 0.78:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 12)))
    if kind < 0.83:
        return "".join(chr(random_code(rng)) for _ in range(rng.randrange(1, 8)))
    if kind < 0.87:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randrange(1, 6)))
    if kind < 0.92:
        return "".join(chr(rng.randrange(0x4e00, 0x9fff)) for _ in range(rng.randrange(1, 20)))
    if kind < 0.96:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randrange(1, 15)))
    return rng.choice([" ", "▁", "Ġ", "'", "\n", "a", "Ǆ", "ab", "é", "中", "😀"]) * rng.randrange(1, 40)


def strings(count=10000, specials=(), seed=1):
    """Deterministic; specials: further added tokens to spell out."""
    rng = random.Random(seed)
    pool = SPECIALS + list(specials)[:64]
    fixed = ["", " ", "  ", "\n", "a", " a", "a ", "▁", "▁a", "Ġ", "é", "e\u0301", "</s> b", "a</s>b", " </s>", "中", "中文 字",
             "a" * 3000, "ab" * 2000, "é" * 1500, "中" * 1500, " " * 2000, "\n" * 1000, "1" * 1000, "!" * 1000, "😀" * 500]
    fixed += WORDS + CODE + SPACES + UGLY + pool
    fixed += [w + " " + w for w in WORDS[:40]] + ["x" + s + "y" for s in pool] + [" " + s + " " for s in pool]
    out = fixed[:count]
    while len(out) < count:
        parts = [fragment(rng, pool) for _ in range(rng.choice([1, 2, 3, 4, 6, 8, 12, 20]))]
        out.append(rng.choice(["", " "]).join(parts))
    return out
