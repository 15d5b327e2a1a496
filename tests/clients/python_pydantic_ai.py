"""pydantic-ai by OpenAI's chat and its Responses: text, stream, tools, objects by tool and by schema, errors."""

from common import ABOUT, CAPITAL, RESULT, WEATHER, City, Place, check, model, refused, url
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

of_openai = OpenAIProvider(base_url=url + "/v1", api_key="none")
WAYS = {
    "chat": lambda name: OpenAIChatModel(name, provider=of_openai),
    "responses": lambda name: OpenAIResponsesModel(name, provider=of_openai),
}
settings = {"temperature": 0, "max_tokens": 100, "parallel_tool_calls": False}
for way, of in WAYS.items():
    plain = Agent(of(model), model_settings={"temperature": 0, "max_tokens": 100})
    whole = plain.run_sync(CAPITAL)
    check("Paris" in whole.output and whole.usage.output_tokens > 0, f"{way}: {whole}")
    streamed = plain.run_stream_sync(CAPITAL)
    pieces = list(streamed.stream_text(delta=True))
    check("".join(pieces) == whole.output, f"{way}, stream: {pieces}")
    asked = []
    caller = Agent(of(model), model_settings=settings)

    @caller.tool_plain
    def get_weather(city: Place) -> str:
        """The weather of a city"""
        asked.append(str(city))
        return RESULT

    try:  # this small model calls again and again where it may
        caller.run_sync(WEATHER, usage_limits=UsageLimits(request_limit=2))
    except UsageLimitExceeded:
        pass
    check(asked and asked[0] == "Paris", f"{way}, a tool: {asked}")
    for kind in (ToolOutput, NativeOutput):
        city = (
            Agent(
                of(model),
                output_type=kind(City),
                model_settings=settings if kind is ToolOutput else {"temperature": 0, "max_tokens": 100},
            )
            .run_sync(ABOUT)
            .output
        )
        check(isinstance(city, City) and "Paris" in city.name, f"{way}, {kind}: {city}")
    refused(
        lambda: Agent(of("other")).run_sync(CAPITAL),
        ModelHTTPError,
        lambda e: e.status_code == 404,
        f"{way}, another model",
    )
    refused(
        lambda: Agent(of(model), model_settings={"temperature": 9}).run_sync(CAPITAL),
        ModelHTTPError,
        lambda e: e.status_code == 400,
        f"{way}, temperature 9",
    )
check.done()
