"""What the scripts for Python share: the server's address, questions, and a count of what holds. CLIENT.py URL MODEL"""

import enum
import os
import sys

import pydantic

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from apus_server import Checks  # noqa: E402

url, model = sys.argv[1:3]
check = Checks()
CAPITAL = "What is the capital of France? One word."
WEATHER = "What is the weather in Paris?"
ABOUT = "Paris, as JSON with name and country."
RESULT = "31 degrees, sunny"


class City(pydantic.BaseModel):
    """A city"""

    name: str
    country: str


class Place(enum.StrEnum):
    PARIS = "Paris"
    ROME = "Rome"


def answers(text):
    """Whether the text uses the tool's result."""
    return "31" in text or "sunny" in text.lower()


def refused(call, error, test, what):
    """The call must fail with this error, of which the test holds."""
    try:
        call()
    except error as e:
        check(test(e), f"{what}: {e!r}")
    else:
        check(False, f"{what} was accepted")
