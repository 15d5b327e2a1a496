#!/usr/bin/env python3
"""Broken and hostile model directories, end to end: `apus info` or `apus run` must exit with 1, say why in one line on
standard error that names what is wrong, within 2 seconds and without taking memory for sizes that a file only claims.

    python tests/model/check_hostile.py [--apus build/apus] [-v] [NAME…]

Every case is the same small valid llama checkpoint with one thing changed. Needs nothing but Python.
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

SECONDS_MAX = 2
MEMORY_MAX = 160 << 20  # the valid model takes a tenth of it; what Python held before the fork counts as well
LINE_MAX = 600

# ---- the valid model ----

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 300, 64, 96, 2, 4, 2


def base_config():
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": 299,
    }


def base_tensors():
    """name → [dtype, shape, bytes]"""
    rng = random.Random(1)
    out = {}

    def add(name, *shape):
        count = 1
        for n in shape:
            count *= n
        values = [1.0 if len(shape) == 1 else rng.uniform(-0.2, 0.2) for _ in range(count)]
        out[name] = ["F32", list(shape), struct.pack(f"<{count}f", *values)]

    add("model.embed_tokens.weight", VOCAB, HIDDEN)
    add("model.norm.weight", HIDDEN)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        add(at + "input_layernorm.weight", HIDDEN)
        add(at + "post_attention_layernorm.weight", HIDDEN)
        add(at + "self_attn.q_proj.weight", HIDDEN, HIDDEN)
        add(at + "self_attn.k_proj.weight", HIDDEN // 2, HIDDEN)
        add(at + "self_attn.v_proj.weight", HIDDEN // 2, HIDDEN)
        add(at + "self_attn.o_proj.weight", HIDDEN, HIDDEN)
        add(at + "mlp.gate_proj.weight", INNER, HIDDEN)
        add(at + "mlp.up_proj.weight", INNER, HIDDEN)
        add(at + "mlp.down_proj.weight", HIDDEN, INNER)
    return out


def byte_letters():
    """The letters that byte-level BPE writes bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


def base_tokenizer():
    letters = byte_letters()
    vocab = {letters[b]: b for b in range(256)}
    vocab.update({"he": 256, "ll": 257})
    special = {
        "id": 299,
        "content": "<|end|>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [["h", "e"], ["l", "l"]],
        },
    }


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def safetensors(tensors, edit=None):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if edit:
        edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Files(dict):
    """A model directory: name → text, bytes or something to write as JSON."""

    def __init__(self):
        super().__init__(
            {
                "config.json": base_config(),
                "model.safetensors": safetensors(TENSORS),
                "tokenizer.json": base_tokenizer(),
                "tokenizer_config.json": {"chat_template": TEMPLATE},
            }
        )

    def write(self, directory):
        for name, content in self.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if callable(content):
                content(path)
                continue
            if not isinstance(content, (str, bytes)):
                content = json.dumps(content)
            with open(path, "wb") as f:
                f.write(content.encode() if isinstance(content, str) else content)


TENSORS = base_tensors()

# ---- the cases ----


class Case:
    """expect: texts that the line must contain (a tuple: one of them). commands: those that must fail. code: how they
    exit; 2 where the model loads and this prompt cannot be used."""

    def __init__(self, name, files, *expect, commands=("info", "run"), code=1):
        self.name, self.files, self.expect, self.commands, self.code = name, files, expect, commands, code


def config(**changes):
    files = Files()
    files["config.json"].update(changes)
    return files


