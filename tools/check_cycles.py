#!/usr/bin/env python3
"""Shows whether the files of a folder form a circle: A uses B when A.c uses a function or an object that B.c defines.

    tools/check_cycles.py [ROOT]

It reads the sources, so it needs no build: definitions begin at the left margin, as clang-format leaves them. What a
macro or an inline function of a header uses counts for the files that use it. Types and includes do not count. Exit
code 1 when a folder has a circle, or when one of PENDING has none any more.
"""

import pathlib
import re
import sys

# Folders whose circles are known. To be emptied: a folder that is clean leaves this list.
PENDING = set()

COMMENT = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.S)
NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
NOT_DEFINED = ("static", "typedef", "extern", "struct", "enum", "union", "#", "}", " ", "\t")


def without_comments(text):
    return COMMENT.sub(lambda match: " " + "\n" * match.group().count("\n"), text)


def names(text):
    return set(NAME.findall(text))


def definitions(text):
    """The functions and objects that a source file defines for others."""
    found = set()
    for statement in re.split(r"\n(?=[A-Za-z_])", "\n" + text):
        statement = statement.lstrip("\n")
        head = re.split(r"[{=;]", statement, maxsplit=1)[0]
        returns_struct = re.match(r"(?:const )?(?:struct|enum|union) \w+ [\w *]*\w\(", statement)
        if not statement or (statement.startswith(NOT_DEFINED) and not returns_struct):
            continue
        function = re.match(r"[\w \t\n*]*?\b(\w+)\s*\(", head)
        if function:
            if statement[len(head) :].startswith("{"):
                found.add(function.group(1))
        else:
            value = re.match(r"[\w \t\n*]*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*$", head)
            if value and len(head.split()) > 1:
                found.add(value.group(1))
    return found


def shortcuts(text):
    """Macros and inline functions of a header: what each name stands for."""
    found = {}
    joined = text.replace("\\\n", " ")
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", joined, re.M):
        found.setdefault(match.group(1), set()).update(names(match.group(2)))
    for match in re.finditer(r"^static inline [^\n;]*?\b(\w+)\(.*?(?:\n}|}\n|}$)", joined, re.M | re.S):
        found.setdefault(match.group(1), set()).update(names(match.group()))
    return found


def expand(used, known):
    todo = list(used)
    while todo:
        for name in known.get(todo.pop(), ()):
            if name not in used:
                used.add(name)
                todo.append(name)
    return used


def circles(edges):
    """The strongly connected components of more than one file (Tarjan)."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                result.append(component)

    for node in edges:
        if node not in index:
            visit(node)
    return result


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1])
    texts = {path: without_comments(path.read_text()) for path in sorted((root / "src").rglob("*.[ch]"))}
    known = {}
    for path, text in texts.items():
        if path.suffix == ".h":
            for name, body in shortcuts(text).items():
                known.setdefault(name, set()).update(body)
    broken = files = 0
    folders = sorted({path.parent for path in texts})
    for folder in folders:
        sources = [path for path in texts if path.parent == folder and path.suffix == ".c"]
        files += len(sources)
        owner = {}
        for path in sources:
            for name in definitions(texts[path]):
                owner.setdefault(name, []).append(path.name)
        edges = {path.name: {} for path in sources}
        for path in sources:
            for name in expand(names(texts[path]), known):
                for other in owner.get(name, ()):
                    if other != path.name and path.name not in owner[name]:
                        edges[path.name].setdefault(other, []).append(name)
        found = circles(edges)
        name = str(folder.relative_to(root))
        if bool(found) == (name in PENDING):
            for component in found:
                print(f"{name}: {len(component)} files in a circle, not yet undone: {' '.join(sorted(component))}")
            continue
        broken = 1
        if not found:
            print(f"{name}: has no circle any more: take it out of PENDING in tools/check_cycles.py")
        for component in found:
            print(f"{name}: {len(component)} files in a circle:")
            for file in sorted(component):
                for other in sorted(set(edges[file]) & set(component)):
                    used = sorted(edges[file][other])
                    print(f"  {file} uses of {other}: {', '.join(used[:4])}{' …' if len(used) > 4 else ''}")
    if not broken:
        print(f"circles: none in {len(folders) - len(PENDING)} of {len(folders)} folders, {files} source files")
    return broken


if __name__ == "__main__":
    sys.exit(main())
