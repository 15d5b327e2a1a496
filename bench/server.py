#!/usr/bin/env python3
"""Servers measured from the client's side:

    bench/server.py --peer 'NAME=llama-server -m FILE … --port {port}' MODEL >bench/results/X.csv

Starts `apus serve MODEL` and the peers, all on free ports, and lets them take turns: each round sends every server the
same requests, one server at a time, the others idle. Rows are medians of the rounds; `bar` is what a row is held
against.
  streams   tokens/s of --streams answers of --tokens tokens together, from the first request to the last token
  schema    tokens/s of streams whose answers must keep a schema; the ratio is to the same requests without it, by turns
            (apus only)
  prompt    seconds to the first token of a prompt of about --prompt tokens that no cache has seen
  one       tokens/s of one stream behind its first token, beside `apus bench` in the same round
  start     seconds from exec to the first token: `apus run` with a prompt of one word, the same in the chat template,
            and the servers with their first request; the files are in the page cache
  cost      µs of processor time per token and stream outside the threads that compute (apus only)
  kept      cost of resumable streams (x-stream-keep), by turns with streams that are not kept; the ratio is to these
            (apus only)
  tools     cost of streams with tools, whose answers are read for calls and reasoning (apus only); what the thread of
            masks takes beside each step is a row of its own
  overhead  ms from sending a prompt of 200 words to its first token, less the time in which it was read; and ms of a
            scrape of /metrics beside the streams, on a connection that is open (apus only)
  idle      processor ticks and context switches of the idle server in 10 s (apus only)
  memory    anonymous memory in MB when all answers are given, so that no page of the KV cache is in use
The client is one thread that reads raw sockets: what it takes from the servers' cores is small, and the same for all.
"""

import argparse
import csv
import http.client
import json
import os
import platform
import random
import re
import select
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS = """the of and to in is you that it he was for on are as with his they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up other about out many
then them these so some her would make like him into time has look two more write go see number no way could people my
than first water been call who oil its now find long down day did get come made may part""".split()

# As long as any answer here.
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "list",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "minItems": 200,
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "maxLength": 40},
                            "kind": {"enum": ["animal", "plant", "stone"]},
                            "count": {"type": "integer"},
                            "found": {"type": "boolean"},
                        },
                        "required": ["name", "kind", "count", "found"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["items"],
            "additionalProperties": False,
        },
    },
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, path, timeout=5):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Server:
    def __init__(self, name, command, model):
        self.name, self.model, self.port = name, model, free_port()
        self.command = command.replace("{port}", str(self.port))
        self.started = time.perf_counter()
        self.process = subprocess.Popen(shlex.split(self.command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:  # a listening socket is not yet a loaded model
            try:
                if ask(self.port, "/health")[0] == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit(f"{self.command}: exit code {self.process.returncode}")
            time.sleep(0.001)

    def close(self):
        self.process.terminate()
        self.process.wait()

    def proc(self, name):
        with open(f"/proc/{self.process.pid}/{name}") as file:
            return file.read()

    def tasks(self):
        """{thread id: (name, seconds on a processor, context switches)}"""
        result = {}
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                name, ran = self.proc(f"task/{task}/comm").strip(), int(self.proc(f"task/{task}/schedstat").split()[0])
                switches = sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", self.proc(f"task/{task}/status"))))
            except (FileNotFoundError, ProcessLookupError):
                continue
            result[task] = name, ran * 1e-9, switches
        return result


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name} of a place",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    }
    for name in ("weather", "population", "history")
]


