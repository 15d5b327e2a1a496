#!/usr/bin/env python3
"""Fixtures of videos: tests/family/vision/NAME-video.json, .gif, .f32 (logits) and .features.f32, of the models of the
fixtures NAME.

    python3 tools/oracle/video.py [NAME…]

The reference is transformers (torch, f32, eager attention), with frames that Pillow resizes; its video processors
need torchvision, whose filters differ by a bit. Frames are chosen as docs/media.md says. Positions behind a video of a
Qwen2-VL and Qwen2.5-VL begin behind the largest one of the video, as in their paper and as mlx-vlm and vLLM count;
transformers 5.23 begins behind the largest row or column. Needs what vision.py needs.
"""

import argparse
import importlib
import json

import numpy as np
import torch
import vision
from PIL import Image, ImageSequence

import weights

FRAMES, DURATION_MS, WIDTH, HEIGHT = 5, 500, 90, 60
AREA = {"size": {"shortest_edge": 3136, "longest_edge": 9408}}  # of each frame
TOTAL = {"size": {"shortest_edge": 4096, "longest_edge": 36864}}  # of all frames
CASES = {  # settings of video preprocessing
    "qwen2-vl": AREA,
    "qwen2-5-vl": AREA,
    "qwen3-vl": TOTAL,
    "qwen3-5": TOTAL,
    "glm4v": TOTAL,
    "gemma4-e": {"max_soft_tokens": 70, "num_frames": 3},
    "gemma4-31b": {"max_soft_tokens": 70, "num_frames": 3},
    "smolvlm": {},
}
SAMPLING = {"fps": 1, "max_frames": 3, "video_size": {"longest_edge": 64}}  # SmolVLM 2
TIME = [5, 9, 4]  # tokens of a time


def write_video(path, seed):
    frames = [Image.fromarray(vision.make_images.picture(WIDTH, HEIGHT, seed + i)).quantize(60) for i in range(FRAMES)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=DURATION_MS, loop=0, disposal=2)
    with Image.open(path) as file:
        return [frame.convert("RGB").copy() for frame in ImageSequence.Iterator(file)]


def choose(frames, fps, least, most):
    wanted = int(len(frames) * DURATION_MS / 1000 * fps) if fps else most
    count = min(max(min(wanted, most), least), len(frames))
    return [frames[int(i)] for i in np.linspace(0, len(frames) - 1, count).round()]


class Grid:
    """Qwen-VL and GLM-4V: two frames become one set of patches."""

    timed, each = True, False

    def video(self, case, frames):
        settings, video = case["processor"], case["video_processor"]["size"]
        patch, merge, together = settings["patch_size"], settings["merge_size"], settings["temporal_patch_size"]
        frames = choose(frames, 2, 4, 768)
        module = importlib.import_module("transformers.models.glm46v.image_processing_pil_glm46v")
        limits = {"min_pixels": video["shortest_edge"], "max_pixels": video["longest_edge"]}
        if self.each:
            module = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
            height, width = module.smart_resize(HEIGHT, WIDTH, factor=patch * merge, **limits)
        else:
            height, width = module.smart_resize(
                len(frames), HEIGHT, WIDTH, temporal_factor=together, factor=patch * merge, **limits
            )
        pixels = np.stack([np.asarray(f.resize((width, height), Image.BICUBIC), np.float32) for f in frames])
        pixels = (pixels / 255 - np.float32(settings["image_mean"])) / np.float32(settings["image_std"])
        pixels = np.concatenate([pixels, np.repeat(pixels[-1:], -len(pixels) % together, 0)])
        rows, columns = height // patch, width // patch
        shape = (-1, together, rows // merge, merge, patch, columns // merge, merge, patch, 3)
        patches = pixels.reshape(shape).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * together * patch * patch)
        groups = len(pixels) // together
        inputs = {
            "pixel_values_videos": torch.tensor(np.ascontiguousarray(patches)),
            "video_grid_thw": torch.tensor([[groups, rows, columns]]),
        }
        count = rows * columns // merge**2
        return inputs, self.tokens(groups, count), [frames, groups, count]

    def features(self, model, inputs):
        found = model.get_video_features(**inputs)
        found = getattr(found, "pooler_output", found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in found])

    def token(self, case):
        return case["token_names"]["<|video_pad|>"]


class Qwen2Video(Grid, vision.Qwen):
    each = True

    def tokens(self, groups, count):
        return ["<|vision_start|>", *["<|video_pad|>"] * (groups * count), "<|vision_end|>"]

    def positions_of(self, model, ids, types, grid, seconds):
        given = {}
        if hasattr(model.config.vision_config, "tokens_per_second"):
            given = {"second_per_grid_ts": torch.tensor([seconds])}
        found, _ = model.model.get_rope_index(ids, types, video_grid_thw=grid, **given)
        found = found[:, 0].clone()
        last = int(types[0].nonzero()[-1]) + 1
        most = found[:, :last].max() + 1
        found[:, last:] = torch.arange(len(types[0]) - last) + most
        return found


class Qwen3Video(Grid, vision.Qwen):
    def tokens(self, groups, count):
        return [*TIME, "<|vision_start|>", *["<|video_pad|>"] * count, "<|vision_end|>"] * groups

    def positions_of(self, model, ids, types, grid, seconds):
        return model.model.get_rope_index(ids, types, video_grid_thw=grid)[0][:, 0]


class Qwen35Video(Qwen3Video, vision.Qwen35):
    pass


