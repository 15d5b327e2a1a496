"""Images through every API, with the official SDKs: small random Gemma 3 and Qwen-VL models (tests/family/vision).

Answers are compared by their log-probabilities, which have all digits: warm as cold, beside others as alone, the eight
orientations and all modes of a file as its RGB, an image in another turn as in the first. Another image is another
prompt. What cannot be read is refused by the name of its field, and the server lives on.
"""

import base64
import concurrent.futures
import io
import json
import os
import subprocess
import sys
import tempfile

import anthropic
import numpy as np
import ollama
import openai
import safetensors.numpy
from apus_server import ROOT, Checks, Server
from PIL import Image
from tiny_model import write_tiny_model, write_tiny_vision

sys.path.insert(0, os.path.join(ROOT, "tests", "media"))
import make_images

check = Checks()


def encoded(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def picture(seed, width=150, height=97):
    return Image.fromarray(make_images.picture(width, height, seed))


def part(data, detail=None):
    data = data if isinstance(data, bytes) else encoded(data)
    url = {"url": "data:image/png;base64," + base64.b64encode(data).decode()}
    return {"type": "image_url", "image_url": {**url, **({"detail": detail} if detail else {})}}


def content(*parts):
    return [{"type": "text", "text": p} if isinstance(p, str) else p if isinstance(p, dict) else part(p) for p in parts]


def user(*parts):
    return [{"role": "user", "content": content(*parts)}]


def answer(server, messages, **fields):
    """Tokens of the prompt and of those from the cache; each token of the answer with its log-probability."""
    fields = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3, **fields}
    status, body = server.chat(messages, **fields)
    if status != 200:
        raise RuntimeError(f"{status}: {body}")
    usage, logprobs = body["usage"], body["choices"][0]["logprobs"]["content"]
    tokens = [(t["token"], t["logprob"], [(o["token"], o["logprob"]) for o in t["top_logprobs"]]) for t in logprobs]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], tokens


