#!/usr/bin/env python3
"""Checkpoints as quantising programs pack them: their matrices against the programs' own formulas, bit for bit, their
logits against the same numbers unpacked, and broken variants of all of them.

    python tests/model/check_packed.py [--apus build/apus] [--broken 60] [--seed 1] [NAME…]

  matrices  AWQ, GPTQ (2, 4, 8 bits, both formats, act-order), compressed-tensors (4 and 8 bits, with zero points, by
            channel, bytes, FP8 by channel and in blocks, NVFP4, MXFP4, MXFP8), ModelOpt (NVFP4, FP8, MXFP8, mixed, in a
            file of its own), AutoRound, FP8 in blocks, for the whole and by row, gpt-oss's MXFP4:
            `apus convert --dequantize` gives the formula's numbers, `apus convert` without it loses nothing, and
            `apus debug logits --cpu ref` of the packed checkpoint is within 1e-5 of that of the unpacked one
  families  models of tests/family whose structure the loader reads from the names of matrices, or which changes or
            stacks them: the logits of the packed checkpoint are those of the unpacked one
  refusals  schemes that are not supported, by name and with advice
  broken    --broken variants of these checkpoints and of MLX's forms, each with one thing changed that must be noticed:
            exit code 1, one line that names the tensor, field or file, and no memory for sizes that are only claimed

Needs gguf, numpy and mlx.
"""

import argparse
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
import fixtures  # noqa: E402

import weights  # noqa: E402

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 40, 256, 128, 4, 2, 64
TOKENS = ",".join(str(i * 7 % VOCAB) for i in range(12))
MEMORY_MAX = 300 << 20
HANG_S = 120  # a hang, not a measurement
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
mx.set_default_device(mx.cpu)


# ---- files ----

CODES = {
    "float32": "F32",
    "float16": "F16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "int8": "I8",
    "uint32": "U32",
}


def bf16(x):
    """The nearest bf16 numbers, as f32."""
    return np.array(mx.array(np.asarray(x, np.float32)).astype(mx.bfloat16).astype(mx.float32))


class BF16(np.ndarray):
    """An array of f32 numbers to be stored as bf16."""


class FP8(np.ndarray):
    """An array of bytes to be stored as F8_E4M3."""


class E8M0(np.ndarray):
    """An array of bytes to be stored as F8_E8M0: powers of two."""


def stored(x):
    """(dtype, bytes) in a file."""
    if isinstance(x, E8M0):
        return "F8_E8M0", np.asarray(x).tobytes()
    if isinstance(x, BF16):
        return "BF16", (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if isinstance(x, FP8):
        return "F8_E4M3", np.asarray(x).tobytes()
    return CODES[str(x.dtype)], np.ascontiguousarray(x).tobytes()


def write(directory, config, tensors, edit=None):
    os.makedirs(directory, exist_ok=True)
    for name, content in config.pop("files", {}).items():
        with open(os.path.join(directory, name), "w") as file:
            json.dump(content, file)
    header, data = {}, bytearray()
    for name, x in tensors.items():
        dtype, raw = stored(x)
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if edit:
        edit(config, header, data)
    text = json.dumps(header).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)


def base_config(**more):
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **more,
    }


def linears():
    at = "model.layers.0."
    yield at + "self_attn.q_proj", (HEADS * HEAD, HIDDEN)
    yield at + "self_attn.k_proj", (KV_HEADS * HEAD, HIDDEN)
    yield at + "self_attn.v_proj", (KV_HEADS * HEAD, HIDDEN)
    yield at + "self_attn.o_proj", (HIDDEN, HEADS * HEAD)
    yield at + "mlp.gate_proj", (INNER, HIDDEN)
    yield at + "mlp.up_proj", (INNER, HIDDEN)
    yield at + "mlp.down_proj", (HIDDEN, INNER)


def plain_tensors(rng):
    names = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    names |= {f"model.layers.0.{n}_layernorm": (HIDDEN,) for n in ("input", "post_attention")}
    return {n + ".weight": rng.standard_normal(s).astype(np.float16).astype(np.float32) for n, s in names.items()}


# ---- schemes: (tensors of a module, its numbers) ----


def words(codes, bits, order=None):
    """The last dimension packed into 32-bit words, the first element lowest."""
    per = 32 // bits
    shifts = np.array(order if order else range(per), np.uint64) * np.uint64(bits)
    parts = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per) << shifts
    return parts.sum(-1, dtype=np.uint64).astype(np.uint32).view(np.int32)


def f16_scales(rng, *shape):
    return rng.uniform(0.002, 0.01, shape).astype(np.float16)


