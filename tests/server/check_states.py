#!/usr/bin/env python3
"""Prompts of a hybrid model in the prefix cache of a real server: a long one is found again, an edited conversation is
read again from shortly before the edit, snapshots keep to the budget and are shown, those of another model, build or
arithmetic are not used. Answers are those of cold prompts to the last digit.
"""

import json
import os
import random
import subprocess
import tempfile

from apus_server import BINARY, Checks, Server
from tiny_model import write_tiny_hybrid

check = Checks()
LONG, TURNS, SPACING, PAGE = 20000, 30, 512, 32
rng = random.Random(31)


def ids(count):
    return [rng.randrange(1, 95) for _ in range(count)]


def words(count):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(count))


def complete(server, prompt, **fields):
    """Tokens of the prompt that were computed, and the answer with its logprobs."""
    body = {"model": server.name, "prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 3, **fields}
    status, _, answer = server.request("POST", "/v1/completions", body, timeout=600)
    answer = json.loads(answer)
    if not check(status == 200, answer):
        return 0, None
    usage, timings = answer["usage"], answer["timings"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    check(found == timings["cache_n"] and found + timings["prompt_n"] == usage["prompt_tokens"], f"{usage} {timings}")
    return timings["prompt_n"], answer["choices"]


def talk(server, messages, **fields):
    status, answer = server.chat(messages, max_tokens=6, temperature=0, logprobs=True, ignore_eos=True, **fields)
    if not check(status == 200, answer):
        return 0, 0, None
    return answer["usage"]["prompt_tokens"], answer["timings"]["prompt_n"], answer["choices"]


def metrics(server):
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.split("{")[0]: float(value) for name, value in samples}


def check_again(server):
    """Two other requests between."""
    prompt = ids(LONG)
    computed, cold = complete(server, prompt)
    check(computed == LONG, f"{computed} tokens of a new prompt were computed")
    for _ in range(2):
        complete(server, ids(300))
        complete(server, ids(300))
        computed, warm = complete(server, prompt)
        check(computed <= LONG // 50, f"{computed} of {LONG} tokens were computed again")
        check(warm == cold, f"cold {cold}, warm {warm}")


def size(message):
    """Tokens of a message in the template: its letters, those of its role, two newlines and two special tokens."""
    return len(message["role"]) + len(message["content"]) + 4


def conversation():
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": words(200 + rng.randrange(200))} for i in range(TURNS + 1)]


def check_edits(server, *places):
    messages = conversation()
    turn = max(size(m) for m in messages)
    talk(server, messages)
    for place in places:
        edited = messages[:place] + [{**messages[place], "content": words(250)}] + messages[place + 1 :]
        total, computed, warm = talk(server, edited)
        behind = total - sum(size(m) for m in messages[:place])  # the edited message and the text behind it
        check(computed <= behind + turn + SPACING, f"turn {place}: {computed} of {total} computed, {behind} behind")
        check(warm == talk(server, edited, cache_prompt=False)[2], f"turn {place}: not as cold")


def check_growing(server):
    """Turn by turn, as clients send it: the last message and its answer are new."""
    messages = conversation()
    for count in range(1, TURNS + 2, 2):
        total, computed, warm = talk(server, messages[:count])
        check(computed <= 2 * 450 + SPACING, f"{count} messages: {computed} of {total} tokens were computed")
    check(warm == talk(server, messages, cache_prompt=False)[2], "a grown conversation is not as cold")


def check_budget(directory):
    """More texts than fit: what is held keeps to the budget, and is shown."""
    with Server(directory, "--slots", 2, "--kv-memory", "6M", "--ctx-size", 4096) as server:
        texts = [ids(1500) for _ in range(12)]
        cold = [complete(server, text) for text in texts]
        for text, (_, answer) in zip(texts[::-1], cold[::-1]):
            check(complete(server, text)[1] == answer, "an answer with little memory is another")
            now = metrics(server)
            states, held = now["apus_prefix_cache_state_bytes"], now["apus_prefix_cache_bytes"]
            limit = now["apus_kv_cache_limit_bytes"]
            check(0 < states < held <= limit and now["apus_kv_cache_used_bytes"] <= limit, f"{states} {held} {limit}")
        check(metrics(server)["apus_prefix_cache_evictions_total"] > 0, "everything fits")
    info = subprocess.run([BINARY, "info", directory], capture_output=True, text=True)
    check("for a snapshot of 3 recurrent layers" in info.stdout, info.stdout + info.stderr)


def check_restarts(directory):
    """A new server goes on from files: the same prompts, short ones too, and an edited conversation."""
    start = [os.path.join(directory, "model"), "--slots", 1, "--kv-memory", "512M"]
    start += ["--cache-dir", os.path.join(directory, "restarts")]
    prompts, messages, place = [ids(60), ids(400), ids(5000)], conversation(), TURNS // 2
    with Server(*start) as server:
        cold = [complete(server, prompt)[1] for prompt in prompts]
        talk(server, messages)
        server.wait_idle()
    messages[place]["content"] = words(250)
    with Server(*start) as server:
        for prompt, answer in zip(prompts, cold):
            computed, warm = complete(server, prompt)
            check(computed <= PAGE + 1 and warm == answer, f"{computed} of {len(prompt)} tokens after a restart")
        total, computed, warm = talk(server, messages)
        behind = total - sum(size(m) for m in messages[:place])
        most = max(size(m) for m in messages) + SPACING
        check(computed <= behind + most, f"edited, then started anew: {computed} of {total} computed, {behind} behind")
        check(warm == talk(server, messages, cache_prompt=False)[2], "edited, then started anew: not as cold")


def other_build(directory):
    """The program with another version in it."""
    version = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout.split()[1]
    other = "".join(chr(ord("0") + (int(c) + 1) % 10) if c.isdigit() else c for c in version)
    path = os.path.join(directory, "apus")
    with open(BINARY, "rb") as file:
        program = file.read().replace(version.encode(), other.encode())
    with open(path, "wb") as file:
        file.write(program)
    os.chmod(path, 0o755)
    return path


def check_strangers(directory):
    """Snapshots on disk, for which the model, the arithmetic and the build are the same, or are not."""
    prompt = ids(700)

    def ask(*options, binary=BINARY):
        start = [model, "--slots", 1, "--ctx-size", 4096, "--cache-dir", os.path.join(directory, "cache")]
        with Server(*start, *options, binary=binary) as server:
            return complete(server, prompt)

    model = os.path.join(directory, "model")
    _, cold = ask()
    computed, warm = ask()
    check(computed < 200 and warm == cold, f"{computed} tokens were computed after a restart")
    check(ask("--cpu", "ref")[0] == len(prompt), "a snapshot of another arithmetic was used")
    check(ask(binary=other_build(directory))[0] == len(prompt), "a snapshot of another build was used")
    write_tiny_hybrid(model, embedding_range=0.5)
    os.utime(os.path.join(model, "model.safetensors"), (1, 1))
    check(ask()[0] == len(prompt), "a snapshot of another model was used")


def main():
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "model")
        os.mkdir(model)
        write_tiny_hybrid(model)
        with Server(model, "--slots", 2, "--kv-memory", "512M") as server:
            check_again(server)
            check_edits(server, TURNS, TURNS // 2, 3)
            check_growing(server)
        with Server(model, "--slots", 2, "--kv-memory", "512M", "--kv-cache", "turbo4", "--turbo-after", 256) as server:
            check_edits(server, TURNS, TURNS // 2)
        check_budget(model)
        check_restarts(directory)
        check_strangers(directory)
    check.done()


if __name__ == "__main__":
    main()
