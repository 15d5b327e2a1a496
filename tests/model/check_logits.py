#!/usr/bin/env python3
"""Logits of tiny random checkpoints, made here with mlx-lm's own classes and written as its convert writes them,
against mlx-lm on the same checkpoint. The shapes are meant to be unlike the committed fixtures of tests/family.

    python tests/model/check_logits.py [--apus build/apus] [--keep DIR] [--no-run] [NAME…]

NAME: only cases whose name contains it. --keep: checkpoints and goldens stay there. --no-run: only makes and runs the
models of mlx-lm. Written for mlx 0.32.4 and mlx-lm 0.32.2 on the CPU.

The golden is mlx-lm in f32 on the tensors of the file, dequantised to f32; the last tokens go one at a time. Checked:
  info   `apus info --strict-config` knows every field of the config;
  ref    --cpu ref within 1e-4 of max|logit| at every position. mlx-lm in f64 differs from itself in f32 by up to 6e-6
         on such models, and the smallest structural error tried (rope theta 1 % off) moves them by 3e-4;
  fast   every other instruction set of this machine: mean and median over the rows of the KL divergence at most 4 times
         what rounding the input of every matrix product to 8 bits (per 32 values) costs in this very model (4: one
         scale per row instead of per 32 values costs 2), and the first choice equal wherever it leads by more than 4
         times the largest change that this rounding makes (twice its error on both sides);
  cuts   one prefill = chunks of 1, 7, 128 = token by token, with 1 and 2 threads: bit for bit.
"""

import argparse
import contextlib
import copy
import importlib
import io
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import zlib

import numpy as np

REF_TOLERANCE, KL_FACTOR, LEAD_FACTOR = 1e-4, 4, 4
KL_FLOOR = 1e-9  # below it, KL between f32 logits is rounding
TIMEOUT_S = 60

# ---- the cases ----


class Case:
    """config: what config.json says. reference: fields mlx-lm gets instead (None: taken away), where it does not read
    the newer spelling. dtype, quant: how the checkpoint is stored; keep: modules left unquantised; overrides: other
    parameters for modules. biases: modules that get a bias mlx-lm has no field for. extra: tensors to be left alone.
    """

    def __init__(
        self,
        name,
        config,
        tokens=41,
        steps=6,
        dtype="f32",
        quant=None,
        overrides=None,
        reference=None,
        shards=1,
        drop=(),
        biases=(),
        extra=None,
    ):
        self.name, self.config, self.tokens, self.steps = name, config, tokens, steps
        self.dtype, self.quant, self.overrides = dtype, quant, overrides or {}
        self.reference, self.shards, self.drop, self.biases = reference or {}, shards, drop, biases
        self.extra = extra or {}


def affine(bits, group):
    return {"bits": bits, "group_size": group, "mode": "affine"}


FP = {
    "mxfp4": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "nvfp4": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
    "mxfp8": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
}


def base(model_type, hidden, heads, kv, inner, layers=2, vocab=71, head_dim=None, tied=False, **more):
    config = {
        "architectures": ["X"],
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "model_type": model_type,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "rms_norm_eps": 2e-3,  # large: a wrong one shows
        "max_position_embeddings": 1024,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
    }
    if head_dim:
        config["head_dim"] = head_dim
    config.update(more)
    return config


def gemma(hidden, heads, kv, inner, layers, head_dim, **more):
    config = base(
        "gemma3_text",
        hidden,
        heads,
        kv,
        inner,
        layers,
        head_dim=head_dim,
        rms_norm_eps=1e-3,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        query_pre_attn_scalar=head_dim,
        sliding_window=512,
    )
    del config["tie_word_embeddings"], config["hidden_act"]
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config.update(more)
    return config


def small(family, head_dim=32, **more):
    """A cheap model of each family, 3 query heads on 1."""
    if family == "gemma3_text":
        return gemma(96, 3, 1, 64, 3, head_dim, sliding_window=9, sliding_window_pattern=3, **more)
    if family in ("qwen2", "phi3"):
        return base(family, 3 * head_dim, 3, 1, 64, **more)
    return base(family, 96, 3, 1, 64, layers=4 if family == "smollm3" else 2, head_dim=head_dim, **more)


