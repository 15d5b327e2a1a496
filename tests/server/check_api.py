"""The API on a real model: shapes of answers, streams equal whole answers, seeds, isolation, cancellation, limits."""

import http.client
import json
import os
import signal
import socket
import tempfile
import threading
import time

import shapes
from apus_server import Checks, Server, model_path
from tiny_model import write_tiny_model

check = Checks()
SHORT = {"max_tokens": 24, "temperature": 0}


def post(path, body, version="HTTP/1.1"):
    """A request as its bytes."""
    head = f"POST {path} {version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def valid(schema, value, what):
    wrong = shapes.problem(schema, value)
    check(wrong is None, f"{what}: {wrong}")


def join_stream(events):
    """Checks the rules of a chat stream and gives {index: (text, logprob entries, finish)}."""
    check(events[-1] == "[DONE]", "a stream ends with [DONE]")
    chunks = [json.loads(e) for e in events[:-1]]
    choices, heads = {}, set()
    for chunk in chunks:
        valid(shapes.CHUNK, chunk, "chunk")
        heads.add((chunk["id"], chunk["created"], chunk["model"]))
        for c in chunk["choices"]:
            state = choices.setdefault(c["index"], {"text": "", "logprobs": [], "finish": None, "roles": 0})
            check(state["finish"] is None, "nothing after the finish chunk")
            delta = c["delta"]
            state["roles"] += "role" in delta
            check(state["roles"] == 1, "the role comes first and once")
            state["text"] += delta.get("content") or ""
            state["logprobs"] += (c.get("logprobs") or {}).get("content") or []
            if c["finish_reason"]:
                state["finish"] = c["finish_reason"]
                check(delta == {}, "the finish chunk has an empty delta")
    check(len(heads) == 1, "one id, created and model in a stream")
    return choices, chunks


def test_shapes(s):
    status, headers, body = s.request("GET", "/v1/models")
    valid(shapes.MODELS, json.loads(body), "models")
    status, _, body = s.request("GET", f"/v1/models/{s.name}")
    valid(shapes.MODEL, json.loads(body), "model")
    status, answer = s.chat("Say hello.", **SHORT)
    check(status == 200, "chat answers")
    valid(shapes.CHAT, answer, "chat")
    check(
        answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"],
        "usage adds up",
    )
    begun = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    status, on = s.chat(begun, continue_final_message=True, **SHORT)
    check(
        status == 200 and on["choices"][0]["message"]["content"].startswith(" Paris"), f"continue_final_message: {on}"
    )
    for wrong in (begun[:1], begun[:1] + [{"role": "assistant", "content": ""}]):
        status, on = s.chat(wrong, continue_final_message=True, **SHORT)
        check(status == 400 and on["error"]["param"] == "continue_final_message", f"nothing to continue: {on}")
    status, headers, body = s.request("GET", "/health", headers={"x-request-id": "abc-1"})
    check(headers.get("x-request-id") == "abc-1", "x-request-id is echoed")


def test_stream_equals_whole(s):
    for fields in (
        {**SHORT},
        {**SHORT, "n": 2, "temperature": 1, "seed": 5},
        {**SHORT, "logprobs": True, "top_logprobs": 3},
        {**SHORT, "stop": ["o", "zz"]},
        {"max_tokens": 40, "seed": 3, "temperature": 1.5, "logprobs": True},
    ):
        status, whole = s.chat("Tell me about 你好, emoji 🙂 and the ocean.", **fields)
        check(status == 200, f"whole answer for {fields}: {whole}")
        events = s.stream(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "Tell me about 你好, emoji 🙂 and the ocean."}],
                "stream_options": {"include_usage": True},
                **fields,
            },
        )
        choices, chunks = join_stream(events)
        for usage in (
            chunks[-1]["usage"],
            whole["usage"],
        ):  # what earlier requests left is found once more by the second
            usage.pop("prompt_tokens_details")
        check(
            all("usage" in c for c in chunks) and chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"],
            f"usage of the stream is that of the whole: {chunks[-1]} {whole['usage']}",
        )
        for c in whole["choices"]:
            got = choices[c["index"]]
            check(
                got["text"] == c["message"]["content"], f"stream = whole: {got['text']!r} {c['message']['content']!r}"
            )
            check(got["finish"] == c["finish_reason"], "same finish")
            if fields.get("logprobs"):
                check(got["logprobs"] == c["logprobs"]["content"], "same logprobs")
                tokens = c["logprobs"]["content"]
                joined = b"".join(bytes(t["bytes"]) for t in tokens).decode("utf-8", "replace")
                check(joined.startswith(c["message"]["content"].rstrip("\ufffd")), f"bytes rejoin: {joined!r}")
                check(
                    all(len(t["top_logprobs"]) == fields.get("top_logprobs", 0) for t in tokens),
                    "as many alternatives as asked for",
                )
        if "stop" in fields:
            check("o" not in whole["choices"][0]["message"]["content"], "the stop string is cut off")