class Stream:
    def __init__(self, server, text, tokens, keep_s=0, **more):
        body = {
            "model": server.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if server.name != "apus":
            body["cache_prompt"] = False
        body.update(more)
        data = json.dumps(body).encode()
        self.name = server.name
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"%sContent-Length: %d\r\n\r\n" % (b"x-stream-keep: %d\r\n" % keep_s if keep_s else b"", len(data)) + data
        )
        self.blocks, self.first, self.last, self.ended = [], None, None, False

    def check_status(self):
        """Ends with the server's message where the answer is none: the connection may stay open behind it."""
        head, found, body = b"".join(self.blocks).partition(b"\r\n\r\n")
        if not found or b" 200 " in head.split(b"\r\n")[0]:
            return
        length = re.search(rb"^content-length: *(\d+)", head, re.I | re.M)
        while (not length or len(body) < int(length[1])) and (block := self.socket.recv(1 << 16)):
            body += block
        sys.exit(f"{self.name}: {head.splitlines()[0].decode()}: {body.decode('utf-8', 'replace')}")

    def read(self):
        block = self.socket.recv(1 << 16)
        self.blocks.append(block)
        if self.first is None:
            self.check_status()
        if self.first is None and re.search(rb'"content":"[^"]', block):
            self.first = time.perf_counter()
        self.ended = not block or b"data: [DONE]" in block
        if self.ended:
            self.last = time.perf_counter()

    def usage(self):
        text = b"".join(self.blocks).decode("utf-8", "replace")
        for line in reversed(text.split("\n")):
            if line.startswith("data: {") and '"usage":{' in line:
                return json.loads(line[6:])["usage"]
        sys.exit(f"no usage in the answer: {text[:500]}")


def burst(server, texts, tokens, while_open=None, **more):
    """Sends all texts at once; their streams, the start, and what while_open gives while the connections stand."""
    start = time.perf_counter()
    streams = [Stream(server, text, tokens, **more) for text in texts]
    poll, by_fd = select.epoll(), {}
    for stream in streams:
        poll.register(stream.socket, select.EPOLLIN)
        by_fd[stream.socket.fileno()] = stream
    while by_fd:
        for fd, _ in poll.poll():
            by_fd[fd].read()
            if by_fd[fd].ended:
                poll.unregister(fd)
                del by_fd[fd]
    seen = while_open() if while_open else None
    for stream in streams:
        stream.socket.close()
    poll.close()
    return streams, start, seen


def words(count):
    return " ".join(random.choice(WORDS) for _ in range(count))


def measure_streams(server, texts, tokens, **more):
    """tokens/s; µs per token and stream of what neither computes nor makes masks, and of masks"""
    before = server.tasks()
    streams, start, after = burst(server, texts, tokens, server.tasks, **more)
    made = sum(s.usage()["completion_tokens"] for s in streams)

    def spent(wanted):
        return (
            sum(ran - before.get(task, (0, 0, 0))[1] for task, (name, ran, _) in after.items() if wanted(name))
            / made
            * 1e6
        )

    return (
        made / (max(s.last for s in streams) - start),
        spent(lambda n: n not in ("apus-engine", "worker", "apus-masks")),
        spent(lambda n: n == "apus-masks"),
    )


def measure_prompt(server, text):
    streams, start, _ = burst(server, [text], 4)
    return streams[0].first - start, streams[0].usage()["prompt_tokens"]


def measure_one(server, text, tokens):
    streams, _, _ = burst(server, [text], tokens)
    return (streams[0].usage()["completion_tokens"] - 1) / (streams[0].last - streams[0].first)


def measure_overhead(server, text):
    """ms to the first token beyond the reading of the prompt, which the server's metrics tell."""

    def read():
        text = ask(server.port, "/metrics")[1]
        return [
            float(re.search(rb"^apus_request_prefill_time_seconds_" + part + rb"{.*} (.*)$", text, re.M).group(1))
            for part in (b"count", b"sum")
        ]

    time.sleep(0.2)  # what was answered before is noted
    before, start = read(), time.perf_counter()
    streams, _, _ = burst(server, [text], 2)
    seconds, end = streams[0].first - start, time.perf_counter() + 1
    while (after := read())[0] == before[0] and time.perf_counter() < end:  # it is noted when the answer has ended
        time.sleep(0.001)
    return (seconds - (after[1] - before[1])) * 1e3


def measure_scrape(server, texts, tokens):
    """Median ms of /metrics while the streams are given."""
    thread, times = threading.Thread(target=burst, args=(server, texts, tokens)), []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    thread.start()
    time.sleep(0.05)
    while thread.is_alive():
        start = time.perf_counter()
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        times.append((time.perf_counter() - start) * 1e3)
        time.sleep(0.02)
    connection.close()
    return statistics.median(times)


