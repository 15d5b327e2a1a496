#!/usr/bin/env python3
"""mmproj files as llama.cpp's converter writes them, beside the GGUF of their text model: the checkpoint that comes of
the two has the tensors, the fields and the preprocessing of the one that they were made of, and it loads.

    python tests/import/check_mmproj.py [--apus build/apus]

Names are gguf-py's. Needs gguf 0.19.0, numpy, safetensors.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/oracle"))
sys.path.insert(0, str(ROOT / "tests/import"))
import check_gguf_families as families  # noqa: E402

import weights  # noqa: E402


def text_file(case, tensors, path):
    config = case["config"]["text_config"]
    if case["family"] == "gemma3":  # Gemma3Model: norms plus one
        f = families.File("gemma3", config, tensors)
        f.keys |= {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": 3}
        f.keys["rope.freq_base_swa"] = config["rope_local_base_freq"]
        f.tensors = {n: x + 1 if n.endswith("norm.weight") else x for n, x in f.tensors.items()}
    else:
        home = "" if "language_model.model.embed_tokens.weight" in tensors else "model."
        renamed = {n.replace("language_model.", "" if "lm_head" in n else home): x for n, x in tensors.items()}
        f = families.File("llama", config, renamed)
        families.llama(f)
    f.write(path)


def vision_file(case, tensors, path, change=None):
    """Gemma3VisionModel, SmolVLMModel, LlavaVisionModel."""
    vision, processor = case["config"]["vision_config"], case["processor"]
    tiles, within = case["family"] == "smolvlm", case["family"] in ("pixtral", "mistral3")
    keys = {
        "clip.has_vision_encoder": True,
        "clip.vision.projector_type": "idefics3" if tiles else "pixtral" if within else "gemma3",
        "clip.use_silu" if within else "clip.use_gelu": True,
        "clip.vision.image_size": vision["image_size"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.block_count": vision["num_hidden_layers"],
        "clip.vision.attention.head_count": vision["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-5),
        "clip.vision.projection_dim": case["config"]["text_config"]["hidden_size"],
        "clip.vision.image_mean": processor["image_mean"],
        "clip.vision.image_std": processor["image_std"],
    }
    if not within:
        keys["clip.vision.projector.scale_factor"] = case["config"].get("scale_factor", 2)
    if "spatial_merge_size" in case["config"]:
        keys["clip.vision.spatial_merge_size"] = case["config"]["spatial_merge_size"]
    if tiles:
        keys["clip.vision.preproc_image_size"] = processor["size"]["longest_edge"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 24)
    out = {}
    for name, x in tensors.items():
        module, part = re.match(r"(.*)[._](weight|bias)$", name).groups()
        if x.ndim == 4:
            x = x.transpose(0, 3, 1, 2)
        if within and re.search("[qk]_proj", name):
            x = families.paired(x, vision["num_attention_heads"])
        if within:
            module = module.replace("vision_tower.vision_model.", "vision_tower.")
        known = names.get_name(module) or names.get_name("model." + module)
        out[f"{known}.{part}"] = x + 1 if "soft_emb_norm" in name else x
    if within:
        out["v.token_embd.img_break"] = np.ones(case["config"]["text_config"]["hidden_size"], np.float32)
    if change:
        change(keys, out)
    writer = gguf.GGUFWriter(path, keys.pop("architecture", "clip"))
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, x in out.items():
        writer.add_tensor(name, np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def exchanged(keys, tensors):
    """The names of early files."""
    for name in [n for n in tensors if ".ffn_up." in n]:
        other = name.replace("ffn_up", "ffn_down")
        tensors[name], tensors[other] = tensors[other], tensors[name]


WRONG = {
    "projector": (lambda k, t: k.update({"clip.vision.projector_type": "ldp"}), "projector_type ldp is not supported"),
    "architecture": (lambda k, t: k.update(architecture="llama"), "more than three dimensions"),
    "missing": (lambda k, t: t.pop("v.blk.1.ln2.bias"), "tensor v.blk.1.ln2.bias is missing"),
    "further": (lambda k, t: t.update({"v.x.weight": np.zeros(4, np.float32)}), "tensor v.x.weight is not one"),
    "width": (lambda k, t: k.update({"clip.vision.projection_dim": 7}), "projection_dim is 7"),
    "field": (lambda k, t: k.pop("clip.vision.patch_size"), "clip.vision.patch_size is missing"),
    "factor": (lambda k, t: k.update({"clip.vision.projector.scale_factor": 3}), "does not divide 4 patches"),
    "gelu": (lambda k, t: k.pop("clip.use_gelu"), "clip.use_gelu is not true"),
    "mean": (lambda k, t: k.pop("clip.vision.image_mean"), "clip.vision.image_mean is not three numbers"),
}


WRONG_SILU = {
    "silu": (lambda k, t: k.pop("clip.use_silu"), "clip.use_silu is not true"),
    "projector": WRONG["projector"],
    "heads": (lambda k, t: k.update({"clip.vision.attention.head_count": 5}), "is not 5 heads of an even size"),
    "rows": (
        lambda k, t: t.update({"v.blk.0.attn_q.weight": np.zeros((9, 48), np.float32)}),
        "has 9 rows, must have 48",
    ),
    "gate": (lambda k, t: t.pop("v.blk.1.ffn_gate.weight"), "tensor v.blk.1.ffn_gate.weight is missing"),
    "merger": (lambda k, t: t.pop("mm.1.weight"), "tensor mm.1.weight is missing"),
}


class Check:
    def __init__(self, apus):
        self.apus, self.passed, self.failed = apus, 0, 0

    def that(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok:
            print(f"FAILED: {what}")

    def loads(self, directory):
        return subprocess.run([self.apus, "info", directory], capture_output=True).returncode == 0

    def convert(self, *arguments):
        done = subprocess.run([self.apus, "convert", *map(str, arguments)], capture_output=True, text=True)
        return done.returncode, done.stderr


def compare(check, case, tensors, directory):
    config = json.loads((directory / "config.json").read_text())
    wanted = case["config"]
    for field in ("model_type", "architectures", "mm_tokens_per_image", "scale_factor", "spatial_merge_size"):
        check.that(config.get(field) == wanted.get(field), f"{field}: {config.get(field)}")
    for field, value in wanted["vision_config"].items():
        same = config["vision_config"].get(field) == value or (
            isinstance(value, float) and abs(config["vision_config"].get(field, 0) - value) < 1e-6 * value
        )
        check.that(same, f"vision_config.{field}: {config['vision_config'].get(field)}")
    check.that(config["text_config"]["hidden_size"] == wanted["text_config"]["hidden_size"], "text_config")
    kind = wanted["text_config"]["model_type"].replace("mistral", "llama")
    check.that(config["text_config"]["model_type"] == kind, config["text_config"]["model_type"])
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    for field in ("image_processor_type", "size", "max_image_size", "patch_size"):
        check.that(processor.get(field) == case["processor"].get(field), f"{field}: {processor.get(field)}")
    for field in ("image_mean", "image_std"):
        check.that(np.allclose(processor[field], case["processor"][field], rtol=1e-6), f"{field}: {processor[field]}")
    found = load_file(directory / "model-vision.safetensors")
    check.that(sorted(found) == sorted(tensors), f"names: {sorted(set(found) ^ set(tensors))}")
    for name, x in tensors.items():
        y = found[name]
        y = y.transpose(0, 2, 3, 1) if y.ndim == 4 else y
        limit = 1e-6 if "soft_emb_norm" in name else 0
        check.that(x.shape == y.shape and np.abs(x - y).max() <= limit, f"{name}: {x.shape}, {y.shape}")


def check_case(check, name):
    case = json.loads((ROOT / f"tests/family/vision/{name}.json").read_text())
    everything = weights.make(case["tensors"], {"dtype": "f32"}, case)
    encoder = {n: x for n, x in everything.items() if not n.startswith("language_model.")}
    text = {n: x for n, x in everything.items() if n not in encoder}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "other").mkdir()
        language, beside, other = folder / "text.gguf", folder / "mmproj-text-f32.gguf", folder / "other/v.gguf"
        text_file(case, text, language)
        code, error = check.convert(language, folder / "alone")
        check.that(code == 0 and not (folder / "alone/preprocessor_config.json").exists(), f"alone: {error}")
        vision_file(case, encoder, beside)
        code, error = check.convert(language, folder / "found")
        check.that(code == 0 and "without images" not in error, f"beside: {error}")
        compare(check, case, encoder, folder / "found")
        check.that(check.loads(folder / "found"), "found does not load")
        config = json.loads((folder / "found/config.json").read_text())
        config["vision_config"]["hidden_size"] += 3
        (folder / "found/config.json").write_text(json.dumps(config))
        check.that(not check.loads(folder / "found"), "the encoder is not loaded")
        vision_file(case, encoder, other, exchanged)
        code, error = check.convert(language, folder / "given", "--mmproj", other)
        check.that(code == 0, f"--mmproj: {error}")
        compare(check, case, encoder, folder / "given")
        for name, (change, says) in (WRONG_SILU if "silu" in json.dumps(case["config"]) else WRONG).items():
            vision_file(case, encoder, other, change)
            code, error = check.convert(language, folder / name, "--mmproj", other)
            check.that(code == 1 and says in error and not (folder / name).exists(), f"{name}: {code} {error}")
        vision_file(case, encoder, beside, WRONG["projector"][0])
        code, error = check.convert(language, folder / "without")
        check.that(code == 0 and "without images" in error, f"one that does not fit, beside: {code} {error}")
        data = other.read_bytes()
        for size in (0, 3, 100, len(data) // 2, len(data) - 1):
            other.write_bytes(data[:size])
            code, error = check.convert(language, folder / "cut", "--mmproj", other)
            check.that(code == 1 and not (folder / "cut").exists(), f"{size} bytes: {code} {error}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", default="build/apus")
    check = Check(parser.parse_args().apus)
    for name in ("gemma3", "smolvlm", "pixtral", "mistral3"):
        check_case(check, name)
    print(f"{check.passed} passed, {check.failed} failed")
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
