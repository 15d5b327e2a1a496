#!/usr/bin/env python3
"""apus pull, search, list and rm against a server that plays the Hugging Face Hub, and against huggingface_hub: what
either puts into the cache the other finds whole; no fault of network, server or disk ever leaves a wrong file, and
every pull goes on where it was.
    check_hub.py [PART…]   only the tests whose names hold a PART
"""

import fcntl
import hashlib
import http.client
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "server"))
from apus_server import BINARY, CACHE, Checks, Server  # noqa: E402
from fake_hub import FakeHub, Repo, git_sha1  # noqa: E402

check = Checks()
random.seed(20261122)
MB = 1 << 20
PYTHON_PATTERNS = [
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "*.txt",
    "*.jsonl",
    "*.jinja",
]  # mlx-lm's
NAME = "org/tiny"
FOLDER = "models--org--tiny"


def checkpoint(size=30 * MB + 12345, **fields):
    files = {
        "config.json": b'{"model_type": "llama"}',
        "generation_config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "empty.txt": b"",
        "sub/folder/special.json": b"[]",
        "model.safetensors": random.randbytes(size),
        "README.md": b"# Tiny",
        "modeling.py": b"raise",
        "pytorch_model.bin": b"x",
        ".gitattributes": b"*",
        "naïve “file”.json": b"1",
    }
    return Repo(files, large=["model.safetensors", "pytorch_model.bin"], **fields)


def wanted(repo):
    return sorted(p for p in repo.files if p.endswith((".json", ".jinja", ".txt", ".safetensors")))


class Home:
    """A cache of its own, and apus in it."""

    def __init__(self, hub, folder=None, **environment):
        self.hub, self.folder = hub, Path(folder or tempfile.mkdtemp(prefix="apus-hub-"))
        self.cache = self.folder / "hub"
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("HF_") and k.lower() not in ("http_proxy", "https_proxy")
        }
        self.environment = {
            **clean,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(self.folder),
            "APUS_CACHE": str(self.folder / "apus"),
            "NO_PROXY": "*",
            **environment,
        }

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [BINARY, *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, timeout=120, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    def snapshot(self, repo, name=NAME):
        return self.cache / ("models--" + name.replace("/", "--")) / "snapshots" / repo.branches["main"]

    def whole(self, repo, paths=None):
        """Every wanted file is there with its bytes, and nothing else."""
        snapshot = self.snapshot(repo)
        there = sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.is_dir())
        return there == (paths or wanted(repo)) and all((snapshot / p).read_bytes() == repo.files[p] for p in there)

    def never_wrong(self):
        """No blob has bytes that are not those of its name; unfinished ones are called so."""
        for blob in self.cache.glob("*/blobs/*"):
            data = b"" if blob.name.endswith(".incomplete") else blob.read_bytes()
            if data and blob.name != (hashlib.sha256(data).hexdigest() if len(blob.name) == 64 else git_sha1(data)):
                return False
        return True

    def unfinished(self):
        return sorted(self.cache.glob("*/blobs/*.incomplete"))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Scene:
    """A hub with one repository and an empty home."""

    def __init__(self, repo=None, **faults):
        self.repo = repo or checkpoint()
        self.hub = FakeHub({NAME: self.repo})
        self.hub.faults.update(faults)
        self.home = Home(self.hub)

    def __enter__(self):
        return self.hub, self.home, self.repo

    def __exit__(self, *_):
        self.hub.close()
        self.home.remove()


