#!/usr/bin/env python3
"""Speculative decoding through the API: the same answers, log-probabilities, usage, ends and fingerprints with and
without draft tokens, from lookup, a prediction, a draft model and a multi-token prediction head; counts in usage,
timings and /metrics; a draft model of another vocabulary is refused, and so is a head that the file does not have.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile

from apus_server import BINARY, Checks, Server
from tiny_model import write_tiny_hybrid, write_tiny_model

check = Checks()
TEXT = "one two three four; one two three four; one two"
REQUESTS = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 0.8, "n": 3},
    {"temperature": 0.5, "logprobs": True, "top_logprobs": 4},
    {"temperature": 1, "stop": ["a", "e"]},
    {"temperature": 0.7, "logit_bias": {"40": 3, "41": -2}, "repetition_penalty": 1.1},
    {"temperature": 0.7, "response_format": {"type": "json_object"}, "min_tokens": 10},
    {"temperature": 0, "ignore_eos": True, "kv_cache": "turbo4"},
]


def ask(server, **fields):
    status, answer = server.chat(TEXT, **{"max_tokens": 120, "seed": 7, **fields})
    check(status == 200, f"{fields}: {answer}")
    return answer


def essence(answer):
    """All that must not depend on draft tokens."""
    usage = json.loads(json.dumps(answer["usage"]))
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        usage["completion_tokens_details"].pop(name)
    usage.pop("prompt_tokens_details")  # which depend on what was asked before
    return answer["choices"], usage, answer["system_fingerprint"]


def check_equal(plain, others):
    for fields in REQUESTS:
        wanted = ask(plain, **fields)
        check(wanted["timings"]["draft_n"] == 0, f"--no-lookup: {wanted['timings']}")
        for name, server in others.items():
            check(essence(ask(server, **fields)) == essence(wanted), f"{name}: {fields}")


def check_hybrid():
    """Recurrent states: with lookup, the model's head, and itself as a draft model."""
    with tempfile.TemporaryDirectory() as model:
        write_tiny_hybrid(model, predicts=True)
        with (
            Server(model, "--no-lookup") as plain,
            Server(model) as lookup,
            Server(model, "--no-lookup", "--mtp") as head,
            Server(model, "--no-lookup", "--draft-model", model, "--num-draft-tokens", 31) as draft,
        ):
            check_equal(plain, {"a hybrid, lookup": lookup, "a hybrid's head": head, "a hybrid, draft model": draft})


def drafted(server, source, accepted):
    name = "apus_draft_tokens_accepted_total" if accepted else "apus_draft_tokens_total"
    text = server.request("GET", "/metrics")[2].decode()
    found = re.search(rf'^{name}{{[^}}]*source="{source}"}} (\d+)', text, re.M)
    check(found, f"{name} of {source}")
    return int(found.group(1)) if found else 0


def check_prediction(plain, lookup):
    """The prediction is what the answer will be."""
    fields = {"temperature": 0.9, "max_tokens": 400, "ignore_eos": True}
    wanted = ask(plain, **fields)
    text = wanted["choices"][0]["message"]["content"]
    for content in (text, [{"type": "text", "text": text[:50]}, {"type": "text", "text": text[50:]}]):
        answer = ask(lookup, prediction={"type": "content", "content": content}, **fields)
        check(essence(answer) == essence(wanted), "with a prediction")
        details = answer["usage"]["completion_tokens_details"]
        check(details["accepted_prediction_tokens"] > 20, f"a right prediction: {details}")
        check(answer["timings"]["draft_n_accepted"] >= details["accepted_prediction_tokens"], str(answer["timings"]))
        check(answer["timings"]["draft_n"] >= answer["timings"]["draft_n_accepted"], str(answer["timings"]))
    wrong = ask(lookup, prediction={"type": "content", "content": "§" * 50}, **fields)
    check(essence(wrong) == essence(wanted), "with a wrong prediction")
    check(drafted(lookup, "prediction", True) > 20, "/metrics")
    check(drafted(plain, "prediction", False) + drafted(plain, "lookup", False) == 0, "/metrics of --no-lookup")


def check_vocabulary(model):
    with tempfile.TemporaryDirectory() as other:
        shutil.copytree(model, other, dirs_exist_ok=True)
        path = os.path.join(other, "tokenizer.json")
        with open(path) as file:
            tokenizer = json.load(file)
        vocabulary = tokenizer["model"]["vocab"]
        first, second = list(vocabulary)[5:7]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        with open(path, "w") as file:
            json.dump(tokenizer, file)
        result = subprocess.run(
            [BINARY, "run", model, "--draft-model", other, "Hello"], capture_output=True, text=True, timeout=60
        )
        check(result.returncode == 1 and "vocabulary" in result.stderr, result.stderr)


def check_refusals(model):
    """A file without a multi-token prediction head, and options that exclude each other."""
    for words, told in (
        (["--mtp"], "multi-token prediction head"),
        (["--mtp", "--draft-model", model], "exclude"),
        (["--num-draft-tokens", "3"], "--mtp"),
    ):
        command = [BINARY, "run", model, *words, "Hello"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        check(result.returncode != 0 and told in result.stderr, f"{words}: {result.stderr}")


def main():
    with tempfile.TemporaryDirectory() as model:
        write_tiny_model(model)
        with (
            Server(model, "--no-lookup") as plain,
            Server(model) as lookup,
            Server(model, "--no-lookup", "--draft-model", model) as draft,
        ):
            check_equal(plain, {"lookup": lookup, "draft model": draft})
            check_prediction(plain, lookup)
        check_vocabulary(model)
        check_refusals(model)
    check_hybrid()
    check.done()


main()
