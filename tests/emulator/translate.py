#!/usr/bin/env python3
"""Makes C++ for the processor of a CUDA source file, line by line the same (emulator.h says what for).

  tests/emulator/translate.py FILE OUT

  asm("opcode operands;" : "+f"(d) : "r"(a))   becomes   ptx::opcode(d, a);
  __shared__ float sums[2][N];                 becomes   auto &sums = emulator::shared<float[2][N]>(number, 1);
  extern __shared__ uint8_t memory[];          becomes   uint8_t *const memory = emulator::shared_rest<uint8_t>(1);
  __global__ void kernel(…) {                  becomes   … { emulator::enter(name, its __launch_bounds__);

An instruction that ptx.h does not know is therefore an error of the C++ compiler, which names it and its line.
"""

import re
import sys
import zlib

# What an opcode says about caches, and about order and scope, which an emulator without concurrency always has.
IGNORED = re.compile(
    r"\.(L1::no_allocate|L1::evict_\w+|L2::cache_hint|L2::evict_\w+|L2::\d+B|nc|weak|volatile)(?=\.|$)"
    r"|(?<=shared)::cta(?=\.|$)|\.(acquire|release|relaxed|acq_rel)(\.(cta|cluster|gpu|sys))?(?=\.|$)"
)


def skip_literal(text, at):
    """Behind the string, character or comment that begins at `at`; `at` where none does."""
    if text.startswith("//", at):
        end = text.find("\n", at)
        return len(text) if end < 0 else end
    if text.startswith("/*", at):
        return text.index("*/", at) + 2
    if text[at] in "\"'":
        end = at + 1
        while text[end] != text[at]:
            end += 2 if text[end] == "\\" else 1
        return end + 1
    return at


def close_of(text, at):
    """Where the bracket at `at` is closed."""
    depth = 0
    while True:
        behind = skip_literal(text, at)
        if behind != at:
            at = behind
            continue
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def split(text, separator):
    """At separators outside of brackets and strings."""
    parts, start, at = [], 0, 0
    while at < len(text):
        behind = skip_literal(text, at)
        if behind != at:
            at = behind
        elif text[at] in "([{":
            at = close_of(text, at) + 1
        elif text[at] == separator and not (separator == "<" and text[at - 1] == "-"):
            parts.append(text[start:at])
            start = at = at + 1
        else:
            at += 1
    return parts + [text[start:]]


def sections_of(body):
    """An asm statement's parts between colons; those of `a::b` and of `x ? y : z` are inside of brackets."""
    return [part.strip() for part in split(body, ":")]


def operand_of(text):
    constraint, expression = re.match(r'(?s)"([^"]*)"\s*\((.*)\)\s*$', text.strip()).groups()
    return constraint, " ".join(expression.split())


class Statement:
    """One asm statement as C++."""

    def __init__(self, body, number, where):
        sections = sections_of(body)
        self.text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0])).encode().decode("unicode_escape")
        self.operands, self.outputs, self.number, self.where = [], 0, number, where
        for index, section in enumerate(sections[1:3]):
            for operand in split(section, ","):
                if operand.strip():
                    self.operands.append(operand_of(operand))
                    self.outputs += index == 0

    def value(self, index):
        constraint, expression = self.operands[index]
        if index < self.outputs:
            return f"({expression})"
        kind = constraint[-1]
        return {
            "r": f"ptx::word({expression})",
            "l": f"ptx::address({expression})",
            "f": f"(float)({expression})",
            "h": f"(uint16_t)({expression})",
            "d": f"(double)({expression})",
            "n": f"({expression})",
        }[kind]

    def name(self, token):
        """What is no operand of the statement: a register of its own, a special one, a number."""
        special = re.fullmatch(r"%%?([a-z_.]+)", token)
        if special:
            return f"ptx::special_{special.group(1).replace('.', '_')}()"
        return token if re.match(r"[0-9\-]", token) else f"{token}_{self.number}"

    def operand(self, text):
        text = text.strip()
        if text.startswith("{"):
            tokens = [token.strip() for token in text[1:-1].split(",")]
            numbers = [int(token[1:]) for token in tokens if re.fullmatch(r"%\d+", token)]
            out = numbers and max(numbers) < self.outputs
            return f"ptx::{'outs' if out else 'ins'}({', '.join(self.operand(token) for token in tokens)})"
        if text.startswith("["):
            return re.sub(r"%(\d+)", lambda match: self.value(int(match.group(1))), text[1:-1])
        if re.fullmatch(r"%\d+", text):
            return self.value(int(text[1:]))
        return self.name(text)

    def instruction(self, text):
        guard = re.match(r"@(!?)(\w+)\s+", text)
        if guard:
            return f"if ({guard.group(1)}{self.name(guard.group(2))}) {self.instruction(text[guard.end() :])}"
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text).groups()
            kinds = {
                "pred": "bool",
                "b32": "uint32_t",
                "u32": "uint32_t",
                "s32": "int32_t",
                "f32": "float",
                "b64": "uint64_t",
                "u64": "uint64_t",
                "b16": "uint16_t",
                "f16": "uint16_t",
            }
            return " ".join(f"{kinds[kind]} {self.name(name.strip())} = 0;" for name in names.split(","))
        label = re.match(r"(\w+):(?!:)\s*", text)
        if label:
            return f"{self.name(label.group(1))}: {self.instruction(text[label.end() :])}"
        opcode, _, rest = text.partition(" ")
        if opcode == "bra":
            return f"goto {self.name(rest.strip())};"
        spins = opcode.startswith("ld.") and re.search(r"\.(acquire|relaxed|volatile)\b", opcode)
        opcode = re.sub(r"[.:]+", "_", IGNORED.sub("", opcode))
        operands = [self.operand(part) for part in split(rest, ",") if part.strip() and part.strip() != "_"]
        return f"{'emulator::give_way(); ' if spins else ''}ptx::{opcode}({', '.join(operands)});"

    def code(self):
        text = re.sub(r"\s+", " ", self.text).strip()
        if text.startswith("{"):
            text = text[1 : close_of(text, 0)]
        instructions = [self.instruction(part.strip()) for part in text.split(";") if part.strip()]
        if not instructions:
            return "{}"
        return f'{{ emulator::self->where = "{self.where}"; {" ".join(instructions)} }}'


