"""LangChain's three doors (OpenAI's chat and Responses, Anthropic's Messages, Ollama's): chat, stream, tools,
structured output, errors.
"""

import anthropic
import ollama
import openai
from common import ABOUT, CAPITAL, RESULT, WEATHER, City, Place, answers, check, model, refused, url
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: Place) -> str:
    """The weather of a city"""
    return RESULT


def openai_door(**fields):
    return ChatOpenAI(
        **{"model": model, "temperature": 0, "max_tokens": 100, "stream_usage": True, **fields},
        base_url=url + "/v1",
        api_key="none",
        max_retries=0,
    )


def responses_door(**fields):
    return openai_door(**fields, use_responses_api=True)


def anthropic_door(**fields):
    return ChatAnthropic(
        **{"model": model, "temperature": 0, "max_tokens": 100, **fields}, base_url=url, api_key="none", max_retries=0
    )


def ollama_door(**fields):
    return ChatOllama(**{"model": model, "temperature": 0, "num_predict": 100, **fields}, base_url=url)


def talk(door, way, force, wrong):
    chat = door()
    whole = chat.invoke(CAPITAL)
    check("Paris" in whole.text and whole.usage_metadata["output_tokens"] > 0, f"{way}: {whole}")
    chunks = list(chat.stream(CAPITAL))
    joined = sum(chunks[1:], chunks[0])
    check(
        joined.text == whole.text and joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"],
        f"{way}, stream: {joined}",
    )
    bound = chat.bind_tools([get_weather], **force)
    called = bound.invoke(WEATHER)
    check(called.tool_calls and called.tool_calls[0]["args"] == {"city": "Paris"}, f"{way}, a call: {called}")
    chunks = list(bound.stream(WEATHER))
    streamed = sum(chunks[1:], chunks[0])
    check(
        [c["args"] for c in streamed.tool_calls] == [c["args"] for c in called.tool_calls],
        f"{way}, a streamed call: {streamed}",
    )
    results = [get_weather.invoke(call) for call in called.tool_calls]
    after = chat.invoke([HumanMessage(WEATHER), called, *results])
    check(answers(after.text), f"{way}, the answer of a call: {after}")
    for method in (
        ("json_schema", "function_calling") if force else ("json_schema",)
    ):  # Ollama's API cannot demand a call
        city = chat.with_structured_output(City, method=method).invoke(ABOUT)
        check(isinstance(city, City) and "Paris" in city.name, f"{way}, {method}: {city}")
    for what, fields, error in wrong:
        refused(lambda: door(**fields).invoke(CAPITAL), error, lambda e: True, f"{way}, {what}")


once = {"tool_choice": "required", "parallel_tool_calls": False}
of_openai = [
    ("another model", {"model": "other"}, openai.NotFoundError),
    ("temperature 9", {"temperature": 9}, openai.BadRequestError),
]
talk(openai_door, "chat", once, of_openai)
talk(responses_door, "responses", once, of_openai)
talk(
    anthropic_door,
    "anthropic",
    {"tool_choice": "any", "parallel_tool_calls": False},
    [
        ("another model", {"model": "other"}, anthropic.NotFoundError),
        ("temperature 9", {"temperature": 9}, anthropic.BadRequestError),
    ],
)
talk(
    ollama_door,
    "ollama",
    {},
    [("another model", {"model": "other"}, ollama.ResponseError), ("mirostat", {"mirostat": 1}, ollama.ResponseError)],
)
check.done()
