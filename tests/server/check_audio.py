"""Audio through every API that takes it, with the official SDKs: small random Gemma 4 models (tests/family/audio).

Answers are compared by their log-probabilities, which have all digits: warm as cold, beside others as alone, from a
disk cache, a WAV of any kind as any other, in another turn as in the first. Another clip is another prompt, and so is
another order. What cannot be read is refused by the name of its field, and the server lives on.
"""

import base64
import concurrent.futures
import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import wave

import numpy as np
import openai
from apus_server import BINARY, ROOT, Checks, Server
from PIL import Image
from tiny_model import write_tiny_audio, write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "tests", "media"))
import make_images

check = Checks()
FILES = os.path.join(ROOT, "tests", "media", "audio")


def samples(seed, seconds=0.6, rate=16000):
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.02, t.size)
    return (0.4 * np.sin(2 * np.pi * (200 + 90 * seed + 300 * t) * t) + noise) * 32767


def wav(seed, seconds=0.6, rate=16000, width=2, channels=1):
    values = np.repeat(samples(seed, seconds, rate).astype("<i2"), channels)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", None))
        file.writeframes(values.tobytes() if width == 2 else (values.astype("<i4") << 16).tobytes())
    return out.getvalue()


def part(data, kind="wav"):
    given = {"data": base64.b64encode(data).decode(), **({"format": kind} if kind else {})}
    return {"type": "input_audio", "input_audio": given}


def content(*parts):
    def one(given):
        if isinstance(given, str):
            return {"type": "text", "text": given}
        return given if isinstance(given, dict) else part(given if isinstance(given, bytes) else wav(given))

    return [one(given) for given in parts]


def up(count, unit):
    """Units that hold so many."""
    return (count + unit - 1) // unit


def user(*parts):
    return [{"role": "user", "content": content(*parts)}]


def answer(server, messages, **fields):
    """Usage; each token of the answer with its log-probability."""
    fields = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3, **fields}
    status, body = server.chat(messages, **fields)
    if status != 200:
        raise RuntimeError(f"{status}: {body}")
    tokens = body["choices"][0]["logprobs"]["content"]
    return body["usage"], [
        (t["token"], t["logprob"], [(o["token"], o["logprob"]) for o in t["top_logprobs"]]) for t in tokens
    ]


def check_caching(model, server, name):
    prompts = [user("Hear: ", seed, " what is it, and where, and why?" * 8) for seed in (1, 2, 1, 3)]
    prompts += [user(1, 2, "both"), user(2, 1, "both")]
    with Server(model, "--no-prefix-cache", "--slots", 1) as cold:
        expected = [answer(cold, messages)[1] for messages in prompts]
    warm = [answer(server, messages) for messages in prompts + prompts]
    for i, (_, got) in enumerate(warm):
        check(got == expected[i % len(prompts)], f"{name}: prompt {i} warm: {got[0]}")
    check(expected[1] != expected[0] and expected[4] != expected[5], f"{name}: clips and their order matter")
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage, _ in warm]
    check(cached[2] > warm[0][0]["prompt_tokens"] - 130 and cached[1] < 40, f"{name}: cached tokens {cached}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(lambda i: answer(server, prompts[i % len(prompts)], user=str(i))[1], range(18)))
    wrong = [i for i, got in enumerate(beside) if got != expected[i % len(prompts)]]
    check(not wrong, f"{name}: beside others: {wrong}")
    with tempfile.TemporaryDirectory() as pages:
        for run in ("first", "second"):
            with Server(model, "--cache-dir", pages, "--prefill-size", 40) as disk:
                got = [answer(disk, messages)[1] for messages in prompts]
                check(got == expected, f"{name}: with a disk cache, {run} run")
                disk.wait_idle()


def check_usage(server, name, tokens):
    """tokens: of so many samples."""
    for count in (161, 800, 1600, 16000, 33333)[name == "gemma3n" :]:
        usage, _ = answer(server, user(wav(5, count / 16000), "x"), max_tokens=1)
        found = usage["prompt_tokens_details"]["audio_tokens"]
        check(found == tokens(count), f"{name}: {count} samples are {found} tokens")
    usage, _ = answer(server, user(1, 2, "x"), max_tokens=1)
    check(usage["prompt_tokens_details"]["audio_tokens"] == 2 * tokens(9600), f"{name}: two clips: {usage}")
    usage, _ = answer(server, user("x"), max_tokens=1)
    check(usage["prompt_tokens_details"]["audio_tokens"] == 0, f"{name}: no audio: {usage}")


def check_turns(server, name):
    turns = [
        *user("First ", 4),
        {"role": "assistant", "content": "heard"},
        *user("no audio"),
        {"role": "assistant", "content": "ok"},
        *user(5, " last"),
    ]
    one, other = answer(server, turns)[1], answer(server, turns[:4] + user(6, " last"))[1]
    check(one != other and one == answer(server, turns)[1], f"{name}: clips in turns 1 and 3")


def check_files(server, name):
    """Kinds of files that hold the same samples; hints that are wrong or absent; other ways to send them."""
    values = samples(7).astype("<i2")
    expected = answer(server, user(wav(7), "?"))[1]
    data = base64.b64encode(wav(7)).decode()
    same = {
        "32 bits": part(wav(7, width=4)),
        "stereo": part(wav(7, channels=2)),
        "named mp3": part(wav(7), "mp3"),
        "unnamed": part(wav(7), None),
        "data URL": {"type": "input_audio", "input_audio": {"data": "data:audio/wav;base64," + data, "format": "wav"}},
        "audio_url": {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + data}},
    }
    floats = (values.astype("<f4") / 32768).tobytes()
    head = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\3\0\1\0\x80>\0\0\0\xfa\0\0\4\0 \0data"
    same["float"] = part(head + len(floats).to_bytes(4, "little") + floats)
    for what, given in same.items():
        check(answer(server, user(given, "?"))[1] == expected, f"{name}: {what}")
    for file in sorted(os.listdir(FILES)):
        if not file.endswith(".json"):
            with open(os.path.join(FILES, file), "rb") as opened:
                status, body = server.chat(user(part(opened.read(), "mp3"), "?"), max_tokens=1)
            check(status == 200, f"{name}: {file}: {body}")


