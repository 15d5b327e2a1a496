"""Reads and writes the fixtures of tests/family/data."""

import json
import os
import re

import gguf
import numpy as np

import weights

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "family", "data")
ARCHITECTURES = {  # model_type → llama.cpp's, where they differ
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_next": "qwen3next",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "cohere": "command-r",
    "olmo3": "olmo2",
    "falcon_mamba": "mamba",
}
STORED_MINUS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "nemotron")  # in mlx-lm's files
STORED_MINUS_ONE_RAW = (*STORED_MINUS_ONE, "qwen3_next", "qwen3_5", "qwen3_5_moe")
SCALED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4", "gemma4_text")  # embeddings times √hidden


def path_of(name, extension):
    return os.path.join(DATA, name + extension)


def gguf_module(name):
    """As gguf-py knows what MLX stacked."""
    name = name.replace(".dt_bias", ".dt_proj").replace(".feed_forward.switch_mlp.", ".mlp.experts.")
    name = re.sub(r"backbone(.*)\.mixer\.switch_mlp\.fc1", r"model\1.mlp.experts.up_proj", name)
    name = re.sub(r"backbone(.*)\.mixer\.switch_mlp\.fc2", r"model\1.mlp.experts.down_proj", name)
    name = re.sub(r"\.shared_mlp\.(gate|up)_proj", r".mlp.shared_expert.\1_proj", name)
    name = name.replace("e_score_correction_bias", "e_score_correction").replace(".mlp.switch_mlp.", ".mlp.experts.")
    name = name.replace(".embed_q", ".k_b_proj").replace(".unembed_out", ".v_b_proj")
    for mlx, mixtral in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
        name = name.replace(f".block_sparse_moe.switch_mlp.{mlx}", f".block_sparse_moe.experts.{mixtral}")
    return name


def split_name(architecture, module):
    """The name of what the converter divides and names itself."""
    found = re.search(r"layers\.(\d+)\.block_sparse_moe\.switch_mlp\.(\w+)_proj$", module)
    return f"blk.{found[1]}.ffn_{found[2]}_exps" if found and architecture == gguf.MODEL_ARCH.GRANITE_MOE else None


def gguf_names(config, shapes):
    """Module → its name in a GGUF file, * for the block's number; empty: llama.cpp does not know the architecture."""
    known = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    name = ARCHITECTURES.get(config["model_type"], config["model_type"])
    architecture = known.get("nemotron_h_moe" if name == "nemotron_h" and "n_routed_experts" in config else name)
    if not architecture or "text_config" in config or "n_layers" in config:  # the latter: OLMo's own names
        return {}
    fields = ("num_hidden_layers", "num_layers", "n_layer")
    layers = next((config[k] for k in fields if k in config), 1)  # 1: Nemotron-H, whose names are published ones
    names = gguf.get_tensor_name_map(architecture, layers)
    modules = [re.sub(r"\.(weight|bias)$", "", name.removeprefix("language_model.")) for name in shapes]
    modules = [module for module in modules if not module.endswith("in_proj_qkvz")]  # the converter divides it
    for divided in [module for module in modules if module.endswith("shared_mlp.input_linear")]:
        modules += [divided.replace("input_linear", part) for part in ("gate_proj", "up_proj")]
    modules = [m + ".weight" if m.endswith("pre_ff_layernorm") and name == "falcon-h1" else m for m in modules]
    known = {m: names.get_name(gguf_module(m)) or split_name(architecture, m) for m in modules}
    return {re.sub(r"\.\d+\.", ".*.", m): re.sub(r"\.\d+\.", ".*.", name) for m, name in known.items() if name}


def read(name):
    with open(path_of(name, ".json")) as f:
        return json.load(f)


def integer_rules(config, shapes):
    """Tables of experts."""
    tables = any(name.endswith("tid2eid") for name in shapes)
    return {"tid2eid": [0, 0, config["n_routed_experts"]]} if tables else {}


def vocab_of(config):
    named = (config.get(k) for k in ("padded_vocab_size", "embedding_size", "vocab_size"))
    return next((n for n in named if n), None) or config["text_config"]["vocab_size"]


def new(config, reference, shapes):
    """A fixture without variants, tokens and steps. shapes: of all tensors of the file."""
    raw = reference != "mlx"
    minus_one = config["model_type"] in (STORED_MINUS_ONE_RAW if raw else STORED_MINUS_ONE)
    scaled = config["model_type"] in SCALED  # large embeddings would drown what the layers add
    return {
        "config": config,
        "reference": reference,
        "norm_offset": 0 if minus_one else 1,
        "embedding_range": 0.15 if scaled else 1.0,
        "vocab": vocab_of(config),
        "values": weights.rules_of(shapes) | integer_rules(config, shapes),
        "tensors": shapes,
    }


def random_tokens(name, count, vocab):
    return [int(t) for t in weights.random_bits(name, count) % np.uint64(vocab)]


def write(name, fixture, logits):
    f = fixture
    tensors = ",\n".join(f'  "{k}": {json.dumps(list(s))}' for k, s in f["tensors"].items())
    raw = f["reference"] != "mlx"
    names = gguf_names(f["config"], f["tensors"])
    modules = {re.sub(r"\.\d+\.", ".*.", re.sub(r"\.(weight|bias)$", "", name)) for name in f["tensors"]}
    if raw and not modules <= names.keys():  # MLX has other names for the same
        names = {}
    optional = {k: f[k] for k in ("window", "warnings") if f.get(k)}
    lines = [
        f'"config": {json.dumps(f["config"])}',
        *([f'"reference": "{f["reference"]}"'] if raw else []),
        f'"norm_offset": {f["norm_offset"]}',
        f'"embedding_range": {f["embedding_range"]}',
        f'"vocab": {f["vocab"]}',
        *([f'"values": {json.dumps(f["values"])}'] if f["values"] else []),
        *(f'"{k}": {json.dumps(v)}' for k, v in optional.items()),
        '"tensors": {\n' + tensors + "}",
        *([f'"gguf": {json.dumps(names)}'] if names else []),
        f'"tokens": {json.dumps(f["tokens"])}',
        f'"steps": {f["steps"]}',
        '"variants": [\n' + ",\n".join("  " + json.dumps(v) for v in f["variants"]) + "]",
    ]
    os.makedirs(os.path.dirname(path_of(name, ".json")), exist_ok=True)
    with open(path_of(name, ".json"), "w") as file:
        file.write("{" + ",\n".join(lines) + "}\n")
    np.concatenate(logits).astype("<f4").tofile(path_of(name, ".f32"))
