#!/usr/bin/env python3
"""Records which draft tokens of real answers are right, for `apus bench drafts`:

    bench/record_acceptance.py ANSWERS DRAFT_MODEL [--answers N] > bench/acceptance.csv

ANSWERS: a line per answer, kind, tokens of the prompt, tokens of the answer, and the ids of both. Lines of the output:
source,kind,answer,pattern. Source model: for each token of the answer 1 where it is the draft model's likeliest behind
the tokens before it. Source lookup: match:right, the length of the longest match (64 at most) and how many of the
tokens that followed it are right (31 at most), or - where there is no match; the same rule as src/engine/lookup.c.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

APUS = os.environ.get("APUS_BINARY", os.path.join(os.path.dirname(__file__), "..", "build", "apus"))
MATCH_MAX, RIGHT_MAX, CANDIDATES_MAX = 64, 31, 32


def match_length(text, a, b):
    length = 0
    while length < MATCH_MAX and a - length >= 0 and text[a - length] == text[b - length]:
        length += 1
    return length


def longest_match(text):
    """Length and last place of the longest match with the end of the text, the latest of several."""
    last = len(text) - 1
    best, at = 0, -1
    pairs = [p for p in range(last - 1, 0, -1) if text[p] == text[last] and text[p - 1] == text[last - 1]]
    for place in pairs[:CANDIDATES_MAX]:
        length = match_length(text, place, last)
        if length > best:
            best, at = length, place
    if at < 0:
        at = next((p for p in range(last - 1, -1, -1) if text[p] == text[last]), -1)
        best = match_length(text, at, last) if at >= 0 else 0
    return best, at


def lookups(prompt, answer):
    items = ["-"]
    for i in range(1, len(answer)):
        text = prompt + answer[:i]
        length, at = longest_match(text)
        if not length:
            items.append("-")
            continue
        follow, right = list(text), 0
        while right < RIGHT_MAX and i + right < len(answer) and follow[at + 1 + right] == answer[i + right]:
            follow.append(answer[i + right])
            right += 1
        items.append(f"{length}:{right}")
    return items


def agreement(model, prompt, answer):
    ids = prompt + answer
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = os.path.join(folder, "ids"), os.path.join(folder, "logits.npy")
        with open(tokens, "w") as file:
            file.write(",".join(map(str, ids)))
        subprocess.run([APUS, "debug", "logits", model, "--tokens", "@" + tokens, "-o", out], check=True)
        likeliest = np.load(out, mmap_mode="r")[len(prompt) - 1 : len(ids) - 1].argmax(-1)
    return ["01"[int(a == b)] for a, b in zip(likeliest, answer, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("model")
    parser.add_argument("--answers", type=int, default=3, help="of each kind")
    options = parser.parse_args()
    seen, rows = {}, []
    with open(options.file) as file:
        for line in file:
            kind, prompt_count, count, *ids = line.split()
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > options.answers:
                continue
            ids = list(map(int, ids))
            prompt, answer = ids[: int(prompt_count)], ids[int(prompt_count) :][: int(count)]
            rows.append(("lookup", kind, seen[kind], " ".join(lookups(prompt, answer))))
            rows.append(("model", kind, seen[kind], " ".join(agreement(options.model, prompt, answer))))
            print(f"{kind} {seen[kind]}: {rows[-1][3].count('1')} of {len(answer)}", file=sys.stderr, flush=True)
    print("source,kind,answer,pattern")
    for row in sorted(rows):
        print(*row, sep=",")


main()
