#!/usr/bin/env python3
"""The shapes of make_bench_model.py as GGUF files of random Q4_0 weights, for the peers that it is measured against:
tools/make_bench_gguf.py SHAPE FILE [--layers N]. Needs gguf (0.17.1 was used) and numpy. Layers repeat a few distinct
tensors' bytes.

Of hybrids, convolutions, norms and decays are f32, as llama.cpp's converter writes them.

A mixture's routers prefer experts as make_bench_model.py's do, by a part that all rows of the embedding share; the
embedding is Q4_1, which can hold it.
"""

import argparse

import gguf
import make_bench_model
import numpy as np

SHAPES = {  # architecture, layers, width, ffn, heads, kv heads, head, vocabulary, tied, experts, used by a token
    "qwen-1.5b": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, True, 0, 0),
    "llama-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 0, 0),
    "moe-small": ("olmoe", 12, 512, 256, 8, 8, 64, 8192, False, 64, 8),
    "olmoe-1b-7b": ("olmoe", 16, 2048, 1024, 16, 16, 128, 50304, False, 64, 8),
}
HYBRIDS = {"qwen3.5-4b": "qwen35", "nemotron-h-8b": "nemotron_h"}  # architecture; the rest is in make_bench_model.py
ZIPF = 1.3  # of 64 experts, as there

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=[*SHAPES, *HYBRIDS])
parser.add_argument("file")
parser.add_argument("--layers", type=int)
a = parser.parse_args()
hybrid = make_bench_model.SHAPES[a.shape] if a.shape in HYBRIDS else None
if hybrid:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = [hybrid[name] for name in (*names, "head_dim", "vocab_size", "tie_word_embeddings")]
    arch, layers, width, ffn, heads, kv, head, vocabulary, tied, experts, used = HYBRIDS[a.shape], *sizes, 0, 0
else:
    arch, layers, width, ffn, heads, kv, head, vocabulary, tied, experts, used = SHAPES[a.shape]
layers = a.layers or layers
kinds = hybrid.get("hybrid_override_pattern", "DDD*" * layers)[:layers] if hybrid else ""
w = gguf.GGUFWriter(a.file, arch)
w.add_block_count(layers)
w.add_context_length(32768)
w.add_embedding_length(width)
one_a_layer = arch == "nemotron_h"  # a layer is a mixer or a feed-forward network
w.add_feed_forward_length([ffn * (kind == "-") for kind in kinds] if one_a_layer else ffn)
w.add_head_count(heads)
w.add_head_count_kv([kv * (kind == "*") for kind in kinds] if one_a_layer else kv)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(500000.0)
w.add_rope_dimension_count(int(head * hybrid.get("partial_rotary_factor", 1)) if hybrid else head)
w.add_vocab_size(vocabulary)
w.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_0))
w.add_tokenizer_model("no_vocab")
if experts:
    w.add_expert_count(experts)
    w.add_expert_used_count(used)
if hybrid:
    w.add_key_length(head)
    w.add_value_length(head)
if arch == "qwen35":
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_full_attention_interval(hybrid["full_attention_interval"])
    states = ("linear_num_value_heads", "linear_value_head_dim", "linear_key_head_dim", "linear_num_key_heads")
    taps = hybrid["linear_conv_kernel_dim"]
elif arch == "nemotron_h":
    w.add_layer_norm_eps(1e-5)
    states = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
    taps = hybrid["conv_kernel"]
if hybrid:
    state_heads, size, state, groups = (hybrid[name] for name in states)
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_inner_size(state_heads * size)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(state_heads)
    w.add_ssm_group_count(groups)
