#!/usr/bin/env python3
"""What forms of the KV cache cost on real text, as CSV: bench/kv_quality.py MODEL … [--tokens 4096,8192] [--kv-cache
FORMS] [--out FILE]

Each row is `apus bench --precise --quality` on one text: english is the licences GPL 3, GFDL 1.3 and MPL 2.0 as Debian
has them, python the modules argparse and tarfile of the interpreter that runs this. --out appends.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LICENCES = [f"/usr/share/common-licenses/{name}" for name in ("GPL-3", "GFDL-1.3", "MPL-2.0")]
COLUMNS = [
    "model",
    "text",
    "tokens",
    "compared",
    "kv_cache",
    "kl",
    "kl_p99",
    "same_top",
    "same_when_sure",
    "perplexity",
    "smaller",
    "machine",
    "commit",
    "command",
]


def texts():
    def read(path):
        return open(path, encoding="utf-8").read()

    return {
        "english": "".join(map(read, LICENCES)),
        "python": "".join(read(sys.modules[name].__file__) for name in ("argparse", "tarfile")),
    }


def main():
    import tarfile  # noqa: F401  its source is one of the texts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--apus", default=os.path.join(ROOT, "build", "apus"))
    parser.add_argument("--tokens", default="4096,8192")
    parser.add_argument("--kv-cache", default="q8,turbo6,turbo5,turbo,turbo4,turbo3")
    parser.add_argument("--out")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    out = open(options.out, "a", newline="") if options.out else sys.stdout
    writer = csv.DictWriter(out, COLUMNS)
    if not options.out or out.tell() == 0:
        writer.writeheader()
    for model in options.models:
        for tokens in options.tokens.split(","):
            for name, text in texts().items():
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                    file.write(text)
                    file.flush()
                    what = [
                        "bench",
                        model,
                        "--precise",
                        "--quality",
                        file.name,
                        "-p",
                        tokens,
                        "--kv-cache",
                        options.kv_cache,
                        "--json",
                    ]
                    lines = subprocess.run(
                        [options.apus, *what], stdout=subprocess.PIPE, text=True, check=True
                    ).stdout.splitlines()
                for row in map(json.loads, lines):
                    writer.writerow(
                        {
                            **row,
                            "text": name,
                            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                            "commit": commit,
                            "command": " ".join(["apus", *what]).replace(file.name, name + ".txt"),
                        }
                    )
                out.flush()


if __name__ == "__main__":
    main()
