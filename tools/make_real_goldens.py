#!/usr/bin/env python3
"""Goldens of the real models, from mlx-lm 0.32.2 (mlx-cpu 0.32.4): tools/make_real_goldens.py NAME… writes
tests/real/NAME.json.

The model is the converted checkpoint with every matrix dequantised to f32. mlx-cpu multiplies at about 1 GFLOP/s, so
products go through numpy's BLAS; everything else is mlx-lm. Stored per model: perplexity of a page of English and of
code; for five prompts a greedy answer of 64 tokens by mlx-lm and at each of its positions the argmax and the lead over
the second logit.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "apus" / "models"
PROMPTS = [
    "Write a C function that reverses a string in place.",
    "Explain in two sentences what a hash table is.",
    "List three uses of a thread pool.",
    "What does `git rebase -i HEAD~3` do?",
    "Translate to German: The weather is fine today.",
]
ANSWER = 64


class F32Linear(nn.Module):
    """y = x Wᵀ + b in f32 by numpy."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self._w, self._b = weight, bias

    def __call__(self, x):
        y = np.array(x.astype(mx.float32)) @ self._w.T
        return mx.array(y if self._b is None else y + self._b)


class F32Embedding(F32Linear):
    def __call__(self, ids):
        return mx.array(self._w[np.array(ids)])

    def as_linear(self, x):
        return F32Linear.__call__(self, x)


def dense(module):
    if hasattr(module, "scales"):
        w = mx.dequantize(
            module.weight,
            module.scales.astype(mx.float32),
            module.biases.astype(mx.float32),
            module.group_size,
            module.bits,
        )
    else:
        w = module.weight
    return np.array(w.astype(mx.float32))


def in_f32(model):
    for path, module in model.named_modules():
        kind = (
            F32Embedding
            if isinstance(module, (nn.Embedding, nn.QuantizedEmbedding))
            else F32Linear
            if isinstance(module, (nn.Linear, nn.QuantizedLinear))
            else None
        )
        if kind:
            bias = np.array(module["bias"].astype(mx.float32)) if "bias" in module else None
            parent = model
            *parents, last = path.split(".")
            for name in parents:
                parent = parent[int(name)] if isinstance(parent, list) else getattr(parent, name)
            setattr(parent, last, kind(dense(module), bias))
        elif hasattr(module, "weight") and isinstance(module.weight, mx.array):
            module.weight = module.weight.astype(mx.float32)
    return model


def logits(model, ids, cache=None):
    return np.array(model(mx.array([ids]), cache=cache or make_prompt_cache(model))[0].astype(mx.float32))


def nll(out, ids):
    out = out[:-1].astype(np.float64)
    top = out.max(axis=1, keepdims=True)
    lse = np.log(np.exp(out - top).sum(axis=1)) + top[:, 0]
    return float(np.mean(lse - out[np.arange(len(ids) - 1), ids[1:]]))


def main(name):
    directory = CACHE / f"{name}-mlx"
    if not directory.is_dir():
        subprocess.run([ROOT / "build" / "apus", "convert", CACHE / f"{name}.gguf", directory], check=True)
    model, _ = load_model(directory, lazy=True)
    model = in_f32(model)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    golden = {"model": name, "made_with": "mlx-cpu 0.32.4, mlx-lm 0.32.2", "pages": {}, "answers": []}
    for page in ("english", "code"):
        ids = tokenizer.encode((ROOT / "tests" / "real" / f"{page}.txt").read_text()).ids
        golden["pages"][page] = {"tokens": len(ids), "first": ids[:16], "nll": nll(logits(model, ids), ids)}
        print(name, page, golden["pages"][page]["nll"], flush=True)
    for prompt in PROMPTS:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" if name.startswith("qwen") else prompt
        ids = tokenizer.encode(text).ids
        cache, answer, feed = make_prompt_cache(model), [], ids
        for _ in range(ANSWER):
            out = logits(model, feed, cache)[-1]
            feed = [int(out.argmax())]
            answer += feed
        out = logits(model, ids + answer)[len(ids) - 1 : -1]
        order = np.sort(out, axis=1)
        golden["answers"].append(
            {
                "prompt": ids,
                "answer": answer,
                "argmax": out.argmax(axis=1).tolist(),
                "lead": [round(float(x), 4) for x in order[:, -1] - order[:, -2]],
            }
        )
        print(name, tokenizer.decode(answer)[:100].replace("\n", "⏎"), flush=True)
    (ROOT / "tests" / "real" / f"{name}.json").write_text(json.dumps(golden) + "\n")


for argument in sys.argv[1:] or ["qwen-0.5b", "qwen-1.5b", "gemma-270m"]:
    main(argument)
