#!/usr/bin/env python3
"""Two builds of apus against each other, interleaved: decoding, prompts, depth, eight rows a step, start to first
token, memory.

    bench/builds.py OLD NEW MODEL [MODEL…] [--rounds 5] [--device cuda] [--out FILE.csv]

OLD and NEW are binaries, MODEL a checkpoint directory with a tokenizer (converted once by either). Each round runs
both, first one then the other in turn. Prints and appends a row per figure: medians of both, and the median of the
rounds' ratios new ÷ old (of speeds, above 1: faster; of memory, above 1: larger).
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import time

FIGURES = [  # name, arguments of `apus bench`, field
    ("decode", ["-p", "16", "-n", "64"], "tg"),
    ("prompt of 512", ["-p", "512", "-n", "1"], "pp"),
    ("decode at depth 4096", ["-p", "16", "-n", "64", "-d", "4096"], "tg"),
    ("8 rows a step", ["-p", "192", "-n", "1", "--prefill-size", "8"], "pp"),
]


def bench(binary, model, arguments, field, device):
    out = subprocess.run(
        [binary, "bench", model, "-r", "1", "--json", *device, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads([line for line in out.stdout.splitlines() if line.startswith("{")][-1])[field]


def start(binary, model, device):
    """Starts per second of a process that gives one token, and its peak memory in MiB."""
    begin = time.monotonic()
    command = [binary, "run", model, *device, "--raw", "Hello", "-n", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return 1 / seconds, usage.ru_maxrss / 1024


def pairs(old, new, rounds, measure):
    results = []
    for turn in range(rounds):
        if turn % 2:
            second = measure(new)
            results.append((measure(old), second))
        else:
            first = measure(old)
            results.append((first, measure(new)))
    return results


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", help="of the models, as for apus bench")
    parser.add_argument("--commits", default="", help="OLD..NEW, for the table")
    parser.add_argument("--out")
    o = parser.parse_args()
    device = ["--device", o.device] if o.device else []
    rows = []

    def report(model, name, rounds, results):
        before, after = (statistics.median(r[i] for r in results) for i in (0, 1))
        ratio = statistics.median(new / old for old, new in results)
        rows.append(
            [os.path.basename(model.rstrip("/")), name, f"{before:.2f}", f"{after:.2f}", f"{ratio:.3f}", rounds]
        )
        print(f"{rows[-1][0]:28s} {name:24s} old {before:9.2f}  new {after:9.2f}  ratio {ratio:.3f}", flush=True)

    for model in o.models:
        for name, arguments, field in FIGURES:
            results = pairs(o.old, o.new, o.rounds, lambda b: bench(b, model, arguments, field, device))
            report(model, name, o.rounds, results)
        rounds = 4 * o.rounds
        starts = pairs(o.old, o.new, rounds, lambda b: start(b, model, device))
        report(model, "starts per second", rounds, [(old[0], new[0]) for old, new in starts])
        report(model, "peak memory, MiB", rounds, [(old[1], new[1]) for old, new in starts])
    if o.out:
        new_file = not os.path.exists(o.out)
        command = " ".join(["bench/builds.py OLD NEW MODEL", *device])
        with open(o.out, "a", newline="") as file:
            writer = csv.writer(file)
            if new_file:
                writer.writerow(["machine", "commits", "model", "figure", "old", "new", "ratio", "rounds", "command"])
            for row in rows:
                writer.writerow([f"{processor()}, {os.cpu_count()} cores", o.commits, *row, command])


if __name__ == "__main__":
    main()
