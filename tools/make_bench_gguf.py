#!/usr/bin/env python3
"""The shapes of make_bench_model.py as GGUF files of random Q4_0 weights, for the peers that it is measured against:
tools/make_bench_gguf.py SHAPE FILE [--layers N]. Needs gguf and numpy. Layers repeat a few distinct tensors' bytes."""
import argparse, os, sys

import gguf
import numpy as np

SHAPES = {  # architecture, layers, width, ffn, heads, kv heads, head, vocabulary, tied
    "qwen-1.5b": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, True),
    "llama-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False),
}

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=SHAPES)
parser.add_argument("file")
parser.add_argument("--layers", type=int)
a = parser.parse_args()
arch, layers, width, ffn, heads, kv, head, vocabulary, tied = SHAPES[a.shape]
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
rng = np.random.default_rng(1)
made = {}


def matrix(name, rows, cols):
    if (rows, cols) not in made:
        blocks = rng.integers(0, 256, (rows, cols // 32, 18), dtype=np.uint8)
        blocks[:, :, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        made[rows, cols] = blocks.reshape(rows, -1)
    w.add_tensor(name + ".weight", made[rows, cols], raw_dtype=gguf.GGMLQuantizationType.Q4_0)


def floats(name, count, value):
    w.add_tensor(name, np.full(count, value, np.float32))


matrix("token_embd", vocabulary, width)
floats("output_norm.weight", width, 1)
if not tied:
    matrix("output", vocabulary, width)
for i in range(layers):
    b = f"blk.{i}."
    floats(b + "attn_norm.weight", width, 1)
    floats(b + "ffn_norm.weight", width, 1)
    for name, rows, cols in (("attn_q", heads * head, width), ("attn_k", kv * head, width), ("attn_v", kv * head, width),
                             ("attn_output", width, heads * head), ("ffn_gate", ffn, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn)):
        matrix(b + name, rows, cols)
        if arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
            floats(b + name + ".bias", rows, 0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
