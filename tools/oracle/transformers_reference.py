"""transformers as the reference: names of tensors as the publishers' files have them, f32 on the CPU, eager attention
and experts."""

import contextlib
import importlib
import json
import os
import re
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

NAME = "transformers"
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # buffers that follow from the config
PUBLISHED_TYPES = {  # model_type of publishers' files → transformers'
    "minimax_text_01": "minimax",
    "phi4_multimodal": "phi3",
}
RENAMED = {  # model_type of publishers' own code → transformers' that computes the same, and its fields
    "internlm": ("llama", lambda c: {"attention_bias": c.get("bias", True)}),
    "PanguEmbedded": ("llama", lambda c: {"attention_bias": c.get("bias", True)}),
    "aquila": ("llama", lambda c: {}),
    "stablelm_epoch": (
        "stablelm",
        lambda c: {"layer_norm_eps": c["norm_eps"], "partial_rotary_factor": c["rope_pct"]},
    ),
    "orion": ("stablelm", lambda c: {"layer_norm_eps": c["rms_norm_eps"], "partial_rotary_factor": 1.0}),
}
CHATGLM_FIELDS = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layernorm_epsilon",
    "head_dim": "kv_channels",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
    "vocab_size": "padded_vocab_size",
    "num_key_value_heads": "multi_query_group_num",
    "attention_bias": "add_qkv_bias",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
}
CHATGLM_NAMES = (  # transformers' → those of the publisher's own code; q, k and v are one matrix there
    ("model.embed_tokens", "transformer.embedding.word_embeddings"),
    ("model.norm.", "transformer.encoder.final_layernorm."),
    ("lm_head", "transformer.output_layer"),
    ("model.layers", "transformer.encoder.layers"),
    ("self_attn", "self_attention"),
    ("o_proj", "dense"),
    ("gate_up_proj", "dense_h_to_4h"),
    ("down_proj", "dense_4h_to_h"),
)
OLMO_NAMES = (  # of the publisher's own code → transformers'; both parts of the others are in one matrix
    ("model.transformer.wte", "model.embed_tokens"),
    ("model.transformer.ff_out", "lm_head"),
    ("model.transformer.blocks.", "model.layers."),
    (".attn_out.", ".self_attn.o_proj."),
    (".ff_out.", ".mlp.down_proj."),
)
EXACT = {"dtype": torch.float32, "attn_implementation": "eager"}
RELU_INDEXERS = ("deepseek_v4", "hy_v4", "axk2", "dots3_note_text", "glm5_next")
ONCE = {"attn_implementation": "sdpa"}  # Falcon's eager attention adds ALiBi a second time

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def from_olmo(config, weights):
    """OLMo as its publisher's own code has it (hf_olmo), as transformers' OLMo."""
    c = config
    heads, hidden = c["n_heads"], c["d_model"]
    kv = c.get("n_kv_heads") or (1 if c.get("multi_query_attention") else heads)
    inner = (c.get("mlp_hidden_size") or c["mlp_ratio"] * hidden) // 2
    named = {"vocab_size": c.get("embedding_size") or c["vocab_size"], "hidden_size": hidden}
    named |= {"intermediate_size": inner, "num_hidden_layers": c["n_layers"], "num_attention_heads": heads}
    named |= {"num_key_value_heads": kv, "clip_qkv": c.get("clip_qkv"), "rope_theta": c.get("rope_theta", 10000.0)}
    named |= {"tie_word_embeddings": c["weight_tying"], "max_position_embeddings": c["max_sequence_length"]}
    out = {}
    for name, x in weights.items():
        for old, new in OLMO_NAMES:
            name = name.replace(old, new)
        cuts = [hidden, hidden + kv * hidden // heads]
        if ".att_proj." in name:
            for part, rows in zip("qkv", np.split(x, cuts), strict=True):
                out[name.replace("att_proj", f"self_attn.{part}_proj")] = rows
        elif ".ff_proj." in name:  # up first
            for part, rows in zip(("up", "gate"), np.split(x, 2), strict=True):
                out[name.replace("ff_proj", f"mlp.{part}_proj")] = rows
        else:
            out[name] = x
    return {"model_type": "olmo", "pad_token_id": None, "eos_token_id": None} | named, out


def chatglm_config(config):
    out = {new: config[old] for new, old in CHATGLM_FIELDS.items()}
    out["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10000.0 * config.get("rope_ratio", 1),
        "partial_rotary_factor": 0.5,
    }
    return out | {"model_type": "glm", "pad_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}


def chatglm_name(name):
    for new, old in CHATGLM_NAMES:
        name = name.replace(new, old)
    return name


def from_chatglm(config, weights):
    """ChatGLM as its publisher's own code has it, as transformers' GLM."""
    made, out = chatglm_config(config), {}
    q, kv = (made["head_dim"] * made[n] for n in ("num_attention_heads", "num_key_value_heads"))
    for name in tensors(made):
        part = next((i for i in range(3) if f".{'qkv'[i]}_proj." in name), None)
        if part is None:
            out[name] = weights[chatglm_name(name)]
        else:
            whole = chatglm_name(name.replace(f"{'qkv'[part]}_proj", "query_key_value"))
            out[name] = np.split(weights[whole], [q, q + kv])[part]
    return made, out


def chatglm_tensors(config):
    out = {}
    for name, shape in tensors(chatglm_config(config)).items():
        whole = chatglm_name(re.sub(r"\b[qkv]_proj", "query_key_value", name))
        out[whole] = (out[whole][0] + shape[0], *shape[1:]) if whole in out else shape
    return out


@contextlib.contextmanager
def earliest_first():
    """Of equal scores, the earliest keys are chosen: ReLU makes many that are 0, of which topk takes any."""
    exact = torch.Tensor.topk

    def chosen(x, k, dim=-1, **named):
        ordered = torch.sort(x, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((ordered.values[..., :k], ordered.indices[..., :k]))

    torch.Tensor.topk = chosen
    try:
        yield
    finally:
        torch.Tensor.topk = exact


def model_class(config):
    named = config.get("architectures", [None])[0]
    return getattr(transformers, named) if named else AutoModelForCausalLM


def config_of(config):
    if config["model_type"] in RENAMED:
        model_type, fields = RENAMED[config["model_type"]]
        config = config | fields(config) | {"model_type": model_type}
    model_type = PUBLISHED_TYPES.get(config["model_type"], config["model_type"])
    made = AutoConfig.for_model(**{**json.loads(json.dumps(config)), "model_type": model_type})
    # it would be filled with the defaults of a large model
    if hasattr(made, "text_config") and "text_config" not in config:
        raise ValueError("a wrapper without text_config: use the model_type of the text model")
    return made


def tensors(config):
    """Name → shape of what a file of this config holds."""
    if config["model_type"] == "chatglm":
        return chatglm_tensors(config)
    kind = model_class(config)
    build = kind.from_config if kind is AutoModelForCausalLM else kind
    model = build(config_of(config)).float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shapes = {}
        for file in sorted(os.listdir(folder)):
            if file.endswith(".safetensors"):
                with safe_open(os.path.join(folder, file), "pt") as opened:
                    names = [name for name in opened.keys() if not name.endswith(COMPUTED)]
                    shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    return shapes


def mend(model, config):
    """Computes Hunyuan 4 as vLLM does: pairs of neighbours rotate, and norms of latents have the model's epsilon."""
    if config["model_type"] != "hy_v4":
        return
    code = importlib.import_module("transformers.models.hy_v4.modeling_hy_v4")
    code.apply_rotary_pos_emb = importlib.import_module(
        "transformers.models.deepseek_v3.modeling_deepseek_v3"
    ).apply_rotary_pos_emb_interleave
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = config["rms_norm_eps"]


def build(config, weights):
    with tempfile.TemporaryDirectory() as folder:
        config_of(config).save_pretrained(folder)
        tensors = {name: torch.from_numpy(np.array(x, order="C")) for name, x in weights.items()}
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        exact = EXACT | (ONCE if config.get("alibi") else {})
        model, info = model_class(config).from_pretrained(folder, output_loading_info=True, **exact)
    info["missing_keys"] = [name for name in info["missing_keys"] if not name.endswith(COMPUTED)]
    wrong = {what: names for what, names in info.items() if names}
    assert not wrong, wrong
    mend(model, config)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


@torch.no_grad()
def logits(config, weights, tokens, steps, window=False):
    """[tokens, vocab]: the last `steps` tokens are fed one at a time, the others as one prompt."""
    if config["model_type"] == "hf_olmo":
        config, weights = from_olmo(config, weights)
    if config["model_type"] == "chatglm":
        config, weights = from_chatglm(config, weights)
    with earliest_first() if config["model_type"] in RELU_INDEXERS else contextlib.nullcontext():
        return run(config, weights, tokens, steps)


def run(config, weights, tokens, steps):
    model = build(config, weights)
    # MiniMax counts positions by the keys of layer 0, which has none where its attention is linear; steps of Bamba
    # differ from its prompts by as much as the logits; RecurrentGemma keeps its state to itself
    whole = ("minimax", "bamba", "recurrent_gemma")
    prompt = len(tokens) - (0 if config["model_type"].startswith(whole) else steps)
    result = model(input_ids=torch.tensor([tokens[:prompt]]), use_cache=True)
    out = [result.logits[0]]
    for i in range(prompt, len(tokens)):
        kept = "cache_params" if hasattr(result, "cache_params") else "past_key_values"  # the former: Mamba
        past = {kept: getattr(result, kept)}
        result = model(input_ids=torch.tensor([tokens[i : i + 1]]), use_cache=True, **past)
        out.append(result.logits[0])
    return torch.cat(out).float().numpy()


def to_int8(x):
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % 32))
    groups = padded.reshape(*x.shape[:-1], -1, 32)
    scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-20)
    return ((groups / scale).round() * scale).reshape(padded.shape)[..., :width]


@contextlib.contextmanager
def rounded_inputs():
    """Inputs of all matrix products rounded to 8 bits per 32 values."""
    exact = torch.nn.functional.linear
    torch.nn.functional.linear = lambda x, *rest, **named: exact(to_int8(x), *rest, **named)
    try:
        yield
    finally:
        torch.nn.functional.linear = exact
