#!/usr/bin/env python3
"""Random image files and sizes through build/test_image and through Pillow: decoded and resized bytes must be equal.

tests/media/check_images.py [--count N] [--sizes N] [--seed N]
"""

import argparse
import hashlib
import io
import random
import subprocess
import tempfile
from pathlib import Path

import make_images
import numpy as np
from PIL import Image, ImageFile, ImageOps

ROOT = Path(__file__).resolve().parents[2]
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16")
KINDS = {"PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"), "JPEG": ("RGB", "L", "CMYK"), "WEBP": ("RGB", "RGBA")}

ImageFile.MAXBLOCK = 1 << 24  # a progressive file of noise does not fit the usual buffer of Pillow's encoder


def random_image(rng, mode):
    width, height = (rng.choice((1, rng.randint(1, 40), rng.randint(1, 300))) for _ in range(2))
    pixels = make_images.picture(width, height, rng.randrange(1 << 30))
    if mode == "I;16":
        return Image.fromarray((pixels[:, :, 0].astype(np.uint16) * 257) >> rng.randint(0, 9))
    image = Image.fromarray(pixels)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(pixels[:, ::-1, 1]))
    return image.quantize(rng.choice((2, 16, 250))) if mode == "P" else image.convert(mode)


def random_file(rng):
    kind = rng.choice(tuple(KINDS))
    options = {}
    if kind == "JPEG":
        options = {"quality": rng.randint(5, 98), "subsampling": rng.randint(0, 2), "progressive": rng.random() < 0.4}
    if kind == "WEBP":
        options = {"quality": rng.randint(5, 98), "lossless": rng.random() < 0.3}
    if rng.random() < 0.3:
        tag = make_images.exif(rng.randint(0, 9), rng.random() < 0.5)
        options["exif"] = tag if kind == "PNG" else b"Exif\0\0" + tag
    out = io.BytesIO()
    random_image(rng, rng.choice(KINDS[kind])).save(out, kind, **options)
    return out.getvalue()


def line_of(image):
    data = np.asarray(image).tobytes()
    return f"{image.width} {image.height} {hashlib.sha256(data).hexdigest()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--sizes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    lines, expected = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            data = random_file(rng)
            path = Path(folder) / str(number)
            path.write_bytes(data)
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
            lines.append(str(path))
            expected.append(line_of(image))
            for _ in range(options.sizes):
                width, height = rng.randint(1, 260), rng.choice((image.height, rng.randint(1, 260)))
                filter_number = rng.randint(1, 3)
                lines.append(f"{path} {width} {height} {filter_number}")
                expected.append(line_of(image.resize((width, height), filter_number)))
        command = [ROOT / "build/test_image", "digests"]
        run = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    ours = run.stdout.splitlines()
    wrong = [i for i in range(len(lines)) if i >= len(ours) or ours[i] != expected[i]]
    for i in wrong[:5]:
        print(f"{lines[i]}: {ours[i] if i < len(ours) else 'nothing'}, Pillow: {expected[i]}")
    print(f"{len(lines) - len(wrong)} passed, {len(wrong)} failed")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