def check_caching(model, server, name):
    """The server has a prefix cache; `model` is also served without one, one request after the other."""
    prompts = [user("Look: ", picture(seed), " what is it, and where, and why?" * 8) for seed in (1, 2, 1, 3)]
    prompts.append(user(picture(1), picture(2), "both"))
    prompts.append(user(picture(2), picture(1), "both"))
    with Server(model, "--no-prefix-cache", "--slots", 1) as cold:
        expected = [answer(cold, messages) for messages in prompts]
    warm = [answer(server, messages) for messages in prompts + prompts]
    for i, got in enumerate(warm):
        check(got[2] == expected[i % len(prompts)][2], f"{name}: prompt {i} warm: {got[2][0]}")
        check(got[0] == expected[i % len(prompts)][0], f"{name}: prompt {i}: {got[0]} tokens")
    check(warm[1][2] != warm[0][2] and warm[4][2] != warm[5][2], f"{name}: images and their order matter")
    first = warm[0][0]
    cached = [got[1] for got in warm]
    known = cached[2] > first - 130 if name != "paligemma" else cached[2] == 0  # what it keeps depends on the prompt
    chat = len("<|im_end|>\n") if name == "fastvlm" else 0  # its template has more around messages, and a system prompt
    system = 55 if chat else 0
    check(known and cached[1] < 40 + system, f"{name}: cached tokens {cached}")
    if name != "paligemma":
        asked = [answer(server, user(picture(70), text)) for text in ("What is it?", "Which colours has it?")]
        rest = len("What is it?") + 30 + chat  # what stands behind the image
        check(asked[1][1] >= asked[0][0] - rest, f"{name}: another question: {asked[1][1]} cached of {asked[0][0]}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(lambda i: answer(server, prompts[i % len(prompts)], user=str(i)), range(24)))
    wrong = [i for i, got in enumerate(beside) if got[2] != expected[i % len(prompts)][2]]
    check(not wrong, f"{name}: beside others: {wrong}")


def check_limits(model, name):
    """Steps that are smaller than a prompt, pages for few prompts, and pages that come back from a disk."""
    prompts = [user(f"Look {seed}: ", picture(seed), " what is it, and where?" * 9) for seed in range(6)]
    with Server(model, "--no-prefix-cache", "--slots", 1) as cold:
        expected = [answer(cold, messages)[2] for messages in prompts]
    few = ("--prefill-size", 40, "--slots", 6, "--kv-memory", "1M")
    with Server(model, *few) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
        got = [found[2] for found in pool.map(lambda messages: answer(server, messages), prompts * 3)]
        check(got == expected * 3, f"{name}: small steps, few pages")
    with tempfile.TemporaryDirectory() as pages:
        for run in ("first", "second"):
            with Server(model, "--cache-dir", pages) as server:
                found = [answer(server, messages) for messages in prompts]
                check([f[2] for f in found] == expected, f"{name}: with a disk cache, {run} run")
                server.wait_idle()
        check(name == "gemma3" or all(f[1] > 100 for f in found), f"{name}: from disk {[f[1] for f in found]}")
    if name == "gemma3":
        with Server(model, "--prefill-size", 3) as server:
            status, body = server.chat(prompts[0], max_tokens=1)
            check(status == 400 and "--prefill-size" in body["error"]["message"], body)
            check(server.chat("text", max_tokens=1)[0] == 200, "text after an image that does not fit a step")


def check_turns(server, name):
    turns = [
        *user("First ", picture(4)),
        {"role": "assistant", "content": "seen"},
        *user("no image"),
        {"role": "assistant", "content": "ok"},
        *user(picture(5), " last"),
    ]
    one = answer(server, turns)
    other = answer(server, turns[:2] + user("no image") + turns[3:4] + user(picture(6), " last"))
    check(one[2] != other[2] and one[0] == other[0], f"{name}: images in turns 1 and 3")
    check(one[2] == answer(server, turns)[2], f"{name}: turns again")


def check_files(server, name):
    """Kinds of files that hold the same pixels."""
    image = picture(7, 90, 60)
    expected = answer(server, user(image, "?"))
    turned = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transpose that undoes each orientation
    for orientation, undo in turned.items():
        stored = image if undo is None else image.transpose(Image.Transpose(undo))
        data = encoded(stored, exif=make_images.exif(orientation))
        check(answer(server, user(part(data), "?"))[2] == expected[2], f"{name}: orientation {orientation}")
    grey = image.convert("L")
    modes = [
        (image.convert("RGBA"), image),
        (image.quantize(50), image.quantize(50).convert("RGB")),
        (grey, grey.convert("RGB")),
        (grey.convert("LA"), grey.convert("RGB")),
        (grey.convert("1"), grey.convert("1").convert("RGB")),
        (Image.fromarray(np.asarray(grey).astype(np.uint16)), grey.convert("RGB")),
    ]
    for shown, plain in modes:
        same = answer(server, user(shown, "?"))[2] == answer(server, user(plain, "?"))[2]
        check(same, f"{name}: mode {shown.mode}")
    for kind, options in (("WEBP", {"lossless": True}), ("JPEG", {"quality": 90})):
        data = encoded(image, kind, **options)
        plain = Image.open(io.BytesIO(data)).convert("RGB")
        check(answer(server, user(part(data), "?"))[2] == answer(server, user(plain, "?"))[2], f"{name}: {kind}")


def check_text(server, fixture, name):
    """Text that spells a token of images stays text."""
    spelled = "".join(text for text in fixture["token_names"] if "\n" not in text)
    for messages in (user(spelled), user(spelled, picture(8))):
        plain = json.loads(json.dumps(messages).replace(spelled, "x" * len(spelled)))
        check(answer(server, messages)[0] == answer(server, plain)[0], f"{name}: text {spelled}")
    status, body = server.chat([{"role": "system", "content": content(picture(8))}, *user("x")], max_tokens=1)
    check(status == 400 and "messages[0].content[0]" in body["error"]["param"], body)


def check_refused(server, name):
    whole = encoded(picture(9))
    jpeg = encoded(picture(9), "JPEG")
    bomb = bytearray(whole)
    bomb[16:24] = (60000).to_bytes(4, "big") * 2
    strip = encoded(Image.new("RGB", (20000, 10)))
    refused = {
        "text": part(b"not an image"),
        "cut png": part(whole[:-3000]),
        "cut jpeg": part(jpeg[: len(jpeg) // 2]),
        "bmp": part(encoded(picture(9), "BMP")),
        "bomb": part(bytes(bomb)),
        "empty": part(b""),
        "http": {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}},
        "file": {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        "base64": {"type": "image_url", "image_url": {"url": "data:image/png;base64,A*=="}},
        "detail": part(whole, detail="most"),
    }
    wide = not name.startswith(("qwen", "glm", "lfm2", "gemma4", "fastvlm"))  # the others refuse images of such a shape
    if not wide:
        refused["strip"] = part(strip)
    for what, given in refused.items():
        status, body = server.chat(user("x", given), max_tokens=1)
        param = body.get("error", {}).get("param") or ""
        check(status == 400 and param.startswith("messages[0].content[1].image_url"), f"{name}: {what}: {body}")
    status, body = server.chat(user(*[picture(9, 30, 30)] * 65), max_tokens=1)
    limit = "context" if name in ("idefics3", "gemma4-31b") else "64 images"  # so many do not fit the context
    check(status == 400 and limit in body["error"]["message"], body)
    thin = [(1, 200), (27, 257), (300, 2)] if name != "gemma4-31b" else []  # its table of positions is small
    for size in [(1, 1), (20, 30), *thin, *([(20000, 10)] if wide else [])]:
        status, body = server.chat(user(picture(9, *size), "x"), max_tokens=1)
        check(status == 200, f"{name}: {size}: {body}")
    check(server.alive() and server.wait_idle(), f"{name}: the server lives")


def check_remote(server):
    """An allowed host is asked at public addresses alone; other hosts are not asked (tests/hub/test_fetch.c)."""
    for url, why in (
        ("http://127.0.0.1/x.png", "not public"),
        ("http://localhost/x.png", "not public"),
        ("http://127.0.0.2/x.png", "not allowed"),
        ("https://user@localhost/x.png", "not an http"),
        ("ftp://localhost/x.png", "data URLs"),
    ):
        given = {"type": "image_url", "image_url": {"url": url}}
        status, body = server.chat(user("x", given), max_tokens=1)
        check(status == 400 and body["error"]["param"] == "messages[0].content[1].image_url.url", f"{url}: {body}")
        check(why in body["error"]["message"], f"{url}: {body}")
        source = {"type": "image", "source": {"type": "url", "url": url}}
        message = {"model": server.name, "max_tokens": 1, "messages": [{"role": "user", "content": [source]}]}
        status, _, body = server.request("POST", "/v1/messages", message)
        check(status == 400 and why.encode() in body, f"Messages, {url}: {body}")


def check_apis(server, name):
    """The SDKs send the same prompt; their answers are the same text."""
    data = encoded(picture(10))
    text = base64.b64encode(data).decode()
    url = "data:image/png;base64," + text
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, *content("Hi")]}]
    chat = client.chat.completions.create(model=server.name, messages=messages, max_tokens=8, temperature=0)
    expected, tokens = chat.choices[0].message.content, chat.usage.prompt_tokens
    stream = client.chat.completions.create(
        model=server.name, messages=messages, max_tokens=8, temperature=0, stream=True
    )
    streamed = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    check(streamed == expected, f"{name}: streamed {streamed!r}, whole {expected!r}")
    given = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "Hi"}]
    found = client.responses.create(
        model=server.name, input=[{"role": "user", "content": given}], max_output_tokens=8, temperature=0
    )
    check(found.output_text == expected and found.usage.input_tokens == tokens, f"{name}: Responses {found}")
    source = {"type": "base64", "media_type": "image/png", "data": text}
    block = {"type": "image", "source": source}
    found = anthropic.Anthropic(base_url=server.url, api_key="none").messages.create(
        model=server.name,
        max_tokens=8,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": [block, {"type": "text", "text": "Hi"}]}],
    )
    got = "".join(b.text for b in found.content)
    read = found.usage.input_tokens + found.usage.cache_read_input_tokens
    check(got == expected and read == tokens, f"{name}: Messages {found}")
    local = ollama.Client(server.url)
    options = {"temperature": 0, "num_predict": 8, "top_k": 0, "top_p": 1, "repeat_penalty": 1}
    found = local.chat(
        model=server.name, messages=[{"role": "user", "content": "Hi", "images": [data]}], options=options
    )
    check(found.message.content == expected, f"{name}: Ollama chat {found}")
    found = local.generate(model=server.name, prompt="Hi", images=[data], options=options)
    check(found.response == expected, f"{name}: Ollama generate {found}")


