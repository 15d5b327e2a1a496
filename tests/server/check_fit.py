#!/usr/bin/env python3
"""Whether a model fits, as the server plans it before the download: from headers alone, and equal to the plan that the
load of the same model prints.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hub"))
import tiny_model
from apus_server import BINARY, Checks
from check_jobs import EmptyServer, call, ended, large_repo, start
from fake_hub import FakeHub, Repo

check = Checks()
SIZES = {"HIDDEN": 1024, "INNER": 4096, "HEADS": 8, "KV_HEADS": 4, "HEAD": 128}


def medium_files():
    """A model of 120 MB whose weights are zeros."""
    before = {name: getattr(tiny_model, name) for name in SIZES}
    for name, value in SIZES.items():
        setattr(tiny_model, name, value)
    with tempfile.TemporaryDirectory() as folder:
        tensors, at = {}, 0
        for name, shape in tiny_model._tensors():
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            tensors[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        tiny_model._weights = lambda: ()
        tiny_model.write_tiny_model(folder, context=4096)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    for name, value in before.items():
        setattr(tiny_model, name, value)
    header = json.dumps(tensors).encode()
    files["model.safetensors"] = struct.pack("<Q", len(header)) + header + bytes(at)
    return files


def fit(server, model):
    return call(server, "POST", "/v1/models/fit", {"model": model})


def plan_of(log):
    """What the load printed: GB of weights, of the KV cache, and what that would take."""
    found = re.findall(r"plan: .* weights ([\d.]+).*, KV cache ([\d.]+) of ([\d.]+)", Path(log).read_text())
    return [float(x) for x in found[-1]] if found else None


def gb(value):
    return float(f"{value * 1e-9:.2f}")


def test_before_and_after(folder, hub, weights):
    """The plan of the headers is that of the load."""
    log = os.path.join(folder, "log")
    with open(log, "w") as file, EmptyServer(folder, hub, "--allow-pull", "--slots", "4", log=file) as server:
        status, before = fit(server, "org/medium")
        check(status == 200 and before["fit"] == "fits" and before["now"] == "fits", f"it fits: {before}")
        check(before["basis"] == "plan" and not before["local"], f"planned from the hub: {before}")
        check(hub.sent < 1 << 20, f"from headers alone: {hub.sent} bytes")
        check(0 <= weights - before["weight_bytes"] < 1 << 16, f"all weights: {before['weight_bytes']} of {weights}")
        check(before["model_type"] == "gemma3_text" and before["bits"] is None, f"its kind: {before}")
        speed = before["decode_tokens_per_second"]
        check(speed is not None and speed > 0 and not before["measured"], f"a speed is expected: {before}")
        asked = len(hub.log)
        check(fit(server, "org/medium")[1]["needed_bytes"] == before["needed_bytes"], "the same again")
        check(len(hub.log) == asked, "without asking the hub")
        job = ended(server, start(server, "load", "org/medium")[1]["id"])
        check(job["state"] == "done", f"it is loaded: {job}")
        plan = plan_of(log)
        check(plan is not None and plan[1] == gb(before["kv_cache_bytes"]), f"the cache of the load: {plan} {before}")
        after = fit(server, "org/medium")[1]
        check(after["local"], f"it is here now: {after}")
        for name in ("weight_bytes", "needed_bytes", "least_bytes", "context_length"):
            apart = abs(after[name] - before[name])  # the path is another one, which is in memory
            check(apart < 4096, f"{name} of the whole model: {after[name]}, {before[name]}")
        check(plan is not None and abs(plan[0] - gb(after["weight_bytes"])) < 0.011, f"its weights: {plan} {after}")
    check(server.code == 0, f"the server ends: {server.code}")


def test_bounds(folder, hub):
    """A budget that is too small, experts that are streamed, and what cannot be planned."""
    with EmptyServer(folder, hub, "--allow-pull", "--memory-budget", "64M", "--prefill-size", "64") as server:
        found = fit(server, "org/medium")[1]
        check(found["fit"] == "too_large" and found["least_bytes"] > 100e6, f"too large: {found}")
        check(found["decode_tokens_per_second"] is None and found["kv_cache_bytes"] == 0, f"no speed: {found}")
        mixture = fit(server, "org/mixture")[1]
        check(mixture["experts"] == 6 * 32 and mixture["experts_in_memory"] == 0, f"a mixture: {mixture}")
        status, answer = fit(server, "org/broken")
        check(status == 400 and answer["error"]["code"] == "unsupported_model", f"no weights: {answer}")
        status, answer = fit(server, "org/none")
        check(status == 404 and answer["error"]["code"] == "model_not_found", f"no such model: {answer}")
        status, answer = fit(server, "org/gguf")
        check(status == 200 and answer["basis"] == "size", f"a GGUF file by its size: {answer}")
        check(call(server, "POST", "/v1/models/fit", {"name": "x"})[0] == 400, "a body without a model")
        check(fit(server, "../x")[0] == 400, "a path is no name")
        hub.faults["no_ranges"] = True
        check(fit(server, "org/other")[0] in (400, 503), "a hub without ranges")
        hub.faults.clear()
    budget = (mixture["least_bytes"] + mixture["needed_bytes"]) // 2
    options = ("--allow-pull", "--memory-budget", str(budget), "--prefill-size", "64")
    with EmptyServer(folder, hub, *options) as server:
        found = fit(server, "org/mixture")[1]
        check(found["fit"] == "streams" and 8 < found["experts_in_memory"] < 192, f"streamed: {found}")


def test_not_allowed(folder, hub):
    """Without --allow-pull the hub is not asked; models of this machine are planned."""
    with EmptyServer(folder, hub) as server:
        asked = len(hub.log)
        status, answer = fit(server, "org/other")
        check(status == 404 and "--allow-pull" in answer["error"]["message"], f"refused: {answer}")
        check(len(hub.log) == asked, "the hub was not asked")
        check(fit(server, "org/medium")[0] == 200, "what is here is planned")


def test_command_line(folder, hub):
    """`apus list` and `apus search` say what the endpoint says of the same memory."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": folder, "APUS_CACHE": os.path.join(folder, "apus")}

    def rows(*arguments):
        command = [BINARY, *arguments, "--json"]
        done = subprocess.run(command, env=environment | {"NO_PROXY": "*"}, capture_output=True, text=True, timeout=120)
        check(done.returncode == 0 and not done.stderr, f"{arguments}: {done.stdout} {done.stderr}")
        return {row["id"]: row for row in map(json.loads, done.stdout.splitlines())}

    with EmptyServer(folder, hub) as server:
        endpoint = fit(server, "org/medium")[1]
    here = rows("list")["org/medium"]
    check(here["fit"] == endpoint["fit"] == "fits" and here["decode_tokens_per_second"] > 0, f"list: {here} {endpoint}")
    check(here["needed_bytes"] >= endpoint["weight_bytes"], f"with weights: {here}")  # of another context
    table = subprocess.run([BINARY, "list"], env=environment, capture_output=True, text=True, timeout=120).stdout
    check(re.search(r"^NAME .* FIT .* TOK/S", table) and re.search(r"org/medium .* fits ", table), f"a table: {table}")
    asked = len(hub.log)
    by_size = rows("search", "org/")
    check(len(hub.log) == asked + 1, "a search asks the hub once")
    check(by_size["org/other"]["fit"] in ("fits", "tight", "too_large"), f"by its bytes: {by_size['org/other']}")
    planned = rows("search", "org/", "--fit")
    there = planned["org/other"]
    apart = abs(there["needed_bytes"] - here["needed_bytes"])  # the path is another one, which is in memory
    check(apart < 4096, f"the same plan: {there} {here}")
    check(planned["org/mixture"]["fit"] == "fits", f"a mixture: {planned['org/mixture']}")
    check(planned["org/broken"]["fit"] is None, f"what cannot be planned: {planned['org/broken']}")


def mixture_repo():
    with tempfile.TemporaryDirectory() as folder:
        tiny_model.write_tiny_mixture(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return Repo(files, large=["model.safetensors"])


def main():
    mixture = mixture_repo()
    files = medium_files()
    repos = {
        "org/medium": Repo(files, large=["model.safetensors"]),
        "org/other": Repo(files, large=["model.safetensors"]),
        "org/mixture": mixture,
        "org/broken": large_repo(1),
        "org/gguf": Repo({"tiny.gguf": bytes(1 << 20)}, large=["tiny.gguf"]),
    }
    with FakeHub(repos) as hub, tempfile.TemporaryDirectory() as folder:
        test_before_and_after(folder, hub, len(files["model.safetensors"]))
        test_bounds(folder, hub)
        test_not_allowed(folder, hub)
        test_command_line(folder, hub)
    check.done()


if __name__ == "__main__":
    main()
