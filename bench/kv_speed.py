#!/usr/bin/env python3
"""Decode speed and memory over the length of the context, by form of the KV cache:

    bench/kv_speed.py MODEL [--depths 0,4096,…] [--kv-cache f16,q8,turbo3,turbo4,turbo] [--csv FILE] [--svg FILE]
    bench/kv_speed.py --plot FILE.csv --svg FILE

Runs `apus bench` once, which measures the forms in turn at each depth; rows go to the CSV (kv_mb: what a token reads of
the cache; resident_mb: what the process grew by when the sequence was read), and a picture of both to the SVG.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIELDS = [
    "model",
    "isa",
    "kv_cache",
    "depth",
    "tg",
    "tg_min",
    "tg_max",
    "against_f16",
    "of_limit",
    "read_gbs",
    "kv_mb",
    "resident_mb",
    "smaller",
    "machine",
    "commit",
    "command",
]
COLOURS = ["#444444", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e", "#8c564b"]


def machine():
    with open("/proc/cpuinfo") as file:
        name = next(
            (line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.processor()
        )
    return f"{name}, {os.cpu_count()} cores"


def measure(options):
    binary = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
    command = [
        "bench",
        options.model,
        "-p",
        "0",
        "-n",
        str(options.generate),
        "-r",
        str(options.rounds),
        "-d",
        options.depths,
        "--kv-cache",
        options.kv_cache,
        "--json",
        *(["--cpu", options.cpu] if options.cpu else []),
    ]
    out = subprocess.run([binary, *command], capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
    exact = {line["depth"]: line for line in lines if line["kv_cache"] == "f16"}
    rows = []
    for line in lines:
        kv, resident, f16 = (
            line["bytes_per_token"] - line["weight_bytes"],
            line["kv_resident_bytes"],
            exact.get(line["depth"]),
        )
        rows.append(
            {
                "model": line["model"],
                "isa": line["isa"],
                "kv_cache": line["kv_cache"],
                "depth": line["depth"],
                **{key: round(line[key], 2) for key in ("tg", "tg_min", "tg_max")},
                "against_f16": round(line["tg"] / f16["tg"], 3) if f16 else "",
                "of_limit": round(line["tg_of_limit"], 3),
                "read_gbs": round(line["read_gbs"], 1),
                "kv_mb": round(kv / 1e6, 1),
                "resident_mb": round(resident / 1e6, 1),
                "smaller": round(f16["kv_resident_bytes"] / resident, 2) if f16 and resident > 0 else "",
                "machine": machine(),
                "commit": commit,
                "command": "apus " + " ".join(command),
            }
        )
    return rows


def panel(rows, field, title, left, forms):
    """Lines over depth in a box of 380 × 260 at `left`."""
    top, width, height = 50, 380, 260
    deepest, most = max(int(r["depth"]) for r in rows), 1.05 * max(float(r[field]) for r in rows)

    def x(depth):
        return left + width * int(depth) / deepest

    def y(value):
        return top + height * (1 - float(value) / most)

    parts = [
        f'<text x="{left}" y="{top - 16}" class="title">{title}</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>',
    ]
    for i in range(5):
        depth, value = deepest * i / 4, most / 1.05 * i / 4
        parts.append(
            f'<text x="{x(depth):.0f}" y="{top + height + 18}" text-anchor="middle">{depth / 1024:.0f}K</text>'
        )
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.0f}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.0f}" y2="{y(value):.0f}" stroke="#eee"/>')
    for i, form in enumerate(forms):
        line = sorted((r for r in rows if r["kv_cache"] == form), key=lambda r: int(r["depth"]))
        points = " ".join(f"{x(r['depth']):.1f},{y(r[field]):.1f}" for r in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"/>')
    return parts


def plot(rows, path):
    forms = list(dict.fromkeys(r["kv_cache"] for r in rows))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="960" height="370" font-family="sans-serif" font-size="12">',
        '<style>.title{font-size:14px;font-weight:bold}</style><rect width="960" height="370" fill="white"/>',
    ]
    parts += panel(rows, "tg", f"{rows[0]['model']}, {rows[0]['isa']}: tokens/s over the context", 60, forms)
    parts += panel(rows, "kv_mb", "pages of the KV cache, MB", 520, forms)
    for i, form in enumerate(forms):
        parts.append(f'<rect x="{70 + 110 * i}" y="348" width="14" height="4" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(f'<text x="{90 + 110 * i}" y="354">{form}</text>')
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--depths", default="0,2048,4096,8192,16384,32000")
    parser.add_argument("--kv-cache", default="f16,q8,turbo3,turbo4,turbo")
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu")
    parser.add_argument("--csv")
    parser.add_argument("--svg")
    parser.add_argument("--plot", metavar="CSV")
    options = parser.parse_args()
    if options.plot:
        rows = list(csv.DictReader(open(options.plot)))
    elif options.model:
        rows = measure(options)
    else:
        parser.error("name a model, or --plot FILE")
    if not options.plot:
        out = open(options.csv, "w", newline="") if options.csv else sys.stdout
        writer = csv.DictWriter(out, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    if options.svg:
        plot(rows, options.svg)


if __name__ == "__main__":
    main()
