"""OpenAI's OpenAPI description (openai_schemas.json) against what is served: requests drawn from it, requests that are
known to be right, and both with anything put anywhere. Every answer, event and error is valid by the description;
nothing is a 5xx, hangs or drops the connection; what the description refuses is refused; a stream says what the whole
answer says. check_openapi.py [--count N] [--seed S] [--only INDEX]
"""

import argparse
import collections
import copy
import http.client
import json
import os
import random
import string
import tempfile
import threading
import time

from apus_server import Checks, Server
from check_doors import BODIES
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from tiny_model import write_tiny_model


class Sorted(Checks):
    """Says of each kind of failure no more than the first two."""

    def __init__(self):
        super().__init__()
        self.kinds = collections.Counter()

    def __call__(self, condition, kind, *example):
        if condition:
            self.passed += 1
        else:
            self.failed += 1
            self.kinds[kind] += 1
            if self.kinds[kind] <= 2:
                print("FAILED:", kind, *(str(e)[:700] for e in example), sep="\n  ")
        return bool(condition)


check = Sorted()
TEMPLATE = (
    "{% if tools %}<|start|>system\nTools: {% for t in tools %}{{ t | tojson }}\n{% endfor %}Call: <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|end|>\n{% endif %}'
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor '
    "%}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)

# ---- the description ----

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_schemas.json")) as file:
    SCHEMAS = json.load(file)["schemas"]
REGISTRY = Registry().with_resource("urn:openai", Resource({"components": {"schemas": SCHEMAS}}, DRAFT202012))
VALIDATORS = {}


def widen():
    """What OpenAI's own service sends and clients await, and the description leaves out: streams of completions say
    null until their end, the first token of an echoed prompt has no probability, and all chunks but the last say that
    there is no usage yet.
    """
    completion = SCHEMAS["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    completion["finish_reason"]["type"], completion["finish_reason"]["enum"] = (
        ["string", "null"],
        completion["finish_reason"]["enum"] + [None],
    )
    logprobs = completion["logprobs"]["anyOf"][0]["properties"]
    logprobs["token_logprobs"]["items"] = {"type": ["number", "null"]}
    logprobs["top_logprobs"]["items"] = {"anyOf": [logprobs["top_logprobs"]["items"], {"type": "null"}]}
    for name in ("CreateCompletionResponse", "CreateChatCompletionStreamResponse"):
        SCHEMAS[name]["properties"]["usage"] = {"anyOf": [SCHEMAS[name]["properties"]["usage"], {"type": "null"}]}


widen()


def problem(name, value):
    """None, or what is wrong by the schema of this name."""
    if name not in VALIDATORS:
        VALIDATORS[name] = Draft202012Validator({"$ref": f"urn:openai#/components/schemas/{name}"}, registry=REGISTRY)
    if VALIDATORS[name].is_valid(value):
        return None
    error = next(VALIDATORS[name].iter_errors(value))
    while error.context:  # of alternatives, what is deepest says most
        error = max(error.context, key=lambda e: len(e.absolute_path))
    return f"{name}: {error.json_path}: {error.message[:200]}"


def event_schemas():
    """Which schema an event of /v1/responses has: type → name."""
    union, found = SCHEMAS["ResponseStreamEvent"], {}
    for one in union.get("anyOf") or union["oneOf"]:
        name = one["$ref"].rsplit("/", 1)[-1]
        kind = SCHEMAS[name]["properties"]["type"]
        for text in kind.get("enum") or [kind["const"]]:
            found[text] = name
    return found


EVENTS = event_schemas()


def resolve(schema):
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def fields_of(name):
    """The properties of a request: name → schema."""
    schema, found = resolve({"$ref": f"#/{name}"}), {}
    for part in [schema, *schema.get("allOf", [])]:
        part = resolve(part)
        for inner in part.get("allOf", []):
            found.update(resolve(inner).get("properties", {}))
        found.update(part.get("properties", {}))
    return found


def draw(schema, rng, depth=0):
    """Something that the schema admits, mostly."""
    schema = resolve(schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return draw(rng.choice(schema[key]), rng, depth + 1)
    if "allOf" in schema:
        parts = [draw(part, rng, depth) for part in schema["allOf"]]
        return {k: v for part in parts if isinstance(part, dict) for k, v in part.items()} or parts[0]
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else rng.choice(schema["enum"])
    kind = schema.get("type", "object")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "string":
        return "".join(
            rng.choice(string.ascii_lowercase)
            for _ in range(rng.randint(max(1, schema.get("minLength", 1)), min(9, schema.get("maxLength", 9))))
        )
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = min(schema.get("maximum", low + 20), low + 1e6)
        return (
            rng.choice([int(low), int(high), rng.randint(int(low), int(high))])
            if kind == "integer"
            else rng.uniform(low, high)
        )
    if kind == "array":
        most = schema.get("maxItems", 3)
        count = (
            rng.randint(schema.get("minItems", 0), max(schema.get("minItems", 0), min(3, most)))
            if depth < 6
            else schema.get("minItems", 0)
        )
        return [draw(schema.get("items", {"type": "string"}), rng, depth + 1) for _ in range(count)]
    if kind == "object":
        wanted = [
            k
            for k in schema.get("properties", {})
            if k in schema.get("required", []) or (depth < 4 and rng.random() < 0.3)
        ]
        return {k: draw(schema["properties"][k], rng, depth + 1) for k in wanted}
    return rng.random() < 0.5 if kind == "boolean" else None


# ---- requests that are right ----

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
ROLL = {
    "type": "object",
    "properties": {"sides": {"enum": [4, 6, 20]}, "why": {"type": "string", "maxLength": 5}},
    "required": ["sides"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "name": {"type": "string", "maxLength": 6}},
    "required": ["ok", "name"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Of a city", "parameters": WEATHER, "strict": True},
    },
    {"type": "function", "function": {"name": "roll", "parameters": ROLL}},
    {"type": "function", "function": {"name": "stop"}},
]
FLAT = [
    {
        "type": "function",
        **tool["function"],
        "strict": tool["function"].get("strict", False),
        "parameters": tool["function"].get("parameters", {"type": "object", "properties": {}}),
    }
    for tool in TOOLS
]
NAMED = {"type": "function", "function": {"name": "roll"}}
CALLED = [
    {"role": "user", "content": "Roll."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "roll", "arguments": '{"sides": 6}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "5"},
]
TALKS = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
    [{"role": "developer", "content": "x"}, {"role": "user", "content": "\u4f60\u597d \U0001f642", "name": "ann"}],
    CALLED,
]
SAMPLING = [
    {"temperature": 0},
    {"temperature": 1.3, "top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.1},
    {"frequency_penalty": 1.5},
    {"presence_penalty": -1},
    {"logit_bias": {"40": 5, "41": -100}},
    {"repetition_penalty": 1.2},
    {"stop": ["e", "zz"]},
    {"stop": "a"},
    {"min_tokens": 2},
    {"ignore_eos": True},
    {"cache_prompt": False},
    {"user": "me"},
]
CHAT = SAMPLING + [
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 3},
    {"n": 3},
    {"metadata": {"a": "b"}},
    {"service_tier": "auto"},
    {"store": False},
    {"prediction": {"type": "content", "content": "x"}},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": NAMED},
    {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {
        "tools": TOOLS[:1],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
        },
    },
    {"reasoning_effort": "low"},
    {"enable_thinking": True, "thinking_budget": 4},
    {"reasoning_effort": "none"},
    {"enable_thinking": True, "thinking_budget": 3, "tools": TOOLS, "tool_choice": "required"},
]
COMPLETIONS = SAMPLING + [
    {"logprobs": 0},
    {"logprobs": 3},
    {"n": 2},
    {"echo": True},
    {"echo": True, "logprobs": 2},
    {"prompt": ["ab", "cd"]},
    {"prompt": [40, 41, 42]},
    {"prompt": [[40, 41], [42]]},
    {"json_schema": SCHEMA},
    {"guided_regex": "[ab]{3}"},
]
RESPONSES = [
    {"temperature": 0},
    {"top_p": 0.8},
    {"instructions": "Be brief."},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    {"store": False},
    {"metadata": {"a": "b"}},
    {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}},
    {"text": {"format": {"type": "json_object"}}},
    {"tools": FLAT},
    {"tools": FLAT, "tool_choice": "required"},
    {"tools": FLAT, "tool_choice": {"type": "function", "name": "roll"}, "parallel_tool_calls": False},
    {"reasoning": {"effort": "low"}},
    {
        "input": [
            {"role": "user", "content": "Roll."},
            {"type": "function_call", "call_id": "a", "name": "roll", "arguments": '{"sides": 6}'},
            {"type": "function_call_output", "call_id": "a", "output": "5"},
        ],
        "tools": FLAT,
    },
]
DOORS = {  # path: fields that are right, schemas of request, answer and event
    "/v1/chat/completions": (
        CHAT,
        "CreateChatCompletionRequest",
        "CreateChatCompletionResponse",
        "CreateChatCompletionStreamResponse",
    ),
    "/v1/completions": (COMPLETIONS, "CreateCompletionRequest", "CreateCompletionResponse", "CreateCompletionResponse"),
    "/v1/responses": (RESPONSES, "CreateResponse", "Response", None),
}
# What the description forbids and is taken all the same: fewer tokens than 16, fractions of a bias, tools that do not
# exist yet; messages with parts are two of its alternatives at once.
BEYOND = ("$.max_output_tokens: ", "$.logit_bias[", "$.tools[", "$.input[")
OTHERS = {
    **{path: body for path, body in BODIES.items() if path not in DOORS},
    "/tokenize": {"content": "abc", "with_pieces": True, "add_special": False},
    "/detokenize": {"tokens": [40, 41]},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}], "system": "y"},
}
JUNK = [
    None,
    0,
    5,
    -1,
    2.5,
    2**31,
    2**63,
    1e308,
    True,
    False,
    "",
    "x",
    "{",
    "auto",
    [],
    {},
    [5],
    [[]],
    [None],
    {"type": "text"},
    {"type": "function"},
    {"a": {"b": []}},
    "\u0000",
    "\ud7ff\U0001f642",
    "x" * 3000,
    ["x"] * 40,
]


