#!/usr/bin/env python3
"""LoRA adapters in a server: `model` in a request chooses MODEL:NAME or NAME in every API; answers are the same alone,
in a crowd of other adapters, and from the prefix cache, in memory and on disk; what does not fit the model is refused
by name at the start.
"""

import concurrent.futures
import json
import os
import random
import struct
import subprocess
import tempfile

from apus_server import BINARY, Checks, Server
from tiny_model import HEAD, HEADS, HIDDEN, INNER, LAYERS, _write_tensors, write_tiny_model

checks = Checks()
PROMPT = "The quick brown fox jumps over the lazy dog. " * 5
MODULES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def check(condition, what, *shown):
    checks(condition, f"{what}: {' | '.join(map(str, shown))}")


def write_adapter(directory, seed, rank=4, mlx=False, more=0):
    rng = random.Random(seed)
    os.makedirs(directory)

    def matrix(rows, columns):
        if mlx:
            rows, columns = columns, rows
        values = (rng.gauss(0, 0.3) for _ in range(rows * columns))
        return (rows, columns), struct.pack(f"<{rows * columns}f", *values)

    tensors = []
    for layer in range(LAYERS):
        for name, (rows, columns) in MODULES.items():
            module = f"model.layers.{layer}.{name}"
            for part, shape in (("a", (rank, columns + more)), ("b", (rows, rank))):
                full = f"{module}.lora_{part}" if mlx else f"base_model.model.{module}.lora_{part.upper()}.weight"
                tensors.append((full, "F32", *matrix(*shape)))
    _write_tensors(f"{directory}/{'adapters' if mlx else 'adapter_model'}.safetensors", tensors)
    config = {"lora_parameters": {"rank": rank, "scale": 2.0}} if mlx else {"peft_type": "LORA", "lora_alpha": 8}
    with open(f"{directory}/adapter_config.json", "w") as file:
        json.dump(config, file)
    return directory


def complete(server, model, prompt=PROMPT, tokens=12, **fields):
    status, _, body = server.request(
        "POST",
        "/v1/completions",
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.8,
            "seed": 7,
            "logprobs": 2,
            **fields,
        },
    )
    answer = json.loads(body)
    if status != 200:
        return status, answer["error"]["message"]
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["token_logprobs"]


def cached(server, model):
    request = {"model": model, "prompt": PROMPT, "max_tokens": 1}
    body = json.loads(server.request("POST", "/v1/completions", request)[2])
    return body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def check_answers(server, name):
    names = [name, f"{name}:one", f"{name}:two"]
    alone = {model: complete(server, model, cache_salt="alone " + model) for model in names}
    check(len({json.dumps(answer) for answer in alone.values()}) == 3, "each adapter has an answer of its own", alone)
    check(complete(server, "two") == alone[f"{name}:two"], "the adapter's name alone", alone)
    check(complete(server, f"{name}:latest:one")[0] == alone[f"{name}:one"][0], "an alias with an adapter")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        models = names * 4
        crowd = list(pool.map(lambda model: complete(server, model), models))
    for model, answer in zip(models, crowd, strict=True):
        check(answer == alone[model], f"{model} in a crowd", answer, alone[model])
    for model in names:
        check(complete(server, model) == alone[model], f"{model} from the cache")
        check(cached(server, model) > 0, f"{model} is found in the cache")
    fresh = "An entirely different text, which no request has sent so far. " * 4
    first = complete(server, names[1], fresh)
    check(complete(server, names[0], fresh) == complete(server, names[0], fresh, cache_salt="x"), "no other's pages")
    check(complete(server, names[1], fresh) == first, "its own pages")
    return alone


def check_apis(server, name):
    models = json.loads(server.request("GET", "/v1/models")[2])["data"]
    found = {model["id"]: model.get("parent") for model in models}
    check(found == {name: None, f"{name}:one": name, f"{name}:two": name}, "the list of models", found)
    chat = {"model": f"{name}:one", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    texts = {}
    for model in (name, f"{name}:one"):
        status, _, body = server.request("POST", "/v1/chat/completions", {**chat, "model": model})
        texts[model] = json.loads(body)["choices"][0]["message"]["content"] if status == 200 else body
    check(texts[name] != texts[f"{name}:one"], "chat completions", texts)
    status, _, body = server.request("POST", "/v1/messages", chat)
    check(status == 200 and json.loads(body)["content"][0]["text"] == texts[f"{name}:one"], "messages", body)
    status, _, body = server.request(
        "POST",
        "/api/chat",
        {
            "model": f"{name}:one",
            "messages": chat["messages"],
            "stream": False,
            "options": {"num_predict": 4, "temperature": 0},
        },
    )
    check(status == 200 and json.loads(body)["message"]["content"] == texts[f"{name}:one"], "Ollama's chat", body)
    status, message = complete(server, f"{name}:three")
    check(status == 404 and "three" in message, "an adapter that is not there", status, message)


def check_refused(path, directory):
    cases = {
        "wide": (write_adapter(f"{directory}/wide", 1, more=1), "must be [4, "),
        "empty": (directory, "neither adapter_model.safetensors nor adapters.safetensors"),
    }
    for name, (adapter, why) in cases.items():
        for command in (["serve", path, "--port", "0"], ["run", path, "Hi", "-n", "1"]):
            done = subprocess.run(
                [BINARY, *command, "--lora", f"{name}={adapter}"], capture_output=True, text=True, timeout=300
            )
            check(done.returncode == 1 and name in done.stderr and why in done.stderr, command[0], done.stderr)
    done = subprocess.run([BINARY, "run", path, "Hi", "--lora", "nothing"], capture_output=True, text=True, timeout=300)
    check(done.returncode == 2 and "NAME=DIR" in done.stderr, "an adapter without a name", done.stderr)


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/tiny"
        os.makedirs(path)
        write_tiny_model(path)
        one = write_adapter(f"{directory}/one", 5)
        two = write_adapter(f"{directory}/two", 6, rank=9, mlx=True)
        options = [
            "--lora",
            f"one={one}",
            "--lora",
            f"two={two}",
            "--cache-dir",
            f"{directory}/cache",
            "--threads",
            "2",
        ]
        with Server(path, *options) as server:
            before = check_answers(server, server.name)
            check_apis(server, server.name)
        with Server(path, *options) as server:
            for model, answer in before.items():
                check(complete(server, model) == answer, f"{model} after a restart")
        plain = subprocess.run(
            [BINARY, "run", path, "Hi", "-n", "4", "--temperature", "0"], capture_output=True, text=True, timeout=300
        )
        adapted = subprocess.run(
            [BINARY, "run", path, "Hi", "-n", "4", "--temperature", "0", "--lora", f"one={one}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        check(plain.returncode == adapted.returncode == 0, "run", plain.stderr, adapted.stderr)
        check(plain.stdout != adapted.stdout, "run with an adapter", plain.stdout, adapted.stdout)
        check_refused(path, directory)
    checks.done()


main()
