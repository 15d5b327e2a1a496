#!/usr/bin/env python3
"""Figures of hybrid models on the CPU, on random weights in the shapes of Qwen3.5-4B and Nemotron-H-8B:

    bench/hybrids.py [--shapes qwen3.5-4b,nemotron-h-8b] [--layers N] [--cpu avx2] [--threads 2] [--rounds 3]
                     [--depth 32768] [--prompt 20000] [--only decode,depth,states,prompts] [--models DIR]
                     [--llama-bench PATH]

Prints for each shape
- decode: tokens/s at depth 0, and the part of the read limit of the same run (weights and states are counted; to be
  80 % at least), and a prompt of 512 tokens; with --llama-bench beside llama.cpp's on a GGUF file of the same shape in
  Q4_0, which has as many bits, one run of either in turn (to be 1.3 and 1.5 times as fast at least). bench/peers.sh
  builds llama-bench; tools/make_bench_gguf.py, which makes the files, needs gguf (tools/python_env.sh has it),
- depth: decode at --depth divided by decode at 0, attention layers in turbo4 (to be 0.9 at least), and how much longer
  attention and everything else take there,
- states: the part of the time of a prompt of 512 tokens that recurrences, convolutions and gated norms take (to be
  15 % at most),
- prompts: a real server; seconds to the first token of a prompt of --prompt tokens that is sent three times, two other
  requests between (to be 2 % of the first at most), and of a conversation of 30 turns one of which is edited; tokens
  that were computed, and what snapshots take,
- restarts: the same with --cache-dir; the server is started anew before the second and the third time, and before the
  edited conversation.

--layers N shortens the models, for a try: with 4, of which one has attention, as in the whole, the output matrix is
most of the rest; what the whole would take is printed as well. Models are made once, in --models. The prompt of --depth
tokens is read once.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import apus_server  # noqa: E402
import make_bench_model  # noqa: E402
import tiny_model  # noqa: E402

BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
STATES = ("delta", "ssd", "conv", "mamba", "gated_norm")  # operations as the trace names them
PARTS = ("decode", "depth", "states", "prompts", "restarts")
TURNS = 30


def made(shape, options, tool, name):
    """What a tool makes of the shape, once: the directory or file of this name."""
    path = os.path.join(options.models, shape + (f"-{options.layers}" if options.layers else "") + name)
    if not os.path.exists(path):
        layers = ["--layers", str(options.layers)] if options.layers else []
        os.makedirs(options.models, exist_ok=True)
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", tool), shape, path + ".part", *layers], check=True)
        os.rename(path + ".part", path)
    return path


def model(shape, options):
    path = made(shape, options, "make_bench_model.py", "")
    tiny_model.write_tokenizer(path)
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


def decode(path, shape, options):
    against = []
    if options.llama_bench:
        file = made(shape, options, "make_bench_gguf.py", ".gguf")
        command = f"{options.llama_bench} -m {file} -t {options.threads} -fa 1 -p 512 -n 64 -r 1 -o json"
        against = ["--against", command]
    (at_0,) = lines_of(bench(path, options, "-p", "512", "-n", "64", "-r", str(options.rounds), "--json", *against))
    print(f"  decode {at_0['tg']:.2f} tok/s, {at_0['tg_of_limit']:.0%} of the read limit (at least 80 %)")
    print(f"  prompt of 512: {at_0['pp']:.1f} tok/s, {at_0['pp_of_limit']:.0%} of the int8 peak")
    if options.llama_bench:
        tg, pp = at_0["tg"] / at_0["peer_tg"], at_0["pp"] / at_0["peer_pp"]
        print(f"  llama.cpp: decode {at_0['peer_tg']:.2f} tok/s: {tg:.2f} times (at least 1.3)")
        print(f"    prompt of 512: {at_0['peer_pp']:.1f} tok/s: {pp:.2f} times (at least 1.5)")


def operations_of(trace):
    """Microseconds of a step by operation."""
    times = {}
    for line in trace["lines"]:
        name = line["operation"].split()[0]
        times[name] = times.get(name, 0) + line["us"]
    return times


def depth(path, shape, options):
    depths = ["-p", "0", "-n", "32", "-d", f"0,{options.depth}", "--kv-cache", "turbo4", "-r", str(options.rounds)]
    shallow, deep = lines_of(bench(path, options, *depths, "--json", "--trace"))
    before, after = operations_of(shallow), operations_of(deep)
    step, far = shallow["step"]["us"], deep["step"]["us"]
    more = {name: after[name] - before.get(name, 0) for name in after}
    most = ", ".join(f"{name} {us:+.0f}" for name, us in sorted(more.items(), key=lambda item: -abs(item[1]))[:4])
    attention = sum(us for name, us in more.items() if name.startswith("attention"))
    print(f"  decode at depth {options.depth} / 0, turbo4: {1e6 / far:.2f} / {1e6 / step:.2f} tok/s = {step / far:.3f}")
    print(f"    a step of {step:.0f} us takes {far - step:+.0f} us: attention {attention:+.0f} ({most})")
    if options.layers:
        layers = make_bench_model.SHAPES[shape]["num_hidden_layers"]
        times, head = layers / options.layers, before.get("head", 0)
        whole = head + (step - head) * times
        print(f"    {layers} layers: {whole:.0f} us, {whole / (whole + attention * times):.3f}, if attention is all")


def states(path, shape, options):
    (trace,) = lines_of(bench(path, options, "-p", "512", "-n", "0", "--trace", "--json"))
    times = operations_of(trace)
    parts = {name: times[name] / trace["step"]["us"] for name in STATES if name in times}
    each = ", ".join(f"{name} {share:.1%}" for name, share in parts.items())
    print(f"  states in a prompt of 512: {sum(parts.values()):.1%} of the step ({each})")


def first_token(server, tokens):
    """Seconds, and tokens of the prompt that were computed."""
    body = {"model": server.name, "prompt": tokens, "max_tokens": 1, "temperature": 0}
    start = time.monotonic()
    status, _, answer = server.request("POST", "/v1/completions", body, timeout=7200)
    seconds = time.monotonic() - start
    if status != 200:
        sys.exit(str(answer))
    return seconds, json.loads(answer)["timings"]["prompt_n"]


def metric(server, name):
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def text(rng, count):
    """Token ids of letters in the vocabulary of tiny_model.py."""
    return [rng.randrange(1, 95) for _ in range(count)]


def again(start, rng, options):
    """start(): the server, anew where it is started anew."""
    long, times = text(rng, options.prompt), []
    for _ in range(3):
        server = start()
        times.append(first_token(server, long))
        first_token(server, text(rng, 300))
        first_token(server, text(rng, 300))
    cold = times[0][0]
    print(f"  {options.prompt} tokens: cold {cold:.2f} s")
    for seconds, computed in times[1:]:
        print(f"    again {seconds:.3f} s, {seconds / cold:.2%} (at most 2 %); {computed} tokens computed")


def edited(start, rng, options):
    end, turn = 98, options.prompt // 4 // TURNS
    turns = [[*text(rng, turn - 1), end] for _ in range(TURNS)]
    cold, _ = first_token(start(), sum(turns, []))
    for place in (TURNS - 1, TURNS // 2):
        turns[place] = [*text(rng, turn - 1), end]
        seconds, computed = first_token(start(), sum(turns, []))
        before = computed - (TURNS - place) * turn
        print(f"  turn {place + 1} of {TURNS}, {turn} tokens each, edited: {seconds:.2f} s of {cold:.2f} s cold;")
        print(f"    {computed} tokens computed, {before} of them before the edited turn (at most {turn + 512})")


def serve(path, options, *more):
    isa = ["--cpu", options.cpu] if options.cpu else []
    return apus_server.Server(path, "--threads", str(options.threads), *isa, *more)


def prompts(path, shape, options):
    rng = random.Random(1)
    with serve(path, options) as server:
        again(lambda: server, rng, options)
        edited(lambda: server, rng, options)
        held, limit = (metric(server, f"apus_{name}_bytes") for name in ("prefix_cache_state", "kv_cache_limit"))
    info = subprocess.run([BINARY, "info", path], capture_output=True, text=True, check=True).stdout
    line = next(line for line in info.splitlines() if line.startswith("states"))
    print(f"  states in the prefix cache: {held / 2**20:.1f} MiB within {limit / 2**20:.0f} MiB; {line[13:]}")


def restarts(path, shape, options):
    rng, servers = random.Random(2), []

    def stop():
        while servers:
            servers.pop().__exit__(None, None, None)

    with tempfile.TemporaryDirectory(dir=options.models) as directory:

        def start():
            stop()
            servers.append(serve(path, options, "--cache-dir", directory))
            return servers[0].__enter__()

        print("  with --cache-dir, started anew before each request:")
        try:
            again(start, rng, options)
            edited(start, rng, options)
        finally:
            stop()
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(directory) for name in names)
        print(f"    {size / 2**20:.0f} MiB on disk")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3.5-4b,nemotron-h-8b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=32768)
    parser.add_argument("--prompt", type=int, default=20000)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/apus/bench"))
    parser.add_argument("--llama-bench")
    options = parser.parse_args()
    for shape in options.shapes.split(","):
        path = model(shape, options)
        print(f"{shape}{f', {options.layers} layers' if options.layers else ''}:", flush=True)
        for measure in (decode, depth, states, prompts, restarts):
            if measure.__name__ in options.only.split(","):
                measure(path, shape, options)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
