"""Tools on a real model: calls, streamed and whole, their answers in history."""

import json
import tempfile

import shapes
from apus_server import Checks, Server, model_path
from scripted_model import template, write_scripted_model

check = Checks()
CALLS_MAX = 32  # of an answer: src/chat/generation.h
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "max_tokens": 100}


def valid(schema, value, what):
    wrong = shapes.problem(schema, value)
    check(wrong is None, f"{what}: {wrong}")


def joined(events):
    """The message that the events of a stream add up to, and how it ended."""
    check(events[-1] == "[DONE]", "a stream ends with [DONE]")
    message, finish, calls = {"content": "", "reasoning_content": ""}, None, []
    for chunk in map(json.loads, events[:-1]):
        valid(shapes.CHUNK, chunk, "chunk")
        for choice in chunk["choices"]:
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    check(call["index"] == len(calls), "calls begin one after the other")
                    calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                check(call["index"] == len(calls) - 1, "only the last call goes on")
                calls[-1]["arguments"] += call["function"]["arguments"]
    return message, calls, finish


def same_as_whole(s, **fields):
    status, answer = s.chat(ASK, **GREEDY, **fields)
    check(status == 200, answer)
    valid(shapes.CHAT, answer, "answer")
    whole = answer["choices"][0]
    message, calls, finish = joined(s.stream("/v1/chat/completions", {"messages": ASK, **GREEDY, **fields}))
    check(message["content"] == (whole["message"]["content"] or ""), f"content: {message} {whole}")
    mine = [(c["function"]["name"], c["function"]["arguments"]) for c in whole["message"].get("tool_calls", [])]
    check(
        [(c["name"], c["arguments"]) for c in calls] == mine and finish == whole["finish_reason"],
        f"calls: {calls} {whole}",
    )
    return whole


def test_many():
    """A model that calls on and on is stopped."""
    calls = [
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{i}"}}}}\n</tool_call>\n'
        for i in range(CALLS_MAX + 8)
    ]
    with tempfile.TemporaryDirectory() as directory:
        write_scripted_model(directory, calls, template())
        with Server(directory, "--threads", 1) as s:
            status, answer = s.chat("Hi", temperature=0, tools=[WEATHER])
    choice = answer["choices"][0]
    called = [json.loads(arguments)["city"] for _, arguments in calls_of(answer)]
    check(
        status == 200 and called == [str(i) for i in range(CALLS_MAX)] and choice["finish_reason"] == "tool_calls",
        f"{len(called)} calls, {choice['finish_reason']}",
    )


