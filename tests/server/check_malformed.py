"""More than 500 malformed requests: every one is answered 4xx in OpenAI's error shape (or the connection is closed for
what is not HTTP), never 5xx, and the server goes on as if nothing had happened.
"""

import json
import random
import socket
import time

import shapes
from apus_server import Checks, Server, model_path

check = Checks()
cases = 0
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG = {  # field → values that must be refused with this param
    "temperature": [-0.1, 2.1, "hot", [], {}, True, 1e308, -1e308],
    "top_p": [-0.1, 1.1, "x", [1], False],
    "min_p": [-1, 2, "x"],
    "top_k": [-1, 1.5, "x", 2**40],
    "n": [0, -1, 129, 2**31, 2**63, 1.5, "2", True],
    "max_tokens": [0, -1, 1.5, "10", 2**31, 2**64, [], {}],
    "max_completion_tokens": [0, -5, "10", 2**40],
    "seed": [1.5, "7", 2**64, -(2**64), []],
    "stop": [5, {}, True, [], [1], ["a"] * 5, [""], "", [None], [["a"]]],
    "stream": ["true", 1, [], {}],
    "stream_options": [5, [], "x", {"include_usage": 5}, {"other": 1}, {"include_usage": True}],
    "frequency_penalty": [-2.1, 2.1, "x", []],
    "presence_penalty": [-3, 3, "x", {}],
    "repetition_penalty": [0, -1, 3, "x"],
    "logit_bias": [
        5,
        [],
        "x",
        {"a": 1},
        {"-1": 1},
        {"999999999": 1},
        {"99999999999999999999": 1},
        {"1": 101},
        {"1": "x"},
        {"": 1},
        {"1.5": 1},
    ],
    "logprobs": [5, "x", [], {}],
    "top_logprobs": [-1, 21, 10**6, 2**31 - 1, "x", 5],
    "messages": [
        5,
        "x",
        {},
        [],
        [5],
        ["x"],
        [[]],
        [None],
        [{}],
        [{"role": 5, "content": "x"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [{}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": [{"type": "video", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": "x", "name": 5}],
        [{"role": "user", "content": "x", "extra": 5}],
        [{"role": "assistant", "content": None, "tool_calls": [{}]}],
        [{"role": "user", "content": "x", "tool_calls": [CALL]}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}],
        [{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}],
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]}],
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}],
        [{"role": "assistant", "content": "x", "reasoning_content": 5}],
        [{"role": "function", "name": "f", "content": "x"}],
        [{"role": "tool", "content": "x"}],
        [{"role": "tool", "tool_call_id": 5, "content": "x"}],
        [{"role": "tool", "tool_call_id": "a"}],
        [{"content": "x"}],
    ],
    "model": [5, [], {}, True, "../../etc/passwd", "/etc/passwd", "other", ""],
    "tools": [
        5,
        "x",
        {},
        [5],
        [{}],
        [{"type": "function"}],
        [{"type": "function", "function": 5}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "x" * 65}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [{"type": "function", "function": {"name": "f", "strict": "x"}}],
        [{"type": "function", "function": {"name": "f", "description": 5}}],
        [{"type": "custom", "custom": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f"}}] * 129,
    ],
    "tool_choice": [
        "required",
        "any",
        5,
        [],
        {},
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": "f"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [TOOL]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
    ],
    "parallel_tool_calls": [5, "x"],
    "functions": [{}, [{"name": "f"}]],
    "function_call": [{"name": "f"}, "f", 5],
    "enable_thinking": [True, 5, "x"],
    "response_format": [
        5,
        "json",
        {},
        {"type": 5},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {"format": "date"}}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}},
        {"type": "json_object", "extra": 1},
    ],
    "json_schema": [5, "{", {"$ref": "other.json"}, {"type": 5}],
    "structured_outputs": [5, {}, {"regex": "("}, {"regex": "a", "json": {}}, {"other": 1}],
    "guided_regex": ["(", 5, "(?<=a)b"],
    "guided_grammar": ["root ::= (", "start: missing"],
    "guided_choice": [[], [5], "a"],
    "min_tokens": [-1, 5, "x"],
    "modalities": [5, ["audio"], "text", [5], []],
    "audio": [{"voice": "x"}],
    "prediction": [5, {"type": "content"}, {"type": "x", "content": "x"}],
    "moderation": [{}],
    "safety_identifier": ["x" * 65],
    "service_tier": ["flex", 5],
    "store": [True],
    "metadata": [5, [], {str(i): "x" for i in range(17)}, {"x" * 65: ""}, {"a": "x" * 513}, {"a": 5}],
    "reasoning_effort": ["low", "much", 5],
    "verbosity": ["low", 5],
    "web_search_options": [{}],
    "user": [5, []],
    "chat_template_kwargs": [5, [], {"messages": []}, {"bos_token": "x"}, {"x_token": "y"}],
    "ignore_eos": [5, "x"],
    "grammar": ["x"],
    "unknown_field": [1, None],
    "n_discard": [-1],
    "prompt": ["x"],
}
BODIES = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[]",
    b"5",
    b'"x"',
    b"null",
    b"true",
    b"{]",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1,}',
    b'{"a":1}{',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":01}',
    b'{"a":.5}',
    b'{"a":1.}',
    b'{"a":+1}',
    b"{'a':1}",
    b'{"a":"\\x"}',
    b'{"a":"\\ud800"}',
    b'{"a":"\\udc00\\ud800"}',
    b'{"a":"\xff"}',
    b'{"a":"\xc0\xaf"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\x00"}',
    b'{"a":"\n"}',
    b"\xef\xbb\xbf{}",
    b'{"a":1,"a":2}',
    b"[" * 200000,
    b'{"a":' * 50000,
    b"\x00" * 100,
    b'{"a":tru}',
    b'{"a":1e}',
    b'{"a":--1}',
    b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"a":"' + b"x" * 1000,
    b"<xml/>",
    b'{"a":1e99999}',
]


