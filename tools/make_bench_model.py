#!/usr/bin/env python3
"""A checkpoint of random weights in an exact shape, for measuring speed: tools/make_bench_model.py SHAPE DIR [--bits 4]
[--group 64] [--mode affine|mxfp4|mxfp8|nvfp4] [--layers N]. Shapes: see SHAPES. Only numpy is needed.

A mixture's routers prefer experts as those of real models do: the embedding has a part that all tokens share, by which
each router adds to its logits -zipf·log(rank) of the expert, in an order of its own per layer, beside noise of the
token with a deviation of 1. With the exponents here a cache of 20 % of the experts, least recently used out first, is
hit by 65 to 75 % of a text of random tokens; even routers would hit it 20 % of the time, whatever it holds.
"""

import argparse
import json
import math
import os
import struct

import numpy as np

SHAPES = {
    "llama-1b": dict(
        model_type="llama",
        hidden_size=2048,
        num_hidden_layers=16,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
    ),
    "llama-8b": dict(
        model_type="llama",
        hidden_size=4096,
        num_hidden_layers=32,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    ),
    "llama-70b": dict(
        model_type="llama",
        hidden_size=8192,
        num_hidden_layers=80,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    ),
    "phi-3-mini": dict(
        model_type="llama",
        hidden_size=3072,
        num_hidden_layers=32,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=96,
        vocab_size=32064,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    "qwen-0.5b": dict(
        model_type="qwen2",
        hidden_size=896,
        num_hidden_layers=24,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
    ),
    "qwen-1.5b": dict(
        model_type="qwen2",
        hidden_size=1536,
        num_hidden_layers=28,
        intermediate_size=8960,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
    ),
    # With its multi-token prediction head.
    "mimo-7b": dict(
        model_type="mimo",
        hidden_size=4096,
        num_hidden_layers=36,
        intermediate_size=11008,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151680,
        rms_norm_eps=1e-5,
        rope_theta=640000.0,
        tie_word_embeddings=False,
        num_nextn_predict_layers=1,
    ),
    "moe-small": dict(
        model_type="olmoe",
        hidden_size=512,
        num_hidden_layers=12,
        intermediate_size=256,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=False,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=8192,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    "olmoe-1b-7b": dict(
        model_type="olmoe",
        hidden_size=2048,
        num_hidden_layers=16,
        intermediate_size=1024,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=False,
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=50304,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe",
        hidden_size=2048,
        num_hidden_layers=48,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=151936,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
    ),
    "qwen3.5-4b": dict(
        model_type="qwen3_5_text",
        hidden_size=2560,
        num_hidden_layers=32,
        intermediate_size=9216,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        full_attention_interval=4,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        vocab_size=248320,
        rms_norm_eps=1e-6,
        rope_theta=10000000.0,
        partial_rotary_factor=0.25,
        tie_word_embeddings=True,
    ),
    # The text model of Qwen3.5-122B-A10B: gated delta nets, each fourth layer attention, experts in all.
    "qwen3.5-122b-a10b": dict(
        model_type="qwen3_5_moe_text",
        hidden_size=3072,
        num_hidden_layers=48,
        moe_intermediate_size=1024,
        shared_expert_intermediate_size=1024,
        num_experts=256,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=256,
        full_attention_interval=4,
        linear_num_value_heads=64,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        vocab_size=248320,
        rms_norm_eps=1e-6,
        rope_theta=10000000.0,
        partial_rotary_factor=0.25,
        tie_word_embeddings=False,
    ),
    "nemotron-h-8b": dict(
        model_type="nemotron_h",
        hidden_size=4096,
        num_hidden_layers=52,
        intermediate_size=21504,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        mamba_num_heads=128,
        mamba_head_dim=64,
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
        vocab_size=131072,
        layer_norm_epsilon=1e-5,
        mlp_hidden_act="relu2",
        tie_word_embeddings=False,
    ),
    # The experts of Qwen3.5-122B-A10B, its shared one too; what stands beside them is a Qwen2-MoE's.
    "122b-a10b": dict(
        model_type="qwen2_moe",
        hidden_size=3072,
        num_hidden_layers=48,
        intermediate_size=8192,
        moe_intermediate_size=1024,
        shared_expert_intermediate_size=1024,
        num_experts=256,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_attention_heads=24,
        num_key_value_heads=2,
        vocab_size=151936,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
    ),
}
ZIPF = {64: 1.3, 128: 0.85, 256: 0.65}  # by the number of experts
MODES = {"affine": None, "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


def tensors(c, bits, group, mode):
    d, i, v = c["hidden_size"], c.get("intermediate_size", 0), c["vocab_size"]
    hd = c.get("head_dim", d // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd

    def matrix(name, rows, cols, stack=()):
        if bits == 16:
            yield name + ".weight", "BF16", (*stack, rows, cols)
            return
        yield name + ".weight", "U32", (*stack, rows, cols * bits // 32)
        yield name + ".scales", "U8" if mode != "affine" else "BF16", (*stack, rows, cols // group)
        if mode == "affine":
            yield name + ".biases", "BF16", (*stack, rows, cols // group)

    def ffn(name, inner, stack=()):
        for part, rows, cols in (("gate_proj", inner, d), ("up_proj", inner, d), ("down_proj", d, inner)):
            yield from matrix(name + "." + part, rows, cols, stack)

    def experts(p):
        yield p + "mlp.gate.weight", "BF16", (c["num_experts"], d)
        yield from ffn(p + "mlp.switch_mlp", c.get("moe_intermediate_size", i), (c["num_experts"],))
        if "shared_expert_intermediate_size" in c:
            yield from ffn(p + "mlp.shared_expert", c["shared_expert_intermediate_size"])
            yield p + "mlp.shared_expert_gate.weight", "BF16", (1, d)

    if "hybrid_override_pattern" in c:
        yield from nemotron_tensors(c, matrix, q, kv)
        return
    yield from matrix("model.embed_tokens", v, d)
    heads = c.get("num_nextn_predict_layers", 0)
    layers = [f"model.layers.{layer}." for layer in range(c["num_hidden_layers"])]
    layers += [f"model.mtp_layers.{head}." for head in range(heads)]
    for layer, p in enumerate(layers):
        if "full_attention_interval" in c:
            yield p + "input_layernorm.weight", "BF16", (d,)
            yield p + "post_attention_layernorm.weight", "BF16", (d,)
            yield from qwen3_5_mixer(c, p, (layer + 1) % c["full_attention_interval"] == 0, matrix, q, kv)
            yield from experts(p) if "num_experts" in c else ffn(p + "mlp", i)
            continue
        yield p + "input_layernorm.weight", "BF16", (d,)
        yield p + "post_attention_layernorm.weight", "BF16", (d,)
        for name, rows, cols in (("q_proj", q, d), ("k_proj", kv, d), ("v_proj", kv, d), ("o_proj", d, q)):
            yield from matrix(p + "self_attn." + name, rows, cols)
            if (c["model_type"].startswith("qwen2") or c["model_type"] == "mimo") and name != "o_proj":
                yield p + f"self_attn.{name}.bias", "BF16", (rows,)
        if c["model_type"] in ("olmoe", "qwen3_moe"):
            yield p + "self_attn.q_norm.weight", "BF16", (q if c["model_type"] == "olmoe" else hd,)
            yield p + "self_attn.k_norm.weight", "BF16", (kv if c["model_type"] == "olmoe" else hd,)
        yield from experts(p) if "num_experts" in c else ffn(p + "mlp", i)
    for head in range(heads):
        yield from matrix(f"model.mtp_layers.{head}.input_proj", d, 2 * d)
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            yield f"model.mtp_layers.{head}.{norm}.weight", "BF16", (d,)
    yield "model.norm.weight", "BF16", (d,)
    if not c["tie_word_embeddings"]:
        yield from matrix("lm_head", v, d)


def qwen3_5_mixer(c, p, attention, matrix, q, kv):
    """Attention whose values a gate multiplies, or a gated delta net."""
    d = c["hidden_size"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, size = c["linear_num_value_heads"], c["linear_value_head_dim"]
    if attention:
        for name, rows, cols in (("q_proj", 2 * q, d), ("k_proj", kv, d), ("v_proj", kv, d), ("o_proj", d, q)):
            yield from matrix(p + "self_attn." + name, rows, cols)
        yield p + "self_attn.q_norm.weight", "BF16", (c["head_dim"],)
        yield p + "self_attn.k_norm.weight", "BF16", (c["head_dim"],)
        return
    p += "linear_attn."
    inner = heads * size
    for name, rows in (("qkv", 2 * keys + inner), ("z", inner), ("b", heads), ("a", heads)):
        yield from matrix(p + "in_proj_" + name, rows, d)
    yield p + "conv1d.weight", "BF16", (2 * keys + inner, c["linear_conv_kernel_dim"], 1)
    yield p + "A_log", "BF16", (heads,)
    yield p + "dt_bias", "BF16", (heads,)
    yield p + "norm.weight", "BF16", (size,)
    yield from matrix(p + "out_proj", d, inner)


def nemotron_tensors(c, matrix, q, kv):
    d, heads = c["hidden_size"], c["mamba_num_heads"]
    inner = heads * c["mamba_head_dim"]
    channels = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    yield from matrix("backbone.embeddings", c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        p, kind = f"backbone.layers.{layer}.mixer.", c["hybrid_override_pattern"][layer]
        yield f"backbone.layers.{layer}.norm.weight", "BF16", (d,)
        if kind == "M":
            yield from matrix(p + "in_proj", inner + channels + heads, d)
            yield p + "conv1d.weight", "BF16", (channels, c["conv_kernel"], 1)
            yield p + "conv1d.bias", "BF16", (channels,)
            for name in ("A_log", "D", "dt_bias"):
                yield p + name, "BF16", (heads,)
            yield p + "norm.weight", "BF16", (inner,)
            yield from matrix(p + "out_proj", d, inner)
        elif kind == "*":
            for name, rows, cols in (("q_proj", q, d), ("k_proj", kv, d), ("v_proj", kv, d), ("o_proj", d, q)):
                yield from matrix(p + name, rows, cols)
        else:
            yield from matrix(p + "up_proj", c["intermediate_size"], d)
            yield from matrix(p + "down_proj", d, c["intermediate_size"])
    yield "backbone.norm_f.weight", "BF16", (d,)
    yield from matrix("lm_head", c["vocab_size"], d)


SIZE = {"U32": 4, "BF16": 2, "U8": 1}
BLOCK = 16777259  # values that repeat: a prime, so that no two experts are alike
MOST = 1 << 24  # values written at a time


def bf16(x):
    x = x.astype(np.float32).view(np.uint32)
    return ((x + 0x7FFF + (x >> 16 & 1)) >> 16).astype(np.uint16)


class Values:
    """Codes are random; a scale is such that a product is about a third as large as its input, and a bias puts the
    codes' middle to 0.
    """

    def __init__(self, config, bits, mode):
        self.rng = np.random.default_rng(1)
        self.config, self.bits, self.mode = config, bits, mode
        self.codes = self.rng.integers(0, 2**32, BLOCK, dtype=np.uint32)
        self.spread = self.rng.uniform(0.8, 1.2, 1000003).astype(np.float32)
        self.shared = np.repeat(
            np.sign(self.rng.standard_normal(config["hidden_size"] // 64)), 64
        )  # what all embeddings have

    def take(self, block, first, count):
        at = first % len(block)
        parts = [block[at : at + count]]
        while (have := sum(map(len, parts))) < count:
            parts.append(block[: count - have])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def router(self, experts, d):
        noise = self.rng.standard_normal((experts, d)) * math.sqrt(2 / d)
        noise -= np.outer(noise @ self.shared, self.shared) / d
        rank = self.rng.permutation(experts) + 1
        return noise - np.outer(ZIPF.get(experts, 1) * np.log(rank), self.shared) * math.sqrt(2) / d

    def scale(self, name, cols):
        size = 1 if "embed_tokens" in name else 1 / 3 / math.sqrt(cols)
        return size * math.sqrt(12) / 2**self.bits

    def write(self, f, name, dtype, shape, group):
        if name.endswith("mlp.gate.weight"):
            f.write(bf16(self.router(*shape)).tobytes())
            return
        count, first = math.prod(shape), self.rng.integers(BLOCK)
        for done in range(0, count, MOST):
            f.write(self.piece(name, dtype, shape, group, int(first), done, min(MOST, count - done)).tobytes())

    def piece(self, name, dtype, shape, group, first, done, count):
        if dtype == "U32":
            return self.take(self.codes, first + done, count)
        if dtype == "U8":  # E8M0 around 2^-6, or E4M3 around 0.02
            low, high = (118, 122) if self.mode != "nvfp4" else (16, 32)
            return (self.take(self.codes, first + done, count) % (high - low) + low).astype(np.uint8)
        spread = self.take(self.spread, done if name.endswith(("scales", "biases")) else first + done, count)
        if name.endswith("norm.weight"):
            return bf16(np.ones(count))
        if name.endswith(("A_log", "dt_bias", ".D")):
            return bf16(spread - 1)
        if name.endswith(".bias"):
            return bf16((spread - 1) * 0.1)
        if name.endswith(".weight"):
            size = 1 if "embed_tokens" in name else 1 / 3 / math.sqrt(shape[-1])
            return bf16((spread - 1) * size * math.sqrt(75))
        spread = spread * self.scale(name, shape[-1] * group)
        if name.endswith(".scales"):
            return bf16(spread)
        spread = spread * -(2**self.bits - 1) / 2
        if "embed_tokens" in name:
            spread = spread + np.resize(np.roll(self.shared[::group], -(done % shape[-1])), count)
        return bf16(spread)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--mode", choices=MODES, default="affine")
    parser.add_argument("--layers", type=int)
    a = parser.parse_args()
    config = dict(SHAPES[a.shape], hidden_act="silu", max_position_embeddings=65536 if "3.5" in a.shape else 32768)
    if a.layers:
        config["num_hidden_layers"] = a.layers
    if "hybrid_override_pattern" in config:
        del config["hidden_act"]
        config["max_position_embeddings"] = 65536
        config["hybrid_override_pattern"] = config["hybrid_override_pattern"][: config["num_hidden_layers"]]
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
    make = Values(config, bits, a.mode)
    with open(os.path.join(a.directory, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape in order:
            make.write(f, name, dtype, shape, group)
    with open(os.path.join(a.directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


if __name__ == "__main__":
    main()
