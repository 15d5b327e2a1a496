"""Plays the Hugging Face Hub on this machine: the API, resolve addresses, and on another port the CDN that they send
to.

What is unusual is said in `hub.faults`, a dict; a fault with a count ends after so many uses. Every request is in
`hub.log`.
"""

import gzip
import hashlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, large=(), **fields):
        self.files, self.large = dict(files), set(large)
        self.gated, self.private = False, False
        self.entries = {}
        self.branches = {
            "main": hashlib.sha1(json.dumps(sorted((k, git_sha1(v)) for k, v in files.items())).encode()).hexdigest()
        }
        self.__dict__.update(fields)

    def entry(self, path):
        known = self.entries.get(path)
        if known is None or known[0] is not self.files[path] or known[1] != (path in self.large):
            known = self.entries[path] = (self.files[path], path in self.large, self.make_entry(path))
        return known[2]

    def make_entry(self, path):
        data = self.files[path]
        entry = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
        if path in self.large:
            pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize %d\n" % (
                hashlib.sha256(data).hexdigest().encode(),
                len(data),
            )
            entry["oid"] = git_sha1(pointer)
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer)}
        return entry

    def etag(self, path):
        entry = self.entry(path)
        return entry.get("lfs", entry)["oid"]


class FakeHub:
    def __init__(self, repos, tokens=("good-token",), page=3, certificate=None):
        self.repos, self.tokens, self.page = repos, set(tokens), page
        self.faults, self.log, self.sent = {}, [], 0
        self.lock = threading.Lock()
        self.servers = [self.start("api", certificate), self.start("cdn", None)]
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://localhost:{self.servers[0].server_port}"
        self.cdn = f"http://127.0.0.1:{self.servers[1].server_port}"

    def start(self, role, certificate):
        hub = self

        class Handler(HubHandler):
            pass

        Handler.hub, Handler.role = hub, role

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, address):  # clients that vanish are what is being tested
                pass

        server = Server(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def fault(self, name):
        """The value of a fault that is set: {"name": value} always, {"name": [value, n]} n times."""
        with self.lock:
            value = self.faults.get(name)
            if isinstance(value, list):
                if value[1] == 0:
                    return None
                value[1] -= 1
                return value[0]
            return value

    def asked(self, role, method=None):
        return [entry for entry in self.log if entry["role"] == role and (method is None or entry["method"] == method)]


class HubHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value, headers=None):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def refuse(self, status, code=None, message=None, headers=None):
        fields = dict(headers or {})
        if code:
            fields["X-Error-Code"] = code
        if message:
            fields["X-Error-Message"] = message
        self.answer(status, json.dumps({"error": message or ""}).encode(), fields)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.hub
        with hub.lock:
            hub.log.append(
                {"role": self.role, "method": self.command, "path": self.path, "headers": dict(self.headers)}
            )
        if self.role == "cdn":
            return self.cdn()
        if status := hub.fault("status"):
            status, fields = status if isinstance(status, tuple) else (status, {})
            return self.refuse(status, headers=fields)
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        if url.path == "/api/models":
            return self.search(query)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", url.path):
            return self.revision(found[1], urllib.parse.unquote(found[2] or "main"))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", url.path):
            return self.tree(found[1], urllib.parse.unquote(found[2]), query)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            return self.resolve(found[1], urllib.parse.unquote(found[2]), urllib.parse.unquote(found[3]))
        self.refuse(404)

    def repo(self, name):
        """The repository, or None when a refusal was sent."""
        repo, token = self.hub.repos.get(name), self.headers.get("Authorization")
        known = token is not None and token.removeprefix("Bearer ") in self.hub.tokens
        if token is not None and not known:
            self.refuse(401, message="Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not known):
            self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        elif repo.gated and not known:
            self.refuse(401, "GatedRepo", "Access to model is restricted. You must be authenticated.")
        elif repo.gated and repo.gated != "accepted":
            self.refuse(403, "GatedRepo", "Access to model is restricted and you are not in the authorized list.")
        else:
            return repo
        return None

    def commit(self, repo, revision):
        if revision in repo.branches:
            return repo.branches[revision]
        if revision in repo.branches.values():
            return revision
        self.refuse(404, "RevisionNotFound", "Invalid rev id")
        return None

    def search(self, query):
        text = query["search"][0].lower()
        hits = [
            {
                "id": name,
                "downloads": len(name),
                "gated": bool(repo.gated),
                "tags": ["gguf"] if any(p.endswith(".gguf") for p in repo.files) else ["mlx"],
                "safetensors": {"total": 494032768, "parameters": {"BF16": 1000000, "U32": 250000000}},
                "likes": 100 - len(name),
                "lastModified": f"2026-01-0{len(name) % 9 + 1}T00:00:00.000Z",
            }
            for name, repo in sorted(self.hub.repos.items())
            if text in name.lower()
        ]
        hits.sort(key=lambda hit: hit[query["sort"][0]], reverse=True)
        self.answer_json(hits[: int(query["limit"][0])])

    def revision(self, name, revision):
        if moved := self.hub.fault("moved"):
            if name in moved:
                return self.answer(307, headers={"Location": f"/api/models/{moved[name]}/revision/{revision}"})
        if (repo := self.repo(name)) and (commit := self.commit(repo, revision)):
            self.answer_json(
                {
                    "id": name,
                    "modelId": name,
                    "sha": commit,
                    "tags": [],
                    "private": False,
                    "downloads": 0,
                    "likes": 0,
                    "siblings": [{"rfilename": path} for path in repo.files],
                }
            )

    def tree(self, name, revision, query):
        repo = self.repo(name)
        commit = repo and self.commit(repo, revision)
        if not commit:
            return
        start = int(query.get("cursor", ["0"])[0])
        entries = [repo.entry(path) for path in sorted(repo.files)]
        folders = sorted({path.rsplit("/", 1)[0] for path in repo.files if "/" in path})
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in folders] + entries
        if hostile := self.hub.fault("hostile_path"):
            entries[0] = {**repo.entry(sorted(repo.files)[0]), "path": hostile}
        headers = {}
        if start + self.hub.page < len(entries):
            headers["Link"] = (
                f"<{self.hub.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={start + self.hub.page}>; "
                f'rel="next"'
            )
        self.answer_json(entries[start : start + self.hub.page], headers)

    def resolve(self, name, revision, path):
        repo = self.repo(name)
        commit = repo and self.commit(repo, revision)
        if not commit:
            return
        if path not in repo.files:
            return self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        fields = {"X-Repo-Commit": commit, "ETag": f'"{repo.etag(path)}"', "Accept-Ranges": "bytes"}
        if status := self.hub.fault("resolve_status"):
            status, more = status if isinstance(status, tuple) else (status, {})
            return self.refuse(status, headers=more)
        if path not in repo.large:
            return self.send(repo.files[path], fields)
        fields["X-Linked-Etag"], fields["X-Linked-Size"] = fields["ETag"], str(len(repo.files[path]))
        target = f"{self.hub.cdn}/{name}/{urllib.parse.quote(path)}?signature=s{int(time.time() * 1000)}"
        self.answer(302, b"Found", {**fields, "Location": self.hub.fault("location") or target})

    def cdn(self):
        found = re.fullmatch(r"/([^/]+/[^/]+)/(.+)", urllib.parse.urlsplit(self.path).path)
        if self.hub.fault(
            "outage"
        ):  # eight connections break, one after the other; what comes meanwhile waits for the end
            with self.hub.lock:
                self.hub.outage = getattr(self.hub, "outage", []) + [time.time()]
                number, begin = len(self.hub.outage), self.hub.outage[0]
            time.sleep(0.9 * number if number <= 8 else max(0, begin + 8 - time.time()))
            if number <= 8:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
        if self.hub.fault("expired"):
            return self.answer(403, b"<Error>AccessDenied</Error>")
        if status := self.hub.fault("cdn_status"):
            return self.answer(status, b"later")
        repo = self.hub.repos[found[1]]
        self.send(repo.files[urllib.parse.unquote(found[2])], {"Accept-Ranges": "bytes"})

    def send(self, data, fields):
        """The bytes, or the asked range of them, with what the faults do to them."""
        hub, status, begin, end = self.hub, 200, 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not hub.fault("no_ranges"):
            begin, end = int(asked[1]), min(int(asked[2]) + 1, len(data)) if asked[2] else len(data)
            if begin >= len(data) or hub.fault("416"):
                return self.answer(416, headers={"Content-Range": f"bytes */{len(data)}"})
            status = 206
            fields = {**fields, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
            if hub.fault("wrong_range"):
                fields["Content-Range"] = f"bytes {begin + 1}-{end}/{len(data) + 1}"
        body = data[begin:end]
        if hub.fault("wrong_bytes") and body:
            at = len(body) // 2
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        if hub.fault("gzip"):
            fields = {**fields, "Content-Encoding": "gzip"}
            body = gzip.compress(body)
        length = len(body)
        if (short := hub.fault("short")) is not None:
            body = body[:short]
            length = len(body)
        cut = hub.fault("cut")
        if cut is not None:
            body = body[:cut]
        self.send_response(status)
        for name, value in {**fields, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        speed = hub.fault("bytes_per_s")
        step = max(1, speed // 20) if speed else 1 << 16
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            with hub.lock:
                hub.sent += len(body[at : at + step])
            if speed:
                time.sleep(step / speed)
        if stall := hub.fault("stall_s"):
            time.sleep(stall)
        if cut is not None:
            self.close_connection = True
            self.connection.close()