def measure_run(command):
    """Seconds from exec to the first byte of an answer."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - start
    process.stdout.read()
    if process.wait() or not first:
        sys.exit(f"{shlex.join(command)} failed")
    return seconds


def measure_start(name, command, model):
    server = Server(name, command, model)
    streams, _, _ = burst(server, ["Hello"], 1)
    seconds = streams[0].first - server.started
    server.close()
    return seconds


def measure_idle(server, seconds):
    time.sleep(1)  # connections just closed are taken down

    def ticks():
        fields = server.proc("stat").rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before, switches = ticks(), sum(t[2] for t in server.tasks().values())
    time.sleep(seconds)
    return ticks() - before, sum(t[2] for t in server.tasks().values()) - switches


def rollup(server, field):
    return int(re.search(rf"^{field}:\s+(\d+) kB", server.proc("smaps_rollup"), re.M).group(1)) * 1024


def in_process(apus, options, model, tokens):
    device = re.findall(r"--device\s+\S+", options)
    command = [
        apus,
        "bench",
        model,
        "-p",
        "0",
        "-n",
        str(tokens),
        "-d",
        "32",
        "-r",
        "1",
        "--json",
        *shlex.split(" ".join(device)),
    ]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apus", default="build/apus")
    parser.add_argument("--apus-options", default="", help="for apus serve")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND with {port}")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="streams,kept,prompt,one,start,overhead,idle,memory", help="which measurements, by comma"
    )
    parser.add_argument("--no-header", action="store_true")
    parser.add_argument("model")
    a = parser.parse_args()
    only = a.only.split(",")

    cpu = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    columns = [
        "model",
        "what",
        "server",
        "value",
        "min",
        "max",
        "unit",
        "apus_ratio",
        "bar",
        "rounds",
        "machine",
        "commit",
        "command",
    ]
    out = csv.DictWriter(sys.stdout, columns)
    if not a.no_header:
        out.writeheader()
    shown = shlex.join(["bench/server.py", *sys.argv[1:]])

    def row(what, server, values, unit, ratio="", bar=""):
        out.writerow(
            dict(
                model=a.model,
                what=what,
                server=server,
                value=round(statistics.median(values), 3),
                min=round(min(values), 3),
                max=round(max(values), 3),
                unit=unit,
                apus_ratio=ratio and round(ratio, 3),
                bar=bar,
                rounds=len(values),
                machine=f"{cpu}, {os.cpu_count()} cores",
                commit=commit,
                command=shown,
            )
        )
        sys.stdout.flush()

    def rows(what, values, unit, more_is_better, bar):
        ours = statistics.median(values["apus"])
        for name, series in values.items():
            theirs = statistics.median(series)
            row(
                what,
                name,
                series,
                unit,
                "" if name == "apus" else ours / theirs if more_is_better else theirs / ours,
                bar,
            )

    commands = {"apus": f"{a.apus} serve {shlex.quote(a.model)} --model-name bench --port {{port}} {a.apus_options}"}
    commands.update(peer.split("=", 1) for peer in a.peer)
    if "start" in only:
        starts = {name: [] for name in commands}
        run, raws, runs = [a.apus, "run", a.model, "Hello", "-n", "1", "--temp", "0"], [], []
        measure_run(run)
        for _ in range(a.rounds):
            raws.append(measure_run(run + ["--raw"]))
            runs.append(measure_run(run))
            for name in commands:
                starts[name].append(measure_start(name, commands[name], "bench"))
        row("start, apus run --raw", "apus", raws, "s", bar="<= 0.25")
        row("start, apus run", "apus", runs, "s", bar="<= 0.25")
        rows("start, server", starts, "s", False, "<= 0.25")

    servers = [Server(name, command, "bench") for name, command in commands.items()]
    ours = servers[0]
    try:
        for server in servers:  # weights into memory, threads up
            burst(server, ["Hello"], 8)
        if "streams" in only:
            totals, costs = {s.name: [] for s in servers}, []
            for _ in range(a.rounds):
                texts = [f"Write a long story about {words(12)}." for _ in range(a.streams)]
                for server in servers:
                    total, cost, _ = measure_streams(server, texts, a.tokens)
                    totals[server.name].append(total)
                    if server is ours:
                        costs.append(cost)
            rows(f"streams, {a.streams} of {a.tokens}", totals, "tok/s", True, ">= 2.5")
            row(f"cost, {a.streams} streams", "apus", costs, "us per token and stream", bar="<= 30")
        if "kept" in only:
            plain, kept = [], []
            for _ in range(a.rounds):
                for keep_s, costs in (0, plain), (60, kept):
                    texts = [f"Write a long story about {words(12)}." for _ in range(a.streams)]
                    costs.append(measure_streams(ours, texts, a.tokens, keep_s=keep_s)[1])
            ratio = statistics.median(kept) / statistics.median(plain)
            row(f"cost, {a.streams} streams not kept", "apus", plain, "us per token and stream", bar="<= 30")
            row(f"cost, {a.streams} streams kept", "apus", kept, "us per token and stream", ratio, "<= 30")
        if "tools" in only:
            costs, masks = [], []
            for _ in range(a.rounds):
                texts = [f"Write a long story about {words(12)}." for _ in range(a.streams)]
                _, cost, mask = measure_streams(ours, texts, a.tokens, tools=TOOLS, tool_choice="auto")
                costs.append(cost)
                masks.append(mask)
            row(f"cost, {a.streams} streams with tools", "apus", costs, "us per token and stream", bar="<= 30")
            row(f"masks, {a.streams} streams with tools", "apus", masks, "us per token and stream")
        if "overhead" in only:
            firsts = [measure_overhead(ours, words(200)) for _ in range(a.rounds)]
            row("first token over prefill", "apus", firsts, "ms", bar="<= 1")
            scrapes = [
                measure_scrape(ours, [f"Write a long story about {words(12)}." for _ in range(a.streams)], a.tokens)
                for _ in range(a.rounds)
            ]
            row(f"scrape beside {a.streams} streams", "apus", scrapes, "ms", bar="<= 1")
        if "schema" in only:
            free, kept = [], []
            for _ in range(a.rounds):
                texts = [f"Write a long list of {words(12)} as JSON." for _ in range(a.streams)]
                free.append(measure_streams(ours, texts, a.tokens)[0])
                kept.append(measure_streams(ours, texts, a.tokens, response_format=SCHEMA)[0])
            row(
                f"schema, {a.streams} streams",
                "apus",
                kept,
                "tok/s",
                statistics.median(k / f for k, f in zip(kept, free)),
                ">= 0.97",
            )
        if "prompt" in only:
            firsts, count = {s.name: [] for s in servers}, 0
            for _ in range(a.rounds):
                text = words(a.prompt - 30)
                for server in servers:
                    first, count = measure_prompt(server, text)
                    firsts[server.name].append(first)
            rows(f"prompt of {count} tokens", firsts, "s", False, ">= 3")
        if "one" in only:
            singles, alone = {s.name: [] for s in servers}, []
            for _ in range(a.rounds):
                text = f"Write a long story about {words(12)}."
                for server in servers:
                    singles[server.name].append(measure_one(server, text, a.tokens))
                alone.append(in_process(a.apus, a.apus_options, a.model, a.tokens)["tg"])
            rows("one stream", singles, "tok/s", True, "")
            row(
                "one stream, apus bench",
                "apus",
                alone,
                "tok/s",
                statistics.median(singles["apus"]) / statistics.median(alone),
                ">= 0.98",
            )
        if "memory" in only:
            weights = in_process(a.apus, a.apus_options, a.model, 1)["weight_bytes"]
            rows(
                "memory, anonymous",
                {s.name: [rollup(s, "Anonymous") / 1e6] for s in servers},
                "MB",
                False,
                f"<= {(weights * 0.05 + 64e6) / 1e6:.0f}",
            )
        if "idle" in only:
            ticks, switches = measure_idle(ours, 10)
            row("idle, ticks in 10 s", "apus", [ticks], "ticks", bar="0")
            row("idle, context switches in 10 s", "apus", [switches], "switches", bar="")
    finally:
        for server in servers:
            server.close()


main()