def test_auto(s):
    whole = same_as_whole(s, tools=[WEATHER])
    calls = whole["message"].get("tool_calls")
    if not check(calls and whole["finish_reason"] == "tool_calls", f"the model calls: {whole}"):
        return
    call = calls[0]
    check(
        call["function"]["name"] == "get_weather" and "Paris" in json.loads(call["function"]["arguments"])["city"], call
    )
    check(call["id"].startswith("call_") and len(call["id"]) == 29, call["id"])
    for arguments in (call["function"]["arguments"], "no JSON"):
        history = ASK + [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**call, "function": {"name": "get_weather", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": call["id"], "content": "It is 31 degrees."},
        ]
        status, answer = s.chat(history, tools=[WEATHER], **GREEDY)
        check(status == 200, f"the call's answer is taken: {answer}")
    cut = s.chat(ASK, tools=[WEATHER], temperature=0, max_tokens=12)[1]["choices"][0]
    check(cut["finish_reason"] == "length", f"a call that is cut: {cut}")
    without = same_as_whole(s, tools=[WEATHER], tool_choice="none")
    check("tool_calls" not in without["message"], "none")
    status, answer = s.chat(ASK, tools=[WEATHER], n=3, temperature=1, seed=4, logprobs=True, max_tokens=30)
    ids = [c["id"] for choice in answer["choices"] for c in choice["message"].get("tool_calls", [])]
    check(status == 200 and len(ids) == len(set(ids)), "ids differ")


def calls_of(answer):
    return [
        (c["function"]["name"], c["function"]["arguments"])
        for c in answer["choices"][0]["message"].get("tool_calls", [])
    ]


def check_valid(answer, schemas, what):
    for name, arguments in calls_of(answer):
        problem = shapes.problem(schemas[name], json.loads(arguments)) if name in schemas else "no such tool"
        check(problem is None, f"{what}: {name}({arguments}): {problem}")


def test_demanded(s):
    """Whatever the model would rather say, and however wildly it draws."""
    schemas = {
        "get_weather": WEATHER["function"]["parameters"],
        "roll": {
            "type": "object",
            "additionalProperties": False,
            "required": ["dice", "sides"],
            "properties": {"dice": {"type": "integer", "minimum": 1, "maximum": 99}, "sides": {"enum": [4, 6, 20]}},
        },
        "stop": {"type": "object"},
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
    poem = [{"role": "user", "content": "Write a poem about the sea."}]
    for choice, allowed in (
        ("required", set(schemas)),
        ({"type": "function", "function": {"name": "roll"}}, {"roll"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": n}} for n in ("roll", "stop")],
                },
            },
            {"roll", "stop"},
        ),
    ):
        for fields in ({"temperature": 0}, *({"temperature": 1.8, "seed": seed} for seed in range(2))):
            status, answer = s.chat(
                poem, tools=tools, tool_choice=choice, max_tokens=60, parallel_tool_calls=False, **fields
            )
            check(status == 200, answer)
            if answer["choices"][0]["finish_reason"] == "length":  # a text without bounds, drawn wildly
                continue
            check(
                len(calls_of(answer)) == 1
                and calls_of(answer)[0][0] in allowed
                and answer["choices"][0]["message"]["content"] is None,
                f"{choice}: {answer['choices'][0]}",
            )
            check_valid(answer, schemas, choice)
    whole = same_as_whole(s, tools=tools, tool_choice="required")
    check(whole["finish_reason"] == "tool_calls", whole)
    either = {
        "type": "json_schema",
        "json_schema": {
            "name": "a",
            "schema": {
                "type": "object",
                "properties": {"poem": {"type": "boolean"}},
                "required": ["poem"],
                "additionalProperties": False,
            },
        },
    }
    status, answer = s.chat(poem, tools=tools, response_format=either, temperature=0, max_tokens=100)
    content = answer["choices"][0]["message"]["content"] if status == 200 else None
    check(
        status == 200 and (calls_of(answer) or isinstance(json.loads(content)["poem"], bool)),
        f"calls, or what response_format says: {answer}",
    )
    odd = {"type": "object", "properties": {"a": {"not": {"format": "date"}}}, "required": ["a"]}
    status, answer = s.chat(
        poem, tools=[{"type": "function", "function": {"name": "f", "parameters": odd, "strict": True}}], max_tokens=50
    )
    check(
        status == 400
        and answer["error"]["param"] == "tools[0].function.parameters"
        and "not" in answer["error"]["message"],
        answer,
    )
    status, answer = s.chat(
        poem,
        tools=[{"type": "function", "function": {"name": "f", "parameters": odd}}],
        tool_choice="required",
        max_tokens=200,
        temperature=0,
    )
    check(status == 200 and [name for name, _ in calls_of(answer)][:1] == ["f"], answer)


def test_free_calls(s):
    """In auto, what is called is a tool, with arguments that fit."""
    city = {
        "type": "object",
        "properties": {"city": {"enum": ["PARIS", "ROME"]}, "days": {"type": "integer", "maximum": 3, "minimum": 1}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tools = [
        {"type": "function", "function": {"name": "forecast", "description": "Weather forecast", "parameters": city}}
    ]
    seen = 0
    for seed in range(12):
        if seen == 2:
            break
        status, answer = s.chat(
            "What is the weather in Paris and in Rome? Use <tool_call>.",
            tools=tools,
            temperature=1.2,
            seed=seed,
            max_tokens=200,
        )
        check(status == 200, answer)
        if answer["choices"][0]["finish_reason"] == "tool_calls":
            seen += 1
            check_valid(answer, {"forecast": city}, "auto")
    check(seen > 0, "calls were made")


if __name__ == "__main__":
    test_many()
    with Server(model_path("qwen-0.5b"), "--ctx-size", 2048) as server:
        test_auto(server)
        test_demanded(server)
        test_free_calls(server)
    check.done()
