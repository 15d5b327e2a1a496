#!/usr/bin/env python3
"""Interleaved comparisons as CSV: bench/compare.py --peer NAME='llama-bench …' [--peer …] MODEL[=FILE.gguf] … > bench/results/X.csv

For each model and peer `apus bench --against` runs both in turn in one scheduler group; medians of the rounds. FILE.gguf is what the
peer gets as -m (the same name in the cache by default). --apus-options are passed to apus bench, e.g. '--cpu avx2'."""
import argparse, csv, json, os, platform, shlex, subprocess, sys

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "apus", "models")
parser = argparse.ArgumentParser()
parser.add_argument("--apus", default="build/apus")
parser.add_argument("--peer", action="append", required=True, help="NAME=COMMAND, without -m -p -n -r -t -o")
parser.add_argument("--threads", default="2")
parser.add_argument("-p", default="512")
parser.add_argument("-n", default="64")
parser.add_argument("-d", default="0")
parser.add_argument("-r", default="5")
parser.add_argument("--apus-options", default="")
parser.add_argument("models", nargs="+")
a = parser.parse_args()

cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
columns = ["model", "backend", "threads", "prompt", "generate", "depth", "rounds", "pp", "pp_min", "pp_max", "tg", "tg_min", "tg_max", "read_gbs",
           "int8_gops", "tg_of_limit", "pp_of_limit", "peer", "peer_pp", "peer_tg", "pp_ratio", "tg_ratio", "machine", "commit", "command"]
out = csv.DictWriter(sys.stdout, columns, extrasaction="ignore")
out.writeheader()
for model in a.models:
    model, _, file = model.partition("=")
    file = file or os.path.join(CACHE, model + ".gguf")
    for peer in a.peer:
        name, _, command = peer.partition("=")
        depth = ["-d", a.d] if a.d != "0" else []
        against = shlex.join(shlex.split(command) + ["-m", file, "-t", a.threads, "-p", a.p, "-n", a.n, "-r", "1", "-o", "json", *depth]) + " 2>/dev/null"
        run = [a.apus, "bench", model, "-p", a.p, "-n", a.n, "-d", a.d, "-r", a.r, "--threads", a.threads, "--json",
               *shlex.split(a.apus_options), "--against", against]
        result = subprocess.run(run, capture_output=True, text=True)
        if result.returncode:
            print(f"{model} against {name}: {result.stderr.strip()}", file=sys.stderr)
            continue
        row = json.loads(result.stdout)
        for what in ("pp", "tg"):
            row[what + "_ratio"] = round(row[what] / row["peer_" + what], 3) if row["peer_" + what] else ""
        row.update(peer=name, machine=cpu, commit=commit, command=shlex.join(["bench/compare.py", *sys.argv[1:]]))
        out.writerow(row)
        sys.stdout.flush()