class GlmVideo(Grid, vision.Glm):
    def tokens(self, groups, count):
        frame = ["<|begin_of_image|>", *["<|image|>"] * count, "<|end_of_image|>", *TIME]
        return ["<|begin_of_video|>", *frame * groups, "<|end_of_video|>"]

    positions_of = Qwen3Video.positions_of

    def token(self, case):
        return case["token_names"]["<|image|>"]


class Gemma4Video(vision.Gemma4):
    def video(self, case, frames):
        frames = choose(frames, 0, 1, case["video_processor"]["num_frames"])
        settings = {**case["processor"], "max_soft_tokens": case["video_processor"]["max_soft_tokens"]}
        found = self.processor({"processor": settings})(images=frames, return_tensors="np")
        count = int(found["num_soft_tokens_per_image"][0])
        inputs = {
            "pixel_values_videos": torch.tensor(np.asarray(found["pixel_values"])),
            "video_position_ids": torch.tensor(np.asarray(found["image_position_ids"])),
            "num_frames_per_video": torch.tensor([len(frames)]),
        }
        names = [*TIME, "<|image>", *["<|video|>"] * count, "<image|>", 6] * len(frames)
        return inputs, names[:-1], [frames, len(frames), count]

    def features(self, model, inputs):
        return torch.cat(list(model.model.get_video_features(**inputs).pooler_output))

    def token(self, case):
        return case["token_names"]["<|video|>"]


class SmolVideo(vision.Idefics3):
    def video(self, case, frames):
        frames = choose(frames, SAMPLING["fps"], 1, SAMPLING["max_frames"])
        settings = {**case["processor"], "size": SAMPLING["video_size"], "do_image_splitting": False}
        settings.pop("video_sampling")
        inputs, names = None, []
        for frame in frames:
            found, view = self.inputs({**case, "processor": settings}, frame)
            count = view.count("<image>")
            names += [*TIME, *view]
            inputs = found if inputs is None else {k: torch.cat([inputs[k], found[k]], 1) for k in inputs}
        return inputs, names, [frames, len(frames), count]

    def token(self, case):
        return case["token_names"]["<image>"]


FAMILIES = {
    "qwen2_vl": Qwen2Video,
    "qwen2_5_vl": Qwen2Video,
    "qwen3_vl": Qwen3Video,
    "qwen3_5": Qwen35Video,
    "glm4v": GlmVideo,
    "gemma4": Gemma4Video,
    "smolvlm": SmolVideo,
}


@torch.no_grad()
def run(case, family, model, inputs, ids, steps):
    kind = 1 if case["family"] == "smolvlm" else 2
    types = np.array([kind * int(i == family.token(case)) for i in ids])
    extra, ids = family.types(types), torch.tensor([ids])
    mask = family.mask(model, ids.shape[1], extra)
    positions, more = None, {}
    if family.positions:
        frames = case["frames"]
        seconds = 2 * FRAMES * DURATION_MS / 1000 / frames
        grid = inputs["video_grid_thw"]
        positions = family.positions_of(model, ids, extra["mm_token_type_ids"], grid, seconds)
        more = {"position_ids": positions[:, None]}
    result = model(input_ids=ids, attention_mask=mask, use_cache=True, **inputs, **extra, **more)
    logits, past = [result.logits[0]], result.past_key_values
    for i, token in enumerate(steps):
        more = {}
        if positions is not None:
            more = {"position_ids": torch.full((3, 1, 1), int(positions.max()) + 1 + i)}
        mask = torch.ones(1, ids.shape[1] + i + 1, dtype=torch.long)
        result = model(
            input_ids=torch.tensor([[token]]), past_key_values=past, attention_mask=mask, use_cache=True, **more
        )
        past = result.past_key_values
        logits.append(result.logits[0])
    return torch.cat(logits).numpy(), positions


def make(of):
    case = json.loads((vision.FOLDER / f"{of}.json").read_text())
    case["video_processor"] = CASES[of]
    if of == "smolvlm":
        case["processor"]["video_sampling"] = SAMPLING
    family, name = FAMILIES[case["family"]](), f"{of}-video"
    case["values"] = {suffix: list(range_) for suffix, range_ in vision.VALUES.items()}
    model, shapes = vision.build(case, family)
    all_frames = write_video(vision.FOLDER / f"{name}.gif", case["image"][2])
    inputs, names, (frames, groups, count) = family.video(case, all_frames)
    case["frames"] = len(frames)
    with torch.no_grad():
        features = family.features(model, inputs).numpy()
    before, behind = case["around"]
    free = [2 + int(t) % 200 for t in weights.random_bits(name, before + behind + case["steps"])]
    ids = [*free[:before], *(n if isinstance(n, int) else case["token_names"][n] for n in names)]
    ids += free[before : before + behind]
    logits, positions = run(case, family, model, inputs, ids, free[before + behind :])
    assert len(features) == groups * count == sum(i == family.token(case) for i in ids), (len(features), groups, count)
    keys = ("family", "config", "processor", "video_processor", "token_names", "frames")
    text = {
        **{key: case[key] for key in keys},
        "image_token": family.token(case),
        "groups": groups,
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
    (vision.FOLDER / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")
    logits.astype("<f4").tofile(vision.FOLDER / f"{name}.f32")
    features.astype("<f4").tofile(vision.FOLDER / f"{name}.features.f32")
    print(f"{name}: {len(ids)} tokens, {groups} groups of {count}, logits of deviation {logits.std():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    for name in parser.parse_args().names or CASES:
        make(name)


if __name__ == "__main__":
    main()
