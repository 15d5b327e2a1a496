#!/usr/bin/env python3
"""Tokenizers rebuilt from GGUF metadata against Hugging Face's (tokenizers 0.23.3), on thousands of varied strings.

    tests/import/check_vocabularies.py [--count N] [--seed N] [--vocabularies DIR]

Published vocabularies in GGUF (ggml-vocab-*.gguf of llama.cpp, in the source package of llama-cpp-python 0.3.36 on
PyPI, which is fetched once into ${XDG_CACHE_HOME:-~/.cache}/apus/vocabularies): the ids that Hugging Face's tokenizer
of that model gave (the .out files), and on generated strings those of the library with the same vocabulary and the
pre-tokenizer as that model's tokenizer.json has it, which is written out below. Published tokenizer.json files (those
of tests/text/check_tokenizers.py) go into GGUF as llama.cpp's converter writes them, and must come back with the same
ids. Exit 77 when something is missing and cannot be had.
"""

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/text")]
from check_tokenizers import CACHE, answers, skip  # noqa: E402
from make_tokenizer_goldens import strings  # noqa: E402

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # of GGUF's metadata
TYPE_F16, WIDTH = 1, 32
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
PACKAGE = "llama-cpp-python==0.3.36"
SEPARATOR = "\n__ggml_vocab_test__\n"


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def cases(*ranges):
    """A class of code points as ranges."""
    return "".join(chr(a) if a == b else f"{chr(a)}-{chr(b)}" for a, b in ranges)


