"""Writes a model that answers nonsense at once: Gemma 3's structure (windows, and layers that can be kept as codes)
with random weights, a vocabulary of printable ASCII, and a chat template; or a mixture of experts. For tests of what is
around a model.
"""

import json
import os
import random
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 64, 4, 4, 2, 32, 96, 100
MIXTURE = {
    "model_type": "olmoe",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 128,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 98,
    "quantization": {"group_size": 64, "bits": 4},
}
TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def _tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for norm in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ):
            yield at + norm + ".weight", (HIDDEN,)
        for name, rows, columns in (
            ("q_proj", HEADS * HEAD, HIDDEN),
            ("k_proj", KV_HEADS * HEAD, HIDDEN),
            ("v_proj", KV_HEADS * HEAD, HIDDEN),
            ("o_proj", HIDDEN, HEADS * HEAD),
        ):
            yield at + f"self_attn.{name}.weight", (rows, columns)
        for norm in ("q_norm", "k_norm"):
            yield at + f"self_attn.{norm}.weight", (HEAD,)
        for name, rows, columns in (
            ("gate_proj", INNER, HIDDEN),
            ("up_proj", INNER, HIDDEN),
            ("down_proj", HIDDEN, INNER),
        ):
            yield at + f"mlp.{name}.weight", (rows, columns)


def _write_tensors(path, tensors):
    """(name, type, shape, bytes) each."""
    header, data = {}, bytearray()
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def _weights():
    rng = random.Random(1)
    for name, shape in _tensors():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        yield name, "F16", shape, struct.pack(f"<{count}e", *(rng.gauss(0, 0.15) for _ in range(count)))


def write_tiny_model(directory, context=2048, template=TEMPLATE):
    _write_tensors(os.path.join(directory, "model.safetensors"), _weights())
    config = {
        "model_type": "gemma3_text",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "sliding_window": 192,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": HEAD,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "max_position_embeddings": context,
        "hidden_activation": "gelu_pytorch_tanh",
        "eos_token_id": 98,
    }
    _write_rest(directory, config, template)


