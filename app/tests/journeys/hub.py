#!/usr/bin/env python3
"""A hub for the journeys: prints its address, then takes its faults as lines of JSON on standard input."""

import json
import pathlib
import random
import sys
import tempfile

for folder in ("hub", "server"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / folder))
from fake_hub import FakeHub, Repo  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402

MB = 1 << 20


def repo(size, **fields):
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "model.safetensors": random.randbytes(size),
    }
    return Repo(files, large=["model.safetensors"], **fields)


def model():
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(folder)
        files = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    return Repo(files, large=["model.safetensors"])


hub = FakeHub({"org/tiny": repo(6 * MB), "org/other": model(), "org/gated": repo(MB, gated=True)})
print(hub.url, flush=True)
for line in sys.stdin:
    with hub.lock:
        hub.faults.clear()
        hub.faults.update(json.loads(line))
    print("set", flush=True)
hub.close()