def check_text(server, fixture, name):
    """Text that spells a token of audio stays text."""
    spelled = "".join(fixture["token_names"])
    for messages in (user(spelled), user(spelled, 8)):
        plain = json.loads(json.dumps(messages).replace(spelled, "x" * len(spelled)))
        one, other = answer(server, messages)[0], answer(server, plain)[0]
        check(one["prompt_tokens"] == other["prompt_tokens"], f"{name}: text {spelled}: {one}")
    status, body = server.chat([{"role": "system", "content": content(8)}, *user("x")], max_tokens=1)
    check(status == 400 and "messages[0].content[0]" in body["error"]["param"], body)


def check_refused(server, name):
    whole = wav(9)
    bad = {
        "text": (part(b"not audio"), "no WAV"),
        "empty": (part(b""), "no WAV"),
        "no samples": (part(whole[:40] + b"\0\0\0\0"), "no samples"),
        "cut": (part(whole[:-3000]), "truncated"),
        "30.01 s": (part(wav(9, 30.01)), "30.01 s"),
        "two hours": (part(wav(9, 0.1)[:24] + (100).to_bytes(4, "little") + wav(9, 25)[28:]), "samples per second"),
        "m4a": (part(b"\0\0\0\x18ftypM4A 0000"), "M4A"),
        "base64": ({"type": "input_audio", "input_audio": {"data": "A*==", "format": "wav"}}, "base64"),
        "data": ({"type": "input_audio", "input_audio": {"format": "wav"}}, "data"),
        "http": ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/x.wav"}}, "data URLs"),
    }
    if name != "gemma4-unified":
        bad["one sample"] = (part(wav(9, 1 / 16000)), "too short")
    for what, (given, text) in bad.items():
        status, body = server.chat(user("x", given), max_tokens=1)
        error = body.get("error", {})
        check(status == 400 and (error.get("param") or "").startswith("messages[0].content[1]."), f"{what}: {body}")
        check(text in error.get("message", ""), f"{name}: {what}: {body}")
    status, body = server.chat(user(*[9] * 17), max_tokens=1)
    check(status == 400 and "16 clips" in body["error"]["message"], body)
    check(server.alive() and server.wait_idle(), f"{name}: the server lives")