def longrope(pairs):
    return {
        "short_factor": [1.0 + 0.01 * i for i in range(pairs)],
        "long_factor": [1.0 + 0.37 * i for i in range(pairs)],
        "original_max_position_embeddings": 128,
    }


SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 96,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96},
    "yarn-all": {
        "type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 40,
        "beta_fast": 24,
        "beta_slow": 2,
        "mscale": 1.3,
        "mscale_all_dim": 0.6,
    },
    "longrope": {"rope_type": "longrope", **longrope(16)},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}
ROPE_FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "smollm3"]


def rope_cases():
    for family in ROPE_FAMILIES:
        for name, scaling in SCALINGS.items():
            theta = 1000000.0 if family == "gemma3_text" else 50000.0
            yield Case(f"{family}-rope-{name}", small(family, rope_theta=theta, rope_scaling=scaling))
            if name in ("yarn-all", "dynamic"):
                continue
            config = small(family)  # the newer spelling, flat
            del config["rope_theta"]
            config["rope_parameters"] = {"rope_theta": theta, **scaling}
            if family != "gemma3_text":
                yield Case(
                    f"{family}-parameters-{name}",
                    config,
                    reference={"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": None},
                )
        yield Case(
            f"{family}-rope-dynamic-beyond",  # mlx-lm's depends on the cuts: one at a time they agree
            small(family, rope_scaling={"type": "dynamic", "factor": 3.0}, max_position_embeddings=24),
            steps=41 - 24,
        )


def llama_cases():
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            dtype = {32: "bf16", 64: "f16", 128: "f32"}[group]
            yield Case(
                f"llama-{bits}bit-{group}",
                base("llama", 128, 3, 1, 256, head_dim=128, tied=bits % 2 == 0),
                dtype=dtype,
                quant=affine(bits, group),
            )
    for mode, quant in FP.items():
        yield Case(f"llama-{mode}", base("llama", 192, 7, 7, 96, head_dim=64), dtype="bf16", quant=quant)
    yield Case(
        "llama-80-bias-traditional",
        base("llama", 100, 3, 1, 90, head_dim=80, tied=True, attention_bias=True, mlp_bias=True, rope_traditional=True),
        tokens=140,
    )
    yield Case("llama-96-bf16", base("llama", 132, 7, 7, 70, head_dim=96, attention_bias=True), dtype="bf16")
    yield Case("llama-256-f16", base("llama", 96, 6, 2, 90, head_dim=256, tied=True), dtype="f16", tokens=270, steps=9)
    yield Case(
        "llama-80-4bit-bias",
        base("llama", 160, 6, 2, 96, head_dim=80, attention_bias=True, mlp_bias=True),
        dtype="bf16",
        quant=affine(4, 32),
        tokens=140,
    )
    yield Case(
        "llama-256-4bit",
        base("llama", 256, 3, 1, 128, head_dim=256, tied=True),
        dtype="bf16",
        quant=affine(4, 64),
        tokens=140,
    )
    yield Case(
        "llama-ragged-4bit", base("llama", 192, 7, 1, 96, head_dim=80, vocab=67), dtype="bf16", quant=affine(4, 64)
    )  # o_proj (560) and down_proj (96) are no multiples of 64: they stay bf16
    yield Case("llama-wide-vocab", base("llama", 64, 2, 1, 64, vocab=2053, tied=True), dtype="f16", quant=affine(4, 64))
    yield Case("llama-one-head", base("llama", 64, 1, 1, 33, layers=1, vocab=5, head_dim=2))
    yield Case(
        "llama-shards",
        base("llama", 96, 3, 3, 96),
        dtype="bf16",
        quant=affine(4, 32),
        shards=5,
        extra={f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (16,) for i in range(2)},
    )
    yield Case(
        "llama-mixed",
        base("llama", 192, 6, 2, 128, layers=3, tied=True),
        dtype="bf16",
        quant=affine(3, 64),
        overrides={
            "model.embed_tokens": affine(6, 32),
            "model.layers.0.self_attn.v_proj": affine(8, 64),
            "model.layers.0.mlp.gate_proj": {"bits": 5, "group_size": 64},
            "model.layers.1.mlp.down_proj": False,
            "model.layers.1.self_attn.q_proj": FP["mxfp4"],
            "model.layers.2.self_attn.o_proj": FP["nvfp4"],
            "model.layers.2.mlp.up_proj": FP["mxfp8"],
            "model.layers.2.self_attn.k_proj": affine(2, 32),
        },
    )
    yield Case(
        "llama-mixed-head",
        base("llama", 128, 3, 1, 128, head_dim=96),
        dtype="f16",
        quant=FP["mxfp4"],
        overrides={"lm_head": affine(8, 64), "model.embed_tokens": False},
    )
    for window in (1, 5, 130):
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        yield Case(
            f"llama-window-{window}",
            base("llama", 64, 3, 1, 64, layers=3, head_dim=32, sliding_window=window, layer_types=kinds),
            tokens=300 if window > 100 else 150,
            steps=20,
        )
    yield Case(
        "llama-window-4bit",
        base(
            "llama",
            128,
            3,
            1,
            64,
            layers=2,
            head_dim=96,
            sliding_window=20,
            layer_types=["full_attention", "sliding_attention"],
        ),
        dtype="bf16",
        quant=affine(4, 128),
        tokens=280,
    )
    # Shorter windows have goldens of their own (tests/family/data/mistral-window): mlx-lm's class has none.
    yield Case("mistral-window-wide", base("mistral", 96, 6, 2, 80, head_dim=40, sliding_window=4096), tokens=60)
    yield Case(
        "mistral-4bit", base("mistral", 128, 7, 7, 128, head_dim=80, rope_theta=1e6), dtype="bf16", quant=affine(4, 64)
    )