def config_cases():
    for field in (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "num_hidden_layers",
        "vocab_size",
        "max_position_embeddings",
    ):
        for value in (-1, 0, 1 << 40, 10**30, 1.5, 1e300, "x", [4], {}, True):
            yield Case(f"{field} {json.dumps(value)}", config(**{field: value}), "config.json", field)
        if field not in ("head_dim", "num_key_value_heads", "max_position_embeddings"):
            files = Files()
            del files["config.json"][field]
            yield Case(f"{field} missing", files, "config.json", field)
    for field in ("rms_norm_eps", "rope_theta"):
        for value in (-1, 0, 1e300, "x", "NaN", [1], {}, True):
            yield Case(f"{field} {json.dumps(value)}", config(**{field: value}), "config.json", field)
    for field in ("tie_word_embeddings", "attention_bias", "mlp_bias", "rope_traditional"):
        for value in ("x", 1, []):
            yield Case(f"{field} {json.dumps(value)}", config(**{field: value}), "config.json", field)
    big = 1 << 24
    yield Case("vocab_size 2^24", config(vocab_size=big), "model.embed_tokens.weight", "300, 64", str(big))
    yield Case("hidden_size 2^24", config(hidden_size=big), "model.", "64", str(big))
    yield Case("intermediate_size 2^24", config(intermediate_size=big), "mlp.", str(big))
    yield Case("num_hidden_layers 2^24", config(num_hidden_layers=big), "num_hidden_layers", str(big))
    yield Case("num_hidden_layers 3", config(num_hidden_layers=3), "model.layers.2.", "missing")
    yield Case("num_attention_heads 2^24", config(num_attention_heads=big), (str(big), "q_proj"))
    yield Case("head_dim 2^24", config(head_dim=big), "head_dim", str(big))
    yield Case(
        "heads do not divide", config(num_key_value_heads=3), "num_attention_heads", "num_key_value_heads", "4", "3"
    )
    files = config(num_attention_heads=3, num_key_value_heads=3)
    del files["config.json"]["head_dim"]
    yield Case("hidden does not divide", files, "hidden_size", "num_attention_heads", "64", "3")
    yield Case("odd head_dim", config(head_dim=15), "head_dim", "15")
    yield Case("hidden_act", config(hidden_act="relu"), "hidden_act", "relu")
    yield Case("hidden_act type", config(hidden_act=5), "hidden_act", "5")
    yield Case("untied, no head", config(tie_word_embeddings=False), "lm_head.weight", "missing")
    yield Case("biases that are not there", config(attention_bias=True), "q_proj.bias", "missing")
    for value in ("x", ["full_attention"], [1, 2], ["full_attention", "nope"]):
        yield Case(f"layer_types {json.dumps(value)}", config(layer_types=value), "layer_types")
    yield Case("window missing", config(layer_types=["full_attention", "sliding_attention"]), "sliding_window")
    yield Case("sliding_window", config(model_type="mistral", sliding_window=-5), "sliding_window", "-5")
    for name, scaling in {
        "text": "x",
        "number": 5,
        "list": [],
        "unknown": {"type": "nope"},
        "type of type": {"type": 5},
        "no factor": {"type": "linear"},
        "negative": {"type": "linear", "factor": -2},
        "zero": {"type": "linear", "factor": 0},
        "factor text": {"rope_type": "llama3", "factor": "x"},
        "huge": {"rope_type": "dynamic", "factor": 1e300},
        "short list": {
            "type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1],
            "long_factor": [1],
        },
        "list of text": {"type": "longrope", "original_max_position_embeddings": 64, "long_factor": ["x"] * 8},
        "no original": {"type": "longrope", "long_factor": [1.0] * 8},
        "mscale text": {"type": "yarn", "factor": 2.0, "mscale": "x"},
        "mscale_all_dim text": {"type": "yarn", "factor": 2.0, "mscale_all_dim": "x"},
        "beta zero": {"type": "yarn", "factor": 2.0, "beta_fast": 0},
    }.items():
        yield Case(f"rope_scaling {name}", config(rope_scaling=scaling), "rope_scaling")
    for value in (5, "", None, ["llama"], "nope", "x" * 100000, "two\nlines \u001b[31m"):
        yield Case(f"model_type {json.dumps(value)[:30]}", config(model_type=value), "config.json", "model_type")
    for value in (5, "affine", []):
        yield Case(f"quantization {json.dumps(value)}", config(quantization=value), "quantization")
    yield Case("a field with a line end", config(**{"two\nlines": 1, "hidden_size": -1}), "hidden_size")
    raw = json.dumps(base_config())
    for name, text in {
        "empty": "",
        "blank": "  \n",
        "cut": raw[:100],
        "two": raw + raw,
        "list": "[]",
        "number": "5",
        "null": "null",
        "not json": "model_type: llama\n",
        "NaN": raw.replace("1e-05", "NaN"),
        "Infinity": raw.replace("1e-05", "Infinity"),
        "comma": raw[:-1] + ",}",
        "twice": raw[:-1] + ', "hidden_size": 64}',
        "deep": '{"a":' * 100000,
        "mark": "\ufeff" + raw,
        "utf-16": raw.encode("utf-16"),
        "latin-1": raw.replace("silu", "sil\xfc").encode("latin-1"),
        "zeros": b"\0" * 4096,
        "random": random.Random(2).randbytes(5000),
        "surrogate": raw.replace("silu", "\\ud800"),
    }.items():
        files = Files()
        files["config.json"] = text
        yield Case(f"config {name}", files, "config.json")
    files = Files()
    files["config.json"] = " " * (17 << 20) + raw
    yield Case("config 17 MB", files, "config.json")
    files = Files()
    files["config.json"] = os.mkdir
    yield Case("config is a directory", files, "config.json")
    files = Files()
    del files["config.json"]
    yield Case("config missing", files, "config.json")
    for text in ("", "[", "[]", "5"):
        files = Files()
        files["generation_config.json"] = text
        yield Case(f"generation_config {json.dumps(text)}", files, "generation_config.json")


