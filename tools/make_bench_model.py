#!/usr/bin/env python3
"""A checkpoint of random weights in an exact shape, for measuring speed: tools/make_bench_model.py SHAPE DIR [--bits 4] [--group 64]
[--mode affine|mxfp4|mxfp8|nvfp4] [--layers N]. Shapes: llama-1b, llama-8b, qwen-0.5b, qwen-1.5b. Only numpy is needed."""
import argparse, json, os, struct

import numpy as np

SHAPES = {
    "llama-1b": dict(model_type="llama", hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=64, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True),
    "llama-8b": dict(model_type="llama", hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=128, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False),
    "qwen-0.5b": dict(model_type="qwen2", hidden_size=896, num_hidden_layers=24, intermediate_size=4864, num_attention_heads=14,
                      num_key_value_heads=2, vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True),
    "qwen-1.5b": dict(model_type="qwen2", hidden_size=1536, num_hidden_layers=28, intermediate_size=8960, num_attention_heads=12,
                      num_key_value_heads=2, vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True),
}
MODES = {"affine": None, "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


def tensors(c, bits, group, mode):
    d, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    hd = c.get("head_dim", d // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd

    def matrix(name, rows, cols):
        if bits == 16:
            yield name + ".weight", "BF16", (rows, cols)
            return
        yield name + ".weight", "U32", (rows, cols * bits // 32)
        yield name + ".scales", "U8" if mode != "affine" else "BF16", (rows, cols // group)
        if mode == "affine":
            yield name + ".biases", "BF16", (rows, cols // group)

    yield from matrix("model.embed_tokens", v, d)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", "BF16", (d,)
        yield p + "post_attention_layernorm.weight", "BF16", (d,)
        for name, rows, cols in (("self_attn.q_proj", q, d), ("self_attn.k_proj", kv, d), ("self_attn.v_proj", kv, d), ("self_attn.o_proj", d, q),
                                 ("mlp.gate_proj", i, d), ("mlp.up_proj", i, d), ("mlp.down_proj", d, i)):
            yield from matrix(p + name, rows, cols)
            if c["model_type"] == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                yield p + name + ".bias", "BF16", (rows,)
    yield "model.norm.weight", "BF16", (d,)
    if not c["tie_word_embeddings"]:
        yield from matrix("lm_head", v, d)


SIZE = {"U32": 4, "BF16": 2, "U8": 1}


def values(rng, name, dtype, shape, mode):
    count = int(np.prod(shape))
    if dtype == "U32":
        return rng.integers(0, 2**32, count, dtype=np.uint32).tobytes()
    if dtype == "U8":  # E8M0 around 2^-6, or E4M3 around 0.02
        return rng.integers(*((118, 122) if mode != "nvfp4" else (16, 32)), count, dtype=np.uint8).tobytes()
    x = rng.standard_normal(count).astype(np.float32) * 0.02
    if "norm" in name:
        x = 1 + x
    if name.endswith(".scales"):
        x = np.abs(x) * 0.1 + 0.002
    if name.endswith(".biases"):
        x = -np.abs(x)
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()


parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=SHAPES)
parser.add_argument("directory")
parser.add_argument("--bits", type=int, default=4)
parser.add_argument("--group", type=int, default=64)
parser.add_argument("--mode", choices=MODES, default="affine")
parser.add_argument("--layers", type=int)
a = parser.parse_args()
config = dict(SHAPES[a.shape], hidden_act="silu", max_position_embeddings=32768)
if a.layers:
    config["num_hidden_layers"] = a.layers
bits, group = MODES[a.mode] or (a.bits, a.group)
if bits != 16:
    config["quantization"] = {"bits": bits, "group_size": group, "mode": a.mode}
os.makedirs(a.directory, exist_ok=True)
header, offset, order = {}, 0, list(tensors(config, bits, group, a.mode))
for name, dtype, shape in order:
    size = int(np.prod(shape)) * SIZE[dtype]
    header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
    offset += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
rng = np.random.default_rng(1)
with open(os.path.join(a.directory, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name, dtype, shape in order:
        f.write(values(rng, name, dtype, shape, a.mode))
with open(os.path.join(a.directory, "config.json"), "w") as f:
    json.dump(config, f, indent=1)
