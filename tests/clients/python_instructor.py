"""instructor: objects by tools and by schemas, whole, in parts and as a list, with OpenAI's and Anthropic's clients;
errors.
"""

import anthropic
import instructor
import openai
import pydantic
from common import ABOUT, City, check, model, refused, url

ask = [{"role": "user", "content": ABOUT}]


def client_of(mode):
    return instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=mode)


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    client = client_of(mode)
    fields = dict(model=model, messages=ask, temperature=0, max_tokens=100, max_retries=0)
    city = client.chat.completions.create(response_model=City, **fields)
    check("Paris" in city.name, f"{mode}: {city}")
    parts = list(client.chat.completions.create_partial(response_model=City, **fields))
    check(parts and "Paris" in (parts[-1].name or "") and parts[-1].country, f"{mode}, in parts: {parts[-1:]}")
cities = list(
    client_of(instructor.Mode.TOOLS).chat.completions.create_iterable(
        model=model,
        response_model=City,
        temperature=0,
        max_tokens=200,
        max_retries=0,
        messages=[{"role": "user", "content": "Extract the cities: Paris in France and Rome in Italy."}],
    )
)
check(cities and "Paris" in cities[0].name, f"a list: {cities}")
claude = instructor.from_anthropic(
    anthropic.Anthropic(base_url=url, api_key="none", max_retries=0), mode=instructor.Mode.ANTHROPIC_TOOLS
)
city = claude.messages.create(model=model, messages=ask, max_tokens=100, max_retries=0, response_model=City)
check("Paris" in city.name, f"Messages: {city}")


class Never(pydantic.BaseModel):
    """A city"""

    name: str

    @pydantic.field_validator("name")
    @classmethod
    def refuse(cls, value):
        raise ValueError("name a river")


refused(
    lambda: client_of(instructor.Mode.TOOLS).chat.completions.create(
        model=model, messages=ask, response_model=Never, temperature=0, max_tokens=60, max_retries=1
    ),
    Exception,
    lambda e: "river" in str(e),
    "an object that never passes, asked for twice",
)
refused(
    lambda: client_of(instructor.Mode.TOOLS).chat.completions.create(
        model="other", messages=ask, response_model=City, max_retries=0
    ),
    Exception,
    lambda e: "other" in str(e),
    "another model",
)
check.done()
