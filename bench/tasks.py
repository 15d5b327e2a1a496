#!/usr/bin/env python3
"""How often small models do what tools and schemas ask of them, with and without constraint, as CSV: bench/tasks.py
MODEL … [--out FILE]

The tasks are tasks.json: 50 requests of which each wants one call of one of 8 functions, and 50 texts of which each is
to be written as JSON by one of 10 schemas. Greedy. How an answer is made:
  free      nothing is enforced: the tools stand in the prompt in the words of the Hermes and Qwen templates, or the
            schema as text
  auto      tools, tool_choice auto: from where a call begins it is valid        required  tool_choice required, one
            call
  schema    response_format json_schema, the same prompt as free
valid: a call, in the marks that the prompt asks for, of a function that there is, with arguments that its schema takes;
or an answer that as a whole is JSON that fits the schema. within: also a call without marks, or JSON in ``` marks, as
who reads answers leniently would find it. right: within, and with the function and values that the task wants, but for
case and order. --out appends. Needs jsonschema.
"""

import argparse
import concurrent.futures
import csv
import json
import os
import platform
import subprocess
import sys
import time

import jsonschema

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
from apus_server import Server, model_path  # noqa: E402

COLUMNS = [
    "model",
    "tasks",
    "way",
    "count",
    "valid",
    "within",
    "right",
    "tokens",
    "seconds",
    "machine",
    "commit",
    "command",
]
SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
IN_WORDS = """{system}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def fits(schema, value):
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).is_valid(value)


def same(wanted, value):
    """Whether the value is what is wanted: texts but for case and dots, lists in any order."""
    if isinstance(wanted, dict) and set(wanted) == {"any"}:
        return any(same(one, value) for one in wanted["any"])
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and same(one, value[key]) for key, one in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(any(same(one, other) for other in value) for one in wanted)
        )
    if isinstance(wanted, str):
        return isinstance(value, str) and value.strip(" .").casefold() == wanted.casefold()
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def first_json(text):
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    except ValueError:
        return None


def unfenced(text):
    """What stands in the first ``` marks."""
    parts = text.split("```")
    return parts[1].removeprefix("json") if len(parts) > 2 else text


def ask(server, system, text, **fields):
    messages = [{"role": "system", "content": system}] if system else []
    status, answer = server.chat(messages + [{"role": "user", "content": text}], temperature=0, **fields)
    if status != 200:
        raise RuntimeError(f"{text}: {answer}")
    return answer["choices"][0]["message"], answer["usage"]["completion_tokens"]


def tool_task(server, data, task, way):
    """valid, within, right, tokens"""
    if way == "free":
        words = IN_WORDS.format(system=SYSTEM, tools="\n".join(map(json.dumps, data["tools"])))
        message, tokens = ask(server, words, task["say"], max_tokens=80)
    else:
        message, tokens = ask(
            server, None, task["say"], max_tokens=80, tools=data["tools"], tool_choice=way, parallel_tool_calls=False
        )
    text, calls = message["content"] or "", message.get("tool_calls")
    marked = bool(calls) or "<tool_call>" in text
    call = (
        {"name": calls[0]["function"]["name"], "arguments": parsed(calls[0]["function"]["arguments"])}
        if calls
        else first_json(text)
    )
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in data["tools"]}
    within = (
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and call["name"] in schemas
        and fits(schemas[call["name"]], call.get("arguments"))
    )
    return (
        within and marked,
        within,
        within and call["name"] == task["call"] and same(task["arguments"], call["arguments"]),
        tokens,
    )


def schema_task(server, data, task, way):
    schema = data["schemas"][task["schema"]]
    wish = "Write this as JSON that fits the following JSON schema. Answer with the JSON alone."
    prompt = f"{task['text']}\n\n{wish}\n{json.dumps(schema)}"
    form = (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            }
        }
        if way == "schema"
        else {}
    )
    message, tokens = ask(server, None, prompt, max_tokens=120, **form)
    whole, within = parsed(message["content"]), parsed(unfenced(message["content"]))
    return fits(schema, whole), fits(schema, within), fits(schema, within) and same(task["want"], within), tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names of tools/fetch_models.py")
    parser.add_argument("--ways", default="free,auto,required,schema")
    parser.add_argument("--out")
    options = parser.parse_args()
    with open(os.path.join(ROOT, "bench", "tasks.json"), encoding="utf-8") as file:
        data = json.load(file)
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    out = open(options.out, "a", newline="") if options.out else sys.stdout
    writer = csv.DictWriter(out, COLUMNS)
    if not options.out or out.tell() == 0:
        writer.writeheader()
    for model in options.models:
        with (
            Server(model_path(model), "--ctx-size", 2048, "--slots", 4) as server,
            concurrent.futures.ThreadPoolExecutor(4) as pool,
        ):
            for tasks, run, ways in (
                (data["tool_tasks"], tool_task, ("free", "auto", "required")),
                (data["schema_tasks"], schema_task, ("free", "schema")),
            ):
                for way in (way for way in ways if way in options.ways.split(",")):
                    start = time.time()
                    done = list(pool.map(lambda task: run(server, data, task, way), tasks))
                    valid, within, right, tokens = (sum(column) for column in zip(*done))
                    writer.writerow(
                        dict(
                            model=model,
                            tasks=run.__name__.split("_")[0],
                            way=way,
                            count=len(tasks),
                            valid=valid,
                            within=within,
                            right=right,
                            tokens=tokens,
                            seconds=round(time.time() - start),
                            machine=f"{platform.machine()}, {os.cpu_count()} cores",
                            commit=commit,
                            command=f"bench/tasks.py {model}",
                        )
                    )
                    out.flush()


if __name__ == "__main__":
    main()
