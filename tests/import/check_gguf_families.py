#!/usr/bin/env python3
"""GGUF files as llama.cpp's converter writes them, from the golden checkpoints of tests/family: they must give the same
logits as the checkpoint, and the reference's.

    python tests/import/check_gguf_families.py [--apus build/apus] [--blocks N] [NAME…]

The files are written by gguf-py, with its names of tensors and keys and with the changes that the converter's model
classes (llama.cpp, conversion/*.py) make to the elements. What a config says and no key does must be llama.cpp's
constant: the case then changes the config, and only the checkpoint is compared. Needs gguf 0.19.0, mlx, numpy.
NAME: only cases whose name contains it. Every Nth file is also written with each matrix in blocks of another type, as
files of mixed types have them, and with the numbers of these blocks (gguf-py's dequantize) in f32: equal logits. Some
are written four times as wide, too, with K-quants and IQ types.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import load_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
import compare  # noqa: E402
import fixtures  # noqa: E402

import weights  # noqa: E402

LIMIT = 1e-4  # of max|logit|
NEAR = 2e-5  # the checkpoint's logits: sums in another order


# ---- what the converter does in all models ----


def metadata(config):
    """Keys of ModelBase and TextModel.set_gguf_parameters, without the architecture's name."""
    c = config
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    full = rope.get("full_attention", rope)
    theta = full.get("rope_theta", c.get("rope_theta"))

    def first(*names):
        return next((c[n] for n in names if c.get(n) is not None), None)

    found = {
        "block_count": first("num_hidden_layers", "n_layer", "n_layers"),
        "context_length": first("max_position_embeddings", "n_positions"),
        "embedding_length": first("hidden_size", "n_embd"),
        "feed_forward_length": first("intermediate_size", "n_inner"),
        "attention.head_count": first("num_attention_heads", "n_head"),
        "attention.head_count_kv": first("num_key_value_heads"),
        "rope.freq_base": theta,
        "rope.freq_base_swa": rope.get("sliding_attention", {}).get("rope_theta"),
        "attention.layer_norm_rms_epsilon": first("rms_norm_eps", "norm_eps"),
        "attention.layer_norm_epsilon": first("layer_norm_eps", "layer_norm_epsilon"),
        "expert_count": first("num_local_experts", "num_experts"),
        "expert_used_count": first("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        "expert_group_count": c.get("n_group"),
        "expert_group_used_count": c.get("topk_group"),
        "attention.key_length": c.get("head_dim"),
        "attention.value_length": c.get("head_dim"),
    }
    score = first("score_function", "scoring_func", "score_func")
    if score:
        found["expert_gating_func"] = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}[score]
    kind = full.get("rope_type", full.get("type"))
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": full["factor"]}
    if kind == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": full["factor"],
            "rope.scaling.original_context_length": full["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": full.get("beta_fast"),
            "rope.scaling.yarn_beta_slow": full.get("beta_slow"),
        }
    return {k: v for k, v in found.items() if v is not None}


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def paired(x, heads):
    """LlamaModel.permute."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def pair_heads(config, tensors):
    for name, x in tensors.items():
        if ".q_proj." in name:
            tensors[name] = paired(x, config["num_attention_heads"])
        elif ".k_proj." in name:
            tensors[name] = paired(x, config["num_key_value_heads"])


def llama3_factors(config, scaling):
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    context, dim = scaling["original_max_position_embeddings"], head_dim(config)
    out = []
    for i in range(dim // 2):
        wave = 2 * math.pi * scaling["rope_theta"] ** (2 * i / dim)
        if wave < context / high:
            out.append(1)
        elif wave > context / low:
            out.append(scaling["factor"])
        else:
            smooth = (context / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(out, np.float32)


# whose tensors are called the same; the first ones are newer than gguf 0.19
KNOWN_AS = {
    "bailingmoe3": "kimi-linear",
    "cohere2moe": "exaone-moe",
    "nanbeige": "llama",
    "deepseek32": "glm-dsa",
    "deepseek4": "glm-dsa",
    "gemma4-assistant": "gemma4",
    "hy_v3": "exaone-moe",
    "laguna": "step35",
    "mellum": "qwen3moe",
    "minimax-01": "minimax-m2",
    "muse-glimmer": "afmoe",
    "granite_swa": "step35",
    "spark2_5": "step35",
    "minimax-m3": "glm4moe",
}


# Types whose numbers both forms have exactly: where the f16 scales of a block are, and their size.
BLOCKS = {
    "Q4_0": ((0,), 0.01),
    "Q4_1": ((0, 2), 0.01),
    "Q5_0": ((0,), 0.005),
    "Q5_1": ((0, 2), 0.005),
    "Q8_0": ((0,), 0.001),
    "IQ4_NL": ((0,), 0.001),
    "MXFP4": ((), 0),
    "Q3_K": ((108,), 0.0005),
    "Q4_K": ((0, 2), 0.0002),
    "Q5_K": ((0, 2), 0.0001),
    "IQ4_XS": ((0,), 0.00005),
    "IQ3_XXS": ((0,), 0.0005),
    "TQ2_0": ((64,), 0.05),
}
# The same of types that the compact form alone has exactly, or that are seldom: in wide files.
WIDE_BLOCKS = {
    "Q6_K": ((208,), 0.0001),
    "IQ3_S": ((0,), 0.0003),
    "IQ2_XXS": ((0,), 0.001),
    "IQ1_S": ((0,), 0.01),
    "TQ1_0": ((52,), 0.05),
}
# Fixtures whose files are also written four times as wide, where blocks of 256 fit.
WIDE = ("glm4-moe-lite", "gpt-neox", "granitemoe-swa", "internlm2", "llama", "solar-open")
WIDER, NARROWEST = 4, 16  # smaller sizes are counts
NO_WIDTH = r"vocab|position|window|token|theta|num_|n_head|n_layer|n_group|top|eps|max_|_id|factor|multiplier|scale"
# What llama-quantize (llama-quant.cpp) leaves as it is, and what of DeepSeek-V4 is no matrix of a product.
NO_BLOCKS = (
    r"_norm\.weight|ffn_gate_inp|altup|laurel|per_layer_model_proj|position_embd|token_types|ssm_conv1d|attn_rel_b"
    r"|hc_|compressor_ape"
)


def random_blocks(rng, shape, types):
    """Blocks of random codes, as a tensor of one of the largest types that fit, and its numbers."""
    sizes = {name: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] for name in types}
    fit = [name for name in types if shape[-1] % sizes[name][0] == 0]
    largest = max(sizes[name][0] for name in fit) if types is not BLOCKS else 0
    name = rng.choice([name for name in fit if sizes[name][0] >= largest])
    elements, size = sizes[name]
    places, scale = types[name]
    blocks = rng.integers(0, 256, (math.prod(shape) // elements, size), dtype=np.uint8)
    for i, place in enumerate(places):
        d = rng.uniform(0.5, 1, len(blocks)) * scale * (-8 if i and elements == 32 else 1)
        blocks[:, place : place + 2] = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if not places:
        blocks[:, 0] = rng.integers(118, 122, len(blocks))
    kind = gguf.GGMLQuantizationType[name]
    rows = blocks.reshape(*shape[:-1], -1)
    return rows, kind, gguf.quants.dequantize(rows, kind)


class File:
    """A GGUF file to be written: metadata without the architecture, and tensors by their modules or names."""

    def __init__(self, architecture, config, tensors):
        self.architecture, self.config = architecture, config
        self.keys = metadata(config)
        self.tensors = {n.removeprefix("language_model."): x for n, x in tensors.items()}
        self.named = {}  # under names of GGUF
        self.rename = {}  # parts of modules' names → as gguf-py knows them
        self.types = BLOCKS

    def rename_all(self, pairs):
        self.rename |= pairs

    def take(self, suffix):
        """The tensors with this suffix, by layer, taken out."""
        found = [n for n in self.tensors if n.endswith(suffix)]
        return {int(re.search(r"\.(\d+)\.", n)[1]): self.tensors.pop(n) for n in found}

    def write(self, path, blocks=None):
        """blocks: None: as the tensors are; else matrices are in blocks of types drawn by lot from self.types, or
        (False) in their numbers in f32."""
        rng = np.random.default_rng(len(self.tensors))

        def add(name, x):
            fits = x.ndim > 1 and x.shape[-1] % 32 == 0 and x.dtype == np.float32 and name.endswith(".weight")
            if blocks is None or not fits or re.search(NO_BLOCKS, name):
                writer.add_tensor(name, np.ascontiguousarray(x))
                return
            coded, kind, floats = random_blocks(rng, x.shape, self.types)
            writer.add_tensor(name, coded if blocks else floats, raw_dtype=kind if blocks else None)

        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        layers = self.keys["block_count"]
        names = gguf.get_tensor_name_map(numbers[KNOWN_AS.get(self.architecture, self.architecture)], layers)
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.keys.items():
            full = key if key.startswith(("tokenizer.", "xielu.")) else f"{self.architecture}.{key}"
            if isinstance(value, bool):
                writer.add_bool(full, value)
            elif isinstance(value, int):
                writer.add_uint32(full, value)
            elif isinstance(value, float):
                writer.add_float32(full, value)
            elif isinstance(value, str):
                writer.add_string(full, value)
            else:
                writer.add_array(full, value)
        for name, x in self.tensors.items():
            for old, new in self.rename.items():
                name = name.replace(old, new)
            module, part = re.match(r"(.*?)(\.weight|\.bias|)$", fixtures.gguf_module(name)).groups()
            found = names.get_name(module) or names.get_name(module + part)
            assert found, f"gguf-py has no name for {name}"
            add(found + (part or ".weight"), x)
        for name, x in self.named.items():
            add(name, x)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


# ---- the models ----


def plain(f):
    pass


def llama(f):
    pair_heads(f.config, f.tensors)
    f.keys["rope.dimension_count"] = head_dim(f.config)


def internlm2(f):
    c = f.config
    heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], head_dim(c)
    for part in ("weight", "bias"):
        for i, x in f.take(f"attention.wqkv.{part}").items():
            x = x.reshape(kv, heads // kv + 2, size, *x.shape[1:])
            q, k, v = x[:, :-2], x[:, -2], x[:, -1]
            q, k, v = (y.reshape(-1, *x.shape[3:]) for y in (q, k, v))
            home = f"blk.{i}.attn_"
            f.named |= {f"{home}q.{part}": paired(q, heads), f"{home}k.{part}": paired(k, kv), f"{home}v.{part}": v}


def minicpm(f):
    c = f.config
    pair_heads(c, f.tensors)
    f.keys["embedding_scale"] = float(c["scale_emb"])
    f.keys["residual_scale"] = c["scale_depth"] / c["num_hidden_layers"] ** 0.5
    f.keys["logit_scale"] = c["hidden_size"] / c["dim_model_base"]


def minicpm3(f):
    c = f.config
    f.keys |= {"attention.q_lora_rank": c["q_lora_rank"], "attention.kv_lora_rank": c["kv_lora_rank"]}
    f.keys["attention.key_length"] = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    f.keys["rope.dimension_count"] = c["qk_rope_head_dim"]


def hunyuan_rope(f):
    c = f.config
    alpha, dim = c["rope_scaling"]["alpha"], head_dim(c)
    f.keys["rope.freq_base"] = c["rope_theta"] * alpha ** (dim / (dim - 2))
    f.keys |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    f.keys["rope.scaling.original_context_length"] = 256 * 1024


def hunyuan_moe(f):
    c = f.config
    f.rename_all({".shared_mlp.": ".shared_experts."})
    hunyuan_rope(f)
    f.keys["expert_shared_feed_forward_length"] = c["intermediate_size"]
    f.keys["expert_feed_forward_length"] = c["intermediate_size"]
    f.keys["expert_used_count"] = c["moe_topk"]
    f.keys["expert_shared_count"] = 1
    raw_experts(f, ".mlp.experts.")


def raw_experts(f, home):
    """Stacks experts that a checkpoint has one by one, or as transformers fuses them."""
    for part in ("gate", "up", "down"):
        found = {}
        for n in [n for n in f.tensors if re.search(re.escape(home) + rf"\d+\.{part}_proj\.weight$", n)]:
            layer, expert = map(int, re.search(r"layers\.(\d+)\..*\.(\d+)\.", n).groups())
            found.setdefault(layer, {})[expert] = f.tensors.pop(n)
        for layer, experts in found.items():
            f.named[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack([experts[e] for e in sorted(experts)])
    for layer, x in f.take(home + "gate_up_proj").items():
        half = x.shape[1] // 2
        f.named[f"blk.{layer}.ffn_gate_exps.weight"] = x[:, :half]
        f.named[f"blk.{layer}.ffn_up_exps.weight"] = x[:, half:]
    for layer, x in f.take(home + "down_proj").items():
        f.named[f"blk.{layer}.ffn_down_exps.weight"] = x


def apertus(f):
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        f.keys[f"xielu.{part}"] = [float(x.reshape(-1)[0]) for _, x in sorted(f.take(f"mlp.act_fn.{part}").items())]
    f.keys["rope.dimension_count"] = head_dim(f.config)


def ministral3(f):
    llama(f)
    rope = f.config["rope_parameters"]
    f.keys["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
    f.keys["attention.temperature_scale"] = rope["llama_4_scaling_beta"]


def context_only(f):
    """Without the length that YaRN stretches, which is then the trained context."""
    ministral3(f)
    del f.keys["rope.scaling.original_context_length"]


def glm(f):
    f.keys["rope.dimension_count"] = int(head_dim(f.config) * f.config.get("partial_rotary_factor", 0.5))
    for part in ("weight", "bias"):
        q, k, v = (f.take(f"self_attn.{p}_proj.{part}") for p in "qkv")
        for i in q:
            f.named[f"blk.{i}.attn_qkv.{part}"] = np.concatenate([q[i], k[i], v[i]])


def gpt2(f):
    f.keys.setdefault("feed_forward_length", 4 * f.config["n_embd"])
    f.rename_all({"model.": "transformer."})


def gpt_bigcode(f):
    f.keys["attention.head_count_kv"] = 1


def gpt_neox(f):
    c = f.config
    heads, hidden = c["num_attention_heads"], c["hidden_size"]
    f.keys.setdefault("feed_forward_length", 4 * hidden)
    f.keys["rope.dimension_count"] = int(c["rotary_pct"] * (hidden // heads))
    f.keys["use_parallel_residual"] = c.get("use_parallel_residual", True)
    for name, x in f.tensors.items():
        if "query_key_value" in name:
            parts = x.reshape(heads, 3, hidden // heads, *x.shape[1:])
            f.tensors[name] = np.concatenate([parts[:, i].reshape(hidden, *x.shape[1:]) for i in range(3)])
    f.rename_all({"model.h.": "gpt_neox.layers.", "model.embed_out": "embed_out", "model.": "gpt_neox."})
    f.rename_all({"gpt_neox.embed_out": "embed_out"})


def qwen(f):
    c = f.config
    f.keys["rope.freq_base"] = c.get("rotary_emb_base", 10000.0)
    f.keys["rope.dimension_count"] = c["hidden_size"] // c["num_attention_heads"]
    f.keys["attention.layer_norm_rms_epsilon"] = f.keys.pop("attention.layer_norm_epsilon")


def ernie(f):
    c = f.config
    f.keys |= {"expert_count": c["moe_num_experts"], "expert_used_count": c["moe_k"]}
    f.keys["interleave_moe_layer_step"] = c["moe_layer_interval"]
    f.keys["leading_dense_block_count"] = c["moe_layer_start_index"]
    f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
    f.keys["expert_shared_count"] = c["moe_num_shared_experts"]
    f.keys["expert_shared_feed_forward_length"] = c["intermediate_size"] // c["num_key_value_heads"]
    for i, x in f.take("moe_statics.e_score_correction_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x.reshape(-1)
    raw_experts(f, ".mlp.experts.")


def minimax(f):
    c = f.config
    f.keys["expert_feed_forward_length"] = c["intermediate_size"]
    f.keys["rope.dimension_count"] = c["rotary_dim"]
    for i, x in f.take("block_sparse_moe.e_score_correction_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x


def minimax_m3(f):
    c = f.config = f.config["text_config"]
    f.keys = metadata(c)
    sparse = c["sparse_attention_config"]
    f.keys |= {"feed_forward_length": c["dense_intermediate_size"], "rope.dimension_count": c["rotary_dim"]}
    f.keys |= {"expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2, "expert_shared_count": 1}
    f.keys |= {"expert_weights_scale": c["routed_scaling_factor"], "expert_weights_norm": True}
    f.keys["leading_dense_block_count"] = c["moe_layer_freq"].index(1)
    for key, field in MINIMAX_INDEXER:
        f.keys["attention.indexer." + key] = sparse[field]
    for name, x in f.tensors.items():
        if name.endswith("norm.weight"):
            f.tensors[name] = x + 1
    for i, x in f.take("post_attention_layernorm.weight").items():
        f.named[f"blk.{i}.ffn_norm.weight"] = x
    for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
        for i, x in f.take(f"self_attn.index_{part}.weight").items():
            f.named[f"blk.{i}.indexer.{part}.weight"] = x
    for i, x in f.take("e_score_correction_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x
    for part in ("gate", "up", "down"):
        for i, x in f.take(f"shared_experts.{part}_proj.weight").items():
            f.named[f"blk.{i}.ffn_{part}_shexp.weight"] = x


def minimax_01(f):
    c = f.config
    f.keys |= {"residual_scale": c["mlp_alpha_factor"], "rope.dimension_count": c["head_dim"]}
    for module, own in MINIMAX_01.items():
        for i, x in f.take(module).items():
            f.named[f"blk.{i}.{own}"] = x
    for own, part in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        for i in range(c["num_hidden_layers"]):
            home = f"model.layers.{i}.block_sparse_moe.experts."
            each = [f.tensors.pop(f"{home}{e}.{part}.weight") for e in range(c["num_local_experts"])]
            f.named[f"blk.{i}.ffn_{own}_exps.weight"] = np.stack(each)


def deepseek_v4(f):
    c = f.config
    layers, experts = c["num_hidden_layers"], c["n_routed_experts"]
    ratios = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    f.keys |= {"rope.dimension_count": c["qk_rope_head_dim"], "expert_weights_norm": c["norm_topk_prob"]}
    f.keys["attention.compress_ratios"] = [ratios[t] for t in c["layer_types"]] + [0]  # of the layer that predicts, too
    f.keys |= {"expert_count": experts, "expert_gating_func": 4, "embedding_length_out": 4 * c["hidden_size"]}
    for limit in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        f.keys[limit] = [c["swiglu_limit"]] * layers
    for key, field in DEEPSEEK_V4_KEYS.items():
        f.keys[key] = c[field]
    for old, new in DEEPSEEK_V4.items():
        names = [n for n in f.tensors if re.fullmatch(old.replace(".", r"\.").replace("*", r"\d+"), n)]
        for name in names:
            number = re.search(r"layers\.(\d+)\.", name)
            f.named[new.replace("*", number[1] if number else "")] = f.tensors.pop(name)
    for own, part in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        for i in range(layers):
            home = f"model.layers.{i}.ffn.experts."
            each = [f.tensors.pop(f"{home}{e}.{part}.weight") for e in range(experts)]
            f.named[f"blk.{i}.ffn_{own}_exps.weight"] = np.stack(each)
    for name, x in f.named.items():
        if name.endswith("tid2eid.weight"):
            f.named[name] = x.astype(np.int32)


def shared_experts(f, shared="n_shared_experts"):
    c = f.config
    f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
    f.keys["expert_shared_count"] = c[shared]
    f.keys["leading_dense_block_count"] = c.get("first_k_dense_replace", c.get("num_dense_layers", 0))
    f.keys["expert_weights_norm"] = c.get("norm_topk_prob", True)
    f.keys["expert_weights_scale"] = float(c.get("routed_scaling_factor") or 1)
    for i, x in f.take("e_score_correction_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x


def cohere2_moe(f):
    c = f.config
    layers, dense = c["num_hidden_layers"], c["first_k_dense_replace"]
    slides = [i >= dense and (i - dense + 1) % 4 != 0 for i in range(layers)]
    f.keys |= {"feed_forward_length": c["prefix_dense_intermediate_size"], "leading_dense_block_count": dense}
    f.keys |= {"expert_feed_forward_length": c["intermediate_size"], "expert_shared_count": c["num_shared_experts"]}
    f.keys["expert_shared_feed_forward_length"] = c["intermediate_size"] * c["num_shared_experts"]
    f.keys |= {"expert_gating_func": 2, "expert_weights_norm": c["norm_topk_prob"], "logit_scale": c["logit_scale"]}
    f.keys |= {"attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": slides}
    f.keys |= {"rope.dimension_count": head_dim(c), "rope.scaling.type": "none", "vocab_size": c["vocab_size"]}
    raw_experts(f, ".mlp.experts.")
    for part in ("gate", "up", "down"):
        for i, x in f.take(f"mlp.shared_experts.{part}_proj.weight").items():
            f.named[f"blk.{i}.ffn_{part}_shexp.weight"] = x


def hy_v3(f):
    c = f.config
    f.keys |= {"expert_feed_forward_length": c["moe_intermediate_size"], "expert_gating_func": 2}
    f.keys["expert_shared_feed_forward_length"] = c["moe_intermediate_size"] * c["num_shared_experts"]
    f.keys |= {"expert_weights_norm": True, "expert_weights_scale": c["router_scaling_factor"]}
    for i, x in f.take("mlp.expert_bias").items():
        f.named[f"blk.{i}.exp_probs_b"] = x
    raw_experts(f, ".mlp.experts.")
    f.rename_all({".shared_mlp.": ".shared_experts."})


def muse_glimmer(f):
    c = f.config
    pair_heads(c, f.tensors)
    windows(f)
    f.keys |= {"final_logit_softcapping": c["final_logit_softcapping"], "logit_scale": c["output_multiplier"]}
    for name, x in f.tensors.items():
        if name.endswith("layernorm.weight"):
            f.tensors[name] = x + 1
    for i in range(c["num_hidden_layers"]):
        f.named[f"blk.{i}.attn_q_norm.weight"] = np.full(c["head_dim"], c["qk_scale_factor"], np.float32)
        f.named[f"blk.{i}.attn_k_norm.weight"] = np.ones(c["head_dim"], np.float32)


def windows(f):
    c = f.config
    f.keys["attention.sliding_window"] = c["sliding_window"]
    f.keys["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in c["layer_types"]]


def exaone_moe(f):
    c = f.config
    shared_experts(f, "num_shared_experts")
    f.keys["leading_dense_block_count"] = c["is_moe_layer"].count(False)
    f.keys["expert_shared_feed_forward_length"] = c["moe_intermediate_size"] * c["num_shared_experts"]
    f.keys["rope.scaling.type"] = "none"
    windows(f)


def afmoe(f):
    c = f.config
    shared_experts(f, "num_shared_experts")
    f.keys["expert_weights_norm"] = c.get("route_norm", True)
    f.keys["expert_weights_scale"] = c["route_scale"]
    f.keys["attention.sliding_window"] = c["sliding_window"]
    f.keys["rope.dimension_count"] = head_dim(c)
    f.keys["expert_gating_func"] = 2
    for i, x in f.take("mlp.expert_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x


def bailing(f):
    c = f.config
    shared_experts(f, "num_shared_experts")
    f.keys |= {"rope.dimension_count": head_dim(c), "expert_weights_scale": 1.0}
    heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], head_dim(c)
    for i, x in f.take("attention.query_key_value.weight").items():
        q, k, v = np.split(x, [heads * size, (heads + kv) * size])
        f.named[f"blk.{i}.attn_q.weight"] = paired(q, heads)
        f.named[f"blk.{i}.attn_k.weight"] = paired(k, kv)
        f.named[f"blk.{i}.attn_v.weight"] = v
    for i, x in f.take("attention.dense.weight").items():
        f.named[f"blk.{i}.attn_output.weight"] = x
    f.rename_all({"mlp.gate.gate_proj": "mlp.gate"})
    for part in ("gate", "up", "down"):  # llama.cpp's models have no dense layers
        for i, x in f.take(f"layers.0.mlp.{part}_proj.weight").items():
            f.named[f"blk.{i}.ffn_{part}.weight"] = x


def bailing2(f):
    c = f.config
    shared_experts(f, "num_shared_experts")
    f.keys["rope.dimension_count"] = int(head_dim(c) * c["partial_rotary_factor"])
    f.keys["expert_shared_feed_forward_length"] = c["moe_shared_expert_intermediate_size"]
    f.rename_all({"mlp.gate.gate_proj": "mlp.gate"})
    for i, x in f.take("mlp.gate.expert_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x


def bailing3(f):
    c = f.config
    rank, rope, nope = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    shared_experts(f, "num_shared_experts")
    f.keys["expert_shared_feed_forward_length"] = c["moe_shared_expert_intermediate_size"]
    f.keys |= {"ssm.conv_kernel": c["short_conv_kernel_size"], "kda.head_dim": c["head_dim"], "kda.safe_gate": True}
    f.keys |= {"kda.gate_lower_bound": c["kda_lower_bound"], "attention.kv_lora_rank": rank}
    f.keys |= {"attention.q_lora_rank": c["q_lora_rank"], "attention.key_length": rank + rope}
    f.keys |= {"attention.key_length_mla": nope + rope, "attention.value_length_mla": c["v_head_dim"]}
    f.keys |= {"rope.dimension_count": rope, "vocab_size": c["vocab_size"]}
    del f.keys["attention.value_length"]
    full = f.take("attention.kv_a_proj_with_mqa.weight")
    f.keys["attention.head_count_kv"] = [int(i in full) for i in range(c["num_hidden_layers"])]
    for i, x in full.items():
        f.named[f"blk.{i}.attn_kv_a_mqa.weight"] = x
    for part in "qkv":
        for i, x in f.take(f"attention.{part}_conv1d.weight").items():
            f.named[f"blk.{i}.ssm_conv1d_{part}.weight"] = x.reshape(1, x.shape[0], 1, -1)
    for i, x in f.take("attention.A_log").items():
        f.named[f"blk.{i}.ssm_a"] = np.exp(x).reshape(-1, 1)
    for i, x in f.take("attention.g_proj.weight").items():
        f.named[f"blk.{i}.{'attn_gate' if i in full else 'ssm_g_a'}.weight"] = x
    for module, own in LING.items():
        for i, x in f.take(module).items():
            f.named[f"blk.{i}.{own}"] = x


def phimoe(f):
    scaling = f.config.get("rope_scaling") or {}
    f.keys["rope.dimension_count"] = head_dim(f.config)
    if "long_factor" in scaling:
        original = f.config["original_max_position_embeddings"]
        f.keys["rope.scaling.original_context_length"] = original
        f.keys["rope.scaling.type"] = "longrope"
        for length in ("long", "short"):
            f.named[f"rope_factors_{length}.weight"] = np.array(scaling[length + "_factor"], np.float32)


def mimo2(f):
    c = f.config
    shared_experts(f)
    del f.keys["expert_shared_count"], f.keys["leading_dense_block_count"], f.keys["expert_weights_norm"]
    del f.keys["expert_weights_scale"]
    for name in [n for n in f.tensors if ".shared_experts." in n]:
        del f.tensors[name]
    slides = c["hybrid_layer_pattern"] + [1] * 3
    kv = [c["swa_num_key_value_heads"] if s else c["num_key_value_heads"] for s in slides]
    f.keys |= {"block_count": c["num_hidden_layers"] + 3, "nextn_predict_layers": 3}
    f.keys |= {"attention.head_count_kv": kv, "attention.sliding_window_pattern": slides}
    f.keys |= {"attention.sliding_window": c["sliding_window_size"], "attention.value_length": c["v_head_dim"]}
    f.keys["rope.freq_base_swa"] = c["swa_rope_theta"]
    f.keys["expert_count"] = c["n_routed_experts"]
    f.keys["rope.dimension_count"] = int(c["head_dim"] * c["partial_rotary_factor"])
    f.keys["attention.layer_norm_rms_epsilon"] = c["layernorm_epsilon"]


def llama4(f):
    c = f.config
    rope = c["rope_parameters"]
    f.keys |= {"feed_forward_length": c["intermediate_size_mlp"], "expert_feed_forward_length": c["intermediate_size"]}
    f.keys["interleave_moe_layer_step"] = c["interleave_moe_layer_step"]
    f.keys["rope.dimension_count"] = head_dim(c)
    f.named["rope_freqs.weight"] = llama3_factors(c, rope)
    for i, x in f.take("experts.gate_up_proj").items():
        gate, up = np.split(x.swapaxes(1, 2), 2, axis=1)
        f.named |= {f"blk.{i}.ffn_gate_exps.weight": gate, f"blk.{i}.ffn_up_exps.weight": up}
    for i, x in f.take("experts.down_proj").items():
        f.named[f"blk.{i}.ffn_down_exps.weight"] = x.swapaxes(1, 2)


def mla(f):
    c = f.config
    f.keys["attention.head_count_kv"] = 1
    rank, rope, nope = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    f.keys |= {"attention.q_lora_rank": c["q_lora_rank"], "attention.kv_lora_rank": rank}
    f.keys |= {"attention.key_length": rank + rope, "attention.value_length": rank}
    f.keys |= {"attention.key_length_mla": nope + rope, "attention.value_length_mla": c["v_head_dim"]}
    shared_experts(f)
    f.keys["expert_count"] = c["n_routed_experts"]
    f.keys["rope.dimension_count"] = rope
    for i, x in f.take("self_attn.kv_b_proj.weight").items():
        k, v = np.split(x.reshape(c["num_attention_heads"], nope + c["v_head_dim"], -1), [nope], axis=1)
        f.named |= {f"blk.{i}.attn_k_b.weight": k.swapaxes(1, 2), f"blk.{i}.attn_v_b.weight": v}
    mscale = (c.get("rope_parameters") or c.get("rope_scaling") or {}).get("mscale_all_dim")
    if mscale:
        f.keys["rope.scaling.yarn_log_multiplier"] = 0.1 * mscale


def glm4_moe_lite(f):
    mla(f)
    f.keys |= {"expert_gating_func": 2, "tokenizer.ggml.pre": "glm4"}


def solar(f):
    f.config.setdefault("norm_topk_prob", True)
    shared_experts(f)
    f.keys["expert_count"] = f.config["n_routed_experts"]
    f.keys |= {"expert_gating_func": 2, "rope.dimension_count": head_dim(f.config)}


def youtu(f):
    c = f.config
    rank, rope, nope = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    f.keys |= {"attention.head_count_kv": 1, "attention.kv_lora_rank": rank, "vocab_size": c["vocab_size"]}
    if c["q_lora_rank"]:
        f.keys["attention.q_lora_rank"] = c["q_lora_rank"]
    f.keys |= {"attention.key_length": rank + rope, "attention.value_length": rank, "rope.dimension_count": rope}
    f.keys |= {"attention.key_length_mla": nope + rope, "attention.value_length_mla": c["v_head_dim"]}
    f.keys |= {"leading_dense_block_count": c["num_hidden_layers"], "expert_shared_count": 0}
    f.keys |= {"expert_feed_forward_length": c["intermediate_size"], "tokenizer.ggml.pre": "youtu"}
    for i, x in f.take("self_attn.kv_b_proj.weight").items():
        k, v = np.split(x.reshape(c["num_attention_heads"], nope + c["v_head_dim"], -1), [nope], axis=1)
        f.named |= {f"blk.{i}.attn_k_b.weight": k.swapaxes(1, 2), f"blk.{i}.attn_v_b.weight": v}


def mistral4(f):
    mla(f)
    rope = f.config["rope_parameters"]
    f.keys["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    f.keys["attention.temperature_length"] = rope["original_max_position_embeddings"]
    for i, x in f.take("mlp.experts.gate_up_proj").items():
        f.named[f"blk.{i}.ffn_gate_up_exps.weight"] = x
    for i, x in f.take("mlp.experts.down_proj").items():
        f.named[f"blk.{i}.ffn_down_exps.weight"] = x


def dsa(f):
    mla(f)
    c = f.config
    f.keys |= {"expert_gating_func": 2, "attention.indexer.top_k": c["index_topk"]}
    f.keys |= {"attention.indexer.head_count": c["index_n_heads"], "attention.indexer.key_length": c["index_head_dim"]}
    for part in ("k_norm.weight", "k_norm.bias", "weights_proj.weight", "wk.weight", "wq_b.weight"):
        own = part.replace("weights_proj", "proj").replace("wk", "attn_k").replace("wq_b", "attn_q_b")
        for i, x in f.take(f"indexer.{part}").items():
            f.named[f"blk.{i}.indexer.{own}"] = x


def gemma3n(f):
    c = f.config
    f.keys |= {"altup.active_idx": c["altup_active_idx"], "altup.num_inputs": c["altup_num_inputs"]}
    f.keys["embedding_length_per_layer_input"] = c["hidden_size_per_layer_input"]
    f.keys["attention.shared_kv_layers"] = c["num_kv_shared_layers"]
    parts = c["activation_sparsity_pattern"]
    scale = [statistics.NormalDist().inv_cdf(p) if p > 0 else -math.inf for p in parts]
    f.keys["activation_sparsity_scale"] = [float(np.float32(x)) for x in scale]
    f.keys["final_logit_softcapping"] = c["final_logit_softcapping"]
    windows(f)
    for of in ("altup_projections", "altup_unembed_projections"):
        names = sorted(n for n in f.tensors if n.startswith(f"model.{of}."))
        f.tensors[f"model.{of}.weight"] = np.stack([f.tensors.pop(n) for n in names])
    for name in [n for n in f.tensors if "embed_tokens" in n]:
        x = f.tensors[name]
        f.tensors[name] = np.concatenate([x, np.zeros((c["vocab_size"] - x.shape[0], x.shape[1]), x.dtype)])


def gemma4(f):
    c = f.config
    shared, layers = c["num_kv_shared_layers"], c["num_hidden_layers"]
    f.keys |= {"attention.shared_kv_layers": shared}
    f.keys["embedding_length_per_layer_input"] = c["hidden_size_per_layer_input"]
    windows(f)
    full, size = c["global_head_dim"], c["head_dim"]
    f.keys |= {"attention.key_length": full, "attention.value_length": full, "rope.dimension_count": full}
    f.keys |= {"attention.key_length_swa": size, "attention.value_length_swa": size, "rope.dimension_count_swa": size}
    if c.get("moe_intermediate_size"):
        f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
    if c["use_double_wide_mlp"]:
        f.keys["feed_forward_length"] = [c["intermediate_size"] * (1 + (i >= layers - shared)) for i in range(layers)]
    if c.get("num_global_key_value_heads"):
        kinds = {"sliding_attention": c["num_key_value_heads"], "full_attention": c["num_global_key_value_heads"]}
        f.keys["attention.head_count_kv"] = [kinds[t] for t in c["layer_types"]]
    if c["final_logit_softcapping"]:
        f.keys["final_logit_softcapping"] = c["final_logit_softcapping"]
    turned = int(full * c["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    f.named["rope_freqs.weight"] = np.array([1.0] * turned + [1e30] * (full // 2 - turned), np.float32)
    for part, name in (("router.scale", "ffn_gate_inp.scale"), ("per_expert_scale", "ffn_down_exps.scale")):
        for i, x in f.take(part).items():
            f.named[f"blk.{i}.{name}"] = x
    gates, ups = f.take("switch_glu.gate_proj.weight"), f.take("switch_glu.up_proj.weight")
    for i, x in f.take("switch_glu.down_proj.weight").items():
        f.named[f"blk.{i}.ffn_down_exps.weight"] = x
        f.named[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate([gates[i], ups[i]], axis=1)


def dbrx(f):
    c = f.config
    f.keys |= {"context_length": c["max_seq_len"], "embedding_length": c["d_model"]}
    f.keys |= {"attention.head_count": c["n_heads"], "attention.head_count_kv": c["attn_config"]["kv_n_heads"]}
    f.keys["feed_forward_length"] = c["ffn_config"]["ffn_hidden_size"]
    f.keys |= {"rope.freq_base": c["attn_config"]["rope_theta"], "attention.clamp_kqv": c["attn_config"]["clip_qkv"]}
    f.keys |= {"expert_count": c["ffn_config"]["moe_num_experts"], "expert_used_count": c["ffn_config"]["moe_top_k"]}
    f.keys["attention.layer_norm_epsilon"] = 1e-5
    for part, own in (("gate", "w1"), ("up", "v1"), ("down", "w2")):
        for i in range(c["n_layers"]):
            home = f"transformer.blocks.{i}.ffn.experts."
            each = [f.tensors.pop(f"{home}{e}.{own}.weight") for e in range(c["ffn_config"]["moe_num_experts"])]
            f.named[f"blk.{i}.ffn_{part}_exps.weight"] = np.stack(each)


def mellum(f):
    f.keys["expert_feed_forward_length"] = f.config["moe_intermediate_size"]
    f.keys["rope.dimension_count"] = head_dim(f.config)
    windows(f)
    raw_experts(f, ".mlp.experts.")


def kimi_linear(f):
    c = f.config
    linear, layers = c["linear_attn_config"], c["num_hidden_layers"]
    rank, rope, nope = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    f.keys["attention.head_count_kv"] = [int(i + 1 in linear["full_attn_layers"]) for i in range(layers)]
    f.keys |= {"ssm.conv_kernel": linear["short_conv_kernel_size"], "kda.head_dim": linear["head_dim"]}
    f.keys |= {"context_length": c["model_max_length"], "attention.kv_lora_rank": rank}
    f.keys |= {"attention.key_length": rank + rope, "rope.dimension_count": rope}
    f.keys |= {"attention.key_length_mla": nope + rope, "attention.value_length_mla": c["v_head_dim"]}
    f.keys |= {"expert_gating_func": 2, "vocab_size": c["vocab_size"]}
    f.keys.pop("attention.value_length", None)
    shared_experts(f, "num_shared_experts")
    del f.keys["expert_weights_norm"]
    for part in "qkv":
        for i, x in f.take(f"self_attn.{part}_conv.conv.weight").items():
            f.named[f"blk.{i}.ssm_conv1d_{part}.weight"] = x.reshape(1, x.shape[0], 1, -1)
        for i, x in f.take(f"self_attn.{part}_conv1d.weight").items():
            f.named[f"blk.{i}.ssm_conv1d_{part}.weight"] = x.reshape(1, x.shape[0], 1, -1)
    for i, x in f.take("self_attn.A_log").items():
        f.named[f"blk.{i}.ssm_a"] = -np.exp(x)
    for i, x in f.take("self_attn.dt_bias").items():
        f.named[f"blk.{i}.ssm_dt.bias"] = x
    for i, x in f.take("self_attn.kv_b_proj.weight").items():
        k, v = np.split(x.reshape(c["num_attention_heads"], nope + c["v_head_dim"], -1), [nope], axis=1)
        f.named |= {f"blk.{i}.attn_k_b.weight": k.swapaxes(1, 2), f"blk.{i}.attn_v_b.weight": v}
    for part, own in (("embed_q", "attn_k_b"), ("unembed_out", "attn_v_b")):
        for i, x in f.take(f"self_attn.{part}.weight").items():
            f.named[f"blk.{i}.{own}.weight"] = x


def deci(f):
    c = f.config
    kv, heads, width = [], [], []
    for i, block in enumerate(c["block_configs"]):
        own, ffn = block["attention"], block["ffn"]
        kv.append(c["num_attention_heads"] // own["n_heads_in_group"] if own.get("n_heads_in_group") else 0)
        heads.append(0 if own.get("no_op") else c["num_attention_heads"])
        width.append(-(-int(2 * ffn.get("ffn_mult", 0) * c["hidden_size"] / 3) // 256) * 256)
        for part in ("weight", "bias"):
            for old in ("q", "k"):
                name = f"model.layers.{i}.self_attn.{old}_proj.{part}"
                if name in f.tensors:
                    f.tensors[name] = paired(f.tensors[name], heads[i] if old == "q" else kv[i])
    f.rename_all({"self_attn.linear.": "self_attn.o_proj."})
    f.keys |= {"attention.head_count": heads, "attention.head_count_kv": kv, "feed_forward_length": width}
    f.keys["context_length"] = c["max_position_embeddings"]
    f.keys |= {"attention.key_length": head_dim(c), "attention.value_length": head_dim(c)}
    f.keys |= {"vocab_size": c["vocab_size"], "rope.dimension_count": head_dim(c)}
    if c.get("rope_scaling"):
        f.named["rope_freqs.weight"] = llama3_factors(c, c["rope_scaling"] | {"rope_theta": c["rope_theta"]})


def openelm(f):
    c = f.config
    f.keys |= {"block_count": c["num_transformer_layers"], "embedding_length": c["model_dim"]}
    f.keys |= {"context_length": 2048, "rope.freq_base": float(c["rope_freq_constant"])}
    f.keys |= {"attention.head_count": c["num_query_heads"], "attention.head_count_kv": c["num_kv_heads"]}
    f.keys["rope.dimension_count"] = c["head_dim"]
    down = f.take("ffn.proj_2.weight")
    f.keys["feed_forward_length"] = [down[i].shape[1] for i in range(len(down))]
    for i, x in f.take("ffn.proj_1.weight").items():
        gate, up = np.split(x, 2)
        f.named |= {f"blk.{i}.ffn_gate.weight": gate, f"blk.{i}.ffn_up.weight": up, f"blk.{i}.ffn_down.weight": down[i]}


def step35(f):
    c = f.config
    thetas, other, layers = c["rope_theta"], c["attention_other_setting"], c["num_hidden_layers"] + 1
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    full = (c["num_attention_heads"], c["num_attention_groups"])
    own = [(other["num_attention_heads"], other["num_attention_groups"]) if s else full for s in slides]
    f.keys |= {"block_count": layers, "nextn_predict_layers": 1}
    f.keys |= {"rope.freq_base": thetas[0], "rope.freq_base_swa": thetas[1]}
    f.keys |= {"attention.head_count": [h for h, _ in own], "attention.head_count_kv": [k for _, k in own]}
    f.keys |= {"attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": slides}
    f.keys |= {"expert_count": c["moe_num_experts"], "expert_used_count": c["moe_top_k"]}
    f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
    f.keys["expert_shared_feed_forward_length"] = c["share_expert_dim"]
    f.keys["expert_weights_scale"] = c["moe_router_scaling_factor"]
    f.keys["expert_weights_norm"] = c["norm_expert_weight"]
    f.keys |= {"leading_dense_block_count": 1, "moe_every_n_layers": 1}
    f.keys |= {"swiglu_clamp_exp": c["swiglu_limits"], "swiglu_clamp_shexp": c["swiglu_limits_shared"]}
    f.named["rope_freqs.weight"] = llama3_factors(c, c["rope_scaling"] | {"rope_theta": thetas[0]})
    for i, x in f.take("mlp.gate.router_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x
    f.rename_all({"mlp.gate.gate": "mlp.gate", "mlp.share_expert": "share_expert"})


def laguna(f):
    c = f.config
    heads = c.get("num_attention_heads_per_layer") or [c["num_attention_heads"]] * c["num_hidden_layers"]
    full, sliding = (c["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    f.keys |= {"vocab_size": c["vocab_size"], "attention.head_count": heads}
    f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
    f.keys["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    f.keys |= {"expert_weights_norm": True, "expert_weights_scale": float(c.get("moe_routed_scaling_factor", 1))}
    f.keys |= {"expert_gating_func": 2, "leading_dense_block_count": 1}
    common = c.get("partial_rotary_factor")
    f.keys["rope.dimension_count"] = int(head_dim(c) * full.get("partial_rotary_factor", common))
    if c["sliding_window"]:
        f.keys["attention.sliding_window"] = c["sliding_window"]
        f.keys["rope.dimension_count_swa"] = int(head_dim(c) * sliding["partial_rotary_factor"])
    else:
        del f.keys["rope.freq_base_swa"]
    for i, x in f.take("e_score_correction_bias").items():
        f.named[f"blk.{i}.exp_probs_b.bias"] = x
    raw_experts(f, ".mlp.experts.")
    f.rename_all({"mlp.shared_expert.": "mlp.shared_experts.", "mlp.gate.proj.": "mlp.gate."})


def bloom(f):
    c = f.config
    heads, hidden = c["n_head"], c["hidden_size"]
    f.keys |= {"context_length": c["seq_length"], "feed_forward_length": 4 * hidden}
    f.keys |= {"attention.head_count": heads, "attention.head_count_kv": heads, "embedding_length": hidden}
    f.keys |= {"block_count": c["n_layer"], "attention.layer_norm_epsilon": c["layer_norm_epsilon"]}
    for name, x in f.tensors.items():
        if "query_key_value" in name:
            parts = x.reshape(heads, 3, hidden // heads, *x.shape[1:])
            f.tensors[name] = np.concatenate([parts[:, i].reshape(hidden, *x.shape[1:]) for i in range(3)])
    f.rename_all({"transformer.": ""})


def mpt(f):
    c, attention = f.config, f.config["attn_config"]
    f.keys |= {"embedding_length": c["d_model"], "feed_forward_length": 4 * c["d_model"]}
    f.keys |= {"attention.head_count": c["n_heads"], "context_length": c["max_seq_len"]}
    f.keys |= {"attention.layer_norm_epsilon": c["layer_norm_epsilon"], "attention.max_alibi_bias": 8.0}
    if attention["clip_qkv"]:
        f.keys["attention.clamp_kqv"] = attention["clip_qkv"]


def spark(f):
    c = f.config
    types = c["layer_types"]
    f.keys |= {"vocab_size": c["vocab_size"], "attention.sliding_window": c["sliding_window"]}
    f.keys["attention.layer_norm_rms_epsilon"] = c.get("rms_norm_eps", 1e-6)
    f.keys["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in types]
    for kind, end in (("full", ""), ("sliding", "_swa")):
        part = c["rope_parameters"][kind + "_attention"].get("partial_rotary_factor", 1)
        f.keys["rope.dimension_count" + end] = int(c["head_dim"] * part)
    for i, x in f.take("self_attn.q_k_v_proj.weight").items():
        f.named[f"blk.{i}.attn_qkv.weight"] = x
    f.rename_all({".out_proj.": ".o_proj.", "model.embedding.": "model.embed_tokens."})


def falcon(f):
    c = f.config
    heads, hidden = c["num_attention_heads"], c["hidden_size"]
    kv = c.get("num_kv_heads") or 1
    f.keys |= {"context_length": 2048, "tensor_data_layout": "jploski", "attention.head_count_kv": kv}
    f.keys["feed_forward_length"] = c.get("ffn_hidden_size") or 4 * hidden
    for name, x in f.tensors.items():
        if "query_key_value" in name:
            x = x.reshape(kv, heads // kv + 2, hidden // heads, hidden)
            f.tensors[name] = np.concatenate([y.reshape(-1, hidden) for y in (x[:, :-2], x[:, -2], x[:, -1])])


def xverse(f):
    llama(f)
    f.keys["tensor_data_layout"] = "Meta AI original pth"


def nanbeige(f):
    llama(f)
    c = f.config
    f.keys["num_loops"] = c.get("num_loops") or len(c["loop_loss_weights"]) + 1
    f.keys |= {"skip_loop_final_norm": c.get("skip_loop_final_norm", False)}
    f.keys |= {f"attention.{key}": head_dim(c) for key in ("head_dim", "key_length", "value_length")}


def granitemoeshared(f):
    c = f.config
    pair_heads(c, f.tensors)
    for key, field in GRANITE.items():
        f.keys[key] = c[field]
    f.keys |= {"rope.dimension_count": head_dim(c), "expert_shared_feed_forward_length": c["shared_intermediate_size"]}
    for own, home in (("exps", "block_sparse_moe"), ("shexp", "shared_mlp")):
        for i, x in f.take(f"{home}.input_linear.weight").items():
            gate, up = np.split(x, 2, axis=-2)
            f.named |= {f"blk.{i}.ffn_gate_{own}.weight": gate, f"blk.{i}.ffn_up_{own}.weight": up}
        for i, x in f.take(f"{home}.output_linear.weight").items():
            f.named[f"blk.{i}.ffn_down_{own}.weight"] = x


def granite_swa(f):
    c = f.config
    layers = c["num_hidden_layers"]
    pair_heads(c, f.tensors)
    for key, field in GRANITE.items():
        f.keys[key] = c[field]
    types = c.get("layer_types") or [("full" if i % 4 == 0 else "sliding") + "_attention" for i in range(layers)]
    thetas = c.get("layer_rope_theta") or [c["rope_parameters"]["rope_theta"]] * layers
    f.keys |= {"rope.dimension_count": head_dim(c), "attention.sliding_window": c["sliding_window"]}
    f.keys["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in types]
    f.keys["attention.rope_pattern"] = [theta > 0 for theta in thetas]
    for i, x in f.take("self_attn.sinks").items():
        f.named[f"blk.{i}.attn_sinks.weight"] = x
    if c.get("shared_intermediate_size"):
        f.keys["expert_shared_feed_forward_length"] = c["shared_intermediate_size"]
    for i, x in f.take("block_sparse_moe.router.weight").items():
        f.named[f"blk.{i}.ffn_gate_inp.weight"] = x
    for own, part in (("up", "input"), ("down", "output")):  # gate and up stay one matrix
        for i, x in f.take(f"shared_mlp.{part}_linear.weight").items():
            f.named[f"blk.{i}.ffn_{own}_shexp.weight"] = x
    if c.get("tie_word_embeddings"):  # as some files have it, and others not
        for i, x in f.take("block_sparse_moe.experts.gate_up_proj").items():
            f.named[f"blk.{i}.ffn_gate_up_exps.weight"] = x
    raw_experts(f, ".block_sparse_moe.experts.")


def bamba(f):
    c = f.config
    pair_heads(c, f.tensors)
    inner, heads = c["mamba_n_heads"] * c["mamba_d_head"], c["mamba_n_heads"]
    kv = [c["num_key_value_heads"] * (i in c["attn_layer_indices"]) for i in range(c["num_hidden_layers"])]
    f.keys |= {"attention.head_count_kv": kv, "rope.scaling.finetuned": True}
    f.keys["rope.dimension_count"] = int(head_dim(c) * c.get("partial_rotary_factor", 0.5))
    f.keys |= {"ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"], "ssm.inner_size": inner}
    f.keys |= {"ssm.group_count": c["mamba_n_groups"], "ssm.time_step_rank": heads}
    for part, name in (("A_log", "ssm_a"), ("D", "ssm_d")):
        for i, x in f.take(f"mamba.{part}").items():
            f.named[f"blk.{i}.{name}"] = (-np.exp(x) if part == "A_log" else x).reshape(-1, 1)
    for i, x in f.take("mamba.dt_bias").items():
        f.named[f"blk.{i}.ssm_dt.bias"] = x
    for i, x in f.take("mamba.conv1d.weight").items():
        f.named[f"blk.{i}.ssm_conv1d.weight"] = x.reshape(x.shape[0], -1)
    for i, x in f.take("mamba.norm.weight").items():
        f.named[f"blk.{i}.ssm_norm.weight"] = x.reshape(c["mamba_n_groups"], -1)
    for i, x in f.take("pre_ff_layernorm.weight").items():
        f.named[f"blk.{i}.ffn_norm.weight"] = x
    f.named["output_norm.weight"] = f.tensors.pop("model.final_layernorm.weight")


def qwen_vl(f):
    f.keys["rope.dimension_sections"] = [2, 2, 2, 0]
    if "num_experts" in f.config:
        f.keys["expert_feed_forward_length"] = f.config["moe_intermediate_size"]


def qwen3_vl(f):
    qwen_vl(f)
    f.keys["n_deepstack_layers"] = 3


LLAMA4_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_ROPE = LLAMA4_ROPE | {"factor": 8.0, "high_freq_factor": 4.0}
STEP_ROPE = LLAMA4_ROPE | {"factor": 2.0, "high_freq_factor": 32.0}
# Layers that llama.cpp's models have: no linear layer in place of a feed-forward network.
DECI_BLOCKS = [
    {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.6}},
    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
    {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 1}, "ffn": {"ffn_mult": 3.5}},
]
LAGUNA_KINDS = ["full_attention"] + ["sliding_attention"] * 3
LAGUNA_ROUTER = {"moe_router_score_func": "sigmoid", "moe_router_logit_softcapping": 0}
PHI_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1 + i / 4 for i in range(8)]}
MIMO_HOME = "model.layers.{}.self_attn.{}_proj.weight"
KIMI_HOME = "model.layers.2.self_attn."
LAGUNA_HOME = "model.layers.3.self_attn."
V4_HOME = "model.layers.{}.attn.{}"
V4_SHAPES = {"wq_b": (512, 24), "wkv": (128, 64), "wo_a": (32, 256), "norm": (128,)}
V4_COMPRESSORS = (
    [("wkv", (256, 64)), ("wgate", (256, 64)), ("norm", (128,))],
    [
        ("wkv", (128, 64)),
        ("wgate", (128, 64)),
        ("norm", (128,)),
    ],
)
SHAPES = {  # other than the fixture's: GGUF has one size of values, and both kinds of attention as many heads
    "kimi-linear": {
        KIMI_HOME + "q_proj.weight": (72, 64),
        KIMI_HOME + "o_proj.weight": (64, 48),
        KIMI_HOME + "embed_q.weight": (3, 32, 16),
        KIMI_HOME + "unembed_out.weight": (3, 16, 32),
    },
    "laguna": {
        LAGUNA_HOME + "q_proj.weight": (96, 64),
        LAGUNA_HOME + "o_proj.weight": (64, 96),
        LAGUNA_HOME + "g_proj.weight": (6, 64),
    },
    "nemotron-nas": {
        "model.layers.3.mlp.linear.weight": None,
        "model.layers.3.post_attention_layernorm.weight": None,
    },
    "deepseek-v4": {V4_HOME.format(i, f"{part}.weight"): shape for i in range(4) for part, shape in V4_SHAPES.items()}
    | {
        V4_HOME.format(i, f"compressor.{part}.weight"): shape
        for i in (1, 2, 3)
        for part, shape in V4_COMPRESSORS[i == 2]
    }
    | {V4_HOME.format(i, "compressor.ape"): (128, 128) if i == 2 else (4, 256) for i in (1, 2, 3)},
    "mimo-v2-flash": {
        MIMO_HOME.format(i, part): shape for i in (1, 2) for part, shape in (("v", (32, 64)), ("o", (64, 64)))
    },
}
# GGUF has the published rates, of which the greater one divides a key's width.
V4_SIZES = {"head_dim": 128, "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}
LING = {
    "attention.dt_bias": "ssm_dt.bias",
    "attention.f_proj.weight": "ssm_f_a.weight",
    "attention.b_proj.weight": "ssm_beta.weight",
    "attention.o_norm.weight": "ssm_norm.weight",
    "attention.o_proj.weight": "attn_output.weight",
    "attention.dense.weight": "attn_output.weight",
    "attention.q_proj.weight": "attn_q.weight",
    "attention.k_proj.weight": "attn_k.weight",
    "attention.v_proj.weight": "attn_v.weight",
    "attention.q_a_proj.weight": "attn_q_a.weight",
    "attention.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "attention.q_b_proj.weight": "attn_q_b.weight",
    "attention.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "attention.embed_q.weight": "attn_k_b.weight",
    "attention.unembed_out.weight": "attn_v_b.weight",
    "mlp.gate.expert_bias": "exp_probs_b.bias",
}
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
MINIMAX_INDEXER = (
    ("head_count", "sparse_num_index_heads"),
    ("key_length", "sparse_index_dim"),
    ("top_k", "sparse_topk_blocks"),
    ("block_size", "sparse_block_size"),
    ("local_blocks", "sparse_local_block"),
)
MINIMAX_01 = {
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.norm.weight": "attn_norm_2.weight",
    "self_attn.output_gate.weight": "attn_gate.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
}
MINIMAX_ALPHA = {f"{of}_alpha_factor": 2.5 for of in ("full_attn", "linear_attn", "mlp")}
MINIMAX_BETA = {f"{of}_beta_factor": 1.0 for of in ("full_attn", "linear_attn", "mlp")}
DEEPSEEK_V4_KEYS = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "attention.output_group_count": "o_groups",
    "attention.output_lora_rank": "o_lora_rank",
    "attention.compress_rope_freq_base": "compress_rope_theta",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "hyper_connection.count": "hc_mult",
    "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
    "hyper_connection.epsilon": "hc_eps",
    "hash_layer_count": "num_hash_layers",
}
MINISTRAL_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
MINISTRAL_ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
MINISTRAL_ROPE |= {"llama_4_scaling_beta": 0.3}
DEEPSEEK_V4 = {  # as the publisher's files have them, but for what transformers writes in its own way
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "model.hc_head.hc_fn": "output_hc_fn.weight",
    "model.hc_head.hc_base": "output_hc_base.weight",
    "model.hc_head.hc_scale": "output_hc_scale.weight",
    "model.layers.*.hc_attn_fn": "blk.*.hc_attn_fn.weight",
    "model.layers.*.hc_attn_base": "blk.*.hc_attn_base.weight",
    "model.layers.*.hc_attn_scale": "blk.*.hc_attn_scale.weight",
    "model.layers.*.hc_ffn_fn": "blk.*.hc_ffn_fn.weight",
    "model.layers.*.hc_ffn_base": "blk.*.hc_ffn_base.weight",
    "model.layers.*.hc_ffn_scale": "blk.*.hc_ffn_scale.weight",
    "model.layers.*.attn_norm.weight": "blk.*.attn_norm.weight",
    "model.layers.*.ffn_norm.weight": "blk.*.ffn_norm.weight",
    "model.layers.*.attn.attn_sink": "blk.*.attn_sinks.weight",
    "model.layers.*.attn.wq_a.weight": "blk.*.attn_q_a.weight",
    "model.layers.*.attn.wq_b.weight": "blk.*.attn_q_b.weight",
    "model.layers.*.attn.q_norm.weight": "blk.*.attn_q_a_norm.weight",
    "model.layers.*.attn.wkv.weight": "blk.*.attn_kv.weight",
    "model.layers.*.attn.norm.weight": "blk.*.attn_kv_a_norm.weight",
    "model.layers.*.attn.wo_a.weight": "blk.*.attn_output_a.weight",
    "model.layers.*.attn.wo_b.weight": "blk.*.attn_output_b.weight",
    "model.layers.*.attn.compressor.ape": "blk.*.attn_compressor_ape.weight",
    "model.layers.*.attn.compressor.wkv.weight": "blk.*.attn_compressor_kv.weight",
    "model.layers.*.attn.compressor.wgate.weight": "blk.*.attn_compressor_gate.weight",
    "model.layers.*.attn.compressor.norm.weight": "blk.*.attn_compressor_norm.weight",
    "model.layers.*.attn.indexer.wq_b.weight": "blk.*.indexer.attn_q_b.weight",
    "model.layers.*.attn.indexer.weights_proj.weight": "blk.*.indexer.proj.weight",
    "model.layers.*.attn.indexer.compressor.ape": "blk.*.indexer_compressor_ape.weight",
    "model.layers.*.attn.indexer.compressor.wkv.weight": "blk.*.indexer_compressor_kv.weight",
    "model.layers.*.attn.indexer.compressor.wgate.weight": "blk.*.indexer_compressor_gate.weight",
    "model.layers.*.attn.indexer.compressor.norm.weight": "blk.*.indexer_compressor_norm.weight",
    "model.layers.*.ffn.gate.weight": "blk.*.ffn_gate_inp.weight",
    "model.layers.*.ffn.gate.bias": "blk.*.exp_probs_b.bias",
    "model.layers.*.ffn.gate.tid2eid": "blk.*.ffn_gate_tid2eid.weight",
    "model.layers.*.ffn.shared_experts.w1.weight": "blk.*.ffn_gate_shexp.weight",
    "model.layers.*.ffn.shared_experts.w2.weight": "blk.*.ffn_down_shexp.weight",
    "model.layers.*.ffn.shared_experts.w3.weight": "blk.*.ffn_up_shexp.weight",
}
# Fixture, architecture, what its converter does, and what of the config no key says.
CASES = [
    ("afmoe", "afmoe", afmoe, {}),
    ("apertus", "apertus", apertus, {}),
    ("bailing-moe", "bailingmoe", bailing, {}),
    ("bailing-moe-groups", "bailingmoe2", bailing2, {}),
    ("bailing-three", "bailingmoe3", bailing3, {}),
    ("bamba", "granitehybrid", bamba, {}),
    ("bamba-groups", "granitehybrid", bamba, {}),
    ("cohere2-moe", "cohere2moe", cohere2_moe, {}),
    ("dbrx", "dbrx", dbrx, {}),
    ("deepseek-v32", "deepseek32", dsa, {}),
    ("deepseek-v4", "deepseek4", deepseek_v4, {"mlp_layer_types": None, "num_hash_layers": 1} | V4_SIZES),
    ("ernie4-5-moe", "ernie4_5-moe", ernie, {}),
    ("ernie4-5-moe-correction", "ernie4_5-moe", ernie, {}),
    ("exaone-moe", "exaone-moe", exaone_moe, {}),
    ("bloom", "bloom", bloom, {}),
    ("bloom-six", "bloom", bloom, {}),
    ("falcon", "falcon", falcon, {}),
    ("falcon-40b", "falcon", falcon, {}),
    ("gemma3n", "gemma3n", gemma3n, {}),
    ("gemma4-31b", "gemma4", gemma4, {}),
    ("gemma4-a4b", "gemma4", gemma4, {}),
    ("gemma4-e2b", "gemma4", gemma4, {}),
    ("glm", "chatglm", glm, {}),
    ("glm-moe-dsa", "glm-dsa", dsa, {}),
    ("glm-plain", "chatglm", glm, {}),
    ("glm4-moe-lite", "deepseek2", glm4_moe_lite, {}),
    ("gpt2-mlx", "gpt2", gpt2, {}),
    ("gpt-bigcode", "starcoder", gpt_bigcode, {}),
    ("gpt-neox", "gptneox", gpt_neox, {}),
    ("gpt-neox-serial", "gptneox", gpt_neox, {}),
    ("granite-swa", "granite_swa", granite_swa, {"layer_rope_theta": [0, 1e4, 1e4, 0, 1e4]}),
    ("granite-swa-bias", "granite_swa", granite_swa, {}),
    ("granitemoe-swa", "granite_swa", granite_swa, {}),
    ("granitemoe-swa-shared", "granite_swa", granite_swa, {}),
    ("granitemoeshared", "granitemoe", granitemoeshared, {}),
    ("hunyuan-dense", "hunyuan-dense", hunyuan_rope, {}),
    ("hunyuan-dense-plain", "hunyuan-dense", hunyuan_rope, {}),
    ("hunyuan-v1", "hunyuan-moe", hunyuan_moe, {}),
    ("hy-v3", "hy_v3", hy_v3, {}),
    ("internlm2", "internlm2", internlm2, {}),
    ("internlm2-bias", "internlm2", internlm2, {}),
    ("internlm3", "llama", llama, {}),
    ("internlm3-bias", "llama", llama, {}),
    ("kimi-linear", "kimi-linear", kimi_linear, {"num_attention_heads": 3}),
    (
        "laguna",
        "laguna",
        laguna,
        LAGUNA_ROUTER | {"layer_types": LAGUNA_KINDS, "num_attention_heads_per_layer": [4, 6, 6, 6]},
    ),
    ("llama", "xverse", xverse, {}),
    ("laguna-published", "laguna", laguna, {"layer_types": None, "sliding_window": None}),
    ("llama4", "llama4", llama4, {"attention_chunk_size": 8192, "floor_scale": 8192, "rope_parameters": LLAMA4_ROPE}),
    ("mellum", "mellum", mellum, {}),
    ("mimo-v2-flash", "mimo2", mimo2, {"n_shared_experts": None, "swa_v_head_dim": 16}),
    ("minicpm", "minicpm", minicpm, {}),
    ("minicpm-scaled", "minicpm", minicpm, {}),
    ("minicpm3", "minicpm3", minicpm3, {"dim_model_base": 256}),
    ("minimax", "minimax-m2", minimax, {}),
    ("minimax-m3", "minimax-m3", minimax_m3, {}),
    ("minimax-m3-sparse", "minimax-m3", minimax_m3, {}),
    ("minimax-text-01", "minimax-01", minimax_01, MINIMAX_ALPHA | MINIMAX_BETA),
    ("ministral3", "mistral3", ministral3, {}),
    ("ministral3", "mistral3", context_only, {"rope_parameters": MINISTRAL_ROPE}),
    ("mistral4", "mistral4", mistral4, {}),
    ("mpt", "mpt", mpt, {}),
    ("mpt-six", "mpt", mpt, {"attn_config": {"clip_qkv": 1.5}}),
    ("muse-glimmer", "muse-glimmer", muse_glimmer, {}),
    ("nanbeige", "nanbeige", nanbeige, {}),
    ("nanbeige-skip", "nanbeige", nanbeige, {}),
    ("nemotron-nas", "deci", deci, {"block_configs": DECI_BLOCKS, "rope_scaling": LLAMA3_ROPE}),
    ("openelm", "openelm", openelm, {}),
    ("phimoe", "phimoe", phimoe, {"rope_scaling": {"type": "longrope"} | PHI_FACTORS, "router_jitter_noise": 0.01}),
    ("qwen", "qwen", qwen, {}),
    ("qwen2", "qwen2vl", qwen_vl, {}),
    ("qwen3", "qwen3vl", qwen3_vl, {}),
    ("qwen3-moe-all", "qwen3vlmoe", qwen3_vl, {}),
    ("solar-open", "glm4moe", solar, {}),
    ("spark2-5", "spark2_5", spark, {"layer_types": LAGUNA_KINDS[1:] + LAGUNA_KINDS[:1]}),
    ("step3p5", "step35", step35, {"rope_scaling": STEP_ROPE}),
    ("youtu-llm", "deepseek2", youtu, {}),
    ("youtu-llm-plain", "deepseek2", youtu, {}),
]


def without(name):
    return lambda f: f.keys.pop(name)


def put(name, value):
    return lambda f: f.keys.update({name: value})


def cut(name):
    return lambda f: f.named.update({name: f.named[name][:-1]})


# What is wrong in a file, and what the error says.
WRONG = [
    ("gemma4-a4b", put("attention.sliding_window_pattern", [True]), "pattern is not one flag for each layer"),
    ("gemma4-a4b", put("attention.head_count_kv", [1, 2, 3, 4]), "head_count_kv differs among layers of one kind"),
    ("gemma4-a4b", put("attention.value_length_swa", 8), "value_length_swa differs from attention.key_length_swa"),
    ("gemma4-a4b", put("feed_forward_length", [96]), "feed_forward_length is missing, or not one number for each"),
    ("nemotron-nas", put("feed_forward_length", [256]), "feed_forward_length is not one number for each layer"),
    ("openelm", put("attention.head_count", [4, 6]), "head_count is missing, or not one number for each layer"),
    ("step3p5", put("swiglu_clamp_exp", [0.5]), "swiglu_clamp_exp is not one number for each layer"),
    ("gemma4-a4b", put("sparkle", 1), "gemma4.sparkle: what it means here is not known"),
    ("gemma3n", put("activation_sparsity_scale", [0.5]), "sparsity_scale is not one number for each layer"),
    ("apertus", without("xielu.beta"), "xielu.beta is missing, or not one number for each layer"),
    ("apertus", put("xielu.beta", [0.5]), "xielu.beta is missing, or not one number for each layer"),
    ("glm", cut("blk.0.attn_qkv.weight"), "attn_qkv.weight: 255 rows are not those of q, k and v"),
    ("gpt-neox", put("attention.head_count", 5), "192 rows are not those of q, k and v of 5 heads"),
    ("hunyuan-v1", put("expert_shared_feed_forward_length", 5), "differs from feed_forward_length"),
    ("deepseek-v4", put("swiglu_clamp_exp", [0.5, 0.5, 10.0, 0.5]), "swiglu_clamp_exp differs among layers"),
    ("deepseek-v4", put("attention.compress_ratios", [0, 4, 128]), "compress_ratios is missing, or not one number for"),
    ("minimax-m3", put("expert_gating_func", 1), "expert_gating_func is of a kind that is not known here"),
    ("ministral3", put("rope.scaling.yarn_ext_factor", 0.5), "mistral3.rope.scaling.yarn_ext_factor is not 1"),
    ("internlm3", put("rope.scaling.yarn_ext_factor", 1.0), "llama.rope.scaling.yarn_ext_factor is not 0"),
    ("internlm3", put("rope.scaling.attn_factor", 2.0), "llama.rope.scaling.attn_factor is not 1"),
    ("granite-swa", put("attention.rope_pattern", [True]), "rope_pattern is not one flag for each layer"),
    ("mpt", put("attention.max_alibi_bias", 0.0), "max_alibi_bias is missing or not positive"),
    ("mpt", put("attention.head_count_kv", 2), "attention.head_count_kv"),
    ("mpt", put("attention.sliding_window", 8), "mpt.attention.sliding_window: what it means here is not known"),
    ("spark2-5", put("attention.sliding_window_pattern", [True]), "pattern is not one flag for each layer"),
    ("ministral3", put("expert_count", 8), "mistral3.expert_count is 8: such a model has no experts here"),
]


def shapes_of(name, shapes):
    return {k: s for k, s in (shapes | SHAPES.get(name, {})).items() if s is not None}


def check_wrong(apus, name, spoil, expected):
    case = next(case for case in CASES if case[0] == name)
    fixture = fixtures.read(name)
    tensors = {k: np.zeros(s, np.float32) for k, s in shapes_of(name, fixture["tensors"]).items()}
    file = File(case[1], fixture["config"] | case[3], tensors)
    case[2](file)
    spoil(file)
    try:
        import_logits(apus, file, [0], 0)
    except RuntimeError as error:
        return None if expected in str(error) else f"{expected!r} is not in: {error}"
    return f"was taken, in spite of: {expected}"


def import_logits(apus, file, tokens, steps, blocks=None, form=()):
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "model.gguf"), os.path.join(folder, "model")
        file.write(source, blocks)
        done = subprocess.run([apus, "convert", *form, source, target], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        out = os.path.join(folder, "logits.npy")
        command = [apus, "debug", "logits", target, "--cpu", "ref", "--threads", "1", "--out", out, "--chunk", "256"]
        command += ["--tokens", ",".join(map(str, tokens)), "--steps", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or "warning" in done.stderr:
            with open(os.path.join(target, "config.json")) as f:
                raise RuntimeError(done.stderr.strip() + "\n" + f.read())
        return np.load(out)


def check(apus, name, architecture, change, constants):
    fixture = fixtures.read(name)
    fixture["tensors"] = {k: tuple(s) for k, s in fixture["tensors"].items()}
    fixture.setdefault("values", {})
    fixture["tensors"] = shapes_of(name, fixture["tensors"])
    config = fixture["config"] | constants
    tensors = weights.make(fixture["tensors"], {"dtype": "f32"}, fixture)
    # Gemma 3n's file has rows of zeros for tokens of images, which otherwise have those of token 0.
    known = min(fixture["vocab"], config.get("vocab_size_per_layer_input", 1 << 30))
    tokens, steps = [t % known for t in fixture["tokens"]], fixture["steps"]
    file = File(architecture, config, dict(tensors))
    change(file)
    ours = import_logits(apus, file, tokens, steps)
    own, _ = compare.apus_logits(apus, config, tensors, tokens, steps)
    off = compare.distance(own, ours)
    if off > NEAR:
        return f"{off:.1e} from the checkpoint's logits"
    variant = fixture["variants"][0]
    plain = variant.get("dtype") == "f32" and "quantization" not in variant
    if plain and not constants and tokens == fixture["tokens"]:
        golden = np.fromfile(fixtures.path_of(name, ".f32"), "<f4")[: ours.size].reshape(ours.shape)
        off = compare.distance(golden, ours)
        if off > LIMIT:
            return f"{off:.1e} from the reference's logits"
    return None


def check_blocks(apus, name, architecture, change, constants):
    """Files of mixed types: the numbers of their blocks in both forms."""
    fixture = fixtures.read(name)
    fixture.setdefault("values", {})
    shapes = shapes_of(name, {k: tuple(s) for k, s in fixture["tensors"].items()})
    config = fixture["config"] | constants
    known = min(fixture["vocab"], config.get("vocab_size_per_layer_input", 1 << 30))
    tokens, steps = [t % known for t in fixture["tokens"]], fixture["steps"]
    file = File(architecture, config, dict(weights.make(shapes, {"dtype": "f32"}, fixture)))
    change(file)
    plain = import_logits(apus, file, tokens, steps, False)
    for form in ((), ("--compact",)):
        off = compare.distance(plain, import_logits(apus, file, tokens, steps, True, form))
        if not off <= NEAR:
            return f"{form}: {off:.1e} from the numbers of the blocks"
    return None


def widened(name, fixture):
    """Shapes and config with each width WIDER times as large."""

    def size(tensor, n):
        ends = re.search(r"embed|lm_head|output_layer|^output", tensor) and n == fixture["vocab"]
        return n if n < NARROWEST or ends else n * WIDER

    shapes = {k: tuple(size(k, n) for n in s) for k, s in shapes_of(name, fixture["tensors"]).items()}
    config = dict(fixture["config"])
    for field, value in config.items():
        is_width = type(value) is int and value >= NARROWEST
        if is_width and (field == "hidden_size" or not re.search(NO_WIDTH, field)):
            config[field] = value * WIDER
    return shapes, config


def check_wide(apus, name, architecture, change, constants):
    """K-quants and IQ types, whose blocks of 256 no fixture's rows fill: the compact form has their numbers."""
    fixture = fixtures.read(name)
    shapes, config = widened(name, fixture)
    rng = np.random.default_rng(1)
    tensors = {
        k: rng.standard_normal(s).astype(np.float32) / 16 + ("norm" in k and len(s) == 1) for k, s in shapes.items()
    }
    file = File(architecture, config | constants, {k: x.astype(np.float32) for k, x in tensors.items()})
    file.types = BLOCKS | WIDE_BLOCKS
    change(file)
    tokens = [t % fixture["vocab"] for t in fixture["tokens"]][:12]
    plain = import_logits(apus, file, tokens, 0, False)
    off = compare.distance(plain, import_logits(apus, file, tokens, 0, True, ("--compact",)))
    return None if off <= NEAR else f"wide: {off:.1e} from the numbers of the blocks"


