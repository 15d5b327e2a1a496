#!/usr/bin/env python3
"""What a service manager and an operator do with a server: the log as JSON, notifications, keys and certificates
exchanged by SIGHUP, a crowd of TLS handshakes, the time to drain, a text that is too long to be tokenized, and
bench/server.py.
"""

import json
import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from apus_server import BINARY, ROOT, Checks, Server
from tiny_model import write_tiny_model

check = Checks()
SECRET = "a text that nobody may find in the log"


def log(model):
    """Every line is JSON; a request has one, with its numbers and never its text."""
    with tempfile.TemporaryFile("w+") as file:
        with Server(model, "--slots", 2, "--threads", 1, "--log-format", "json", log=file) as server:
            asked = [
                server.chat(SECRET, max_tokens=7, ignore_eos=True)[0],
                server.chat(SECRET, temperature=9)[0],
                server.request("GET", "/" + "secret" * 3)[0],
            ]
            check(asked == [200, 400, 404], asked)
            status, _, _ = server.request(
                "POST",
                "/v1/completions",
                {"model": server.name, "prompt": SECRET, "max_tokens": 2000, "ignore_eos": True},
                {"x-request-timeout": "0.02", "x-request-id": "mine-1"},
            )
            check(status == 504, status)
            server.stream(
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "ignore_eos": True},
            )
            with socket.create_connection(("127.0.0.1", server.port)) as s:  # goes before it is answered
                body = json.dumps(
                    {"model": server.name, "prompt": SECRET, "max_tokens": 1900, "n": 16, "ignore_eos": True}
                ).encode()
                s.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: gone\r\nContent-Type: "
                    b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
            server.wait_idle()
            server.request("GET", "/metrics")
        file.seek(0)
        text = file.read()
    check("nobody" not in text, "no line has a request's text")
    lines = [json.loads(line) for line in text.splitlines()]
    check(all({"time", "level", "message"} <= set(line) for line in lines), "time, level and message")
    requests = [line for line in lines if line["message"] == "request"]
    # A line is written when its answer is out: that of the next request may come before it.
    requests.sort(key=lambda line: (line["status"], "stream" in line))
    check(
        [line["status"] for line in requests] == [200, 200, 400, 404, 499, 504], [line["status"] for line in requests]
    )
    first, stream, wrong, _, gone, late = requests
    check(
        first["completion_tokens"] == 7
        and first["prompt_tokens"] > len(SECRET)
        and first["finish"] == "length"
        and first["model"] == "test-model"
        and first["path"] == "/v1/chat/completions"
        and first["client"] == "127.0.0.1"
        and first["ms"] >= first["decode_ms"] > 0,
        first,
    )
    check(wrong["code"] == "decimal_above_max_value" and "finish" not in wrong, wrong)
    check(
        late["code"] == "request_timeout"
        and late["id"] == "mine-1"
        and late["finish"] == "abort"
        and late["completion_tokens"] < 2000,
        late,
    )
    check(stream["stream"] == 1 and stream["completion_tokens"] == 5, stream)
    check(gone["id"] == "gone", gone)
    with tempfile.TemporaryFile("w+") as file:
        with Server(model, "--no-request-log", log=file) as server:
            server.chat("hi", max_tokens=1)
        file.seek(0)
        check("request" not in file.read(), "--no-request-log")


def notify(model):
    """sd_notify's protocol: ready when it is, stopping when it does. SIGTERM waits as long as it is told to."""
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(os.path.join(place, "notify"))
        s.settimeout(10)
        with Server(
            model, "--slots", 1, "--threads", 1, "--drain-timeout", "2s", environment={"NOTIFY_SOCKET": s.getsockname()}
        ) as server:
            check(s.recv(100) == b"READY=1", "ready")
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                body = json.dumps(
                    {"model": server.name, "prompt": "x", "max_tokens": 1900, "n": 128, "ignore_eos": True}
                ).encode()
                client.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(body) + body
                )
                start = time.time()
                while server.health()["running"] == 0 and time.time() < start + 10:
                    time.sleep(0.01)
                start = time.time()
                server.process.send_signal(signal.SIGTERM)
                check(s.recv(100) == b"STOPPING=1", "stopping")
                time.sleep(0.1)
                check(server.health()["status"] == "draining", "probes hear that it drains")
                out = client.recv(65536)
                check(b"503" in out[:20] and b"shutting_down" in out, out)
                check(1.8 < time.time() - start < 5, f"it drained for {time.time() - start:.1f} s")
            check(server.process.wait(timeout=30) == 0, "exit code")


def certificate(place, name):
    paths = [os.path.join(place, part) for part in ("certificate.pem", "key.pem")]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            paths[1],
            "-out",
            paths[0],
        ],
        check=True,
        capture_output=True,
    )
    return paths