def check_announced(server, name, images):
    """Clients ask beforehand whether images may be sent."""
    modalities = ["text", "image"] if images else ["text"]
    listed = json.loads(server.request("GET", "/v1/models")[2])["data"][0]
    check(listed["architecture"] == {"input_modalities": modalities, "output_modalities": ["text"]}, listed)
    props = json.loads(server.request("GET", "/props")[2])
    check(props["modalities"] == {"vision": images, "audio": False}, f"{name}: {props['modalities']}")
    check(json.loads(server.request("GET", "/health")[2])["vision"] is images, f"{name}: /health")
    shown = json.loads(server.request("POST", "/api/show", {"model": server.name})[2])["capabilities"]
    check(("vision" in shown) is images, f"{name}: {shown}")


def check_memory(directory):
    """What encoding the largest image takes is counted; with little memory large images are refused by it."""
    fixture = write_tiny_vision(directory, "qwen3-vl")
    fixture["processor"]["size"]["longest_edge"] = 1 << 24
    fixture["config"]["text_config"]["max_position_embeddings"] = 1 << 16
    for name, value in (("preprocessor_config.json", fixture["processor"]), ("config.json", fixture["config"])):
        with open(os.path.join(directory, name), "w") as file:
            json.dump(value, file)
    small, large = Image.new("RGB", (640, 640), (9, 90, 200)), Image.new("RGB", (3200, 3200), (9, 90, 200))
    budget = ("--ctx-size", 1 << 16, "--slots", 1, "-t", 2, "--memory-budget", "400M")
    plan = subprocess.run(
        [os.path.join(ROOT, "build", "apus"), "info", directory, "--fit", *map(str, budget)],
        capture_output=True,
        text=True,
    )
    told = [line for line in plan.stdout.splitlines() if line.startswith("images")]
    check(len(told) == 1 and "up to 8192 tokens" in told[0], f"the plan: {told} {plan.stderr}")
    with Server(directory, *budget) as server:
        check(server.chat(user(small, "x"), max_tokens=1)[0] == 200, "an image that fits")
        status, body = server.chat(user(large, "x"), max_tokens=1)
        message = body.get("error", {}).get("message", "")
        check(status == 400 and "takes 10000 tokens" in message and "allows 8192" in message, f"memory: {body}")
        check("--memory-budget" in message, f"memory: {body}")
        server.wait_idle()
        metrics = server.request("GET", "/metrics")[2].decode()
        for name in ("apus_media_cache_bytes", "apus_media_encoder_bytes"):
            values = [float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name + "{")]
            check(len(values) == 1 and values[0] > 10000, f"{name}: {values}")