def right(path, rng):
    body = {"model": "m", "seed": rng.randint(0, 99)}
    if path == "/v1/chat/completions":
        body |= {"messages": rng.choice(TALKS), rng.choice(["max_tokens", "max_completion_tokens"]): rng.randint(1, 40)}
    elif path == "/v1/completions":
        body |= {"prompt": "Once upon", "max_tokens": rng.randint(1, 24)}
    else:
        body = {"model": "m", "input": "Hello", "max_output_tokens": rng.randint(1, 40), "temperature": 0}
    for fields in rng.sample(DOORS[path][0], rng.randint(0, 3)):
        answers = {
            "tools",
            "response_format",
            "json_schema",
            "guided_regex",
            "text",
        }  # what an answer may be is said once
        if (
            not (answers & set(fields) and answers & set(body))
            and not ("thinking_budget" in fields and "reasoning_effort" in body)
            and not ("reasoning_effort" in fields and "enable_thinking" in body)
        ):
            body |= fields
    if "min_tokens" in body:
        body["min_tokens"] = 1
    return copy.deepcopy(body)


def places(value, at=()):
    if at:
        yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, at + (key,))


def given(value):
    """Without members that are null, which are as absent ones."""
    if isinstance(value, dict):
        return {k: given(v) for k, v in value.items() if v is not None}
    return [given(v) for v in value] if isinstance(value, list) else value


