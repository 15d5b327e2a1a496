"""64 mixed requests at once (schemas, grammars, tools, budgets of reasoning, free text, several choices, streams, other
doors) against each of them alone: the same bytes, with log-probabilities. The same again after a restart with other
sizes of batches, and with a KV cache so small that requests wait for each other's pages. The model is random, so it
says nothing twice unless it must.
"""

import concurrent.futures
import json
import os
import random
import tempfile

from apus_server import Checks, Server
from tiny_model import write_tiny_model

check = Checks()
COUNT = 64  # (strings are of letters: this vocabulary has bytes that begin a character and none that end it)
THINKS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% if enable_thinking %}{{ '<think>' }}{% else %}{{ "
    "'<think></think>' }}{% endif %}{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "bb", "ccc"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{0,6}$"}, "maxItems": 3},
    },
    "required": ["kind", "count", "tags"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("alpha", "beta")]
WORDS = "one two three four five six seven eight nine ten".split()


def make(number):
    """Path and body of a request, by its number."""
    rng = random.Random(number)
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 60)))
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": rng.randint(20, 90),
        "temperature": 0.8,
        "seed": number,
        "logprobs": True,
        "top_logprobs": number % 4,
    }
    kind = number % 8
    if kind == 0:
        return "/v1/completions", {
            "prompt": text,
            "max_tokens": 60,
            "temperature": 1,
            "seed": number,
            "logprobs": 3,
            "n": 3,
            "echo": number % 3 == 0,
            "presence_penalty": 0.5,
        }
    if kind == 1:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
        }
    if kind == 2:
        body.update(tools=TOOLS, tool_choice="required", max_tokens=200)
    if kind == 3:
        body.update(tools=TOOLS, n=2)
    if kind == 4:
        body.update(n=4, top_p=0.9, frequency_penalty=0.3)
    if kind == 5:
        body.update(grammar='root ::= ("yes" | "no") (" and " [a-z]+){1,4}', temperature=1.5)
    if kind == 6:
        body.update(
            enable_thinking=True,
            thinking_budget=number % 20,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            max_tokens=160,
        )
    if kind == 7 and number % 3 == 0:
        return "/v1/messages", {
            "messages": body["messages"],
            "max_tokens": 64000,
            "temperature": 0,
            "stop_sequences": ["q", "zz"],
        }
    if kind == 7 and number % 3 == 1:
        return "/api/chat", {
            "messages": body["messages"],
            "stream": number % 2 == 0,
            "format": SCHEMA,
            "options": {"seed": number, "num_predict": 100, "temperature": 1},
        }
    if number % 5 == 0:
        body.update(stream=True, stream_options={"include_usage": True})
    return "/v1/chat/completions", body


VARYING = {
    "id",
    "created",
    "timings",
    "cached_tokens",
    "cache_read_input_tokens",
    "input_tokens",
    "call_id",
    "tool_call_id",
    "created_at",
}


def clean(value):
    """Without what is another each time, and what tells how it was computed."""
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in VARYING and not k.endswith("_duration")}
    return value


def joined(events):
    """Of a stream, what was said, whatever the pieces were: by choice its text, calls, log-probabilities and end."""
    choices, usage = {}, None
    for event in events:
        usage = clean(event.get("usage")) or usage
        for c in event["choices"]:
            to = choices.setdefault(
                c["index"], {"content": "", "reasoning_content": "", "calls": "", "logprobs": [], "finish": None}
            )
            for key in ("content", "reasoning_content"):
                to[key] += c["delta"].get(key) or ""
            to["calls"] += "".join(
                call["function"].get("name", "") + call["function"]["arguments"]
                for call in c["delta"].get("tool_calls") or []
            )
            to["logprobs"] += ((c.get("logprobs") or {}).get("content")) or []
            to["finish"] = c["finish_reason"] or to["finish"]
    return choices, usage


def ask(server, number):
    path, body = make(number)
    status, _, raw = server.request("POST", path, {"model": server.name, **body}, timeout=600)
    if status != 200:
        return status, raw.decode()
    if path == "/api/chat" and body["stream"]:
        lines = [json.loads(line) for line in raw.decode().splitlines()]
        return "".join(line["message"]["content"] for line in lines), lines[-1]["eval_count"], lines[-1]["done_reason"]
    if body.get("stream") and path != "/api/chat":
        return joined([json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")])
    return clean(json.loads(raw))


def together(server):
    with concurrent.futures.ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(lambda n: ask(server, n), range(COUNT)))


def compare(found, wanted, what):
    for number in range(COUNT):
        check(
            found[number] == wanted[number],
            f"request {number} {what}: {make(number)}\n  {str(found[number])[:400]}\n  {str(wanted[number])[:400]}",
        )


def test_kinds(alone):
    """That the requests are what they are meant to be."""
    for number in range(COUNT):
        path, body = make(number)
        answer = alone[number]
        if (
            not check(not (isinstance(answer, tuple) and isinstance(answer[0], int)), f"{number}: {answer}")
            or body.get("stream")
            or path != "/v1/chat/completions"
        ):
            continue
        message = answer["choices"][0]["message"]
        if number % 8 in (1, 6) and answer["choices"][0]["finish_reason"] == "stop":
            check(set(json.loads(message["content"])) == {"kind", "count", "tags"}, message)
        if number % 8 == 2:
            check(message["tool_calls"], message)
        if number % 8 == 6:
            spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"] - len("</think>")  # a token each
            check(
                spent <= body["thinking_budget"],
                f"{spent} tokens of reasoning, {body['thinking_budget']} allowed: {answer}",
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory)
        with open(os.path.join(directory, "tokenizer_config.json"), "w") as file:
            json.dump({"eos_token": "<|end|>", "chat_template": THINKS}, file)
        with Server(directory, "--slots", 1, "--threads", 1) as server:
            alone = [ask(server, n) for n in range(COUNT)]
        test_kinds(alone)
        with Server(directory, "--slots", 16, "--prefill-size", 64) as server:
            compare(together(server), alone, "among others")
            compare(together(server), alone, "once more, with what the first left")
        with Server(directory, "--slots", 64, "--prefill-size", 16, "--kv-memory", "1500K") as server:
            compare(together(server), alone, "in few pages")
    check.done()
