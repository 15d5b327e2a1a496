#!/usr/bin/env python3
"""What images cost: the tower against the matrix rate that its shapes reach alone, the time to the first token, a
second question about the same image, and streams of text beside image requests.

bench/images.py [--binary build/apus] [--layers 27] [--text-layers 34] [--threads 2]
                [--only tower,first,second,beside] [--device cuda]

Each figure within three minutes on two cores, on a machine that does nothing else:

  bench/images.py --only tower --text-layers 1
  bench/images.py --only first,second --layers 8 --text-layers 10
  bench/images.py --only beside --layers 8 --text-layers 4

The model is random: Gemma 3's tower (SigLIP, 1152 wide, heads of 72, 4,096 patches of an image) with --layers
layers in bf16, and a text model of Gemma 3 4B's shape with --text-layers layers in bf16. Fewer layers of both give
the same shares sooner. A second question is also compared with a text of as many tokens as it has new ones, which
is the least that it can take. The share of the tower is also told in processor time, which a busy machine disturbs
less. The rate of the products is that of `apus bench --operations` in the same run, before and after; the attention
of the tower counts with its own operations. One line for each figure, with its target. With --device, the tower's
line has its rate alone: bench/peer_clip.cpp has llama.cpp's time.
"""

import argparse
import base64
import functools
import http.client
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from PIL import Image

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
sys.path.insert(0, os.path.join(ROOT, "tests", "media"))
import apus_server  # noqa: E402
import make_images  # noqa: E402
import tiny_model  # noqa: E402

