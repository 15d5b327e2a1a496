#!/usr/bin/env python3
"""What the KV cache promises, held against a running server: bench/kv_cache.py WHAT MODEL [options]

  passkey    a text of --tokens tokens with a number planted every 64 tokens; each is asked for, with the text read in steps of 1, 7, 128,
             512 and 2,048 tokens. Lost are those that --kv-cache forms do not find and f16 finds; answers must be the same bytes in all steps
  prefix     seconds to the first token of a prompt of --tokens tokens: never seen, and seen; log-probabilities of both
  requests   64 requests without max_tokens over 8 slots in a pool of two contexts, against the same with a short max_tokens
  soak       --count short requests, 16 at once, with cancels, shared beginnings, n > 1 and a pool that is too small: every answer equals the
             answer of its request alone, and at the end no page is held but by the prefix cache
A line of JSON per result; exit code 1 when something that is not a speed failed."""
import argparse, concurrent.futures, http.client, json, os, random, statistics, sys, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
from apus_server import CACHE, Server  # noqa: E402

STEPS = [1, 7, 128, 512, 2048]
THINGS = """anchor apple apron arrow attic bacon badge bakery balcony ballet banjo barn barrel basket beach beacon bell bench berry bicycle biscuit
blanket boat bonnet book boot bottle bowl bracelet branch bread brick bridge broom brush bucket buckle butter button cabin cable cactus
camel camera canal candle canoe canvas carpet carrot castle cathedral cellar chain chair chalk cherry chess chimney cider circus clock cloud
clover coal coat coffee coin collar compass copper cotton cradle crane crown crystal cup curtain cushion dagger daisy desert desk diamond
dinner dolphin donkey door dragon drawer dress drum duck eagle easel elbow elephant engine envelope fabric falcon feather fence ferry fiddle
field finger flag flour flower flute forest fork fountain fox frame garden garlic gate ghost giraffe glacier glass glove goat gold grape
guitar hammer harp hat hawk helmet hill honey horn horse hotel ice ink iron island ivory jacket jar jewel jungle kettle key kitchen kite
knife ladder lake lamp lantern leaf leather lemon lens letter library lion lizard lobster lock magnet mango maple marble mask meadow medal
melon mill mirror monkey moon mountain museum mushroom napkin necklace needle nest oak ocean office olive onion opera orange orchard organ
oven owl oyster paddle palace paper parrot pear pearl pencil pepper piano pigeon pillow pilot pine pipe pirate planet plate pocket pony
potato prison puppet rabbit radio raft rail raven ribbon rice river robot rocket roof rope rose saddle salmon salt sandal scarf school
shadow shell ship shoe shovel silk silver snail sofa spider spoon squirrel star stone sugar swan table tailor""".split()
FILLER = """The morning was quiet and the harbour lay still under a thin mist. Boats came in one after another, and the men on the quay
spoke little. A dog slept beside the nets. Somebody had left a lamp burning in the old customs house, and its light looked pale against the
day. The tide turned before noon. Children ran along the wall and counted the gulls. In the market the first apples of the year were laid out
in rows. A clerk wrote the weights into a long book, line after line, and blotted each page with care. Nothing of note happened until the
bell rang for the evening ferry.""".split()
failures = 0


def say(**fields):
    global failures
    failures += not fields.get("ok", True)
    print(json.dumps(fields), flush=True)


def count_tokens(model, texts):
    import subprocess
    lines = "".join(json.dumps({"text": t, "special": True, "bos": False}) + "\n" for t in texts)
    out = subprocess.run([os.environ.get("APUS_BINARY", os.path.join(ROOT, "build", "apus")), "debug", "tokens", model], input=lines,
                         capture_output=True, text=True, check=True).stdout
    return [len(json.loads(line)["ids"]) for line in out.splitlines()]


