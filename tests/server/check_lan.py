#!/usr/bin/env python3
"""apus serve --lan: the certificate and its key, pairing by a secret that works once, keys of devices, and their
revocation by a device and by the command, which a running server sees at once.
"""

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile

from apus_server import BINARY, Checks

check = Checks()
PAIRING = re.compile(r"https://([\d.]+):(\d+)/#/pair/([0-9a-f]{32})")


class LanServer:
    """apus serve --lan without a model; what it prints up to the fingerprint."""

    def __init__(self, state, *options):
        self.environment = {**os.environ, "APUS_STATE": state, "APUS_CACHE": os.path.join(state, "cache")}
        command = [BINARY, "serve", "--lan", "--host", "127.0.0.1", "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        self.output = ""
        for line in self.process.stdout:
            self.output += line
            if line.startswith("More devices"):
                break
        found = PAIRING.search(self.output)
        if not found:
            raise RuntimeError(f"no pairing: {self.output}{self.process.stderr.read()}")
        self.port, self.secret = int(found[2]), found[3]
        self.context = ssl.create_default_context(cafile=os.path.join(state, "lan", "certificate.pem"))

    def request(self, method, path, body=None, key=None):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def pair(self, secret, name):
        return self.request("POST", "/v1/devices/pair", {"secret": secret, "name": name})

    def command(self, *arguments):
        done = subprocess.run(
            [BINARY, "devices", *arguments], capture_output=True, text=True, env=self.environment, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()


def mode(path):
    return oct(os.stat(path).st_mode & 0o777)


def test_files(state):
    place = os.path.join(state, "lan")
    check(mode(place) == "0o700" and mode(os.path.join(place, "key.pem")) == "0o600", "the key is this user's alone")
    text = subprocess.run(
        ["openssl", "x509", "-in", os.path.join(place, "certificate.pem"), "-noout", "-text"],
        capture_output=True,
        text=True,
    ).stdout
    check("IP Address:127.0.0.1" in text and "CA:FALSE" in text, f"the certificate: {text}")


def test_pairing(server):
    """A secret pairs one device; its key opens the API; nothing else does."""
    check(server.request("GET", "/v1/models")[0] == 401, "nothing without a key")
    check(server.request("GET", "/v1/devices", key=server.secret)[0] == 401, "the secret is no key")
    check(server.request("POST", "/v1/devices/pairing", {})[0] == 401, "only a device begins a pairing")
    status, answer = server.pair("0" * 32, "thief")
    check(status == 403 and answer["error"]["code"] == "pairing_over", f"a wrong secret: {answer}")
    status, phone = server.pair(server.secret, "My\u001b[31m ☎ phone")
    check(status == 200 and len(phone["key"]) == 32, f"paired: {phone}")
    check(server.pair(server.secret, "again")[0] == 403, "the secret works once")
    check(server.request("GET", "/v1/models", key=phone["key"])[0] == 200, "its key opens the API")
    listed = server.request("GET", "/v1/devices", key=phone["key"])[1]["data"]
    check([d["name"] for d in listed] == ["My[31m ☎ phone"] and listed[0]["current"], f"it is listed: {listed}")
    check(listed[0]["last_used"] >= listed[0]["created"] > 0, f"with its last use: {listed}")
    check(server.pair("", "x")[0] == 403 and server.pair(5, "x")[0] == 400, "what is no secret")
    return phone


def test_more(server, phone):
    """A device invites another one, which revokes the first."""
    status, pairing = server.request("POST", "/v1/devices/pairing", {}, phone["key"])
    check(status == 200 and PAIRING.fullmatch(pairing["url"]), f"an invitation: {pairing}")
    width = len(pairing["qr"])
    check(width == 0 or all(len(row) == width and set(row) <= {"0", "1"} for row in pairing["qr"]), "its QR code")
    second = server.pair(pairing["url"].rsplit("/", 1)[1], "x" * 100)[1]
    names = [d["name"] for d in server.request("GET", "/v1/devices", key=second["key"])[1]["data"]]
    check(names[1] == "x" * 64, f"a long name is cut: {names}")
    check(server.request("DELETE", "/v1/devices/none", key=second["key"])[0] == 404, "no such device")
    status, answer = server.request("DELETE", f"/v1/devices/{phone['id']}", key=second["key"])
    check(status == 200 and answer["deleted"], f"revoked: {answer}")
    check(server.request("GET", "/v1/models", key=phone["key"])[0] == 401, "its key opens nothing any more")
    return second


def test_command(server, second):
    """The command lists, adds and revokes; the running server sees it."""
    code, out, _ = server.command()
    check(code == 0 and second["id"] in out, f"listed: {out}")
    code, key, told = server.command("add", "laptop")
    key = key.strip()
    check(code == 0 and re.fullmatch("[0-9a-f]{32}", key) and "only now" in told, f"added: {key} {told}")
    check(server.request("GET", "/v1/models", key=key)[0] == 200, "its key opens the API at once")
    laptop = server.command()[1].splitlines()[-1].split()[0]
    check(server.command("revoke", laptop)[0] == 0, "revoked")
    check(server.request("GET", "/v1/models", key=key)[0] == 401, "and its key opens nothing at once")
    check(server.command("revoke", laptop)[0] == 1 and server.command("remove", "x")[0] == 2, "what there is not")


def test_again(state, second):
    """After a restart keys and certificate are the same; a file that is damaged lets no device in."""
    path = os.path.join(state, "lan", "certificate.pem")
    with open(path) as file:
        before = file.read()
    with LanServer(state, "--api-key", "own") as server:
        with open(path) as file:
            check(file.read() == before, "the certificate stays")
        check(server.request("GET", "/v1/models", key=second["key"])[0] == 200, "a device stays")
        check(server.request("GET", "/v1/models", key="own")[0] == 200, "beside a key of the server")
        with open(os.path.join(state, "lan", "devices.json"), "w") as file:
            file.write("{}")
        check(server.request("GET", "/v1/models", key=second["key"])[0] == 401, "no list, no device")
    check(server.code == 0, f"the server ends: {server.code}")
    with open(os.path.join(state, "lan", "devices.json")) as file:
        check(file.read() == "{}", "a damaged file is not overwritten")


def main():
    with tempfile.TemporaryDirectory() as state:
        with LanServer(state) as server:
            check(("█" in server.output) == ("Scan" in server.output), "a QR code, where the build has them")
            test_files(state)
            phone = test_pairing(server)
            second = test_more(server, phone)
            test_command(server, second)
        check(server.code == 0, f"the server ends: {server.code}")
        test_again(state, second)
    check.done()


if __name__ == "__main__":
    sys.exit(main())