HIDDEN, INNER, PATCH, SIDE = 1152, 4304, 14, 896
TEXT = {"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 4}
HEAD, TOKENS = 256, 256


def shapes(layers, text_layers):
    """Names of MLX's files and shapes."""
    tower, wide = "vision_tower.vision_model.", TEXT["hidden_size"]
    yield tower + "embeddings.patch_embedding.weight", (HIDDEN, PATCH, PATCH, 3)
    yield tower + "embeddings.position_embedding.weight", ((SIDE // PATCH) ** 2, HIDDEN)
    matrices = [(f"self_attn.{n}", HIDDEN, HIDDEN) for n in ("q_proj", "k_proj", "v_proj", "out_proj")]
    matrices += [("mlp.fc1", INNER, HIDDEN), ("mlp.fc2", HIDDEN, INNER)]
    for i in range(layers):
        for name, rows, columns in matrices:
            yield f"{tower}encoder.layers.{i}.{name}.weight", (rows, columns)
            yield f"{tower}encoder.layers.{i}.{name}.bias", (rows,)
        for norm in ("layer_norm1", "layer_norm2"):
            yield f"{tower}encoder.layers.{i}.{norm}.weight", (HIDDEN,)
            yield f"{tower}encoder.layers.{i}.{norm}.bias", (HIDDEN,)
    yield tower + "embeddings.patch_embedding.bias", (HIDDEN,)
    for part in ("weight", "bias"):
        yield f"{tower}post_layernorm.{part}", (HIDDEN,)
    yield "multi_modal_projector.mm_input_projection_weight", (HIDDEN, wide)
    yield "multi_modal_projector.mm_soft_emb_norm.weight", (HIDDEN,)
    body = "language_model.model."
    yield body + "embed_tokens.weight", (TOKENS, wide)
    yield body + "norm.weight", (wide,)
    q, kv = TEXT["num_attention_heads"] * HEAD, TEXT["num_key_value_heads"] * HEAD
    for i in range(text_layers):
        at = f"{body}layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", q, wide),
            ("self_attn.k_proj", kv, wide),
            ("self_attn.v_proj", kv, wide),
            ("self_attn.o_proj", wide, q),
            ("mlp.gate_proj", TEXT["intermediate_size"], wide),
            ("mlp.up_proj", TEXT["intermediate_size"], wide),
            ("mlp.down_proj", wide, TEXT["intermediate_size"]),
        ):
            yield f"{at}{name}.weight", (rows, columns)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{at}{norm}_layernorm.weight", (wide,)
        for norm in ("q_norm", "k_norm"):
            yield f"{at}self_attn.{norm}.weight", (HEAD,)


def write_model(directory, layers, text_layers):
    rng = np.random.Generator(np.random.PCG64(1))

    def tensors():
        for name, shape in shapes(layers, text_layers):
            spread = 0.02 if len(shape) > 1 else 0.0
            values = rng.standard_normal(shape, np.float32) * spread + (name.endswith("layer_norm1.weight"))
            yield name, "BF16", list(shape), (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()

    tiny_model._write_tensors(os.path.join(directory, "model.safetensors"), tensors())
    with open(os.path.join(ROOT, "tests", "family", "vision", "gemma3.json")) as file:
        fixture = json.load(file)
    config = fixture["config"]
    config |= {"mm_tokens_per_image": TOKENS, "hidden_size": TEXT["hidden_size"], "eos_token_id": 98}
    config["text_config"] |= {**TEXT, "num_hidden_layers": text_layers, "head_dim": HEAD, "sliding_window": 1024}
    config["text_config"] |= {"query_pre_attn_scalar": HEAD, "mm_tokens_per_image": TOKENS}
    config["text_config"] |= {"max_position_embeddings": 16384}
    config["vision_config"] |= {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers}
    config["vision_config"] |= {"num_attention_heads": 16, "patch_size": PATCH, "image_size": SIDE}
    special = {text: i for text, i in fixture["token_names"].items() if "\n" not in text}
    template = tiny_model.VISION_TEMPLATE.replace("PLACEHOLDER", tiny_model.PLACEHOLDERS["gemma3"])
    tiny_model._write_rest(directory, config, template, special, fixture["token_names"].get("\n\n"))
    processor = fixture["processor"] | {"size": {"height": SIDE, "width": SIDE}, "image_seq_length": TOKENS}
    with open(os.path.join(directory, "preprocessor_config.json"), "w") as file:
        json.dump(processor, file)


@functools.cache
def image_part(seed):
    out = io.BytesIO()
    Image.fromarray(make_images.picture(1024, 1024, seed)).save(out, "JPEG", quality=90)
    url = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def body_of(server, content, tokens=1):
    body = {"model": server.name, "messages": [{"role": "user", "content": content}], "max_tokens": tokens}
    body |= {"temperature": 1, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    body |= {"logit_bias": {str(i): 100 for i in range(33, 83)}}  # letters, so that each token is an event
    return json.dumps(body)


def send(server, body):
    """Seconds to the first token, when each token came, and the usage."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    start, out, usage = time.monotonic(), [], None
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    while (line := response.readline()) and b"[DONE]" not in line:
        now = time.monotonic()
        event = json.loads(line[5:]) if line.startswith(b"data") else {}
        usage = event.get("usage") or usage
        if any(choice["delta"].get("content") or choice["finish_reason"] for choice in event.get("choices", [])):
            out.append(now)
    return out[0] - start, out, usage


def request(server, content, tokens=1):
    return send(server, body_of(server, content, tokens))


def encoded_s(server):
    text = server.request("GET", "/metrics")[2].decode()
    return next(float(x.split()[-1]) for x in text.splitlines() if x.startswith("apus_media_seconds_total{"))


def processor_s(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def product_rate(options):
    """Operations per second of bf16 products of 512 rows."""
    command = [options.binary, "bench", "--operations", "--only", "product bf16 rows 512", "--precise", "--json"]
    found = subprocess.run([*command, "-t", str(options.threads)], capture_output=True, check=True)
    return json.loads(found.stdout)["lines"][0]["gops"] * 1e9


def tell(what, value, target):
    print(f"{what}: {value} (target {target})", flush=True)


def show_tower(server, options):
    text = [{"type": "text", "text": "What is it?"}]
    rates, seconds, processor = [], [], []
    if not options.device:
        rates.append(product_rate(options))
    for seed in range(options.rounds):
        before, spent = encoded_s(server), processor_s(server)
        request(server, [image_part(seed), *text])
        seconds.append(encoded_s(server) - before)
        spent, again = processor_s(server) - spent, processor_s(server)
        request(server, [image_part(seed), {"type": "text", "text": f"And {seed}?"}])
        processor.append(spent - (processor_s(server) - again))
        if not options.device:
            rates.append(product_rate(options))
    patches = (SIDE // PATCH) ** 2
    products = options.layers * patches * 2 * (4 * HIDDEN**2 + 2 * HIDDEN * INNER)
    attention = options.layers * 4 * patches**2 * HIDDEN
    took = statistics.median(seconds)
    if options.device:
        each = ", ".join(f"{1e3 * s:.1f}" for s in seconds)
        rate = 1e-12 * (products + attention) / took
        tell(f"tower of {options.layers} layers, {patches} patches, ms: {each}; Tera operations/s", f"{rate:.0f}", "-")
        return
    rate = statistics.median(rates)
    paid = statistics.median(processor) / options.threads
    tell(
        f"tower of {options.layers} layers, {patches} patches: {took:.2f} s, {1e-12 * products:.2f} + "
        f"{1e-12 * attention:.2f} · 10¹² operations, products alone {1e-9 * rate:.0f} GOP/s; share",
        f"{(products + attention) / took / rate:.2f}, in processor time {(products + attention) / paid / rate:.2f}",
        "0.60",
    )


def serve(model, options, *more):
    device = ("--device", options.device) if options.device else ()
    return apus_server.Server(model, "-t", options.threads, *device, *more, binary=options.binary)


def show_first(model, options):
    """Cold, and with a known image but no prefix cache."""
    question = [{"type": "text", "text": "What is it, and where?"}]
    with serve(model, options, "--no-prefix-cache") as server:
        before = encoded_s(server)
        cold = request(server, [image_part(50), *question])[0]
        encoder = encoded_s(server) - before
        prompt = min(request(server, [image_part(50), *question])[0] for _ in range(2))
    tell(f"first token of a 1024² image: {cold:.2f} s, encoder {encoder:.2f} + prompt {prompt:.2f} s; ratio",
         f"{cold / (encoder + prompt):.2f}", "1.15")  # fmt: skip


def show_second(model, options):
    """Further questions about an image, and texts of as many tokens as these have new ones."""
    questions = ["Which colours does it have?", "Are there any people on it?", "How late may it have been?"]
    with serve(model, options) as server:
        request(server, [{"type": "text", "text": "Before anything is measured."}])
        cold = request(server, [image_part(51), {"type": "text", "text": "What is it, and where?"}])[0]
        before = encoded_s(server)
        asked = [request(server, [image_part(51), {"type": "text", "text": text}]) for text in questions]
        encoded = encoded_s(server) - before
        usage = asked[0][2]
        new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        empty = request(server, [{"type": "text", "text": ""}])[2]["prompt_tokens"]
        texts = [request(server, [{"type": "text", "text": f"{i}" * (new - empty)}]) for i in range(3)]
        rows = texts[0][2]["prompt_tokens"] - texts[0][2]["prompt_tokens_details"]["cached_tokens"]
    again, least = (statistics.median(found[0] for found in of) for of in (asked, texts))
    tell(f"second question: {again:.3f} s of {cold:.2f} s cold, {new} of {usage['prompt_tokens']} tokens new, "
         f"{encoded:.3f} s encoding; a text of {rows} tokens {least:.3f} s; share of cold",
         f"{again / cold:.3f}", "0.05")  # fmt: skip


def streams(server, count, tokens, image_requests):
    """Gaps of text streams in ms, sorted, and the images that were answered meanwhile."""
    gaps, lock, stop, answered = [], threading.Lock(), threading.Event(), []
    texts = [body_of(server, [{"type": "text", "text": f"Tell {i} stories."}], tokens) for i in range(count)]
    images = [body_of(server, [image_part(100 + i), {"type": "text", "text": "What?"}]) for i in range(image_requests)]

    def read(body):
        at = send(server, body)[1]
        with lock:
            gaps.extend(1e3 * (b - a) for a, b in zip(at[2:], at[3:]))

    def ask(body):
        try:
            send(server, body)
        except (OSError, http.client.HTTPException, IndexError):
            return  # the server has ended
        if not stop.is_set():
            answered.append(1)

    readers = [threading.Thread(target=read, args=(body,)) for body in texts]
    askers = [threading.Thread(target=ask, args=(body,), daemon=True) for body in images]
    for thread in readers + askers:
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    return sorted(gaps), len(answered)


def show_beside(model, options):
    with serve(model, options, "--slots", 16, "--queue", 128) as server:
        alone, _ = streams(server, 8, options.tokens, 0)
        beside, answered = streams(server, 8, options.tokens, options.images)
        server.process.kill()
    for name, gaps in (("alone", alone), (f"beside {options.images} images, {answered} answered", beside)):
        print(f"  {name}: median {statistics.median(gaps):.0f} ms, p99 {p99(gaps):.0f} ms, most {gaps[-1]:.0f} ms")
    tell(f"8 streams: p99 gap {p99(alone):.0f} ms alone, {p99(beside):.0f} ms beside {options.images} images; ratio",
         f"{p99(beside) / p99(alone):.2f}", "2")  # fmt: skip


def p99(gaps):
    return gaps[int(0.99 * len(gaps))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "apus"))
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--text-layers", type=int, default=34)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--only", default="tower,first,second,beside")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as model:
        write_model(model, options.layers, options.text_layers)
        if "tower" in options.only:
            with serve(model, options) as server:
                show_tower(server, options)
        if "first" in options.only:
            show_first(model, options)
        if "second" in options.only:
            show_second(model, options)
        if "beside" in options.only:
            show_beside(model, options)


if __name__ == "__main__":
    main()
