#!/usr/bin/env python3
"""Figures of hybrid models on the CPU, on random weights in the shapes of Qwen3.5-4B and Nemotron-H-8B:

    bench/hybrids.py [--shapes qwen3.5-4b,nemotron-h-8b] [--layers N] [--cpu avx2] [--threads 2] [--rounds 3]
                     [--depth 32768] [--prompt 20000] [--tokenizer DIR] [--models DIR] [--peer 'llama-bench …']

Prints for each shape
- decode at depth 0: tokens/s, and the part of the read limit of the same run (weights and states are counted),
- decode at --depth divided by decode at 0, attention layers in turbo4,
- a prompt of 512 tokens: tokens/s, and the part of its time that recurrences, convolutions and gated norms take,
- with --tokenizer (a directory with tokenizer.json): seconds to the first token of a prompt of --prompt tokens that is
  sent three times, two other requests between, and of its conversation with one edited message.

--layers N shortens the models, for a try. Models are made once, in --models.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
import apus_server  # noqa: E402

BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
STATES = ("delta", "ssd", "conv", "mamba", "gated_norm")  # operations as the trace names them


def model(shape, options):
    name = shape + (f"-{options.layers}" if options.layers else "")
    path = os.path.join(options.models, name)
    if not os.path.exists(os.path.join(path, "config.json")):
        layers = ["--layers", str(options.layers)] if options.layers else []
        tool = os.path.join(ROOT, "tools", "make_bench_model.py")
        subprocess.run([sys.executable, tool, shape, path, *layers], check=True)
    if options.tokenizer:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(options.tokenizer, file), path)
    return path


def bench(path, options, *arguments):
    isa = ["--cpu", options.cpu] if options.cpu else []
    command = [BINARY, "bench", path, "--threads", str(options.threads), *isa, *arguments]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    return out.stdout


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def decode(path, options):
    rounds = ["-r", str(options.rounds), "--json"]
    against = ["--against", options.peer] if options.peer else []
    depths = ["-d", f"0,{options.depth}", "--kv-cache", "turbo4"]
    (at_0,) = lines_of(bench(path, options, "-p", "512", "-n", "64", *rounds, *against))
    shallow, deep = lines_of(bench(path, options, "-p", "0", "-n", "32", *rounds, *depths))
    print(f"  decode {at_0['tg']:.2f} tok/s, {at_0['tg_of_limit']:.0%} of the read limit")
    print(f"  decode at depth {options.depth} / 0, turbo4: {deep['tg'] / shallow['tg']:.3f}")
    print(f"  prompt of 512: {at_0['pp']:.1f} tok/s, {at_0['pp_of_limit']:.0%} of the int8 peak")
    if options.peer:
        print(f"  peer: {json.dumps(at_0.get('peer', at_0.get('against')))}")


def shares(path, options):
    """Of a prompt's step."""
    text = bench(path, options, "-p", "512", "-n", "0", "--trace")
    total, states = 0.0, dict.fromkeys(STATES, 0.0)
    for line in text.splitlines():
        found = re.match(r"(\w+).*? {2,}\d+ +[\d.]+ +([\d.]+)", line)  # operation, calls, µs, part of the step
        if found and found.group(1) in states:
            states[found.group(1)] += float(found.group(2))
            total += float(found.group(2))
    parts = ", ".join(f"{name} {share:.1f} %" for name, share in states.items() if share)
    print(f"  states in a prompt of 512: {total:.1f} % of the step ({parts})")


def first_token(server, tokens):
    body = {"model": server.name, "prompt": tokens, "max_tokens": 1, "temperature": 0}
    start = time.monotonic()
    status, _, answer = server.request("POST", "/v1/completions", body, timeout=7200)
    if status != 200:
        sys.exit(str(answer))
    return time.monotonic() - start


def prompts(path, options):
    rng = random.Random(1)

    def text(count):
        return [rng.randrange(1000, 100000) for _ in range(count)]

    long, arguments = text(options.prompt), ["--threads", str(options.threads)]
    if options.cpu:
        arguments += ["--cpu", options.cpu]
    with apus_server.Server(path, *arguments) as server:
        seconds = []
        for _ in range(3):
            seconds.append(first_token(server, long))
            first_token(server, text(300))
            first_token(server, text(300))
        edited = [*long[: options.prompt * 9 // 10], *text(options.prompt // 10)]
        edit = first_token(server, edited)
    cold = seconds[0]
    again = ", ".join(f"{s:.2f} s ({s / cold:.1%})" for s in seconds[1:])
    print(f"  {options.prompt} tokens: cold {cold:.1f} s, again {again}")
    print(f"  the last tenth edited: {edit:.2f} s ({edit / cold:.1%})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3.5-4b,nemotron-h-8b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=32768)
    parser.add_argument("--prompt", type=int, default=20000)
    parser.add_argument("--tokenizer")
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/apus/bench"))
    parser.add_argument("--peer")
    options = parser.parse_args()
    for shape in options.shapes.split(","):
        path = model(shape, options)
        print(f"{shape}{f', {options.layers} layers' if options.layers else ''}:", flush=True)
        decode(path, options)
        shares(path, options)
        if options.tokenizer:
            prompts(path, options)


if __name__ == "__main__":
    main()