def video(data, media_type="image/gif"):
    data = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "video_url", "video_url": {"url": f"data:{media_type};base64,{data}"}}


def check_video(server, name):
    """Frames as GIF and as MJPEG; where a frame is an image to the model, a video equals images with their times."""
    frames = [picture(40 + i, 90, 60) for i in range(3)]
    exact = {"quality": 90}
    stills = [encoded(frame, "JPEG", **exact) for frame in frames]
    joined = video(b"".join(stills), "video/x-motion-jpeg")
    listed = video(",".join(base64.b64encode(still).decode() for still in stills), "video/jpeg")
    one = answer(server, user("Look: ", joined, "?"))
    check(answer(server, user("Look: ", listed, "?"))[2] == one[2], f"{name}: a list of frames")
    check(answer(server, user("Look: ", joined, "?"))[1] >= one[0] - 60, f"{name}: a video is in the prefix cache")
    turned = answer(server, user("Look: ", video(b"".join(stills[::-1])), "?"))
    check(turned[0] == one[0] and turned[2] != one[2], f"{name}: the order of frames")
    two = answer(server, user(joined, video(encoded(frames[0], "GIF", save_all=True)), picture(1), "x"))
    check(two[0] > one[0], f"{name}: two videos and an image: {two[0]} tokens")
    url = joined["video_url"]["url"]
    asked = [{"type": "input_text", "text": "Look: "}, {"type": "input_video", "video_url": url}]
    items = [{"role": "user", "content": [*asked, {"type": "input_text", "text": "?"}]}]
    fields = {"model": server.name, "input": items, "max_output_tokens": 1, "temperature": 0}
    status, _, raw = server.request("POST", "/v1/responses", fields)
    check(status == 200 and json.loads(raw)["usage"]["input_tokens"] == one[0], f"{name}: input_video: {raw[:200]}")
    fields["input"][0]["content"][1]["fps"] = 2
    status, _, raw = server.request("POST", "/v1/responses", fields)
    check(status == 400 and b"content[1].fps" in raw, f"{name}: a field of a video: {raw[:200]}")
    webp = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=500, lossless=True)
    check(answer(server, user(video(webp), "?"))[0] > 0, f"{name}: WebP")
    if name.startswith("smolvlm"):  # one frame per second
        shown = part(Image.open(io.BytesIO(stills[0])).convert("RGB"), "low")
        intro = "You are provided the following series of one frames from a 0:00:01 [H:MM:SS] video.\n"
        found = answer(server, user("Look: ", intro + "\nFrame from 00:00:", shown, "\n\n", "?"))
        check((found[0], found[2]) == (one[0], one[2]), f"{name}: as images: {found[0]} tokens, not {one[0]}")
    for what, given, why in (
        ("mp4", video(b"\0\0\0\x18ftypmp42" + bytes(40)), "MP4"),
        ("text", video(b"not a video"), "no video"),
        ("cut", video(stills[0] + stills[1][:-900]), "truncated"),
        ("remote", {"type": "video_url", "video_url": {"url": "http://127.0.0.1/x.gif"}}, "data URLs"),
    ):
        status, body = server.chat(user("x", given), max_tokens=1)
        param = body.get("error", {}).get("param")
        check(status == 400 and param == "messages[0].content[1].video_url.url", f"{name}: {what}: {body}")
        check(why in body["error"]["message"], f"{name}: {what}: {body}")
    status, body = server.chat(user(*[joined] * 5), max_tokens=1)
    check(status == 400 and ("4 videos" in str(body) or "context" in str(body)), f"{name}: five videos: {body}")
    check(server.alive() and server.wait_idle(), f"{name}: the server lives")


