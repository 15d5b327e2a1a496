#!/usr/bin/env python3
"""What the KV cache promises, held against a running server: bench/kv_cache.py WHAT MODEL [options]

  passkey    a text of --tokens tokens with a number planted every 64 tokens; each is asked for, with the text read in
             steps of 1, 7, 128, 512 and 2,048 tokens. Lost are those that --kv-cache forms do not find and f16 finds;
             answers must be the same bytes in all steps
  prefix     seconds to the first token of a prompt of --tokens tokens: never seen, and seen; log-probabilities of both
  requests   64 requests without max_tokens over 8 slots in a pool of two contexts, against the same with a short
             max_tokens
  restart    a conversation of --tokens tokens, a restart with --cache-dir, its next turn: seconds to the first token
             cold and then, tokens found, the median gap between the tokens of another stream before, and its longest
             while pages are read
  soak       --count short requests, 16 at once, in all forms of --kv-cache, with cancels, next turns, edits, shared
             beginnings, n > 1, a pool and a disk cache that are too small: every answer that is checked equals the
             answer of its request alone, at the end no page is held but by the prefix cache, and the memory of the
             second half is that of the first. MODEL tiny: one with random weights
A line of JSON per result; exit code 1 when something that is not a speed failed.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
from apus_server import CACHE, Server  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402

GROWTH_MAX = 12e6  # bytes: heaps of threads that come and go
STEPS = [1, 7, 128, 512, 2048]
THINGS = """anchor apple apron arrow attic bacon badge bakery balcony ballet banjo barn barrel basket beach beacon bell
bench berry bicycle biscuit blanket boat bonnet book boot bottle bowl bracelet branch bread brick bridge broom brush
bucket buckle butter button cabin cable cactus camel camera canal candle canoe canvas carpet carrot castle cathedral
cellar chain chair chalk cherry chess chimney cider circus clock cloud clover coal coat coffee coin collar compass
copper cotton cradle crane crown crystal cup curtain cushion dagger daisy desert desk diamond dinner dolphin donkey
door dragon drawer dress drum duck eagle easel elbow elephant engine envelope fabric falcon feather fence ferry fiddle
field finger flag flour flower flute forest fork fountain fox frame garden garlic gate ghost giraffe glacier glass
glove goat gold grape guitar hammer harp hat hawk helmet hill honey horn horse hotel ice ink iron island ivory jacket
jar jewel jungle kettle key kitchen kite knife ladder lake lamp lantern leaf leather lemon lens letter library lion
lizard lobster lock magnet mango maple marble mask meadow medal melon mill mirror monkey moon mountain museum mushroom
napkin necklace needle nest oak ocean office olive onion opera orange orchard organ oven owl oyster paddle palace paper
parrot pear pearl pencil pepper piano pigeon pillow pilot pine pipe pirate planet plate pocket pony potato prison
puppet rabbit radio raft rail raven ribbon rice river robot rocket roof rope rose saddle salmon salt sandal scarf
school shadow shell ship shoe shovel silk silver snail sofa spider spoon squirrel star stone sugar swan table tailor
""".split()
FILLER = """The morning was quiet and the harbour lay still under a thin mist. Boats came in one after another, and the
men on the quay spoke little. A dog slept beside the nets. Somebody had left a lamp burning in the old customs house,
and its light looked pale against the day. The tide turned before noon. Children ran along the wall and counted the
gulls. In the market the first apples of the year were laid out in rows. A clerk wrote the weights into a long book,
line after line, and blotted each page with care. Nothing of note happened until the bell rang for the evening ferry.
""".split()
failures = 0


def say(**fields):
    global failures
    failures += not fields.get("ok", True)
    print(json.dumps(fields), flush=True)


def count_tokens(model, texts):
    import subprocess

    lines = "".join(json.dumps({"text": t, "special": True, "bos": False}) + "\n" for t in texts)
    out = subprocess.run(
        [os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus")), "debug", "tokens", model],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [len(json.loads(line)["ids"]) for line in out.splitlines()]


def planted(model, tokens, rng):
    """A text in which a record of 64 tokens follows another, and what each holds: as many different things as there are
    records.
    """
    keys = {thing: rng.randrange(1000, 9999) for thing in rng.sample(THINGS, tokens // 64)}
    records = [f"The number of the {thing} is {number}." for thing, number in keys.items()]
    sizes = count_tokens(model, records)
    words, at, text = FILLER * 40, 0, []
    per_word = count_tokens(model, [" ".join(words)])[0] / len(words)
    for record, size in zip(records, sizes):
        take = max(1, round((64 - size) / per_word))
        text.append(record + " " + " ".join(words[at : at + take]))
        at = (at + take) % (len(words) // 2)
    return " ".join(text), keys


def ask_all(server, text, keys):
    """{thing: (answer, its log-probabilities)}; all questions share the text's pages. The beginning of the record is
    repeated, so that whoever still sees it can go on: what is measured is the cache and not how well the model takes
    instructions.
    """
    answers = {}
    for thing in keys:
        body = {
            "model": server.name,
            "prompt": f"{text}\n\nThe number of the {thing} is",
            "temperature": 0,
            "max_tokens": 6,
            "logprobs": 1,
        }
        status, _, answer = server.request("POST", "/v1/completions", body, timeout=3600)
        if status != 200:
            raise RuntimeError(answer.decode())
        choice = json.loads(answer)["choices"][0]
        answers[thing] = choice["text"], choice["logprobs"]["token_logprobs"]
    return answers


def passkey(options):
    rng = random.Random(7)
    text, keys = planted(options.model, options.tokens, rng)
    size = count_tokens(options.model, [text])[0]
    reference, first = None, {}
    for form in ["f16", *options.kv_cache.split(",")]:
        for step in options.steps if form != "f16" else [512]:
            start = time.monotonic()
            with Server(
                options.model, "--kv-cache", form, "--prefill-size", step, "--ctx-size", size + 1024, "--slots", 1
            ) as server:
                answers = ask_all(server, text, keys)
            found = {thing for thing, (answer, _) in answers.items() if str(keys[thing]) in answer}
            reference = found if form == "f16" else reference
            first.setdefault(form, answers)
            say(
                what="passkey",
                model=options.model,
                kv_cache=form,
                tokens=size,
                step=step,
                planted=len(keys),
                found=len(found),
                lost=sorted(reference - found),
                same_bits=first[form] == answers,
                seconds=round(time.monotonic() - start, 1),
                ok=reference <= found and first[form] == answers,
            )


def first_token(server, messages, **fields):
    """Seconds to the first content of a stream, and all its log-probabilities."""
    body = {
        "model": server.name,
        "messages": messages,
        "stream": True,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "stream_options": {"include_usage": True},
        **fields,
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1200)
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response, first, logprobs, usage = connection.getresponse(), None, [], None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice.get("logprobs") and choice["logprobs"].get("content"):
                first = first or time.perf_counter() - start
                logprobs += choice["logprobs"]["content"]
    return first, logprobs, usage


def prefix(options):
    for form in ["f16", *options.kv_cache.split(",")]:
        with Server(options.model, "--kv-cache", form, "--ctx-size", options.tokens + 1024) as server:
            first_token(server, [{"role": "user", "content": "Hello"}], max_tokens=4)
            cold, warm, same, cached = [], [], True, None
            for turn in range(options.rounds):
                rng = random.Random(turn)
                text = " ".join(rng.choice(FILLER) for _ in range(options.tokens * 10 // 13))
                messages = [{"role": "user", "content": text + " What is this about?"}]
                a, logprobs, _ = first_token(server, messages, max_tokens=16)
                b, again, usage = first_token(server, messages, max_tokens=16)
                cold.append(a)
                warm.append(b)
                same = same and logprobs == again
                cached = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        say(
            what="prefix",
            model=options.model,
            kv_cache=form,
            prompt=cached[1],
            cached=cached[0],
            cold_s=round(statistics.median(cold), 4),
            warm_s=round(statistics.median(warm), 4),
            ratio=round(statistics.median(warm) / statistics.median(cold), 4),
            same_bits=same,
            ok=same,
        )


def many(server, bodies, at_once):
    """Answers of all, and tokens per second together."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda b: server.request("POST", "/v1/chat/completions", b, timeout=1200), bodies))
    seconds = time.perf_counter() - start
    decoded = [(status, json.loads(body)) for status, _, body in answers]
    tokens = sum(body["usage"]["completion_tokens"] for status, body in decoded if status == 200)
    return decoded, tokens / seconds


