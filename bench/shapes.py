#!/usr/bin/env python3
"""Published shapes with random weights: each loads, answers a request and decodes; the share of the read limit.

    bench/shapes.py [--shapes qwen3.5-4b,lfm2-2.6b:30,…] [--layers 4] [--device cuda] [--depth 512] [--streams 1,8]
                    [--tokenizer DIR] [--models DIR] [--make] [--remove] [--out FILE.csv] [--commit ID]

The shapes are those of published configurations (SHAPES below), with --layers layers, or those behind the shape's
name. --make: they are only made. Which tensors a family reads, and their
sizes, is asked of `apus info`: a missing tensor is named by its error, one of a wrong shape by the shape that it must
have. Matrices get random 4-bit codes in groups of 64 (BitNet's: ternary numbers), everything else plausible constants.
With --tokenizer, a directory with tokenizer.json, a server answers a request as well. Needs no package.
"""

import argparse
import array
import csv
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
GROUP, BITS, BLOCK = 64, 4, 1 << 24
PROBES_MAX = 5000  # runs of `apus info` for a shape
TERNARY = bytes(b & ~(b & b >> 1 & 0x55) for b in range(256))  # no code of two bits is 3

PATTERNS = ("layer_types", "hybrid_override_pattern", "compress_ratios")  # a word of each layer
LOCAL, FULL = "sliding_attention", "full_attention"
DELTA = dict(
    linear_num_key_heads=16,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    full_attention_interval=4,
    partial_rotary_factor=0.25,
    rope_theta=1e7,
    head_dim=256,
    rms_norm_eps=1e-6,
)
# The configuration, and what a cut to so many layers changes besides num_hidden_layers.
SHAPES = {
    "qwen3.5-4b": (
        dict(
            DELTA,
            model_type="qwen3_5_text",
            hidden_size=2560,
            intermediate_size=9216,
            num_attention_heads=16,
            num_key_value_heads=4,
            linear_num_value_heads=32,
            vocab_size=248320,
            tie_word_embeddings=True,
        ),
        None,
    ),
    "qwen3.5-35b-a3b": (
        dict(
            DELTA,
            model_type="qwen3_5_moe_text",
            hidden_size=2048,
            num_attention_heads=16,
            num_key_value_heads=2,
            linear_num_value_heads=32,
            num_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            vocab_size=248320,
        ),
        None,
    ),
    "qwen3-next-80b-a3b": (
        dict(
            DELTA,
            model_type="qwen3_next",
            hidden_size=2048,
            intermediate_size=5120,
            num_attention_heads=16,
            num_key_value_heads=2,
            linear_num_value_heads=32,
            num_experts=512,
            num_experts_per_tok=10,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            norm_topk_prob=True,
            vocab_size=151936,
        ),
        None,
    ),
    "gemma-4-e4b": (
        dict(
            model_type="gemma4_text",
            hidden_size=2560,
            intermediate_size=10240,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=256,
            global_head_dim=512,
            hidden_size_per_layer_input=256,
            vocab_size=262144,
            vocab_size_per_layer_input=262144,
            sliding_window=512,
            final_logit_softcapping=30.0,
            num_kv_shared_layers=0,
            rms_norm_eps=1e-6,
            rope_parameters={
                FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        lambda n: dict(layer_types=[FULL if i % 6 == 5 or i == n - 1 else LOCAL for i in range(n)]),
    ),
    "gemma-4-26b-a4b": (
        dict(
            model_type="gemma4_text",
            hidden_size=2816,
            intermediate_size=2112,
            moe_intermediate_size=704,
            enable_moe_block=True,
            num_experts=128,
            top_k_experts=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            num_global_key_value_heads=2,
            attention_k_eq_v=True,
            head_dim=256,
            global_head_dim=512,
            hidden_size_per_layer_input=0,
            num_kv_shared_layers=0,
            vocab_size=262144,
            sliding_window=1024,
            final_logit_softcapping=30.0,
            rms_norm_eps=1e-6,
            rope_parameters={
                FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        lambda n: dict(layer_types=[FULL if i % 6 == 5 or i == n - 1 else LOCAL for i in range(n)]),
    ),
    "nemotron-3-nano-30b-a3b": (
        dict(
            model_type="nemotron_h",
            hidden_size=2688,
            intermediate_size=1856,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=6,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            n_group=1,
            topk_group=1,
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=128,
            mamba_num_heads=64,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
            mlp_hidden_act="relu2",
            layer_norm_epsilon=1e-5,
            vocab_size=131072,
            tie_word_embeddings=False,
        ),
        lambda n: dict(hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"[:n]),
    ),
    "lfm2-2.6b": (
        dict(
            model_type="lfm2",
            hidden_size=2048,
            block_dim=2048,
            block_ff_dim=10752,
            block_multiple_of=256,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            num_attention_heads=32,
            num_key_value_heads=8,
            conv_bias=False,
            conv_L_cache=3,
            norm_eps=1e-5,
            rope_theta=1e6,
            vocab_size=65536,
        ),
        lambda n: dict(layer_types=["full_attention" if i % 4 == 2 else "conv" for i in range(n)]),
    ),
    "ministral-3-8b": (
        dict(
            model_type="ministral3",
            hidden_size=4096,
            intermediate_size=14336,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            rms_norm_eps=1e-5,
            vocab_size=131072,
            tie_word_embeddings=False,
            rope_parameters=dict(
                rope_type="yarn",
                type="yarn",
                rope_theta=1e6,
                factor=16.0,
                original_max_position_embeddings=16384,
                llama_4_scaling_beta=0.1,
                beta_fast=32.0,
                beta_slow=1.0,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        ),
        None,
    ),
    "glm-4.7-flash": (
        dict(
            model_type="glm4_moe_lite",
            hidden_size=2048,
            intermediate_size=10240,
            moe_intermediate_size=1536,
            num_attention_heads=20,
            num_key_value_heads=20,
            n_routed_experts=64,
            n_shared_experts=1,
            num_experts_per_tok=4,
            routed_scaling_factor=1.8,
            kv_lora_rank=512,
            q_lora_rank=768,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            topk_method="noaux_tc",
            scoring_func="sigmoid",
            norm_topk_prob=True,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            attention_bias=False,
            vocab_size=154880,
            tie_word_embeddings=False,
        ),
        None,
    ),
    "laguna-xs.2": (
        dict(
            model_type="laguna",
            hidden_size=2048,
            intermediate_size=8192,
            num_attention_heads=48,
            num_key_value_heads=8,
            head_dim=128,
            sliding_window=512,
            num_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            moe_routed_scaling_factor=2.5,
            gating=True,
            rms_norm_eps=1e-6,
            vocab_size=100352,
            tie_word_embeddings=False,
            rope_parameters={
                FULL: {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 5e5},
                LOCAL: {"rope_type": "default", "partial_rotary_factor": 1.0, "rope_theta": 1e4},
            },
        ),
        lambda n: dict(layer_types=[LOCAL if i % 4 else FULL for i in range(n)]),
    ),
    "glm-5": (
        dict(
            model_type="glm_moe_dsa",
            hidden_size=6144,
            intermediate_size=12288,
            moe_intermediate_size=2048,
            num_attention_heads=64,
            num_key_value_heads=64,
            n_shared_experts=1,
            num_experts_per_tok=8,
            routed_scaling_factor=2.5,
            kv_lora_rank=512,
            q_lora_rank=2048,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            index_n_heads=32,
            index_head_dim=128,
            index_topk=2048,
            scoring_func="sigmoid",
            norm_topk_prob=True,
            n_group=1,
            topk_group=1,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            vocab_size=154880,
            tie_word_embeddings=False,
        ),
        # one dense layer; fewer experts, of which as many are read
        lambda n: dict(first_k_dense_replace=1, n_routed_experts=64),
    ),
    "deepseek-v4-flash": (
        dict(
            model_type="deepseek_v4",
            hidden_size=4096,
            moe_intermediate_size=2048,
            num_attention_heads=64,
            num_key_value_heads=1,
            head_dim=512,
            q_lora_rank=1024,
            o_lora_rank=1024,
            o_groups=8,
            qk_rope_head_dim=64,
            sliding_window=128,
            index_n_heads=64,
            index_head_dim=128,
            index_topk=512,
            hc_mult=4,
            hc_sinkhorn_iters=20,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=6,
            num_hash_layers=3,
            routed_scaling_factor=1.5,
            swiglu_limit=10.0,
            topk_method="noaux_tc",
            scoring_func="sqrtsoftplus",
            norm_topk_prob=True,
            rms_norm_eps=1e-6,
            rope_theta=1e4,
            compress_rope_theta=1.6e5,
            vocab_size=129280,
            tie_word_embeddings=False,
            rope_scaling=dict(
                type="yarn", factor=16.0, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1
            ),
        ),
        # a fourth of the layers of the window alone and routed by tokens, then sparse and heavy ones in turn; fewer
        # experts, of which as many are read
        lambda n: dict(
            compress_ratios=[0 if i < n // 4 else 4 if (i - n // 4) % 2 == 0 else 128 for i in range(n)],
            num_hash_layers=min(3, n // 4),
            n_routed_experts=32,
        ),
    ),
    "bitnet-b1.58-2b-4t": (
        dict(
            model_type="bitnet",
            hidden_size=2560,
            intermediate_size=6912,
            num_attention_heads=20,
            num_key_value_heads=5,
            hidden_act="relu2",
            rms_norm_eps=1e-5,
            rope_theta=500000,
            vocab_size=128256,
            tie_word_embeddings=True,
            quantization_config=dict(quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline"),
        ),
        None,
    ),
    "gpt-oss-20b": (
        dict(
            model_type="gpt_oss",
            hidden_size=2880,
            intermediate_size=2880,
            num_attention_heads=64,
            num_key_value_heads=8,
            head_dim=64,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
            rope_theta=150000,
            rms_norm_eps=1e-5,
            vocab_size=201088,
            rope_scaling=dict(
                rope_type="yarn",
                factor=32.0,
                original_max_position_embeddings=4096,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
            ),
        ),
        lambda n: dict(layer_types=[FULL if i % 2 else LOCAL for i in range(n)]),
    ),
}


# ---- the tensors that a family reads ----


def apus_error(directory):
    """The first error of loading the model; none: it loads."""
    out = subprocess.run([BINARY, "info", directory], capture_output=True, text=True)
    return out.stderr if out.returncode else None


class Checkpoint:
    """A directory with a configuration, and a file of weights whose elements are zeros so far."""

    def __init__(self, directory, config):
        self.directory, self.tensors = directory, {}  # name: [dtype, shape]
        self.config = config
        self.experts = max(config.get(f, 1) for f in ("num_experts", "n_routed_experts", "num_local_experts"))
        os.makedirs(directory, exist_ok=True)
        self.write_config(config)

    def write_config(self, config):
        with open(os.path.join(self.directory, "config.json"), "w") as f:
            json.dump(config, f, indent=1)

    def size(self, name):
        dtype, shape = self.tensors[name]
        return math.prod(shape) * {"U8": 1, "U32": 4, "BF16": 2, "F32": 4, "I64": 8}[dtype]

    def write_header(self, f):
        header, offset = {"__metadata__": {"format": "mlx"}}, 0
        for name, (dtype, shape) in self.tensors.items():
            end = offset + self.size(name)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        f.write(struct.pack("<Q", len(text)) + text)
        return offset

    def write_empty(self):
        with open(os.path.join(self.directory, "model.safetensors"), "wb") as f:
            size = self.write_header(f)
            f.truncate(f.tell() + size)

    def like(self, name):
        """The shape of the same tensor of another layer or expert."""
        digits = re.compile(r"\d+")
        for other, (_, shape) in self.tensors.items():
            if other != name and digits.sub("#", other) == digits.sub("#", name):
                return list(shape)
        return [1]

    def alike(self, name):
        """The tensor, and where it is another expert's than the first one's, those of all the others."""
        found = re.fullmatch(r"(.*\.experts\.)1(\..*)", name)
        return [f"{found[1]}{i}{found[2]}" for i in range(1, self.experts)] if found else [name]

    def kind(self, layer):
        """What is equal of layers with the same tensors, as far as the configuration tells."""
        patterns = [self.config[f][layer] for f in PATTERNS if f in self.config]
        first = [min(layer, self.config.get(f, 0)) for f in ("first_k_dense_replace", "num_hash_layers")]
        return [*patterns, *first, (layer + 1) % self.config.get("full_attention_interval", layer + 2) == 0]

    def like_layer(self, name):
        """Tensors of the nearest layer before that of the tensor and of its kind."""
        found = re.fullmatch(r"(.*\.layers\.)(\d+)(\..*)", name)
        layer = int(found[2]) if found else 0
        if not found or f"{found[1]}{layer}." in "".join(self.tensors):
            return {}
        for before in range(layer - 1, -1, -1):
            if self.kind(before) == self.kind(layer):
                at = f"{found[1]}{before}."
                return {
                    f"{found[1]}{layer}.{n[len(at) :]}": [d, list(s)]
                    for n, (d, s) in self.tensors.items()
                    if n.startswith(at)
                }
        return {}

    def discover(self):
        """Adds tensors until the model loads."""
        for _ in range(PROBES_MAX):
            self.write_empty()
            error = apus_error(self.directory)
            if not error:
                return
            if found := re.search(r"tensor (\S+) is missing", error):
                self.tensors |= self.like_layer(found.group(1))
                for name in self.alike(found.group(1)):
                    self.tensors.setdefault(name, ["BF16", self.like(name)])
            elif found := re.search(r"tensor (\S+) in \S+ is BF16, must be I32 or I64", error):
                self.tensors[found.group(1)][0] = "I64"
            elif found := re.search(r"tensor (\S+) in \S+ has shape \[[^]]*\], must be \[([^]]*)\]", error):
                self.tensors[found.group(1)][1] = [int(n) for n in found.group(2).split(", ")]
            else:
                sys.exit(f"{self.directory}: {error}")
        sys.exit(f"{self.directory}: no end of missing tensors")

    def pack_ternary(self):
        """Matrices of layers as BitNet's publisher packs them: four rows to a byte, one scale."""
        plain = dict(self.tensors)
        for name, (_, shape) in plain.items():
            if len(shape) == 2 and ".layers." in name:
                self.tensors[name] = ["U8", [shape[0] // 4, shape[1]]]
                self.tensors[name + "_scale"] = ["BF16", [1]]
        self.write_empty()

    def quantise(self):
        """Matrices as codes, scales and biases, but for those that a checkpoint has in full."""
        full = re.compile(
            r"conv1d|conv\.conv|norm|router|mlp\.gate\.weight|ffn\.gate\.weight|mixer\.gate\.weight|shared_expert_gate"
            r"|altup|position"
        )
        plain = dict(self.tensors)
        for name, (_, shape) in plain.items():
            if not name.endswith(".weight") or len(shape) < 2 or shape[-1] % GROUP or full.search(name):
                continue
            module = name[: -len(".weight")]
            self.tensors[name] = ["U32", [*shape[:-1], shape[-1] * BITS // 32]]
            for part in ("scales", "biases"):
                self.tensors[f"{module}.{part}"] = ["BF16", [*shape[:-1], shape[-1] // GROUP]]
        self.write_empty()
        error = apus_error(self.directory)
        if error:
            sys.exit(f"{self.directory}, quantised: {error}")


# ---- values ----


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def repeated(f, block, size):
    while size > 0:
        f.write(block[:size])
        size -= len(block)


def spread(size):
    """Numbers of random sign between size and 2·size, which is a power of two."""
    rng = random.Random(size)
    exponent = bf16(size) & 0x7F80
    return array.array("H", (exponent | rng.getrandbits(16) & 0x807F for _ in range(1 << 16))).tobytes()


def write_values(checkpoint):
    codes = os.urandom(BLOCK - 3)  # a length by which no two rows are alike
    with open(os.path.join(checkpoint.directory, "model.safetensors"), "wb") as f:
        checkpoint.write_header(f)
        for name, (dtype, shape) in checkpoint.tensors.items():
            size = checkpoint.size(name)
            module = name.rsplit(".", 1)[0]
            if dtype == "U32":
                repeated(f, codes, size)
                continue
            if dtype == "U8":
                repeated(f, codes.translate(TERNARY), size)
                continue
            if dtype == "I64":  # experts of tokens
                repeated(f, array.array("q", range(6)).tobytes() * 4096, size)
                continue
            columns = shape[-1] * (GROUP if module + ".scales" in checkpoint.tensors else 1)
            step = (1 if "embed" in name else 1 / 3 / math.sqrt(columns)) * math.sqrt(12) / 2**BITS
            if name.endswith(".scales"):
                value = step
            elif name.endswith(".biases"):
                value = -step * (2**BITS - 1) / 2
            elif name.endswith(".weight_scale"):
                value = 2.0 ** round(math.log2(1.2 / math.sqrt(checkpoint.tensors[name[: -len("_scale")]][1][-1])))
            elif "norm" in name or name.endswith((".D", "scale", "scalar")):
                value = 1.0
            elif len(shape) > 1 and math.prod(shape) > max(shape):
                repeated(f, spread(2.0 ** round(math.log2(1 / math.sqrt(shape[-1])))) * 64, size)
                continue
            else:
                value = 0.0
            repeated(f, struct.pack("<H", bf16(value)) * (1 << 20), size)


def make(name, layers, directory):
    config, cut = SHAPES[name]
    config = dict(config, num_hidden_layers=layers, max_position_embeddings=32768, **(cut(layers) if cut else {}))
    packing = config.pop("quantization_config", None)
    if not packing:
        config["quantization"] = {"group_size": GROUP, "bits": BITS}
    checkpoint = Checkpoint(directory, config)
    checkpoint.discover()
    if packing:
        checkpoint.pack_ternary()
        checkpoint.write_config(dict(config, quantization_config=packing))
    else:
        checkpoint.quantise()
    write_values(checkpoint)


# ---- measuring ----


def bench(directory, options, *arguments):
    device = ["--device", options.device] if options.device else []
    command = [BINARY, "bench", directory, "--json", *device, *arguments]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{' '.join(command)}: {out.stderr}")
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


def answers(directory, options):
    """Whether a server with the model answers."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
    import apus_server

    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(options.tokenizer, file), directory)
    device = ["--device", options.device] if options.device else []
    with apus_server.Server(directory, *device) as server:
        body = {"model": server.name, "prompt": [1, 2, 3, 4], "max_tokens": 8, "temperature": 0}
        status, _, answer = server.request("POST", "/v1/completions", body, timeout=600)
    if status != 200:
        sys.exit(f"{directory}: {status} {answer}")
    return json.loads(answer)["usage"]["completion_tokens"] > 0


def measure(shape, options):
    name, _, layers = shape.partition(":")
    layers = int(layers or options.layers)
    directory = os.path.join(options.models, f"{name}-{layers}")
    start = time.monotonic()
    if not os.path.exists(os.path.join(directory, "made")):
        make(name, layers, directory)
        open(os.path.join(directory, "made"), "w").close()
    made = time.monotonic() - start
    if options.make:
        print(f"{name}, {layers} layers: made in {made:.0f} s", flush=True)
        return {}
    (one,) = bench(directory, options, "-p", "0", "-n", "64", "-d", str(options.depth), "-r", "3")
    row = {
        "machine": options.machine,
        "commit": options.commit,
        "shape": name,
        "layers": layers,
        "device": options.device or "cpu",
        "depth": options.depth,
        "decode": one["tg"],
        "of_limit": one["tg_of_limit"],
        "limit": one["read_gbs"],
        "served": answers(directory, options) if options.tokenizer else "",
    }
    if options.streams:
        rows = bench(directory, options, "--streams", options.streams, "-n", "32", "-d", str(options.depth))
        row["streams"] = " ".join(f"{r['streams']}:{r['tg']:.0f} {r.get('tg_of_limit', 0):.2f}" for r in rows)
    if options.remove:
        shutil.rmtree(directory)
    print(
        f"{name}, {layers} layers: {row['decode']:.1f} tok/s, {row['of_limit']:.0%} of the read limit"
        f"{', served' if row['served'] else ''}{', streams ' + row['streams'] if options.streams else ''}"
        f" (made in {made:.0f} s)",
        flush=True,
    )
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--streams")
    parser.add_argument("--tokenizer")
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/apus/bench"))
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--remove", action="store_true", help="removes each model when it has been measured")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = [measure(name, options) for name in options.shapes.split(",")]
    if options.out and not options.make:
        with open(options.out, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