def refused(server, path, body, what, param=None, headers=None):
    global cases
    cases += 1
    status, _, data = server.request("POST", path, body, headers)
    if not check(400 <= status < 500, f"{what}: status {status} {data[:200]}"):
        return
    try:
        answer = json.loads(data)
    except ValueError:
        check(False, f"{what}: the answer is not JSON: {data[:100]}")
        return
    wrong = shapes.problem(shapes.ERROR, answer)
    check(wrong is None, f"{what}: {wrong}")
    if param and wrong is None:
        got = answer["error"]["param"] or ""
        check(got == param or got.startswith((param + ".", param + "[")), f"{what}: param {got!r}: {answer}")


def raw(server, data, wait=3):
    """Sends bytes, gives what comes back."""
    global cases
    cases += 1
    s = socket.create_connection(("127.0.0.1", server.port), timeout=wait)
    try:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        out = b""
        while True:
            part = s.recv(65536)
            if not part:
                break
            out += part
    except OSError:
        pass
    s.close()
    return out


def fields(server):
    base = {"model": server.name, "messages": MESSAGES, "max_tokens": 1}
    for field, values in WRONG.items():
        for value in values:
            if field == "unknown_field" and value is None:
                value = {}
            refused(server, "/v1/chat/completions", {**base, field: value}, f"{field}={str(value)[:80]}", field)
    for field in ("model", "messages"):
        refused(server, "/v1/chat/completions", {k: v for k, v in base.items() if k != field}, f"no {field}", field)
    old = {"model": server.name, "prompt": "x", "max_tokens": 1}
    for field, values in {
        "prompt": [5, {}, [], True, [5.5], [-1], [10**9], [[]], [["x"]], ["a", 5], [[5], "x"], ["x"] * 65, ""],
        "logprobs": [-1, 6, True, "x"],
        "best_of": [0, 129],
        "echo": ["x", 5],
        "suffix": [5],
        "max_tokens": [0, -1],
        "messages": [MESSAGES],
    }.items():
        for value in values:
            if field == "prompt" and value == "":
                continue  # a tokenizer with a start token makes this a prompt
            refused(server, "/v1/completions", {**old, field: value}, f"completions {field}={str(value)[:80]}", field)


def bodies(server):
    for body in BODIES:
        for path in ("/v1/chat/completions", "/v1/completions"):
            refused(server, path, body, f"body {body[:40]}")
    good = json.dumps(
        {"model": server.name, "messages": MESSAGES, "max_tokens": 1, "stop": ["a", "b"], "logit_bias": {"5": 1}}
    ).encode()
    generator = random.Random(1)
    for cut in range(1, len(good)):
        refused(server, "/v1/chat/completions", good[:cut], f"cut at {cut}")
    for _ in range(120):
        broken = bytearray(good)
        for _ in range(3):
            broken[generator.randrange(len(broken))] = generator.choice(b'\x00\x01\xff{}[]",:\\')
        status, _, data = server.request("POST", "/v1/chat/completions", bytes(broken))
        check(status < 500, f"mutated body: {status} {bytes(broken)}")
        global cases
        cases += 1