def spoil(body, rng):
    """Something else at one or two places, or nothing there."""
    for spot in rng.sample(list(places(body)), rng.choice([1, 1, 2])):
        parent, other = body, copy.deepcopy(rng.choice(JUNK))
        try:
            for key in spot[:-1]:
                parent = parent[key]
            if rng.random() < 0.2:
                del parent[spot[-1]]
            elif rng.random() < 0.1 and isinstance(parent, dict):
                parent[rng.choice(["other", "x", "", "type", "$ref"])] = other
            else:
                parent[spot[-1]] = other
        except (KeyError, IndexError, TypeError):
            pass
    return body


# ---- asking ----


class Client:
    def __init__(self, server):
        self.server, self.connection = server, None

    def ask(self, method, path, data):
        """status, type, body; a dropped connection or a silence of a minute is an exception."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            self.connection.request(
                method, path, data, {"Content-Type": "application/json"} if data is not None else {}
            )
            response = self.connection.getresponse()
            body = response.read()
        except Exception:
            self.connection = None
            raise
        if response.will_close:
            self.connection.close()
            self.connection = None
        return response.status, response.headers.get("content-type", ""), body


def events_of(raw):
    """The data of a stream's events, without [DONE]; None when it is not framed as it should be."""
    text = raw.decode("utf-8")
    if not text.endswith("\n\n"):
        return None
    events = []
    for block in text.split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        data = [line[6:] for line in lines if line.startswith("data: ")]
        if lines and (len(data) != 1 or any(not line.startswith(("data: ", "event: ")) for line in lines)):
            return None
        events += data
    return events


