#!/usr/bin/env python3
"""Published tokenizers: ids and texts against the Hugging Face library (tokenizers 0.23.3), on thousands of varied
strings.

    tools/fetch_tokenizers.sh    fills ${XDG_CACHE_HOME:-~/.cache}/apus/tokenizers (done here when needed)
    tests/text/check_tokenizers.py [NAME…] [--count N] [--seed N] [--program 'build/apus debug']

Behind them the kinds that encoders have, trained here (encoder_tokenizers.py): WordPiece and Unigram, pairs too.

For each string: ids with control tokens recognised and as text, and with the post-processor. For the ids of all strings
and for random ids: the decoded text with and without special tokens, and the same one id at a time, never later than
the library's DecodeStream. Two of them also as files of ranks, without a tokenizer.json. Exit 77 when tokenizers or the
library are missing and cannot be had.
"""

import argparse
import base64
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "apus/tokenizers"
NAMES = ["qwen3", "gemma3", "llama3_1", "llama2", "deepseek_v3", "gptoss", "gpt4o", "claude", "gemini"]
SHOWN = 5  # differences printed per kind

sys.path.insert(0, str(ROOT / "tools"))
import encoder_tokenizers  # noqa: E402
from make_tokenizer_goldens import strings  # noqa: E402


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def answers(program, mode, directory, requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        [*program, mode, str(directory)], input=text, capture_output=True, text=True, encoding="utf-8"
    )
    lines = done.stdout.split("\n")[:-1]
    if done.returncode or len(lines) != len(requests):
        sys.exit(f"{directory}: {len(lines)} answers to {len(requests)} requests: {done.stderr.strip()}")
    return [json.loads(line) for line in lines]


class Count:
    def __init__(self, name):
        self.name, self.right, self.wrong = name, 0, {}

    def check(self, kind, equal, show):
        if equal:
            self.right += 1
            return
        self.wrong[kind] = self.wrong.get(kind, 0) + 1
        if self.wrong[kind] <= SHOWN:
            print(f"{self.name}, {kind}: {show()}")


def check_encoding(count, reference, program, directory, texts):
    """Returns the ids of the texts."""
    ids = None
    for special in (False, True):
        reference.encode_special_tokens = not special
        want = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
        got = answers(program, "tokens", directory, [{"text": text, "special": special} for text in texts])
        for text, a, b in zip(texts, want, got):
            count.check(f"special={special}", a == b["ids"], lambda: f"{text[:200]!r}: {b['ids'][:40]}, not {a[:40]}")
        ids = want
    config = json.loads((directory / "tokenizer_config.json").read_text())
    some = texts[:500]
    want = [encoding.ids for encoding in reference.encode_batch(some)]
    if config.get("add_bos_token") and not reference.num_special_tokens_to_add(
        False
    ):  # only the configuration asks for it
        bos = config["bos_token"]
        bos = reference.token_to_id(bos if isinstance(bos, str) else bos["content"])
        want = [[bos] + ids_ for ids_ in want]
    got = answers(program, "tokens", directory, [{"text": text, "bos": True} for text in some])
    for text, a, b in zip(some, want, got):
        count.check("bos", a == b["ids"], lambda: f"{text[:200]!r}: {b['ids'][:40]}, not {a[:40]}")
    return ids


def is_newer_mark(known, c):
    """Whether the library keeps a mark that Unicode has by now. U+16100…: newer than Python's table, too."""
    return (unicodedata.category(c) == "Mn" or "\U00016100" <= c <= "\U0001613f") and known.normalize_str(c) != ""


def check_pairs(count, reference, program, directory, texts):
    pairs = list(zip(texts[:500], texts[500:1000]))
    marks = [token.content for token in reference.get_added_tokens_decoder().values()]
    pairs = [pair for pair in pairs if not any(mark in text for text in pair for mark in marks)]
    got = answers(program, "tokens", directory, [{"text": one, "pair": other} for one, other in pairs])
    for pair, a, b in zip(pairs, reference.encode_batch(pairs), got):
        types = [int(i >= b["types"]) for i in range(len(b["ids"]))]
        count.check("pair", a.ids == b["ids"] and a.type_ids == types, lambda: f"{pair}: {b}, not {a.ids} {a.type_ids}")


def has_byte_run(reference, ids):
    """Whether fallback bytes stand next to each other or become U+FFFD: there the library judges the whole run, which
    nothing that streams can wait for (its own DecodeStream does not)."""
    tokens = [reference.id_to_token(i) or "" for i in ids]
    return any(len(t) == 6 and t.startswith("<0x") for t in tokens)


def check_decoding(count, reference, program, directory, ids):
    for skip_special in (True, False):
        want = reference.decode_batch(ids, skip_special_tokens=skip_special)
        got = answers(program, "detokens", directory, [{"ids": i, "skip_special": skip_special} for i in ids])
        streams = answers(
            program, "detokens", directory, [{"ids": i, "skip_special": skip_special, "stream": True} for i in ids]
        )
        for i, text, whole, stream in zip(ids, want, got, streams):
            pieces = stream["pieces"]
            count.check(
                "decode", whole["text"] == text, lambda: f"{i[:30]}: {whole['text'][:200]!r}, not {text[:200]!r}"
            )
            excused = "\ufffd" in text and has_byte_run(reference, i)
            same = len(pieces) == len(i) + 1 and ("".join(pieces) == text or excused)
            count.check("stream", same, lambda: f"{i[:30]}: {pieces[:40]}, not {text[:200]!r}")
    return streams