def protocol(server):
    good = {"model": server.name, "messages": MESSAGES, "max_tokens": 1}
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/jsonx"},
        {"Content-Encoding": "gzip"},
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        refused(server, "/v1/chat/completions", good, f"{headers}", headers=headers)
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, _, data = server.request(method, "/v1/chat/completions")
        check(status == 405 and shapes.problem(shapes.ERROR, json.loads(data)) is None, f"{method}: {status}")
    for path in (
        "/v1/nothing",
        "/../etc/passwd",
        "/v1/models/other",
        "/v1/models/..%2f..",
        "/%00",
        "/v1/chat/completions/",
    ):
        status, _, data = server.request("GET", path)
        check(status in (400, 404), f"{path}: {status}")
    body = json.dumps(good)
    untyped = {"Content-Type": None}
    check(server.request("POST", "/v1/chat/completions", good, untyped)[0] == 200, "a body without a type")
    for origin in (f"http://127.0.0.1:{server.port}", "null", "http://evil.example"):
        refused(
            server,
            "/v1/chat/completions",
            good,
            f"a body without a type from a browser at {origin}",
            headers={**untyped, "Origin": origin},
        )
    head = "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    for what, data in {
        "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        "no host": (head + f"Content-Length: {len(body)}\r\n\r\n{body}").encode(),
        "two hosts": (
            head + f"Host: localhost\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode(),
        "both lengths": (
            head
            + "Host: localhost\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
            + f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        ).encode(),
        "two lengths": (
            head + f"Host: localhost\r\nContent-Length: 5\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode(),
        "gzip chunked": (
            head + f"Host: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        ).encode(),
        "negative length": (head + "Host: localhost\r\nContent-Length: -5\r\n\r\n").encode(),
        "huge length": (head + "Host: localhost\r\nContent-Length: 1000000000000\r\n\r\n{}").encode(),
        "overflowing length": (head + "Host: localhost\r\nContent-Length: 9223372036854775808\r\n\r\n{}").encode(),
        "long line": b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"x%d: y\r\n" % i for i in range(5000))
        + b"\r\n",
        "bad chunk": (head + "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n").encode(),
    }.items():
        answer = raw(server, data)
        status = answer.split(b" ")[1] if answer.startswith(b"HTTP/") else b""
        check(status == b"" or status.startswith(b"4"), f"{what}: {answer[:120]}")
        check(answer.count(b"HTTP/1.1 2") == 0, f"{what}: accepted")


def slow_clients(server):
    """40 half-sent headers and 20 half-sent bodies do not keep others waiting."""
    sockets = []
    for i in range(60):
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            + (b"" if i < 40 else b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        )
        sockets.append(s)
    start = time.time()
    status = server.chat("hi", max_tokens=1)[
        0
    ]  # if they held the server's threads, it would wait until they are cut off
    check(status == 200 and time.time() - start < 9.5, f"a chat beside slow clients: {time.time() - start:.1f} s")
    time.sleep(11.5)  # the deadline of headers is 10 s
    gone = 0
    for s in sockets[:40]:
        s.settimeout(0.5)
        try:
            gone += s.recv(10) == b"" or True
        except TimeoutError:
            pass
        except OSError:
            gone += 1
    check(gone == 40, f"half-sent headers are cut off after 10 s ({gone} of 40)")
    [s.close() for s in sockets]


with Server(model_path("qwen-0.5b"), "--ctx-size", 1024, "--slots", 4) as server:
    before = server.chat("Say one word.", max_tokens=8, temperature=0)[1]["choices"]
    for part in (fields, bodies, protocol, slow_clients):
        start = time.time()
        part(server)
        print(f"{part.__name__}: {time.time() - start:.1f} s")
    refused(
        server, "/v1/chat/completions", b'{"model":"x","user":"' + b"a" * (33 << 20) + b'"}', "a body over the limit"
    )
    check(server.alive() and server.wait_idle(), "the server lives and is idle")
    check(server.chat("Say one word.", max_tokens=8, temperature=0)[1]["choices"] == before, "and answers as before")
check(cases >= 500, f"{cases} cases")
print(f"{cases} cases")
check.done()
