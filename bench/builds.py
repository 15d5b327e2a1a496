#!/usr/bin/env python3
"""Two builds of apus against each other, interleaved: decoding, prompts, depth, eight rows a step, start to first
token.

    bench/builds.py OLD NEW MODEL [MODEL…] [--rounds 5] [--out FILE.csv]

OLD and NEW are binaries, MODEL a checkpoint directory (converted once by either). Each round runs both, first one then
the other in turn. Prints and appends a row per figure: medians of both, and the median of the rounds' ratios new ÷ old
of speeds (above 1: faster).
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


def bench(binary, model, arguments, field):
    out = subprocess.run(
        [binary, "bench", model, "-r", "1", "--json", *arguments], capture_output=True, text=True, check=True
    )
    return json.loads([line for line in out.stdout.splitlines() if line.startswith("{")][-1])[field]


def start(binary, model):
    """Starts per second, of a process that gives one token."""
    begin = time.monotonic()
    subprocess.run([binary, "run", model, "--raw", "Hello", "-n", "1"], capture_output=True, check=True)
    return 1 / (time.monotonic() - begin)


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
    parser.add_argument("--commits", default="", help="OLD..NEW, for the table")
    parser.add_argument("--out")
    o = parser.parse_args()
    rows = []
    for model in o.models:
        for name, arguments, field in FIGURES + [("starts per second", None, None)]:
            rounds = o.rounds if arguments else 4 * o.rounds
            results = pairs(
                o.old, o.new, rounds, lambda b: bench(b, model, arguments, field) if arguments else start(b, model)
            )
            before, after = (statistics.median(r[i] for r in results) for i in (0, 1))
            ratio = statistics.median(new / old for old, new in results)
            rows.append(
                [os.path.basename(model.rstrip("/")), name, f"{before:.2f}", f"{after:.2f}", f"{ratio:.3f}", rounds]
            )
            print(f"{rows[-1][0]:28s} {name:24s} old {before:9.2f}  new {after:9.2f}  ratio {ratio:.3f}", flush=True)
    if o.out:
        new_file = not os.path.exists(o.out)
        with open(o.out, "a", newline="") as file:
            writer = csv.writer(file)
            if new_file:
                writer.writerow(["machine", "commits", "model", "figure", "old", "new", "ratio", "rounds", "command"])
            for row in rows:
                writer.writerow(
                    [f"{processor()}, {os.cpu_count()} cores", o.commits, *row, "bench/builds.py OLD NEW MODEL"]
                )


if __name__ == "__main__":
    main()