def qwen_cases():
    off = {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1}
    yield Case("qwen2-80", base("qwen2", 240, 3, 1, 100, rope_theta=1e6, **off), tokens=140)
    yield Case("qwen2-96-bf16", base("qwen2", 192, 2, 2, 96, tied=True, rope_theta=1e6), dtype="bf16")
    yield Case("qwen2-256-4bit", base("qwen2", 768, 3, 1, 64, layers=1, tied=True), dtype="bf16", quant=affine(4, 128))
    yield Case(
        "qwen2-4bit",
        base("qwen2", 224, 7, 1, 160, tied=True, rope_theta=1e6),
        dtype="f16",
        quant=affine(4, 32),
        tokens=140,
    )
    yield Case("qwen2-8bit", base("qwen2", 384, 4, 2, 128, rope_theta=1e6), dtype="bf16", quant=affine(8, 64))
    yield Case("qwen2-mxfp4", base("qwen2", 192, 6, 2, 96), dtype="bf16", quant=FP["mxfp4"])
    yield Case(
        "qwen3-80", base("qwen3", 96, 3, 1, 70, head_dim=80, rope_theta=1e6, attention_bias=False, **off), tokens=140
    )
    yield Case(
        "qwen3-bias",
        base("qwen3", 96, 7, 7, 70, head_dim=96, attention_bias=True),
        dtype="bf16",
        biases=("q_proj", "k_proj", "v_proj", "o_proj"),
    )
    yield Case(
        "qwen3-256-4bit",
        base("qwen3", 128, 6, 2, 96, head_dim=256, tied=True, rope_theta=1e6),
        dtype="bf16",
        quant=affine(4, 32),
        tokens=140,
    )
    yield Case(
        "qwen3-128-4bit", base("qwen3", 128, 5, 5, 256, head_dim=96, tied=True), dtype="bf16", quant=affine(4, 128)
    )
    yield Case(
        "qwen3-mixed",
        base("qwen3", 128, 4, 2, 128, head_dim=64),
        dtype="bf16",
        quant=affine(4, 64),
        overrides={
            "lm_head": affine(6, 64),
            "model.embed_tokens": affine(6, 64),
            "model.layers.1.mlp.down_proj": affine(6, 64),
            "model.layers.0.self_attn.v_proj": affine(6, 64),
        },
    )
    yield Case("qwen3-nvfp4", base("qwen3", 96, 3, 1, 96, head_dim=80), dtype="bf16", quant=FP["nvfp4"])
    yield Case(
        "qwen3-mxfp8", base("qwen3", 96, 3, 1, 96, head_dim=80, tied=True), dtype="f16", quant=FP["mxfp8"], shards=3
    )


