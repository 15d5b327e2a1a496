#!/usr/bin/env python3
"""Mixtures larger than memory: tokens per second over the memory that experts may take, beside the limits of the disk
and the cores.

    bench/streaming.py sweep MODEL --csv FILE [--svg FILE] [--parts 20,30,50,75,100] [--ways plain,ahead,together]
        [--rounds 3] [--peer LLAMA_BENCH --gguf FILE]
    bench/streaming.py mmap MODEL --peer LLAMA_BENCH --gguf FILE --csv FILE [--ratios 2,3,4,5]
    bench/streaming.py page-cache MODEL --csv FILE [--parts 20,30,43,100]
    bench/streaming.py prompts MODEL --csv FILE [--part 20] [--lengths 128,512,2048,4096]
    bench/streaming.py fits MODEL --csv FILE [--rounds 5]
    bench/streaming.py resident MODEL --peer LLAMA_BENCH --gguf FILE --csv FILE [--rounds 5]
    bench/streaming.py deep MODEL --layers 48 --part 20 --csv FILE [--shape qwen3.5-122b-a10b --cut 8]
    bench/streaming.py plot --csv FILE --svg FILE

All: each figure is a run of `apus bench` of some seconds, round by round; in a control group with a memory limit, the
budget and 64 MiB, where one can be made (root; v1 or v2). Rows are added to the CSV as they come, and what it has is
not measured again, so that a run can be stopped and gone on with.
sweep: each part of the experts, in percent, and each way: one sequence (plain), the same with --ssd-prefetch (ahead),
--together sequences (4). From 100 on there is room for all. --peer: llama.cpp's llama-bench with mmap on a GGUF file of
the same shape (tools/make_bench_gguf.py), the file dropped from the page cache before, in a group with the same limit;
after --peer-seconds it is stopped, and its row says what it cannot have exceeded.
mmap: the peer likewise, where the file is so many times as large as the group's limit; decoding, and a prompt of 512.
page-cache: against our own --expert-io page-cache with the smallest budget: reads by threads through the page cache,
which keeps what it can within the same limit of the group.
prompts: bytes that a prompt reads by those of the experts that it uses (of the route trace), and its time by the longer
of reading those and computing it with all in memory.
fits: all experts in the streaming cache against a run without streaming, interleaved.
resident: decoding and a prompt of 512 against the peer, interleaved, all in memory (bench/compare.py).
deep: a model whose layers were cut to fit the disk; the measured speed, the limit of the probed disk, and both
projected to the full number of layers. --shape makes the model first if it is not there (tools/make_bench_model.py).

Limits of a round, from the disk as it was probed right before (`disk_gbs`), what was read for a token while it was
measured, and that round's run with all experts there, whose token takes T_cpu (of `together`: as many sequences with
all in memory), shared out by bytes into T_dense and T_routed:
    T_io   = bytes read for a token / disk + layers with a miss * t0        t0: what one read takes by itself beyond its
        bytes, of the probe
    limit  = 1 / max(T_io, T_cpu)                                           perfect overlap, which takes many sequences
    sync   = 1 / (T_dense + max(T_io, hit * T_routed) + (1 - hit) * T_routed)   one sequence that reads what its routers
        choose
    serial = 1 / (T_io + T_cpu)                                             no overlap
`busy` is what the disk gave while something was read, of the probe; `accounted` is (waiting + T_cpu) of the time of a
token; `tail` the 99th percentile of a token's times by their median.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
BARS = {"limit": 80, "sync": 85, "serial": 97}
FIELDS = [
    "model",
    "what",
    "part",
    "round",
    "budget_mb",
    "held",
    "experts",
    "tg",
    "pp",
    "expected_tg",
    "expected_pp",
    "hit",
    "read_mb_token",
    "disk_gbs",
    "read_gbs_busy",
    "stall_ms_token",
    "routed_mb",
    "token_mb",
    "pp_read_over_bank",
    "peak_mb",
    "group",
    "machine",
    "commit",
    "command",
    "missing_token",
    "t0_us",
    "hints_token",
    "hints_right",
    "token_ms",
    "token_ms_p99",
    "unique_mb",
    "pp_read_mb",
    "length",
]
PROMPT = 512
PARTS = 9  # reads of an expert
MARGIN = 64 << 20
SECONDS_MAX = 300


# ---- the machine ----


def machine():
    with open("/proc/cpuinfo") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} cores"


def commit():
    return subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()


class Group:
    """A control group with a memory limit; none where none can be made."""

    V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

    def __init__(self, limit):
        self.path, self.kind = None, ""
        if not limit:
            return
        for base, file, peak, kind in (
            (self.V1, "memory.limit_in_bytes", "memory.max_usage_in_bytes", "v1"),
            (self.V2, "memory.max", "memory.peak", "v2"),
        ):
            path = os.path.join(base, f"apus-bench-{os.getpid()}")
            try:
                os.mkdir(path)
                with open(os.path.join(path, file), "w") as out:
                    out.write(str(limit))
                self.path, self.peak_file, self.kind = path, os.path.join(path, peak), kind
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)

    def run(self, command, seconds=SECONDS_MAX):
        if self.path:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', self.path, *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds)

    def close(self):
        if not self.path:
            return 0
        peak = int(open(self.peak_file).read()) if os.path.exists(self.peak_file) else 0
        force = os.path.join(self.path, "memory.force_empty")
        try:
            if os.path.exists(force):
                open(force, "w").write("0")
            os.rmdir(self.path)
        except OSError:
            pass  # a page may still be on its way out
        return peak


def drop_cache(path):
    """What another group has in the page cache costs the tested one nothing."""
    for name in (
        [path]
        if os.path.isfile(path)
        else [os.path.join(path, n) for n in os.listdir(path) if n.endswith(".safetensors")]
    ):
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# ---- one run ----


def last_json(run):
    if run.returncode:
        sys.exit(f"{' '.join(run.args)}\n{run.stderr.strip()}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def sizes(model, tokens, prompt=PROMPT, slots=1):
    """Bytes of the least budget, without experts; of all experts; of what the cache takes beside the least. By `apus
    info --fit`.
    """
    run = subprocess.run(
        [
            BINARY,
            "info",
            model,
            "--fit",
            "--stream-experts",
            "--slots",
            str(slots),
            "--prefill-size",
            str(prompt),
            "-c",
            str(tokens),
            "--memory-budget",
            "1T",
        ],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(run.stderr)

    def number(pattern):
        return [float(x) for x in re.search(pattern, run.stdout).groups()]

    (floor,) = number(r"([\d.]+) GB would just do")
    _, _, _, bank = number(r"experts +streamed: (\d+) of (\d+) are kept, ([\d.]+) of ([\d.]+) GB")
    (cache,) = number(r"KV cache +\w+, ([\d.]+) GB")
    return int(floor * 1e9), int(bank * 1e9), int(cache * 1e9)


def budget_of(part, floor, bank, cache):
    """From 100 on: room for all experts whatever is rounded."""
    return int(floor + 2 * cache + (part if part < 100 else 110) / 100 * bank)


def run_apus(model, o, arguments, limit=0):
    """The result of `apus bench`, what the group held at most, and what kind of group it was."""
    command = [BINARY, "bench", model, "-r", "1", "--json", *map(str, arguments)] + (
        ["--threads", str(o.threads)] if o.threads else []
    )
    group = Group(limit if o.group else 0)
    drop_cache(model)
    try:
        result = last_json(group.run(command))
    finally:
        peak = group.close()
    return result, {
        "peak_mb": round(peak / 1e6) if peak else "",
        "group": group.kind,
        "command": "apus " + " ".join(command[1:]),
    }


def streamed(budget, *more):
    return ["--stream-experts", "--memory-budget", budget, *more]


def experts_of(result, tokens, counts):
    wanted = counts["hits"] + counts["misses"]
    row = {
        "hit": counts["hits"] / wanted if wanted else 1,
        "read_mb_token": counts["read_bytes"] / tokens / 1e6,
        "read_gbs_busy": counts["read_bytes"] / counts["read_s"] / 1e9 if counts["read_s"] else "",
        "stall_ms_token": counts["stall_s"] / tokens * 1e3,
        "missing_token": counts["missing"] / tokens,
        "hints_token": counts["hints"] / tokens,
        "hints_right": counts["hint_hits"] / counts["hints"] if counts["hints"] else "",
    }
    if "expert_slots" in result:
        row |= {"held": result["expert_slots"], "experts": result["experts"]}
    return row


def bench(model, o, budget=0, prompt=PROMPT, what=None, more=(), limit=None, fit=True, generate=None):
    generate = o.generate if generate is None else generate
    result, row = run_apus(
        model,
        o,
        [*(["--fit"] if fit else []), "-p", prompt, "-n", generate, *(streamed(budget, *more) if budget else more)],
        limit if limit else budget + MARGIN if budget else 0,
    )
    row |= {
        "what": what or ("apus" if budget else "resident"),
        "budget_mb": round(budget / 1e6),
        "tg": result.get("tg", ""),
        "pp": result.get("pp", ""),
        "expected_tg": result.get("expected_tg", ""),
        "expected_pp": result.get("expected_pp", ""),
        "disk_gbs": result.get("disk_gbs", ""),
        "routed_mb": result.get("routed_bytes", 0) / 1e6,
        "token_mb": result["bytes_per_token"] / 1e6,
        "token_ms": result.get("token_ms", ""),
        "token_ms_p99": result.get("token_ms_p99", ""),
    }
    if budget:
        row |= experts_of(result, generate or 1, result["tg_experts"])
        one = result["expert_cache_bytes"] / result["expert_slots"]
        row |= {
            "pp_read_mb": result["pp_experts"]["read_bytes"] / 1e6,
            "pp_read_over_bank": result["pp_experts"]["read_bytes"] / (one * result["experts"]),
        }
        if "disk_one_gbs" in result:
            row["t0_us"] = one / PARTS * (1 / result["disk_one_gbs"] - 1 / result["disk_gbs"]) / 1e3
    return row


def together(model, o, budget=0):
    """Several sequences, a token for each in a step; tokens are those of all."""
    result, row = run_apus(
        model,
        o,
        ["-p", PROMPT, "-n", o.generate, "--streams", o.together, *(streamed(budget) if budget else [])],
        budget + MARGIN if budget else 0,
    )
    row |= {
        "what": f"{'apus' if budget else 'resident'} {o.together}",
        "budget_mb": round(budget / 1e6),
        "tg": result["tg"],
    }
    return row | (experts_of(result, o.generate * o.together, result["experts"]) if budget else {})


def peer(o, limit, prompt=0):
    """mmap, and nothing else said: pages come when they are touched. Decoding: the better of two repetitions behind its
    warm-up, as the first reads much for the first time. Or a prompt, once. Stopped: what it cannot have exceeded.
    """
    command = [
        o.peer,
        "-m",
        o.gguf,
        "-t",
        str(o.threads or os.cpu_count()),
        "-o",
        "json",
        *(
            ["-p", str(prompt), "-n", "0", "-r", "1", "--no-warmup"]
            if prompt
            else ["-p", "0", "-n", str(o.peer_generate), "-r", "2"]
        ),
    ]
    group = Group(limit)
    if not group.path:
        print("no memory control group can be made here: the peer is left out", file=sys.stderr)
        return None
    drop_cache(o.gguf)
    most = (prompt or 2 * o.peer_generate) / o.peer_seconds
    try:
        run = group.run(command, o.peer_seconds)
        speed = max(json.loads(run.stdout)[-1]["samples_ts"]) if run.returncode == 0 else 0
    except subprocess.TimeoutExpired:
        print(f"the peer was stopped after {o.peer_seconds} s: no more than {most:.2f} tok/s", file=sys.stderr)
        speed = most
    finally:
        peak = group.close()
    return {
        "what": "llama.cpp mmap",
        "budget_mb": round(limit / 1e6),
        "pp" if prompt else "tg": speed,
        "peak_mb": round(peak / 1e6),
        "group": group.kind,
        "command": " ".join(command),
    }


# ---- rows ----


def rows_of(path):
    return list(csv.DictReader(open(path))) if path and os.path.exists(path) and os.path.getsize(path) else []


class Table:
    def __init__(self, path, model):
        self.path, self.model = path, os.path.basename(os.path.normpath(model))
        rows = rows_of(path)
        if rows and list(rows[0]) != FIELDS:  # of an earlier version: it gets the columns that it lacks
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore")
                writer.writeheader()
                writer.writerows(rows)
        self.done = {(r["model"], r["what"], r["part"], r["round"]) for r in rows}
        self.same = {"model": self.model, "machine": machine(), "commit": commit()}

    def has(self, what, part, number):
        return (self.model, what, f"{part:g}", str(number)) in self.done

    def add(self, row, part, number):
        row = (
            self.same
            | {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            | {"part": f"{part:g}", "round": number}
        )
        fresh = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        speed = f"{row['tg']:.2f} tok/s" if row.get("tg") else ""
        speed += f", prompt {row['pp']:.0f} tok/s" if row.get("pp") else ""
        print(
            f"{row['what']:17} {part:>4g}  round {number}: {speed}"
            + (f", expected {row['expected_tg']:.2f}" if row.get("expected_tg") else ""),
            flush=True,
        )

    def rows(self):
        return [r for r in rows_of(self.path) if r["model"] == self.model]


def number(row, key):
    return float(row[key]) if row.get(key) not in ("", None) else 0.0


def median(rows, key):
    values = [number(r, key) for r in rows if r.get(key) not in ("", None)]
    return statistics.median(values) if values else 0.0


def of(rows, what, part=None, turn=None):
    return [r for r in rows if r["what"] == what and part in (None, r["part"]) and turn in (None, r["round"])]


def all_hit(rows, turn, suffix=""):
    """Seconds of a token with all experts there, of the same round; where that has no such run, of one without
    streaming.
    """
    here = (
        [r for r in of(rows, "apus" + suffix, turn=turn) if number(r, "part") >= 100]
        or of(rows, "resident" + suffix, turn=turn)
        or of(rows, "resident" + suffix)
    )
    return 1 / median(here, "tg") if here else 0


def limits(row, rows):
    """Of one run: tok/s of each limit, and the rest of what the table says."""
    turn = row["round"]
    alone = of(rows, "apus", row["part"], turn) or of(rows, "apus", row["part"]) or [row]  # whose run probed the disk
    several = row["what"].split()[-1].isdigit()
    cpu_s = all_hit(rows, turn, " " + row["what"].split()[-1] if several else "")
    disk, t0_s = median(alone, "disk_gbs") * 1e9, median(alone, "t0_us") * 1e-6
    io_s = number(row, "read_mb_token") * 1e6 / disk + number(row, "missing_token") * t0_s if disk else 0
    token_s, hit = 1 / number(row, "tg"), number(row, "hit")
    routed_s = cpu_s * median(alone, "routed_mb") / median(alone, "token_mb")
    out = {
        "tg": 1 / token_s,
        "pp": number(row, "pp"),
        "hit": hit,
        "io_s": io_s,
        "disk": disk / 1e9,
        "expected": number(row, "expected_tg"),
        "limit": 1 / max(io_s, cpu_s),
        "serial": 1 / (io_s + cpu_s),
        "sync": 1 / (cpu_s - routed_s + max(io_s, hit * routed_s) + (1 - hit) * routed_s),
        "busy": number(row, "read_gbs_busy") * 1e9 / disk if disk else 0,
        "accounted": (number(row, "stall_ms_token") / 1e3 + cpu_s) / token_s,
        "tail": number(row, "token_ms_p99") / number(row, "token_ms") if number(row, "token_ms") else 0,
        "right": number(row, "hints_right"),
    }
    if several:
        out["sync"] = out["serial"] = 0  # bounds of one sequence
    for name in BARS:
        out["of_" + name] = 100 * out["tg"] / out[name] if out[name] else 0
    return out


def summary(rows):
    """A line per way and part: medians over the rounds of each figure."""
    resident = median(of(rows, "resident"), "tg")
    if not resident:
        sys.exit("no resident run in the table: nothing to compute limits from")
    lines = []
    for what in sorted({r["what"] for r in rows if r["what"].startswith("apus")}):
        for part in sorted({r["part"] for r in of(rows, what)}, key=float):
            each = [limits(r, rows) for r in of(rows, what, part)]
            line = {key: statistics.median(e[key] for e in each) for key in each[0]}
            lines.append(
                line
                | {
                    "what": what,
                    "part": float(part),
                    "rounds": len(each),
                    "peer": median(of(rows, "llama.cpp mmap", part), "tg"),
                }
            )
    return resident, lines


def show(rows):
    resident, lines = summary(rows)
    print(
        f"\nall in memory: {resident:.2f} tok/s"
        + "".join(
            f"; {w[9:]} together: {median(of(rows, w), 'tg'):.2f}"
            for w in sorted({r["what"] for r in rows if r["what"].startswith("resident ")})
        )
    )
    print(
        f"{'way':17} part   tok/s   hit   T_io ms  disk GB/s  busy   limit of it    sync of it  serial of it  "
        f"accounted  tail  right  expected  llama.cpp"
    )

    def share(value):
        return f"{value:4.0f} %" if value else "     -"

    for one in lines:

        def pair(name):
            return f"{one[name]:7.2f} {share(one['of_' + name])}"

        print(
            f"{one['what']:17} {one['part']:3.0f} % {one['tg']:7.2f} {100 * one['hit']:4.0f} % "
            f"{1e3 * one['io_s']:8.1f} {one['disk']:9.2f} {share(100 * one['busy'])} {pair('limit')} "
            f"{pair('sync')} {pair('serial')} {share(100 * one['accounted'])}    {one['tail']:5.2f} "
            f"{share(100 * one['right'])} "
            f"{100 * (one['expected'] / one['tg'] - 1) if one['expected'] else float('nan'):+6.0f} % "
            f"{one['peer'] or float('nan'):8.2f}"
        )


# ---- what can be asked for ----


def numbers(text):
    return [float(p) for p in text.split(",")]


def turns(values, turn):
    """Whoever goes first in one round goes last in the next."""
    return values if turn % 2 == 0 else values[::-1]


def sweep(o):
    table = Table(o.csv, o.model)
    at = sizes(o.model, max(PROMPT, o.generate) + 16)
    ways = {
        "plain": ("apus", lambda b: bench(o.model, o, b)),
        "ahead": ("apus ahead", lambda b: bench(o.model, o, b, what="apus ahead", more=["--ssd-prefetch"])),
        "together": (f"apus {o.together}", lambda b: together(o.model, o, b)),
    }
    several = sizes(o.model, max(PROMPT, o.generate) + 16, slots=o.together) if "together" in o.ways else at
    asked = [ways[name] for name in o.ways.split(",")]
    for turn in range(o.rounds):
        if not table.has("resident", 100, turn):
            table.add(bench(o.model, o), 100, turn)
        if "together" in o.ways and not table.has(f"resident {o.together}", 100, turn):
            table.add(together(o.model, o), 100, turn)
        for part in turns(numbers(o.parts), turn):
            budget = budget_of(part, *at)
            for what, measure in turns(asked, turn):
                if not table.has(what, part, turn):
                    table.add(measure(budget_of(part, *several) if what == ways["together"][0] else budget), part, turn)
            if o.peer and turn < o.peer_rounds and not table.has("llama.cpp mmap", part, turn):
                row = peer(o, budget + MARGIN)
                if row:
                    table.add(row, part, turn)
    show(table.rows())
    if o.svg:
        plot(table.rows(), o.svg)


def compare(table, ours, theirs, parts, bars, unit="%"):
    for part in parts:
        mine, other = of(table.rows(), ours, f"{part:g}"), of(table.rows(), theirs, f"{part:g}")
        for key, name in (("tg", "decoding"), ("pp", "prompt")):
            if median(mine, key) and median(other, key):
                bar = bars(key, part)
                print(
                    f"{part:4g} {unit}  {name:8} {median(mine, key):8.2f} against {median(other, key):8.2f} tok/s: "
                    f"{median(mine, key) / median(other, key):6.2f} times" + (f" (to be {bar:g})" if bar else "")
                )


def mmap(o):
    """part: how many times as large as the limit the peer's file is."""
    table, size = Table(o.csv, o.model), os.path.getsize(o.gguf)
    floor, _, _ = sizes(o.model, max(PROMPT, o.generate) + 16)
    for turn in range(o.rounds):
        for ratio in turns(numbers(o.ratios), turn):
            limit = int(size / ratio)
            if limit - MARGIN < floor:
                print(
                    f"{ratio:g}: {limit / 1e6:.0f} MB is less than the least of {(floor + MARGIN) / 1e6:.0f} MB",
                    file=sys.stderr,
                )
                continue
            if not table.has("apus", ratio, turn):
                table.add(bench(o.model, o, limit - MARGIN), ratio, turn)
            if not table.has("llama.cpp mmap", ratio, turn):
                row, prompt = peer(o, limit), peer(o, limit, PROMPT)
                if row and prompt:
                    table.add(prompt | row, ratio, turn)
    compare(table, "apus", "llama.cpp mmap", numbers(o.ratios), lambda key, ratio: 3, "×")


