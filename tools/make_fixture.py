#!/usr/bin/env python3
"""Golden logits of tiny random checkpoints, one per entry of CASES, into tests/family/data/NAME.json and NAME.f32.

    python3 tools/make_fixture.py [NAME…]        # all of them, or these

Pinned: mlx[cpu] 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, gguf 0.19.0, numpy. f32 on the CPU.

Where a family was trained with a sliding window that mlx-lm's class does not know ("window" of a case), mlx-lm runs
with the mask of transformers: which layers slide, and how far, is what transformers makes of the very config
(AutoConfig: sliding_window, layer_types); query i sees key j when i - j < sliding_window (its
masking_utils.sliding_window_overlay).

No weights are stored: every element is a formula of its tensor's name and index (value() below), and
tests/family/fixture.h computes the same. NAME.json holds config, tensor shapes, tokens and, per variant, how the
weights are stored; NAME.f32 the logits of all variants, [variants, tokens, vocab] little-endian. Where llama.cpp knows
the architecture, NAME.json also says how its converter names the modules in a GGUF file
(tests/import/test_gguf_families.c). The last `steps` tokens were fed one at a time, the others as one prompt. Quantised
variants: mlx-lm runs in f32 on the dequantised weights. int8_kl: mean and median over the rows of the KL divergence
that rounding the input of every matrix product to 8 bits (per 32 values, scale max|x|/127) costs in this very model;
int8_top1: the part of rows leading by 0.25 or more whose first choice survives it. They bound what a fast backend may
do.

A new family: add a case with a small config of it (hidden size a multiple of 64, a vocabulary of about 64, odd numbers
wherever the family allows them) and run this script with its name.
"""

import importlib
import json
import os
import re
import sys

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear
from transformers import AutoConfig

OUT = os.path.join(os.path.dirname(__file__), "..", "tests", "family", "data")
MODULES = {"mistral": "llama", "minimax_m2": "minimax"}  # model_type → module of mlx_lm.models, where they differ
ARCHITECTURES = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}  # model_type → llama.cpp's, where they differ
STORED_MINUS_ONE = ("gemma3", "gemma3_text")

# ---- the weights ----


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


def value(name, shape, norm_offset, embedding):
    unit = (random_bits(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    if len(shape) >= 2 and not name.endswith(".bias"):
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
    """What is left of f32 values x after being stored as the variant says."""
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


# ---- running mlx-lm ----

exact_linear, exact_as_linear = nn.Linear.__call__, nn.Embedding.as_linear
exact_switch, exact_heads = SwitchLinear.__call__, MultiLinear.__call__


def to_int8(x):
    width = x.shape[-1]
    padded = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % 32)])
    groups = padded.reshape(*x.shape[:-1], -1, 32)
    scale = mx.maximum(mx.abs(groups).max(-1, keepdims=True) / 127, 1e-20)
    return (mx.round(groups / scale) * scale).reshape(padded.shape)[..., :width]


def round_inputs(on):
    nn.Linear.__call__ = (lambda self, x: exact_linear(self, to_int8(x))) if on else exact_linear
    nn.Embedding.as_linear = (lambda self, x: exact_as_linear(self, to_int8(x))) if on else exact_as_linear
    MultiLinear.__call__ = (
        (lambda self, x, *rest, **named: exact_heads(self, to_int8(x), *rest, **named)) if on else exact_heads
    )
    SwitchLinear.__call__ = (
        (lambda self, x, *rest, **named: exact_switch(self, to_int8(x), *rest, **named)) if on else exact_switch
    )


def trained_windows(config):
    """The window of every layer, or None, as transformers has it."""
    trained = AutoConfig.for_model(**config)
    layers = getattr(trained, "layer_types", None) or ["sliding_attention"] * trained.num_hidden_layers
    return [trained.sliding_window if layer == "sliding_attention" else None for layer in layers]


def attend(queries, keys, values, cache, scale, mask, sinks=None):
    window = getattr(cache, "window", None)
    if window:
        rows = queries.shape[2]
        mask = create_causal_mask(rows, keys.shape[2] - rows, window_size=window)
    return scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)