def weights(edit=None, tensors=None, **changes):
    files = config(**changes)
    files["model.safetensors"] = safetensors(tensors or TENSORS, edit)
    return files


def changed(name, value):
    tensors = dict(TENSORS)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    return tensors


Q = "model.layers.1.self_attn.q_proj"


def header_case(name, key, value, *expect):
    return Case(
        f"header: {name}",
        weights(lambda header: header[Q + ".weight"].update({key: value})),
        "model.safetensors",
        Q + ".weight",
        *expect,
    )


def weight_cases():
    whole = safetensors(TENSORS)
    header_size = struct.unpack("<Q", whole[:8])[0]
    for size in (0, 4, 8, 20, 8 + header_size // 2, 8 + header_size, 8 + header_size + 1000, len(whole) - 1):
        files = Files()
        files["model.safetensors"] = whole[:size]
        yield Case(f"cut at {size}", files, "model.safetensors")
    for size in (
        1,
        header_size - 1,
        header_size + 1,
        len(whole),
        10**8,
        1 << 40,
        (1 << 63) - 1,
        1 << 63,
        (1 << 64) - 1,
        (1 << 64) - 8,
    ):
        files = Files()
        files["model.safetensors"] = struct.pack("<Q", size) + whole[8:]
        yield Case(f"header size {size}", files, "model.safetensors")
    for name, text in {
        "list": b"[]",
        "text": b'"x"',
        "not json": b"{]",
        "empty": b"",
        "deep": b'{"a":' * 1000,
        "zero": b"\0" * 64,
    }.items():
        files = Files()
        files["model.safetensors"] = struct.pack("<Q", len(text)) + text + whole[8 + header_size :]
        yield Case(f"header is {name}", files, "model.safetensors")
    yield header_case("dtype", "dtype", "Q4", "Q4")
    yield header_case("dtype number", "dtype", 5)
    yield header_case("shape text", "shape", "x")
    yield header_case("shape negative", "shape", [-64, -64])
    yield header_case("shape real", "shape", [64.5, 64])
    yield header_case("shape larger", "shape", [64, 65])
    yield header_case("shape wraps", "shape", [1 << 62, 4])
    yield header_case("shape wraps to right", "shape", [(1 << 62) + 64, 64])
    yield header_case("rank 9", "shape", [1] * 9)
    yield header_case("offsets text", "data_offsets", "x")
    yield header_case("offsets one", "data_offsets", [0])
    yield header_case("offsets reversed", "data_offsets", [16384, 0])
    yield header_case("offsets negative", "data_offsets", [-16384, 0])
    yield header_case("offsets behind the end", "data_offsets", [1 << 40, (1 << 40) + 16384])
    yield header_case("offsets wrap", "data_offsets", [(1 << 63) - 16384, (1 << 63) - 1])
    yield Case(
        "header: overlap",
        weights(lambda header: header[Q + ".weight"].update(data_offsets=[0, 16384])),
        "model.safetensors",
        "overlap",
    )
    yield Case("header: no object", weights(lambda header: header.update({Q + ".weight": 5})), Q)
    raw = TENSORS[Q + ".weight"][2]
    for dtype in ("I32", "U32"):
        yield Case(f"{dtype} weight", weights(tensors=changed(Q + ".weight", [dtype, [64, 64], raw])), Q, dtype)
    yield Case(
        "transposed",
        weights(tensors=changed("model.layers.0.mlp.up_proj.weight", ["F32", [64, 96], bytes(4 * 64 * 96)])),
        "model.layers.0.mlp.up_proj.weight",
        "64, 96",
        "96, 64",
    )
    yield Case("rank 3", weights(tensors=changed(Q + ".weight", ["F32", [1, 64, 64], raw])), Q, "1, 64, 64")
    yield Case("rank 0", weights(tensors=changed(Q + ".weight", ["F32", [], raw[:4]])), Q)
    yield Case("no elements", weights(tensors=changed(Q + ".weight", ["F32", [0, 64], b""])), Q, "0, 64")
    yield Case(
        "norm shape",
        weights(tensors=changed("model.norm.weight", ["F32", [63], bytes(4 * 63)])),
        "model.norm.weight",
        "63",
        "64",
    )
    yield Case(
        "norm dtype",
        weights(tensors=changed("model.norm.weight", ["I64", [64], bytes(8 * 64)])),
        "model.norm.weight",
        "I64",
    )
    yield Case(
        "more columns than can be",
        large(intermediate=(1 << 18) + 64),
        "model.layers.0.mlp.down_proj.weight",
        "64, 262208",
        "262208 columns",
        "at most 262144",
    )
    yield Case(
        "a wider norm than can be", large(hidden=(1 << 17) + 64, intermediate=64), "norm", "131136", "at most 131072"
    )
    for name in (
        "model.embed_tokens.weight",
        "model.norm.weight",
        Q + ".weight",
        "model.layers.0.input_layernorm.weight",
    ):
        yield Case(f"missing {name}", weights(tensors=changed(name, None)), name, "missing")
    files = Files()
    del files["model.safetensors"]
    yield Case("no weights", files, "safetensors")
    files = Files()
    files["model.safetensors"] = os.mkdir
    yield Case("weights are a directory", files, "model.safetensors")
    files = Files()
    files["model.safetensors"] = os.mkfifo
    yield Case("weights are a pipe", files, "model.safetensors")
    files = Files()
    files["model.safetensors"] = lambda path: os.symlink("nowhere", path)
    yield Case("weights are a dangling link", files, "safetensors")


def large(hidden=None, intermediate=None):
    """A checkpoint of one layer that is what it says, in a file of holes."""
    hidden, inner = hidden or HIDDEN, intermediate or INNER
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden]}
    for name, shape in {
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.q_proj": [2, hidden],
        "self_attn.k_proj": [2, hidden],
        "self_attn.v_proj": [2, hidden],
        "self_attn.o_proj": [hidden, 2],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }.items():
        shapes[f"model.layers.0.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()

    def write(path):
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + end)

    files = config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
    )
    files["model.safetensors"] = write
    return files