def requests(options):
    topics = FILLER[:64]
    context = 4096
    probe = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for form in ["f16", *options.kv_cache.split(",")]:
        bytes_per_token = options.bytes_per_token
        with Server(
            options.model,
            "--kv-cache",
            form,
            "--ctx-size",
            context,
            "--slots",
            8,
            "--queue",
            128,
            "--kv-memory",
            f"{2 * context * bytes_per_token >> 20}M",
        ) as server:
            free = [
                {
                    "model": server.name,
                    "messages": [{"role": "user", "content": f"Tell me in two sentences about: {topic} ({i})"}],
                    "seed": i,
                    "temperature": 0.7,
                }
                for i, topic in enumerate(topics)
            ]
            server.request("POST", "/v1/chat/completions", {"model": server.name, **probe})
            rates, fixed_rates, bad = [], [], 0
            for _ in range(options.rounds):
                answers, rate = many(server, free, 64)
                bad += sum(status != 200 for status, _ in answers)
                # The same answers, cut at what they have anyway.
                short = [
                    {**body, "max_tokens": answer["usage"]["completion_tokens"]}
                    if status == 200
                    else {**body, "max_tokens": 64}
                    for body, (status, answer) in zip(free, answers)
                ]
                _, fixed = many(server, short, 64)
                rates.append(rate)
                fixed_rates.append(fixed)
        say(
            what="requests",
            model=options.model,
            kv_cache=form,
            tokens_per_s=round(statistics.median(rates), 1),
            with_max_tokens=round(statistics.median(fixed_rates), 1),
            ratio=round(statistics.median(a / b for a, b in zip(rates, fixed_rates)), 3),
            failed=bad,
            ok=bad == 0,
        )


