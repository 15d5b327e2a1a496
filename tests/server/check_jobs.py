#!/usr/bin/env python3
"""Jobs of the server against a fake hub: downloads that outlive their client, are paused, resumed and cancelled,
several at once; models that are loaded into a server that has none, and removed; what is allowed, and to whom.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hub"))
from apus_server import BINARY, Checks, Server, model_path
from fake_hub import FakeHub, Repo
from tiny_model import write_tiny_model

check = Checks()
MB = 1 << 20
RUNNING_MAX = 3  # JOBS_RUNNING_MAX
ENDED = ("done", "failed", "cancelled")


class EmptyServer(Server):
    """apus serve without a model, its caches below a folder."""

    def __init__(self, folder, hub, *options, log=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": folder,
            "APUS_CACHE": os.path.join(folder, "apus"),
            "NO_PROXY": "*",
            "APUS_NO_REQUEST_LOG": "true",
        }
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--ctx-size", "512", *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.output, self.name = "", "none"
        for line in self.process.stdout:
            self.output += line
            if found := re.search(r"API\s+http://[^:]+:(\d+)/v1", line):
                self.port = int(found.group(1))
            if "Ctrl-C" in line:
                break


def tiny_repo():
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return Repo(files, large=["model.safetensors"])


def large_repo(seed):
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes([seed]) * (6 * MB)}
    return Repo(files, large=["model.safetensors"])


def call(server, method, path, body=None, headers=None):
    status, _, raw = server.request(method, path, body, headers)
    return status, json.loads(raw)


def start(server, kind, model):
    return call(server, "POST", "/v1/jobs", {"kind": kind, "model": model})


def job_of(server, identity):
    return call(server, "GET", f"/v1/jobs/{identity}")[1]


def act(server, identity, action):
    return call(server, "POST", f"/v1/jobs/{identity}/{action}", {})


def until(condition, seconds=60):
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.05)
    return condition()


def ended(server, identity):
    until(lambda: job_of(server, identity)["state"] in ENDED)
    return job_of(server, identity)


def served(server):
    return {m["id"]: m["status"] for m in call(server, "GET", "/v1/models")[1]["data"]}


def ask(server, model):
    body = {"model": model, "prompt": "abc", "max_tokens": 3}
    return call(server, "POST", "/v1/completions", body)


def test_from_zero(server):
    """A server without a model answers all that it can, and says what to do."""
    check("none" in server.output, f"it says that it has no model: {server.output}")
    check(served(server) == {}, "/v1/models is empty")
    health = call(server, "GET", "/health")
    check(health[0] == 200 and health[1]["status"] == "ok" and health[1]["model"] is None, f"health: {health}")
    status, answer = ask(server, "tiny")
    message = answer["error"]["message"]
    check(status == 404 and answer["error"]["code"] == "model_not_found", f"unknown model: {answer}")
    check("no model is served" in message and "/v1/jobs" in message, f"what to do: {message}")
    check(call(server, "POST", "/tokenize", {"content": "a"})[0] == 404, "nothing to tokenize with")
    check(server.request("GET", "/metrics")[0] == 200, "metrics without a model")
    check(call(server, "GET", "/v1/jobs")[1] == {"object": "list", "data": []}, "no job yet")


def counts_one(server):
    """Whether one answer of tiny is counted: soon after the client has it, as the server counts it once it is sent."""
    row = 'apus_request_success_total{model_name="tiny",finished_reason="length"} '
    count = 0
    for _ in range(600):
        metrics = server.request("GET", "/metrics")[2].decode()
        found = [line for line in metrics.split("\n") if line.startswith(row)]
        count = int(found[0].removeprefix(row)) if found else 0
        if count > 0:
            break
        time.sleep(0.05)
    return count == 1


def test_load(server):
    """Download and load in one job, use it, load it again, remove it, and load it from the cache."""
    status, job = start(server, "load", "org/tiny")
    check(status == 200 and job["kind"] == "load" and job["model"] == "org/tiny", f"a load begins: {job}")
    job = ended(server, job["id"])
    check(job["state"] == "done" and job["served"] == "tiny" and job["error"] is None, f"it ends: {job}")
    check(served(server) == {"tiny": "loaded"}, f"it is served: {served(server)}")
    check(ask(server, "tiny")[0] == 200, "and answers")
    check(counts_one(server), "and is counted")
    check(call(server, "POST", "/v1/models/unload", {"model": "tiny"})[0] == 200, "it is unloaded")
    job = ended(server, start(server, "load", "tiny")[1]["id"])
    check(job["state"] == "done" and served(server) == {"tiny": "loaded"}, f"and loaded by its id: {job}")
    status, answer = call(server, "DELETE", "/v1/models/tiny")
    check(status == 200 and answer["deleted"] and served(server) == {}, f"it is removed: {answer}")
    check(call(server, "DELETE", "/v1/models/tiny")[0] == 404, "once")
    check(ask(server, "tiny")[0] == 404, "and no longer answers")
    job = ended(server, start(server, "load", "org/tiny")[1]["id"])
    check(job["state"] == "done" and ask(server, "tiny")[0] == 200, f"it comes back: {job}")
    check(counts_one(server), "counted anew")


def test_failures(server, folder):
    """A failure is the job's: the server and its models go on."""
    job = ended(server, start(server, "load", "org/absent")[1]["id"])
    check(job["state"] == "failed" and job["error"]["code"] == "model_not_found", f"absent: {job}")
    job = ended(server, start(server, "load", "org/broken")[1]["id"])
    check(job["state"] == "failed" and "log says why" in job["error"]["message"], f"no checkpoint: {job}")
    check(
        folder not in job["error"]["message"] and "broken" not in served(server),
        "a model that cannot be loaded is not served",
    )
    check(ask(server, "tiny")[0] == 200, "the others answer")
    for body, param in (
        ({}, "kind"),
        ({"kind": "load"}, "model"),
        ({"kind": "bake", "model": "a/b"}, "kind"),
        ({"kind": "download", "model": "../x"}, "model"),
        ({"kind": "download", "model": "a/b\0"}, "model"),
        ({"kind": "load", "model": "a" * 9999}, "model"),
        ({"kind": "load", "model": ""}, "model"),
    ):
        status, answer = call(server, "POST", "/v1/jobs", body)
        check(status == 400 and answer["error"]["param"] == param, f"{body}: {answer}")
    check(call(server, "POST", "/v1/jobs", {"kind": "load", "model": "a", "x": 1})[0] == 400, "unknown field")
    job = ended(server, start(server, "load", "/etc")[1]["id"])
    check(job["state"] == "failed" and job["error"]["code"] == "model_not_found", f"paths are no names: {job}")
    check(call(server, "GET", "/v1/jobs/job_0")[0] == 404, "an unknown job")
    check(act(server, "job_0", "pause")[0] == 404, "no action for an unknown job")


