#!/usr/bin/env python3
"""The KV cache as clients see it: fields that choose its form and whom it is shared with, what is refused, what answers
tell.
"""

import json
import os
import tempfile

from apus_server import Checks, Server
from shallow_model import shallow_model_path
from shapes import CHAT, problem
from tiny_model import write_tiny_model

check = Checks()


def lines(count):
    return "".join(
        f"Line {i}: the swift number {i * 37 % 101} flew {i * 53 % 97} miles over the sea. " for i in range(count)
    )


# The caches of a real model's sizes without the time of all its layers: Gemma's sixth is its first without a window.
QWEN, GEMMA = ("qwen-0.5b", 4), ("gemma-270m", 6)
LONG = lines(13)  # several pages of tokens
LETTERS = lines(20)  # several windows of the tiny model, whose tokens are letters


def refused(server, param, words, **fields):
    status, answer = server.chat("Hi", max_tokens=1, **fields)
    error = answer.get("error", {})
    check(
        status == 400 and error.get("param") == param and all(word in error.get("message", "") for word in words),
        f"{fields}: {status} {error}",
    )


def answered(server, **fields):
    status, answer = server.chat("Hi", **{"max_tokens": 4, "temperature": 0, **fields})
    if check(status == 200, f"{fields}: {status} {answer}"):
        check(not problem(CHAT, answer), f"{fields}: {problem(CHAT, answer)}")
        return answer
    return None


def check_fields(server):
    for form in ("turbo9", "", "f16/turbo3", "turbo" * 20, "auto", "bf16", "f16\0"):
        refused(server, "kv_cache", ["kv_cache"], kv_cache=form)
    refused(server, "kv_cache", ["string"], kv_cache=4)
    for bits in (0, 2, 3, 5, 6, 16, 17, "4", 4.5):
        refused(server, "kv_bits", ["kv_bits"], kv_bits=bits)
    refused(server, "kv_bits", ["4 and 8"], kv_bits=3)
    for group in (0, 16, 63, 256, "64"):
        refused(server, "kv_group_size", ["kv_group_size"], kv_bits=4, kv_group_size=group)
    refused(server, "kv_group_size", ["32, 64 and 128"], kv_bits=4, kv_group_size=16)
    refused(server, "kv_group_size", ["only allowed with 'kv_bits'"], kv_group_size=64)
    refused(server, "kv_bits", ["only one"], kv_bits=4, kv_cache="turbo")
    refused(server, "cache_salt", ["empty"], cache_salt="")
    refused(server, "cache_salt", ["string"], cache_salt=7)
    refused(server, "cache_prompt", ["boolean"], cache_prompt="no")
    for fields, form in (
        ({}, "f16"),
        ({"kv_cache": "f16"}, "f16"),
        ({"kv_cache": "turbo"}, "turbo"),
        ({"kv_cache": "q8/turbo3"}, "q8/turbo3"),
        ({"kv_bits": 8}, "q8"),
        ({"kv_bits": 8, "kv_group_size": 32}, "q8"),
        ({"kv_bits": None}, "f16"),
        ({"cache_prompt": False, "cache_salt": "s", "prompt_cache_key": "k"}, "f16"),
    ):
        if answer := answered(server, **fields):
            cache = answer["timings"]["kv_cache"]
            check(cache["format"] == form and "note" not in cache, f"{fields}: {cache}")
    if answer := answered(server, kv_bits=4, kv_group_size=64):  # Qwen 2.5 has key biases
        cache = answer["timings"]["kv_cache"]
        check(cache["format"] == "turbo" and "biases" in cache.get("note", ""), cache)


def check_coded(server):
    status, _, body = server.request(
        "POST", "/v1/completions", {"model": server.name, "prompt": LONG * 3, "max_tokens": 2, "kv_cache": "turbo"}
    )
    cache = json.loads(body)["timings"]["kv_cache"]
    check(cache["coded_bytes"] > 0 and cache["noise"] > 0 and 0 <= cache["layers_raised"] <= QWEN[1], cache)


