#!/usr/bin/env python3
"""The vocabulary of src (docs/glossary.md): identifiers whose standard term is another one are errors, and so are
comments that do not name their subject.

  tools/check_vocabulary.py            the whole of src; exit code 1 with FILE:LINE for each finding
  tools/check_vocabulary.py FOLDER…    these folders alone
"""

import re
import subprocess
import sys

# Old identifier (a regular expression over the whole identifier) → the term that is used instead.
RENAMED = {
    r"Run|RunSpan": "SequenceChunk, BidirectionalSpan",
    r"Visible|run_visible": "AttentionRange, attention_range",
    r"generated_max|runner_generated_max": "decode_rows_max",
    r"axes|POSITION_AXES_MAX": "position_dims",
    r"Turning|KvTurn|kv_turns": "RopeParams, KvRotation",
    r"KvCode\w*|KvCoding|kv_codes?_\w+|kv_coded\w*|KV_CODE\d|KV_EXACT": "KvQuant, kv_quant_…, KV_FULL",
    r"KvSurvey|kv_survey\w*": "KvCalibration, kv_calibrate",
    r"Latent|LatentMixer|unembed": "Mla, MlaMixer, w_uv",
    r"Mixture\w*|cuda_mixture": "MoeBlock",
    r"choice_bias": "correction_bias",
    r"groups_used": "topk_group",
    r"part_of_mixer|part_of_ffn|PartCost": "ComponentOps, ComponentCost",
    r"PartSum|sum_parts|BACKEND_PARTS_MAX": "RankSum, all_reduce, BACKEND_RANKS_MAX",
    r"in_turns|walk_in_turns": "two_batch_overlap",
    r"Trial|trial_begin|trial_end": "Autotuner",
    r"told": "decode_rows_for_matmul",
    r"part_rows|DECODER_PART_MAX": "layer_tile_rows",
    r"ExpertSource|SourcedExpert|ExpertBank|bank_(open|close|begin|end|io|cycle_bytes)\w*": "ExpertProvider, ExpertCache",  # noqa: E501
    r"EXPERTS_(HINT|WANT|REST)|hint_hits|hinting": "EXPERTS_(PREFETCH|REQUEST|COMPUTE), prefetch",
    r"model_leave_layers": "model_drop_host_pages",
    r"scheduler_park|parked|PASSES_MAX": "scheduler_preempt, preempted, SKIPS_MAX",
    r"Allowed|AllowedAhead|allowed_ahead_\w+": "token mask, MaskWorkers",
    r"FORCED_MAX|grammar_forced_tokens": "jump-ahead tokens",
    r"Draw|LogitDraws|draw_\w+|runner_drawn|sampler_draw": "SampleParams, LogitSampling, sample",
    r"goes_ahead|runner_goes_ahead|scheduler_plan_ahead": "can_lookahead, scheduler_plan_lookahead",
    r"sequence_(leave|keep)": "sequence_publish, sequence_spill",
    r"cache_space": "cache_salt",
    r"FitWishes|wishes": "FitRequest",
    r"door_\w+|Door\w*": "API adapter",
    r"crowd_\w+": "load shedding",
    r"Wire|wire_\w+": "Transport",
    r"connection_dawdled|dawdlers|deaf|retires|greets": "timed_out, listener_closed, draining, in_handshake",
    r"Bed|bed_\w+|lines_list": "BenchFixture, BenchCase",
}
NOT_CODE = {"src/text/tokenizer/pretokenize.c": r"Run"}  # a run of characters

# A comment names its subject: nouns instead of these, and no comment or line of one begins with a loose "Of" (a line
# that goes on with "of" may).
PROSE = re.compile(r"(?i:\b(nobody|somebody|whoever|everybody|anybody)\b|^(/\*|//) ?of [a-z])|^(\* )?Of [a-z]")

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|.', re.S)


def findings(path):
    text = open(path, encoding="utf-8").read()
    renamed = [(re.compile(f"(?:{old})$"), new) for old, new in RENAMED.items()]
    line = 1
    for token in TOKEN.findall(text):
        if token.startswith(("/*", "//")):
            for offset, part in enumerate(token.split("\n")):
                match = PROSE.search(part.strip())
                if match:
                    yield f'{path}:{line + offset}: comment without a subject: "{match.group().strip()}"'
        elif token[0].isalpha() or token[0] == "_":
            skipped = NOT_CODE.get(path)
            for old, new in renamed:
                if old.match(token) and not (skipped and re.fullmatch(skipped, token)):
                    yield f"{path}:{line}: {token}: the term is {new}"
        line += token.count("\n")


def main():
    folders = sys.argv[1:] or ["src"]
    listed = subprocess.run(["git", "ls-files", *folders], capture_output=True, text=True, check=True).stdout.split()
    files = [path for path in listed if re.search(r"\.(c|h|cu|cuh)$", path)]
    found = [finding for path in files for finding in findings(path)]
    if found:
        print("\n".join(found))
        sys.exit(1)
    print(f"vocabulary: {len(files)} files use the terms of docs/glossary.md")


main()
