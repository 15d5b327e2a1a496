#!/usr/bin/env python3
"""The tower of bench/images.py for llama.cpp: tools/make_bench_mmproj.py FILE [--layers 27]. A GGUF file of random f16
weights in the shape of Gemma 3's tower. Needs gguf (0.17.1 was used) and numpy."""

import argparse

import gguf
import numpy as np

HIDDEN, INNER, HEADS, PATCH, SIDE, TEXT = 1152, 4304, 16, 14, 896, 2560

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--layers", type=int, default=27)
a = parser.parse_args()
w = gguf.GGUFWriter(a.file, "clip")
w.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))
w.add_bool("clip.has_vision_encoder", True)
w.add_string("clip.projector_type", "gemma3")
w.add_bool("clip.use_gelu", True)
for name, value in (
    ("image_size", SIDE),
    ("patch_size", PATCH),
    ("embedding_length", HIDDEN),
    ("feed_forward_length", INNER),
    ("projection_dim", TEXT),
    ("block_count", a.layers),
    ("attention.head_count", HEADS),
):
    w.add_uint32(f"clip.vision.{name}", value)
w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
w.add_array("clip.vision.image_mean", [0.5] * 3)
w.add_array("clip.vision.image_std", [0.5] * 3)
rng = np.random.default_rng(1)


def matrix(name, *shape, dtype=np.float16):
    w.add_tensor(name, (rng.standard_normal(shape, np.float32) * 0.02).astype(dtype))


def vector(name, size, value):
    w.add_tensor(name, np.full(size, value, np.float32))


def norm(name):
    vector(name + ".weight", HIDDEN, 1)
    vector(name + ".bias", HIDDEN, 0)


matrix("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH)
vector("v.patch_embd.bias", HIDDEN, 0)
matrix("v.position_embd.weight", (SIDE // PATCH) ** 2, HIDDEN, dtype=np.float32)
norm("v.post_ln")
matrix("mm.input_projection.weight", HIDDEN, TEXT)
vector("mm.soft_emb_norm.weight", HIDDEN, 1)
for i in range(a.layers):
    b = f"v.blk.{i}."
    norm(b + "ln1")
    norm(b + "ln2")
    for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
        matrix(b + part + ".weight", HIDDEN, HIDDEN)
        vector(b + part + ".bias", HIDDEN, 0)
    matrix(b + "ffn_up.weight", INNER, HIDDEN)
    vector(b + "ffn_up.bias", INNER, 0)
    matrix(b + "ffn_down.weight", HIDDEN, INNER)
    vector(b + "ffn_down.bias", HIDDEN, 0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
