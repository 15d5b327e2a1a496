#!/usr/bin/env python3
"""Calls of tools in every format: whatever the grammar of a tool lets through is read back as calls of that tool whose
arguments satisfy its schema, in parts as well as whole, and a cut call is no text.

    tests/text/check_calls.py [--program build/apus] [--count N] [--seed N] [--format NAME]

Schemas are made at random (--count of them for each format) beside those of FIXED. Exit 77 without jsonschema.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN = 12  # faults printed
WALKS = 6  # texts per schema

try:
    import jsonschema
except ImportError:
    print("skipped: jsonschema is not installed")
    sys.exit(77)

STRING, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
MARKER = "</parameter>"


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# Each is a class of faults that calls between markers had: docs/api/faults.md, T3 and T4.
FIXED = [
    # An end marker within JSON, where strings are permitted as well.
    closed(a={"anyOf": [{"type": "object"}, STRING]}, b=INTEGER),
    closed(a={"type": ["array", "string", "null"]}, b=INTEGER),
    closed(a={}, b={"type": "boolean"}),
    closed(a={"anyOf": [STRING, {"enum": [{"x": f"{MARKER}"}, ["</arg_value>", "</longcat_arg_value>"]]}]}, b=INTEGER),
    # Deep values.
    closed(a={"type": "array"}),
    {**closed(a={"$ref": "#/$defs/t"}),
     "$defs": {"t": {"anyOf": [INTEGER, {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}]}}},
    # Names in one branch only.
    {"anyOf": [closed(a=STRING, k={"const": 1}), {"additionalProperties": INTEGER, "required": ["a"]}]},
    {"anyOf": [closed(a=STRING), closed(a=INTEGER, b=STRING), {"properties": {"b": INTEGER}, "required": ["a", "b"]}]},
    {"properties": {"k": {"enum": [1, 2]}}, "required": ["k"], "if": {"properties": {"k": {"const": 1}}},
     "then": {"properties": {"a": STRING}, "required": ["a"]},
     "else": {"additionalProperties": INTEGER, "required": ["a"]}},
    {"oneOf": [closed(k={"const": "x"}, a={"type": "boolean"}), closed(k={"const": "y"}, a=STRING)]},
    {"properties": {"": STRING}, "additionalProperties": {"type": "number"}, "minProperties": 1},
]  # fmt: skip

NAMES = ["a", "b", "user name", "$filter", "1st", "é", "x.y", "q-1", "from", 'a"b', "k"]
TEXTS = ["a", "", " ", "null", "true", "5", "5.0", "[1]", "{}", '"', "\\", "a\nb", "\n", "é", "😀", "\u2028", "'",
         "</arg_value>", "<tool_call>", MARKER, "None", "x" * 40, "<|\"|>", "<escape>", "a, b)", "}", "</think>",
         "0x1"]  # fmt: skip
PATTERNS = ["^[A-Z]{2}$", "a|b", "^\\d+$", "^(null|x)$", "<", "^[^<]*$", "\n", "^[^ \\n]{1,3}$"]
NUMBERS = [INTEGER, {"type": "integer", "minimum": -2, "maximum": 9}, {"type": "number"},
           {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
           {"type": "integer", "multipleOf": 5}]  # fmt: skip


def random_value(r, depth=0):
    kind = r.randrange(7 if depth < 2 else 5)
    if kind < 2:
        return r.choice(TEXTS)
    if kind == 2:
        return r.choice([0, -1, 7, 12345678901234567890, 1.5, -2e-3])
    if kind == 3:
        return r.choice([True, False])
    if kind == 4:
        return None
    if kind == 5:
        return [random_value(r, depth + 1) for _ in range(r.randrange(3))]
    return {r.choice(NAMES): random_value(r, depth + 1) for _ in range(r.randrange(3))}


def random_string(r):
    schema = {"type": "string"}
    kind = r.randrange(7)
    if kind == 1:
        schema["pattern"] = r.choice(PATTERNS)
    elif kind == 2:
        schema["format"] = r.choice(["date", "email", "uuid", "ipv4", "time"])
    elif kind == 3:
        schema.update(minLength=r.randrange(3), maxLength=3 + r.randrange(4))
    elif kind == 4:
        schema = {"enum": r.sample(TEXTS, 3)}
    elif kind == 5:
        schema = {"const": r.choice(TEXTS)}
    return schema


def random_schema(r, depth=0):
    kind = r.randrange(14)
    if depth > 2 or kind < 3:
        return random_string(r)
    if kind == 3:
        return r.choice(NUMBERS)
    if kind == 4:
        return r.choice([NULL, {"type": "boolean"}, {}, True])
    if kind == 5:
        return {"type": r.sample(["null", "boolean", "integer", "number", "string", "array", "object"], 2)}
    if kind == 6:
        return {"enum": [random_value(r) for _ in range(1 + r.randrange(3))]}
    if kind == 7:
        return {"type": "array", "items": random_schema(r, depth + 1), "maxItems": r.randrange(4)}
    if kind == 8:
        return {"anyOf": [random_schema(r, depth + 1) for _ in range(2)]}
    if kind == 9:
        return {"allOf": [random_schema(r, depth + 1), random_schema(r, depth + 1)]}
    if kind == 10:
        return {"$ref": r.choice(["#/$defs/t", "#/$defs/s", "#/$defs/tree"])}
    if kind == 11:
        return {"not": random_schema(r, depth + 2), **r.choice([STRING, {"type": ["integer", "null"]}])}
    return random_object(r, depth + 1)


def random_object(r, depth=0):
    names = r.sample(NAMES, r.randrange(4))
    schema = {"type": "object", "properties": {name: random_schema(r, depth + 1) for name in names}}
    schema["required"] = [name for name in names if r.randrange(2)]
    if r.randrange(3) == 0:
        schema["additionalProperties"] = r.choice([False, True, random_schema(r, depth + 1)])
    kind = r.randrange(9)
    if kind == 0:
        schema["patternProperties"] = {r.choice(["^[x-z]", "1"]): random_schema(r, depth + 1)}
    elif kind == 1:
        schema["minProperties"] = 1
    elif kind == 2 and names:
        schema["dependentRequired"] = {names[0]: ["k"]}
    elif kind == 3:
        schema["anyOf"] = [{"properties": {"k": random_schema(r, depth + 2)}, "required": ["k"]}, random_object(r, 3)]
    elif kind == 4:
        schema["propertyNames"] = {"maxLength": 4}
    elif kind == 5:
        schema["required"].append("zip")
    return schema


def random_tool(r):
    schema = random_object(r)
    schema["$defs"] = {
        "t": random_schema(r, 2),
        "s": {"anyOf": [STRING, NULL]},
        "tree": {"type": "object", "properties": {"v": random_string(r), "next": {"$ref": "#/$defs/tree"}},
                 "required": ["v"], "additionalProperties": False},
    }  # fmt: skip
    return schema


def problem(answer, schema, name):
    """What is wrong with an answer; None: nothing. A cut one has calls of the tool, and no text."""
    if answer["split"]:
        return "read otherwise in parts"
    if answer["cut"]["content"] or any(call[0] != name for call in answer["cut"]["calls"]):
        return f"a cut answer: {answer['cut']}"
    if not answer["ended"]:
        return None
    if answer["content"]:
        return f"content: {answer['content']!r}"
    if not answer["calls"]:
        return "no call"
    for called, arguments in answer["calls"]:
        if called != name:
            return f"a call of {called!r}"
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"arguments {arguments!r}: {error}"
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        try:
            for error in validator.iter_errors(value):
                return f"arguments {arguments!r}: {error.message[:200]}"
        except RecursionError:
            continue  # the validator's own
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=str(ROOT / "build/apus"))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", default=None)
    options = parser.parse_args()
    sys.setrecursionlimit(20000)
    source = (ROOT / "src/text/calls/call_format.c").read_text()
    formats = [options.format] if options.format else re.findall(r'\.name = "(\w+)"', source)
    requests = []
    for i, name in enumerate(formats):
        r = random.Random(options.seed * 1000 + i)
        for schema in [*FIXED, *(random_tool(r) for _ in range(options.count))]:
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            requests.append({"format": name, "tools": [tool], "seed": len(requests), "count": WALKS})
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([options.program, "debug", "calls"], input=text, capture_output=True, text=True)
    lines = done.stdout.split("\n")[:-1]
    if done.returncode or len(lines) != len(requests):
        sys.exit(f"{len(lines)} answers to {len(requests)} requests: exit {done.returncode}: {done.stderr[-500:]}")
    wrong = whole = refused = 0
    for request, line in zip(requests, lines):
        reply = json.loads(line)
        refused += "answers" not in reply
        for answer in reply.get("answers", []):
            whole += answer["ended"]
            schema = request["tools"][0]["function"]["parameters"]
            why = problem(answer, schema, "f")
            wrong += why is not None
            if why and wrong <= SHOWN:
                print(f"{request['format']}: {json.dumps(schema)}\n  {answer['text']!r}\n  {why}"[:2500])
    print(f"{whole} calls read, {wrong} wrong; {refused} of {len(requests)} schemas refused")
    sys.exit(wrong > 0 or whole < len(requests))


if __name__ == "__main__":
    main()
