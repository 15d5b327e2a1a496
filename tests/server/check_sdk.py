"""The official OpenAI Python SDK: chat, streaming, multi-turn, tools, logprobs, n = 3, structured output, completions,
errors.
"""

import openai
import pydantic
from apus_server import Checks, Server, model_path

check = Checks()


class Weather(pydantic.BaseModel):
    """The weather of a city"""

    city: str


def tools(client, model):
    """A call, parsed and streamed, and its answer."""
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields = dict(
        model=model,
        temperature=0,
        max_tokens=60,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    parsed = client.chat.completions.parse(messages=ask, **fields).choices[0]
    call = parsed.message.tool_calls[0]
    check(
        parsed.finish_reason == "tool_calls" and "Paris" in call.function.parsed_arguments.city,
        f"a parsed call: {parsed}",
    )
    with client.chat.completions.stream(messages=ask, **fields) as helper:
        done = [e for e in helper if e.type == "tool_calls.function.arguments.done"]
        final = helper.get_final_completion().choices[0].message
    check(
        final.tool_calls[0].function.arguments == call.function.arguments and done[0].name == "Weather",
        f"a streamed call: {final}",
    )
    history = ask + [
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "Weather", "arguments": call.function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "31 degrees, sunny"},
    ]
    after = (
        client.chat.completions.create(
            messages=history, **{**fields, "tool_choice": "none", "parallel_tool_calls": True}
        )
        .choices[0]
        .message
    )
    check("31" in after.content or "sunny" in after.content.lower(), f"the answer of a call: {after.content!r}")
    try:
        client.chat.completions.create(
            messages=ask, **{**fields, "tool_choice": {"type": "function", "function": {"name": "other"}}}
        )
        check(False, "a function that is no tool was accepted")
    except openai.BadRequestError as e:
        check(e.param == "tool_choice.function.name", e.param)


with Server(model_path("qwen-0.5b"), "--ctx-size", 2048) as server:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    ask = [{"role": "user", "content": "What is the capital of France? One word."}]
    answer = client.chat.completions.create(model=server.name, messages=ask, max_tokens=16, temperature=0)
    text = answer.choices[0].message.content
    check("Paris" in text, f"chat: {text!r}")
    stream = client.chat.completions.create(
        model=server.name,
        messages=ask,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(joined == text, "streaming gives the same text")
    usage, again = (u.model_dump(exclude={"prompt_tokens_details"}) for u in (answer.usage, chunks[-1].usage))
    check(usage == again, "and the same usage")
    check(chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "but for what the first request left")
    with client.chat.completions.stream(model=server.name, messages=ask, max_tokens=16, temperature=0) as helper:
        final = helper.get_final_completion()
    check(
        final.choices[0].message.content == text and final.choices[0].message.role == "assistant",
        "the stream helper agrees",
    )
    turns = ask + [{"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy? One word."}]
    second = client.chat.completions.create(model=server.name, messages=turns, max_completion_tokens=16, temperature=0)
    check("Rom" in second.choices[0].message.content, f"multi-turn: {second.choices[0].message.content!r}")
    scored = client.chat.completions.create(
        model=server.name, messages=ask, max_tokens=4, temperature=0, logprobs=True, top_logprobs=5
    )
    entries = scored.choices[0].logprobs.content
    check(
        all(len(e.top_logprobs) == 5 and e.logprob == max(t.logprob for t in e.top_logprobs) for e in entries),
        "logprobs: greedy takes the top",
    )
    three = client.chat.completions.create(model=server.name, messages=ask, max_tokens=16, n=3, temperature=1, seed=7)
    again = client.chat.completions.create(model=server.name, messages=ask, max_tokens=16, n=3, temperature=1, seed=7)
    check(
        [c.message.content for c in three.choices] == [c.message.content for c in again.choices]
        and len(three.choices) == 3,
        "n = 3, reproducible",
    )

    class City(pydantic.BaseModel):
        name: str
        country: str
        millions: int
        sights: list[str] = pydantic.Field(max_length=3)

    facts = [
        {"role": "user", "content": "Paris, as JSON with name, country, millions of people and up to three sights."}
    ]
    parsed = client.chat.completions.parse(
        model=server.name, messages=facts, response_format=City, max_tokens=300, temperature=0
    )
    city = parsed.choices[0].message.parsed
    check(
        isinstance(city, City) and "Paris" in city.name and parsed.choices[0].finish_reason == "stop",
        f"parse: {parsed.choices[0]}",
    )
    with client.chat.completions.stream(
        model=server.name, messages=facts, response_format=City, max_tokens=300, temperature=0
    ) as helper:
        streamed = helper.get_final_completion().choices[0].message.parsed
    check(streamed == city, f"parse in a stream: {streamed}")
    try:
        client.chat.completions.parse(
            model=server.name, messages=facts, response_format=City, max_tokens=5, temperature=0
        )
        check(False, "an answer that was cut is parsed")
    except openai.LengthFinishReasonError:
        check(True, "an answer that is cut says so")
    try:
        client.chat.completions.create(
            model=server.name,
            messages=facts,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"not": {"format": "date"}}},
            },
        )
        check(False, "a schema that cannot be kept is accepted")
    except openai.BadRequestError as e:
        check(e.param == "response_format" and "not" in e.message, f"a schema that cannot be kept: {e}")
    tools(client, server.name)
    old = client.completions.create(
        model=server.name, prompt="def add(a, b):", max_tokens=12, temperature=0, stop=["\n\n"]
    )
    check("return" in old.choices[0].text, f"completions: {old.choices[0].text!r}")
    try:
        client.embeddings.create(model=server.name, input="Paris")
        check(False, "a chat model's states as an embedding")
    except openai.BadRequestError as e:
        check(e.code == "unsupported_model" and "--pooling" in e.message, f"{e}")
    check(
        [m.id for m in client.models.list()] == [server.name] and client.models.retrieve(server.name).id == server.name,
        "models",
    )
    for wrong, error, param in (
        (dict(temperature=9), openai.BadRequestError, "temperature"),
        (dict(model="other"), openai.NotFoundError, "model"),
        (
            dict(tools=[{"type": "function", "function": {"name": "f g"}}]),
            openai.BadRequestError,
            "tools[0].function.name",
        ),
        (dict(messages=[]), openai.BadRequestError, "messages"),
    ):
        try:
            client.chat.completions.create(**{"model": server.name, "messages": ask, **wrong})
            check(False, f"{wrong} was accepted")
        except error as e:
            check(e.param == param and e.request_id, f"{wrong}: {e.param} {e.request_id}")
check.done()
