#!/usr/bin/env python3
"""Compares a checkpoint made by `apus convert` with its GGUF file: every tensor against the gguf package's
dequantisation (equal but for Q6_K, which may be off by half an 8-bit step), and, if the model's own tokenizer.json is
given, the ids of some thousand texts. Exits 1 on a difference. Used by hand; needs gguf 0.19, mlx 0.32.4, numpy,
tokenizers 0.23.

    tools/check_conversion.py model.gguf DIRECTORY [--tokenizer tokenizer.json]
"""

import argparse
import json
import random
import re
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np

ROWS_AT_A_TIME = 4096
# Seen from the other side than src/family's rows and src/import/gguf/plan.c, which this checks.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
INTERLEAVED = ("llama", "smollm3")
PIECES = [
    "héllo",
    "日本語",
    "👍🏽",
    "  ",
    "\n",
    "\n\n\n",
    "\t",
    "3.14",
    "12345",
    "é",
    "e\u0301",
    "ﬁ",
    "한국어",
    "don't",
    "I'LL",
    "<|im_start|>",
    "<|endoftext|>",
    "<bos>",
    "<start_of_turn>",
    "</s>",
    "▁",
    "▁▁",
    "\x00",
    "\u200d",
    "नमस्ते",
    "ไทย",
    " ",
    "a",
    "the",
    " quick",
    "ZZZ",
    "::",
    "->",
    "{}",
    "\r\n",
    "\u2028",
    "return x;",
]


def heads_apart(values, heads):
    """Undoes the interleaving of each head's halves, as numpy sees it."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def compare_tensors(reader, directory):
    architecture = reader.fields["general.architecture"].contents()
    weights = mx.load(str(directory / "model.safetensors"))
    config = json.loads((directory / "config.json").read_text())
    gemma = architecture.startswith("gemma")
    names = {**NAMES, **(GEMMA_NAMES if gemma else {})}
    seen, wrong = set(), 0
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_"):
            continue
        block, stem, part = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.(weight|bias)", tensor.name).groups()
        if architecture == "phi3" and stem == "ffn_up":
            module = "mlp.gate_up_proj"
        else:
            module = names[stem]
        module = f"model.layers.{block}.{module}" if block else module
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(stem)
        quantised = part == "weight" and f"{module}.scales" in weights
        seen |= {f"{module}.{p}" for p in (("weight", "scales", "biases") if quantised else (part,))}
        rows = tensor.data.shape[0]
        step = rows if architecture in INTERLEAVED and heads else ROWS_AT_A_TIME
        for first in range(0, rows, step):
            piece = slice(first, first + step)
            expected = gguf.dequantize(tensor.data[piece], tensor.tensor_type)
            if architecture in INTERLEAVED and heads:
                expected = heads_apart(expected, heads)
            limit = np.float32(0)
            if quantised:
                kind = config["quantization"].get(module, config["quantization"])
                scales, biases = (weights[f"{module}.{p}"][piece].astype(mx.float32) for p in ("scales", "biases"))
                actual = np.array(
                    mx.dequantize(weights[f"{module}.weight"][piece], scales, biases, kind["group_size"], kind["bits"])
                )
                if tensor.tensor_type.name == "Q6_K":
                    limit = np.repeat(np.abs(np.array(scales)), kind["group_size"], axis=1) * np.float32(0.5001)
            else:
                actual = np.array(weights[f"{module}.{part}"][piece].astype(mx.float32))
                if gemma and module.endswith("norm"):
                    actual = actual + 1
            if actual.shape != expected.shape or (np.abs(actual - expected) > limit).any():
                print(f"{tensor.name} ({tensor.tensor_type.name}): differs")
                wrong += 1
                break
    for name in sorted(set(weights) - seen):
        print(f"{name}: not in the GGUF file")
        wrong += 1
    print(f"{len(reader.tensors)} tensors compared, {wrong} differ")
    return wrong


def compare_tokenizers(made, original):
    from tokenizers import Tokenizer

    made, original = Tokenizer.from_file(str(made)), Tokenizer.from_file(str(original))
    generator = random.Random(1)
    texts = ["".join(generator.choices(PIECES, k=generator.randint(1, 12))) for _ in range(6000)]
    source = Path(__file__).read_text()
    texts += [source[at : at + 200] for at in range(0, len(source), 100)]
    wrong = 0
    for text in texts:
        for special in (False, True):
            ids = original.encode(text, add_special_tokens=special).ids
            if made.encode(text, add_special_tokens=special).ids != ids:
                print(f"ids differ: {text!r}")
                wrong += 1
    print(f"{len(texts)} texts compared, {wrong} differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="the model's own tokenizer.json")
    options = parser.parse_args()
    wrong = compare_tensors(gguf.GGUFReader(options.gguf), options.directory)
    if options.tokenizer:
        wrong += compare_tokenizers(options.directory / "tokenizer.json", options.tokenizer)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
