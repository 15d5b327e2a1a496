"""mlx-lm as the reference: names of tensors as its own files have them, f32 on the CPU.

Where a family was trained with a sliding window that mlx-lm's class does not know ("window" of a fixture), mlx-lm runs
with the mask of transformers: which layers slide, and how far, is what transformers makes of the very config
(AutoConfig: sliding_window, layer_types); query i sees key j when i - j < sliding_window (its
masking_utils.sliding_window_overlay). What else a family was trained with and mlx-lm leaves out is put into it here,
as transformers has it: Hunyuan's division of the experts' weights by their sum, YaRN's bounds without rounding
("truncate": false). Quantised variants run in f32 on the dequantised weights.
"""

import contextlib
import importlib
import json
import math
import sys
import types

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import hunyuan, phi3small, rope_utils
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear

NAME = "mlx"
MODULES = {  # model_type, or what architectures names → module of mlx_lm.models, where they differ
    "BailingMoeV3ForCausalLM": "bailing_moe_v3",
    "mistral": "llama",
    "minimax_m2": "minimax",
    "falcon_mamba": "mamba",
    "hf_olmo": "olmo",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
}

mx.set_default_device(mx.cpu)


# ---- what mlx-lm leaves out ----


def hunyuan_experts(self, x):
    """transformers/models/hunyuan_v1_moe: the weights of the chosen experts have the sum 1."""
    gates = mx.softmax(self.gate(x), axis=-1, precise=True)
    chosen = mx.argpartition(-gates, kth=self.top_k - 1, axis=-1)[..., : self.top_k]
    scores = mx.take_along_axis(gates, chosen, axis=-1)
    if self.top_k > 1:
        scores = scores / scores.sum(-1, keepdims=True)
    y = (self.switch_mlp(x, chosen) * scores[..., None]).sum(-2)
    return y + self.shared_mlp(x) if self.use_shared_mlp else y


hunyuan.MoeBlock.__call__ = hunyuan_experts


def phi3small_logits(self, inputs, cache=None):
    """Without the dummy tokens, which only the published vocabulary has."""
    out = self.model.embed_tokens.as_linear(self.model(inputs, cache))
    return out / self.mup_width_multiplier


def phi3small_mask(self, q_len, kv_len):
    """The publisher's code counts blocks from the text's first token, also where it does not fill them. Later tokens
    are hidden here: mlx-lm adds the mask that should do it to the scores as 0 and 1."""
    size = self.blocksparse_block_size
    row, key = mx.arange(kv_len - q_len, kv_len)[None, :, None], mx.arange(kv_len)[None, None]
    rows, keys = row // size, key // size
    heads = mx.arange(1, self.n_heads + 1)[:, None, None]
    strided = (keys + heads) % self.blocksparse_vert_stride == 0
    mask = (row >= key) & ((rows - keys < self.blocksparse_num_local_blocks) | strided)
    return None, mask.reshape(self.n_kv_heads, self.n_q_per_kv, q_len, kv_len)


phi3small.Model.__call__ = phi3small_logits
phi3small.Attention._block_sparse_mask = phi3small_mask


def olmo_mask(h, cache):
    """mlx-lm's olmo adds its mask to the scores, which its own masks have ceased to be made for."""
    return mx.where(create_causal_mask(h.shape[1], cache.offset if cache else 0), 0.0, -mx.inf)


