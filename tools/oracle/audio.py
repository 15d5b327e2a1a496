#!/usr/bin/env python3
"""Fixtures of audio models: tests/family/audio/NAME.json, .wav, .f32 (logits) and .features.f32.

    python3 tools/oracle/audio.py NAME --config CASES.json:CASE   # a case of its own file, without its vision part
    python3 tools/oracle/audio.py NAME…                           # again, from the fixtures themselves

As vision.py, whose functions it uses: transformers (torch, f32) with its feature extractors. The prompt is random
tokens around the clip's; the last `steps` tokens are fed one at a time.
"""

import argparse
import json
import wave
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.gemma3n import modeling_gemma3n
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from vision import VALUES as OTHER_VALUES

import weights

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "family" / "audio"
VALUES = {
    **OTHER_VALUES,
    "input_min": (-1.4, 0.4),
    "input_max": (1.2, 0.4),
    "output_min": (-2.2, 0.6),
    "output_max": (2.0, 0.6),
    "depthwise_conv1d.weight": (0.0, 1.5),
    "per_dim_scale": (0.0, 2.0),
}


def channels_last(array):
    return np.moveaxis(array, 1, -1) if array.ndim >= 3 else array


def channels_first(array):
    return np.moveaxis(array, -1, 1) if array.ndim >= 3 else array


class Gemma4:
    norm_offset, embedding_range = 1, 0.15
    names = (
        ("model.language_model.", "language_model.model."),
        ("model.audio_tower.", "audio_tower."),
        ("model.embed_audio.", "embed_audio."),
    )

    def build(self, case):
        fields = json.loads(json.dumps(case["config"]))
        config = transformers.AutoConfig.for_model(**fields)
        config._attn_implementation = config.text_config._attn_implementation = "eager"
        return getattr(transformers, fields["architectures"][0])(config)

    def mlx_name(self, name):
        return next((mlx + name[len(ours) :] for ours, mlx in self.names if name.startswith(ours)), name)

    def inputs(self, case, samples):
        found = Gemma4AudioFeatureExtractor(**case.get("extractor", {}))([samples], return_tensors="pt")
        mask = found["input_features_mask"][0]
        for _ in range(2):
            mask = mask[::2]
        inputs = {key: found[key] for key in ("input_features", "input_features_mask")}
        return inputs, ["<|audio>", *["<|audio|>"] * int(mask.sum()), "<audio|>"]

    def features(self, model, inputs):
        found = model.model.get_audio_features(**inputs)
        return found.pooler_output[found.attention_mask.bool()]

    def types(self, ids, token):
        return {"mm_token_type_ids": torch.tensor([[3 * int(i == token) for i in ids]])}


class Gemma4Unified(Gemma4):
    def inputs(self, case, samples):
        each = case["config"]["audio_config"]["audio_samples_per_token"]
        rows = np.pad(samples, (0, -len(samples) % each)).reshape(1, -1, each)
        mask = torch.ones(1, rows.shape[1], dtype=torch.bool)
        inputs = {"input_features": torch.tensor(rows), "input_features_mask": mask}
        return inputs, ["<|audio>", *["<|audio|>"] * rows.shape[1], "<audio|>"]

    def features(self, model, inputs):
        found = model.model.get_audio_features(**inputs)
        found = getattr(found, "pooler_output", found)
        return found.reshape(-1, found.shape[-1])


class Gemma3nParts(torch.nn.Module):
    """The parts of Gemma3nForConditionalGeneration that audio needs; its vision tower needs another library."""

    def __init__(self, fields):
        super().__init__()
        text = transformers.AutoConfig.for_model(**fields["text_config"])
        audio = transformers.AutoConfig.for_model(**fields["audio_config"])
        text._attn_implementation = "eager"
        self.fields, self.softcap = fields, text.final_logit_softcapping
        self.model = torch.nn.Module()
        self.model.language_model = modeling_gemma3n.Gemma3nTextModel(text)
        self.model.audio_tower = modeling_gemma3n.Gemma3nAudioEncoder(audio)
        self.model.embed_audio = modeling_gemma3n.Gemma3nMultimodalEmbedder(audio, text)

    def embed(self, ids):
        """As Gemma3nModel.forward() embeds ids of the audio vocabulary."""
        usual = self.model.language_model.embed_tokens(ids)
        offset = self.model.embed_audio.vocab_offset
        hard = self.model.embed_audio(input_ids=ids.clamp(min=offset))
        return torch.where((ids >= offset).unsqueeze(-1), hard, usual)

    def forward(self, input_ids, input_features=None, input_features_mask=None, **more):
        embeds = self.embed(input_ids)
        if input_features is not None:
            found = self.rows(input_features, input_features_mask)
            embeds[0, input_ids[0] == self.fields["audio_token_id"]] = found
        text = self.model.language_model
        layers = text.get_per_layer_inputs(input_ids)
        result = text(inputs_embeds=embeds, per_layer_inputs=layers, **more)
        logits = torch.nn.functional.linear(result.last_hidden_state, text.embed_tokens.weight)
        result.logits = torch.tanh(logits / self.softcap) * self.softcap
        return result

    def rows(self, input_features, input_features_mask):
        found = self.model.audio_tower(input_features, ~input_features_mask).last_hidden_state
        own = self.model.embed_audio(inputs_embeds=found)[0]
        config = self.model.audio_tower.config
        last = torch.tensor([[config.vocab_offset + config.vocab_size - 1]])
        padding = self.model.embed_audio(input_ids=last)[0]
        return torch.cat([own, padding.expand(self.fields["audio_soft_tokens_per_image"] - len(own), -1)])


