#!/usr/bin/env python3
"""Encoders: BERT, XLM-RoBERTa and Nomic-BERT with random weights. Vectors of /v1/embeddings and scores of /v1/rerank
against a reference in numpy, on the exact and the usual instruction set; alone and in a batch; what is refused. The
same of GGUF files as llama.cpp's converter (conversion/bert.py) writes them.

    tests/server/check_encoders.py                 against numpy
    tests/server/check_encoders.py --transformers  the reference itself against transformers (needs torch)
"""

import base64
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from apus_server import BINARY, ROOT, Checks, Server
from safetensors.numpy import save_file

sys.path.insert(0, os.path.join(ROOT, "tests", "text"))
import encoder_tokenizers  # noqa: E402

checks = Checks()
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 64, 3, 4, 96, 300
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A",
    "Swifts are small birds that fly fast; they sleep in the air. " * 4,
    "Привет мир, naïve café 你好",
]


def check(condition, what, *shown):
    checks(condition, f"{what}: {' | '.join(map(str, shown))}")


# ---- the reference ----


def norm(x, w, name, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def attend(q, k, v):
    heads = [np.reshape(a, (len(a), HEADS, -1)).swapaxes(0, 1) for a in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(1, 2) / math.sqrt(q.shape[1] // HEADS)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return ((scores / scores.sum(-1, keepdims=True)) @ heads[2]).swapaxes(0, 1).reshape(len(q), -1)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def rotate(x, theta):
    dim = x.shape[1] // HEADS
    angles = np.outer(np.arange(len(x)), theta ** (-np.arange(0, dim, 2) / dim))
    a, b = np.split(x.reshape(len(x), HEADS, dim), 2, axis=2)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 2).reshape(len(x), -1)


def states(config, w, ids, types):
    """Final states of the tokens, in double precision."""
    kind = config["model_type"]
    if kind == "nomic_bert":
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
        x = norm(x, w, "emb_ln", 1e-12)
        for i in range(LAYERS):
            at = f"encoder.layers.{i}."
            q, k, v = np.split(linear(x, w, at + "attn.Wqkv"), 3, axis=1)
            attended = attend(rotate(q, 1000), rotate(k, 1000), v)
            x = norm(x + linear(attended, w, at + "attn.out_proj"), w, at + "norm1", 1e-12)
            gate = linear(x, w, at + "mlp.fc12")
            inner = linear(x, w, at + "mlp.fc11") * gate / (1 + np.exp(-gate))
            x = norm(x + linear(inner, w, at + "mlp.fc2"), w, at + "norm2", 1e-12)
        return x
    eps, body = config["layer_norm_eps"], prefix(w)
    places = np.arange(len(ids)) + (config["pad_token_id"] + 1 if kind == "xlm-roberta" else 0)
    x = w[body + "embeddings.word_embeddings.weight"][ids] + w[body + "embeddings.position_embeddings.weight"][places]
    x = norm(x + w[body + "embeddings.token_type_embeddings.weight"][types], w, body + "embeddings.LayerNorm", eps)
    for i in range(LAYERS):
        at = f"{body}encoder.layer.{i}."
        attended = attend(*(linear(x, w, at + "attention.self." + name) for name in ("query", "key", "value")))
        x = norm(x + linear(attended, w, at + "attention.output.dense"), w, at + "attention.output.LayerNorm", eps)
        inner = gelu(linear(x, w, at + "intermediate.dense"))
        x = norm(x + linear(inner, w, at + "output.dense"), w, at + "output.LayerNorm", eps)
    return x


def prefix(w):
    return next((p for p in ("bert.", "roberta.") if p + "embeddings.word_embeddings.weight" in w), "")


def pool(x, mode):
    vector = x.mean(0) if mode == "mean_tokens" else x[0] if mode == "cls_token" else x[-1]
    return vector / np.linalg.norm(vector)


def logit(config, w, ids, types):
    x = states(config, w, ids, types)[0]
    roberta = config["model_type"] == "xlm-roberta"
    x = np.tanh(linear(x, w, "classifier.dense" if roberta else "bert.pooler.dense"))
    return float(linear(x, w, "classifier.out_proj" if roberta else "classifier")[0])


# ---- models ----


def make_weights(config, classifier):
    kind, rng = config["model_type"], np.random.default_rng(7)
    body = "" if not classifier else "roberta." if kind == "xlm-roberta" else "bert."
    w = {}

    def add(name, *shape):
        middle = 1 if len(shape) == 1 and "orm" in name and name.endswith("weight") or name == "emb_ln.weight" else 0
        w[name] = (middle + rng.normal(0, 0.06, shape)).astype(np.float32)

    def pair(name, rows, columns=None, bias=True):
        add(name + ".weight", *([rows, columns] if columns else [rows]))
        if bias:
            add(name + ".bias", rows)

    add(body + "embeddings.word_embeddings.weight", config["vocab_size"], HIDDEN)
    add(body + "embeddings.token_type_embeddings.weight", config["type_vocab_size"], HIDDEN)
    if kind == "nomic_bert":
        pair("emb_ln", HIDDEN)
        for i in range(LAYERS):
            at = f"encoder.layers.{i}."
            pair(at + "attn.Wqkv", 3 * HIDDEN, HIDDEN, False)
            pair(at + "attn.out_proj", HIDDEN, HIDDEN, False)
            for name, rows, columns in (("fc11", INNER, HIDDEN), ("fc12", INNER, HIDDEN), ("fc2", HIDDEN, INNER)):
                pair(at + "mlp." + name, rows, columns, False)
            pair(at + "norm1", HIDDEN)
            pair(at + "norm2", HIDDEN)
        return w
    add(body + "embeddings.position_embeddings.weight", config["max_position_embeddings"], HIDDEN)
    pair(body + "embeddings.LayerNorm", HIDDEN)
    for i in range(LAYERS):
        at = f"{body}encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            pair(at + name, HIDDEN, HIDDEN)
        pair(at + "intermediate.dense", INNER, HIDDEN)
        pair(at + "output.dense", HIDDEN, INNER)
        pair(at + "attention.output.LayerNorm", HIDDEN)
        pair(at + "output.LayerNorm", HIDDEN)
    if classifier and kind == "xlm-roberta":
        pair("classifier.dense", HIDDEN, HIDDEN)
        pair("classifier.out_proj", 1, HIDDEN)
    elif classifier:
        pair("bert.pooler.dense", HIDDEN, HIDDEN)
        pair("classifier", 1, HIDDEN)
    return w


def make_config(kind, vocabulary, classifier):
    if kind == "nomic_bert":
        return {
            "model_type": kind,
            "n_embd": HIDDEN,
            "n_head": HEADS,
            "n_inner": INNER,
            "n_layer": LAYERS,
            "n_positions": POSITIONS,
            "vocab_size": vocabulary,
            "type_vocab_size": 2,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "layer_norm_epsilon": 1e-12,
            "activation_function": "swiglu",
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
        }
    roberta = kind == "xlm-roberta"
    name = "XLMRoberta" if roberta else "Bert"
    return {
        "model_type": kind,
        "architectures": [name + ("ForSequenceClassification" if classifier else "Model")],
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS + 2 * roberta,
        "vocab_size": vocabulary,
        "type_vocab_size": 1 if roberta else 2,
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "pad_token_id": 1 if roberta else 0,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }


def make_model(directory, kind, mode, classifier=False):
    """Writes a model; returns its config, weights and tokenizer."""
    import tokenizers

    path = pathlib.Path(directory)
    encoder_tokenizers.write("unigram" if kind == "xlm-roberta" else "wordpiece", path)
    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    config = make_config(kind, tokenizer.get_vocab_size(), classifier)
    weights = make_weights(config, classifier)
    save_file(weights, str(path / "model.safetensors"))
    (path / "config.json").write_text(json.dumps(config))
    if not classifier:
        types = ["Transformer", "Pooling", "Normalize"]
        modules = [{"type": f"sentence_transformers.models.{t}", "path": f"{i}_{t}"} for i, t in enumerate(types)]
        (path / "modules.json").write_text(json.dumps(modules))
        (path / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{m}": m == mode for m in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
        (path / "1_Pooling/config.json").write_text(json.dumps(modes))
    return config, weights, tokenizer


# ---- GGUF ----

PARTS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "classifier.dense": "cls",
    "pooler.dense": "cls",
    "classifier.out_proj": "cls.output",
    "classifier": "cls.output",
}
POOLING = {"mean_tokens": 1, "cls_token": 2, None: 4}


def gguf_name(name):
    name = name.removeprefix("bert.").removeprefix("roberta.")
    module, _, part = name.rpartition(".")
    words = module.split(".")
    if words[0] == "encoder":
        return f"blk.{words[2]}.{PARTS['.'.join(words[3:])]}.{part}"
    return f"{PARTS[module]}.{part}"


def write_vocabulary(writer, tokenizer):
    """WordPiece's tokens with U+2581 where a word begins, and without ##; Unigram's with their scores."""
    model = tokenizer["model"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    unigram = model["type"] == "Unigram"
    tokens = [t for t, _ in model["vocab"]] if unigram else sorted(model["vocab"], key=model["vocab"].get)
    unknown = model["unk_id"] if unigram else model["vocab"][model["unk_token"]]
    kinds = [2 if i == unknown and unigram else 3 if t in special else 1 for i, t in enumerate(tokens)]
    ids = {t: i for i, t in enumerate(tokens)}
    if unigram:
        writer.add_tokenizer_model("t5")
        writer.add_token_scores([score for _, score in model["vocab"]])
        table = tokenizer["normalizer"]["normalizers"][0]["precompiled_charsmap"]
        writer.add_precompiled_charsmap(base64.b64decode(table))
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_bos_token_id(ids["<s>"])
        writer.add_eos_token_id(ids["</s>"])
    else:
        writer.add_tokenizer_model("bert")
        tokens = [
            t if k == 3 else t[2:] if t.startswith("##") else "\u2581" + t for t, k in zip(tokens, kinds, strict=True)
        ]
        writer.add_uint32("tokenizer.ggml.cls_token_id", ids["[CLS]"])
        writer.add_sep_token_id(ids["[SEP]"])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(unknown)


def write_gguf(path, made, mode, tokenizer):
    import gguf

    config, weights, _ = made
    c = {key.removeprefix("n_"): value for key, value in config.items()}
    nomic, roberta = config["model_type"] == "nomic_bert", config["model_type"] == "xlm-roberta"
    writer = gguf.GGUFWriter(path, "nomic-bert" if nomic else "bert")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(c.get("layer_norm_eps", c.get("layer_norm_epsilon")))
    writer.add_causal_attention(False)
    writer.add_token_type_count(c["type_vocab_size"])
    writer.add_pooling_type(gguf.PoolingType(POOLING[mode]))
    if nomic:
        writer.add_rope_freq_base(c["rotary_emb_base"])
    write_vocabulary(writer, tokenizer)
    for name, x in weights.items():
        if roberta and name.endswith("position_embeddings.weight"):
            x = x[c["pad_token_id"] + 1 :]
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_gguf(made, mode, directory, path):
    """What the GGUF file makes of the same model."""
    source, target = f"{directory}/model.gguf", f"{directory}/converted"
    tokenizer = json.loads((pathlib.Path(path) / "tokenizer.json").read_text(encoding="utf-8"))
    write_gguf(source, made, mode, tokenizer)
    done = subprocess.run([BINARY, "convert", source, target], capture_output=True, text=True)
    label = f"{made[0]['model_type']} {mode} from GGUF"
    check(done.returncode == 0 and "warn" not in done.stderr, label, done.stderr)
    if done.returncode:
        return
    with Server(target, "--cpu", "ref", "--threads", "2") as server:
        if mode:
            check_vectors(server, made, mode, 1e-5, label)
        else:
            check_scores(server, made, 1e-5, label)


# ---- the checks ----


def embed(server, texts, status=200):
    answer = server.request("POST", "/v1/embeddings", {"model": server.name, "input": texts})
    body = json.loads(answer[2])
    if answer[0] != status:
        check(False, "embeddings", answer)
        return []
    return [np.array(item["embedding"]) for item in body["data"]] if status == 200 else body["error"]["message"]


def check_vectors(server, made, mode, limit, label):
    config, weights, tokenizer = made
    got = embed(server, TEXTS)
    for text, vector in zip(TEXTS, got, strict=True):
        encoding = tokenizer.encode(text)
        want = pool(states(config, weights, np.array(encoding.ids), np.array(encoding.type_ids)), mode)
        difference = float(np.abs(want - vector).max())
        check(difference <= limit, f"{label}, {text[:20]}", difference)
        check(np.array_equal(embed(server, [text])[0], vector), f"{label}, {text[:20]} alone")


def check_refused(server, config):
    message = embed(server, ["swift " * 300], 400)
    check("maximum context length" in message, "a text that is too long", message)
    request = {"model": server.name, "prompt": "Hi", "max_tokens": 4}
    status, _, body = server.request("POST", "/v1/completions", request)
    check(status == 400 and b"makes embeddings" in body, "a completion", status, body)


def check_scores(server, made, limit, label):
    config, weights, tokenizer = made
    query = TEXTS[0]
    request = {"model": server.name, "query": query, "documents": TEXTS}
    status, _, body = server.request("POST", "/v1/rerank", request)
    answer = json.loads(body)
    if status != 200:
        check(False, f"{label}: rerank", body)
        return
    scores = {r["index"]: r["relevance_score"] for r in answer["results"]}
    check(list(scores.values()) == sorted(scores.values(), reverse=True), f"{label}: the order", scores)
    for i, text in enumerate(TEXTS):
        encoding = tokenizer.encode(query, text)
        want = 1 / (1 + math.exp(-logit(config, weights, np.array(encoding.ids), np.array(encoding.type_ids))))
        check(abs(want - scores[i]) <= limit, f"{label}, {text[:20]}", want, scores[i])
    status, _, body = server.request("POST", "/v1/rerank", {**request, "instruction": "Judge."})
    check(status == 400 and b"instruction" in body, f"{label}: an instruction", body)
    status, _, body = server.request("POST", "/v1/embeddings", {"model": server.name, "input": "x"})
    check(status == 400 and b"/v1/rerank" in body, f"{label}: embeddings of a cross-encoder", body)


def check_reference(made, path, classifier):
    import torch
    import transformers

    config, weights, tokenizer = made
    kind = transformers.AutoModelForSequenceClassification if classifier else transformers.AutoModel
    model = kind.from_pretrained(path, attn_implementation="eager").double().eval()
    for text in TEXTS:
        encoding = tokenizer.encode(TEXTS[0], text) if classifier else tokenizer.encode(text)
        ids, types = np.array(encoding.ids), np.array(encoding.type_ids)
        with torch.no_grad():
            out = model(torch.tensor(ids[None]), token_type_ids=torch.tensor(types[None]))
        if classifier:
            difference = abs(float(out.logits[0, 0]) - logit(config, weights, ids, types))
        else:
            difference = float(np.abs(out.last_hidden_state[0].numpy() - states(config, weights, ids, types)).max())
        check(difference < 1e-6, f"{config['model_type']} against transformers", difference)
        print(config["model_type"], classifier, difference)


CASES = [
    ("bert", "cls_token", False),
    ("bert", "mean_tokens", False),
    ("xlm-roberta", "mean_tokens", False),
    ("nomic_bert", "mean_tokens", False),
    ("bert", None, True),
    ("xlm-roberta", None, True),
]


def main():
    for number, (kind, mode, classifier) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/{number}"
            made = make_model(path, kind, mode, classifier)
            if "--transformers" in sys.argv:
                if kind != "nomic_bert":
                    check_reference(made, path, classifier)
                continue
            check_gguf(made, mode, directory, path)
            for cpu, limit in (("ref", 1e-5), ("auto", 1e-4)):
                with Server(path, "--cpu", cpu, "--threads", "2") as server:
                    label = f"{kind} {mode} {cpu}"
                    if classifier:
                        check_scores(server, made, limit, label)
                    else:
                        check_vectors(server, made, mode, limit, label)
                        check_refused(server, made)
    checks.done()


main()
