"""Fixtures of multi-token prediction heads, which neither transformers nor mlx-lm computes.

A head reads, for each position, the model's final hidden state (behind its final norm) and the token after it:
projection · [norm(embedding of that token), norm(state)], then one decoder block, a norm and the model's output matrix.
The block is computed as a model of its own with one layer, by transformers. What surrounds it is written from
sglang/srt/models/deepseek_nextn.py (DeepSeek-V3, GLM), vllm/model_executor/models/qwen3_next_mtp.py (Qwen) and
mimo_mtp.py (MiMo, without its zeroing of the first position's embedding), FastDeploy's ernie4_5_mtp.py (ERNIE).

Golden row i < tokens − 1: the head's logits for position i. The last row: those of a second draft token, which the head
computes from its own state of the row before and the likeliest token of that row.
"""

import copy

import numpy as np
import torch
import transformers_reference as reference

# Names with %d for the number of layers. block: of the decoder block's tensors; norm: None: the model's own.
NEXTN = {
    "block": "model.layers.%d.",
    "projection": "model.layers.%d.eh_proj.weight",
    "token": "model.layers.%d.enorm.weight",
    "state": "model.layers.%d.hnorm.weight",
    "norm": "model.layers.%d.shared_head.norm.weight",
}
QWEN = {
    "block": "mtp.layers.0.",
    "projection": "mtp.fc.weight",
    "token": "mtp.pre_fc_norm_embedding.weight",
    "state": "mtp.pre_fc_norm_hidden.weight",
    "norm": "mtp.norm.weight",
}
HEADS = {
    "glm4_moe": NEXTN,
    "deepseek_v3": NEXTN,
    "qwen3_next": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_5_moe_text": QWEN,
    "ernie4_5_moe": {
        "block": "model.mtp_block.0.",
        "projection": "model.mtp_linear_proj.0.weight",
        "token": "model.mtp_emb_norm.0.weight",
        "state": "model.mtp_hidden_norm.0.weight",
        "norm": None,
    },
    "mimo": {
        "block": "model.mtp_layers.0.",
        "projection": "model.mtp_layers.0.input_proj.weight",
        "token": "model.mtp_layers.0.token_layernorm.weight",
        "state": "model.mtp_layers.0.hidden_layernorm.weight",
        "norm": "model.mtp_layers.0.final_layernorm.weight",
        "state_first": True,
    },
}
BLOCK = {  # of the block's config, where its kind is not that of a first layer
    "glm4_moe": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 0},
    "qwen3_next": {"layer_types": ["full_attention"]},
    "qwen3_5_text": {"layer_types": ["full_attention"]},
    "qwen3_5_moe_text": {"layer_types": ["full_attention"]},
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_layer_end_index": 1},
}
NORM_PLUS = {"qwen3_next": 1, "qwen3_5_text": 1, "qwen3_5_moe_text": 1}


def names_of(config):
    head = HEADS[config["model_type"]]
    count = config["num_hidden_layers"]
    return {k: v % count if isinstance(v, str) and "%d" in v else v for k, v in head.items()}


def known_to_transformers(config):
    """MiMo's decoder is Qwen2's."""
    if config["model_type"] != "mimo":
        return config
    config = {k: v for k, v in config.items() if k != "num_nextn_predict_layers"}
    return {**config, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def block_config(config):
    one = copy.deepcopy(config)
    one.update({"num_hidden_layers": 1, **BLOCK.get(config["model_type"], {})})
    return known_to_transformers(one)


def tensors(config):
    """Name → shape: the model's tensors and the head's."""
    names, hidden = names_of(config), config["hidden_size"]
    shapes = reference.tensors(known_to_transformers(config))
    for name, shape in reference.tensors(block_config(config)).items():
        if name.startswith("model.layers.0."):
            shapes[names["block"] + name.removeprefix("model.layers.0.")] = shape
    shapes[names["projection"]] = (hidden, 2 * hidden)
    for norm in ("token", "state", "norm"):
        if names[norm]:
            shapes[names[norm]] = (hidden,)
    return shapes


def rms(config, x, weight):
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"])
    return scaled * (torch.from_numpy(weight) + NORM_PLUS.get(config["model_type"], 0))


rounded_inputs = reference.rounded_inputs


@torch.no_grad()
def logits(config, weights, tokens, steps=0, window=False):
    """[tokens, vocab], see above."""
    names = names_of(config)
    own = {names["projection"], *(names[k] for k in ("token", "state", "norm") if names[k])}
    block = {k: v for k, v in weights.items() if k.startswith(names["block"]) and k not in own}
    rest = {k: v for k, v in weights.items() if k not in block and k not in own}
    target = reference.build(known_to_transformers(config), rest)
    ends = {k: v for k, v in rest.items() if not k.startswith("model.layers.")}
    if names["norm"]:
        ends["model.norm.weight"] = weights[names["norm"]]
    layer = {"model.layers.0." + k.removeprefix(names["block"]): v for k, v in block.items()}
    head = reference.build(block_config(config), {**ends, **layer})
    projection = torch.from_numpy(weights[names["projection"]])

    def combine(token_ids, states):
        embedded = rms(config, target.get_input_embeddings()(torch.tensor(token_ids)), weights[names["token"]])
        states = rms(config, states, weights[names["state"]])
        both = (states, embedded) if names.get("state_first") else (embedded, states)
        return torch.cat(both, -1) @ projection.T

    states = target.model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    inputs = combine(tokens[1:], states[:-1])
    own_states = head.model(inputs_embeds=inputs[None]).last_hidden_state[0]
    first = head.lm_head(own_states)
    inputs = torch.cat([inputs, combine([int(first[-1].argmax())], own_states[-1:])])
    second = head(inputs_embeds=inputs[None]).logits[0, -1:]
    return torch.cat([first, second]).float().numpy().astype(np.float32)