def gaps_of_a_stream(server, gaps, stop):
    """Seconds between the events of answers that run beside."""
    while not stop.is_set():
        body = {
            "model": server.name,
            "messages": [{"role": "user", "content": "Count."}],
            "stream": True,
            "max_tokens": 200,
            "ignore_eos": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1200)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        last = None
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                gaps.append((last or now, now))
                last = now
            if stop.is_set():
                break
        connection.close()


def restart(options):
    rng = random.Random(5)
    text = " ".join(rng.choice(FILLER) for _ in range(options.tokens * 10 // 13))
    turn = [{"role": "user", "content": text + " What is this about?"}]
    for form in ["f16", *options.kv_cache.split(",")]:
        start = [options.model, "--kv-cache", form, "--ctx-size", options.tokens + 1024, "--slots", 2]
        with tempfile.TemporaryDirectory() as directory:
            with Server(*start, "--cache-dir", directory) as server:
                answer = server.chat(turn, max_tokens=32, temperature=0)[1]["choices"][0]["message"]
                following = turn + [answer, {"role": "user", "content": "And why?"}]
                cold, logprobs, _ = first_token(server, following, max_tokens=16, cache_prompt=False)
            with Server(*start, "--cache-dir", directory) as server:
                gaps, stop = [], threading.Event()
                stream = threading.Thread(target=gaps_of_a_stream, args=(server, gaps, stop))
                stream.start()
                time.sleep(3)
                begin = time.perf_counter()
                warm, again, usage = first_token(server, following, max_tokens=16)
                end = begin + warm
                stop.set()
                stream.join()
        cached, prompt = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        during = max((b - a for a, b in gaps if b > begin and a < end), default=0)
        before = statistics.median(b - a for a, b in gaps if b < begin and b > a)
        say(
            what="restart",
            model=options.model,
            kv_cache=form,
            prompt=prompt,
            cached=cached,
            cold_s=round(cold, 3),
            warm_s=round(warm, 3),
            stream_gap_ms=[round(1e3 * before, 1), round(1e3 * during, 1)],
            same_bits=logprobs == again,
            ok=logprobs == again and prompt - cached < 256,
        )


def soak_body(server, rng, shared, talks, forms):
    if talks and rng.random() < 0.25:  # the next turn of one that was answered, or an edit of it
        messages = list(rng.choice(talks))
        messages[0] = (
            messages[0] if rng.random() < 0.8 else {"role": "user", "content": messages[0]["content"][:-9] + "edited"}
        )
    else:
        start = rng.choice(shared)
        messages = [{"role": "system", "content": start}] if rng.random() < 0.3 else []
        start = start[: rng.randrange(20, len(start))]
    text = start if not messages else ""
    messages.append(
        {"role": "user", "content": text + " ".join(rng.choice(FILLER) for _ in range(rng.randrange(1, 12)))}
    )
    body = {
        "model": server.name,
        "messages": messages,
        "max_tokens": rng.randrange(1, 9) if rng.random() < 0.9 else 150,
        "seed": rng.randrange(1000),
        "temperature": rng.choice([0, 1.0]),
        "kv_cache": rng.choice(forms),
        "ignore_eos": True,
    }
    if rng.random() < 0.1:
        body["n"] = 3
    if rng.random() < 0.3:
        body["cache_salt"] = rng.choice("ab")
    if rng.random() < 0.5:
        body |= {"logprobs": True, "top_logprobs": 2}
    return body


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) * 1024


def figures(server):
    """/metrics without labels."""
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("apus_")}


