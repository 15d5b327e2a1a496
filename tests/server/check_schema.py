"""Answers that obey what requests say: a tiny model with random weights, which would say anything, behind the server.
--seeds seeds (1,000) over schemas, all valid by jsonschema; regular expressions, choices, rules; 64 mixed requests
at once, each byte for byte what it is alone, logprobs too; streams equal whole answers; what cannot be kept is refused
with its name. Exit 77 without the tokenizer.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import threading

import jsonschema
import numpy as np
import safetensors.numpy
import shapes
from apus_server import Checks, Server

check = Checks()
parser = argparse.ArgumentParser()
parser.add_argument("--seeds", type=int, default=1000)
options = parser.parse_args()
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "apus/tokenizers/qwen3"
END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


def write_model(directory):
    """Random weights; logits spread over a few units, so that a draw could be anything."""
    random = np.random.default_rng(3)
    hidden, inner, vocab = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    head = hidden // SHAPE["num_attention_heads"]

    def matrix(rows, columns, scale=1.0):
        return (random.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float16)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden, 2), "model.norm.weight": np.ones(hidden, np.float16)}
    for layer in range(SHAPE["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows in (("q_proj", 2 * head), ("k_proj", head), ("v_proj", head)):
            tensors[at + f"self_attn.{name}.weight"] = matrix(rows, hidden)
            tensors[at + f"self_attn.{name}.bias"] = (random.standard_normal(rows) * 0.1).astype(np.float16)
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, 2 * head)
        tensors[at + "mlp.gate_proj.weight"], tensors[at + "mlp.up_proj.weight"] = (
            matrix(inner, hidden),
            matrix(inner, hidden),
        )
        tensors[at + "mlp.down_proj.weight"] = matrix(hidden, inner)
        tensors[at + "input_layernorm.weight"] = tensors[at + "post_attention_layernorm.weight"] = np.ones(
            hidden, np.float16
        )
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    tokenizer = json.loads((CACHE / "tokenizer.json").read_text())
    ends = [t["id"] for t in tokenizer["added_tokens"] if t["content"] == END]
    (directory / "config.json").write_text(json.dumps({**SHAPE, "eos_token_id": ends[0]}))
    (directory / "tokenizer.json").symlink_to(CACHE / "tokenizer.json")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))


def bounded(properties, required=None):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


TEXT = {"type": "string", "maxLength": 12}
SCHEMAS = [  # of bounded length: every answer ends by itself
    bounded({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    bounded({"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": ["x", "yy", 3, None, 1.5]}}, ["a"]),
    bounded({"list": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 5}, "maxItems": 4}}),
    bounded({"pair": {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "items": False, "minItems": 2}}),
    {
        "anyOf": [
            bounded({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}),
            bounded({"kind": {"const": "dog"}, "good": {"const": True}}),
        ]
    },
    {
        "oneOf": [
            {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3}$"},
            {"type": "integer", "minimum": 10, "maximum": 99},
        ]
    },
    bounded(
        {
            "when": {"type": "string", "format": "date"},
            "id": {"type": "string", "format": "uuid"},
            "at": {"type": "string", "format": "ipv4"},
        }
    ),
    bounded(
        {
            "price": {"type": "number", "minimum": 0, "maximum": 9, "multipleOf": 0.5},
            "word": {"type": "string", "pattern": "^(foo|ba[rz]){1,3}$"},
        }
    ),
    {
        "$defs": {
            "leaf": bounded({"v": {"type": "integer", "minimum": 0, "maximum": 3}}),
            "node": bounded({"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}}, ["left"]),
        },
        "$ref": "#/$defs/node",
    },
    {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
    {"type": "string", "minLength": 3, "maxLength": 9},
    {"enum": ["é", "日本", "🙂", '\n\t"\\']},
    {"const": {"a": [1, {"b": None}]}},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 17}, {"multipleOf": 2}]},
]
OPEN = [
    {"type": "object"},
    {},
    {"type": "array", "items": {"type": "number"}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
]


def ask(server, path="/v1/chat/completions", **fields):
    body = {
        "model": server.name,
        "temperature": 1,
        **({"messages": [{"role": "user", "content": "Go."}]} if path.endswith("chat/completions") else {}),
        **fields,
    }
    status, _, answer = server.request("POST", path, body)
    return status, json.loads(answer)


def parallel(count, work, threads=8):
    numbers = iter(range(count))
    lock = threading.Lock()

    def run():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            work(number)

    runners = [threading.Thread(target=run) for _ in range(threads)]
    [r.start() for r in runners]
    [r.join() for r in runners]


def format_of(schema, seed):
    return {
        "type": "json_schema",
        "json_schema": {"name": f"schema_{seed}", "schema": schema, **({"strict": True} if seed % 2 else {})},
    }


def is_valid(text, schema):
    try:
        cls = jsonschema.Draft202012Validator
        return cls(schema, format_checker=cls.FORMAT_CHECKER).is_valid(json.loads(text))
    except ValueError:
        return False


def seeds(server):
    ended = [0, 0]

    def one(seed):
        schema = SCHEMAS[seed % len(SCHEMAS)] if seed % 10 else OPEN[seed // 10 % len(OPEN)]
        status, answer = ask(
            server, response_format=format_of(schema, seed), seed=seed, max_tokens=600 if seed % 10 else 60
        )
        if not check(status == 200, f"seed {seed}: {answer}"):
            return
        choice = answer["choices"][0]
        if seed % 10:
            check(choice["finish_reason"] == "stop", f"seed {seed}: it must end: {choice}")
        if choice["finish_reason"] == "stop":
            ended[0] += 1
            check(
                is_valid(choice["message"]["content"], schema),
                f"seed {seed}: {json.dumps(schema)}: {choice['message']['content']!r}",
            )
        ended[1] += 1

    parallel(options.seeds, one)
    print(f"{ended[0]} of {ended[1]} answers ended by themselves, all valid")


def kinds(server):
    number = "[0-9]{1,3}"
    cases = [
        ({"guided_regex": f"{number}(\\.{number}){{3}}"}, lambda t: re.fullmatch(f"{number}(\\.{number}){{3}}", t)),
        ({"guided_choice": ["a.b", "a+", "(", "日本"]}, lambda t: t in ("a.b", "a+", "(", "日本")),
        ({"grammar": 'root ::= "(" [a-c]{2,5} ")"'}, lambda t: re.fullmatch(r"\([a-c]{2,5}\)", t)),
        ({"guided_grammar": 'start: "<" WORD ">"\nWORD: /[xyz]{1,4}/'}, lambda t: re.fullmatch("<[xyz]{1,4}>", t)),
        (
            {"structured_outputs": {"json": SCHEMAS[0], "disable_any_whitespace": True}},
            lambda t: (
                is_valid(t, SCHEMAS[0]) and t == json.dumps(json.loads(t), separators=(",", ":"), ensure_ascii=False)
            ),
        ),
        ({"json_schema": SCHEMAS[4]}, lambda t: is_valid(t, SCHEMAS[4])),
        ({"guided_json": json.dumps(SCHEMAS[5])}, lambda t: is_valid(t, SCHEMAS[5])),
    ]
    for fields, good in cases:
        for path, key in (("/v1/chat/completions", None), ("/v1/completions", "prompt")):
            status, answer = ask(server, path, **fields, n=3, seed=4, max_tokens=300, **({key: "Go:"} if key else {}))
            texts = [c["text"] if key else c["message"]["content"] for c in answer.get("choices", [])]
            check(status == 200 and len(texts) == 3 and all(good(t) for t in texts), f"{fields} at {path}: {answer}")


def mixed(server):
    def fields_of(i):
        more = (
            {"response_format": format_of(SCHEMAS[i % len(SCHEMAS)], i)}
            if i % 4 == 0
            else {}
            if i % 4 == 1
            else {"response_format": {"type": "json_object"}}
            if i % 4 == 2
            else {"guided_regex": "([a-z]{2,6} ){3,9}end"}
        )
        return dict(
            more,
            seed=i,
            max_tokens=20 + i,
            n=1 + (i % 5 == 0) * 2,
            logprobs=True,
            top_logprobs=i % 4,
            temperature=i % 3 / 2,
            **({"stop": ["e", "qq"]} if i % 7 == 3 else {}),
            **({"frequency_penalty": 0.5} if i % 6 == 1 else {}),
        )

    answers = [[None] * 64, [None] * 64]
    for run, threads in ((0, 1), (1, 64)):

        def one(i):
            status, answer = ask(server, **fields_of(i))
            answers[run][i] = answer["choices"] if status == 200 else answer

        parallel(64, one, threads)
    for i in range(64):
        check(
            isinstance(answers[0][i], list) and answers[0][i] == answers[1][i],
            f"request {i}: alone {str(answers[0][i])[:300]}, among 64 {str(answers[1][i])[:300]}",
        )
    for i in range(0, 64, 5):  # streams say the same
        events = server.stream(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "Go."}], **fields_of(i)}
        )
        joined = {}
        for event in map(json.loads, events[:-1]):
            check(shapes.problem(shapes.CHUNK, event) is None, f"chunk: {shapes.problem(shapes.CHUNK, event)}")
            for c in event["choices"]:
                state = joined.setdefault(c["index"], {"text": "", "logprobs": []})
                state["text"] += c["delta"].get("content") or ""
                state["logprobs"] += (c["logprobs"] or {}).get("content", [])
        for c in answers[0][i]:
            check(
                joined[c["index"]] == {"text": c["message"]["content"], "logprobs": c["logprobs"]["content"]},
                f"request {i}: stream = whole",
            )


def refusals(server):
    for schema, word in (
        ({"not": {"multipleOf": 2}}, "not"),
        (
            {"properties": {"a": {"allOf": [{"properties": {"b": True}}], "unevaluatedProperties": False}}},
            "unevaluatedProperties",
        ),
        ({"$ref": "https://example.com/a.json"}, "$ref"),
        ({"type": "string", "pattern": "(?<=a)b"}, "pattern"),
        ({"type": "cat"}, "type"),
    ):
        status, answer = ask(server, response_format=format_of(schema, 1))
        error = answer.get("error", {})
        check(status == 400 and error["param"] == "response_format" and word in error["message"], f"{schema}: {answer}")
        events = server.request(
            "POST",
            "/v1/chat/completions",
            {
                "model": server.name,
                "stream": True,
                "messages": [{"role": "user", "content": "x"}],
                "response_format": format_of(schema, 1),
            },
        )
        check(events[0] == 400, f"{schema}: a stream is refused before its first byte: {events[0]}")
    status, answer = ask(server, grammar="root ::= (" * 50000)
    check(status == 400 and answer["error"]["param"] == "grammar", f"50,000 nested parentheses: {status}")
    many = bounded({f"property_{i}": {"type": "boolean"} for i in range(5000)})
    status, answer = ask(server, response_format=format_of(many, 1), max_tokens=20)
    check(status in (200, 400), f"5,000 required properties: {status} {str(answer)[:200]}")


if not (CACHE / "tokenizer.json").exists():
    print(f"skipped: no tokenizer in {CACHE}: tools/fetch_tokenizers.sh")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    write_model(pathlib.Path(folder))
    with Server(folder, "--ctx-size", 2048, "--slots", 8) as server:
        for part in (seeds, kinds, mixed, refusals):
            part(server)
        check(server.alive() and server.wait_idle(), "the server lives and is idle")
check.done()
