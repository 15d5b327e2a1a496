"""Hostile images, audio and videos: each is answered, or refused with 400, within the memory that docs/media.md tells.

The largest memory of the server so far (VmHWM) is compared with a bound after each request; requests that may take more
come later. The bound is the documented memory, three times the request's body, and SLACK for everything else.
"""

import base64
import io
import json
import os
import struct
import sys
import tempfile
import zlib

from apus_server import ROOT, Checks, Server
from PIL import Image
from tiny_model import write_tiny_audio

sys.path.insert(0, os.path.join(ROOT, "tests", "media"))
import make_images

check = Checks()
SLACK = 96 << 20


def peak(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def url_part(kind, data):
    return {"type": kind, kind: {"url": "data:x/y;base64," + base64.b64encode(data).decode()}}


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def blank(width, height):
    return Image.new("RGB", (width, height), (200, 30, 90))


def png(width, height, chunks):
    header = make_images.chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + make_images.chunk(b"IEND", b"")


def bombs():
    """PNG files of 100 × 100 pixels with 256 MB of zeros in their pixels, and in a text."""
    deflate = zlib.compressobj(9)
    zeros = b"".join([deflate.compress(bytes(1 << 20)) for _ in range(256)]) + deflate.flush()
    rows = zlib.compress(bytes(100 * 301))
    text = make_images.chunk(b"zTXt", b"Comment\0\0" + zeros)
    return png(100, 100, [make_images.chunk(b"IDAT", zeros)]), png(100, 100, [text, make_images.chunk(b"IDAT", rows)])


def wav(seconds, rate):
    """A file whose samples are of 8 bits."""
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + seconds * rate, b"WAVE", b"fmt ", 16, 1, 1, rate, rate, 1, 8,
                       b"data", seconds * rate)  # fmt: skip
    return head + b"\x80" * (seconds * rate)


def gif(width, height, frames):
    """Frames of one pixel, each of which is taken back, on a large canvas."""
    frame = b"!\xf9\x04\x0c\x0a\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff" + frame * frames + b";"


def requests():
    """What is sent, the statuses that may come, and the documented memory in bytes."""
    image, bomb = url_part, bombs()
    large = 8192 * 8192
    yield "65 MP", [image("image_url", png(8193, 8192, [make_images.chunk(b"IDAT", b"x")]))], (400,), 0
    yield "GIF of 4 GP", [image("image_url", gif(65535, 65535, 1))], (400,), 0
    yield "100 images", [image("image_url", encoded(blank(30, 30), "PNG"))] * 100, (400,), 0
    yield "20,000 × 10", [image("image_url", encoded(blank(20000, 10), "PNG"))], (200, 400), 3 * 200000
    yield "PNG with 256 MB of pixels", [image("image_url", bomb[0])], (200, 400), 3 * 10000
    yield "PNG with 256 MB of text", [image("image_url", bomb[1])], (200, 400), 3 * 10000
    yield "2 hours of WAV", [image("audio_url", wav(7200, 1000))], (400,), 0
    yield "11 minutes of WAV at 16 kHz", [image("audio_url", wav(660, 16000))], (400,), 0
    yield "a video of 200 MP", [image("video_url", gif(2000, 2000, 50))], (200,), 2 * 3 * 4000000
    yield "a video of 5 GP", [image("video_url", gif(8000, 8000, 90))], (400,), 0
    yield "64 images of 1 MP", [image("image_url", encoded(blank(1000, 1000), "PNG"))] * 64, (200, 400), 64 * 3000000
    progressive = encoded(blank(4096, 4096), "JPEG", progressive=True, quality=50)
    yield "16 MP of progressive JPEG", [image("image_url", progressive)], (200,), 9 << 24
    yield "64 MP", [image("image_url", encoded(blank(8192, 8192), "PNG", compress_level=1))], (200,), 3 * large


def main():
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_audio(directory, "gemma4", images="gemma4-e")
        with Server(directory) as server:
            picture = encoded(Image.fromarray(make_images.picture(300, 200, 1)), "PNG")
            usual = [url_part("image_url", picture), url_part("audio_url", wav(1, 16000))]
            check(server.chat([{"role": "user", "content": usual}], max_tokens=1)[0] == 200, "a usual request")
            start, most = peak(server), 0
            for what, parts, statuses, documented in requests():
                messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "x"}]}]
                bytes_sent = len(json.dumps(messages))
                most = max(most, documented + 3 * bytes_sent)
                status, body = server.chat(messages, max_tokens=1)
                check(status in statuses, f"{what}: {status} {str(body)[:300]}")
                taken = peak(server) - start
                check(taken <= most + SLACK, f"{what}: {taken >> 20} MiB, documented {most >> 20} MiB")
                print(f"{what}: {status}, {taken >> 20} MiB of {(most + SLACK) >> 20}")
            check(server.chat([{"role": "user", "content": usual}], max_tokens=1)[0] == 200, "the usual request again")
            check(server.alive() and server.wait_idle(), "the server lives")
    return check.done()


if __name__ == "__main__":
    sys.exit(main())
