#!/usr/bin/env python3
"""tokenizer.model without a tokenizer.json: the ids and the texts of SentencePiece's own library, on varied strings,
for models of both kinds trained here, and Llama 2's vocabulary. Then broken and refused files.

    tests/text/check_sentencepiece.py [NAME…] [--count N] [--program 'build/apus debug']

Exit 77 when sentencepiece is missing.
"""

import argparse
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests/text"))
from check_tokenizers import CACHE, Count, answers  # noqa: E402
from encoder_tokenizers import texts  # noqa: E402
from make_tokenizer_goldens import strings  # noqa: E402

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
SPACES = ["\n", "\n\n", "\t", "▁▁", "▁▁▁", "▁▁▁▁", "<table>", "<|im_start|>"]
APART = ["\n", "\t", "<table>", "<|im_start|>"]  # sums of runs that overlap are equal but for rounding
MODELS = {
    "unigram": {"model_type": "unigram"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False},
    "unigram-folded": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf"},
    "unigram-user": {"model_type": "unigram", "user_defined_symbols": APART, "normalization_rule_name": "nfkc"},
    "bpe": {"model_type": "bpe"},
    "bpe-llama": {"model_type": "bpe", "split_digits": True, **LLAMA},
    "bpe-gemma": {"model_type": "bpe", "add_dummy_prefix": False, "user_defined_symbols": SPACES, **LLAMA},
    "bpe-user": {"model_type": "bpe", "user_defined_symbols": [*SPACES, "ﬁ", "Ⅷ"], "control_symbols": ["<ctl>"]},
    "bpe-words": {"model_type": "bpe", "split_by_whitespace": False, **LLAMA},
}


def train(options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()),
        model_writer=model,
        **{"vocab_size": 3000, "hard_vocab_limit": False, "minloglevel": 2, **options}
        if options["model_type"] == "unigram"
        else {"vocab_size": 2500, "minloglevel": 2, **options},
    )
    return model.getvalue()


def llama2():
    """The file that Llama 2 has: its scores are the places of the pieces."""
    source = json.loads((CACHE / "llama2/tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    proto = sentencepiece_model_pb2.ModelProto()
    for text, id_ in sorted(source.items(), key=lambda item: item[1]):
        kind = 2 if id_ == 0 else 3 if id_ < 3 else 6 if id_ < 259 else 1
        proto.pieces.add(piece=text, score=float(259 - id_) if kind == 1 else 0.0, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.remove_extra_whitespaces = False
    return proto.SerializeToString()


def special(library):
    """Texts of the tokens that are cut off before the model sees them."""
    return [library.IdToPiece(i) for i in range(library.GetPieceSize()) if library.IsControl(i) or library.IsUnknown(i)]


def check_model(name, model, count, program, directory):
    library = sentencepiece.SentencePieceProcessor()
    library.LoadFromSerializedProto(model)
    (directory / "tokenizer.model").write_bytes(model)
    one = Count(name)
    some = [*strings(count), *SPACES, "  a  b ", "▁", " ▁ ▁ a▁", "ﬁne Ⅷ ﬁ", "", " ", "   "]
    some = [text for text in some if "\0" not in text]
    want = library.Encode(some)
    got = answers(program, "tokens", directory, [{"text": text, "special": False} for text in some])
    for text, a, b in zip(some, want, got):
        one.check("text", a == b["ids"], lambda: f"{text[:120]!r}: {b['ids'][:40]}, not {a[:40]}")
    marks = special(library)
    plain = [(text, ids) for text, ids in zip(some, want) if not any(mark in text for mark in marks)]
    got = answers(program, "tokens", directory, [{"text": text, "bos": True} for text, _ in plain])
    bos = [library.bos_id()] if library.bos_id() >= 0 else []
    for (text, ids), b in zip(plain, got):
        one.check("bos", bos + ids == b["ids"], lambda: f"{text[:120]!r}: {b['ids'][:40]}, not {(bos + ids)[:40]}")
    whole = [ids for ids in want if not any(library.IsUnknown(i) for i in ids)]
    if "user" in name:  # blanks that a text begins with: the library goes by the pieces
        whole = [ids for ids in whole if not library.Decode(ids).startswith(" ")]
    got = answers(program, "detokens", directory, [{"ids": ids, "skip_special": True} for ids in whole])
    for ids, b in zip(whole, got):
        text = library.Decode(ids)
        one.check("decoded", text == b["text"], lambda: f"{ids[:40]}: {b['text'][:120]!r}, not {text[:120]!r}")
    return one


def refused(program, directory, data, config=None):
    (directory / "tokenizer.model").write_bytes(data)
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}))
    done = subprocess.run([*program, "tokens", str(directory)], input='{"text":"a"}\n', capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def changed(model, change):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    change(proto)
    return proto.SerializeToString()


def wrong_models(model):
    def piece(place, **values):
        return lambda proto: [setattr(proto.pieces[place], key, value) for key, value in values.items()]

    def trainer(**values):
        return lambda proto: [setattr(proto.trainer_spec, key, value) for key, value in values.items()]

    yield "empty", b"", "the file is empty"
    yield "text", b"IQ== 0\nIg== 1\n", "this is no SentencePiece model"
    yield "cut", model[:1000], "the protocol buffer is broken"
    yield "no piece", changed(model, lambda proto: proto.ClearField("pieces")), "it has no piece"
    yield "two", changed(model, piece(9, piece="<s>")), 'the pieces 1 and 9 are the same, "<s>"'
    yield "empty piece", changed(model, piece(9, piece="")), "piece 9 has 0 bytes"
    yield "NaN", changed(model, piece(9, score=float("nan"))), "piece 9 has no finite score"
    yield "unknown twice", changed(model, piece(9, type=2)), "the pieces 0 and 9 are both the unknown one"
    yield "no unknown", changed(model, piece(0, type=1)), "there is no unknown piece"
    yield "word", changed(model, trainer(model_type=3)), "trainer_spec.model_type WORD is not supported"
    yield "suffix", changed(model, trainer(treat_whitespace_as_suffix=True)), "treat_whitespace_as_suffix"
    yield "bytes", changed(model, trainer(byte_fallback=True)), "byte_fallback with 0 pieces for bytes, must be 256"
    broken = changed(model, lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"\xff\xff\xff\x7f"))
    yield "table", broken, "precompiled_charsmap is no table"


