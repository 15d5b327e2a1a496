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
    r"\w*[Ss]urvey\w*": "calibrate",
    r"latent_attend|(cuda|host|parallel|plan|trace)_latent": "mla_attend, …_mla",
}
# The same below a folder.
RENAMED_IN = {
    "src/backend/cuda/": {
        r"(attention|attend)_generated\w*|generated_cod\w+|\w*GENERATED_\w+": "flash_decode, DECODE_ROWS_MAX",
        r"(attention|attend)_prompts?\w*|prompt_\w*kernel|PROMPT_\w+|Prompt\w*": "flash_prefill, PREFILL_…",
        r"DRAWING_\w+|DRAW_\w+|drawing_of": "SAMPLING_…, SAMPLE_…",
        r"CODED?\d|CODED_\w+|CODE_(DIM_MAX|FORMS|JOBS_MAX|ENDS|SINKS)|Coded\w+|Code(Books|Edges|Job|Layer|Shape)|"
        r"coded_\w+|codes_(encode|survey|rows)|(attention|cuda|cuda_attend|cuda_sees|cuda_step)_codes?_?\w*|"
        r"AttendCodes|CudaCodes": "KVQ…, Kvq…, kvq_…, AttendQuant, CudaQuant",
        r"attend_exact|cuda_exact_rows|exact_page|EXACT_\w+": "full precision",
        r"product_(few|many|narrow|wide|stream|integer_\w+)|integer_(few|one|many)\w*|"
        r"(few|many|narrow|wide|stream)_kernel|(FEW|MANY|WIDE)_\w+|(Few|Many|Narrow|Wide)[A-Z]\w*|"
        r"kernels_have_wide|\w+_CUDA_WIDE": "the kernel's file: gemv_int, gemv_ring, gemm_wgmma, …",
        r"mixture_\w+": "moe_…, fused_moe",
        r"CudaPart|PartPlace|PART_(SUMS_MAX|WORD_ROWS)|cuda_parts_\w+|parts_sum": "CudaRank, RankPlace, cuda_ranks_…",
        r"TurnReady|turned_\w+": "RopeReady, rotated_…",
        r"(run_(rows|offsets)|(short|long)_runs|fill_run|ATTENTION_LONG_RUN)": "chunk_rows, short_chunks, …",
    },
}
NOT_CODE = {"src/text/tokenizer/pretokenize.c": r"Run"}  # a run of characters

# Kernels are in files that are called as the field calls such kernels.
OLD_FILES = {
    "src/backend/cuda/": re.compile(r"generated|(?<!de)code|prompt|mixture|narrow|wide|few|many|stream|survey")
}

# A comment names its subject: nouns instead of these, and no comment or line of one begins with a loose "Of" (a line
# that goes on with "of" may).
PROSE = re.compile(r"(?i:\b(nobody|somebody|whoever|everybody|anybody)\b|^(/\*|//) ?of [a-z])|^(\* )?Of [a-z]")

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|.', re.S)


def findings(path):
    for folder, old in OLD_FILES.items():
        if path.startswith(folder) and old.search(path[len(folder) :]):
            yield f"{path}: the file's name has an old term"
    text = open(path, encoding="utf-8").read()
    table = list(RENAMED.items())
    for folder, renamed_in in RENAMED_IN.items():
        table += renamed_in.items() if path.startswith(folder) else ()
    renamed = [(re.compile(f"(?:{old})$"), new) for old, new in table]
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