def test_pause(server, hub):
    """A download is paused, resumed from its bytes, and cancelled."""
    hub.faults["bytes_per_s"], hub.sent = MB, 0
    identity = start(server, "download", "org/a")[1]["id"]
    until(lambda: hub.sent > MB)
    job = job_of(server, identity)
    check(job["state"] == "running" and job["stage"] == "downloading", f"it runs: {job}")
    check(0 < job["completed_bytes"] <= job["total_bytes"], f"and shows how far it is: {job}")
    check(start(server, "download", "org/a")[1]["id"] == identity, "the same again joins it")
    status, job = act(server, identity, "pause")
    check(status == 200 and job["state"] == "paused", f"it is paused: {job}")
    time.sleep(0.6)  # what was in the sockets
    sent = hub.sent
    time.sleep(0.6)
    check(hub.sent == sent, "nothing is downloaded meanwhile")
    hub.faults.clear()
    check(act(server, identity, "resume")[0] == 200, "it is resumed")
    job = ended(server, identity)
    check(job["state"] == "done" and hub.sent < 8 * MB, f"from where it was: {hub.sent / MB:.1f} MB of 6: {job}")
    check(act(server, identity, "pause")[0] == 409, "what is done cannot be paused")
    hub.faults["bytes_per_s"] = MB
    identity = start(server, "download", "org/b")[1]["id"]
    until(lambda: job_of(server, identity)["completed_bytes"] > 0)
    status, job = act(server, identity, "cancel")
    check(status == 200 and job["state"] == "cancelled" and job["error"] is None, f"it is cancelled: {job}")
    hub.faults.clear()
    act(server, identity, "resume")
    check(ended(server, identity)["state"] == "done", "and may be resumed even so")


