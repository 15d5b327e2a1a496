#!/usr/bin/env python3
"""Two real models in one server: `model` in a request chooses, answers are those of each model served alone, one is
unloaded and loaded again while the other answers, and a file that shrinks fails its own model only, by name in the log.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

from apus_server import BINARY, CACHE, Checks, Server, model_path

check = Checks()
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "1, 2, 3, 4,"]


def complete(server, model, prompt, tokens=24, **fields):
    status, _, body = server.request(
        "POST",
        "/v1/completions",
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.8,
            "seed": 7,
            "logprobs": 1,
            **fields,
        },
    )
    answer = json.loads(body)
    return status, answer["choices"] if status == 200 else answer["error"]


def alone(path, name):
    with Server(path, name=name) as server:
        return [complete(server, name, prompt) for prompt in PROMPTS]


class Both(Server):
    """apus serve A B."""

    def __init__(self, *arguments):
        self.log = tempfile.TemporaryFile("w+")
        self.name = "both"
        self.process = subprocess.Popen(
            [BINARY, "serve", *map(str, arguments), "--port", "0", "-v"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.port, self.models = None, []
        for line in self.process.stdout:
            if found := re.search(r"API\s+http://[^:]+:(\d+)/v1", line):
                self.port = int(found.group(1))
            if found := re.match(r"\s+model\s+(\S+)", line):
                self.models.append(found.group(1))
            if "Ctrl-C" in line:
                break
        if self.port is None:
            raise RuntimeError(f"the server did not start: exit code {self.process.wait()}")

    def logged(self):
        self.log.seek(0)
        return self.log.read()


def together(server, names, expected):
    """All prompts of both models at once."""
    results, threads = {}, []

    def ask(name, i):
        results[name, i] = complete(server, name, PROMPTS[i])

    for i in range(len(PROMPTS)):
        for name in names:
            threads.append(threading.Thread(target=ask, args=(name, i)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        for i, prompt in enumerate(PROMPTS):
            check(results[name, i] == expected[name][i], f"{name} on {prompt!r} answers as it does alone")


def manage(server, verb, name):
    status, _, body = server.request("POST", f"/v1/models/{verb}", {"model": name})
    return status, json.loads(body)


def states(server):
    return {m["id"]: m["status"] for m in json.loads(server.request("GET", "/v1/models")[2])["data"]}


def unload_beside(server, busy, other, expected):
    answers = []
    while server.health()["running"] > 0:  # a request counts until shortly after its answer
        pass
    thread = threading.Thread(target=lambda: answers.append(complete(server, busy, PROMPTS[0], 200, ignore_eos=True)))
    thread.start()
    while server.health()["running"] == 0:
        pass
    status, answer = manage(server, "unload", busy)
    check(status == 409 and answer["error"]["code"] == "model_in_use", "a model that answers is not unloaded")
    status, answer = manage(server, "unload", other)
    check(status == 200 and answer["status"] == "unloaded" and states(server)[other] == "unloaded", "the other one is")
    check(complete(server, other, PROMPTS[1]) == expected[other][1], "and loaded again for the next who asks")
    thread.join()
    check(answers[0][0] == 200, "what answered meanwhile has its answer")
    status, answer = manage(server, "load", "nobody")
    check(
        status == 404 and answer["error"]["code"] == "model_not_found" and busy in answer["error"]["message"],
        "an unknown model is refused with the names that there are",
    )


def shrink(server, victim, other, directory, expected):
    path = os.path.join(directory, "model.safetensors")
    os.truncate(path, os.path.getsize(path) // 2)
    status, error = complete(server, victim, PROMPTS[0])
    check(status == 500 and "model.safetensors shrank" in error["message"], f"its steps fail: {status} {error}")
    check(path in server.logged(), "the log names the file")
    check([complete(server, other, p) for p in PROMPTS] == expected[other], "the other model answers as before")
    check(server.health()["status"] == "damaged", "the server lives, and says that a model's files are damaged")


def main():
    names = ["qwen-0.5b", "gemma-270m"]
    paths = {name: model_path(name) for name in names}
    expected = {name: alone(paths[name], name) for name in names}
    for name in names:
        check(all(status == 200 for status, _ in expected[name]), f"{name} answers alone")
    with tempfile.TemporaryDirectory() as folder:
        converted = next(e.path for e in os.scandir(CACHE) if e.name.startswith("compact-gemma-270m-"))
        copy = os.path.join(folder, "gemma-270m")
        shutil.copytree(converted, copy)
        with Both(paths["qwen-0.5b"], copy) as server:
            check(server.models == names, f"both are announced: {server.models}")
            together(server, names, expected)
            unload_beside(server, "qwen-0.5b", "gemma-270m", expected)
            shrink(server, "gemma-270m", "qwen-0.5b", copy, expected)
        check(server.code == 0, "it ends when told to")
    refused = subprocess.run([BINARY, "serve", paths["qwen-0.5b"], paths["qwen-0.5b"]], capture_output=True, text=True)
    check(
        refused.returncode != 0 and "two models are called qwen-0.5b" in refused.stderr,
        f"names must differ: {refused.stderr}",
    )
    check.done()


if __name__ == "__main__":
    sys.exit(main())