def ask_and_vanish(server, body, rng):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"}
    )
    if rng.random() < 0.5:
        response = connection.getresponse()
        for _ in range(rng.randrange(6)):
            response.readline()
    else:
        time.sleep(rng.choice([0, 0.002, 0.02]))
    connection.close()


def soak(options):
    rng, lock, forms = random.Random(3), threading.Lock(), options.kv_cache.split(",")
    shared = [" ".join(rng.choice(FILLER) for _ in range(options.words)) for _ in range(6)]
    wrong, failed, talks, counts = [], [], [], {"cancelled": 0, "checked": 0, "done": 0}
    common = [options.model, "--turbo-after", 256, "--turbo-hot", 128, "--ctx-size", 2048, "--queue", 64]
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(
            *common, "--slots", 16, "--kv-memory", options.kv_memory, "--cache-dir", directory, "--cache-disk", "256M"
        ) as server,
        Server(*common, "--no-prefix-cache", "--slots", 1) as alone,
    ):
        memory = []

        def one(i):
            with lock:
                own = random.Random(rng.random())
                body = soak_body(server, rng, shared, talks, forms)
                check = rng.random() < options.checked
            if own.random() < 0.2:
                ask_and_vanish(server, body, own)
                with lock:
                    counts["cancelled"] += 1
                return
            status, _, answer = server.request("POST", "/v1/chat/completions", body, timeout=600)
            choices = json.loads(answer).get("choices")
            if status != 200:
                failed.append((status, answer[:200].decode()))
            elif check:
                other = alone.request("POST", "/v1/chat/completions", {**body, "model": alone.name}, timeout=600)[2]
                if choices != json.loads(other)["choices"]:
                    wrong.append(body)
            with lock:
                counts["checked"] += check
                counts["done"] += 1
                if status == 200 and len(body["messages"]) < 5:
                    talks.append(body["messages"] + [choices[0]["message"]])
                    del talks[:-40]
                if counts["done"] % max(1, options.count // 20) == 0:
                    memory.append(resident(server))

        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(options.count)))
        idle, seconds = server.wait_idle(), time.monotonic() - start
        memory.append(resident(server))
        now = figures(server)
    held = now["apus_kv_cache_used_bytes"] - now["apus_prefix_cache_bytes"]
    growth = memory[-1] - max(memory[: len(memory) // 2 + 1])
    say(
        what="soak",
        model=options.model,
        requests=options.count,
        **counts,
        failed=failed[:5],
        wrong=len(wrong),
        first_wrong=wrong[:1],
        idle=idle,
        leaked_bytes=max(0, held),
        growth_mb=round(growth / 1e6, 1),
        anonymous_mb=[round(m / 1e6) for m in memory],
        seconds=round(seconds),
        **{
            name.removeprefix("apus_").removesuffix("_total"): int(now[name])
            for name in (
                "apus_num_preemptions_total",
                "apus_prefix_cache_hits_total",
                "apus_prefix_cache_evictions_total",
                "apus_disk_cache_written_pages_total",
                "apus_disk_cache_restored_pages_total",
            )
        },
        ok=not failed and not wrong and idle and held <= 0 and growth < GROWTH_MAX,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["passkey", "prefix", "requests", "restart", "soak"])
    parser.add_argument("model", help="a name in the cache of models, or a path")
    parser.add_argument("--kv-cache", help="forms, with commas: of turbo; of the soak all")
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--steps", type=lambda text: [int(s) for s in text.split(",")], default=STEPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument(
        "--checked", type=float, default=0.2, help="share of the soak's answers that are held against the answer alone"
    )
    parser.add_argument("--kv-memory", default="64M", help="of the soak; of tiny 2M")
    parser.add_argument("--words", type=int, default=200, help="of the soak's shared beginnings")
    parser.add_argument("--bytes-per-token", type=int, default=28672, help="of an f16 cache")
    options = parser.parse_args()
    path = os.path.join(CACHE, options.model + ".gguf")
    options.model = path if os.path.exists(path) else options.model
    options.tokens = options.tokens or {"passkey": 16384, "restart": 8192}.get(options.what, 4096)
    with tempfile.TemporaryDirectory() as directory:
        options.kv_cache = options.kv_cache or (
            "f16,turbo,turbo3,turbo4,turbo5,turbo6,q8,q8/turbo3" if options.what == "soak" else "turbo"
        )
        if options.model == "tiny":
            options.kv_memory = "2M"
            write_tiny_model(directory)
            options.model = directory
        {"passkey": passkey, "prefix": prefix, "requests": requests, "restart": restart, "soak": soak}[options.what](
            options
        )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
