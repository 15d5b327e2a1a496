#!/usr/bin/env python3
"""Decode speed with draft tokens beside decoding without, by kind of answer:

    bench/speculation.py MODEL [--kinds edit,json,…] [--answers N] [--tokens N] [--temperature T] [--streams N]
                         [--rounds N] [--cpu ISA] [--device NAME] [--draft-model MODEL] [--mtp] [--prediction]
                         [--csv FILE]

Two servers answer the same requests in turn; the answers must be equal. A row per kind: the median of the ratios of
decode times (timings.predicted_ms) over the answers and rounds, and the least answer's median over its rounds, tokens
per second without and with draft tokens (medians), draft tokens and those accepted. With --streams N, N answers at a
time: the ratios are those of the time that all of them take, and tokens per second those of all together.
--prediction sends the text to edit as `prediction` as well. MODEL: a name of tools/fetch_models.py, or a path.
"""

import argparse
import concurrent.futures
import csv
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
import apus_server  # noqa: E402

FIELDS = ["model", "cpu", "kind", "temperature", "streams", "answers", "tokens", "without_tok_s", "with_tok_s"]
FIELDS += ["speedup", "least", "drafted", "accepted", "commit", "command"]
COLUMNS = {"kind": "kind", "answers": "answers", "tokens": "tokens", "without_tok_s": "tok/s", "with_tok_s": "drafts"}
COLUMNS |= {"speedup": "median", "least": "least", "drafted": "drafted", "accepted": "accepted"}

CODE = '''import math


class {name}:
    """Statistics of a series of numbers."""

    def __init__(self, values):
        if not values:
            raise ValueError("an empty series")
        self.values = list(values)

    def mean(self):
        return sum(self.values) / len(self.values)

    def variance(self):
        center = self.mean()
        return sum((value - center) ** 2 for value in self.values) / len(self.values)

    def deviation(self):
        return math.sqrt(self.variance())

    def normalised(self):
        center, spread = self.mean(), self.deviation()
        return [(value - center) / spread for value in self.values]

    def report(self):
        print("mean:", self.mean())
        print("variance:", self.variance())
        print("deviation:", self.deviation())
'''
TEXT = (
    "The common swift spends most of its life in the air. It eats, drinks, mates and even sleeps on the wing, and "
    "comes down only to breed. Swifts winter in Africa south of the Sahara and reach northern Europe in May, where "
    "they nest under roofs and in holes of old walls. A pair raises two or three young in about six weeks. When it is "
    "cold and wet there are few insects, and the young can fall into a torpor for days until their parents return "
    "from areas with better weather, which may be hundreds of kilometres away. Renovated buildings have fewer holes, "
    "so numbers have fallen in many towns; nest boxes and special bricks are used to help them."
)
PEOPLE = "Ada Lovelace, born 1815 in London, mathematician; Alan Turing, born 1912 in London, logician; " + (
    "Grace Hopper, born 1906 in New York, admiral; Donald Knuth, born 1938 in Milwaukee, professor; "
    "Barbara Liskov, born 1939 in Los Angeles, professor; Edsger Dijkstra, born 1930 in Rotterdam, physicist"
)
EDITS = [
    "Rename the method mean to average.",
    "Rename the class to Sample.",
    "Add the method minimum, which returns the smallest value.",
    "Make variance divide by len(self.values) - 1.",
    "Give every method a docstring of one line.",
]


def prompts():
    """kind → five (prompt, prediction)."""
    code = CODE.format(name="Series")
    edit = [f"{change} Print the whole file again and nothing else.\n\n```python\n{code}```" for change in EDITS]
    fields = ["name, year, city, profession", "person, born", "name, city", "id, name, year", "name, profession, age"]
    topics = ["a binary search", "an LRU cache", "a CSV parser", "Dijkstra's algorithm", "a rate limiter"]
    questions = ["Why is the sky blue?", "How does a refrigerator work?", "Tell a story about a lighthouse.",
                 "What should I see in Lisbon in three days?", "Explain inflation to a child."]  # fmt: skip
    tasks = ["Summarise in four sentences", "Name the dangers for the birds in", "List the facts with numbers of",
             "Ask five questions, each answered by a quotation, about", "Shorten to half its length"]  # fmt: skip
    languages = ["German", "French", "Spanish", "Italian", "Portuguese"]
    return {
        "edit": [(text, code) for text in edit],
        "json": [(f"Give a JSON array of objects with {f}, one for each person: {PEOPLE}", None) for f in fields],
        "summary": [(f"{task} this text: {TEXT}", None) for task in tasks],
        "code": [(f"Write {topic} in Python, with tests.", None) for topic in topics],
        "chat": [(question, None) for question in questions],
        "translation": [(f"Translate into {language}: {TEXT}", None) for language in languages],
    }


