#!/usr/bin/env python3
"""Renders every chat template in the cache with many conversations, here and with transformers, and compares.

    tools/fetch_templates.sh                       fills ${XDG_CACHE_HOME:-~/.cache}/apus/templates
    tests/text/check_templates.py [BUILD/test_template [NAME-PART]]

The reference is transformers' render_jinja_template (5.23, jinja2 3.1.6) with the filter from_json, which templates use
although transformers has none. Text must be equal byte for byte, and an error there must be an error here. Exit 77 when
there are no templates (and none can be fetched) or there is no transformers.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
NOW = "2025-06-09T14:05:06"

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Get the weather <b>&</b> "more"',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Größe, 城市"},
                "days": {"type": "integer", "enum": [1, 2, 3]},
                "unit": {"type": ["string", "null"], "default": None},
                "items": {"type": "array", "items": {"type": "number"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
            },
            "required": ["city"],
        },
        "strict": True,
    },
}
TOOL2 = {
    "type": "function",
    "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}},
}
CALL = {
    "type": "function",
    "id": "call_123456789",
    "function": {
        "name": "get_weather",
        "arguments": {
            "city": 'Zürich "1"\n2',
            "days": 3,
            "ok": True,
            "none": None,
            "f": 1.5,
            "list": [1, "a", {"b": []}],
        },
    },
}
CALL_TEXT = {"type": "function", "id": "abcdefghi", "function": {"name": "noop", "arguments": '{"a": 1}'}}


def user(text):
    return {"role": "user", "content": text}


def conversations():
    system = {"role": "system", "content": "You are  terse.\n"}
    turns = [user("Hi!"), {"role": "assistant", "content": "Hello <|im_end|> there. "}, user("  And \u2603 now?\n")]
    called = [
        user("Weather?"),
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"temp": 21}', "tool_call_id": "call_123456789", "name": "get_weather"},
    ]
    thought = [
        user("1+1?"),
        {"role": "assistant", "content": "2", "reasoning_content": "one and one\nis two"},
        user("sure?"),
    ]
    inline = [user("1+1?"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"}, user("sure?")]
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}],
        }
    ]
    textparts = [
        {"role": "system", "content": [{"type": "text", "text": "Sys"}]},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
    ]
    documents = [{"title": "Doc", "text": "Some text", "snippet": "s"}, {"title": "Two", "text": "More", "id": 7}]
    cases = {
        "one": dict(messages=[user("Hi!")]),
        "one+gen": dict(messages=[user("Hi!")], add_generation_prompt=True),
        "system": dict(messages=[system, user("Hi!")], add_generation_prompt=True),
        "turns": dict(messages=turns, add_generation_prompt=True),
        "system turns": dict(messages=[system] + turns),
        "developer": dict(messages=[{"role": "developer", "content": "Dev"}] + turns, add_generation_prompt=True),
        "tools": dict(messages=[user("Weather?")], tools=[TOOL, TOOL2], add_generation_prompt=True),
        "system tools": dict(messages=[system, user("Weather?")], tools=[TOOL], add_generation_prompt=True),
        "calls": dict(messages=called, tools=[TOOL], add_generation_prompt=True),
        "calls two": dict(
            messages=[system]
            + called
            + [
                {"role": "tool", "content": "more", "tool_call_id": "x"},
                {"role": "assistant", "content": "Done."},
                user("Thanks"),
            ],
            tools=[TOOL, TOOL2],
            add_generation_prompt=True,
        ),
        "parallel": dict(
            messages=[
                user("Both"),
                {"role": "assistant", "content": "Calling", "tool_calls": [CALL, CALL_TEXT]},
                {"role": "tool", "content": "r1", "name": "get_weather", "tool_call_id": "call_123456789"},
                {"role": "tool", "content": "r2", "name": "noop", "tool_call_id": "abcdefghi"},
            ],
            tools=[TOOL, TOOL2],
            add_generation_prompt=True,
        ),
        "call text": dict(
            messages=[user("x"), {"role": "assistant", "content": None, "tool_calls": [CALL_TEXT]}], tools=[TOOL2]
        ),
        "call no content": dict(
            messages=[
                user("x"),
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": [{"type": "text", "text": "part"}]},
            ],
            tools=[TOOL],
            add_generation_prompt=True,
        ),
        "reasoning": dict(messages=thought, add_generation_prompt=True),
        "reasoning end": dict(messages=thought[:2]),
        "reasoning calls": dict(
            messages=[
                user("w"),
                {"role": "assistant", "content": "", "reasoning": "let me see", "tool_calls": [CALL]},
                called[2],
            ],
            tools=[TOOL],
            add_generation_prompt=True,
        ),
        "inline": dict(messages=inline, add_generation_prompt=True),
        "thinking on": dict(messages=[user("q")], add_generation_prompt=True, enable_thinking=True),
        "thinking off": dict(messages=turns, add_generation_prompt=True, enable_thinking=False),
        "thinking flag": dict(messages=thought, add_generation_prompt=True, thinking=True),
        "documents": dict(messages=[system, user("q")], documents=documents, add_generation_prompt=True),
        "parts": dict(messages=parts, add_generation_prompt=True),
        "text parts": dict(messages=textparts, add_generation_prompt=True),
        "parts turns": dict(
            messages=textparts + [{"role": "assistant", "content": [{"type": "text", "text": "C"}]}, user("D")],
            add_generation_prompt=True,
        ),
        "continue": dict(
            messages=[user("Count"), {"role": "assistant", "content": "One, two "}], continue_final_message=True
        ),
        "continue parts": dict(
            messages=[user("Count"), {"role": "assistant", "content": [{"type": "text", "text": "One"}]}],
            continue_final_message=True,
        ),
        "continue none": dict(
            messages=[user("Count"), {"role": "assistant", "content": None}], continue_final_message=True
        ),
        "continue thought": dict(
            messages=[user("Count"), {"role": "assistant", "content": "x", "reasoning_content": "mull"}],
            continue_final_message="reasoning_content",
        ),
        "empty": dict(messages=[]),
        "two users": dict(messages=[user("a"), user("b")], add_generation_prompt=True),
        "assistant first": dict(messages=[{"role": "assistant", "content": "a"}, user("b")]),
        "odd role": dict(messages=[{"role": "critic", "content": "a"}]),
        "no content": dict(messages=[{"role": "user"}]),
        "number": dict(messages=[{"role": "user", "content": 5}]),
        "late system": dict(messages=[user("a"), system, user("b")], add_generation_prompt=True),
        "options": dict(
            messages=turns,
            add_generation_prompt=True,
            reasoning_effort="high",
            date_string="26 Jul 2024",
            builtin_tools=["browser", "python"],
            model_identity="You are X.",
            custom_tools=None,
            response_format={"type": "json_object"},
            add_vision_id=True,
        ),
        "long": dict(
            messages=[system]
            + [user(f"q {i}") if i % 2 == 0 else {"role": "assistant", "content": f"a {i}"} for i in range(31)],
            add_generation_prompt=True,
        ),
        "odd text": dict(
            messages=[user("\u00a0 x \u3000\t{{ 1 }} {% if %} \\n 'q' \"dq\" \u2028 end\r\n")],
            add_generation_prompt=True,
        ),
    }
    for case in cases.values():
        case.update(bos_token="<s>", eos_token="</s>")
    return cases


def reference(template, case):
    from transformers.utils.chat_template_utils import render_jinja_template

    case = copy.deepcopy(case)
    messages = case.pop("messages")
    try:
        if case.get("continue_final_message") and case.get("add_generation_prompt"):
            raise ValueError("continue_final_message with add_generation_prompt")
        rendered, _ = render_jinja_template([messages], chat_template=template, **case)
        return rendered[0], None
    except Exception as error:  # every failure of a template is one here
        return None, f"{type(error).__name__}: {error}"


def prepare_reference():
    import datetime

    import jinja2.defaults
    from transformers.utils import chat_template_utils as utils

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(NOW)

    utils.datetime = Frozen
    jinja2.defaults.DEFAULT_FILTERS["from_json"] = json.loads


def ours(binary, path, cases):
    lines = "".join(json.dumps({**case, "now": NOW}) + "\n" for case in cases.values())
    run = subprocess.run([binary, "render", str(path)], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "apus" / "templates"
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (cache / ".complete").exists():
        subprocess.run(
            [root / "tools" / "fetch_templates.sh"], check=False, env={**os.environ, "PYTHON": sys.executable}
        )
    paths = sorted(cache.glob("*.jinja"))
    if not paths:
        print(f"skipped: no templates in {cache} (tools/fetch_templates.sh fetches them)")
        return 77
    try:
        prepare_reference()
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    binary = sys.argv[1] if len(sys.argv) > 1 else root / "build" / "test_template"
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    cases = conversations()
    equal = errors = different = 0
    for path in paths:
        if part not in path.name:
            continue
        template = path.read_bytes().decode()
        for (name, case), answer in zip(cases.items(), ours(binary, path, cases), strict=True):
            text, error = reference(template, case)
            got = answer.get("prompt")
            if text == got:
                equal += text is not None
                errors += text is None
                continue
            different += 1
            print(f"{path.name}: {name}")
            if text is None or got is None:
                print(f"   reference: {error or 'renders'}\n   here:      {answer.get('error', 'renders')}")
            else:
                at = next((i for i, (a, b) in enumerate(zip(text, got)) if a != b), min(len(text), len(got)))
                print(
                    f"   at {at}: reference {text[max(0, at - 30) : at + 40]!r}\n   here "
                    f"{got[max(0, at - 30) : at + 40]!r}"
                )
    print(f"{equal} renderings equal, {errors} errors on both sides, {different} different")
    return 1 if different or not equal else 0


if __name__ == "__main__":
    sys.exit(main())
