#!/usr/bin/env python3
"""Interleaved comparisons as CSV: bench/compare.py --peer NAME='llama-bench …' [--peer …] MODEL[=FILE.gguf] … [--out
bench/results/X.csv]

For each model and peer `apus bench --against` runs both in turn, round by round, in one scheduler group; medians of the
rounds. FILE.gguf is what the peer gets as -m (the same name in the cache by default). Without a peer only our own
figures are written. A row is one figure: what is pp512, tg64, tg64@4096 …; limit is GB/s that the same weights are read
with right before and after, or the int8 peak in GOP/s. --apus-options are passed to apus bench, e.g. '--cpu avx2'.
--out appends.
"""

import argparse
import csv
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "apus", "models")
COLUMNS = [
    "model",
    "isa",
    "threads",
    "what",
    "ours",
    "ours_min",
    "ours_max",
    "peer",
    "theirs",
    "theirs_min",
    "theirs_max",
    "ratio",
    "limit",
    "of_limit",
    "rounds",
    "machine",
    "commit",
    "command",
]


def machine():
    lines = open("/proc/cpuinfo").read().splitlines() if os.path.exists("/proc/cpuinfo") else []
    fields = dict((key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines))
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family', '?')} model {fields.get('model', '?')}), {os.cpu_count()} cores"


def has_depth(command):
    """llama.cpp's llama-bench takes -d; ik_llama.cpp's has -gp for generation after a prompt, and no depth of one."""
    shown = subprocess.run([shlex.split(command)[0], "--help"], capture_output=True, text=True)
    return "--n-depth" in shown.stdout + shown.stderr


def peer_command(command, file, depth, a):
    if depth == "0":
        what = ["-p", a.p, "-n", a.n]
    elif has_depth(command):
        what = ["-p", a.p, "-n", a.n, "-d", depth]
    else:
        what = ["-p", "0", "-n", "0", "-gp", f"{depth},{a.n}"]
    return f"{command} {shlex.join(['-m', file, '-t', a.threads, *what, '-r', '1', '-o', 'json'])} 2>/dev/null"


def rows_of(result, peer):
    for what, count, limit in (("pp", result["prompt"], "int8_gops"), ("tg", result["generate"], "read_gbs")):
        if what not in result:
            continue
        depth = f"@{result['depth']}" if result["depth"] else ""
        row = {
            "what": f"{what}{count}{depth}",
            "limit": result.get(limit),
            "of_limit": result.get(what + "_of_limit"),
            "peer": peer,
        }
        for suffix in ("", "_min", "_max"):
            row["ours" + suffix] = result[what + suffix]
            row["theirs" + suffix] = result.get(f"peer_{what}{suffix}")
        row["ratio"] = round(row["ours"] / row["theirs"], 3) if row["theirs"] else None
        row.update((key, result[key]) for key in ("model", "isa", "threads", "rounds"))
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apus", default="build/apus")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND, without -m -p -n -d -r -t -o")
    parser.add_argument("--threads", default="2")
    parser.add_argument("-p", default="512")
    parser.add_argument("-n", default="64")
    parser.add_argument("-d", default="0", help="depths, as in 0,4096")
    parser.add_argument("-r", default="5")
    parser.add_argument("--apus-options", default="")
    parser.add_argument("--out", help="a file to append to; standard output otherwise")
    parser.add_argument("models", nargs="+")
    a = parser.parse_args()

    file = open(a.out, "a", newline="") if a.out else sys.stdout
    out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    if not a.out or file.tell() == 0:
        out.writeheader()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    same = {"machine": machine(), "commit": commit, "command": shlex.join(["bench/compare.py", *sys.argv[1:]])}
    failed = False
    for model, depth, peer in itertools.product(a.models, a.d.split(","), a.peer or [""]):
        model, _, gguf = model.partition("=")
        name, _, command = peer.partition("=")
        run = [
            a.apus,
            "bench",
            model,
            "-p",
            a.p,
            "-n",
            a.n,
            "-d",
            depth,
            "-r",
            a.r,
            "--threads",
            a.threads,
            "--json",
            *shlex.split(a.apus_options),
        ]
        if peer:
            run += ["--against", peer_command(command, gguf or os.path.join(CACHE, model + ".gguf"), depth, a)]
        result = subprocess.run(run, capture_output=True, text=True)
        if result.returncode:
            print(f"{model} against {name or 'nobody'}: {result.stderr.strip()}", file=sys.stderr)
            failed = True
            continue
        for row in rows_of(json.loads(result.stdout), name):
            out.writerow({**row, **same})
        file.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
