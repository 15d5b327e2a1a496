#!/usr/bin/env python3
"""What the documents name is there: links and their anchors, files, families, metrics, options. Prints each fault.

tools/check_docs.py [build/apus]
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")])
# Options in documents that are of other programs.
FOREIGN = {
    "--build",
    "--test-dir",
    "--help",
    "--target",
    "--kv-cache-usage-percentage-metric",
    "--info",
    "--vision",
    "--audio",
    "--cors",
    "--draft-model",
    "--num-draft-tokens",
    "--dflash",
    "--dflash-block-size",
    "--calibrate",
    "--now",
    "--enable",
}
faults = []


def read(path):
    return path.read_text(encoding="utf-8")


def code_of(folder, *endings):
    return "".join(read(path) for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings)


def anchors(path):
    titles = re.findall(r"^#+ (.*)$", read(path), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def check_links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            faults.append(f"{path.relative_to(ROOT)}: {target} does not exist")
        elif anchor and anchor not in anchors(file):
            faults.append(f"{path.relative_to(ROOT)}: {target} has no such section")


def check_paths(path, text):
    for name in re.findall(r"`((?:src|tests|docs|bench|tools|packaging)/[\w./*-]*)", text):
        if re.search(r"LAYER|NAME", name):  # stands for many
            continue
        if not (list(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()):
            faults.append(f"{path.relative_to(ROOT)}: {name} does not exist")


def check_glossary():
    path = ROOT / "docs/glossary.md"
    rows = [row for row in read(path).split("\n") if row.startswith("| ")][1:]
    names = [row.split(" | ")[0][2:] for row in rows]
    if names != sorted(names, key=str.casefold):
        faults.append("docs/glossary.md: the terms are not in alphabetical order")
    for row in rows:
        for name in row.rstrip(" |").split(" | ")[-1].split(", "):
            if not (ROOT / "src" / name).exists():
                faults.append(f"docs/glossary.md: src/{name} does not exist")


def check_families():
    registered = set(re.findall(r'row\("(\w+)"', read(ROOT / "src/family/registry.c")))
    table = read(ROOT / "README.md").split("## Models")[1].split("##")[0]
    rows = [row.split("|")[2] for row in table.split("\n") if row.startswith("|")]
    shown = set(re.findall(r"`(\w+)`", " ".join(rows[2:])))
    for name in sorted(registered ^ shown):
        faults.append(f"README.md and src/family/registry.c: only one of them has {name}")


def check_metrics(text):
    code = read(ROOT / "src/server/admin/metrics.c")
    made = set(re.findall(r'"(apus_[a-z0-9_]+|process_[a-z_]+(?=")|vllm:[a-z_]+)', code))
    shown = set(re.findall(r"\b(apus_[a-z0-9_]+|vllm:[a-z_]+)", text)) - {"apus_plugin", "apus_calibration"}
    for name in sorted(made):
        if name not in text:
            faults.append(f"docs: no document has the metric {name}")
    for name in sorted(shown - made - {"vllm:gpu_cache_usage_perc"}):
        faults.append(f"docs: src/server/admin/metrics.c has no metric {name}")


def check_options(text):
    known = set(re.findall(r"--[a-z][a-z-]+", code_of("src/cli", ".c", ".h")))
    known |= set(re.findall(r"--[a-z][a-z-]+", code_of("bench", ".py", ".sh") + code_of("tools", ".py", ".sh")))
    known |= set(re.findall(r"--[a-z][a-z-]+", code_of("tests/server", ".py") + read(ROOT / "run.sh")))
    for name in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text)) - known - FOREIGN):
        faults.append(f"docs: no program has the option {name}")


def check_commands(text, apus):
    """Options of a command line that begins with apus, in code or in a CSV's command, are that command's."""
    names = {}
    for line in re.findall(r"`(?:build/)?(apus [^`]*)`|^ *(?:build/)?(apus [^#`\n]*)", text, re.M):
        line = line[0] or line[1]
        match = re.match(
            r"apus (serve|run|chat|info|bench (?:drafts|matrix)|bench|convert|pull|search|list|rm|doctor) ", line
        )
        if not match:
            continue
        command = match.group(1)
        if command not in names:
            printed = subprocess.run(
                [apus, *command.split(), "--help=names"], check=True, capture_output=True, text=True
            )
            names[command] = set(printed.stdout.split())
        for option in re.findall(r"(?<=[ \[])--[a-z][a-z-]*", line):
            if option not in names[command]:
                faults.append(f"docs: apus {command} has no {option}: {line}")


def check_names():
    """Functions, types and fields that the documents of the code name are in it."""
    identifiers = set(re.findall(r"\b[A-Za-z]\w+", code_of("src", ".c", ".h", ".cu", ".cuh")))
    for path in [ROOT / "ARCHITECTURE.md", ROOT / "docs/glossary.md", *sorted((ROOT / "docs/design").glob("*.md"))]:
        for name, more in re.findall(r"`([a-z]+_[a-z_]+|[A-Z][a-z]+[A-Za-z]*)(\*?)`", read(path)):
            found = any(word.startswith(name) for word in identifiers) if more else name in identifiers
            if not found:
                faults.append(f"{path.relative_to(ROOT)}: src has no {name}{more}")


def check_sizes():
    if (ROOT / "ARCHITECTURE.md").stat().st_size > 10000:
        faults.append("ARCHITECTURE.md: more than 10,000 bytes")
    if read(ROOT / "CHANGELOG.md").count("\n") > 30:
        faults.append("CHANGELOG.md: more than 30 lines for its first version")


def main():
    texts = {path: read(path) for path in DOCUMENTS}
    for path, text in texts.items():
        check_links(path, text)
        check_paths(path, text)
    check_glossary()
    check_families()
    everything = "\n".join(texts.values())
    check_metrics(everything)
    check_options(everything)
    check_names()
    check_sizes()
    apus = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/apus"
    if apus.exists():
        check_commands(everything, apus)
    else:
        print(f"docs: options of each command are not checked, as {apus} is not built")
    print("\n".join(faults) if faults else f"docs: {len(texts)} documents name what is there")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
