#!/usr/bin/env python3
"""Writes tests/media/data: small image files of every kind, and goldens.json with what Pillow 12 makes of them.

  tests/media/make_images.py            with the Python of the tests (tools/python_env.sh)

Each golden is the size and the SHA-256 of the RGB bytes of ImageOps.exif_transpose(image).convert("RGB"), or "error";
the same of Image.resize() for some sizes and filters.
"""

import hashlib
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps

assert PIL.__version__.startswith("12."), "Pillow 13 resizes the height first in some cases"
FOLDER = Path(__file__).parent / "data"
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
COLOR_TYPES = {"grey": (0, 1), "rgb": (2, 3), "palette": (3, 1), "grey-alpha": (4, 2), "rgb-alpha": (6, 4)}


def picture(width, height, seed):
    """Smooth colours, edges and noise, so that filters, flips and exchanged channels all show."""
    random = np.random.Generator(np.random.PCG64(seed))
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    wave = 128 + 100 * np.sin(x / 7 + seed)
    ramp = 40 + 190 * y / max(1, height - 1)
    board = 255 * ((x // 9 + y // 13) % 2)
    noise = random.normal(0, 18, (height, width, 3))
    return np.clip(np.stack([wave, ramp, board], -1) + noise, 0, 255).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack_row(samples, depth):
    if depth == 16:
        return samples.astype(">u2").tobytes()
    if depth == 8:
        return samples.astype(np.uint8).tobytes()
    bits = "".join(format(int(sample), f"0{depth}b") for sample in samples)
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


def png(kind, depth, width, height, seed, interlaced=False, before=b"", after=b""):
    """A PNG file of random samples; `before` and `after` are chunks around the pixels."""
    color_type, channels = COLOR_TYPES[kind]
    random = np.random.Generator(np.random.PCG64(seed))
    samples = random.integers(0, 1 << depth, (height, width, channels))
    if kind == "palette":
        before = chunk(b"PLTE", random.integers(0, 256, 3 * min(1 << depth, 200)).astype(np.uint8).tobytes()) + before
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    raw = b""
    for x, y, step_x, step_y in passes:
        part = samples[y::step_y, x::step_x]
        if part.size:
            raw += b"".join(b"\0" + pack_row(row.reshape(-1), depth) for row in part)
    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, interlaced)
    pixels = chunk(b"IDAT", zlib.compress(raw))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pixels + after + chunk(b"IEND", b"")


def exif(orientation, big_endian=False, kind=3, count=1):
    """kind: a TIFF type of two bytes. With three values or more they lie behind the entries."""
    order = ">" if big_endian else "<"
    values = struct.pack(order + "H", orientation) * count
    place = values.ljust(4, b"\0") if count < 3 else struct.pack(order + "I", 26)
    head = (b"MM\0*" if big_endian else b"II*\0") + struct.pack(order + "IH", 8, 1)
    entry = struct.pack(order + "HHI", 0x112, kind, count) + place + struct.pack(order + "I", 0)
    return head + entry + (values if count > 2 else b"")


def xmp(orientation):
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_files():
    depths = {"grey": (1, 2, 4, 8, 16), "rgb": (8, 16), "palette": (1, 2, 4, 8)}
    for kind in COLOR_TYPES:
        for depth in depths.get(kind, (8, 16)):
            yield f"{kind}-{depth}.png", png(kind, depth, 23, 17, depth)
            yield f"{kind}-{depth}-interlaced.png", png(kind, depth, 11, 19, depth + 1, interlaced=True)
    gamma = chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"sRGB", b"\0")
    yield "gamma.png", png("rgb", 8, 9, 9, 1, before=gamma)
    yield "grey-transparent.png", png("grey", 8, 9, 9, 2, before=chunk(b"tRNS", b"\0\x07"))
    yield "rgb-transparent.png", png("rgb", 8, 9, 9, 3, before=chunk(b"tRNS", b"\0\1\0\2\0\3"))
    yield "palette-transparent.png", png("palette", 4, 9, 9, 4, before=chunk(b"tRNS", bytes(range(16))))
    itxt = b"XML:com.adobe.xmp\0\0\0\0\0"
    yield "exif.png", png("rgb", 8, 9, 5, 5, before=chunk(b"eXIf", exif(6)))
    yield "exif-behind.png", png("rgb", 8, 9, 5, 6, after=chunk(b"eXIf", exif(8, True)))
    yield "exif-signed.png", png("rgb", 8, 9, 5, 11, before=chunk(b"eXIf", exif(7, True, kind=8)))
    yield "exif-twice.png", png("rgb", 8, 9, 5, 12, before=chunk(b"eXIf", exif(6, count=2)))
    yield "exif-thrice.png", png("rgb", 8, 9, 5, 13, before=chunk(b"eXIf", exif(8, count=3)))
    yield "xmp.png", png("rgb", 8, 9, 5, 7, before=chunk(b"iTXt", itxt + xmp(5)))
    both = chunk(b"eXIf", exif(1)) + chunk(b"iTXt", itxt + xmp(5))
    yield "exif-and-xmp.png", png("rgb", 8, 9, 5, 8, before=both)
    whole = png("rgb", 8, 40, 40, 9)
    yield "cut.png", whole[:-1000]
    yield "without-end.png", whole[:-12]
    yield "trailing.png", whole + b"trailing bytes"
    yield "one.png", png("rgb", 8, 1, 1, 10)