def reload(model):
    """SIGHUP: new connections get the new certificate, the new keys are asked for; unreadable files change nothing."""

    def name(server):
        with insecure.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as s:
            return s.getpeercert(binary_form=True)

    def ask(server, key, wanted):
        end = time.time() + 5
        while True:
            with insecure.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as s:
                s.sendall(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
                status = int(s.recv(1000)[9:12])
            if status == wanted or time.time() > end:
                return check(status == wanted, f"key {key}: {status}")

    def wait_for(file, words):
        end = time.time() + 5
        while words not in (text := open(file.name).read()) and time.time() < end:
            time.sleep(0.05)
        check(words in text, text)

    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as place:
        paths, keys = certificate(place, "one"), os.path.join(place, "keys")
        with open(keys, "w") as file:
            file.write("first\n")
        with (
            open(os.path.join(place, "log"), "w+") as file,
            Server(
                model,
                "--slots",
                1,
                "--threads",
                1,
                "--tls-cert",
                paths[0],
                "--tls-key",
                paths[1],
                "--api-key-file",
                keys,
                log=file,
                prefix=["sh", "-c", 'exec "$@" </dev/null', "sh"],
            ) as server,
        ):
            before = name(server)
            ask(server, "first", 200)
            kept = insecure.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            certificate(place, "two")
            with open(keys, "w") as new:
                new.write("second\nthird\n")
            server.process.send_signal(signal.SIGHUP)
            ask(server, "third", 200)
            ask(server, "first", 401)
            after = name(server)
            check(after != before, "another certificate")
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            check(kept.recv(1000).startswith(b"HTTP/1.1 200"), "a connection from before goes on")
            kept.close()
            open(keys, "w").close()
            server.process.send_signal(signal.SIGHUP)
            wait_for(file, "it is empty")
            ask(server, "third", 200)
            with open(paths[0], "w") as broken:
                broken.write("nothing")
            with open(keys, "w") as new:
                new.write("fourth\n")
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            ask(server, "fourth", 401)
            ask(server, "third", 200)
            check(name(server) == after and server.alive(), "the certificate stays")
            file.seek(0)
            check("everything stays as it was" in file.read(), "the log says so")


def flood(port, hello, done, count):
    while not done.is_set():
        crowd = []
        for _ in range(100):
            s = socket.create_connection(("127.0.0.1", port), timeout=10)
            s.sendall(hello)
            crowd.append(s)
        count.value += len(crowd)
        [s.close() for s in crowd]


def handshakes(model):
    """Who only comes for handshakes does not keep others waiting: requests on connections that are open already."""

    def delays(seconds):
        found, end = [], time.time() + seconds
        while time.time() < end:
            start = time.time()
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not s.recv(10000).endswith(b"}"):
                pass
            found.append(time.time() - start)
        return sorted(found)

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        hello = out.read()
    with tempfile.TemporaryDirectory() as place:
        paths = certificate(place, "one")
        with Server(model, "--slots", 1, "--threads", 1, "--tls-cert", paths[0], "--tls-key", paths[1]) as server:
            s = context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            alone, done, count = delays(0.5), multiprocessing.Event(), multiprocessing.Value("i")
            other = multiprocessing.Process(target=flood, args=(server.port, hello, done, count))
            other.start()
            beside = delays(3)
            done.set()
            other.join()
            print(
                f"{count.value / 3:.0f} handshakes a second beside it: a request takes "
                f"{alone[len(alone) // 2] * 1e3:.2f} ms alone, "
                f"{beside[len(beside) // 2] * 1e3:.2f} then, 99 of 100 within "
                f"{beside[int(len(beside) * 0.99)] * 1e3:.1f}, {len(beside)} of them"
            )
            # Four of a millisecond or two before each turn, on processors that others use, too; all that have come
            # would take half a second.
            check(beside[int(len(beside) * 0.9)] < 0.2, "a request beside handshakes")
            check(count.value > 100, "there were handshakes")


def long_text(model):
    with Server(model, "--slots", 1, "--threads", 1) as server:
        for size, wanted in ((4 << 20, 200), ((4 << 20) + 1, 400)):
            status, _, body = server.request("POST", "/tokenize", {"content": "a" * size})
            check(
                status == wanted and (status == 200 or json.loads(body)["error"]["code"] == "string_above_max_length"),
                f"{size}: {status} {body[:200]}",
            )


def usage(model):
    for option, value in (
        ("--log-format", "xml"),
        ("--request-timeout", "0"),
        ("--queue-timeout", "soon"),
        ("--drain-timeout", "-1"),
    ):
        done = subprocess.run([BINARY, "serve", model, option, value], capture_output=True, text=True)
        check(done.returncode == 2 and option in done.stderr, f"{option} {value}: {done.returncode} {done.stderr}")


def bench(model):
    """It measures, and ends with the message of a server that refuses."""

    def run(*options):
        command = [
            sys.executable,
            os.path.join(ROOT, "bench", "server.py"),
            "--apus",
            BINARY,
            "--only",
            "streams",
            "--streams",
            "2",
            "--tokens",
            "4",
            "--rounds",
            "1",
        ]
        return subprocess.run([*command, *options, model], capture_output=True, text=True, timeout=60)

    done = run()
    check(done.returncode == 0 and '"streams, 2 of 4",apus,' in done.stdout, (done.stdout, done.stderr))
    done = run("--apus-options", "--ctx-size 16")
    check(
        done.returncode == 1
        and "apus: HTTP/1.1 400" in done.stderr
        and "maximum context length is 16 tokens" in done.stderr,
        done.stderr,
    )


def main():
    with tempfile.TemporaryDirectory() as model:
        write_tiny_model(model)
        for part in (log, notify, reload, handshakes, long_text, usage, bench):
            part(model)
    check.done()


main()