def test_completions(s):
    def complete(**fields):
        status, _, body = s.request("POST", "/v1/completions", {"model": s.name, **fields})
        return status, json.loads(body)

    status, a = complete(prompt="The capital of France is", temperature=0)
    valid(shapes.COMPLETION, a, "completion")
    check(a["usage"]["completion_tokens"] == 16 or a["choices"][0]["finish_reason"] == "stop", "16 tokens by default")
    status, b = complete(prompt=["The capital of France is", "1 2 3"], temperature=0, n=2)
    check([c["index"] for c in b["choices"]] == [0, 1, 2, 3], "two prompts, two choices each")
    check(b["choices"][0]["text"] == a["choices"][0]["text"], "alone = among others")
    status, c = complete(prompt=[785, 6722, 315], temperature=0, echo=True, logprobs=2, max_tokens=0)
    valid(shapes.COMPLETION, c, "prompt scoring")
    lp = c["choices"][0]["logprobs"]
    check(
        len(lp["tokens"]) == 3 and lp["token_logprobs"][0] is None and all(x < 0 for x in lp["token_logprobs"][1:]),
        f"prompt logprobs {lp}",
    )
    status, all_of = complete(prompt=["Once upon", "The"], n=4, max_tokens=6, seed=3, logprobs=0)
    status, best = complete(prompt=["Once upon", "The"], best_of=4, n=2, max_tokens=6, seed=3)
    mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])  # noqa: E731
    wanted = [c["text"] for p in (0, 4) for c in sorted(all_of["choices"][p : p + 4], key=mean, reverse=True)[:2]]
    check(
        [c["text"] for c in best["choices"]] == wanted and best["choices"][0]["logprobs"] is None,
        f"best_of gives the likeliest: {best} {wanted}",
    )
    check(
        [c["index"] for c in best["choices"]] == [0, 1, 2, 3]
        and best["usage"]["completion_tokens"] == all_of["usage"]["completion_tokens"],
        "and counts all",
    )
    status, middle = complete(
        prompt="def add(a, b):\n    ", suffix="\n\nprint(add(2, 3))\n", max_tokens=24, temperature=0
    )
    check(status == 200 and middle["choices"][0]["text"].startswith("return a + b"), f"suffix: {middle}")
    events = s.stream(
        "/v1/completions", {"prompt": "word " * 300, "max_tokens": 2, "return_progress": True, "cache_prompt": False}
    )
    told = [json.loads(e)["prompt_progress"] for e in events[:-1] if "prompt_progress" in e]
    check(
        told
        and told[-1]["processed"] == told[-1]["total"]
        and [t["processed"] for t in told] == sorted({t["processed"] for t in told}),
        f"progress: {told}",
    )
    events = s.stream("/v1/completions", {"prompt": "The capital of France is", "temperature": 0})
    for e in events[:-1]:
        valid(shapes.COMPLETION_CHUNK, json.loads(e), "completion chunk")
    check(
        "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == a["choices"][0]["text"],
        "completion stream = whole",
    )


def test_isolation(s):
    """More requests than slots at once; check_schema.py has twice as many, each compared."""
    COUNT = 32
    prompts = [f"Write one sentence about the number {i}." for i in range(COUNT)]
    fields = [
        dict(max_tokens=12 + i % 9, **({"temperature": 0} if i % 2 else {"temperature": 1, "seed": i}))
        for i in range(COUNT)
    ]
    alone = {}
    for i in range(0, COUNT, 4):
        alone[i] = s.chat(prompts[i], **fields[i])[1]["choices"]
    together = [None] * COUNT

    def one(i):
        status, answer = s.chat(prompts[i], **fields[i])
        together[i] = answer["choices"] if status == 200 else (status, answer)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(COUNT)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i in alone:
        check(alone[i] == together[i], f"request {i}: alone = among all: {alone[i]} {together[i]}")
    check(all(isinstance(t, list) for t in together), "all were answered")


