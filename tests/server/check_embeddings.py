"""/v1/embeddings with the official OpenAI SDK: vectors of a small random Qwen3 as mlx-lm has them (last token, and
mean), alone and in batches bit for bit, their forms, limits and errors, and clients that go away.

The oracle is mlx-lm in f32 on the same weights; sentence-transformers' files say how states are pooled. Tolerance: 1e-4
of the largest component, as tests/model/check_logits.py has it for logits: sums of f32 in another order, while the
smallest structural error moves them by more.
"""

import base64
import concurrent.futures
import json
import os
import random
import socket
import tempfile

import mlx.core as mx
import numpy as np
import ollama
import openai
from apus_server import Checks, Server
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tiny_model import write_tiny_model

check = Checks()
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "eos_token_id": 98,
}
PREFIX = "sentence_transformers.models."
TOLERANCE = 1e-4


def write_checkpoint(directory, pooling, bare):
    """A random Qwen3 and its oracle. bare: tensors are named as in checkpoints without an output matrix."""
    write_tiny_model(directory, 512)
    mx.random.seed(3)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    model.update({})
    weights = {
        name: mx.random.normal(value.shape)
        * (0.3 if value.ndim == 1 else 0.5 if "embed" in name else value.shape[-1] ** -0.5)
        + (value.ndim == 1)
        for name, value in tree_flatten(model.parameters())
    }
    model.load_weights(list(weights.items()))
    mx.save_safetensors(
        os.path.join(directory, "model.safetensors"),
        {name.removeprefix("model.") if bare else name: value for name, value in weights.items()},
    )
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(CONFIG, file)
    if pooling:
        os.mkdir(os.path.join(directory, "1_Pooling"))
        with open(os.path.join(directory, "1_Pooling", "config.json"), "w") as file:
            json.dump(
                {
                    "word_embedding_dimension": 64,
                    "pooling_mode_cls_token": False,
                    "pooling_mode_mean_tokens": pooling == "mean",
                    "pooling_mode_lasttoken": pooling == "last",
                    "include_prompt": True,
                },
                file,
            )
        with open(os.path.join(directory, "modules.json"), "w") as file:
            json.dump(
                [
                    {"idx": i, "name": str(i), "path": path, "type": PREFIX + kind}
                    for i, (path, kind) in enumerate(
                        (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
                    )
                ],
                file,
            )
    return model


def oracle(model, ids, pooling, dimensions=64):
    states = np.array(model.model(mx.array([ids])), dtype=np.float64)[0]
    vector = (states[-1] if pooling == "last" else states.mean(axis=0))[:dimensions]
    return vector / np.sqrt((vector * vector).sum())


def refused(call, kind, code, what):
    try:
        call()
        check(False, f"{what} was accepted")
    except kind as e:
        check(e.code == code and e.request_id, f"{what}: {e}")


def test_vectors(server, model, pooling):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    rng = random.Random(5)
    prompts = [[rng.randrange(97) for _ in range(rng.randint(1, 300))] for _ in range(40)]

    def create(input, **more):
        return client.embeddings.create(model=server.name, input=input, **more)

    whole = create(prompts)
    check(
        [d.index for d in whole.data] == list(range(40))
        and whole.usage.prompt_tokens == whole.usage.total_tokens == sum(map(len, prompts))
        and whole.model == server.name,
        whole.usage,
    )
    metrics = server.request("GET", "/metrics")[2].decode()
    check(
        f'apus_embeddings_total{{model_name="{server.name}"}} 40\n' in metrics
        and f'apus_request_prompt_tokens_count{{model_name="{server.name}"}} 40\n' in metrics,
        "the metrics count them",
    )
    for prompt, data in zip(prompts, whole.data):
        wanted, found = oracle(model, prompt, pooling), np.array(data.embedding)
        check(
            np.abs(found - wanted).max() < TOLERANCE * np.abs(wanted).max(),
            f"{len(prompt)} tokens: off by {np.abs(found - wanted).max()}",
        )
    alone = [create([p], encoding_format="base64").data[0].embedding for p in prompts[:12]]
    check(
        alone == [d.embedding for d in create(prompts[:12], encoding_format="base64").data],
        "alone and in a batch: the same bits",
    )
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        check(
            list(pool.map(lambda p: create([p], encoding_format="base64").data[0].embedding, prompts[:12])) == alone,
            "and at the same time",
        )
    numbers = create(prompts[:3], encoding_format="float")
    check(
        all(
            np.array(d.embedding, dtype=np.float32).tobytes() == base64.b64decode(a)
            for d, a in zip(numbers.data, alone)
        ),
        "numbers are the same floats",
    )
    short = create([prompts[3]], dimensions=10).data[0].embedding
    check(len(short) == 10 and np.abs(np.array(short) - oracle(model, prompts[3], pooling, 10)).max() < 1e-4, short)
    status, _, body = server.request("POST", "/tokenize", {"prompt": "Hello there"})
    ids = json.loads(body)["tokens"]
    texts = create(["Hello there", "Hello there"], encoding_format="base64")
    check(
        texts.data[0].embedding
        == texts.data[1].embedding
        == create(ids, encoding_format="base64").data[0].embedding
        == create("Hello there", encoding_format="base64").data[0].embedding,
        "a text, texts and ids",
    )
    refused(
        lambda: create(prompts[0] * 600),
        openai.BadRequestError,
        "context_length_exceeded",
        "an input beyond the context",
    )
    refused(
        lambda: create(["x", "y" * 100000]), openai.BadRequestError, "context_length_exceeded", "a text that cannot fit"
    )
    try:
        create(["x", "y" * 100000])
    except openai.BadRequestError as e:
        check("are at least" in e.message and e.param == "input[1]", f"a text that cannot fit is not tokenized: {e}")
    refused(lambda: create([]), openai.BadRequestError, "empty_array", "no input")
    refused(lambda: create([""]), openai.BadRequestError, "invalid_value", "an empty text")
    refused(lambda: create([["x"]]), openai.BadRequestError, "invalid_type", "ids that are none")
    refused(lambda: create([1000]), openai.BadRequestError, "integer_above_max_value", "an id beyond the vocabulary")
    refused(lambda: create(["x", [1]]), openai.BadRequestError, "invalid_type", "texts and ids")
    refused(
        lambda: create("x", dimensions=65),
        openai.BadRequestError,
        "integer_above_max_value",
        "more dimensions than there are",
    )
    refused(lambda: create(["x"] * 2049), openai.BadRequestError, "array_above_max_length", "more than 2048 inputs")
    refused(
        lambda: create("x", extra_body={"other": 1}), openai.BadRequestError, "unknown_parameter", "an unknown field"
    )
    refused(
        lambda: client.embeddings.create(model="other", input="x"),
        openai.NotFoundError,
        "model_not_found",
        "another model",
    )
    check(len(create(["x"] * 2048, dimensions=1).data) == 2048, "2048 inputs")
    other = ollama.Client(host=server.url)
    embedded = other.embed(model=server.name, input=["Hello there", "x"], dimensions=8)
    check(
        embedded.embeddings[0] == create("Hello there", dimensions=8, encoding_format="float").data[0].embedding
        and embedded.prompt_eval_count == len(ids) + 1,
        f"Ollama's: {embedded}",
    )
    try:
        other.embed(model=server.name, input="x" * 600)
        check(False, "an input beyond the context was cut")
    except ollama.ResponseError as e:
        check(e.status_code == 400 and "maximum context length" in e.error, f"{e}")
    answers = client.chat.completions.create(
        model=server.name, messages=[{"role": "user", "content": "x"}], max_tokens=5, temperature=0
    )
    check(answers.usage.completion_tokens > 0, "it answers chats as well")


def test_vanished(server):
    body = json.dumps({"model": server.name, "input": [[i % 90 for i in range(500)]] * 2000}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n"
            b"\r\n" % len(body) + body
        )
        while server.health()["running"] == 0:
            pass
    check(server.wait_idle(20), "a client that goes away stops its embeddings")


def test_not_numbers():
    """A model whose last norm is infinite: no answer of it is JSON."""
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, "last", True)
        path = os.path.join(directory, "model.safetensors")
        weights = dict(mx.load(path).items())
        weights["norm.weight"] = mx.full(weights["norm.weight"].shape, float("inf"))
        mx.save_safetensors(path, weights)
        with Server(directory) as server:
            for path in ("/v1/embeddings", "/api/embed"):
                status, _, body = server.request("POST", path, {"model": server.name, "input": "x"})
                check(status == 500 and b"gave no numbers" in body, f"{path}: {status} {body[:100]}")


if __name__ == "__main__":
    test_not_numbers()
    for pooling, bare in (("last", True), ("mean", False)):
        with tempfile.TemporaryDirectory() as directory:
            oracle_model = write_checkpoint(directory, pooling, bare)
            with Server(directory, "--cpu", "ref") as server:
                test_vectors(server, oracle_model, pooling)
            with Server(directory) as server:
                test_vanished(server)
    with tempfile.TemporaryDirectory() as directory:
        oracle_model = write_checkpoint(directory, None, False)
        with Server(directory) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            refused(
                lambda: client.embeddings.create(model=server.name, input="x"),
                openai.BadRequestError,
                "unsupported_model",
                "a model that was not made for it",
            )
        with Server(directory, "--pooling", "last", "--cpu", "ref") as server:
            test_vectors(server, oracle_model, "last")
    check.done()