def run(model, tokens, steps, windows):
    cache = make_prompt_cache(model)
    if windows:
        sys.modules[type(model.layers[0].self_attn).__module__].scaled_dot_product_attention = attend
        for layer, window in zip(cache, windows):
            layer.window = window
    prompt = len(tokens) - steps
    out = [model(mx.array([tokens[:prompt]]), cache=cache)[0]]
    for i in range(prompt, len(tokens)):
        out.append(model(mx.array([tokens[i : i + 1]]), cache=cache)[0])
    return np.array(mx.concatenate(out).astype(mx.float32))


def build(config, weights):
    module = importlib.import_module("mlx_lm.models." + MODULES.get(config["model_type"], config["model_type"]))
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    if weights is None:
        return model
    weights = {name: mx.array(x) for name, x in weights.items()}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=True)
    return model


def kl(golden, other):
    def log_softmax(x):
        x = x.astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(golden), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1)


def top1(golden, other, lead=0.25):
    ordered = np.sort(golden, -1)
    clear = ordered[:, -1] - ordered[:, -2] >= lead
    return float((golden.argmax(-1) == other.argmax(-1))[clear].mean()) if clear.any() else 1.0


def gguf_module(name):
    """As gguf-py knows what MLX stacked."""
    name = name.replace("e_score_correction_bias", "e_score_correction").replace(".mlp.switch_mlp.", ".mlp.experts.")
    name = name.replace(".embed_q", ".k_b_proj").replace(".unembed_out", ".v_b_proj")
    for mlx, mixtral in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
        name = name.replace(f".block_sparse_moe.switch_mlp.{mlx}", f".block_sparse_moe.experts.{mixtral}")
    return name


def gguf_names(config, shapes):
    """Module → its name in a GGUF file, * for the block's number; empty: llama.cpp does not know the architecture."""
    known = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    architecture = known.get(ARCHITECTURES.get(config["model_type"], config["model_type"]))
    if not architecture or "text_config" in config:
        return {}
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    modules = [re.sub(r"\.(weight|bias)$", "", name) for name in shapes]
    known = {m: names.get_name(gguf_module(m)) for m in modules}
    return {re.sub(r"\.\d+\.", ".*.", m): re.sub(r"\.\d+\.", ".*.", name) for m, name in known.items() if name}


def make(name, case):
    config, tied = case["config"], case.get("drop", [])
    shapes = {k: v.shape for k, v in tree_flatten(build(config, None).parameters()) if k not in tied}
    shapes = {k: s for k, s in shapes.items() if "_freqs" not in k}
    offset = 0.0 if config["model_type"] in STORED_MINUS_ONE else 1.0
    # Gemma scales embeddings up; large ones would drown what the layers add.
    embedding = 0.15 if offset == 0 else 1.0
    vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
    count, steps = case.get("tokens", 20), case.get("steps", 5)
    tokens = [int(t) for t in random_bits(name, count) % np.uint64(vocab)]
    windows = trained_windows(config) if case.get("window") else None
    variants, logits = [], []
    for variant in case.get("variants", [{"dtype": "f32"}]):
        weights = {k: stored(k, value(k, s, offset, embedding), variant) for k, s in shapes.items()}
        model = build(config, weights)
        golden = run(model, tokens, steps, windows)
        round_inputs(True)
        rough = run(model, tokens, steps, windows)
        round_inputs(False)
        rows = kl(golden, rough)
        print(f"{name:24} {str(variant)[:70]:70} max|logit| {np.abs(golden).max():7.2f}  int8 kl {rows.mean():.1e}")
        assert np.isfinite(golden).all()
        variants.append(
            {
                **variant,
                "int8_kl": [float(f"{rows.mean():.3g}"), float(f"{np.median(rows):.3g}")],
                "int8_top1": round(top1(golden, rough), 3),
            }
        )
        logits.append(golden)
    lines = [
        f'"config": {json.dumps(config)}',
        f'"norm_offset": {int(offset)}',
        f'"embedding_range": {embedding}',
        f'"vocab": {vocab}',
        '"tensors": {\n' + ",\n".join(f'  "{k}": {json.dumps(list(s))}' for k, s in shapes.items()) + "}",
        *([f'"gguf": {json.dumps(names)}'] if (names := gguf_names(config, shapes)) else []),
        f'"tokens": {json.dumps(tokens)}',
        f'"steps": {steps}',
        '"variants": [\n' + ",\n".join("  " + json.dumps(v) for v in variants) + "]",
    ]
    with open(os.path.join(OUT, name + ".json"), "w") as f:
        f.write("{" + ",\n".join(lines) + "}\n")
    np.concatenate(logits).astype("<f4").tofile(os.path.join(OUT, name + ".f32"))


