"""Starts build/apus serve on a free port for the tests and stops it again."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus"))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "apus", "models")


def model_path(name):
    path = os.path.join(CACHE, name + ".gguf")
    if not os.path.exists(path):
        print(f"skipped: {path} is absent: tools/fetch_models.py {name}")
        sys.exit(77)
    return path


class Server:
    def __init__(
        self,
        model,
        *options,
        name=None,
        environment=None,
        prefix=(),
        command=None,
        log=None,
        names=True,
        binary=None,
    ):
        """log: a file for what it logs, with a line per request then. names: the model gets a name; else several may be
        served. binary: another one than BINARY."""
        self.name = name or "test-model"
        command = [
            *prefix,
            binary or BINARY,
            *(command or ["serve", model]),
            "--port",
            "0",
            *(["--model-name", self.name] if names else []),
            *map(str, options),
        ]
        quiet = {} if log else {"APUS_NO_REQUEST_LOG": "true"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **quiet, **(environment or {})}
        )
        self.port = None
        for line in self.process.stdout:
            found = re.search(r"API\s+https?://[^:]+:(\d+)/v1", line)
            if found:
                self.port = int(found.group(1))
            if "Ctrl-C" in line:
                break
        if self.port is None:
            raise RuntimeError(f"the server did not start: exit code {self.process.wait()}")
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.code = self.process.wait(timeout=60)

    def alive(self):
        return self.process.poll() is None

    def request(self, method, path, body=None, headers=None, timeout=120):
        """status, headers, body bytes; body: bytes or something for JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json"} if data is not None else {}
        all_headers.update(headers or {})
        connection.request(method, path, data, {k: v for k, v in all_headers.items() if v is not None})
        response = connection.getresponse()
        result = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return result

    def chat(self, messages, **fields):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        status, _, body = self.request(
            "POST", "/v1/chat/completions", {"model": self.name, "messages": messages, **fields}
        )
        return status, json.loads(body)

    def stream(self, path, body):
        """The data of each event of a streamed answer, [DONE] included."""
        status, headers, raw = self.request("POST", path, {"model": self.name, "stream": True, **body})
        assert status == 200, (status, raw)
        assert headers["content-type"] == "text/event-stream", headers
        events = []
        for block in raw.decode("utf-8").split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            if lines:
                assert len(lines) == 1 and lines[0].startswith("data: "), lines
                events.append(lines[0][6:])
        return events

    def health(self):
        return json.loads(self.request("GET", "/health")[2])

    def wait_idle(self, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            health = self.health()
            if health["running"] == 0 and health["waiting"] == 0:
                return True
            time.sleep(0.02)
        return False


class Checks:
    """Counts; prints what failed; exit code at the end."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def __call__(self, condition, what):
        if condition:
            self.passed += 1
        else:
            self.failed += 1
            print("FAILED:", what)
        return bool(condition)

    def done(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
