"""The command line as a new user tries it: other programs' words, one name per model, piped input, events for a
supervisor, a directory of models, the commands of a conversation.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from apus_server import BINARY, Checks, Server
from scripted_model import HERMES, template, write_scripted_model

check = Checks()
GREEDY = ["--temp", "0", "-t", "1"]


def apus(*arguments, given=None, environment=None, folder=None):
    given = given.encode() if isinstance(given, str) else given
    source = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run(
        [BINARY, *map(str, arguments)],
        capture_output=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        **source,
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def check_words(cache):
    code, listed, _ = apus("ls", environment=cache)
    check(code == 0 and listed == apus("list", environment=cache)[1], f"ls: {listed}")
    code, shown, _ = apus("show", "echo-large", environment=cache)
    check(code == 0 and "llama" in shown, f"show: {shown}")
    check(apus("version") == apus("--version") and apus("version")[1].startswith("apus "), "version")
    check(apus("help", "serve")[1] == apus("serve", "--help")[1], "help COMMAND")
    code, _, error = apus("help", "srve")
    check(code == 2 and "did you mean serve?" in error, f"help of no command: {error}")
    short, long = apus("serve", "--help")[1], apus("serve", "--help-all")[1]
    check("Debugging:" in long and "--expert-faults" in long and "--expert-faults" not in short, "--help-all")
    check("Server:" in short and "--help-all" in short, f"groups: {short[:200]}")
    wide = [line for line in long.splitlines() if line.startswith("  ") and len(line) > 100]
    check(not wide and "\n  -np, --parallel, --slots N\n" in long, f"columns of the help: {wide}")
    check(apus("run", "x", "-n")[2].startswith("apus run: option -n needs a value (N)"), "an option as it was typed")
    check(apus("-v") == apus("version"), "-v")
    code, out, _ = apus("man")
    check(code == 0 and out.startswith(".TH APUS"), "man, not on a terminal")
    try:
        import pty
    except ImportError:
        return
    parent, child = pty.openpty()
    viewer = subprocess.Popen(
        [BINARY, "man"], stdin=child, stdout=child, stderr=child, env={**os.environ, "MANPAGER": "cat"}
    )
    os.close(child)
    page = b""
    try:
        while block := os.read(parent, 65536):
            page += block
    except OSError:
        pass
    viewer.wait()
    check(b"serve" in page and b".TH" not in page and b"\\-" not in page, f"man on a terminal: {page[:200]}")


def check_names(cache):
    for name in ("echo-large", "echo-l"):
        code, out, error = apus("run", name, "x", *GREEDY, environment=cache)
        check(code == 0 and out == "Hello there.\n", f"{name}: {out} {error}")
    code, _, error = apus("run", "echo", "x", environment=cache)
    check(code == 2 and "echo-large" in error and "echo-small" in error, f"several begin so: {error}")
    code, _, error = apus("run", "ecko-large", "x", environment=cache)
    check(code == 1 and "did you mean echo-large?" in error, f"a mistake: {error}")


def check_input(cache):
    """What is piped follows the prompt: as many tokens as both have, with an empty line between them."""

    def tokens(*prompt, given=None):
        code, _, error = apus("run", "echo-large", *prompt, "--stats", *GREEDY, given=given, environment=cache)
        check(code == 0, error)
        return int(error.split(" prompt tokens")[0].split()[-1]) if code == 0 else None

    alone = tokens("abc")
    check(tokens("abc", given="defgh") == alone + 7, "piped input follows the prompt")
    check(tokens("abc", given="") == alone == tokens(given="abc"), "nothing piped, or nothing but that")
    code, _, error = apus("run", "echo-large", "x", given=b"ab\xff", environment=cache)
    check(code == 2 and "byte 2 is 0xFF" in error, f"input that is no text: {error}")
    code, _, error = apus("serve", "echo-large", "--idle-unload", "5s", environment=cache)
    check(code == 2 and "at least 30s" in error, f"--idle-unload 5s: {error}")
    code, _, error = apus("run", "echo-large", "x", "--temp", "hot", environment=cache)
    check(code == 2 and "option --temp:" in error, f"an option is named as it was called: {error}")


def check_origins(cache):
    """An origin or a host that no browser can send is refused by name; those that they send are taken."""
    wrong = ["localhost:3000", "http://", "http://a/b", "http://a:0", "http://a:99999", "http://a:", "http://u@a",
             "http://[::1", "http://[]", "http://a?x", "HTTP://a", "http://A", "http://a,,http://b", "://a",
             "http://a b", "1://a b"]  # fmt: skip
    for origin in wrong:
        code, _, error = apus("serve", "echo-large", "--port", "0", "--allow-origin", origin, environment=cache)
        check(code == 2 and "--allow-origin" in error and "want an origin" in error, f"{origin}: {code} {error}")
    for host in ("http://x", "a b", "x:80", "a/b", "[::1]:80", "X", "[", "a,,b"):
        code, _, error = apus("serve", "echo-large", "--port", "0", "--allow-host", host, environment=cache)
        check(code == 2 and "--allow-host" in error and "want a name" in error, f"{host}: {code} {error}")
    right = "http://localhost:3000,https://a.example,app://obsidian.md,file://,null,http://[::1]:8080"
    code, _, error = apus(
        "serve", "nothing-there", "--allow-origin", right, "--allow-host", "[::1],a.b", environment=cache
    )
    check(code != 0 and "allow-" not in error and "nothing-there" in error, f"{right}: {error}")


def check_length(cache, directory):
    """YaRN's length is the model's where max_position_embeddings is still the length before it."""
    path = write_scripted_model(f"{directory}/stretched", ["Yes."], context=256)
    code, shown, error = apus("info", path, environment=cache)
    check(code == 0 and "made for 256 tokens" in shown, f"the length of the config: {shown} {error}")
    file = Path(path, "config.json")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    file.write_text(json.dumps({**json.loads(file.read_text()), "rope_scaling": scaling}))
    code, shown, error = apus("info", path, environment=cache)
    check(code == 0 and "made for 1024 tokens" in shown, f"YaRN's length: {shown} {error}")
    code, _, error = apus("run", path, "x", "--ctx-size", "1024", *GREEDY, environment=cache)
    check(code == 0 and "made for" not in error, f"a context of YaRN's length: {error}")
    code, _, error = apus("run", path, "x", "--ctx-size", "1025", *GREEDY, environment=cache)
    check(code == 0 and "1024 that the model was made for" in error, f"a longer context: {error}")


def check_matrix(cache, directory):
    """Both lengths in the forms that a dense model allows, and why there are no others."""
    table = f"{directory}/matrix.md"
    words = ["--tokens", "16,32", "-r", "1", "-n", "4", "-t", "1", "--markdown", table]
    code, out, error = apus("bench", "matrix", "echo-large", *words, environment=cache)
    lines = Path(table).read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    check(code == 0 and "█" in out and "SSD, SSD + turbo: " in out and "no experts to stream" in out, f"{out} {error}")
    check([row[0] for row in rows] == ["tokens", "16", "32"] * 2, rows)
    check(rows[0] == rows[3] == ["tokens", "plain", "turbo"] and all(all(row) for row in rows), rows)
    check(all(cell.endswith(" s)") for row in rows[1:3] for cell in row[1:]), rows)
    check("SSD, SSD + turbo: " in lines[-1] and "Medians of 1 round." in lines[3], lines)
    code, _, error = apus("bench", "matrix", "echo-large", "--tokens", "16,x", environment=cache)
    check(code == 2 and "--tokens 16,x" in error, error)
    text = f"{directory}/text.txt"
    Path(text).write_text("Swallows flew over the sea. " * 5)
    short = ["--text", text, "--tokens", "16,100000", "-r", "1", "-n", "2", "-t", "1", "--markdown", table]
    code, out, error = apus("bench", "matrix", "echo-large", *short, environment=cache)
    written = Path(table).read_text()
    check(code == 0 and "want 100018" in written and "of a text" in written, f"a text that is too short: {out} {error}")
    about = written.splitlines()[2]
    check(written.startswith("# echo") and " MB; " in about and "/echo" not in written, f"a machine's file: {written}")
    code, _, error = apus("bench", "echo-large", "--text", f"{directory}/none", "-p", "8", "-n", "1", environment=cache)
    check(code != 0 and "none" in error, f"no text: {error}")
    code, _, error = apus("bench", "--operations", "--text", text, environment=cache)
    check(code == 2 and "--text goes with" in error, error)
    code, _, error = apus("bench", "drafts", "echo-large", "--source", "lookup", environment=cache, folder=directory)
    check(code == 2 and "bench/acceptance.csv" in error and "--replay" in error, f"in another folder: {error}")


def check_chat(cache, directory):
    saved = os.path.join(directory, "saved.json")
    lines = [
        "hi", "/retry", "/set temperature 0", "/set top-p 7", "/set", "/undo", "/undo", "again", f"/save {saved}",
        "/clear", f"/load {saved}", f"/load {saved}.none", "/model", "/model none-such", "/model echo-small", "/model",
        "more", "/nothing", "/exit",
    ]  # fmt: skip
    code, out, error = apus("chat", "echo-large", *GREEDY, given="\n".join(lines) + "\n", environment=cache)
    check(code == 0 and out.count("Hello there.") == 3 and out.count("Bye.") == 1, f"chat: {out} {error}")
    wanted = ["temperature 0", "want a number from 0 to 1", "(0 messages are left)", "(there is no message yet)"]
    for part in [*wanted, "(2 messages from", "cannot load", "no such file", "(now echo-small)", "unknown: /nothing"]:
        check(part in out, f"chat: {part!r} in {out}")
    with open(saved) as file:
        check([m["role"] for m in json.load(file)] == ["user", "assistant"], "what was saved")


def check_server(cache, directory):
    with Server("echo-large", "-t", 1, "--pin", "echo-large", environment=cache, names=False) as server:
        code, out, _ = apus("ps", "--port", server.port)
        rows = [line.split() for line in out.splitlines()]
        check(code == 0 and rows[0] == ["NAME", "STATUS", "CONTEXT"] and len(rows) == 2, f"ps: {out}")
        check(rows[1][:2] == ["echo-large", "loaded"] and rows[1][2].isdigit() and len(rows[1]) == 3, f"ps: {out}")
        for seconds in (0, 1):
            body = {"model": "echo-large", "keep_alive": seconds}
            answer = json.loads(server.request("POST", "/api/generate", body)[2])
            check(answer["done_reason"] == "load", f"keep_alive {seconds} of a pinned model: {answer}")
        code, out, _ = apus("stop", "echo-large", "-p", server.port)
        check(code == 0 and out == "echo-large is unloaded\n", f"stop: {out}")
        check("unloaded" in apus("ps", "--port", server.port)[1], "ps after stop")
        code, _, error = apus("stop", "none", "-p", server.port)
        check(code == 1 and "does not serve none (apus ps" in error, f"stop: {error}")
    with Server("echo-small", "-t", 1, "--api-key", "secret", environment=cache, names=False) as server:
        for words, said in (([], "wants a key: --api-key"), (["--api-key", "other"], "does not take this key")):
            code, _, error = apus("ps", "--port", server.port, *words)
            check(code == 1 and said in error, f"ps {words}: {error}")
        check(apus("ps", "--port", server.port, "--api-key", "secret")[0] == 0, "ps with a key")
    code, _, error = apus("ps", "--port", 1)
    check(code == 1 and "apus serve MODEL" in error, f"ps without a server: {error}")
    models = os.path.join(directory, "models")
    with Server(None, "--models-dir", models, "-t", 1, command=["serve"], names=False) as server:
        listed = {m["id"]: m["status"] for m in json.loads(server.request("GET", "/v1/models")[2])["data"]}
        check(listed == {"echo-large": "unloaded", "echo-small": "unloaded"}, f"--models-dir: {listed}")
        server.name = "echo-small"
        status, answer = server.chat("x", temperature=0)
        check(status == 200 and answer["choices"][0]["message"]["content"] == "Bye.", answer)
    code, _, error = apus("serve", "echo-large", "--pin", "other", "--port", 0, environment=cache)
    check(code == 2 and "other" in error, f"--pin: {error}")


def check_presets(cache, directory):
    """A section of the file of settings is for one model, wins over the server's defaults and loses to a request."""
    settings = f"{directory}/apus.conf"
    Path(settings).write_text("model = echo-large\nmodel = echo-small\nmax-tokens = 2\n\n[large]\nmax-tokens = 1\n")
    words = ["--alias", "large=echo-large", "--config", settings, "-t", 1]
    with Server(None, *words, command=["serve"], environment=cache, names=False) as server:
        for name, fields, text, reason in (
            ("echo-large", {}, "Hello ", "length"),
            ("large", {}, "Hello ", "length"),
            ("echo-large", {"max_tokens": 3}, "Hello there.", "stop"),
            ("echo-small", {}, "Bye.", "stop"),
        ):
            server.name = name
            choice = server.chat("x", temperature=0, **fields)[1]["choices"][0]
            said = (choice["message"]["content"], choice["finish_reason"])
            check(said == (text, reason), f"{name} {fields}: {said}")
    for text, said in (
        ("[a]\ntemp = 3", "apus.conf:2: "),
        ("[a]\ntemp = 3", "temp=3: want a number from 0 to 2"),
        ("[a]\nthinking = maybe", "want true or false"),
        ("[a]\nport = 1", '"port" is no setting of a model'),
    ):
        Path(settings).write_text(text)
        code, _, error = apus("serve", "--config", settings)
        check(code == 2 and said in error, f"{text}: {error}")