def test_several(server, hub):
    """A few at once, the others wait for their turn; the stream of events shows all of them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/v1/jobs/events")
    events = connection.getresponse()
    check(events.getheader("content-type") == "text/event-stream", "events of jobs")
    hub.faults["bytes_per_s"] = 3 * MB
    jobs = [start(server, "download", f"org/{name}")[1]["id"] for name in "cdefg"]
    states = [job_of(server, identity)["state"] for identity in jobs]
    check(states.count("running") == RUNNING_MAX and states.count("queued") == 2, f"at once: {states}")
    check(act(server, jobs[4], "cancel")[1]["state"] == "cancelled", "one that waits is cancelled at once")
    check(all(ended(server, identity)["state"] == "done" for identity in jobs[:4]), "all the others end")
    hub.faults.clear()
    seen = {}
    while not all("done" in seen.get(identity, ()) for identity in jobs[:4]):
        line = events.readline().decode().strip()
        if not line.startswith("data: "):
            continue
        job = json.loads(line[6:])
        seen.setdefault(job["id"], []).append(job["state"])
    check("running" in seen[jobs[0]] and "queued" in seen[jobs[3]], f"events tell the states: {seen}")
    connection.close()


def test_outlives_client(server, hub):
    """A client of /v1/models/pull that goes leaves the download running; the next one joins it."""
    hub.faults["bytes_per_s"], hub.sent = 2 * MB, 0
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"model": "org/h"})
    connection.request("POST", "/v1/models/pull", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    event = json.loads(response.readline().decode()[6:])
    until(lambda: hub.sent > MB)
    response.close()
    connection.close()
    sent = hub.sent
    check(until(lambda: hub.sent > sent + MB), "the download goes on")
    check(job_of(server, event["job"])["state"] == "running", "as a job")
    hub.faults.clear()
    _, _, raw = server.request("POST", "/v1/models/pull", {"model": "org/h"})
    lines = [line for line in raw.decode().split("\n\n") if line]
    check(json.loads(lines[0][6:])["job"] == event["job"], "the next client joins the job")
    check(lines[-1] == "data: [DONE]" and job_of(server, event["job"])["state"] == "done", f"to its end: {lines[-2:]}")


def test_convert(server, models):
    """A GGUF file is converted by a job, which can be cancelled and leaves nothing then."""
    identity = start(server, "convert", "gguf")[1]["id"]
    until(lambda: job_of(server, identity)["completed_bytes"] > 0)
    job = job_of(server, identity)
    check(job["stage"] == "converting" and job["total_bytes"] > 100 * MB, f"it converts: {job}")
    check(act(server, identity, "pause")[0] == 409, "a conversion cannot be paused")
    status, job = act(server, identity, "cancel")
    check(status == 200 and job["state"] == "cancelled", f"it is cancelled: {job}")
    check(os.listdir(models) == ["gguf.gguf"], f"and leaves nothing: {os.listdir(models)}")
    job = ended(server, start(server, "load", "gguf")[1]["id"])
    check(job["state"] == "done" and served(server)["gguf"] == "loaded", f"a load converts, too: {job}")
    check(ask(server, "gguf")[0] == 200, "and it answers")
    check(len(os.listdir(models)) == 2, f"the conversion is kept: {os.listdir(models)}")
    call(server, "DELETE", "/v1/models/gguf")


class RouterEvents:
    """GET /models/sse: what has come so far, as (model, event, data)."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.connection.request("GET", "/models/sse")
        self.response = self.connection.getresponse()
        self.seen = []
        self.response.readline()

    def until(self, model, event, **data):
        """Reads to such an event; the events of this model from the last call on."""
        first = len(self.seen)
        while True:
            line = self.response.readline().decode().strip()
            if not line.startswith("data: "):
                continue
            found = json.loads(line[6:])
            self.seen.append((found["model"], found["event"], found.get("data")))
            if found["model"] == model and found["event"] == event and data.items() <= found.get("data", {}).items():
                return [(e, d) for m, e, d in self.seen[first:] if m == model]


