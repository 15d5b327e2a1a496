#!/usr/bin/env python3
"""Grammars against independent validators: what `apus debug grammar` accepts, and what it says at random, must be
valid.

    tests/text/check_grammar.py [--program 'build/apus debug'] [--tokenizer NAME] [--suite DIR] [--bench DIR] [--count
        N]

Without more: the schemas and rules of tests/text/data/grammar.json, each with texts that fit and texts that do not, and
random texts of every schema checked by jsonschema. --suite: a checkout of json-schema-org/JSON-Schema-Test-Suite
(tests/draft2020-12).
--bench: maskbench/data of guidance-ai/jsonschemabench, of which --count files are taken, evenly; prints verdicts and
times of masks, and those of llguidance where that is installed (--llguidance). Exit 77 when the library or the
tokenizer is missing.
"""

import argparse
import collections
import decimal
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "apus/tokenizers"
DATA = ROOT / "tests/text/data/grammar.json"
SHOWN = 10  # differences printed per kind
SAMPLES = 3  # random texts per schema
SAMPLE_TOKENS = 200


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import jsonschema
except ImportError:
    skip("jsonschema is not installed")


def ask(program, model, requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        [*program, "grammar", str(model)], input=text, capture_output=True, text=True, encoding="utf-8"
    )
    lines = done.stdout.split("\n")[:-1]
    if done.returncode or len(lines) != len(requests):
        sys.exit(f"{len(lines)} answers to {len(requests)} requests: exit {done.returncode}: {done.stderr[-500:]}")
    return [json.loads(line) for line in lines]


class Count:
    def __init__(self):
        self.right, self.wrong = collections.Counter(), collections.Counter()

    def check(self, kind, good, show):
        if good:
            self.right[kind] += 1
            return
        self.wrong[kind] += 1
        if self.wrong[kind] <= SHOWN:
            print(f"{kind}: {show()}"[:1000])


