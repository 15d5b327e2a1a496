#!/usr/bin/env python3
"""Writes what MLX dequantises and quantises (tests/tensor/data/quant.bin, for tests/tensor/test_quant.c), and what the
blocks of GGUF files stand for (tests/tensor/data/blocks.bin, for tests/import/test_gguf_blocks.c).
Made with mlx 0.32.4 (CPU), gguf 0.19.0, numpy 2.4.6, Python 3.11:  tools/make_quant_goldens.py

quant.bin is a row of records, little-endian: six u32 (operation 0 dequantise 1 quantise; Quant and DType as numbered in
src/tensor/tensor.h; bits; group; rows), then COLS columns per row of: packed data, scales, biases (affine) and f32
values. blocks.bin: two u32 (type as numbered by GGUF, elements), the blocks, f32 values.
"""

import struct
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np

COLS = 128
F32, F16, BF16 = 0, 1, 2
AFFINE, MXFP4, NVFP4, MXFP8 = 1, 2, 3, 4
TYPES = {F32: mx.float32, F16: mx.float16, BF16: mx.bfloat16}
# Scales and zero points met in no sane checkpoint, and in some insane ones.
ODD = [0.0, -0.0, -1.0, 1e-7, -3e-5, 6e-8, 65504.0, -60000.0, 3.0e38, -1e-40, 0.1, 1 / 3, 2.0**-24, 1e-38, -2.5, 7.0]

rng = np.random.default_rng(20)


def raw(array):
    """The bytes of an MLX array."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.ascontiguousarray(np.array(array)).tobytes()


def record(out, operation, quant, dtype, bits, group, rows, parts):
    out += struct.pack("<6I", operation, quant, dtype, bits, group, rows)
    for part in parts:
        out += raw(part)


def odd_floats(rows, groups, dtype, turn):
    """Half ordinary values, half odd ones, as far as the type holds them."""
    values = rng.standard_normal((rows, groups)).astype(np.float32)
    flat = values.reshape(-1)
    for i in range(0, flat.size, 2):
        flat[i] = ODD[(turn + i // 2) % len(ODD)]
    if dtype == F16:
        values = np.clip(values, -65504, 65504)
    return mx.array(values).astype(TYPES[dtype])


# Where the scale is.
FURTHER = {
    "Q2_K": 80,
    "Q3_K": 108,
    "IQ2_XXS": 0,
    "IQ2_XS": 0,
    "IQ3_XXS": 0,
    "IQ1_S": 0,
    "IQ3_S": 0,
    "IQ2_S": 0,
    "IQ4_XS": 0,
    "IQ1_M": 0,
    "TQ1_0": 52,
    "TQ2_0": 64,
    "MXFP4": 0,
}


def make_blocks(path):
    """Random bits make every field take every value; only the f16 scales are kept ordinary."""
    out = bytearray()
    halves = {
        "Q4_0": [0],
        "Q4_1": [0, 2],
        "Q5_0": [0],
        "Q5_1": [0, 2],
        "Q8_0": [0],
        "Q4_K": [0, 2],
        "Q5_K": [0, 2],
        "Q6_K": [208],
        "IQ4_NL": [0],
    }
    for name, places in halves.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 512 // elements
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for place in places:
            scale = (rng.standard_normal(count) * 0.01).astype(np.float16)
            scale[0] = 0 if place == 2 else -0.02
            blocks[:, place : place + 2] = scale.view(np.uint8).reshape(count, 2)
        if name == "Q6_K":  # the second block lies on a grid of 256 points, so it stays exact
            blocks[1, 192:208] = np.repeat([3, 4, 0, 1, 2, 4, 128, 2], 2).astype(np.uint8)
        values = gguf.dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
        out += struct.pack("<2I", kind.value, 512) + blocks.tobytes() + values.tobytes()
    more = np.random.default_rng(21)
    for name, place in FURTHER.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 512 // elements
        for odd in (False, True):
            blocks = more.integers(0, 256, (count, size), dtype=np.uint8)
            scale = (more.standard_normal((count, 2)) * 0.01).astype(np.float16)
            if odd:  # the largest, and one whose half and eighth are no halves
                scale[0], scale[-1] = (65504, -65504), (-5e-5, 3e-5)
            if name == "IQ1_M":  # four bits each in four words
                bits = scale.view(np.uint16)[:, 0]
                for i in range(4):
                    blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15).astype(np.uint8) << 4
            elif name == "MXFP4" and not odd:  # an exponent: any bits are one
                blocks[:, 0] = more.integers(118, 128, count)
            elif name != "MXFP4":
                halves = 4 if name == "Q2_K" else 2
                blocks[:, place : place + halves] = scale.view(np.uint8).reshape(count, 4)[:, :halves]
            if name == "Q2_K":  # some sub-blocks in pairs of one scale
                blocks[:, 1:8:4] = blocks[:, 0:8:4]
            values = gguf.dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
            out += struct.pack("<2I", kind.value, 512) + blocks.tobytes() + values.tobytes()
    path.write_bytes(out)
    print(f"{path}: {len(out)} bytes")


def main():
    out = bytearray()
    mx.set_default_device(mx.cpu)
    turn = 0
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for dtype in (F32, F16, BF16):
                rows = 2
                data = mx.array(rng.integers(0, 2**32, (rows, COLS * bits // 32), dtype=np.uint32))
                scales = odd_floats(rows, COLS // group, dtype, turn)
                biases = odd_floats(rows, COLS // group, dtype, turn * 7 + 3)
                turn += 3
                values = mx.dequantize(data, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)
                record(out, 0, AFFINE, dtype, bits, group, rows, [data, scales, biases, values])
    for quant, mode, bits, group, rows in (
        (MXFP4, "mxfp4", 4, 32, 16),
        (NVFP4, "nvfp4", 4, 16, 16),
        (MXFP8, "mxfp8", 8, 32, 16),
    ):
        data = mx.array(rng.integers(0, 2**32, (rows, COLS * bits // 32), dtype=np.uint32))
        codes = rng.integers(0, 256, (rows, COLS // group), dtype=np.uint8)
        codes.reshape(-1)[:8] = [0, 1, 127, 128, 254, 255, 2, 126]
        scales = mx.array(codes)
        values = mx.dequantize(data, scales, None, group, bits, mode=mode, dtype=mx.float32)
        record(out, 0, quant, F32, bits, group, rows, [data, scales, values])
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            x = (rng.standard_normal((2, COLS)) * 0.02).astype(np.float32)
            kind = turn % 6
            turn += 1
            if kind == 0:
                x[0, :group] = 0  # a group of zeros
            elif kind == 1:
                x[0, :group] = 0.37  # a constant group
            elif kind == 2:
                x[0, :group] = np.abs(x[0, :group]) + 1  # far from zero
            elif kind == 3:
                x[0, 5] = 1e4  # an outlier
            elif kind == 4:
                x[0, :group] *= 1e-30  # below the smallest scale
            else:
                x[0, :group] = -np.abs(x[0, :group])
            values = mx.array(x)
            data, scales, biases = mx.quantize(values, group, bits)
            record(out, 1, AFFINE, F32, bits, group, 2, [data, scales, biases, values])
    path = Path(__file__).resolve().parent.parent / "tests/tensor/data/quant.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)
    print(f"{path}: {len(out)} bytes, mlx {mx.__version__}")
    make_blocks(path.parent / "blocks.bin")


if __name__ == "__main__":
    main()