def planted(model, tokens, rng):
    """A text in which a record of 64 tokens follows another, and what each holds: as many different things as there are records."""
    keys = {thing: rng.randrange(1000, 9999) for thing in rng.sample(THINGS, tokens // 64)}
    records = [f"The number of the {thing} is {number}." for thing, number in keys.items()]
    sizes = count_tokens(model, records)
    words, at, text = FILLER * 40, 0, []
    per_word = count_tokens(model, [" ".join(words)])[0] / len(words)
    for record, size in zip(records, sizes):
        take = max(1, round((64 - size) / per_word))
        text.append(record + " " + " ".join(words[at:at + take]))
        at = (at + take) % (len(words) // 2)
    return " ".join(text), keys


def ask_all(server, text, keys):
    """{thing: (answer, its log-probabilities)}; all questions share the text's pages. The beginning of the record is repeated, so that
    whoever still sees it can go on: what is measured is the cache and not how well the model takes instructions."""
    answers = {}
    for thing in keys:
        body = {"model": server.name, "prompt": f"{text}\n\nThe number of the {thing} is", "temperature": 0, "max_tokens": 6, "logprobs": 1}
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
            with Server(options.model, "--kv-cache", form, "--prefill-size", step, "--ctx-size", size + 1024, "--slots", 1) as server:
                answers = ask_all(server, text, keys)
            found = {thing for thing, (answer, _) in answers.items() if str(keys[thing]) in answer}
            reference = found if form == "f16" else reference
            first.setdefault(form, answers)
            say(what="passkey", model=options.model, kv_cache=form, tokens=size, step=step, planted=len(keys), found=len(found),
                lost=sorted(reference - found), same_bits=first[form] == answers, seconds=round(time.monotonic() - start, 1),
                ok=reference <= found and first[form] == answers)


def first_token(server, messages, **fields):
    """Seconds to the first content of a stream, and all its log-probabilities."""
    body = {"model": server.name, "messages": messages, "stream": True, "temperature": 0, "logprobs": True, "top_logprobs": 3,
            "stream_options": {"include_usage": True}, **fields}
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
        say(what="prefix", model=options.model, kv_cache=form, prompt=cached[1], cached=cached[0], cold_s=round(statistics.median(cold), 4),
            warm_s=round(statistics.median(warm), 4), ratio=round(statistics.median(warm) / statistics.median(cold), 4), same_bits=same, ok=same)


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
        with Server(options.model, "--kv-cache", form, "--ctx-size", context, "--slots", 8, "--queue", 128, "--kv-memory",
                    f"{2 * context * bytes_per_token >> 20}M") as server:
            free = [{"model": server.name, "messages": [{"role": "user", "content": f"Tell me in two sentences about: {topic} ({i})"}],
                     "seed": i, "temperature": 0.7} for i, topic in enumerate(topics)]
            server.request("POST", "/v1/chat/completions", {"model": server.name, **probe})
            rates, fixed_rates, bad = [], [], 0
            for _ in range(options.rounds):
                answers, rate = many(server, free, 64)
                bad += sum(status != 200 for status, _ in answers)
                # The same answers, cut at what they have anyway.
                short = [{**body, "max_tokens": answer["usage"]["completion_tokens"]} if status == 200 else {**body, "max_tokens": 64}
                         for body, (status, answer) in zip(free, answers)]
                _, fixed = many(server, short, 64)
                rates.append(rate)
                fixed_rates.append(fixed)
        say(what="requests", model=options.model, kv_cache=form, tokens_per_s=round(statistics.median(rates), 1),
            with_max_tokens=round(statistics.median(fixed_rates), 1),
            ratio=round(statistics.median(a / b for a, b in zip(rates, fixed_rates)), 3), failed=bad, ok=bad == 0)


def soak_body(server, rng, shared):
    start = rng.choice(shared)
    text = start[:rng.randrange(20, len(start))] + " " + " ".join(rng.choice(FILLER) for _ in range(rng.randrange(1, 12)))
    body = {"model": server.name, "messages": [{"role": "user", "content": text}], "max_tokens": rng.randrange(1, 9), "seed": rng.randrange(1000),
            "temperature": rng.choice([0, 1.0])}
    if rng.random() < 0.1:
        body["n"] = 3
    if rng.random() < 0.3:
        body["cache_salt"] = rng.choice("ab")
    return body


def content(body):
    return [choice["message"]["content"] for choice in body["choices"]]


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) * 1024


def soak(options):
    rng, lock = random.Random(3), threading.Lock()
    shared = [" ".join(rng.choice(FILLER) for _ in range(200)) for _ in range(6)]
    wrong, failed, cancelled = [], [], 0
    with Server(options.model, "--kv-cache", options.kv_cache.split(",")[0], "--turbo-after", 256, "--turbo-hot", 128, "--ctx-size", 2048, "--slots",
                16, "--kv-memory", options.kv_memory) as server, \
            Server(options.model, "--kv-cache", options.kv_cache.split(",")[0], "--turbo-after", 256, "--turbo-hot", 128, "--ctx-size", 2048,
                   "--no-prefix-cache", "--slots", 1) as alone:
        early = None

        def one(i):
            nonlocal cancelled, early
            with lock:
                body = soak_body(server, rng, shared)
                cancel, check = rng.random() < 0.2, rng.random() < options.checked
            if cancel:
                connection = http.client.HTTPConnection("127.0.0.1", server.port)
                connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
                time.sleep(0.02 * (i % 5))
                connection.close()
                cancelled += 1
                return
            status, _, answer = server.request("POST", "/v1/chat/completions", body, timeout=600)
            if status != 200:
                failed.append((status, answer[:200].decode()))
            elif check:
                other = alone.request("POST", "/v1/chat/completions", {**body, "model": alone.name}, timeout=600)[2]
                if content(json.loads(answer)) != content(json.loads(other)):
                    wrong.append(body)
            if i == options.count // 4:
                early = resident(server)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(options.count)))
        idle, late = server.wait_idle(), resident(server)
        metrics = server.request("GET", "/metrics")[2].decode()
    held = [line for line in metrics.splitlines() if line.startswith("apus_") and ("kv" in line or "park" in line or "prefix" in line)]
    say(what="soak", model=options.model, requests=options.count, cancelled=cancelled, failed=failed[:5], wrong=len(wrong), idle=idle,
        anonymous_mb=[round((early or 0) / 1e6), round(late / 1e6)], ok=not failed and not wrong and idle)
    print("\n".join(held), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["passkey", "prefix", "requests", "soak"])
    parser.add_argument("model", help="a name in the cache of models, or a path")
    parser.add_argument("--kv-cache", default="turbo", help="forms, with commas")
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--steps", type=lambda text: [int(s) for s in text.split(",")], default=STEPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--checked", type=float, default=0.2, help="share of the soak's answers that are held against the answer alone")
    parser.add_argument("--kv-memory", default="64M")
    parser.add_argument("--bytes-per-token", type=int, default=28672, help="of an f16 cache")
    options = parser.parse_args()
    path = os.path.join(CACHE, options.model + ".gguf")
    options.model = path if os.path.exists(path) else options.model
    options.tokens = options.tokens or {"passkey": 16384}.get(options.what, 4096)
    {"passkey": passkey, "prefix": prefix, "requests": requests, "soak": soak}[options.what](options)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
