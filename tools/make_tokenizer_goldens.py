#!/usr/bin/env python3
"""Varied strings for tokenizer tests (`strings()`, deterministic), and the committed goldens of
tests/text/test_tokenizer.c: small synthetic tokenizer.json files with the ids and texts that the reference library
gives for them.

Pinned: tokenizers 0.23.3.

usage: tools/make_tokenizer_goldens.py [DIRECTORY]     (default: tests/text)
"""

import json
import os
import random
import sys

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<bos>",
    "<eos>",
    "<s>",
    "</s>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|fim_prefix|>",
    "<EOT>",
    "<META>",
    "<unused5>",
    "</h1>",
    "<table>",
    "\n\n\n",
    "▁▁▁",
    "<|reserved_special_token_7|>",
    "<0x41>",
    "<|python_tag|>",
    "[INST]",
]
WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "hello world don't I'm you're we'll they'd she's it've HELLO'S McDonald's tokenization internationalisation naïve "
    "façade Zürich Straße ΑΘΗΝΑ Ελλάδα Москва привет здравствуйте שלום עולם مرحبا بالعالم हिन्दी भाषा ภาษาไทย 日本語 "
    "東京 こんにちは カタカナ ｶﾀｶﾅ 한국어 안녕하세요 中文字符 你好世界 繁體中文 Việt Nam tiếng ﬁ ﬂ ﬆ ǅ ǈ ʰ ªº "
    "x86_64 foo_bar fooBar HTTPServer parseJSON2 iPhone15 3.14159 1,234,567 0xDEADBEEF 1e-9 ½ ² ⅷ ① ٣٤٥ १२३ 𝟘𝟙 "
    "https://example.com/a?b=c&d=%20 user@example.org C++ C# F# .NET node.js #include @decorator $var ${x} `code`"
).split()
CODE = [
    "def f(x):\n    return x ** 2  # square\n",
    'int main(void) {\n\tprintf("%d\\n", 42);\n\treturn 0;\n}\n',
    "for (let i = 0; i < n; i++) { a[i] += b[i] * c[i]; }",
    "SELECT * FROM t WHERE a = 'x' AND b IS NOT NULL;",
    '{"key": [1, 2, {"nested": null}], "t": true}',
    '<div class="a b">&nbsp;</div>\r\n',
    "fn main() -> Result<(), E> {}",
    "\t\t\tif err != nil {\n\t\t\t\treturn nil, err\n\t\t\t}\n",
    "# Title\n\n* item\n  * sub\n\n```c\nx = 1;\n```\n",
    "a = b if c else d; e //= 2; f <<= 3; g = ~h | (i & j) ^ k",
    "\\begin{equation} \\frac{a}{b} \\end{equation}",
]
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r\n\r\n",
    " \n",
    "\n ",
    "\t \t",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
    "\x85",
    "\u180e",
    "\ufeff",
    "\u1680",
    "\u202f",
    "          ",
    "\n\n\n\n\n",
]
UGLY = [
    "e\u0301",
    "\u0301a",
    "A\u030a",
    "\u212b",
    "\u2126",
    "\u1100\u1161\u11a8",
    "\uac00\u11a8",
    "q\u0323\u0307",
    "q\u0307\u0323",
    "\u0f71\u0f72\u0f74",
    "\U000105d2\u0307",
    "\U000113c2\U000113b8",
    "\U00016121\U0001611e",
    "\ufb1d",
    "\u0958",
    "\u2adc",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇩🇪🇫🇷",
    "☃\ufe0f",
    "'ſ",
    "'S",
    "'LL",
    "'Re",
    "K",
    "\u0295",
    "\u088f",
    "\u0c5c",
    "\ua7ce",
    "\x00",
    "\x01",
    "\x7f",
    "\ufffd",
    "\uffff",
    "\ue000",
    "\U0010ffff",
    "\U000e0001",
    "\u0378",
    "ẞ",
    "İ",
    "ı",
    "Ǆ",
    "\u0345",
    "﷽",
    "…",
    "—",
    "“”",
    "‘’",
    "«»",
    "·",
    "°",
    "€",
    "₿",
    "×",
    "∑",
    "√",
    "→",
    "█",
    "♥",
    "№",
    "℃",
    "㎏",
    "㍿",
    "ｱ",
    "Ａ",
    "１",
]


