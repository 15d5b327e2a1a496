#!/usr/bin/env python3
"""Layers split between a device and the processor, through the server: --gpu-layers in all its forms, with prompts that
share a beginning, forks, parking, pages on disk, streamed experts; memory of the device that is too small, by numbers;
a device that has no memory for a step. The device is build/stand-in/apus-cuda.so (tests/backend/stand_in.c), which
computes as --cpu ref does, bit for bit.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import apus_server
from apus_server import Checks, Server
from tiny_model import write_tiny_mixture, write_tiny_model

check = Checks()
LAYERS, REF = 4, ("--cpu", "ref", "--threads", 1)
GPU = ("--device", "cuda", *REF)
STAND_IN = os.path.join(os.path.dirname(apus_server.BINARY), "stand-in", "apus-cuda.so")


def ask(server, prompt="abc", **fields):
    request = {
        "max_tokens": 24,
        "temperature": 1,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        **fields,
    }
    status, answer = server.chat(prompt, **request)
    return status, [(c["message"]["content"], c["logprobs"]) for c in answer["choices"]] if status == 200 else answer[
        "error"
    ]["message"]


def several(server):
    """One after the other with a common beginning, then all together, one of them forked: pages are shared, parked and
    taken again.
    """
    beginning = "".join(chr(97 + i * 7 % 26) for i in range(500))
    alone = [ask(server, beginning + ending) for ending in ("x", "yy", "zzz")]
    together = [None] * 6

    def one(i):
        together[i] = ask(server, beginning * (1 + i % 2) + str(i), n=2 if i == 3 else 1, max_tokens=60)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return alone + together


def run(*command, environment=None):
    done = subprocess.run(
        [apus_server.BINARY, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


def test_same(model):
    with Server(model, *REF) as server:
        wanted = several(server)
    check(all(status == 200 for status, _ in wanted), f"{wanted}")
    for layers in (1, 2, 3, 99, "all", 0, "auto"):
        with Server(model, *GPU, "--gpu-layers", layers) as server:
            check(several(server) == wanted, f"--gpu-layers {layers}: other answers")
    with Server(model, *GPU, "--gpu-layers", 2, "--kv-memory", "4M", "--slots", 6) as server:
        for _ in range(5):  # until so many were there together that somebody had to give way
            check(several(server) == wanted, "--gpu-layers 2 with little memory: other answers")
            parked = re.search(
                r"^apus_num_preemptions_total(?:{[^}]*})? ([1-9]\d*)",
                server.request("GET", "/metrics")[2].decode(),
                re.M,
            )
            if parked:
                break
        check(parked, "nothing was parked")


def test_disk(model):
    with tempfile.TemporaryDirectory() as directory:
        prompt = "abcdefgh" * 60

        def served(*options):
            with Server(model, *GPU, "--cache-dir", directory, *options) as server:
                answer = server.chat(prompt, max_tokens=8, temperature=0, logprobs=True)[1]
            return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        first, cold = served("--gpu-layers", 2)
        again, warm = served("--gpu-layers", 2)
        other, others = served("--gpu-layers", 1)
        check(first == again == other and cold == 0 and warm >= 384, f"pages on disk: {cold} {warm}")
        check(others == 0, "another split reads pages of this one")


def test_streamed():
    with tempfile.TemporaryDirectory() as model:
        write_tiny_mixture(model)
        prompts, mixed = (
            ("abc", "xyz" * 200),
            ("--device", "cuda", "--threads", 1),
        )  # the reference backend streams nothing
        for layers in (2, 5):
            with Server(model, *mixed, "--gpu-layers", layers) as server:
                wanted = [ask(server, prompt) for prompt in prompts]
            with Server(model, *mixed, "--stream-experts", "--gpu-layers", layers) as server:
                check(
                    server.health()["experts"]["test-model"]["experts"] == 32 * (6 - layers),
                    "experts of the processor's layers",
                )
                check(
                    [ask(server, prompt) for prompt in prompts] == wanted,
                    f"streamed, --gpu-layers {layers}: other answers",
                )
        code, _, err = run("serve", model, *GPU, "--port", 0, "--stream-experts")
        check(code == 1 and "cannot stream experts" in err and "--gpu-layers N" in err, err)


def test_memory(model):
    short = ("--slots", 1, "--ctx-size", 256, "--prefill-size", 32)
    wrong = (
        r"4 layers take 0\.00\d GB of the GPU's memory, of which 0\.00\d GB are free: .*; --gpu-layers (\d) would fit"
    )
    for size in range(1000000, 4000000, 100000):  # until one or two layers fit
        small = {"APUS_STAND_IN_BYTES": str(size)}
        code, _, err = run("serve", model, *GPU, "--port", 0, "--gpu-layers", LAYERS, *short, environment=small)
        found = re.search(wrong, err)
        if not check(code == 1 and found, f"{size}: {code} {err}") or int(found.group(1)) > 0:
            break
    fit = int(found.group(1)) if found else 0
    check(0 < fit < LAYERS, f"{fit} layers fit {size} bytes")
    code, out, err = run("info", model, *GPU, "--fit", "--gpu-layers", fit, *short, environment=small)
    said = rf"GPU layers +{fit} of 4, the last ones and the output matrix: .* GB free; {fit} would fit"
    check(code == 0 and re.search(said, out) and "goes through weights there at" in out, f"{code} {out} {err}")
    test_whole_model(model)
    code, _, err = run("serve", model, *GPU, "--port", 0, "--gpu-layers", 2, "--kv-memory", "2G")
    check(code == 1 and "layers take" in err and "of the KV cache" in err, err)
    with Server(model, "--device", "cuda", "--gpu-layers", "auto", *short, environment=small) as server:
        check(ask(server)[0] == 200, "--gpu-layers auto with little memory")
    full = {"APUS_STAND_IN_BYTES": "0"}
    code, _, err = run("serve", model, *GPU, "--port", 0, "--gpu-layers", 2, *short, environment=full)
    check(code == 1 and "of which 0.000 GB are free" in err and "--gpu-layers 0 would fit" in err, err)
    with Server(model, "--device", "cuda", "--gpu-layers", "auto", *short, environment=full) as server:
        check(ask(server)[0] == 200, "--gpu-layers auto without memory")
    for wrong in ("x", "-1", "3x", ""):
        code, _, err = run("serve", model, *GPU, "--port", 0, f"--gpu-layers={wrong}")
        check(code == 1 or code == 2 and "--gpu-layers" in err, f"{wrong}: {code} {err}")


def test_whole_model(model):
    """--device cuda alone: what the model takes, what is free, and the option that works; which then does."""
    wrong = (
        r"4 layers take \d\.\d+ GB of the GPU's memory, of which 0\.\d+ GB are free: .* of the KV cache; "
        r"--gpu-layers [0-3] would fit, and --gpu-layers auto chooses by itself"
    )
    cache = (
        r"a KV cache of .* bytes .*; 0\.\d+ GB of the GPU's memory are free .*: --gpu-layers auto puts as many layers"
    )
    failed = 0
    for size in (0, 300_000, 1_000_000, 2_000_000, 2_500_000, 3_000_000, 4_000_000):
        small = {"APUS_STAND_IN_BYTES": str(size)}
        command = ("run", model, *GPU, "--prefill-size", 32, "-n", 2, "hello")
        code, _, err = run(*command, environment=small)
        if code == 0:
            continue
        failed += 1
        check(
            code == 1 and re.search(wrong if size < 2_000_000 else f"{wrong}|{cache}", err),
            f"{size} bytes: {code} {err}",
        )
        code, _, err = run(*command, "--gpu-layers", "auto", environment=small)
        check(code == 0, f"{size} bytes, --gpu-layers auto: {code} {err}")
    check(failed >= 4, f"{failed} sizes were too small for the model")


def test_sigterm(model):
    """An answer under way ends, and the server leaves with 0, whether or not the options have opened the device."""
    for device in ("cuda", "auto"):
        with Server(model, "--device", device, *REF) as server:
            answers = []
            asked = threading.Thread(target=lambda: answers.append(ask(server, max_tokens=400)))
            asked.start()
            while not server.health()["running"] and not answers:
                time.sleep(0.005)
            server.process.terminate()
            asked.join()
            code = server.process.wait(timeout=30)
        check(code == 0 and answers[0][0] == 200, f"--device {device}, SIGTERM: {code} {answers}")


def test_truncated(home):
    """Half of the library, as of a copy under way, is an error with a name."""
    library = os.path.join(home, "apus-cuda.so")
    with open(library, "rb") as file:
        whole = file.read()
    try:
        for size in (0, 40, 64, 100, 4096, len(whole) // 2, len(whole) - 1):
            with open(library, "wb") as file:
                file.write(whole[:size])
            code, out, err = run("doctor")
            said = re.search(rf"^gpu +none: .*(file too short|is incomplete: {size} of {len(whole)} bytes)", out, re.M)
            check(code == 0 and said, f"{size} of {len(whole)} bytes: {code} {out} {err}")
    finally:
        with open(library, "wb") as file:
            file.write(whole)
    check("stand-in" in run("doctor")[1], "the whole library")


def test_processor_only(model):
    """What measures the processor's operations says so."""
    for command in (("bench", "--operations"), ("bench", model, "--trace")):
        for device in ("cuda", "cuda:0", "auto"):
            code, _, err = run(*command, "--device", device)
            said = f"{command[-1]} takes times of the processor's operations, not those of --device {device}"
            check(code == 2 and said in err, f"{command} {device}: {code} {err}")