def quantised(data=("U32", [64, 8]), scales=("F32", [64, 2]), biases=("F32", [64, 2]), block=None):
    """q_proj of the second layer as 4 bits in groups of 32, one part of it wrong."""
    sizes = {"U32": 4, "F32": 4, "BF16": 2, "U8": 1, "I32": 4, "F16": 2, "I64": 8}
    tensors = dict(TENSORS)
    for suffix, part in ((".weight", data), (".scales", scales), (".biases", biases)):
        tensors.pop(Q + suffix, None)
        if part:
            dtype, shape = part
            count = 1
            for n in shape:
                count *= n
            tensors[Q + suffix] = [dtype, list(shape), bytes(count * sizes[dtype])]
    return weights(tensors=tensors, quantization=block or {"group_size": 32, "bits": 4})


def quant_cases():
    yield Case("no biases", quantised(biases=None), Q + ".biases", "missing")
    yield Case("plain weight beside scales", quantised(data=("F32", [64, 64])), Q, "F32")
    yield Case("7 bits", quantised(data=("U32", [64, 14])), Q, "64, 14")
    yield Case("1 bit", quantised(data=("U32", [64, 2])), Q, "64, 2")
    yield Case("no columns", quantised(data=("U32", [64, 0])), Q, "64, 0")
    yield Case("wide", quantised(data=("U32", [64, 4096])), Q, "64, 4096")
    yield Case("group 16", quantised(scales=("F32", [64, 4]), biases=("F32", [64, 4])), Q, "4")
    yield Case("scales of 3 per row", quantised(scales=("F32", [64, 3])), Q + ".scales", "64, 3")
    yield Case("scales of 0 per row", quantised(scales=("F32", [64, 0])), Q + ".scales", "64, 0")
    yield Case("scales of fewer rows", quantised(scales=("F32", [32, 2])), Q + ".scales", "32, 2")
    yield Case("scales of rank 1", quantised(scales=("F32", [128])), Q + ".scales", "128")
    yield Case("integer scales", quantised(scales=("I32", [64, 2])), Q, "I32")
    yield Case("biases of another dtype", quantised(biases=("BF16", [64, 2])), Q + ".biases", "BF16")
    yield Case("biases of another shape", quantised(biases=("F32", [64, 1])), Q + ".biases", "64, 1")
    yield Case("fp scales, odd bits", quantised(data=("U32", [64, 6]), scales=("U8", [64, 2])), Q, "U8")
    symmetric = {"group_size": 32, "bits": 4, "mode": "symmetric"}
    yield Case(
        "symmetric, bf16 scales",
        quantised(scales=("BF16", [64, 2]), biases=None, block=symmetric),
        Q + ".biases",
        "missing",
    )
    for bits in (2, 3, 6):
        yield Case(
            f"symmetric, {bits} bits",
            quantised(
                data=("U32", [64, 2 * bits]), scales=("F16", [64, 2]), biases=None, block=dict(symmetric, bits=bits)
            ),
            Q + ".biases",
            "missing",
        )
    yield Case(
        "symmetric, said of this module only by halves",
        quantised(scales=("F16", [64, 2]), biases=None, block=dict(symmetric, **{Q: {"group_size": 32, "bits": 4}})),
        Q + ".biases",
        "missing",
    )
    yield Case("a record for fewer columns than it has", quantised(scales=("U8", [64, 20]), biases=None), Q, "20")
    for rule in (
        {"group_size": 64, "bits": 4},
        {"group_size": 32, "bits": 8},
        {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        {"group_size": "x", "bits": 4},
        {"group_size": 32, "bits": -4},
    ):
        yield Case(
            f"override {json.dumps(rule)}", quantised(block={"group_size": 32, "bits": 4, Q: rule}), "config.json", Q
        )
    for method in ("bitsandbytes", "nope"):
        yield Case(
            f"quant_method {method}", config(quantization_config={"quant_method": method}), "quant_method", method
        )


def index_cases():
    def index(content, **files):
        out = Files()
        shard = out.pop("model.safetensors")
        out["model-00001-of-00001.safetensors"] = shard
        out["model.safetensors.index.json"] = content
        out.update(files)
        return out

    def all_in(file):
        return {"metadata": {}, "weight_map": {name: file for name in TENSORS}}

    outside = os.path.join(tempfile.gettempdir(), "model.safetensors")
    for file in (
        "../model.safetensors",
        outside,
        "/etc/passwd",
        "a/../../b.safetensors",
        "..",
        ".",
        "",
        "sub/x.safetensors",
        "a\0b",
        "two\nlines.safetensors",
        "absent.safetensors",
        "x" * 5000,
        "config.json",
    ):
        yield Case(f"index to {json.dumps(file)[:40]}", index(all_in(file)), ("index", file.replace("\n", " ")))
    for name, content in {
        "empty": "",
        "list": [],
        "not json": "{",
        "no map": {},
        "map is a list": {"weight_map": []},
        "map of numbers": {"weight_map": {Q: 5}},
        "empty map": {"weight_map": {}},
    }.items():
        yield Case(f"index is {name}", index(content), "model.safetensors.index.json")
    many = {"weight_map": {f"t{i}": f"model-{i}.safetensors" for i in range(100000)}}
    yield Case("index of 100,000 files", index(many), "safetensors")


def tokenizer_cases():
    def changed(edit):
        files = Files()
        edit(files["tokenizer.json"])
        return files

    def case(name, edit, *expect):
        return Case(f"tokenizer: {name}", changed(edit), *(expect or ("tokenizer.json",)), commands=("run",))

    files = Files()
    del files["tokenizer.json"]
    yield Case("tokenizer missing", files, "tokenizer.json", commands=("run",))
    raw = json.dumps(base_tokenizer())
    for name, text in {
        "empty": "",
        "cut": raw[:500],
        "list": "[]",
        "object": "{}",
        "null": "null",
        "random": random.Random(3).randbytes(999),
        "deep": "[" * 100000,
    }.items():
        files = Files()
        files["tokenizer.json"] = text
        yield Case(f"tokenizer is {name}", files, "tokenizer.json", commands=("run",))
    yield case("no model", lambda t: t.pop("model"))
    yield case("model text", lambda t: t.update(model="BPE"))
    yield case("model type", lambda t: t["model"].update(type="Nope"))
    yield case("no vocab", lambda t: t["model"].pop("vocab"))
    yield case("vocab list", lambda t: t["model"].update(vocab=[]))
    for value in (-1, 1.5, "x", None, 1 << 40, (1 << 31) - 1):
        yield case(f"id {json.dumps(value)}", lambda t, value=value: t["model"]["vocab"].update(he=value))
    yield case("merges text", lambda t: t["model"].update(merges="x"))
    yield case("merge of one", lambda t: t["model"].update(merges=[["h"]]))
    yield case("merge of numbers", lambda t: t["model"].update(merges=[[1, 2]]))
    yield case("merge of unknown", lambda t: t["model"].update(merges=[["zz", "q"]]))
    yield case("merge into unknown", lambda t: t["model"].update(merges=[["q", "q"]]))
    yield case("added text", lambda t: t.update(added_tokens="x"))
    yield case("added id", lambda t: t["added_tokens"][0].update(id=-5))
    yield case("added id 2^40", lambda t: t["added_tokens"][0].update(id=1 << 40))
    yield case("added without content", lambda t: t["added_tokens"][0].pop("content"))
    for pattern in ("(", "[", "a{100000}{100000}", "(" * 50000, "\\p{Nope}", "(?<", "*", "(?P<x>a)\\1" + "(" * 3):
        yield case(
            f"pattern {pattern[:12]}",
            lambda t, pattern=pattern: t.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            ),
        )
    yield case("pre-tokenizer", lambda t: t.update(pre_tokenizer={"type": "Nope"}))
    yield case("pre-tokenizers inside each other", lambda t: t.update(pre_tokenizer=nest(60)))
    yield case("normalizer", lambda t: t.update(normalizer={"type": "Nope"}))
    yield case("decoder", lambda t: t.update(decoder={"type": "Nope"}))
    yield case("post-processor", lambda t: t.update(post_processor={"type": "Nope"}))
    # ids behind the model's vocabulary: the tokenizer is fine, the prompt is not
    yield Case(
        "ids behind the vocabulary",
        changed(lambda t: t["model"]["vocab"].update(he=5000)),
        "5000",
        "300",
        commands=("run",),
        code=2,
    )