def wrong_stream(path, raw):
    """What is wrong with a stream, or None; and its events."""
    events = events_of(raw)
    if events is None:
        return "no server-sent events", []
    if path == "/v1/responses":
        parsed = [json.loads(e) for e in events]
        if [e.get("sequence_number") for e in parsed] != list(range(len(parsed))):
            return "sequence numbers", parsed
        for event in parsed:
            why = problem(EVENTS[event["type"]], event) if event["type"] in EVENTS else f"an event {event['type']}"
            if why:
                return why, parsed
        return (
            None
            if parsed[-1]["type"] in ("response.completed", "response.incomplete", "response.failed", "error")
            else "no end"
        ), parsed
    if events[-1] == "[DONE]":
        events.pop()
    elif "error" not in events[-1]:
        return "no [DONE]", []
    parsed = [json.loads(e) for e in events]
    for event in parsed:
        if "prompt_progress" not in event:
            why = problem("ErrorResponse" if "error" in event else DOORS[path][3], event)
            if why:
                return why, parsed
    return None, parsed


# ---- a stream says what the whole says ----


def counted(usage):
    return {k: v for k, v in usage.items() if k not in ("prompt_tokens_details", "input_tokens_details")}


def of_chat(choice):
    message, logprobs = choice["message"], choice["logprobs"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])],
        "logprobs": logprobs["content"] if logprobs else None,
        "finish": choice["finish_reason"],
    }