def python(home, code, **environment):
    """Runs code with huggingface_hub in the home's cache; its last line of output as JSON."""
    result = subprocess.run(
        [sys.executable, "-c", "import json, huggingface_hub as hub, logging\n" + code],
        env={**home.environment, "HF_HUB_DISABLE_XET": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if result.returncode:
        return {"error": result.stderr.strip().splitlines()[-1]}
    return json.loads(result.stdout.strip().splitlines()[-1])


def listing(cache):
    """Path, kind, link and content of all in a cache: what `byte for byte` means."""
    found = {}
    for path in sorted(cache.rglob("*")):
        name = str(path.relative_to(cache))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("folder",)
        else:
            found[name] = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def until(condition, seconds=20):
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.02)


def pulls(home, repo, what, code=0, name=NAME, **environment):
    got, out, err = home.run("pull", name, **environment)
    check(got == code, f"{what}: exit {got}: {err[-400:]}")
    check(home.never_wrong(), f"{what}: a blob with other bytes than its name says")
    if code == 0:
        check(home.whole(repo) and out.strip() == str(home.snapshot(repo)), f"{what}: the snapshot is not whole: {out}")
        check(not home.unfinished(), f"{what}: leftovers {home.unfinished()}")
    return err


# --- The cache is huggingface_hub's -----------------------------------------------------------------------------------


def test_layout_both_ways():
    with Scene() as (hub, ours, repo):
        theirs = Home(hub)
        pulls(ours, repo, "first pull")
        got = python(theirs, f"print(json.dumps(hub.snapshot_download({NAME!r}, allow_patterns={PYTHON_PATTERNS!r})))")
        check(got == str(theirs.snapshot(repo)), f"huggingface_hub downloads: {got}")
        a, b = listing(ours.cache), listing(theirs.cache)
        check(
            a == b,
            f"the caches differ: only ours {sorted(set(a) - set(b))}, only theirs {sorted(set(b) - set(a))}, "
            f"other {[k for k in a if k in b and a[k] != b[k]]}",
        )
        check(
            a[FOLDER + "/refs/main"][1] == hashlib.sha256(repo.branches["main"].encode()).hexdigest(),
            "the ref has no newline",
        )
        # Theirs reads ours, without the hub.
        local = f"local_files_only=True, allow_patterns={PYTHON_PATTERNS!r}"
        got = python(ours, f"print(json.dumps(hub.snapshot_download({NAME!r}, {local})))", HF_HUB_OFFLINE="1")
        check(got == str(ours.snapshot(repo)), f"huggingface_hub finds our snapshot whole: {got}")
        got = python(
            ours,
            "i = hub.scan_cache_dir(); r = list(i.repos)[0]\n"
            "print(json.dumps([len(i.warnings), len(i.incomplete_files), r.repo_id, r.nb_files, r.size_on_disk, "
            "[sorted(v.refs) for v in r.revisions]]))",
        )
        size = sum(len(d) for d in {repo.etag(p): repo.files[p] for p in wanted(repo)}.values())
        blobs = len({repo.etag(p) for p in wanted(repo)})
        check(got == [0, 0, NAME, blobs, size, [["main"]]], f"scan_cache_dir: {got}")
        got = python(ours, f"print(json.dumps(hub.try_to_load_from_cache({NAME!r}, 'config.json')))")
        check(got == str(ours.snapshot(repo) / "config.json"), f"try_to_load_from_cache: {got}")
        # What is not needed was not taken, and huggingface_hub knows it.
        got = python(ours, f"print(json.dumps(hub.snapshot_download({NAME!r}, local_files_only=True)))")
        check(
            "IncompleteSnapshotError" in got.get("error", "") and "README.md" not in wanted(repo),
            f"what was left out is known: {got}",
        )
        # Ours reads theirs, without the hub.
        code, out, err = theirs.run("pull", NAME, HF_HUB_OFFLINE="1")
        check(code == 0 and out.strip() == str(theirs.snapshot(repo)), f"apus finds their snapshot whole: {out} {err}")
        code, out, _ = theirs.run("list")
        check(NAME in out and "safetensors" in out, f"apus lists their model: {out}")
        asked = len(hub.log)
        pulls(theirs, repo, "pull into their cache")
        check(
            len(hub.log) == asked + 1,
            f"all that is asked of the hub is the commit: {[e['path'] for e in hub.log[asked:]]}",
        )
        theirs.remove()


def test_needed_files_only():
    """A repository that holds nothing else is whole for huggingface_hub without patterns, too."""
    repo = Repo(
        {
            "config.json": b"{}",
            "model-00001-of-00002.safetensors": random.randbytes(1000),
            "tokenizer.model": b"t",
            "model-00002-of-00002.safetensors": random.randbytes(2000),
            "model.safetensors.index.json": b'{"weight_map": {}}',
        },
        large=["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "tokenizer.model"],
    )
    with Scene(repo) as (hub, home, repo):
        code, out, err = home.run("pull", NAME)
        check(code == 0 and home.whole(repo, sorted(repo.files)), f"all five files: {err}")
        got = python(home, f"print(json.dumps(hub.snapshot_download({NAME!r}, local_files_only=True)))")
        check(got == str(home.snapshot(repo)), f"complete: {got}")


def test_new_commit():
    with Scene() as (hub, home, repo):
        pulls(home, repo, "first commit")
        old = home.snapshot(repo)
        repo.files["config.json"] = b'{"model_type": "qwen2"}'
        repo.branches["main"] = "f" * 40
        asked = hub.sent
        pulls(home, repo, "second commit")
        check(hub.sent - asked < 1000, f"only what is new is downloaded: {hub.sent - asked} bytes")
        check(
            old.exists() and (home.cache / FOLDER / "refs/main").read_text() == "f" * 40,
            "the old snapshot stays, the ref moves",
        )
        code, out, _ = home.run("list")
        check(sum(NAME in line for line in out.splitlines()) == 2, f"both are listed: {out}")
        code, out, _ = home.run("rm", f"{NAME}@{old.name}")
        check(code == 0 and not old.exists() and home.whole(repo), "the old one is removed, the new one stays whole")


def test_revisions():
    with Scene() as (hub, home, repo):
        repo.branches["refs/pr/1"] = "a" * 40
        code, out, err = home.run("pull", NAME + "@refs/pr/1")
        check(code == 0 and out.strip().endswith("a" * 40), f"a pull request's ref: {err}")
        check((home.cache / FOLDER / "refs/refs/pr/1").read_text() == "a" * 40, "its ref is nested")
        code, out, err = home.run("pull", f"{NAME}@{repo.branches['main']}")
        check(code == 0 and not (home.cache / FOLDER / "refs/main").exists(), "a commit has no ref")
        code, out, err = home.run("pull", NAME + "@v9")
        check(code == 1 and "no revision 'v9'" in err, f"an unknown revision: {err}")


# --- Interruptions ----------------------------------------------------------------------------------------------------


def test_cut_at_random_points():
    """Connections that break after a random number of bytes, again and again: right at last, and little comes twice."""
    size = 9 * MB
    for round_ in range(50):
        repo = checkpoint(size + round_ * 1017)
        with Scene(repo, cut=[random.randrange(0, 8 * MB), random.randrange(1, 5)]) as (hub, home, repo):
            pulls(home, repo, f"cut {round_}")
            check(hub.sent < 1.3 * size + 4 * MB, f"cut {round_}: {hub.sent} bytes were sent for {size}")


def test_cut_for_good_then_again():
    """A hub that stays broken: the pull fails with what to do, and the next one begins where it was."""
    for cut in (0, 1, 100_000, 5 * MB):
        with Scene(checkpoint(20 * MB), cut=cut) as (hub, home, repo):
            hub.faults["cdn_status"] = None
            hub.faults["cut"] = [cut, 4]
            hub.faults["status_after"] = None
            process = home.start("pull", NAME)
            time.sleep(1.0)
            process.kill()
            process.communicate()
            check(home.never_wrong(), "a killed pull leaves no wrong blob")
            hub.faults.clear()
            pulls(home, repo, f"again after a cut at {cut}")


def test_killed_at_random_times():
    with Scene(checkpoint(24 * MB), bytes_per_s=12 * MB) as (hub, home, repo):
        kills = 0
        for _ in range(40):
            process = home.start("pull", NAME)
            try:
                process.communicate(timeout=random.uniform(0.02, 0.2))
                if process.returncode == 0:
                    break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
            check(home.never_wrong(), "a killed pull leaves no wrong blob")
            code, out, err = home.run("list")
            if NAME in out:  # killed with everything there, on its way out
                sent = hub.sent
                home.run("pull", NAME)
                check(hub.sent == sent, "what is half there is not listed")
                break
        hub.faults.clear()
        pulls(home, repo, "after the kills")
        check(kills >= 3 and hub.sent < 30 * MB + kills * 3 * MB, f"{kills} kills, {hub.sent / MB:.1f} MB sent for 24")


def test_ctrl_c():
    with Scene(checkpoint(20 * MB), bytes_per_s=2 * MB) as (hub, home, repo):
        process = home.start("pull", NAME)
        until(lambda: hub.sent > 3 * MB)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        check(
            process.returncode == 1 and "the same command goes on from here" in err and "Traceback" not in err,
            f"Ctrl-C: {err}",
        )
        code, out, err = home.run("list")
        check(NAME not in out and "unfinished" in err, f"not listed, but mentioned: {out} {err}")
        hub.faults.clear()
        sent = hub.sent
        pulls(home, repo, "after Ctrl-C")
        check(sent > MB and hub.sent < 24 * MB, f"it went on: {sent} before, {hub.sent} in all")


def test_stall():
    with Scene(checkpoint(4 * MB), stall_s=[30, 1], cut=[MB, 1]) as (hub, home, repo):
        start = time.time()
        pulls(home, repo, "a connection that stalls", HF_HUB_DOWNLOAD_TIMEOUT="1")
        check(time.time() - start < 15, "given up after the time-out")


def test_outage():
    """Eight connections that break one after the other are one failure, not eight."""
    with Scene(checkpoint(65 * MB), outage=True) as (hub, home, repo):
        pulls(home, repo, "an outage")


def test_slow():
    with Scene(checkpoint(60_000), bytes_per_s=20_000) as (hub, home, repo):
        pulls(home, repo, "a slow server", HF_HUB_DOWNLOAD_TIMEOUT="2")


# --- Wrong answers ----------------------------------------------------------------------------------------------------


def test_wrong_bytes():
    with Scene(checkpoint(9 * MB), wrong_bytes=True) as (hub, home, repo):
        err = pulls(home, repo, "wrong bytes", code=1)
        check("its hash" in err and "nothing is kept" in err, f"it says so: {err}")
        check(not (home.cache / FOLDER / "refs").exists(), "no ref to what is not there")
        hub.faults.clear()
        pulls(home, repo, "right bytes after wrong ones")
    with Scene(checkpoint(9 * MB), wrong_bytes=[True, 1]) as (hub, home, repo):
        pulls(home, repo, "wrong once")
    with Scene(checkpoint(9 * MB), bytes_per_s=6 * MB) as (hub, home, repo):
        process = home.start("pull", NAME)  # what lies there is damaged between two pulls
        until(lambda: hub.sent > 2 * MB)
        process.kill()
        process.communicate()
        data = [p for p in home.unfinished() if "ranges" not in p.name and p.stat().st_size > MB]
        check(len(data) == 1, f"there is something to damage: {home.unfinished()}")
        with open(data[0], "r+b") as file:
            file.write(b"damage")
        hub.faults.clear()
        pulls(home, repo, "damaged in between")


def test_damaged_blobs():
    """A blob that was cut short by somebody else is fetched again."""
    with Scene(checkpoint(2 * MB)) as (hub, home, repo):
        pulls(home, repo, "whole")
        blob = home.cache / FOLDER / "blobs" / repo.etag("model.safetensors")
        os.truncate(blob, MB)
        code, out, err = home.run("pull", NAME, HF_HUB_OFFLINE="1")
        check(code == 1 and "model.safetensors is missing" in err, f"offline it is an error: {err}")
        pulls(home, repo, "mended")


def test_ranges():
    for fault in (
        {"no_ranges": True},
        {"no_ranges": True, "cut": [5 * MB, 2]},
        {"416": [True, 2]},
        {"wrong_range": [True, 3]},
        {"short": [1000, 2]},
        {"expired": [True, 3]},
        {"cdn_status": [503, 2]},
        {"resolve_status": [500, 2]},
    ):
        with Scene(checkpoint(20 * MB), **fault) as (hub, home, repo):
            pulls(home, repo, f"{fault}")
    for fault in ({"gzip": True}, {"wrong_range": True}, {"short": 0}):
        with Scene(checkpoint(9 * MB), **fault) as (hub, home, repo):
            pulls(home, repo, f"{fault} for good", code=1)
    with Scene(checkpoint(20 * MB)) as (hub, home, repo):
        pulls(home, repo, "parallel")
        begun = [e for e in hub.asked("cdn") if "Range" in e["headers"]]
        check(len(begun) == 3 and len({e["headers"]["Range"] for e in begun}) == 3, f"in three ranges: {len(begun)}")


def test_hostile_lists():
    for path in (
        "../evil.json",
        "/etc/evil.json",
        "a/../../evil.json",
        "a\\..\\evil.json",
        "a/",
        "a//b.json",
        "evil\n.json",
        "./x.json",
    ):
        with Scene(checkpoint(1000), hostile_path=path) as (hub, home, repo):
            hub.page = 100
            code, out, err = home.run("pull", NAME)
            check(code == 1 and "is refused" in err, f"{path!r}: {code} {err}")
            check(not list(home.folder.rglob("evil*")), f"{path!r} was written")


def test_redirects():
    with Scene(checkpoint(1000)) as (hub, home, repo):
        for location in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/x", "dict://127.0.0.1:1/x"):
            hub.faults["location"] = location
            err = pulls(home, repo, location, code=1)
            check("refused" in err and location[:5] in err, f"{location}: {err}")
        hub.faults["location"] = f"{hub.url}/{NAME}/resolve/main/model.safetensors"
        err = pulls(home, repo, "a circle", code=1)
        check("redirects" in err, f"a circle: {err}")
        hub.faults.clear()
        pulls(home, repo, "after the redirects")
        hub.repos["new/name"] = repo  # a repository that was renamed
        hub.faults["moved"] = {"old/name": "new/name"}
        hub.repos["old/name"] = repo
        code, out, err = home.run("pull", "old/name")
        check(
            code == 0 and "models--old--name" in out, f"a renamed repository keeps the name that was asked for: {err}"
        )


def test_https():
    folder = Path(tempfile.mkdtemp())
    pem = folder / "pem"
    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            folder / "key",
            "-out",
            folder / "crt",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
        capture_output=True,
    )
    if made.returncode:
        print("https: no openssl command here, left out")
        return
    pem.write_bytes((folder / "key").read_bytes() + (folder / "crt").read_bytes())
    repo = Repo({"config.json": b"{}", "model.safetensors": b"x" * 100})
    with FakeHub({NAME: repo}, certificate=pem) as hub:
        home = Home(hub)
        code, out, err = home.run("pull", NAME)
        check(code == 1 and "certificate" in err, f"an unknown certificate is refused: {err}")
        code, out, err = home.run("pull", NAME, SSL_CERT_FILE=str(folder / "crt"))
        check(code == 0, f"a known one is not: {err}")
        home.remove()
        code, out, err = home.run(
            "pull", NAME, SSL_CERT_FILE=str(folder / "crt"), HF_ENDPOINT=hub.url.replace("localhost", "127.0.0.1")
        )
        check(code == 1 and not home.snapshot(repo).exists(), f"nor is it good for another host: {err}")
        repo.large.add("model.safetensors")
        home.remove()
        code, out, err = home.run("pull", NAME, SSL_CERT_FILE=str(folder / "crt"))
        check(code == 1 and "from https to http" in err, f"https does not become http: {err}")
        home.remove()
    shutil.rmtree(folder)


def test_token():
    with Scene(checkpoint(9 * MB)) as (hub, home, repo):
        repo.private = True
        err = pulls(home, repo, "private", code=1)
        check("HF_TOKEN" in err, f"it says what to set: {err}")
        pulls(home, repo, "with a token", HF_TOKEN="good-token")
        check(
            all(
                e["headers"].get("Authorization") == "Bearer good-token"
                for e in hub.asked("api")[1:]
                if "search" not in e["path"]
            ),
            "the endpoint gets the token",
        )
        check(
            hub.asked("cdn") and not any("Authorization" in e["headers"] for e in hub.asked("cdn")), "the CDN does not"
        )
    with Scene(checkpoint(1000)) as (hub, home, repo):
        repo.private = True
        home.folder.mkdir(exist_ok=True)
        (home.folder / "token").write_text("good-token\n")
        pulls(home, repo, "a token from the file")
        home.remove()
        home.folder.mkdir()
        (home.folder / "other").write_text(" good-token ")
        pulls(home, repo, "a token from HF_TOKEN_PATH", HF_TOKEN_PATH=str(home.folder / "other"))
        err = pulls(
            home,
            repo,
            "a bad token",
            code=2,
            HF_TOKEN="bad-token",
            HF_HOME=str(home.folder / "x"),
            HF_HUB_CACHE=str(home.cache) + "2",
        )
        check("does not know the token in HF_TOKEN" in err and "bad-token" not in err, f"a bad token: {err}")
        err = pulls(home, repo, "a token with a line break", code=2, HF_TOKEN="good\r\nX-Evil: 1")
        check("no token has" in err, f"a header smuggled in: {err}")


# --- Refusals ---------------------------------------------------------------------------------------------------------


def test_messages():
    with Scene(checkpoint(1000)) as (hub, home, repo):
        repo.gated = "manual"
        err = pulls(home, repo, "gated, no token", code=2)
        check("gated" in err and f"{hub.url}/{NAME}" in err and "HF_TOKEN" in err, f"gated: {err}")
        err = pulls(home, repo, "gated, not accepted", code=2, HF_TOKEN="good-token")
        check("may not read it yet" in err, f"gated: {err}")
        repo.gated = "accepted"
        pulls(home, repo, "gated, accepted", HF_TOKEN="good-token")
        repo.gated = False
        hub.repos["mlx-community/Tiny-4bit"] = repo
        for token in ({}, {"HF_TOKEN": "good-token"}):
            code, out, err = home.run("pull", "mlx-community/tiny-8bit", **token)
            check(
                code == 1 and "did you mean" in err and "mlx-community/Tiny-4bit" in err and NAME in err,
                f"near names: {err}",
            )
        code, out, err = home.run("run", "some/folder", "hello")
        check(code == 1 and "no directory here" in err and "is not on" in err, f"a path that is none: {err}")
        for status, text in ((500, "trouble (500)"), (503, "trouble (503)"), (429, "too many requests")):
            hub.faults["status"] = status
            home.remove()
            start = time.time()
            code, out, err = home.run("pull", NAME)
            check(code == 1 and text in err and time.time() - start < 20, f"{status}: {err}")
        hub.faults["status"] = (429, {"Retry-After": "2"})
        hub.faults["status"] = [(429, {"Retry-After": "2"}), 1]
        start = time.time()
        pulls(home, repo, "429 once")
        check(2 <= time.time() - start < 6, f"waits as long as it is told: {time.time() - start:.1f} s")
        home.remove()
        hub.faults["status"] = [
            (429, {"RateLimit": '"api";r=0;t=1', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}),
            1,
        ]
        pulls(home, repo, "429 with RateLimit")
        home.remove()
        hub.faults["status"] = (429, {"Retry-After": "3600"})
        start = time.time()
        code, out, err = home.run("pull", NAME)
        check(
            code == 1 and "3600 s" in err and "HF_TOKEN" in err and time.time() - start < 5, f"too long to wait: {err}"
        )
        hub.faults.clear()
        hub.faults["resolve_status"] = (403, {"X-Error-Message": "Access to this resource is disabled."})
        code, out, err = home.run("pull", NAME)
        check(code == 2 and "Access to this resource is disabled." in err, f"403: {err}")
        code, out, err = home.run("pull", "no-slash")
        check(code == 2 and "ORG/NAME" in err, f"no name: {err}")
        for name in (
            "a/b/c",
            "../x",
            "a/..",
            "a--b/c",
            "/a/b",
            "a/b:",
            "a/b@",
            "a/b:../x",
            "a/b@../x",
            "-a/b",
            "a/b.git",
        ):
            code, out, err = home.run("pull", name)
            check(code == 2, f"{name}: {code} {err}")


def test_offline():
    with Scene(checkpoint(1000)) as (hub, home, repo):
        code, out, err = home.run("pull", NAME, HF_HUB_OFFLINE="1")
        check(code == 1 and "HF_HUB_OFFLINE" in err and not hub.log, f"offline and not there: {err}")
        pulls(home, repo, "online")
        asked = len(hub.log)
        pulls(home, repo, "offline and there", HF_HUB_OFFLINE="yes")
        check(len(hub.log) == asked, "the hub is not asked")
        blob = next(
            p for p in (home.cache / FOLDER / "blobs").iterdir() if p.name == git_sha1(repo.files["tokenizer.json"])
        )
        blob.rename(blob.with_name("away"))
        code, out, err = home.run("pull", NAME, HF_HUB_OFFLINE="1")
        check(code == 1 and "tokenizer.json is missing" in err, f"a part is an error: {err}")
        code, out, err = home.run("list")
        check(NAME not in out, "and not listed")
        blob.with_name("away").rename(blob)
        hub.faults["status"] = 503
        code, out, err = home.run("pull", NAME)
        check(code == 0 and "using what is in the cache" in err, f"the hub is down: {err}")
        code, out, err = home.run("pull", NAME, HF_ENDPOINT="http://127.0.0.1:9")
        check(code == 0 and "using what is in the cache" in err, f"no network: {err}")


# --- Disks and neighbours ---------------------------------------------------------------------------------------------


def mount_small(folder, size):
    folder.mkdir(parents=True)
    return (
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode
        == 0
    )


def test_full_disk():
    with Scene(checkpoint(40 * MB)) as (hub, home, repo):
        if not mount_small(home.cache, 48 * MB):
            print("full disk: no file system may be mounted here, left out")
            return
        try:
            other = home.cache / "other"
            other.write_bytes(b"x" * (24 * MB))
            err = pulls(home, repo, "too small a disk", code=1)
            check("GB more on disk" in err and "0.04" in err and not hub.asked("cdn"), f"checked before: {err}")
            other.write_bytes(b"x" * (5 * MB))
            hub.faults["bytes_per_s"] = 4 * MB
            process = home.start("pull", NAME)
            until(lambda: hub.sent > 2 * MB)
            with open(other, "ab") as file:  # a neighbour fills it up
                try:
                    while True:
                        file.write(b"x" * MB)
                        file.flush()
                except OSError:
                    pass
            out, err = process.communicate(timeout=60)
            check(process.returncode == 1 and "No space left" in err, f"full on the way: {process.returncode} {err}")
            check(home.never_wrong(), "a full disk leaves no wrong blob")
            other.unlink()
            hub.faults.clear()
            sent = hub.sent
            pulls(home, repo, "after room was made")
            check(sent > MB and hub.sent < 46 * MB, f"it went on: {sent} before, {hub.sent} in all")
        finally:
            subprocess.run(["umount", home.cache])


def test_read_only_cache():
    with Scene(checkpoint(1000)) as (hub, home, repo):
        if not mount_small(home.cache, 4 * MB):
            return
        try:
            subprocess.run(["mount", "-o", "remount,ro", home.cache], check=True)
            err = pulls(home, repo, "a read-only cache", code=1)
            check("Read-only file system" in err and str(home.cache) in err, f"it says which: {err}")
            subprocess.run(["mount", "-o", "remount,rw", home.cache], check=True)
            pulls(home, repo, "writable")
            subprocess.run(["mount", "-o", "remount,ro", home.cache], check=True)
            pulls(home, repo, "read-only and whole")
        finally:
            subprocess.run(["umount", home.cache])


def test_together():
    """Several processes pull one model at once: all succeed, and what comes over the line is little more than once."""
    for count in (2, 5):
        with Scene(checkpoint(30 * MB), bytes_per_s=10 * MB) as (hub, home, repo):
            processes = [home.start("pull", NAME) for _ in range(count)]
            ends = [(p.communicate(timeout=120)[1], p.returncode) for p in processes]
            check(all(code == 0 for _, code in ends), f"all succeed: {ends}")
            check(home.whole(repo) and home.never_wrong() and not home.unfinished(), "the model is whole")
            check(hub.sent < 33 * MB, f"{hub.sent / MB:.1f} MB for 30")


def test_together_with_python():
    with Scene(checkpoint(20 * MB), bytes_per_s=5 * MB) as (hub, home, repo):
        ours = home.start("pull", NAME)
        got = python(home, f"print(json.dumps(hub.snapshot_download({NAME!r}, allow_patterns={PYTHON_PATTERNS!r})))")
        _, err = ours.communicate(timeout=120)
        check(ours.returncode == 0 and got == str(home.snapshot(repo)), f"both: {got} {err}")
        check(home.whole(repo) and home.never_wrong(), "the model is whole")
        check(hub.sent < 24 * MB, f"one waits for the other: {hub.sent / MB:.1f} MB for 20")
    with Scene(checkpoint(1000)) as (hub, home, repo):
        lock = home.cache / ".locks" / FOLDER / (repo.etag("model.safetensors") + ".lock")
        lock.parent.mkdir(parents=True)
        with open(lock, "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            process = home.start("pull", NAME)
            time.sleep(1)
            check(process.poll() is None, "a lock is waited for")
            code, out, err = home.run("rm", NAME)
            check(code == 1 and "being downloaded" in err, f"nothing is removed meanwhile: {err}")
        _, err = process.communicate(timeout=20)
        check(process.returncode == 0 and "another process" in err, f"and then it goes on: {err}")


# --- GGUF, list, rm, search -------------------------------------------------------------------------------------------


def gguf_repo():
    sizes = {"q4_k_m": 30, "q8_0": 60, "fp16": 110, "q2_k": 20}
    files = {f"tiny-{q}.gguf": random.randbytes(s * 1000) for q, s in sizes.items()}
    files |= {
        "README.md": b"#",
        "mmproj-f16.gguf": b"m",
        "big-00001-of-00002.gguf": b"1",
        "big-00002-of-00002.gguf": b"2",
        "config.json": b"{}",
        "other/tiny-q2_k.gguf": b"o",
    }
    return Repo(files, large=[p for p in files if p.endswith(".gguf")])


def test_gguf():
    with Scene(gguf_repo()) as (hub, home, repo):
        code, out, err = home.run("pull", NAME)
        check(
            code == 2
            and f"{NAME}:q8_0. q8_0 (" in err
            and "fits this machine best, q4_k_m" in err
            and "mmproj" not in err
            and ", big-00001-of-00002.gguf (" in err
            and "00002-of" not in err
            and err.index("q4_k_m") < err.index("fp16"),
            f"the choice: {err}",
        )
        check(not hub.asked("cdn"), "nothing is downloaded meanwhile")
        for name in ("Q4_K_M", "q4_k_m", "tiny-q4_k_m.gguf"):
            code, out, err = home.run("pull", f"{NAME}:{name}")
            check(code == 0 and out.strip() == str(home.snapshot(repo) / "tiny-q4_k_m.gguf"), f"{name}: {err}")
        check(home.whole(repo, ["tiny-q4_k_m.gguf"]), "one file only")
        for name, text in (
            ("Q9_9", "has none or several"),
            ("Q2_K", "other/tiny-q2_k.gguf"),
            ("README.md", "has none"),
        ):
            code, out, err = home.run("pull", f"{NAME}:{name}")
            check(code != 0 and text in err, f"{name}: {err}")
        code, out, _ = home.run("list")
        check(f"{NAME} " in out and "GGUF" in out, f"one GGUF needs no file name: {out}")
        code, out, err = home.run("pull", NAME, HF_HUB_OFFLINE="1")
        check(code == 0 and out.strip().endswith("q4_k_m.gguf"), f"the one that is there: {err}")
        home.run("pull", f"{NAME}:Q8_0")
        code, out, _ = home.run("list")
        check(f"{NAME}:tiny-q8_0.gguf" in out and f"{NAME}:tiny-q4_k_m.gguf" in out, f"two need theirs: {out}")
        code, out, _ = home.run("rm", f"{NAME}:Q8_0")
        check(code == 0 and home.whole(repo, ["tiny-q4_k_m.gguf"]), f"one is removed: {out}")
        code, out, _ = home.run("rm", f"{NAME}:Q4_K_M")
        check(code == 0 and not (home.cache / FOLDER).exists(), f"with the last one all goes: {out}")


def parts_repo():
    files = {f"Q4_K_M/big-Q4_K_M-0000{i}-of-00003.gguf": random.randbytes(300_000 * i) for i in (1, 2, 3)}
    files |= {f"Q8_0/big-0000{i}-of-00002.gguf": random.randbytes(900_000) for i in (1, 2)}
    files |= {"Q2_K/big-Q2_K-00002-of-00002.gguf": b"2", "Q2_K/big-Q2_K-00001-of-00002.gguf": b"1"}
    return Repo(files, large=list(files))


def test_gguf_parts():
    with Scene(parts_repo()) as (hub, home, repo):
        parts = [f"Q4_K_M/big-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        for name in ("Q4_K_M", parts[2]):
            code, out, err = home.run("pull", f"{NAME}:{name}")
            check(code == 0 and out.strip() == str(home.snapshot(repo) / parts[0]), f"{name}: {err}")
            check(home.whole(repo, parts), "all parts and no other file")
        code, out, err = home.run("list")
        check(f"{NAME} " in out and " 2 MB" in out and out.count("GGUF") == 1, f"one row with all bytes: {out}")
        code, out, err = home.run("pull", f"{NAME}:Q8_0")
        check(code == 0 and home.whole(repo, parts + [f"Q8_0/big-0000{i}-of-00002.gguf" for i in (1, 2)]), err)
        code, out, err = home.run("rm", f"{NAME}:Q8_0")
        check(code == 0 and home.whole(repo, parts), f"all parts are removed, and only they: {out}{err}")
        (home.snapshot(repo) / parts[1]).unlink()
        code, out, err = home.run("list")
        check("GGUF" not in out, f"a model without a part is not whole: {out}")
        code, out, err = home.run("pull", f"{NAME}:Q4_K_M", HF_HUB_OFFLINE="1")
        check(code != 0 and parts[1] in err and "missing" in err, f"offline: {err}")
        code, out, err = home.run("pull", f"{NAME}:Q4_K_M")
        check(code == 0 and home.whole(repo, parts), f"the part is brought again: {err}")


def test_list_and_rm():
    with Scene(checkpoint(3 * MB)) as (hub, home, repo):
        code, out, _ = home.run("list")
        check(code == 0 and "no models" in out, f"empty: {out}")
        pulls(home, repo, "pull")
        code, out, err = home.run("list")
        row = [line for line in out.splitlines() if line.startswith(NAME)]
        check(
            len(row) == 1 and "3 MB" in row[0] and "now" in row[0] and "safetensors" in row[0] and not err,
            f"a row: {out} {err}",
        )
        # Conversions: tied to their file, named when it is gone.
        models = home.folder / "apus" / "models"
        for name, source in (
            ("compact-here-00000001", home.folder / "token"),
            ("compact-gone-00000002", home.folder / "gone.gguf"),
        ):
            (models / name).mkdir(parents=True)
            (models / name / "config.json").write_text("{}")
            (models / name / "source.txt").write_text(str(source))
        (models / "compact-half-00000003.partial").mkdir()
        (models / "compact-half-00000003.partial" / "model.safetensors").write_bytes(b"x" * MB)
        (home.folder / "token").write_text("")
        code, out, err = home.run("list")
        check(
            "conversion of " in out
            and f"orphan: {home.folder}/gone.gguf is gone" in out
            and "half" not in out
            and "unfinished" in err,
            f"conversions: {out} {err}",
        )
        for name in ("compact-gone-00000002", "compact-half-00000003.partial", NAME):
            code, out, err = home.run("rm", name)
            check(code == 0 and f"removed {name}" in out, f"rm: {out} {err}")
        check(not (home.cache / FOLDER).exists() and not (home.cache / ".locks" / FOLDER).exists(), "all of it is gone")
        check(len(list(models.iterdir())) == 1, "the other conversion stays")
        for name in (NAME, "nothing", "..", ".", "../hub", "a/b/c"):
            code, out, err = home.run("rm", name)
            check(code != 0 and err, f"rm {name}: {code} {out} {err}")
        check((home.folder / "hub").exists() and models.exists(), "nothing else was removed")


def test_search():
    with Scene(checkpoint(10)) as (hub, home, repo):
        hub.repos["mlx-community/Qwen3-0.6B-4bit"] = repo
        repo.gated = "manual"
        code, out, err = home.run("search", "qwen3")
        check(
            code == 0
            and "mlx-community/Qwen3-0.6B-4bit" in out
            and "494M" in out
            and "gated" in out
            and NAME not in out,
            f"{out} {err}",
        )
        code, out, err = home.run("search", "nothing like it & more")
        check(
            code == 0 and "no model" in out and "search=nothing%20like%20it%20%26%20more" in hub.log[-1]["path"],
            f"{out} {hub.log[-1]['path']}",
        )
        code, out, err = home.run("search", "x", HF_HUB_OFFLINE="1")
        check(code == 2, f"offline: {err}")


# --- In use -----------------------------------------------------------------------------------------------------------


def test_progress():
    with Scene(checkpoint(12 * MB), bytes_per_s=4 * MB) as (hub, home, repo):
        err = pulls(home, repo, "a log")
        lines = err.splitlines()
        check(
            any("MB/s" in line and "left" in line and "%" in line for line in lines)
            and "\r" not in err
            and len(lines) < 20,
            f"plain lines: {err!r}",
        )
        home.remove()
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [BINARY, "pull", NAME], env=home.environment, stdout=subprocess.DEVNULL, stderr=follower
        )
        os.close(follower)
        shown = b""
        try:
            while block := os.read(leader, 4096):
                shown += block
        except OSError:
            pass
        check(
            process.wait() == 0
            and b"\r" in shown
            and b"MB/s" in shown
            and b"left" in shown
            and shown.endswith(b"\r\x1b[K"),
            f"a line on a terminal: {shown[-300:]}",
        )


def test_used_by_name():
    """A model is pulled by its name alone on first use, and a GGUF file of the hub is converted."""
    root = Path(__file__).resolve().parent.parent.parent
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [sys.executable, root / "tools/make_bench_model.py", "qwen-0.5b", folder, "--layers", "1", "--bits", "2"],
            capture_output=True,
            text=True,
        )
        check(made.returncode == 0, f"a model: {made.stderr}")
        files = {p.name: p.read_bytes() for p in Path(folder).iterdir()}
    with Scene(Repo(files, large=["model.safetensors"])) as (hub, home, repo):
        for what in ("first", "second"):
            asked = len(hub.log)
            code, out, err = home.run("info", NAME)
            check(
                code == 0 and "qwen2" in out and (what == "first") == (len(hub.log) > asked), f"{what} use: {out} {err}"
            )
        code, out, err = home.run("info", NAME, HF_ENDPOINT="http://127.0.0.1:9")
        check(code == 0, f"what is there needs no network: {err}")


def test_used_by_python():
    """mlx-lm and transformers load what apus pulled, without the hub, and apus what mlx-lm pulled."""
    root = Path(__file__).resolve().parent.parent.parent
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [sys.executable, root / "tools/make_bench_model.py", "qwen-0.5b", folder, "--layers", "1"],
            capture_output=True,
            text=True,
        )
        check(made.returncode == 0, f"a model: {made.stderr}")
        files = {p.name: p.read_bytes() for p in Path(folder).iterdir()}
    vocabulary = {chr(33 + i): i for i in range(90)}
    files["tokenizer.json"] = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": None,
            "decoder": None,
            "normalizer": None,
            "truncation": None,
            "padding": None,
            "post_processor": None,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    ).encode()
    files["tokenizer_config.json"] = b'{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}'
    with Scene(Repo(files, large=["model.safetensors"])) as (hub, home, repo):
        code, _, err = home.run("pull", NAME)
        check(code == 0, f"pull: {err}")
        asked = len(hub.log)
        load = f"import mlx_lm\nprint(json.dumps(type(mlx_lm.load({NAME!r})[0]).__name__))"
        got = python(home, load, HF_HUB_OFFLINE="1")
        check(got == "Model", f"mlx-lm loads ours: {got}")
        tokens = python(
            home,
            f"from transformers import "
            f"AutoTokenizer\nprint(json.dumps(AutoTokenizer.from_pretrained({NAME!r}).encode('ab')))",
            HF_HUB_OFFLINE="1",
        )
        check(tokens == [vocabulary["a"], vocabulary["b"]], f"transformers reads ours: {tokens}")
        check(len(hub.log) == asked, "without the hub")
        home.remove()
        check(python(home, load) == "Model", "mlx-lm pulls")
        asked = len(hub.log)
        code, out, err = home.run("info", NAME)
        check(code == 0 and len(hub.log) == asked, f"and apus uses it: {err}")


