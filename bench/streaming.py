#!/usr/bin/env python3
"""Mixtures larger than memory: tokens per second over the memory that experts may take, beside the limits of the disk and the cores.

    bench/streaming.py sweep MODEL --csv FILE [--svg FILE] [--parts 20,30,50,75,100] [--rounds 3] [--peer LLAMA_BENCH --gguf FILE]
    bench/streaming.py resident MODEL --peer LLAMA_BENCH --gguf FILE --csv FILE [--rounds 5]
    bench/streaming.py deep MODEL --layers 48 --part 20 --csv FILE [--shape 122b-a10b --cut 9]
    bench/streaming.py plot --csv FILE --svg FILE

sweep: each part of the experts, in percent, is a run of `apus bench --fit` of some seconds with the budget that holds so many, round by
round over all parts; in a control group whose limit is the budget and 64 MiB where one can be made (root; v1 or v2). Rows are added to the CSV as
they come, and what it has is not measured again, so a sweep can be stopped and gone on with. --peer: llama.cpp's llama-bench with mmap on a
GGUF file of the same shape (tools/make_bench_gguf.py), the file dropped from the page cache before, in a group with the same limit; after five
minutes it is stopped, and its row says what it cannot have exceeded.
resident: decoding and a prompt of 512 against the peer, interleaved, all in memory (bench/compare.py).
deep: a model whose layers were cut to fit the disk; the measured speed, the limit of the probed disk, and both projected to the full number of
layers. --shape makes the model first if it is not there (tools/make_bench_model.py).

Limits, from the disk as it was probed right before (`disk_gbs`), what was read for a token while it was measured, and a run with all experts in
memory, whose token takes T_cpu: T_io = bytes read for a token / disk. limit = 1 / max(T_io, T_cpu): what perfect overlap would
give. sync = 1 / (T_dense + max(T_io, T_hits) + T_missed): what one conversation can have that reads what its routers choose, T_cpu being
shared out by bytes."""
import argparse, csv, json, os, re, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
FIELDS = ["model", "what", "part", "round", "budget_mb", "held", "experts", "tg", "pp", "expected_tg", "expected_pp", "hit", "read_mb_token", "disk_gbs",
          "read_gbs_busy", "stall_ms_token", "routed_mb", "token_mb", "pp_read_over_bank", "peak_mb", "group", "machine", "commit", "command"]
PROMPT = 512
MARGIN = 64 << 20
SECONDS_MAX = 300


# ---- the machine ----

def machine():
    with open("/proc/cpuinfo") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} cores"


def commit():
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()


class Group:
    """A control group with a memory limit; none where none can be made."""

    V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

    def __init__(self, limit):
        self.path, self.kind = None, ""
        if not limit:
            return
        for base, file, peak, kind in ((self.V1, "memory.limit_in_bytes", "memory.max_usage_in_bytes", "v1"),
                                       (self.V2, "memory.max", "memory.peak", "v2")):
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

    def run(self, command, **options):
        if self.path:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', self.path, *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, **options)

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
    for name in [path] if os.path.isfile(path) else [os.path.join(path, n) for n in os.listdir(path) if n.endswith(".safetensors")]:
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# ---- one run ----

