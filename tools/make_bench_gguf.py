#!/usr/bin/env python3
"""The shapes of make_bench_model.py as GGUF files of random Q4_0 weights, for the peers that it is measured against:
tools/make_bench_gguf.py SHAPE FILE [--layers N]. Needs gguf (0.17.1 was used) and numpy. Layers repeat a few distinct
tensors' bytes.

A mixture's routers prefer experts as make_bench_model.py's do, by a part that all rows of the embedding share; the
embedding is Q4_1, which can hold it.
"""

import argparse

import gguf
import numpy as np

SHAPES = {  # architecture, layers, width, ffn, heads, kv heads, head, vocabulary, tied, experts, used by a token
    "qwen-1.5b": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, True, 0, 0),
    "llama-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 0, 0),
    "moe-small": ("olmoe", 12, 512, 256, 8, 8, 64, 8192, False, 64, 8),
    "olmoe-1b-7b": ("olmoe", 16, 2048, 1024, 16, 16, 128, 50304, False, 64, 8),
}
ZIPF = 1.3  # of 64 experts, as there

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=SHAPES)
parser.add_argument("file")
parser.add_argument("--layers", type=int)
a = parser.parse_args()
arch, layers, width, ffn, heads, kv, head, vocabulary, tied, experts, used = SHAPES[a.shape]
layers = a.layers or layers
w = gguf.GGUFWriter(a.file, arch)
w.add_block_count(layers)
w.add_context_length(32768)
w.add_embedding_length(width)
w.add_feed_forward_length(ffn)
w.add_head_count(heads)
w.add_head_count_kv(kv)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(500000.0)
w.add_rope_dimension_count(head)
w.add_vocab_size(vocabulary)
w.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_0))
w.add_tokenizer_model("no_vocab")
if experts:
    w.add_expert_count(experts)
    w.add_expert_used_count(used)
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


def floats(name, count, value):
    w.add_tensor(name, np.full(count, value, np.float32))


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


if experts:
    embedding()
else:
    matrix("token_embd", vocabulary, width)
floats("output_norm.weight", width, 1)
if not tied:
    matrix("output", vocabulary, width)
for i in range(layers):
    b = f"blk.{i}."
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
