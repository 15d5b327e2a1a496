#!/usr/bin/env python3
"""Ten replicas behind nginx (least_conn), as docs/operations.md sets it up: streams and whole answers go on all the
time while one replica after another is killed, and drained; only what a killed one was answering ends. Skipped where
there is no nginx.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from apus_server import ROOT, Checks, Server
from tiny_model import write_tiny_model

check = Checks()
REPLICAS, CLIENTS, KILLS = 10, 16, 3


def documented(ports, port):
    """The configuration of the documentation, with our addresses."""
    with open(os.path.join(ROOT, "docs", "operations.md")) as file:
        text = file.read()
    begin = text.index("    upstream apus {")
    block = text[begin : text.index("\n\n", begin)]
    server = re.search(r"^ *server 10\.0\.0\.1:5413 (.*)$", block, re.M).group(1)
    block = re.sub(r"^ *server 10\..*\n", "", block, flags=re.M)
    servers = "\n".join(f"server 127.0.0.1:{p} {server}" for p in ports)
    return block.replace("least_conn;", "least_conn;\n" + servers).replace("listen 80;", f"listen 127.0.0.1:{port};")


def start_nginx(nginx, place, ports):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    paths = "\n".join(
        f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    with open(os.path.join(place, "nginx.conf"), "w") as file:
        file.write(
            f"daemon off; worker_processes 1; pid {place}/pid; error_log {place}/error.log;\nevents {{ "
            f"worker_connections 512; }}\n"
            f"http {{\naccess_log off;\n{paths}\n{documented(ports, port)}\n}}\n"
        )
    process = subprocess.Popen(
        [nginx, "-p", place, "-e", f"{place}/error.log", "-c", os.path.join(place, "nginx.conf")]
    )
    end = time.time() + 10
    while time.time() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, port
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nginx did not start: {open(os.path.join(place, 'error.log')).read()}")


class Client(threading.Thread):
    """Asks again and again; what did not end well, with when it ran."""

    def __init__(self, port, number):
        super().__init__()
        self.port, self.number, self.stopping, self.answers, self.broken, self.failed = port, number, False, 0, [], []

    def ask(self, stream):
        body = json.dumps(
            {
                "model": "test-model",
                "messages": [{"role": "user", "content": f"{self.number} {random.random()}"}],
                "max_tokens": 900,
                "ignore_eos": True,
                "stream": stream,
            }
        ).encode()
        out = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
            s.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                b"application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            while part := s.recv(65536):
                out += part
        return out

    def run(self):
        stream = self.number % 2 == 0
        while not self.stopping:
            start = time.time()
            try:
                out = self.ask(stream)
            except OSError as error:
                out = str(error).encode()
            whole = (
                b"data: [DONE]" in out[-40:] if stream else out.endswith(b"}") and b'"finish_reason":"length"' in out
            )
            if out.startswith(b"HTTP/1.1 200") and whole:
                self.answers += 1
            else:
                # Events, or the start of an answer, had come: nobody could ask anew for them.
                (self.broken if out.startswith(b"HTTP/1.1 200") else self.failed).append(
                    (start, time.time(), out[:200])
                )


def running(server):
    return server.health()["running"] + server.health()["waiting"]


def main():
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if not nginx:
        print("skipped: no nginx (apt-get install nginx-light)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        write_tiny_model(model)
        replicas = [Server(model, "--slots", 4, "--threads", 1, "--ctx-size", 1024) for _ in range(REPLICAS)]
        proxy, port = start_nginx(nginx, place, [replica.port for replica in replicas])
        clients = [Client(port, i) for i in range(CLIENTS)]
        try:
            [client.start() for client in clients]
            time.sleep(2)
            check(not any(client.failed or client.broken for client in clients), "all is well before")
            lost = hit = 0
            for _i in range(KILLS):
                before = sum(len(client.failed) + len(client.broken) for client in clients)
                held, victim = max(
                    (running(replica), number) for number, replica in enumerate(replicas) if replica.alive()
                )
                replicas[victim].process.kill()
                replicas[victim].process.wait()
                hit += held
                time.sleep(1.5)
                now = sum(len(client.failed) + len(client.broken) for client in clients) - before
                lost += now
                # least_conn gives each of 10 replicas one or two of 16 clients; others may have come between the count
                # and the kill.
                check(now <= held + 3, f"a kill of a replica that answered {held} ended {now} answers")
            check(hit > 0, "those that were killed were answering")
            drained = next(replica for replica in replicas if replica.alive())
            drained.process.send_signal(signal.SIGTERM)  # what it answers goes on, what comes is asked elsewhere
            code = drained.process.wait(timeout=30)
            check(code == 0, f"exit code {code}")
            time.sleep(1)
        finally:
            for client in clients:
                client.stopping = True
            [client.join() for client in clients]
            proxy.terminate()
            proxy.wait()
            for replica in replicas:
                if replica.process.poll() is None:
                    replica.process.kill()
                    replica.process.wait()
        ended = sum(len(client.failed) + len(client.broken) for client in clients)
        check(ended == lost, f"a drained replica ended {ended - lost} answers")
        failed = [failure for client in clients for failure in client.failed]
        check(not failed, f"requests of which nothing was answered are asked elsewhere: {failed[:2]}")
        answers = sum(client.answers for client in clients)
        check(all(client.answers > 2 for client in clients), f"{answers} answers")
        print(
            f"{REPLICAS} replicas, {CLIENTS} clients: {answers} answers; {KILLS} kills of replicas that gave {hit} "
            f"answers ended {ended} streams that had begun, and no other request"
        )
    check.done()


main()
