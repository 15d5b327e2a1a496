#!/usr/bin/env python3
"""tests/media/videos: small GIF, WebP and MJPEG files, and videos.json: what Pillow 12 makes of their frames.

tests/media/make_videos.py            # the files
tests/media/make_videos.py --random N # N more GIF files through build/test_video, against Pillow
"""

import argparse
import hashlib
import io
import json
import random
import struct
import subprocess
import tempfile
from pathlib import Path

import make_images
from PIL import Image, ImageSequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "media" / "videos"


def lzw(colours, least):
    """The codes of GIF's LZW in blocks of at most 255 bytes."""
    clear, end = 1 << least, (1 << least) + 1
    table, width, bits, count, out = {}, least + 1, 0, 0, bytearray()

    def put(code):
        nonlocal bits, count
        bits |= code << count
        count += width
        while count >= 8:
            out.append(bits & 255)
            bits >>= 8
            count -= 8

    put(clear)
    known = ()
    for colour in colours:
        if not known or known + (colour,) in table:
            known += (colour,)
            continue
        put(table[known] if len(known) > 1 else known[0])
        if len(table) + end + 1 < 4096:
            table[known + (colour,)] = len(table) + end + 1
            if len(table) + end + 1 > 1 << width and width < 12:
                width += 1
        else:
            put(clear)
            table, width = {}, least + 1
        known = (colour,)
    if known:
        put(table[known] if len(known) > 1 else known[0])
    put(end)
    if count:
        out.append(bits & 255)
    blocks = [out[i : i + 255] for i in range(0, len(out), 255)]
    return bytes([least]) + b"".join(bytes([len(b)]) + b for b in blocks) + b"\0"


def rows_of(height, interlaced):
    passes = ((0, 8), (4, 8), (2, 4), (1, 2)) if interlaced else ((0, 1),)
    return [row for first, step in passes for row in range(first, height, step)]


def gif(rng):
    """A file of random frames: palettes, places, transparent colours, disposals, rows in another order."""
    width, height = rng.randint(4, 40), rng.randint(4, 40)
    depth = rng.randint(1, 8)

    def palette(bits):
        return bytes(rng.randrange(256) for _ in range(3 << bits))

    shared = rng.random() < 0.8
    flags = (0x80 | depth - 1) if shared else 0
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, flags, rng.randrange(1 << depth), 0)
    out += palette(depth) if shared else b""
    for i in range(rng.randint(1, 6)):
        whole = i == 0 and rng.random() < 0.7
        left, top = (0, 0) if whole else (rng.randrange(width), rng.randrange(height))
        wide = width if whole else rng.randint(1, width - left)
        high = height if whole else rng.randint(1, height - top)
        local, interlaced = not shared or rng.random() < 0.3, rng.random() < 0.3
        bits = rng.randint(1, 8) if local else depth
        shown = rng.random() < 0.5
        # where the first frame is to be taken back, Pillow clears the canvas
        control = rng.choice((0, 1, 2, 3) if i else (0, 1, 2)) << 2 | int(shown)
        if rng.random() < 0.9:
            out += b"!\xf9\x04" + struct.pack("<BHBx", control, rng.randrange(0, 30), rng.randrange(1 << bits))
        if rng.random() < 0.2:
            out += b"!\xfe\x05hello\0"
        runs, step = rng.random() < 0.5, 1
        data = {}
        colour = 0
        for y in range(high):
            for x in range(wide):
                if not runs or step == 0:
                    colour, step = rng.randrange(1 << bits), rng.randint(1, 30)
                step -= 1
                data[y, x] = colour
        order = [data[y, x] for y in rows_of(high, interlaced) for x in range(wide)]
        kind = (0x80 | bits - 1 if local else 0) | (0x40 if interlaced else 0)
        out += b"," + struct.pack("<HHHHB", left, top, wide, high, kind) + (palette(bits) if local else b"")
        out += lzw(order, max(bits, 2))
    return out + (b";" if rng.random() < 0.9 else b"")


def pictures(count, width=60, height=44):
    return [Image.fromarray(make_images.picture(width, height, 40 + i)) for i in range(count)]


def files():
    found = {f"random-{i}.gif": gif(random.Random(i)) for i in range(24)}
    frames = pictures(4)
    for name, kind, options in (
        ("plain.gif", "GIF", {"duration": 100}),
        ("times.gif", "GIF", {"duration": [0, 10, 250, 1000]}),
        ("animated.webp", "WEBP", {"duration": [40, 80, 120, 160], "lossless": True}),
        ("lossy.webp", "WEBP", {"duration": 200, "quality": 60}),
    ):
        out = io.BytesIO()
        frames[0].save(out, kind, save_all=True, append_images=frames[1:], **options)
        found[name] = out.getvalue()
    stills = []
    for image in frames[:3]:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=80)
        stills.append(out.getvalue())
    found["three.mjpeg"] = stills[0] + b"\0\0" + b"".join(stills[1:])
    return found


def digest(image):
    return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


def golden_of(name, data):
    if name.endswith(".mjpeg"):
        parts = [b"\xff\xd8\xff" + part for part in data.split(b"\xff\xd8\xff")[1:]]
        return {"ends": [500 * (i + 1) for i in range(len(parts))], "frames": [frame_of(part) for part in parts]}
    with Image.open(io.BytesIO(data)) as image:
        frames, ends, time = [], [], 0
        for frame in ImageSequence.Iterator(image):
            shown = frame.copy()
            duration = frame.info.get("duration", 0)
            time += duration if duration >= 20 else 100
            frames.append(digest(shown))
            ends.append(time)
        return {"size": list(image.size), "ends": ends, "frames": frames}


def frame_of(data):
    with Image.open(io.BytesIO(data)) as image:
        return digest(image)


def check_random(count):
    program, wrong = ROOT / "build" / "test_video", 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1000, 1000 + count):
            path, data = Path(folder) / "x.gif", gif(random.Random(seed))
            path.write_bytes(data)
            printed = subprocess.run([program, path], capture_output=True, text=True).stdout.split()
            expected = golden_of(path.name, data)["frames"]
            if printed != expected:
                wrong += 1
                print(f"seed {seed}: {printed} {expected}")
    print(f"{count} files, {wrong} differ")
    return wrong > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int)
    options = parser.parse_args()
    if options.random:
        return check_random(options.random)
    FOLDER.mkdir(exist_ok=True)
    goldens = {}
    for name, data in files().items():
        (FOLDER / name).write_bytes(data)
        goldens[name] = golden_of(name, data)
    (FOLDER / "videos.json").write_text(json.dumps(goldens, indent=1) + "\n")
    print(f"{len(goldens)} files")
    return False


if __name__ == "__main__":
    raise SystemExit(main())