def gemma_cases():
    tied = ("lm_head.weight",)
    for pattern, layers, window in ((1, 2, 4), (2, 4, 4), (3, 4, 130), (6, 7, 17)):
        yield Case(
            f"gemma3_text-pattern-{pattern}",
            gemma(
                80,
                3,
                1,
                70,
                layers,
                40,
                sliding_window=window,
                query_pre_attn_scalar=23,
                sliding_window_pattern=pattern,
            ),
            tokens=300 if window > 100 else 60,
            steps=12,
            drop=tied,
        )
    linear = {"rope_type": "linear", "factor": 8.0}
    yield Case(
        "gemma3_text-256-4bit",
        gemma(128, 3, 1, 128, 3, 256, sliding_window=30, sliding_window_pattern=3, rope_scaling=linear),
        dtype="bf16",
        quant=affine(4, 64),
        tokens=150,
        drop=tied,
    )
    yield Case(
        "gemma3_text-untied-4bit",
        gemma(160, 7, 7, 96, 2, 80, sliding_window=6, sliding_window_pattern=2),
        dtype="bf16",
        quant=affine(4, 32),
    )
    yield Case(
        "gemma3_text-f16",
        gemma(100, 6, 2, 60, 2, 96, sliding_window=50, sliding_window_pattern=2),
        dtype="f16",
        drop=tied,
    )
    yield Case(
        "gemma3_text-bf16",
        gemma(100, 6, 2, 60, 2, 96, sliding_window=8, sliding_window_pattern=2),
        dtype="bf16",
        drop=tied,
    )
    yield Case(
        "gemma3_text-mxfp8",
        gemma(128, 3, 1, 96, 2, 80, sliding_window=8, sliding_window_pattern=2),
        dtype="bf16",
        quant=FP["mxfp8"],
        drop=tied,
    )
    yield Case(
        "gemma3_text-6bit-128",
        gemma(256, 3, 1, 128, 2, 128, sliding_window=8, sliding_window_pattern=2),
        dtype="f16",
        quant=affine(6, 128),
        drop=tied,
    )
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    new = gemma(
        64,
        3,
        1,
        64,
        6,
        32,
        sliding_window=7,
        layer_types=kinds,
        _sliding_window_pattern=3,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        },
    )
    del new["rope_theta"], new["rope_local_base_freq"]
    yield Case(
        "gemma3_text-parameters",
        new,
        drop=tied,
        reference={
            "rope_theta": 500000.0,
            "rope_local_base_freq": 20000.0,
            "sliding_window_pattern": 3,
            "rope_parameters": None,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
    )

    def wrapper(text, **more):
        text = {k: v for k, v in text.items() if k not in ("vocab_size", "architectures")}
        return {
            "architectures": ["X"],
            "model_type": "gemma3",
            "text_config": text,
            "vocab_size": 83,
            "eos_token_id": [1, 106],
            "image_token_index": 80,
            "boi_token_index": 81,
            "eoi_token_index": 82,
            "mm_tokens_per_image": 4,
            **more,
        }

    tied = ("language_model.lm_head.weight",)
    vision = {
        "vision_tower.vision_model.embeddings.position_embedding.weight": (4, 8),
        "multi_modal_projector.mm_input_projection_weight": (8, 64),
    }
    yield Case(
        "gemma3-wrapper",
        wrapper(gemma(80, 6, 2, 70, 4, 96, sliding_window=5, sliding_window_pattern=2, rope_scaling=linear)),
        drop=tied,
        extra=vision,
    )
    text = gemma(128, 8, 4, 64, 3, 32, sliding_window=40, sliding_window_pattern=3)
    del text["num_attention_heads"], text["num_key_value_heads"]
    yield Case(
        "gemma3-wrapper-4bit",
        wrapper(text),
        dtype="bf16",
        quant=affine(4, 64),
        drop=tied,
        shards=2,
        tokens=140,
        overrides={
            "language_model.model.embed_tokens": affine(8, 64),
            "language_model.model.layers.1.self_attn.q_proj": False,
        },
    )
    yield Case(
        "gemma3-wrapper-untied",
        wrapper(gemma(64, 3, 1, 64, 2, 64, sliding_window=3, sliding_window_pattern=2)),
        dtype="bf16",
    )


def phi3_cases():
    su = {"short_factor": [1.0] * 16, "long_factor": [1.0 + 0.2 * i * i for i in range(16)]}
    yield Case("phi3-80", base("phi3", 240, 3, 1, 70), tokens=140)
    yield Case(
        "phi3-96-4bit",
        base("phi3", 192, 2, 2, 96, sliding_window=2047, resid_pdrop=0.0),
        dtype="bf16",
        quant=affine(4, 32),
    )
    yield Case("phi3-256-4bit", base("phi3", 768, 3, 1, 64, layers=1, tied=True), dtype="bf16", quant=affine(4, 128))
    yield Case(
        "phi3-mixed",
        base("phi3", 192, 6, 2, 128, vocab=131),
        dtype="f16",
        quant=affine(4, 64),
        shards=3,
        overrides={
            "model.layers.0.self_attn.qkv_proj": affine(8, 32),
            "model.layers.1.mlp.gate_up_proj": affine(5, 64),
            "lm_head": False,
        },
    )
    yield Case("phi3-mxfp4", base("phi3", 192, 6, 2, 96), dtype="bf16", quant=FP["mxfp4"])
    yield Case("phi3-default", small("phi3", tied=True, rope_traditional=True, rope_theta=50000.0), dtype="bf16")
    yield Case(
        "phi3-longrope",
        small("phi3", original_max_position_embeddings=64, rope_scaling={"type": "longrope", **su}),
        tokens=140,
    )
    yield Case(
        "phi3-longrope-4096", small("phi3", max_position_embeddings=131072, rope_scaling={"type": "longrope", **su})
    )
    yield Case("phi3-su", small("phi3", original_max_position_embeddings=2048, rope_scaling={"type": "su", **su}))
    part = {"short_factor": [1.0] * 12, "long_factor": [1.0 + 0.5 * i for i in range(12)]}
    yield Case(
        "phi3-partial-longrope-4bit",
        small(
            "phi3",
            partial_rotary_factor=0.75,
            original_max_position_embeddings=64,
            rope_scaling={"type": "longrope", **part},
        ),
        dtype="bf16",
        quant=affine(4, 32),
    )
    yield Case("phi3-partial", small("phi3", head_dim=64, partial_rotary_factor=0.5, num_key_value_heads=None))
    yield Case(
        "phi3-linear",
        small("phi3", rope_scaling={"type": "linear", "factor": 3.0}),
        reference={"rope_scaling": {"type": "linear", "factor": 3.0, "long_factor": [1.0]}},
    )  # it asks for the key
    new = small(
        "phi3",
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_theta": 50000.0,
            "rope_type": "longrope",
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            **part,
        },
    )
    del new["rope_theta"]
    yield Case(
        "phi3-parameters",
        new,
        reference={
            "rope_theta": 50000.0,
            "partial_rotary_factor": 0.75,
            "rope_parameters": None,
            "rope_scaling": {"type": "longrope", **part},
        },
    )