def ask(server, prompt, prediction, options, seed):
    body = {
        "model": server.name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": options.tokens,
        "temperature": options.temperature,
        "seed": seed,
    }
    if prediction and options.prediction:
        body["prediction"] = {"type": "content", "content": prediction}
    status, _, answer = server.request("POST", "/v1/chat/completions", body, timeout=600)
    if status != 200:
        raise RuntimeError(answer)
    answer = json.loads(answer)
    return answer["choices"][0]["message"]["content"], answer["timings"]


def as_many(pairs, count):
    """At least so many, of which no two are equal."""
    rounds = range(-(-count // len(pairs)))
    more = [(f"{prompt}\n\n(Version {n + 1}.)" if n else prompt, text) for n in rounds for prompt, text in pairs]
    return more[: max(count, len(pairs))]


def ask_all(server, group, options, seed):
    """Texts and timings of the answers, and the seconds that all of them took."""
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(group)) as pool:
        jobs = [pool.submit(ask, server, *pair, options, seed + i) for i, pair in enumerate(group)]
        answers = [job.result() for job in jobs]
    return answers, time.perf_counter() - began


def measure(servers, kind, pairs, options):
    """Each answer from both servers, in turn; with several streams all answers of a server at once."""
    ratios, speeds, drafted, accepted, tokens = {}, ([], []), 0, 0, 0
    groups = [pairs[start : start + options.streams] for start in range(0, len(pairs), options.streams)]
    for turn, (number, group) in enumerate(enumerate(groups * options.rounds)):
        seed = number % len(groups) * options.streams
        results = [None, None]
        for side in (0, 1) if turn % 2 else (1, 0):
            results[side] = ask_all(servers[side], group, options, seed)
        (without, plain_s), (with_drafts, fast_s) = results
        for (text, _), (same, _) in zip(without, with_drafts, strict=True):
            if text != same:
                raise RuntimeError(f"{kind}: the answers differ:\n{text}\n---\n{same}")
        if options.streams == 1:
            plain_s, fast_s = (side[0][1]["predicted_ms"] / 1000 for side in (without, with_drafts))
        count = sum(timings["predicted_n"] for _, timings in with_drafts)
        ratios.setdefault(number % len(groups), []).append(plain_s / fast_s)
        speeds[0].append(count / plain_s)
        speeds[1].append(count / fast_s)
        drafted += sum(timings["draft_n"] for _, timings in with_drafts)
        accepted += sum(timings["draft_n_accepted"] for _, timings in with_drafts)
        tokens += count
    return {
        "kind": kind,
        "answers": len(pairs) * options.rounds,
        "tokens": tokens,
        "without_tok_s": f"{statistics.median(speeds[0]):.2f}",
        "with_tok_s": f"{statistics.median(speeds[1]):.2f}",
        "speedup": f"{statistics.median(ratio for group in ratios.values() for ratio in group):.3f}",
        "least": f"{min(statistics.median(group) for group in ratios.values()):.3f}",
        "drafted": drafted,
        "accepted": accepted,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kinds", default="edit,json,summary,code,chat,translation")
    parser.add_argument("--answers", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cpu", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draft-model")
    parser.add_argument("--mtp", action="store_true")
    parser.add_argument("--prediction", action="store_true")
    parser.add_argument("--csv")
    options = parser.parse_args()
    model = options.model if os.path.exists(options.model) else apus_server.model_path(options.model)
    common = ["--cpu", options.cpu, "--device", options.device, "--ctx-size", 4096, "--slots", options.streams]
    common += ["--no-prefix-cache"]
    drafts = ["--draft-model", options.draft_model] if options.draft_model else []
    drafts += ["--mtp"] if options.mtp else []
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    rows = []
    with (
        apus_server.Server(model, *common, "--no-lookup") as plain,
        apus_server.Server(model, *common, *drafts) as fast,
    ):
        ask(plain, "Hello", None, options, 0)
        ask(fast, "Hello", None, options, 0)
        print(" ".join(f"{title:>12}" for title in COLUMNS.values()), flush=True)
        for kind in options.kinds.split(","):
            pairs = as_many(prompts()[kind][: options.answers], options.streams)
            row = measure([plain, fast], kind, pairs, options)
            row |= {"model": options.model, "cpu": options.cpu if options.device == "cpu" else options.device}
            row |= {"temperature": options.temperature, "streams": options.streams}
            row |= {"commit": commit.strip(), "command": " ".join(sys.argv)}
            rows.append(row)
            print(" ".join(f"{row[column]:>12}" for column in COLUMNS), flush=True)
    if options.csv:
        new = not os.path.exists(options.csv)
        with open(options.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