rng = np.random.default_rng(1)
made = {}
shared = np.repeat(np.sign(rng.standard_normal(width // 64)), 64)


def blocks(*shape):
    """Codes are random; the scale is such that a product is about a third as large as its input."""
    if shape not in made:
        made[shape] = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 18), dtype=np.uint8)
        scale = 1 / 3 / np.sqrt(shape[-1]) * np.sqrt(12) / 16
        made[shape][..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return made[shape].reshape(*shape[:-1], -1)


def matrix(name, *shape):
    w.add_tensor(name + ".weight", blocks(*shape), raw_dtype=gguf.GGMLQuantizationType.Q4_0)


def floats(name, shape, value):
    w.add_tensor(name, np.full(shape, value, np.float32))


def embedding():
    rows = rng.integers(0, 256, (vocabulary, width // 32, 20), dtype=np.uint8)
    scale = np.sqrt(12) / 16
    rows[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    rows[..., 2:4] = (shared[::32] - 7.5 * scale).astype(np.float16).view(np.uint8).reshape(width // 32, 2)
    w.add_tensor("token_embd.weight", rows.reshape(vocabulary, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)


def router(name):
    noise = rng.standard_normal((experts, width)) * np.sqrt(2 / width)
    noise -= np.outer(noise @ shared, shared) / width
    rank = rng.permutation(experts) + 1
    w.add_tensor(name, (noise - np.outer(ZIPF * np.log(rank), shared) * np.sqrt(2) / width).astype(np.float32))


def matrices(b, *rows):
    for name, outputs, inputs in rows:
        matrix(b + name, outputs, inputs)


def attention(b, q):
    matrices(b, ("attn_q", q, width), ("attn_k", kv * head, width), ("attn_v", kv * head, width))
    matrix(b + "attn_output", width, heads * head)


def recurrent(b, channels):
    """What a gated delta net and Mamba-2 have in common."""
    floats(b + "ssm_conv1d.weight", (channels, taps), 0.1)
    floats(b + "ssm_dt.bias", state_heads, 0)
    matrix(b + "ssm_out", width, state_heads * size)


def qwen35_layer(b, kind):
    inner, channels = state_heads * size, state_heads * size + 2 * groups * state
    floats(b + "attn_norm.weight", width, 1)
    floats(b + "post_attention_norm.weight", width, 1)
    if kind == "*":
        attention(b, 2 * heads * head)
        floats(b + "attn_q_norm.weight", head, 1)
        floats(b + "attn_k_norm.weight", head, 1)
    else:
        recurrent(b, channels)
        matrices(b, ("attn_qkv", channels, width), ("attn_gate", inner, width))
        matrices(b, ("ssm_beta", state_heads, width), ("ssm_alpha", state_heads, width))
        floats(b + "ssm_a", state_heads, -1)
        floats(b + "ssm_norm.weight", size, 1)
    matrices(b, ("ffn_gate", ffn, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn))


def nemotron_layer(b, kind):
    inner, channels = state_heads * size, state_heads * size + 2 * groups * state
    floats(b + "attn_norm.weight", width, 1)
    if kind == "*":
        attention(b, heads * head)
    elif kind == "-":
        matrices(b, ("ffn_up", ffn, width), ("ffn_down", width, ffn))
    else:
        recurrent(b, channels)
        matrix(b + "ssm_in", inner + channels + state_heads, width)
        floats(b + "ssm_conv1d.bias", channels, 0)
        floats(b + "ssm_a", (state_heads, 1), -1)
        floats(b + "ssm_d", (state_heads, 1), 1)
        floats(b + "ssm_norm.weight", (groups, inner // groups), 1)


if experts:
    embedding()
else:
    matrix("token_embd", vocabulary, width)
floats("output_norm.weight", width, 1)
if not tied:
    matrix("output", vocabulary, width)
for i in range(layers):
    b = f"blk.{i}."
    if hybrid:
        (nemotron_layer if one_a_layer else qwen35_layer)(b, kinds[i])
        continue
    floats(b + "attn_norm.weight", width, 1)
    floats(b + "ffn_norm.weight", width, 1)
    for name, rows, cols in (
        ("attn_q", heads * head, width),
        ("attn_k", kv * head, width),
        ("attn_v", kv * head, width),
        ("attn_output", width, heads * head),
    ):
        matrix(b + name, rows, cols)
        if arch == "qwen2" and name != "attn_output":
            floats(b + name + ".bias", rows, 0)
    if experts:
        floats(b + "attn_q_norm.weight", heads * head, 1)
        floats(b + "attn_k_norm.weight", kv * head, 1)
        router(b + "ffn_gate_inp.weight")
        matrix(b + "ffn_gate_exps", experts, ffn, width)
        matrix(b + "ffn_up_exps", experts, ffn, width)
        matrix(b + "ffn_down_exps", experts, width, ffn)
    else:
        for name, rows, cols in (("ffn_gate", ffn, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn)):
            matrix(b + name, rows, cols)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
