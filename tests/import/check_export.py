#!/usr/bin/env python3
"""`apus convert --to gguf` against gguf-py, llama.cpp's quantisers and Apus's own reading.

    python tests/import/check_export.py [--apus build/apus] [--count N] [NAME…]

  blocks      hard rows in each type: Q8_0 and Q4_0 byte for byte as gguf-py quantises; Q4_K as quantize_row_q4_K_ref of
              llama.cpp (in llama-cpp-python 0.3.36), by a digest of what that gave
  families    golden checkpoints: names, shapes and keys that llama.cpp wants; read by Apus again, the file gives the
              logits of the checkpoint with the weights that gguf-py dequantises
  tokenizers  published tokenizer.json files: through GGUF and back, the same ids of N varied strings
  refusals    what cannot be written, and nothing is left of it

Needs gguf 0.19.0, mlx, numpy, tokenizers. NAME: only cases whose name contains it.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tools/oracle", "tests/text", "tests/import", "tools")]
import check_gguf_families as written  # noqa: E402
import compare  # noqa: E402
import fixtures  # noqa: E402
from check_tokenizers import CACHE, answers  # noqa: E402
from make_tokenizer_goldens import strings  # noqa: E402

import weights  # noqa: E402

NEAR = 2e-5  # of max|logit|: sums in another order
# sha256 of what quantize_row_q4_K_ref makes of hard_rows(), compiled from llama.cpp for x86-64.
Q4_K_DIGEST = "2aeffc9d8a9cf9b4e1220222f5fe913efd0570a64b83dc550040ce744f777525"
QUANTISED = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k": "Q4_K", "f16": "F16", "bf16": "BF16"}


def export(apus, source, target, kind):
    done = subprocess.run(
        [apus, "convert", source, target, "--to", "gguf", "--gguf-type", kind], capture_output=True, text=True
    )
    return done.stderr.strip() if done.returncode else None


def write_checkpoint(directory, config, tensors):
    os.makedirs(directory, exist_ok=True)
    (pathlib.Path(directory) / "config.json").write_text(json.dumps(config))
    save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, os.path.join(directory, "model.safetensors"))


# ---- blocks ----


def hard_rows():
    """Ordinary rows, then those at which a rounding turns. By a formula, so that every machine has the same."""
    x = weights.random_bits("hard rows", 64 * 256) >> np.uint64(40)
    x = ((x.astype(np.float64) / 2**24 - 0.5) * 4).astype(np.float32).reshape(64, 256)
    x[8:16] *= np.float32(1e-3)
    x[16:24] *= np.float32(1e3)
    x[24], x[25], x[26] = 0, 1, -1
    x[27, ::2] = 0
    x[28], x[29] = np.abs(x[28]), -np.abs(x[29])
    x[30, 5] = 1000
    x[31:40] = np.round(x[31:40] * 8) / 8
    x[40] = 1e-30
    x[41] = np.arange(256)
    x[42:48] = x[42:48] ** 3
    return x


def plain_llama(rows):
    """A llama whose embedding has these rows."""
    vocab, hidden = rows.shape
    config = fixtures.read("llama")["config"] | {
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": 1,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
    }
    tensors = {"model.embed_tokens.weight": rows, "model.norm.weight": np.ones(hidden, np.float32)}
    home = "model.layers.0."
    tensors |= {home + n + "_layernorm.weight": np.ones(hidden, np.float32) for n in ("input", "post_attention")}
    for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"):
        height = hidden // 2 if name[-2:] in (".k", ".v") else hidden
        tensors[f"{home}{name}_proj.weight"] = np.resize(rows, (height, hidden)) / 8
    return config, tensors


def check_blocks(apus, kind, work):
    rows = hard_rows()
    source, target = os.path.join(work, "model"), os.path.join(work, f"{kind}.gguf")
    write_checkpoint(source, *plain_llama(rows))
    problem = export(apus, source, target, kind)
    if problem:
        return problem
    own = next(t for t in gguf.GGUFReader(target).tensors if t.name == "token_embd.weight")
    data = own.data.tobytes()
    if own.tensor_type.name != QUANTISED[kind]:
        return f"the embedding is {own.tensor_type.name}"
    if kind == "q4_k":
        return None if hashlib.sha256(data).hexdigest() == Q4_K_DIGEST else "not what llama.cpp quantises"
    return None if data == gguf.quantize(rows, own.tensor_type).tobytes() else "not what gguf-py quantises"


# ---- families ----

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Fixture, architecture, what its config becomes so that a GGUF file can say it.
FAMILIES = [
    ("llama", "llama", {}),
    ("rope-linear", "llama", {}),
    ("rope-llama3", "llama", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}}),
    ("rope-yarn", "llama", {}),
    ("mistral", "llama", {}),
    ("mistral-window", "llama", {}),
    ("qwen2", "qwen2", {}),
    ("qwen3", "qwen3", {}),
    ("qwen3-moe-all", "qwen3moe", {}),
    ("gemma3-text", "gemma3", {"sliding_window_pattern": 6, "query_pre_attn_scalar": 32}),
    ("phi3", "phi3", {}),
    ("phi3-tied", "phi3", {}),
]


def dequantised(tensors, kind):
    """The weights that are left, in the checkpoint's order of rows, which no block crosses."""
    out = {}
    number = gguf.GGMLQuantizationType[QUANTISED[kind]]
    block = {"q8_0": 32, "q4_0": 32, "q4_k": 256}.get(kind, 1)
    for name, x in tensors.items():
        if x.ndim < 2 or name.endswith(".mlp.gate.weight"):  # vectors and routers
            out[name] = x
        elif kind == "q4_k" and x.shape[-1] % block == 0:
            out[name] = None  # gguf-py does not quantise it: from the file
        elif x.shape[-1] % block:
            out[name] = x.astype(np.float16).astype(np.float32)
        else:
            flat = x.reshape(-1, x.shape[-1])
            out[name] = gguf.dequantize(gguf.quantize(flat, number), number).astype(np.float32).reshape(x.shape)
    return out