def smollm3_cases():
    yield Case(
        "smollm3-80", base("smollm3", 96, 3, 1, 70, layers=4, head_dim=80, tied=True, attention_bias=True), tokens=140
    )
    yield Case("smollm3-interval", base("smollm3", 96, 6, 2, 70, layers=5, no_rope_layer_interval=2), dtype="bf16")
    yield Case(
        "smollm3-list-4bit",
        base(
            "smollm3",
            192,
            6,
            2,
            128,
            layers=3,
            head_dim=96,
            no_rope_layers=[0, 1, 0],
            no_rope_layer_interval=4,
            use_sliding_window=False,
            sliding_window=None,
        ),
        dtype="bf16",
        quant=affine(4, 64),
        tokens=140,
    )
    yield Case(
        "smollm3-256-3bit",
        base("smollm3", 128, 3, 1, 128, layers=2, head_dim=256, tied=True, mlp_bias=True),
        dtype="f16",
        quant=affine(3, 128),
    )
    yield Case(
        "smollm3-nvfp4",
        base("smollm3", 96, 7, 7, 80, layers=4, head_dim=32, tied=True),
        dtype="bf16",
        quant=FP["nvfp4"],
    )


def all_cases():
    for group in (llama_cases, qwen_cases, gemma_cases, phi3_cases, smollm3_cases, rope_cases):
        yield from group()


# ---- checkpoints ----


def build(config):
    """mlx-lm's model for a config, and a config it reads."""
    name = config["model_type"]
    module = importlib.import_module("mlx_lm.models." + {"mistral": "llama"}.get(name, name))
    return module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))


