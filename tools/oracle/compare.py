"""Runs apus on a checkpoint of a fixture, and finds the layer and the tensors behind a difference."""

import json
import os
import re
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import save_file

LIMIT = 1e-4  # of max|logit|: f64 against f32 costs up to 6e-6, one per cent of a rope theta 3e-4


def apus_logits(apus, config, tensors, tokens, steps, chunk=256):
    """[tokens, vocab] with --cpu ref, and what apus told."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        contiguous = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
        save_file(contiguous, os.path.join(folder, "model.safetensors"), metadata={"format": "mlx"})
        out = os.path.join(folder, "logits.npy")
        command = [apus, "debug", "logits", folder, "--cpu", "ref", "--threads", "2", "--out", out]
        command += ["--tokens", ",".join(map(str, tokens)), "--steps", str(steps), "--chunk", str(chunk)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return np.load(out), done.stderr.splitlines()


def distance(golden, ours):
    return float(np.abs(golden - ours).max() / np.abs(golden).max()) if np.isfinite(ours).all() else np.inf


# ---- bisection ----


def cut_config(config, layers, keep):
    """The config of a model that ends after `keep` of its layers."""
    out = dict(config)
    for field, v in config.items():
        if field == "text_config" or field == "linear_attn_config":
            out[field] = cut_config(v, layers, keep)
        elif field == "num_hidden_layers":
            out[field] = keep
        elif field in ("kda_layers", "full_attn_layers"):  # counted from 1
            out[field] = [n for n in v if n <= keep]
        elif field in ("full_attn_idxs", "mlp_only_layers"):
            out[field] = [n for n in v if n < keep]
        elif isinstance(v, list) and len(v) == layers or isinstance(v, str) and "pattern" in field:
            out[field] = v[:keep]
    return out


def layer_of(name):
    found = re.search(r"layers\.(\d+)\.", name)
    return int(found.group(1)) if found else -1


def differs(apus, reference, fixture, config, tensors, steps):
    golden = reference.logits(config, tensors, fixture["tokens"], steps, fixture.get("window", False))
    ours, _ = apus_logits(apus, config, tensors, fixture["tokens"], steps)
    return distance(golden, ours)


def bisect(apus, reference, fixture, tensors):
    """Prints where a difference begins: models that end early find the layer, neutral tensors what in it."""
    config = fixture["config"]
    layers = max(layer_of(name) for name in tensors) + 1
    steps, first = fixture["steps"], None
    for keep in range(1, layers + 1):
        short = cut_config(config, layers, keep)
        held = {name: x for name, x in tensors.items() if layer_of(name) < keep}
        try:
            off = differs(apus, reference, fixture, short, held, steps)
        except Exception as error:  # some models cannot end there
            print(f"  {keep} layers: {str(error).splitlines()[0][:100]}")
            continue
        print(f"  {keep} layers: {off:.1e}")
        if off > LIMIT:
            first = (keep - 1, short, held)
            break
    if not first:
        return
    layer, short, held = first
    if differs(apus, reference, fixture, short, held, 0) <= LIMIT:
        print("  one prompt agrees: the difference is in what a cache keeps")
    print(f"  layer {layer} differs; it does not while one of these tensors is neutral (0, a norm 1):")
    for name, x in held.items():
        if layer_of(name) == layer:
            neutral = np.ones_like(x) if "norm" in name else np.zeros_like(x)
            off = differs(apus, reference, fixture, short, {**held, name: neutral}, steps)
            if off <= LIMIT:
                print(f"    {name}")