def page_cache(o):
    table = Table(o.csv, o.model)
    at = sizes(o.model, max(PROMPT, o.generate) + 16)
    for turn in range(o.rounds):
        for part in turns(numbers(o.parts), turn):
            budget, least = budget_of(part, *at), budget_of(1, *at) + at[2]
            if not table.has("apus", part, turn):
                table.add(bench(o.model, o, budget), part, turn)
            if not table.has("page cache", part, turn):
                table.add(
                    bench(
                        o.model,
                        o,
                        least,
                        what="page cache",
                        more=["--expert-io", "page-cache"],
                        limit=budget + MARGIN,
                        fit=False,
                    ),
                    part,
                    turn,
                )
    compare(
        table,
        "apus",
        "page cache",
        numbers(o.parts),
        lambda key, part: 0 if key == "pp" else 2 if part <= 30 else 1.4 if part < 100 else 1,
    )


def unique_experts(trace):
    """That the second half of the steps' wants name: the walk reads its prompt once to warm up."""
    wants = [line.split() for line in open(trace) if line[0].isdigit()]
    return len({(w[0], e) for w in wants[len(wants) // 2 :] for e in w[1:]})


def prompts(o):
    """part: tokens of the prompt."""
    table, trace = Table(o.csv, o.model), o.csv + ".trace"
    for turn in range(o.rounds):
        for length in map(int, turns(numbers(o.lengths), turn)):
            at = sizes(o.model, length + 16, length)
            size = ["--prefill-size", str(length)]
            budget = budget_of(o.part, *at) + 2 * at[2]  # a step of a whole prompt works in some two caches of it
            if not table.has("prompt", length, turn):
                row = bench(
                    o.model, o, budget, prompt=length, what="prompt", more=[*size, "--route-trace", trace], generate=0
                )
                one = at[1] / row["experts"]
                table.add(row | {"unique_mb": unique_experts(trace) * one / 1e6, "length": length}, length, turn)
                os.unlink(trace)
            if not table.has("prompt resident", length, turn):
                table.add(
                    bench(o.model, o, prompt=length, what="prompt resident", more=size, generate=0, fit=False),
                    length,
                    turn,
                )
    for length in map(int, numbers(o.lengths)):
        mine, other = of(table.rows(), "prompt", str(length)), of(table.rows(), "prompt resident", str(length))
        unique, read, disk = median(mine, "unique_mb"), median(mine, "pp_read_mb"), median(mine, "disk_gbs")
        ours_s, resident_s = length / median(mine, "pp"), length / median(other, "pp")
        print(
            f"{length:6} tokens: {read:6.0f} MB read, {read / unique:.3f} of the {unique:.0f} MB that it uses (to be "
            f"1.05 at most); {ours_s:.2f} s, "
            f"{ours_s / max(unique / disk / 1e3, resident_s):.2f} of the longer of reading, {unique / disk / 1e3:.2f} "
            f"s, and computing, {resident_s:.2f} s" + (" (to be 1.3 at most)" if length == 4096 else "")
        )


def fits(o):
    table = Table(o.csv, o.model)
    budget = budget_of(100, *sizes(o.model, max(PROMPT, o.generate) + 16))
    for turn in range(o.rounds):
        for what in turns(["resident", "apus"], turn):
            if not table.has(what, 100, turn):
                table.add(bench(o.model, o, budget if what == "apus" else 0, fit=False), 100, turn)
    compare(table, "apus", "resident", [100], lambda key, part: 0.97)


def resident(o):
    out = [
        sys.executable,
        os.path.join(ROOT, "bench", "compare.py"),
        "--apus",
        BINARY,
        "--peer",
        f"llama.cpp={o.peer} -fa 1",
        "-p",
        str(PROMPT),
        "-n",
        str(o.generate),
        "-r",
        str(o.rounds),
        "--out",
        o.csv,
        f"{o.model}={o.gguf}",
    ]
    out += ["--threads", str(o.threads)] if o.threads else []
    code = subprocess.run(out, cwd=ROOT).returncode
    for row in list(csv.DictReader(open(o.csv)))[-2:]:
        print(
            f"{row['what']}: {row['ours']} against {row['theirs']} tok/s: {row['ratio']} times; "
            f"{100 * float(row['of_limit']):.0f} % of the limit"
        )
    sys.exit(code)


def head_mb(config):
    """The output matrix, which a deeper model has once as well."""
    block = config.get("quantization", {"bits": 16, "group_size": 0})
    scales = 32 / block["group_size"] if block["group_size"] else 0  # bits of a weight; 8 with an exponent as scale
    if block.get("mode", "affine") != "affine":
        scales /= 4
    return config["vocab_size"] * config["hidden_size"] * (block["bits"] + scales) / 8 / 1e6


def deep(o):
    if not os.path.exists(os.path.join(o.model, "config.json")):
        if not o.shape:
            sys.exit(f"{o.model}: no such model; --shape makes one")
        cut = ["--layers", str(o.cut)] if o.cut else []
        subprocess.run(
            [sys.executable, os.path.join(ROOT, "tools", "make_bench_model.py"), o.shape, o.model, *cut], check=True
        )
    config = json.load(open(os.path.join(o.model, "config.json")))
    here = config["num_hidden_layers"]
    table = Table(o.csv, o.model)
    floor, bank, cache = sizes(o.model, max(PROMPT, o.generate) + 16)
    budget = budget_of(o.part, floor, bank, cache)
    for turn in range(o.rounds):
        if not table.has("apus", o.part, turn):
            table.add(bench(o.model, o, budget), o.part, turn)
    rows = of(table.rows(), "apus", f"{o.part:g}")
    tg, disk, read, hit = (median(rows, key) for key in ("tg", "disk_gbs", "read_mb_token", "hit"))
    token_s, io_s, stall_s, times = 1 / tg, read / disk / 1e3, median(rows, "stall_ms_token") / 1e3, o.layers / here
    head_s = (token_s - stall_s) * head_mb(config) / median(rows, "token_mb")
    whole_s = head_s + (token_s - head_s) * times
    files = sum(os.path.getsize(os.path.join(o.model, n)) for n in os.listdir(o.model)) / 1e9
    peak = max(number(row, "peak_mb") for row in rows)
    memory = f"at most {peak / 1e3:.2f} GB were held, the group's limit was {(budget + MARGIN) / 1e9:.2f} GB"
    print(f"""
{table.model}: {here} layers, {files:.1f} GB of files, {budget / 1e9:.2f} GB of memory: {files * 1e9 / budget:.1f} times as large
  measured     {tg:.2f} tok/s = {1e3 * token_s:.1f} ms; {100 * hit:.0f} % of the experts wanted were there
  memory       {memory if peak else "no control group could be made: not limited and not measured"}
  disk         {read:.1f} MB a token at the probed {disk:.2f} GB/s: {1e3 * io_s:.1f} ms, so at most {1 / io_s:.2f} tok/s; measured is {100 * io_s / token_s:.0f} % of that
               and while it was busy the disk gave {median(rows, "read_gbs_busy"):.2f} GB/s
  {o.layers} layers    the same memory for each layer's experts: {bank * times / 1e9:.1f} GB of experts, {o.part:g} % of them held, {read * times:.0f} MB read a token
               at most 1 / ({read * times:.0f} MB / {disk:.2f} GB/s) = {1 / (io_s * times):.2f} tok/s
               measured: {1e3 * head_s:.1f} ms of the output matrix, and {o.layers} / {here} of the rest: {1 / whole_s:.2f} tok/s""")  # noqa: E501
    for gbs in (3.0, 7.0, 14.0):
        disk_s, rest_s = read * times / gbs / 1e3, head_s + (token_s - stall_s - head_s) * times
        print(
            f"               a disk of {gbs:.0f} GB/s: 1 / max({1e3 * disk_s:.0f} ms, {1e3 * rest_s:.0f} ms of this "
            f"machine's cores) = "
            f"{1 / max(disk_s, rest_s):.2f} tok/s at most, 1 / their sum = {1 / (disk_s + rest_s):.2f} at least"
        )


def plot(rows, path):
    resident_speed, lines = summary(rows)
    left, top, width, height = 60, 50, 560, 280
    most = 1.1 * max([resident_speed] + [min(one["sync"], 1.3 * resident_speed) for one in lines if one["sync"]])

    def x(part):
        return left + width * part / 100

    def y(value):
        return top + height * (1 - min(value, most) / most)

    plain = [one for one in lines if one["what"] == "apus"]
    ahead = [one | {"ahead": one["tg"]} for one in lines if one["what"] == "apus ahead"]
    curves = [
        ("apus, measured", "tg", "#d62728", ""),
        ("apus, reading ahead", "ahead", "#ff7f0e", ""),
        ("sync: one conversation, by the probed disk", "sync", "#444444", "5,4"),
        ("limit: perfect overlap", "limit", "#bbbbbb", "2,3"),
        ("llama.cpp, mmap", "peer", "#1f77b4", ""),
    ]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="680" height="440" font-family="sans-serif" font-size="12">',
        '<style>.title{font-size:14px;font-weight:bold}</style><rect width="680" height="440" fill="white"/>',
        f'<text x="{left}" y="{top - 18}" class="title">{rows[0]["model"]}: tokens/s over the part of the experts that '
        f"memory holds</text>",
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>',
    ]
    for i in range(6):
        value, part = most / 1.1 * i / 5, 20 * i
        parts.append(f'<text x="{x(part):.0f}" y="{top + height + 18}" text-anchor="middle">{part} %</text>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.0f}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.0f}" y2="{y(value):.0f}" stroke="#eee"/>')
    parts.append(
        f'<line x1="{left}" x2="{left + width}" y1="{y(resident_speed):.0f}" y2="{y(resident_speed):.0f}" '
        f'stroke="#2ca02c"/>'
    )
    parts.append(
        f'<text x="{left + 6}" y="{y(resident_speed) - 6:.0f}" fill="#2ca02c">all in memory, without streaming</text>'
    )
    at = 0
    for name, key, colour, dash in curves:
        line = [one for one in (ahead if key == "ahead" else plain) if one[key]]
        if not line:
            continue
        points = " ".join(f"{x(one['part']):.1f},{y(one[key]):.1f}" for one in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        row, column = divmod(at, 2)
        parts.append(
            f'<rect x="{left + 290 * column}" y="{top + height + 40 + 20 * row}" width="14" height="4" '
            f'fill="{colour}"/>'
        )
        parts.append(f'<text x="{left + 20 + 290 * column}" y="{top + height + 46 + 20 * row}">{name}</text>')
        at += 1
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sweep", "mmap", "page-cache", "prompts", "fits", "resident", "deep", "plot"))
    parser.add_argument("model", nargs="?", help="a checkpoint's directory")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--svg")
    parser.add_argument("--parts", help="20,30,50,75,100; of page-cache: 20,30,43,100")
    parser.add_argument("--ways", default="plain,ahead,together")
    parser.add_argument("--together", type=int, default=4, help="sequences")
    parser.add_argument("--ratios", default="2,3,4,5")
    parser.add_argument("--lengths", default="128,512,2048,4096")
    parser.add_argument("--part", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-group", dest="group", action="store_false", help="no control group around apus")
    parser.add_argument("--peer", help="the path of llama-bench")
    parser.add_argument("--gguf", help="the peer's file")
    parser.add_argument("--peer-generate", type=int, default=8)
    parser.add_argument("--peer-seconds", type=int, default=SECONDS_MAX)
    parser.add_argument("--peer-rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--shape")
    parser.add_argument("--cut", type=int, help="layers of the model that --shape makes")
    o = parser.parse_args()
    if o.what != "plot" and not o.model:
        parser.error("name a model")
    if o.peer and not o.gguf or o.what in ("resident", "mmap") and not o.peer:
        parser.error("--peer and --gguf go together, and resident and mmap need them")
    o.parts = o.parts or ("20,30,43,100" if o.what == "page-cache" else "20,30,50,75,100")
    if o.what == "plot":
        rows = rows_of(o.csv)
        show(rows)
        plot(rows, o.svg)
    else:
        {
            "sweep": sweep,
            "mmap": mmap,
            "page-cache": page_cache,
            "prompts": prompts,
            "fits": fits,
            "resident": resident,
            "deep": deep,
        }[o.what](o)


if __name__ == "__main__":
    main()
