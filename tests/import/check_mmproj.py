#!/usr/bin/env python3
"""mmproj files as llama.cpp's converter writes them, beside the GGUF of their text model: the checkpoint that comes of
the two has the tensors, the fields and the preprocessing of the one that they were made of, and it answers questions
about an image with the log-probabilities of that one.

    python tests/import/check_mmproj.py [--apus build/apus] [NAME…]

Names are gguf-py's. Needs gguf 0.19.0, numpy, safetensors.
"""

import argparse
import base64
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from PIL import Image
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/oracle"))
for folder in ("import", "media", "server"):
    sys.path.insert(0, str(ROOT / "tests" / folder))
import apus_server  # noqa: E402
import check_audio  # noqa: E402
import check_gguf_families as families  # noqa: E402
import make_images  # noqa: E402
import tiny_model  # noqa: E402

import weights  # noqa: E402

QWEN3 = {"qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"}
QWEN = ("qwen2_vl", "qwen2_5_vl", *QWEN3)
GEMMA4 = ("gemma4", "gemma4_unified")
TEXTS = {"gemma4": "gemma4", "gemma4_unified": "gemma4", "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", **QWEN3}
PROJECTORS = {"gemma3": "gemma3", "smolvlm": "idefics3", "pixtral": "pixtral", "mistral3": "pixtral"}
PROJECTORS |= {"gemma4": "gemma4v", "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger"}
PROJECTORS |= {family: "qwen3vl_merger" for family in QWEN3} | {"gemma4_unified": "gemma4uv"}
ACTIVATIONS = {
    "gemma4": None,
    "gemma4_unified": None,
    "qwen2_vl": None,
    "qwen2_5_vl": "silu",
    "pixtral": "silu",
    "mistral3": "silu",
}


def text_config(case):
    return case["config"].get("text_config", case["config"])


