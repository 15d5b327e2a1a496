"""Writes a model that says a given text: one layer, in which every token leads to the next one of a script. A token
that a mask forbids is replaced by one of chance. For tests of masks, readers of calls and APIs, alone.
"""

import json
import os
import struct

import numpy as np

HIDDEN, KV, INNER = 256, 128, 128
SPECIAL = ("<|start|>", "<|end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
END = 257
HERMES = (
    "{%- if tools %}{{ '<|start|>system\n<tools>' }}{%- for t in tools %}{{ t.function.name }}{%- endfor %}"
    "{{ '</tools> JSON within <tool_call></tool_call>:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|end|>\n\' }}{%- endif %}'
)
TAGGED = (
    "{%- if tools %}{{ '<|start|>system\n<tools>' }}{%- for t in tools %}{{ t.function.name }}{%- endfor %}"
    "{{ '</tools>\n<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>\n"
    "</tool_call><|end|>\n' }}{%- endif %}"
)
MESSAGES = (
    "{%- for m in messages %}{{ '<|start|>' + m.role + '\n' + (m.content or '') + '<|end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant\nOPEN' }}{%- endif %}"
)


def template(calls=HERMES, opens=""):
    """opens: what the template puts in front of the answer. The text ends with a line feed, or is empty."""
    return calls + MESSAGES.replace("OPEN", opens)


def write_scripted_model(directory, pieces, chat_template=None, without=(), context=8192, more=None):
    """pieces: tokens of their own, said one after the other, then the answer ends. without: special tokens that the
    vocabulary does not have. more: pieces that are said instead behind another character than a line feed."""
    os.makedirs(directory, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    ids = {}
    scripts = {"\n": pieces, **(more or {})}
    for text in (*SPECIAL, *(piece for script in scripts.values() for piece in script)):
        ids.setdefault(text, 256 + len(ids))
    vocab, rng = 256 + len(ids), np.random.default_rng(3)

    def noise(*shape):
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    embedding = rng.standard_normal((vocab, HIDDEN)).astype(np.float32)
    embedding *= HIDDEN**0.5 / np.linalg.norm(embedding, axis=1, keepdims=True)
    head = noise(vocab, HIDDEN) * 0.1
    for begin, script in scripts.items():
        script = [ids[p] for p in script]
        for last, then in zip([letters.get(begin, 10), *script], [*script, END]):
            head[then] += embedding[last] * 40 / HIDDEN
    one, at = np.ones(HIDDEN, np.float32), "model.layers.0."
    tensors = {
        "model.embed_tokens": embedding,
        "lm_head": head,
        "model.norm": one,
        at + "input_layernorm": one,
        at + "post_attention_layernorm": one,
        at + "self_attn.q_proj": noise(HIDDEN, HIDDEN),
        at + "self_attn.k_proj": noise(KV, HIDDEN),
        at + "self_attn.v_proj": noise(KV, HIDDEN),
        at + "self_attn.o_proj": np.zeros((HIDDEN, HIDDEN), np.float32),
        at + "mlp.gate_proj": noise(INNER, HIDDEN),
        at + "mlp.up_proj": noise(INNER, HIDDEN),
        at + "mlp.down_proj": np.zeros((HIDDEN, INNER), np.float32),
    }
    header, data = {}, b""
    for name, array in tensors.items():
        content = array.astype(np.float16).tobytes()
        header[name + ".weight"] = {
            "dtype": "F16",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": INNER,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocab,
        "rope_theta": 1e4,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }
    added = [
        {
            "id": i,
            "content": "<gone>" if text in without else text,
            "special": i <= END,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for text, i in ids.items()
    ]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "added_tokens": added,
        "normalizer": None,
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": split,
        "model": {"type": "BPE", "merges": [], "vocab": letters},
    }
    for name, value in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": chat_template or template()}),
    ):
        with open(os.path.join(directory, name), "w") as file:
            json.dump(value, file)
    return str(directory)