def random_code(rng):
    kind = rng.random()
    if kind < 0.3:
        return rng.randrange(0x20, 0x7F)
    if kind < 0.5:
        return rng.randrange(0xA0, 0x600)
    if kind < 0.7:
        return rng.randrange(0x600, 0x3000)
    if kind < 0.9:
        return rng.choice([rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x10000)])
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
        return "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(rng.randrange(1, 20)))
    if kind < 0.96:
        return "".join(
            rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randrange(1, 15))
        )
    return rng.choice([" ", "▁", "Ġ", "'", "\n", "a", "Ǆ", "ab", "é", "中", "😀"]) * rng.randrange(1, 40)


def strings(count=10000, specials=(), seed=1):
    """Deterministic; specials: further added tokens to spell out."""
    rng = random.Random(seed)
    pool = SPECIALS + list(specials)[:64]
    fixed = [
        "",
        " ",
        "  ",
        "\n",
        "a",
        " a",
        "a ",
        "▁",
        "▁a",
        "Ġ",
        "é",
        "e\u0301",
        "</s> b",
        "a</s>b",
        " </s>",
        "中",
        "中文 字",
        "a" * 3000,
        "ab" * 2000,
        "é" * 1500,
        "中" * 1500,
        " " * 2000,
        "\n" * 1000,
        "1" * 1000,
        "!" * 1000,
        "😀" * 500,
    ]
    fixed += WORDS + CODE + SPACES + UGLY + pool
    fixed += [w + " " + w for w in WORDS[:40]] + ["x" + s + "y" for s in pool] + [" " + s + " " for s in pool]
    out = fixed[:count]
    while len(out) < count:
        parts = [fragment(rng, pool) for _ in range(rng.choice([1, 2, 3, 4, 6, 8, 12, 20]))]
        out.append(rng.choice(["", " "]).join(parts))
    return out


# --- Synthetic tokenizers ------------------------------------------------------------------------------------------

CORPUS = (
    " ".join(WORDS) + " " + " ".join(CODE) + " the cat sat on the mat and then the other cat ran  after   it\n\n"
) * 3


def byte_alphabet():
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def train(words, count):
    """Plain BPE on lists of symbols: merges in order, ties by spelling."""
    words = [list(w) for w in words]
    merges = []
    for _ in range(count):
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i : i + 2] = ["".join(best)]
                i += 1
    return merges


def bytes_tail():
    alphabet = byte_alphabet()
    pieces = [w for w in CORPUS.replace("\n", " \n ").split(" ") if w]
    words = ["".join(alphabet[b] for b in (" " + w).encode()) for w in pieces]
    merges = train(words, 300)
    vocab = {}
    for b in range(256):
        vocab[alphabet[b]] = len(vocab)
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    vocab["<|inside|>"] = len(vocab)
    return vocab, merges


def spm_tail():
    pieces = [w for w in CORPUS.split(" ") if w and not set(w) & set("~^😀中界\t")]  # characters left to fallback
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    for c in sorted(set("".join(pieces))) + ["▁"]:
        vocab.setdefault(c, len(vocab))
    merges = train(["▁" + w for w in pieces], 300)
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    return vocab, merges


def split(regex, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: regex}, "behavior": behavior, "invert": invert}


