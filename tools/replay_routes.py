#!/usr/bin/env python3
"""Plays a trace of `--route-trace FILE` again: how many of the experts that were wanted are found in caches of other
sizes, by the engine's rule (least recently used gives way; least often used, of other layers, where less fits than a
step uses in all layers), and by the best rule there can be, which knows the future (Belady's). tools/replay_routes.py
FILE [--share 0.05,0.1,…]

The first line is the cache of the engine that wrote the trace. It must have the engine's own counters: else the exit
code is 1.
"""

import argparse
import collections
import heapq
import sys


def read(path):
    head, events, counters = None, [], None
    with open(path) as file:
        for line in file:
            words = line.split()
            if words[0] == "apus-routes":
                slots, cycle = int(words[3]), int(words[5])
                first, counts = [], [int(word) for word in words[7:]]
                for _count in counts:
                    first.append(sum(counts[: len(first)]))
                head = slots, sum(counts), len(counts)
            elif words[0] == "cycle":
                cycle = int(words[1])
            elif words[0] == "hits":
                counters = tuple(int(word) for word in words[1::2])
            else:
                hint = words[0] == "hint"
                layer, *experts = map(int, words[hint:])
                events.append((hint, first[layer], counts[layer], [first[layer] + e for e in experts], cycle))
    if not head:
        sys.exit(f"{path} is no trace of experts")
    return head, events, counters


USE, AGE_STEPS = 256, 32  # as in src/weights/expert_cache_steps.c


def replay_lru(events, slots, layers, hints=True):
    """hits, misses, evictions"""
    kept = collections.OrderedDict()  # oldest first
    uses = collections.Counter()
    hits = misses = evictions = wants = 0
    for hint, here, count, experts, cycle in events:
        if hint and not hints:
            continue
        if not hint:
            wants += 1
            if wants % (AGE_STEPS * layers) == 0:
                uses = collections.Counter({e: n // 2 for e, n in uses.items()})
            uses.update({e: USE for e in experts})
        missing = [e for e in experts if e not in kept]
        for e in experts:
            if e in kept:
                kept.move_to_end(e)
        if not hint:
            hits += len(experts) - len(missing)
            misses += len(missing)
        for e in missing:
            if len(kept) == slots:
                victim = None
                if slots < cycle and not hint:
                    victim = min(
                        (k for k in reversed(kept) if not here <= k < here + count), key=uses.__getitem__, default=None
                    )  # the newest of several
                kept.pop(next(iter(kept)) if victim is None else victim)
                evictions += 1
            kept[e] = None
    return hits, misses, evictions


def replay_best(events, slots):
    """hits and misses when what is wanted latest gives way; what a step wants of a layer may give way to more of it."""
    wanted = [experts for hint, _, _, experts, _ in events if not hint]
    later, following = {}, [None] * len(wanted)
    for i in range(len(wanted) - 1, -1, -1):
        following[i] = [later.get(e, len(wanted)) for e in wanted[i]]
        later.update((e, i) for e in wanted[i])
    kept, heap, hits, misses = {}, [], 0, 0
    for experts, next_uses in zip(wanted, following):
        present = [e in kept for e in experts]
        hits += sum(present)
        misses += len(experts) - sum(present)
        for e, there, use in zip(experts, present, next_uses):
            while not there and len(kept) >= slots:
                latest, victim = heapq.heappop(heap)
                if kept.get(victim) == -latest:
                    del kept[victim]
            kept[e] = use
            heapq.heappush(heap, (-use, e))
    return hits, misses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--share", default="0.05,0.1,0.15,0.2,0.3,0.5,1", help="of all experts that fit")
    options = parser.parse_args()
    (slots, experts, layers), events, counters = read(options.trace)
    own = replay_lru(events, slots, layers)
    print(f"{slots} of {experts} experts, as traced: {own[0]} hits, {own[1]} misses, {own[2]} evictions")
    if counters and own != counters:
        print(f"the engine counted {counters[0]} hits, {counters[1]} misses, {counters[2]} evictions")
        return 1
    print("   kept       hits   with the future known")
    for share in map(float, options.share.split(",")):
        room = max(int(experts * share), max((len(e[3]) for e in events), default=1))
        hits, misses, _ = replay_lru(events, room, layers, hints=False)
        best, _ = replay_best(events, room)
        total = max(hits + misses, 1)
        print(f"{room:6d} {room / experts:4.0%}   {hits / total:6.1%}   {best / total:6.1%}")
    return 0


sys.exit(main())