def reference_config(case):
    """What mlx-lm reads. It always takes longrope's long_factor, which is meant for texts beyond the trained length."""
    config = {**case.config, **case.reference}
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope and rope.get("type", rope.get("rope_type")) in ("longrope", "su"):
            default = rope.get("original_max_position_embeddings", 4096)
            if case.tokens <= config.get("original_max_position_embeddings", default):
                config[key] = {**rope, "long_factor": rope["short_factor"]}
    return {k: v for k, v in config.items() if v is not None or k not in case.reference}


def parameters(case, model):
    """Every parameter random: no norm of ones, no bias of zeros; logits of a few units."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    gemma_like = case.config["model_type"].startswith("gemma3")
    out = {}
    for name, array in tree_flatten(model.parameters()):
        if name in case.drop:
            continue
        shape = array.shape
        if len(shape) == 2:
            is_head = "lm_head" in name
            tied = not is_head and "embed_tokens" in name and (case.drop or case.config.get("tie_word_embeddings"))
            gain = (1 if gemma_like else 3) if is_head or tied else 1.3
            scale = 0.8 if "embed_tokens" in name and not tied else gain / np.sqrt(shape[1])
            x = rng.standard_normal(shape) * scale
        elif name.endswith(".bias"):
            x = rng.standard_normal(shape) * 0.3
        else:
            x = rng.uniform(-0.4, 0.4, shape) + (0 if gemma_like else 1)
            if gemma_like and ("post_" in name or name.endswith("model.norm.weight")):
                x += 2  # or a token's own embedding, scaled and tied to the head, would outweigh all layers
        out[name] = mx.array(x.astype(np.float32))
    return out


def write_checkpoint(case, directory):
    """As mlx_lm convert does: cast, quantize_model, shards with an index, sorted config."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm import utils

    dtype = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[case.dtype]
    model = build(reference_config(case))
    add_biases(case, model)
    weights = parameters(case, model)
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights([(k, v.astype(dtype)) for k, v in weights.items()], strict=True)
    config = copy.deepcopy(case.config)
    if case.quant:
        unknown = set(case.overrides) - {name for name, m in model.named_modules() if hasattr(m, "to_quantized")}
        assert not unknown, unknown
        q = case.quant
        with contextlib.redirect_stdout(io.StringIO()):
            model, config = utils.quantize_model(
                model,
                config,
                q["group_size"],
                q["bits"],
                q["mode"],
                quant_predicate=lambda path, m: case.overrides.get(path, True),
            )
        config["quantization"].update({k: v for k, v in case.overrides.items() if v is False})
    weights = dict(tree_flatten(model.parameters()))
    for name, shape in case.extra.items():
        weights[name] = mx.ones(shape, dtype=dtype)
    names = sorted(weights)
    parts = [names[i :: case.shards] for i in range(case.shards)]
    index = {"metadata": {"total_size": sum(v.nbytes for v in weights.values())}, "weight_map": {}}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" if len(parts) > 1 else "model.safetensors"
        mx.save_safetensors(os.path.join(directory, file), {n: weights[n] for n in part}, metadata={"format": "mlx"})
        index["weight_map"].update({n: file for n in part})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=4)
    utils.save_config(config, os.path.join(directory, "config.json"), keep_vision_config=True)


def add_biases(case, model):
    import mlx.core as mx

    for layer in model.layers:
        for name in case.biases:
            linear = layer.self_attn[name]
            linear.bias = mx.zeros((linear.weight.shape[0],))


# ---- the reference ----


def read_checkpoint(directory):
    """All tensors of the files in f32, dequantised as the files themselves say."""
    import mlx.core as mx

    stored = {}
    for file in sorted(os.listdir(directory)):
        if file.endswith(".safetensors"):
            stored.update(mx.load(os.path.join(directory, file)))
    with open(os.path.join(directory, "config.json")) as f:
        block = json.load(f).get("quantization", {})
    default = {k: block.get(k) for k in ("bits", "group_size", "mode")}
    out = {}
    for name, x in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        path = name[: -len(".weight")]
        scales = stored.get(path + ".scales")
        if name.endswith(".weight") and scales is not None:
            rule = block.get(path, default)
            mode = rule.get("mode", "affine")
            biases = stored.get(path + ".biases")
            if mode == "affine":
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            x = mx.dequantize(x, scales, biases, rule["group_size"], rule["bits"], mode, dtype=mx.float32)
        out[name] = x.astype(mx.float32)
    return out