def jpeg_files():
    image = Image.fromarray(picture(45, 37, 1))
    for quality, sampling in ((20, 2), (75, 1), (95, 0)):
        for progressive in (False, True):
            name = f"q{quality}-{sampling}{'-progressive' if progressive else ''}.jpg"
            yield name, saved(image, "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
    small = Image.fromarray(picture(13, 9, 2))
    for orientation in range(1, 9):
        yield f"orientation-{orientation}.jpg", saved(small, "JPEG", exif=b"Exif\0\0" + exif(orientation))
    yield "big-endian.jpg", saved(small, "JPEG", exif=b"Exif\0\0" + exif(6, True))
    yield "xmp.jpg", saved(small, "JPEG", xmp=xmp(3))
    yield "grey.jpg", saved(image.convert("L"), "JPEG")
    yield "cmyk.jpg", saved(image.convert("CMYK"), "JPEG", quality=90)
    whole = saved(image, "JPEG")
    yield "cut.jpg", whole[: len(whole) // 2]
    yield "without-end.jpg", whole[:-2]
    yield "trailing.jpg", whole + b"trailing bytes"
    yield "one.jpg", saved(image.crop((0, 0, 1, 1)), "JPEG")


def webp_files():
    image = Image.fromarray(picture(45, 37, 3))
    with_alpha = image.copy()
    with_alpha.putalpha(Image.fromarray(picture(45, 37, 4)[:, :, 0]))
    yield "lossless.webp", saved(image, "WEBP", lossless=True)
    yield "lossy.webp", saved(image, "WEBP", quality=60)
    yield "alpha.webp", saved(with_alpha, "WEBP", quality=80)
    yield "alpha-lossless.webp", saved(with_alpha, "WEBP", lossless=True, exact=True)
    yield "exif.webp", saved(image, "WEBP", lossless=True, exif=exif(6))
    yield "xmp.webp", saved(image, "WEBP", lossless=True, xmp=xmp(4))
    frames = [Image.fromarray(picture(20, 16, seed)) for seed in (5, 6)]
    yield "animated.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    yield "cut.webp", saved(image, "WEBP", quality=60)[:-100]


def digest(image):
    rgb = np.asarray(image.convert("RGB"))
    return {"width": image.width, "height": image.height, "sha256": hashlib.sha256(rgb.tobytes()).hexdigest()}


def golden(data):
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        return digest(ImageOps.exif_transpose(image).convert("RGB"))
    except OSError:
        return {"error": True}


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    files = {}
    for name, data in [*png_files(), *jpeg_files(), *webp_files()]:
        (FOLDER / name).write_bytes(data)
        files[name] = golden(data)
    resizes = []
    tall = Image.fromarray(picture(2, 230, 11))
    (FOLDER / "tall.png").write_bytes(saved(tall, "PNG"))  # Pillow makes it lower first
    files["tall.png"] = digest(tall)
    for source in ("q95-0.jpg", "rgb-8.png", "one.png", "tall.png"):
        image = Image.open(FOLDER / source).convert("RGB")
        for size in ((1, 1), (7, 90), (45, 20), (64, 37), (100, 3), (23, 17), (33, 33)):
            for filter_number in (1, 2, 3):
                result = digest(image.resize(size, filter_number))
                resizes.append({"file": source, "filter": filter_number, **result})
    text = {"pillow": PIL.__version__, "files": files, "resizes": resizes}
    (FOLDER / "goldens.json").write_text(json.dumps(text, indent=1) + "\n")
    print(f"{len(files)} files, {len(resizes)} resizes")


if __name__ == "__main__":
    main()