def router(server, headers=None):
    return {m["id"]: m for m in call(server, "GET", "/models", headers=headers)[1]["data"]}


def test_router(server, hub):
    """llama.cpp's routes: list, load, unload and the stream of events, for served, local and absent models."""
    call(server, "DELETE", "/v1/models/tiny")
    listed = router(server)
    check(listed["tiny"]["status"]["value"] == "unloaded" and listed["tiny"]["object"] == "model", f"{listed['tiny']}")
    check("tiny" not in served(server), "a local model is listed, and not served yet")
    events = RouterEvents(server)
    check(events.response.getheader("content-type") == "text/event-stream", "events of models")
    check(call(server, "POST", "/models/load", {"model": "tiny"}) == (200, {"success": True}), "a load begins")
    events.until("tiny", "status_change", status="loaded")
    model = router(server)["tiny"]
    check(model["status"] == {"value": "loaded", "args": []}, f"it is loaded: {model}")
    check(model["architecture"]["input_modalities"] == ["text"], f"its modalities: {model}")
    check(ask(server, "tiny")[0] == 200, "and answers under the id of the list")
    status, answer = call(server, "POST", "/models/load", {"model": "tiny"})
    check(status == 400 and "loaded already" in answer["error"]["message"], f"once: {answer}")
    check(call(server, "POST", "/models/unload", {"model": "tiny"}) == (200, {"success": True}), "it is unloaded")
    told = events.until("tiny", "status_change", status="unloaded")
    check(told[-1][1]["exit_code"] == 0, f"as wanted: {told}")
    check(router(server)["tiny"]["status"]["value"] == "unloaded", "and listed so")
    status, answer = call(server, "POST", "/models/unload", {"model": "tiny"})
    check(status == 400 and "not loaded" in answer["error"]["message"], f"once, too: {answer}")
    check(call(server, "POST", "/models/unload", {"model": "absent"})[0] == 404, "an unknown model")
    check(call(server, "POST", "/models/load", {"name": "x"})[0] == 400, "a body without a model")
    call(server, "DELETE", "/v1/models/tiny")
    events.until("tiny", "model_remove")
    call(server, "POST", "/models/load", {"model": "org/broken"})
    told = events.until("broken", "status_change", status="unloaded")
    check(told[-1][1]["exit_code"] == 1, f"a load that fails: {told}")
    hub.faults["bytes_per_s"] = 2 * MB
    start(server, "download", "org/j")
    told = events.until("org/j", "download_progress")
    check(told[0] == ("status_change", {"status": "downloading"}), f"a download: {told}")
    check(set(told[-1][1]["progress"]["org/j"]) == {"done", "total"}, f"its bytes: {told[-1]}")
    check(router(server)["org/j"]["status"]["value"] == "downloading", "it is listed")
    check(call(server, "POST", "/models/unload", {"model": "org/j"})[0] == 200, "unload cancels it")
    events.until("org/j", "download_failed")
    check("org/j" not in router(server), "and it is gone")
    hub.faults.clear()
    check(call(server, "POST", "/models", {"model": "org/j"}) == (200, {"success": True}), "a download begins")
    events.until("org/j", "download_finished")
    check(router(server)["j"]["can_remove"], "which can be removed")
    check(call(server, "POST", "/models", {"model": "/etc"})[0] == 400, "no name of the hub")
    check(call(server, "DELETE", "/models?model=%6A") == (200, {"success": True}), "it is removed by its id")
    check("j" not in router(server), "and is gone")
    status, answer = call(server, "DELETE", "/models?model=j")
    check(status == 404 and answer["error"]["code"] == "model_not_found", f"once: {answer}")
    for query in ("", "?model=", "?model=%00", "?model=a%2", f"?model={'a' * 5000}"):
        check(call(server, "DELETE", f"/models{query}")[0] == 400, f"no name: {query[:20]}")
    events.connection.close()