def round_to_int8(x):
    import mlx.core as mx

    width = x.shape[-1]
    padded = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % 32)])
    groups = padded.reshape(*x.shape[:-1], -1, 32)
    scale = mx.maximum(mx.abs(groups).max(-1, keepdims=True) / 127, 1e-30)
    return (mx.round(groups / scale) * scale).reshape(padded.shape)[..., :width]


@contextlib.contextmanager
def int8_activations():
    """The input of every matrix product loses what 8 bits cannot hold."""
    import mlx.nn as nn

    linear, as_linear = nn.Linear.__call__, nn.Embedding.as_linear
    nn.Linear.__call__ = lambda self, x: linear(self, round_to_int8(x))
    nn.Embedding.as_linear = lambda self, x: as_linear(self, round_to_int8(x))
    try:
        yield
    finally:
        nn.Linear.__call__, nn.Embedding.as_linear = linear, as_linear


def run_reference(model, tokens, steps):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    prompt = len(tokens) - steps
    out = [np.array(model(mx.array([tokens[:prompt]]), cache=cache)[0])]
    for token in tokens[prompt:]:
        out.append(np.array(model(mx.array([[token]]), cache=cache)[0]))
    return np.concatenate(out)


def make_golden(case, directory, tokens):
    model = build(reference_config(case))
    add_biases(case, model)
    weights = {k: v for k, v in read_checkpoint(directory).items() if k not in case.extra}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=True)
    golden = run_reference(model, tokens, case.steps)
    with int8_activations():
        rough = run_reference(model, tokens, case.steps)
    if not np.isfinite(golden).all() or golden.dtype != np.float32 or not 1 < np.abs(golden).max() < 100:
        raise AssertionError(f"{case.name}: a useless golden, max|logit| {np.abs(golden).max()}")
    return golden, rough


# ---- comparing ----


def kl_rows(golden, other):
    def log_softmax(x):
        x = x.astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(golden), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1)


class Fast:
    """The limits that a backend which rounds has to keep in this model."""

    def __init__(self, golden, rough):
        self.golden = golden
        rows = kl_rows(golden, rough)
        self.mean, self.median = max(rows.mean(), KL_FLOOR), max(np.median(rows), KL_FLOOR)
        change = np.abs(golden - rough).max(-1)
        ordered = np.sort(golden, -1)
        self.clear = ordered[:, -1] - ordered[:, -2] > LEAD_FACTOR * np.maximum(change, np.median(change))

    def check(self, logits):
        rows = kl_rows(self.golden, logits)
        mean, median = rows.mean() / self.mean, np.median(rows) / self.median
        wrong = int((self.golden.argmax(-1) != logits.argmax(-1))[self.clear].sum())
        text = f"kl {mean:.2f}/{median:.2f}"
        if not np.isfinite(rows).all() or mean > KL_FACTOR or median > KL_FACTOR:
            return text, f"KL divergence {mean:.1f} times (mean), {median:.1f} times (median) that of int8 activations"
        if wrong:
            return text, f"{wrong} of {self.clear.sum()} clear first choices differ"
        return text, None


def instruction_sets():
    """The fast backends this machine must have."""
    if platform.machine() == "aarch64":
        return ["neon"]
    with open("/proc/cpuinfo") as f:
        flags = next(line for line in f if line.startswith("flags")).split()
    found = ["avx2"] if {"avx2", "fma", "f16c"} <= set(flags) else []
    if {"avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi"} <= set(flags):
        found += ["avx512"] + (["amx"] if {"amx_tile", "amx_int8"} <= set(flags) else [])
    return found


class Failure(Exception):
    pass


