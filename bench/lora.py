#!/usr/bin/env python3
"""Speed of a served model with a LoRA adapter on all matrices of its layers, or on --targets, beside its own:

    bench/lora.py MODEL_DIRECTORY [--rank 16] [--dtype bf16|f32] [--rounds 7] [--binary OLD --binary NEW]

The adapter is random. Each round reads a prompt that no cache has seen and generates behind it, without the adapter and
with it in turn, with each binary; medians of the rounds. Ratios of 1: the adapter costs nothing. With --threads 1
--processor-time it is held against the processor time of the server, which a busy machine disturbs less.
"""

import argparse
import functools
import http.client
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time


def matrices(config):
    """(name, rows, columns) of each matrix of a layer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads, head = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
    return [
        ("self_attn.q_proj", heads * head, hidden),
        ("self_attn.k_proj", kv_heads * head, hidden),
        ("self_attn.v_proj", kv_heads * head, hidden),
        ("self_attn.o_proj", hidden, heads * head),
        ("mlp.gate_proj", inner, hidden),
        ("mlp.up_proj", inner, hidden),
        ("mlp.down_proj", hidden, inner),
    ]


def values(count, dtype):
    """Random numbers of about 0.01."""
    if dtype == "F32":
        return struct.pack(f"<{count}f", *(random.uniform(-0.01, 0.01) for _ in range(count)))
    raw = bytearray(os.urandom(2 * count))
    raw[1::2] = raw[1::2].translate(bytes(b & 0x80 | 0x3C for b in range(256)))
    return bytes(raw)


def write_adapter(directory, model, rank, dtype, targets):
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    header, parts, at = {}, [], 0
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in matrices(config):
            if targets and name.rsplit(".", 1)[1] not in targets:
                continue
            for part, shape in (("A", [rank, columns]), ("B", [rows, rank])):
                parts.append(values(shape[0] * shape[1], dtype))
                header[f"base_model.model.model.layers.{layer}.{name}.lora_{part}.weight"] = {
                    "dtype": dtype,
                    "shape": shape,
                    "data_offsets": [at, at + len(parts[-1])],
                }
                at += len(parts[-1])
    text = json.dumps(header).encode()
    with open(os.path.join(directory, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    with open(os.path.join(directory, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "lora_alpha": rank}, file)


def start(binary, model, adapter, threads):
    command = [binary, "serve", model, "--port", "0", "--model-name", "model", "--no-lookup", "--lora", f"a={adapter}"]
    process = subprocess.Popen(
        [*command, *(["--threads", str(threads)] if threads else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    port = 0
    for line in process.stdout:
        if found := re.search(r"API\s+http://[^:]+:(\d+)/v1", line):
            port = int(found.group(1))
        if "Ctrl-C" in line:
            return process, port
    sys.exit(f"{binary} did not start: exit code {process.wait()}")


def clock(process, processor_time):
    if not processor_time:
        return time.monotonic()
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port, model, words, tokens, now):
    """Prompt tokens per second up to the first token, and tokens per second behind it."""
    prompt = " ".join(random.choice(("sea", "hill", "river", "wood", "cloud", "stone")) for _ in range(words))
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begun, at, usage = now(), [], {}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    while (line := response.readline()) and b"[DONE]" not in line:
        if line.startswith(b"data"):
            at = [at[0] if at else now(), now()]
            usage = json.loads(line[6:]).get("usage") or usage
    connection.close()
    return usage["prompt_tokens"] / (at[0] - begun), (usage["completion_tokens"] - 1) / (at[-1] - at[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", action="append", help="build/apus; several are measured in turn")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--targets", type=lambda text: text.split(","), help="q_proj,v_proj: PEFT's default; all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    binaries = options.binary or ["build/apus"]
    speeds = {(binary, model): [] for binary in binaries for model in ("model", "a")}
    with tempfile.TemporaryDirectory() as directory:
        write_adapter(directory, options.model, options.rank, options.dtype.upper(), options.targets)
        servers = {}
        try:
            for binary in binaries:
                servers[binary] = start(binary, options.model, directory, options.threads)
            for number in range(options.rounds + 1):
                for binary, model in list(speeds) if number % 2 else reversed(speeds):
                    process, port = servers[binary]
                    now = functools.partial(clock, process, options.processor_time)
                    found = measure(port, model, options.words, options.tokens, now)
                    if number:  # the first round reads the files
                        speeds[binary, model].append(found)
        finally:
            for process, _ in servers.values():
                process.terminate()
                process.wait()
    for binary in binaries:
        for place, what in enumerate(("prompt", "generation")):
            base, adapted = ([found[place] for found in speeds[binary, model]] for model in ("model", "a"))
            ratio = statistics.median(a / b for a, b in zip(adapted, base, strict=True))
            speed = f"{statistics.median(base):.1f} tok/s, with the adapter {statistics.median(adapted):.1f}"
            print(f"{binary + ': ' if len(binaries) > 1 else ''}{what}: {speed}: {ratio:.3f}")


main()
