#!/usr/bin/env python3
"""The oracle of model families: from a config to a random checkpoint, golden logits, a fixture, and what differs.

    python3 tools/oracle make NAME --config FILE [--reference transformers] [--variants …] [--tokens N] [--steps N]
    python3 tools/oracle make mtp/NAME --config FILE --reference mtp   # multi-token prediction head: mtp_reference.py
    python3 tools/oracle make assistant/NAME --config FILE --reference assistant   # assistant_reference.py
    python3 tools/oracle make NAME…            # again, from the fixtures themselves
    python3 tools/oracle check NAME|FILE…      # apus against the references; a difference is bisected

make writes tests/family/data/NAME.json and NAME.f32. The reference is mlx-lm, with tensor names as its files have them,
or transformers, with the publishers' names. No weights are stored: every element is a formula of its tensor's name and
index (weights.py), and tests/family/fixture.h computes the same. NAME.json holds config, tensor shapes, tokens and, per
variant, how the weights are stored; NAME.f32 the logits of all variants, [variants, tokens, vocab] little-endian. Where
llama.cpp knows the architecture, NAME.json also says how its converter names the modules in a GGUF file
(tests/import/test_gguf_families.c). The last `steps` tokens were fed one at a time, the others as one prompt.

Variants: f32, f16, bf16, qBITS.GROUP (affine, bf16 scales) and mxfp4, nvfp4, mxfp8. int8_kl: mean and median over the
rows of the KL divergence that rounding the input of every matrix product to 8 bits (per 32 values, scale max|x|/127)
costs in this very model; int8_top1: the part of rows leading by 0.25 or more whose first choice survives it. They bound
what a fast backend may do.

check compares `apus debug logits --cpu ref` (one prompt and steps, chunks of 7, single steps) with every reference that
knows the config, and the references with each other where both read the same file. Where apus is off by more than 1e-4
of max|logit|, shorter models find the layer, and neutral tensors what in it.

A mixture's golden choice of experts must survive the rounding of fast backends: where the router's logits of the last
chosen and the first rejected expert differ by less than about 5e-4 of all logits' spread (f16), the choice may change,
and all later rows with it. Replace such tokens in NAME.json and make the fixture again: in gemma4-a4b the difference
is at least 4e-3 of the spread on every row of every layer.

Choose small configs: a hidden size that is a multiple of 32, a vocabulary of about 48, odd numbers wherever the family
allows them. Needs mlx[cpu] 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, gguf 0.19.0, numpy; torch for transformers.
"""

import argparse
import importlib
import json
import sys

import compare
import fixtures
import numpy as np

import weights


def reference_of(name):
    return importlib.import_module(name + "_reference")


def variant_of(text):
    if text in ("f32", "f16", "bf16"):
        return {"dtype": text}
    if text in weights.FP_MODES:
        bits, group = weights.FP_MODES[text]
        return {"dtype": "bf16", "quantization": {"group_size": group, "bits": bits, "mode": text}}
    bits, group = text.removeprefix("q").split(".")
    return {"dtype": "bf16", "scales": "bf16", "quantization": {"group_size": int(group), "bits": int(bits)}}


def new_fixture(name, config, reference, options):
    shapes = {k: s for k, s in reference_of(reference).tensors(config).items() if k not in options.drop}
    fixture = fixtures.new(config, reference, shapes)
    fixture["tokens"] = fixtures.random_tokens(name, options.tokens, fixture["vocab"])
    fixture["steps"] = options.steps
    fixture["window"], fixture["warnings"] = options.window, options.warnings
    fixture["variants"] = [variant_of(v) for v in options.variants.split(",")]
    return fixture


def old_fixture(name):
    fixture = fixtures.read(name)
    fixture.setdefault("reference", "mlx")
    fixture.setdefault("values", {})
    fixture["tensors"] = {k: tuple(s) for k, s in fixture["tensors"].items()}
    return fixture


# ---- make ----


def kl(golden, other):
    def log_softmax(x):
        x = x.astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(golden), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1)