def check_events(cache):
    command = [BINARY, "serve", "echo-large", "--port", "0", "--events", "-t", "1", "--no-request-log"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **cache})
    ready = json.loads(process.stdout.readline())
    check(ready["event"] == "ready" and ready["models"] == ["echo-large"], ready)
    command[command.index("0")] = str(ready["port"])
    again = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **cache})
    check(json.loads(again.stdout)["reason"] == "port_conflict" and again.returncode == 1, again.stdout)
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read().splitlines()
    check([json.loads(line) for line in rest] == [{"event": "exiting", "reason": "requested"}], rest)
    process.wait()
    lost = subprocess.run([BINARY, "serve", "/nowhere", "--events"], capture_output=True, text=True)
    check(json.loads(lost.stdout)["reason"] == "model_load_failed", lost.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for name, said in (("echo-large", ["Hello ", "there."]), ("echo-small", ["Bye."])):
            write_scripted_model(f"{directory}/models/{name}", said, template(HERMES), context=1024)
        cache = {"APUS_CACHE": directory, "HF_HUB_CACHE": f"{directory}/hub", "HF_HUB_OFFLINE": "1"}
        check_words(cache)
        check_names(cache)
        check_input(cache)
        check_origins(cache)
        check_length(cache, directory)
        check_matrix(cache, directory)
        check_chat(cache, directory)
        check_server(cache, directory)
        check_presets(cache, directory)
        check_events(cache)
    check.done()