def nest(depth):
    inner = {"type": "Nope"}
    for _ in range(depth):
        inner = {"type": "Sequence", "pretokenizers": [inner]}
    return inner


def template_cases():
    loops = "{% for a in range(1000) %}" * 8 + "x" + "{% endfor %}" * 8
    for name, text in {
        "loop of 10^9": "{% for i in range(1000000000) %}{% endfor %}",
        "loops in loops": loops,
        "loop over itself": "{% set l = [1] %}{% for i in l %}{{ l.append(1) or '' }}{% endfor %}",
        "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "huge text": "{{ 'aaaaaaaaaa' * 1000000000000 }}",
        "growing text": "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
        "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "huge list": "{{ (range(1000000000) | list) | length }}",
        "huge number": "{{ 10 ** (10 ** 10) }}",
        "not closed": "{% for m in messages %}",
        "not a tag": "{% nope %}",
        "not an expression": "{{ 1 + }}",
        "open": "{{ ",
        "deep": "{{ " + "(" * 100000 + ")" * 100000 + " }}",
        "deep blocks": "{% if 1 %}" * 100000,
        "unknown filter": "{{ 'x' | nope }}",
        "unknown function": "{{ nope() }}",
        "raise": "{{ raise_exception('no, not this one') }}",
        "attribute of nothing": "{{ nope.a.b }}",
        "division": "{{ 1 / 0 }}",
        "format": "{{ '%1000000000d' % 1 }}",
        "width": "{{ 'x'.center(10000000000) }}",
        "nothing": "{% set x = 1 %}",
    }.items():
        files = Files()
        files["tokenizer_config.json"] = {"chat_template": text}
        yield Case(
            f"template: {name}",
            files,
            {"raise": "no, not this one", "nothing": "prompt is empty"}.get(name, "template"),
            commands=("run",),
            code=2 if name == "nothing" else 1,
        )
    for name, value in {"number": 5, "list of numbers": [5], "object": {"a": 1}}.items():
        files = Files()
        files["tokenizer_config.json"] = {"chat_template": value}
        yield Case(f"template is a {name}", files, "chat_template", commands=("run",))
    for text in ("", "{", "[]"):
        files = Files()
        files["tokenizer_config.json"] = text
        yield Case(f"tokenizer_config {json.dumps(text)}", files, "tokenizer_config.json", commands=("run",))


