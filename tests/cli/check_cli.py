#!/usr/bin/env python3
"""The command line as a newcomer meets it: mistyped options, prompts of several words, a full device, a port that is
taken, addresses of this machine, and `apus chat` on a terminal of its own.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from apus_server import BINARY, Checks, Server, model_path  # noqa: E402

check = Checks()


def apus(*arguments, **options):
    result = subprocess.run(
        [BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, **options
    )
    return result.returncode, result.stdout, result.stderr


def check_start():
    code, out, err = apus()
    check(
        code == 0 and not err and "apus serve MODEL" in out and "Models here" in out, f"the start screen: {out} {err}"
    )
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "APUS_CACHE": empty, "HF_HUB_CACHE": empty}
        code, out, _ = apus(env=environment)
        check(code == 0 and "No models are here" in out, f"without models: {out}")


def check_app(model):
    code, _, err = apus("app", "--port", 1)
    check(code == 1 and "apus serve MODEL" in err, f"no server: {err!r}")
    bare = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    with Server(model) as server, tempfile.TemporaryDirectory() as folder:
        code, out, _ = apus("app", "--port", server.port, env=bare)
        check(code == 0 and out == f"open http://127.0.0.1:{server.port}/ in a browser\n", f"no desktop: {out!r}")
        browser = os.path.join(folder, "browser")
        with open(browser, "w") as script:
            script.write(f'#!/bin/sh\necho "$1" >{folder}/opened\n')
        os.chmod(browser, 0o755)
        code, out, _ = apus("app", "--port", server.port, env={**bare, "BROWSER": browser})
        with open(f"{folder}/opened") as opened:
            check(code == 0 and opened.read() == f"http://127.0.0.1:{server.port}/\n", f"the browser opens it: {out!r}")


def check_usage(model):
    for arguments, wanted in [
        (["serve", model, "--prot", "1"], "did you mean --port?"),
        (["serve", model, "--kv-memori=1G"], "did you mean --kv-memory?"),
        (["serve", model, "--paralel", "4"], "did you mean --parallel?"),  # an alias
        (["serve", model, "--kv-byts=1G"], "did you mean --kv-bytes?"),
        (["serve", model, "--parallel", "0"], "want a whole number from 1 to 1024"),
        (["serve", model, "-np", "0"], "want a whole number from 1 to 1024"),
        (["run", model, "x", "--temprature", "0"], "did you mean --temperature?"),
        (["srve", model], "did you mean serve?"),
        (["serve", "--hlep"], "did you mean --help?"),
        (["doctor", "--hepl"], "did you mean --help?"),
        (["list", "--nams"], "unknown option '--nams'"),  # a command that has none
        (["serve", model, "--kv-memory", "4X"], "want a size, as in 512M or 4G"),
        (["serve", model, "--cache-disk", "4 "], "want a size, as in 512M or 4G"),
        (["serve", model, "--idle-unload", "5d"], "want a time, as in 90s, 10m or 2h"),
        (["serve", model, "--api-key", ""], "--api-key"),
        (["serve", model, "--port", "0", "--alias", "a=nothing"], "--alias a=nothing: no model is called nothing"),
        (["serve", model, "--port", "0", "--pin", "nothing"], "--pin nothing: no model"),
    ]:
        code, out, err = apus(*arguments)
        check(code == 2 and wanted in err and not out, f"{arguments[1:]}: {wanted!r} in {err!r} (exit code {code})")
    code, _, err = apus("serve", model, "--port", "0", "--kv-memory", "1K")
    check(code == 1 and "--kv-memory: a KV cache of 1024 bytes" in err, f"a KV cache without a page: {err}")
    code, _, err = apus("serve", model, "--quite-unlike-any")
    check(code == 2 and "did you mean" not in err, f"nothing near is guessed: {err!r}")
    environment = {**os.environ, "APUS_API_KEY": ""}
    code, _, err = apus("serve", model, env=environment)
    check(code == 2 and "APUS_API_KEY" in err, f"an empty key of the environment is refused: {err!r}")
    for variable in ("APUS_KV_MEMORY", "APUS_KV_BYTES", "APUS_SLOTS", "APUS_PARALLEL"):
        code, _, err = apus("serve", model, env={**os.environ, variable: "4X"})
        check(code == 2 and err.startswith(f"{variable}: "), f"{variable} is read: {err!r}")
    for command in ("serve", "run", "chat", "info", "bench", "convert", "pull", "search", "app"):
        _, names, _ = apus(command, "--help=names")
        twice = sorted({name for name in names.split() if names.split().count(name) > 1})
        check(not twice, f"{command} lists options twice: {twice}")
    _, names, _ = apus("serve", "--help=names")
    check({"--slots", "--parallel", "--kv-memory", "--kv-bytes"} <= set(names.split()), f"aliases are names: {names}")
    code, _, err = apus("run", "gema-270m", "x")
    check(code == 1 and "did you mean gemma-270m?" in err, f"a mistyped model: {err!r}")


def check_run(model):
    options = ["--temp", "0", "-n", "6"]
    apus("run", model, "Name", *options)  # the first to use a GGUF file converts it, and says so
    one, several = (
        apus("run", model, "Name three small birds", *options),
        apus("run", model, "Name", "three", "small", "birds", *options),
    )
    check(one[0] == 0 and one == several, f"a prompt of several words: {one} {several}")
    with open("/dev/full", "w") as full:
        code = subprocess.run([BINARY, "run", model, "x", *options], stdout=full, stderr=subprocess.PIPE, text=True)
        check(code.returncode == 1 and "cannot write" in code.stderr, f"a full device: {code}")
        code = subprocess.run([BINARY, "list"], stdout=full, stderr=subprocess.PIPE, text=True)
        check(code.returncode == 1 and "cannot write" in code.stderr, f"a full device, list: {code}")
    both = subprocess.run(
        [BINARY, "run", model, "x", "--stats", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout
    check(re.search(r"\n\d+ prompt tokens, ", both), f"--stats on a line of its own: {both!r}")


def check_settings(model):
    """A file, the environment and the command line: the later wins."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "apus.conf")

        def written(text):
            with open(path, "w") as file:
                file.write(text)

        written(
            f"# a comment\n\nmodel = {model}\n  model-name= from the file \nport = 0\nverbose = true\nctx-size = 512\n"
        )
        for environment, options, wanted in [
            ({}, [], ("from the file", 512)),
            ({"APUS_MODEL_NAME": "env"}, [], ("env", 512)),
            (
                {"APUS_MODEL_NAME": "env", "APUS_CTX_SIZE": "256", "APUS_PORT": "tcp://10.0.0.1:80"},
                ["--model-name", "argv"],
                ("argv", 256),
            ),
        ]:
            process = subprocess.Popen(
                [BINARY, "serve", "--config", path, *options],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
                stderr=subprocess.DEVNULL,
            )
            said = []
            for line in process.stdout:
                said.append(line)
                if "Ctrl-C" in line:
                    break
            port = int(re.search(r":(\d+)/v1", "".join(said)).group(1))
            listed = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"))["data"][0]
            process.terminate()
            check(
                process.wait() == 0 and listed["id"] == wanted[0],
                f"{options} {environment}: {listed['id']}, want {wanted[0]}",
            )
        for text, problem in [
            ("prot = 1\n", "apus.conf:1: apus serve: unknown option '--prot'; did you mean --port?"),
            ("\nport = x\n", "apus.conf:2:"),
            ("verbose = maybe\n", "want true or false"),
            ("port\n", "want: name = value"),
            ("port = 1\0\n", "a zero byte"),
            (f"model = {model}\n" * 33, "unexpected argument"),
        ]:
            written(text)
            code, _, err = apus("serve", "--config", path)
            check(code == 2 and problem in err, f"{text!r}: {err!r}")
        code, _, err = apus("serve", "--config", os.path.join(directory, "absent"))
        check(code == 2 and "absent" in err, f"a missing file: {err!r}")
        code, _, err = apus("serve", model, env={**os.environ, "APUS_PORT": "http"})
        check(code == 2 and "APUS_PORT" in err, f"a wrong variable: {err!r}")
        code, out, err = apus("serve", "--help", env={**os.environ, "APUS_PORT": "http"})
        check(code == 0 and "--config" in out, f"help beside a wrong variable: {err!r}")


