"""Fixtures of Gemma 4's assistants: draft models that read keys, values and states of the model they draft for.

The config is the model's, with the assistant's under "assistant"; names of the assistant's tensors begin with
"assistant.". Both are computed by transformers.

Golden row i ≥ 1: the assistant's logits behind token i, of which the model has computed nothing: from its keys and
values of the tokens before, its final hidden state of token i − 1, and the embedding of token i. Row 0: those of a
second draft token behind the last row, from the assistant's own state and the likeliest token of that row.

Layers with a window see the tokens less than `sliding_window` before token i. transformers' mask has up to two more,
as many as its cache has kept at the time, so the keys are cut here.
"""

import numpy as np
import torch
import transformers_reference as reference
from transformers import Gemma4TextConfig

PREFIX = "assistant."
rounded_inputs = reference.rounded_inputs
usual_modes = Gemma4TextConfig.kv_sharing_modes.fget


def sharing_modes(config):
    """transformers 5.23 looks for a layer that fills the cache in assistants, too, which have none."""
    count = config.num_hidden_layers
    return ["reuse"] * count if config.num_kv_shared_layers == count else usual_modes(config)


Gemma4TextConfig.kv_sharing_modes = property(sharing_modes)


def parts_of(config):
    """The configs of the model and of the assistant."""
    return {k: v for k, v in config.items() if k != "assistant"}, config["assistant"]


def tensors(config):
    """Name → shape: the model's tensors and the assistant's."""
    model, assistant = parts_of(config)
    own = {PREFIX + name: shape for name, shape in assistant_tensors(assistant).items()}
    return {**reference.tensors(model), **own}


def with_class(config):
    return {**config, "architectures": ["Gemma4AssistantForCausalLM"]}


def assistant_tensors(config):
    return reference.tensors(with_class(config))


@torch.no_grad()
def logits(config, weights, tokens, steps=0, window=False):
    """[tokens, vocab], see above."""
    target_config, own_config = parts_of(config)
    own = {name.removeprefix(PREFIX): x for name, x in weights.items() if name.startswith(PREFIX)}
    target = reference.build(target_config, {k: x for k, x in weights.items() if not k.startswith(PREFIX)})
    assistant = reference.build(with_class(own_config), own)
    ids = torch.tensor([tokens])
    read = target.model(input_ids=ids, use_cache=False, return_shared_kv_states=True)
    width = own_config["text_config"]["sliding_window"]

    def draft(token, position, state):
        kept = {"full_attention": 0, "sliding_attention": max(position - width + 1, 0)}
        shared = {kind: tuple(x[:, :, kept[kind] : position] for x in read.shared_kv_states[kind]) for kind in kept}
        embedded = target.get_input_embeddings()(torch.tensor([[token]]))
        return assistant(
            inputs_embeds=torch.cat([embedded, state], -1),
            position_ids=torch.tensor([[position]]),
            shared_kv_states=shared,
            use_cache=False,
        )

    rows = [None]
    for i in range(1, len(tokens)):
        drafted = draft(tokens[i], i, read.last_hidden_state[:, i - 1 : i])
        rows.append(drafted.logits[0, 0])
    second = draft(int(rows[-1].argmax()), len(tokens) - 1, drafted.last_hidden_state)
    rows[0] = second.logits[0, 0]
    return torch.stack(rows).float().numpy().astype(np.float32)
