"""The elements of a fixture's tensors: formulas of name and index, which tests/family/fixture.h computes as well."""

import mlx.core as mx
import numpy as np

# Suffixes of tensors whose elements need another range than the usual one: offset and width. Decays of recurrent layers
# lie between nearly 0 and nearly 1, so that both short and long memories are computed.
RULES = {
    "A_log": (1.0, 2.5),
    "dt_bias": (-1.5, 3.0),
    "dt_proj.bias": (-1.5, 3.0),
    "conv1d.weight": (0.0, 1.5),
    "conv.weight": (0.0, 1.5),
    "linear_attn.norm.weight": (1.0, 0.4),
    "mamba.norm.weight": (1.0, 0.4),
    "embeddings.weight": (0.0, 1.0),
    "act_fn.beta": (0.5, 0.4),  # of xIELU
    "act_fn.eps": (0.0, 0.0),
}


def rules_of(names):
    """The rules that occur, as a fixture keeps them."""
    return {suffix: list(rule) for suffix, rule in RULES.items() if any(name.endswith(suffix) for name in names)}


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def random_bits(name, count):
    """splitmix64 of fnv1a(name) + index."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name)) + np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def integers(name, shape, limit):
    """Numbers below limit, in each row as many different ones; a rule of three numbers ends with the limit."""
    bits = random_bits(name, int(np.prod(shape))).reshape(shape)
    return ((bits[:, :1] >> np.uint64(40)) + np.arange(shape[1], dtype=np.uint64)).astype(np.int64) % limit


def value(name, shape, norm_offset, embedding, rules):
    rule = next((rule for suffix, rule in rules.items() if name.endswith(suffix)), None)
    if rule and len(rule) == 3:
        return integers(name, shape, rule[2])
    unit = (random_bits(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    if rule:
        v = rule[0] + unit * rule[1]
    elif len(shape) >= 2 and not name.endswith(".bias"):
        v = unit * (embedding if "embed_tokens" in name else 4.0 / np.sqrt(float(shape[-1])))
    elif name.endswith(".bias"):
        v = unit * 0.2
    else:
        v = norm_offset + unit * 0.4
    return (np.rint(v * 4096) / 4096).astype(np.float32).reshape(shape)


def to_bf16(x):
    return np.array(mx.array(x).astype(mx.bfloat16).astype(mx.float32))


FP_MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}


def random_fp(name, shape, mode):
    """Random codes and scales instead of a quantiser. E4M3 codes stay below the two that mean NaN."""
    bits, group = FP_MODES[mode]
    rows, cols = shape
    codes = random_bits(name, rows * cols * bits // 8)
    codes = (codes >> np.uint64(56)).astype(np.uint8)
    if mode == "mxfp8":
        codes = codes & 0xB7
    random = (random_bits(name + ".scales", rows * cols // group) >> np.uint64(62)).astype(np.uint8)
    scales = random + (0x18 if mode == "nvfp4" else 125 if mode == "mxfp8" else 122)
    w = mx.array(codes.view(np.uint32).reshape(rows, cols * bits // 32))
    s = mx.array(scales.reshape(rows, cols // group))
    return np.array(mx.dequantize(w, s, group_size=group, bits=bits, mode=mode, dtype=mx.float32))


def stored(name, x, variant):
    """What is left of f32 values x after being stored as the variant says; integers stay as they are."""
    if x.dtype.kind == "i":
        return x
    if variant.get("dtype") == "f16":
        x = x.astype(np.float16).astype(np.float32)
    if variant.get("dtype") == "bf16":
        x = to_bf16(x)
    block = variant.get("quantization")
    if not block or x.ndim < 2 or name.endswith(".bias"):
        return x
    rule = block.get(name[: -len(".weight")], {k: block[k] for k in ("bits", "group_size", "mode") if k in block})
    if rule is False or x.shape[-1] % rule["group_size"]:
        return x
    if rule.get("mode", "affine") != "affine":
        return random_fp(name, (int(np.prod(x.shape[:-1])), x.shape[-1]), rule["mode"]).reshape(x.shape)
    w, s, b = mx.quantize(mx.array(x), group_size=rule["group_size"], bits=rule["bits"])
    if variant.get("scales") == "bf16":
        s, b = (v.astype(mx.bfloat16).astype(mx.float32) for v in (s, b))
    return np.array(mx.dequantize(w, s, b, group_size=rule["group_size"], bits=rule["bits"]))


def make(shapes, variant, fixture):
    """All tensors of a variant, as f32. fixture: norm_offset, embedding_range and values."""
    of = (fixture["norm_offset"], fixture["embedding_range"], fixture["values"])
    return {name: stored(name, value(name, shape, *of), variant) for name, shape in shapes.items()}
