"""Second references of models that transformers lacks, in f32, written anew from their publishers' definitions.

Phi-3-small: modeling_phi3_small.py and triton_blocksparse_attention_layer.py of microsoft/Phi-3-small-8k-instruct, and
vllm/model_executor/models/phi3_small.py, which agrees with them. Its layers are dense when their number, counted from
1, is a multiple of dense_attention_every_n_layers.
"""

import math

import numpy as np
import torch
from torch.nn import functional

NAME = "published"


def rotate(x, base):
    """Halves of [tokens, heads, size]."""
    size = x.shape[-1]
    angles = torch.arange(len(x))[:, None] * base ** (-torch.arange(0, size, 2) / size)
    cos, sin = torch.cos(angles)[:, None], torch.sin(angles)[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def block_mask(c, tokens):
    """[heads, tokens, tokens]: the latest blocks of keys, and every stride-th, which differ between heads."""
    heads, stride = c["num_attention_heads"], c.get("blocksparse_vert_stride", 8)
    step = 0 if c.get("blocksparse_homo_head_pattern") else max(1, stride // heads)
    block = torch.arange(tokens) // c.get("blocksparse_block_size", 64)
    latest = block[:, None] - block[None] < c.get("blocksparse_num_local_blocks", 16)
    strided = (block[None] + torch.arange(heads)[:, None] * step + 1) % stride == 0
    return latest[None] | strided[:, None]


def attend(c, w, home, layer, x):
    tokens, heads, kv = len(x), c["num_attention_heads"], c["num_key_value_heads"]
    size, group = c["hidden_size"] // heads, heads // kv
    mixed = functional.linear(x, w[home + "query_key_value.weight"], w[home + "query_key_value.bias"])
    mixed = mixed.view(tokens, kv, group + 2, size)
    base = float(c.get("rope_embedding_base", 1000000))
    q = rotate(mixed[:, :, :group].reshape(tokens, heads, size), base)
    k = rotate(mixed[:, :, -2], base).repeat_interleave(group, 1)
    v = mixed[:, :, -1].repeat_interleave(group, 1)
    scaled = c.get("mup_use_scaling", True)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    scores = scores * (c.get("mup_attn_multiplier", 1.0) / size if scaled else 1 / math.sqrt(size))
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    every = c.get("dense_attention_every_n_layers")
    if not every or (layer + 1) % every:
        seen = seen & block_mask(c, tokens)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, v).reshape(tokens, -1)
    return functional.linear(out, w[home + "dense.weight"], w[home + "dense.bias"])


def feed_forward(c, w, home, x):
    x = functional.linear(x, w[home + "up_proj.weight"], w[home + "up_proj.bias"])
    limit = c["gegelu_limit"]
    gate, linear = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    x = gate * torch.sigmoid(1.702 * gate) * (linear + 1)
    return functional.linear(x, w[home + "down_proj.weight"], w[home + "down_proj.bias"])


@torch.no_grad()
def logits(config, weights, tokens, steps, window=False):
    """[tokens, vocab] of one prompt: single steps would compute the same."""
    if config["model_type"] != "phi3small":
        raise ValueError("no definition of " + config["model_type"])
    w = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in weights.items()}

    def norm(x, name):
        return functional.layer_norm(
            x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], config["layer_norm_epsilon"]
        )

    x = w["model.embed_tokens.weight"][torch.tensor(tokens)] * config.get("mup_embedding_multiplier", 10.0)
    for layer in range(config["num_hidden_layers"]):
        home = f"model.layers.{layer}."
        x = x + attend(config, w, home + "self_attn.", layer, norm(x, home + "input_layernorm"))
        x = x + feed_forward(config, w, home + "mlp.", norm(x, home + "post_attention_layernorm"))
    x = norm(x, "model.final_layernorm")
    return (x @ w["model.embed_tokens.weight"].T / config.get("mup_width_multiplier", 8.0)).numpy()