def test_disconnect(s):
    for stream in (False, True):
        body = json.dumps(
            {
                "model": s.name,
                "stream": stream,
                "ignore_eos": True,
                "max_tokens": 400,
                "messages": [{"role": "user", "content": "Count."}],
            }
        )
        raw = socket.create_connection(("127.0.0.1", s.port))
        raw.sendall(post("/v1/chat/completions", body))
        start = time.time()
        while s.health()["running"] == 0 and time.time() - start < 10:
            time.sleep(0.01)
        check(s.health()["running"] == 1, "the request runs")
        raw.close()
        start = time.time()
        while s.health()["running"] > 0 and time.time() - start < 10:
            time.sleep(0.01)
        check(
            time.time() - start < 1.5,
            f"a vanished client's slot is freed (stream {stream}): {time.time() - start:.2f} s",
        )


def test_limits(s):
    status, answer = s.chat("word " * 5000, max_tokens=10)
    check(
        status == 400 and answer["error"]["code"] == "context_length_exceeded" and "512" in answer["error"]["message"],
        f"a full context: {answer}",
    )
    status, answer = s.chat("hi", max_tokens=100000)
    check(status == 400 and answer["error"]["code"] == "context_length_exceeded", "max_tokens beyond the context")
    status, answer = s.chat("hi", ignore_eos=True, temperature=0)
    check(
        status == 200 and answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["total_tokens"] == 512,
        f"without max_tokens an answer may fill the context: {answer.get('usage')}",
    )


def test_keepalive(s):
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    for body, wanted in (
        (b"{", 400),
        (b'{"model":"x"}', 400),
        (b'{"model":"x","messages":[{"role":"user","content":"a"}]}', 404),
    ):
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        check(response.status == wanted, f"{body}: {response.status} {data}")
        valid(shapes.ERROR, json.loads(data), "error")
    connection.close()


def raw_stream(s, version, fields, receive_bytes=None):
    """A connection on which a stream was asked for."""
    raw = socket.socket()
    if receive_bytes:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.settimeout(120)
    raw.connect(("127.0.0.1", s.port))
    body = json.dumps({"model": s.name, "stream": True, "messages": [{"role": "user", "content": "Count."}], **fields})
    raw.sendall(post("/v1/chat/completions", body, version))
    return raw


def read_until(raw, end):
    data = b""
    while not data.endswith(end):
        block = raw.recv(1 << 16)
        if not block:
            break
        data += block
    return data


def unchunk(body):
    """The bytes of a chunked body; None when its framing is wrong."""
    out = b""
    while True:
        size, found, body = body.partition(b"\r\n")
        if not found or not size or int(size, 16) > len(body):
            return None
        size = int(size, 16)
        if size == 0:
            return out if body == b"\r\n" else None
        if body[size : size + 2] != b"\r\n":
            return None
        out, body = out + body[:size], body[size + 2 :]


def is_whole(events):
    return events is not None and events.startswith(b"data: {") and events.endswith(b"data: [DONE]\n\n")