class Program:
    def __init__(self, path, directory, tokens):
        self.path, self.directory = path, directory
        self.tokens = ",".join(map(str, tokens))

    def call(self, *arguments):
        done = subprocess.run(
            [self.path, *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
        if done.returncode:
            raise Failure(f"{' '.join(arguments)[:60]}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def info(self):
        self.call("info", self.directory, "--strict-config")

    def logits(self, *arguments):
        out = os.path.join(self.directory, "out.npy")
        self.call("debug", "logits", self.directory, "--tokens", self.tokens, "--out", out, *arguments)
        x = np.load(out)
        os.remove(out)
        return x


def check_case(case, program, golden, rough, sets, turn):
    """Checks everything; returns the words for the case's line. Raises Failure at the first that is not so."""
    program.info()
    steps = ["--steps", str(case.steps)]
    words, results = [], {}

    ref = results["ref"] = program.logits("--cpu", "ref", *steps)
    if ref.shape != golden.shape or ref.dtype != np.float32:
        raise Failure(f"shape {ref.shape} of {ref.dtype}, must be {golden.shape} of float32")
    error = np.abs(ref - golden).max(-1) / np.abs(golden).max()
    words.append(f"ref {error.max():.0e}")
    if not error.max() <= REF_TOLERANCE:  # a NaN fails as well
        prompt = len(golden) - case.steps
        where = int(np.nanargmax(error)) if np.isfinite(error).any() else 0
        raise Failure(
            f"ref: off by {error.max():.1e} of max|logit| at position {where}; the prompt's {prompt} positions "
            f"{error[:prompt].max():.1e}, first row {error[0]:.1e}, steps {error[prompt:].max():.1e}"
        )

    limits = Fast(golden, rough)
    for name in sets:
        results[name] = program.logits("--cpu", name, *steps)
        text, problem = limits.check(results[name])
        words.append(f"{name} {text}")
        if problem:
            raise Failure(f"{name}: {problem}")
    words.append(f"{limits.clear.sum()}/{len(golden)} clear")

    name = list(results)[turn % len(results)]
    chunks = [c for c in (1, 7, 128) if c < case.tokens]
    for chunk in chunks + [1024]:
        threads = "1" if chunk == 7 else "2"
        cut = program.logits("--cpu", name, "--chunk", str(chunk), "--threads", threads)
        if cut.tobytes() != results[name].tobytes():
            rows = np.flatnonzero((cut != results[name]).any(-1))
            raise Failure(
                f"{name}: chunks of {chunk} with {threads} threads are not bit-equal to a prefill and steps: "
                f"{len(rows)} "
                f"rows from {rows[0] if len(rows) else 0} on, by {np.abs(cut - results[name]).max():.1e}"
            )
    words.append(f"cuts {name}")
    return words


def work(job):
    turn, name, apus, keep, sets = job
    case = next(c for c in all_cases() if c.name == name)
    directory = os.path.join(keep, name) if keep else None
    with tempfile.TemporaryDirectory() if not keep else contextlib.nullcontext(directory) as path:
        os.makedirs(path, exist_ok=True)
        write_checkpoint(case, path)
        rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
        tokens = [int(t) for t in rng.integers(0, case.config.get("vocab_size", 71), case.tokens)]
        golden, rough = make_golden(case, path, tokens)
        if keep:
            np.save(os.path.join(path, "golden.npy"), golden)
            with open(os.path.join(path, "tokens"), "w") as f:
                f.write(",".join(map(str, tokens)))
        if not apus:
            limits = Fast(golden, rough)
            return (
                True,
                f"made    {name:34} max {np.abs(golden).max():5.1f}  int8 kl {limits.mean:.1e}/{limits.median:.1e}  "
                f"{limits.clear.sum()}/{len(golden)} clear",
            )
        try:
            words = check_case(case, Program(apus, path, tokens), golden, rough, sets, turn)
            return True, f"ok      {name:34} " + "  ".join(words)
        except (Failure, subprocess.TimeoutExpired, OSError) as problem:
            return False, f"FAILED  {name:34} {problem}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--apus", default="build/apus")
    parser.add_argument("--every", type=int, default=1, help="takes every N-th case")
    parser.add_argument("--keep")
    parser.add_argument("--no-run", action="store_true")
    options = parser.parse_args()
    names = [c.name for c in all_cases()]
    assert len(set(names)) == len(names), "two cases of one name"
    names = [n for n in names if not options.names or any(part in n for part in options.names)][:: options.every]
    apus = None if options.no_run else os.path.abspath(options.apus)
    sets = instruction_sets()
    jobs = [(i, name, apus, options.keep, sets) for i, name in enumerate(names)]
    passed = failed = 0
    with multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, 8)) as pool:
        for ok, line in pool.imap(work, jobs):
            print(line, flush=True)
            passed, failed = passed + ok, failed + (not ok)
    print(f"instruction sets: ref {' '.join(sets)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
