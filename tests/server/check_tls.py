#!/usr/bin/env python3
"""HTTPS: whole answers, streams and large bodies on connections that live on; clients that are not TLS or never finish
their handshake.
"""

import http.client
import json
import os
import socket
import ssl
import subprocess
import tempfile
import time

from apus_server import BINARY, Checks, Server
from tiny_model import write_tiny_model

check = Checks()


def make_certificate(directory):
    key, certificate = os.path.join(directory, "key.pem"), os.path.join(directory, "certificate.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def main():
    with tempfile.TemporaryDirectory() as model:
        write_tiny_model(model)
        certificate, key = make_certificate(model)
        for options in (
            ["--tls-cert", certificate],
            ["--tls-cert", certificate, "--tls-key", certificate],
            ["--tls-cert", "/nowhere", "--tls-key", key],
        ):
            done = subprocess.run(
                [BINARY, "serve", model, "--port", "0", *options], capture_output=True, text=True, timeout=60
            )
            check(done.returncode != 0 and "--tls-" in done.stderr, f"{options}: {done.stderr}")
        with Server(model, "--slots", 2, "--threads", 1, "--tls-cert", certificate, "--tls-key", key) as server:
            context = ssl.create_default_context(cafile=certificate)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context.minimum_version = context.maximum_version = version
                client = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=20)

                def ask(path, **fields):
                    client.request(
                        "POST", path, json.dumps({"model": server.name, **fields}), {"Content-Type": "application/json"}
                    )
                    response = client.getresponse()
                    return response.status, response.read().decode()

                messages = [{"role": "user", "content": "hi"}]
                for _ in range(5):
                    status, whole = ask("/v1/chat/completions", messages=messages, max_tokens=20, temperature=0)
                    check(status == 200, whole)
                    status, stream = ask(
                        "/v1/chat/completions", messages=messages, max_tokens=20, temperature=0, stream=True
                    )
                    deltas = [
                        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                        for line in stream.split("\n\n")
                        if line.startswith("data: {")
                    ]
                    check(
                        stream.endswith("data: [DONE]\n\n")
                        and "".join(deltas) == json.loads(whole)["choices"][0]["message"]["content"],
                        stream[-200:],
                    )
                    status, large = ask(
                        "/v1/chat/completions", messages=messages, max_tokens=1, user="a" * (3 << 20)
                    )  # larger than any buffer
                    check(status == 200, large)
                    status, large = ask("/tokenize", content="a" * 400000)
                    check(status == 200 and json.loads(large)["count"] == 400000, large[:100])
                client.close()
            two = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with context.wrap_socket(
                socket.create_connection(("127.0.0.1", server.port), timeout=10), server_hostname="localhost"
            ) as s:
                s.sendall(two * 50 + b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")  # in one record
                out = b""
                while part := s.recv(65536):
                    out += part
                check(
                    out.count(b"HTTP/1.1 200 OK") == 51,
                    f"{out.count(b'HTTP/1.1 200 OK')} answers to requests that came together",
                )
            silent = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            silent.sendall(b"\x16\x03\x01")
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            plain.sendall(two)
            try:
                check(b"HTTP/1.1 200" not in plain.recv(1000), "an answer without TLS")
            except OSError:
                pass
            start = time.time()
            try:
                silent.recv(100)
            except OSError:
                pass
            check(
                8 < time.time() - start < 13, f"a handshake without end was cut off after {time.time() - start:.1f} s"
            )
            check(server.alive(), "the server lives")
        check(server.code == 0, f"exit code {server.code}")
    check.done()


main()