def _mixture(rng):
    hidden, inner, experts = MIXTURE["hidden_size"], MIXTURE["intermediate_size"], MIXTURE["num_experts"]

    def plain(name, *shape, spread=0.15, middle=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        return (
            name + ".weight",
            "F16",
            shape,
            struct.pack(f"<{count}e", *(rng.gauss(middle, spread) for _ in range(count))),
        )

    yield plain("model.embed_tokens", VOCAB, hidden, spread=1)
    yield plain("lm_head", VOCAB, hidden)
    yield plain("model.norm", hidden, spread=0, middle=1)
    for i in range(MIXTURE["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
            yield plain(at + norm, hidden, spread=0, middle=1)
        for name in "qkvo":
            yield plain(f"{at}self_attn.{name}_proj", hidden, hidden, spread=0.06)
        yield plain(at + "mlp.gate", experts, hidden)
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            stack, groups = f"{at}mlp.switch_mlp.{name}.", experts * rows * columns // 64
            yield stack + "weight", "U32", (experts, rows, columns // 8), rng.randbytes(experts * rows * columns // 2)
            yield stack + "scales", "F16", (experts, rows, columns // 64), struct.pack("<e", 0.02) * groups
            yield stack + "biases", "F16", (experts, rows, columns // 64), struct.pack("<e", -0.15) * groups


def write_tiny_mixture(directory, context=2048):
    """32 experts in each of 6 layers, 18 MB in the cache of a server that streams them."""
    _write_tensors(os.path.join(directory, "model.safetensors"), _mixture(random.Random(2)))
    _write_rest(directory, {**MIXTURE, "max_position_embeddings": context})


VISION_TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}{{ 'PLACEHOLDER' }}{% elif c.type == 'video' %}{{ 'VIDEO' }}"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)
PLACEHOLDERS = {
    "fastvlm": None,  # with a template for texts alone
    "gemma3": "<start_of_image>",
    "gemma4": "\\n\\n<|image|>\\n\\n",
    "gemma4_unified": "\\n\\n<|image|>\\n\\n",
    "glm4v": "<|begin_of_image|><|image|><|end_of_image|>",
    "lfm2_vl": "<image>",
    "paligemma": None,  # without a template in its files
    "pixtral": "[IMG]",
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl_moe": "<|vision_start|><|image_pad|><|vision_end|>",
    "idefics3": "<image>",
    "mistral3": "[IMG]",
    "qwen3_5": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_5_moe": "<|vision_start|><|image_pad|><|vision_end|>",
    "smolvlm": "<image>",
}
VIDEOS = {
    "gemma4": "<|video|>",
    "qwen2_5_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "smolvlm": "<video>",
}


def write_tiny_vision(directory, name):
    """The fixture tests/family/vision/NAME.json as a checkpoint, for texts of printable ASCII; name: or a fixture."""
    sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
    import weights

    fixture = name
    if isinstance(name, str):
        with open(os.path.join(ROOT, "tests", "family", "vision", name + ".json")) as file:
            fixture = json.load(file)
    values = weights.make(fixture["tensors"], {"dtype": "f32"}, fixture)
    tensors = [(n, "F32", list(x.shape), x.astype("<f4").tobytes()) for n, x in values.items()]
    _write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    placeholder = PLACEHOLDERS[fixture["family"]]
    text_only = TEMPLATE if fixture["family"] == "fastvlm" else None
    template = VISION_TEMPLATE.replace("PLACEHOLDER", placeholder) if placeholder else text_only
    template = template and template.replace("VIDEO", VIDEOS.get(fixture["family"], ""))
    special = {text: i for text, i in fixture["token_names"].items() if "\n" not in text}
    double = fixture["token_names"].get("\n\n")
    _write_rest(directory, {**fixture["config"], "eos_token_id": 98}, template, special, double)
    with open(os.path.join(directory, "preprocessor_config.json"), "w") as file:
        json.dump(fixture["processor"], file)
    if "video_processor" in fixture:
        with open(os.path.join(directory, "video_preprocessor_config.json"), "w") as file:
            json.dump(fixture["video_processor"], file)
    return fixture


HYBRID_HEAD = 64


def write_tiny_hybrid(directory, context=32768, embedding_range=1.0, predicts=False):
    """The fixture tests/family/data/qwen3-5.json, three layers with a recurrent state and one with attention, for texts
    of printable ASCII. predicts: with a multi-token prediction head (mtp/qwen3-5.json).
    """
    sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
    import weights

    name = "mtp/qwen3-5.json" if predicts else "qwen3-5.json"
    with open(os.path.join(ROOT, "tests", "family", "data", name)) as file:
        fixture = json.load(file)
    hidden, head, vocab = (fixture["config"][key] for key in ("hidden_size", "head_dim", "vocab_size"))
    shapes = {}
    for name, shape in fixture["tensors"].items():
        attention = "self_attn" in name  # wider heads, which can be quantised
        shapes[name] = [VOCAB if d == vocab and "layers" not in name else d for d in shape]
        if attention:
            shapes[name] = [d if d % head or d == hidden else d // head * HYBRID_HEAD for d in shape]
    values = weights.make(shapes, {"dtype": "f32"}, {**fixture, "embedding_range": embedding_range})
    tensors = [(n, "F32", list(x.shape), x.astype("<f4").tobytes()) for n, x in values.items()]
    _write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    config = {"vocab_size": VOCAB, "head_dim": HYBRID_HEAD, "max_position_embeddings": context, "eos_token_id": 98}
    _write_rest(directory, {**fixture["config"], **config})


AUDIO_TEMPLATE = (
    VISION_TEMPLATE.replace("PLACEHOLDER", "<|image|>")
    .replace("VIDEO", "<|video|>")
    .replace("{% else %}{{ c.text }}", "{% elif c.type == 'audio' %}{{ '<|audio|>' }}{% else %}{{ c.text }}")
)


def write_tiny_audio(directory, name, images=None):
    """The fixture tests/family/audio/NAME.json as a checkpoint; images: with the vision part of that fixture."""
    sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
    import weights

    fixtures = []
    for path in (f"audio/{name}.json", *([f"vision/{images}.json"] if images else [])):
        with open(os.path.join(ROOT, "tests", "family", path)) as file:
            fixtures.append(json.load(file))
    values = {}
    for fixture in reversed(fixtures):
        values.update(weights.make(fixture["tensors"], {"dtype": "f32"}, fixture))
    tensors = [(n, "F32", list(x.shape), x.astype("<f4").tobytes()) for n, x in values.items()]
    _write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    vision = {"vision_config": fixtures[1]["config"]["vision_config"]} if images else {}
    config = {**fixtures[0]["config"], **vision, "eos_token_id": 98}
    template, names = AUDIO_TEMPLATE, fixtures[0]["token_names"]
    if "<audio_soft_token>" in names:
        template = template.replace("<|audio|>", "<audio_soft_token>")
    _write_rest(directory, config, template, names)
    if images:
        with open(os.path.join(directory, "preprocessor_config.json"), "w") as file:
            json.dump(fixtures[1]["processor"], file)
    return fixtures[0]


def write_tokenizer(directory):
    """Printable ASCII for a model of a larger vocabulary: its texts are token ids, as a rule."""
    with open(os.path.join(directory, "config.json")) as file:
        _write_rest(directory, {**json.load(file), "eos_token_id": 98})


NAMED = {"bos_token": "<bos>", "eos_token": "<|end|>"}


def _write_rest(directory, config, template=TEMPLATE, more_special=None, double_newline=None):
    special = [
        {
            "id": i,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for text, i in {"<|start|>": 97, "<|end|>": 98, **(more_special or {})}.items()
    ]
    vocabulary = (
        {("\u0120" if i == 0 else chr(32 + i)): i for i in range(95)}
        | {
            "\u010a": 95,
            "\u00c3": 96,
            "\u00c2": 99,
        }
        | ({"\u010a\u010a": double_newline} if double_newline else {})
    )
    merges = ["\u010a \u010a"] if double_newline else []
    tokenizer = {
        "added_tokens": special,
        "normalizer": None,
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "merges": merges, "vocab": vocabulary},
    }
    for name, value in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {**NAMED, **({"chat_template": template} if template else {})}),
    ):
        with open(os.path.join(directory, name), "w") as file:
            json.dump(value, file)
