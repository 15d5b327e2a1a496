#!/usr/bin/env python3
"""Writes docs/models.md: what each model_type of src/family/registry.c was tested with, from tests/family/data and
tests/family/errors.csv. In README.md it writes the GGUF architectures of the table of models, which must have each
model_type, and in CHANGELOG.md how many there are of both.

    python3 tools/write_models.py                # writes docs/models.md
    python3 tools/write_models.py --check        # fails if it is not current
    python3 tools/write_models.py --measure      # first runs tests that write tests/family/errors.csv
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(ROOT, "tests", "family", "data")
ERRORS = os.path.join(ROOT, "tests", "family", "errors.csv")
REFERENCES = {
    "transformers": "transformers",
    "assistant": "transformers",
    "published": "publisher's definition",
}
FORMS = {"bf16": "bf16", "f16": "f16", "f32": "f32"}
HEAD = """# Models

Written by tools/write_models.py from the registry of families and from the tests. Each `model_type` has tiny random
models whose logits are known from a reference: mlx-lm 0.32.2, transformers 5.23 or, where neither knows the family, its
publisher's definition (`tools/oracle/published_reference.py`), in f32 on the CPU.

- **tested as**: how the weights of those models are stored; every family reads all formats of [formats.md](formats.md).
- **error**: the largest difference from the reference, divided by the largest logit, over prompts and single steps of
  all of them with `--cpu ref` (`tools/oracle` also compares chunks). The tests allow 1e-4; another order of summing
  costs up to 6e-6.
  Vectors of encoders (`bert` …) are within 1e-5 of the reference's.
- **GPU**: whether layers can be on a GPU.
- **streaming**: whether the experts may stay on disk ([larger-than-memory.md](larger-than-memory.md)).
- **GGUF**: the architecture's name in GGUF files.

| `model_type` | references | tested as | error | GPU | streaming | GGUF |
|---|---|---|---|---|---|---|
"""
TAIL = """
## GGUF architectures without a family here

What llama.cpp reads (its list of autumn 2026) and Apus refuses by name:

- decoders: arctic, chameleon, codeshell, gptj, grok, grovemoe, jais,
  llama-embed, maincoder, orion, pangu-embedded, plamo, plamo3, plm, refact, smallthinker, talkie;
- decoders of 2026: dots3note, glm5-next, graniteswitch, hrm_text, hy_v4,
  kimi-k3, maple, qwen4exp;
- other recurrences: arwkv7, plamo2, rwkv6, rwkv6qwen2, rwkv7;
- diffusion: dream, llada, llada-moe, rnd1;
- ternary: bitnet (checkpoints of `bitnet` are read);
- encoders: eurobert, gemma-embedding, jina-bert-v2, jina-bert-v3, modern-bert, neo-bert, nomic-bert-moe, t5encoder;
- encoder and decoder: t5;
- images and sound: cogvlm, deepseek2-ocr, hunyuan_vl, paddleocr, pockettts, qwen3tts, wavtokenizer-dec; clip is what
  `--mmproj` reads;
- drafts: dflash, eagle3.

Of these, checkpoints of gptj, orion, pangu-embedded, plamo2, plamo3 and talkie are read (PLaMo's without its
tokenizer).
llama.cpp's converter writes no gptj.
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def registry():
    """model_type → family, in order."""
    return re.findall(r'row\("([^"]+)", (\w+)\)', read("src/family/registry.c"))


def sources():
    """Family → the text of its file."""
    out = {}
    folder = os.path.join(ROOT, "src", "family")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".c") and name != "registry.c":
            text = read(os.path.join("src", "family", name))
            for family in re.findall(r"^const Family (\w+) =", text, re.M):
                out[family] = text
    return out


def architectures(family, text):
    """Names of the architectures in GGUF files: of the family's own initialiser, or of the model that it names."""
    if family == "roberta_family":  # the converter makes a BERT of it
        return ["bert"]
    own = text.split(f"const Family {family} =")[1].split("const Family ")[0]
    named = re.search(r"gguf = &(\w+_gguf)", own)
    if named:
        own = gguf_model(named.group(1))
    found = re.findall(r'architecture = "([^"]+)"', own)
    other = re.search(r"other = &(\w+_gguf)", own)
    further = re.findall(r'architecture = "([^"]+)"', gguf_model(other.group(1))) if other else []
    return list(dict.fromkeys(found + further))


def gguf_model(name):
    """The initialiser of a GgufModel that has a name."""
    folder = os.path.join("src", "family", "gguf")
    for file in sorted(os.listdir(os.path.join(ROOT, folder))):
        text = read(os.path.join(folder, file)) if file.endswith(".c") else ""
        if f"const GgufModel {name} =" in text:
            return text.split(f"const GgufModel {name} =")[1].split(";")[0]
    raise ValueError(f"no file of {folder} has {name}")


def fixtures():
    """model_type → fixtures (name, JSON)."""
    out = {}
    names = os.listdir(DATA) + [os.path.join("assistant", n) for n in os.listdir(os.path.join(DATA, "assistant"))]
    for name in sorted(names):
        if name.endswith(".json"):
            with open(os.path.join(DATA, name), encoding="utf-8") as f:
                fixture = json.load(f)
            config = fixture["config"].get("assistant", fixture["config"])
            out.setdefault(config["model_type"], []).append((name[: -len(".json")], fixture))
    return out


