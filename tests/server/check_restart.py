#!/usr/bin/env python3
"""A server whose device breaks starts again in its own place: who is answered hears of it, who comes next waits and is
answered, in the same process, on the same socket; the third time too, and then it stays as it is and says so. The
device is build/stand-in/apus-cuda.so (tests/backend/stand_in.c). tests/server/check_restart.py [--gpu]: with the GPU
that is here, and build/faulty/apus-cuda.so before its library.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import apus_server
from apus_server import Checks, Server
from tiny_model import write_tiny_model

check = Checks()
ON_GPU = "--gpu" in sys.argv
GPU = ("--device", "cuda") if ON_GPU else ("--device", "cuda", "--cpu", "ref", "--threads", 1)
BUILD = os.path.dirname(apus_server.BINARY)
FAULT = "APUS_FAULTY" if ON_GPU else "APUS_STAND_IN_FAULT"
RESTARTS = 3


def body(prompt="abc", **fields):
    return {
        "model": "test-model",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "temperature": 1,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        **fields,
    }


def ask(server, prompt="abc", path="/v1/chat/completions", **fields):
    """Status and answer; a connection that was cut is status 0."""
    try:
        status, _, raw = server.request("POST", path, body(prompt, **fields), timeout=60)
    except (OSError, http.client.HTTPException):
        return 0, None
    value = json.loads(raw)
    return status, [(c["message"]["content"], c["logprobs"]) for c in value["choices"]] if status == 200 else value[
        "error"
    ]


def ask_again(server):
    """As clients do: what is refused for a moment, or cut, is asked again."""
    for _ in range(100):
        answer = ask(server)
        if answer[0] not in (0, 503):
            break
        time.sleep(0.05)
    return answer


def in_threads(count, run):
    results = [None] * count

    def one(i):
        results[i] = run(i)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def join(threads, what, seconds=60):
    end = time.time() + seconds
    for thread in threads:
        thread.join(timeout=max(0, end - time.time()))
    check(not any(thread.is_alive() for thread in threads), f"{what}: a client hangs")


def watch_health(server, seconds=60):
    """What it says, and why, from before a fault until all is well again; on a connection that stays open as long as
    the server wants it.
    """
    end, seen, connection = time.time() + seconds, [], None
    while time.time() < end:
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds)
            connection.request("GET", "/health")
            response = connection.getresponse()
            health = json.loads(response.read())
            if response.will_close:
                connection = None
        except (OSError, http.client.HTTPException) as error:
            connection, health = None, {"status": type(error).__name__}
        if not seen or seen[-1] != (health["status"], health.get("reason")):
            seen.append((health["status"], health.get("reason")))
        if len(seen) > 1 and health["status"] == "ok":
            return seen
        time.sleep(0.002)
    check(False, f"/health: {seen}")
    return seen


def descriptors(pid):
    return sorted(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))


def idle_descriptors(server):
    """Of a server nobody is connected to."""
    server.wait_idle()
    time.sleep(0.1)
    return descriptors(server.process.pid)


def break_device(file):
    open(file, "w").close()


def stream(server, got):
    """Reads events one by one; got: first their number, then the last."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        "POST",
        "/v1/chat/completions",
        json.dumps(body("abc", max_tokens=1500, stream=True, logprobs=False, top_logprobs=None)),
        {"Content-Type": "application/json"},
    )
    response, last = connection.getresponse(), b""
    for line in response:
        if line.startswith(b"data: "):
            last = line[6:]
            got["events"] = got.get("events", 0) + 1
    got["last"] = last
    connection.close()