class Gemma3n(Gemma4):
    def build(self, case):
        return Gemma3nParts(case["config"])

    def inputs(self, case, samples):
        found = Gemma3nAudioFeatureExtractor()([samples], return_tensors="pt")
        tokens = ["<audio_soft_token>"] * case["config"]["audio_soft_tokens_per_image"]
        inputs = {key: found[key] for key in ("input_features", "input_features_mask")}
        return inputs, ["<start_of_audio>", *tokens, "<end_of_audio>"]

    def features(self, model, inputs):
        """The last row is that of the token that ends the clip."""
        return torch.cat([model.rows(**inputs), model.embed(torch.tensor([[model.fields["eoa_token_id"]]]))[0]])

    def types(self, ids, token):
        return {}


FAMILIES = {"gemma4": Gemma4, "gemma4_unified": Gemma4Unified, "gemma3n": Gemma3n}


def build(case, family):
    """The model with the formula's weights; their shapes in MLX's files."""
    model = family.build(case).float().eval()
    fields, shapes = case["config"], {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and fields.get("tie_word_embeddings", True):
            continue
        stored, shape = family.mlx_name(name), channels_last(tensor.numpy()).shape
        shapes[stored] = shape or (1,)
        value = weights.value(stored, shapes[stored], family.norm_offset, family.embedding_range, case["values"])
        with torch.no_grad():
            tensor.copy_(torch.tensor(channels_first(value).copy()).reshape(tensor.shape))
    return model, shapes


@torch.no_grad()
def run(case, family, model, inputs, ids, steps):
    """Logits of the prompt and of the steps behind it."""
    extra = family.types(ids, case["audio_token"])
    mask = torch.ones(1, len(ids), dtype=torch.long)
    result = model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=True, **inputs, **extra)
    logits, past = [result.logits[0]], result.past_key_values
    for i, token in enumerate(steps):
        mask = torch.ones(1, len(ids) + i + 1, dtype=torch.long)
        more = family.types([token], case["audio_token"])
        result = model(
            input_ids=torch.tensor([[token]]), past_key_values=past, attention_mask=mask, use_cache=True, **more
        )
        past = result.past_key_values
        logits.append(result.logits[0])
    return torch.cat(logits).numpy()


def sound(seconds, seed):
    """A rising tone with noise."""
    count = round(seconds * 16000)
    t = np.arange(count) / 16000
    noise = (weights.random_bits(str(seed), count) >> np.uint64(48)).astype(np.float64) / 32768 - 1
    samples = 0.3 * np.sin(2 * np.pi * (300 + 400 * t) * t) + 0.05 * noise
    return (samples * 32767).astype("<i2")


def new_case(path):
    file, case = path.rsplit(":", 1)
    given = json.loads(Path(file).read_text())[case]
    clip = given["audio"][0]
    return {
        "family": given["family"],
        "config": {**given["config"], **({"vision_config": None} if "vision_config" in given["config"] else {})},
        "token_names": given["tokens"],
        "audio_token": given["tokens"][given["audio_token"]],
        **({"last_token": given["tokens"][given["last_token"]]} if "last_token" in given else {}),
        **({"extractor": given["feature_extractor"]} if "feature_extractor" in given else {}),
        "audio": [clip["seconds"], clip["seed"]],
        "around": [7, 9],
        "steps": 3,
    }


def make(name, case):
    family = FAMILIES[case["family"]]()
    case["values"] = {suffix: list(range_) for suffix, range_ in VALUES.items()}
    model, shapes = build(case, family)
    samples = sound(*case["audio"])
    with wave.open(str(FOLDER / f"{name}.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", None))
        file.writeframes(samples.tobytes())
    with torch.no_grad():
        inputs, names = family.inputs(case, samples.astype(np.float32) / 32768)
        features = family.features(model, inputs).numpy()
    before, behind = case["around"]
    few = min(case["token_names"].values())
    free = [2 + int(t) % (few - 2) for t in weights.random_bits(name, before + behind + case["steps"])]
    ids = [*free[:before], *(case["token_names"][n] for n in names), *free[before : before + behind]]
    logits = run(case, family, model, inputs, ids, free[before + behind :])
    text = {
        **{k: case[k] for k in ("family", "config", "token_names", "audio_token", "audio", "around")},
        **{k: case[k] for k in ("last_token", "extractor") if k in case},
        "norm_offset": family.norm_offset,
        "embedding_range": family.embedding_range,
        "vocab": logits.shape[1],
        "values": {k: v for k, v in case["values"].items() if any(n.endswith(k) for n in shapes)},
        "tensors": {n: list(s) for n, s in shapes.items()},
        "tokens": [*ids, *free[before + behind :]],
        "steps": case["steps"],
        "variants": [{"dtype": "f32"}],
    }
    lines = [f'"{key}": {json.dumps(value)}' for key, value in text.items()]
    (FOLDER / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")
    logits.astype("<f4").tofile(FOLDER / f"{name}.f32")
    features.astype("<f4").tofile(FOLDER / f"{name}.features.f32")
    print(f"{name}: {len(ids)} tokens, {len(features)} of the clip, logits of deviation {logits.std():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--config")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in options.names:
        known = FOLDER / f"{name}.json"
        make(name, new_case(options.config) if options.config else json.loads(known.read_text()))


if __name__ == "__main__":
    main()
