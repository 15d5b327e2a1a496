"""The other doors, each with its official SDK: OpenAI's Responses, Anthropic's Messages, Ollama; tokens."""

import json
import random
import tempfile

import anthropic
import ollama
import openai
from apus_server import Checks, Server, model_path
from scripted_model import HERMES, template, write_scripted_model

check = Checks()
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK, WEATHER = "What is the capital of France? One word.", "What is the weather in Paris?"
ANSWER = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    "required": ["capital", "sure"],
    "additionalProperties": False,
}


def refused(call, error, what):
    try:
        call()
        check(False, f"{what} was accepted")
    except error as e:
        check(True, e)


def test_responses(s):
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": CITY,
        "strict": True,
    }
    base = dict(model=s.name, temperature=0, max_output_tokens=60, store=False)
    whole = client.responses.create(input=ASK, instructions="Be brief.", **base)
    check(
        "Paris" in whole.output_text and whole.status == "completed" and whole.instructions == "Be brief.",
        f"responses: {whole}",
    )
    check(whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens > 0, whole.usage)
    events = list(client.responses.create(input=ASK, instructions="Be brief.", stream=True, **base))
    check([e.sequence_number for e in events] == list(range(len(events))), "events are numbered")
    check(
        [events[0].type, events[1].type, events[-1].type]
        == ["response.created", "response.in_progress", "response.completed"],
        [e.type for e in events],
    )
    joined = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    check(joined == whole.output_text == events[-1].response.output_text, f"a stream is what the whole is: {joined!r}")
    order = [e.type for e in events if "delta" not in e.type]
    check(
        order[2:-1]
        == [
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ],
        order,
    )
    called = client.responses.create(input=WEATHER, tools=[tool], tool_choice="required", **base)
    call = called.output[0]
    check(call.type == "function_call" and json.loads(call.arguments)["city"] == "Paris", f"a call: {called.output}")
    stream = list(client.responses.create(input=WEATHER, tools=[tool], tool_choice="required", stream=True, **base))
    streamed = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
    done = [e for e in stream if e.type == "response.function_call_arguments.done"]
    check(
        streamed == call.arguments == done[0].arguments and done[0].name == "get_weather",
        f"a streamed call: {streamed!r}",
    )
    items = [
        {"role": "user", "content": WEATHER},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees, sunny"},
    ]
    after = client.responses.create(input=items, tools=[tool], tool_choice="none", **base)
    check(
        "31" in after.output_text or "sunny" in after.output_text.lower(),
        f"the answer of a call: {after.output_text!r}",
    )
    structured = client.responses.create(
        input=ASK, text={"format": {"type": "json_schema", "name": "a", "schema": ANSWER, "strict": True}}, **base
    )
    check(set(json.loads(structured.output_text)) == {"capital", "sure"}, structured.output_text)
    cut = client.responses.create(input="Write a poem.", model=s.name, max_output_tokens=3, temperature=0)
    check(cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut)
    refused(
        lambda: client.responses.create(input=ASK, previous_response_id="resp_1", **base),
        openai.BadRequestError,
        "previous_response_id",
    )
    refused(
        lambda: client.responses.create(input=[{"type": "item_reference", "id": "x"}], **base),
        openai.BadRequestError,
        "item_reference",
    )