def broken(server, file, what):
    """Three streams and a whole answer are under way when it breaks; more clients come at once."""
    got = [{} for _ in range(3)]
    threads, _ = in_threads(3, lambda i: stream(server, got[i]))
    whole, answers = in_threads(1, lambda i: ask(server, "x", max_tokens=1500))
    end = time.time() + 30
    while not all(g.get("events", 0) > 3 for g in got) and time.time() < end:
        time.sleep(0.01)
    health, said = in_threads(1, lambda i: watch_health(server))
    time.sleep(0.1)
    break_device(file)
    join([*threads, *whole], what)
    start = time.time()
    late, after = in_threads(8, lambda i: ask_again(server))
    join([*late, *health], what)
    seen = said[0]
    print(
        f"{what}: whoever came next was answered after {time.time() - start:.2f} s; /health: "
        f"{' '.join(state for state, _ in seen)}"
    )
    check(all(b"error" in g["last"] and b"data" not in g["last"] for g in got), f"{what}: ends of streams: {got}")
    check(
        answers[0][0] == 500 and ("illegal" in answers[0][1]["message"] or "unspecified" in answers[0][1]["message"]),
        f"{what}: {answers}",
    )
    check(
        all(
            state in ("damaged", "restarting", "RemoteDisconnected", "ConnectionResetError", "ok") for state, _ in seen
        ),
        f"{what}: /health said {seen}",
    )
    return after, seen


def test_again(model, home):
    file = os.path.join(home, "fault")
    with Server(model, *GPU, "--slots", 6, environment={FAULT: file}, log=subprocess.DEVNULL) as server:
        wanted, pid = ask(server), server.process.pid
        check(wanted[0] == 200, wanted)
        before = idle_descriptors(server)
        for i in range(RESTARTS):
            after, seen = broken(server, file, f"fault {i + 1}")
            check(all(a == wanted for a in after), f"who came meanwhile: {after}")
            check(
                any(state == "restarting" and reason for state, reason in seen),
                f"/health never said that it restarts: {seen}",
            )
            check(ask(server) == wanted, "the answer after a restart")
            check(server.process.pid == pid and server.alive(), "the process is another one")
            check(open(f"/proc/{pid}/comm").read() == "apus\n", "its name")
            check(idle_descriptors(server) == before, f"descriptors: {before} {descriptors(pid)}")
        break_device(file)
        status, error = ask(server)
        check(status == 500, f"{status} {error}")
        status, error = ask(server)
        check(status == 503 and error["code"] == "device_failed", f"{status} {error}")
        end = time.time() + 10
        while "times" not in (health := server.health()).get("reason", "") and time.time() < end:
            time.sleep(0.01)
        check(health["status"] == "damaged" and f"failed {RESTARTS + 1} times" in health["reason"], health)
        time.sleep(0.5)
        check(server.alive() and server.health()["status"] == "damaged", "it stays as it is")
    check(server.code == 0, f"exit code {server.code}")


def test_queue(model, home):
    """Who waits for a turn hears of it as well, at once."""
    file = os.path.join(home, "fault")
    with Server(model, *GPU, "--slots", 2, environment={FAULT: file}, log=subprocess.DEVNULL) as server:
        wanted = ask(server)
        threads, answers = in_threads(40, lambda i: ask(server, "x" * (i * 8), max_tokens=1000))
        end = time.time() + 30
        while server.health()["waiting"] < 30 and time.time() < end:
            time.sleep(0.005)
        break_device(file)
        start = time.time()
        join(threads, "in the queue")
        check(
            all(a[0] in (0, 200, 500, 503) for a in answers) and sum(a[0] in (500, 503) for a in answers) > 30,
            [a[0] for a in answers],
        )
        check(ask_again(server) == wanted, "the answer after a restart")
        print(
            f"40 requests of which 2 ran have ended, and another is answered, {time.time() - start:.2f} s after the "
            f"fault"
        )