def check_timings(server):
    status, answer = server.chat(LONG, max_tokens=10, temperature=0, ignore_eos=True)
    timings, usage = answer["timings"], answer["usage"]
    check(timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"], f"{timings} {usage}")
    check(
        timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"] and timings["predicted_n"] == 10,
        f"{timings} {usage}",
    )
    check(timings["prompt_ms"] > 0 and timings["predicted_per_second"] > 0, timings)
    events = server.stream(
        "/v1/completions", {"prompt": "One, two,", "max_tokens": 5, "stream_options": {"include_usage": True}}
    )
    check('"timings":{"cache_n"' in events[-2] and events[-1] == "[DONE]", events[-2])


def complete(server, prompt=LONG, **fields):
    """Tokens of the prompt, of these found, and the answer with its logprobs."""
    status, _, body = server.request(
        "POST",
        "/v1/completions",
        {"model": server.name, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2, **fields},
    )
    answer = json.loads(body)
    if not check(status == 200, answer):
        return 0, 0, None
    return answer["usage"]["prompt_tokens"], answer["timings"]["cache_n"], answer["choices"]


def check_sharing(server):
    """Found again by whom it may be, and then the same to the last digit."""
    tokens, found, cold = complete(server, cache_salt="a")
    check(found == 0, f"nobody asked this before, but {found} tokens were found")
    for fields, wanted in (
        ({"cache_salt": "a"}, tokens),
        ({"cache_salt": "b"}, 0),
        ({"cache_salt": "a", "cache_prompt": False}, 0),
        ({"cache_salt": "a", "prompt_cache_key": "k"}, 0),
        ({"cache_salt": "a", "kv_cache": "turbo"}, 0),
    ):
        _, found, answer = complete(server, **fields)
        check(
            found == 0 if wanted == 0 else tokens - 17 <= found < tokens,
            f"{fields}: {found} of {tokens} tokens were found",
        )
        check(answer == cold or "kv_cache" in fields, f"{fields}: warm = cold")


def converse(server, messages, **fields):
    status, answer = server.chat(messages, max_tokens=8, temperature=0, logprobs=True, **fields)
    if not check(status == 200, answer):
        return 0, None
    return answer["timings"]["cache_n"], answer["choices"]


def check_conversations(server, **fields):
    """Conversations that share a system prompt only, and one whose middle is edited: all but a page of what they share
    is found.
    """
    system = {"role": "system", "content": LONG}
    size = server.chat([system], max_tokens=1, cache_prompt=False, **fields)[1]["usage"]["prompt_tokens"]
    for number, name in enumerate(("Ada", "Grace", "Mary")):
        talk = [system, {"role": "user", "content": f"{name} asks: {LONG[::-1][:300]}"}]
        found, warm = converse(server, talk, **fields)
        _, cold = converse(server, talk, cache_prompt=False, **fields)
        check(
            warm == cold and (number == 0 or found >= size - 160),
            f"{fields}: {found} of {size} tokens of a system prompt were found",
        )
    talk += [{"role": "assistant", "content": "So it flew."}, {"role": "user", "content": LONG[:500]}]
    converse(server, talk, **fields)
    talk[1] = {"role": "user", "content": "Another question: " + LONG[:600]}
    found, warm = converse(server, talk, **fields)
    check(
        found >= size - 160 and warm == converse(server, talk, cache_prompt=False, **fields)[1],
        f"{fields}: {found} found of an edited talk",
    )


def check_parting(server, **fields):
    """Texts without messages: where two have parted, the third goes on."""
    size = complete(server, cache_prompt=False, **fields)[0]
    for number, name in enumerate(("Ada", "Grace", "Mary")):
        _, found, warm = complete(server, LONG + name + LONG[::-1][:400], **fields)
        _, _, cold = complete(server, LONG + name + LONG[::-1][:400], cache_prompt=False, **fields)
        check(
            warm == cold and (number < 2 or found >= size - 130),
            f"{fields}: {found} of {size} shared tokens were found",
        )


def check_window(*options):
    """Layers with a sliding window, prompts of several windows: what follows a cached prompt, repeats it, ends before
    it or parts from it says what it says without a cache. A cache that keeps the last window alone cannot go back.
    """
    window = 192
    edited = LETTERS[: 4 * window] + " Otherwise it stayed. " + LETTERS[4 * window :]
    prompts = {
        "repeated": LETTERS,
        "continued": LETTERS + " And then it came back, as all of them do. " * 3,
        "shorter by less than a window": LETTERS[: -window // 2],
        "shorter by more": LETTERS[: 2 * window + 7],
        "within the window": LETTERS[: window // 2],
        "edited": edited,
        "edited, continued": edited + LETTERS[:window],
        "as at first": LETTERS,
    }
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory, context=4096)
        with Server(directory, "--slots", 1, "--threads", 1, *options) as server:
            tokens = complete(server, LETTERS)[0]
            check(tokens > 5 * window, f"{tokens} tokens are several windows")
            for what, prompt in prompts.items():
                _, found, warm = complete(server, prompt)
                cold = complete(server, prompt, cache_prompt=False)[2]
                check(warm == cold, f"{options}: sliding window, {what}, {found} tokens found: {warm} {cold}")
                may_be_new = what not in ("repeated", "continued", "edited, continued")
                check(may_be_new or found > 0, f"{options}: sliding window, {what}: nothing was found")


def check_restart(*options):
    """The next turn after a restart computes what is new only."""
    turn = LONG + " And then"
    with tempfile.TemporaryDirectory() as directory:
        start = [shallow_model_path(*GEMMA), "--ctx-size", 4096, "--slots", 1, *options]
        with Server(*start, "--cache-dir", directory) as server:
            complete(server)
            cold = complete(server, turn, cache_prompt=False)
        files = [os.path.join(path, name) for path, _, names in os.walk(directory) for name in names]
        check(all(os.stat(file).st_mode & 0o077 == 0 for file in files) and len(files) == 2, f"{files}")
        with Server(*start, "--cache-dir", directory) as server, Server(*start, "--cache-dir", directory) as second:
            tokens, found, answer = complete(server, turn)
            check(
                0 <= tokens - found < 128 + 20 and answer == cold[2], f"{found} of {tokens} tokens were found on disk"
            )
            check(complete(second, turn)[1] == 0, "a second server runs without the directory")
        with Server(*start, "--cache-dir", "/proc/apus") as server:
            check(complete(server, "Hello")[2], "a directory that cannot be is no reason to stop")


def main():
    with Server(shallow_model_path(*QWEN), "--ctx-size", 8192, "--slots", 2, "--turbo-after", 256) as server:
        check_fields(server)
        check_timings(server)
        check_coded(server)
        check_conversations(server, kv_cache="turbo3", cache_salt="t")
        check(server.wait_idle(), "the server is idle in the end")
    with Server(shallow_model_path(*QWEN), "--ctx-size", 1024, "--slots", 1, "--kv-cache", "bf16") as server:
        check(answered(server)["timings"]["kv_cache"]["format"] == "bf16", "the server's own form")
        check(answered(server, kv_cache="bf16")["timings"]["kv_cache"]["format"] == "bf16", "and asked for by name")
        refused(server, "kv_cache", ["bf16"], kv_cache="f16")
    with Server(shallow_model_path(*GEMMA), "--ctx-size", 8192, "--slots", 2, "--turbo-after", 256) as server:
        check_sharing(server)
        check_parting(server)
        check_parting(server, kv_cache="turbo", cache_salt="t")
    check_window()
    check_window("--turbo-kv", "--turbo-after", 256)
    check_restart()
    check_restart("--turbo-kv", "--turbo-after", 256)
    check.done()


if __name__ == "__main__":
    main()