def test_kernels(model):
    code, out, err = run("info", "--kernels", "--device", "cuda")
    check(code == 0 and out == "the reference backend\n", f"info --kernels: {code} {out} {err}")
    code, _, err = run("info", "--kernels", "--device", "cuda:7")
    check(code != 0 and "no such device" in err, f"info --kernels --device cuda:7: {code} {err}")
    code, _, err = run("info")
    check(code == 2 and "--kernels" in err, f"info: {code} {err}")


def test_account(model):
    """What a cache takes of the device is none of the host's memory that the next model does without."""
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as other:
        write_tiny_model(other)
        command = [
            "serve",
            model,
            other,
            "--port",
            "0",
            "--gpu-layers",
            "3",
            "--kv-memory",
            "4G",
            "--slots",
            "2",
            *map(str, GPU),
        ]
        process = subprocess.Popen(
            [apus_server.BINARY, *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "APUS_STAND_IN_BYTES": str(10**12)},
        )
        while "Ctrl-C" not in (process.stdout.readline() or "Ctrl-C"):
            pass
        process.terminate()
        process.wait(timeout=30)
        log.seek(0)
        text = log.read()
    memory = [float(found) for found in re.findall(r"plan: \S+ GB of (\S+) GB", text)]
    check(
        len(memory) == 2 and 0.5 < memory[0] - memory[1] < 3,
        f"the first model's cache takes a fourth of 4.3 GB here: {memory} {text}",
    )