def test_service(model, home):
    """With TLS, keys, several models, a service manager; SIGTERM during a restart ends it."""
    file = os.path.join(home, "fault")
    paths = [os.path.join(home, part) for part in ("certificate.pem", "key.pem")]
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
            "/CN=one",
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
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as other, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        write_tiny_model(other)
        notified.bind(os.path.join(home, "notify"))
        notified.settimeout(30)
        command = [
            "serve",
            model,
            other,
            "--port",
            "0",
            *map(str, GPU),
            "--gpu-layers",
            "2",
            "--slots",
            "2",
            "--tls-cert",
            paths[0],
            "--tls-key",
            paths[1],
            "--api-key",
            "secret-one",
        ]
        process = subprocess.Popen(
            [apus_server.BINARY, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, FAULT: file, "NOTIFY_SOCKET": notified.getsockname()},
        )
        port = next(int(line.rsplit(":", 1)[1].split("/")[0]) for line in process.stdout if "API  " in line)
        check(notified.recv(100) == b"READY=1", "ready")

        def request(model, key="secret-one"):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps({**body(), "model": os.path.basename(model)}),
                {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
            )
            response = connection.getresponse()
            return response.status, json.loads(response.read()).get("choices")

        def again(model):
            end = time.time() + 30
            while (answer := request(model))[0] == 503 and time.time() < end:
                time.sleep(0.05)
            return answer

        wanted = [request(model), request(other)]
        check(all(status == 200 for status, _ in wanted), wanted)
        for which in (model, other):
            break_device(file)
            check(request(which)[0] == 500, "the request that met the fault")
            check(notified.recv(100).startswith(b"STATUS="), "the service manager hears of it")
            check([again(model), again(other)] == wanted, "both models afterwards")
            check(notified.recv(100) == b"READY=1" and request(model, "other")[0] == 401, "ready again, with its key")
        process.send_signal(signal.SIGTERM)
        check(notified.recv(100) == b"STOPPING=1" and process.wait(timeout=30) == 0, "its end")


def test_ended(model, home):
    """Whoever wants its end gets it, whenever that is."""
    file = os.path.join(home, "fault")
    for delay in (0, 0.002, 0.01, 0.03, 0.1, 0.3):
        with Server(model, *GPU, "--slots", 2, environment={FAULT: file}, log=subprocess.DEVNULL) as server:
            break_device(file)
            ask(server)
            time.sleep(delay)
            server.process.send_signal(signal.SIGTERM)
            try:
                code = server.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                code = None
            check(code in (0, 130), f"SIGTERM {delay} s after a fault: {code}")


def test_foreign(model, home):
    """What the program before would have left, made up."""
    for text in ("", "x", "0 1 5 x", "7 1 5", "-1 1 5 x", "3 9 1 2 3 4 5 6 7 8 9 x", "1 1 99999999999999999999 x"):
        with Server(model, *GPU, "--slots", 1, environment={"APUS_RESTARTED": text}) as server:
            check(server.health()["status"] == "ok" and ask(server)[0] == 200, f"APUS_RESTARTED={text}")


def test_terminal(model, home):
    """Who computes without a server gets the error."""
    file = os.path.join(home, "fault")
    for command in (["run", model, "hello", "-n", "8"], ["bench", model, "-p", "8", "-n", "4", "-r", "1"]):
        break_device(file)
        done = subprocess.run(
            [apus_server.BINARY, *command, *map(str, GPU)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, FAULT: file},
        )
        check(done.returncode == 1 and "illegal" in done.stderr, f"{command[0]}: {done.returncode} {done.stderr}")
        if os.path.exists(file):
            os.remove(file)


def main():
    library = os.path.join(BUILD, "faulty" if ON_GPU else "stand-in", "apus-cuda.so")
    if not os.path.exists(library):
        print(f"skipped: {library} is absent")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as model:
        shutil.copy(apus_server.BINARY, home)
        shutil.copy(library, home)
        if ON_GPU:
            shutil.copy(os.path.join(BUILD, "apus-cuda.so"), os.path.join(home, "apus-cuda-inner.so"))
        apus_server.BINARY = os.path.join(home, os.path.basename(apus_server.BINARY))
        os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
        write_tiny_model(model)
        names = [name for name in sys.argv[1:] if not name.startswith("-")]
        for test in names or ("again", "queue", "service", "ended", "foreign", "terminal"):
            globals()["test_" + test](model, home)
    check.done()


main()
