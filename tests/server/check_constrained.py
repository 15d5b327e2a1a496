"""Answers under a constraint are valid whatever a model says: models that end while they think, spell the end of
thinking in pieces, and write calls with values between markers that the tool's schema forbids.
"""

import json
import tempfile

import shapes
from apus_server import Checks, Server
from scripted_model import HERMES, TAGGED, template, write_scripted_model

check = Checks()
THINKS = "<think>\\n"
JSON_OBJECT = {"response_format": {"type": "json_object"}}
STRING = {"type": "string"}


def call(value, key="city"):
    begin = ["<tool_call>", "\n<function=f", f">\n<parameter={key}>\n"]
    return [*begin, value, "\n</parameter>\n", "</function>\n", "</tool_call>"]


def models(root):
    hermes, tagged = template(HERMES, THINKS), template(TAGGED)
    scripts = {
        "ends": (["I think ", "so."], hermes),
        "pieces": (["Hm. ", "</thi", "nk>{"], hermes, ["</think>"]),
        "joined": (["Hm. ", "x</think> ok."], hermes),
        "split": (["Hm", "ä½", "łmore"], hermes),  # the first two bytes of a character of three, then the third
        "shut": (["<think>", "Hm.", "</think>", "{}"], template(HERMES, "<think>\\n\\n</think>\\n\\n")),
        "oslo": (call("Oslo"), tagged),
        "null": (call("null"), tagged),
        "true": (call("true"), tagged),
        "five": (call("5.0"), tagged),
        "object": (call('{"a": "</parameter>"}'), tagged),
        "deep": (call("[" * 200 + "]" * 200), tagged),
        "number": (call("57"), tagged),
        "quoted": (['{"a": "', "<tool_call><function=f></function></tool_call>", '"}'], tagged),
        "filter": (call("Oslo", "$filter"), tagged),
        "date": (call("2026-11-26"), tagged),
        "late": (["One line.\n", "<think>", "Hm.", "</think>", "\n\nDone."], "{#- <think> #}" + template(HERMES)),
    }
    return [write_scripted_model(f"{root}/{name}", *script) for name, script in scripts.items()]


def ask(server, model, **fields):
    body = {"temperature": 0, "max_tokens": 60, **fields}
    server.name = model
    status, answer = server.chat("x", **body)
    if not check(status == 200, f"{model}: {answer}"):
        return None, None, None
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [c["function"]["arguments"] for c in message.get("tool_calls") or []]
    return choice["finish_reason"], calls or message["content"], message.get("reasoning_content")


def tool(schema, strict=True, choice="required"):
    function = {"name": "f", "strict": strict, "parameters": {"type": "object", **schema}}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }


def city(schema, **more):
    return {"properties": {"city": schema}, "required": ["city"], **more}


def is_json(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_thinking(server):
    """An answer does not end, nor begin, within reasoning where something is demanded."""
    for model in ("ends", "pieces", "joined"):
        for fields in (
            JSON_OBJECT,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "a",
                        "schema": {
                            "type": "object",
                            "properties": {"a": {"type": "boolean"}},
                            "required": ["a"],
                            "additionalProperties": False,
                        },
                    },
                }
            },
        ):
            finish, content, _ = ask(server, model, **fields, thinking_budget=20, max_tokens=400)
            check(finish == "length" or is_json(content), f"{model}: {finish} {content!r}")
        finish, calls, _ = ask(server, model, **tool(city({"enum": ["a"]})), thinking_budget=20, max_tokens=400)
        check(finish == "tool_calls" and json.loads(calls[0]) == {"city": "a"}, f"{model}: {finish} {calls}")
        finish, content, thought = ask(server, model, **JSON_OBJECT)
        check(finish == "length" or is_json(content), f"{model}, no budget: {finish} {content!r} {thought!r}")
    finish, content, thought = ask(server, "ends")
    check(finish == "stop" and thought == "I think so.", f"a free answer may end: {finish} {thought!r}")
    finish, content, thought = ask(server, "split", thinking_budget=2)
    check(thought == "Hm", f"a budget that ends inside a character: {thought!r}")
    finish, content, thought = ask(server, "split", max_tokens=2)
    check(thought == "Hm", f"a limit that ends inside a character: {thought!r}")
    finish, content, thought = ask(server, "shut", **JSON_OBJECT)
    check(thought is None and is_json(content), f"the prompt has closed the reasoning: {content!r} {thought!r}")
    finish, content, thought = ask(server, "late")
    whole = "One line.\n<think>Hm.</think>\n\nDone."
    check(content == whole and thought is None, f"reasoning behind a text is text: {content!r} {thought!r}")


