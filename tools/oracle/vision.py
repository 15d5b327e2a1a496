#!/usr/bin/env python3
"""Fixtures of vision models: tests/family/vision/NAME.json, .png, .f32 (logits) and .features.f32.

    python3 tools/oracle/vision.py NAME --config CASES.json:CASE   # a case of its own file
    python3 tools/oracle/vision.py NAME…                           # again, from the fixtures themselves
    python3 tools/oracle/vision.py --sizes                         # sizes.csv: tokens of 200 sizes for each fixture

The reference is transformers (torch, f32, eager attention) with its PIL image processors. Weights are formulas of their
names in MLX's files (weights.py), as in tests/family/data. The prompt is random tokens around the image's; the last
`steps` tokens are fed one at a time. positions: RoPE positions of the prompt, [3][tokens], where they are of three
dimensions. Needs torch, torch's transformers 5.23.0, Pillow 12, mlx (weights.py), safetensors; for LFM2-VL and FastVLM
mlx-vlm 0.7.10.
"""

import argparse
import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image

import weights

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "family" / "vision"
sys.path.insert(0, str(FOLDER.parents[1] / "media"))
import make_images  # noqa: E402

transformers.logging.set_verbosity_error()
VALUES = {  # ranges of tensors that are no usual matrices or norms (weights.py)
    **weights.RULES,
    "norm1.weight": (1.0, 0.4),
    "norm2.weight": (1.0, 0.4),
    "merger.norm.weight": (1.0, 0.4),
    "patch_embed.proj.weight": (0.0, 0.15),
    "patch_conv.weight": (0.0, 0.15),
    "patch_merger.merging_layer.weight": (0.0, 0.3),
    "patch_embedding.weight": (0.0, 0.15),
    "pos_embed.weight": (0.0, 1.0),
    "position_embedding.weight": (0.0, 1.0),
    "layer_norm1.weight": (1.0, 0.4),
    "layer_norm2.weight": (1.0, 0.4),
    "post_layernorm.weight": (1.0, 0.4),
    "mm_soft_emb_norm.weight": (0.0, 0.4),
    "input_projection_weight": (0.0, 0.6),
    "downsample.weight": (0.0, 0.3),
    "std_bias": (0.0, 0.6),
    "input_min": (-2.0, 1.0),
    "input_max": (2.0, 1.0),
    "output_min": (-2.0, 1.0),
    "output_max": (2.0, 1.0),
}


def channels_last(array):
    return np.moveaxis(array, 1, -1) if array.ndim >= 4 else array


def channels_first(array):
    return np.moveaxis(array, -1, 1) if array.ndim >= 4 else array


class Family:
    """names: how the names of transformers' parameters begin, and how those in MLX's files do."""

    positions = False
    names, buffers = (), ()  # buffers: endings of those that files have
    norm_offset, embedding_range = 1, 1.0
    values = {}  # ranges of tensors before VALUES

    def build(self, case):
        return build(case, self)

    def run(self, case, model, inputs, ids, steps):
        return run(case, self, model, inputs, ids, steps)

    def mlx_name(self, name):
        return next((mlx + name[len(ours) :] for ours, mlx in self.names if name.startswith(ours)), name)

    def stored(self, name, shape):
        """The tensors of MLX's file that one parameter's value lies in: names and shapes, along its second axis."""
        return [(self.mlx_name(name), shape)]

    def mask(self, model, tokens, extra):
        return torch.ones(1, tokens, dtype=torch.long)

    def inputs(self, case, image):
        """Inputs of the model, and the token names that stand for the image, with their number."""
        raise NotImplementedError

    def features(self, model, inputs):
        raise NotImplementedError