def all_cases():
    for group in (config_cases, weight_cases, quant_cases, index_cases, tokenizer_cases, template_cases):
        yield from group()


# ---- running ----


class Outcome:
    def __init__(self, code, stdout, stderr, seconds, memory):
        self.code, self.stdout, self.stderr, self.seconds, self.memory = code, stdout, stderr, seconds, memory


def run(arguments):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        timer = threading.Timer(20, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        # On a machine with other work a process waits for a core: its own time counts then.
        seconds = min(time.monotonic() - start, usage.ru_utime + usage.ru_stime)
        out.seek(0)
        err.seek(0)
        return Outcome(process.returncode, out.read(), err.read(), seconds, usage.ru_maxrss << 10)


def arguments_of(apus, command, directory):
    if command == "info":
        return [apus, "info", directory]
    return [apus, "run", directory, "hello", "-n", "4", "--ctx-size", "128"]


def problem_of(case, command, outcome):
    try:
        text = outcome.stderr.decode()
    except UnicodeDecodeError:
        return f"{command}: not UTF-8 on standard error: {outcome.stderr[:200]}"
    lines = text.splitlines()
    if case.code == 2:  # a model that loads may be warned of before
        lines = [line for line in lines if " warn " not in line]
    if outcome.code < 0:
        return f"{command}: killed by signal {-outcome.code}: {text[-300:]!r}"
    if outcome.code != case.code:
        return f"{command}: exit code {outcome.code}: {text[-300:]!r}"
    if outcome.seconds > SECONDS_MAX:
        return f"{command}: took {outcome.seconds:.1f} s"
    if outcome.memory > MEMORY_MAX:
        return f"{command}: took {outcome.memory >> 20} MB"
    if len(lines) != 1 or not text.endswith("\n") or len(text) > LINE_MAX:
        return f"{command}: must be one line of at most {LINE_MAX} bytes: {len(lines)} of {len(text)}: {text[:300]!r}"
    if any(ord(c) < 32 or ord(c) == 127 for c in lines[0]):
        return f"{command}: control characters on standard error: {text[:300]!r}"
    if command == "run" and outcome.stdout:
        return f"{command}: something on standard output: {outcome.stdout[:100]}"
    for wanted in case.expect:
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        if not any(w in text for w in wanted):
            return f"{command}: {' or '.join(wanted)!r} is not named: {text[:400]!r}"
    return None


def with_directory(files, action):
    directory = tempfile.mkdtemp(prefix="apus-hostile-")
    try:
        files.write(directory)
        return action(directory)
    finally:
        shutil.rmtree(directory)


def check(apus, case, verbose):
    def action(directory):
        for command in case.commands:
            outcome = run(arguments_of(apus, command, directory))
            problem = problem_of(case, command, outcome)
            if problem:
                return problem
        if verbose:
            print(f"ok      {case.name:34} {outcome.seconds:.2f} s  {outcome.stderr.decode().strip()[:300]}")
        return None

    return with_directory(case.files, action)


def check_valid(apus):
    """Without this, a program that always fails would pass."""

    def action(directory):
        for command in ("info", "run"):
            outcome = run(arguments_of(apus, command, directory))
            if outcome.code or outcome.stderr or not outcome.stdout:
                return f"{command}: exit code {outcome.code}: {outcome.stderr[-300:]}"
        return None

    return with_directory(Files(), action)


def check_poisoned(apus):
    """Weights that are not numbers cannot be seen at load: the run ends, whatever it says."""
    for name, value in (("NaN", b"\0\0\xc0\x7f"), ("infinity", b"\0\0\x80\x7f"), ("largest", b"\xff\xff\x7f\x7f")):
        for tensor in (Q + ".weight", "model.norm.weight", "model.embed_tokens.weight"):
            dtype, shape, raw = TENSORS[tensor]
            files = weights(tensors=changed(tensor, [dtype, shape, value * (len(raw) // 4)]))
            outcome = with_directory(files, lambda d: run(arguments_of(apus, "run", d)))
            if outcome.code not in (0, 1) or outcome.seconds > SECONDS_MAX:
                code, said = outcome.code, outcome.stderr[-300:]
                return f"{name} in {tensor}: exit code {code} after {outcome.seconds:.1f} s: {said}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--apus", default="build/apus")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    apus = os.path.abspath(options.apus)
    passed = failed = 0

    def count(name, problem):
        nonlocal passed, failed
        passed, failed = passed + (not problem), failed + bool(problem)
        if problem:
            print(f"FAILED  {name:34} {problem}", flush=True)

    if not options.names:
        count("the valid model", check_valid(apus))
        count("poisoned weights", check_poisoned(apus))
    for case in all_cases():
        if not options.names or any(part in case.name for part in options.names):
            count(case.name, check(apus, case, options.v))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