DIGITS = {"type": "Digits", "individual_digits": True}
# General categories Lu, Ll and Lt of Unicode 12 without what has no other case: the class that DeepSeek's file spells
# out.
WORDS = cases(
    (0x41, 0x5A),
    (0x61, 0x7A),
    (0xB5, 0xB5),
    (0xC0, 0xD6),
    (0xD8, 0xF6),
    (0xF8, 0x1BA),
    (0x1BC, 0x1BF),
    (0x1C4, 0x293),
    (0x295, 0x2AF),
    (0x370, 0x373),
    (0x376, 0x377),
    (0x37B, 0x37D),
    (0x37F, 0x37F),
    (0x386, 0x386),
    (0x388, 0x38A),
    (0x38C, 0x38C),
    (0x38E, 0x3A1),
    (0x3A3, 0x3F5),
    (0x3F7, 0x481),
    (0x48A, 0x52F),
    (0x531, 0x556),
    (0x10A0, 0x10C5),
    (0x13A0, 0x13F5),
    (0x13F8, 0x13FD),
    (0x1C90, 0x1CBA),
    (0x1CBD, 0x1CBF),
    (0x1D00, 0x1D2B),
    (0x1D6B, 0x1D77),
    (0x1D79, 0x1D9A),
    (0x1E00, 0x1F15),
    (0x1F18, 0x1F1D),
    (0x1F20, 0x1F45),
    (0x1F48, 0x1F4D),
    (0x1F50, 0x1F57),
    (0x1F59, 0x1F59),
    (0x1F5B, 0x1F5B),
    (0x1F5D, 0x1F5D),
    (0x1F5F, 0x1F7D),
    (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC),
    (0x1FBE, 0x1FBE),
    (0x1FC2, 0x1FC4),
    (0x1FC6, 0x1FCC),
    (0x1FD0, 0x1FD3),
    (0x1FD6, 0x1FDB),
    (0x1FE0, 0x1FEC),
    (0x1FF2, 0x1FF4),
    (0x1FF6, 0x1FFC),
    (0x2102, 0x2102),
    (0x2107, 0x2107),
    (0x210A, 0x2113),
    (0x2115, 0x2115),
    (0x2119, 0x211D),
    (0x2124, 0x2124),
    (0x2126, 0x2126),
    (0x2128, 0x2128),
    (0x212A, 0x212D),
    (0x212F, 0x2134),
    (0x2139, 0x2139),
    (0x213C, 0x213F),
    (0x2145, 0x2149),
    (0x214E, 0x214E),
    (0x2183, 0x2184),
    (0x2C00, 0x2C7B),
    (0x2C7E, 0x2CE4),
    (0x2CEB, 0x2CEE),
    (0x2CF2, 0x2CF3),
    (0xA640, 0xA66D),
    (0xA680, 0xA69B),
    (0xA722, 0xA76F),
    (0xA771, 0xA787),
    (0xA78B, 0xA78E),
    (0xAB70, 0xABBF),
    (0xFB00, 0xFB06),
    (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A),
    (0xFF41, 0xFF5A),
    (0x10400, 0x1044F),
    (0x104B0, 0x104D3),
    (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2),
    (0x10CC0, 0x10CF2),
    (0x118A0, 0x118DF),
    (0x1E900, 0x1E943),
)
CJK = split("[一-龥ࠀ-一가-퟿]+")
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# What the models' tokenizer.json has as pre_tokenizer, and whether it has the normalizer NFC and ignore_merges.
MODELS = {
    "command-r": ([DIGITS, byte_level(True)], True, False),
    "deepseek-coder": (
        [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), CJK, DIGITS, byte_level(False)],
        False,
        False,
    ),
    "deepseek-llm": (
        [
            split("[\r\n]"),
            split(rf"\s?[{WORDS}]+"),
            split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            split(r"\s+$"),
            CJK,
            DIGITS,
            byte_level(False),
        ],
        False,
        False,
    ),
    "falcon": (
        [
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(True),
            {"type": "Digits", "individual_digits": False},
            split("[0-9][0-9][0-9]"),
        ],
        False,
        False,
    ),
    "gpt-2": ([byte_level(True)], False, False),
    "llama-bpe": (
        [split(rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"), byte_level(False)],
        False,
        True,
    ),
    "mpt": ([byte_level(True)], True, False),
    "qwen2": ([split(rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"), byte_level(False)], True, False),
    "qwen35": (
        [
            split(
                rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            byte_level(False),
        ],
        False,
        False,
    ),
    "refact": ([DIGITS, byte_level(True)], False, False),
    "starcoder": ([DIGITS, byte_level(True)], False, False),
}
# Pre-tokenizers without a published vocabulary here, over that of GPT-2: names of GGUF, and the patterns as the models'
# tokenizer.json, or for kimi-k2 the tiktoken file's code, has them.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + SHORT + "?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + SHORT + "?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NO_HAN = O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("[\\r\\n/]", "[\\r\\n]")
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ASIAN = "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-\ud7afᄀ-ᇿ]+"
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
EDGE = r"[^\r\n\p{L}\p{N}]?"
SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
THREE = split(r"\p{N}{1,3}")
KANA = split("[一-龥\u3040-ゟ゠-ヿ]+")
PATTERNS = {
    "kimi-k2": [split(r"[\p{Han}]+|" + NO_HAN), byte_level(False)],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K), byte_level(False)],
    "afmoe": [split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"), split(ASIAN), split(DEEPSEEK3), byte_level(False)],
    "bloom": [split(BLOOM), byte_level(False)],
    "viking": [split(BLOOM), DIGITS, byte_level(False)],
    "minicpm5": [THREE, split(rf"{SHORT}|{EDGE}\p{{L}}+|\p{{N}}+|{REST}"), byte_level(False)],
    "laguna": [split("[^\n]+|[\n]+"), split(rf"{SHORT}|{EDGE}\p{{L}}+|\p{{N}}|{REST}"), byte_level(False)],
    "jais-2": [
        split(
            rf"{SHORT}|{EDGE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
            r"|\s{1,2}(?!\S)|\s{1}"
        ),
        byte_level(False),
    ],
    "spark2_5": [
        THREE,
        KANA,
        split(DEEPSEEK3.replace("[\\r\\n]*|\\s*[\\r\\n]+", "|[\\r\\n]")),
        DIGITS,
        byte_level(False),
    ],
    "youtu": [
        split("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"),
        split(O200K.replace("{1,3}", "")),
        byte_level(False),
    ],
}
PUBLISHED = {"deepseek_v3": "deepseek-v3", "gptoss": "gpt-4o", "llama3_1": "llama-bpe", "qwen3": "qwen2"}


def fetch(directory):
    if list(directory.glob("ggml-vocab-falcon.gguf")):
        return
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                "llama-cpp-python",
                "-d",
                work,
                PACKAGE,
            ]
        )
        sources = list(pathlib.Path(work).glob("*.tar.gz"))
        if done.returncode or not sources:
            skip(f"{PACKAGE} cannot be had")
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(sources[0]) as package:
            for member in package:
                if "/models/ggml-vocab-" in member.name:
                    (directory / pathlib.Path(member.name).name).write_bytes(package.extractfile(member).read())


def text_bytes(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, data):
    return text_bytes(name) + struct.pack("<I", kind) + data


def array(name, kind, items):
    return key(name, ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def rebuild(program, work, pre, tokens, types, merges, model="gpt2"):
    """The directory that a GGUF file with this vocabulary becomes."""
    path, target = work / "model.gguf", work / "model"
    shutil.rmtree(target, ignore_errors=True)
    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": WIDTH,
        "attention.head_count": 2,
    }
    keys = [key(f"llama.{name}", U32, struct.pack("<I", size)) for name, size in sizes.items()]
    keys += [
        key("general.architecture", STRING, text_bytes("llama")),
        key("tokenizer.ggml.model", STRING, text_bytes(model)),
        key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        key("tokenizer.ggml.pre", STRING, text_bytes(pre)),
        key("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
        array("tokenizer.ggml.tokens", STRING, [text_bytes(token) for token in tokens]),
        array("tokenizer.ggml.token_type", I32, [struct.pack("<i", kind) for kind in types]),
        array("tokenizer.ggml.merges", STRING, [text_bytes(merge) for merge in merges]),
    ]
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys))
        file.write(text_bytes("token_embd.weight") + struct.pack("<IQQIQ", 2, WIDTH, len(tokens), TYPE_F16, 0))
        file.write(bytes(-file.tell() % 32) + bytes(2 * WIDTH * len(tokens)))
    done = subprocess.run([program, "convert", path, target], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{pre}: {done.stderr.strip()}")
    return target


class Metadata:
    """The keys of a GGUF file."""

    SIMPLE = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.data, self.at, self.values = path.read_bytes(), 8, {}
        self.take("Q")  # tensors
        for _ in range(self.take("Q")):
            name = self.value(STRING)
            self.values[name] = self.value(self.take("I"))

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def value(self, kind):
        if kind == ARRAY:
            kind, count = self.take("I"), self.take("Q")
            return [self.value(kind) for _ in range(count)]
        if kind != STRING:
            return self.take(self.SIMPLE[kind])
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()


def library(tokens, types, merges, model):
    """The library's tokenizer with a vocabulary and a pre-tokenizer."""
    import tokenizers

    steps, nfc, ignore_merges = model
    added = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for i, (text, kind) in enumerate(zip(tokens, types))
        if kind in (CONTROL, USER_DEFINED)
    ]
    return tokenizers.Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": added,
                "normalizer": {"type": "NFC"} if nfc else None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
                "post_processor": None,
                "decoder": byte_level(False),
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": None,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None,
                    "fuse_unk": False,
                    "byte_fallback": False,
                    "ignore_merges": ignore_merges,
                    "vocab": {text: i for i, text in enumerate(tokens)},
                    "merges": [merge.split(" ", 1) for merge in merges],
                },
            }
        )
    )