def events(server, body, headers=None):
    """Status, and the events of a pull."""
    status, _, raw = server.request("POST", "/v1/models/pull", body, headers)
    if status != 200:
        return status, json.loads(raw)["error"]
    return status, [
        line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in raw.decode().split("\n\n") if line
    ]


def local_models(server):
    return json.loads(server.request("GET", "/v1/models/local")[2])["data"]


def test_server():
    """/v1/models/local and /v1/models/pull."""
    model = os.path.join(CACHE, "gemma-270m.gguf")
    if not os.path.exists(model):
        print("server: no gemma-270m here (tools/fetch_models.py), left out")
        return
    with Scene(checkpoint(9 * MB), bytes_per_s=4 * MB) as (hub, home, repo):
        environment = {k: v for k, v in home.environment.items() if k != "APUS_CACHE"}
        with Server(model, environment=environment) as server:
            check(events(server, {"model": NAME})[1].get("code") == "pull_not_allowed", "pulling must be allowed")
            check(not hub.log and not home.cache.exists(), "and nothing happens")
        with Server(model, "--allow-pull", environment=environment) as server:
            check(not any("/" in model["id"] for model in local_models(server)), "nothing is here of the hub")
            for body, status in (
                ({}, 400),
                ({"model": 3}, 400),
                ({"model": "x"}, 400),
                ({"model": "a/b", "c": 1}, 400),
                ({"model": "a/" + "b" * 9999}, 400),
                ({"model": "a/b\u0000"}, 400),
                ({"model": "../../etc"}, 400),
            ):
                got = events(server, body)
                check(got[0] == status and got[1]["message"], f"{body}: {got}")
            status, got = events(server, {"model": "org/absent"})
            check(got[-1]["error"]["code"] == "model_not_found" and "[DONE]" not in got, f"not found: {got}")
            status, got = events(server, {"model": NAME})
            moves = [
                e
                for e in got
                if isinstance(e, dict) and e["status"] == "downloading" and 0 < e["completed_bytes"] <= e["total_bytes"]
            ]
            check(
                status == 200
                and got[-1] == "[DONE]"
                and got[-2] == {"status": "done", "model": NAME}
                and len(moves) >= 2
                and any(e["bytes_per_second"] > 0 and e["seconds_left"] is not None for e in moves),
                f"events: {got}",
            )
            check(home.whole(repo), "the model is whole")
            local = [model for model in local_models(server) if "/" in model["id"]]
            check(
                len(local) == 1
                and local[0]["id"] == NAME
                and local[0]["format"] == "safetensors"
                and local[0]["bytes"] > 9 * MB
                and time.time() - local[0]["last_used"] < 60,
                f"local: {local}",
            )
            # A client that goes leaves its pull running; the next one joins it.
            home.remove()
            hub.faults["bytes_per_s"], hub.sent = MB, 0
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request(
                "POST", "/v1/models/pull", json.dumps({"model": NAME}), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            until(lambda: hub.sent > MB)
            check(server.request("GET", "/health")[0] == 200, "others are answered")
            response.close()
            connection.close()
            sent = hub.sent
            until(lambda: hub.sent > sent + MB)
            check(hub.sent > sent + MB, "it goes on")
            hub.faults.clear()
            status, got = events(server, {"model": NAME})
            check(
                got[-1] == "[DONE]" and home.whole(repo) and hub.sent < 12 * MB,
                f"to its end: {hub.sent / MB:.1f} MB for 9",
            )
            # The server stops while one runs.
            home.remove()
            hub.faults["bytes_per_s"] = MB
            connection.request(
                "POST", "/v1/models/pull", json.dumps({"model": NAME}), {"Content-Type": "application/json"}
            )
            connection.getresponse()
            start = time.time()
        check(server.code == 0 and time.time() - start < 15, f"it stops: {server.code}")


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        if len(sys.argv) > 1 and not any(part in name for part in sys.argv[1:]):
            continue
        start, before = time.time(), check.failed
        test()
        print(f"{'ok    ' if check.failed == before else 'FAILED'} {name} {time.time() - start:.1f} s", flush=True)
    check.done()


if __name__ == "__main__":
    main()