# ---- the cases ----

F32, F16, BF16 = {"dtype": "f32"}, {"dtype": "f16"}, {"dtype": "bf16"}


def affine(bits, group, **modules):
    return {
        "dtype": "bf16",
        "scales": "bf16",
        "quantization": {"group_size": group, "bits": bits, **{k.replace("__", "."): v for k, v in modules.items()}},
    }


def fp(mode):
    return {"dtype": "bf16", "quantization": {"group_size": FP_MODES[mode][1], "bits": FP_MODES[mode][0], "mode": mode}}


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 48,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-4,
    "vocab_size": 64,
    "sliding_window": 7,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 24,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "max_position_embeddings": 512,
    "hidden_activation": "gelu_pytorch_tanh",
}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 48,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MOE = {**LLAMA, "num_hidden_layers": 3}
DEEPSEEK_CHOICE = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0}
DEEPSEEK = {
    **DEEPSEEK_CHOICE,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "rope_scaling": {
        "type": "yarn",
        "factor": 8,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
    },
}
GRANITE = {
    "model_type": "granitemoe",
    "intermediate_size": 64,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.7,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 7,
    "rms_norm_eps": 1e-5,
    "vocab_size": 48,
    "rope_theta": 150000,
    "max_position_embeddings": 512,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}
KLEAR = {
    "model_type": "Klear",
    "attention_bias": False,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
AFMOE = {
    "model_type": "afmoe",
    "head_dim": 24,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "num_dense_layers": 1,
    "route_scale": 1.7,
    "sliding_window": 7,
}
HUNYUAN = {
    "model_type": "hunyuan",
    "attention_bias": False,
    "use_qk_norm": True,
    "use_cla": False,
    "cla_share_factor": 2,
    "tie_word_embeddings": True,
    "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
}
MIMO = {
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "v_head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 32,
    "swa_v_head_dim": 20,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window_size": 7,
    "rope_theta": 10000.0,
    "swa_rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": None,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "vocab_size": 48,
    "layernorm_epsilon": 1e-5,
    "max_position_embeddings": 512,
}


def rope(**scaling):
    return {"config": {**LLAMA, "rope_scaling": scaling}}


CASES = {
    "llama": {
        "config": {**LLAMA, "num_hidden_layers": 3},
        "variants": [
            F32,
            F16,
            BF16,
            affine(4, 32),
            affine(
                4,
                32,
                model__embed_tokens={"group_size": 32, "bits": 8},
                model__layers__0__mlp__down_proj={"group_size": 32, "bits": 6},
                model__layers__1__self_attn__o_proj=False,
                lm_head={"group_size": 64, "bits": 8},
            ),
        ],
    },
    "llama-window": {
        "config": {
            **LLAMA,
            "num_hidden_layers": 4,
            "sliding_window": 7,
            "vocab_size": 32,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        "tokens": 150,
        "steps": 4,
        "variants": [F32, affine(4, 64)],
    },
    "llama-odd": {
        "config": {
            **LLAMA,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 80,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_traditional": True,
        },
        "variants": [F32, affine(8, 32)],
    },
    "llama-group128": {
        "config": {
            **LLAMA,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "head_dim": 96,
        },
        "variants": [affine(4, 128), affine(2, 32), affine(3, 64), affine(5, 64), affine(6, 128)],
    },
    "llama-fp": {"config": LLAMA, "variants": [fp("mxfp4"), fp("nvfp4"), fp("mxfp8")]},
    "mistral": {"config": {**LLAMA, "model_type": "mistral", "head_dim": 24, "rope_theta": 1000000.0}},
    "mistral-window": {
        "config": {**LLAMA, "model_type": "mistral", "num_hidden_layers": 3, "sliding_window": 7, "vocab_size": 32},
        "window": True,
        "tokens": 150,
        "steps": 4,
        "variants": [F32, affine(4, 64)],
    },
    "mistral-types": {
        "config": {
            **LLAMA,
            "model_type": "mistral",
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "tokens": 40,
    },
    "rope-linear": rope(type="linear", factor=4.0),
    "rope-llama3": rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "rope-yarn": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=16, beta_slow=2),
    "rope-yarn-mscale": rope(
        type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.9, mscale_all_dim=0.4
    ),
    "rope-longrope": rope(
        rope_type="longrope",
        original_max_position_embeddings=64,
        short_factor=[1.0] * 8,
        long_factor=[1.0, 1.1, 1.3, 1.7, 2.5, 4.0, 6.5, 11.0],
    ),
    "rope-longrope-traditional": {
        "config": {
            **LLAMA,
            "rope_traditional": True,
            "rope_scaling": {
                "rope_type": "longrope",
                "original_max_position_embeddings": 64,
                "short_factor": [1.0] * 8,
                "long_factor": [1.0, 1.1, 1.3, 1.7, 2.5, 4.0, 6.5, 11.0],
            },
        }
    },
    # mlx-lm's theta grows with the length of the call, ours with the row's position: beyond 12 tokens one at a time.
    "rope-dynamic": {
        "config": {**LLAMA, "max_position_embeddings": 12, "rope_scaling": {"type": "dynamic", "factor": 3.0}},
        "tokens": 20,
        "steps": 8,
    },
    "rope-proportional": rope(rope_type="proportional", partial_rotary_factor=0.5, factor=2.0),
    "qwen2": {
        "config": {
            **LLAMA,
            "model_type": "qwen2",
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 1,
        },
        "variants": [F32, BF16, affine(4, 32)],
    },
    "qwen2-window": {
        "config": {
            **LLAMA,
            "model_type": "qwen2",
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
        "window": True,
        "tokens": 40,
    },
    "qwen3-window": {
        "config": {
            **LLAMA,
            "model_type": "qwen3",
            "num_hidden_layers": 3,
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "window": True,
        "tokens": 40,
    },
    "qwen3": {
        "config": {
            "model_type": "qwen3",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "rms_norm_eps": 1e-5,
            "vocab_size": 64,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "rope_scaling": None,
            "rope_parameters": {
                "rope_theta": 1000000.0,
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
            },
        },
        "variants": [F32, affine(4, 64)],
    },
    "gemma3-text": {
        "config": {**GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "drop": ["lm_head.weight"],
        "variants": [F32, BF16, affine(4, 64)],
    },
    "gemma3-untied": {
        "config": {
            **GEMMA,
            "head_dim": 48,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 48,
            "rope_local_base_freq": 20000.0,
        }
    },
    "gemma3": {
        "config": {
            "model_type": "gemma3",
            "vocab_size": 64,
            "vision_config": {"hidden_size": 8},
            "mm_tokens_per_image": 4,
            "text_config": {k: v for k, v in GEMMA.items() if k not in ("vocab_size", "num_key_value_heads")}
            | {"num_attention_heads": 8, "model_type": "gemma3_text"},
        },
        "drop": ["language_model.lm_head.weight"],
        "variants": [F32, affine(4, 32)],
    },
    "phi3": {
        "config": {
            **PHI3,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 12,
                "long_factor": [1.0 + 0.25 * i for i in range(12)],
            },
        },
        "variants": [F32, affine(4, 32)],
    },
    "phi3-tied": {"config": {**PHI3, "tie_word_embeddings": True, "num_key_value_heads": None}},
    "phi3-window": {
        "config": {**PHI3, "sliding_window": 6, "full_attn_mod": 1, "interpolate_factor": 1},
        "window": True,
        "tokens": 40,
        "variants": [F32, affine(4, 32)],
    },
    "smollm3": {
        "config": {
            **LLAMA,
            "model_type": "smollm3",
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
        },
        "variants": [F32, affine(4, 32)],
    },
    "smollm3-window": {
        "config": {
            **LLAMA,
            "model_type": "smollm3",
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 6,
        },
        "window": True,
        "tokens": 40,
    },
    "smollm3-list": {"config": {**LLAMA, "model_type": "smollm3", "no_rope_layers": [0, 1]}},
    "olmoe": {
        "config": {**LLAMA, "model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False},
        "variants": [F32, affine(4, 32)],
    },
    "olmoe-norm": {
        "config": {
            **LLAMA,
            "model_type": "olmoe",
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 48,
            "num_experts": 9,
            "num_experts_per_tok": 5,
            "norm_topk_prob": True,
            "intermediate_size": 64,
        }
    },
    "mixtral": {
        "config": {
            **{k: v for k, v in LLAMA.items() if k != "hidden_act"},
            "model_type": "mixtral",
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        "variants": [F32, BF16, affine(4, 32), affine(6, 64)],
    },
    "mixtral-one": {
        "config": {
            **LLAMA,
            "model_type": "mixtral",
            "num_local_experts": 5,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
    },
    "qwen2-moe": {
        "config": {
            **LLAMA,
            "model_type": "qwen2_moe",
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 160,
            "norm_topk_prob": False,
        },
        "variants": [F32, affine(4, 32)],
    },
    "qwen2-moe-small": {
        "config": {
            **LLAMA,
            "model_type": "qwen2_moe",
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 32,
        }
    },
    "qwen3-moe": {
        "config": {
            **LLAMA,
            "model_type": "qwen3_moe",
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
        },
        "variants": [F32, affine(4, 32), fp("mxfp4")],
    },
    "qwen3-moe-all": {
        "config": {
            **LLAMA,
            "model_type": "qwen3_moe",
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        },
        "variants": [F32, F16],
    },
    "qwen3-moe-dense": {
        "config": {
            **LLAMA,
            "model_type": "qwen3_moe",
            "head_dim": 24,
            "num_experts": 4,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 64,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        }
    },
    "glm4-moe": {
        "config": {
            **MOE,
            **DEEPSEEK,
            "model_type": "glm4_moe",
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "n_routed_experts": 12,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
        },
        "variants": [F32, BF16, affine(6, 32)],
    },
    "glm4-moe-one": {
        "config": {
            **MOE,
            **DEEPSEEK,
            "model_type": "glm4_moe",
            "num_hidden_layers": 2,
            "head_dim": 24,
            "n_routed_experts": 6,
            "use_qk_norm": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
        }
    },
    "glm4-moe-plain": {
        "config": {
            **MOE,
            **DEEPSEEK,
            "model_type": "glm4_moe",
            "num_hidden_layers": 2,
            "head_dim": 32,
            "hidden_size": 96,
            "n_routed_experts": 5,
            "num_experts_per_tok": 1,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "use_qk_norm": False,
            "attention_bias": False,
            "partial_rotary_factor": 1.0,
            "rope_scaling": None,
            "moe_intermediate_size": 32,
        }
    },
    "dots1": {
        "config": {
            **MOE,
            **DEEPSEEK,
            "model_type": "dots1",
            "n_routed_experts": 10,
            "num_experts_per_tok": 4,
            "n_group": 5,
            "topk_group": 3,
            "scoring_func": "noaux_tc",
        },
        "variants": [F32, affine(4, 32)],
    },
    "dots1-wide": {
        "config": {
            **MOE,
            **DEEPSEEK,
            "model_type": "dots1",
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 48,
            "n_routed_experts": 7,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        }
    },
    "minimax": {
        "config": {
            **MOE,
            "model_type": "minimax",
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 64,
            "num_local_experts": 9,
            "num_experts_per_tok": 4,
            "shared_intermediate_size": 0,
            "rotary_dim": 16,
        },
        "variants": [F32, affine(4, 32)],
    },
    "minimax-m2": {
        "config": {
            **MOE,
            "model_type": "minimax_m2",
            "hidden_size": 128,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 20,
            "intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 0,
            "rotary_dim": 20,
            "use_qk_norm": False,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": True,
        }
    },
    "granitemoe": {
        "config": {**MOE, **GRANITE, "num_local_experts": 8, "num_experts_per_tok": 3},
        "variants": [F32, BF16, affine(4, 32)],
    },
    "granitemoe-untied": {
        "config": {
            **MOE,
            **GRANITE,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "intermediate_size": 160,
            "logits_scaling": 0.5,
            "tie_word_embeddings": False,
        }
    },
    "ernie4-5-moe": {
        "config": {
            **MOE,
            "model_type": "ernie4_5_moe",
            "use_bias": False,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1,
        },
        "variants": [F32, affine(4, 32)],
    },
    "ernie4-5-moe-bias": {
        "config": {
            **MOE,
            "model_type": "ernie4_5_moe",
            "num_hidden_layers": 4,
            "use_bias": True,
            "head_dim": 32,
            "moe_num_experts": 3,
            "moe_k": 1,
            "moe_gate_act": "sigmoid",
            "moe_layer_interval": 2,
            "moe_layer_end_index": 2,
            "moe_layer_start_index": 0,
            "tie_word_embeddings": True,
        }
    },
    "bailing-moe": {
        "config": {
            **MOE,
            "model_type": "bailing_moe",
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "num_shared_experts": 2,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
        },
        "variants": [F32, affine(4, 32)],
    },
    "bailing-moe-groups": {
        "config": {
            **MOE,
            "model_type": "bailing_moe",
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "num_shared_experts": 1,
            "moe_shared_expert_intermediate_size": 96,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "use_qkv_bias": True,
            "use_bias": True,
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "routed_scaling_factor": 2.5,
            "partial_rotary_factor": 0.5,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
        }
    },
    "exaone-moe": {
        "config": {
            **MOE,
            **DEEPSEEK_CHOICE,
            "model_type": "exaone_moe",
            "num_hidden_layers": 4,
            "head_dim": 24,
            "moe_intermediate_size": 64,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "is_moe_layer": [False, True, True, True],
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        "tokens": 40,
        "variants": [F32, affine(4, 32)],
    },
    "exaone-moe-full": {
        "config": {
            **MOE,
            **DEEPSEEK_CHOICE,
            "model_type": "exaone_moe",
            "hidden_size": 96,
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "moe_intermediate_size": 32,
            "num_experts": 12,
            "num_experts_per_tok": 5,
            "n_group": 2,
            "topk_group": 1,
            "num_shared_experts": 2,
            "sliding_window": 7,
            "layer_types": ["full_attention", "full_attention"],
            "is_moe_layer": [True, False],
            "tie_word_embeddings": True,
        }
    },
    "mimo-v2-flash": {
        "config": {**MIMO, "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1]},
        "tokens": 40,
        "variants": [F32, affine(4, 32)],
    },
    "mimo-v2-flash-scaled": {
        "config": {
            **MIMO,
            "num_hidden_layers": 2,
            "hybrid_layer_pattern": [1, 0],
            "moe_layer_freq": [1, 0],
            "hidden_size": 96,
            "v_head_dim": 40,
            "swa_head_dim": 24,
            "swa_v_head_dim": 24,
            "add_full_attention_sink_bias": True,
            "add_swa_attention_sink_bias": False,
            "attention_value_scale": 0.707,
            "n_shared_experts": None,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "partial_rotary_factor": 1.0,
        }
    },
    "llama4-text": {
        "config": {
            **MOE,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "head_dim": 24,
            "intermediate_size_mlp": 160,
            "no_rope_layers": [1, 1, 0, 1],
            "use_qk_norm": True,
            "tie_word_embeddings": True,
        },
        "variants": [F32, affine(4, 32)],
    },
    "llama4-text-untied": {
        "config": {
            **MOE,
            "model_type": "llama4_text",
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "intermediate_size_mlp": 64,
            "no_rope_layers": [0, 1],
            "use_qk_norm": False,
        }
    },
    "gpt-oss": {
        "config": {**GPT_OSS, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "tokens": 40,
        "variants": [F32, BF16, fp("mxfp4"), affine(4, 32)],
    },
    "gpt-oss-plain": {
        "config": {
            **GPT_OSS,
            "num_hidden_layers": 2,
            "hidden_size": 96,
            "intermediate_size": 160,
            "head_dim": 16,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "sliding_window": 5,
            "rope_scaling": None,
        },
        "tokens": 30,
    },
    "phimoe": {
        "config": {
            **MOE,
            "model_type": "phimoe",
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.2,
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [1.0 + 0.25 * i for i in range(8)],
                "short_mscale": 1.1,
                "long_mscale": 1.3,
            },
        },
        "variants": [F32, affine(6, 32)],
    },
    "phimoe-plain": {
        "config": {
            **MOE,
            "model_type": "phimoe",
            "num_hidden_layers": 2,
            "hidden_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "num_local_experts": 9,
            "num_experts_per_tok": 3,
            "router_jitter_noise": 0.05,
            "rope_scaling": None,
        }
    },
    "klear": {
        "config": {**MOE, **KLEAR, "num_experts": 6, "num_experts_per_tok": 2, "mlp_only_layers": [0]},
        "variants": [F32, affine(4, 32)],
    },
    "klear-wide": {
        "config": {
            **MOE,
            **KLEAR,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "num_hidden_layers": 2,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "norm_topk_prob": False,
        }
    },
    "afmoe": {
        "config": {
            **MOE,
            **AFMOE,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        "tokens": 40,
        "variants": [F32, affine(6, 32)],
    },
    "afmoe-groups": {
        "config": {
            **MOE,
            **AFMOE,
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "head_dim": 40,
            "layer_types": ["full_attention", "sliding_attention"],
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "num_shared_experts": 0,
            "num_dense_layers": 0,
            "route_norm": False,
            "score_func": "softmax",
            "mup_enabled": False,
            "tie_word_embeddings": True,
        },
        "tokens": 30,
    },
    "hunyuan": {
        "config": {
            **MOE,
            **HUNYUAN,
            "moe_intermediate_size": [64, 32, 64],
            "num_experts": 6,
            "moe_topk": [2, 3, 1],
            "num_shared_expert": [1, 2, 1],
            "use_mixed_mlp_moe": True,
        },
        "drop": [],
        "variants": [F32, affine(4, 32)],
    },
    "hunyuan-plain": {
        "config": {
            **MOE,
            **HUNYUAN,
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "use_qk_norm": False,
            "num_experts": 3,
            "moe_topk": 2,
            "num_shared_expert": 1,
            "use_mixed_mlp_moe": False,
        }
    },
    "deepseek-v2": {
        "config": {
            **MOE,
            **DEEPSEEK,
            **LATENT,
            "model_type": "deepseek_v2",
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.0,
            "norm_topk_prob": False,
            "scoring_func": "softmax",
        },
        "variants": [F32, BF16, affine(4, 32)],
    },
    "deepseek-v2-lite": {
        "config": {
            **MOE,
            **DEEPSEEK,
            **LATENT,
            "model_type": "deepseek_v2",
            "num_hidden_layers": 2,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "kv_lora_rank": 40,
            "q_lora_rank": None,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "topk_method": "greedy",
            "attention_bias": True,
            "n_routed_experts": 5,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
        }
    },
    "deepseek-v3": {
        "config": {
            **MOE,
            **DEEPSEEK,
            **LATENT,
            "model_type": "deepseek_v3",
            "n_routed_experts": 12,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 2.5,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "rope_scaling": {**LATENT["rope_scaling"], "mscale": 0.7},
        },
        "tokens": 30,
        "variants": [F32, BF16, affine(4, 32)],
    },
    "deepseek-v3-plain": {
        "config": {
            **MOE,
            **DEEPSEEK,
            **LATENT,
            "model_type": "deepseek_v3",
            "num_hidden_layers": 2,
            "hidden_size": 128,
            "num_attention_heads": 2,
            "kv_lora_rank": 96,
            "q_lora_rank": None,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 24,
            "v_head_dim": 32,
            "rope_scaling": None,
            "n_routed_experts": 6,
            "num_experts_per_tok": 1,
            "first_k_dense_replace": 0,
            "n_shared_experts": None,
        },
        "tokens": 150,
    },
    "phi": {
        "config": {
            "model_type": "phi",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.5,
            "vocab_size": 48,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu_new",
            "max_position_embeddings": 512,
        },
        "variants": [F32, affine(4, 32)],
    },
}

if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    os.makedirs(OUT, exist_ok=True)
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
