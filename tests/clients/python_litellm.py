"""LiteLLM by four of its providers (openai, hosted_vllm, anthropic, ollama_chat): chat, stream, tools, structured
output, errors.
"""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks nobody for prices

import litellm
from common import ABOUT, CAPITAL, RESULT, WEATHER, City, answers, check, model, refused, url

litellm.suppress_debug_info = True
WHERE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WHERE},
    }
]


def user(text):
    return [{"role": "user", "content": text}]


def talk(provider, base, force):
    common = dict(
        model=f"{provider}/{model}", api_base=base, api_key="none", max_tokens=100, temperature=0, num_retries=0
    )
    whole = litellm.completion(messages=user(CAPITAL), **common)
    text = whole.choices[0].message.content
    check("Paris" in text and whole.usage.completion_tokens > 0, f"{provider}: {whole}")
    pieces = [
        c.choices[0].delta.content or ""
        for c in litellm.completion(messages=user(CAPITAL), stream=True, **common)
        if c.choices
    ]
    check("".join(pieces) == text, f"{provider}, stream: {pieces}")
    called = litellm.completion(messages=user(WEATHER), tools=TOOLS, **force, **common).choices[0]
    call = (called.message.tool_calls or [None])[0]
    check(
        call and called.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Paris"},
        f"{provider}, a call: {called}",
    )
    chunks = list(litellm.completion(messages=user(WEATHER), tools=TOOLS, stream=True, **force, **common))
    built = litellm.stream_chunk_builder(chunks).choices[0].message
    check(
        built.tool_calls and json.loads(built.tool_calls[0].function.arguments) == {"city": "Paris"},
        f"{provider}, a streamed call: {built}",
    )
    history = user(WEATHER) + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    after = (
        litellm.completion(messages=history, tools=TOOLS, tool_choice="none", **common).choices[0].message.content
        if provider != "ollama_chat"
        else litellm.completion(messages=history, **common).choices[0].message.content
    )
    check(answers(after or ""), f"{provider}, the answer of a call: {after!r}")
    parsed = litellm.completion(messages=user(ABOUT), response_format=City, **common).choices[0].message.content
    check("Paris" in City.model_validate_json(parsed).name, f"{provider}, structured: {parsed}")
    refused(
        lambda: litellm.completion(messages=user(CAPITAL), **{**common, "model": f"{provider}/other"}),
        Exception,
        lambda e: getattr(e, "status_code", 0) in (404, 400, 500) and "other" in str(e),
        f"{provider}, another model",
    )
    refused(
        lambda: litellm.completion(messages=user(CAPITAL), **{**common, "temperature": 9}),
        Exception,
        lambda e: "temperature" in str(e),
        f"{provider}, temperature 9",
    )


one = {"tool_choice": "required", "parallel_tool_calls": False}
talk("openai", url + "/v1", one)
talk("hosted_vllm", url + "/v1", one)
talk("anthropic", url, one)
talk("ollama_chat", url, {})
check.done()