def check_further(program, directory, model):
    """Tokens beside the model: added_tokens.json, and what tokenizer_config.json says."""
    one = Count("further tokens")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    end, first = library.GetPieceSize(), library.Encode("hello")
    (directory / "tokenizer.model").write_bytes(model)
    (directory / "added_tokens.json").write_text(json.dumps({"<|end|>": end, "[PAD]": end + 1}))
    for config, text, want in (
        ({}, "hello<|end|>hello", [1, *first, end, *first]),
        ({"legacy": False}, "hello<|end|>hello", [1, *first, end, *library.Encode("hello")[1:]]),
        ({"add_bos_token": False, "add_eos_token": True}, "hello", [*first, 2]),
        ({"bos_token": {"content": "</s>"}}, "hello", [2, *first]),
        ({"add_bos_token": False}, "<s>hello</s>", [1, *first, 2]),
    ):
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        got = answers(program, "tokens", directory, [{"text": text, "special": True, "bos": True}])[0]["ids"]
        one.check("ids", got == want, lambda: f"{config}, {text}: {got}, not {want}")
    shown = answers(program, "detokens", directory, [{"ids": [end, *first], "skip_special": True}])[0]["text"]
    one.check("text", shown.strip() == "<|end|> hello", lambda: repr(shown))
    (directory / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "eos_token": "<|end|>"}))
    shown = answers(program, "detokens", directory, [{"ids": [*first, end], "skip_special": True}])[0]["text"]
    one.check("end", shown == "hello", lambda: repr(shown))
    for added in ("[]", '{"a": "b"}', "{"):
        (directory / "added_tokens.json").write_text(added)
        code, error = refused(program, directory, model)
        one.check("wrong", code > 0 and "added_tokens.json" in error, lambda: f"{code}: {error}")
    (directory / "added_tokens.json").unlink()
    return one


def check_wrong(program, directory, model):
    one = Count("wrong files")
    for name, data, says in wrong_models(model):
        code, error = refused(program, directory, data)
        one.check(name, code > 0 and says in error, lambda: f"{code}: {error}")
    code, error = refused(program, directory, model, {"tokenizer_class": "XLMRobertaTokenizer"})
    one.check("class", code > 0 and "its tokenizer.json is needed" in error, lambda: f"{code}: {error}")
    numbers = random.Random(7)
    for _ in range(100):  # any bytes give a tokenizer or an error
        data = bytearray(model)
        for _ in range(numbers.randrange(1, 9)):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        code, error = refused(program, directory, bytes(data))
        one.check("bytes", code in (0, 1, 2), lambda: f"{code}: {error}")
    return one


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--program", default="build/apus debug")
    options = parser.parse_args()
    program = options.program.split()
    names = options.names or [*MODELS, "llama2", "further", "wrong"]
    results = []
    for name in names:
        if name == "llama2" and not (CACHE / "llama2/tokenizer.json").exists():
            print("llama2: not here")
            continue
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            (directory / "config.json").write_text("{}")
            if name == "further":
                results.append(check_further(program, directory, train(MODELS["bpe"])))
            elif name == "wrong":
                results.append(check_wrong(program, directory, train(MODELS["bpe"])))
            else:
                model = llama2() if name == "llama2" else train(MODELS[name])
                results.append(check_model(name, model, options.count, program, directory))
        print(f"{results[-1].name}: {results[-1].right} equal, {sum(results[-1].wrong.values())} not", flush=True)
    sys.exit(any(one.wrong for one in results))


if __name__ == "__main__":
    main()