def byte_level(regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def seq(kind, *items):
    key = {"pre": "pretokenizers", "norm": "normalizers", "dec": "decoders", "post": "processors"}[kind]
    return {"type": "Sequence", key: list(items)}


def added(id_, content, special=True, **flags):
    return {
        "id": id_,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
        **flags,
    }


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def strip(start, stop):
    return {"type": "Strip", "content": " ", "start": start, "stop": stop}


C = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HAN_UP, HAN_LOW = UP[:-1] + r"&&[^\p{Han}]]", LOW[:-1] + r"&&[^\p{Han}]]"
PATTERNS = {
    "qwen2": C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL,
    "llama3": C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL,
    "qwen35": C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{C}?|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{C}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{HAN_UP}*{HAN_LOW}+{C}?|[^\r\n\p{{L}}\p{{N}}]?{HAN_UP}+{HAN_LOW}*{C}?"
    r"|\p{N}{1,3}|" + TAIL,
    "bailing": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "exaone": C
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    "digits_right": r"\d{1,3}(?=(?:\d{3})*\b)|\D+?(?=\d|\z)|\W{2,}?",
    "odd": r"(?>a+)b|(?:ab|a)*c|x{2}?y|z{1,2}+|\u4e2d|[[:alpha:]]+?\.|[^\w\s]{,2}$|^\h+|(e|)(?!l).",
}
DEEPSEEK = [
    split(r"\p{N}{1,3}"),
    split("[一-龥぀-ゟ゠-ヿ]+"),
    split(
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
    },
}
BYTES_ADDED = [
    added(1000, "<|im_start|>"),
    added(1001, "<|im_end|>"),
    added(1002, "<think>", False),
    added(1003, "\n\n\n", False),
    added(1004, "<|im_start|>user"),
    added(1005, "<a b>"),
]
FLAG_ADDED = [
    added(1000, "<s>", lstrip=True),
    added(1001, "</s>", rstrip=True),
    added(1002, "<m>", lstrip=True, rstrip=True),
    added(1003, "cat", False, single_word=True),
    added(1004, "Hello", False, normalized=True),
    added(1005, "ÄB", True, normalized=True),
    added(1006, "ing", False, single_word=True, lstrip=True),
]
SPM_ADDED = [
    added(0, "<unk>"),
    added(1, "<s>"),
    added(2, "</s>"),
    added(2000, "<x>", False, normalized=True),
    added(2001, "▁▁", False),
]
SPM_FLAGS = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
LLAMA_DECODER = seq("dec", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, strip(1, 0))


def variants():
    """name, tail, added tokens, normalizer, pre-tokenizer, post-processor, decoder, model flags, merges as pairs."""
    bl = byte_level()
    for name, pattern in PATTERNS.items():
        yield (
            name,
            "bytes",
            BYTES_ADDED,
            {"type": "NFC"} if name == "qwen2" else None,
            seq("pre", split(pattern), bl),
            bl,
            bl,
            {"ignore_merges": name in ("llama3", "o200k")},
            name != "qwen35",
        )
    yield "deepseek", "bytes", BYTES_ADDED, seq("norm"), seq("pre", *DEEPSEEK, bl), None, bl, {}, False
    yield "gpt2", "bytes", BYTES_ADDED, None, byte_level(True, True), None, bl, {}, False
    yield (
        "removed_invert",
        "bytes",
        BYTES_ADDED,
        {"type": "NFKC"},
        seq("pre", split(PATTERNS["o200k"], "Removed", True), bl),
        None,
        bl,
        {},
        True,
    )
    yield (
        "starcoder",
        "bytes",
        [],
        None,
        seq("pre", {"type": "Digits", "individual_digits": True}, byte_level(True)),
        None,
        bl,
        {},
        False,
    )
    yield (
        "falcon",
        "bytes",
        [],
        {"type": "NFKD"},
        seq(
            "pre",
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(True),
            {"type": "Digits", "individual_digits": False},
            split("[0-9][0-9][0-9]"),
        ),
        None,
        bl,
        {},
        False,
    )
    yield "whitespace", "bytes", [], {"type": "NFD"}, seq("pre", {"type": "Whitespace"}, bl), None, bl, {}, False
    yield (
        "whitespace_split",
        "bytes",
        [],
        seq("norm", {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}),
        seq("pre", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, bl),
        None,
        bl,
        {},
        False,
    )
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield (
                f"split_{behavior}_{invert}",
                "bytes",
                [],
                seq("norm", replace(r"\s{2,}", " ", "Regex")) if invert else None,
                seq("pre", split(r"[aeiou\d]| ", behavior, invert), bl),
                None,
                bl,
                {},
                True,
            )
    yield (
        "flags",
        "bytes",
        FLAG_ADDED,
        {"type": "Lowercase"},
        seq("pre", split(PATTERNS["qwen2"]), bl),
        None,
        bl,
        {},
        True,
    )
    yield "flags_nfd", "bytes", FLAG_ADDED, {"type": "NFD"}, byte_level(True), None, bl, {}, True
    yield "no_decoder", "bytes", BYTES_ADDED, None, byte_level(True), None, None, {}, True
    yield (
        "llama",
        "spm",
        SPM_ADDED,
        seq("norm", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        None,
        TEMPLATE,
        LLAMA_DECODER,
        SPM_FLAGS,
        False,
    )
    yield (
        "gemma",
        "spm",
        SPM_ADDED,
        replace(" ", "▁"),
        split(" ", "MergedWithPrevious", kind="String"),
        TEMPLATE,
        seq("dec", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
        SPM_FLAGS,
        True,
    )
    for scheme in ("first", "always", "never"):
        for cut in (True, False):
            yield (
                f"metaspace_{scheme}_{cut}",
                "spm",
                SPM_ADDED,
                None,
                metaspace(scheme, cut),
                seq("post", TEMPLATE),
                metaspace(scheme, cut),
                {**SPM_FLAGS, "ignore_merges": cut},
                True,
            )
    yield (
        "unk_fused",
        "spm",
        SPM_ADDED,
        None,
        metaspace("first"),
        None,
        LLAMA_DECODER,
        {"unk_token": "<unk>", "fuse_unk": True},
        True,
    )
    yield (
        "unk_apart",
        "spm",
        SPM_ADDED,
        None,
        metaspace("always"),
        None,
        seq("dec", strip(1, 1), replace("▁", " "), {"type": "Fuse"}),
        {"unk_token": "<unk>", "fuse_unk": False},
        True,
    )
    yield (
        "unk_dropped",
        "spm",
        SPM_ADDED,
        None,
        metaspace("always", False),
        None,
        seq("dec", {"type": "ByteFallback"}, {"type": "Fuse"}, replace("▁+", " ", "Regex")),
        {},
        True,
    )


FIXED = [
    "",
    " ",
    "Hello  world",
    "<|im_start|>user\nhi<|im_end|>",
    "a <s> b </s>  c <m> d",
    "cat cats the cat",
    "hello HELLO äb ÄB",
    "</s> b",
    "a</s>b",
    "x\n\n\n\ny",
    "<think>ok</think>",
    "~^~ 中 😀 ~",
    "1234567 12.5",
    "abababc aab xxy zzz",
    "e\u0301 \uac00\u11a8",
    "<a b><|inside|>",
    "中文字符，你好 한국어",
    "running ing ing",
    "<x> ▁▁ <x>",
    "thecatsatonthematandthentheothercatranafteritandthehelloworldwasinternationalisationtokenization" * 3,
]


def make_goldens(directory):
    import tokenizers

    assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
    os.makedirs(directory, exist_ok=True)

    def dump(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    models = {"bytes": bytes_tail(), "spm": spm_tail()}
    tails = {}
    for name, (vocab, merges) in models.items():
        for pairs in (True, False):
            listed = [list(m) for m in merges] if pairs else [" ".join(m) for m in merges]
            tails[name, pairs] = f'"vocab":{dump(vocab)},"merges":{dump(listed)}}}}}'
    pool = [s for s in strings(4000, seed=3) if 8 < len(s) < 60]
    rng = random.Random(11)
    lines = [dump({"tails": {f"{n}_{'pairs' if p else 'strings'}": t for (n, p), t in tails.items()}})]
    for name, tail, tokens, norm, pre, post, dec, flags, pairs in variants():
        size = len(models[tail][0])  # the reference numbers added tokens from there, whatever the file says
        tokens = [
            {**token, "id": size + token["id"] % 1000 if token["id"] >= 1000 else token["id"]} for token in tokens
        ]
        model = dump({"type": "BPE", "dropout": None, "unk_token": None, **flags})[:-1]
        head = (
            dump(
                {
                    "version": "1.0",
                    "truncation": None,
                    "padding": None,
                    "added_tokens": tokens,
                    "normalizer": norm,
                    "pre_tokenizer": pre,
                    "post_processor": post,
                    "decoder": dec,
                }
            )[:-1]
            + ',"model":'
            + model
            + ","
        )
        reference = tokenizers.Tokenizer.from_str(head + tails[tail, pairs])
        encodes, decodes = [], []
        texts = FIXED + rng.sample(pool, 20)
        for text in texts:
            special = text not in texts[-10:]
            reference.encode_special_tokens = not special
            encodes.append([text, special, False, reference.encode(text, add_special_tokens=False).ids])
        reference.encode_special_tokens = False
        encodes.append(["one two", True, True, reference.encode("one two").ids])
        known = sorted(reference.get_vocab().values())
        for _, _, _, ids in encodes[: len(FIXED) - 1] + [
            [0, 0, 0, [rng.choice(known) for _ in range(8)]] for _ in range(10)
        ]:
            skip = rng.random() < 0.5
            decodes.append([ids, skip, reference.decode(ids, skip_special_tokens=skip)])
        lines.append(
            dump(
                {
                    "name": name,
                    "tail": f"{tail}_{'pairs' if pairs else 'strings'}",
                    "head": head,
                    "encodes": encodes,
                    "decodes": decodes,
                }
            )
        )
    with open(os.path.join(directory, "tokenizer_goldens.jsonl"), "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    make_goldens(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/text"))
