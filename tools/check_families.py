#!/usr/bin/env python3
"""Families stay data: the median file that defines one (const Family …_family) has at most 60 lines and none over 150,
and no code of src/model has the name of a family, except in its loader, which knows formats by the models they are of.

tools/check_families.py          prints the figures; exit code 1 where one is too large
tools/check_families.py --all    the lines of each file, too
"""

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEDIAN_MAX, LINES_MAX = 60, 150
# Names of families that are words of src/model as well.
WORDS = {"mamba", "recurrent", "step"}


def code_of(path):
    """The text less comments and strings."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', "", text, flags=re.S)


def family_names():
    """First parts of the model_types, without numbers: qwen of qwen3_next."""
    types = re.findall(r'row\("([^"]+)"', (ROOT / "src/family/registry.c").read_text(encoding="utf-8"))
    return {re.match(r"[a-z]+", name.lower()).group() for name in types} - WORDS


def named(names):
    """Identifiers of src/model with the name of a family in them."""
    for path in sorted((ROOT / "src/model").rglob("*.[ch]")):
        if path.parent.name == "loader":
            continue
        for word in set(re.findall(r"[A-Za-z_]\w*", code_of(path))):
            parts = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", word).lower())
            if names & set(parts):
                yield f"{path.relative_to(ROOT)}: {word}"


def main():
    lines = {}
    for path in sorted((ROOT / "src/family").glob("*.c")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^const Family \w+_family = ", text, re.M):
            lines[path.name] = text.count("\n")
    if "--all" in sys.argv:
        for name, count in sorted(lines.items(), key=lambda item: item[1]):
            print(f"{count:5}  {name}")
    median = statistics.median(lines.values())
    longest = max(lines, key=lines.get)
    print(f"families: {len(lines)} files, median {median:g} lines (at most {MEDIAN_MAX}), ", end="")
    print(f"{longest} has {lines[longest]} (at most {LINES_MAX})")
    faults = [f"{name} has {count} lines" for name, count in lines.items() if count > LINES_MAX]
    faults += list(named(family_names()))
    for fault in faults:
        print(fault)
    sys.exit(median > MEDIAN_MAX or len(faults) > 0)


main()
