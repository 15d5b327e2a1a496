#!/usr/bin/env python3
"""`apus convert` against mlx_lm.convert: tensors byte for byte, config.json and index as objects, and mlx-lm loads the
result. Needs mlx 0.32.4 and mlx-lm 0.32.2.

    python tests/import/check_convert.py [--apus build/apus] [--every N] [NAME…]

  numbers   mx.quantize and mx.dequantize on hard rows: each mode, width, group and type of numbers
  families  each fixture of tests/family as a bf16 checkpoint, quantised; those of publishers' names are renamed and
            stacked on the way
  options   recipes, types, modes, shards, dequantised again, refusals, nothing left behind

--every N: every Nth of the cases of a kind. NAME: only cases whose name contains it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm import utils
from mlx_lm.convert import mixed_quant_predicate_builder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
import weights as formulas  # noqa: E402

DATA = os.path.join(ROOT, "tests", "family", "data")
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
mx.set_default_device(mx.cpu)


class Refused(Exception):
    pass


def apus_convert(apus, source, target, *options):
    done = subprocess.run([apus, "convert", source, target, *options], capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr.strip())


# ---- checkpoints ----


def write_checkpoint(directory, config, tensors, shards=1):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)
    names = list(tensors)
    for i in range(shards):
        part = {name: tensors[name] for name in names[i::shards]}
        name = "model.safetensors" if shards == 1 else f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        mx.save_safetensors(os.path.join(directory, name), part)


def read_checkpoint(directory):
    tensors, shard_of = {}, {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            part = mx.load(os.path.join(directory, name))
            shard_of.update(dict.fromkeys(part, name))
            tensors.update(part)
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(directory, "model.safetensors.index.json")) as file:
        index = json.load(file)
    return tensors, shard_of, config, index


def mlx_checkpoint(source, target, dtype=None, shard_bytes=None, dequantize=False, recipe=None, **quantize):
    """What mlx_lm.convert does, without the tokenizer."""
    model, config = utils.load_model(utils.Path(source), lazy=True)
    predicate = mixed_quant_predicate_builder(recipe, model, quantize["group_size"]) if recipe else None
    dtype = dtype or config.get("torch_dtype") or config.get("text_config", {}).get("dtype")
    if dtype in DTYPES:
        keeps = getattr(model, "cast_predicate", lambda _: True)

        def cast(name, x):
            return x.astype(DTYPES[dtype]) if keeps(name) and mx.issubdtype(x.dtype, mx.floating) else x

        model.update(tree_map_with_path(cast, model.parameters()))
    if quantize:
        model, config = utils.quantize_model(model, config, quant_predicate=predicate, **quantize)
    if dequantize:
        config.pop("quantization", None)
        config.pop("quantization_config", None)
        model = utils.dequantize_model(model)
    if shard_bytes:
        whole = utils.make_shards
        utils.make_shards = lambda tensors: shards_of(tensors, shard_bytes)
    utils.save_model(target, model)
    if shard_bytes:
        utils.make_shards = whole
    utils.save_config(config, os.path.join(target, "config.json"))


def shards_of(tensors, most):
    shards, size = [], 0
    for name, x in tensors.items():
        if not shards or size + x.nbytes > most:
            shards.append({})
            size = 0
        shards[-1][name] = x
        size += x.nbytes
    return shards


def same_bytes(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (x.reshape(-1).view(mx.uint8) for x in (a, b))
    return bool(mx.all(a == b))


def difference(ours, theirs, shards=True, ignored=()):
    """What is different, or None. theirs: by mlx-lm. ignored: fields of config.json."""
    own, own_shards, own_config, own_index = read_checkpoint(ours)
    tensors, tensor_shards, config, index = read_checkpoint(theirs)
    if set(own) != set(tensors):
        return f"only here: {sorted(set(own) - set(tensors))[:4]}; only there: {sorted(set(tensors) - set(own))[:4]}"
    for name, x in tensors.items():
        if not same_bytes(own[name], x):
            return f"{name}: {own[name].dtype} {own[name].shape}, {x.dtype} {x.shape}"
    own_config, config = ({k: v for k, v in c.items() if k not in ignored} for c in (own_config, config))
    if own_config != config:
        fields = [k for k in {**own_config, **config} if own_config.get(k) != config.get(k)]
        return f"config.json: {fields}: {[own_config.get(k) for k in fields]}, {[config.get(k) for k in fields]}"
    if own_index["metadata"]["total_size"] != index["metadata"]["total_size"]:
        return f"index: {own_index['metadata']}, {index['metadata']}"
    if list(own_index["weight_map"]) != list(index["weight_map"]):
        return "index: other names or another order"
    if shards and (own_index != index or own_shards != tensor_shards):
        return f"index: {own_index['metadata']}, {index['metadata']}, or other shards"
    return None


# ---- numbers ----


def hard_rows(dtype, seed):
    """Ordinary rows, then those at which a rounding turns: powers of two, ties, one sign, tiny, zero, one outlier."""
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal(256) * 10.0**e for e in (-6, -4, -2, 0, 0, 0, 2)]
    rows += [np.abs(rng.standard_normal(256)), -np.abs(rng.standard_normal(256)) - 3, np.zeros(256), np.ones(256)]
    rows += [rng.integers(-6, 7, 256) / 2, 2.0 ** rng.integers(-9, 9, 256), rng.integers(-127, 128, 256) * 0.25]
    rows += [np.where(np.arange(256) % 97 == 5, 100.0, 1e-3 * rng.standard_normal(256))]
    rows += [6 * 2.0 ** (rng.integers(-20, 12) + d) * rng.uniform(-1, 1, 256) for d in np.linspace(-0.02, 0.02, 9)]
    rows += [np.full(256, 1e-7), np.full(256, -1e-7), rng.uniform(-1, 1, 256) * 3e-6]
    return mx.array(np.array(rows, np.float32)).astype(DTYPES[dtype])


def llama(hidden, vocab, **more):
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **more,
    }


def llama_tensors(config, dtype, seed=1):
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden), "model.norm": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {at + "self_attn.q_proj": (hidden, hidden), at + "self_attn.o_proj": (hidden, hidden)}
        shapes |= {at + "self_attn.k_proj": (kv, hidden), at + "self_attn.v_proj": (kv, hidden)}
        shapes |= {at + f"mlp.{n}_proj": (inner, hidden) for n in ("gate", "up")}
        shapes |= {at + "mlp.down_proj": (hidden, inner)}
        shapes |= {at + f"{n}_layernorm": (hidden,) for n in ("input", "post_attention")}
    return {
        name + ".weight": mx.array(rng.standard_normal(shape).astype(np.float32)).astype(DTYPES[dtype])
        for name, shape in shapes.items()
    }


def numbers_case(apus, work, dtype, mode, bits, group):
    rows = hard_rows(dtype, 7)
    config = llama(256, rows.shape[0], torch_dtype=dtype)
    tensors = llama_tensors(config, dtype)
    tensors["model.embed_tokens.weight"] = rows
    source, codes, plain = (os.path.join(work, n) for n in ("source", "codes", "plain"))
    write_checkpoint(source, config, tensors)
    apus_convert(apus, source, codes, "-q", "--q-mode", mode, "--q-bits", str(bits), "--q-group-size", str(group))
    got = mx.load(os.path.join(codes, "model.safetensors"))
    for name, x in tensors.items():
        if x.ndim < 2:
            continue
        stem = name.removesuffix(".weight")
        want = mx.quantize(x, group_size=group, bits=bits, mode=mode)
        for part, y in zip(("weight", "scales", "biases"), want):
            if not same_bytes(got[f"{stem}.{part}"], y):
                differs = np.argwhere(np.array(got[f"{stem}.{part}"].view(mx.uint8) != y.view(mx.uint8)))
                return f"{stem}.{part} at {differs[:3].tolist()} of {len(differs)}"
    apus_convert(apus, codes, plain, "--dequantize")
    again = mx.load(os.path.join(plain, "model.safetensors"))
    for name, x in tensors.items():
        if x.ndim < 2:
            continue
        stem = name.removesuffix(".weight")
        parts = [got.get(f"{stem}.{p}") for p in ("weight", "scales", "biases")]
        want = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode).astype(DTYPES[dtype])
        if not same_bytes(again[name], want):
            return f"{name} dequantised: {np.abs(np.array(again[name].astype(mx.float32) - want)).max()}"
    return None


def numbers_cases():
    for dtype in DTYPES:
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                name = f"numbers affine {bits} {group} {dtype}"
                yield name, lambda a, w, d=dtype, b=bits, g=group: numbers_case(a, w, d, "affine", b, g)
        for mode, (bits, group) in MODES.items():
            name = f"numbers {mode} {dtype}"
            yield name, lambda a, w, d=dtype, m=mode, b=bits, g=group: numbers_case(a, w, d, m, b, g)


# ---- families ----


DIFFERENT = {  # fixtures: what mlx-lm does there
    "bitnet": "has matrices of packed ternary numbers, which apus does not write",
    "dbrx": "has a matrix for each expert, which apus refuses to write",
    "ernie4-5-moe-correction": "leaves out the trained bias that corrects the choice of experts",
    "falcon-h1": "multiplies matrices by the model's factors, which apus refuses to",
    "gemma3n": "keeps keys and values of layers that have those of another layer",
    "helium-bias": "writes an lm_head that the model does not have",
    "talkie(-three)?": "quantises no lm_head that is not in a module",
    "(hf-)?olmo": "has no OLMo 1 without ai2-olmo, and ends the program",
}


WRITTEN_ANEW = ("rope_parameters", "text_config")  # by classes of mlx-lm, with their defaults


def family_case(apus, work, name):
    if why := next((why for known, why in DIFFERENT.items() if re.fullmatch(known + r"(-\w+)?", name)), None):
        return f"skipped: mlx-lm {why}"
    with open(os.path.join(DATA, name + ".json")) as file:
        fixture = json.load(file)
    of = (fixture["norm_offset"], fixture["embedding_range"], fixture.get("values", {}))
    tensors = {
        key: mx.array(formulas.value(key, tuple(shape), *of)).astype(mx.bfloat16)
        for key, shape in fixture["tensors"].items()
    }
    source, ours, theirs = (os.path.join(work, n) for n in ("source", "ours", "theirs"))
    write_checkpoint(source, {**fixture["config"], "torch_dtype": "bfloat16"}, tensors)
    try:
        mlx_checkpoint(source, theirs, group_size=32, bits=4)
    except Exception as error:  # a width that its rule of 64 does not divide, a class that it lacks
        return f"skipped: mlx-lm: {str(error).splitlines()[0][:80] if str(error) else type(error).__name__}"
    apus_convert(apus, source, ours, "-q", "--q-group-size", "32")
    wrong = difference(ours, theirs, shards=False, ignored=WRITTEN_ANEW)
    if not wrong:
        utils.load_model(utils.Path(ours), lazy=True)
    return wrong


def family_cases():
    for file in sorted(os.listdir(DATA)):
        if file.endswith(".json"):
            yield "family " + file[:-5], lambda a, w, n=file[:-5]: family_case(a, w, n)


# ---- options ----


def option_case(apus, work, options, stored="bfloat16", config=None, shards=1, **theirs):
    config = llama(128, 64, num_hidden_layers=9, **(config or {}))
    source, own, other = (os.path.join(work, n) for n in ("source", "ours", "theirs"))
    write_checkpoint(source, config, llama_tensors(config, stored), shards)
    mlx_checkpoint(source, other, **theirs)
    apus_convert(apus, source, own, *options)
    return difference(own, other)


def dequantised_case(apus, work, mode):
    bits, group = MODES.get(mode, (4, 64))
    config = llama(128, 64, torch_dtype="bfloat16")
    source, codes, own, other = (os.path.join(work, n) for n in ("source", "codes", "ours", "theirs"))
    write_checkpoint(source, config, llama_tensors(config, "bfloat16"))
    mlx_checkpoint(source, codes, group_size=group, bits=bits, mode=mode)
    mlx_checkpoint(codes, other, dequantize=True)
    apus_convert(apus, codes, own, "-d")
    return difference(own, other)


def refusal_case(apus, work, options, *words, config=None, tensors=None):
    config = config or llama(128, 64)
    source, own = os.path.join(work, "source"), os.path.join(work, "ours")
    write_checkpoint(source, config, tensors or llama_tensors(config, "bfloat16"))
    try:
        apus_convert(apus, source, own, *options)
    except Refused as error:
        left = [n for n in os.listdir(work) if n != "source"]
        missing = [w for w in words if w not in str(error)]
        return f"not said: {missing}: {error}" if missing else f"left behind: {left}" if left else None
    return "was not refused"


def quantised_case(apus, work):
    """What is quantised already is not called quantised anew."""
    source, codes = os.path.join(work, "plain"), os.path.join(work, "source")
    write_checkpoint(source, llama(128, 64), llama_tensors(llama(128, 64), "bfloat16"))
    apus_convert(apus, source, codes, "-q")
    try:
        apus_convert(apus, codes, os.path.join(work, "ours"), "-q", "--q-bits", "8")
    except Refused as error:
        return None if "already" in str(error) and "--dequantize" in str(error) else f"not said: {error}"
    return "was not refused"


def taken_case(apus, work):
    own = os.path.join(work, "ours")
    os.makedirs(own)
    config = llama(128, 64)
    write_checkpoint(os.path.join(work, "source"), config, llama_tensors(config, "bfloat16"))
    try:
        apus_convert(apus, os.path.join(work, "source"), own)
    except Refused as error:
        return None if "exists" in str(error) and not os.listdir(own) else str(error)
    return "a directory that existed was taken"


def copied_case(apus, work):
    config = llama(128, 64, eos_token_id=3, _name_or_path="x")
    source, own = os.path.join(work, "source"), os.path.join(work, "ours")
    write_checkpoint(source, config, llama_tensors(config, "bfloat16"))
    beside = {"tokenizer.json": "{}", "generation_config.json": '{"eos_token_id": [3, 5]}', "chat_template.jinja": "x"}
    for name, text in {**beside, "README.md": "no", "pytorch_model.bin": "no"}.items():
        with open(os.path.join(source, name), "w") as file:
            file.write(text)
    apus_convert(apus, source, own)
    wanted = {"config.json", "model.safetensors", "model.safetensors.index.json", *beside}
    if set(os.listdir(own)) != wanted:
        return f"files: {sorted(os.listdir(own))}"
    with open(os.path.join(own, "config.json")) as file:
        made = json.load(file)
    return None if made["eos_token_id"] == [3, 5] and "_name_or_path" not in made else str(made)


def option_cases():
    quantised = dict(group_size=64, bits=4)
    recipes = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
    for recipe in recipes:
        options = ("-q", "--q-group-size", "64", "--mixed-recipe", recipe)
        yield recipe, lambda a, w, o=options, r=recipe: option_case(a, w, o, recipe=r, **quantised)
    for dtype in DTYPES:
        for to in DTYPES:
            name = f"{dtype} to {to}"
            yield name, lambda a, w, d=dtype, t=to: option_case(a, w, ("--dtype", t), stored=d, dtype=t)
    for mode, (bits, group) in MODES.items():
        form = dict(group_size=group, bits=bits, mode=mode)
        yield mode, lambda a, w, m=mode, f=form: option_case(a, w, ("-q", "--q-mode", m), **f)
    yield "as it is", lambda a, w: option_case(a, w, ())
    yield "torch_dtype", lambda a, w: option_case(a, w, ("-q",), config={"torch_dtype": "float16"}, **quantised)
    yield "from three shards", lambda a, w: option_case(a, w, ("-q",), shards=3, **quantised)
    for size in (30000, 100000, 1):
        name = f"shards of {size}"
        yield name, lambda a, w, s=size: option_case(a, w, ("-q", "--shard-size", str(s)), shard_bytes=s, **quantised)
    for mode in ("affine", *MODES):
        yield f"{mode} dequantised", lambda a, w, m=mode: dequantised_case(a, w, m)
    yield "two wishes", lambda a, w: refusal_case(a, w, ("-q", "-d"), "not both")
    yield "7 bits", lambda a, w: refusal_case(a, w, ("-q", "--q-bits", "7"), "7 bits")
    yield "groups of 16", lambda a, w: refusal_case(a, w, ("-q", "--q-group-size", "16"), "16", "32, 64 or 128")
    yield "mxfp4 of 8", lambda a, w: refusal_case(a, w, ("-q", "--q-mode", "mxfp4", "--q-bits", "8"), "mxfp4", "8")
    yield "bits alone", lambda a, w: refusal_case(a, w, ("--q-bits", "4"), "-q")
    mixed = ("-q", "--q-mode", "mxfp8", "--mixed-recipe", "mixed_3_6")
    yield "a recipe of mxfp8", lambda a, w: refusal_case(a, w, mixed, "recipe")
    unknown = llama(128, 64, model_type="nope")
    yield "an unknown family", lambda a, w: refusal_case(a, w, ("-q",), "nope", config=unknown)
    cut = {k: v for k, v in llama_tensors(llama(128, 64), "bfloat16").items() if "up_proj" not in k}
    yield "a missing tensor", lambda a, w: refusal_case(a, w, ("-q",), "up_proj", tensors=cut)
    narrow = llama(64, 64, intermediate_size=192)
    wide, few = ("-q", "--q-group-size", "128"), llama_tensors(narrow, "bfloat16")
    yield "rows too short", lambda a, w: refusal_case(a, w, wide, "nothing", "128", config=narrow, tensors=few)
    yield "quantised already", quantised_case
    yield "a directory that exists", taken_case
    yield "files beside", copied_case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--apus", default=os.path.join(ROOT, "build", "apus"))
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    passed = failed = skipped = 0
    for cases in (numbers_cases(), family_cases(), option_cases()):
        for i, (name, case) in enumerate(cases):
            if options.names and not any(re.search(n, name) for n in options.names):
                continue
            if i % options.every:
                continue
            with tempfile.TemporaryDirectory(prefix="apus-convert-") as work:
                try:
                    wrong = case(os.path.abspath(options.apus), work)
                except Refused as error:
                    wrong = f"apus: {error}"
            if wrong and wrong.startswith("skipped: "):
                skipped += 1
                print(f"left out {name:40} {wrong[9:]}")
            elif wrong:
                failed += 1
                print(f"FAILED   {name:40} {wrong}", flush=True)
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} that mlx-lm cannot convert")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