def check_command(directory, name):
    """`apus run` with files before the prompt."""
    apus = os.path.join(ROOT, "build", "apus")
    still, moving = os.path.join(directory, "a.png"), os.path.join(directory, "b.gif")
    picture(1).save(still)
    picture(2, 90, 60).save(moving, save_all=True, append_images=[picture(3, 90, 60)], duration=500)
    for given, told in (
        (("--image", still), None),
        (("--video", moving), None),
        (("--image", still, "--video", moving), None),
        (("--video", still), "these bytes are no video"),
        (("--image", moving + "x"), "No such file"),
        (("--video", moving, "--raw"), "need the chat template"),
        (("--audio", still), "a.png"),
    ):
        run = subprocess.run([apus, "run", directory, "-n", "2", *given, "What?"], capture_output=True, text=True)
        ok = run.returncode == 0 and "tokens" not in run.stderr if told is None else told in run.stderr
        check(ok and (told is None) == (run.returncode == 0), f"{name}: run {given}: {run.stderr[-300:]}")


def check_published(directory):
    """FastVLM's file with its publisher's names and orders of dimensions answers as MLX's does."""
    messages = user(picture(3, 120, 80), "What?")
    with Server(directory) as server:
        expected = answer(server, messages)
    path = os.path.join(directory, "model.safetensors")
    published = {}
    for name, x in safetensors.numpy.load_file(path).items():
        if name.startswith("vision_tower."):
            name = name.replace("vision_tower.vision_model.", "model.vision_tower.vision_tower.model.")
            name = name.replace("patch_embed.blocks.", "patch_embed.")
            x = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x.transpose(2, 0, 1) if "layer_scale" in name else x
        name = name.removeprefix("language_model.")
        published["model." + name if name.startswith("mm_projector.") else name] = np.ascontiguousarray(x)
    safetensors.numpy.save_file(published, path)
    with Server(directory) as server:
        check(answer(server, messages) == expected, "fastvlm: published names")


