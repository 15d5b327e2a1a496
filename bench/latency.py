#!/usr/bin/env python3
"""How long clients wait beside others, of several binaries in turn:

    bench/latency.py short MODEL BINARY…     a five-word request beside long prompts
    bench/latency.py streams MODEL BINARY…   gaps between the tokens of many streams whose prompts differ in length

short    --beside long prompts of --words words are sent, and after --delay seconds a request of five words. Seconds to
         its first token; and prompt tokens per second of all, up to the first token of the last long prompt.
streams  --streams clients send one request after another, each a prompt of 5 to --words words that no cache has seen
         and --tokens tokens. The step is the median gap; the 99th percentile and the largest are told in steps, too.
The client is one thread that reads raw sockets.
"""

import argparse
import json
import os
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time

WORDS = "sea hill river wood cloud stone bird road light house water north early green seven often".split()


def start(binary, options):
    command = [binary, "serve", options.model, "--port", "0", "--model-name", "model", "--no-lookup"]
    command += ["--slots", str(max(options.streams, options.beside + 1))]
    if options.threads:
        command += ["--threads", str(options.threads)]
    environment = {**os.environ, "APUS_NO_REQUEST_LOG": "true"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    port = 0
    for line in process.stdout:
        if found := re.search(r"API\s+http://[^:]+:(\d+)/v1", line):
            port = int(found.group(1))
        if "Ctrl-C" in line:
            return process, port
    sys.exit(f"{binary} did not start: exit code {process.wait()}")


class Stream:
    """A request whose answer is streamed; times: when each of its tokens came."""

    def __init__(self, port, text, tokens):
        body = {"model": "model", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "cache_prompt": False}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.begun, self.times, self.ended = time.monotonic(), [], False

    def read(self):
        block = self.socket.recv(1 << 16)
        self.times += [time.monotonic()] * block.count(b"data: {")
        self.ended = not block or b"data: [DONE]" in block
        if self.ended:
            self.socket.close()


def words(count):
    return " ".join(random.choice(WORDS) for _ in range(count))


def read_until(streams, enough):
    """Reads all streams until there is enough, or all have ended."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        if not stream.ended:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
    while selector.get_map() and not enough():
        for key, _ in selector.select(0.05):
            stream = key.data
            selector.unregister(stream.socket)
            stream.read()
            if not stream.ended:
                selector.register(stream.socket, selectors.EVENT_READ, stream)
    selector.close()


def measure_short(port, options):
    begun = time.monotonic()
    streams = [Stream(port, words(options.words), 1) for _ in range(options.beside)]
    read_until(streams, lambda: time.monotonic() > begun + options.delay)
    short = Stream(port, "Name two small blue flowers", 1)
    read_until([*streams, short], lambda: False)
    last = max(s.times[0] for s in streams)
    return short.times[0] - short.begun, options.beside * options.words / (last - begun)


def measure_streams(port, options):
    def next_stream():
        return Stream(port, words(random.randint(5, options.words)), options.tokens)

    running, gaps, left = [next_stream() for _ in range(options.streams)], [], options.requests
    while running:
        read_until(running, lambda: any(s.ended for s in running))
        for stream in [s for s in running if s.ended]:
            gaps += [b - a for a, b in zip(stream.times, stream.times[1:])]
            running.remove(stream)
            if left > 0:
                running.append(next_stream())
                left -= 1
    return sorted(gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("short", "streams"))
    parser.add_argument("model")
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beside", type=int, default=12)
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=64, help="further requests, as clients become free")
    options = parser.parse_args()
    random.seed(1)
    found = {binary: [] for binary in options.binaries}
    for _ in range(options.rounds):
        for binary in options.binaries:
            process, port = start(binary, options)
            try:
                if options.what == "short":
                    seconds, speed = measure_short(port, options)
                    found[binary].append((seconds, speed))
                    print(f"{binary}: first token after {seconds:.2f} s, prompts {speed:.0f} words/s", flush=True)
                else:
                    begun = time.monotonic()
                    gaps = measure_streams(port, options)
                    step, p99 = statistics.median(gaps), gaps[int(len(gaps) * 0.99)]
                    found[binary].append((p99 / step, len(gaps) / (time.monotonic() - begun)))
                    print(
                        f"{binary}: step {1e3 * step:.1f} ms, p99 {p99 / step:.2f} steps, largest "
                        f"{gaps[-1] / step:.2f} steps, {found[binary][-1][1]:.1f} tok/s",
                        flush=True,
                    )
            finally:
                process.terminate()
                process.wait()
    for binary, values in found.items():
        first, second = (statistics.median(v[i] for v in values) for i in range(2))
        print(f"{binary}: medians {first:.2f}, {second:.1f}")


main()