def test_messages(s):
    client = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0)
    base = dict(model=s.name, max_tokens=60, extra_body={"temperature": 0})
    tool = {"name": "get_weather", "description": "The weather of a city", "input_schema": CITY}
    ask, weather = (
        [{"role": "user", "content": ASK}],
        [{"role": "user", "content": [{"type": "text", "text": WEATHER}]}],
    )
    whole = client.messages.create(messages=ask, system="Be brief.", **base)
    check("Paris" in whole.content[0].text and whole.stop_reason == "end_turn", f"messages: {whole}")
    counted = client.messages.count_tokens(model=s.name, messages=ask, system="Be brief.")
    check(
        counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
        f"{counted} {whole.usage}",
    )
    with client.messages.stream(messages=ask, system="Be brief.", **base) as stream:
        check("".join(stream.text_stream) == whole.content[0].text, "a stream is what the whole is")
        final = stream.get_final_message()
    check(final.stop_reason == "end_turn" and final.usage.output_tokens == whole.usage.output_tokens, f"{final}")
    called = client.messages.create(messages=weather, tools=[tool], tool_choice={"type": "any"}, **base)
    call = called.content[0]
    check(
        called.stop_reason == "tool_use" and call.name == "get_weather" and call.input == {"city": "Paris"},
        f"a call: {called}",
    )
    with client.messages.stream(
        messages=weather, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, **base
    ) as stream:
        kinds = [e.type for e in stream]
        streamed = stream.get_final_message()
    check(
        streamed.content[0].input == call.input
        and streamed.stop_reason == "tool_use"
        and kinds.count("content_block_start") == 1,
        f"{streamed} {kinds}",
    )
    after = client.messages.create(
        tools=[tool],
        tool_choice={"type": "none"},
        messages=weather
        + [
            {"role": "assistant", "content": [call.model_dump()]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "31 degrees, sunny"}],
            },
        ],
        **base,
    )
    check(
        "31" in after.content[0].text or "sunny" in after.content[0].text.lower(),
        f"the answer of a call: {after.content}",
    )
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city"""
        asked.append(city)
        return "31 degrees, sunny"

    runner = client.beta.messages.tool_runner(max_iterations=2, messages=weather, tools=[get_weather], **base)
    check(
        runner.until_done() and asked and asked[0].startswith("Paris"),
        f"a tool runner, which would rather have threads: {asked}",
    )
    stopped = client.messages.create(messages=ask, stop_sequences=["ari"], **base)
    check(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "ari", f"{stopped}")
    check(
        client.messages.create(
            **{**base, "messages": [{"role": "user", "content": "Write a poem."}], "max_tokens": 3}
        ).stop_reason
        == "max_tokens",
        "cut",
    )
    refused(lambda: client.messages.create(messages=[], **base), anthropic.BadRequestError, "no messages")
    refused(
        lambda: client.messages.create(messages=ask, model="other", max_tokens=5),
        anthropic.NotFoundError,
        "another model",
    )
    status, _, body = s.request("POST", "/v1/messages", {"model": s.name, "messages": ask})
    check(status == 400 and json.loads(body)["error"]["type"] == "invalid_request_error", body)


def test_ollama(s):
    client = ollama.Client(host=s.url)
    ask = [{"role": "user", "content": ASK}]
    options = {"temperature": 0, "num_predict": 60, "num_ctx": 2048}
    whole = client.chat(model=s.name, messages=ask, options=options)
    check(
        "Paris" in whole.message.content and whole.done and whole.done_reason == "stop" and whole.eval_count > 0,
        f"ollama: {whole}",
    )
    pieces = list(client.chat(model=s.name, messages=ask, options=options, stream=True))
    check(
        "".join(p.message.content for p in pieces) == whole.message.content
        and [p.done for p in pieces][-1] is True
        and not any(p.done for p in pieces[:-1]),
        "a stream is what the whole is",
    )
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city", "parameters": CITY},
    }
    weather = [{"role": "user", "content": WEATHER}]
    called = client.chat(model=s.name, messages=weather, tools=[tool], options=options)
    if check(called.message.tool_calls, f"a call: {called}"):
        call = called.message.tool_calls[0]
        check(call.function.name == "get_weather" and call.function.arguments == {"city": "Paris"}, call)
        streamed = [
            c
            for p in client.chat(model=s.name, messages=weather, tools=[tool], options=options, stream=True)
            for c in p.message.tool_calls or []
        ]
        check(
            [c.function.arguments for c in streamed] == [c.function.arguments for c in called.message.tool_calls],
            f"streamed calls: {streamed}",
        )
        after = client.chat(
            model=s.name,
            tools=[tool],
            options=options,
            messages=weather
            + [called.message, {"role": "tool", "tool_name": "get_weather", "content": "31 degrees, sunny"}],
        )
        check(after.done, f"the answer of a call: {after}")
    structured = client.chat(model=s.name, messages=ask, format=ANSWER, options=options)
    check(set(json.loads(structured.message.content)) == {"capital", "sure"}, structured.message.content)
    generated = client.generate(model=s.name, prompt=ASK, options=options)
    check("Paris" in generated.response, generated)
    check(
        [m.model for m in client.list().models] == [s.name] and client.show(s.name).capabilities[0] == "completion",
        "list and show",
    )
    refused(lambda: client.chat(model="other", messages=ask), ollama.ResponseError, "another model")
    refused(
        lambda: client.chat(model=s.name, messages=ask, options={"mirostat": 1}),
        ollama.ResponseError,
        "an option that is not kept",
    )


def test_limits(s):
    """More tokens than the context holds, and prompts that do not fit it, as each door's clients expect them to be
    taken.
    """
    ask = [{"role": "user", "content": ASK}]
    client = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0)
    with client.messages.stream(model=s.name, max_tokens=64000, messages=ask, extra_body={"temperature": 0}) as stream:
        check("Paris" in stream.get_final_message().content[0].text, "64,000 tokens of an answer")
    long = [{"role": "user", "content": "word " * 5000}]
    try:
        client.messages.create(model=s.name, max_tokens=5, messages=long)
        check(False, "a prompt that is too long was accepted")
    except anthropic.BadRequestError as e:
        check("prompt is too long: " in str(e) and "> 2047 maximum" in str(e), e)
    check(client.messages.count_tokens(model=s.name, messages=long).input_tokens > 5000, "it can be counted")
    whole = ollama.Client(host=s.url).chat(
        model=s.name, messages=ask, options={"temperature": 0, "num_predict": 100000}
    )
    check("Paris" in whole.message.content, "num_predict beyond the context")
    sixteen = [f"stop{i}" for i in range(15)] + ["ari"]
    stopped = client.messages.create(
        model=s.name, max_tokens=60, messages=ask, stop_sequences=sixteen, extra_body={"temperature": 0}
    )
    check(stopped.stop_sequence == "ari", f"{stopped}")
    status, _, body = s.request(
        "POST",
        "/v1/responses",
        {
            "model": s.name,
            "input": ASK,
            "stream": True,
            "temperature": 0,
            "stream_options": {"include_obfuscation": True},
        },
    )
    deltas = [
        json.loads(line[6:])
        for line in body.decode().split("\n")
        if line.startswith("data: ") and "output_text.delta" in line
    ]
    check(status == 200 and deltas and all(d["obfuscation"] for d in deltas), deltas[:2])
    for path, body in (
        ("/v1/responses", {"input": ASK, "truncation": "auto"}),
        ("/v1/responses", {"input": ASK, "include": ["message.output_text.logprobs"]}),
        ("/v1/messages", {"messages": ask, "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 0}}),
        ("/api/chat", {"messages": ask, "options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}),
    ):
        status, _, answer = s.request("POST", path, {"model": s.name, **body})
        check(status == 400, f"{path} {body}: {status} {answer[:200]}")


def test_tokens(s):
    status, _, body = s.request("POST", "/tokenize", {"prompt": "Hello 🙂", "return_token_strs": True})
    answer = json.loads(body)
    check(len(answer["token_strs"]) == answer["count"] and answer["token_strs"][0] == "Hello", answer)
    status, _, body = s.request("POST", "/tokenize", {"content": "Hello, wörld 🙂"})
    tokens = json.loads(body)["tokens"]
    check(status == 200 and json.loads(body)["count"] == len(tokens) > 3, body)
    status, _, body = s.request("POST", "/detokenize", {"tokens": tokens})
    check(json.loads(body)["content"] == "Hello, wörld 🙂", body)
    pieces = json.loads(s.request("POST", "/tokenize", {"content": "Hello 🙂", "with_pieces": True})[2])["tokens"]
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    check(joined == "Hello 🙂".encode(), pieces)
    for wrong in ({}, {"content": 5}, {"content": "x", "other": 1}, {"content": "x", "model": "other"}):
        check(400 <= s.request("POST", "/tokenize", wrong)[0] < 500, wrong)
    for wrong in ({}, {"tokens": 5}, {"tokens": [-1]}, {"tokens": [10**9]}, {"tokens": ["x"]}):
        check(400 <= s.request("POST", "/detokenize", wrong)[0] < 500, wrong)
    longest = max(
        range(2000), key=lambda id: len(json.loads(s.request("POST", "/detokenize", {"tokens": [id]})[2])["content"])
    )
    status, _, body = s.request("POST", "/detokenize", {"tokens": [longest] * 5_000_000})
    check(
        status == 400 or len(body) < 1 << 26,
        f"an answer many times as large as its request: {status}, {len(body)} bytes",
    )


def test_malformed(s):
    ask = [{"role": "user", "content": "x"}]
    wrong = {
        "/v1/responses": [
            {},
            {"input": 5},
            {"input": [5]},
            {"input": [{}]},
            {"input": [{"type": "function_call"}]},
            {"input": "x", "tools": 5},
            {"input": "x", "tools": [5, {"type": "function"}]},
            {"input": "x", "tool_choice": {}},
            {"input": "x", "text": {"format": {"type": "xml"}}},
            {"input": "x", "other": 1},
            {"input": "x", "background": True},
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            {"input": "x", "text": {"format": {"type": "text"}, "other": "x" * (5 << 20)}},
        ],
        "/v1/messages": [
            {},
            {"messages": 5},
            {"messages": [5]},
            {"messages": [{}]},
            {"messages": [{"role": "tool", "content": "x"}]},
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]},
            {"messages": ask, "tools": 5},
            {"messages": ask, "tools": [{}]},
            {"messages": ask, "tool_choice": {"type": "x"}},
            {"messages": ask, "system": 5},
            {"messages": ask, "other": 5},
        ],
        "/api/chat": [
            {"other": 1},
            {"messages": 5},
            {"messages": [5]},
            {"messages": [{}]},
            {"messages": [{"role": "user", "content": "x", "images": ["x"]}]},
            {"messages": ask, "options": 5},
            {"messages": ask, "options": {"other": 1}},
            {"messages": ask, "format": 5},
            {"messages": ask, "stream": "x"},
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        ],
        "/api/generate": [
            {"keep_alive": "soon"},
            {"prompt": 5},
            {"prompt": "x", "raw": 5},
            {"prompt": "x", "suffix": 5},
            {"prompt": "x", "system": 5},
        ],
    }
    for path, bodies in wrong.items():
        for body in bodies:
            status, _, answer = s.request(
                "POST",
                path,
                {"model": s.name, "max_tokens": 1, **body} if path == "/v1/messages" else {"model": s.name, **body},
            )
            check(400 <= status < 500 and "error" in json.loads(answer), f"{path} {body}: {status} {answer[:200]}")


BODIES = {
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "y"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "5"},
        ],
        "instructions": "z",
        "tools": [{"type": "function", "name": "f", "parameters": CITY}],
        "tool_choice": "auto",
        "max_output_tokens": 1,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": ANSWER}},
        "stream": False,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "max_tokens": 1,
        "system": [{"type": "text", "text": "z"}],
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t"},
                    {"type": "text", "text": "y"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "5"}]}],
            },
        ],
        "tools": [{"name": "f", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["q"],
        "thinking": {"type": "disabled"},
        "stream": True,
    },
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "content": "5"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}],
        "options": {"num_predict": 1, "stop": ["a"], "seed": 3},
        "format": ANSWER,
        "think": False,
    },
    "/api/generate": {"prompt": "x", "system": "y", "options": {"num_predict": 1}, "format": "json", "stream": False},
    "/v1/chat/completions": {
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "5"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
    },
}


def places(value, at=()):
    """Where something could be put into a body."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, at + (key,))