def form(variant):
    block = variant.get("quantization")
    if not block:
        return variant["dtype"]
    return block["mode"] if block.get("mode", "affine") != "affine" else f"{block['bits']} bits"


def errors():
    """Fixture → largest error of its variants."""
    out = {}
    with open(ERRORS, newline="") as f:
        for name, _, error in csv.reader(f):
            out[name] = max(out.get(name, 0), float(error))
    return out


def line(model_type, family, text, own, measured):
    missing = [name for name, _ in own if name not in measured]
    if missing:
        sys.exit(f"tests/family/errors.csv lacks {', '.join(missing)}: run tools/write_models.py --measure")
    references = sorted({REFERENCES.get(f.get("reference"), "mlx-lm") for _, f in own})
    forms = sorted({form(v) for _, f in own for v in f["variants"]}, key=lambda v: (v not in FORMS, v))
    worst = max((measured[name] for name, _ in own), default=None)
    experts = any("experts" in t or "switch_mlp" in t or ".moe." in t for _, f in own for t in f["tensors"])
    recurrent = "family/recurrent.h" in text or re.search(r"COMPONENT_(RECURRENT|SHORT_CONV|MAMBA)", text)
    chosen = any("index_k_proj" in t or "indexer.wk" in t for _, f in own for t in f["tensors"])
    needs = {  # operations that a backend may lack (bound.c: missing_operation)
        "recurrence": recurrent,
        "rg_lru": "COMPONENT_RG_LRU" in text,
        "join_groups": "COMPONENT_SHARED_ATTENTION" in text,
        "mix_streams": "COMPONENT_ALTUP" in text,
        "sparsify": "COMPONENT_ALTUP" in text,
        "gate_heads": "head_gate" in text,
        "index_select": chosen or "KeySelection" in text,
        "hyper_connect": "COMPONENT_HYPER" in text,
    }
    cuda = read("src/backend/cuda/runtime/backend.c")
    gpu = all(f".{op} = cuda_" in cuda for op, needed in needs.items() if needed)
    if "family/encoder.h" in text:  # tests/server/check_encoders.py
        references, forms, gpu = ["transformers"], ["f32"], False
    cells = [
        f"`{model_type}`",
        ", ".join(references),
        ", ".join(forms),
        "" if worst is None else f"{worst:.0e}".replace("e-0", "e-"),
        "yes" if gpu else "",
        "yes" if experts else "",
        ", ".join(architectures(family, text)),
    ]
    return "| " + " | ".join(cells) + " |\n"


def document():
    texts, known, measured = sources(), fixtures(), errors()
    rows = registry()
    tested = {family: known[t] for t, family in reversed(rows) if t in known}  # the family's first name
    out = HEAD
    for model_type, family in rows:  # another name of a tested family has its tests
        own = known.get(model_type) or tested.get(family, [])
        out += line(model_type, family, texts[family], own, measured)
    return out + TAIL


def readme():
    """README.md with the architectures of each row's model types in its last column."""
    texts, families, named = sources(), dict(registry()), set()
    lines = read("README.md").split("\n")
    for i, row in enumerate(lines):
        cells = row.split(" | ")
        types = [t for t in re.findall(r"`([^`]+)`", cells[1]) if t in families] if len(cells) == 3 else []
        if not types:
            continue
        named |= set(types)
        found = [name for t in types for name in architectures(families[t], texts[families[t]])]
        lines[i] = " | ".join([*cells[:2], ", ".join(dict.fromkeys(found)) + " |"]).replace("|  |", "| |")
    missing = families.keys() - named
    if missing:
        sys.exit(f"the table of models in README.md lacks {', '.join(sorted(missing))}")
    return "\n".join(lines)


def changelog():
    """CHANGELOG.md with the numbers of model types and of GGUF architectures."""
    texts, rows = sources(), registry()
    named = {name for _, family in rows for name in architectures(family, texts[family])}
    text = re.sub(r"\d+ `model_type`s", f"{len(rows)} `model_type`s", read("CHANGELOG.md"))
    return re.sub(r"GGUF of \d+ architectures", f"GGUF of {len(named)} architectures", text)


def measure():
    if os.path.exists(ERRORS):
        os.remove(ERRORS)
    environment = {**os.environ, "APUS_TEST_ERRORS": ERRORS}
    for test in ("test_golden", "test_assistant"):
        subprocess.run([os.path.join(ROOT, "build", test)], cwd=ROOT, env=environment, check=True)
    with open(ERRORS) as f:
        lines = sorted(set(f))
    with open(ERRORS, "w") as f:
        f.writelines(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        measure()
    files = {"docs/models.md": document(), "README.md": readme(), "CHANGELOG.md": changelog()}
    if options.check:
        there = [name for name in files if os.path.exists(os.path.join(ROOT, name))]
        old = [name for name, text in files.items() if name not in there or read(name) != text]
        for name in old:
            print(f"{name} is not current: tools/write_models.py writes it")
        return 1 if old else 0
    for name, text in files.items():
        with open(os.path.join(ROOT, name), "w", encoding="utf-8") as f:
            f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