def tiled(x, axis, config, head):
    """_LinearAttentionVReorderBase._reorder_v_heads, for the last rows of an axis."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    x = np.moveaxis(x, axis, 0)
    first = x.shape[0] - heads * head
    last = x[first:].reshape(groups, heads // groups, head, *x.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(np.concatenate([x[:first], last.reshape(heads * head, *x.shape[1:])]), 0, axis)


def qwen35(f):
    """Qwen3_5TextModel, Qwen3_5MoeTextModel."""
    c, size = f.config, f.config["linear_value_head_dim"]
    f.keys |= {"ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"]}
    f.keys |= {"ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"]}
    f.keys["ssm.inner_size"] = c["linear_num_value_heads"] * size
    f.keys["full_attention_interval"] = c["full_attention_interval"]
    f.keys["rope.dimension_count"] = int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"])
    if "num_experts" in c:
        f.keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
        f.keys["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    for name, x in f.tensors.items():
        if "in_proj_qkv" in name or "in_proj_z" in name or "conv1d" in name:
            x = tiled(x.squeeze(), 0, c, size)
        elif re.search("in_proj_[ab]|A_log|dt_bias", name):
            x = tiled(x, 0, c, 1)
        elif "linear_attn.out_proj" in name:
            x = tiled(x, 1, c, size)
        if name.endswith("A_log"):
            x = -np.exp(x)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            x = x + 1
        elif name.endswith("shared_expert_gate.weight"):
            x = x.reshape(-1)
        f.tensors[name] = x


def text_file(case, tensors, path):
    config, family = text_config(case), case["family"]
    if family == "gemma3":  # Gemma3Model: norms plus one
        f = families.File("gemma3", config, tensors)
        f.keys |= {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": 3}
        f.keys["rope.freq_base_swa"] = config["rope_local_base_freq"]
        f.tensors = {n: x + 1 if n.endswith("norm.weight") else x for n, x in f.tensors.items()}
    elif family in TEXTS:
        f = families.File(TEXTS[family], config, tensors)
        rules = {"gemma4": families.gemma4, "qwen2vl": families.qwen_vl, "qwen35": qwen35, "qwen35moe": qwen35}
        rules.get(TEXTS[family], families.qwen3_vl)(f)
        if family in QWEN:
            rope = config.get("rope_scaling") or config["rope_parameters"]
            f.keys["rope.dimension_sections"] = [*rope["mrope_section"], 0]
    else:
        home = "" if "language_model.model.embed_tokens.weight" in tensors else "model."
        renamed = {n.replace("language_model.", "" if "lm_head" in n else home): x for n, x in tensors.items()}
        f = families.File("llama", config, renamed)
        families.llama(f)
    f.write(path)


def vision_keys(case):
    """MmprojModel.set_gguf_parameters, and what the classes of the families add."""
    config, processor, family = case["config"], case["processor"], case["family"]
    vision = config["vision_config"]
    unified = family == "gemma4_unified"
    if unified:  # what the converter writes for a tower that is not there
        vision = {**vision, "hidden_size": vision["mm_embed_dim"], "intermediate_size": 0}
        vision |= {"num_hidden_layers": 0, "num_attention_heads": 0}
    hidden = vision.get("embed_dim", vision["hidden_size"])
    places = vision.get("num_position_embeddings", 0)
    keys = {
        "clip.has_vision_encoder": True,
        "clip.vision.projector_type": PROJECTORS[family],
        "clip.vision.image_size": vision.get("image_size", int(places**0.5 * vision["patch_size"]) or 560),
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": hidden,
        "clip.vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "clip.vision.block_count": vision.get("num_hidden_layers", vision.get("depth")),
        "clip.vision.attention.head_count": vision.get("num_attention_heads", vision.get("num_heads")),
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-6 if family in TEXTS else 1e-5),
        "clip.vision.projection_dim": text_config(case)["hidden_size"],
        "clip.vision.image_mean": processor["image_mean"],
        "clip.vision.image_std": processor["image_std"],
    }
    activation = ACTIVATIONS.get(family, "gelu")
    if activation:
        keys[f"clip.use_{activation}"] = True
    if family in ("gemma3", "smolvlm"):
        keys["clip.vision.projector.scale_factor"] = config.get("scale_factor", 2)
    if "spatial_merge_size" in config or family.startswith("qwen3"):
        keys["clip.vision.spatial_merge_size"] = config.get("spatial_merge_size", 2)
    if family == "smolvlm":
        keys["clip.vision.preproc_image_size"] = processor["size"]["longest_edge"]
    if family == "qwen2_5_vl":
        keys["clip.vision.n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
        keys["clip.vision.window_size"] = vision["window_size"]
    if family in QWEN:
        size = processor.get("size", {})
        keys["clip.vision.image_min_pixels"] = processor.get("min_pixels", size.get("shortest_edge"))
        keys["clip.vision.image_max_pixels"] = processor.get("max_pixels", size.get("longest_edge"))
    if family.startswith("qwen3"):
        merged = vision["deepstack_visual_indexes"]
        keys["clip.vision.is_deepstack_layers"] = [i in merged for i in range(vision["depth"])]
    audio = config.get("audio_config")
    if audio:
        keys |= {
            "clip.has_audio_encoder": True,
            "clip.audio.projector_type": "gemma4ua" if unified else "gemma4a",
            "clip.audio.projection_dim": text_config(case)["hidden_size"],
            "clip.audio.embedding_length": audio["hidden_size"],
            "clip.audio.feed_forward_length": 0 if unified else audio["hidden_size"] * 4,
            "clip.audio.block_count": audio.get("num_hidden_layers", 0),
            "clip.audio.attention.head_count": audio.get("num_attention_heads", 0),
            "clip.audio.num_mel_bins": 128,
            "clip.audio.attention.layer_norm_epsilon": 1e-6,
        }
    return keys


NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 24)


def named(module):
    found = NAMES.get_name(module) or NAMES.get_name("model." + module)
    assert found, module
    return found


def qwen_tensors(case, name, x):
    """Qwen2VLVisionModel, Qwen3VLVisionModel."""
    module, part = name.replace("vision_tower.", "visual.").rsplit(".", 1)
    split = case["family"] in ("qwen2_vl", "qwen2_5_vl")
    deepstack = re.match(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(\w+)", module)
    if x.ndim == 5:
        x = x.transpose(0, 4, 1, 2, 3)
        return {"v.patch_embd.weight": x[:, :, 0], "v.patch_embd.weight.1": x[:, :, 1]}
    if module.endswith("attn.qkv") and split:
        parts = zip("qkv", np.split(x, 3))
        return {f"{named(module.replace('qkv', letter))}.{part}": y for letter, y in parts}
    if deepstack:
        layer = case["config"]["vision_config"]["deepstack_visual_indexes"][int(deepstack[1])]
        return {f"v.deepstack.{layer}.{deepstack[2]}.{part}": x}
    own = {"visual.merger.norm": "v.post_ln", "visual.merger.linear_fc1": "mm.0", "visual.merger.linear_fc2": "mm.2"}
    return {f"{own.get(module) or named(module)}.{part}": x}


def gemma4_tensors(case, name, x):
    """Gemma4VisionAudioModel."""
    if name.endswith("input_proj.weight"):
        patch = case["config"]["vision_config"]["patch_size"]
        x = x.reshape(-1, patch, patch, 3).transpose(0, 3, 1, 2)
    name = "model." + name
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if name.endswith("position_embedding_table"):
        name += ".weight"
    found = re.match(r"(.*)\.(weight|bias|(?:in|out)put_(?:min|max))$", name)
    if not found:
        return {named(name): x}
    module = found[1].replace("_proj", "_proj.linear") if "self_attn" in found[1] else found[1]
    return {f"{NAMES.get_name(found[1]) or named(module)}.{found[2]}": x.reshape(x.shape or (1,))}


# which gguf 0.19 does not know yet
UNIFIED = {"patch_dense": "v.patch_embd", "patch_ln1": "v.patch_norm.1", "patch_ln2": "v.patch_norm.2"}
UNIFIED |= {"pos_norm": "v.patch_norm.3"}


def unified_tensors(case, name, x):
    """Gemma4UnifiedVisionAudioModel."""
    side = case["config"]["vision_config"]["model_patch_size"]
    if name == "vision_embedder.pos_embedding":
        return {"v.position_embd.weight": x.transpose(1, 0, 2)}
    if name.startswith("embed_"):
        return gemma4_tensors(case, name, x)
    module, part = name.removeprefix("vision_embedder.").split(".")
    if module == "patch_ln1" or name.endswith("patch_dense.weight"):
        x = x.reshape(-1, side, side, 3).transpose(0, 3, 1, 2).reshape(x.shape)
    return {f"{UNIFIED[module]}.{part}": x}


def conformer_tensors(name, x):
    """The audio part of Gemma4VisionAudioModel."""
    name = ("model." + name).replace("model.audio_tower.", "conformer.").replace(".linear.", ".")
    if name.endswith("per_dim_scale"):
        name, x = name + ".weight", np.log1p(np.exp(x))
    x = x.reshape(x.shape[:2]) if "depthwise" in name else x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    module, part = re.match(r"(.*)\.(weight|bias|(?:in|out)put_(?:min|max))$", name).groups()
    return {f"{named(module)}.{part}": x}


def siglip_tensors(case, name, x):
    """Gemma3VisionModel, SmolVLMModel, LlavaVisionModel."""
    within = case["family"] in ("pixtral", "mistral3")
    module, part = re.match(r"(.*)[._](weight|bias)$", name).groups()
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    if within and re.search("[qk]_proj", name):
        x = families.paired(x, case["config"]["vision_config"]["num_attention_heads"])
    if within:
        module = module.replace("vision_tower.vision_model.", "vision_tower.")
    return {f"{named(module)}.{part}": x + 1 if "soft_emb_norm" in name else x}


def vision_file(case, tensors, path, change=None):
    family = case["family"]
    keys = vision_keys(case)
    rules = {"gemma4": gemma4_tensors, "gemma4_unified": unified_tensors} | dict.fromkeys(QWEN, qwen_tensors)
    rule = rules.get(family, siglip_tensors)
    out = {}
    for name, x in tensors.items():
        out |= conformer_tensors(name, x) if "audio" in name else rule(case, name, x)
    if family in ("pixtral", "mistral3"):
        out["v.token_embd.img_break"] = np.ones(text_config(case)["hidden_size"], np.float32)
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


WRONG_QWEN = {
    "projector": WRONG["projector"],
    "text": (lambda k, t: k.update({"clip.vision.projector_type": "gemma3"}), "belongs to a gemma3 model"),
    "missing": (lambda k, t: t.pop("v.blk.1.ln2.weight"), "tensor v.blk.1.ln2.weight is missing"),
    "frame": (lambda k, t: t.pop("v.patch_embd.weight.1"), "tensor v.patch_embd.weight.1 is missing"),
    "frames": (
        lambda k, t: t.update({"v.patch_embd.weight.1": t["v.patch_embd.weight.1"][:8]}),
        "v.patch_embd.weight.1 differ in type or size",
    ),
    "patch": (lambda k, t: k.update({"clip.vision.patch_size": 7}), "is no convolution of 7 × 7 pixels"),
    "further": WRONG["further"],
}
WRONG_QWEN2_5 = {
    **WRONG_QWEN,
    "silu": WRONG_SILU["silu"],
    "pattern": (lambda k, t: k.pop("clip.vision.n_wa_pattern"), "n_wa_pattern is missing"),
    "key": (lambda k, t: t.pop("v.blk.1.attn_k.bias"), "tensor v.blk.1.attn_k.bias is missing"),
}
WRONG_QWEN3 = {
    **WRONG_QWEN,
    "deepstack": (lambda k, t: k.pop("clip.vision.is_deepstack_layers"), "tensor v.deepstack.0.norm.weight is not one"),
    "flags": (
        lambda k, t: k.update({"clip.vision.is_deepstack_layers": [True]}),
        "is_deepstack_layers is not one flag for each layer",
    ),
}
WRONG_GEMMA4 = {
    "projector": WRONG["projector"],
    "patch": (lambda k, t: k.update({"clip.vision.patch_size": 4}), "is no convolution of 4 × 4 pixels"),
    "further": WRONG["further"],
    "missing": (lambda k, t: t.pop("v.blk.1.ffn_post_norm.weight"), "tensor v.blk.1.ffn_post_norm.weight is missing"),
}
WRONG_UNIFIED = {
    "projector": WRONG["projector"],
    "side": (lambda k, t: k.update({"clip.vision.patch_size": 4}), "has no values of 12 × 12 pixels"),
    "places": (
        lambda k, t: t.update({"v.position_embd.weight": np.zeros((32, 96), np.float32)}),
        "v.position_embd.weight does not have places of two axes",
    ),
    "bias": (lambda k, t: t.pop("v.patch_embd.bias"), "v.patch_embd.bias is missing"),
    "further": WRONG["further"],
}
WRONG_AUDIO = {
    "projector": (lambda k, t: k.update({"clip.audio.projector_type": "qwen2a"}), "projector_type is qwen2a, must be"),
    "width": (lambda k, t: k.update({"clip.audio.projection_dim": 7}), "clip.audio.projection_dim is 7"),
    "eps": (lambda k, t: k.pop("clip.audio.attention.layer_norm_epsilon"), "layer_norm_epsilon is missing"),
    "further": (lambda k, t: t.update({"a.x.weight": np.zeros(4, np.float32)}), "tensor a.x.weight is not one"),
}
WRONG_CONFORMER = {
    **WRONG_AUDIO,
    "bins": (lambda k, t: k.update({"clip.audio.num_mel_bins": 80}), "num_mel_bins is 80, must be 128"),
    "taps": (lambda k, t: t.pop("a.blk.1.conv_dw.weight"), "tensor a.blk.1.conv_dw.weight is missing"),
    "scale": (
        lambda k, t: t.update({"a.blk.1.per_dim_scale.weight": -t["a.blk.1.per_dim_scale.weight"]}),
        "a.blk.1.per_dim_scale.weight has elements that are not positive",
    ),
    "heads": (lambda k, t: k.pop("clip.audio.attention.head_count"), "clip.audio.attention.head_count is missing"),
}
FAULTS = {
    "gemma4": WRONG_GEMMA4,
    "gemma4_unified": WRONG_UNIFIED,
    "qwen2_vl": WRONG_QWEN,
    "qwen2_5_vl": WRONG_QWEN2_5,
    "qwen3_vl": WRONG_QWEN3,
}
FAULTS |= {"qwen3_vl_moe": WRONG_QWEN3, "qwen3_5": WRONG_QWEN, "qwen3_5_moe": WRONG_QWEN}
FAULTS |= {"pixtral": WRONG_SILU, "mistral3": WRONG_SILU}
# What files do not say, and nothing reads.
UNSAID = {"in_chans", "spatial_patch_size", "global_head_dim", "default_output_length", "num_soft_tokens"}
UNSAID |= {"attention_invalid_logits_value"}


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
    wanted, family = case["config"], case["family"]
    for field in ("model_type", "architectures", "mm_tokens_per_image", "scale_factor", "spatial_merge_size"):
        check.that(config.get(field) == wanted.get(field), f"{field}: {config.get(field)}")
    for part in ("vision_config", "audio_config"):
        for field, value in (wanted.get(part) or {}).items():
            found = config[part].get(field)
            same = found == value or (isinstance(value, float) and abs((found or 0) - value) < 1e-6 * value)
            check.that(same or field in UNSAID, f"{family}: {part}.{field}: {found}")
    check.that(config["text_config"]["hidden_size"] == text_config(case)["hidden_size"], "text_config")
    kind = {"mistral": "llama", "smolvlm": "llama"}.get(text_config(case)["model_type"])
    check.that(not kind or config["text_config"]["model_type"] == kind, config["text_config"]["model_type"])
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    wanted = dict(case["processor"])
    if "min_pixels" in wanted:
        wanted["size"] = {"shortest_edge": wanted["min_pixels"], "longest_edge": wanted["max_pixels"]}
    for field in ("image_processor_type", "size", "max_image_size", "patch_size"):
        check.that(processor.get(field) == wanted.get(field), f"{family}: {field}: {processor.get(field)}")
    for field in ("image_mean", "image_std"):
        check.that(np.allclose(processor[field], case["processor"][field], rtol=1e-6), f"{field}: {processor[field]}")
    found = load_file(directory / "model-vision.safetensors")
    check.that(sorted(found) == sorted(tensors), f"names: {sorted(set(found) ^ set(tensors))}")
    for name, x in tensors.items():
        y = found[name]
        y = y.transpose(0, 2, 3, 1) if y.ndim == 4 else y.transpose(0, 2, 3, 4, 1) if y.ndim == 5 else y
        y = y.reshape(x.shape) if "depthwise" in name or y.size == 1 else y
        limit = 1e-6 if "soft_emb_norm" in name or name.endswith("per_dim_scale") else 0
        check.that(x.shape == y.shape and np.abs(x - y).max() <= limit, f"{name}: {x.shape}, {y.shape}")


def answers(model, apus, audio):
    """Log-probabilities of answers to questions about images, and clips, with all their digits."""
    out = []
    with apus_server.Server(str(model), binary=apus) as server:
        for seed, width, height in ((1, 150, 97), (2, 100, 140)):
            data = io.BytesIO()
            Image.fromarray(make_images.picture(width, height, seed)).save(data, "PNG")
            url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
            content = [{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": url}}]
            content += [check_audio.part(check_audio.wav(seed))] if audio else []
            messages = [{"role": "user", "content": [*content, {"type": "text", "text": " what is it?"}]}]
            status, body = server.chat(messages, max_tokens=4, temperature=0, logprobs=True, top_logprobs=5)
            if status != 200:
                raise RuntimeError(f"{model}: {status}: {body}")
            out.append(body["usage"]["prompt_tokens"])
            out += [o["logprob"] for t in body["choices"][0]["logprobs"]["content"] for o in t["top_logprobs"]]
    return out


def check_answers(check, name, case, directory, folder):
    """The converted checkpoint with the fixture's tokenizer and the fixture as a checkpoint answer alike."""
    plain = folder / "plain"
    plain.mkdir()
    vision, _, audio = name.partition("+")
    if audio:
        tiny_model.write_tiny_audio(str(plain), audio, images=vision)
    else:
        tiny_model.write_tiny_vision(str(plain), case)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / file, directory / file)
    for at in (plain, directory):  # both end at the same token
        config = json.loads((at / "config.json").read_text())
        (at / "config.json").write_text(json.dumps({**config, "eos_token_id": 98}))
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    if "max_soft_tokens" in processor:  # which no key says
        settings = json.loads((plain / "preprocessor_config.json").read_text())
        settings["max_soft_tokens"] = processor["max_soft_tokens"]
        (plain / "preprocessor_config.json").write_text(json.dumps(settings))
    ours, expected = answers(directory, check.apus, audio), answers(plain, check.apus, audio)
    # The last bit by which a converted norm or scale may differ can round a key or value to the next f16, which is half
    # a thousandth of it: 2.5e-4 with AVX2.
    same = len(ours) == len(expected) and np.allclose(ours, expected, rtol=0, atol=5e-4)
    check.that(same, f"{name}: answers {ours[:4]}, expected {expected[:4]}")


