#!/usr/bin/env python3
"""A tiny model on a device, through the server: COUNT mixed requests (lengths, temperatures, some with
log-probabilities, n, schemas, stop strings), first one by one, then by 32 clients at once, some of which leave amid a
stream; each answer must be the one it was alone, bit for bit. tests/server/check_device.py [DEVICE] [COUNT] [OPTIONS of
apus serve…]; tests/cuda.sh runs it on a GPU.
"""

import http.client
import json
import random
import sys
import tempfile
import threading

from apus_server import Server
from tiny_model import write_tiny_model

CLIENTS, SLOTS, LEAVERS = 32, 16, 5  # of so many requests one is also sent by a client that leaves
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def request_of(number):
    rng = random.Random(number)
    prompt = "".join(rng.choice("abcdefgh ") for _ in range(rng.randrange(1, 400)))
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": rng.randrange(1, 60),
        "seed": number,
        "temperature": rng.choice([0, 1]),
    }
    if rng.random() < 0.3:  # the others' tokens may be drawn on the device
        request.update(logprobs=True, top_logprobs=3)
    for name, value in ("top_p", 0.9), ("top_k", 20), ("min_p", 0.02), ("frequency_penalty", 0.3):
        if rng.random() < 0.2:
            request[name] = value
    if rng.random() < 0.2:
        request["n"] = 3
    if rng.random() < 0.2:
        request["stop"] = [rng.choice("abcdefgh") + rng.choice("abcdefgh ")]
    if rng.random() < 0.2:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    return request


def send(port, request):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def answer(port, request):
    connection, response = send(port, request)
    value = json.loads(response.read())
    connection.close()
    if response.status != 200:
        return response.status, value
    return 200, [(c["message"]["content"], c["finish_reason"], c.get("logprobs")) for c in value["choices"]]


def leave(port, request):
    connection, response = send(port, {**request, "stream": True})
    response.read(200)
    connection.close()


def client(port, numbers, alone, same):
    for number in numbers:
        if number % LEAVERS == 0:
            leave(port, request_of(number))
        if answer(port, request_of(number)) == alone[number]:
            same.append(number)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    count, options = int(sys.argv[2]) if len(sys.argv) > 2 else 2000, sys.argv[3:]
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory)
        with Server(directory, "--device", device, "--slots", SLOTS, *options, name="tiny") as server:
            alone = [answer(server.port, request_of(i)) for i in range(count)]
            order, same = list(range(count)), []  # a client that fails leaves its numbers out
            random.Random(1).shuffle(order)
            threads = [
                threading.Thread(target=client, args=(server.port, order[i::CLIENTS], alone, same))
                for i in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        refused = sum(status != 200 for status, _ in alone)
        print(
            f"{count} answers on {' '.join([device, *options])}: {count - len(same)} differ from alone, {refused} "
            f"refused"
        )
        sys.exit(1 if len(same) < count or refused else 0)


main()
