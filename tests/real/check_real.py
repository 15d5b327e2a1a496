"""Real models against mlx-lm's goldens (tools/make_real_goldens.py): perplexity of two pages within 0.5 %, greedy
choices equal wherever the reference leads by more than 0.1; on the processor memory of the served 1.5B, and the time
from process start to first token. tests/real/check_real.py [--device cuda] [OPTIONS of apus debug logits…]: on a
device, too, how far its distributions are from those of --cpu ref (f32 throughout), which must not be further than the
processor's own are. APUS_MODELS: names, or NAME=DIRECTORY; memory is measured where the 1.5B is among them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "server"))
from apus_server import BINARY, CACHE, Checks, Server, model_path  # noqa: E402

check = Checks()
MODELS = os.environ.get("APUS_MODELS", "gemma-270m qwen-0.5b qwen-1.5b").split()
NLL_RATIO = 0.005  # of perplexity: ln(1.005) in nats per token
LEAD = 0.1
OPTIONS = sys.argv[1:]
ON_DEVICE = "--device" in OPTIONS


def logits(model, ids, *options, where=OPTIONS):
    with tempfile.TemporaryDirectory() as directory:
        tokens, out = os.path.join(directory, "ids"), os.path.join(directory, "logits.npy")
        with open(tokens, "w") as f:
            f.write(",".join(map(str, ids)))
        subprocess.run(
            [BINARY, "debug", "logits", model, "--tokens", "@" + tokens, "--out", out, *where, *options], check=True
        )
        return np.load(out)


def encode(model, text):
    line = json.dumps({"text": text, "special": True, "bos": True}) + "\n"
    out = subprocess.run(
        [BINARY, "debug", "tokens", model], input=line, capture_output=True, text=True, check=True
    ).stdout
    return json.loads(out)["ids"]


def nll(out, ids):
    total = 0.0
    for row, target in zip(out[:-1], ids[1:]):
        row = row.astype(np.float64)
        top = row.max()
        total += np.log(np.exp(row - top).sum()) + top - row[target]
    return total / (len(ids) - 1)


def divergences(reference, *others):
    """Of each row Σ p·(ln p − ln q), in nats."""

    def log_softmax(row):
        row = row.astype(np.float64) - row.max()
        return row - np.log(np.exp(row).sum())

    sums = [[] for _ in others]
    for rows in zip(reference, *others):
        p, *qs = map(log_softmax, rows)
        for one, q in zip(sums, qs):
            one.append((np.exp(p) * (p - q)).sum())
    return sums


for name in MODELS:
    name, _, directory = name.partition("=")
    golden_path = os.path.join(HERE, name + ".json")
    golden = json.load(open(golden_path))
    model = directory or model_path(name)
    for page, wanted in golden["pages"].items():
        ids = encode(model, open(os.path.join(HERE, page + ".txt")).read())
        check(len(ids) == wanted["tokens"] and ids[:16] == wanted["first"], f"{name}: tokens of the {page} page")
        out = logits(model, ids)
        got = nll(out, ids)
        ratio = np.exp(got - wanted["nll"]) - 1
        check(abs(ratio) < NLL_RATIO, f"{name}: perplexity of {page} differs by {ratio:.3%}")
        print(f"{name} {page}: perplexity {np.exp(got):.4f}, mlx-lm {np.exp(wanted['nll']):.4f} ({ratio:+.3%})")
        if ON_DEVICE:
            reference, own = logits(model, ids, "--cpu", "ref", where=()), logits(model, ids, where=())
            device, processor = divergences(*(rows[::4] for rows in (reference, out, own)))
            check(np.mean(device) <= np.mean(processor), f"{name}: {page}: further from f32 than the processor")
            print(
                f"{name} {page}: KL from f32, nats, mean and p99: here {np.mean(device):.3g} "
                f"{np.quantile(device, 0.99):.3g}, "
                f"processor {np.mean(processor):.3g} {np.quantile(processor, 0.99):.3g}"
            )
    compared = 0
    for answer in golden["answers"]:
        ids = answer["prompt"] + answer["answer"]
        ours = logits(model, ids, "--steps", str(len(answer["answer"])))[len(answer["prompt"]) - 1 : -1].argmax(axis=1)
        for i, (token, best, lead) in enumerate(zip(ours, answer["argmax"], answer["lead"])):
            if lead > LEAD:
                compared += 1
                check(token == best, f"{name}: position {i}: {token}, mlx-lm {best} with a lead of {lead}")
    print(f"{name}: {compared} clear choices compared")


def resident(pid):
    """Anonymous and file-backed resident bytes."""
    anonymous = total = 0
    for line in open(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Rss:"):
            total = int(line.split()[1]) * 1024
        if line.startswith("Anonymous:"):
            anonymous = int(line.split()[1]) * 1024
    return anonymous, total


if sys.platform == "linux" and not OPTIONS and "qwen-1.5b" in MODELS:
    with Server(model_path("qwen-1.5b"), "--ctx-size", 4096, "--slots", 4) as server:
        server.chat("Write a story about a swift. " * 40, max_tokens=64)
        anonymous, total = resident(server.process.pid)
        kv = server.health()["kv_bytes_total"]
        weights = sum(
            os.path.getsize(os.path.join(d, f))
            for d, _, files in os.walk(CACHE)
            for f in files
            if f.endswith(".safetensors") and "qwen-1.5b" in d and "compact" in d
        )
        print(
            f"served 1.5B: resident {total / 1e6:.0f} MB = anonymous {anonymous / 1e6:.0f} MB + mapped; weights "
            f"{weights / 1e6:.0f} MB, KV at most {kv / 1e6:.0f} MB"
        )
        check(total <= weights + kv + 80e6, "resident memory ≤ weights + KV + 80 MB")
if not OPTIONS:
    times = []
    for _ in range(5):
        start = time.time()
        process = subprocess.Popen([BINARY, "run", model_path("qwen-0.5b"), "Hi", "-n", "1"], stdout=subprocess.PIPE)
        process.stdout.read(1)
        times.append(time.time() - start)
        process.wait()
    print(f"process start to first token, 0.5B, warm: {sorted(times)[2]:.3f} s (median of 5; reported, not judged)")
check.done()