def ordered(value, schema, root, depth=0):
    """The value with its properties in the order of the schema, as far as that is easily found."""
    if not isinstance(schema, dict) or depth > 50:
        return value
    for _ in range(10):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        target = root
        try:
            for part in reference[1:].split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                target = target[int(part)] if isinstance(target, list) else target[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return value
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}} if isinstance(target, dict) else target
    if not isinstance(schema, dict):
        return value
    for part in schema.get("allOf") or []:
        if isinstance(part, dict):
            value = ordered(value, part, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        for part in schema.get(keyword) or []:
            if valid(
                value,
                {**part, "$defs": root.get("$defs", {}), "definitions": root.get("definitions", {})}
                if isinstance(part, dict)
                else part,
            ):
                value = ordered(value, part, root, depth + 1)
                break
    if isinstance(value, dict) and (schema.get("properties") or schema.get("required")):
        properties = schema.get("properties") or {}
        keys = [k for k in properties if k in value] + [
            k for k in schema.get("required") or [] if k in value and k not in properties
        ]
        keys += [k for k in value if k not in keys]
        return {
            k: ordered(value[k], properties.get(k, schema.get("additionalProperties")), root, depth + 1) for k in keys
        }
    if isinstance(value, dict):
        return {k: ordered(v, schema.get("additionalProperties"), root, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        prefix = schema.get("prefixItems") or []
        return [
            ordered(v, prefix[i] if i < len(prefix) else schema.get("items"), root, depth + 1)
            for i, v in enumerate(value)
        ]
    return value


def validator(schema):
    try:
        cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        return cls(schema, format_checker=cls.FORMAT_CHECKER)
    except Exception:
        return None


def exact(value):
    """The same with decimals in place of floats: 86.35 is a multiple of 0.05."""
    return json.loads(json.dumps(value), parse_float=decimal.Decimal)


def valid(value, schema):
    try:
        return validator(exact(schema)).is_valid(exact(value))
    except Exception:
        return None


def texts(value):
    yield json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, indent=2, ensure_ascii=False)


def check_samples(count, program, model, schemas):
    requests = [
        {"schema": schema, "sample": SAMPLE_TOKENS, "seed": seed, "compact": bool(seed % 2)}
        for schema in schemas
        for seed in range(SAMPLES)
    ]
    for request, answer in zip(requests, ask(program, model, requests)):
        if "unsupported" in answer:
            continue
        if "error" in answer:
            count.check("sample", False, lambda: f"{json.dumps(request)}: {answer}")
        if not answer.get("ended"):
            continue
        try:
            value = json.loads(answer["text"])
            good = valid(value, request["schema"])
        except ValueError as error:
            good, value = False, str(error)
        if good is not None:
            count.check("sample", good, lambda: f"{json.dumps(request['schema'])}: {answer['text']!r}")


def check_data(count, program, model):
    """All texts go to one process: reading the tokenizer takes as long as 20 of them."""
    data = json.loads(DATA.read_text())
    asked = []  # entry, its kind, a text, whether it fits
    for entry in data:
        kind = next(k for k in ("schema", "regex", "gbnf", "lark") if k in entry)
        if "unsupported" in entry:
            asked.append((entry, kind, "", None))
        else:
            asked += [(entry, kind, text, True) for text in entry.get("fits", [])]
            asked += [(entry, kind, text, False) for text in entry.get("breaks", [])]
    answers = ask(program, model, [{kind: entry[kind], "text": text} for entry, kind, text, _ in asked])
    for (entry, kind, text, want), answer in zip(asked, answers):
        if want is None:
            count.check("refused", entry["unsupported"] in answer.get("unsupported", ""), lambda: f"{entry}: {answer}")
            continue
        count.check("text", answer.get("accepted") is want, lambda: f"{entry[kind]!r}: {text!r}: {answer}")
        if kind == "schema" and want:
            count.check("own", valid(json.loads(text), entry[kind]), lambda: f"{entry[kind]!r}: {text!r} is not valid")
    check_samples(
        count, program, model, [entry["schema"] for entry in data if "schema" in entry and "unsupported" not in entry]
    )


def check_suite(count, program, model, directory):
    schemas, refused, total = [], collections.Counter(), 0
    requests, want = [], []
    for path in sorted(pathlib.Path(directory).glob("tests/draft2020-12/*.json")):
        for group in json.loads(path.read_text()):
            schemas.append(group["schema"])
            total += 1
            for test in group["tests"]:
                value = ordered(test["data"], group["schema"], group["schema"])
                for text in texts(value):
                    requests.append({"schema": group["schema"], "text": text})
                    want.append((path.name, group["description"], test["description"], test["valid"]))
    seen = set()
    for request, expected, answer in zip(requests, want, ask(program, model, requests)):
        if "unsupported" in answer or "error" in answer:
            key = json.dumps(request["schema"])
            if key not in seen:
                seen.add(key)
                refused[answer.get("unsupported", answer.get("error")).split("/")[-1][:60]] += 1
            continue
        if expected[3]:
            count.check("suite: valid accepted", answer["accepted"], lambda: f"{expected}: {request}: {answer}")
        else:
            count.check("suite: invalid refused", not answer["accepted"], lambda: f"{expected}: {request}: {answer}")
    print(f"suite: {total - len(seen)} of {total} schemas compiled; refused: {dict(refused.most_common(12))}")
    check_samples(count, program, model, schemas)


def quantiles(values):
    values = sorted(values)
    if not values:
        return "none"
    at = lambda q: values[min(len(values) - 1, int(q * len(values)))]  # noqa: E731
    return (
        f"{len(values)}: median {at(0.5):.1f} mean {sum(values) / len(values):.1f} p90 {at(0.9):.1f} p99 "
        f"{at(0.99):.1f} "
        f"p99.9 {at(0.999):.1f} max {values[-1]:.0f} µs"
    )


def check_bench(count, program, model, tokenizer, options):
    paths = sorted(pathlib.Path(options.bench).glob("*.json"))
    paths = paths[:: max(1, len(paths) // options.count)]
    entries = [json.loads(path.read_text()) for path in paths]
    requests, owner = [], []
    for index, entry in enumerate(entries):
        for test in entry["tests"] or [{"data": {}, "valid": None}]:
            value = ordered(test["data"], entry["schema"], entry["schema"])
            requests.append(
                {"schema": entry["schema"], "text": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}
            )
            owner.append((index, test["valid"], value))
    refused, masks, first, compiles, why, tokens = set(), [], [], [], collections.Counter(), collections.Counter()
    for (index, good, value), request, answer in zip(owner, requests, ask(program, model, requests)):
        name = paths[index].name
        if "unsupported" in answer or "error" in answer:
            if index not in refused:
                why[answer.get("unsupported", answer.get("error")).split("/")[-1][:50]] += 1
            refused.add(index)
            continue
        masks += answer["mask_us"]
        compiles.append(answer["compile_us"])
        first.append(answer["compile_us"] + answer["mask_us"][0])
        for key in ("tokens", "skipped", "skipped_same"):
            tokens[key] += answer[key] if answer["accepted"] else 0
        if good and not answer["accepted"]:
            good = valid(value, entries[index]["schema"])  # some are invalid once formats count
        if good is not None:
            kind = "bench: valid accepted" if good else "bench: invalid refused"
            count.check(
                kind,
                answer["accepted"] == bool(good),
                lambda: f"{name}: {json.dumps(request)[:700]}: at {answer['at']} of {answer['tokens']}",
            )
    print(
        f"bench: {len(entries) - len(refused)} of {len(entries)} schemas compiled; refused: {dict(why.most_common(20))}"
    )
    print(
        f"of {tokens['tokens']} tokens {tokens['skipped']} are forced, {tokens['skipped_same']} of them as in the "
        f"whole text"
    )
    # Where the tokenizer would spell it otherwise behind more than one token, there may be a few.
    count.check("bench: forced as spelled", tokens["skipped_same"] >= 0.99 * tokens["skipped"], lambda: tokens)
    print(f"masks {quantiles(masks)}\nfirst mask with compiling {quantiles(first)}\ncompiling {quantiles(compiles)}")
    if not options.no_samples:
        check_samples(count, program, model, [entry["schema"] for i, entry in enumerate(entries) if i not in refused])
    if options.llguidance:
        compare_llguidance(count, tokenizer, requests, owner)


def compare_llguidance(count, tokenizer, requests, owner):
    import llguidance
    import llguidance.hf
    import llguidance.numpy
    import tokenizers
    import transformers

    hf = transformers.PreTrainedTokenizerFast(tokenizer_file=str(CACHE / tokenizer / "tokenizer.json"))
    vocabulary = llguidance.hf.from_tokenizer(hf)
    encoder = tokenizers.Tokenizer.from_file(str(CACHE / tokenizer / "tokenizer.json"))
    mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary.vocab_size)
    masks, refused, verdicts = [], set(), collections.Counter()
    for (index, good, _), request in zip(owner, requests):
        matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_json_schema(request["schema"]))
        if matcher.is_error():
            refused.add(index)
            continue
        accepted = True
        for token in encoder.encode(request["text"], add_special_tokens=False).ids:
            begin = time.perf_counter()
            llguidance.numpy.fill_next_token_bitmask(matcher, mask)
            masks.append((time.perf_counter() - begin) * 1e6)
            if not mask[0, token // 32] >> (token % 32) & 1 or not matcher.consume_token(token):
                accepted = False
                break
        verdicts[bool(good), accepted and matcher.is_accepting()] += 1
    print(f"llguidance: {len(refused)} refused; (valid, accepted): {dict(verdicts)}\nits masks {quantiles(masks)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=f"{ROOT}/build/apus debug")
    parser.add_argument("--tokenizer", default="qwen3")
    parser.add_argument("--suite")
    parser.add_argument("--bench")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--llguidance", action="store_true")
    parser.add_argument("--no-samples", action="store_true")
    options = parser.parse_args()
    if not (CACHE / options.tokenizer / "tokenizer.json").exists():
        skip(f"the tokenizer {options.tokenizer} is not in {CACHE}: tools/fetch_tokenizers.sh")
    program, count = options.program.split(), Count()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (CACHE / options.tokenizer / name).exists():
                (pathlib.Path(folder) / name).symlink_to(CACHE / options.tokenizer / name)
        (pathlib.Path(folder) / "config.json").write_text("{}")
        if not options.suite and not options.bench:
            check_data(count, program, folder)
        if options.suite:
            check_suite(count, program, folder, options.suite)
        if options.bench:
            check_bench(count, program, folder, options.tokenizer, options)
    for kind in sorted({*count.right, *count.wrong}):
        print(f"{kind}: {count.right[kind]} right, {count.wrong[kind]} wrong")
    wrong = sum(n for kind, n in count.wrong.items() if "valid accepted" not in kind)
    print(f"{sum(count.right.values())} right, {sum(count.wrong.values())} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