class Qwen(Family):
    positions = True
    names = (
        ("model.visual.", "vision_tower."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
        found = module.Qwen2VLImageProcessorPil(**case["processor"])(images=[image], return_tensors="np")
        grid = np.asarray(found["image_grid_thw"])
        count = int(grid[0].prod()) // case["processor"]["merge_size"] ** 2
        inputs = {"pixel_values": torch.tensor(found["pixel_values"]), "image_grid_thw": torch.tensor(grid)}
        return inputs, ["<|vision_start|>", *["<|image_pad|>"] * count, "<|vision_end|>"]

    def types(self, types):
        return {"mm_token_type_ids": torch.tensor(types[None])}

    def features(self, model, inputs):
        found = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        found = getattr(found, "pooler_output", found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in found])


class Qwen3Moe(Qwen):
    def stored(self, name, shape):
        found = self.mlx_name(name)
        if found.endswith("experts.gate_up_proj"):
            half = (shape[0], shape[1] // 2, shape[2])
            return [(found.replace("experts.gate_up", f"switch_mlp.{p}") + ".weight", half) for p in ("gate", "up")]
        if found.endswith(".experts.down_proj"):
            found = found.replace("experts.down_proj", "switch_mlp.down_proj.weight")
        return [(found, shape)]


class Qwen35(Qwen):
    norm_offset = 0  # and with the convolutions of PyTorch, as published


class Glm(Qwen):
    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.glm46v.image_processing_pil_glm46v")
        found = module.Glm46VImageProcessorPil(**case["processor"])(images=[image], return_tensors="np")
        grid = np.asarray(found["image_grid_thw"])
        count = int(grid[0].prod()) // case["processor"]["merge_size"] ** 2
        inputs = {"pixel_values": torch.tensor(found["pixel_values"]), "image_grid_thw": torch.tensor(grid)}
        return inputs, ["<|begin_of_image|>", *["<|image|>"] * count, "<|end_of_image|>"]


class Glm4vMoe(Glm, Qwen3Moe):
    buffers = ("e_score_correction_bias",)


class Gemma3(Family):
    norm_offset, embedding_range = 0, 0.15
    names = (
        ("model.vision_tower.vision_model.", "vision_tower.vision_model."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.gemma3.image_processing_pil_gemma3")
        found = module.Gemma3ImageProcessorPil(**case["processor"])(images=[image], return_tensors="np")
        tokens = ["<image_soft_token>"] * case["config"]["mm_tokens_per_image"]
        names = ["\n\n", "<start_of_image>", *tokens, "<end_of_image>", "\n\n"]
        return {"pixel_values": torch.tensor(np.asarray(found["pixel_values"]))}, names

    def types(self, types):
        return {"token_type_ids": torch.tensor(types[None])}

    def features(self, model, inputs):
        found = model.get_image_features(inputs["pixel_values"])
        found = getattr(found, "pooler_output", found)
        return found.reshape(-1, found.shape[-1])


class Pixtral(Family):
    norm_offset, embedding_range = 1, 0.15
    merges = False
    names = (
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
        config = case["config"]
        unit = config["vision_config"]["patch_size"] * (config["spatial_merge_size"] if self.merges else 1)
        settings = {**case["processor"], "patch_size": {"height": unit, "width": unit}}
        found = module.PixtralImageProcessorPil(**settings)(images=[image], return_tensors="np")
        rows, columns = (int(side) // unit for side in found["image_sizes"][0])
        names = [*["[IMG]"] * columns, "[IMG_BREAK]"] * rows
        names[-1] = "[IMG_END]"
        sizes = torch.tensor(np.asarray(found["image_sizes"], np.int64))
        return {"pixel_values": torch.tensor(np.asarray(found["pixel_values"])), "image_sizes": sizes}, names

    def types(self, types):
        return {}

    def features(self, model, inputs):
        found = model.get_image_features(**inputs)
        found = getattr(found, "pooler_output", found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in found])


class Mistral3(Pixtral):
    merges = True


class Idefics3(Family):
    norm_offset, embedding_range = 1, 0.15
    names = (
        ("model.vision_model.", "vision_model."),
        ("model.connector.", "connector."),
        ("model.text_model.", "language_model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.idefics3.image_processing_pil_idefics3")
        processor = module.Idefics3ImageProcessorPil(**case["processor"], return_row_col_info=True)
        found = processor(images=[[image]], return_tensors="np")
        vision = case["config"]["vision_config"]
        view = ["<image>"] * (vision["image_size"] // vision["patch_size"] // case["config"]["scale_factor"]) ** 2
        rows, columns = found["rows"][0][0], found["cols"][0][0]
        names = []
        for row in range(rows):
            for column in range(columns):
                names += ["<fake_token_around_image>", f"<row_{row + 1}_col_{column + 1}>", *view]
            names.append("\n" if row + 1 < rows else "\n\n")
        names += ["<fake_token_around_image>", "<global-img>", *view, "<fake_token_around_image>"]
        keys = ("pixel_values", "pixel_attention_mask")
        return {key: torch.tensor(np.asarray(found[key])) for key in keys}, names

    def types(self, types):
        return {}

    def features(self, model, inputs):
        found = model.get_image_features(**inputs)
        found = getattr(found, "pooler_output", found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in found])


class Gemma4(Family):
    embedding_range = 0.15
    buffers = ("layer_scalar", "std_bias", "std_scale", "input_min", "input_max", "output_min", "output_max")
    names = (
        ("model.vision_tower.", "vision_tower."),
        ("model.embed_vision.", "embed_vision."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def processor(self, case):
        module = importlib.import_module("transformers.models.gemma4.image_processing_pil_gemma4")
        return module.Gemma4ImageProcessorPil(**case["processor"])

    def inputs(self, case, image):
        found = self.processor(case)(images=[image], return_tensors="np")
        names = ["<|image>", *["<|image|>"] * int(found["num_soft_tokens_per_image"][0]), "<image|>"]
        return {key: torch.tensor(np.asarray(found[key])) for key in ("pixel_values", "image_position_ids")}, names

    def types(self, types):
        return {"mm_token_type_ids": torch.tensor(types[None])}

    def features(self, model, inputs):
        found = model.get_image_features(**inputs).pooler_output
        return found.reshape(-1, found.shape[-1]) if isinstance(found, torch.Tensor) else torch.cat(list(found))


class Gemma4Unified(Gemma4):
    names = (
        ("model.embed_vision.multimodal_embedder.", "embed_vision."),
        ("model.embed_vision.", "vision_embedder."),
        *Gemma4.names[2:],
    )

    def processor(self, case):
        """Gemma 4's with patches of the size of a token."""
        module = importlib.import_module("transformers.models.gemma4.image_processing_pil_gemma4")
        settings = {k: v for k, v in case["processor"].items() if k != "model_patch_size"}
        merge = settings["pooling_kernel_size"]
        settings |= {"patch_size": settings["patch_size"] * merge, "pooling_kernel_size": 1}
        return module.Gemma4ImageProcessorPil(**settings)

    def mask(self, model, tokens, extra):
        """As generate() masks; forward() with a plain mask does not see blocks."""
        return model.create_masks_for_generate(
            config=model.config,
            inputs_embeds=torch.zeros(1, tokens, model.config.get_text_config().hidden_size),
            attention_mask=torch.ones(1, tokens, dtype=torch.long),
            past_key_values=None,
            position_ids=torch.arange(tokens)[None],
            mm_token_type_ids=extra["mm_token_type_ids"],
            is_first_iteration=True,
        )


class PaliGemma(Gemma3):
    def inputs(self, case, image):
        module = importlib.import_module("transformers.models.siglip.image_processing_pil_siglip")
        found = module.SiglipImageProcessorPil(**case["processor"])(images=[image], return_tensors="np")
        vision = case["config"]["vision_config"]
        names = ["<image>"] * (vision["image_size"] // vision["patch_size"]) ** 2
        return {"pixel_values": torch.tensor(np.asarray(found["pixel_values"]))}, [*names, "<bos>"]

    def types(self, types):
        return {"token_type_ids": torch.zeros(1, len(types), dtype=torch.long)}


class Lfm2(Family):
    """The pixels are those of mlx-vlm's processor, which uses Pillow; that of transformers needs torchvision."""

    embedding_range = 0.15
    names = (
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
        ("model.language_model.", "language_model.model."),
    )

    def inputs(self, case, image):
        module = importlib.import_module("mlx_vlm.models.lfm2_vl.processing_lfm2_vl")
        settings = case["processor"]
        found = module.Lfm2VlNumpyImageProcessor(**settings).preprocess([image])
        unit = settings["encoder_patch_size"] * settings["downsample_factor"]
        tile, (height, width) = ["<image>"] * (settings["tile_size"] // unit) ** 2, found["image_sizes"][0]
        rows, columns = int(found["image_rows"][0]), int(found["image_cols"][0])
        names = ["<|image_start|>"]
        for i in range(rows * columns if rows * columns > 1 else 0):
            names += [f"<|img_row_{i // columns + 1}_col_{i % columns + 1}|>", *tile]
        names += ["<|img_thumbnail|>"] if rows * columns > 1 else []
        names += [*["<image>"] * (int(height) // unit * (int(width) // unit)), "<|image_end|>"]
        keys = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
        inputs = {key: torch.tensor(np.asarray(found[key])) for key in keys}
        return inputs | {"spatial_shapes": inputs["spatial_shapes"].long()}, names

    def types(self, types):
        return {}

    def features(self, model, inputs):
        found = model.get_image_features(**inputs)
        found = getattr(found, "pooler_output", found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in found])


class FastVlm(Family):
    """mlx-vlm's tower and projector before transformers' Qwen2; the image in a black square, as ml-fastvlm has it."""

    values = {
        "running_var": (1.0, 0.8),
        "running_mean": (0.0, 0.6),
        "layer_scale": (0.5, 0.6),
        "layer_scale_1": (0.5, 0.6),
        "layer_scale_2": (0.5, 0.6),
        "lkb_reparam.weight": (0.0, 0.9),
        "conv.conv.weight": (0.0, 0.4),
    }

    def build(self, case):
        import mlx.core as mx
        from mlx.utils import tree_flatten, tree_unflatten

        module = importlib.import_module("mlx_vlm.models.fastvlm.vision")
        fields, sizes = case["config"], case["config"]["vision_config"]
        config = module.VisionConfig(image_size=sizes["image_size"])
        config.layers, config.embed_dims = sizes["_apus_tiny"]["layers"], sizes["_apus_tiny"]["embed_dims"]
        text = {**fields, "model_type": "qwen2", "attn_implementation": "eager"}
        self.tower = module.VisionModel(config)
        self.tower.eval()
        self.text = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**text)).float().eval()
        inner, hidden = 2 * config.embed_dims[-1], fields["hidden_size"]
        tower = {"vision_tower." + n: p.shape for n, p in tree_flatten(self.tower.parameters())}
        shapes = {n: tuple(s) for n, s in tower.items() if ".head." not in n}
        shapes |= {"mm_projector.0.weight": (hidden, inner), "mm_projector.0.bias": (hidden,)}
        shapes |= {"mm_projector.2.weight": (hidden, hidden), "mm_projector.2.bias": (hidden,)}
        parameters = {n: p for n, p in self.text.named_parameters() if n != "lm_head.weight"}
        shapes |= {"language_model." + n: tuple(p.shape) for n, p in parameters.items()}
        made = {
            n: weights.value(n, s, self.norm_offset, self.embedding_range, case["values"]) for n, s in shapes.items()
        }
        for name, parameter in parameters.items():
            with torch.no_grad():
                parameter.copy_(torch.tensor(made["language_model." + name]))
        given = [(n.removeprefix("vision_tower."), mx.array(x)) for n, x in made.items() if n in tower]
        self.tower.update(tree_unflatten(given))
        self.projector = [torch.tensor(made[f"mm_projector.{i}.{part}"]) for i in (0, 2) for part in ("weight", "bias")]
        return self.text, shapes

    def inputs(self, case, image):
        side, most = case["config"]["vision_config"]["image_size"], max(image.size)
        square = Image.new("RGB", (most, most))
        square.paste(image, ((most - image.width) // 2, (most - image.height) // 2))
        pixels = np.asarray(square.resize((side, side), Image.BICUBIC)).astype(np.float32) / 255
        pixels = (pixels - np.float32(case["processor"]["image_mean"])) / np.float32(case["processor"]["image_std"])
        return {"pixel_values": pixels[None]}, ["<image>"] * (side // 64) ** 2

    def features(self, model, inputs):
        import mlx.core as mx

        rows = torch.tensor(np.array(self.tower(mx.array(inputs["pixel_values"]))[1]))
        first, bias, second, last = self.projector
        inner = torch.nn.functional.gelu(rows.reshape(-1, rows.shape[-1]) @ first.T + bias)
        return inner @ second.T + last

    @torch.no_grad()
    def run(self, case, model, inputs, ids, steps):
        embedded = model.model.embed_tokens(torch.tensor([ids]))
        embedded[0, torch.tensor(ids) == case["image_token"]] = self.features(model, inputs)
        result = model(inputs_embeds=embedded, use_cache=True)
        logits = [result.logits[0]]
        for token in steps:
            result = model(input_ids=torch.tensor([[token]]), past_key_values=result.past_key_values, use_cache=True)
            logits.append(result.logits[0])
        return torch.cat(logits).numpy(), None


FAMILIES = {
    "fastvlm": FastVlm,
    "lfm2_vl": Lfm2,
    "paligemma": PaliGemma,
    "gemma4": Gemma4,
    "glm4v": Glm,
    "glm46v": Glm,
    "glm4v_moe": Glm4vMoe,
    "glm_ocr": Glm,
    "gemma4_unified": Gemma4Unified,
    "qwen2_vl": Qwen,
    "qwen2_5_vl": Qwen,
    "qwen3_vl": Qwen,
    "qwen3_vl_moe": Qwen3Moe,
    "qwen3_5": Qwen35,
    "gemma3": Gemma3,
    "pixtral": Pixtral,
    "mistral3": Mistral3,
    "idefics3": Idefics3,
    "smolvlm": Idefics3,
}


def build(case, family):
    """The model with the formula's weights; their shapes in MLX's files."""
    fields = json.loads(json.dumps(case["config"]))
    if fields["architectures"] == ["LlavaForConditionalGeneration"]:  # Pixtral has a model_type of its own in MLX
        fields["model_type"] = "llava"
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    for part in ("text_config", "vision_config"):
        getattr(config, part)._attn_implementation = "eager"
    model = getattr(transformers, case["config"]["architectures"][0])(config).float().eval()
    shapes, tied = {}, case["config"].get("tie_word_embeddings", True)
    parameters = dict(model.named_parameters())
    parameters |= {n: b for n, b in model.named_buffers() if n.endswith(family.buffers)} if family.buffers else {}
    for name, parameter in parameters.items():
        if tied and name == "lm_head.weight":
            continue
        stored = family.stored(name, channels_last(parameter.detach().numpy()).shape)
        shapes.update(stored)
        parts = [weights.value(*part, family.norm_offset, family.embedding_range, case["values"]) for part in stored]
        found = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        with torch.no_grad():
            parameter.copy_(torch.tensor(np.ascontiguousarray(channels_first(found))).reshape(parameter.shape))
    return model, shapes


@torch.no_grad()
def run(case, family, model, inputs, ids, steps):
    """Logits of the prompt and of the steps behind it; positions of the prompt."""
    types = np.array([int(i == case["image_token"]) for i in ids])
    extra = family.types(types)
    mask = family.mask(model, len(ids), extra)
    result = model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=True, **inputs, **extra)
    logits, past, positions, more = [result.logits[0]], result.past_key_values, None, {}
    if family.positions:
        grid = inputs["image_grid_thw"]
        found, _ = model.model.get_rope_index(
            torch.tensor([ids]), extra["mm_token_type_ids"], image_grid_thw=grid, attention_mask=mask
        )
        positions = found[:, 0].numpy()
    for i, token in enumerate(steps):
        if positions is not None:
            more = {"position_ids": torch.full((3, 1, 1), int(positions.max()) + 1 + i)}
        if "token_type_ids" in extra:
            more["token_type_ids"] = torch.zeros(1, 1, dtype=torch.long)
        mask = torch.ones(1, len(ids) + i + 1, dtype=torch.long)
        result = model(
            input_ids=torch.tensor([[token]]), past_key_values=past, attention_mask=mask, use_cache=True, **more
        )
        past = result.past_key_values
        logits.append(result.logits[0])
    return torch.cat(logits).numpy(), positions


def new_case(name, path):
    file, case = path.rsplit(":", 1)
    given = json.loads(Path(file).read_text())[case]
    image, prompt = given["images"][0], given["prompt"]
    place = next(i for i, part in enumerate(prompt) if isinstance(part, dict))
    if "audio_config" in given["config"]:
        given["config"]["audio_config"] = None
    return {
        "family": given["family"],
        "config": given["config"],
        "processor": given["processor"],
        "token_names": given["tokens"],
        "image_token": given["tokens"][given["image_token"]],
        "image": [image["w"], image["h"], image["seed"]],
        "around": [sum(prompt[:place]), prompt[place + 1]],
        "steps": 3,
    }


def make(name, case):
    family = FAMILIES[case["family"]]()
    case["values"] = {suffix: list(range_) for suffix, range_ in {**family.values, **VALUES}.items()}
    model, shapes = family.build(case)
    width, height, seed = case["image"]
    image = Image.fromarray(make_images.picture(width, height, seed))
    image.save(FOLDER / f"{name}.png", optimize=True)
    with torch.no_grad():
        inputs, names = family.inputs(case, image)
        features = family.features(model, inputs).numpy()
    before, behind = case["around"]
    few = min(case["token_names"].values())
    free = [2 + int(t) % (few - 2) for t in weights.random_bits(name, before + behind + case["steps"])]
    ids = [*free[:before], *(case["token_names"][n] for n in names), *free[before : before + behind]]
    logits, positions = family.run(case, model, inputs, ids, free[before + behind :])
    text = {
        **{k: case[k] for k in ("family", "config", "processor", "token_names", "image_token", "image", "around")},
        "norm_offset": family.norm_offset,
        "embedding_range": family.embedding_range,
        "vocab": logits.shape[1],
        "values": {k: v for k, v in case["values"].items() if any(n.endswith(k) for n in shapes)},
        "tensors": {n: list(s) for n, s in shapes.items()},
        "tokens": [*ids, *free[before + behind :]],
        "steps": case["steps"],
        **({"positions": positions.tolist()} if positions is not None else {}),
        "variants": [{"dtype": "f32"}],
    }
    lines = [f'"{key}": {json.dumps(value)}' for key, value in text.items()]
    (FOLDER / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")
    logits.astype("<f4").tofile(FOLDER / f"{name}.f32")
    features.astype("<f4").tofile(FOLDER / f"{name}.features.f32")
    print(f"{name}: {len(ids)} tokens, {len(features)} of the image, logits of deviation {logits.std():.2f}")


def make_sizes():
    """Sizes that a processor refuses have no line."""
    chosen = random.Random(33)
    sizes = []
    for _ in range(200):
        most = chosen.choice((60, 300, 900))
        sizes.append((chosen.randint(1, most), chosen.randint(1, most)))
    lines = ["fixture,width,height,tokens"]
    for path in sorted(FOLDER.glob("*.json")):
        case = json.loads(path.read_text())
        if "groups" in case:  # a video
            continue
        family = FAMILIES[case["family"]]()
        for width, height in sizes:
            try:
                names = family.inputs(case, Image.new("RGB", (width, height), (7, 9, 11)))[1]
            except ValueError:
                continue
            count = sum(case["token_names"][token] == case["image_token"] for token in names)
            lines.append(f"{path.stem},{width},{height},{count}")
    (FOLDER / "sizes.csv").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--config")
    options = parser.parse_args()
    if options.sizes:
        make_sizes()
    for name in options.names:
        known = FOLDER / f"{name}.json"
        make(name, new_case(name, options.config) if options.config else json.loads(known.read_text()))


if __name__ == "__main__":
    main()