def test_auto(model):
    for size in range(1000000, 6000000, 250000):  # windows take more of a cache than the plan's mean of all layers
        command = ("run", model, *GPU, "--gpu-layers", "auto", "--prefill-size", 32, "-n", 4, "hello")
        code, _, err = run(*command, environment={"APUS_STAND_IN_BYTES": str(size)})
        check(code == 0, f"--gpu-layers auto with {size} bytes: {code} {err}")


def test_bench(model):
    """The device's own limit, and none where both sides have layers."""
    options = ("bench", model, *GPU, "-p", 8, "-n", 4, "-d", 16, "-r", 2)
    code, out, err = run(*options, "--json")
    line = json.loads(out) if check(code == 0, err) else {}
    reached = line.get("tg", 0) * line.get("bytes_per_token", 0) / 2e12
    check(
        line.get("read_gbs") == 2000 and abs(line["tg_of_limit"] / reached - 1) < 0.5 and "int8_gops" not in line, out
    )
    code, out, err = run(*options)
    check(
        code == 0
        and re.search(r"GB/s, \d+ % of the read limit", out)
        and re.search(r"read limit +2000.0 GB/s", out)
        and "int8" not in out,
        out + err,
    )
    code, out, err = run(*options, "--streams", "1,2", "--json")
    check(code == 0 and all(json.loads(line)["read_gbs"] == 2000 for line in out.splitlines()), out + err)
    code, out, err = run(*options, "--streams", "2")
    check(code == 0 and "% of reading the weights at 2000.0 GB/s" in out, out + err)
    code, out, err = run(*options, "--gpu-layers", 2, "--json")
    check(code == 0 and not {"read_gbs", "tg_of_limit", "int8_gops", "pp_of_limit"} & set(json.loads(out)), out + err)
    code, out, err = run(*options, "--gpu-layers", 2)
    check(code == 0 and "limit" not in out and "MB of weights and" in out, out + err)


