#!/usr/bin/env python3
"""SwiftLM's command line on our binary: each of its options does the same, or says that it is not there yet; the
examples of its README, with a small model in place of theirs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from apus_server import BINARY, Checks, Server
from tiny_model import write_tiny_model

check = Checks()
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "seed": 5}
THINKS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ 'T' if enable_thinking else 'N' if enable_thinking is defined else '?' }}{% endif %}"
)

# The whole of its --help (Sources/SwiftLM/Server.swift), each with values and what is to be seen of it.
SERVED, LATER, OTHERS = "serves", "not there yet", "something else"
OPTIONS = [
    ("--model", SERVED),
    ("--port", SERVED),
    ("--host", SERVED),
    ("--max-tokens", SERVED),
    ("--ctx-size", SERVED),
    ("--temp", SERVED),
    ("--top-p", SERVED),
    ("--top-k", SERVED),
    ("--min-p", SERVED),
    ("--repeat-penalty", SERVED),
    ("--parallel", SERVED),
    ("--thinking", SERVED),
    ("--api-key", SERVED),
    ("--prefill-size", SERVED),
    ("--turbo-kv", SERVED),
    ("--ssd-prefetch", SERVED),
    ("--info", OTHERS),
    ("--mem-limit", OTHERS),
    ("--gpu-layers", OTHERS),
    ("--stream-experts", OTHERS),
    ("--vision", SERVED),
    ("--audio", SERVED),
    ("--cors", OTHERS),
    ("--calibrate", SERVED),
    ("--draft-model", SERVED),
    ("--num-draft-tokens", SERVED),
    ("--dflash", LATER),
    ("--dflash-block-size", LATER),
]
VALUES = {"--cors": "*", "--dflash-block-size": "16"}


class SwiftServer(Server):
    """Started as `apus --model MODEL …`."""

    COMMAND = ["--model"]

    def __init__(self, model, *options, environment=None):
        super().__init__(model, *options, command=["--model", model], environment=environment)


def run(*arguments, environment=None):
    result = subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
    )
    return result.returncode, result.stdout, result.stderr


def answer(server, **fields):
    status, body = server.chat(CHAT["messages"], seed=5, **fields)
    assert status == 200, body
    return body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"], body["usage"]["prompt_tokens"]


def test_defaults(model):
    """Options that are for requests which do not say, beside requests that do."""
    asked = {
        "--temp": ("temperature", 0.3),
        "--top-p": ("top_p", 0.2),
        "--top-k": ("top_k", 2),
        "--min-p": ("min_p", 0.9),
        "--repeat-penalty": ("repetition_penalty", 1.9),
    }
    with SwiftServer(model) as server:
        said = {option: answer(server, max_tokens=40, **{field: value}) for option, (field, value) in asked.items()}
        plain = answer(server, max_tokens=40)
    check(len(set(said.values()) | {plain}) > 3, "the options differ in what they do")
    for option, (field, value) in asked.items():
        with SwiftServer(model, option, value) as server:
            check(answer(server, max_tokens=40) == said[option], f"{option} is not {field}")
            neutral = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}[field]
            check(answer(server, max_tokens=40, **{field: neutral}) == plain, f"a request overrides {option}")


def test_lengths(model):
    with SwiftServer(
        model,
        "--max-tokens",
        7,
        "--ctx-size",
        256,
        "--prefill-size",
        16,
        "--parallel",
        2,
        "--turbo-kv",
        "--ssd-prefetch",
        "--gpu-layers",
        "auto",
    ) as server:
        check(
            answer(server, ignore_eos=True)[1] == 7 and answer(server, ignore_eos=True, max_tokens=9)[1] == 9,
            "--max-tokens",
        )
        status, _, body = server.request(
            "POST", "/v1/completions", {"model": server.name, "prompt": "x", "ignore_eos": True}
        )
        check(json.loads(body)["usage"]["completion_tokens"] == 7, "--max-tokens of completions")
        check(server.chat("x" * 300)[0] == 400, "--ctx-size")
    with SwiftServer(model, "--max-tokens", 100000, "--ctx-size", 256) as server:
        check(answer(server, ignore_eos=True)[1] > 100, "--max-tokens beyond the context")


def test_thinking(model):
    with open(os.path.join(model, "tokenizer_config.json")) as file:
        config = file.read()
    with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
        json.dump({"eos_token": "<|end|>", "chat_template": THINKS}, file)
    with SwiftServer(model) as plain, SwiftServer(model, "--thinking") as thinking:
        greedy = dict(temperature=0, max_tokens=20)
        on, off, unsaid = (
            answer(plain, **greedy, **more)[0] for more in (dict(enable_thinking=True), dict(enable_thinking=False), {})
        )
        check(len({on, off, unsaid}) == 3, "the template tells them apart")
        check(answer(thinking, **greedy)[0] == on, "--thinking")
        check(
            answer(thinking, **greedy, enable_thinking=False)[0] == off
            and answer(thinking, **greedy, chat_template_kwargs={"enable_thinking": False})[0] == off,
            "a request overrides it",
        )
    with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
        file.write(config)


def test_key(model):
    with SwiftServer(model, "--api-key", "secret", "--host", "127.0.0.1") as server:
        check(
            server.request("GET", "/v1/models")[0] == 401
            and server.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200,
            "--api-key",
        )


def test_others(model):
    code, out, err = run("--model", model, "--info")
    check(code == 0 and out == run("info", model)[1] and "layers" in out, f"--info: {code} {out} {err}")
    code, _, err = run("--model", model, "--mem-limit", "1", "--port", "0")
    check(code == 1 and "memory" in err, f"--mem-limit: {code} {err}")
    with SwiftServer(model, "--mem-limit", 2000) as server:
        check(answer(server, max_tokens=5)[1] > 0, "--mem-limit")
    code, _, err = run("--model", model, "--gpu-layers", "20")
    check(code == 2 and "needs a GPU" in err, err)
    code, _, err = run("--model", model, "--stream-experts=true")
    check(code == 2 and "--stream-experts" in err, err)
    code, _, err = run("--model", model, "--stream-experts", environment={"SWIFTLM_TOP_K": "many"})
    check(code == 2 and "SWIFTLM_TOP_K" in err, err)
    code, _, err = run("--port", "1")
    check(code == 2 and "MODEL" in err, f"no model: {err}")
    code, _, err = run("--modle", model)
    check(code == 2 and "did you mean --model" in err, err)
    with SwiftServer(model, environment={"SWIFTLM_TOP_K": "4"}) as server:  # a model without experts takes no notice
        check(answer(server, max_tokens=5)[1] > 0, "SWIFTLM_TOP_K")


def test_later(model):
    code, help_text, _ = run("serve", "--help")
    for option, kind in OPTIONS:
        if kind == LATER:
            value = [VALUES[option]] if option in VALUES else []
            for command in ([], ["serve"]):
                code, out, err = run(*command, "--model", model, option, *value)
                check(
                    code == 2 and f"option {option} is not there yet: " in err and err.count("\n") == 1 and not out,
                    f"{option}: {code} {out} {err}",
                )
        count = len(re.findall(rf"^  (?:-[\w-]+, )*{option}(?=[ ,])", help_text, re.M))
        check(count == (0 if kind == LATER else 1), f"{option} stands {count} times in --help")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(f"model = {model}\ndflash = true\n")
        file.flush()
        code, _, err = run("serve", "--config", file.name)
        check(code == 2 and "--dflash is not there yet" in err, err)


def test_examples(model):
    """README.md of SwiftLM, where the examples name models of theirs by ours; `model` of a request names it as
    --model-name does.
    """
    examples = [
        [],
        ["--stream-experts"],
        ["--dflash"],
    ]
    for options in examples[2:]:
        code, _, err = run("--port", "0", "--model", model, *options)
        check(code == 2 and "not there yet" in err, f"{options}: {err}")
    with SwiftServer(model) as plain, SwiftServer(model, "--draft-model", model, "--num-draft-tokens", "4") as drafts:
        check(answer(plain, max_tokens=40) == answer(drafts, max_tokens=40), "--draft-model")
    code, _, err = run("--model", model, "--num-draft-tokens", "4")
    check(code == 2 and "--draft-model" in err, f"--num-draft-tokens alone: {err}")
    with SwiftServer(model, "--stream-experts") as server:  # theirs have experts
        check(answer(server, max_tokens=5)[1] > 0, "--stream-experts")
    with SwiftServer(model, "--model-name", "gemma-4-26b-a4b-it-4bit") as server:
        server.name = "gemma-4-26b-a4b-it-4bit"
        aegis = [
            {
                "role": "system",
                "content": "You are Aegis-AI, a local home security agent. Output strictly in JSON format.",
            },
            {
                "role": "user",
                "content": "Clip 1: Delivery person drops package at 14:02. Clip 2: Delivery person walks away down "
                "driveway at 14:03. Do these clips "
                "represent the same security event? Output a JSON object with a `duplicate` boolean and a `reason` "
                "string.",
            },
        ]
        request = {"messages": aegis, "max_tokens": 20, "ignore_eos": True}  # random weights may end at once
        events = server.stream("/v1/chat/completions", request)
        check(events[-1] == "[DONE]" and len(events) > 3, events)
        check(
            server.chat("Summarize the history of computing in 3 sentences.", kv_bits=4, max_tokens=20)[0] == 200,
            "kv_bits",
        )
        status, body = server.chat(
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Describe the contents of this image."},
                        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQSkZJRgABAQ"}},
                    ],
                }
            ]
        )
        check(status == 400 and "image_url" in json.dumps(body), body)
        check(
            server.health()["status"] == "ok"
            and json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"] == server.name,
            "health and models",
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory)
        for test in (test_later, test_others, test_defaults, test_lengths, test_thinking, test_key, test_examples):
            test(directory)
    check.done()