def only_experts(case):
    """GGUF has mixtures in all layers or in none."""
    config = case["config"]["text_config"]
    expert, shared = config.get("moe_intermediate_size", 32), case["family"] == "qwen3_5"
    config |= {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": expert, "norm_topk_prob": True}
    config["mlp_only_layers"] = []
    tensors = {n: s for n, s in case["tensors"].items() if ".mlp." not in n or "vision" in n}
    for i in range(config["num_hidden_layers"]):
        home = f"language_model.model.layers.{i}.mlp."
        tensors[home + "gate.weight"] = [6, 64]
        for part, shape in (("gate", [expert, 64]), ("up", [expert, 64]), ("down", [64, expert])):
            tensors[f"{home}switch_mlp.{part}_proj.weight"] = [6, *shape]
            if shared:
                tensors[f"{home}shared_expert.{part}_proj.weight"] = shape
        if shared:
            tensors[home + "shared_expert_gate.weight"] = [1, 64]
    case["tensors"] = tensors
    if shared:
        config |= {"model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": expert}
        case["config"] |= {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"]}
        case["config"]["vision_config"]["model_type"] = case["family"] = "qwen3_5_moe"


def load_case(name):
    """A fixture of tests/family/vision; NAME+AUDIO: with the audio part and the text of that one of tests/family/audio;
    NAME-moe: of a dense one, with mixtures. Its tensors."""
    vision, _, audio = name.partition("+")
    path = ROOT / f"tests/family/vision/{vision}.json"
    moe = vision.endswith("-moe")
    case = json.loads((path if path.exists() else path.with_stem(vision.removesuffix("-moe"))).read_text())
    if moe:
        only_experts(case)
    tensors = weights.make(case["tensors"], {"dtype": "f32"}, case)
    if audio:
        heard = json.loads((ROOT / f"tests/family/audio/{audio}.json").read_text())
        tensors |= weights.make(heard["tensors"], {"dtype": "f32"}, heard)
        heard["config"]["vision_config"] = case["config"]["vision_config"]
        case["config"] = heard["config"]
    return case, tensors


def check_case(check, name):
    case, everything = load_case(name)
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
        check.that(code == 0 and "without images" not in error, f"{name}: beside: {error}")
        compare(check, case, encoder, folder / "found")
        check_answers(check, name, case, folder / "found", folder)
        config = json.loads((folder / "found/config.json").read_text())
        width = {"qwen2_vl": "embed_dim", "gemma4_unified": "mm_embed_dim"}.get(case["family"], "hidden_size")
        config["vision_config"][width] += 3
        (folder / "found/config.json").write_text(json.dumps(config))
        check.that(not check.loads(folder / "found"), f"{name}: the encoder is not loaded")
        gated = any("gate_proj" in n for n in encoder)
        vision_file(case, encoder, other, None if gated else exchanged)
        code, error = check.convert(language, folder / "given", "--mmproj", other)
        check.that(code == 0, f"{name}: --mmproj: {error}")
        compare(check, case, encoder, folder / "given")
        faults = FAULTS.get(case["family"], WRONG)
        if "+" in name:
            faults = WRONG_AUDIO if case["family"] == "gemma4_unified" else WRONG_CONFORMER
        for fault, (change, says) in faults.items():
            vision_file(case, encoder, other, change)
            code, error = check.convert(language, folder / fault, "--mmproj", other)
            refused = code == 1 and says in error and not (folder / fault).exists()
            check.that(refused, f"{name}: {fault}: {code} {error}")
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
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    check = Check(options.apus)
    names = ["gemma3", "smolvlm", "pixtral", "mistral3", "qwen2-vl", "qwen2-5-vl", "qwen3-vl", "qwen3-vl-moe"]
    names += ["qwen3-5", "qwen3-5-moe", "gemma4-e", "gemma4-31b", "gemma4-unified"]
    names += ["gemma4-e+gemma4", "gemma4-unified+gemma4-unified"]
    for name in options.only or names:
        check_case(check, name)
    print(f"{check.passed} passed, {check.failed} failed")
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