def compare(name, kind, tokenizer, directory, texts, want):
    got = [
        answer["ids"]
        for answer in answers([tokenizer], "tokens", directory, [{"text": text, "special": True} for text in texts])
    ]
    wrong = [(text, a, b) for text, a, b in zip(texts, want, got) if a != b]
    for text, a, b in wrong[:3]:
        print(f"{name}, {kind}: {text[:120]!r}: {b[:30]}, not {a[:30]}")
    print(f"{name}, {kind}: {len(texts) - len(wrong)} of {len(texts)} right", flush=True)
    return len(wrong)


def check_vocabulary(path, name, options, work):
    values = Metadata(path).values
    tokens, types, merges = (values[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    directory = rebuild(options.program, work, name, tokens, types, merges)
    texts = path.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    want = [[int(i) for i in line.split()] for line in path.with_suffix(".gguf.out").read_text().split("\n")]
    wrong = compare(name, "published ids", options.tokenizer, directory, texts, want[: len(texts)])
    added = [text for text, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)]
    texts = strings(options.count, added, options.seed)
    reference = library(tokens, types, merges, MODELS[name])
    want = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    return wrong + compare(name, "library", options.tokenizer, directory, texts, want)


def check_patterns(path, options, work):
    values = Metadata(path).values
    tokens, types, merges = (values[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    texts, wrong = strings(options.count, [], options.seed), 0
    for name, steps in PATTERNS.items():
        directory = rebuild(options.program, work, name, tokens, types, merges)
        reference = library(tokens, types, merges, (steps, False, name in ("minicpm5", "youtu")))
        want = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
        wrong += compare(name, "library, GPT-2's vocabulary", options.tokenizer, directory, texts, want)
    return wrong


def check_gemma4(path, options, work):
    """SentencePiece with the merges in the file."""
    values = Metadata(path).values
    tokens, types, merges = (values[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    directory = rebuild(options.program, work, "gemma4", tokens, types, merges, "gemma4")
    texts = path.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    want = [[int(i) for i in line.split()] for line in path.with_suffix(".gguf.out").read_text().split("\n")]
    return compare("gemma-4", "published ids", options.tokenizer, directory, texts, want[: len(texts)])


def check_published(name, pre, options, work):
    import tokenizers

    source = json.loads((CACHE / name / "tokenizer.json").read_text(encoding="utf-8"))
    reference = tokenizers.Tokenizer.from_file(str(CACHE / name / "tokenizer.json"))
    by_id = {i: text for text, i in source["model"]["vocab"].items()}
    added = {token["id"]: token for token in source["added_tokens"]}
    by_id.update({i: token["content"] for i, token in added.items()})
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(max(by_id) + 1)]
    types = [
        UNUSED if i not in by_id else NORMAL if i not in added else CONTROL if added[i]["special"] else USER_DEFINED
        for i in range(len(tokens))
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in source["model"]["merges"]]
    directory = rebuild(options.program, work, pre, tokens, types, merges)
    texts = strings(options.count, [token["content"] for token in added.values()], options.seed)
    want = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    return compare(name, f"as {pre}", options.tokenizer, directory, texts, want)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabularies", type=pathlib.Path, default=CACHE.parent / "vocabularies")
    options = parser.parse_args()
    options.program, options.tokenizer = str(ROOT / "build/apus"), str(ROOT / "build/test_tokenizer")
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        skip(f"no Python package {error.name}")
    fetch(options.vocabularies)
    if subprocess.run([ROOT / "tools/fetch_tokenizers.sh", *PUBLISHED]).returncode:
        skip("the tokenizers cannot be fetched")
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for name in MODELS:
            wrong += check_vocabulary(
                options.vocabularies / f"ggml-vocab-{name}.gguf", name, options, pathlib.Path(work)
            )
        wrong += check_patterns(options.vocabularies / "ggml-vocab-gpt-2.gguf", options, pathlib.Path(work))
        wrong += check_gemma4(options.vocabularies / "ggml-vocab-gemma-4.gguf", options, pathlib.Path(work))
        for name, pre in PUBLISHED.items():
            wrong += check_published(name, pre, options, pathlib.Path(work))
    print(f"{wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