def test_stream_wire(s):
    raw = raw_stream(s, "HTTP/1.1", {**SHORT, "ignore_eos": True})
    for again in range(2):
        head, _, body = read_until(raw, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")
        check(b" 200 " in head.split(b"\r\n")[0] and b"chunked" in head.lower(), f"a chunked answer: {head}")
        check(is_whole(unchunk(body)), f"chunks hold the events (request {again} of a connection): {body[-200:]}")
        if not again:  # the connection lives on behind a stream
            text = json.dumps({"model": s.name, "prompt": "One, two,", "stream": True, **SHORT})
            raw.sendall(post("/v1/completions", text))
    raw.close()
    raw = raw_stream(s, "HTTP/1.0", SHORT)
    head, _, body = read_until(raw, b"never").partition(b"\r\n\r\n")
    check(
        b"chunked" not in head.lower() and is_whole(body), f"HTTP/1.0 gets no chunks: {head} {body[:80]} {body[-80:]}"
    )
    raw.close()


def test_slow_reader(s):
    """Somebody who does not read his events (more of them than sockets hold) keeps nobody up and loses nothing."""
    fields = {
        "max_tokens": 450,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
        "n": 4,
        "temperature": 1,
        "seed": 1,
    }
    slow = raw_stream(s, "HTTP/1.1", fields, 4096)
    start = time.time()
    events = s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], **SHORT})
    check(events[-1] == "[DONE]", "a stream beside a slow reader")
    check(s.wait_idle(60), "an answer ends though nobody reads it")
    time.sleep(0.3)
    head, _, body = read_until(slow, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")
    content = unchunk(body)
    check(is_whole(content), f"the slow reader gets everything: {len(body)} bytes")
    entries = sum(
        len(c["logprobs"]["content"])
        for line in (content or b"").split(b"\n\n")
        if line.startswith(b"data: {")
        for c in json.loads(line[6:])["choices"]
        if c.get("logprobs")
    )
    check(entries == 1800, f"{entries} of 1800 tokens, {len(body)} bytes, {time.time() - start:.1f} s")
    slow.close()


def test_idle(s):
    """Nothing turns over in a server without work, not even with a connection open."""
    process = f"/proc/{s.process.pid}"
    if not os.path.exists(process):
        return print("idle: no /proc here")

    def used():
        ticks, switches = 0, 0
        for task in os.listdir(f"{process}/task"):
            with open(f"{process}/task/{task}/stat") as stat, open(f"{process}/task/{task}/status") as status:
                ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
                switches += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
        return ticks, switches

    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    body = json.dumps({"model": s.name, "messages": [{"role": "user", "content": "Hello"}], **SHORT})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    check(connection.getresponse().read(), "an answer before the silence")
    time.sleep(0.5)
    before = used()
    time.sleep(3)
    after = used()
    connection.close()
    check(after[0] - before[0] <= 1, f"idle for 3 s: {after[0] - before[0]} ticks of processor time")
    check(after[1] - before[1] <= 3, f"idle for 3 s: {after[1] - before[1]} context switches")


def test_key(path):
    with Server(path, "--ctx-size", 512, "--api-key", "secret-key") as s:
        check(s.request("GET", "/v1/models")[0] == 401, "no key: 401")
        check(s.request("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401, "wrong key: 401")
        check(s.request("GET", "/v1/models", headers={"Authorization": "bearer secret-key"})[0] == 200, "right key")
        check(s.request("GET", "/health")[0] == 200, "health needs no key")
    check(s.code == 0, "SIGTERM: exit code 0")


def test_shutdown(path):
    """SIGTERM: what ends within 10 s ends as ever, new work is refused, and the rest is told why it ends."""
    with Server(path, "--ctx-size", 8192, "--threads", 1) as s:
        long = raw_stream(s, "HTTP/1.1", {"max_tokens": 8000, "ignore_eos": True})
        short = raw_stream(s, "HTTP/1.1", SHORT)
        long.recv(1), short.recv(1)
        s.process.send_signal(signal.SIGTERM)
        body = read_until(short, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2]
        check(is_whole(unchunk(body)), "a stream that ends soon is whole")
        check(s.chat("Hi", **SHORT)[0] == 503, "no new work")
        content = unchunk(read_until(long, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2])
        check(content is not None, "a stream that is cut ends as HTTP should")
        last = (content or b"").rstrip(b"\n").rpartition(b"\n\n")[2]
        check(
            last.startswith(b"data: {") and json.loads(last[6:])["error"]["code"] == "shutting_down",
            f"and says why: {last}",
        )
        s.process.wait(30)  # a second signal would end it at once
    check(s.code == 0, "SIGTERM beside streams: exit code 0")


def test_base_model(directory):
    """A model without a chat template: chats are refused with a code for programs, completions are answered."""
    write_tiny_model(directory, template=None)
    with Server(directory, "--ctx-size", 512) as s:
        status, answer = s.chat("Hi", **SHORT)
        error = answer.get("error", {})
        known = error["code"] == "unsupported_model" and error["param"] == "messages"
        check(status == 400 and known, f"chat: {answer}")
        status, _, body = s.request("POST", "/v1/completions", {"model": s.name, "prompt": "Hi", "max_tokens": 2})
        check(status == 200, f"completions: {body}")


def run(server, *tests):
    for test in tests:
        start = time.time()
        test(server)
        print(f"{test.__name__}: {time.time() - start:.1f} s")
    check(server.wait_idle(), "idle at the end")


path = model_path("qwen-0.5b")
with Server(path, "--ctx-size", 512, "--slots", 8) as real:
    run(real, test_shapes, test_stream_equals_whole, test_completions, test_disconnect, test_isolation)
with tempfile.TemporaryDirectory() as tiny_path:  # what does not depend on the words
    write_tiny_model(tiny_path)
    with Server(tiny_path, "--ctx-size", 512, "--slots", 8) as tiny:
        run(tiny, test_limits, test_keepalive, test_stream_wire, test_slow_reader, test_idle)
    test_key(tiny_path)
    test_base_model(tiny_path)
test_shutdown(path)
check.done()