def form(server, fields, boundary="b", body=None, kind=None, path="/v1/audio/transcriptions"):
    """Posts a form of bytes, or bytes that are none. Returns status and body."""
    lines = []
    for field, value in fields.items():
        file = b'; filename="a"' if field == "file" else b""
        disposition = b'Content-Disposition: form-data; name="' + field.encode() + b'"' + file
        lines += [b"--" + boundary.encode(), disposition, b"", value]
    given = body if body is not None else b"\r\n".join([*lines, b"--" + boundary.encode() + b"--", b""])
    headers = {"Content-Type": kind or f"multipart/form-data; boundary={boundary}"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", path, given, headers)
    response = connection.getresponse()
    status, text = response.status, response.read().decode()
    connection.close()
    return status, text


def check_transcriptions(server, name):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)

    def transcribe(api=client.audio.transcriptions, data=None, **fields):
        return api.create(model=server.name, file=("a.wav", data or wav(1)), **fields)

    whole = transcribe()
    check(whole.text and whole.usage.input_token_details.audio_tokens > 0, f"{name}: {whole}")
    check(transcribe(response_format="text").strip("\n") == whole.text.strip("\n"), f"{name}: as text")
    events = list(transcribe(stream=True))
    deltas = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    done = events[-1]
    check(done.type == "transcript.text.done" and deltas == done.text == whole.text, f"{name}: {events}")
    check(done.usage.output_tokens == whole.usage.output_tokens, f"{name}: {done.usage}")
    check(transcribe(data=wav(2)).text != whole.text, f"{name}: another clip")
    check(
        transcribe(language="de", prompt="Ada Lovelace and Charles Babbage").usage.input_tokens
        > whole.usage.input_tokens,
        "prompt",
    )
    check(transcribe(client.audio.translations).text, f"{name}: translation")
    for fields, param in (
        ({"response_format": "verbose_json"}, "response_format"),
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "x"}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities[]"),
        ({"data": wav(1, 31)}, "file"),
        ({"data": b"text"}, "file"),
    ):
        try:
            check(False, f"{name}: {param} is accepted: {transcribe(**fields)}")
        except openai.BadRequestError as error:
            check(error.param == param, f"{name}: {param}: {error}")
    model, file = server.name.encode(), wav(1)
    good = {"model": model, "file": file}
    check(form(server, good)[0] == 200 and form(server, good, "x" * 70)[0] == 200, "forms")
    twice = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' * 2 + b"--b--"
    refused = {
        "no file": form(server, {"model": model}),
        "no model": form(server, {"file": file}),
        "unknown": form(server, {**good, "colour": b"red"}),
        "not UTF-8": form(server, {**good, "prompt": b"\xff"}),
        "empty": form(server, {}, body=b""),
        "cut": form(server, {}, body=b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nRIFF'),
        "no head": form(server, {}, body=b"--b\r\n" + b"x" * 5000),
        "no name": form(server, {}, body=b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        "no boundary": form(server, good, kind="multipart/form-data"),
        "long boundary": form(server, good, "x" * 71),
        "twice": form(server, {}, body=twice),
    }
    for what, (status, body) in refused.items():
        check(status == 400 and "error" in body, f"{name}: {what}: {status} {body}")
    check(form(server, good, kind="application/json")[0] == 415, "JSON")
    check(server.alive() and server.wait_idle(), f"{name}: the server lives")


def check_mixed(server):
    """Images and audio in one message keep their order."""
    out = io.BytesIO()
    Image.fromarray(make_images.picture(60, 60, 1)).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    orders = [user(image, 1, "?"), user(1, image, "?"), user("a", 1, "b", image, 2, "?")]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        together = [got for _, got in pool.map(lambda messages: answer(server, messages), orders)]
    alone = [answer(server, messages)[1] for messages in orders]
    check(alone == together and alone[0] != alone[1], "images and audio in one message")


def check_apis(server, name):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    given = content(10, "Hi")
    options = {"model": server.name, "temperature": 0}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": given}], max_tokens=8, **options)
    expected, usage = chat.choices[0].message.content, chat.usage
    stream = client.chat.completions.create(
        messages=[{"role": "user", "content": given}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    chunks = list(stream)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(streamed == expected, f"{name}: streamed {streamed!r}, whole {expected!r}")
    audio = chunks[-1].usage.prompt_tokens_details.audio_tokens
    check(audio == usage.prompt_tokens_details.audio_tokens, f"{name}: {audio} tokens in a stream")
    check(usage.prompt_tokens_details.audio_tokens > 0, f"{name}: {usage}")
    items = [given[0], {"type": "input_text", "text": "Hi"}]
    found = client.responses.create(input=[{"role": "user", "content": items}], max_output_tokens=8, **options)
    same = found.output_text == expected and found.usage.input_tokens == usage.prompt_tokens
    check(same, f"{name}: Responses {found}")


def check_announced(server, name, audio, images=False):
    listed = json.loads(server.request("GET", "/v1/models")[2])["data"][0]
    modalities = ["text", *(["image"] if images else []), *(["audio"] if audio else [])]
    check(listed["architecture"]["input_modalities"] == modalities, listed)
    props = json.loads(server.request("GET", "/props")[2])
    check(props["modalities"] == {"vision": images, "audio": audio}, f"{name}: {props['modalities']}")
    check(json.loads(server.request("GET", "/health")[2])["audio"] is audio, f"{name}: /health")
    shown = json.loads(server.request("POST", "/api/show", {"model": server.name})[2])["capabilities"]
    check(("audio" in shown) is audio, f"{name}: {shown}")


def check_commands(directory):
    """apus run --audio FILE and /audio FILE of apus chat."""
    with tempfile.TemporaryDirectory() as files:
        path = os.path.join(files, "a.wav")
        with open(path, "wb") as file:
            file.write(wav(1))

        def run(*arguments, lines=None):
            given = None if lines is None else "".join(line + "\n" for line in lines)
            command = [BINARY, *arguments, "--temperature", "0", "-n", "5"]
            stdin = {"input": given} if lines is not None else {"stdin": subprocess.DEVNULL}
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **stdin)
            return done.returncode, done.stdout, done.stderr

        code, heard, error = run("run", directory, "--audio", path, "Hi")
        check(code == 0 and heard, error)
        check(run("run", directory, "Hi")[1] != heard, "the clip matters")
        code, _, error = run("run", directory, "--audio", __file__, "Hi")
        check(code != 0 and "no WAV" in error, error)
        code, shown, error = run("chat", directory, lines=[f"/audio {path}", "Hi", "/audio nothing.wav", "/quit"])
        check(code == 0 and heard.strip() in shown and "nothing.wav" in shown, f"{shown!r} {heard!r} {error}")


def check_thinking(directory):
    """Transcriptions switch reasoning off, where the template has a switch: no thoughts get into the text."""

    def tokens():
        with Server(directory) as server:
            status, body = form(server, {"model": server.name.encode(), "file": wav(1)})
            check(status == 200, body)
            chat = answer(server, user(wav(1), "x"), max_tokens=1)[0]["prompt_tokens"]
            return json.loads(body)["usage"]["input_tokens"], chat

    plain = tokens()
    path = os.path.join(directory, "tokenizer_config.json")
    with open(path) as file:
        config = json.load(file)
    config["chat_template"] += "{% if enable_thinking is not false %}{{ '<think>\n' }}{% endif %}"
    with open(path, "w") as file:
        json.dump(config, file)
    thinking = tokens()
    check(thinking[0] == plain[0] and thinking[1] > plain[1], f"thoughts: {plain} {thinking}")


def main():
    tokens = {
        "gemma4": lambda count: up(up(count - 160, 160), 4),
        "gemma4-unified": lambda count: up(count, 640),
        "gemma3n": lambda count: 13,
    }
    for name, count in tokens.items():
        with tempfile.TemporaryDirectory() as directory:
            fixture = write_tiny_audio(directory, name)
            with Server(directory) as server:
                check_announced(server, name, True)
                check_caching(directory, server, name)
                check_usage(server, name, count)
                check_turns(server, name)
                check_files(server, name)
                check_text(server, fixture, name)
                check_refused(server, name)
                check_apis(server, name)
            with Server(directory, "--max-tokens", 12) as server:
                check_transcriptions(server, name)
            if name == "gemma4":
                check_commands(directory)
                check_thinking(directory)
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_audio(directory, "gemma4", "gemma4-e")
        with Server(directory) as server:
            check_announced(server, "both", True, images=True)
            check_mixed(server)
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory)
        with Server(directory) as server:
            check_announced(server, "text", False)
            status, body = server.chat(user("x", 1))
            check(status == 400 and body["error"]["param"] == "messages[0].content[1]", body)
            check("input_audio" in body["error"]["message"], body)
            status, body = form(server, {"model": server.name.encode(), "file": wav(1)})
            check(status == 400 and json.loads(body)["error"]["param"] == "file", body)
    return check.done()


if __name__ == "__main__":
    sys.exit(main())