def test_full(model, directory):
    full = os.path.join(directory, "full")
    with Server(model, *GPU, "--gpu-layers", 2, "--slots", 4, environment={"APUS_STAND_IN_FULL": full}) as server:
        wanted, results = ask(server, "abc", max_tokens=400), {}
        decoding = threading.Thread(target=lambda: results.update(answer=ask(server, "abc", max_tokens=400)))
        decoding.start()
        time.sleep(0.1)
        open(full, "w").close()
        status, message = ask(server, "x" * 600)
        os.remove(full)
        decoding.join()
        check(status != 200 and "no room on the GPU" in message, f"{status} {message}")
        check(results["answer"] == wanted, "a request beside one that has no memory is not as alone")
        check(
            server.health()["status"] == "ok" and ask(server, "abc", max_tokens=400) == wanted,
            "after one that had no memory",
        )


def test_drafts(model, directory):
    """A step with draft tokens that has no memory is computed without them: the answer is as it was."""
    full = os.path.join(directory, "full")
    fields = {"max_tokens": 300, "temperature": 0}
    options = (model, *GPU, "--gpu-layers", 2)
    log = tempfile.TemporaryFile("w+")
    with log, Server(*options, environment={"APUS_STAND_IN_FULL": full}, log=log) as server:
        wanted = ask(server, **fields)
        open(full, "w").close()
        found = ask(server, **fields)  # the prompt is cached, so that only steps with drafts have several rows
        os.remove(full)
        check(found == wanted, f"a draft without memory changes the answer: {found[0]}")
        log.seek(0)
        check(re.search(r"a step of \d+ rows failed", log.read()), "no step with drafts was tried")


def main():
    if not os.path.exists(STAND_IN):
        print(f"skipped: {STAND_IN} is absent")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as model:
        shutil.copy(apus_server.BINARY, home)
        shutil.copy(STAND_IN, home)
        apus_server.BINARY = os.path.join(home, os.path.basename(apus_server.BINARY))
        os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
        write_tiny_model(model)
        for test in sys.argv[1:] or (
            "same",
            "disk",
            "memory",
            "account",
            "auto",
            "bench",
            "full",
            "drafts",
            "sigterm",
            "truncated",
            "processor_only",
            "kernels",
        ):
            arguments = {"full": (model, home), "drafts": (model, home), "truncated": (home,)}
            if test != "streamed":
                globals()["test_" + test](*arguments.get(test, (model,)))
        if "streamed" in sys.argv[1:] or not sys.argv[1:]:
            test_streamed()
    check.done()


main()
