#!/usr/bin/env python3
"""Gaps between the tokens of one stream while other processes keep all processors busy, of several binaries in turn.

bench/stalls.py MODEL BINARY… [--busy 2] [--tokens 250] [--rounds 3] [--threads 2]
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "server"))
import apus_server  # noqa: E402


def times(server, tokens):
    """When each event of a streamed answer came, in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"model": server.name, "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response, out = connection.getresponse(), []
    while (line := response.readline()) and b"[DONE]" not in line:
        if line.startswith(b"data"):
            out.append(time.monotonic())
    return out


def measure(binary, options):
    with apus_server.Server(options.model, "--no-lookup", "--threads", options.threads, binary=binary) as server:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
        try:
            at = times(server, options.tokens)
        finally:
            for other in busy:
                other.kill()
                other.wait()
    gaps = sorted(1e3 * (b - a) for a, b in zip(at, at[1:]))
    p99 = gaps[int(len(gaps) * 0.99)]
    speed = len(gaps) / (at[-1] - at[0])
    print(
        f"{binary}: median {statistics.median(gaps):.1f} ms, p99 {p99:.1f} ms, largest {gaps[-1]:.1f} ms, "
        f"{speed:.1f} tok/s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for binary in options.binaries:
            measure(binary, options)


main()
