#!/usr/bin/env python3
"""Whether experts that lie in one piece would be read faster than as they lie in a checkpoint, in nine: codes, scales
and biases of gate, up and down. bench/expert_layout.py FILE [--hidden 2048 --inner 1024] reads from random places of a
large file on the disk in question, around the page cache, a megabyte a read at most where they lie in one piece, eight
reads at once as the engine's threads do, misses of a layer at a time; both ways in turn. A line of JSON per round, then
the medians.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import random
import statistics
import threading
import time

ALIGN, READERS, CUT = 4096, 8, 1 << 20


def pieces(hidden, inner, rng, size):
    """(offset, bytes) of one expert in a checkpoint of 4 bits in groups of 64, each stack elsewhere; the same bytes in
    one piece.
    """
    codes = hidden * inner // 2
    lengths = [codes, codes // 8, codes // 8] * 3
    apart = []
    for length in lengths:
        at = rng.randrange(size - length - 2 * ALIGN) // 8 * 8
        first, end = at // ALIGN * ALIGN, -(-(at + length) // ALIGN) * ALIGN
        apart.append((first, end - first))
    whole = -(-sum(lengths) // ALIGN) * ALIGN
    at = rng.randrange(size - whole) // ALIGN * ALIGN
    return apart, [(at + done, min(CUT, whole - done)) for done in range(0, whole, CUT)]


def measure(fd, pool, local, layers):
    def read(piece):
        if not hasattr(local, "memory"):
            local.memory = mmap.mmap(-1, 64 << 20)
        offset, size = piece
        done = 0
        while done < size:
            got = os.preadv(fd, [memoryview(local.memory)[done:size]], offset + done)
            done += got // ALIGN * ALIGN if done + got < size else got

    begin = time.perf_counter()
    for layer in layers:
        list(pool.map(read, layer))
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=1024)
    parser.add_argument("--misses", type=int, default=3, help="experts of a layer that are read together")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    fd = os.open(options.file, os.O_RDONLY | os.O_DIRECT)
    size, rng, local = os.fstat(fd).st_size, random.Random(1), threading.local()
    rates = {"apart": [], "whole": []}
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        for turn in range(options.rounds):
            for way in sorted(rates, reverse=turn % 2 == 1):
                experts = [
                    [pieces(options.hidden, options.inner, rng, size)[way == "whole"] for _ in range(options.misses)]
                    for _ in range(options.layers)
                ]
                layers = [[piece for expert in layer for piece in expert] for layer in experts]
                total = sum(n for layer in layers for _, n in layer)
                seconds = measure(fd, pool, local, layers)
                rates[way].append(total / seconds * 1e-9)
                print(json.dumps({"way": way, "GB/s": round(rates[way][-1], 3), "bytes": total}), flush=True)
    apart, whole = (statistics.median(rates[way]) for way in ("apart", "whole"))
    print(json.dumps({"apart": round(apart, 3), "whole": round(whole, 3), "gain": round(whole / apart, 3)}))


main()