def awq(rng, name, rows, cols, group=128):
    codes, zeros = rng.integers(0, 16, (cols, rows)), rng.integers(0, 16, (cols // group, rows))
    scales = f16_scales(rng, cols // group, rows)
    tensors = {
        name + ".qweight": words(codes, 4, AWQ_ORDER),
        name + ".qzeros": words(zeros, 4, AWQ_ORDER),
        name + ".scales": scales,
    }
    each = np.arange(cols) // group
    return tensors, ((codes - zeros[each]).astype(np.float32) * scales.astype(np.float32)[each]).T


def gptq(rng, name, rows, cols, bits=4, group=128, second=False, act_order=False, symmetric=False, other=None):
    """other: the bits of the last matrix of the MLP, as "dynamic" of quantization_config may say."""
    bits = other if other and "down_proj" in name else bits
    top = 1 << bits
    codes = rng.integers(0, top, (cols, rows))
    zeros = rng.integers(1, top, (cols // group, rows))
    if symmetric:
        zeros[:] = top // 2
    scales = f16_scales(rng, cols // group, rows)
    each = np.arange(cols) // group
    if act_order:
        each = rng.permutation(each)
    tensors = {
        name + ".qweight": words(codes.T.copy(), bits).T.copy(),
        name + ".qzeros": words(zeros - (not second), bits),
        name + ".scales": scales,
        name + ".g_idx": each.astype(np.int32),
    }
    values = ((codes - zeros[each]).astype(np.float32) * scales.astype(np.float32)[each]).T
    return tensors, values.astype(np.float16).astype(np.float32) if act_order else values  # as plain numbers


def integers(rng, name, rows, cols, bits=4, group=128, asymmetric=False):
    group = group or cols
    top = 1 << bits
    codes = rng.integers(0, top, (rows, cols))
    scales = bf16(rng.uniform(0.002, 0.01, (rows, cols // group))).view(BF16)
    zeros = rng.integers(0, top, (rows, cols // group)) if asymmetric else np.full((rows, cols // group), top // 2)
    tensors = {
        name + ".weight_packed": words(codes, bits),
        name + ".weight_scale": scales,
        name + ".weight_shape": np.array([rows, cols], np.int64),
    }
    if asymmetric:
        tensors[name + ".weight_zero_point"] = words(zeros.T.copy(), bits).T.copy()
    each = np.arange(cols) // group
    values = (codes - zeros[:, each]).astype(np.float32) * np.asarray(scales, np.float32)[:, each]
    return tensors, bf16(values) if group % 32 else values  # groups that no form has: plain numbers


def signed_bytes(rng, name, rows, cols):
    codes = rng.integers(-127, 128, (rows, cols)).astype(np.int8)
    scales = bf16(rng.uniform(0.0002, 0.001, (rows, 1))).view(BF16)
    numbers = codes.astype(np.float32) * np.asarray(scales, np.float32)
    return {name + ".weight": codes, name + ".weight_scale": scales}, numbers


def ternary(rng, name, rows, cols, inverse=False):
    codes = rng.integers(0, 3, (rows, cols)).astype(np.uint8)
    quarters = codes.reshape(4, rows // 4, cols)
    scale = bf16(rng.uniform(20, 60, 1) if inverse else rng.uniform(0.02, 0.1, 1)).view(BF16)
    tensors = {
        name + ".weight": quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6,
        name + ".weight_scale": scale,
    }
    factor = np.asarray(scale, np.float32)[0]
    return tensors, (codes.astype(np.float32) - 1) * (np.float32(1) / factor if inverse else factor)


def e4m3(codes):
    sign, exponent, fraction = codes >> 7, (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(sign, -magnitude, magnitude).astype(np.float32)


def fp8(rng, name, rows, cols, block=None, suffix="weight_scale_inv", scale_type=None):
    codes = rng.integers(0, 0x68, (rows, cols)).astype(np.uint8) | (rng.integers(0, 2, (rows, cols)) << 7).astype(
        np.uint8
    )
    down, across = block or (rows, cols)
    shape = (-(-rows // down), -(-cols // across))
    scales = rng.uniform(0.002, 0.02, shape).astype(np.float32)
    if scale_type:
        scales = bf16(scales).view(BF16)
    each = np.asarray(scales, np.float32)[np.arange(rows)[:, None] // down, np.arange(cols) // across]
    tensors = {name + ".weight": codes.view(FP8), name + "." + suffix: scales if block else scales.reshape(1)}
    return tensors, bf16(e4m3(codes) * each)


def fp8_powers(rng, name, rows, cols):
    """DeepSeek-V4: scales of blocks are powers of two."""
    tensors, _ = fp8(rng, name, rows, cols, block=(128, 128))
    powers = rng.integers(118, 124, (-(-rows // 128), -(-cols // 128))).astype(np.uint8)
    codes = np.asarray(tensors[name + ".weight"])
    each = 2.0 ** (powers[np.arange(rows)[:, None] // 128, np.arange(cols) // 128].astype(np.float32) - 127)
    return {name + ".weight": tensors[name + ".weight"], name + ".scale": powers.view(E8M0)}, bf16(e4m3(codes) * each)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def fp4_powers(rng, name, rows, cols):
    """DeepSeek-V4's experts: two E2M1 numbers to a byte, the first one low, a power of two for each 32."""
    codes = rng.integers(0, 16, (rows, cols)).astype(np.uint8)
    powers = rng.integers(118, 124, (rows, cols // 32)).astype(np.uint8)
    tensors = {
        name + ".weight": (codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8),
        name + ".scale": powers.view(E8M0),
    }
    return tensors, E2M1[codes] * np.repeat(2.0 ** (powers.astype(np.float32) - 127), 32, axis=1)


def fp4(rng, name, rows, cols, factor=None, own=False):
    """NVFP4 of ModelOpt, whose factor multiplies, or of compressed-tensors (own), whose factor divides: its numbers in
    f32 as their dequantize() computes them, then bf16. factor: a power of two goes into the scales without loss."""
    codes = rng.integers(0, 16, (rows, cols)).astype(np.uint8)
    scales = rng.integers(0x28, 0x70, (rows, cols // 16)).astype(np.uint8)
    scales[rng.random(scales.shape) < 0.05] = 0
    factor = np.float32(factor or rng.uniform(1e-4, 1e-3))
    kept = np.array([np.float32(1) / factor] if own else factor, np.float32)
    by_block = e4m3(scales) / kept[0] if own else e4m3(scales) * kept
    numbers = E2M1[codes] * np.repeat(by_block, 16, axis=1)
    tensors = {
        name + (".weight_packed" if own else ".weight"): codes[:, ::2] | codes[:, 1::2] << 4,
        name + ".weight_scale": scales.view(FP8),
        name + (".weight_global_scale" if own else ".weight_scale_2"): kept,
        name + (".input_global_scale" if own else ".input_scale"): np.array([0.5], np.float32),
    }
    return tensors, bf16(numbers)


def power_scales(rng, name, rows, cols, bits=4):
    """MXFP4 and MXFP8 of compressed-tensors and ModelOpt: a power of two for each 32 columns."""
    powers = rng.integers(118, 124, (rows, cols // 32)).astype(np.uint8)
    each = np.repeat(2.0 ** (powers.astype(np.float32) - 127), 32, axis=1)
    if bits == 4:
        codes = rng.integers(0, 16, (rows, cols)).astype(np.uint8)
        packed_codes = {name + ".weight_packed": codes[:, ::2] | codes[:, 1::2] << 4}
        return {**packed_codes, name + ".weight_scale": powers}, E2M1[codes] * each
    codes = rng.integers(0, 0x70, (rows, cols)).astype(np.uint8)
    return {name + ".weight": codes.view(FP8), name + ".weight_scale": powers}, e4m3(codes) * each


def scheme(make, with_head=False, files=None, **config):
    """files: others of the directory, as JSON."""

    def build(rng):
        tensors = plain_tensors(rng)
        if with_head:
            del tensors["lm_head.weight"]
        numbers = dict(tensors)
        for name, (rows, cols) in [*linears(), *([("lm_head", (VOCAB, HIDDEN))] if with_head else [])]:
            parts, values = make(rng, name, rows, cols)
            tensors |= parts
            numbers[name + ".weight"] = np.ascontiguousarray(values, np.float32)
        base = base_config(**({"quantization_config": config} if config else {}))
        if files:
            base["files"] = files
        if with_head:
            del base["tie_word_embeddings"]
        return base, tensors, numbers

    return build


def pick(make, **options):
    return lambda rng, name, rows, cols: make(rng, name, rows, cols, **options)


def packed(form="pack-quantized"):
    return {"quant_method": "compressed-tensors", "format": form}


def modelopt(algo):
    return {"quant_method": "modelopt", "quant_algo": algo}


def auto_round(packing, **more):
    block = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 128, "sym": True}
    return {**block, "data_type": "int", **more}


def unpacked(rng, name, rows, cols):
    values = bf16(rng.uniform(-0.05, 0.05, (rows, cols)))
    return {name + ".weight": values.view(BF16)}, values


CACHE_ALONE = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
OWN_FILE = {"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": {"quant_algo": "NVFP4"}}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
BY_BLOCK = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 32]}
BLOCK_GROUPS = {"group_0": {"targets": ["Linear"], "weights": BY_BLOCK, "format": "float-quantized"}}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
SCHEMES = {
    "awq": scheme(awq, **AWQ),
    "awq 64": scheme(pick(awq, group=64), **{**AWQ, "group_size": 64}),
    "gptq": scheme(gptq, **GPTQ),
    "gptq symmetric": scheme(pick(gptq, symmetric=True), **GPTQ),
    "gptq v2": scheme(pick(gptq, second=True), **GPTQ, checkpoint_format="gptq_v2"),
    "gptq 8 bits": scheme(pick(gptq, bits=8, group=32), **{**GPTQ, "bits": 8, "group_size": 32}),
    "gptq 2 bits": scheme(pick(gptq, bits=2, group=64), **{**GPTQ, "bits": 2, "group_size": 64}),
    "gptq act-order": scheme(pick(gptq, group=64, act_order=True), **{**GPTQ, "group_size": 64, "desc_act": True}),
    "gptq with its head": scheme(gptq, with_head=True, **GPTQ),
    "gptq of mixed bits": scheme(pick(gptq, other=8), **GPTQ, dynamic={r"+:.*down_proj.*": {"bits": 8}}),
    "int4": scheme(integers, **packed()),
    "int4 of 32 with zeros": scheme(pick(integers, group=32, asymmetric=True), **packed()),
    "int4 of 16": scheme(pick(integers, group=16), **packed()),
    "int8 by channel": scheme(pick(integers, bits=8, group=0), **packed()),
    "bytes": scheme(signed_bytes, **packed("int-quantized")),
    "fp8 by channel": scheme(
        pick(fp8, block=(1, 256), suffix="weight_scale", scale_type="bf16"), **packed("float-quantized")
    ),
    "fp8 blocks of compressed-tensors": scheme(
        pick(fp8, block=(64, 32), suffix="weight_scale", scale_type="bf16"),
        **packed("float-quantized"),
        config_groups=BLOCK_GROUPS,
        kv_cache_scheme={"num_bits": 8},
        transform_config={},
    ),
    "mixed precision": scheme(
        lambda rng, name, rows, cols: (integers if "mlp" in name else signed_bytes)(rng, name, rows, cols),
        **packed("mixed-precision"),
        config_groups={"a": {"format": "pack-quantized"}, "b": {"format": "int-quantized"}},
        transform_config={"config_groups": {"u": {"apply": [{"location": "weight_output"}]}}},
    ),
    "fp8 of modelopt": scheme(pick(fp8, suffix="weight_scale"), quant_method="modelopt", quant_algo="FP8"),
    "fp8 by channel of modelopt": scheme(
        pick(fp8, block=(1, 256), suffix="weight_scale"), **modelopt("FP8_PER_CHANNEL_PER_TOKEN")
    ),
    "nvfp4 of modelopt": scheme(fp4, **modelopt("NVFP4"), group_size=16, kv_cache_scheme={"num_bits": 8}),
    "nvfp4 of a file of its own": scheme(fp4, files={"hf_quant_config.json": OWN_FILE}),
    "a cache of modelopt": scheme(unpacked, files={"hf_quant_config.json": CACHE_ALONE}),
    "a cache of modelopt, in config.json": scheme(unpacked, quant_method="modelopt", quant_algo=None),
    "nvfp4 whose factor goes into the scales": scheme(pick(fp4, factor=0.25), **modelopt("W4A16_NVFP4")),
    "nvfp4 of compressed-tensors": scheme(pick(fp4, own=True), **packed("nvfp4-pack-quantized")),
    "nvfp4 of compressed-tensors, a power of two": scheme(
        pick(fp4, own=True, factor=0.125), **packed("nvfp4-pack-quantized")
    ),
    "nvfp4 and fp8 of modelopt": scheme(
        lambda rng, name, rows, cols: (fp4 if "mlp" in name else pick(fp8, suffix="weight_scale"))(
            rng, name, rows, cols
        ),
        **modelopt("MIXED_PRECISION"),
        quantized_layers={"a": {"quant_algo": "NVFP4", "group_size": 16}, "b": {"quant_algo": "FP8"}},
    ),
    "mxfp4 of compressed-tensors": scheme(power_scales, **packed("mxfp4-pack-quantized")),
    "mxfp8 of compressed-tensors": scheme(pick(power_scales, bits=8), **packed("mxfp8-quantized")),
    "mxfp8 of modelopt": scheme(pick(power_scales, bits=8), **modelopt("MXFP8")),
    "auto-round as gptq": scheme(pick(gptq, group=64), **auto_round("auto_round:auto_gptq", group_size=64)),
    "auto-round as gptq, symmetric": scheme(pick(gptq, symmetric=True), **auto_round("auto_round:auto_gptq")),
    "auto-round of mixed bits": scheme(
        pick(gptq, other=8), **auto_round("auto_round:auto_gptq", extra_config={"down_proj": {"bits": 8}})
    ),
    "auto-round, zeros as they are": scheme(pick(gptq, second=True), **auto_round("auto_round")),
    "auto-round for gptqmodel": scheme(pick(gptq, second=True), **auto_round("auto_round:gptqmodel")),
    "auto-round, 2 bits": scheme(
        pick(gptq, bits=2, group=64), **auto_round("auto_round:auto_gptq", bits=2, group_size=64)
    ),
    "auto-round as awq": scheme(awq, **auto_round("auto_round:auto_awq")),
    "auto-round before packing_format": scheme(
        gptq, quant_method="auto-round", backend="auto_round:gptq:exllamav2", bits=4, group_size=128, data_type="int"
    ),
    "auto-round fp8": scheme(
        pick(fp8, block=(1, 256), suffix="weight_scale"), **auto_round("auto_round:fp8_static", bits=8)
    ),
    "auto-round nvfp4": scheme(
        pick(fp4, own=True), **auto_round("auto_round:llm_compressor", data_type="nv_fp", group_size=16)
    ),
    "fp8 blocks": scheme(pick(fp8, block=(128, 128)), **BLOCKS),
    "fp8 blocks of powers": scheme(fp8_powers, **BLOCKS, scale_fmt="ue8m0"),
    "fp4 of powers": scheme(fp4_powers, **BLOCKS, scale_fmt="ue8m0"),
    "fp8 blocks that end early": scheme(pick(fp8, block=(96, 80)), **{**BLOCKS, "weight_block_size": [96, 80]}),
    "ternary": scheme(ternary, quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline"),
    "ternary, divided": scheme(pick(ternary, inverse=True), quant_method="bitnet", linear_class="bitlinear"),
    "fp8 whole": scheme(fp8, quant_method="fp8", activation_scheme="static"),
}


def mlx_scheme(mode, bits, group):
    def build(rng):
        tensors, numbers = plain_tensors(rng), {}
        for name, (rows, cols) in linears():
            w = mx.array(rng.standard_normal((rows, cols)).astype(np.float32) * 0.1)
            parts = mx.quantize(w, group_size=group, bits=bits, mode=mode)
            for part, x in zip(("weight", "scales", "biases"), parts):
                tensors[f"{name}.{part}"] = np.array(x)
        return base_config(quantization={"group_size": group, "bits": bits, "mode": mode}), tensors, numbers

    return build


def gpt_oss(rng):
    """OpenAI's names and layout, and the numbers under MLX's names."""
    experts, hidden, inner = 4, 64, 96
    config = {
        "model_type": "gpt_oss",
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "intermediate_size": inner,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": VOCAB,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"],
        "rope_theta": 150000.0,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    }
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "lm_head.weight": (VOCAB, hidden)}
    shapes |= {"model.norm.weight": (hidden,), at + "self_attn.sinks": (2,)}
    shapes |= {at + f"{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    for n, rows in (("q", 64), ("k", 32), ("v", 32), ("o", hidden)):
        shapes |= {at + f"self_attn.{n}_proj.weight": (rows, 64), at + f"self_attn.{n}_proj.bias": (rows,)}
    shapes |= {at + "mlp.router.weight": (experts, hidden), at + "mlp.router.bias": (experts,)}
    tensors = {n: bf16(rng.standard_normal(s) * 0.3).view(BF16) for n, s in shapes.items()}
    numbers = {n: np.asarray(x, np.float32) for n, x in tensors.items()}
    lut = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for part, rows, cols in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        blocks = rng.integers(0, 256, (experts, rows, cols // 32, 16)).astype(np.uint8)
        scales = rng.integers(118, 124, (experts, rows, cols // 32)).astype(np.uint8)
        bias = bf16(rng.standard_normal((experts, rows)) * 0.1).view(BF16)
        name = at + "mlp.experts." + part
        tensors |= {name + "_blocks": blocks, name + "_scales": scales, name + "_bias": bias}
        values = lut[np.stack([blocks & 15, blocks >> 4], -1).reshape(experts, rows, cols // 32, 32)]
        values = (values * 2.0 ** (scales[..., None].astype(np.float32) - 127)).reshape(experts, rows, cols)
        halves = (("gate_proj", 0, 2), ("up_proj", 1, 2)) if part == "gate_up_proj" else (("down_proj", 0, 1),)
        for to, first, step in halves:
            numbers[at + f"mlp.experts.{to}.weight"] = values[:, first::step].astype(np.float32)
            numbers[at + f"mlp.experts.{to}.bias"] = np.asarray(bias, np.float32)[:, first::step]
    return config, tensors, numbers


SCHEMES["gpt-oss"] = gpt_oss
MLX = {f"mlx {b} bits of {g}": mlx_scheme("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)}
MLX |= {
    mode: mlx_scheme(mode, bits, group) for mode, bits, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32))
}


# ---- running ----


class Outcome:
    def __init__(self, arguments):
        with tempfile.TemporaryFile() as err:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            err.seek(0)
            self.text = err.read().decode(errors="replace")
        self.code, self.memory = process.returncode, usage.ru_maxrss << 10


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (HANG_S, HANG_S))


def must(arguments):
    outcome = Outcome(arguments)
    if outcome.code:
        raise RuntimeError(f"{arguments[1]}: exit code {outcome.code}: {outcome.text.strip()[-300:]}")


def logits(apus, directory, out):
    must([apus, "debug", "logits", directory, "--tokens", TOKENS, "--cpu", "ref", "--threads", "1", "--out", out])
    return np.load(out)


def compare_numbers(directory, numbers):
    got = mx.load(os.path.join(directory, "model.safetensors"))
    if set(got) != set(numbers):
        return f"tensors: {sorted(set(got) ^ set(numbers))[:4]}"
    for name, want in numbers.items():
        have = np.array(got[name])
        if have.shape != want.shape:
            return f"{name}: {have.shape}, {want.shape}"
        if not np.array_equal(have, want):  # a zero's sign is free
            return f"{name}: off by {np.abs(have - want).max()}"
    return None


def scheme_case(apus, work, build):
    config, tensors, numbers = build(np.random.default_rng(3))
    source, plain, kept, again = (os.path.join(work, n) for n in ("source", "plain", "kept", "again"))
    write(source, dict(config), tensors)
    must([apus, "convert", source, plain, "--dequantize", "--dtype", "float32"])
    wrong = compare_numbers(plain, numbers)
    if wrong:
        return wrong
    must([apus, "convert", source, kept])
    must([apus, "convert", kept, again, "--dequantize", "--dtype", "float32"])
    wrong = compare_numbers(again, numbers)
    if wrong:
        return "kept: " + wrong
    a, b, c = (logits(apus, d, os.path.join(work, "x.npy")) for d in (source, plain, kept))
    if not np.array_equal(a, c):
        return f"logits of what convert keeps: {np.abs(a - c).max()}"
    error = np.abs(a - b).max() / np.abs(b).max()
    return None if error <= 1e-5 and np.isfinite(a).all() else f"logits: {error}"


# ---- families ----


def stacked_fp8(rng, name, shape, block=16):
    """FP8Experts of transformers."""
    experts, rows, cols = shape
    codes = rng.integers(0, 0x50, shape).astype(np.uint8)
    scales = rng.uniform(0.002, 0.01, (experts, -(-rows // block), -(-cols // block))).astype(np.float32)
    each = scales[:, np.arange(rows)[:, None] // block, np.arange(cols) // block]
    return {name: codes.view(FP8), name + "_scale_inv": scales}, bf16(e4m3(codes) * each)


SMALL_GPTQ, SMALL_BLOCKS = {**GPTQ, "group_size": 32}, {**BLOCKS, "weight_block_size": [16, 16]}
# Fixture, the matrices to pack, how, quantization_config: an indexer; parts that are not there; factors; a stack.
FAMILIES = [
    ("deepseek-v32", r"indexer\.wk|kv_a_proj", pick(gptq, group=32, act_order=True), SMALL_GPTQ),
    ("granite-hybrid-published", r"shared_mlp|o_proj", pick(gptq, group=32), SMALL_GPTQ),
    ("falcon-h1-published", r"feed_forward", pick(gptq, group=32), SMALL_GPTQ),
    ("granitemoe-swa", r"experts\.(gate_up|down)_proj$", None, SMALL_BLOCKS),
]


def family_case(apus, work, name, packed_matrices, make, block):
    rng, fixture = np.random.default_rng(3), fixtures.read(name)
    fixture.setdefault("values", {})
    numbers = weights.make({k: tuple(s) for k, s in fixture["tensors"].items()}, {"dtype": "bf16"}, fixture)
    tensors, count = dict(numbers), 0
    for matrix, x in numbers.items():
        module = matrix.removesuffix(".weight")
        if re.search(packed_matrices, module) and x.ndim == (2 if make else 3):
            del tensors[matrix]
            parts, values = make(rng, module, *x.shape) if make else stacked_fp8(rng, module, x.shape)
            tensors |= parts
            numbers[matrix] = np.ascontiguousarray(values, np.float32)
            count += 1
    source, plain = (os.path.join(work, n) for n in ("source", "plain"))
    write(source, {**fixture["config"], "quantization_config": block}, tensors)
    write(plain, fixture["config"], numbers)
    a, b = (logits(apus, d, os.path.join(work, "x.npy")) for d in (source, plain))
    error = np.abs(a - b).max() / np.abs(b).max()
    return None if count and error <= 1e-5 else f"logits: {error}, {count} matrices"


# ---- refusals ----

REFUSED = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "hqq": {"quant_method": "hqq"},
    "awq gemv": {**AWQ, "version": "gemv"},
    "awq of 3 bits": {**AWQ, "bits": 3},
    "gptq of 3 bits": {**GPTQ, "bits": 3},
    "gptq marlin": {**GPTQ, "checkpoint_format": "marlin"},
    "sparse among others": {**packed("mixed-precision"), "config_groups": {"a": {"format": "marlin-24"}}},
    "nvfp4 with awq of modelopt": modelopt("NVFP4_AWQ"),
    "nvfp4 with awq among others": {
        **modelopt("MIXED_PRECISION"),
        "quantized_layers": {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "W4A8_AWQ"}},
    },
    "auto-round for another program": auto_round("auto_round:fake"),
    "auto-round of 3 bits": auto_round("auto_round:auto_gptq", bits=3),
    "auto-round, rotated": auto_round("auto_round:auto_gptq", rotation_config={"type": "hadamard"}),
    "auto-round with other scales": auto_round("auto_round:llm_compressor", data_type="nvfp4_v2"),
    "no format": {"quant_method": "compressed-tensors"},
    "rotated activations": {
        **packed(),
        "transform_config": {"config_groups": {"r": {"apply": [{"location": "weight_output"}, {"location": "input"}]}}},
    },
    "bitnet online": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    "fp8 of odd blocks": {**BLOCKS, "weight_block_size": [0, 128]},
}


def refusal_case(apus, work, block):
    config, tensors, _ = SCHEMES["awq"](np.random.default_rng(3))
    write(os.path.join(work, "source"), {**config, "quantization_config": block}, tensors)
    outcome = Outcome([apus, "info", os.path.join(work, "source")])
    words = ("quantization_config", "not supported", "apus convert")
    return None if outcome.code == 1 and all(w in outcome.text for w in words) else f"{outcome.code}: {outcome.text}"


# Tensors of a module that change the numbers, or cannot be right.
DOWN = "model.layers.0.mlp.down_proj"
REFUSED_TENSORS = {
    "factors of the input": (".pre_quant_scale", np.ones(INNER, np.float32)),
    "parts of low rank": (".svdquant_lora_a", np.ones((8, INNER), np.float32)),
    "a factor of 0": (".weight_scale_2", np.array(0, np.float32)),
    "a factor below 0": (".weight_scale_2", np.array([-1], np.float32)),
    "an infinite factor": (".weight_scale_2", np.array(np.inf, np.float32)),
    "a factor that is none": (".weight_scale_2", np.array(np.nan, np.float32)),
    "factors of rows": (".weight_scale_2", np.ones(HIDDEN, np.float32)),
    "scales of groups of 32": (".weight_scale", np.full((HIDDEN, INNER // 32), 0x38, np.uint8).view(FP8)),
    "scales that are floats": (".weight_scale", np.ones((HIDDEN, INNER // 16), np.float32)),
    "codes of 8 bits": (".weight", np.zeros((HIDDEN, INNER), np.uint8)),
}


def refused_tensor_case(apus, work, suffix, tensor):
    config, tensors, _ = SCHEMES["nvfp4 of modelopt"](np.random.default_rng(3))
    write(os.path.join(work, "source"), config, {**tensors, DOWN + suffix: tensor})
    outcome = Outcome([apus, "info", os.path.join(work, "source")])
    return None if outcome.code == 1 and DOWN in outcome.text else f"{outcome.code}: {outcome.text}"


# ---- broken ----


def break_shape(rng, config, header, data):
    name = rng.choice([n for n, h in header.items() if h["shape"]])
    shape = header[name]["shape"]
    i = rng.randrange(len(shape))
    shape[i] = rng.choice([0, shape[i] + 1, shape[i] - 1, 2 * shape[i], -1, 1 << 40, (1 << 62) + 1, 3.5])
    return name


def break_rank(rng, config, header, data):
    name = rng.choice(
        [n for n, h in header.items() if len(h["shape"]) == 2 and ".g_idx" not in n and 1 not in h["shape"]]
    )
    rows, cols = header[name]["shape"]
    header[name]["shape"] = rng.choice(
        [[rows * cols], [cols, rows] if rows != cols else [rows * cols], [1, rows, cols]]
    )
    return name


def break_dtype(rng, config, header, data):
    name = rng.choice([n for n in header if ".weight_shape" not in n and ".input_" not in n])
    other = {"F32": "I32", "F16": "I16", "BF16": "I16", "I32": "F32", "U32": "F32", "U8": "I8", "I8": "BOOL"}
    header[name]["dtype"] = rng.choice(["F99", other.get(header[name]["dtype"], "F64")])
    return name


def break_offsets(rng, config, header, data):
    name = rng.choice([n for n in header if ".weight_shape" not in n])
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = rng.choice(
        [[begin, end + 4], [end, begin], [begin - len(data), end], [begin + (1 << 40), end + (1 << 40)], [begin], "x"]
    )
    return name


def break_missing(rng, config, header, data):
    # a zero point or an order of columns that is not there means that there is none
    optional = (".weight_shape", ".input_", ".g_idx", ".qzeros", ".weight_zero_point", "lm_head")
    name = rng.choice([n for n in header if not any(o in n for o in optional)])
    del header[name]
    return name.rsplit(".", 1)[0].split("_blocks")[0].split("_scales")[0].split("_bias")[0]


def break_file(rng, config, header, data):
    del data[rng.randrange(len(data) * 3 // 4) :]
    return "model.safetensors"


def break_overlap(rng, config, header, data):
    a, b = rng.sample(sorted(n for n, h in header.items() if h["data_offsets"][1] - h["data_offsets"][0] >= 64), 2)
    size = header[b]["data_offsets"][1] - header[b]["data_offsets"][0]
    begin = header[a]["data_offsets"][0]
    if begin + size > len(data):
        a, b = b, a
        size = header[b]["data_offsets"][1] - header[b]["data_offsets"][0]
        begin = header[a]["data_offsets"][0]
    header[b]["data_offsets"] = [begin, begin + size]
    return "model.safetensors"


def break_size(rng, config, header, data):
    field = rng.choice(["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "head_dim"])
    config[field] = rng.choice([config[field] + 1, config[field] * 2, 0, -5, 1 << 40, "x", 1.5, [1]])
    return None


BREAKS = [break_shape, break_rank, break_dtype, break_offsets, break_missing, break_file, break_overlap, break_size]


def broken_cases(count, seed):
    rng = random.Random(seed)
    schemes = {**SCHEMES, **MLX}
    for i in range(count):
        scheme, edit, own = rng.choice(sorted(schemes)), BREAKS[i % len(BREAKS)], rng.randrange(1 << 30)
        name = f"broken {i}: {scheme}, {edit.__name__.removeprefix('break_')}"
        yield name, lambda a, w, s=schemes[scheme], e=edit, o=own: broken_case(a, w, s, e, o)


def broken_case(apus, work, build, edit, seed):
    config, tensors, _ = build(np.random.default_rng(3))
    said = []
    source = os.path.join(work, "source")
    write(source, config, tensors, lambda c, h, d: said.append(edit(random.Random(seed), c, h, d)))
    for command in (["info", source], ["convert", source, os.path.join(work, "out")]):
        outcome = Outcome([apus, *command])
        lines = [line for line in outcome.text.splitlines() if " warn " not in line]
        if outcome.code != 1:
            return f"{command[0]}: exit code {outcome.code}: {said}: {outcome.text[-300:]}"
        if len(lines) != 1 or len(outcome.text) > 2000:
            return f"{command[0]}: {len(lines)} lines: {outcome.text[:300]}"
        module = said[0].rsplit(".", 1)[0] if said[0] else ""  # of a packed matrix several tensors may be meant
        if module not in lines[0] and "model.safetensors" not in lines[0]:
            return f"{command[0]}: {said[0]} is not named: {lines[0][:300]}"
        if outcome.memory > MEMORY_MAX:
            return f"{command[0]}: took {outcome.memory >> 20} MB: {lines[0][:200]}"
    return None if os.listdir(work) == ["source"] else f"left behind: {os.listdir(work)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--apus", default=os.path.join(ROOT, "build", "apus"))
    parser.add_argument("--broken", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    limit()
    cases = [(name, lambda a, w, b=build: scheme_case(a, w, b)) for name, build in SCHEMES.items()]
    cases += [("family " + case[0], lambda a, w, c=case: family_case(a, w, *c)) for case in FAMILIES]
    cases += [("refused " + name, lambda a, w, b=block: refusal_case(a, w, b)) for name, block in REFUSED.items()]
    cases += [
        ("refused tensor: " + name, lambda a, w, t=tensor: refused_tensor_case(a, w, *t))
        for name, tensor in REFUSED_TENSORS.items()
    ]
    cases += broken_cases(options.broken, options.seed)
    passed = failed = 0
    for name, case in cases:
        if options.names and not any(n in name for n in options.names):
            continue
        with tempfile.TemporaryDirectory(prefix="apus-packed-") as work:
            try:
                wrong = case(os.path.abspath(options.apus), work)
            except RuntimeError as error:
                wrong = str(error)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print(f"FAILED  {name:44} {wrong}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
