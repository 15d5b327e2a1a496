"""Second references of models that transformers lacks, in f32, written anew from their publishers' definitions.

Baichuan and Baichuan 2: modeling_baichuan.py of baichuan-inc/Baichuan2-7B-Base and Baichuan2-13B-Base.

Phi-3-small: modeling_phi3_small.py and triton_blocksparse_attention_layer.py of microsoft/Phi-3-small-8k-instruct, and
vllm/model_executor/models/phi3_small.py, which agrees with them. Its layers are dense when their number, counted from
1, is a multiple of dense_attention_every_n_layers.
"""

import math

import numpy as np
import torch
import transformers_reference
from torch.nn import functional

NAME = "published"
rounded_inputs = transformers_reference.rounded_inputs


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


def phi3small(config, w, tokens):
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
    return functional.linear(x, w["model.embed_tokens.weight"]) / config.get("mup_width_multiplier", 8.0)


def interleaved_slopes(heads):
    """ALiBi: the next lower power of two, then every other one of twice as many."""
    regular = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / regular) for i in range(regular)]
    return torch.tensor(first + [2 ** (-4 * (i + 1) / regular) for i in range(0, 2 * (heads - regular), 2)])


def baichuan(c, w, tokens):
    heads, size = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    count = len(tokens)
    seen = torch.ones(count, count, dtype=torch.bool).tril()
    alibi = interleaved_slopes(heads)[:, None, None] * torch.arange(count)[None, None]

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * w[name + ".weight"]

    x = w["model.embed_tokens.weight"][torch.tensor(tokens)]
    for layer in range(c["num_hidden_layers"]):
        home = f"model.layers.{layer}."
        one = home + "self_attn.W_pack.weight"
        apart = [home + f"self_attn.{part}_proj.weight" for part in "qkv"]  # as files made from GGUF have them
        packed = w[one] if one in w else torch.cat([w[name] for name in apart])
        parts = functional.linear(norm(x, home + "input_layernorm"), packed)
        q, k, v = (part.view(count, heads, size) for part in parts.chunk(3, -1))
        if "max_position_embeddings" in c:
            q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        if "max_position_embeddings" not in c:
            scores = scores + alibi
        scores = scores.masked_fill(~seen, -math.inf).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", scores, v).reshape(count, -1)
        x = x + functional.linear(out, w[home + "self_attn.o_proj.weight"])
        y, mlp = norm(x, home + "post_attention_layernorm"), home + "mlp."
        gate, up = (functional.linear(y, w[mlp + name]) for name in ("gate_proj.weight", "up_proj.weight"))
        x = x + functional.linear(functional.silu(gate) * up, w[mlp + "down_proj.weight"])
    head = w["lm_head.weight"]
    if "z_loss_weight" in c or c["vocab_size"] == 125696:
        head = functional.normalize(head)
    return functional.linear(norm(x, "model.norm"), head)


MODELS = {"phi3small": phi3small, "baichuan": baichuan}


def tensors(config):
    """Name → shape of what a file of this config holds: Baichuan's."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"lm_head.weight": (vocab, hidden), "model.embed_tokens.weight": (vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        home = f"model.layers.{i}."
        shapes |= {home + "input_layernorm.weight": (hidden,), home + "post_attention_layernorm.weight": (hidden,)}
        shapes |= {home + "self_attn.W_pack.weight": (3 * hidden, hidden)}
        shapes |= {home + "self_attn.o_proj.weight": (hidden, hidden)}
        shapes |= {home + f"mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes |= {home + "mlp.down_proj.weight": (hidden, inner)}
    return shapes | {"model.norm.weight": (hidden,)}


@torch.no_grad()
def logits(config, weights, tokens, steps, window=False):
    """[tokens, vocab] of one prompt: single steps would compute the same."""
    if config["model_type"] not in MODELS:
        raise ValueError("no definition of " + config["model_type"])
    w = {name: torch.from_numpy(np.array(x, order="C")) for name, x in weights.items()}
    return MODELS[config["model_type"]](config, w, tokens).float().numpy()