def check_ports(model):
    with Server(model) as server:
        code, _, err = apus("serve", model, "--port", server.port)
        check(code == 1 and "Address already in use" in err and "--port 0" in err, f"a port that is taken: {err!r}")
        code, _, err = apus("serve", "nobody/nothing", "--port", server.port)
        check(code == 1 and "in use" in err and "nobody" not in err, f"that port, before a download: {err!r}")
        for host, wanted in [
            ("127.0.0.1", 200),
            ("127.0.0.2", 200),
            ("localhost", 200),
            ("[::1]", 200),
            ("127.0.0.1.evil.example", 403),
            ("1270.0.0.1", 403),
            ("example.com", 403),
        ]:
            status, _, body = server.request("GET", "/health", headers={"Host": f"{host}:{server.port}"})
            check(status == wanted, f"Host {host}: {status} {body[:80]}")
        port = server.port
    with Server(model, "--port", port) as again:
        check(again.port == port, "the port of a server that ended can be taken at once")
    with Server(model, name='it\'s "quoted"') as server:
        pass
    check(server.code == 0, "a name with quotes")


class Terminal:
    def __init__(self, home, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "LC_ALL": "C", "XDG_CACHE_HOME": home})
            os.execv(BINARY, [BINARY, *map(str, arguments)])
        self.text = ""

    def wait(self, wanted, seconds=60):
        """What came until `wanted` (a regular expression), which goes too."""
        end = time.monotonic() + seconds
        while not (found := re.search(wanted, self.text)):
            if time.monotonic() > end or not select.select([self.fd], [], [], end - time.monotonic())[0]:
                raise RuntimeError(f"waiting for {wanted!r}: {self.text[-300:]!r}")
            self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def type(self, text):
        """When nothing comes any more: libedit may draw a prompt twice."""
        while select.select([self.fd], [], [], 0.3)[0]:
            os.read(self.fd, 65536)
        self.text = ""
        os.write(self.fd, text.encode())

    def end(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if select.select([self.fd], [], [], 0.1)[0] and not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def check_chat(model):
    prompt = r">>> "
    with tempfile.TemporaryDirectory() as home:
        saved = os.path.join(home, "chat.json")
        terminal = Terminal(home, "chat", model, "-n", 4, "--temp", 0)
        terminal.wait(prompt)
        terminal.type("Grüße, 世界 🐦!\r")
        terminal.wait(prompt)
        terminal.type("half a line that is not sent\x03")
        terminal.wait(prompt)
        terminal.type("\x1b[200~first line\rsecond line\x1b[201~ and more\r")
        terminal.wait(prompt)
        terminal.type("once\x1b[D\x1b[D\x1b[DX\r")  # arrows still move
        terminal.wait(prompt)
        terminal.type("/help\r")
        shown = terminal.wait(prompt)
        check(all(name in shown for name in ("/clear", "/system", "/save", "/stats", "/quit")), f"/help: {shown!r}")
        terminal.type("/stats\r")
        check(re.search(r"\d+ prompt tokens, [1-4] tokens", terminal.wait(prompt)), "/stats")
        terminal.type(f"/save {saved}\r")
        terminal.wait(prompt)
        terminal.type(f"/save {saved}\r")
        check("cannot write" in terminal.wait(prompt), "/save overwrites nothing")
        terminal.type("/clear\r")
        terminal.wait(prompt)
        terminal.type("\x04")
        code = terminal.end()
        messages = [m["content"] for m in json.load(open(saved)) if m["role"] == "user"]
        check(
            messages == ["Grüße, 世界 🐦!", "first line\nsecond line and more", "oXnce"],
            f"what was typed arrived: {messages}",
        )
        check(code == 0, f"Ctrl-D leaves: {code}")
        terminal = Terminal(home, "chat", model, "-n", 4000, "--temp", 0)
        terminal.wait(prompt)
        terminal.type("Write a long story.\r")
        terminal.wait(r"\w+ \w+ \w+ \w+ \w+ \w+ \w+")
        os.kill(terminal.pid, signal.SIGINT)
        stopped = terminal.wait(prompt)
        check("[stopped]" in stopped, f"Ctrl-C stops an answer: {stopped[-200:]!r}")
        terminal.type("/quit\r")
        check(terminal.end() == 0, "/quit")


def check_fetch():
    """Fetching without a network, and stopped: a hint or a word, never a traceback."""
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "fetch_models.py")
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        start = time.monotonic()
        result = subprocess.run(
            [sys.executable, tool, "qwen-0.5b", "--cache", cache], capture_output=True, text=True, env=environment
        )
        check(
            result.returncode == 1
            and "APUS_MODEL=" in result.stderr
            and "attempt 2 of 3" in result.stderr
            and "Traceback" not in result.stderr,
            f"no network: {result}",
        )
        check(time.monotonic() - start < 60, "a missing network is noticed in time")

        def listen():
            return signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # who runs tests behind other work ignores it, and so would the child

        process = subprocess.Popen(
            [sys.executable, tool, "qwen-0.5b", "--cache", cache],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=listen,
        )
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        problem = process.communicate()[1]
        check(
            process.returncode == 130 and "Traceback" not in problem and "interrupted" in problem,
            f"Ctrl-C: {process.returncode} {problem!r}",
        )


def check_script(model):
    """run.sh takes a model's name as whoever calls it sees it."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "run.sh")
    folder, name = os.path.split(model)
    process = subprocess.Popen(
        [script, "--port", "0"],
        cwd=folder,
        env={**os.environ, "APUS_MODEL": name},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "stops the server" in line:
            process.send_signal(signal.SIGTERM)
    check(
        process.wait() == 0 and any("/v1/chat/completions" in line for line in lines),
        f"APUS_MODEL={name} in {folder}: {lines}",
    )


def main():
    signal.alarm(600)
    base, instruct = model_path("gemma-270m"), model_path("qwen-0.5b")
    check_start()
    check_app(instruct)
    check_fetch()
    check_usage(base)
    check_settings(base)
    check_ports(base)
    check_run(instruct)
    check_chat(instruct)
    check_script(base)
    check.done()


if __name__ == "__main__":
    main()