def check_names(path, architecture, config):
    """Every name is one of gguf-py's, and the keys that llama.cpp's loader requires are there."""
    reader = gguf.GGUFReader(path)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[numbers[architecture]]}
    for tensor in reader.tensors:
        stem = tensor.name.rsplit(".", 1)[0]
        stem = ".".join("{bid}" if part.isdigit() else part for part in stem.split("."))
        if stem not in known and stem not in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
            return f"{tensor.name} is not one of llama.cpp's"
    fields = {name: field.contents() for name, field in reader.fields.items()}
    wanted = written.metadata(config) | {"rope.dimension_count": None}
    for key, value in wanted.items():
        own = fields.get(f"{architecture}.{key}")
        if own is None or (isinstance(value, float) and abs(own - value) > 1e-6 * abs(value)):
            return f"{architecture}.{key} is {own}, not {value}"
        if isinstance(value, (int, str)) and own != value:
            return f"{architecture}.{key} is {own}, not {value}"
    return None


def check_family(apus, name, architecture, changes, kind, work):
    fixture = fixtures.read(name)
    fixture["tensors"] = {k: tuple(s) for k, s in fixture["tensors"].items()}
    fixture.setdefault("values", {})
    config = fixture["config"] | changes
    tensors = weights.make(fixture["tensors"], {"dtype": "f32"}, fixture)
    source, target = os.path.join(work, "model"), os.path.join(work, "model.gguf")
    write_checkpoint(source, config, tensors)
    problem = export(apus, source, target, kind) or check_names(target, architecture, config)
    if problem:
        return problem
    left = dequantised(tensors, kind)
    if any(x is None for x in left.values()):
        return None  # compared with llama.cpp's by check_blocks
    tokens, steps = fixture["tokens"], fixture["steps"]
    own, _ = compare.apus_logits(apus, config, left, tokens, steps)
    back, out = os.path.join(work, "back"), os.path.join(work, "logits.npy")
    for command in (
        [apus, "convert", target, back],
        [apus, "debug", "logits", back, "--cpu", "ref", "--threads", "1", "--out", out, "--chunk", "256"]
        + ["--tokens", ",".join(map(str, tokens)), "--steps", str(steps)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
    off = compare.distance(own, np.load(out))
    return f"{off:.1e} from the dequantised weights' logits" if off > NEAR else None


# ---- tokenizers ----

TOKENIZERS = ["qwen3", "llama3_1", "gemma3", "llama2", "deepseek_v3", "gptoss"]


def check_tokenizer(apus, name, count, work):
    import tokenizers

    folder = CACHE / name
    if not (folder / "tokenizer.json").exists():
        return None
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab = max(reference.get_vocab(with_added_tokens=True).values()) + 1
    config, tensors = plain_llama(np.zeros((vocab, 64), np.float32))
    if name == "gemma3":  # pieces that users may spell have merges there
        config |= {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512}
        config |= {"head_dim": 16, "query_pre_attn_scalar": 16, "rope_theta": 1e6, "sliding_window_pattern": 6}
        one = {n: np.ones(16 if "self_attn" in n else 64, np.float32) for n in gemma_norms()}
        tensors = {n: x for n, x in tensors.items()} | one
    source, target, back = (os.path.join(work, n) for n in ("model", "model.gguf", "back"))
    write_checkpoint(source, config, tensors)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (pathlib.Path(source) / file).write_bytes((folder / file).read_bytes())
    problem = export(apus, source, target, "q8_0")
    if problem:
        return problem
    done = subprocess.run([apus, "convert", target, back], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    texts = strings(count, [token.content for token in reference.get_added_tokens_decoder().values()], 1)
    want = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    program = [str(ROOT / "build/test_tokenizer")]
    got = [a["ids"] for a in answers(program, "tokens", back, [{"text": t, "special": True} for t in texts])]
    wrong = [(t, a, b) for t, a, b in zip(texts, want, got) if a != b]
    return f"{len(wrong)} of {count} strings differ: {wrong[0][0][:60]!r} {wrong[0][1:]}" if wrong else None


def gemma_norms():
    home = "model.layers.0."
    names = ("pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    return [f"{home}{name}.weight" for name in names]


# ---- refusals ----


def check_refusals(apus, work):
    source = os.path.join(work, "model")
    config, tensors = plain_llama(hard_rows())
    for changes, expected in (
        ({"model_type": "olmo2"}, None),
        ({"rope_traditional": True}, "rope_traditional must be false"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "of the type dynamic cannot be written"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4}, "layer_types is not the order of layers"),
    ):
        write_checkpoint(source, config | changes, tensors)
        problem = export(apus, source, os.path.join(work, "no.gguf"), "q8_0")
        if not problem or (expected and expected not in problem):
            return f"{changes}: {problem}"
    write_checkpoint(source, config, tensors)
    pathlib.Path(work, "there.gguf").write_text("mine")
    problem = export(apus, source, os.path.join(work, "there.gguf"), "q8_0")
    if not problem or "exists" not in problem or pathlib.Path(work, "there.gguf").read_text() != "mine":
        return f"a file that is there: {problem}"
    left = sorted(set(os.listdir(work)) - {"model", "there.gguf"})
    return f"left behind: {left}" if left else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apus", default=str(ROOT / "build" / "apus"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cases = [(f"blocks {kind}", check_blocks, (kind,)) for kind in QUANTISED]
    for case in FAMILIES:
        for kind in ("q8_0", "q4_0", "q4_k", "bf16") if case[0] == "llama" else ("q8_0",):
            cases.append((f"family {case[0]} {kind}", check_family, (*case, kind)))
    cases += [(f"tokenizer {name}", check_tokenizer, (name, options.count)) for name in TOKENIZERS]
    cases.append(("refusals", check_refusals, ()))
    failed, ran = 0, 0
    for name, run, arguments in cases:
        if options.names and not any(n in name for n in options.names):
            continue
        ran += 1
        with tempfile.TemporaryDirectory() as work:
            problem = run(options.apus, *arguments, work)
        if problem:
            failed += 1
            print(f"{name}: {problem}", flush=True)
    print(f"check_export: {ran - failed} of {ran} cases")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