def test_tagged_schemas(server):
    """Values between markers keep the whole schema."""
    definition = {"T": {"properties": {"zip": {"type": "integer", "maximum": 9}}, "required": ["zip"]}}
    for schema in (
        city({**STRING, "pattern": "^[A-Z]{3}$"}),
        city({**STRING, "format": "date"}),
        city({**STRING, "anyOf": [{"const": "Rome"}, {"const": "Bern"}]}),
        city({**STRING, "allOf": [{"maxLength": 3}]}),
        city({**STRING, "not": {"const": "Oslo"}, "maxLength": 5}),
        city({"$ref": "#/$defs/S"}, **{"$defs": {"S": {"type": "string", "enum": ["Rome"]}}}),
        {"properties": {"city": {**STRING, "maxLength": 4}, "b": {"type": "null"}, "c": {"type": "null"}},
         "minProperties": 3},
        {"properties": {"city": {**STRING, "maxLength": 4}, "zip": {"type": "null"}},
         "dependentRequired": {"city": ["zip"]}},
        {"properties": {"city": {"maxLength": 4}, "zip": {"type": "null"}, "lat": {"type": "null"}},
         "anyOf": [{"required": ["zip"]}, {"required": ["lat"]}]},
        {"properties": {"city": {**STRING, "maxLength": 4}}, "required": ["zip"], "additionalProperties": False,
         "patternProperties": {"^zip$": {"enum": [1, 2]}}},
        {"$ref": "#/$defs/T", "$defs": definition},
        {"allOf": [{"$ref": "#/$defs/T"}], "$defs": definition},
        {"properties": {"$filter": {"enum": ["a"]}}, "required": ["$filter"]},
        {"properties": {"1st": {"enum": ["a"]}, "user name": {"type": "boolean"}}, "required": ["1st", "user name"]},
        {"additionalProperties": {"type": "integer", "maximum": 9, "minimum": 0}, "minProperties": 1,
         "propertyNames": {"maxLength": 3}, "maxProperties": 1},
        city({"type": "array", "items": {"type": "string", "enum": ["a"]}, "maxItems": 2}),
    ):  # fmt: skip
        finish, calls, _ = ask(server, "oslo", **tool(schema), max_tokens=300)
        whole = finish == "tool_calls"
        problem = shapes.problem({"type": "object", **schema}, json.loads(calls[0])) if whole else "cut"
        check(finish == "tool_calls" and problem is None, f"{schema}: {finish} {calls} {problem}")
    listed = {"type": "array", "items": {"type": "null"}, "maxItems": 1, "contains": {}}
    kept = {"properties": {"city": {"enum": ["Rome"]}, "list": listed}, "required": ["city"]}
    finish, calls, _ = ask(server, "oslo", **tool(kept, strict=False), max_tokens=300)
    check(calls and json.loads(calls[0])["city"] == "Rome", f"one keyword is left out, not the schema: {calls}")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"a": STRING}}}}
    finish, content, _ = ask(server, "quoted", **tool({}, choice="auto"), response_format=form)
    whole = '{"a": "<tool_call><function=f></function></tool_call>"}'
    check(content == whole, f"a text of a format with a call's markers: {finish} {content}")
    finish, calls, _ = ask(server, "oslo", **tool(city(STRING), choice="auto"), response_format=form)
    check(calls == ['{"city": "Oslo"}'], f"a call beside a format: {finish} {calls}")
    finish, calls, _ = ask(server, "filter", **tool({"properties": {"$filter": STRING}, "required": ["$filter"]}))
    check(calls == ['{"$filter": "Oslo"}'], f"a name as it is: {calls}")
    finish, calls, _ = ask(server, "date", **tool(city({**STRING, "format": "date"})))
    check(calls == ['{"city": "2026-11-26"}'], f"a string of a format: {calls}")
    for schema in ({"type": "object"}, {"type": ["object", "string"]}, {}):
        finish, calls, _ = ask(server, "object", **tool(city(schema)))
        got = json.loads(calls[0]) if calls else None
        check(got == {"city": {"a": "</parameter>"}}, f"a marker in a JSON value, {schema}: {calls}")
    for schema in ({"type": "array"}, {"type": ["array", "string"]}):
        finish, calls, _ = ask(server, "deep", **tool(city(schema)))
        got = calls and calls[0] == '{"city": ' + "[" * 200 + "]" * 200 + "}"
        check(got, f"200 levels, {schema}: {calls}")
    body = {"model": "deep", "max_tokens": 60, "messages": [{"role": "user", "content": "x"}], "temperature": 0,
            "tools": [{"name": "f", "input_schema": {"type": "object", **city({"type": "array"})}}],
            "tool_choice": {"type": "any"}}  # fmt: skip
    status, _, raw = server.request("POST", "/v1/messages", body)
    check(status == 200 and b'"input":{"city":' + b"[" * 200 + b"]" * 200 in raw, f"200 levels of an input: {raw}")