def main():
    for name in ("gemma3", "qwen2-5-vl", "qwen3-vl", "qwen3-5", "mistral3", "idefics3"):
        with tempfile.TemporaryDirectory() as directory:
            fixture = write_tiny_vision(directory, name)
            with Server(directory) as server:
                check_announced(server, name, True)
                check_caching(directory, server, name)
                check_limits(directory, name)
                check_turns(server, name)
                check_files(server, name)
                check_text(server, fixture, name)
                check_refused(server, name)
                check_apis(server, name)
    for name in ("qwen2-5-vl-video", "qwen3-vl-video", "gemma4-31b-video", "smolvlm-video"):
        with tempfile.TemporaryDirectory() as directory:
            fixture = write_tiny_vision(directory, name)
            if name.startswith("smolvlm"):  # frames are resized as images are
                fixture["processor"]["video_sampling"]["video_size"] = fixture["processor"]["size"]
                with open(os.path.join(directory, "preprocessor_config.json"), "w") as file:
                    json.dump(fixture["processor"], file)
            with Server(directory) as server:
                check_video(server, name)
    for name in ("gemma4-31b", "glm4v", "lfm2-vl-tiles", "paligemma", "fastvlm"):
        with tempfile.TemporaryDirectory() as directory:
            write_tiny_vision(directory, name)
            with Server(directory) as server:
                check_caching(directory, server, name)
                check_refused(server, name)
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_vision(directory, "fastvlm-b")
        check_published(directory)
    with tempfile.TemporaryDirectory() as directory:
        check_memory(directory)
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_vision(directory, "qwen3-vl")
        check_command(directory, "qwen3-vl")
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_vision(directory, "qwen3-vl")
        with Server(directory, "--allow-media-from", "127.0.0.1,localhost") as server:
            check_remote(server)
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_model(directory)
        with Server(directory) as server:
            check_announced(server, "text", False)
            status, body = server.chat(user("x", video(encoded(picture(1), "GIF"))))
            check(status == 400 and "'video_url' is not supported by this model" in body["error"]["message"], body)
            status, body = server.chat(user("x", picture(1)))
            check(status == 400 and body["error"]["param"] == "messages[0].content[1]", body)
            check("image_url" in body["error"]["message"], body)
    return check.done()


if __name__ == "__main__":
    sys.exit(main())
