#!/usr/bin/env python3
"""Writes tests/server/openai_schemas.json: the schemas of OpenAI's OpenAPI description that the tests of the API use,
one a line, without what is only said (descriptions, examples). The description is published under the MIT licence; its
notice is kept in the file.

    git clone https://github.com/openai/openai-openapi && tools/make_openai_schemas.py openai-openapi
"""

import json
import subprocess
import sys
from pathlib import Path

ROOTS = [
    "CreateChatCompletionRequest",
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionRequest",
    "CreateCompletionResponse",
    "CreateResponse",
    "Response",
    "ResponseStreamEvent",
    "CreateEmbeddingRequest",
    "CreateEmbeddingResponse",
    "ListModelsResponse",
    "Model",
    "ErrorResponse",
]
SAID = {"description", "title", "example", "examples", "externalDocs", "deprecated"}


def bare(value, names=False):
    """The schema without what is only said; names: its keys are names of properties. OpenAPI 3.0's nullable becomes a
    type.
    """
    if isinstance(value, list):
        return [bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    if names:
        return {key: bare(item) for key, item in value.items()}
    rest = {
        key: bare(item, key == "properties")
        for key, item in value.items()
        if key not in SAID and key != "nullable" and not key.startswith("x-")
    }
    return {"anyOf": [rest, {"type": "null"}]} if value.get("nullable") is True else rest


def named(value):
    """Names of the schemas that a schema refers to."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rsplit("/", 1)[-1]
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from named(item)


def main():
    source = Path(sys.argv[1])
    description = json.loads((source / "openapi.json").read_text())
    commit = subprocess.run(
        ["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    schemas, wanted = {}, list(ROOTS)
    while wanted:
        name = wanted.pop()
        if name not in schemas:
            schemas[name] = bare(description["components"]["schemas"][name])
            wanted += named(schemas[name])
    head = {
        "from": f"https://github.com/openai/openai-openapi at {commit}, version {description['info']['version']}",
        "licence": (source / "LICENSE").read_text(),
    }
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(schemas[name], separators=(',', ':'))}" for name in sorted(schemas)
    )
    target = Path(__file__).resolve().parent.parent / "tests/server/openai_schemas.json"
    target.write_text(f'{json.dumps(head)[:-1]},\n"schemas": {{\n{lines}\n}}}}\n')
    print(f"{len(schemas)} schemas, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