def test_tagged_types(server):
    """A text is a string where the schema lets strings in, unless it is a whole value of another type."""
    null = {"type": "null"}
    for schema in (
        STRING,
        {"anyOf": [STRING, null]},
        {"oneOf": [null, STRING]},
        {"type": ["string", "null"]},
        {"type": ["null", "string", "integer"]},
        {"enum": ["Oslo", "Rome", None]},
        {"$ref": "#/$defs/S"},
        {},
    ):
        whole = city(schema, **{"$defs": {"S": {"anyOf": [STRING, null]}}})
        finish, calls, _ = ask(server, "oslo", **tool(whole))
        check(calls == ['{"city": "Oslo"}'], f"{schema}: {calls}")
    for model, schema, strict, value in (
        ("null", STRING, True, "null"),
        ("null", {"anyOf": [STRING, null]}, True, None),
        ("true", {"anyOf": [STRING, null]}, True, "true"),
        ("true", {"anyOf": [STRING, {"type": "boolean"}]}, True, True),
        ("five", STRING, True, "5.0"),
        ("five", {"type": ["string", "null"]}, True, "5.0"),
        ("five", {"type": ["string", "number"]}, True, 5.0),
        ("true", {"anyOf": [STRING, null]}, False, "true"),
        ("five", {"anyOf": [STRING, null]}, False, "5.0"),
        ("five", {"type": "integer"}, False, int),
        ("five", {"$ref": "#/$defs/I"}, False, int),
    ):
        loose = {} if strict else {"q": {"type": "array", "contains": {}}}
        schema = {"properties": {"city": schema, **loose}, "required": ["city"], "$defs": {"I": {"type": "integer"}}}
        finish, calls, _ = ask(server, model, **tool(schema, strict))
        got = json.loads(calls[0])["city"] if calls else calls
        fits = type(got) is value if value is int else type(got) is type(value) and got == value
        check(fits, f"{model}, {schema}, strict {strict}: {calls}")
    first = {"properties": {"city": STRING, "k": {"const": 1}}, "required": ["city", "k"]}
    first["additionalProperties"] = False
    branches = [first, {"additionalProperties": {"type": "integer"}, "minProperties": 1}]
    finish, calls, _ = ask(server, "number", **tool({"anyOf": branches}))
    check(calls == ['{"city": 57}'], f"a type of one branch: {calls}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        directories = models(root)
        with Server(directories[0], *directories[1:], "-t", 2, "--ctx-size", 1024, names=False) as s:
            test_thinking(s)
            test_tagged_schemas(s)
            test_tagged_types(s)
    check.done()