def test_mutated(s, rounds=60):
    """Any value anywhere is an answer or a client's mistake."""
    random_ = random.Random(5)
    junk = [
        None,
        5,
        -1,
        2.5,
        True,
        "",
        "x",
        "{",
        [],
        {},
        [5],
        [[]],
        {"type": "text"},
        {"a": {"b": []}},
        "\u0000",
        "x" * 5000,
    ]
    for path, body in BODIES.items():
        spots = [p for p in places(body) if p and p[0] not in ("max_tokens", "max_output_tokens", "options")]
        for _ in range(rounds):
            changed = json.loads(json.dumps(body))
            for spot in random_.sample(spots, random_.choice([1, 1, 2])):
                parent = changed
                try:
                    for key in spot[:-1]:
                        parent = parent[key]
                    if random_.random() < 0.2:
                        del parent[spot[-1]]
                    else:
                        parent[spot[-1]] = random_.choice(junk)
                except (KeyError, IndexError, TypeError):
                    pass
            status, _, answer = s.request("POST", path, {"model": s.name, **changed})
            check(status in (200, 400), f"{path} {json.dumps(changed)[:600]}: {status} {answer[:200]}")
    check(s.alive(), "the server lives")


if __name__ == "__main__":
    with Server(model_path("qwen-0.5b"), "--ctx-size", 2048) as server:
        for test in (test_tokens, test_limits, test_responses, test_messages, test_ollama):
            test(server)
    with tempfile.TemporaryDirectory() as directory:  # where the words of an answer do not matter
        write_scripted_model(directory, ["Well"], template(HERMES))
        with Server(directory, "--ctx-size", 2048) as server:
            test_malformed(server)
            test_mutated(server)
    check.done()
