#!/usr/bin/env python3
"""Experts that are streamed with a fifth of them in memory, over HTTP: while reads fail, come short, are slow or never
come back, every answer that is completed is the one that a server gives that has all experts in memory, everything else
is a clean error, and the server goes on. --count N requests (60) for each way of reading; half of them several at a
time, some with clients that vanish.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time

from apus_server import BINARY, ROOT, Checks, Server
from tiny_model import write_tiny_mixture

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=60)
options = parser.parse_args()
check = Checks()
# A read is tried three times; a request here makes some thousands.
FAULTS = "fail:0.02,cut:0.1,hang:0.00001,silence:200,seed:"
COMMON = ["--slots", 4, "--kv-memory", "24M", "--prefill-size", 64]
WORDS = "anchor apple boat cloud dagger eagle ferry goat harbour island jewel kettle lamp market night olive".split()


def figures(server):
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("apus_")}


def start(model, budget, *more):
    return Server(model, *COMMON, "--stream-experts", "--memory-budget", budget, *more)


def least_budget(model):
    command = [BINARY, "serve", model, "--port", "0", *map(str, COMMON), "--stream-experts", "--memory-budget", "1M"]
    result = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"([0-9.]+) GB would just do", result.stderr)
    check(
        result.returncode == 1 and found,
        f"too small a budget is refused with the least that would do: {result.stderr[-300:]}",
    )
    return float(found.group(1)) * 1e9


def body(rng):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(2, 20)))
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": rng.randrange(2, 16),
        "seed": rng.randrange(1000),
        "temperature": rng.choice([0, 1.0]),
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
    }


def vanish(server, asked, rng):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        "POST",
        "/v1/chat/completions",
        json.dumps({**asked, "model": server.name, "stream": True}),
        {"Content-Type": "application/json"},
    )
    time.sleep(rng.random() * 0.05)
    connection.close()


def soak(server, resident, count, seed):
    rng, lock = random.Random(seed), threading.Lock()
    done = {"right": 0, "wrong": 0, "refused": 0, "vanished": 0, "strange": 0}

    def one(i):
        with lock:
            own = random.Random(rng.random())
        asked = body(own)
        if own.random() < 0.1:
            vanish(server, asked, own)
            outcome = "vanished"
        else:
            status, _, answer = server.request("POST", "/v1/chat/completions", {**asked, "model": server.name})
            answer = json.loads(answer)
            if status == 200:
                other = json.loads(
                    resident.request("POST", "/v1/chat/completions", {**asked, "model": resident.name})[2]
                )
                outcome = "right" if answer["choices"] == other["choices"] else "wrong"
            else:
                outcome = (
                    "refused"
                    if status == 500 and re.search("cannot read an expert|became shorter", str(answer))
                    else "strange"
                )
                if outcome == "strange":
                    print(status, answer)
        with lock:
            done[outcome] += 1

    for i in range(count // 2):
        one(i)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count - count // 2)))
    return done


def check_faults(model, budget, resident, io, seed):
    with start(model, budget, "--expert-io", io, "--expert-faults", FAULTS + str(seed)) as server:
        figure = figures(server)
        share = figure["apus_expert_cache_slots"] / figure["apus_experts"]
        check(0.15 <= share <= 0.25, f"{share:.2f} of the experts fit")
        done = soak(server, resident, options.count, seed)
        check(done["wrong"] == done["strange"] == 0 and server.alive(), f"{io}: {done}")
        check(done["right"] >= options.count * 0.4, f"{io}: {done}")
        check(server.wait_idle(), f"{io}: nobody is left")
        figure, health = figures(server), server.health()["experts"][server.name]
        check(
            figure["apus_expert_cache_evictions_total"] > 0 and figure["apus_expert_cache_hits_total"] > 0,
            "hits and evictions",
        )
        check(
            health["hits"] == figure["apus_expert_cache_hits_total"]
            and health["slots"] == figure["apus_expert_cache_slots"],
            health,
        )
        check(0 < health["percent_of_limit"] <= 100 and health["read_gb_per_s"] > 0 and io in health["io"], health)
        print(f"{io}: {done}, hit rate {health['hit_rate']}, {health['percent_of_limit']} % of the limit")
    check(server.code == 0, f"{io}: exit code {server.code}")


def check_timings(model, budget):
    with start(model, budget) as server:
        _, first = server.chat("anchor boat", max_tokens=4, temperature=0, ignore_eos=True)
        _, again = server.chat("anchor boat", max_tokens=4, temperature=0, ignore_eos=True, stream=False)
        experts = first["timings"]["experts"]
        check(set(experts) == {"hits", "misses", "read_bytes", "stall_ms"}, experts)
        check(experts["misses"] > 0 and experts["read_bytes"] > 0 and experts["stall_ms"] >= 0, experts)
        check(server.wait_idle(), "the last step is counted")
        figure = figures(server)
        for name, metric in (("hits", "hits"), ("misses", "misses")):
            total = first["timings"]["experts"][name] + again["timings"]["experts"][name]
            check(total == figure[f"apus_expert_cache_{metric}_total"], f"{name}: {total} of {figure}")


def check_trace(model, least, bank):
    """The engine's counters are those of the rule that tools/replay_routes.py plays, however small the cache and
    whatever is read ahead.
    """
    for share, more in ((0, []), (0.1, []), (0.2, ["--expert-io", "threads"]), (0.6, ["--ssd-prefetch"])):
        trace = os.path.join(model, "trace")
        with start(model, int(least + bank * share), "--route-trace", trace, *more) as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                rng = random.Random(share)
                for status, _, _ in pool.map(
                    lambda b: server.request("POST", "/v1/chat/completions", {**b, "model": server.name}),
                    [{**body(rng), "max_tokens": 60} for _ in range(6)],
                ):
                    check(status == 200, status)
            for _ in range(3):
                server.chat("anchor", max_tokens=60, ignore_eos=True)
            check(server.wait_idle(), "nobody is left")  # a step may be under way whose answer has ended
            figure = figures(server)
        replay = subprocess.run(
            [os.path.join(ROOT, "tools", "replay_routes.py"), trace], capture_output=True, text=True
        )
        check(replay.returncode == 0, replay.stdout + replay.stderr)
        counted = (
            f"{figure['apus_expert_cache_hits_total']:.0f} hits, {figure['apus_expert_cache_misses_total']:.0f} misses"
        )
        check(counted in replay.stdout, f"{counted}: {replay.stdout}")
        hints = figure["apus_expert_hints_total"]
        check(
            (hints > 0) == ("--ssd-prefetch" in more) and figure["apus_expert_hint_hits_total"] <= hints,
            f"{hints} hints",
        )


def check_held_once(budget):
    """Nothing of the file is in the page cache beside what the server has in memory of its own."""
    with tempfile.TemporaryDirectory() as model:
        write_tiny_mixture(model)
        path = os.path.join(model, "model.safetensors")
        with open(path, "rb+") as file:
            os.fsync(file)
        with start(model, budget) as server:
            for text in ("anchor boat", "harbour"):
                server.chat(text, max_tokens=8, ignore_eos=True)
            result = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True)
            check(
                result.returncode == 0 and int(result.stdout) < 1e6,
                f"in the page cache: {result.stdout} {result.stderr}",
            )


def check_cancel(model, budget):
    """Each read takes a second, a step half a minute; a client that goes ends it long before."""
    with start(model, budget, "--expert-io", "threads", "--expert-faults", "slow:1000") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        asked = {
            "model": server.name,
            "messages": [{"role": "user", "content": "anchor boat"}],
            "max_tokens": 100,
            "stream": True,
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
        end = time.time() + 20
        while server.health()["running"] == 0 and time.time() < end:
            time.sleep(0.02)
        check(server.health()["running"] == 1, "it stalls")
        connection.close()
        check(server.wait_idle(10), "the slot is free")


with tempfile.TemporaryDirectory() as model:
    write_tiny_mixture(model)
    least = least_budget(model)
    with Server(model, *COMMON) as resident:
        with start(model, int(least + 64e6)) as whole:
            figure = figures(whole)
            check(figure["apus_expert_cache_slots"] == figure["apus_experts"], "all experts fit")
            bank = figure["apus_expert_cache_bytes"]
        budget = int(least + bank * 0.16)
        check_timings(model, budget)
        check_cancel(model, budget)
        check_held_once(budget)
        check_trace(model, least, bank)
        for seed, io in enumerate(("threads", "io_uring")):
            check_faults(model, budget, resident, io, seed)
check.done()