def check_assistant(apus):
    """Gemma 4's assistant computes with another model's keys and values only: what is compared is its checkpoint."""
    fixture = fixtures.read("assistant/gemma4")
    fixture.setdefault("values", {})
    shapes = {k: tuple(s) for k, s in fixture["tensors"].items() if k.startswith("assistant.")}
    tensors = {
        name.removeprefix("assistant."): x for name, x in weights.make(shapes, {"dtype": "f32"}, fixture).items()
    }
    own = fixture["config"]["assistant"]
    text = own["text_config"]
    file = File("gemma4-assistant", text | {"final_logit_softcapping": None}, dict(tensors))
    gemma4(file)
    file.keys["embedding_length_out"] = own["backbone_hidden_size"]
    file.keys["nextn_predict_layers"] = text["num_hidden_layers"]
    for i, x in file.take("layer_scalar").items():
        file.named[f"blk.{i}.layer_output_scale.weight"] = x
    for part in ("pre", "post"):
        file.named[f"nextn.{part}_projection.weight"] = file.tensors.pop(f"{part}_projection.weight")
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "model.gguf"), os.path.join(folder, "model")
        file.write(source)
        done = subprocess.run([apus, "convert", source, target], capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
        with open(os.path.join(target, "config.json")) as f:
            config = json.load(f)
        found = load_file(os.path.join(target, "model.safetensors"))
    if found.keys() != tensors.keys():
        return f"other tensors: {sorted(found.keys() ^ tensors.keys())}"
    wrong = [name for name, x in tensors.items() if not np.array_equal(found[name], x)]
    expected = text | {k: own[k] for k in ("model_type", "backbone_hidden_size", "tie_word_embeddings")}
    del expected["vocab_size_per_layer_input"]  # there are none
    wrong += [f"{k}: {config.get(k)}, not {v}" for k, v in expected.items() if config.get(k) != v]
    return ", ".join(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apus", default=os.path.join(ROOT, "build", "apus"))
    parser.add_argument("--blocks", type=int, default=1, help="every Nth file also in blocks of mixed types")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    failed, ran = 0, 0
    for number, case in enumerate(CASES):
        if options.names and not any(n in case[0] for n in options.names):
            continue
        ran += 1
        try:
            problem = check(options.apus, *case)
            if not problem and number % options.blocks == 0:
                ran += 1
                problem = check_blocks(options.apus, *case)
            if not problem and case[0] in WIDE:
                ran += 1
                problem = check_wide(options.apus, *case)
        except (RuntimeError, AssertionError, KeyError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            failed += 1
            print(f"{case[0]} as {case[1]}: {problem}")
    if not options.names or "assistant" in options.names:
        ran += 1
        problem = check_assistant(options.apus)
        if problem:
            failed += 1
            print(f"gemma4-assistant: {problem}")
    for name, *wrong in WRONG:
        if options.names and not any(n in name for n in options.names):
            continue
        ran += 1
        problem = check_wrong(options.apus, name, *wrong)
        if problem:
            failed += 1
            print(f"{name}: {problem}")
    print(f"check_gguf_families: {ran - failed} of {ran} files")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
