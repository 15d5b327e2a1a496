"""Writes a model that answers nonsense at once: Gemma 3's structure (windows, and layers that can be kept as codes) with random weights, a
vocabulary of printable ASCII, and a chat template. For tests of what is around a model."""
import json, os, random, struct

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 64, 4, 4, 2, 32, 96, 100
TEMPLATE = ("{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}")


def _tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield at + norm + ".weight", (HIDDEN,)
        for name, rows, columns in (("q_proj", HEADS * HEAD, HIDDEN), ("k_proj", KV_HEADS * HEAD, HIDDEN), ("v_proj", KV_HEADS * HEAD, HIDDEN),
                                    ("o_proj", HIDDEN, HEADS * HEAD)):
            yield at + f"self_attn.{name}.weight", (rows, columns)
        for norm in ("q_norm", "k_norm"):
            yield at + f"self_attn.{norm}.weight", (HEAD,)
        for name, rows, columns in (("gate_proj", INNER, HIDDEN), ("up_proj", INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
            yield at + f"mlp.{name}.weight", (rows, columns)


def _weights(path):
    rng, header, data = random.Random(1), {}, bytearray()
    for name, shape in _tensors():
        count, begin = shape[0] * (shape[1] if len(shape) > 1 else 1), len(data)
        data += struct.pack(f"<{count}e", *(rng.gauss(0, 0.15) for _ in range(count)))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_tiny_model(directory, context=2048):
    _weights(os.path.join(directory, "model.safetensors"))
    config = {"model_type": "gemma3_text", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": INNER,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "rms_norm_eps": 1e-6, "vocab_size": VOCAB,
              "sliding_window": 192, "sliding_window_pattern": 2, "query_pre_attn_scalar": HEAD, "rope_theta": 1e6,
              "rope_local_base_freq": 1e4, "max_position_embeddings": context, "hidden_activation": "gelu_pytorch_tanh", "eos_token_id": 98}
    special = [{"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
               for i, text in ((97, "<|start|>"), (98, "<|end|>"))]
    vocabulary = {("\u0120" if i == 0 else chr(32 + i)): i for i in range(95)} | {"\u010a": 95, "\u00c3": 96, "\u00c2": 99}
    tokenizer = {"added_tokens": special, "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                 "model": {"type": "BPE", "merges": [], "vocab": vocabulary}}
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer),
                        ("tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": TEMPLATE})):
        with open(os.path.join(directory, name), "w") as file:
            json.dump(value, file)