def test_not_allowed(folder, hub):
    """Without --allow-pull nothing fills the disk; models of this machine can be loaded, if there was none at first."""
    with EmptyServer(folder, hub) as server:
        asked = len(hub.log)
        status, answer = start(server, "download", "org/a")
        check(status == 403 and answer["error"]["code"] == "pull_not_allowed", f"no download: {answer}")
        check(start(server, "convert", "x")[0] == 403, "no conversion")
        job = ended(server, start(server, "load", "org/i")[1]["id"])
        check(job["error"]["code"] == "model_not_found" and len(hub.log) == asked, f"no download for a load: {job}")
        job = ended(server, start(server, "load", "org/tiny")[1]["id"])
        check(job["state"] == "done" and ask(server, "tiny")[0] == 200, f"what is here is loaded: {job}")
        os.symlink(model_path("gemma-270m"), os.path.join(folder, "apus", "models", "other.gguf"))
        job = ended(server, start(server, "load", "other")[1]["id"])
        check(job["state"] == "failed" and "--allow-pull" in job["error"]["message"], f"no conversion for it: {job}")
    check(server.code == 0, f"the server ends: {server.code}")
    with tempfile.TemporaryDirectory() as model:
        write_tiny_model(model)
        environment = {"HF_HOME": folder, "HF_ENDPOINT": hub.url, "APUS_API_KEY": "secret"}
        with Server(model, "--ctx-size", "512", environment=environment) as server:
            key = {"Authorization": "Bearer secret"}
            check(call(server, "GET", "/v1/jobs")[0] == 401, "jobs need the key")
            check(call(server, "GET", "/v1/jobs/events")[0] == 401, "and so do their events")
            body = {"kind": "load", "model": "org/tiny"}
            status, answer = call(server, "POST", "/v1/jobs", body, key)
            check(status == 403 and answer["error"]["code"] == "load_not_allowed", f"only its own model: {answer}")
            status, answer = call(server, "POST", "/models/load", {"model": "org/tiny"}, key)
            check(status == 404 and list(router(server, key)) == ["test-model"], f"by the router, too: {answer}")
            check(call(server, "GET", "/models")[0] == 401, "which need the key")
            check(call(server, "POST", "/models", {"model": "org/i"}, key)[0] == 403, "no download by it")
            check(call(server, "DELETE", "/models?model=tiny", headers=key)[0] == 404, "no removal by it")
            check(call(server, "DELETE", "/v1/models/test-model", headers=key)[0] == 403, "which stays")
            body["model"] = "test-model"
            check(call(server, "POST", "/v1/jobs", body, key)[0] == 200, "and may be loaded by a job")


def test_stop(folder, hub):
    """A server that is stopped while jobs and their events are under way ends at once."""
    hub.faults["bytes_per_s"] = MB // 2
    with EmptyServer(folder, hub, "--allow-pull") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/v1/jobs/events")
        connection.getresponse()
        start(server, "download", "org/i")
        start_time = time.time()
    hub.faults.clear()
    check(server.code == 0 and time.time() - start_time < 8, f"it ends: {server.code}")


def main():
    gguf = model_path("gemma-270m")
    repos = {f"org/{name}": large_repo(ord(name)) for name in "abcdefghij"}
    with (
        FakeHub({"org/tiny": tiny_repo(), "org/broken": large_repo(1), **repos}) as hub,
        tempfile.TemporaryDirectory() as folder,
    ):
        models = os.path.join(folder, "apus", "models")
        os.makedirs(models)
        os.symlink(gguf, os.path.join(models, "gguf.gguf"))
        with EmptyServer(folder, hub, "--allow-pull") as server:
            test_from_zero(server)
            test_load(server)
            test_failures(server, folder)
            hub.faults.clear()
            test_pause(server, hub)
            test_several(server, hub)
            test_outlives_client(server, hub)
            test_convert(server, models)
            test_router(server, hub)
        check(server.code == 0, f"the server ends: {server.code}")
        test_not_allowed(folder, hub)
        test_stop(folder, hub)
    check.done()


if __name__ == "__main__":
    main()