class OlmoLogits:
    """mlx-lm's class returns the cache as well where the embedding is tied."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, *inputs, **named):
        out = self.model(*inputs, **named)
        return out[0] if isinstance(out, tuple) else out


class ExactBounds:
    """math for YarnRoPE, whose floor and ceil round nothing."""

    def __getattr__(self, name):
        return (lambda x: x) if name in ("floor", "ceil") else getattr(math, name)


# ---- models ----


def build(config, weights):
    scaling = config.get("rope_scaling") or {}
    rope_utils.math = ExactBounds() if scaling.get("truncate") is False else math
    sys.modules.setdefault("hf_olmo", types.ModuleType("hf_olmo"))  # mlx-lm's olmo looks for it
    own = MODULES.get(config["model_type"], config["model_type"])
    module = importlib.import_module("mlx_lm.models." + MODULES.get(config.get("architectures", [""])[0], own))
    if module.__name__.endswith(".olmo"):
        module.create_attention_mask = olmo_mask
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    if config["model_type"] == "phi3small":
        every = config["dense_attention_every_n_layers"]  # which layers are dense: as in the publisher's code
        for i, layer in enumerate(model.layers):
            layer.self_attn.block_sparse = (i + 1) % every != 0
    if config["model_type"] == "longcat_flash":  # its norms of latents, as in transformers
        for attention in (a for layer in model.layers for a in layer.self_attn):
            attention.q_a_layernorm.eps = attention.kv_a_layernorm.eps = 1e-6
    if weights is None:
        return model
    weights = {name: mx.array(x) for name, x in weights.items()}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=True)
    return model


def tensors(config):
    """Name → shape of what a file of this config holds."""
    shapes = {name: tuple(x.shape) for name, x in tree_flatten(build(config, None).parameters())}
    return {name: shape for name, shape in shapes.items() if "_freqs" not in name}


# ---- windows ----


def trained_windows(config):
    """The window of every layer, or None, as transformers has it."""
    from transformers import AutoConfig

    trained = AutoConfig.for_model(**config)
    layers = getattr(trained, "layer_types", None) or ["sliding_attention"] * trained.num_hidden_layers
    return [trained.sliding_window if layer == "sliding_attention" else None for layer in layers]


def attend(queries, keys, values, cache, scale, mask, sinks=None):
    window = getattr(cache, "window", None)
    if window:
        rows = queries.shape[2]
        mask = create_causal_mask(rows, keys.shape[2] - rows, window_size=window)
    return scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)


# ---- running ----


def logits(config, weights, tokens, steps, window=False):
    """[tokens, vocab]: the last `steps` tokens are fed one at a time, the others as one prompt."""
    model = build(config, weights)
    cache = make_prompt_cache(model)
    if config["model_type"] in ("olmo", "hf_olmo"):
        model = OlmoLogits(model)
    if window:
        sys.modules[type(model.layers[0].self_attn).__module__].scaled_dot_product_attention = attend
        for layer, width in zip(cache, trained_windows(config)):
            layer.window = width
    prompt = len(tokens) - steps
    out = [model(mx.array([tokens[:prompt]]), cache=cache)[0]]
    for i in range(prompt, len(tokens)):
        out.append(model(mx.array([tokens[i : i + 1]]), cache=cache)[0])
    return np.array(mx.concatenate(out).astype(mx.float32))


def to_int8(x):
    width = x.shape[-1]
    padded = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % 32)])
    groups = padded.reshape(*x.shape[:-1], -1, 32)
    scale = mx.maximum(mx.abs(groups).max(-1, keepdims=True) / 127, 1e-20)
    return (mx.round(groups / scale) * scale).reshape(padded.shape)[..., :width]


@contextlib.contextmanager
def rounded_inputs():
    """Inputs of all matrix products rounded to 8 bits per 32 values."""
    exact_linear, exact_as_linear = nn.Linear.__call__, nn.Embedding.as_linear
    exact_switch, exact_heads = SwitchLinear.__call__, MultiLinear.__call__
    nn.Linear.__call__ = lambda self, x: exact_linear(self, to_int8(x))
    nn.Embedding.as_linear = lambda self, x: exact_as_linear(self, to_int8(x))
    MultiLinear.__call__ = lambda self, x, *rest, **named: exact_heads(self, to_int8(x), *rest, **named)
    SwitchLinear.__call__ = lambda self, x, *rest, **named: exact_switch(self, to_int8(x), *rest, **named)
    try:
        yield
    finally:
        nn.Linear.__call__, nn.Embedding.as_linear = exact_linear, exact_as_linear
        SwitchLinear.__call__, MultiLinear.__call__ = exact_switch, exact_heads