SHARED = re.compile(r"(\bextern\s+)?\b__shared__\s+(?:__align__\((\d+)\)\s*)?([^;{}()]+);")
ASM = re.compile(r"\basm\b\s*(?:volatile\s*)?(?=\()")
GLOBAL = re.compile(r"\b__global__\b")


def shared(match, number):
    """Declarations of shared memory. number: the same for all threads of a block."""
    is_rest, align, text = match.group(1), match.group(2) or "1", " ".join(match.group(3).split())
    first, *others = split(text, ",")
    kind, name, sizes = re.fullmatch(r"(.*?)\s*\b(\w+)\s*((?:\[[^\]]*\]\s*)*)", first).groups()
    if is_rest:
        return f"{kind} *const {name} = emulator::shared_rest<{kind}>({align});"
    made = []
    for index, declarator in enumerate([f"{name}{sizes}", *others]):
        name, sizes = re.fullmatch(r"\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)", declarator).groups()
        made.append(f"auto &{name} = emulator::shared<{kind}{sizes}>({number + index}u, {align});")
    return " ".join(made)


def entry(text, at):
    """Where the body of the kernel begins whose `__global__` ends at `at`, and its launch bounds; None for
    declarations.
    """
    bounds, end = "1024", at
    while True:
        end = text.index("(", end)
        word = re.search(r"(\w+)\s*$", text[:end]).group(1)
        close = close_of(text, end)
        if word not in ("__launch_bounds__", "__maxnreg__"):
            break
        if word == "__launch_bounds__":
            bounds = split(text[end + 1 : close], ",")[0].strip()
        end = close + 1
    body = re.match(r"\s*\{", text[close + 1 :])
    return (close + 1 + body.end(), bounds) if body else None


def translate(text, path):
    name = path.rsplit("/", 1)[-1]
    number = zlib.crc32(name.encode()) & 0xFFFFF000
    made, at = [f'#line 1 "{path}"\n'], 0
    entries = dict(filter(None, (entry(text, match.end()) for match in GLOBAL.finditer(text))))
    while at < len(text):
        if at in entries:
            made.append(f" emulator::enter(__PRETTY_FUNCTION__, {entries.pop(at)}); ")
        behind = skip_literal(text, at)
        if behind != at:
            made.append(text[at:behind])
            at = behind
            continue
        at_word = at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_")
        match = at_word and (SHARED.match(text, at) or ASM.match(text, at))
        if not match and at_word and text.startswith("__shared__", at):
            line = text.count(chr(10), 0, at) + 1
            raise SyntaxError(f"{path}:{line}: a declaration of shared memory that is not understood")
        if not match:
            made.append(text[at])
            at += 1
            continue
        end = match.end()
        number += 16
        if match.re is ASM:
            close = close_of(text, end)
            where = f"{name}:{text.count(chr(10), 0, at) + 1}"
            code = Statement(text[end + 1 : close], number, where).code()
            end = close + 1 + len(re.match(r"\s*;", text[close + 1 :]).group())
        else:
            code = shared(match, number)
        made.append(code + "\n" * text.count("\n", at, end))
        at = end
    return "".join(made)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        result = translate(file.read(), sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(result)