def top1(golden, other, lead=0.25):
    ordered = np.sort(golden, -1)
    clear = ordered[:, -1] - ordered[:, -2] >= lead
    return float((golden.argmax(-1) == other.argmax(-1))[clear].mean()) if clear.any() else 1.0


def make(name, fixture):
    reference = reference_of(fixture["reference"])
    variants, logits = [], []
    for variant in fixture["variants"]:
        tensors = weights.make(fixture["tensors"], variant, fixture)
        arguments = (fixture["config"], tensors, fixture["tokens"], fixture["steps"], fixture.get("window", False))
        golden = reference.logits(*arguments)
        with reference.rounded_inputs():
            rough = reference.logits(*arguments)
        assert np.isfinite(golden).all()
        rows = kl(golden, rough)
        print(f"{name:24} {str(variant)[:70]:70} max|logit| {np.abs(golden).max():7.2f}  int8 kl {rows.mean():.1e}")
        variants.append(
            {
                **variant,
                "int8_kl": [float(f"{rows.mean():.3g}"), float(f"{np.median(rows):.3g}")],
                "int8_top1": round(top1(golden, rough), 3),
            }
        )
        logits.append(golden)
    fixtures.write(name, {**fixture, "variants": variants}, logits)


# ---- check ----


def try_reference(name, fixture, tensors, steps):
    """Logits, or None where the reference does not know this config or these names."""
    try:
        reference = reference_of(name)
        window = fixture.get("window", False)
        return reference.logits(fixture["config"], tensors, fixture["tokens"], steps, window)
    except Exception as error:
        print(f"  {name}: {str(error).splitlines()[0][:110] if str(error) else type(error).__name__}")
        return None


def check(name, fixture, apus):
    own = fixture["reference"]
    variant = {"dtype": fixture["variants"][0].get("dtype", "f32")}
    tensors = weights.make(fixture["tensors"], variant, fixture)
    print(f"{name}: {fixture['config']['model_type']}, {own}'s names")
    second = "published" if fixture["config"]["model_type"] in ("phi3small", "baichuan") else "transformers"
    goldens = {n: try_reference(n, fixture, tensors, fixture["steps"]) for n in ("mlx", second)}
    if goldens["mlx"] is not None and goldens[second] is not None:
        print(f"  mlx and {second} differ by {compare.distance(goldens['mlx'], goldens[second]):.1e}")
    golden, worst = goldens[own], 0
    if golden is None:
        return False
    count = len(fixture["tokens"])
    for cut, steps, chunk in (("prompt and steps", fixture["steps"], 256), ("chunks", 0, 7), ("steps", count, 256)):
        try:
            ours, told = compare.apus_logits(apus, fixture["config"], tensors, fixture["tokens"], steps, chunk)
        except RuntimeError as error:
            print(f"  {error}")
            return False
        off = compare.distance(golden, ours)
        worst = max(worst, off)
        print(f"  apus, {cut}: off by {off:.1e} of max|logit| {np.abs(golden).max():.1f}")
    for line in told:
        print("  " + line)
    if worst > compare.LIMIT:
        compare.bisect(apus, reference_of(own), fixture, tensors)
    return worst <= compare.LIMIT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "check"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--config", help="of a new fixture")
    parser.add_argument("--reference", choices=["mlx", "transformers", "published", "mtp", "assistant"], default="mlx")
    parser.add_argument("--variants", default="f32")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--drop", nargs="*", default=[], help="tensors that the file lacks, as a tied lm_head.weight")
    parser.add_argument("--window", action="store_true", help="mlx-lm with the windows of transformers")
    parser.add_argument("--warnings", type=int, default=0, help="that loading the fixture gives")
    parser.add_argument("--apus", default="build/apus")
    options = parser.parse_args()
    good = True
    for name in options.names:
        config = options.config or (name if name.endswith(".json") else None)
        if config:
            with open(config) as f:
                fixture = new_fixture(name, json.load(f), options.reference, options)
        else:
            fixture = old_fixture(name)
        if options.command == "make":
            make(name, fixture)
        else:
            good = check(name, fixture, options.apus) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