def last_json(run):
    if run.returncode:
        sys.exit(f"{' '.join(run.args)}\n{run.stderr.strip()}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def sizes(model, tokens):
    """Bytes of the least budget, without experts; of all experts; of what the cache takes beside the least. By `apus info --fit`."""
    run = subprocess.run([BINARY, "info", model, "--fit", "--stream-experts", "--slots", "1", "--prefill-size", str(PROMPT), "-c", str(tokens),
                          "--memory-budget", "1T"], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    number = lambda pattern: [float(x) for x in re.search(pattern, run.stdout).groups()]
    (floor,) = number(r"([\d.]+) GB would just do")
    _, _, _, bank = number(r"experts +streamed: (\d+) of (\d+) are kept, ([\d.]+) of ([\d.]+) GB")
    (cache,) = number(r"KV cache +\w+, ([\d.]+) GB")
    return int(floor * 1e9), int(bank * 1e9), int(cache * 1e9)


def bench(model, o, budget=0, prompt=PROMPT):
    command = [BINARY, "bench", model, "--fit", "-p", str(prompt), "-n", str(o.generate), "-r", "1", "--json"]
    command += ["--stream-experts", "--memory-budget", str(budget)] if budget else []
    command += ["--threads", str(o.threads)] if o.threads else []
    group = Group(budget + MARGIN if budget and o.group else 0)
    drop_cache(model)
    try:
        result = last_json(group.run(command))
    finally:
        peak = group.close()
    row = {"what": "apus" if budget else "resident", "budget_mb": round(budget / 1e6), "tg": result["tg"], "pp": result.get("pp", ""),
           "expected_tg": result.get("expected_tg", ""), "expected_pp": result.get("expected_pp", ""), "disk_gbs": result.get("disk_gbs", ""),
           "routed_mb": result.get("routed_bytes", 0) / 1e6, "token_mb": result["bytes_per_token"] / 1e6, "peak_mb": round(peak / 1e6) if peak else "",
           "group": group.kind, "command": "apus " + " ".join(command[1:])}
    if budget:
        tg, pp = result["tg_experts"], result["pp_experts"]
        wanted = tg["hits"] + tg["misses"]
        bank = result["expert_cache_bytes"] / result["expert_slots"] * result["experts"]
        row |= {"held": result["expert_slots"], "experts": result["experts"], "hit": tg["hits"] / wanted if wanted else 1,
                "read_mb_token": tg["read_bytes"] / o.generate / 1e6, "read_gbs_busy": tg["read_bytes"] / tg["read_s"] / 1e9 if tg["read_s"] else "",
                "stall_ms_token": tg["stall_s"] / o.generate * 1e3, "pp_read_over_bank": pp["read_bytes"] / bank}
    return row


def peer(o, budget):
    """mmap, and nothing else said: pages come when they are touched. The better of two repetitions behind its warm-up: the first reads much
    for the first time."""
    command = [o.peer, "-m", o.gguf, "-p", "0", "-n", str(o.peer_generate), "-t", str(o.threads or os.cpu_count()), "-r", "2", "-o", "json"]
    group = Group(budget + MARGIN)
    if not group.path:
        print("no memory control group can be made here: the peer is left out", file=sys.stderr)
        return None
    drop_cache(o.gguf)
    most = 2 * o.peer_generate / SECONDS_MAX
    try:
        run = group.run(command)
        speed = max(json.loads(run.stdout)[-1]["samples_ts"]) if run.returncode == 0 else 0
    except subprocess.TimeoutExpired:
        print(f"the peer was stopped after {SECONDS_MAX} s: no more than {most:.2f} tok/s", file=sys.stderr)
        speed = most
    finally:
        peak = group.close()
    return {"what": "llama.cpp mmap", "budget_mb": round(budget / 1e6), "tg": speed, "peak_mb": round(peak / 1e6), "group": group.kind,
            "command": " ".join(command)}


# ---- rows ----

def rows_of(path):
    return list(csv.DictReader(open(path))) if path and os.path.exists(path) and os.path.getsize(path) else []


class Table:
    def __init__(self, path, model):
        self.path, self.model = path, os.path.basename(os.path.normpath(model))
        self.done = {(r["model"], r["what"], r["part"], r["round"]) for r in rows_of(path)}
        self.same = {"model": self.model, "machine": machine(), "commit": commit()}

    def has(self, what, part, number):
        return (self.model, what, str(part), str(number)) in self.done

    def add(self, row, part, number):
        row = self.same | {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} | {"part": part, "round": number}
        fresh = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        print(f"{row['what']:15} {part:>4} %  round {number}: {row['tg']:.2f} tok/s" + (f", expected {row['expected_tg']:.2f}" if row.get("expected_tg") else ""),
              flush=True)


def number(row, key):
    return float(row[key]) if row.get(key) not in ("", None) else 0.0


def median(rows, key):
    values = [number(r, key) for r in rows if r.get(key) not in ("", None)]
    return statistics.median(values) if values else 0.0


def limits(rows, cpu_s):
    """Of one part's rows: limit and sync in tok/s, as said above."""
    disk, read, hit = median(rows, "disk_gbs") * 1e9, median(rows, "read_mb_token") * 1e6, median(rows, "hit")
    routed, token = median(rows, "routed_mb"), median(rows, "token_mb")
    io_s = read / disk if disk else 0
    routed_s = cpu_s * routed / token
    sync_s = cpu_s - routed_s + max(io_s, hit * routed_s) + (1 - hit) * routed_s
    return 1 / max(io_s, cpu_s), 1 / sync_s, io_s


def summary(rows):
    """A line per part: medians, and how they stand to the limits and to the peer."""
    of = lambda what, part=None: [r for r in rows if r["what"] == what and part in (None, r["part"])]
    resident = median(of("resident"), "tg")
    if not resident:
        sys.exit("no resident run in the table: nothing to compute limits from")
    lines = []
    for part in sorted({r["part"] for r in of("apus")}, key=float):
        mine, other = of("apus", part), median(of("llama.cpp mmap", part), "tg")
        limit, sync, io_s = limits(mine, 1 / resident)
        lines.append({"part": float(part), "tg": median(mine, "tg"), "pp": median(mine, "pp"), "limit": limit, "sync": sync, "io_s": io_s,
                      "hit": median(mine, "hit"), "expected": median(mine, "expected_tg"), "peer": other, "rounds": len(mine),
                      "disk": median(mine, "disk_gbs")})
    return resident, lines


def show(rows):
    resident, lines = summary(rows)
    print(f"\nall in memory: {resident:.2f} tok/s\npart   tok/s   hit   T_io ms  disk GB/s   limit    sync  of sync  expected  llama.cpp  times")
    for l in lines:
        print(f"{l['part']:3.0f} % {l['tg']:7.2f} {100 * l['hit']:4.0f} % {1e3 * l['io_s']:8.1f} {l['disk']:10.2f} {l['limit']:7.2f} {l['sync']:7.2f} "
              f"{100 * l['tg'] / l['sync']:6.0f} % {100 * (l['expected'] / l['tg'] - 1):+7.0f} % {l['peer'] or float('nan'):10.2f} "
              f"{l['tg'] / l['peer'] if l['peer'] else float('nan'):6.1f}")


# ---- what can be asked for ----

def sweep(o):
    table = Table(o.csv, o.model)
    floor, bank, cache = sizes(o.model, max(PROMPT, o.generate) + 16)
    parts = [float(p) for p in o.parts.split(",")]
    for turn in range(o.rounds):
        if not table.has("resident", 100, turn):
            table.add(bench(o.model, o), 100, turn)
        for part in parts if turn % 2 == 0 else parts[::-1]:
            budget, name = int(floor + 2 * cache + part / 100 * bank), f"{part:g}"
            if not table.has("apus", name, turn):
                table.add(bench(o.model, o, budget), name, turn)
            if o.peer and turn < o.peer_rounds and not table.has("llama.cpp mmap", name, turn):
                row = peer(o, budget)
                if row:
                    table.add(row, name, turn)
    rows = [r for r in rows_of(o.csv) if r["model"] == table.model]
    show(rows)
    if o.svg:
        plot(rows, o.svg)


def resident(o):
    out = [sys.executable, os.path.join(ROOT, "bench", "compare.py"), "--apus", BINARY, "--peer", f"llama.cpp={o.peer} -fa 1", "-p", str(PROMPT), "-n",
           str(o.generate), "-r", str(o.rounds), "--out", o.csv, f"{o.model}={o.gguf}"]
    out += ["--threads", str(o.threads)] if o.threads else []
    code = subprocess.run(out, cwd=ROOT).returncode
    for row in list(csv.DictReader(open(o.csv)))[-2:]:
        print(f"{row['what']}: {row['ours']} against {row['theirs']} tok/s: {row['ratio']} times; {100 * float(row['of_limit']):.0f} % of the limit")
    sys.exit(code)


def deep(o):
    if not os.path.exists(os.path.join(o.model, "config.json")):
        if not o.shape:
            sys.exit(f"{o.model}: no such model; --shape makes one")
        cut = ["--layers", str(o.cut)] if o.cut else []
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_bench_model.py"), o.shape, o.model, *cut], check=True)
    here = json.load(open(os.path.join(o.model, "config.json")))["num_hidden_layers"]
    table = Table(o.csv, o.model)
    floor, bank, cache = sizes(o.model, max(PROMPT, o.generate) + 16)
    budget, name = int(floor + 2 * cache + o.part / 100 * bank), f"{o.part:g}"
    for turn in range(o.rounds):
        if not table.has("apus", name, turn):
            table.add(bench(o.model, o, budget), name, turn)
    rows = [r for r in rows_of(o.csv) if r["model"] == table.model and r["what"] == "apus" and r["part"] == name]
    tg, disk, read, hit = (median(rows, key) for key in ("tg", "disk_gbs", "read_mb_token", "hit"))
    token_s, io_s, stall_s, times = 1 / tg, read / disk / 1e3, median(rows, "stall_ms_token") / 1e3, o.layers / here
    files = sum(os.path.getsize(os.path.join(o.model, n)) for n in os.listdir(o.model)) / 1e9
    print(f"""
{table.model}: {here} layers, {files:.1f} GB of files, {budget / 1e9:.2f} GB of memory: {files * 1e9 / budget:.1f} times as large
  measured     {tg:.2f} tok/s = {1e3 * token_s:.1f} ms; {100 * hit:.0f} % of the experts wanted were there
  disk         {read:.1f} MB a token at the probed {disk:.2f} GB/s: {1e3 * io_s:.1f} ms, so at most {1 / io_s:.2f} tok/s; measured is {100 * io_s / token_s:.0f} % of that
               and while it was busy the disk gave {median(rows, 'read_gbs_busy'):.2f} GB/s
  {o.layers} layers    the same memory for each layer's experts: {bank * times / 1e9:.1f} GB of experts, {o.part:g} % of them held, {read * times:.0f} MB read a token
               at most 1 / ({read * times:.0f} MB / {disk:.2f} GB/s) = {1 / (io_s * times):.2f} tok/s
               measured × {here} / {o.layers} = {tg / times:.2f} tok/s (the output matrix, which does not grow, is counted {times:.1f} times: a little more)""")
    for gbs in (3.0, 7.0, 14.0):
        disk_s, rest_s = read * times / gbs / 1e3, (token_s - stall_s) * times
        print(f"               a disk of {gbs:.0f} GB/s: 1 / max({1e3 * disk_s:.0f} ms, {1e3 * rest_s:.0f} ms of this machine's cores) = "
              f"{1 / max(disk_s, rest_s):.2f} tok/s at most, 1 / their sum = {1 / (disk_s + rest_s):.2f} at least")


def plot(rows, path):
    resident_speed, lines = summary(rows)
    left, top, width, height = 60, 50, 560, 280
    most = 1.1 * max([resident_speed] + [min(l["sync"], 1.3 * resident_speed) for l in lines])
    x = lambda part: left + width * part / 100
    y = lambda value: top + height * (1 - min(value, most) / most)
    curves = [("apus, measured", "tg", "#d62728", ""), ("sync: one conversation, by the probed disk", "sync", "#444444", "5,4"),
              ("limit: perfect overlap", "limit", "#bbbbbb", "2,3"), ("llama.cpp, mmap", "peer", "#1f77b4", "")]
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="680" height="440" font-family="sans-serif" font-size="12">',
             '<style>.title{font-size:14px;font-weight:bold}</style><rect width="680" height="440" fill="white"/>',
             f'<text x="{left}" y="{top - 18}" class="title">{rows[0]["model"]}: tokens/s over the part of the experts that memory holds</text>',
             f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>']
    for i in range(6):
        value, part = most / 1.1 * i / 5, 20 * i
        parts.append(f'<text x="{x(part):.0f}" y="{top + height + 18}" text-anchor="middle">{part} %</text>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.0f}</text>')
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.0f}" y2="{y(value):.0f}" stroke="#eee"/>')
    parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(resident_speed):.0f}" y2="{y(resident_speed):.0f}" stroke="#2ca02c"/>')
    parts.append(f'<text x="{left + 6}" y="{y(resident_speed) - 6:.0f}" fill="#2ca02c">all in memory, without streaming</text>')
    at = 0
    for name, key, colour, dash in curves:
        line = [l for l in lines if l[key]]
        if not line:
            continue
        points = " ".join(f"{x(l['part']):.1f},{y(l[key]):.1f}" for l in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        row, column = divmod(at, 2)
        parts.append(f'<rect x="{left + 290 * column}" y="{top + height + 40 + 20 * row}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20 + 290 * column}" y="{top + height + 46 + 20 * row}">{name}</text>')
        at += 1
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sweep", "resident", "deep", "plot"))
    parser.add_argument("model", nargs="?", help="a checkpoint's directory")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--svg")
    parser.add_argument("--parts", default="20,30,50,75,100")
    parser.add_argument("--part", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-group", dest="group", action="store_false", help="no control group around apus")
    parser.add_argument("--peer", help="the path of llama-bench")
    parser.add_argument("--gguf", help="the peer's file")
    parser.add_argument("--peer-generate", type=int, default=8)
    parser.add_argument("--peer-rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--shape")
    parser.add_argument("--cut", type=int, help="layers of the model that --shape makes")
    o = parser.parse_args()
    if o.what != "plot" and not o.model:
        parser.error("name a model")
    if o.peer and not o.gguf or o.what == "resident" and not o.peer:
        parser.error("--peer and --gguf go together, and resident needs them")
    if o.what == "plot":
        rows = rows_of(o.csv)
        show(rows)
        plot(rows, o.svg)
    else:
        {"sweep": sweep, "resident": resident, "deep": deep}[o.what](o)


if __name__ == "__main__":
    main()