def joined_chat(events):
    choices, usage = {}, None
    for event in events:
        usage = event.get("usage") or usage
        for c in event["choices"]:
            at, delta = (
                choices.setdefault(
                    c["index"], {"content": "", "reasoning": "", "calls": [], "logprobs": None, "finish": None}
                ),
                c["delta"],
            )
            at["content"] += delta.get("content") or ""
            at["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    at["calls"].append([call["function"]["name"], ""])
                at["calls"][call["index"]][1] += call["function"]["arguments"]
            if c.get("logprobs"):
                at["logprobs"] = (at["logprobs"] or []) + (c["logprobs"]["content"] or [])
            at["finish"] = c["finish_reason"] or at["finish"]
    return [choices[i] for i in sorted(choices)], usage


def joined_text(events):
    choices, usage = {}, None
    for event in events:
        usage = event.get("usage") or usage
        for c in event["choices"]:
            at = choices.setdefault(c["index"], {"text": "", "logprobs": None, "finish": None})
            at["text"] += c["text"]
            if c.get("logprobs"):
                at["logprobs"] = {
                    k: (at["logprobs"] or {}).get(k, []) + v for k, v in c["logprobs"].items() if v is not None
                }
            at["finish"] = c["finish_reason"] or at["finish"]
    return [choices[i] for i in sorted(choices)], usage


def of_item(item):
    return {k: v for k, v in item.items() if k not in ("id", "call_id")}


def difference(path, whole, events):
    """What a stream and the whole answer do not agree on, or None."""
    if path == "/v1/responses":
        last = events[-1]["response"]
        text = "".join(
            e["delta"]
            for e in events
            if e["type"]
            in ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")
        )
        parts = [p.get("text", "") for item in whole["output"] for p in (item.get("content") or [])] + [
            item["arguments"] for item in whole["output"] if item["type"] == "function_call"
        ]
        mine, its = [[of_item(i) for i in r["output"]] + [r["status"], counted(r["usage"])] for r in (whole, last)]
        return None if mine == its and sorted(text) == sorted("".join(parts)) else f"{mine} {its} {text!r}"
    if path == "/v1/completions":
        mine = [
            {
                "text": c["text"],
                "logprobs": {k: v for k, v in c["logprobs"].items() if v is not None} if c["logprobs"] else None,
                "finish": c["finish_reason"],
            }
            for c in whole["choices"]
        ]
        its, usage = joined_text(events)
    else:
        mine = [of_chat(c) for c in whole["choices"]]
        its, usage = joined_chat(events)
        for one in mine + its:
            one["logprobs"] = one["logprobs"] or None
    if mine != its:
        return f"{json.dumps(mine)[:1500]}\n  {json.dumps(its)[:1500]}"
    return None if counted(usage) == counted(whole["usage"]) else f"usage {whole['usage']} {usage}"


# ---- the run ----


def valid_answer(path, body, status, media, raw, what):
    """An answer or a client's mistake, each as the description has it. Gives the events of a stream or the answer;
    None: an error.
    """
    if status != 200:
        answer = json.loads(raw)
        why = problem("ErrorResponse", answer) if 400 <= status < 500 else "not a client's mistake"
        check(why is None, f"{path} {status} {why}", what, raw)
        return None
    if media.startswith("text/event-stream"):
        why, events = wrong_stream(path, raw)
        check(why is None, f"{path} stream: {why}", what, raw[-600:])
        return events
    answer = json.loads(raw)
    why = problem(DOORS[path][2], answer)
    check(why is None, f"{path} {why}", what, raw)
    return answer


def one(client, index, seed, tally):
    rng = random.Random(f"{seed} {index}")
    path = rng.choices(list(DOORS), [6, 2, 3])[0]
    kind = rng.choices(["right", "drawn", "spoilt", "broken", "other", "route"], [34, 30, 28, 4, 3, 1])[0]
    if kind == "route":
        method, where = rng.choice(
            [
                ("GET", "/v1/models"),
                ("GET", "/v1/models/m"),
                ("GET", "/v1/models/x"),
                ("GET", path),
                ("POST", "/v1/other"),
                ("DELETE", "/v1/models/m"),
            ]
        )
        status, _, raw = client.ask(method, where, b"{}" if method == "POST" else None)
        name = "ErrorResponse" if status != 200 else "ListModelsResponse" if where == "/v1/models" else "Model"
        why = problem(name, json.loads(raw))
        allowed = (403, 404) if method == "DELETE" else (200, 404, 405)  # without --allow-pull
        check(status in allowed and why is None, f"{method} {where}: {status} {why}")
        tally[kind, status] += 1
        return
    if kind == "other":  # doors that OpenAI does not have
        path = rng.choice(list(OTHERS))
        data = json.dumps(spoil({"model": "m", **copy.deepcopy(OTHERS[path])}, rng)).encode()
        status, media, raw = client.ask("POST", path, data)
        check(
            status in (200, 400, 404) and raw and (media != "application/json" or json.loads(raw) is not None),
            f"{path} {status}",
            data,
            raw,
        )
        tally[kind, status] += 1
        return
    body = right(path, rng)
    if kind == "drawn":
        fields = fields_of(DOORS[path][1])
        for name in rng.sample(
            [f for f in fields if f not in ("model", "max_tokens", "max_completion_tokens", "max_output_tokens")],
            rng.choice([1, 1, 2, 3]),
        ):
            body[name] = draw(fields[name], rng)
    elif kind == "spoilt":
        spoil(body, rng)
    if kind != "right" and rng.random() < 0.3:
        body["stream"] = True
    data = json.dumps(body).encode()
    if kind == "broken":
        data = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'\x00\x01\xff{}[]",:\\0e-')
        data = bytes(data)
    what = f"{index} {kind} POST {path} {data[:900]}"
    status, media, raw = client.ask("POST", path, data)
    tally[kind, status] += 1
    answer = valid_answer(path, body, status, media, raw, what)
    if kind == "right" and check(answer is not None, f"{path} refused what is right", what, raw):
        streamed = {
            **body,
            "stream": True,
            **({} if path == "/v1/responses" else {"stream_options": {"include_usage": True}}),
        }
        status, media, raw = client.ask("POST", path, json.dumps(streamed).encode())
        tally["streamed", status] += 1
        events = valid_answer(path, streamed, status, media, raw, what)
        why = difference(path, answer, events) if events is not None else "refused in a stream"
        check(why is None, f"{path}: a stream differs", what, why)
    elif kind in ("drawn", "spoilt") and status == 200:
        why = problem(DOORS[path][1], given(body))
        check(why is None or why.split(": ", 1)[1].startswith(BEYOND), f"taken against the description: {why}", what)


def work(server, indices, seed, tally):
    client = Client(server)
    for index in indices:
        try:
            one(client, index, seed, tally)
        except Exception as e:  # noqa: BLE001
            check(False, f"{type(e).__name__}: {e}", index)
            if not server.alive():
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    tally, start = collections.Counter(), time.time()
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory, template=TEMPLATE)
        with Server(directory, "--ctx-size", 2048, "--slots", 8, name="m") as server:
            if options.only is not None:
                work(server, [options.only], options.seed, tally)
            else:
                threads = [
                    threading.Thread(target=work, args=(server, range(i, options.count, 4), options.seed, tally))
                    for i in range(4)
                ]
                [t.start() for t in threads]
                [t.join() for t in threads]
            check(server.alive() and server.wait_idle(), "the server lives and is idle")
        check(server.code == 0, f"the server's exit code: {server.code}")
    for key, count in sorted(tally.items(), key=str):
        print(*key, count)
    print(f"{time.time() - start:.0f} s")
    check.done()