def check_delay(count, reference, ids, streams):
    from tokenizers.decoders import DecodeStream

    for i, stream in list(zip(ids, streams))[:1000]:
        theirs, shown, ours, late = DecodeStream(skip_special_tokens=False), 0, 0, False
        try:
            for one, piece in zip(i, stream["pieces"]):
                shown += len(theirs.step(reference, one) or "")
                ours += len(piece)
                late = late or ours < shown
        except Exception:  # it gives up on some sequences ("Invalid prefix")
            continue
        count.check("delay", not late, lambda: f"{i[:30]}: {stream['pieces'][:40]}")


# ---- vocabularies of ranks: the same tokenizer as a tiktoken file and as a tekken.json ----

RANKED = {"qwen3": ("qwen.tiktoken", 0), "llama3_1": ("tekken.json", 1000)}  # file, first id


def token_bytes(vocab):
    """The bytes of each token, by id."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {**{chr(b): b for b in plain}}
    letters.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
    return [bytes(letters[c] for c in token) for token, _ in sorted(vocab.items(), key=lambda item: item[1])]


def write_ranks(source, directory, name):
    """A tokenizer.json whose ids are ranks as the other file."""
    with open(source / "tokenizer.json", encoding="utf-8") as file:
        original = json.load(file)
    tokens = [base64.b64encode(token).decode() for token in token_bytes(original["model"]["vocab"])]
    if name == "qwen.tiktoken":
        text = "".join(f"{token} {rank}\n" for rank, token in enumerate(tokens))
    else:
        pattern = original["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        sizes = {"default_vocab_size": len(tokens) + 1000, "default_num_special_tokens": 1000}
        vocab = [{"rank": rank, "token_bytes": token} for rank, token in enumerate(tokens)]
        text = json.dumps({"config": {"pattern": pattern, **sizes}, "vocab": vocab})
    (pathlib.Path(directory) / name).write_text(text, encoding="utf-8")


def check_ranks(count, reference, program, source, texts, name, first):
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    texts = [
        text for text in texts if not any(token in text for token in added) and "<" not in text and "[" not in text
    ]
    reference.encode_special_tokens = True
    with tempfile.TemporaryDirectory() as directory:
        write_ranks(source, directory, name)
        got = answers(program, "tokens", directory, [{"text": text, "special": False} for text in texts])
    for text, answer in zip(texts, got):
        want = [i + first for i in reference.encode(text, add_special_tokens=False).ids]
        count.check(name, answer.get("ids") == want, lambda: f"{text[:200]!r}: {str(answer)[:200]}, not {want[:40]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program")
    options = parser.parse_args()
    try:
        import tokenizers
    except ImportError:
        skip("no Python package tokenizers")
    program = options.program.split() if options.program else [str(ROOT / "build/test_tokenizer")]
    if not os.access(program[0], os.X_OK):
        sys.exit(f"{program[0]} is not there: build it first")
    if subprocess.run([ROOT / "tools/fetch_tokenizers.sh", *options.names]).returncode:
        skip("the tokenizers cannot be fetched")
    right = wrong = 0
    trained = tempfile.TemporaryDirectory()
    for name in options.names + encoder_tokenizers.NAMES:
        directory = CACHE / name
        if name in encoder_tokenizers.NAMES:
            directory = pathlib.Path(trained.name) / name
            encoder_tokenizers.write(name, directory)
        reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        added = [token.content for _, token in sorted(reference.get_added_tokens_decoder().items())]
        texts = strings(options.count, added, options.seed)
        if name == "wordpiece":  # the library's table of marks is one of an older Unicode
            known = tokenizers.normalizers.BertNormalizer(False, False, True, False)
            texts = [text for text in texts if not any(is_newer_mark(known, c) for c in text)]
        count = Count(name)
        ids = check_encoding(count, reference, program, directory, texts)
        if name in encoder_tokenizers.NAMES:
            check_pairs(count, reference, program, directory, texts)
        rng = random.Random(options.seed)
        size = reference.get_vocab_size()
        ids = ids[: options.count // 2] + [
            [rng.randrange(size + 50) for _ in range(rng.randrange(1, 12))] for _ in range(options.count // 4)
        ]
        streams = check_decoding(count, reference, program, directory, ids)
        check_delay(count, reference, ids, streams)
        if name in RANKED:
            check_ranks(count, reference, program, directory, texts, *RANKED[name])
        print(f"{name}: {len(texts)} strings, {count.right} checks right, wrong: {count.wrong or 'none'}", flush=True)
        right += count.right
        wrong += sum(count.wrong.values())
    print(f"{right} passed, {wrong} failed")
    sys.exit(1 if wrong or not right else 0)


if __name__ == "__main__":
    main()
